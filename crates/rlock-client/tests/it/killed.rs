//! Connections that end, and what goes on regardless.

use std::time::{Duration, Instant};

use rlock_client::Loss;

use crate::server::{BOUND, Server, eventually};

#[tokio::test]
async fn a_holder_whose_connection_is_killed_keeps_the_lock_as_the_same_owner() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let mutex = client
        .mutex_builder("k")
        .lease(Duration::from_secs(2))
        .build()
        .unwrap();
    let guard = mutex.lock().await.unwrap();
    for id in admin.lock_clients().await {
        let _: u64 = admin.run(&format!("CLIENT KILL ID {id}")).await;
    }
    eventually("renewed on a new connection", async || {
        admin.gauge("renewals").await > 0
    })
    .await;
    let info = mutex.info().await.unwrap();
    assert_eq!(info.holders[0].owner, guard.owner().as_str());
    assert_eq!(
        (info.fence, info.holders[0].count),
        (Some(guard.fence()), 1)
    );
    assert!(guard.is_valid());
    // The loss notice was asked for again too.
    eventually("watched again", async || admin.gauge("watches").await == 1).await;
    let _: u64 = admin.run("RLOCK.FORCE k").await;
    let loss = tokio::time::timeout(Duration::from_millis(400), guard.lost()).await;
    assert_eq!(loss, Ok(Loss::EndedByServer));
}

#[tokio::test]
async fn a_fixed_lease_is_not_prolonged_by_a_new_connection() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let lease = Duration::from_millis(1500);
    let mutex = client
        .mutex_builder("k")
        .fixed_lease(lease)
        .build()
        .unwrap();
    let begun = Instant::now();
    let guard = mutex.lock().await.unwrap();
    for id in admin.lock_clients().await {
        let _: u64 = admin.run(&format!("CLIENT KILL ID {id}")).await;
    }
    eventually("watched again", async || admin.gauge("watches").await == 1).await;
    let next = client
        .mutex("k")
        .lock_timeout(BOUND)
        .await
        .unwrap()
        .unwrap();
    // The new connection asks for what is left by the holder's own clock.
    assert!(begun.elapsed() >= lease - Duration::from_millis(50));
    assert!(begun.elapsed() < lease + Duration::from_millis(500));
    assert_eq!(guard.loss(), Some(Loss::LeaseEnded));
    drop(next);
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
    let loss = tokio::time::timeout(Duration::from_secs(5), guard.lost()).await;
    assert_eq!(loss, Ok(Loss::EndedByServer));
    admin.untouched("k").await;
}

#[tokio::test]
async fn waiters_go_on_waiting_on_a_new_connection() {
    let server = Server::start().await;
    let (client, holder) = (server.client().await, server.client().await);
    let mut admin = server.admin().await;
    let held = holder.mutex("k").lock().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mutex = client.mutex("k");
        waiting.push(tokio::spawn(async move {
            mutex
                .lock_timeout(BOUND)
                .await
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
        }));
    }
    admin.queued(20).await;
    for _ in 0..3 {
        for id in admin.lock_clients().await {
            let _: u64 = admin.run(&format!("CLIENT KILL ID {id}")).await;
        }
        let waits = admin.gauge("waits").await;
        eventually("queued again", async || {
            admin.gauge("waits").await >= waits + 20
        })
        .await;
        admin.queued(20).await;
    }
    held.release().await.unwrap();
    for task in waiting {
        tokio::time::timeout(BOUND, task).await.unwrap().unwrap();
    }
    admin.untouched("k").await;
}
