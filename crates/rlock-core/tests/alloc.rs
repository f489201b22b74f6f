//! What the core allocates: nothing for a lock that nobody waits for, little
//! for a waiter, and nothing that outlives the waiters.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use rlock_core::{
    Admission, Channel, ChannelKind, Due, Hold, Holders, Limits, Locks, Mode, Name, Renewal,
    Request, Timestamp, VisitHolder, Wait, Who,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Counts per thread, as other tests run at the same time.
struct Counting;

// SAFETY: everything is left to the system's allocator; the counters are plain
// cells of the thread, which allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE.set(LIVE.get() + layout.size().cast_signed() as i64);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size().cast_signed() as i64);
        // SAFETY: the caller keeps the rules of `dealloc`, and every block
        // comes from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const KEY: Name<'static> = Name { db: 0, key: b"k" };
const CHANNEL: Channel<'static> = Channel {
    kind: ChannelKind::Plain,
    name: b"channel",
};
const LIMITS: Limits = Limits {
    waiters_max: u64::MAX,
    watches_max: u64::MAX,
    detects_deadlocks: true,
};

const fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + ms)
}

const fn request(owner: &[u8]) -> Request<'_> {
    Request {
        owner,
        mode: Mode::Exclusive,
        lease_ms: 1000,
        reenter: true,
        wait: Wait::Millis(1000),
        keep_ms: None,
        session: None,
        channel: None,
        grace_ms: None,
    }
}

/// Nobody holds any other lock.
struct Nobody;

impl Holders for Nobody {
    fn visit(&self, _name: Name<'_>, _visit: &mut VisitHolder<'_>) {}
}

/// Takes a lock, enters again, renews, is in somebody's way, gives it back.
fn use_a_lock(locks: &mut Locks, name: Name<'_>) {
    let mut hold = Hold::Free;
    for _ in 0..2 {
        let step = locks.acquire(at(0), name, &mut hold, &request(b"ann"), &LIMITS, &Nobody);
        assert!(matches!(step.map(|it| it.reply), Ok(Admission::Granted(_))));
    }
    let renewal = Renewal {
        lease_ms: 500,
        fence: None,
        session: None,
    };
    let step = locks.renew(at(1), name, &mut hold, b"ann", &renewal);
    assert!(step.is_ok_and(|step| step.reply.is_some()));
    let mut seen_by_another = Hold::Exclusive {
        who: Who::Other,
        fence: hold.fence(),
        deadline: at(500),
    };
    let tried = Request {
        wait: Wait::No,
        ..request(b"bob")
    };
    let step = locks.acquire(at(1), name, &mut seen_by_another, &tried, &LIMITS, &Nobody);
    assert!(matches!(step.map(|it| it.reply), Ok(Admission::Busy)));
    for left in [1, 0] {
        let step = locks.release(at(2), name, &mut hold, b"ann", false);
        assert_eq!(step.reply, Some(left));
    }
    assert!(!locks.is_contended(name));
}

fn allocations_of(what: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    what();
    ALLOCATIONS.get() - before
}

#[test]
fn uncontended_lock_allocates_nothing() {
    let mut locks = Locks::default();
    assert_eq!(allocations_of(|| use_a_lock(&mut locks, KEY)), 0);
}

#[test]
fn uncontended_lock_beside_a_contended_one_allocates_nothing() {
    let mut locks = Locks::default();
    queue(&mut locks, b"w");
    let other = Name {
        db: 0,
        key: b"other",
    };
    assert_eq!(allocations_of(|| use_a_lock(&mut locks, other)), 0);
}

#[test]
fn counting_allocator_counts() {
    assert_eq!(
        allocations_of(|| drop(std::hint::black_box(Box::new(1)))),
        1
    );
}

/// A held lock, and one more waiter for a message on a channel.
fn queue(locks: &mut Locks, owner: &[u8]) {
    let hold = Hold::Exclusive {
        who: Who::Other,
        fence: None,
        deadline: at(100_000),
    };
    let delivery = locks.by_message(1, CHANNEL);
    locks.enqueue(at(0), KEY, &hold, &request(owner), delivery);
}

const MANY: i64 = 10_000;

#[test]
fn waiter_costs_little_and_leaves_nothing() {
    let mut locks = Locks::default();
    let before = LIVE.get();
    for n in 0..MANY {
        queue(
            &mut locks,
            format!("0c7ad1c2-5f0e-4a4b-9d3a-3f1f0a5b6c7d:{n}").as_bytes(),
        );
    }
    let each = (LIVE.get() - before) / MANY;
    assert!(each < 400, "a waiter costs {each} bytes");
    while let Some(Due::WaitEnd(ticket)) = locks.next_due(at(1001)) {
        assert!(locks.end_wait(at(1001), ticket).is_some());
    }
    let left = LIVE.get() - before;
    assert!(left < 4096, "{left} bytes are left");
}

#[test]
fn ten_thousand_locks_and_sessions_leave_little() {
    let mut locks = Locks::default();
    let before = LIVE.get();
    for n in 0..MANY.cast_unsigned() {
        let key = format!("key-{n}");
        let name = Name {
            db: 0,
            key: key.as_bytes(),
        };
        let delivery = locks.by_message(n, CHANNEL);
        locks.enqueue(at(0), name, &Hold::NoLock, &request(b"w"), delivery);
        locks.settle_later(name);
    }
    for n in 1..MANY.cast_unsigned() {
        locks.session_closed(at(0), n);
    }
    while !locks.sweep() {}
    assert!(locks.next_due(at(0)).is_some());
    assert!(locks.next_due(at(0)).is_none());
    assert_eq!(locks.gauges().waiters, 1);
    let left = LIVE.get() - before;
    assert!(left < 4096, "{left} bytes are left");
}
