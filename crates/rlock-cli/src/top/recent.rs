//! The waits that ended with a grant in the last seconds.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::readable::whole_ms;
use crate::waits::Waits;

/// How far back it goes: long enough for steady percentiles.
const SPAN: Duration = Duration::from_secs(10);

/// The waits of the last intervals.
#[derive(Default)]
pub(super) struct Recent {
    intervals: Vec<Interval>,
}

struct Interval {
    /// When the interval began.
    since: Instant,
    at: Instant,
    waits: Waits,
}

/// Percentiles of waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Percentiles {
    /// How far back it goes, in milliseconds; zero after the first sample.
    pub(super) over_ms: u64,
    /// The number of grants from the queue.
    pub(super) count: u64,
    /// None if there were no grants.
    pub(super) p50_usec: Option<u64>,
    pub(super) p99_usec: Option<u64>,
}

impl Recent {
    /// Adds the waits of the interval from `since` to `at`.
    pub(super) fn add(&mut self, since: Instant, at: Instant, waits: Waits) {
        self.intervals
            .retain(|interval| at.duration_since(interval.at) < SPAN);
        self.intervals.push(Interval { since, at, waits });
    }

    pub(super) fn percentiles(&self) -> Percentiles {
        let Some((first, last)) = self.intervals.first().zip(self.intervals.last()) else {
            return Percentiles::default();
        };
        let over = last.at.duration_since(first.since);
        let waits =
            Waits::total(self.intervals.iter().map(|interval| &interval.waits)).unwrap_or_default();
        let usec = |share| {
            let wait = waits.quantile(share)?;
            Some(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX))
        };
        Percentiles {
            over_ms: whole_ms(over),
            count: waits.count(),
            p50_usec: usec(0.5),
            p99_usec: usec(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(histogram: &str) -> Waits {
        let mut counters = rlock_client::Counters::default();
        let name = "wait_usec_histogram".to_owned();
        counters.texts.insert(name, histogram.to_owned());
        Waits::read(&counters).unwrap_or_default()
    }

    /// The percentiles after samples at these seconds, each with one more wait
    /// of 100 us.
    fn after(seconds: &[u64]) -> Percentiles {
        let mut recent = Recent::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut before = 0;
        for now in seconds {
            let one = waits("le_100=1,le_inf=1,sum=100");
            recent.add(at(before), at(*now), one);
            before = *now;
        }
        recent.percentiles()
    }

    #[test]
    fn the_first_sample_shows_no_waits() {
        assert_eq!(after(&[]), Percentiles::default());
    }

    #[test]
    fn what_is_older_than_ten_seconds_is_forgotten() {
        let seen = |percentiles: Percentiles| (percentiles.over_ms, percentiles.count);
        assert_eq!(seen(after(&[1, 2, 10])), (10_000, 3));
        assert_eq!(seen(after(&[1, 2, 11])), (10_000, 2));
        assert_eq!(seen(after(&[1, 2, 100])), (98_000, 1));
    }

    #[test]
    fn percentiles_cover_all_intervals_together() {
        let mut recent = Recent::default();
        let now = Instant::now();
        recent.add(now, now, waits("le_100=98,le_1000=98,le_inf=98,sum=1"));
        recent.add(now, now, waits("le_100=0,le_1000=2,le_inf=2,sum=1"));
        let Percentiles {
            p50_usec, p99_usec, ..
        } = recent.percentiles();
        assert_eq!(p50_usec, Some(51));
        assert_eq!(p99_usec, Some(550));
    }
}
