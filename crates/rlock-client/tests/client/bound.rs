//! Holds that end with their connection, unless the next one comes in time.

use std::time::{Duration, Instant};

use rlock_client::{Client, Error, Lease, Loss, Mutex, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

fn bound(client: &Client, key: &str, grace: Duration) -> Mutex {
    client.mutex(key).with(Terms::new().bound(grace).unwrap())
}

#[tokio::test]
async fn a_bound_hold_is_free_soon_after_its_process_has_died() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let gone = Client::connect(&proxy.url()).await.unwrap();
    let grace = Duration::from_millis(300);
    let guard = bound(&gone, "k", grace).lock().await.unwrap();
    let other = server.client().await;
    assert!(other.mutex("k").info().await.unwrap().holders[0].is_bound);
    let begun = Instant::now();
    // Its connection ends, and no other comes.
    drop(proxy);
    let mut admin = server.admin().await;
    let ids = admin.lock_clients().await;
    let _: u64 = admin.run(&format!("CLIENT KILL ID {}", ids[0])).await;
    let next = other
        .mutex("k")
        .lock_timeout(PATIENCE)
        .await
        .unwrap()
        .unwrap();
    assert!(begun.elapsed() >= grace - Duration::from_millis(5));
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "not after the lease"
    );
    assert_eq!(guard.loss().now(), Some(Loss::LeaseEnded), "it knows");
    assert!(next.fence() > guard.fence());
}

#[tokio::test]
async fn a_bound_hold_follows_its_client_to_the_next_connection() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let grace = Duration::from_secs(2);
    let lock = client
        .rwlock("shared")
        .with(Terms::new().bound(grace).unwrap());
    let semaphore = client
        .semaphore("permits", 3)
        .with(Terms::new().bound(grace).unwrap());
    let mutex = bound(&client, "k", grace);
    let guard = mutex.lock().await.unwrap();
    let reading = lock.read().await.unwrap();
    let permits = semaphore.acquire_many(2).await.unwrap();
    let fixed = Terms::new()
        .lease(Lease::Fixed(PATIENCE))
        .unwrap()
        .bound(grace)
        .unwrap();
    let fixed = client.mutex("fixed").with(fixed);
    let fixed = fixed.lock().await.unwrap();
    for _ in 0..3 {
        let renewals = admin.gauge("renewals").await;
        admin.kill_lock_clients().await;
        eventually("all are held in full again", async || {
            let left = [guard.remaining(), reading.remaining(), permits.remaining()];
            admin.gauge("renewals").await >= renewals + 3
                && left.iter().all(|left| *left > Duration::from_secs(25))
                && fixed.remaining() > grace
                && admin.gauge("bound_holds").await == 4
        })
        .await;
    }
    // The end of the earlier connections changes nothing later either.
    assert!(
        mutex
            .lock_timeout(grace + grace / 2)
            .await
            .unwrap()
            .is_none()
    );
    assert!(guard.is_valid() && reading.is_valid() && permits.is_valid() && fixed.is_valid());
    let holders = mutex.info().await.unwrap().holders;
    assert!(holders[0].is_bound && holders[0].fence == Some(guard.fence()));
}

#[tokio::test]
async fn a_hold_bound_without_grace_is_lost_with_its_connection() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let guard = bound(&client, "k", Duration::ZERO).lock().await.unwrap();
    let kept = client.mutex("other").lock().await.unwrap();
    admin.kill_lock_clients().await;
    tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
    admin.untouched("k").await;
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    assert!(kept.is_valid());
}

#[test]
fn without_a_connection_a_bound_hold_counts_for_its_grace_only() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        // Longer than the grace, the client would wait for a reply otherwise.
        let builder = Client::builder().response_timeout(Duration::from_secs(10));
        let client = builder.connect(&proxy.url()).await.unwrap();
        let grace = Duration::from_secs(1);
        let guard = bound(&client, "k", grace).lock().await.unwrap();
        let kept = client.mutex("other").lock().await.unwrap();
        let silent = Instant::now();
        proxy.set(Weather::Swallow);
        let loss = tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
        assert_eq!(loss, Loss::LeaseEnded);
        // It was lost before, by the clock; and is reported as soon as a thread runs.
        let late = Duration::from_millis(100);
        assert!(silent.elapsed() <= grace + late, "{:?}", silent.elapsed());
        assert!(kept.is_valid(), "what is not bound counts on");
        proxy.set(Weather::Fair);
        let next = server.client().await;
        assert!(
            next.mutex("k")
                .lock_timeout(PATIENCE)
                .await
                .unwrap()
                .is_some()
        );
    });
}

#[test]
fn a_quiet_connection_is_known_to_be_there() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let (client, mut admin) = (server.client().await, server.admin().await);
        let grace = Duration::from_millis(800);
        let guard = bound(&client, "k", grace).lock().await.unwrap();
        // No renewal is due for seconds, only heartbeats are asked for.
        let begun = Instant::now();
        eventually("asked for heartbeats", async || {
            let calls = admin.calls().await;
            calls.get("ping").is_some_and(|calls| *calls >= 10)
        })
        .await;
        assert!(begun.elapsed() > grace && admin.gauge("renewals").await == 0);
        admin.kill_lock_clients().await;
        eventually("taken over", async || admin.gauge("renewals").await == 1).await;
        assert!(guard.is_valid());
        drop(guard);
        client.flush().await.unwrap();
        let before = admin.calls().await["ping"];
        let begun = Instant::now();
        while begun.elapsed() < 2 * grace {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let after = admin.calls().await["ping"];
        assert!(after <= before + 1, "nothing is bound any more");
    });
}

#[test]
fn a_grace_out_of_range_is_refused() {
    let built = Terms::new().bound(Duration::MAX);
    let Err(Error::OutOfRange { argument, .. }) = built else {
        panic!("{built:?}");
    };
    assert_eq!(argument, "grace");
}
