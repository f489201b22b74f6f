//! What locking costs, in commands and in memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rlock_client::{Client, Lease, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
#[cfg(feature = "quorum")]
use crate::quorum::{Members, mutex};
use rlock_testkit::asynchronous::{PATIENCE, Server};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts per thread, as other tests run at the same time.
struct Counting;

// SAFETY: everything is left to the system's allocator; the counter is a plain
// cell of the thread, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the rules of `dealloc`, and every block
        // comes from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[cfg(feature = "quorum")]
#[tokio::test]
async fn whether_a_guard_is_valid_is_asked_without_memory() {
    let members = Members::start(3).await;
    let whole = mutex(&members.quorum().await).lock().await.unwrap();
    let client = members.0[0].client().await;
    let single = client.mutex("single").lock().await.unwrap();
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        assert!(whole.is_valid() && single.is_valid());
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

#[tokio::test]
async fn an_uncontended_lock_and_release_are_two_commands() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let _: () = admin.run("CONFIG RESETSTAT").await;
    for _ in 0..100 {
        client
            .mutex("k")
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let mut calls = admin.calls().await;
    calls.retain(|command, _| !command.starts_with("config") && command != "info");
    let total: u64 = calls.values().sum();
    assert_eq!(total, 200, "{calls:?}");
    assert_eq!((calls["rlock.acquire"], calls["rlock.release"]), (100, 100));
}

#[tokio::test]
async fn waiting_costs_no_commands() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let guard = client.mutex("k").lock().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let mutex = client.mutex("k");
        waiting.push(tokio::spawn(async move { mutex.lock().await }));
    }
    admin.queued(50).await;
    let before = admin.calls().await;
    let begun = Instant::now();
    // Time is what is measured here: a second in which nothing happens.
    while begun.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(guard.is_valid());
    }
    let mut after = admin.calls().await;
    after.retain(|command, calls| {
        command != "info" && before.get(command).is_none_or(|before| calls != before)
    });
    assert!(after.is_empty(), "{after:?}");
    for task in waiting {
        task.abort();
    }
}

/// All that it needs to know of the grant is in the message, and in what was answered before it came.
#[tokio::test]
async fn a_contended_lock_and_release_are_two_commands() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let held = client.mutex("k").lock().await.unwrap();
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let mutex = client.mutex("k");
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await })
        })
        .collect();
    admin.queued(50).await;
    held.release().await.unwrap();
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
    let calls = admin.calls().await;
    assert_eq!((calls["rlock.acquire"], calls["rlock.release"]), (51, 51));
    assert_eq!(calls.get("rlock.renew"), None, "{calls:?}");
}

/// A grant counts from the last heartbeat, for which the connection is asked while somebody waits.
#[test]
fn a_grant_after_a_long_wait_needs_no_confirmation() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let (client, other) = (server.client().await, server.client().await);
        let mut admin = server.admin().await;
        let lease = Duration::from_secs(2);
        // Nothing is renewed here, so that a renewal would be seen.
        let fixed = |client: &Client, lease| {
            client
                .mutex("k")
                .with(Terms::new().lease(Lease::Fixed(lease)).unwrap())
        };
        let held = fixed(&other, PATIENCE).lock().await.unwrap();
        let mutex = fixed(&client, lease);
        let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
        admin.queued(1).await;
        // Time is what is measured here: longer than the lease.
        tokio::time::sleep(lease + lease / 4).await;
        held.release().await.unwrap();
        let guard = waiting.await.unwrap();
        assert!(guard.remaining() >= lease / 2, "{:?}", guard.remaining());
        let calls = admin.calls().await;
        assert_eq!(calls.get("rlock.renew"), None, "{calls:?}");
        assert!((3..=10).contains(&calls["ping"]), "{calls:?}");
        guard.release().await.unwrap();
    });
}

/// One client asks for all of them at once. They are what it needs memory for, and nobody else waits for them.
#[test]
fn a_hundred_thousand_locks_at_once_hold_up_nobody() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        const COUNT: usize = 100_000;
        let client = server.client().await;
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let url = server.url();
        let other = std::thread::spawn(move || slowest_of_another(&url, &stopped));
        let short = Terms::new().lease(Duration::from_secs(10)).unwrap();
        let held = client.mutex("held").with(short);
        let held = held.lock().await.unwrap();
        let before = resident();
        let begun = Instant::now();
        let locks: Vec<_> = (0..COUNT)
            .map(|number| {
                let mutex = client.mutex(format!("k{number}"));
                tokio::spawn(async move { mutex.lock().await })
            })
            .collect();
        let late = tokio::spawn({
            let mutex = client.mutex("late");
            async move { mutex.lock().await.map(|_| Instant::now()) }
        });
        let mut most = 0;
        while !locks.iter().all(tokio::task::JoinHandle::is_finished) {
            most = most.max(resident());
            assert!(held.is_valid());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = begun.elapsed();
        let late = late.await.unwrap().unwrap() - begun;
        drop(stop);
        let slowest = other.join().unwrap();
        let mut guards = Vec::with_capacity(COUNT);
        for lock in locks {
            guards.push(lock.await.unwrap().unwrap());
        }
        drop(guards);
        client.flush().await.unwrap();
        let each = most.saturating_sub(before) / COUNT;
        let left = resident().saturating_sub(before) / COUNT;
        println!(
            "{COUNT} in {took:?}, {each} bytes each, {left} afterwards; \
             one more after {late:?}; others at most {slowest:?}"
        );
        assert!(each < 4096, "{each} bytes each");
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
        assert!(held.is_valid());
    });
}

/// How much memory this process has now.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// The longest time that a lock and its release took a client on a thread of its own, until it is to stop.
fn slowest_of_another(url: &str, stopped: &Receiver<()>) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let client = Client::connect(url).await.unwrap();
        let mut slowest = Duration::ZERO;
        while stopped.try_recv() == Err(TryRecvError::Empty) {
            let asked = Instant::now();
            let guard = client.mutex("other").lock().await.unwrap();
            guard.release().await.unwrap();
            slowest = slowest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        slowest
    })
}
