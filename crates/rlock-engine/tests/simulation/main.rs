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
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use cluster::Kind;
use operation::Operation;
use rlock_testkit::seeds;
use world::World;

/// Seeds that failed at some time.
const FAILED: [u64; 2] = [355_617_948_943, 925_575_039_324];
/// How long new seeds are tried for each kind of world.
const TIME: Duration = Duration::from_secs(20);

/// The events in all worlds of a kind.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    cases: u64,
    events: u64,
    grants: u64,
    reconnects: u64,
    moves: u64,
    fail_overs: u64,
    splits: u64,
}

#[test]
fn no_two_hold_no_call_hangs_and_nothing_stays() {
    let seen = play_all(Kind::One);
    assert!(seen.fail_overs >= seen.cases / 2, "{seen:?}");
}

#[test]
fn no_two_hold_no_call_hangs_and_nothing_stays_in_a_cluster() {
    let seen = play_all(Kind::Cluster);
    assert!(seen.moves >= seen.cases, "{seen:?}");
    assert!(seen.fail_overs >= seen.cases / 2, "{seen:?}");
}

fn play_all(kind: Kind) -> Seen {
    let seen = Cell::new(Seen::default());
    seeds::each(&format!("{kind:?}"), &FAILED, TIME, |seed| {
        play(kind, seed, &seen);
    });
    let seen = seen.get();
    println!("{kind:?}: {seen:?}");
    // A single seed may be a short script.
    if seen.cases > 1 {
        assert!(seen.events >= 500 * seen.cases, "{seen:?}");
        assert!(seen.grants >= 3 * seen.cases, "{seen:?}");
        assert!(seen.reconnects >= 2 * seen.cases, "{seen:?}");
        assert!(seen.splits >= seen.cases / 10, "{seen:?}");
    }
    seen
}

fn play(kind: Kind, seed: u64, seen: &Cell<Seen>) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 1,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    });
    let script = vec(any::<[u8; 6]>().prop_map(Operation::decode), 1..160);
    let outcome = runner.run(&(script, any::<u64>()), |(script, random)| {
        let mut world = World::new(kind, random);
        let outcome = world.play(&script);
        if let Err(error) = outcome {
            let trace = World::trace(kind, &script, random);
            return Err(TestCaseError::fail(format!("{error}\n{trace}\n{error}")));
        }
        let before = seen.get();
        seen.set(Seen {
            cases: before.cases + 1,
            events: before.events + world.happened,
            grants: before.grants + world.granted,
            reconnects: before.reconnects + world.reconnects,
            moves: before.moves + world.moves,
            fail_overs: before.fail_overs + world.fail_overs,
            splits: before.splits + world.split,
        });
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}\n{kind:?}, SEED={seed}");
    }
}
