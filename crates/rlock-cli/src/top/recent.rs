//! How long those waited who were granted a lock in the last seconds.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::readable::whole_ms;
use crate::waits::Waits;

/// How far back it goes: long enough for percentiles that do not jump about.
const SPAN: Duration = Duration::from_secs(10);

/// The waits of the last looks.
#[derive(Default)]
pub(super) struct Recent {
    looks: Vec<Look>,
}

struct Look {
    /// When the look before was.
    since: Instant,
    at: Instant,
    waits: Waits,
}

/// The times that half, and 99 of 100, did not wait longer than.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Percentiles {
    /// How long before now it begins; zero after the first look.
    pub(super) over_ms: u64,
    /// How many were granted a lock from the queue.
    pub(super) count: u64,
    /// None if nobody was.
    pub(super) p50_usec: Option<u64>,
    pub(super) p99_usec: Option<u64>,
}

impl Recent {
    /// Takes note of the waits that ended between the look before and this one.
    pub(super) fn add(&mut self, since: Instant, at: Instant, waits: Waits) {
        self.looks.retain(|look| at.duration_since(look.at) < SPAN);
        self.looks.push(Look { since, at, waits });
    }

    pub(super) fn percentiles(&self) -> Percentiles {
        let Some((first, last)) = self.looks.first().zip(self.looks.last()) else {
            return Percentiles::default();
        };
        let over = last.at.duration_since(first.since);
        let waits = Waits::total(self.looks.iter().map(|look| &look.waits)).unwrap_or_default();
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
        let mut said = rlock_client::Counters::default();
        let name = "wait_usec_histogram".to_owned();
        said.texts.insert(name, histogram.to_owned());
        Waits::read(&said).unwrap_or_default()
    }

    /// After looks at these seconds, each of which saw one more wait of 100 us.
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
    fn the_first_look_shows_no_waits() {
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
    fn percentiles_are_those_of_all_looks_together() {
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
