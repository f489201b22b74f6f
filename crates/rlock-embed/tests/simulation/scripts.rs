//! Faults that must happen in a certain order to reveal something.

use std::time::Duration;

use rlock_embed::format::NONE;
use rlock_embed::messages::Terms;

use crate::calls::Guard;
use crate::steps::{Asked, Cut, Outage, Step};
use crate::world::{Kind, MS, World};

/// The number of runs of each script, each with other delays.
const SEEDS: u64 = 100;
const LEASE: u64 = 30_000;

/// A grant is in transit on a connection that breaks. Its call is dropped, so
/// the lock passes to the next in the queue. The same owner asks again before
/// the message arrives.
#[test]
fn a_grant_reported_to_an_earlier_connection_does_not_count() {
    let script = [
        asks(0, NONE, LEASE),
        passes(100),
        by_activity(asks(1, NONE, LEASE)),
        passes(100),
        asks(0, NONE, LEASE),
        passes(100),
        releases(0, 0),
        cuts(1, Cut::Plain),
        passes(40),
        abandons(1),
        by_activity(asks(1, NONE, LEASE)),
        passes(1_000),
    ];
    play(Kind::One, 10 * SEEDS, &script, |_| true);
}

/// The same, but the connection is only slow, and the slot has moved: the call has
/// asked the other master.
#[test]
fn a_grant_reported_by_the_former_master_does_not_count() {
    let script = [
        asks(0, 0, LEASE),
        at("b", asks(1, 0, LEASE)),
        passes(100),
        by_activity(asks(1, NONE, LEASE)),
        passes(100),
        asks(2, NONE, LEASE),
        passes(100),
        cuts_at(1, 1, Cut::Slow),
        releases(0, 0),
        passes(50),
        moves(0),
        passes(20),
        abandons(1),
        by_activity(asks(1, NONE, LEASE)),
        passes(12_000),
    ];
    play(Kind::Cluster, 4 * SEEDS, &script, |_| true);
}

/// A release is in transit on a connection that breaks, and the server does not
/// see that. The next connection repeats the release. The first release arrives
/// after its owner has re-acquired the lock.
#[test]
fn a_late_release_does_not_free_a_reacquired_lock() {
    let script = [
        by_activity(asks(1, 0, LEASE)),
        passes(100),
        releases(1, 0),
        cuts(1, Cut::HalfOpen),
        passes(90),
        by_activity(asks(1, NONE, LEASE)),
        passes(1),
        asks(0, NONE, LEASE),
        passes(3_000),
    ];
    play(Kind::One, 20 * SEEDS, &script, |_| true);
}

/// A release of one of three permits may have been carried out when its connection
/// breaks. In the end the server has those that are in use, and no others.
#[test]
fn a_release_of_permits_without_an_answer_is_carried_out_once() {
    for how in [Cut::Plain, Cut::HalfOpen, Cut::Silent, Cut::Unseen] {
        let script = [
            with(asks(0, 0, LEASE), |it| (it.keys, it.mode) = (&["p"], 4)),
            passes(100),
            Step::ReleasePermits {
                client: 0,
                which: 0,
                how: 3,
            },
            cuts(0, how),
            passes(25_000),
        ];
        let has = |world: &World<'_>, it: &Guard| {
            let there = world.there("p", &it.owner);
            there.map_or(0, |it| it.permits)
        };
        let has_two = |world: &World<'_>| {
            let mut guards = world.clients[0].guards.values();
            !world.may_kill || guards.all(|it| has(world, it) == it.permits)
        };
        for kind in [Kind::One, Kind::Cluster] {
            play(kind, SEEDS, &script, has_two);
        }
    }
}

/// Its requests would be answered within five seconds, or never. A lease of two
/// seconds cannot wait for that.
#[test]
fn a_silent_connection_is_closed_while_a_lease_can_still_be_renewed() {
    let silent = cuts(0, Cut::Silent);
    let script = [asks(0, 0, 2_000), passes(2_100), silent, passes(1_610)];
    let has_given_up = |world: &World<'_>| {
        let this = &world.clients[0];
        this.connected.len() > 1 || this.guards.is_empty()
    };
    play(Kind::One, SEEDS, &script, has_given_up);
}

/// One connection is silent, with requests that wait for their replies.
#[test]
fn a_silent_master_delays_no_lock_of_another() {
    let script = [
        asks(0, 0, LEASE),
        at("b", asks(0, 0, LEASE)),
        passes(2_100),
        cuts_at(1, 0, Cut::Silent),
        releases(0, 0),
        releases(0, 0),
        at("b", asks(0, 0, LEASE)),
        passes(5_000),
    ];
    play(Kind::Cluster, SEEDS, &script, |world| holds(world, 0));
}

