//! The whole client against the core of the server, in bytes: connections that
//! end or fall silent at any byte, Sentinels whose master fails over, a cluster
//! whose slots move.
//!
//! `tests/simulation` tests only the decisions about locks, with more kinds of
//! faults. This test also covers the layers between the decisions and the wire.

mod world;

use std::time::Duration;

use rlock_testkit::seeds;

use world::{Kind, Seen, World};

/// Seeds that failed at some time.
const FAILED: [u64; 1] = [751_355_522_279];
/// How long new seeds are tried for each kind of world.
const TIME: Duration = Duration::from_secs(10);

#[test]
fn no_two_hold_and_no_call_hangs_behind_sentinels() {
    let (worlds, seen) = play(Kind::Sentinels);
    assert!(seen.fail_overs >= worlds, "{seen:?}");
}

#[test]
fn no_two_hold_and_no_call_hangs_in_a_cluster_whose_slots_move() {
    let (worlds, seen) = play(Kind::Cluster);
    assert!(seen.moves >= worlds, "{seen:?}");
}

fn play(kind: Kind) -> (u64, Seen) {
    let mut seen = Seen::default();
    let worlds = seeds::each(&format!("{kind:?}"), &FAILED, TIME, |seed| {
        println!("{kind:?}, SEED={seed}");
        let mut world = World::new(kind, seed);
        world.play();
        seen = seen.and(world.seen);
    });
    println!("{kind:?}: {worlds} worlds, {seen:?}");
    if let (2.., Ok(count)) = (worlds, usize::try_from(worlds)) {
        assert!(seen.bytes >= 20_000 * count, "{seen:?}");
        assert!(seen.grants >= 10 * worlds, "{seen:?}");
        assert!(seen.connections >= 20 * worlds, "{seen:?}");
        assert!(seen.changes >= 20 * worlds, "{seen:?}");
        assert!(seen.missed >= 2 * worlds, "{seen:?}");
    }
    (worlds, seen)
}
