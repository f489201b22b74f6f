//! Formats names and times for people, and reads durations that they write.

use std::ffi::OsString;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

/// The largest value that any server setting allows for lease and wait.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// `text` with control characters escaped, so that it cannot control a
/// terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// The same for bytes. Bytes that are not UTF-8 are replaced.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

/// Milliseconds, at most what a `u64` holds.
pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds: `303 ms`, `59.7 s`, `1h 2m 3s`.
pub(crate) fn milliseconds(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => humantime::format_duration(Duration::from_secs(ms / 1_000)).to_string(),
    }
}

/// The same for a duration, rounded down to milliseconds.
pub(crate) fn duration(time: Duration) -> String {
    milliseconds(whole_ms(time))
}

/// A time in a sentence, from a second on to a tenth of a second: `303ms`, `10s`,
/// `1m 30s`.
pub(crate) fn sentence_duration(time: Duration) -> String {
    let ms = match whole_ms(time) {
        ms @ 0..1_000 => ms,
        ms => ms.saturating_add(50) / 100 * 100,
    };
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

/// Microseconds: `85 us`, `1.2 ms`, `3.4 s`.
pub(crate) fn microseconds(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => milliseconds(us / 1_000),
    }
}

/// From zero to 30 days.
pub(crate) fn from_zero(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, DURATION_MAX, "from 0 to 30days")
}

/// From a millisecond to 30 days.
pub(crate) fn from_millisecond(text: &str) -> Result<Duration, String> {
    let shortest = Duration::from_millis(1);
    within(text, shortest, DURATION_MAX, "from 1ms to 30days")
}

/// A lease: from 3 ms to 30 days. A shorter one is never valid.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let shortest = Duration::from_millis(3);
    within(text, shortest, DURATION_MAX, "from 3ms to 30days")
}

/// A key that is not empty: usually that is a variable that was not set.
pub(crate) fn key(text: OsString) -> Result<OsString, &'static str> {
    match text.is_empty() {
        true => Err("it is empty; was a variable not set?"),
        false => Ok(text),
    }
}

/// From 100 ms to an hour.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let (shortest, longest) = (Duration::from_millis(100), Duration::from_secs(60 * 60));
    within(text, shortest, longest, "from 100ms to 1h")
}

fn within(
    text: &str,
    shortest: Duration,
    longest: Duration,
    range: &str,
) -> Result<Duration, String> {
    let duration = seconds(text).map_or_else(|| humantime::parse_duration(text), Ok);
    let duration = duration
        .map_err(|error| format!("{error}; a duration is for example 30s, 1m 30s or 500ms"))?;
    if (shortest..=longest).contains(&duration) {
        return Ok(duration);
    }
    Err(format!("must be {range}"))
}

/// A number without a unit means seconds, as for `timeout` and `flock`.
fn seconds(text: &str) -> Option<Duration> {
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse().ok().filter(|_| is_plain)?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// A column of a table, here and on the screen of `rlock top`.
pub(crate) struct Column<T> {
    pub(crate) title: &'static str,
    pub(crate) is_number: bool,
    /// On a screen: whether it has names, which are cut if they do not fit.
    pub(crate) is_name: bool,
    /// On a screen: the usual text. A column with only this text is left out
    /// before a name is cut.
    pub(crate) usual: Option<&'static str>,
    /// On a screen: whether it is left out before a name is cut.
    pub(crate) is_spare: bool,
    /// On a screen: the time for which somebody has waited. It decides the
    /// colour.
    pub(crate) wait: Option<fn(&T) -> Duration>,
    /// The text of a cell, for a row's value and the row's number from zero.
    pub(crate) cell: fn(&T, usize) -> String,
}

impl<T> Column<T> {
    pub(crate) const fn text(title: &'static str, cell: fn(&T, usize) -> String) -> Self {
        Self {
            title,
            is_number: false,
            is_name: false,
            usual: None,
            is_spare: false,
            wait: None,
            cell,
        }
    }

    pub(crate) const fn name(title: &'static str, cell: fn(&T, usize) -> String) -> Self {
        let is_name = true;
        Self {
            is_name,
            ..Self::text(title, cell)
        }
    }

    /// A column that is aligned to the right.
    pub(crate) const fn number(title: &'static str, cell: fn(&T, usize) -> String) -> Self {
        let is_number = true;
        Self {
            is_number,
            ..Self::text(title, cell)
        }
    }

    pub(crate) const fn usually(self, usual: &'static str) -> Self {
        let usual = Some(usual);
        Self { usual, ..self }
    }

    pub(crate) const fn spare(self) -> Self {
        let is_spare = true;
        Self { is_spare, ..self }
    }

    pub(crate) const fn waited(self, wait: fn(&T) -> Duration) -> Self {
        let wait = Some(wait);
        Self { wait, ..self }
    }
}

/// A table with a row for each of `things`.
pub(crate) fn table<T>(columns: &[Column<T>], things: &[T]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|it| it.title));
    for (drawn, column) in table.column_iter_mut().zip(columns) {
        drawn.set_padding((0, 2));
        if column.is_number {
            drawn.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.add_rows(things.iter().enumerate().map(|(before, thing)| {
        let cells = columns.iter();
        cells.map(move |column| (column.cell)(thing, before))
    }));
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[2J\nä"), "a\\u{1b}[2J\\nä");
        assert_eq!(printable("\u{9b}31m"), "\\u{9b}31m");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(milliseconds(999), "999 ms");
        assert_eq!(milliseconds(59_999), "59.9 s");
        assert_eq!(milliseconds(3_723_000), "1h 2m 3s");
        let sentence = |us| sentence_duration(Duration::from_micros(us));
        assert_eq!(sentence(303_984), "303ms");
        assert_eq!(sentence(10_000_984), "10s");
        assert_eq!(sentence(90_000_000), "1m 30s");
        assert_eq!(microseconds(999), "999 us");
        assert_eq!(microseconds(1_250), "1.2 ms");
        assert_eq!(microseconds(3_400_000), "3.4 s");
    }

    #[test]
    fn both_ends_of_a_range_belong_to_it() {
        assert_eq!(from_zero("0"), Ok(Duration::ZERO));
        assert_eq!(from_zero("30days"), Ok(DURATION_MAX));
        assert!(from_zero("30days 1ms").is_err());
        assert_eq!(from_millisecond("1ms"), Ok(Duration::from_millis(1)));
        assert!(from_millisecond("999us").is_err());
        assert!(interval("99ms").is_err());
        assert!(interval("1h 1s").is_err());
    }

    #[test]
    fn a_number_without_unit_is_seconds() {
        assert_eq!(from_zero("30"), Ok(Duration::from_secs(30)));
        assert_eq!(from_zero("0.5"), Ok(Duration::from_millis(500)));
        assert!(from_zero("1e3").is_err());
        assert!(from_zero("2592001").unwrap_err().contains("30days"));
        assert!(from_zero("99999999999999999999999").is_err());
        assert!(from_zero("-1s").is_err());
        assert!(from_zero("").is_err());
    }
}
