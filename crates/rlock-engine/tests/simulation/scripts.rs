//! Faults that must happen in a certain order to reveal something.

use std::time::Duration;

use rlock_engine::engine::terms::{Ask, LEASE_DEFAULT, Lease, Queueing, Terms};

use crate::cluster::Kind;
use crate::operation::{Cut, Operation, Outage, Separate};
use crate::world::World;

/// The number of runs of each script, each with other delays.
const SEEDS: u64 = 100;

/// A grant is in transit on a connection that breaks. Its call is dropped, so
/// the lock passes to the next in the queue. The same owner asks again before
/// the message arrives.
#[test]
fn a_grant_reported_to_an_earlier_connection_does_not_count() {
    let wait = Queueing::Unlimited;
    let script = [
        asks(0, Queueing::Try, LEASE_DEFAULT),
        passes(100),
        asks(1, wait, LEASE_DEFAULT),
        passes(100),
        asks(2, wait, LEASE_DEFAULT),
        passes(100),
        Operation::Release {
            actor: 0,
            kept: None,
        },
        cuts(1, None, Cut::Plain),
        passes(40),
        Operation::Drop { actor: 1 },
        asks(1, wait, LEASE_DEFAULT),
        passes(1_000),
    ];
    play(Kind::One, 10 * SEEDS, &script, |_| true);
}

/// A release is in transit on a connection that breaks, and the server does not
/// see that. The next connection repeats the release. The first release arrives
/// after its owner has re-acquired the lock.
#[test]
fn a_late_release_does_not_free_a_reacquired_lock() {
    let wait = Queueing::Unlimited;
    let script = [
        asks(1, Queueing::Try, LEASE_DEFAULT),
        passes(100),
        Operation::Release {
            actor: 1,
            kept: None,
        },
        cuts(1, None, Cut::HalfOpen),
        passes(90),
        asks(1, wait, LEASE_DEFAULT),
        passes(1),
        asks(0, wait, LEASE_DEFAULT),
        passes(3_000),
    ];
    play(Kind::One, 20 * SEEDS, &script, |_| true);
}

/// A release of one of three permits may have been carried out when its connection
/// breaks. In the end the server has those that are in use, and no others.
#[test]
fn a_release_of_permits_without_an_answer_is_carried_out_once() {
    let (client, permits) = (0, 1);
    let mut asked = asks(0, Queueing::Try, LEASE_DEFAULT);
    if let Operation::Ask { ask, owner, .. } = &mut asked {
        let (limit, permits) = (3, 3);
        (*ask, *owner) = (Ask::Permits { limit, permits }, None);
    }
    for how in [Cut::Plain, Cut::HalfOpen, Cut::Silent, Cut::Unseen] {
        let script = [
            asked,
            passes(100),
            Operation::Split { client, permits },
            Operation::Release {
                actor: 2,
                kept: None,
            },
            cuts(0, None, how),
            passes(9_000),
        ];
        for kind in [Kind::One, Kind::Cluster] {
            play(kind, SEEDS, &script, World::has_permits_in_use);
        }
    }
}

/// Its requests would be answered within five seconds, or never. A lease of two
/// seconds cannot wait for that.
#[test]
fn a_silent_connection_is_closed_while_a_lease_can_still_be_renewed() {
    let asked = asks(0, Queueing::Try, Duration::from_secs(2));
    let silent = cuts(0, None, Cut::Silent);
    let script = [asked, passes(2_100), silent, passes(1_510)];
    play(Kind::One, SEEDS, &script, |world| world.has_given_up(0));
}

/// One connection is silent, with requests that wait for their replies.
#[test]
fn a_silent_master_delays_no_lock_of_another() {
    let script = [
        asks(0, Queueing::Try, LEASE_DEFAULT),
        at(1, asks(2, Queueing::Try, LEASE_DEFAULT)),
        passes(2_100),
        cuts(0, Some(0), Cut::Silent),
        Operation::Release {
            actor: 0,
            kept: None,
        },
        Operation::Release {
            actor: 2,
            kept: None,
        },
        at(1, asks(4, Queueing::Try, LEASE_DEFAULT)),
        passes(4_150),
    ];
    play(Kind::Cluster, SEEDS, &script, |world| world.holds(4));
}

/// Nothing renews the hold, so no request would be refused there.
#[test]
fn a_loss_is_reported_by_the_master_that_has_the_slot_now() {
    for window in [0, 500] {
        let window = Duration::from_millis(window);
        let key = Some(0);
        let script = [
            with(
                Terms::new().lease(Lease::Fixed(LEASE_DEFAULT)).unwrap(),
                asks(0, Queueing::Try, LEASE_DEFAULT),
            ),
            passes(2_100),
            Operation::Move { key, window },
            passes(10_000),
            Operation::Force { key: 0 },
            passes(2_100),
        ];
        play(Kind::Cluster, SEEDS, &script, |world| !world.holds(0));
    }
}

