//! Durations on the command line, with their ranges.

use std::time::Duration;

/// The largest value that any server setting allows for lease and wait.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// From zero to 30 days.
pub(crate) fn from_zero(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, DURATION_MAX, "from 0 to 30days")
}

/// From a millisecond to 30 days.
pub(crate) fn from_millisecond(text: &str) -> Result<Duration, String> {
    let shortest = Duration::from_millis(1);
    within(text, shortest, DURATION_MAX, "from 1ms to 30days")
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

/// A number without a unit is seconds, as for `timeout` and `flock`.
fn seconds(text: &str) -> Option<Duration> {
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse().ok().filter(|_| is_plain)?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
