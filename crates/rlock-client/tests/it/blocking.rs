//! The face for code without async.

use std::thread;
use std::time::Duration;

use rlock_client::blocking::Client;
use rlock_client::{Error, Lease, Loss, Terms};
use tokio::runtime::{Builder, Runtime};

use rlock_testkit::Setup;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

pub(crate) fn with_server() -> (Runtime, Server) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    (runtime, server)
}

#[test]
fn the_same_verbs_work_without_async() {
    let (_tests, server) = with_server();
    let client = Client::connect(server.url()).unwrap();
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
    let left = mutex.info().unwrap().holders[0].lease_left;
    assert!(left > Duration::from_secs(40), "{left:?}");
    assert_eq!(mutex.force_release().unwrap(), 1);
    drop(mutex.lock().unwrap());
    client.flush();
    assert!(!mutex.is_locked().unwrap());
}

#[test]
fn threads_wait_for_each_other() {
    let (tests, server) = with_server();
    let client = Client::connect(server.url()).unwrap();
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
    let (_tests, server) = with_server();
    let client = Client::connect(server.url()).unwrap();
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

#[test]
fn a_guard_that_outlives_its_client_is_released_all_the_same() {
    let (tests, server) = with_server();
    let client = Client::connect(server.url()).unwrap();
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
