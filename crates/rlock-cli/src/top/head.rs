//! The numbers above the list of `top`.

use std::time::Duration;

use ratatui::text::{Line, Span};

use crate::readable::{duration, microseconds, printable};

use super::recent::Percentiles;
use super::sample::Master;
use super::screen::Screen;
use super::table::cut;
use super::view::{bold, dim, seconds, wrapped};

/// The width of the label of a line.
const LABEL: usize = 12;
/// The width of a number and its name. Three of them fit into 60 columns.
const NUMBER: usize = 16;
/// The largest rate that is shown in full.
const RATE_MAX: f64 = 999_999.0;
/// How many unreachable masters are named.
const UNREACHABLE_MAX: usize = 3;

/// The names of the rates in `INFO rlock` and on the screen.
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

/// All numbers, in lines of `room` columns.
pub(super) fn numbers(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let all = [masters, warnings, now, waited, rates];
    all.iter().flat_map(|part| part(screen, room)).collect()
}

/// The number of masters if there are several, and the unreachable ones.
fn masters(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let masters = &screen.sample.it.masters;
    if masters.len() < 2 {
        return Vec::new();
    }
    let unreachable = |master: &Master| {
        let error = master.error.as_ref()?;
        Some(format!("{}: {}", master.address, printable(error)))
    };
    let unreachable: Vec<_> = masters.iter().filter_map(unreachable).collect();
    let mut counts = vec![number(masters.len() - unreachable.len(), "answer")];
    if !unreachable.is_empty() {
        counts.push(number(unreachable.len(), "unreachable"));
    }
    let mut lines = grid("masters", &counts, room);
    for line in unreachable.iter().take(UNREACHABLE_MAX) {
        let line = cut(line, room.saturating_sub(LABEL));
        let style = screen.paint.bad();
        lines.push(Line::from(vec![label(""), Span::styled(line, style)]));
    }
    lines
}

/// Why locks may be lost, or why none are granted.
fn warnings(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let now = |name: &str| screen.sample.it.counters.get(name);
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
    let now = |name: &str| screen.sample.it.counters.get(name);
    let mut numbers = vec![
        number(now("waiters"), "waiting"),
        number(now("contended_locks"), "contended"),
    ];
    for (name, words) in [("places_kept", "kept"), ("bound_holds", "bound")] {
        if let some @ 1.. = now(name) {
            numbers.push(number(some, words));
        }
    }
    grid("now", &numbers, room)
}

/// Percentiles of recent waits.
fn waited(screen: &Screen, room: usize) -> Vec<Line<'static>> {
    let Some(Percentiles {
        over_ms,
        count,
        p50_usec,
        p99_usec,
    }) = screen.sample.it.waits
    else {
        return text_line(
            "waited",
            "not known: the module is older than this rlock",
            room,
        );
    };
    let over = seconds(Duration::from_millis(over_ms));
    if let Some((p50, p99)) = p50_usec.zip(p99_usec) {
        let numbers = [
            named("p50", microseconds(p50)),
            named("p99", microseconds(p99)),
            number(count, &format!("in {over}")),
        ];
        return grid("waited", &numbers, room);
    }
    let words = match over_ms {
        0 => "not known yet".to_owned(),
        _ => format!("no hand-off in the last {over}"),
    };
    text_line("waited", &words, room)
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
    match rates.is_empty() {
        true => text_line("per second", "nothing happens", room),
        false => grid("per second", &rates, room),
    }
}

fn label(words: &str) -> Span<'static> {
    Span::styled(format!("{words:LABEL$}"), bold())
}

/// A line with text instead of numbers.
fn text_line(name: &str, words: &str, room: usize) -> Vec<Line<'static>> {
    let words = cut(words, room.saturating_sub(LABEL));
    let line = vec![label(name), Span::styled(words, dim())];
    vec![Line::from(line)]
}

/// A number and what it counts.
fn number(number: impl std::fmt::Display, words: &str) -> Vec<Span<'static>> {
    let number = format!("{number:>6} ");
    vec![Span::raw(number), Span::styled(words.to_owned(), dim())]
}

/// A name and its value.
fn named(words: &str, value: String) -> Vec<Span<'static>> {
    let words = format!("{words:>6} ");
    vec![Span::styled(words, dim()), Span::raw(value)]
}

/// Numbers side by side, in several lines if necessary.
fn grid(name: &str, numbers: &[Vec<Span<'static>>], room: usize) -> Vec<Line<'static>> {
    let in_line = (room.saturating_sub(LABEL) / NUMBER).max(1);
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    let lines = names.zip(numbers.chunks(in_line)).map(|(name, numbers)| {
        let mut line = vec![label(name)];
        for number in numbers {
            let taken: usize = number.iter().map(Span::width).sum();
            line.extend(number.iter().cloned());
            line.push(Span::raw(" ".repeat(NUMBER.saturating_sub(taken))));
        }
        Line::from(line)
    });
    lines.collect()
}
