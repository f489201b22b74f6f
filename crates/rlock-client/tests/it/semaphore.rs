//! Permits that many share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rlock_client::{Error, Lease, Loss, Terms};

use crate::calm::on_a_calm_machine;
use crate::server::{BOUND, Server, eventually};

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
    client.flush().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_so_many_are_at_it_together() {
    const PERMITS: u32 = 4;
    let server = Server::start().await;
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for (number, client) in [server.client().await, server.client().await]
        .into_iter()
        .cycle()
        .take(30)
        .enumerate()
    {
        let semaphore = client.semaphore("k", PERMITS);
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        tasks.push(tokio::spawn(async move {
            for round in 0..10 {
                let permits = 1 + (number as u32 + round) % PERMITS;
                let guard = semaphore.acquire_many(permits).await.unwrap();
                let now = inside.fetch_add(permits, Ordering::SeqCst) + permits;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(permits, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(BOUND, task).await.unwrap().unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), PERMITS);
    server.admin().await.untouched("k").await;
}

#[test]
fn permits_are_renewed_and_lost_like_a_mutex() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let client = server.client().await;
        let lease = Duration::from_millis(600);
        let semaphore = client.semaphore("k", 2);
        let semaphore = semaphore.with(Terms::new().lease(lease).unwrap());
        let kept = semaphore.acquire_many(2).await.unwrap();
        assert!(
            semaphore
                .acquire_timeout(2 * lease)
                .await
                .unwrap()
                .is_none()
        );
        assert!(kept.is_valid());
        assert_eq!(semaphore.force_release().await.unwrap(), 1);
        let loss = tokio::time::timeout(BOUND, kept.loss()).await.unwrap();
        assert_eq!(loss, Loss::EndedByServer);
        assert!(matches!(kept.release().await, Err(Error::Lost(_))));
        let brief = Terms::new()
            .lease(Lease::Fixed(Duration::from_millis(100)))
            .unwrap();
        let brief = semaphore.with(brief);
        let brief = brief.acquire_many(2).await.unwrap();
        let next = semaphore.acquire_timeout(BOUND).await.unwrap().unwrap();
        assert_eq!(brief.loss().now(), Some(Loss::LeaseEnded));
        next.release().await.unwrap();
    });
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
                client.close(BOUND).await.unwrap();
                assert_eq!(semaphore.available_permits().await.unwrap(), 3);
            } else {
                drop(client);
                let all = semaphore.acquire_many_timeout(3, BOUND).await.unwrap();
                all.unwrap().release().await.unwrap();
            }
        }
    });
}

#[tokio::test]
async fn one_who_wants_many_is_not_overtaken_by_those_who_want_few() {
    let server = Server::start().await;
    let client = server.client().await;
    let semaphore = client.semaphore("k", 3);
    let one = semaphore.acquire().await.unwrap();
    let all = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire_many(3).await.unwrap() }
    });
    server.admin().await.queued(1).await;
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    one.release().await.unwrap();
    let all = tokio::time::timeout(BOUND, all).await.unwrap().unwrap();
    assert_eq!(all.count(), 3);
}
