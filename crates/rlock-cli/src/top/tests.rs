//! The screen, in terminals of all sizes.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use rlock_client::Mode;

use crate::counters::{Counters, Rates};
use crate::failure::{Code, Failure};

use super::recent::Percentiles;
use super::sample::{Held, Sample};
use super::screen::{Dialog, Row, Screen};
use super::view::{self, Paint};
use super::worker::{Answer, Question};

fn sample(waits: Option<Percentiles>) -> Sample {
    Sample {
        at_ms: 0,
        interval_ms: 1000,
        counters: Counters::default(),
        per_second: Rates::default(),
        waits,
        masters: Vec::new(),
        locks: Vec::new(),
    }
}

fn screen(waits: Option<Percentiles>) -> Screen {
    let paint = Paint { is_coloured: true };
    let title = ("127.0.0.1:6379/0".to_owned(), paint);
    Screen::new(sample(waits), title, Duration::from_secs(1), 50)
}

/// Locks that somebody waits for, for these times.
fn waited_for(oldest: &[Duration]) -> Screen {
    let mut screen = screen(None);
    let rows = oldest.iter().zip(0..).map(|(oldest, number)| Row {
        key: format!("lock-{number:02}").into_bytes(),
        mode: Mode::Exclusive,
        holders: 1,
        waiters: 1,
        oldest_wait: *oldest,
        held: Some(Held::by("worker-1")),
    });
    screen.rows = rows.collect();
    press(&mut screen, KeyCode::Char('n'));
    screen
}

fn press(screen: &mut Screen, key: KeyCode) -> bool {
    screen.press(KeyEvent::from(key))
}

fn drawn(screen: &mut Screen, columns: u16, lines: u16) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| view::draw(frame, screen)).unwrap();
    terminal.backend().clone()
}

fn shows(screen: &mut Screen, columns: u16, lines: u16) -> String {
    drawn(screen, columns, lines).to_string()
}

