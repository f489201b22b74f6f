//! A lot of work at once is done in pieces.

use rlock_core::{
    AcquireOptions, Channel, Due, Effect, Gauges, Grace, Hold, Locks, Name, Request, Step,
    Timestamp, Wait,
};

use crate::requests::{
    CHANNEL, KEY, NO_LIMITS, Nobody, OPTIONS, at, call, notified, of_somebody_else, request, taken,
};
use rlock_testkit::core::{
    driver::{Driver, text},
    messages::{Ask, Outcome, Sent},
};

const MANY: u64 = 10_000;
/// The most waits that one settling ends.
const PIECE: usize = 64;

fn assert_empty(locks: &mut Locks, now: Timestamp) {
    assert_eq!(locks.gauges(), Gauges::default());
    assert!(!locks.is_contended(KEY));
    // A lock that was marked for settling may have been forgotten meanwhile.
    assert!(locks.next_due(now).is_none());
    assert_eq!(locks.next_deadline(now), None);
    assert_eq!(locks.check_indices(), Ok(()));
}

/// Settles the lock as often as it is due, and returns the sizes of the steps and
/// the new holder.
fn settle_all(locks: &mut Locks, now: Timestamp, hold: &mut Hold) -> (Vec<usize>, Option<String>) {
    let (mut sizes, mut granted) = (Vec::new(), None);
    while locks.next_deadline(now) == Some(now) {
        locks.begin_turn(PIECE);
        let Some(due) = locks.next_due(now) else {
            continue;
        };
        assert!(matches!(due, Due::Settle { .. }), "only the lock is due");
        locks.begin_turn(PIECE);
        let step = locks.settle(now, KEY, hold);
        sizes.push(step.effects.len());
        granted = granted.or_else(|| granted_to(&step));
        assert_eq!(locks.check_indices(), Ok(()));
        assert_eq!(locks.check_settled(now, KEY, hold), Ok(()));
    }
    (sizes, granted)
}

/// Runs turns of ten tickets until all work is done; returns their number, and
/// the databases of the locks that had to be settled.
fn turns(locks: &mut Locks) -> (usize, Vec<u32>) {
    let (mut turns, mut settled) = (0, Vec::new());
    while locks.next_deadline(at(0)) == Some(at(0)) {
        turns += 1;
        locks.begin_turn(10);
        while let Some(Due::Settle { db, .. }) = locks.next_due(at(0)) {
            settled.push(db);
        }
    }
    (turns, settled)
}

fn granted_to<R>(step: &Step<R>) -> Option<String> {
    step.effects.iter().find_map(|effect| match effect {
        Effect::HandOff(granted) => Some(text(&granted.ticket.owner)),
        _ => None,
    })
}

#[test]
fn ten_thousand_waiters_are_served_in_order_and_leave_nothing() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    for n in 0..MANY {
        call(
            &mut locks,
            at(0),
            &hold,
            &format!("w{n}"),
            Wait::Millis(60_000),
            n,
        );
    }
    assert_eq!(locks.gauges().waiters, MANY);
    assert_eq!(locks.gauges().contended_locks, 1);
    let mut owner = "ann".to_owned();
    for n in 0..MANY {
        let step = locks.release(at(1), KEY, &mut hold, owner.as_bytes(), false, None);
        assert_eq!(step.reply, Some(0));
        owner = granted_to(&step).expect("somebody waits");
        assert_eq!(owner, format!("w{n}"));
    }
    locks.release(at(1), KEY, &mut hold, owner.as_bytes(), false, None);
    assert_empty(&mut locks, at(1));
}

#[test]
fn waits_that_end_together_end_one_by_one() {
    let mut locks = Locks::default();
    let hold = taken(&mut locks, at(0), "ann");
    for n in 0..MANY {
        call(
            &mut locks,
            at(0),
            &hold,
            &format!("w{n}"),
            Wait::Millis(100),
            n,
        );
    }
    assert_eq!(locks.next_deadline(at(1)), Some(at(101)));
    assert!(locks.next_due(at(100)).is_none());
    for n in 0..MANY {
        assert_eq!(locks.next_deadline(at(101)), Some(at(101)));
        let ticket = loop {
            match locks.next_due(at(101)) {
                Some(Due::WaitEnd(ticket)) => break ticket,
                // The front has changed.
                Some(Due::Settle { .. }) => {}
                other => panic!("{n} waits are over, not {other:?}"),
            }
        };
        assert!(locks.end_wait(at(100), ticket).is_none(), "not yet");
        let ended = locks.end_wait(at(101), ticket).expect("the wait is over");
        let (key, owner) = (&*ended.key, text(&ended.owner));
        assert_eq!((key, owner), (KEY.key, format!("w{n}")));
        assert!(locks.end_wait(at(101), ticket).is_none(), "it has ended");
    }
    assert_eq!(locks.counters().wait_timeouts, MANY);
    assert_empty(&mut locks, at(101));
}

