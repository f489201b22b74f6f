//! Locks that stay taken until a time after their grant.

use std::time::{Duration, Instant};

use rlock_client::{Client, Error, Guard, Kind, Lease, Loss, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

const LEAST: Duration = Duration::from_millis(600);
const LATE: Duration = Duration::from_millis(300);

fn terms(lease: Duration) -> Terms {
    Terms::new().lease(lease).unwrap()
}

/// When `key` is free, counted from `begun`.
async fn free_after(client: &Client, key: &str, begun: Instant) -> Duration {
    let mutex = client.mutex(key);
    let next = mutex.lock_timeout(PATIENCE).await.unwrap().unwrap();
    let elapsed = begun.elapsed();
    next.release().await.unwrap();
    elapsed
}

/// How long the server has `key` still.
async fn left(admin: &mut Admin, key: &str) -> Duration {
    let left: i64 = admin.run(&format!("PTTL {key}")).await;
    Duration::from_millis(left.try_into().unwrap_or_default())
}

/// Leaves a lock to its server, and sees it there until then and no longer.
async fn keeps<K: Kind>(client: &Client, guard: Guard<K>, begun: Instant, key: &str) {
    let loss = guard.loss();
    guard.release_after(LEAST).await.unwrap();
    assert_eq!(loss.now(), Some(Loss::Released));
    let other = client.mutex(key).try_lock().await.unwrap();
    assert!(other.is_none(), "{key} is taken");
    let free = free_after(client, key, begun).await;
    assert!((LEAST..LEAST + LATE).contains(&free), "{key}: {free:?}");
}

#[test]
fn a_lock_stays_taken_until_then_and_no_longer() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let client = server.client().await;
        for (key, lease) in [("short", 100), ("long", 30_000)] {
            let mutex = client.mutex(key).with(terms(Duration::from_millis(lease)));
            let begun = Instant::now();
            let guard = mutex.lock().await.unwrap();
            keeps(&client, guard, begun, key).await;
        }
        let mutex = client.mutex("fixed");
        let fixed = Terms::new().lease(Lease::Fixed(LEAST / 2)).unwrap();
        let begun = Instant::now();
        let guard = mutex.with(fixed).lock().await.unwrap();
        keeps(&client, guard, begun, "fixed").await;
    });
}

#[test]
fn so_do_those_of_other_kinds() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let client = server.client().await;
        let begun = Instant::now();
        let reading = client.rwlock("r").read().await.unwrap();
        let writing = client.rwlock("w").write().await.unwrap();
        let both = client.multi(["a", "b"]).lock().await.unwrap();
        tokio::join!(
            keeps(&client, reading, begun, "r"),
            keeps(&client, writing, begun, "w"),
            keeps(&client, both, begun, "b"),
        );
        // At most two in a while, however soon they are done.
        let starts = client.semaphore("s", 2);
        let begun = Instant::now();
        for _ in 0..4 {
            let start = starts.acquire().await.unwrap();
            drop(start.release_after(LEAST));
        }
        let elapsed = begun.elapsed();
        assert!((LEAST..LEAST + LATE).contains(&elapsed), "{elapsed:?}");
    });
}

#[tokio::test]
async fn what_is_over_is_released() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let guard = client.mutex("k").lock().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    guard
        .release_after(Duration::from_millis(20))
        .await
        .unwrap();
    assert!(!admin.run::<bool>("EXISTS k").await);
    let guard = client.mutex("k").lock().await.unwrap();
    guard.release_after(Duration::ZERO).await.unwrap();
    assert!(!admin.run::<bool>("EXISTS k").await);
}

#[tokio::test]
async fn a_time_out_of_range_is_refused_and_frees_nothing() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let guard = client.mutex("k").lock().await.unwrap();
    let error = guard.release_after(Duration::MAX).await.unwrap_err();
    let Error::OutOfRange { argument, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(argument, "least");
    client.flush().await.unwrap();
    let lease = Duration::from_secs(30);
    let left = left(&mut admin, "k").await;
    assert!(left > lease - PATIENCE && left <= lease, "{left:?}");
}