/// The colours in the line with these words.
fn colour_of(backend: &TestBackend, words: &str) -> Vec<Color> {
    let buffer = backend.buffer();
    let lines = buffer.content.chunks(buffer.area.width.into());
    let mut lines = lines.map(|line| {
        let text: String = line.iter().map(|cell| cell.symbol()).collect();
        (text, line)
    });
    let (_, line) = lines.find(|(text, _)| text.contains(words)).unwrap();
    let mut colours: Vec<_> = line.iter().map(|cell| cell.fg).collect();
    colours.dedup();
    colours.retain(|colour| *colour != Color::Reset);
    colours
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_colour_shows_how_long_the_oldest_waits() {
    let short = SECOND - Duration::from_millis(1);
    let mut screen = waited_for(&[short, SECOND, 10 * SECOND]);
    let backend = drawn(&mut screen, 80, 24);
    assert_eq!(colour_of(&backend, "lock-00"), []);
    assert_eq!(colour_of(&backend, "lock-01"), [Color::Yellow]);
    assert_eq!(colour_of(&backend, "lock-02"), [Color::Red]);
    screen.paint.is_coloured = false;
    let backend = drawn(&mut screen, 80, 24);
    assert_eq!(colour_of(&backend, "lock-02"), []);
}

#[test]
fn no_size_of_the_terminal_is_too_small() {
    let mut screen = waited_for(&[SECOND; 40]);
    let failure = Failure::new(Code::Unreachable, "cannot reach the server at 127.0.0.1");
    screen.sample.failure = Some(failure);
    for open in [false, true] {
        if open {
            press(&mut screen, KeyCode::Enter);
        }
        for dialog in [false, true] {
            for columns in [1, 2, 3, 5, 8, 13, 21, 34, 60, 200] {
                for lines in (1..20).chain([60]) {
                    screen.dialog = dialog.then_some(Dialog::Help);
                    shows(&mut screen, columns, lines);
                }
            }
        }
    }
}

#[test]
fn the_title_is_there_whatever_has_no_room() {
    let mut screen = waited_for(&[SECOND; 40]);
    for lines in 1..30 {
        let shown = shows(&mut screen, 60, lines);
        assert!(shown.contains("rlock top"), "{shown}");
        // The selected lock is in view as soon as there is room for one.
        assert_eq!(shown.contains("lock-00"), lines >= 5, "{shown}");
        assert_eq!(shown.contains("per second"), lines >= 12, "{shown}");
    }
}

#[test]
fn what_is_old_is_not_shown_as_new() {
    let mut screen = screen(None);
    assert!(shows(&mut screen, 60, 10).contains("nobody waits for any lock"));
    screen.sample.at = Instant::now() - 12 * SECOND;
    let shown = shows(&mut screen, 60, 10);
    assert!(shown.contains("as of 12 s ago"), "{shown}");
    assert!(shown.contains("nobody waited for any lock"), "{shown}");
}

#[test]
fn a_failure_is_shown_at_once_with_the_age() {
    let mut screen = screen(None);
    let failure = Failure::new(Code::Unreachable, "cannot reach the server");
    screen.update(Answer::Sample(Err(failure)));
    let shown = shows(&mut screen, 60, 12);
    assert!(
        shown.contains("cannot reach the server; asking again"),
        "{shown}"
    );
    assert!(shown.contains("as of 0 s ago"), "{shown}");
    screen.update(Answer::Sample(Ok(sample(None))));
    let shown = shows(&mut screen, 60, 12);
    assert!(!shown.contains("as of"), "{shown}");
}

#[test]
fn what_was_paused_says_since_when() {
    let mut screen = screen(None);
    press(&mut screen, KeyCode::Char('p'));
    screen.sample.at = Instant::now() - 75 * SECOND;
    let shown = shows(&mut screen, 60, 12);
    assert!(shown.contains("paused, as of 1m 15s ago"), "{shown}");
    assert_eq!(screen.question(), None);
}

#[test]
fn waits_are_those_of_the_last_seconds() {
    let waits = Percentiles {
        over_ms: 10_400,
        count: 123,
        p50_usec: Some(85),
        p99_usec: Some(1_250),
    };
    let shown = shows(&mut screen(Some(waits)), 60, 20);
    for words in ["p50 85 us", "p99 1.2 ms", "123 in 10 s"] {
        assert!(shown.contains(words), "{shown}");
    }
    let none = Percentiles {
        over_ms: 10_400,
        ..Percentiles::default()
    };
    let shown = shows(&mut screen(Some(none)), 60, 20);
    assert!(shown.contains("no hand-off in the last 10 s"), "{shown}");
}

#[test]
fn a_module_without_the_histogram_is_named_as_older() {
    let shown = shows(&mut screen(None), 60, 20);
    let words = "waited      not known: the module is older than this rlock";
    assert!(shown.contains(words), "{shown}");
    assert!(!shown.contains("p50"), "{shown}");
}

#[test]
fn only_locks_in_view_are_asked_for_their_holders() {
    let mut screen = waited_for(&[SECOND; 40]);
    for row in &mut screen.rows {
        row.held = None;
    }
    // Title, space, column titles and the legend take four lines.
    shows(&mut screen, 60, 7);
    let keys = |places: [usize; 3]| places.map(|it| format!("lock-{it:02}").into_bytes());
    let asked = |places| Some(Question::Holders(keys(places).to_vec()));
    assert_eq!(screen.question(), asked([0, 1, 2]));
    press(&mut screen, KeyCode::End);
    shows(&mut screen, 60, 7);
    assert_eq!(screen.question(), asked([37, 38, 39]));
}

#[test]
fn holders_and_queue_are_asked_for_even_if_samples_take_longer_than_the_interval() {
    let mut screen = waited_for(&[SECOND]);
    let sampled = |screen: &mut Screen| {
        let rows = screen.rows.clone();
        screen.update(Answer::Sample(Ok(sample(None))));
        screen.rows = rows;
        screen.refresh();
    };
    sampled(&mut screen);
    assert!(matches!(screen.question(), Some(Question::Holders(_))));
    assert_eq!(screen.question(), Some(Question::Sample(50)));
    press(&mut screen, KeyCode::Char('g'));
    press(&mut screen, KeyCode::Enter);
    let queue = Some(Question::Queue(b"lock-00".to_vec()));
    assert_eq!(screen.question(), queue);
    sampled(&mut screen);
    assert_eq!(screen.question(), queue);
    assert_eq!(screen.question(), Some(Question::Sample(50)));
}

#[test]
fn a_page_is_what_fits() {
    let mut screen = waited_for(&[SECOND; 40]);
    for (key, selected) in [
        (KeyCode::PageDown, 3),
        (KeyCode::Char(' '), 6),
        (KeyCode::Char('j'), 7),
        (KeyCode::Char('b'), 4),
        (KeyCode::Up, 3),
        (KeyCode::Char('G'), 39),
        (KeyCode::Down, 39),
        (KeyCode::Home, 0),
        (KeyCode::PageUp, 0),
    ] {
        shows(&mut screen, 60, 7);
        press(&mut screen, key);
        assert_eq!(screen.locks.selected(), Some(selected), "{key}");
    }
}

#[test]
fn escape_undoes_one_thing_at_a_time() {
    let mut screen = waited_for(&[SECOND; 3]);
    let escape = |screen: &mut Screen| press(screen, KeyCode::Esc);
    press(&mut screen, KeyCode::Enter);
    press(&mut screen, KeyCode::Char('?'));
    assert!(!escape(&mut screen) && screen.dialog.is_none());
    assert!(!escape(&mut screen) && screen.queue.is_none());
    press(&mut screen, KeyCode::Char('/'));
    press(&mut screen, KeyCode::Char('q'));
    assert_eq!(screen.filter, "q");
    press(&mut screen, KeyCode::Enter);
    assert!(!escape(&mut screen) && screen.filter.is_empty());
    assert!(escape(&mut screen));
}

#[test]
fn a_question_that_was_left_does_not_come_back() {
    let mut screen = waited_for(&[SECOND]);
    press(&mut screen, KeyCode::Char('F'));
    let key = b"lock-00".to_vec();
    assert_eq!(screen.question(), Some(Question::Confirm(key.clone())));
    press(&mut screen, KeyCode::Char('y'));
    let failure = Failure::new(Code::Refused, "no");
    screen.update(Answer::Confirm(key, Err(failure)));
    assert!(screen.dialog.is_none());
    assert!(!matches!(screen.question(), Some(Question::Force(..))));
}

#[test]
fn what_a_server_says_of_a_force_is_shown_with_its_hint() {
    let mut screen = screen(None);
    let failure = Failure::new(Code::Refused, "NOPERM: no permission").with_hint("see the rights");
    screen.update(Answer::Force(b"k".to_vec(), Err(failure)));
    let shown = shows(&mut screen, 60, 20);
    for words in ["NOPERM: no permission", "see the rights"] {
        assert!(shown.contains(words), "{shown}");
    }
    screen.update(Answer::Force(b"k".to_vec(), Ok(2)));
    assert!(shows(&mut screen, 60, 20).contains("k: 2 holders removed"));
    screen.update(Answer::Force(b"k".to_vec(), Ok(0)));
    assert!(shows(&mut screen, 60, 20).contains("nothing was changed"));
}
