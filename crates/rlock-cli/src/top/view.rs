//! Draws the screen of `top`.
//!
//! It is made for 60 columns and more.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Clear, Padding, Paragraph, Scrollbar, ScrollbarOrientation, ScrollbarState,
};

use crate::info::{HOLDERS, LockInfo, WAITERS};
use crate::readable::{Column, duration, lossy, microseconds, printable};

use super::keys::KEYS;
use super::sample::Master;
use super::screen::{Above, Row, Screen};
use super::table::{Fitted, cut, width};

/// From when on a wait is shown as long, and as too long.
const LONG: Duration = Duration::from_secs(1);
const TOO_LONG: Duration = Duration::from_secs(10);

/// The width of what says what a line of numbers is about.
const LABEL: usize = 12;
/// The width of one number and its name: three of them fit into 60 columns.
const NUMBER: usize = 16;
/// The largest rate that is shown in full.
const RATE_MAX: f64 = 999_999.0;
/// How many masters are named that show nothing.
const AWAY_MAX: usize = 3;
/// How wide questions and answers are at most.
const ABOVE_WIDTH: usize = 66;

/// The rates by their names in `INFO rlock`, and what they are called here.
const RATES: &[(&str, &str)] = &[
    ("acquires", "acquires"),
    ("grants", "grants"),
    ("handoffs", "hand-offs"),
    ("releases", "releases"),
    ("renewals", "renewals"),
    ("refusals", "refused"),
    ("wait_timeouts", "timed out"),
    ("waiters_gone", "gone"),
    ("lease_expirations", "expired"),
    ("force_releases", "forced"),
    ("deadlocks", "deadlocks"),
    ("evicted_locks", "evicted"),
    ("panics", "panics"),
];

const LOCKS: &[Column<Row>] = &[
    Column::name("KEY", |it: &Row, _| lossy(&it.key)),
    Column::name("HOLDER", |it: &Row, _| {
        let held = it.held.as_ref();
        held.map_or(String::new(), |held| held.by.clone())
    }),
    Column::name("VALUE", |it: &Row, _| {
        let value = it.held.as_ref().and_then(|held| held.value.clone());
        value.unwrap_or_default()
    })
    .usually(""),
    Column::text("MODE", |it: &Row, _| it.mode.to_string()).usually("exclusive"),
    Column::number("WAITERS", |it: &Row, _| it.waiters.to_string()),
    Column::number("OLDEST WAIT", |it: &Row, _| duration(it.oldest_wait))
        .waited(|it: &Row| it.oldest_wait),
];

pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let area = frame.area();
    let head = head(screen, area.width.into());
    let lines = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let [above, body, below] = Layout::vertical([
        Constraint::Length(lines.saturating_add(1)),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head), above);
    let shown = match screen.queue {
        None => draw_locks(frame, body, screen),
        Some(_) => draw_queue(frame, body, screen),
    };
    if screen.is_stale() {
        frame.buffer_mut().set_style(body, dim());
    }
    let foot = foot(screen, area.width.into(), &shown);
    frame.render_widget(Paragraph::new(foot), below);
    draw_above(frame, screen);
}

/// The title; why it is old, if it is; and the numbers, if no queue is shown.
fn head(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let mut lines = vec![title(screen, room)];
    if let Some(failure) = &screen.failure {
        let words = format!("{}; asking again", printable(&failure.message));
        lines.extend(wrapped(&words, room, screen.paint.bad()));
    }
    if screen.queue.is_none() {
        lines.extend(masters(screen, room));
        lines.extend(warnings(screen, room));
        lines.extend(now(screen, room));
        lines.extend(waited(screen, room));
        lines.extend(rates(screen, room));
    }
    lines
}