#[test]
fn late_settling_ends_waits_in_pieces_before_it_grants() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    for n in 0..200 {
        call(
            &mut locks,
            at(0),
            &hold,
            &format!("w{n}"),
            Wait::Millis(10),
            n,
        );
    }
    call(&mut locks, at(0), &hold, "last", Wait::Forever, 200);

    // The timer was late: the release comes before the ends of the waits.
    locks.begin_turn(PIECE);
    let step = locks.release(at(50), KEY, &mut hold, b"ann", false, None);
    assert_eq!(step.effects.len(), PIECE);
    assert_eq!(hold, Hold::Free);
    assert_eq!(locks.check_settled(at(50), KEY, &hold), Ok(()));

    // Until the rest is done the lock is free, but not for new requests.
    let asked = request("new", Wait::No);
    let step = locks.acquire(at(50), KEY, &mut hold, &asked, &NO_LIMITS, &Nobody);
    let reply = step.map(|step| step.reply);
    assert_eq!(reply, Ok(rlock_core::Admission::Busy));

    locks.settle_later(KEY);
    let mut sizes = Vec::new();
    while hold == Hold::Free {
        locks.begin_turn(PIECE);
        let step = locks.settle(at(50), KEY, &mut hold);
        sizes.push(step.effects.len());
    }
    assert_eq!(sizes, [PIECE, PIECE, 200 - 3 * PIECE + 1]);
    assert_eq!(locks.counters().wait_timeouts, 200);
    assert_eq!(locks.counters().handoffs, 1);
}

#[test]
fn closed_session_is_withdrawn_in_pieces_and_granted_nothing_meanwhile() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    for n in 0..200 {
        notified(&mut locks, at(0), &hold, &format!("w{n}"), 7);
    }
    notified(&mut locks, at(0), &hold, "last", 8);
    locks.session_closed(at(0), 7);
    locks.begin_turn(10);
    assert!(locks.next_due(at(0)).is_none(), "the turn is over");
    assert_eq!(locks.gauges().waiters, 191);
    assert_eq!(locks.counters().waiters_gone, 10);

    locks.begin_turn(PIECE);
    let step = locks.release(at(1), KEY, &mut hold, b"ann", false, None);
    assert_eq!((step.effects.len(), granted_to(&step)), (PIECE, None));
    let (sizes, granted) = settle_all(&mut locks, at(1), &mut hold);
    assert!(sizes.iter().all(|size| *size <= PIECE), "{sizes:?}");
    assert_eq!(granted.as_deref(), Some("last"));
    assert_eq!(locks.counters().waiters_gone, 200);
    locks.release(at(1), KEY, &mut hold, b"last", false, None);
    assert_empty(&mut locks, at(1));
}

#[test]
fn hidden_end_of_other_data_is_found_within_a_second() {
    let mut locks = Locks::default();
    call(&mut locks, at(0), &Hold::NoLock, "bob", Wait::Forever, 1);
    assert_eq!(locks.next_deadline(at(0)), Some(at(1001)));
    let mut hold = Hold::NoLock;
    let (sizes, granted) = settle_all(&mut locks, at(1001), &mut hold);
    assert_eq!((sizes, granted), (vec![0], None));
    assert_eq!(locks.next_deadline(at(1001)), Some(at(2002)));
    let (_, granted) = settle_all(&mut locks, at(2002), &mut Hold::Free);
    assert_eq!(granted.as_deref(), Some("bob"));
}

/// Fifty locks in each of two databases, each with a waiter.
fn fifty_in_each_of_two(locks: &mut Locks) {
    let held = of_somebody_else(&taken(locks, at(0), "ann"));
    let keys: Vec<_> = (0..100_u32).map(|n| (n % 2, format!("k{n}"))).collect();
    for (db, key) in &keys {
        let (db, key) = (*db, key.as_bytes());
        let delivery = rlock_core::Delivery::blocked(1, 1);
        let asked = request("bob", Wait::Forever);
        locks.enqueue(at(0), Name { db, key }, &held, &asked, delivery);
    }
}

#[test]
fn flush_settles_the_locks_of_its_database_in_pieces() {
    let mut locks = Locks::default();
    fifty_in_each_of_two(&mut locks);
    locks.settle_all_later(Some(1));
    assert_eq!(locks.next_deadline(at(0)), Some(at(0)));
    assert_eq!(turns(&mut locks), (11, vec![1; 50]));
}

