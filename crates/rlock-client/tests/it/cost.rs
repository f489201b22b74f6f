//! What locking costs, in commands.

use std::time::{Duration, Instant};

use crate::server::Server;

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
