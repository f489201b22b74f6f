//! The machine against the core of the server, in bytes, in a world with every kind of fault. Beside each machine
//! runs a second one, mostly as WebAssembly, which must return the same.
//!
//! Time is a number here, and chance comes from a seed, so a failure can be repeated. A failing run shrinks to the
//! fewest steps that show the failure, which are printed with all events.

mod calls;
mod checks;
#[allow(dead_code, reason = "hosts receive more than these tests check")]
#[path = "../host/form.rs"]
mod form;
mod twin;
mod world;

use std::cell::Cell;
use std::io::Write as _;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use twin::Wasm;
use world::{Kind, Seen, World};

#[test]
fn no_two_hold_each_call_ends_once_and_nothing_stays() {
    let seen = play(None, 200);
    assert!(seen.events >= 120_000 && seen.grants >= 1_800, "{seen:?}");
    assert!(seen.connections >= 3_600 && seen.refused >= 300, "{seen:?}");
    assert!(seen.changes >= 300, "{seen:?}");
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
    let seen = play(Some(&wasm), 50);
    assert!(seen.events >= 30_000 && seen.grants >= 450, "{seen:?}");
}

fn play(wasm: Option<&Wasm>, cases: u32) -> Seen {
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        // The same in each run, so that a change causes each new failure.
        rng_seed: RngSeed::Fixed(3),
        max_shrink_iters: 20_000,
        max_shrink_time: 15_000,
        ..ProptestConfig::default()
    });
    let script = vec(any::<[u8; 6]>(), 1..160);
    let kinds = prop::sample::select(vec![Kind::One, Kind::Node, Kind::Cluster]);
    let seen = Cell::new(Seen::default());
    let outcome = runner.run(&(kinds, script, any::<u64>()), |(kind, script, seed)| {
        let mut world = World::new(kind, seed, wasm, false);
        match world.play(&script) {
            Ok(()) => seen.set(seen.get().and(world.seen)),
            Err(error) => return Err(TestCaseError::fail(error)),
        }
        Ok(())
    });
    if let Err(proptest::test_runner::TestError::Fail(_, (kind, script, seed))) = &outcome {
        println!("{kind:?}, seed {seed}, {script:?}");
        let again = World::new(*kind, *seed, wasm, true).play(script);
        panic!("{again:?}");
    }
    outcome.unwrap();
    println!("{:?}", seen.get());
    seen.get()
}
