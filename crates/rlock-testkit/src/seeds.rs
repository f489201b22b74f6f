//! Seeds for random tests: new ones in each run, so that each run looks where no run has looked before.
//!
//! A failing test names its seed, and `SEED=<seed>` repeats only that case. `SEED_SECONDS` replaces the time that a test
//! takes: `make soak` gives an hour to all of them together.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

/// The number of cases that run even if the time is over, so that a slow machine still tests something.
const LEAST: u64 = 20;

/// Names the seed of a test that panics.
struct Running<'a>(&'a str, u64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: SEED={}", self.0, self.1);
        }
    }
}

/// Runs `test` for each seed in `failed`, which failed at some time, and then with new seeds for `time`. With the
/// environment variable `SEED`, only with that seed. Returns the number of cases.
///
/// # Panics
///
/// If `test` panics, or if `SEED` or `SEED_SECONDS` is not a number.
pub fn each(name: &str, failed: &[u64], time: Duration, mut test: impl FnMut(u64)) -> u64 {
    let mut test = |seed| {
        let _running = Running(name, seed);
        test(seed);
    };
    if let Some(seed) = number("SEED") {
        test(seed);
        return 1;
    }
    let time = number("SEED_SECONDS").map_or(time, Duration::from_secs);
    failed.iter().for_each(|seed| test(*seed));
    // Small numbers can be typed.
    let first = RandomState::new().hash_one(name) >> 24;
    println!("{name}: seeds from {first}");
    let begun = Instant::now();
    let mut cases = 0;
    while cases < LEAST || begun.elapsed() < time {
        test(first + cases);
        cases += 1;
    }
    failed.len() as u64 + cases
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is {text:?}, which is not a number")),
    )
}
