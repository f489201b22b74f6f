//! Short requests for the direct tests.

use rlock_core::{
    AcquireOptions, Channel, ChannelKind, Delivery, Extras, Hold, Holders, Limits, Locks, Mode,
    Name, Renewal, Request, TicketId, Timestamp, VisitHolder, Wait, Who,
};

pub(crate) const KEY: Name<'static> = Name { db: 0, key: b"k" };
pub(crate) const NO_LIMITS: Limits = Limits {
    waiters_max: u64::MAX,
    watches_max: u64::MAX,
    shared_max: u64::MAX,
    shared_elsewhere: 0,
    detects_deadlocks: true,
};

pub(crate) const CHANNEL: Channel<'static> = Channel {
    kind: ChannelKind::Plain,
    name: b"c",
};

/// No other lock has a holder.
pub(crate) struct Nobody;

impl Holders for Nobody {
    fn visit(&self, _: Name<'_>, _: &mut VisitHolder<'_>) {}

    fn is_over(&self) -> bool {
        false
    }
}

pub(crate) const fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + ms)
}

/// A lease of one second.
pub(crate) const OPTIONS: AcquireOptions = AcquireOptions::new(Mode::Exclusive, 1000);

/// Asks for a lease of one second.
pub(crate) const fn request(owner: &str, wait: Wait) -> Request<'_> {
    Request {
        owner: owner.as_bytes(),
        options: OPTIONS,
        wait,
        session: None,
        user: None,
        channel: None,
        extras: Extras::NONE,
    }
}

/// A renewal for one second.
pub(crate) const RENEWAL: Renewal<'static> = Renewal {
    lease_ms: 1000,
    fence: None,
    session: None,
    channel: None,
    bind: None,
    extras: Extras::NONE,
};

/// Queues a call; the number of its session identifies it.
pub(crate) fn call(
    locks: &mut Locks,
    now: Timestamp,
    hold: &Hold,
    owner: &str,
    wait: Wait,
    session: u64,
) -> TicketId {
    let delivery = Delivery::blocked(session, session);
    let request = request(owner, wait);
    let hold = of_somebody_else(hold);
    locks.enqueue(now, KEY, &hold, &request, delivery).0
}

/// Queues a request that is answered on channel `c`.
pub(crate) fn notified(
    locks: &mut Locks,
    now: Timestamp,
    hold: &Hold,
    owner: &str,
    session: u64,
) -> TicketId {
    let delivery = locks.by_message(session, CHANNEL);
    let request = request(owner, Wait::Forever);
    let hold = of_somebody_else(hold);
    locks.enqueue(now, KEY, &hold, &request, delivery).0
}

/// The hold in the view of another owner.
pub(crate) fn of_somebody_else(hold: &Hold) -> Hold {
    match hold.clone() {
        Hold::Exclusive { holder, extras, .. } => Hold::Exclusive {
            who: Who::Other,
            holder,
            extras,
        },
        other => other,
    }
}

/// A lock that `owner` has just taken.
pub(crate) fn taken(locks: &mut Locks, now: Timestamp, owner: &str) -> Hold {
    let mut hold = Hold::Free;
    let asked = request(owner, Wait::No);
    let step = locks.acquire(now, KEY, &mut hold, &asked, &NO_LIMITS, &Nobody);
    assert!(step.is_ok(), "the lock is free");
    hold
}
