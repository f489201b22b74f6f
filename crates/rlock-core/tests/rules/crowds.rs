//! Operations on many holders happen in pieces, and everybody is treated
//! correctly in between.

use std::{cell::Cell, sync::mpsc, thread, time::Duration};

use rlock_core::{
    AcquireOptions, Admission, Delivery, Due, Effect, Gauges, Hold, Holder, Holders, Locks, Mode,
    Name, Request, Shared, Step, Timestamp, VisitHolder, Wait, Who,
};

use crate::requests::{CHANNEL, KEY, NO_LIMITS, Nobody, at, call, request, taken};

const MANY: usize = 200;
/// The budget of a turn.
const PIECE: usize = 64;

fn shared(owner: &str, limit: Option<u32>) -> Request<'_> {
    Request {
        options: AcquireOptions::new(Mode::Shared { permits: 1, limit }, 1000),
        ..request(owner, Wait::No)
    }
}

fn acquire(
    locks: &mut Locks,
    now: Timestamp,
    hold: &mut Hold,
    asked: &Request<'_>,
) -> Step<Admission> {
    let step = locks.acquire(now, KEY, hold, asked, &NO_LIMITS, &Nobody);
    step.expect("the request is in order")
}

/// Many shared holders, each with a watch for its loss.
fn many_watched(locks: &mut Locks) -> Hold {
    let mut hold = Hold::Free;
    for n in 0..MANY {
        let owner = format!("r{n}");
        let asked = Request {
            session: Some(7),
            channel: Some(CHANNEL),
            ..shared(&owner, None)
        };
        acquire(locks, at(0), &mut hold, &asked);
    }
    hold
}

/// Many shared holders whose leases end at 1000, and one, `last`, whose lease
/// continues.
fn many_about_to_expire(locks: &mut Locks) -> Hold {
    let mut hold = Hold::Free;
    for n in 0..MANY {
        acquire(locks, at(0), &mut hold, &shared(&format!("r{n}"), None));
    }
    acquire(locks, at(500), &mut hold, &shared("last", None));
    hold
}

fn is_granted(step: &Step<Admission>) -> bool {
    matches!(step.reply, Admission::Granted(_))
}

/// Settles the lock as often as it is due, in small turns, and returns the number
/// of effects of each turn.
fn settle_all(locks: &mut Locks, now: Timestamp, hold: &mut Hold) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some(Due::Settle { .. }) = locks.next_due(now) {
        locks.begin_turn(PIECE);
        sizes.push(locks.settle(now, KEY, hold).effects.len());
        assert_eq!(locks.check_indices(), Ok(()));
    }
    sizes
}

#[test]
fn readers_are_let_in_in_pieces_and_newcomers_wait_behind_them() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    for n in 0..MANY {
        let owner = format!("r{n}");
        let asked = Request {
            wait: Wait::Forever,
            ..shared(&owner, None)
        };
        let delivery = Delivery::blocked(n as u64, n as u64);
        locks.enqueue(at(0), KEY, &hold, &asked, delivery);
    }
    locks.begin_turn(PIECE);
    let step = locks.release(at(1), KEY, &mut hold, b"ann", false, None);
    assert_eq!(step.effects.len(), PIECE);
    let newcomer = acquire(&mut locks, at(1), &mut hold, &shared("new", None));
    assert_eq!(newcomer.reply, Admission::Busy);
    let sizes = settle_all(&mut locks, at(1), &mut hold);
    assert_eq!(sizes, [PIECE, PIECE, MANY - 3 * PIECE]);
    assert_eq!(hold.holders(at(1)), MANY);
    assert_eq!(locks.gauges(), Gauges::default());
    assert!(is_granted(&acquire(
        &mut locks,
        at(1),
        &mut hold,
        &shared("new", None)
    )));
}

