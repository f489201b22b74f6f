//! Random operations, which shrink to the fewest that show a difference.

use std::time::Duration;

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{RngSeed, TestRunner},
};

use rlock_core::{AcquireOptions, Grace, Mode, Wait};

use rlock_testkit::{
    core::{
        operation::{Asked, Foreign, Operation, Pass, Under},
        pair::{Pair, START_MS, Setup},
    },
    seeds,
};

/// Seeds of scripts that showed a difference at some time.
const FAILED: [u64; 2] = [417_015_055_698, 412_222_244_938];

#[test]
fn core_and_model_agree() {
    let operations = vec(any::<[u8; 8]>().prop_map(Operation::decode), 1..120);
    let scripts = (operations, any::<u8>());
    seeds::each("short scripts", &FAILED, Duration::from_secs(5), |seed| {
        let mut runner = TestRunner::new(ProptestConfig {
            cases: 10,
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(seed),
            max_shrink_iters: 20_000,
            ..ProptestConfig::default()
        });
        let outcome = runner.run(&scripts, |(operations, setup)| {
            let mut pair = Pair::new(Setup::chosen(setup));
            for operation in operations {
                let checked = pair.check(operation);
                prop_assert!(
                    checked.is_ok(),
                    "{}\nby {operation:?}",
                    checked.unwrap_err()
                );
            }
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}\nSEED={seed}");
        }
    });
}

/// `ann` and `dee` wait for one another, because a hold was written by hand. `bob` waits for both too. That must not
/// hide that `cid` and `eve` would wait for one another.
#[test]
fn existing_deadlock_hides_no_new_one() {
    let one = |key, owner, lease_ms, wait| Operation::Acquire {
        key,
        asked: Asked::plain(owner, Mode::Exclusive, lease_ms, wait),
    };
    let all = |set, owner, wait| Operation::AcquireAll {
        set,
        asked: Asked::plain(owner, Mode::Exclusive, 1, wait),
    };
    let pass = Operation::Pass {
        time: Pass::PastNextEnd,
        timer_fires: true,
    };
    let take = Foreign::Take {
        key: 0,
        owner: 3,
        ms: 1,
    };
    let soon = Wait::Millis(20);
    let mut pair = Pair::new(Setup::WIDE);
    for operation in [
        all(3, 1, Wait::No),
        one(3, 0, 20, Wait::No),
        one(1, 2, 1, soon),
        all(3, 4, soon),
        one(1, 1, 20, Wait::No),
        one(3, 1, 1, soon),
        one(2, 3, 1, soon),
        pass,
        Operation::Foreign {
            change: take,
            settled: true,
        },
        one(2, 0, 1, Wait::Millis(4)),
        pass,
        all(2, 1, soon),
        one(1, 1, 1, Wait::No),
        one(3, 3, 1, soon),
        pass,
        one(2, 2, 1, Wait::Forever),
    ] {
        assert_eq!(pair.check(operation), Ok(()), "{operation:?}");
    }
}

/// The lock ended with `cid`, at 100 ms. `dee` is gone at 71 ms, `eve` is let in until 271 ms, and `cid` is cut to 74
/// ms, all in one late turn: the end of the lock has come nearer for nobody.
#[test]
fn cut_is_not_announced_if_a_longer_hold_begins_in_the_same_turn() {
    let limited = |permits| Mode::Shared {
        permits,
        limit: Some(2),
    };
    let ask = |owner, permits, lease_ms, wait| Operation::Acquire {
        key: 1,
        asked: Asked {
            connection: Some(if owner == 2 { 0 } else { 1 }),
            options: AcquireOptions {
                bind: (owner == 2).then_some(Grace::from_millis(3)),
                ..AcquireOptions::new(limited(permits), lease_ms)
            },
            ..Asked::plain(owner, limited(permits), lease_ms, wait)
        },
    };
    let mut pair = Pair::new(Setup::WIDE);
    for operation in [
        ask(2, 1, 100, Wait::No),
        ask(3, 2, 20, Wait::Millis(70)),
        ask(4, 1, 200, Wait::Forever),
        Operation::Pass {
            time: Pass::PastNextEnd,
            timer_fires: false,
        },
        Operation::Close { connection: 0 },
    ] {
        assert_eq!(pair.check(operation), Ok(()), "{operation:?}");
    }
    assert_eq!(pair.model.now - START_MS, 71);
}

/// `bob` waits for a lock to which his hold of another one is moved. When that ends, he gets the lock in the same turn.
/// `dee` gets it too, but cannot be notified, and is passed over. That settles the lock again, and `bob` must not lose
/// his new hold.
#[test]
fn hold_that_follows_an_ended_one_in_the_same_turn_is_not_lost() {
    let ask = |key, owner, limit, channel| Operation::Acquire {
        key,
        asked: Asked {
            connection: Some(0),
            channel,
            ..Asked::plain(
                owner,
                Mode::Shared {
                    permits: 1,
                    limit: Some(limit),
                },
                200,
                Wait::Forever,
            )
        },
    };
    let mut pair = Pair::new(Setup::WIDE);
    for operation in [
        Operation::Listen {
            channel: 1,
            on: false,
        },
        ask(1, 1, 2, None),
        ask(1, 2, 2, None),
        Operation::Acquire {
            key: 0,
            asked: Asked::plain(4, Mode::Exclusive, 200, Wait::No),
        },
        ask(0, 1, 2, Some(0)),
        ask(0, 3, 3, Some(1)),
        Operation::Foreign {
            change: Foreign::Rename { from: 1 },
            settled: true,
        },
        Operation::Force {
            key: 0,
            queue: false,
            under: Some((1, Under::Its)),
        },
    ] {
        assert_eq!(pair.check(operation), Ok(()), "{operation:?}");
    }
}