#[test]
fn consecutive_flushes_are_handled_once() {
    let mut locks = Locks::default();
    fifty_in_each_of_two(&mut locks);
    for _ in 0..1000 {
        locks.settle_all_later(None);
        locks.settle_all_later(Some(0));
    }
    assert_eq!(turns(&mut locks).0, 11);
    // A database that changes during the work must start again.
    locks.settle_all_later(Some(0));
    locks.begin_turn(1);
    assert!(locks.next_due(at(0)).is_none());
    locks.settle_all_later(Some(0));
    assert_eq!(turns(&mut locks).0, 21);
}

/// Asks for the lock of a driver, by a call or on a channel without listeners.
fn ask(driver: &mut Driver, owner: &str, session: u64, channel: Option<Channel<'_>>) {
    let request = Request {
        session: Some(session),
        channel,
        ..request(owner, Wait::Forever)
    };
    let call = session;
    driver.acquire(KEY, &Ask { request, call });
}

#[test]
fn waiters_without_a_listener_are_skipped_in_pieces() {
    let mut driver = Driver::new(at(0), NO_LIMITS);
    ask(&mut driver, "ann", 1, None);
    for n in 0..1000 {
        ask(&mut driver, &format!("w{n}"), 2, Some(CHANNEL));
    }
    ask(&mut driver, "last", 3, None);
    driver.locks.begin_turn(PIECE);
    driver.release(KEY, "ann", false, None);
    assert_eq!(driver.locks.counters().waiters_gone, PIECE as u64);
    assert_eq!(driver.locks.gauges().watches, 1000 - PIECE as u64);
    assert_eq!(driver.locks.check_indices(), Ok(()));
    driver.locks.begin_turn(usize::MAX);
    driver.turn();
    assert_eq!(driver.locks.counters().waiters_gone, 1000);
    assert_eq!(driver.locks.counters().grants, 2);
    assert_eq!(driver.locks.gauges(), Gauges::default());
    let granted = driver.sent.iter().filter(|sent| {
        matches!(
            sent,
            Sent::Answer {
                handle: 3,
                outcome: Outcome::Granted(_),
                ..
            }
        )
    });
    assert_eq!(granted.count(), 1);
}

/// The kinds of work without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    LeaseEnds,
    ChangedKeys,
    ChangedDatabase,
    ClosedConnection,
    BoundHolds,
    WaitEnds,
}

impl Work {
    const ALL: [Self; 6] = [
        Self::LeaseEnds,
        Self::ChangedKeys,
        Self::ChangedDatabase,
        Self::ClosedConnection,
        Self::BoundHolds,
        Self::WaitEnds,
    ];

    /// Creates this much work that is due at 20 ms, in locks of this database and
    /// on this connection.
    fn add_work(self, driver: &mut Driver, db: u32, session: u64, many: usize) {
        let keys: Vec<_> = (0..many).map(|n| format!("k{n}")).collect();
        let lease_ms = if self == Self::LeaseEnds { 10 } else { 1000 };
        let bind = (self == Self::BoundHolds).then_some(Grace::from_millis(0));
        let channel = (self == Self::ClosedConnection).then_some(CHANNEL);
        let wait = match self {
            Self::WaitEnds => Wait::Millis(10),
            _ => Wait::Forever,
        };
        for (n, key) in keys.iter().enumerate() {
            let key = key.as_bytes();
            let (holder, waiter) = (format!("h{session}-{n}"), format!("w{session}-{n}"));
            let hold = Request {
                options: AcquireOptions {
                    lease_ms,
                    bind,
                    ..OPTIONS
                },
                session: Some(session),
                ..request(&holder, Wait::No)
            };
            let place = Request {
                channel,
                session: Some(session),
                ..request(&waiter, wait)
            };
            for request in [hold, place] {
                driver.acquire(Name { db, key }, &Ask { request, call: 0 });
            }
        }
        for key in keys.iter().filter(|_| self == Self::ChangedKeys) {
            let key = key.as_bytes();
            driver.locks.settle_later(Name { db, key });
        }
        match self {
            Self::ChangedDatabase => driver.locks.settle_all_later(Some(db)),
            Self::ClosedConnection | Self::BoundHolds => driver.close(session),
            Self::LeaseEnds | Self::ChangedKeys | Self::WaitEnds => {}
        }
    }

    /// Whether this is the due work, in the database.
    fn is(self, due: &Due, of: u32) -> bool {
        match due {
            Due::Settle { db, .. } => *db == of && self != Self::BoundHolds,
            Due::Unbind { db, .. } => *db == of,
            Due::WaitEnd(_) => self == Self::WaitEnds,
            Due::TurnAway(_) | Due::Withdraw(_) => false,
        }
    }
}