#[test]
fn losses_are_reported_in_pieces_and_all_before_the_next_grant() {
    let mut locks = Locks::default();
    let mut hold = many_watched(&mut locks);
    locks.begin_turn(PIECE);
    let step = locks.force(at(1), KEY, &mut hold, None);
    assert_eq!(step.reply, MANY as u64);
    let mut sent = step.effects.len();
    assert!((PIECE..MANY).contains(&sent), "{sent}");
    while sent < MANY {
        let asked = request("bob", Wait::No);
        let early = acquire(&mut locks, at(1), &mut hold, &asked);
        assert_eq!(early.reply, Admission::Busy, "{sent} losses were reported");
        assert!(matches!(locks.next_due(at(1)), Some(Due::Settle { .. })));
        locks.begin_turn(PIECE);
        let step = locks.settle(at(1), KEY, &mut hold);
        let losses = |effect: &Effect| matches!(effect, Effect::Lost { .. });
        assert!(step.effects.iter().all(losses));
        sent += step.effects.len();
    }
    assert_eq!(sent, MANY, "each loss is reported once");
    settle_all(&mut locks, at(1), &mut hold);
    assert_eq!(locks.gauges(), Gauges::default());
    let asked = request("bob", Wait::No);
    assert!(is_granted(&acquire(&mut locks, at(1), &mut hold, &asked)));
}

#[test]
fn ended_leases_block_nobody_before_they_are_dropped() {
    let mut locks = Locks::default();
    let hold = many_about_to_expire(&mut locks);
    let now = at(1001);
    let in_small_turn = |asked: &Request<'_>| {
        let (mut locks, mut hold) = (Locks::default(), hold.clone());
        locks.begin_turn(2);
        let granted = is_granted(&acquire(&mut locks, now, &mut hold, asked));
        (granted, hold)
    };
    assert!(!in_small_turn(&request("bob", Wait::No)).0, "one is left");
    assert!(
        !in_small_turn(&shared("bob", Some(1))).0,
        "one permit is taken"
    );
    assert!(in_small_turn(&shared("bob", Some(2))).0, "and no other");
    let (granted, hold) = in_small_turn(&request("last", Wait::No));
    assert!(granted, "it is alone, and upgraded");
    assert!(matches!(hold, Hold::Exclusive { .. }));
}

/// Queues a request of a shared holder for exclusive mode.
fn upgrade(locks: &mut Locks, now: Timestamp, hold: &Hold, owner: &str) {
    let asked = request(owner, Wait::Forever);
    locks.enqueue(now, KEY, hold, &asked, Delivery::blocked(1, 1));
}

/// All effects of settling in small turns, in their order. The holders are stored
/// after each turn.
fn all_effects(locks: &mut Locks, now: Timestamp, hold: &mut Hold) -> Vec<Effect> {
    let mut effects = Vec::new();
    while let Some(due) = locks.next_due(now) {
        locks.begin_turn(PIECE);
        if let Due::Settle { .. } = due {
            effects.extend(locks.settle(now, KEY, hold).effects);
            if let Hold::Shared(shared) = &mut *hold {
                shared.remember();
            }
        }
        assert_eq!(locks.check_indices(), Ok(()));
    }
    effects
}

#[test]
fn ended_lease_is_not_upgraded_while_another_holder_is_left() {
    let mut locks = Locks::default();
    let mut hold = many_about_to_expire(&mut locks);
    acquire(&mut locks, at(100), &mut hold, &shared("ended", None));
    upgrade(&mut locks, at(100), &hold, "ended");
    locks.settle_later(KEY);
    let effects = all_effects(&mut locks, at(1200), &mut hold);
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(hold.holders(at(1200)), 1);
    let step = locks.release(at(1200), KEY, &mut hold, b"last", true, None);
    assert!(matches!(step.effects[..], [Effect::HandOff(_)]));
}

#[test]
fn all_losses_are_reported_before_an_upgrade() {
    let mut locks = Locks::default();
    let mut hold = many_watched(&mut locks);
    acquire(&mut locks, at(500), &mut hold, &shared("last", None));
    upgrade(&mut locks, at(500), &hold, "last");
    locks.settle_later(KEY);
    let mut effects = all_effects(&mut locks, at(1200), &mut hold);
    assert!(matches!(effects.pop(), Some(Effect::HandOff(_))));
    let is_loss = |it: &Effect| matches!(it, Effect::Lost { .. });
    assert!(effects.iter().all(is_loss));
    assert_eq!(effects.len(), MANY);
}

