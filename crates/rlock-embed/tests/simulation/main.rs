//! The whole client against the core of the server, in bytes, in a world with every kind of fault: a session of one
//! server, of Sentinels or of a cluster, and quorums. Beside the machine in its own types runs its encoding for other
//! languages, mostly also as WebAssembly, and all must say the same.
//!
//! Time is a number here, and chance comes from a seed, so a failure can be repeated. A failing run shrinks to the
//! fewest steps that show the failure, which are printed with all events.

mod calls;
mod checks;
#[path = "../host/configuration.rs"]
mod configuration;
mod hosts;
mod network;
mod scripts;
mod steps;
mod twin;
mod typed;
mod world;

use std::cell::Cell;
use std::io::Write as _;
use std::sync::OnceLock;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use rlock_testkit::seeds;
use steps::Step;
use twin::Wasm;
use world::{Kind, Seen, World};

/// Seeds that failed at some time.
const FAILED: [u64; 31] = [
    752_415_771_224,
    615_042_271_483,
    674_860_721_595,
    216_109_087_354,
    522_809_728_747,
    570_382_392_569,
    753_782_145_997,
    757_700_427_116,
    330_975_249_423,
    771_713_555_259,
    579_082_078_812,
    183_680_843_834,
    685_933_917_057,
    774_364_177_870,
    63_641_782_746,
    12_923_327_440,
    656_033_901_795,
    682_493_311_237,
    412_924_420_904,
    184_438_021_304,
    687_161_361_815,
    954_100_913_243,
    572_178_887_945,
    442_657_061_623,
    216_967_383_581,
    195_978_031_006,
    792_929_022_758,
    797_761_158_706,
    90_382_704_013,
    286_511_735_874,
    458_493_188_250,
];
/// How long new seeds are tried for each kind of world.
const TIME: Duration = Duration::from_secs(30);

#[test]
fn one_server() {
    let (cases, seen) = play_all(Kind::One);
    assert!(seen.parts >= cases / 64, "{seen:?}");
}

#[test]
fn one_server_of_a_cluster() {
    play_all(Kind::Node);
}

#[test]
fn cluster() {
    let (cases, seen) = play_all(Kind::Cluster);
    assert!(
        seen.moves >= cases && seen.fail_overs >= cases / 4,
        "{seen:?}"
    );
}

#[test]
fn sentinels() {
    let (cases, seen) = play_all(Kind::Sentinels);
    assert!(seen.fail_overs >= cases / 2, "{seen:?}");
}

#[test]
fn quorum_of_three() {
    play_all(Kind::Three);
}

#[test]
fn quorum_of_five() {
    play_all(Kind::Five);
}

/// The engine as WebAssembly, if it is there or can be built.
fn wasm() -> Option<&'static Wasm> {
    static WASM: OnceLock<Option<Wasm>> = OnceLock::new();
    let must_be_there = |it: &str| std::env::var_os(it).is_some();
    let wasm = WASM.get_or_init(|| match twin::built().and_then(|file| Wasm::read(&file)) {
        Ok(wasm) => Some(wasm),
        Err(error) if !["CI", "RLOCK_ENGINE_WASM"].into_iter().any(must_be_there) => {
            // This bypasses the capture of test output, which is only shown for failing tests.
            let text =
                format!("rlock_engine.wasm cannot be built here, and is not tested: {error}\n");
            std::io::stderr().write_all(text.as_bytes()).unwrap();
            None
        }
        Err(error) => panic!("{error}"),
    });
    wasm.as_ref()
}

fn play_all(kind: Kind) -> (u64, Seen) {
    let (seen, wasm) = (Cell::new(Seen::default()), wasm());
    let cases = seeds::each(&format!("{kind:?}"), &FAILED, TIME, |seed| {
        // WebAssembly is interpreted here, which takes most of the time.
        let wasm = wasm.filter(|_| seed.is_multiple_of(16));
        play(kind, wasm, seed, &seen);
    });
    let seen = seen.get();
    println!("{kind:?}: {cases} cases, {seen:?}");
    if cases == 1 {
        return (0, seen);
    }
    assert!(seen.events >= 300 * cases, "{seen:?}");
    assert!(seen.grants >= 4 * cases, "{seen:?}");
    assert!(seen.connections >= 10 * cases, "{seen:?}");
    (cases, seen)
}

fn play(kind: Kind, wasm: Option<&Wasm>, seed: u64, seen: &Cell<Seen>) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 1,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 20_000,
        max_shrink_time: 15_000,
        ..ProptestConfig::default()
    });
    let script = vec(any::<[u8; 6]>().prop_map(Step::decode), 1..160);
    let outcome = runner.run(&(script, any::<u64>()), |(script, random)| {
        let mut world = World::new(kind, random, wasm, false);
        match world.play(&script) {
            Ok(()) => seen.set(seen.get().and(world.seen)),
            Err(error) => return Err(TestCaseError::fail(error)),
        }
        Ok(())
    });
    if let Err(proptest::test_runner::TestError::Fail(_, (script, random))) = &outcome {
        let again = World::new(kind, *random, wasm, true).play(script);
        println!("{kind:?}:");
        script.iter().for_each(|step| println!("{step:?}"));
        panic!("{again:?}");
    }
    outcome.unwrap();
}
