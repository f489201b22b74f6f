//! Draws the screen of `top`.
//!
//! It fits into 60 columns: names that do not are cut, and what is longer for
//! once, as a message, goes on in the next line.

use console::truncate_str;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};

use crate::info::{HOLDERS, LockInfo, WAITERS};
use crate::list::LOCKS;
use crate::readable::{Column, FILL, microseconds, printable};

use super::sample::{Master, Sample};
use super::screen::Screen;
use super::terminal::LEGEND;

/// The title, the numbers, and an empty line.
const HEADER_LINES: u16 = 9;
/// How many masters are named that show nothing.
const AWAY_MAX: usize = 3;

pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let legend = legend(frame.area());
    let masters = masters(screen, frame.area().width.into());
    let more = u16::try_from(masters.len()).unwrap_or_default();
    let [header, body, footer] = Layout::vertical([
        Constraint::Length(HEADER_LINES + more),
        Constraint::Fill(1),
        Constraint::Length(if legend.len() == 1 { 1 } else { 2 }),
    ])
    .areas(frame.area());
    let head = Paragraph::new(head(screen, masters)).wrap(Wrap { trim: false });
    frame.render_widget(head, header);
    match &screen.open {
        None => draw_locks(frame, body, screen),
        Some(lock) => {
            let [locks, queue] =
                Layout::vertical([Constraint::Fill(2), Constraint::Fill(3)]).areas(body);
            draw_locks(frame, locks, screen);
            draw_queue(frame, queue, lock);
        }
    }
    frame.render_widget(Paragraph::new(legend).style(dim()), footer);
}

fn legend(area: Rect) -> Vec<Line<'static>> {
    let line = Line::from(LEGEND.join("  "));
    if line.width() <= usize::from(area.width) {
        return vec![line];
    }
    LEGEND.map(Line::from).into()
}

/// How many masters there are if that is not one, and those that show nothing.
fn masters(screen: &Screen, columns: usize) -> Vec<Line<'static>> {
    let (None, Some(sample)) = (&screen.failure, &screen.sample) else {
        return Vec::new();
    };
    if sample.masters.len() < 2 {
        return Vec::new();
    }
    let silent = |master: &Master| {
        let error = master.error.as_ref()?;
        Some(format!(
            "            {}: {}",
            master.address,
            printable(error)
        ))
    };
    let silent: Vec<_> = sample.masters.iter().filter_map(silent).collect();
    let all = sample.masters.len();
    let count = match silent.len() {
        0 => format!("masters     {all}"),
        silent => format!("masters     {} of {all}", all - silent),
    };
    let lines = std::iter::once(count).chain(silent.into_iter().take(AWAY_MAX));
    lines.map(|line| Line::from(cut(&line, columns))).collect()
}

fn head(screen: &Screen, masters: Vec<Line<'static>>) -> Vec<Line<'static>> {
    let every = humantime::format_duration(screen.every);
    let paused = if screen.is_paused { ", paused" } else { "" };
    let title = format!(
        "rlock top  {}  every {every}, by {}{paused}",
        screen.server(),
        screen.sort.name()
    );
    let mut lines = vec![Line::styled(title, bold())];
    match (&screen.failure, &screen.sample) {
        (Some(failure), _) => {
            lines.push(Line::from(printable(&failure.message)));
            lines.push(Line::from("asking again every interval"));
        }
        (None, Some(sample)) => {
            lines.extend(masters);
            lines.extend(numbers(sample).map(Line::from));
        }
        (None, None) => lines.push(Line::from("the first interval has begun")),
    }
    lines
}

/// No line is longer than 60 columns unless a rate has four digits.
fn numbers(sample: &Sample) -> [String; 7] {
    let now = |name: &str| sample.counters.get(name);
    let kept = match now("places_kept") {
        0 => String::new(),
        places => format!(" ({places} kept)"),
    };
    let rate = |name: &str| sample.per_second.get(name);
    let waited = |name: &str| microseconds(now(name));
    [
        format!(
            "now         waiters {}{kept}  contended locks {}",
            now("waiters"),
            now("contended_locks")
        ),
        format!(
            "            bound holds {}  watches {}",
            now("bound_holds"),
            now("watches")
        ),
        format!(
            "waited      p50 {}  p99 {}  max {}",
            waited("wait_usec_p50"),
            waited("wait_usec_p99"),
            waited("wait_usec_max")
        ),
        format!(
            "per second  acquires {:.1}  grants {:.1}  hand-offs {:.1}",
            rate("acquires"),
            rate("grants"),
            rate("handoffs")
        ),
        format!(
            "            refused {:.1}  renewals {:.1}  releases {:.1}",
            rate("refusals"),
            rate("renewals"),
            rate("releases")
        ),
        format!(
            "            waits over {:.1}  waiters gone {:.1}",
            rate("wait_timeouts"),
            rate("waiters_gone")
        ),
        format!(
            "            leases over {:.1}  forced {:.1}  deadlocks {:.1}",
            rate("lease_expirations"),
            rate("force_releases"),
            rate("deadlocks")
        ),
    ]
}

fn draw_locks(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    if screen.locks().is_empty() && screen.sample.is_some() {
        return frame.render_widget(Paragraph::new("nobody waits for any lock"), area);
    }
    let table = table(area, LOCKS, screen.locks())
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(screen.place());
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_queue(frame: &mut Frame<'_>, area: Rect, lock: &LockInfo) {
    let info = &lock.info;
    let shown = u16::try_from(info.holders.len()).unwrap_or(u16::MAX);
    let [title, holders, waiters] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(shown.saturating_add(2).min(area.height / 2)),
        Constraint::Fill(1),
    ])
    .areas(area);
    let rest = format!(": {}, {} queued", info.mode, info.queued);
    let room = usize::from(area.width).saturating_sub(rest.len());
    let words = format!("\n{}{rest}", cut(&printable(&lock.key), room));
    frame.render_widget(Paragraph::new(words).style(bold()), title);
    frame.render_widget(table(holders, HOLDERS, &info.holders), holders);
    frame.render_widget(table(waiters, WAITERS, &info.waiters), waiters);
}

/// A table whose cells are cut where they do not fit.
fn table<T>(area: Rect, columns: &[Column<T>], things: &[T]) -> Table<'static> {
    const SPACING: u16 = 1;
    let width = |it: &Column<T>| match it.width {
        FILL => Constraint::Fill(1),
        width => Constraint::Length(width),
    };
    let widths: Vec<_> = columns.iter().map(width).collect();
    let areas = Layout::horizontal(&widths).spacing(SPACING).split(area);
    let row = |(before, thing): (usize, &T)| {
        let cells = columns.iter().zip(areas.iter());
        Row::new(cells.map(|(column, area)| cut(&(column.cell)(thing, before), area.width.into())))
    };
    let header = Row::new(columns.iter().map(|it| it.title)).style(bold());
    Table::new(things.iter().enumerate().map(row), widths)
        .column_spacing(SPACING)
        .header(header)
}

/// At most `columns` columns of it, the last a mark if there is more.
fn cut(text: &str, columns: usize) -> String {
    truncate_str(text, columns, "…").into_owned()
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}
