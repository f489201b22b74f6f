//! What every way to a server has to carry.

use rlock_client::{Client, Guard};
use tokio::task::JoinHandle;

use crate::server::{Admin, BOUND, eventually};

fn wait(client: &Client) -> JoinHandle<Guard> {
    let mutex = client.mutex("k");
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

async fn granted(waiting: JoinHandle<Guard>) -> Guard {
    tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap()
}

/// A lock, a hand-off, and another one after the connection was killed. The
/// administrator sees the same database.
pub(crate) async fn locks_waits_and_comes_back(client: &Client, admin: &mut Admin) {
    let guard = client.mutex("k").lock().await.unwrap();
    let waiting = wait(client);
    admin.queued(1).await;
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    let waiting = wait(client);
    admin.queued(1).await;
    let waits = admin.gauge("waits").await;
    for id in admin.lock_clients().await {
        let _: u64 = admin.run(&format!("CLIENT KILL ID {id}")).await;
    }
    eventually("queued again", async || admin.gauge("waits").await > waits).await;
    assert!(guard.is_valid() && client.metrics().reconnects == 1);
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    assert_eq!(admin.gauge("handoffs").await, 2);
    guard.release().await.unwrap();
    admin.untouched("k").await;
}
