//! Every kind of lock without async.

use std::thread;
use std::time::Duration;

use rlock_client::blocking::{Client, Upgrade};
use rlock_client::{Error, Lease, Loss, Terms};
use tokio::runtime::{Builder, Runtime};

use rlock_testkit::Setup;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

const LEASE: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_millis(20);

fn with_server() -> (Runtime, Server) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    (runtime, server)
}

fn connected() -> (Runtime, Server, Client) {
    let (runtime, server) = with_server();
    let client = Client::connect(server.url()).unwrap();
    (runtime, server, client)
}

#[test]
fn the_same_verbs_work_without_async() {
    let (_tests, _server, client) = connected();
    let (mutex, owner) = (client.mutex("k"), client.owner());
    let guard = mutex.by(&owner).lock().unwrap();
    let again = mutex.by(&owner).try_lock().unwrap().unwrap();
    assert_eq!(guard.fence(), again.fence());
    assert!(mutex.is_locked().unwrap() && mutex.is_held_by(&owner).unwrap());
    assert!(mutex.try_lock().unwrap().is_none());
    assert!(
        mutex
            .lock_timeout(Duration::from_millis(20))
            .unwrap()
            .is_none()
    );
    assert_eq!(mutex.info().unwrap().fence, Some(guard.fence()));
    again.release_after(Duration::from_secs(60)).unwrap();
    guard.release().unwrap();
    let info = mutex.info().unwrap();
    let (left, fence) = (info.holders[0].lease_left, info.fence.unwrap());
    assert!(left > Duration::from_secs(40), "{left:?}");
    assert_eq!(mutex.force_release_under(fence + 1).unwrap(), 0);
    assert_eq!(mutex.force_release_under(fence).unwrap(), 1);
    drop(mutex.lock().unwrap());
    client.flush().unwrap();
    assert!(!mutex.is_locked().unwrap());
}

#[test]
fn threads_wait_for_each_other() {
    let (tests, server, client) = connected();
    let guard = client.mutex("k").lock().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let mutex = client.mutex("k");
            thread::spawn(move || mutex.lock().unwrap().release().unwrap())
        })
        .collect();
    tests.block_on(async { server.admin().await.queued(4).await });
    guard.release().unwrap();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_loss_is_waited_for() {
    let (_tests, _server, client) = connected();
    let guard = client.mutex("k").lock().unwrap();
    assert_eq!(client.mutex("k").force_release().unwrap(), 1);
    assert_eq!(guard.loss().wait(), Loss::EndedByServer);
    assert!(matches!(guard.release(), Err(Error::Lost(_))));
    let lease = Duration::from_millis(60);
    let brief = client
        .mutex("k")
        .with(Terms::new().lease(Lease::Fixed(lease)).unwrap());
    assert_eq!(brief.lock().unwrap().loss().wait(), Loss::LeaseEnded);
    assert!(client.mutex("k").lock_timeout(PATIENCE).unwrap().is_some());
}

/// The timers of those who wait end with the client's thread.
#[test]
fn who_waits_for_a_loss_hears_that_the_client_was_closed() {
    let (tests, server) = with_server();
    let proxy = tests.block_on(Proxy::to(server.port()));
    let client = Client::connect(proxy.url()).unwrap();
    let guard = client.mutex("k").lock().unwrap();
    let loss = guard.loss();
    let waits = thread::spawn(move || loss.wait());
    proxy.set(Weather::Swallow);
    thread::scope(|scope| {
        // The release comes after this.
        scope.spawn(|| guard.extend(Duration::from_secs(60)));
        tests.block_on(eventually("it is asked for", async || {
            let asked = proxy.requests();
            asked.windows(11).any(|words| words == b"RLOCK.RENEW")
        }));
        client.close(Duration::ZERO).unwrap_err();
    });
    assert_eq!(waits.join().unwrap(), Loss::Released);
    assert!(!guard.is_valid());
}

