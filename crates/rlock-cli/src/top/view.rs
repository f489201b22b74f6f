//! Draws the screen of `top`.
//!
//! It needs 60 columns. A smaller terminal shows only a part.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Clear, Padding, Paragraph, Scrollbar, ScrollbarOrientation, ScrollbarState, TableState,
};

use crate::info::{HOLDERS, LockInfo, WAITERS};
use crate::readable::{Column, duration, lossy, printable};

use super::head;
use super::keys::KEYS;
use super::screen::{Confirm, Dialog, Row, Screen};
use super::table::{Fitted, cut, width};

/// Waits from these times on are shown as long, and as too long.
const LONG: Duration = Duration::from_secs(1);
const TOO_LONG: Duration = Duration::from_secs(10);

/// The numbers are shown only if this number of lines is left for the list.
const LIST_MIN: usize = 8;
/// The largest inner width of a dialog.
const DIALOG_WIDTH: u16 = 62;
/// How many holders the question names before it ends their holds.
const NAMED_MAX: usize = 3;
/// A key or an owner takes at most this number of lines of a dialog.
const NAME_LINES: usize = 2;

const LOCKS: &[Column<Row>] = &[
    Column::name("KEY", |it: &Row, _| lossy(&it.key)),
    Column::name("HOLDER", |it: &Row, _| {
        let held = it.held.as_ref();
        held.map_or(String::new(), |held| held.by.clone())
    }),
    Column::text("MODE", |it: &Row, _| it.mode.to_string())
        .usually("exclusive")
        .spare(),
    Column::number("WAITERS", |it: &Row, _| it.waiters.to_string()),
    Column::number("OLDEST WAIT", |it: &Row, _| duration(it.oldest_wait))
        .waited(|it: &Row| it.oldest_wait),
    Column::name("VALUE", |it: &Row, _| {
        let value = it.held.as_ref().and_then(|held| held.value.clone());
        value.unwrap_or_default()
    })
    .usually("")
    .spare(),
];

pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let area = frame.area();
    let title = titles(screen, area.width.into());
    let numbers = numbers(screen, area, title.len());
    let [top, above, _, body, below] = Layout::vertical([
        length(title.len()),
        length(numbers.len()),
        Constraint::Length(1),
        Constraint::Fill(1),
        // The title shows the age of everything, so it is left out last.
        Constraint::Length(area.height.saturating_sub(1).min(1)),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(title), top);
    frame.render_widget(Paragraph::new(numbers), above);
    let shown = match screen.queue {
        None => draw_locks(frame, body, screen),
        Some(_) => draw_queue(frame, body, screen),
    };
    if screen.is_stale() {
        frame.buffer_mut().set_style(above.union(body), dim());
    }
    let foot = foot(screen, below.width.into(), &shown);
    frame.render_widget(foot, below);
    draw_dialog(frame, screen);
}

/// The title, and why the numbers are old, if they are.
fn titles(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let mut lines = vec![title(screen, room)];
    if let Some(failure) = screen.failure() {
        let words = format!("{}; asking again", printable(&failure.message));
        lines.extend(wrapped(&words, room, screen.paint.bad()));
    }
    lines
}

/// The numbers, if they fit.
fn numbers(screen: &Screen, area: Rect, taken: usize) -> Vec<Line<'static>> {
    if screen.queue.is_some() {
        return Vec::new();
    }
    let numbers = head::numbers(screen, area.width.into());
    match taken + numbers.len() + LIST_MIN <= area.height.into() {
        true => numbers,
        false => Vec::new(),
    }
}

fn title(screen: &Screen, room: usize) -> Line<'static> {
    let age = seconds(screen.age());
    let (state, style) = match (screen.is_stale(), screen.is_paused) {
        (true, _) => (format!("as of {age} ago"), screen.paint.bad()),
        (false, true) => (format!("paused, as of {age} ago"), screen.paint.notable()),
        (false, false) => {
            let every = humantime::format_duration(screen.every);
            (format!("every {every}, by {}", screen.sort.name()), dim())
        }
    };
    let name = "rlock top  ";
    let taken = width(name) + width(&state) + 2;
    let server = cut(&screen.server, room.saturating_sub(taken));
    let left = vec![Span::styled(name, bold()), Span::raw(server)];
    spread(left, Span::styled(state, style), room)
}

