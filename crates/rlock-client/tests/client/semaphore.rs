//! Permits that many share.

use std::time::Duration;

use rlock_client::{Error, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use crate::kinds::through;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

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

#[tokio::test]
async fn each_part_releases_its_own_permits() {
    let server = Server::start().await;
    let (client, other) = (server.client().await, server.client().await);
    let semaphore = client.semaphore("k", 5);
    let mut rest = semaphore.acquire_many(5).await.unwrap();
    for permits in [0, 5, 6, u32::MAX] {
        assert!(rest.split(permits).is_none());
    }
    let mut part = rest.split(3).unwrap();
    let last = part.split(1).unwrap();
    assert_eq!((rest.count(), part.count(), last.count()), (2, 2, 1));
    assert_eq!((rest.fence(), rest.owner()), (last.fence(), last.owner()));
    let waiting = tokio::spawn({
        let semaphore = other.semaphore("k", 5);
        async move { semaphore.acquire_many_timeout(2, PATIENCE).await }
    });
    server.admin().await.queued(1).await;
    let loss = part.loss();
    part.release().await.unwrap();
    let theirs = waiting.await.unwrap().unwrap().unwrap();
    assert!(rest.is_valid() && last.is_valid() && loss.now().is_none());
    assert_eq!(semaphore.available_permits().await.unwrap(), 0);
    rest.extend(Duration::from_secs(90)).await.unwrap();
    assert!(last.remaining() > Duration::from_secs(60));
    drop(rest);
    client.flush().await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 2);
    last.release().await.unwrap();
    theirs.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn parts_become_one_again_but_not_other_permits() {
    let server = Server::start().await;
    let client = server.client().await;
    let semaphore = client.semaphore("k", 9);
    let mut permits = semaphore.acquire_many(3).await.unwrap();
    let part = permits.split(2).unwrap();
    permits.merge(part).unwrap();
    assert_eq!(permits.count(), 3);
    let others = semaphore.acquire().await.unwrap();
    let others = permits.merge(others).unwrap_err();
    assert_eq!((permits.count(), others.count()), (3, 1));
    others.release().await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 6);
    permits.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

/// Neither too few nor too many, whether the server has carried out the release or not.
#[tokio::test]
async fn permits_whose_release_got_no_answer_are_released_once() {
    for is_carried_out in [true, false] {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let client = through(&proxy).await;
        let semaphore = client.semaphore("k", 6);
        let mut rest = semaphore.acquire_many(6).await.unwrap();
        let part = rest.split(2).unwrap();
        proxy.set(match is_carried_out {
            true => Weather::CutReplyTo("RLOCK.RELEASE"),
            false => Weather::DelayRequest("RLOCK.RELEASE"),
        });
        part.release().await.unwrap();
        assert!(is_carried_out || !proxy.let_late_request_arrive().await);
        assert_eq!(semaphore.available_permits().await.unwrap(), 2);
        assert!(rest.is_valid());
        rest.release().await.unwrap();
        server.admin().await.untouched("k").await;
    }
}
