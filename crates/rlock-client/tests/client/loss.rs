//! How a holder learns that it lost the lock, and that this is final.

use std::time::{Duration, Instant};

use rlock_client::{Error, Guard, Lease, Loss, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};

async fn lost(guard: &Guard) -> Loss {
    tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap()
}

#[tokio::test]
async fn max_hold_ends_a_hold_that_the_watchdog_would_keep() {
    let server = Server::start().await;
    let client = server.client().await;
    let (lease, bound) = (Duration::from_millis(900), Duration::from_millis(1500));
    let mutex = client
        .mutex("k")
        .with(Terms::new().lease(lease).unwrap().max_hold(bound).unwrap());
    let begun = Instant::now();
    let guard = mutex.lock().await.unwrap();
    let next = client
        .mutex("k")
        .lock_timeout(PATIENCE)
        .await
        .unwrap()
        .unwrap();
    assert!(
        begun.elapsed() >= bound - Duration::from_millis(5),
        "{:?}",
        begun.elapsed()
    );
    assert!(begun.elapsed() < bound + lease);
    assert_eq!(guard.loss().now(), Some(Loss::LeaseEnded));
    assert!(next.fence() > guard.fence());
}

#[tokio::test]
async fn a_late_release_does_not_touch_the_next_holder() {
    let server = Server::start().await;
    let client = server.client().await;
    let mutex = client.mutex("k").with(
        Terms::new()
            .lease(Lease::Fixed(Duration::from_millis(100)))
            .unwrap(),
    );
    let guards = [mutex.lock().await.unwrap(), mutex.lock().await.unwrap()];
    let owner = client.owner();
    let next = client.mutex("k").by(&owner).lock().await.unwrap();
    let [released, dropped] = guards;
    assert!(matches!(
        released.release().await,
        Err(Error::Lost(Loss::LeaseEnded))
    ));
    drop(dropped);
    client.flush().await.unwrap();
    assert!(next.is_valid() && mutex.is_held_by(&owner).await.unwrap());
}

#[tokio::test]
async fn a_lapsed_hold_is_never_revived() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let mutex = client
        .mutex("k")
        .with(Terms::new().lease(Duration::from_millis(150)).unwrap());
    let guard = mutex.lock().await.unwrap();
    // The server stalls over the end of the lease; nobody else asks.
    server.signal("-STOP");
    assert_eq!(lost(&guard).await, Loss::LeaseEnded);
    server.signal("-CONT");
    admin.untouched("k").await;
    assert!(!guard.is_valid());
    drop(guard);
    client.flush().await.unwrap();
}

/// The runtime has one thread, which is kept busy: no task of the client can
/// run, neither its watchdog nor a timer.
#[tokio::test]
async fn a_starved_runtime_cannot_make_a_lost_lock_look_valid() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let lease = Duration::from_millis(200);
    let mutex = client.mutex("k").with(Terms::new().lease(lease).unwrap());
    let guard = mutex.lock().await.unwrap();
    let held = Instant::now();
    while guard.is_valid() {
        assert!(held.elapsed() < PATIENCE);
        std::hint::spin_loop();
    }
    // Nothing is renewed after that, though the client can run again.
    admin.untouched("k").await;
    assert_eq!(admin.gauge("renewals").await, 0);
    assert!(!guard.is_valid());
}

#[tokio::test]
async fn work_under_a_lock_ends_with_it_or_with_its_loss() {
    let server = Server::start().await;
    let client = server.client().await;
    let mutex = client.mutex("k");
    let guard = mutex.lock().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
    let (begun, is_begun) = tokio::sync::oneshot::channel();
    let work = async {
        begun.send(()).unwrap();
        std::future::pending::<()>().await;
    };
    let force = async {
        is_begun.await.unwrap();
        mutex.force_release().await.unwrap()
    };
    let (outcome, removed) = tokio::join!(guard.run(work), force);
    assert_eq!((outcome, removed), (Err(Loss::EndedByServer), 1));
    // What is lost begins nothing.
    let never = guard.run(async { panic!("it is lost") }).await;
    assert_eq!(never, Err(Loss::EndedByServer));
}

