//! The runtime that a client was made on ends, while others use the client.

use std::sync::mpsc;
use std::thread;

use rlock_client::{Error, Terms};

use crate::server::{BOUND, Server};

#[tokio::test]
async fn a_waiting_call_ends_with_its_client_s_runtime() {
    let server = Server::start().await;
    let (holder, mut admin) = (server.client().await, server.admin().await);
    let held = holder.mutex("k").lock().await.unwrap();
    let url = server.url();
    let (made, client) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let elsewhere = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let client = rlock_client::Client::connect(&url).await.unwrap();
            made.send(client).unwrap();
            // Runs the client's task until it is told to end.
            while ended.try_recv().is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        });
    });
    let client = client.recv().unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock().await }
    });
    admin.queued(1).await;
    end.send(()).unwrap();
    let outcome = tokio::time::timeout(BOUND, waiting).await.unwrap();
    assert!(matches!(outcome.unwrap(), Err(Error::Closed)));
    assert!(matches!(
        client.mutex("k").try_lock().await,
        Err(Error::Closed)
    ));
    elsewhere.join().unwrap();
    held.release().await.unwrap();
}

/// With a watchdog on this thread, which does not yield, the lock would be lost.
#[tokio::test]
async fn a_thread_of_its_own_renews_while_this_one_is_busy() {
    let server = Server::start().await;
    let builder = rlock_client::Client::builder().dedicated_thread();
    let client = builder.connect(&server.url()).await.unwrap();
    let lease = std::time::Duration::from_millis(1000);
    let mutex = client.mutex("k").with(Terms::new().lease(lease).unwrap());
    let guard = mutex.lock().await.unwrap();
    // It is the thread that is to be blocked here.
    thread::sleep(3 * lease);
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    server.admin().await.untouched("k").await;
}
