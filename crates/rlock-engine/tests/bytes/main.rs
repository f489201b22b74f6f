//! The whole client against the core of the server, in bytes: connections that
//! end or fall silent at any byte, Sentinels whose master fails over, a cluster
//! whose slots move.
//!
//! `tests/simulation` tests only the decisions about locks, with more kinds of
//! faults. This test also covers the layers between the decisions and the wire.

mod world;

use world::{Kind, Seen, World};

#[test]
fn no_two_hold_and_no_call_hangs_behind_sentinels() {
    let seen = play(Kind::Sentinels, 50);
    assert!(seen.fail_overs >= 100, "{seen:?}");
}

#[test]
fn no_two_hold_and_no_call_hangs_in_a_cluster_whose_slots_move() {
    let seen = play(Kind::Cluster, 50);
    assert!(seen.moves >= 100, "{seen:?}");
}

/// Each world has another seed; the seeds are the same in each run.
fn play(kind: Kind, worlds: u64) -> Seen {
    let mut seen = Seen::default();
    for seed in 0..worlds {
        println!("{kind:?}, seed {seed}");
        let mut world = World::new(kind, seed);
        world.play();
        seen = seen.and(world.seen);
    }
    println!("{kind:?}: {seen:?}");
    assert!(seen.bytes >= 1_000_000 && seen.grants >= 1_000, "{seen:?}");
    assert!(seen.connections >= 1_000, "{seen:?}");
    assert!(seen.changes >= 1_500 && seen.missed >= 250, "{seen:?}");
    seen
}