fn title(screen: &Screen, room: usize) -> Line<'static> {
    let mut states = Vec::new();
    if screen.is_paused {
        states.push(Span::styled("paused", screen.paint.notable()));
    }
    if let Some(age) = screen.age() {
        let style = match screen.is_stale() {
            true => screen.paint.bad(),
            false => screen.paint.notable(),
        };
        states.push(Span::styled(format!("as of {} ago", seconds(age)), style));
    }
    if states.is_empty() {
        let every = humantime::format_duration(screen.every);
        let sort = screen.sort.name();
        states.push(Span::styled(format!("every {every}, by {sort}"), dim()));
    }
    let states: Vec<_> = with_gaps(states, "  ");
    let taken: usize = states.iter().map(Span::width).sum();
    let name = "rlock top  ";
    let server = cut(&screen.server, room.saturating_sub(name.len() + taken + 2));
    let gap = room.saturating_sub(name.len() + width(&server) + taken);
    let mut line = vec![
        Span::styled(name, bold()),
        Span::raw(server),
        Span::raw(" ".repeat(gap)),
    ];
    line.extend(states);
    Line::from(line)
}

fn with_gaps(spans: Vec<Span<'static>>, gap: &'static str) -> Vec<Span<'static>> {
    let mut all = Vec::new();
    for span in spans {
        if !all.is_empty() {
            all.push(Span::raw(gap));
        }
        all.push(span);
    }
    all
}

/// How many masters there are if that is not one, and those that show nothing.
fn masters(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let masters = &screen.sample.masters;
    if masters.len() < 2 {
        return Vec::new();
    }
    let silent = |master: &Master| {
        let error = master.error.as_ref()?;
        Some(format!("{}: {}", master.address, printable(error)))
    };
    let silent: Vec<_> = masters.iter().filter_map(silent).collect();
    let count = match silent.len() {
        0 => vec![number(masters.len(), "masters")],
        away => vec![
            number(masters.len() - away, "masters answer"),
            number(away, "show nothing"),
        ],
    };
    let mut lines = grid("", count, room);
    for line in silent.iter().take(AWAY_MAX) {
        let line = cut(line, room.saturating_sub(LABEL));
        let style = screen.paint.bad();
        lines.push(Line::from(vec![label(""), Span::styled(line, style)]));
    }
    lines
}

/// Why locks may be lost, or are not granted.
fn warnings(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let now = |name: &str| screen.sample.counters.get(name);
    let mut words = Vec::new();
    if now("eviction_risk") > 0 {
        words.push("maxmemory-policy may evict locks".to_owned());
    }
    if let grace @ 1.. = now("grace_left_ms") {
        let grace = duration(Duration::from_millis(grace));
        words.push(format!("start grace: nothing is granted for {grace}"));
    }
    let style = screen.paint.notable();
    let lines = words.iter().flat_map(|words| wrapped(words, room, style));
    lines.collect()
}

fn now(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let now = |name: &str| screen.sample.counters.get(name);
    let mut numbers = vec![
        number(now("waiters"), "waiters"),
        number(now("contended_locks"), "locks"),
    ];
    for (name, words) in [
        ("places_kept", "kept"),
        ("watches", "watches"),
        ("bound_holds", "bound"),
    ] {
        if now(name) > 0 {
            numbers.push(number(now(name), words));
        }
    }
    grid("now", numbers, room)
}

fn waited(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let waited = |name: &str, words| {
        let time = screen.sample.counters.get(name);
        named(words, microseconds(time))
    };
    if screen.sample.counters.get("handoffs") == 0 {
        let words = Span::styled("no lock was handed on yet", dim());
        return vec![Line::from(vec![label("waited"), words])];
    }
    let numbers = vec![
        waited("wait_usec_p50", "p50"),
        waited("wait_usec_p99", "p99"),
        waited("wait_usec_max", "max"),
        vec![Span::styled("since start", dim())],
    ];
    grid("waited", numbers, room)
}

fn rates(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let rates = RATES.iter().filter_map(|(name, words)| {
        let rate = match screen.rate(name)? {
            rate if rate < 1000.0 => format!("{rate:.1}"),
            rate => format!("{:.0}", rate.min(RATE_MAX)),
        };
        Some(number(rate, words))
    });
    let rates: Vec<_> = rates.collect();
    if rates.is_empty() {
        let words = Span::styled("nothing happens", dim());
        return vec![Line::from(vec![label("per second"), words])];
    }
    grid("per second", rates, room)
}

