//! Futures of every kind of lock dropped at every point, guards dropped everywhere.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rlock_client::{
    Client, Error, Loss, MultiLock, Mutex, Owner, RwLock, Semaphore, Terms, Upgrade,
};
use tokio::runtime::{Builder, Runtime};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, Server};

/// A sequence of numbers that look random, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Polls a future a few times, with pauses in which the rest of the runtime
/// may run or not, and drops it; whatever it came to is dropped with it.
pub(crate) async fn poll_and_drop(future: impl Future, random: &mut Random) {
    let mut future = Box::pin(future);
    for _ in 0..random.below(6) {
        let done =
            std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready()));
        if done.await {
            return;
        }
        for _ in 0..random.below(4) {
            tokio::task::yield_now().await;
        }
        if random.below(16) == 0 {
            tokio::time::sleep(Duration::from_micros(random.below(500))).await;
        }
    }
}

const WAIT: Duration = Duration::from_millis(2);

/// The locks of one task, and an owner that it shares with others.
pub(crate) struct Locks {
    pub(crate) mutex: Mutex,
    pub(crate) rwlock: RwLock,
    pub(crate) semaphore: Semaphore,
    pub(crate) multi: MultiLock,
    owner: Owner,
}

impl Locks {
    pub(crate) fn of(client: &Client, owner: &Owner, number: u64) -> Self {
        let key = |kind: &str| format!("{kind}{}", number % 3);
        let keys = [0, 1].map(|more| format!("m{}", (number + more) % 4));
        Self {
            mutex: client.mutex(format!("k{}", number % 4)),
            rwlock: client.rwlock(key("rw")),
            semaphore: client.semaphore(key("s"), 3),
            multi: client.multi(keys),
            owner: owner.clone(),
        }
    }

    async fn change_at_random(&self, random: &mut Random) {
        let Ok(Some(reading)) = self.rwlock.read_timeout(WAIT).await else {
            return;
        };
        match random.below(4) {
            0 => poll_and_drop(reading.upgrade(), random).await,
            1 => poll_and_drop(reading.upgrade_timeout(WAIT), random).await,
            2 => {
                if let Ok(Upgrade::Granted(writing)) = reading.try_upgrade().await {
                    poll_and_drop(writing.downgrade(), random).await;
                }
            }
            _ => {
                let both = async {
                    let writing = reading.upgrade().await?;
                    writing.downgrade().await?.release().await
                };
                poll_and_drop(both, random).await;
            }
        }
    }

    pub(crate) async fn ask_at_random(&self, random: &mut Random) {
        let (mutex, rwlock) = (&self.mutex, &self.rwlock);
        let (semaphore, owner) = (&self.semaphore, &self.owner);
        let permits = 1 + u32::try_from(random.below(3)).unwrap();
        match random.below(15) {
            0 => poll_and_drop(rwlock.read(), random).await,
            1 => poll_and_drop(rwlock.write(), random).await,
            2 => poll_and_drop(rwlock.by(owner).read(), random).await,
            3 => poll_and_drop(rwlock.by(owner).write_timeout(WAIT), random).await,
            4 => poll_and_drop(semaphore.acquire_many(permits), random).await,
            5 => poll_and_drop(semaphore.try_acquire_many(permits), random).await,
            6 => poll_and_drop(self.multi.lock(), random).await,
            7 => poll_and_drop(self.multi.lock_timeout(WAIT), random).await,
            8 => poll_and_drop(self.multi.by(owner).try_lock(), random).await,
            9 => {
                let work = async { self.multi.lock().await.unwrap().release().await };
                poll_and_drop(work, random).await;
            }
            10 => self.change_at_random(random).await,
            11 => poll_and_drop(mutex.try_lock(), random).await,
            12 => poll_and_drop(mutex.lock(), random).await,
            13 => poll_and_drop(mutex.lock_timeout(WAIT), random).await,
            _ => {
                let work = async { mutex.lock().await.unwrap().release().await };
                poll_and_drop(work, random).await;
            }
        }
    }
}

