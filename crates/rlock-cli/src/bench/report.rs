//! The measurements of a run, as text and as JSON.

use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use serde::Serialize;

use crate::readable::{Column, microseconds, table};

use super::Bench;

/// The precision of times, in decimal digits.
const DIGITS: u8 = 3;
/// The longest time that can be recorded, in microseconds: two hours, more than
/// a run takes.
const TIME_MAX_US: u64 = 2 * 60 * 60 * 1_000_000;

/// Times in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    acquires: Histogram<u64>,
    releases: Histogram<u64>,
    /// From the start to the last release.
    elapsed: Duration,
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

    /// The number of acquires.
    pub(super) fn ops(&self) -> u64 {
        self.acquires.len()
    }
}

fn whole_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    clients: u16,
    locks: u32,
    ops: u64,
    elapsed_ms: u64,
    ops_per_second: f64,
    acquire_usec: Latency,
    release_usec: Latency,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Latency {
    p50: u64,
    p90: u64,
    p99: u64,
    max: u64,
}

const TIMES: &[Column<(&str, Latency)>] = &[
    Column::text("", |it, _| it.0.to_owned()),
    Column::number("P50", |it, _| microseconds(it.1.p50)),
    Column::number("P90", |it, _| microseconds(it.1.p90)),
    Column::number("P99", |it, _| microseconds(it.1.p99)),
    Column::number("MAX", |it, _| microseconds(it.1.max)),
];

impl Report {
    pub(super) fn new(bench: &Bench, tally: Tally) -> Self {
        let seconds = tally.elapsed.as_secs_f64().max(0.001);
        let ops = u32::try_from(tally.ops()).unwrap_or(u32::MAX);
        Self {
            clients: bench.clients,
            locks: bench.locks,
            ops: tally.ops(),
            elapsed_ms: u64::try_from(tally.elapsed.as_millis()).unwrap_or(u64::MAX),
            ops_per_second: (f64::from(ops) / seconds * 10.0).round() / 10.0,
            acquire_usec: Latency::of(&tally.acquires),
            release_usec: Latency::of(&tally.releases),
        }
    }

    pub(super) fn words(&self) -> String {
        let times = [
            ("acquire", self.acquire_usec),
            ("release", self.release_usec),
        ];
        format!(
            "{} clients, {} locks: {} acquired and released in {} ms, {:.0} per second\n\n{}",
            self.clients,
            self.locks,
            self.ops,
            self.elapsed_ms,
            self.ops_per_second,
            table(TIMES, &times)
        )
    }
}

impl Latency {
    fn of(times: &Histogram<u64>) -> Self {
        let at = |quantile| times.value_at_quantile(quantile);
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: times.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_times_are_distinguished() {
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