/// Settling drops those without a watch, so the operation after it drops the others.
#[test]
fn losses_that_an_operation_finds_are_reported_by_a_later_turn() {
    let mut locks = Locks::default();
    let mut hold = Hold::Free;
    for n in 0..2 * PIECE {
        let owner = format!("r{n:03}");
        let mut asked = shared(&owner, None);
        if n >= PIECE {
            (asked.session, asked.channel) = (Some(7), Some(CHANNEL));
        }
        acquire(&mut locks, at(0), &mut hold, &asked);
    }
    acquire(&mut locks, at(500), &mut hold, &shared("last", None));
    locks.begin_turn(2 * PIECE);
    let settled = locks.settle(at(1200), KEY, &mut hold);
    assert!(settled.effects.is_empty());
    let refused = acquire(&mut locks, at(1200), &mut hold, &request("bob", Wait::No));
    assert_eq!(refused.reply, Admission::Busy);
    if let Hold::Shared(shared) = &mut hold {
        shared.remember();
    }
    let effects = all_effects(&mut locks, at(1200), &mut hold);
    assert_eq!(effects.len(), PIECE);
}

/// `bob` waits for `ann`, and held this lock until a moment ago.
#[test]
fn ended_lease_closes_no_cycle_before_it_is_dropped() {
    struct Ann;
    impl Holders for Ann {
        fn visit(&self, _: Name<'_>, visit: &mut VisitHolder<'_>) {
            let _ = visit(b"ann", None);
        }

        fn is_over(&self) -> bool {
            false
        }
    }
    let mut locks = Locks::default();
    let mut hold = many_about_to_expire(&mut locks);
    acquire(&mut locks, at(100), &mut hold, &shared("bob", None));
    let other = Name {
        db: 0,
        key: b"other",
    };
    let of_ann = Hold::exclusive(Who::Other, None, at(9000));
    let asked = request("bob", Wait::Forever);
    locks.enqueue(at(100), other, &of_ann, &asked, Delivery::blocked(2, 2));
    let asked = request("ann", Wait::Forever);
    for (now, is_deadlock) in [(at(600), true), (at(1200), false)] {
        locks.begin_turn(PIECE);
        let step = locks.acquire(now, KEY, &mut hold, &asked, &NO_LIMITS, &Ann);
        assert_eq!(step.is_err(), is_deadlock);
    }
}

/// Its owner asks again before the server has withdrawn its earlier request.
#[test]
fn request_behind_its_own_withdrawn_place_gets_the_free_lock() {
    for several in [false, true] {
        let mut locks = Locks::default();
        let mut hold = taken(&mut locks, at(0), "ann");
        call(&mut locks, at(0), &hold, "bob", Wait::Forever, 1);
        locks.demote();
        locks.release(at(1), KEY, &mut hold, b"ann", false, None);
        let asked = request("bob", Wait::Forever);
        let (names, mut holds) = ([KEY], [hold]);
        let delivery = Delivery::blocked(2, 2);
        let reply = match several {
            false => acquire(&mut locks, at(1), &mut holds[0], &asked).reply,
            true => {
                let (limits, holders) = (&NO_LIMITS, &Nobody);
                let step = locks.acquire_all(at(1), &names, &mut holds, &asked, limits, holders);
                step.expect("the request is in order").reply
            }
        };
        assert_eq!(reply, Admission::MustWait);
        match several {
            false => drop(locks.enqueue(at(1), KEY, &holds[0], &asked, delivery)),
            true => drop(locks.enqueue_all(at(1), &names, &holds, &asked, &delivery)),
        }
        let effects = all_effects(&mut locks, at(1), &mut holds[0]);
        let is_ready = locks.next_ready().is_some();
        let is_granted = effects.iter().any(|it| matches!(it, Effect::HandOff(_)));
        assert!(is_granted || (several && is_ready), "several: {several}");
    }
}

#[test]
fn clearing_a_queue_ends_all_places_whatever_upgrades_come_first() {
    let mut locks = Locks::default();
    let mut hold = Hold::Free;
    for owner in ["a", "b", "c"] {
        acquire(&mut locks, at(0), &mut hold, &shared(owner, None));
    }
    for n in 0..MANY as u64 {
        call(&mut locks, at(0), &hold, &format!("w{n}"), Wait::Forever, n);
    }
    locks.begin_turn(PIECE);
    assert_eq!(locks.clear_queue(KEY).len(), PIECE);
    upgrade(&mut locks, at(1), &hold, "a");
    locks.release(at(1), KEY, &mut hold, b"a", true, None);
    upgrade(&mut locks, at(1), &hold, "b");
    all_effects(&mut locks, at(1), &mut hold);
    assert_eq!(locks.gauges().waiters, 2);
}