#[tokio::test]
async fn what_waits_for_a_loss_outlives_the_guard_and_ends_with_it() {
    let server = Server::start().await;
    let client = server.client().await;
    let watched = |guard: &Guard| {
        let loss = guard.loss();
        let also = loss.clone();
        assert_eq!((loss.now(), also.now()), (None, None));
        tokio::spawn(async move { (loss.await, also.await) })
    };
    let ended = async |waits: tokio::task::JoinHandle<(Loss, Loss)>| {
        tokio::time::timeout(PATIENCE, waits)
            .await
            .unwrap()
            .unwrap()
    };
    let mutex = client.mutex("k");
    let guard = mutex.lock().await.unwrap();
    let waits = watched(&guard);
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    assert_eq!(ended(waits).await, (Loss::Released, Loss::Released));
    let guard = mutex.lock().await.unwrap();
    let waits = watched(&guard);
    tokio::task::yield_now().await;
    drop(guard);
    assert_eq!(ended(waits).await, (Loss::Released, Loss::Released));
    let guard = mutex.lock().await.unwrap();
    let waits = watched(&guard);
    tokio::task::yield_now().await;
    assert_eq!(mutex.force_release().await.unwrap(), 1);
    let lost = (Loss::EndedByServer, Loss::EndedByServer);
    assert_eq!(ended(waits).await, lost);
    assert_eq!(guard.loss().now(), Some(Loss::EndedByServer));
}

#[tokio::test]
async fn a_fixed_lease_is_extended_for_as_long_as_asked_for_and_never_shortened() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let (brief, long) = (Duration::from_secs(5), Duration::from_secs(60));
    let mutex = client
        .mutex("k")
        .with(Terms::new().lease(Lease::Fixed(brief)).unwrap());
    let guard = mutex.lock().await.unwrap();
    let fence = guard.fence();
    guard.extend(long).await.unwrap();
    assert!(guard.remaining() > long - long / 10 && guard.fence() == fence);
    let left: u64 = admin.run("PTTL k").await;
    assert!(left > 55_000 && left <= 60_000, "{left}");
    let calls = admin.calls().await["rlock.renew"];
    guard.extend(brief).await.unwrap();
    assert!(guard.remaining() > long - long / 10);
    assert_eq!(admin.calls().await["rlock.renew"], calls);
    // What the server does not allow leaves the hold as it is.
    let too_long = guard.extend(Duration::from_secs(25 * 60 * 60)).await;
    assert!(matches!(too_long, Err(Error::Refused(_))), "{too_long:?}");
    assert!(matches!(
        guard.extend(Duration::ZERO).await,
        Err(Error::OutOfRange { .. })
    ));
    assert!(guard.is_valid() && guard.remaining() > long - long / 10);
    let _: u64 = admin.run("DEL k").await;
    assert_eq!(lost(&guard).await, Loss::EndedByServer);
    let lost = guard.extend(2 * long).await;
    assert!(matches!(lost, Err(Error::Lost(Loss::EndedByServer))));
}

#[test]
fn the_watchdog_goes_on_with_a_lease_that_was_extended() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let (client, mut admin) = (server.client().await, server.admin().await);
        let lease = Duration::from_millis(600);
        let mutex = client.mutex("k").with(Terms::new().lease(lease).unwrap());
        let guard = mutex.lock().await.unwrap();
        let longer = Duration::from_secs(3);
        guard.extend(longer).await.unwrap();
        let renewals = admin.gauge("renewals").await;
        eventually("it is renewed", async || {
            admin.gauge("renewals").await > renewals
        })
        .await;
        assert!(guard.remaining() > longer / 2, "{:?}", guard.remaining());
        let left: u64 = admin.run("PTTL k").await;
        assert!(left > 1_500, "{left}");
        // Beyond the longest lease that it may have in all.
        let terms = Terms::new()
            .lease(Lease::Fixed(lease))
            .unwrap()
            .max_hold(2 * lease)
            .unwrap();
        let bounded = client.mutex("b").with(terms);
        let bounded = bounded.lock().await.unwrap();
        bounded.extend(longer).await.unwrap();
        assert!(bounded.remaining() <= 2 * lease);
        let left: u64 = admin.run("PTTL b").await;
        assert!(left <= 1_200, "{left}");
    });
}
