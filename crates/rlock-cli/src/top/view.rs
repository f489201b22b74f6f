//! Draws the screen of `top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};

use crate::contended::Contended;
use crate::lock_info::{Holder, LockInfo, Waiter};
use crate::readable::{microseconds, printable};

use super::keys::LEGEND;
use super::sample::Sample;
use super::screen::Screen;

/// The title, the numbers, and an empty line.
const HEADER_LINES: u16 = 7;

pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let [header, body, footer] = Layout::vertical([
        Constraint::Length(HEADER_LINES),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head(screen)), header);
    match &screen.open {
        None => draw_locks(frame, body, screen),
        Some(lock) => {
            let [locks, queue] =
                Layout::vertical([Constraint::Fill(2), Constraint::Fill(3)]).areas(body);
            draw_locks(frame, locks, screen);
            draw_queue(frame, queue, lock);
        }
    }
    frame.render_widget(Paragraph::new(LEGEND).style(dim()), footer);
}

fn head(screen: &Screen) -> Vec<Line<'static>> {
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
        (None, Some(sample)) => lines.extend(numbers(sample).map(Line::from)),
        (None, None) => lines.push(Line::from("the first interval has begun")),
    }
    lines
}

/// No line is longer than 80 columns unless a rate has six digits.
fn numbers(sample: &Sample) -> [String; 5] {
    let now = |name: &str| sample.counters.get(name);
    let kept = match now("places_kept") {
        0 => String::new(),
        places => format!(" ({places} kept)"),
    };
    let rate = |name: &str| sample.per_second.get(name);
    let waited = |name: &str| microseconds(now(name));
    [
        format!(
            "now         waiters {}{kept}  contended locks {}  bound holds {}  watches {}",
            now("waiters"),
            now("contended_locks"),
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
            "per second  acquires {:.1}  grants {:.1}  hand-offs {:.1}  refused {:.1}",
            rate("acquires"),
            rate("grants"),
            rate("handoffs"),
            rate("refusals")
        ),
        format!(
            "            renewals {:.1}  releases {:.1}  waits over {:.1}  waiters gone {:.1}",
            rate("renewals"),
            rate("releases"),
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
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(16),
    ];
    let rows = screen.locks().iter().map(|lock| Row::new(lock.row()));
    let table = Table::new(rows, widths)
        .header(Row::new(Contended::HEADER).style(bold()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(screen.place());
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_queue(frame: &mut Frame<'_>, area: Rect, lock: &LockInfo) {
    let shown = u16::try_from(lock.holders.len()).unwrap_or(u16::MAX);
    let [title, holders, waiters] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(shown.saturating_add(2).min(area.height / 2)),
        Constraint::Fill(1),
    ])
    .areas(area);
    let words = format!(
        "\n{}: {}, {} queued",
        printable(&lock.key),
        lock.mode,
        lock.queued
    );
    frame.render_widget(Paragraph::new(words).style(bold()), title);
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Length(18),
        Constraint::Length(6),
    ];
    let rows = lock.holders.iter().map(|holder| Row::new(holder.row()));
    let table = Table::new(rows, widths).header(Row::new(Holder::HEADER).style(bold()));
    frame.render_widget(table, holders);
    let widths = [
        Constraint::Length(6),
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(10),
    ];
    let rows = lock.waiters.iter().zip(1..);
    let rows = rows.map(|(waiter, place)| Row::new(waiter.row(place)));
    let table = Table::new(rows, widths).header(Row::new(Waiter::HEADER).style(bold()));
    frame.render_widget(table, waiters);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}