/// Nothing renews the hold, so no request would be refused there.
#[test]
fn a_loss_is_reported_by_the_master_that_has_the_slot_now() {
    for window in [0, 500] {
        let script = [
            with(asks(0, 0, LEASE), |it| it.terms.renewed = false),
            passes(2_100),
            moves(window),
            passes(10_000),
            forces(0, false),
            passes(2_100),
        ];
        play(Kind::Cluster, SEEDS, &script, |world| !holds(world, 0));
    }
}

/// Waits and holds continue at the replica, though the master is gone for good.
#[test]
fn a_wait_continues_at_the_replica() {
    for (kind, outage) in [
        (Kind::Sentinels, Outage::Killed),
        (Kind::Sentinels, Outage::Paused),
        (Kind::Cluster, Outage::Killed),
        (Kind::Cluster, Outage::Paused),
        (Kind::Cluster, Outage::Demoted),
    ] {
        let script = [
            asks(0, 0, 60_000),
            passes(2_100),
            asks(1, NONE, LEASE),
            passes(2_100),
            Step::FailOver {
                shard: if kind == Kind::Cluster { 1 } else { 0 },
                outage,
                lag: 0,
                back: 100_000 * MS,
            },
            passes(15_000),
            releases(0, 0),
            passes(8_000),
        ];
        play(kind, SEEDS / 4, &script, |world| holds(world, 1));
    }
}

/// The server cuts a bound lease when its connection ends, and the cut lease
/// moves to the other master. The reply to an earlier renewal is read when the
/// hold is already counted at the other master.
#[test]
fn a_renewal_by_an_ended_connection_is_cut_at_another_master() {
    let script = [
        at("b", asks(0, 0, LEASE)),
        passes(20),
        with(asks(0, 0, 700), |it| it.terms.bound = millis(400)),
        passes(20),
        asks(1, NONE, LEASE),
        passes(100),
        Step::ReadLate {
            client: 0,
            time: 200 * MS,
        },
        Step::Extend {
            client: 0,
            which: 1,
            lease: Duration::from_millis(1_500),
        },
        passes(4),
        cuts_at(1, 0, Cut::Plain),
        Step::Refuse {
            host: 0,
            time: 450 * MS,
        },
        passes(20),
        moves(0),
        passes(900),
    ];
    play(Kind::Cluster, SEEDS, &script, |_| true);
}

/// A grant's message is late, while another master answers all the time.
#[test]
fn a_heartbeat_of_another_master_proves_no_grant() {
    let script = [
        at(
            "b",
            with(asks(0, 0, LEASE), |it| it.terms.bound = millis(400)),
        ),
        asks(1, 0, LEASE),
        passes(500),
        asks(0, NONE, 700),
        passes(100),
        asks(2, NONE, LEASE),
        passes(100),
        releases(1, 0),
        passes(3_000),
    ];
    play(Kind::Cluster, 4 * SEEDS, &script, |_| true);
}

/// The same for the connection for replicas: a grant's message is late, while
/// that connection renews a hold all the time.
#[test]
fn a_reply_on_a_separate_connection_proves_no_grant() {
    for renewed in [true, false] {
        let script = [
            at("b", replicated(asks(0, 0, 700))),
            asks(1, 0, LEASE),
            passes(500),
            with(asks(0, NONE, 700), |it| it.terms.renewed = renewed),
            passes(100),
            asks(2, NONE, LEASE),
            passes(100),
            releases(1, 0),
            passes(3_000),
        ];
        play(Kind::One, 4 * SEEDS, &script, |_| true);
    }
}

/// The server has lost a connection, and with it a bound hold. Meanwhile another
/// connection asks replicas all the time, or is refused all the time.
#[test]
fn a_reply_on_a_separate_connection_keeps_no_bound_hold() {
    for how in [passes(0), unreachable(true)] {
        let script = [
            at("b", replicated(asks(0, 0, LEASE))),
            passes(100),
            with(asks(0, 0, LEASE), |it| it.terms.bound = millis(500)),
            passes(100),
            asks(1, NONE, LEASE),
            passes(2_100),
            cuts(0, Cut::Unseen),
            how,
            passes(4_000),
        ];
        play(Kind::One, SEEDS, &script, |_| true);
    }
}

/// Replicas cannot be asked, so nobody can work under the grant.
#[test]
fn a_lock_is_not_held_for_a_call_whose_grant_nobody_can_confirm() {
    for is_refused in [true, false] {
        let script = [
            at("b", asks(0, 0, LEASE)),
            passes(100),
            unreachable(is_refused),
            replicated(asks(0, NONE, LEASE)),
            passes(2_100),
            asks(1, NONE, LEASE),
            passes(12_000),
        ];
        play(Kind::One, SEEDS, &script, |world| holds(world, 1));
    }
}