fn label(words: &str) -> Span<'static> {
    Span::styled(format!("{words:LABEL$}"), bold())
}

/// A number and what it counts.
fn number(number: impl std::fmt::Display, words: &str) -> Vec<Span<'static>> {
    let number = format!("{number:>6} ");
    vec![Span::raw(number), Span::styled(words.to_owned(), dim())]
}

/// What is measured, and how much it is.
fn named(words: &str, value: String) -> Vec<Span<'static>> {
    let words = format!("{words:>6} ");
    vec![Span::styled(words, dim()), Span::raw(value)]
}

/// Numbers side by side, in as many lines as it takes.
fn grid(words: &str, numbers: Vec<Vec<Span<'static>>>, room: usize) -> Vec<Line<'static>> {
    let in_line = (room.saturating_sub(LABEL) / NUMBER).max(1);
    let mut lines = Vec::new();
    for numbers in numbers.chunks(in_line) {
        let mut line = vec![label(if lines.is_empty() { words } else { "" })];
        for number in numbers {
            let taken: usize = number.iter().map(Span::width).sum();
            line.extend(number.iter().cloned());
            line.push(Span::raw(" ".repeat(NUMBER.saturating_sub(taken))));
        }
        lines.push(Line::from(line));
    }
    lines
}

/// Draws the list; which part of it.
fn draw_locks(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen) -> String {
    if screen.rows.is_empty() {
        let words = nobody(screen);
        let lines = wrapped(&words, area.width.into(), Style::new());
        frame.render_widget(Paragraph::new(lines), area);
        return String::new();
    }
    let (count, place) = (screen.rows.len(), screen.place());
    let lines = usize::from(area.height).saturating_sub(1);
    let window = match place {
        Some(place) => screen.locks.around(place, lines, count),
        None => screen.locks.of(lines, count),
    };
    let room = table_room(area, window.len() < count);
    let fitted = Fitted::new(LOCKS, &screen.rows, room.width.into());
    let paint = screen.paint;
    let table = fitted.table(&screen.rows, window.clone(), place, |wait| paint.wait(wait));
    frame.render_widget(table, room);
    scrollbar(frame, area, &window, count)
}

/// Why there are no locks.
fn nobody(screen: &Screen) -> String {
    let masters = &screen.sample.masters;
    let listed = screen.sample.locks.len();
    if !screen.filter.is_empty() && listed > 0 {
        let filter = printable(&screen.filter);
        return format!("none of {listed} contended locks has `{filter}` in its name");
    }
    if screen.is_stale() {
        return "nobody waited for any lock".to_owned();
    }
    match masters.iter().any(|master| master.error.is_some()) {
        true => "nobody waits for any lock of the masters that answer".to_owned(),
        false => "nobody waits for any lock".to_owned(),
    }
}

/// What is left of the area beside a scroll bar.
fn table_room(area: Rect, has_bar: bool) -> Rect {
    let bar = if has_bar { 2 } else { 0 };
    let width = area.width.saturating_sub(bar);
    Rect { width, ..area }
}

/// Draws where the window is, if it does not show all lines; the same in words.
fn scrollbar(
    frame: &mut Frame<'_>,
    area: Rect,
    window: &std::ops::Range<usize>,
    count: usize,
) -> String {
    if window.len() >= count {
        return String::new();
    }
    let lines = Rect {
        y: area.y.saturating_add(1),
        height: area.height.saturating_sub(1),
        ..area
    };
    let last = count.saturating_sub(window.len());
    let mut state = ScrollbarState::new(last + 1)
        .position(window.start)
        .viewport_content_length(window.len());
    let bar = Scrollbar::new(ScrollbarOrientation::VerticalRight)
        .begin_symbol(None)
        .end_symbol(None)
        .style(dim());
    frame.render_stateful_widget(bar, lines, &mut state);
    format!("{}-{} of {count}", window.start + 1, window.end)
}

/// Draws holders and waiters of one lock; which part of these.
fn draw_queue(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen) -> String {
    let (paint, room) = (screen.paint, usize::from(area.width));
    let Some(queue) = &mut screen.queue else {
        return String::new();
    };
    let mut title = Vec::new();
    if let Some(failure) = &queue.failure {
        title.extend(wrapped(&printable(&failure.message), room, paint.bad()));
    }
    let Some(LockInfo { key, info }) = &queue.lock else {
        frame.render_widget(Paragraph::new(title), area);
        return String::new();
    };
    let words = format!("{}: {}, {} queued", printable(key), info.mode, info.queued);
    title.extend(wrapped(&words, room, bold()));
    // What there is of everything else is shown of holders, but not more than fits
    // into a third.
    let title_lines = u16::try_from(title.len()).unwrap_or(u16::MAX);
    let holders_max = usize::from(area.height / 3).max(1);
    let shown = info.holders.len().min(holders_max);
    let more = info.holders.len() - shown;
    let holder_lines = match info.holders.len() {
        0 => 1,
        _ => u16::try_from(shown + 1 + usize::from(more > 0)).unwrap_or(u16::MAX),
    };
    let [above, _, holders, _, waiters] = Layout::vertical([
        Constraint::Length(title_lines),
        Constraint::Length(1),
        Constraint::Length(holder_lines),
        Constraint::Length(1),
        Constraint::Fill(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(title), above);
    if info.holders.is_empty() {
        frame.render_widget(Paragraph::new("nobody holds it"), holders);
    }
    let fitted = Fitted::new(HOLDERS, &info.holders, room);
    if !info.holders.is_empty() {
        let table = fitted.table(&info.holders, 0..shown, None, |_| Style::new());
        frame.render_widget(table, holders);
    }
    if more > 0 {
        let last = Rect {
            y: holders.bottom().saturating_sub(1),
            height: holders.height.min(1),
            ..holders
        };
        let words = format!("and {more} more");
        frame.render_widget(Paragraph::new(words).style(dim()), last);
    }
    if info.waiters.is_empty() {
        frame.render_widget(Paragraph::new("nobody waits for it"), waiters);
        return String::new();
    }
    let count = info.waiters.len();
    let lines = usize::from(waiters.height).saturating_sub(1);
    let window = queue.waiters.of(lines, count);
    let room = table_room(waiters, window.len() < count);
    let fitted = Fitted::new(WAITERS, &info.waiters, room.width.into());
    let table = fitted.table(&info.waiters, window.clone(), None, |wait| paint.wait(wait));
    frame.render_widget(table, room);
    scrollbar(frame, waiters, &window, count)
}

/// The last line: what the user types, or the keys; and what part is shown.
fn foot(screen: &Screen, room: usize, shown: &str) -> Line<'static> {
    let filter = printable(&screen.filter);
    let mut line = Vec::new();
    let legend: &[&str] = match (screen.is_typing, screen.queue.is_some()) {
        (true, _) => &["Enter keeps it", "Esc clears it"],
        (false, false) => &[
            "? help",
            "q quit",
            "Enter queue",
            "/ filter",
            "F force",
            "p pause",
            "sort: w)aiters o)ldest n)ame m)ost holders",
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
        line.push(Span::styled(format!("/{filter}"), bold()));
        let cursor = Style::new().add_modifier(Modifier::REVERSED);
        line.push(Span::styled(" ", cursor));
    } else if !filter.is_empty() && screen.queue.is_none() {
        line.push(Span::styled(format!("/{filter}"), screen.paint.notable()));
    }
    let mut taken: usize = line.iter().map(Span::width).sum();
    let left = room.saturating_sub(match shown.len() {
        0 => 0,
        shown => shown + 2,
    });
    for words in legend {
        let gap = if taken == 0 { "" } else { "  " };
        if taken + gap.len() + width(words) > left {
            break;
        }
        taken += gap.len() + width(words);
        line.push(Span::styled(format!("{gap}{words}"), dim()));
    }
    let gap = room.saturating_sub(taken + shown.len());
    line.push(Span::raw(" ".repeat(gap)));
    line.push(Span::styled(shown.to_owned(), dim()));
    Line::from(line)
}

/// Draws what lies above all else.
fn draw_above(frame: &mut Frame<'_>, screen: &Screen) {
    let area = frame.area();
    let room = usize::from(area.width).min(ABOVE_WIDTH).saturating_sub(4);
    let (name, lines) = match &screen.above {
        None => return,
        Some(Above::Help) => (" Keys ", help()),
        Some(Above::Force(_, lock)) => (" Force ", question(lock, room, screen.paint)),
        Some(Above::Said(words)) => {
            let mut lines = wrapped(&printable(words), room, Style::new());
            lines.push(Line::default());
            lines.push(Line::styled("any key goes on", dim()));
            (" Force ", lines)
        }
    };
    let widest = lines.iter().map(Line::width).max().unwrap_or_default();
    let size = |inside: usize, around| u16::try_from(inside + around).unwrap_or(u16::MAX);
    let height = size(lines.len(), 2).min(area.height);
    let width = size(widest, 4).min(area.width);
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered()
        .title(Span::styled(name, bold()))
        .padding(Padding::horizontal(1));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

fn help() -> Vec<Line<'static>> {
    let keys = KEYS.iter().map(|(keys, what)| {
        let keys = Span::styled(format!("{keys:15}"), bold());
        Line::from(vec![keys, Span::raw(*what)])
    });
    let end = [Line::default(), Line::styled("any key goes on", dim())];
    keys.chain(end).collect()
}

/// Whether to end the holds of a lock.
fn question(lock: &LockInfo, room: usize, paint: Paint) -> Vec<Line<'static>> {
    const NAMED_MAX: usize = 3;
    let LockInfo { key, info } = lock;
    let key = printable(key);
    let mut lines = wrapped(&format!("End every hold of {key}?"), room, bold());
    lines.push(Line::default());
    for holder in info.holders.iter().take(NAMED_MAX) {
        let owner = printable(&holder.owner);
        let lease = duration(holder.lease_left);
        let words = format!("Held by {owner}, lease left {lease}");
        lines.extend(wrapped(&words, room, Style::new()));
    }
    if let more @ 1.. = info.holders.len().saturating_sub(NAMED_MAX) {
        lines.push(Line::from(format!("and {more} more")));
    }
    let (who, is) = match info.holders.len() {
        1 => ("The holder is", "it"),
        _ => ("The holders are", "they"),
    };
    let next = match info.queued {
        0 => "Nobody waits for it: it will be free.".to_owned(),
        1 => "The one who waits is granted the lock.".to_owned(),
        queued => format!("The first of {queued} in its queue is granted the lock."),
    };
    let effects = format!("{who} told that {is} lost the lock, but may still be at work. {next}");
    lines.push(Line::default());
    lines.extend(wrapped(&effects, room, Style::new()));
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("y", paint.bad()),
        Span::raw(" ends the holds, any other key leaves them"),
    ]));
    lines
}

/// Words in lines of `room` columns.
fn wrapped(words: &str, room: usize, style: Style) -> Vec<Line<'static>> {
    let lines = textwrap::wrap(words, room.max(1)).into_iter();
    lines
        .map(|line| Line::styled(line.into_owned(), style))
        .collect()
}

/// `12 s`, `1m 2s`.
fn seconds(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => humantime::format_duration(Duration::from_secs(seconds)).to_string(),
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Colours, where they are wanted and the terminal has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    pub(super) is_coloured: bool,
}

impl Paint {
    /// Of somebody who has waited for so long.
    fn wait(self, wait: Duration) -> Style {
        match wait {
            _ if wait >= TOO_LONG => self.bad(),
            _ if wait >= LONG => self.of(Color::Yellow),
            _ => Style::new(),
        }
    }

    /// Of what is wrong.
    fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Of what is not as usual.
    fn notable(self) -> Style {
        self.of(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn of(self, colour: Color) -> Style {
        match self.is_coloured {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}
