//! Allocations of the core: none for a lock without waiters, few for a waiter,
//! and none that outlive the waiters.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use rlock_core::{
    AcquireOptions, Admission, Due, Hold, Locks, Name, Renewal, Request, Wait, Who, syntax,
};

use crate::requests::{CHANNEL, KEY, NO_LIMITS, Nobody, OPTIONS, RENEWAL, at, request};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Counts per thread, because other tests run at the same time.
struct Counting;

// SAFETY: the system's allocator does everything; the counters are plain cells of
// the thread, which allocate nothing.
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

/// Takes a lock, enters again, renews, blocks another owner, and releases it.
fn use_a_lock(locks: &mut Locks, name: Name<'_>) {
    let mut hold = Hold::Free;
    let entered = Request {
        options: AcquireOptions {
            reenter: true,
            ..OPTIONS
        },
        ..request("ann", Wait::Millis(1000))
    };
    for _ in 0..2 {
        let step = locks.acquire(at(0), name, &mut hold, &entered, &NO_LIMITS, &Nobody);
        assert!(matches!(step.map(|it| it.reply), Ok(Admission::Granted(_))));
    }
    let renewal = Renewal {
        lease_ms: 500,
        ..RENEWAL
    };
    let step = locks.renew(at(1), name, &mut hold, b"ann", &renewal, 0);
    assert!(step.is_ok_and(|step| step.reply.is_some()));
    let mut seen_by_another = Hold::exclusive(Who::Other, hold.fence(), at(500));
    let tried = request("bob", Wait::No);
    let step = locks.acquire(
        at(1),
        name,
        &mut seen_by_another,
        &tried,
        &NO_LIMITS,
        &Nobody,
    );
    assert!(matches!(step.map(|it| it.reply), Ok(Admission::Busy)));
    for left in [1, 0] {
        let step = locks.release(at(2), name, &mut hold, b"ann", false, None);
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
    queue(&mut locks, "w");
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

/// Adds one more waiter on a channel to a held lock.
fn queue(locks: &mut Locks, owner: &str) {
    let hold = Hold::exclusive(Who::Other, None, at(100_000));
    let delivery = locks.by_message(1, CHANNEL);
    let asked = request(owner, Wait::Millis(1000));
    locks.enqueue(at(0), KEY, &hold, &asked, delivery);
}

const MANY: i64 = 10_000;

#[test]
fn waiter_costs_little_and_leaves_nothing() {
    let mut locks = Locks::default();
    let before = LIVE.get();
    for n in 0..MANY {
        queue(
            &mut locks,
            &format!("0c7ad1c2-5f0e-4a4b-9d3a-3f1f0a5b6c7d:{n}"),
        );
    }
    let each = (LIVE.get() - before) / MANY;
    assert!(each < 400, "a waiter costs {each} bytes");
    while let Some(due) = locks.next_due(at(1001)) {
        if let Due::WaitEnd(ticket) = due {
            assert!(locks.end_wait(at(1001), ticket).is_some());
        }
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
        let asked = request("w", Wait::Millis(1000));
        locks.enqueue(at(0), name, &Hold::NoLock, &asked, delivery);
        locks.settle_later(name);
    }
    for n in 1..MANY.cast_unsigned() {
        locks.session_closed(at(0), n);
    }
    while locks.next_due(at(0)).is_some() {}
    assert_eq!(locks.gauges().waiters, 1);
    let left = LIVE.get() - before;
    assert!(left < 4096, "{left} bytes are left");
}

#[test]
fn error_keeps_little_of_a_huge_argument() {
    let huge = "x".repeat(1 << 20);
    let lines: [&[&str]; 5] = [
        &["ACQUIRE", "k", "ann", "1000", &huge],
        &["ACQUIRE", "k", "ann", &huge],
        &["ACQUIRE", "k", &huge, "1000"],
        &["RENEW", "k", "ann", "1000", &huge],
        &["MACQUIRE", "ann", "1000", "2", &huge, &huge],
    ];
    for words in lines {
        let before = LIVE.get();
        let error = match words[0] {
            "ACQUIRE" => syntax::acquire(words, 60_000).err(),
            "RENEW" => syntax::renew(words, 60_000).err(),
            _ => syntax::acquire_all(words, 60_000).err(),
        };
        let error = error.expect("it is refused");
        assert!(LIVE.get() - before < 200, "{}", words[0]);
        assert!(error.to_string().len() < 300, "{error}");
    }
}