/// The reply that grants a lock is read after the reconnect, and then replicas
/// are asked about the grant.
#[test]
fn a_grant_by_an_ended_connection_is_watched_by_the_next() {
    let script = [
        Step::ReadLate {
            client: 0,
            time: 100 * MS,
        },
        replicated(asks(0, 0, 700)),
        passes(2),
        cuts(0, Cut::Plain),
        passes(4_000),
        forces(0, false),
        passes(2_200),
    ];
    play(Kind::One, SEEDS, &script, |world| !holds(world, 0));
}

/// The connection ends during an extension of the lease. The next one repeats the
/// extension before it checks the hold.
#[test]
fn a_fixed_lease_that_was_extended_over_two_connections_is_watched() {
    let script = [
        with(asks(0, 0, 5_000), |it| it.terms.renewed = false),
        passes(5),
        cuts(0, Cut::Plain),
        Step::Extend {
            client: 0,
            which: 0,
            lease: Duration::from_secs(9),
        },
        passes(2_000),
        forces(0, false),
        passes(2_200),
    ];
    play(Kind::One, SEEDS, &script, |world| !holds(world, 0));
}

/// The replica that becomes the master never heard of the release, nor of the
/// grant that followed. That guard is still valid when the first owner asks
/// again.
#[test]
fn a_grant_that_was_released_before_a_fail_over_does_not_come_back() {
    let script = [
        by_activity(asks(1, 0, LEASE)),
        passes(4_200),
        Step::FailOver {
            shard: 0,
            outage: Outage::Killed,
            lag: 400 * MS,
            back: 100_000 * MS,
        },
        releases(1, 0),
        passes(150),
        asks(0, 0, LEASE),
        passes(150),
        cuts(0, Cut::Silent),
        passes(200),
        by_activity(asks(1, NONE, LEASE)),
        passes(20_000),
    ];
    play(Kind::Sentinels, SEEDS, &script, |_| true);
}

/// A clean-up follows its key to the target of a moving slot, over a connection that is slow. The owner asks again, and
/// may not get the lock before that clean-up has arrived.
#[test]
fn a_late_clean_up_at_the_target_of_a_moving_slot_does_not_free_a_reacquired_lock() {
    let script = [
        asks(0, 0, LEASE),
        passes(100),
        by_activity(asks(1, NONE, LEASE)),
        passes(100),
        moves(3_000),
        passes(1_500),
        abandons(1),
        passes(2),
        cuts_at(0, 1, Cut::Slow),
        passes(1_700),
        releases(0, 0),
        by_activity(asks(1, NONE, LEASE)),
        asks(2, NONE, LEASE),
        passes(12_000),
    ];
    play(Kind::Cluster, 4 * SEEDS, &script, |_| true);
}

/// An operator ends a shared hold while it waits to become exclusive. The lock is
/// taken again, with the same lease.
#[test]
fn an_upgrade_after_a_loss_has_the_terms_of_its_guard() {
    let reads = |client| with(asks(client, 0, 2_000), |it| it.mode = 1);
    let script = [
        reads(0),
        reads(1),
        passes(2_100),
        Step::Upgrade {
            client: 0,
            which: 0,
            wait: NONE,
            then: 0,
        },
        passes(2_100),
        forces(0, true),
        passes(8_000),
    ];
    play(Kind::One, SEEDS, &script, |_| true);
}

/// Two calls of an activity share what a majority has. Both learn of its loss.
#[test]
fn each_guard_of_a_quorum_is_released_with_the_loss() {
    let script = [
        by_activity(asks(0, 0, 1_500)),
        by_activity(asks(0, 0, 1_500)),
        passes(1_000),
        forces(0, true),
        forces(1, true),
        forces(2, true),
        passes(1_000),
        releases(0, 0),
        releases(0, 0),
        passes(1_000),
    ];
    play(Kind::Three, SEEDS, &script, |_| true);
}

