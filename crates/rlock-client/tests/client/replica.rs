//! A server that cannot serve for a while: replica, loading, gone.

use std::time::{Duration, Instant};

use rlock_client::{Client, Error};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server, eventually};

#[tokio::test]
async fn waiters_outlast_a_change_of_role() {
    let (server, primary) = (Server::start().await, Server::start().await);
    let (client, mut admin) = (server.client().await, server.admin().await);
    let held = client.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock_timeout(PATIENCE).await }
    });
    admin.queued(1).await;
    let _: () = admin
        .run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()))
        .await;
    admin.queued(0).await;
    // It can tell this from being cancelled, as a replica refuses everything.
    eventually("asked the replica", async || {
        let errors: String = admin.run("INFO errorstats").await;
        errors.contains("errorstat_READONLY")
    })
    .await;
    assert!(!waiting.is_finished());
    let _: () = admin.run("REPLICAOF NO ONE").await;
    let _ = held.release().await;
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_replica_is_asked_until_the_wait_is_over() {
    let (server, primary) = (Server::start().await, Server::start().await);
    let patience = Duration::from_millis(300);
    let client = Client::builder()
        .retry_timeout(patience)
        .connect(&server.url())
        .await
        .unwrap();
    let _: () = server
        .admin()
        .await
        .run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()))
        .await;
    let begun = Instant::now();
    let error = client.mutex("k").try_lock().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let error = client.mutex("k").lock_timeout(patience).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(begun.elapsed() >= 2 * patience && begun.elapsed() < 10 * patience);
}

#[tokio::test]
async fn a_wait_without_limit_outlasts_a_server_that_is_gone() {
    let server = Server::start().await;
    let client = server.client().await;
    let mut admin = server.admin().await;
    let held = client.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock().await }
    });
    admin.queued(1).await;
    // Every connection ends, and a stopped server takes no new one up.
    server.signal("-STOP");
    tokio::time::timeout(Duration::from_millis(300), held.loss())
        .await
        .unwrap_err();
    assert!(!waiting.is_finished());
    server.signal("-CONT");
    held.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
}

/// Each connection is as good as the one before, and is given up as soon.
#[tokio::test]
async fn a_demoted_server_is_not_connected_to_in_a_storm() {
    let (server, primary) = (Server::start().await, Server::start().await);
    let (client, mut admin) = (server.client().await, server.admin().await);
    let _: () = admin
        .run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()))
        .await;
    let before = received(&mut admin).await;
    let mutex = client.mutex("k");
    let begun = Instant::now();
    // Time is what is measured here.
    while begun.elapsed() < Duration::from_secs(4) {
        let wait = Duration::from_millis(500);
        let _ = mutex.lock_timeout(wait).await;
    }
    let connections = received(&mut admin).await - before;
    assert!(connections <= 20, "{connections} in four seconds");
}

async fn received(admin: &mut Admin) -> u64 {
    let stats: String = admin.run("INFO stats").await;
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_call_at_a_server_that_is_gone_tells_why_there_is_none() {
    let server = Server::start().await;
    let builder = Client::builder().retry_timeout(Duration::from_millis(500));
    let client = builder.connect(&server.url()).await.unwrap();
    let guard = client.mutex("held").lock().await.unwrap();
    drop(server);
    let tried = client.mutex("k").try_lock().await.unwrap_err();
    let released = guard.release().await.unwrap_err();
    for error in [tried, released] {
        let Error::Unavailable { source, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(source.is_some() && error.is_transient(), "{error:?}");
    }
}