/// One part at the left, the other at the right.
fn spread(mut left: Vec<Span<'static>>, right: Span<'static>, room: usize) -> Line<'static> {
    let taken = left.iter().map(Span::width).sum::<usize>() + right.width();
    left.push(Span::raw(" ".repeat(room.saturating_sub(taken))));
    left.push(right);
    Line::from(left)
}

/// Draws the list. Returns which part of it is shown.
fn draw_locks(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen) -> String {
    if screen.rows.is_empty() {
        let words = empty_list(screen);
        let lines = wrapped(&words, area.width.into(), Style::new());
        frame.render_widget(Paragraph::new(lines), area);
        return String::new();
    }
    screen.page = list_lines(area);
    let (rows, state) = (&screen.rows, &mut screen.locks);
    draw_list(frame, area, (LOCKS, rows), state, screen.paint)
        .map_or(String::new(), |part| format!("{part} of {}", rows.len()))
}

/// Why there are no locks.
fn empty_list(screen: &Screen) -> String {
    let sample = &screen.sample.it;
    let listed = sample.locks.len();
    if listed > 0 {
        let filter = printable(&screen.filter);
        return format!("none of the {listed} most contended locks has `{filter}` in its name");
    }
    if screen.is_stale() || screen.is_paused {
        return "nobody waited for any lock".to_owned();
    }
    match sample.masters.iter().any(|master| master.error.is_some()) {
        true => "nobody waits for any lock of the masters that answer".to_owned(),
        false => "nobody waits for any lock".to_owned(),
    }
}

/// How many lines of a table fit into an area, below its titles.
fn list_lines(area: Rect) -> usize {
    usize::from(area.height).saturating_sub(1)
}

/// Draws a table. If it does not fit, adds a scroll bar and returns which lines
/// are shown.
fn draw_list<T>(
    frame: &mut Frame<'_>,
    area: Rect,
    (columns, things): (&[Column<T>], &[T]),
    state: &mut TableState,
    paint: Paint,
) -> Option<String> {
    let (lines, count) = (list_lines(area), things.len());
    let last = count.saturating_sub(lines);
    *state.offset_mut() = state.offset().min(last);
    let bar = if last > 0 { 2 } else { 0 };
    let room = Rect {
        width: area.width.saturating_sub(bar),
        ..area
    };
    let fitted = Fitted::new(columns, things, room.width.into());
    let table = fitted.table(things, |wait| paint.wait(wait));
    frame.render_stateful_widget(table, room, state);
    if last == 0 || lines == 0 {
        return None;
    }
    let first = state.offset();
    let beside = Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    };
    let mut scrolled = ScrollbarState::new(last + 1)
        .position(first)
        .viewport_content_length(lines);
    let bar = Scrollbar::new(ScrollbarOrientation::VerticalRight)
        .begin_symbol(None)
        .end_symbol(None)
        .track_symbol(Some("│"))
        .style(dim());
    frame.render_stateful_widget(bar, beside, &mut scrolled);
    Some(format!("{}-{}", first + 1, first + lines))
}

