//! Permits that many share.

use std::time::Duration;

use rlock_client::{Error, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};

#[tokio::test]
async fn no_more_permits_are_held_than_there_are() {
    let server = Server::start().await;
    let client = server.client().await;
    let semaphore = client.semaphore("k", 3);
    let two = semaphore.acquire_many(2).await.unwrap();
    assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
    let one = semaphore.try_acquire().await.unwrap().unwrap();
    assert_eq!((two.count(), one.count(), semaphore.permits()), (2, 1, 3));
    assert_ne!(one.fence(), two.fence());
    let wait = Duration::from_millis(30);
    assert!(semaphore.acquire_timeout(wait).await.unwrap().is_none());
    let held = semaphore.info().await.unwrap().holders;
    assert_eq!(held.iter().map(|holder| holder.permits).sum::<u64>(), 3);
    two.release().await.unwrap();
    let two = semaphore.acquire_many_timeout(2, wait).await.unwrap();
    assert!(two.is_some() && one.is_valid());
    drop((one, two));
    client.flush().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn numbers_out_of_range_are_refused_before_anything_is_sent() {
    let server = Server::start().await;
    let client = server.client().await;
    for permits in [0, 1_000_001] {
        let Err(Error::OutOfRange {
            argument, value, ..
        }) = client.semaphore("k", permits).acquire().await
        else {
            panic!("{permits} permits");
        };
        assert_eq!((argument, value), ("permits", permits.to_string()));
    }
    let semaphore = client.semaphore("k", 5);
    for permits in [0, 6] {
        let Err(Error::OutOfRange { limit, .. }) = semaphore.acquire_many(permits).await else {
            panic!("{permits} of 5");
        };
        assert_eq!(limit, "from 1 to 5");
    }
    assert_eq!(server.admin().await.gauge("acquires").await, 0);
    let largest = client.semaphore("k", 1_000_000);
    let all = largest.acquire_many(1_000_000).await.unwrap();
    assert!(largest.try_acquire().await.unwrap().is_none());
    all.release().await.unwrap();
}

#[test]
fn permits_that_are_forgotten_come_back_with_the_client() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let (other, mut admin) = (server.client().await, server.admin().await);
        let lease = Terms::new().lease(Duration::from_millis(300)).unwrap();
        let semaphore = other.semaphore("k", 3);
        for is_closed in [true, false] {
            let client = server.client().await;
            let permits = client.semaphore("k", 3).with(lease);
            permits.acquire_many(2).await.unwrap().forget();
            let renewals = admin.gauge("renewals").await;
            eventually("renewed beyond the first lease", async || {
                admin.gauge("renewals").await > renewals + 3
            })
            .await;
            assert_eq!(semaphore.available_permits().await.unwrap(), 1);
            drop(permits);
            if is_closed {
                client.close(PATIENCE).await.unwrap();
                assert_eq!(semaphore.available_permits().await.unwrap(), 3);
            } else {
                drop(client);
                let all = semaphore.acquire_many_timeout(3, PATIENCE).await.unwrap();
                all.unwrap().release().await.unwrap();
            }
        }
    });
}
