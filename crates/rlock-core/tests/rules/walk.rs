//! Long random walks.

use std::time::Duration;

use rlock_testkit::core::{
    operation::Operation,
    pair::{Pair, Setup},
    reached::Reached,
};
use rlock_testkit::seeds;

/// Xorshift (G. Marsaglia, 2003): good enough for random walks, and the same
/// everywhere.
pub(crate) struct Steps(pub(crate) u64);

impl Iterator for Steps {
    type Item = [u8; 8];

    fn next(&mut self) -> Option<[u8; 8]> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes())
    }
}

/// Walks, and fails with the operations that lead to the difference.
///
/// With `SEED=seed WALK=step`, core and model are printed side by side before
/// and after that step.
fn walk(pair: &mut Pair, seed: u64, operations: impl Iterator<Item = Operation>) {
    let shown = std::env::var("WALK").ok();
    let shown = shown.map(|step| step.parse().expect("WALK is a step"));
    let mut last = Vec::new();
    for (at, operation) in operations.enumerate() {
        last.push(operation);
        let is_shown = shown == Some(at);
        if is_shown {
            println!("{}\n{operation:?}", pair.side_by_side());
        }
        let checked = pair.check(operation);
        if is_shown {
            println!("{}", pair.side_by_side());
        }
        if let Err(difference) = checked {
            let tail = last[last.len().saturating_sub(12)..].iter();
            let tail: Vec<_> = tail.map(|it| format!("{it:?}")).collect();
            let tail = tail.join("\n");
            panic!("SEED={seed} WALK={at}: {difference}\nafter\n{tail}");
        }
    }
}

/// Walks from new seeds, and checks that all outcomes were reached.
fn walks(name: &str, setup: Setup, rare: &[(&'static str, &'static str)]) {
    let mut reached = Reached::new();
    let walked = seeds::each(name, &FAILED, Duration::from_secs(5), |seed| {
        let mut pair = Pair::new(setup);
        let operations = Steps(seed).take(10_000).map(Operation::decode);
        walk(&mut pair, seed, operations);
        for (what, times) in pair.reached {
            *reached.entry(what).or_default() += times;
        }
    });
    // A single seed does not reach all of them.
    if walked == 1 {
        return;
    }
    for outcome in OUTCOMES.iter().chain(rare) {
        let times = reached.get(outcome).copied().unwrap_or_default();
        assert!(times >= OFTEN, "{outcome:?} was reached {times} times");
    }
}

/// Seeds of walks that showed a difference at some time.
const FAILED: [u64; 5] = [
    245_983_306_531,
    1_010_298_106_313,
    653_532_036_276,
    141_511_330_306,
    12_408_317_273,
];

/// How often each walk must reach each outcome.
const OFTEN: u64 = 3;

