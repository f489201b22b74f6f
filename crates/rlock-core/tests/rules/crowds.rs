//! Operations on many holders happen in pieces, and everybody is treated
//! correctly in between.

use std::{cell::Cell, sync::mpsc, thread, time::Duration};

use rlock_core::{
    AcquireOptions, Admission, Delivery, Due, Effect, Gauges, Hold, Holder, Holders, Locks, Mode,
    Name, Request, Shared, Step, Timestamp, VisitHolder, Wait, Who,
};

use crate::requests::{CHANNEL, KEY, NO_LIMITS, Nobody, at, request, taken};

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
