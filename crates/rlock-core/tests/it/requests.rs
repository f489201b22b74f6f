//! Requests as the direct tests make them, short to write.

use rlock_core::{Delivery, Hold, Limits, Locks, Mode, Name, Request, TicketId, Timestamp, Wait};

pub(crate) const KEY: Name<'static> = Name { db: 0, key: b"k" };
pub(crate) const NO_LIMITS: Limits = Limits {
    waiters_max: u64::MAX,
    watches_max: u64::MAX,
};

pub(crate) const fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + ms)
}

/// Asks for a lease of one second.
pub(crate) const fn request(owner: &str, wait: Wait) -> Request<'_> {
    Request {
        owner: owner.as_bytes(),
        mode: Mode::Exclusive,
        lease_ms: 1000,
        once: false,
        wait,
        notify: None,
    }
}

/// Queues a call, which is known by the number of its session.
pub(crate) fn call(
    locks: &mut Locks,
    now: Timestamp,
    hold: &Hold,
    owner: &str,
    wait: Wait,
    session: u64,
) -> TicketId {
    let delivery = Delivery::Blocked {
        session,
        handle: session,
    };
    let request = request(owner, wait);
    locks.enqueue(now, KEY, hold, &request, delivery).0
}

/// Queues a request that is to be answered on channel `c`.
pub(crate) fn notified(
    locks: &mut Locks,
    now: Timestamp,
    hold: &Hold,
    owner: &str,
    session: u64,
) -> TicketId {
    let delivery = locks.by_message(session, b"c");
    let request = request(owner, Wait::Forever);
    locks.enqueue(now, KEY, hold, &request, delivery).0
}

/// A lock of `owner` that was just taken.
pub(crate) fn taken(locks: &mut Locks, now: Timestamp, owner: &str) -> Hold {
    let mut hold = Hold::Free;
    let step = locks.acquire(now, KEY, &mut hold, &request(owner, Wait::No), &NO_LIMITS);
    assert!(step.is_ok(), "the lock is free");
    hold
}