/// The possible outcomes of operations, whatever the limits.
const OUTCOMES: &[(&str, &str)] = &[
    ("ACQUIRE", "blocked"),
    ("ACQUIRE", "fence"),
    ("ACQUIRE", "nil"),
    ("ACQUIRE", "other request"),
    ("ACQUIRE", "second upgrade"),
    ("ACQUIRE", "waiting"),
    ("ACQUIRE", "wrong type"),
    ("CANCEL", "0"),
    ("CANCEL", "1"),
    ("DOWNGRADE", "fence"),
    ("DOWNGRADE", "nil"),
    ("DOWNGRADE", "wrong type"),
    ("FORCE", "0"),
    ("FORCE", "1"),
    ("FORCE", "more"),
    ("FORCE", "wrong type"),
    ("MACQUIRE", "blocked"),
    ("MACQUIRE", "fence"),
    ("MACQUIRE", "held in part"),
    ("MACQUIRE", "nil"),
    ("MACQUIRE", "other request"),
    ("MACQUIRE", "waiting"),
    ("MACQUIRE", "wrong type"),
    ("MRELEASE", "0"),
    ("MRELEASE", "1"),
    ("MRELEASE", "more"),
    ("MRELEASE", "wrong type"),
    ("MRENEW", "0"),
    ("MRENEW", "1"),
    ("MRENEW", "more"),
    ("MRENEW", "wrong type"),
    ("release", "of another fence"),
    ("release", "of this fence"),
    ("RELEASE", "0"),
    ("RELEASE", "1"),
    ("RELEASE", "nil"),
    ("RELEASE", "too many permits"),
    ("force", "an orphan"),
    ("force", "of this fence"),
    ("release", "of some permits"),
    ("RELEASE", "wrong type"),
    ("renewal", "watched"),
    ("RENEW", "fence"),
    ("RENEW", "fence taken"),
    ("RENEW", "fence too large"),
    ("RENEW", "nil"),
    ("RENEW", "value of shared"),
    ("RENEW", "wrong type"),
    ("hang up", "0"),
    ("hang up", "1"),
    ("undelivered", "0"),
    ("undelivered", "1"),
    ("others", "call cancelled"),
    ("others", "call granted"),
    ("others", "call over"),
    ("others", "call superseded"),
    ("others", "notified of a grant"),
    ("others", "notified of a loss"),
    ("others", "notified of a value"),
    ("others", "notified of a withdrawal"),
    ("others", "notified of the end of a value"),
    ("others", "notified of the end of a wait"),
    ("others", "notified on a sharded channel"),
    ("others", "unlock"),
    ("close", "nil"),
    ("fence", "ahead of the clock"),
    ("fence", "raised"),
    ("place", "cancelled"),
    ("place", "kept at the end of a wait"),
    ("place", "kept for a call that is gone"),
    ("place", "kept for a closed connection"),
    ("place", "kept for a grant that did not arrive"),
    ("place", "kept for a grant without a listener"),
    ("place", "left by a request that fits"),
    ("place", "left by a try"),
    ("place", "lost at the end of its grace"),
    ("place", "waited in again"),
    ("value", "begins"),
    ("value", "changes"),
    ("value", "ends"),
    ("value", "follows another"),
    ("value", "is asked for"),
];

#[test]
fn core_and_model_agree_on_a_long_walk() {
    walks(
        "a long walk",
        Setup::WIDE,
        &[("ACQUIRE", "deadlock"), ("MACQUIRE", "deadlock")],
    );
}

#[test]
fn core_and_model_agree_on_a_long_walk_between_narrow_limits() {
    walks(
        "a long walk between narrow limits",
        Setup::NARROW,
        &[
            ("ACQUIRE", "queue full"),
            ("MACQUIRE", "queue full"),
            ("RENEW", "queue full"),
            ("user", "has no place left"),
            ("user", "may not take over"),
            ("MRENEW", "queue full"),
        ],
    );
}

#[test]
fn core_and_model_agree_on_a_long_walk_without_deadlock_detection() {
    walks(
        "a long walk without deadlock detection",
        Setup::NO_DEADLOCK_DETECTION,
        &[],
    );
}

/// Nearly all requests are for permits. A request that would close a knot by
/// waiting is refused, on average at least this often in a walk.
fn walk_for_permits(name: &str, is_taken: fn(&Operation) -> bool, least: u64) {
    let mut refused = 0;
    let walked = seeds::each(name, &FAILED, Duration::from_secs(5), |seed| {
        let mut pair = Pair::new(Setup::WIDE);
        let operations = Steps(seed).map(Operation::decode_of_permits);
        walk(&mut pair, seed, operations.filter(is_taken).take(20_000));
        refused += pair.reached.get(&("ACQUIRE", "deadlock")).unwrap_or(&0);
    });
    // A single seed may be below the average.
    if walked == 1 {
        return;
    }
    let average = refused / walked;
    println!("{name}: {average} deadlocks in a walk");
    assert!(average >= least, "{average}");
}

/// Foreign changes end some waits, so fewer requests close a knot.
#[test]
fn core_and_model_agree_on_a_long_walk_with_permits() {
    walk_for_permits("a long walk with permits", |_| true, 150);
}

/// Nobody changes keys from outside, and no knot arises in another way.
#[test]
fn core_and_model_agree_on_a_long_walk_with_permits_that_nobody_else_changes() {
    let name = "a long walk with permits that nobody else changes";
    let is_ours = |it: &Operation| !matches!(it, Operation::Foreign { .. });
    walk_for_permits(name, is_ours, 200);
}
