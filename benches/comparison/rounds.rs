//! Processor time of the server, measured in rounds in which all kinds of work
//! take turns: what else the machine does falls on all of them alike.

use std::fs;
use std::time::Duration;

use crate::report::median;

/// Processor time that one kind takes in a round, at least.
const ROUND: Duration = Duration::from_millis(50);

/// Nanoseconds of processor time, of each kind in each round.
pub(crate) struct Rounds<const KINDS: usize> {
    nanos: Vec<[f64; KINDS]>,
}

impl<const KINDS: usize> Rounds<KINDS> {
    /// Measures this many rounds.
    pub(crate) fn of(count: usize, round: impl FnMut() -> [f64; KINDS]) -> Self {
        Self {
            nanos: std::iter::repeat_with(round).take(count).collect(),
        }
    }

    /// The median of a kind.
    pub(crate) fn nanos(&self, kind: usize) -> f64 {
        median(self.nanos.iter().map(|round| round[kind]))
    }

    /// The median of how many times as much a kind takes as another one, in the
    /// same round.
    pub(crate) fn ratio(&self, kind: usize, to: usize) -> f64 {
        median(self.nanos.iter().map(|round| round[kind] / round[to]))
    }
}

/// Nanoseconds of processor time of a process for one of the `count` things
/// that are done at once, again and again for a round.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn nanos_for_one(process: u32, count: usize, mut do_all: impl FnMut()) -> f64 {
    let before = processor_time_at_rest(process);
    let mut done = 0;
    while processor_time(process) - before < ROUND {
        do_all();
        done += count;
    }
    let spent = processor_time_at_rest(process) - before;
    spent.as_nanos() as f64 / done as f64
}

pub(crate) fn micros(nanos: f64) -> String {
    format!("{:.2} µs", nanos / 1000.0)
}

/// Processor time of a process' main thread so far, not quite up to date
/// while it is running.
fn processor_time(process: u32) -> Duration {
    let file = format!("/proc/{process}/task/{process}/schedstat");
    let text = fs::read_to_string(&file).expect("Linux keeps account of processor time");
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("a number of nanoseconds"))
}

/// The same, once the thread has come to rest.
pub(crate) fn processor_time_at_rest(process: u32) -> Duration {
    let mut time = processor_time(process);
    loop {
        std::thread::sleep(Duration::from_micros(300));
        let later = processor_time(process);
        if later == time {
            return time;
        }
        time = later;
    }
}