fn play(kind: Kind, seeds: u64, script: &[Step], is_right: impl Fn(&World<'_>) -> bool) {
    let run = |seed, is_told| {
        let mut world = World::new(kind, seed, None, is_told);
        world.is_scripted = true;
        world.play_only(script)?;
        match is_right(&world) {
            true => Ok(()),
            false => Err("it is not as it should be at the end".to_owned()),
        }
    };
    for seed in 0..seeds {
        if let Err(error) = run(seed, false) {
            _ = run(seed, true);
            panic!("{kind:?}, run {seed}: {error}");
        }
    }
}

/// A client asks for the first lock. In milliseconds.
fn asks(client: usize, wait: u64, lease: u64) -> Step {
    Step::Ask(Asked {
        client,
        keys: &["a"],
        mode: 0,
        activity: None,
        wait,
        terms: Terms {
            lease: Duration::from_millis(lease),
            renewed: true,
            max_hold: None,
            bound: None,
            replicas: 0,
            margin: Duration::ZERO,
        },
        value: None,
    })
}

/// An operator ends the hold while the client asks for it again. Its close leaves nothing that this request takes.
#[test]
fn a_close_leaves_nothing_that_a_late_request_takes() {
    let script = [
        by_activity(asks(0, 0, LEASE)),
        passes(1_100),
        by_activity(asks(0, NONE, LEASE)),
        forces(0, false),
        Step::Close { client: 0 },
        passes(8_100),
    ];
    play(Kind::One, SEEDS, &script, |world| world.is_free("a"));
}

/// The extension was carried out, but its answer is lost, and the server is out of reach for longer than the old lease.
#[test]
fn an_extension_without_an_answer_is_released() {
    let script = [
        asks(0, 0, 5_000),
        passes(2_100),
        Step::Extend {
            client: 0,
            which: 0,
            lease: Duration::from_secs(600),
        },
        passes(20),
        cuts(0, Cut::Unseen),
        Step::Unreachable {
            client: 0,
            host: 0,
            time: 18_000 * MS,
            is_refused: true,
        },
        passes(10),
        Step::Leave {
            client: 0,
            which: 0,
        },
        passes(60_000),
    ];
    play(Kind::One, SEEDS, &script, |world| world.is_free("a"));
}

/// An operator ends the hold right after an upgrade, whose call is dropped, and another client gets the lock.
#[test]
fn a_loss_under_the_fence_of_a_dropped_upgrade_counts() {
    let script = [
        with(asks(0, 0, LEASE), |it| {
            (it.mode, it.terms.renewed) = (1, false);
        }),
        passes(2_100),
        Step::ReadLate {
            client: 0,
            time: 1_200 * MS,
        },
        Step::Upgrade {
            client: 0,
            which: 0,
            wait: NONE,
            then: 0,
        },
        passes(1_050),
        forces(0, false),
        abandons(0),
        asks(1, 0, LEASE),
        passes(6_000),
    ];
    play(Kind::One, SEEDS, &script, |world| {
        !(holds(world, 0) && holds(world, 1))
    });
}

/// Others have had the lock between the shared hold and its upgrade, and the report of the loss is gone.
#[test]
fn an_upgrade_without_an_answer_hides_no_loss() {
    let other = || Step::Other {
        key: 0,
        host: 0,
        lease: 10_000,
    };
    let script = [
        with(asks(0, 0, LEASE), |it| it.mode = 1),
        passes(2_100),
        Step::Upgrade {
            client: 0,
            which: 0,
            wait: NONE,
            then: 0,
        },
        forces(0, false),
        other(),
        other(),
        cuts(0, Cut::Unseen),
        passes(20_000),
    ];
    play(Kind::One, SEEDS, &script, |world| {
        let mut guards = world.clients[0].guards.values();
        world.seen.losses > 0 || guards.all(|it| it.mode != 0)
    });
}

/// The same otherwise.
fn with(mut step: Step, change: impl Fn(&mut Asked)) -> Step {
    if let Step::Ask(asked) = &mut step {
        change(asked);
    }
    step
}

fn by_activity(step: Step) -> Step {
    with(step, |it| it.activity = Some(0))
}

fn at(key: &'static str, step: Step) -> Step {
    let keys: &[_] = if key == "b" { &["b"] } else { &["a"] };
    with(step, |it| it.keys = keys)
}

fn replicated(step: Step) -> Step {
    with(step, |it| it.terms.replicas = 1)
}

fn releases(client: usize, which: usize) -> Step {
    let least = None;
    Step::Release {
        client,
        which,
        least,
    }
}

fn cuts(client: usize, how: Cut) -> Step {
    let (host, which) = (None, 0);
    Step::Cut {
        client,
        host,
        which,
        how,
    }
}

/// The same, of its connections to one server.
fn cuts_at(host: usize, client: usize, how: Cut) -> Step {
    let (host, which) = (Some(host), 0);
    Step::Cut {
        client,
        host,
        which,
        how,
    }
}

fn abandons(client: usize) -> Step {
    Step::Abandon { client, which: 0 }
}

/// An operator ends the holds of the first lock.
fn forces(host: usize, queue: bool) -> Step {
    let key = 0;
    Step::Force { key, host, queue }
}

/// The first lock's slot moves.
fn moves(window: u64) -> Step {
    Step::MoveKey {
        key: 0,
        window: window * MS,
    }
}

fn unreachable(is_refused: bool) -> Step {
    Step::Unreachable {
        client: 0,
        host: 0,
        time: 60_000 * MS,
        is_refused,
    }
}

fn passes(millis: u64) -> Step {
    Step::Pass { time: millis * MS }
}

fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

/// Whether a client has a valid guard.
fn holds(world: &World<'_>, client: usize) -> bool {
    let this = &world.clients[client];
    let mut guards = this.guards.keys();
    guards.any(|guard| this.typed.remaining(*guard, world.now) > 0)
}