#[test]
fn ended_lease_is_never_revived_however_little_a_turn_may_do() {
    let mut locks = Locks::default();
    let mut hold = many_about_to_expire(&mut locks);
    locks.begin_turn(0);
    let owner = format!("r{}", MANY / 2);
    let step = locks.release(at(1001), KEY, &mut hold, owner.as_bytes(), false, None);
    assert_eq!(step.reply, None);
    assert_eq!(hold.holders(at(1001)), 1);
}

#[test]
fn forgetting_holders_ends_when_none_is_left_however_many_it_may_forget() {
    let holder = Holder::new(None, at(1000));
    let owners = (0..MANY).map(|n| (format!("r{n}").into_bytes().into(), holder));
    let mut shared = Shared::stored(owners, None);
    assert_eq!(shared.drop_some(PIECE), PIECE);
    let (done, done_later) = mpsc::channel();
    thread::spawn(move || done.send(shared.drop_some(usize::MAX)));
    let dropped = done_later.recv_timeout(Duration::from_secs(20));
    assert_eq!(dropped, Ok(MANY - PIECE));
}

#[test]
fn grant_of_several_keys_spends_as_much_of_a_turn_as_it_has_keys() {
    let mut locks = Locks::default();
    let keys: Vec<_> = (0..=PIECE).map(|n| format!("k{n}")).collect();
    let keys = keys.iter().map(|it| it.as_bytes());
    let names: Vec<_> = keys.map(|key| Name { db: 0, key }).collect();
    let held = Hold::exclusive(Who::Other, None, at(1000));
    let mut holds = vec![Hold::Free; names.len()];
    holds[0] = held;
    let delivery = Delivery::blocked(1, 1);
    let asked = request("bob", Wait::Forever);
    locks.enqueue_all(at(0), &names, &holds, &asked, &delivery);
    locks.begin_turn(PIECE);
    locks.settle(at(1), names[0], &mut Hold::Free);
    let ready = locks.next_ready().expect("all keys are free");
    assert!(!locks.turn_is_over());
    let mut holds = vec![Hold::Free; names.len()];
    assert!(locks.grant_all(at(1), ready, &names, &mut holds).is_some());
    assert!(locks.turn_is_over());
}

/// The message about a free lock needs a free lock, with a watch or without.
#[test]
fn release_after_which_all_leases_have_ended_frees_the_lock() {
    for watched in [false, true] {
        let mut locks = Locks::default();
        let mut hold = many_about_to_expire(&mut locks);
        if watched {
            let asked = Request {
                session: Some(7),
                channel: Some(CHANNEL),
                ..shared("last", None)
            };
            acquire(&mut locks, at(500), &mut hold, &asked);
        }
        locks.begin_turn(PIECE);
        let step = locks.release(at(1200), KEY, &mut hold, b"last", true, None);
        assert_eq!((step.reply, hold.is_free()), (Some(0), true));
        assert_eq!(locks.counters().lease_expirations, MANY as u64);
    }
}

/// Locks with an endless number of holders, and a clock that is always past the
/// end.
#[derive(Default)]
struct Endless {
    visited: Cell<u64>,
}

impl Holders for Endless {
    fn visit(&self, _: Name<'_>, visit: &mut VisitHolder<'_>) {
        for number in 0_u64.. {
            self.visited.set(self.visited.get() + 1);
            if visit(format!("h{number}").as_bytes(), Some(1)).is_break() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        true
    }
}

#[test]
fn search_for_a_deadlock_ends_when_its_time_is_over() {
    let mut locks = Locks::default();
    let mut hold = Hold::exclusive(Who::Other, None, at(1000));
    let endless = Endless::default();
    let asked = request("a", Wait::Millis(100));
    let step = locks.acquire(at(0), KEY, &mut hold, &asked, &NO_LIMITS, &endless);
    let step = step.expect("what was not searched closes no cycle");
    assert_eq!(step.reply, Admission::MustWait);
    let visited = endless.visited.get();
    assert!(
        (1000..4000).contains(&visited),
        "{visited} holders are visited"
    );
}