#[tokio::test]
async fn it_stays_whatever_becomes_of_its_client() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let hour = Duration::from_secs(3600);
    let guard = client.mutex("plain").lock().await.unwrap();
    guard.release_after(hour).await.unwrap();
    // It would end with its connection.
    let bound = Terms::new().bound(Duration::ZERO).unwrap();
    let guard = client.mutex("bound").with(bound).lock().await.unwrap();
    guard.release_after(hour).await.unwrap();
    // Not even awaited.
    let guard = client.mutex("dropped").lock().await.unwrap();
    drop(guard.release_after(hour));
    client.flush().await.unwrap();
    admin.kill_lock_clients().await;
    client.close(PATIENCE).await.unwrap();
    eventually("it is gone", async || admin.lock_clients().await.is_empty()).await;
    for key in ["plain", "bound", "dropped"] {
        let left = left(&mut admin, key).await;
        assert!(left > hour - PATIENCE, "{key}: {left:?}");
        assert!(left < hour + PATIENCE, "{key}: {left:?}");
    }
}

#[tokio::test]
async fn another_guard_of_the_same_owner_holds_it_on() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let owner = client.owner();
    let mutex = client.mutex("k").by(&owner);
    let (one, two) = (mutex.lock().await.unwrap(), mutex.lock().await.unwrap());
    let minute = Duration::from_secs(60);
    one.release_after(minute).await.unwrap();
    assert!(two.is_valid() && two.remaining() < minute / 2);
    two.release().await.unwrap();
    assert!(left(&mut admin, "k").await > minute / 2);
    // It enters what was left, and may end it.
    let again = mutex.try_lock().await.unwrap().unwrap();
    again.release().await.unwrap();
    assert!(!admin.run::<bool>("EXISTS k").await);
}

#[tokio::test]
async fn what_the_server_refuses_ends_with_its_lease() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let guard = client.mutex("k").lock().await.unwrap();
    let _: () = admin.run("CONFIG SET rlock.max-lease-ms 30000").await;
    let outcome = guard.release_after(Duration::from_secs(31)).await;
    assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
    let left = left(&mut admin, "k").await;
    assert!(left > Duration::from_secs(10), "{left:?}");
    assert!(left <= Duration::from_secs(30), "{left:?}");
}

#[tokio::test]
async fn what_was_lost_is_not_kept() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let least = Duration::from_secs(60);
    let guard = client.mutex("k").lock().await.unwrap();
    let _: u64 = admin.run("RLOCK.FORCE k").await;
    guard.loss().await;
    let outcome = guard.release_after(least).await;
    assert!(matches!(outcome, Err(Error::Lost(_))), "{outcome:?}");
    // Nobody has told that this one was.
    let _: () = admin.run("CONFIG SET rlock.max-watches 0").await;
    let guard = client.mutex("k").lock().await.unwrap();
    let _: u64 = admin.run("RLOCK.FORCE k").await;
    let outcome = guard.release_after(least).await;
    assert!(matches!(outcome, Err(Error::Lost(_))), "{outcome:?}");
    assert!(!admin.run::<bool>("EXISTS k").await);
}

#[tokio::test]
async fn the_background_goes_on_where_nobody_answers() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder()
        .response_timeout(Duration::from_millis(200))
        .retry_timeout(Duration::from_millis(400));
    let client = builder.connect(&proxy.url()).await.unwrap();
    let mut admin = server.admin().await;
    let guard = client.mutex("k").lock().await.unwrap();
    proxy.set(Weather::Swallow);
    let minute = Duration::from_secs(60);
    let outcome = guard.release_after(minute).await;
    assert!(
        matches!(outcome, Err(Error::Unavailable { .. })),
        "{outcome:?}"
    );
    assert!(left(&mut admin, "k").await < minute / 2);
    proxy.set(Weather::Fair);
    client.flush().await.unwrap();
    assert!(left(&mut admin, "k").await > minute / 2);
}
