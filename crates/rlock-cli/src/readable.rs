//! Names and times as people read them.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

/// `text` without what would steer a terminal: control characters are escaped.
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

/// The same of a time, without what is below a millisecond.
pub(crate) fn duration(time: Duration) -> String {
    milliseconds(whole_ms(time))
}

/// Microseconds: `85 us`, `1.2 ms`, `3.4 s`.
pub(crate) fn microseconds(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => milliseconds(us / 1_000),
    }
}

/// An empty table in which the columns numbered in `right` hold numbers.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().copied());
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
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
        assert_eq!(microseconds(999), "999 us");
        assert_eq!(microseconds(1_250), "1.2 ms");
        assert_eq!(microseconds(3_400_000), "3.4 s");
    }
}
