//! The engine of the client against the core of the server, in a world with every
//! kind of fault.
//!
//! Time is a number here, and chance comes from a seed, so a failure can be
//! repeated. A failing run shrinks to the fewest operations that show the
//! failure, which are printed as a script.

mod actor;
mod carry_out;
mod checks;
mod client;
mod cluster;
mod events;
mod failover;
mod interfere;
mod links;
mod operation;
mod scripts;
mod server;
mod tasks;
mod world;

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use cluster::Kind;
use operation::Operation;
use world::World;

/// The events in all worlds of a kind.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    events: u64,
    grants: u64,
    reconnects: u64,
    moves: u64,
    fail_overs: u64,
}

#[test]
fn no_two_hold_no_call_hangs_and_nothing_stays() {
    let seen = play(Kind::One, 660);
    assert!(seen.events >= 500_000, "{seen:?}");
    assert!(seen.grants >= 3_000, "{seen:?}");
    assert!(seen.reconnects >= 2_000, "{seen:?}");
    assert!(seen.fail_overs >= 500, "{seen:?}");
}

#[test]
fn no_two_hold_no_call_hangs_and_nothing_stays_in_a_cluster() {
    let seen = play(Kind::Cluster, 630);
    assert!(seen.events >= 500_000, "{seen:?}");
    assert!(seen.grants >= 3_000, "{seen:?}");
    assert!(seen.reconnects >= 2_000, "{seen:?}");
    assert!(seen.moves >= 1_000, "{seen:?}");
    assert!(seen.fail_overs >= 500, "{seen:?}");
}

fn seed() -> u64 {
    std::env::var("SEED").map_or(1, |seed| seed.parse().expect("SEED is a number"))
}

fn play(kind: Kind, cases: u32) -> Seen {
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        // The same in each run, so that a change causes each new failure. `SEED`
        // names another one.
        rng_seed: RngSeed::Fixed(seed()),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    });
    let script = vec(any::<[u8; 6]>().prop_map(Operation::decode), 1..160);
    let seen = Cell::new(Seen::default());
    let outcome = runner.run(&(script, any::<u64>()), |(script, seed)| {
        let mut world = World::new(kind, seed);
        let outcome = world.play(&script);
        if let Err(error) = outcome {
            let trace = World::trace(kind, &script, seed);
            return Err(TestCaseError::fail(format!("{error}\n{trace}\n{error}")));
        }
        let before = seen.get();
        seen.set(Seen {
            events: before.events + world.happened,
            grants: before.grants + world.granted,
            reconnects: before.reconnects + world.reconnects,
            moves: before.moves + world.moves,
            fail_overs: before.fail_overs + world.fail_overs,
        });
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    println!("{kind:?}: {:?}", seen.get());
    seen.get()
}