async fn cancel_at_random(locks: Locks, seed: u64, rounds: u64) {
    let mut random = Random(seed);
    for _ in 0..rounds {
        locks.ask_at_random(&mut random).await;
    }
}

pub(crate) async fn nothing_is_left(admin: &mut Admin) {
    assert_eq!(admin.gauge("waiters").await, 0);
    assert_eq!(admin.gauge("watches").await, 0);
    assert_eq!(admin.gauge("panics").await, 0);
    let keys: Vec<String> = admin.run("KEYS *").await;
    assert_eq!(keys, [""; 0], "holds are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_calls_dropped_anywhere_leave_nothing() {
    const TASKS: u64 = 50;
    let server = Server::start().await;
    let clients = [server.client().await, server.client().await];
    let owners = [clients[0].owner(), clients[1].owner()];
    let mut tasks = Vec::new();
    for seed in 0..TASKS {
        let which = seed as usize % 2;
        let locks = Locks::of(&clients[which], &owners[which], seed / 2);
        tasks.push(tokio::spawn(cancel_at_random(locks, seed, 100_000 / TASKS)));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for client in &clients {
        client.flush().await.unwrap();
    }
    let mut admin = server.admin().await;
    nothing_is_left(&mut admin).await;
    assert!(admin.gauge("grants").await > 1000, "the test did lock");
    assert!(admin.gauge("handoffs").await > 100, "and did wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_dropped_while_connections_are_killed_leave_nothing() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let owner = client.owner();
    let mut tasks = Vec::new();
    for seed in 0..40 {
        let locks = Locks::of(&client, &owner, seed);
        tasks.push(tokio::spawn(cancel_at_random(locks, seed, 200)));
    }
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        admin.kill_lock_clients().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    client.flush().await.unwrap();
    nothing_is_left(&mut admin).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_keys_of_several_slots_dropped_anywhere_leave_nothing() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let mut tasks = Vec::new();
    for seed in 0..10_u64 {
        let keys = [0, 1, 2].map(|more| format!("m{}", (seed + more) % 5));
        let multi = client.multi(keys);
        tasks.push(tokio::spawn(async move {
            let mut random = Random(seed);
            for _ in 0..200 {
                match random.below(3) {
                    0 => poll_and_drop(multi.lock(), &mut random).await,
                    1 => poll_and_drop(multi.lock_timeout(WAIT), &mut random).await,
                    _ => poll_and_drop(multi.try_lock(), &mut random).await,
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    client.flush().await.unwrap();
    nothing_is_left(&mut server.admin().await).await;
}

/// A client has at most this many requests under way; the others have to keep their order too.
#[tokio::test]
async fn calls_dropped_before_their_requests_could_be_sent_leave_nothing() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let mutexes: Vec<_> = (0..3000)
        .map(|number| client.mutex(format!("k{number}")))
        .collect();
    let mut calls: Vec<_> = mutexes.iter().map(|it| Box::pin(it.lock())).collect();
    let mut context = Context::from_waker(Waker::noop());
    for call in &mut calls {
        assert!(call.as_mut().poll(&mut context).is_pending());
    }
    // Now the requests of the others can be sent, but nobody looks at them.
    calls.drain(..1500);
    client.flush().await.unwrap();
    drop(calls);
    client.flush().await.unwrap();
    let keys: u64 = admin.run("DBSIZE").await;
    assert_eq!(keys, 0, "holds are left");
    assert!(admin.gauge("grants").await >= 1500);
}

#[tokio::test]
async fn a_wait_given_up_by_a_limit_of_tokio_leaves_the_queue() {
    let server = Server::start().await;
    let client = server.client().await;
    let guard = client.mutex("k").lock().await.unwrap();
    for _ in 0..5 {
        let wait = Duration::from_millis(20);
        tokio::time::timeout(wait, client.mutex("k").lock())
            .await
            .unwrap_err();
    }
    client.flush().await.unwrap();
    assert_eq!(server.admin().await.gauge("waiters").await, 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_is_over_leaves_no_place() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let wait = Duration::from_millis(300);
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(
        client
            .mutex("k")
            .lock_timeout(wait)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(admin.gauge("waiters").await, 0);
    let both = client.multi(["k", "free"]);
    assert!(both.lock_timeout(wait).await.unwrap().is_none());
    assert_eq!(admin.gauge("waiters").await, 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_call_that_was_never_polled_sends_nothing() {
    let server = Server::start().await;
    let client = server.client().await;
    drop(client.mutex("k").lock());
    client.flush().await.unwrap();
    assert_eq!(server.admin().await.gauge("acquires").await, 0);
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// A runtime that is used by the test only, for the server.
fn with_server() -> (Runtime, Server) {
    let runtime = runtime();
    let server = runtime.block_on(Server::start());
    (runtime, server)
}

#[test]
fn a_guard_dropped_outside_a_runtime_is_released() {
    let (tests, server) = with_server();
    let runtime = runtime();
    let client = runtime.block_on(Client::connect(&server.url())).unwrap();
    let guard = runtime.block_on(client.mutex("k").lock()).unwrap();
    drop(guard);
    tests.block_on(async { server.admin().await.untouched("k").await });
}

#[test]
fn a_guard_dropped_after_its_runtime_does_no_harm() {
    let (tests, server) = with_server();
    let runtime = runtime();
    let client = runtime.block_on(Client::connect(&server.url())).unwrap();
    let lease = Duration::from_millis(500);
    let mutex = client.mutex("k").with(Terms::new().lease(lease).unwrap());
    let guard = runtime.block_on(mutex.lock()).unwrap();
    drop(runtime);
    assert!(guard.fence() > 0);
    let loss = guard.loss();
    drop(guard);
    assert_eq!(loss.now(), Some(Loss::Released));
    let closed = tests.block_on(mutex.lock());
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    let flushed = tests.block_on(client.flush());
    assert!(
        matches!(flushed, Err(Error::NotReleased { count: 1, .. })),
        "{flushed:?}"
    );
    // The lease is what ends it.
    tests.block_on(async { server.admin().await.untouched("k").await });
    // By the clock of the client it is over a moment later.
    std::thread::sleep(lease / 10);
    tests.block_on(client.flush()).unwrap();
}

#[test]
fn guards_and_calls_dropped_by_the_shutdown_of_a_runtime_do_no_harm() {
    let (tests, server) = with_server();
    let runtime = runtime();
    let client = runtime.block_on(Client::connect(&server.url())).unwrap();
    let lease = Duration::from_millis(500);
    let mutex = client.mutex("k").with(Terms::new().lease(lease).unwrap());
    for _ in 0..3 {
        let mutex = mutex.clone();
        runtime.spawn(async move {
            let _guard = mutex.lock().await.unwrap();
            std::future::pending::<()>().await;
        });
    }
    tests.block_on(async { server.admin().await.queued(2).await });
    drop(runtime);
    tests.block_on(async { server.admin().await.untouched("k").await });
}

#[tokio::test]
async fn a_guard_dropped_in_a_panic_is_released() {
    let server = Server::start().await;
    let client = server.client().await;
    let guard = client.mutex("k").lock().await.unwrap();
    let panicked = tokio::spawn(async move {
        let _guard = guard;
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    client.flush().await.unwrap();
    assert!(!client.mutex("k").is_locked().await.unwrap());
}

#[tokio::test]
async fn a_call_dropped_after_its_reply_arrived_gives_the_lock_back() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let mutex = Arc::new(client.mutex("k"));
    let mut call = Box::pin(mutex.lock());
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    // The reply is there, but the call is never polled again.
    rlock_testkit::asynchronous::eventually("granted", async || admin.gauge("grants").await == 1)
        .await;
    drop(call);
    client.flush().await.unwrap();
    assert!(!mutex.is_locked().await.unwrap());
}