/// Nobody renews what was forgotten, and the client's thread has ended.
#[test]
fn a_loss_is_waited_for_without_the_client() {
    let (_tests, _server, client) = connected();
    let terms = Terms::new().lease(Duration::from_secs(1)).unwrap();
    let permits = client.semaphore("k", 3).with(terms).acquire().unwrap();
    let loss = permits.loss();
    permits.forget();
    let before = thread::spawn({
        let loss = loss.clone();
        move || loss.wait()
    });
    thread::sleep(WAIT);
    drop(client);
    thread::sleep(5 * WAIT);
    assert_eq!(loss.now(), None);
    let after = thread::spawn(move || loss.wait());
    for waits in [before, after] {
        assert_eq!(waits.join().unwrap(), Loss::LeaseEnded);
    }
}

#[test]
fn a_guard_that_outlives_its_client_is_released_all_the_same() {
    let (tests, server, client) = connected();
    let guard = client.mutex("k").lock().unwrap();
    drop(client);
    assert!(guard.is_valid());
    drop(guard);
    tests.block_on(async {
        let mut admin = server.admin().await;
        admin.untouched("k").await;
        eventually("closed", async || admin.lock_clients().await.is_empty()).await;
    });
}

#[test]
fn it_may_be_used_and_dropped_where_async_code_runs() {
    let (tests, server) = with_server();
    tests.block_on(async {
        let client = Client::connect(server.url()).unwrap();
        client.mutex("k").lock().unwrap().release().unwrap();
        drop(client);
    });
}

#[test]
fn errors_are_the_same() {
    let (tests, server) = with_server();
    let bare = tests.block_on(Setup::new().without_module().start_async());
    assert!(matches!(
        Client::connect(bare.url()),
        Err(Error::ModuleMissing)
    ));
    let client = Client::connect(server.url()).unwrap();
    let long = client.mutex("k").lock_timeout(Duration::MAX);
    assert!(matches!(long, Err(Error::OutOfRange { .. })));
}

#[test]
fn readers_and_writers_work_without_async() {
    let (_tests, _server, client) = connected();
    let (lock, owner) = (client.rwlock("k"), client.owner());
    let reading = lock.read().unwrap();
    let again = lock.by(&owner).read().unwrap();
    assert!(lock.try_read().unwrap().is_some() && lock.try_write().unwrap().is_none());
    assert!(lock.write_timeout(WAIT).unwrap().is_none());
    assert!(lock.is_held_by(&owner).unwrap() && lock.info().unwrap().holders.len() >= 2);
    let Upgrade::Refused(reading) = reading.upgrade_timeout(WAIT).unwrap() else {
        panic!("two readers");
    };
    again.release().unwrap();
    client.flush().unwrap();
    let writing = reading.upgrade().unwrap();
    assert!(writing.is_unbroken() && lock.by(&owner).try_read().unwrap().is_none());
    let reading = writing.downgrade().unwrap();
    let Upgrade::Granted(writing) = reading.try_upgrade().unwrap() else {
        panic!("alone");
    };
    assert_eq!(lock.force_release().unwrap(), 1);
    assert_eq!(writing.loss().wait(), Loss::EndedByServer);
    let failed = writing.downgrade().unwrap_err();
    assert!(matches!(failed.error, Error::Lost(_)) && !failed.guard.is_valid());
    let writing = lock.by(&owner).write().unwrap();
    assert!(lock.by(&owner).try_write().unwrap().is_some());
    assert!(lock.by(&owner).write_timeout(WAIT).unwrap().is_some());
    assert!(lock.by(&owner).read_timeout(WAIT).unwrap().is_some());
    writing.release().unwrap();
}