#[test]
fn no_kind_of_work_waits_until_another_is_finished() {
    for flood in Work::ALL {
        // The consequences show which connection closes. Changed locks are
        // settled in the order in which the changes were seen.
        let others = |it: &Work| match it {
            Work::ClosedConnection => false,
            Work::ChangedDatabase => !matches!(flood, Work::ChangedKeys | Work::ChangedDatabase),
            other => *other != flood,
        };
        for work in Work::ALL.into_iter().filter(others) {
            let mut driver = Driver::new(at(0), NO_LIMITS);
            // A changed database requires a pass over all queues.
            let (before, after) = (work == Work::ChangedDatabase, 2000);
            let before = usize::from(before);
            work.add_work(&mut driver, 2, 2, before);
            flood.add_work(&mut driver, 1, 1, after);
            work.add_work(&mut driver, 2, 2, 1 - before);
            driver.now = at(20);
            driver.locks.begin_turn(2 * PIECE);
            let mut due = std::iter::from_fn(|| driver.locks.next_due(at(20))).take(2 * PIECE);
            let found = due.any(|due| work.is(&due, 2));
            assert!(found, "{work:?} waits for {flood:?}");
        }
    }
}

/// The time of an offer does not grow when the clock is set back.
#[test]
fn offer_ends_when_the_clock_is_set_back() {
    let mut locks = Locks::default();
    locks.yield_after(1);
    let mut hold = taken(&mut locks, at(0), "ann");
    for (owner, session) in [("bob", 1), ("cid", 2)] {
        call(&mut locks, at(0), &hold, owner, Wait::Forever, session);
    }
    let mut free = |locks: &mut Locks, now| {
        hold = Hold::Free;
        locks.settle(now, KEY, &mut hold).effects.len()
    };
    assert_eq!(free(&mut locks, at(60_000)), 1);
    // The lock is offered, and requested once more meanwhile.
    assert_eq!(free(&mut locks, at(60_001)), 1);
    assert_eq!(free(&mut locks, at(60_002)), 0);
    assert_eq!(free(&mut locks, at(10)), 1);
    assert!(hold != Hold::Free);
}

/// While grants are not allowed, free locks are not checked. Checks of a few
/// locks show whether grants are allowed again.
#[test]
fn locks_wait_together_for_the_end_of_a_pause_of_granting() {
    const LOCKS: usize = 1000;
    let mut locks = Locks::default();
    let held = taken(&mut locks, at(0), "ann");
    call(&mut locks, at(0), &held, "bob", Wait::Forever, 1);
    locks.grant_from(Some(at(100)));
    let keys: Vec<_> = (0..LOCKS).map(|n| format!("k{n}")).collect();
    for key in &keys {
        let name = Name {
            db: 0,
            key: key.as_bytes(),
        };
        let delivery = rlock_core::Delivery::blocked(1, 1);
        let asked = request("cid", Wait::Forever);
        locks.enqueue(at(0), name, &Hold::Free, &asked, delivery);
    }
    let settle = |locks: &mut Locks, now, again: Option<Timestamp>| {
        let (mut settled, mut granted) = (0, 0);
        while locks.next_deadline(now) == Some(now) {
            locks.begin_turn(256);
            while let Some(Due::Settle { db, key }) = locks.next_due(now) {
                if again.is_some() {
                    locks.grant_from(again);
                }
                let name = Name { db, key: &key };
                let step = locks.settle(now, name, &mut Hold::Free);
                settled += 1;
                granted += usize::from(granted_to(&step).is_some());
            }
        }
        (settled, granted)
    };
    for period in 1..=10 {
        let (before, after) = (at(period * 100 - 1), at(period * 100 + 1));
        assert!(locks.next_deadline(before) > Some(before));
        assert!(locks.next_due(before).is_none());
        let (settled, granted) = settle(&mut locks, after, Some(at(period * 100 + 100)));
        assert!((1..=32).contains(&settled), "{settled} locks were checked");
        assert_eq!(granted, 0);
    }
    assert_eq!(settle(&mut locks, at(1100), None), (LOCKS + 1, LOCKS + 1));
    assert_eq!(locks.check_indices(), Ok(()));
}

#[test]
fn lease_that_ends_while_nothing_may_be_granted_is_noticed() {
    let mut locks = Locks::default();
    let held = taken(&mut locks, at(0), "ann");
    let end = held.deadline().expect("it has a lease");
    locks.grant_from(Some(end.plus_millis(1000)));
    call(&mut locks, at(0), &held, "bob", Wait::Forever, 1);
    let seen = end.plus_millis(1);
    assert_eq!(locks.next_deadline(at(0)), Some(seen));
    assert_eq!(
        settle_all(&mut locks, seen, &mut Hold::Free),
        (vec![0], None)
    );
    assert_eq!(locks.counters().lease_expirations, 1);
    let mut hold = Hold::Free;
    let (_, granted) = settle_all(&mut locks, end.plus_millis(1001), &mut hold);
    assert_eq!(granted.as_deref(), Some("bob"));
}
