//! The machine against the core of the server, in bytes, in a world with every kind of fault. Beside each machine
//! runs a second one, mostly as WebAssembly, which must return the same.
//!
//! Time is a number here, and chance comes from a seed, so a failure can be repeated. A failing run shrinks to the
//! fewest steps that show the failure, which are printed with all events.

mod calls;
mod checks;
#[path = "../host/configuration.rs"]
mod configuration;
mod twin;
mod world;

use std::cell::Cell;
use std::io::Write as _;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use rlock_testkit::seeds;
use twin::Wasm;
use world::{Kind, Seen, World};

/// Seeds that failed at some time.
const FAILED: [u64; 2] = [590_020_282_293, 147_076_954_588];
/// How long new seeds are tried, for the machine alone and for its WebAssembly.
const TIME: Duration = Duration::from_secs(15);

#[test]
fn no_two_hold_each_call_ends_once_and_nothing_stays() {
    let (cases, seen) = play_all("the machine", None);
    if cases > 1 {
        assert!(seen.connections >= 10 * cases, "{seen:?}");
        assert!(seen.refused >= cases / 2, "{seen:?}");
        assert!(seen.changes >= cases / 2, "{seen:?}");
        assert!(seen.parts >= cases / 16, "{seen:?}");
    }
}

#[test]
fn webassembly_says_the_same() {
    let must_be_there = |it: &str| std::env::var_os(it).is_some();
    let wasm = match twin::built().and_then(|file| Wasm::read(&file)) {
        Ok(wasm) => wasm,
        Err(error) if !["CI", "RLOCK_ENGINE_WASM"].into_iter().any(must_be_there) => {
            // This bypasses the capture of test output, which is only shown for failing tests.
            let text =
                format!("rlock_engine.wasm cannot be built here, and is not tested: {error}\n");
            return std::io::stderr().write_all(text.as_bytes()).unwrap();
        }
        Err(error) => panic!("{error}"),
    };
    play_all("its WebAssembly", Some(&wasm));
}

fn play_all(name: &str, wasm: Option<&Wasm>) -> (u64, Seen) {
    let seen = Cell::new(Seen::default());
    let cases = seeds::each(name, &FAILED, TIME, |seed| play(wasm, seed, &seen));
    let seen = seen.get();
    println!("{name}: {cases} cases, {seen:?}");
    if cases > 1 {
        assert!(seen.events >= 300 * cases, "{seen:?}");
        assert!(seen.grants >= 4 * cases, "{seen:?}");
    }
    (cases, seen)
}

fn play(wasm: Option<&Wasm>, seed: u64, seen: &Cell<Seen>) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 1,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 20_000,
        max_shrink_time: 15_000,
        ..ProptestConfig::default()
    });
    let script = vec(any::<[u8; 6]>(), 1..160);
    let kinds = prop::sample::select(vec![Kind::One, Kind::Node, Kind::Cluster]);
    let outcome = runner.run(&(kinds, script, any::<u64>()), |(kind, script, random)| {
        let mut world = World::new(kind, random, wasm, false);
        match world.play(&script) {
            Ok(()) => seen.set(seen.get().and(world.seen)),
            Err(error) => return Err(TestCaseError::fail(error)),
        }
        Ok(())
    });
    if let Err(proptest::test_runner::TestError::Fail(_, (kind, script, random))) = &outcome {
        println!("{kind:?}, {script:?}");
        let again = World::new(*kind, *random, wasm, true).play(script);
        panic!("{again:?}\nSEED={seed}");
    }
    outcome.unwrap();
}
