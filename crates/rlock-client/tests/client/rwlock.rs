//! Readers and writers of one lock.

use rlock_client::{Error, Loss, Mode};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server};

#[tokio::test]
async fn readers_share_the_lock_and_a_writer_waits_for_all_of_them() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let first = lock.read().await.unwrap();
    let second = lock.try_read().await.unwrap().unwrap();
    assert_ne!(first.fence(), second.fence(), "each has its own");
    assert!(lock.try_write().await.unwrap().is_none());
    let info = lock.info().await.unwrap();
    assert_eq!((info.mode, info.holders.len()), (Mode::Shared, 2));
    let writing = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write_timeout(PATIENCE).await.unwrap().unwrap() }
    });
    server.admin().await.queued(1).await;
    first.release().await.unwrap();
    assert!(!writing.is_finished() && second.is_valid());
    let fence = second.fence();
    second.release().await.unwrap();
    let writing = tokio::time::timeout(PATIENCE, writing)
        .await
        .unwrap()
        .unwrap();
    assert!(writing.fence() > fence && writing.is_unbroken());
    assert!(lock.try_read().await.unwrap().is_none());
    writing.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn a_writer_may_read_as_well_and_stays_alone() {
    let server = Server::start().await;
    let client = server.client().await;
    let (lock, owner) = (client.rwlock("k"), client.owner());
    let writing = lock.by(&owner).write().await.unwrap();
    let reading = lock
        .by(&owner)
        .read_timeout(PATIENCE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(reading.fence(), writing.fence());
    writing.release().await.unwrap();
    assert!(reading.is_valid());
    assert!(
        lock.try_read().await.unwrap().is_none(),
        "until all is gone"
    );
    reading.release().await.unwrap();
    assert!(lock.try_read().await.unwrap().is_some());
}

#[tokio::test]
async fn a_writer_goes_on_reading_under_the_same_fence_and_others_join() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let writing = lock.write().await.unwrap();
    let reader = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await.unwrap() }
    });
    server.admin().await.queued(1).await;
    let fence = writing.fence();
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(reading.fence(), fence);
    let other = tokio::time::timeout(PATIENCE, reader)
        .await
        .unwrap()
        .unwrap();
    assert!(reading.is_valid() && other.is_valid() && other.fence() > fence);
    assert_eq!(lock.info().await.unwrap().mode, Mode::Shared);
    reading.release().await.unwrap();
    other.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn a_lock_stays_exclusive_until_the_last_write_guard_is_downgraded() {
    let server = Server::start().await;
    let client = server.client().await;
    let (lock, owner) = (client.rwlock("k"), client.owner());
    let first = lock.by(&owner).write().await.unwrap();
    let second = lock.by(&owner).try_write().await.unwrap().unwrap();
    let first = first.downgrade().await.unwrap();
    assert!(lock.try_read().await.unwrap().is_none());
    let second = second.downgrade().await.unwrap();
    assert!(lock.try_read().await.unwrap().is_some());
    drop((first, second));
    client.flush().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn a_lost_writer_cannot_go_on_reading() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let writing = lock.write().await.unwrap();
    assert_eq!(lock.force_release().await.unwrap(), 1);
    let failed = writing.downgrade().await.unwrap_err();
    assert!(matches!(failed.error, Error::Lost(Loss::EndedByServer)));
    assert!(!failed.guard.is_valid());
}

/// What was held for writing is of no use to a reader, and keeps others out.
#[tokio::test]
async fn a_reader_after_a_dropped_writer_shares() {
    let server = Server::start().await;
    let (client, other) = (server.client().await, server.client().await);
    let owner = client.owner();
    for _ in 0..20 {
        drop(client.rwlock("k").by(&owner).write().await.unwrap());
        let reading = client.rwlock("k").by(&owner).read().await.unwrap();
        let beside = other.rwlock("k").try_read().await.unwrap();
        assert!(beside.is_some(), "others may read, too");
        reading.release().await.unwrap();
        drop(beside);
    }
}