/// Draws holders and waiters of a lock. Returns which part of the waiters is
/// shown.
fn draw_queue(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen) -> String {
    let (paint, room) = (screen.paint, usize::from(area.width));
    let Some(queue) = &mut screen.queue else {
        return String::new();
    };
    let Some(LockInfo { key, info }) = &queue.lock.it else {
        let words = format!("asking who waits for {}", lossy(&queue.key));
        let lines = wrapped(&words, room, Style::new());
        frame.render_widget(Paragraph::new(lines), area);
        return String::new();
    };
    let state = format!(": {}, {} queued", info.mode, info.queued);
    let name = cut(&printable(key), room.saturating_sub(width(&state)));
    let title = Line::styled(name + &state, bold());
    // The holders get at most half of the space.
    let holder_lines = (info.holders.len() + 1).min((area.height / 2).into());
    let [above, _, holders, _, waiters] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        length(holder_lines),
        Constraint::Length(1),
        Constraint::Fill(1),
    ])
    .areas(area);
    frame.render_widget(title, above);
    draw_holders(frame, holders, info, paint);
    if info.waiters.is_empty() {
        frame.render_widget("nobody waits for it", waiters);
        return String::new();
    }
    screen.page = list_lines(waiters);
    let state = &mut queue.waiters;
    let part = draw_list(frame, waiters, (WAITERS, &info.waiters), state, paint);
    let listed = info.waiters.len();
    part.map_or(String::new(), |part| match info.queued > listed as u64 {
        true => format!("{part} of the first {listed}"),
        false => format!("{part} of {listed}"),
    })
}

/// Draws the holders that fit, and the number of the others.
fn draw_holders(frame: &mut Frame<'_>, area: Rect, info: &rlock_client::Info, paint: Paint) {
    let holders = &info.holders;
    if holders.is_empty() {
        return frame.render_widget("nobody holds it", area);
    }
    let lines = list_lines(area);
    let (shown, more) = match holders.len() <= lines {
        true => (holders.len(), 0),
        false => {
            let shown = lines.saturating_sub(1);
            (shown, holders.len() - shown)
        }
    };
    let fitted = Fitted::new(HOLDERS, &holders[..shown], area.width.into());
    let table = fitted.table(&holders[..shown], |wait| paint.wait(wait));
    frame.render_widget(table, area);
    if more > 0 {
        let last = Rect {
            y: area.bottom().saturating_sub(1),
            height: area.height.min(1),
            ..area
        };
        let words = format!("and {more} more");
        frame.render_widget(Line::styled(words, dim()), last);
    }
}

/// The last line: the text that the user types, or the keys, and which part is
/// shown.
fn foot(screen: &Screen, room: usize, shown: &str) -> Line<'static> {
    let filter = format!("/{}", printable(&screen.filter));
    let mut left = Vec::new();
    let legend: &[&str] = match (screen.is_typing, screen.queue.is_some()) {
        (true, _) => &["Enter keeps it", "Esc clears it"],
        (false, false) => &[
            "? help",
            "q quit",
            "Enter queue",
            "/ filter",
            "F force",
            "p pause",
            "sort: w)aiters o)ldest n)ame",
        ],
        (false, true) => &[
            "? help",
            "Esc back",
            "↑↓ scroll",
            "←→ other locks",
            "F force",
            "p pause",
            "q quit",
        ],
    };
    if screen.is_typing {
        left.push(Span::styled(filter, bold()));
        left.push(Span::styled(" ", Modifier::REVERSED));
    } else if !screen.filter.is_empty() && screen.queue.is_none() {
        left.push(Span::styled(filter, screen.paint.notable()));
    }
    let mut taken: usize = left.iter().map(Span::width).sum();
    for words in legend {
        let gap = if taken == 0 { "" } else { "  " };
        taken += width(gap) + width(words);
        if taken + 2 + width(shown) > room {
            break;
        }
        left.push(Span::styled(format!("{gap}{words}"), dim()));
    }
    spread(left, Span::styled(shown.to_owned(), dim()), room)
}

