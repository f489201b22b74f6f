//! Connections that end, and what goes on regardless.

use std::time::{Duration, Instant};

use rlock_client::{Client, Error, Guard, Lease, Loss, Terms};
use tokio::task::JoinHandle;

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

#[test]
fn a_fixed_lease_is_not_prolonged_by_a_new_connection() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let (client, mut admin) = (server.client().await, server.admin().await);
        let lease = Duration::from_millis(1500);
        let mutex = client
            .mutex("k")
            .with(Terms::new().lease(Lease::Fixed(lease)).unwrap());
        let begun = Instant::now();
        let guard = mutex.lock().await.unwrap();
        admin.kill_lock_clients().await;
        eventually("watched again", async || admin.gauge("watches").await == 1).await;
        let next = client
            .mutex("k")
            .lock_timeout(PATIENCE)
            .await
            .unwrap()
            .unwrap();
        // The new connection asks for what is left by the holder's own clock.
        assert!(begun.elapsed() >= lease - Duration::from_millis(50));
        assert!(begun.elapsed() < lease + Duration::from_millis(500));
        assert_eq!(guard.loss().now(), Some(Loss::LeaseEnded));
        drop(next);
    });
}

#[tokio::test]
async fn a_hold_lost_while_disconnected_is_noticed_and_not_taken_again() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let guard = client.mutex("k").lock().await.unwrap();
    let ids = admin.lock_clients().await;
    let _: () = redis::pipe()
        .atomic()
        .cmd("DEL")
        .arg("k")
        .ignore()
        .cmd("CLIENT")
        .arg("KILL")
        .arg("ID")
        .arg(&ids[0])
        .ignore()
        .query_async(&mut admin.0)
        .await
        .unwrap();
    let loss = tokio::time::timeout(Duration::from_secs(5), guard.loss()).await;
    assert_eq!(loss, Ok(Loss::EndedByServer));
    admin.untouched("k").await;
}

/// Who has a place in the queue of `k`, in order.
async fn owners(client: &Client) -> Vec<String> {
    let waiters = client.mutex("k").info().await.unwrap().waiters;
    waiters.into_iter().map(|waiter| waiter.owner).collect()
}

#[tokio::test]
async fn waiters_go_on_waiting_in_their_order_on_a_new_connection() {
    let server = Server::start().await;
    let (client, holder) = (server.client().await, server.client().await);
    let mut admin = server.admin().await;
    let held = holder.mutex("k").lock().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mutex = client.mutex("k");
        waiting.push(tokio::spawn(async move {
            mutex
                .lock_timeout(PATIENCE)
                .await
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
        }));
    }
    admin.queued(20).await;
    let order = owners(&holder).await;
    for _ in 0..3 {
        let waits = admin.gauge("waits").await;
        admin.kill_lock_clients().await;
        eventually("waiting again", async || {
            admin.gauge("waits").await >= waits + 20 && admin.gauge("places_kept").await == 0
        })
        .await;
        assert_eq!(owners(&holder).await, order);
    }
    held.release().await.unwrap();
    for task in waiting {
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    admin.untouched("k").await;
}

/// A client behind a proxy that waits for `k`. Its connection has ended, and
/// the proxy lets no other one through; so the server keeps its place.
async fn cut_off(
    server: &Server,
    proxy: &Proxy,
    admin: &mut Admin,
) -> (Client, JoinHandle<Result<Guard, Error>>) {
    let builder = Client::builder().response_timeout(Duration::from_millis(400));
    let client = builder.connect(&proxy.url()).await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock().await }
    });
    admin.queued(1).await;
    proxy.set(Weather::Swallow);
    let info = server.client().await.mutex("k").info().await.unwrap();
    let id = info.waiters[0].client_id.unwrap();
    let _: u64 = admin.run(&format!("CLIENT KILL ID {id}")).await;
    eventually("its place is kept", async || {
        admin.gauge("places_kept").await == 1
    })
    .await;
    (client, waiting)
}

#[tokio::test]
async fn a_waiter_that_reconnects_is_granted_before_those_who_came_later() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (other, mut admin) = (server.client().await, server.admin().await);
    let held = other.mutex("k").lock().await.unwrap();
    let (_client, waiting) = cut_off(&server, &proxy, &mut admin).await;
    let later = tokio::spawn({
        let mutex = other.mutex("k");
        async move { mutex.lock().await }
    });
    admin.queued(2).await;
    let info = other.mutex("k").info().await.unwrap();
    let kept_left = info.waiters[0].kept_left.unwrap();
    assert!(kept_left <= Duration::from_secs(10), "{info:?}");
    assert_eq!((info.queued, info.waiters[0].client_id), (2, None));
    assert_eq!(info.waiters[1].kept_left, None);
    proxy.set(Weather::Fair);
    eventually("its place is its own again", async || {
        admin.gauge("places_kept").await == 0
    })
    .await;
    admin.queued(2).await;
    held.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    let guard = guard.unwrap();
    assert!(!later.is_finished());
    let fence = guard.fence();
    guard.release().await.unwrap();
    let later = tokio::time::timeout(PATIENCE, later)
        .await
        .unwrap()
        .unwrap();
    assert!(later.unwrap().fence() > fence);
}

#[tokio::test]
async fn a_kept_place_holds_up_nobody() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (other, mut admin) = (server.client().await, server.admin().await);
    let held = other.mutex("k").lock().await.unwrap();
    let (_client, waiting) = cut_off(&server, &proxy, &mut admin).await;
    held.release().await.unwrap();
    let next = other.mutex("k").try_lock().await.unwrap().unwrap();
    assert_eq!(admin.gauge("places_kept").await, 1);
    proxy.set(Weather::Fair);
    next.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.unwrap().is_valid());
}

#[tokio::test]
async fn a_call_dropped_while_its_place_is_kept_leaves_none() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (other, mut admin) = (server.client().await, server.admin().await);
    let held = other.mutex("k").lock().await.unwrap();
    let (client, waiting) = cut_off(&server, &proxy, &mut admin).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    proxy.set(Weather::Fair);
    client.flush().await.unwrap();
    assert_eq!(admin.gauge("waiters").await, 0);
    held.release().await.unwrap();
}