#[test]
fn permits_work_without_async() {
    let (_tests, _server, client) = connected();
    let semaphore = client.semaphore("k", 3);
    let two = semaphore.acquire_many(2).unwrap();
    let one = semaphore.acquire().unwrap();
    assert_eq!((two.count(), one.count(), semaphore.permits()), (2, 1, 3));
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert!(semaphore.acquire_many_timeout(2, WAIT).unwrap().is_none());
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    assert!(semaphore.is_held_by(one.owner()).unwrap());
    one.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    let until = std::time::Instant::now() + WAIT;
    assert!(semaphore.acquire_many_until(2, until).unwrap().is_none());
    assert!(until <= std::time::Instant::now());
    assert!(semaphore.acquire_until(until).unwrap().is_some());
    client.flush().unwrap();
    assert!(semaphore.acquire_timeout(WAIT).unwrap().is_some());
    assert_eq!(semaphore.info().unwrap().holders[0].permits, 2);
    assert!(semaphore.force_release().unwrap() >= 1);
    assert_eq!(two.loss().wait(), Loss::EndedByServer);
    semaphore.acquire().unwrap().forget();
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    assert!(matches!(
        client.semaphore("k", 0).acquire(),
        Err(Error::OutOfRange { .. })
    ));
}

#[test]
fn several_locks_work_without_async() {
    let (_tests, _server, client) = connected();
    let (multi, owner) = (client.multi(["b", "a"]), client.owner());
    let guard = multi.by(&owner).lock().unwrap();
    let again = multi.by(&owner).try_lock().unwrap().unwrap();
    assert_eq!(guard.fence_of("a"), Some(again.fence()));
    assert!(multi.keys().eq(guard.keys()) && guard.owner() == &owner);
    assert!(multi.try_lock().unwrap().is_none());
    assert!(multi.lock_timeout(WAIT).unwrap().is_none());
    let until = std::time::Instant::now() + WAIT;
    assert!(multi.lock_until(until).unwrap().is_none());
    let infos = multi.info().unwrap();
    assert!(infos.len() == 2 && infos.iter().all(|info| info.holders.len() == 1));
    assert!(guard.is_valid() && !guard.remaining().is_zero());
    guard.extend(2 * LEASE).unwrap();
    assert!(again.remaining() > LEASE);
    again.release().unwrap();
    assert_eq!(client.mutex("a").force_release().unwrap(), 1);
    assert_eq!(guard.loss().wait(), Loss::EndedByServer);
    assert!(matches!(guard.release(), Err(Error::Lost(_))));
    client.flush().unwrap();
    drop(multi.lock().unwrap());
    client.flush().unwrap();
    assert!(!client.mutex("b").is_locked().unwrap());
}

#[test]
fn terms_and_lists_work_without_async() {
    let (tests, server, client) = connected();
    let grace = Duration::from_secs(5);
    let lock = client.rwlock("k").with(Terms::new().bound(grace).unwrap());
    let reading = lock.read().unwrap();
    assert!(lock.info().unwrap().holders[0].is_bound);
    let brief = Terms::new().lease(Lease::Fixed(WAIT)).unwrap();
    let multi = client.multi(["a"]).with(brief);
    assert_eq!(multi.lock().unwrap().loss().wait(), Loss::LeaseEnded);
    let waiting = std::thread::spawn(move || lock.write().unwrap().release().unwrap());
    tests.block_on(async { server.admin().await.queued(1).await });
    let list = client.list(5).unwrap();
    assert_eq!((list.len(), list[0].key.as_slice()), (1, &b"k"[..]));
    reading.release().unwrap();
    waiting.join().unwrap();
}

#[test]
fn permits_are_split_and_merged() {
    let (_tests, _server, client) = connected();
    let semaphore = client.semaphore("k", 5);
    let mut permits = semaphore.acquire_many(5).unwrap();
    let mut part = permits.split(3).unwrap();
    part.merge(permits.split(1).unwrap()).unwrap();
    assert_eq!((permits.count(), part.count()), (1, 4));
    part.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 4);
    let other = semaphore.acquire().unwrap();
    assert_eq!(permits.merge(other).unwrap_err().count(), 1);
    permits.release().unwrap();
}