/// Draws the dialog, if there is one.
fn draw_dialog(frame: &mut Frame<'_>, screen: &mut Screen) {
    let area = frame.area();
    let paint = screen.paint;
    let room = usize::from(area.width.saturating_sub(4).min(DIALOG_WIDTH));
    let fits = |lines: &[Line<'_>]| {
        let is_high_enough = lines.len() + 2 <= area.height.into();
        is_high_enough && lines.iter().all(|line| line.width() <= room)
    };
    let (title, lines) = match &mut screen.dialog {
        None => return,
        Some(Dialog::Help) => ("Keys", help()),
        Some(Dialog::Loading(key)) => {
            let words = vec![format!("asking who holds {}", lossy(key))];
            ("Force", statement(&words, room))
        }
        Some(Dialog::Confirm(confirm)) => {
            let lines = question(confirm, room, paint);
            confirm.is_shown = fits(&lines);
            let too_small = "the terminal is too small to ask whether to end holds";
            let instead = || statement(&[too_small.to_owned()], room);
            ("Force", if confirm.is_shown { lines } else { instead() })
        }
        Some(Dialog::Message(words)) => ("Force", statement(words, room)),
    };
    let widest = lines.iter().map(Line::width).max().unwrap_or_default();
    let place = area.centered(length(widest + 4), length(lines.len() + 2));
    let block = Block::bordered()
        .title(Span::styled(format!(" {title} "), bold()))
        .title_alignment(Alignment::Left)
        .padding(Padding::horizontal(1));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

fn help() -> Vec<Line<'static>> {
    let keys = KEYS.iter().map(|(keys, what)| {
        let keys = Span::styled(format!("{keys:15}"), bold());
        Line::from(vec![keys, Span::raw(*what)])
    });
    keys.chain(any_key()).collect()
}

/// A message, and the note that any key closes it.
fn statement(words: &[String], room: usize) -> Vec<Line<'static>> {
    let lines = words
        .iter()
        .flat_map(|words| wrapped(&printable(words), room, Style::new()));
    lines.chain(any_key()).collect()
}

fn any_key() -> [Line<'static>; 2] {
    [Line::default(), Line::styled("any key closes this", dim())]
}

/// The question whether to end the holds of a lock.
fn question(confirm: &Confirm, room: usize, paint: Paint) -> Vec<Line<'static>> {
    let LockInfo { key, info } = &confirm.lock;
    let name = |name: &str| cut(&printable(name), room * NAME_LINES);
    let plain = Style::new();
    let mut lines = wrapped(&format!("End every hold of {}?", name(key)), room, bold());
    for holder in info.holders.iter().take(NAMED_MAX) {
        lines.push(Line::default());
        lines.extend(wrapped(&name(&holder.owner), room, plain));
        let fence = holder.fence.map_or("none".to_owned(), |it| it.to_string());
        let lease = duration(holder.lease_left);
        let words = format!("fence {fence}, lease left {lease}");
        lines.extend(wrapped(&words, room, plain));
    }
    if let more @ 1.. = info.holders.len().saturating_sub(NAMED_MAX) {
        lines.push(Line::from(format!("and {more} more")));
    }
    let who = match info.holders.len() {
        1 => "The holder",
        _ => "A holder",
    };
    let next = match info.queued {
        0 => "Nobody waits for it.",
        _ => "Then the next in the queue gets it.",
    };
    let effect = format!("{who} learns that it lost the lock, but may still be at work. {next}");
    lines.push(Line::default());
    lines.extend(wrapped(&effect, room, plain));
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("y", paint.bad()),
        Span::raw(" ends the holds, any other key leaves them"),
    ]));
    lines
}

/// Words in lines of `room` columns.
pub(super) fn wrapped(words: &str, room: usize, style: Style) -> Vec<Line<'static>> {
    let lines = textwrap::wrap(words, room.max(1)).into_iter();
    lines
        .map(|line| Line::styled(line.into_owned(), style))
        .collect()
}

/// `12 s`, `1m 2s`.
pub(super) fn seconds(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => humantime::format_duration(Duration::from_secs(seconds)).to_string(),
    }
}

fn length(lines: usize) -> Constraint {
    Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX))
}

pub(super) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(super) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// The colours, if the terminal has them and the user wants them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    pub(super) is_coloured: bool,
}

impl Paint {
    /// The style of a waiter, by its wait.
    fn wait(self, wait: Duration) -> Style {
        match wait {
            _ if wait >= TOO_LONG => self.bad(),
            _ if wait >= LONG => self.of(Color::Yellow),
            _ => Style::new(),
        }
    }

    /// The style for failures.
    pub(super) fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// The style for unusual values.
    pub(super) fn notable(self) -> Style {
        self.of(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn of(self, colour: Color) -> Style {
        match self.is_coloured {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}
