//! What a load has measured so far.

use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};

/// How finely times are told apart: three digits.
const DIGITS: u8 = 3;
/// More than any load takes, in microseconds: two hours.
const TIME_MAX_US: u64 = 2 * 60 * 60 * 1_000_000;

/// Times in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) acquires: Histogram<u64>,
    pub(super) releases: Histogram<u64>,
    /// From the start to the last release.
    pub(super) elapsed: Duration,
}

impl Tally {
    pub(super) fn new() -> Result<Self, CreationError> {
        let times = Histogram::new_with_bounds(1, TIME_MAX_US, DIGITS)?;
        Ok(Self {
            acquires: times.clone(),
            releases: times,
            elapsed: Duration::ZERO,
        })
    }

    /// Counts one acquire and its release.
    pub(super) fn count(&mut self, acquire: Duration, release: Duration, elapsed: Duration) {
        self.acquires.saturating_record(whole_us(acquire));
        self.releases.saturating_record(whole_us(release));
        self.elapsed = self.elapsed.max(elapsed);
    }

    /// How many there were.
    pub(super) fn ops(&self) -> u64 {
        self.acquires.len()
    }
}

fn whole_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_times_are_told_apart() {
        let mut tally = Tally::new().unwrap();
        let (short, long) = (Duration::from_micros(40), Duration::from_secs(3600));
        tally.count(short, long, long);
        tally.count(long, short, short);
        for times in [&tally.acquires, &tally.releases] {
            assert_eq!(times.value_at_quantile(0.5), 40);
            assert!(times.equivalent(times.max(), 3_600_000_000));
        }
        assert_eq!((tally.ops(), tally.elapsed), (2, long));
    }
}
