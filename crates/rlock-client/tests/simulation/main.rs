//! The engine of the client against the core of the server, in a world where
//! everything goes wrong that can.
//!
//! Time is a number here, and chance comes from a seed, so a failure can be
//! repeated. What fails shrinks to the fewest operations that show it, which
//! are printed as a script.

// The engine knows no I/O: here it is told of a network that is none.
#[path = "../../src/deadlock.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the crate, which uses all of it"
)]
mod deadlock;
#[path = "../../src/engine/mod.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the crate, which uses all of it"
)]
mod engine;
#[path = "../../src/error.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "shared with the crate, which uses all of it"
)]
mod error;

// The core with a keyspace around it, as its own tests have it.
#[path = "../../../rlock-core/tests/it/driver.rs"]
#[allow(dead_code, reason = "shared with the core's tests")]
mod driver;
#[path = "../../../rlock-core/tests/it/perform.rs"]
mod perform;
#[path = "../../../rlock-core/tests/it/several.rs"]
#[allow(dead_code, reason = "shared with the core's tests")]
mod several;
#[path = "../../../rlock-core/tests/it/store.rs"]
#[allow(dead_code, reason = "shared with the core's tests")]
mod store;
#[path = "../../../rlock-core/tests/it/stored.rs"]
#[allow(dead_code, reason = "shared with the core's tests")]
mod stored;
#[path = "../../../rlock-core/tests/it/told.rs"]
#[allow(dead_code, reason = "shared with the core's tests")]
mod told;
#[path = "../../../rlock-core/tests/it/transact.rs"]
#[allow(dead_code, reason = "shared with the core's tests")]
mod transact;

mod actor;
mod client;
mod links;
mod operation;
// What a contender for a lock of several servers decides.
#[path = "../../src/quorum/plan.rs"]
mod plan;
mod quorum;
mod quorum_world;
mod server;
mod tasks;
mod world;

use std::cell::Cell;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use engine::ask::Queueing;
use operation::Operation;
use world::World;

#[test]
fn no_two_hold_no_call_hangs_and_nothing_stays() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 1200,
        failure_persistence: None,
        // The same each time, so that a failure is a change's doing.
        rng_seed: RngSeed::Fixed(1),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    });
    let script = vec(any::<[u8; 6]>().prop_map(Operation::decode), 1..160);
    let seen = Cell::new([0; 3]);
    let outcome = runner.run(&(script, any::<u64>()), |(script, seed)| {
        let mut world = World::new(seed);
        let outcome = world.play(&script);
        if let Err(error) = outcome {
            let story = World::story(&script, seed);
            return Err(TestCaseError::fail(format!("{error}\n{story}\n{error}")));
        }
        let [events, grants, reconnects] = seen.get();
        seen.set([
            events + world.happened,
            grants + world.granted,
            reconnects + world.reconnects,
        ]);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let [events, grants, reconnects] = seen.get();
    println!("{events} events, {grants} grants, {reconnects} new connections");
    assert!(events >= 1_000_000, "{events} events");
    assert!(grants >= 5_000, "{grants} grants");
    assert!(reconnects >= 3_000, "{reconnects} new connections");
}

/// A grant is on its way to a connection that breaks. Its call is dropped, which gives the lock to the next in line, and the
/// same owner asks again, before the message comes at last.
#[test]
fn a_grant_that_an_earlier_connection_was_told_of_is_none() {
    for seed in 0..10 * SEEDS {
        let mut world = World::new(seed);
        let (lease, wait) = (engine::terms::LEASE_DEFAULT, Queueing::Unlimited);
        let cut = Operation::Cut {
            client: 1,
            how: operation::Cut::Plain,
        };
        let script = [
            asks(0, Queueing::Try, lease),
            passes(100),
            asks(1, wait, lease),
            passes(100),
            asks(2, wait, lease),
            passes(100),
            Operation::Release { actor: 0 },
            cut,
            passes(40),
            Operation::Drop { actor: 1 },
            asks(1, wait, lease),
            passes(1_000),
        ];
        let outcome = world.play_only(&script);
        outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Its requests would be answered within five seconds at the latest, or not at all. A lease of two seconds cannot wait for
/// that.
#[test]
fn a_silent_connection_is_given_up_while_a_lease_can_still_be_renewed() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        let asked = asks(0, Queueing::Try, Duration::from_secs(2));
        let silent = Operation::Cut {
            client: 0,
            how: operation::Cut::Silent,
        };
        let script = [asked, passes(2_100), silent, passes(1_510)];
        world.play_only(&script).expect("nothing else is wrong");
        assert!(world.has_given_up(0), "seed {seed}");
    }
}

/// How often each of these scripts is played, each time with other delays.
const SEEDS: u64 = 100;

/// A task asks for the first lock; the second one always as the same owner.
fn asks(actor: usize, queueing: Queueing, lease: Duration) -> Operation {
    Operation::Ask {
        actor,
        key: Some(0),
        ask: engine::ask::Ask::Exclusive,
        queueing,
        terms: engine::terms::Terms::new().lease(lease),
        owner: (actor == 1).then_some(0),
    }
}

fn passes(millis: u64) -> Operation {
    let time = Duration::from_millis(millis);
    Operation::Pass { time }
}