/// Waits and holds continue at the replica, though the master is gone for good.
#[test]
fn a_wait_continues_at_the_replica() {
    for (kind, outage) in [
        (Kind::One, Outage::Killed),
        (Kind::One, Outage::Paused),
        (Kind::Cluster, Outage::Killed),
        (Kind::Cluster, Outage::Paused),
        (Kind::Cluster, Outage::Demoted),
    ] {
        let script = [
            asks(0, Queueing::Try, Duration::from_secs(60)),
            passes(2_100),
            asks(1, Queueing::Unlimited, LEASE_DEFAULT),
            passes(2_100),
            Operation::FailOver {
                shard: 0,
                outage,
                lag: Duration::ZERO,
                back: Duration::from_secs(100),
            },
            passes(15_000),
            Operation::Release {
                actor: 0,
                kept: None,
            },
            passes(8_000),
        ];
        play(kind, SEEDS / 4, &script, |world| world.holds(1));
    }
}

/// The server cuts a bound lease when its connection ends, and the cut lease
/// moves to the other master. The reply to an earlier renewal is read when the
/// hold is already counted at the other master.
#[test]
fn a_renewal_by_an_ended_connection_is_cut_at_another_master() {
    let bound = Terms::new()
        .lease(Duration::from_millis(700))
        .unwrap()
        .bound(Duration::from_millis(400))
        .unwrap();
    let (key, window) = (Some(0), Duration::ZERO);
    let script = [
        at(1, asks(2, Queueing::Try, LEASE_DEFAULT)),
        passes(20),
        with(bound, asks(0, Queueing::Try, LEASE_DEFAULT)),
        passes(20),
        asks(1, Queueing::Unlimited, LEASE_DEFAULT),
        passes(100),
        Operation::ReadLate {
            client: 0,
            time: Duration::from_millis(200),
        },
        Operation::Extend {
            actor: 0,
            lease: Duration::from_millis(1_500),
        },
        passes(4),
        cuts(0, Some(0), Cut::Plain),
        Operation::Refuse {
            shard: 1,
            time: Duration::from_millis(450),
        },
        passes(20),
        Operation::Move { key, window },
        passes(900),
    ];
    play(Kind::Cluster, SEEDS, &script, |_| true);
}

/// A grant's message is late, while another master answers all the time.
#[test]
fn a_heartbeat_of_another_master_proves_no_grant() {
    let brief = Duration::from_millis(700);
    let bound = Terms::new().bound(Duration::from_millis(400)).unwrap();
    let script = [
        at(1, with(bound, asks(2, Queueing::Try, LEASE_DEFAULT))),
        asks(1, Queueing::Try, LEASE_DEFAULT),
        passes(500),
        asks(0, Queueing::Unlimited, brief),
        passes(100),
        asks(3, Queueing::Unlimited, LEASE_DEFAULT),
        passes(100),
        Operation::Release {
            actor: 1,
            kept: None,
        },
        passes(3_000),
    ];
    play(Kind::Cluster, 4 * SEEDS, &script, |_| true);
}

/// The same for the connection for replicas: a grant's message is late, while
/// that connection renews a hold all the time.
#[test]
fn a_reply_on_a_separate_connection_proves_no_grant() {
    for renewed in [true, false] {
        let brief = Duration::from_millis(700);
        let waiting = Terms {
            renewed,
            ..Terms::new().lease(brief).unwrap()
        };
        let script = [
            at(1, with(replicated(), asks(2, Queueing::Try, brief))),
            asks(1, Queueing::Try, LEASE_DEFAULT),
            passes(500),
            with(waiting, asks(0, Queueing::Unlimited, brief)),
            passes(100),
            asks(3, Queueing::Unlimited, LEASE_DEFAULT),
            passes(100),
            Operation::Release {
                actor: 1,
                kept: None,
            },
            passes(3_000),
        ];
        play(Kind::One, 4 * SEEDS, &script, |_| true);
    }
}

/// The server has lost a connection, and with it a bound hold. Meanwhile another
/// connection asks replicas all the time, or is refused all the time.
#[test]
fn a_reply_on_a_separate_connection_keeps_no_bound_hold() {
    let bound = Terms::new().bound(Duration::from_millis(500)).unwrap();
    let refused = Separate::Refused(Duration::from_secs(60));
    for how in [None, Some(refused)] {
        let script = [
            at(1, with(replicated(), asks(2, Queueing::Try, LEASE_DEFAULT))),
            passes(100),
            with(bound, asks(0, Queueing::Try, LEASE_DEFAULT)),
            passes(100),
            asks(1, Queueing::Unlimited, LEASE_DEFAULT),
            passes(2_100),
            cuts(0, None, Cut::Unseen),
            match how {
                Some(how) => Operation::Separate { client: 0, how },
                None => passes(0),
            },
            passes(4_000),
        ];
        play(Kind::One, SEEDS, &script, |_| true);
    }
}

/// Replicas cannot be asked, so nobody can work under the grant.
#[test]
fn a_lock_is_not_held_for_a_call_whose_grant_nobody_can_confirm() {
    for how in [Separate::Refused(Duration::from_secs(60)), Separate::Silent] {
        let script = [
            Operation::Separate { client: 0, how },
            with(
                Terms::new().replicas(1).unwrap(),
                asks(0, Queueing::Unlimited, LEASE_DEFAULT),
            ),
            passes(2_100),
            asks(1, Queueing::Unlimited, LEASE_DEFAULT),
            passes(10_000),
        ];
        play(Kind::One, SEEDS, &script, |world| world.holds(1));
    }
}

/// The reply that grants a lock is read after the reconnect, and then replicas
/// are asked about the grant.
#[test]
fn a_grant_by_an_ended_connection_is_watched_by_the_next() {
    let script = [
        Operation::ReadLate {
            client: 0,
            time: Duration::from_millis(100),
        },
        with(replicated(), asks(0, Queueing::Try, LEASE_DEFAULT)),
        passes(2),
        cuts(0, None, Cut::Plain),
        passes(2_000),
    ];
    play(Kind::One, SEEDS, &script, |_| true);
}

/// The connection ends during an extension of the lease. The next one repeats the
/// extension before it checks the hold.
#[test]
fn a_fixed_lease_that_was_extended_over_two_connections_is_watched() {
    let fixed = Terms::new()
        .lease(Lease::Fixed(Duration::from_secs(5)))
        .unwrap();
    let script = [
        with(fixed, asks(0, Queueing::Try, LEASE_DEFAULT)),
        passes(5),
        cuts(0, None, Cut::Plain),
        Operation::Extend {
            actor: 0,
            lease: Duration::from_secs(9),
        },
        passes(8_000),
    ];
    play(Kind::One, SEEDS, &script, |_| true);
}

/// The replica that becomes the master never heard of the release, nor of the
/// grant that followed. That guard is still valid when the first owner asks
/// again.
#[test]
fn a_grant_that_was_released_before_a_fail_over_does_not_come_back() {
    let script = [
        asks(1, Queueing::Try, LEASE_DEFAULT),
        passes(4_200),
        Operation::FailOver {
            shard: 0,
            outage: Outage::Killed,
            lag: Duration::from_millis(400),
            back: Duration::from_secs(100),
        },
        Operation::Release {
            actor: 1,
            kept: None,
        },
        passes(150),
        asks(0, Queueing::Try, LEASE_DEFAULT),
        passes(150),
        cuts(0, None, Cut::Silent),
        passes(200),
        asks(1, Queueing::Unlimited, LEASE_DEFAULT),
        passes(20_000),
    ];
    play(Kind::One, SEEDS, &script, |_| true);
}

/// Renewed all the time.
fn replicated() -> Terms {
    Terms::new()
        .lease(Duration::from_millis(700))
        .unwrap()
        .replicas(1)
        .unwrap()
}

fn play(kind: Kind, seeds: u64, script: &[Operation], is_right: impl Fn(&World) -> bool) {
    for seed in 0..seeds {
        let mut world = World::new(kind, seed);
        let mut outcome = world.play_only(script);
        if outcome.is_ok() && !is_right(&world) {
            outcome = Err("it is not as it should be at the end".to_owned());
        }
        if let Err(error) = outcome {
            let trace = World::trace(kind, script, seed);
            panic!("seed {seed}: {error}\n{trace}\n{error}");
        }
    }
}

/// A task asks for the first lock; the second task always uses the same owner.
fn asks(actor: usize, queueing: Queueing, lease: Duration) -> Operation {
    Operation::Ask {
        actor,
        key: Some(0),
        ask: Ask::Exclusive,
        queueing,
        terms: Terms::new().lease(lease).unwrap(),
        owner: (actor == 1).then_some(0),
    }
}

/// The same for another lock.
fn at(other: usize, mut operation: Operation) -> Operation {
    if let Operation::Ask { key, .. } = &mut operation {
        *key = Some(other);
    }
    operation
}

/// The same with other terms.
fn with(others: Terms, mut operation: Operation) -> Operation {
    if let Operation::Ask { terms, .. } = &mut operation {
        *terms = others;
    }
    operation
}

fn cuts(client: usize, shard: Option<usize>, how: Cut) -> Operation {
    Operation::Cut { client, shard, how }
}

fn passes(millis: u64) -> Operation {
    let time = Duration::from_millis(millis);
    Operation::Pass { time }
}
