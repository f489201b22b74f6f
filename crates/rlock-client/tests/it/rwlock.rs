//! Readers and writers of one lock.

use std::time::Duration;

use rlock_client::{Error, Lease, Loss, Mode, Terms};

use crate::calm::on_a_calm_machine;
use crate::server::{BOUND, Server};

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
        async move { lock.write_timeout(BOUND).await.unwrap().unwrap() }
    });
    server.admin().await.queued(1).await;
    first.release().await.unwrap();
    assert!(!writing.is_finished() && second.is_valid());
    let fence = second.fence();
    second.release().await.unwrap();
    let writing = tokio::time::timeout(BOUND, writing).await.unwrap().unwrap();
    assert!(writing.fence() > fence && writing.is_unbroken());
    assert!(lock.try_read().await.unwrap().is_none());
    writing.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn a_reader_does_not_pass_a_writer_who_waits() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let reading = lock.read().await.unwrap();
    let writing = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.unwrap() }
    });
    let mut admin = server.admin().await;
    admin.queued(1).await;
    assert!(lock.try_read().await.unwrap().is_none());
    let next = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read_timeout(BOUND).await.unwrap().unwrap() }
    });
    admin.queued(2).await;
    reading.release().await.unwrap();
    let writing = tokio::time::timeout(BOUND, writing).await.unwrap().unwrap();
    assert!(!next.is_finished());
    let fence = writing.fence();
    writing.release().await.unwrap();
    let next = tokio::time::timeout(BOUND, next).await.unwrap().unwrap();
    assert!(next.fence() > fence);
}

#[tokio::test]
async fn readers_who_wait_are_let_in_together() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let writing = lock.write().await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..5 {
        let lock = lock.clone();
        readers.push(tokio::spawn(async move { lock.read().await.unwrap() }));
    }
    server.admin().await.queued(5).await;
    writing.release().await.unwrap();
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(tokio::time::timeout(BOUND, reader).await.unwrap().unwrap());
    }
    assert!(guards.iter().all(rlock_client::ReadGuard::is_valid));
}

#[tokio::test]
async fn a_mutex_with_the_same_key_counts_as_a_writer() {
    let server = Server::start().await;
    let client = server.client().await;
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(client.rwlock("k").try_read().await.unwrap().is_none());
    guard.release().await.unwrap();
    let _reading = client.rwlock("k").read().await.unwrap();
    assert!(client.mutex("k").try_lock().await.unwrap().is_none());
}

#[tokio::test]
async fn a_reader_enters_again_past_a_waiting_writer() {
    let server = Server::start().await;
    let client = server.client().await;
    let (lock, owner) = (client.rwlock("k"), client.owner());
    let outer = lock.by(&owner).read().await.unwrap();
    let writing = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.unwrap() }
    });
    server.admin().await.queued(1).await;
    let inner = lock.by(&owner).try_read().await.unwrap().unwrap();
    assert_eq!(inner.fence(), outer.fence());
    outer.release().await.unwrap();
    assert!(lock.is_held_by(&owner).await.unwrap() && inner.is_valid());
    inner.release().await.unwrap();
    let writing = tokio::time::timeout(BOUND, writing).await.unwrap().unwrap();
    assert!(writing.is_valid());
}

#[tokio::test]
async fn a_writer_may_read_as_well_and_stays_alone() {
    let server = Server::start().await;
    let client = server.client().await;
    let (lock, owner) = (client.rwlock("k"), client.owner());
    let writing = lock.by(&owner).write().await.unwrap();
    let reading = lock.by(&owner).read_timeout(BOUND).await.unwrap().unwrap();
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
    let other = tokio::time::timeout(BOUND, reader).await.unwrap().unwrap();
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
    client.flush().await;
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

#[tokio::test]
async fn every_reader_is_told_of_a_forced_release() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    assert_eq!(lock.force_release().await.unwrap(), 2);
    for reader in readers {
        let loss = tokio::time::timeout(BOUND, reader.loss()).await.unwrap();
        assert_eq!(loss, Loss::EndedByServer);
        assert!(matches!(reader.release().await, Err(Error::Lost(_))));
    }
}

#[tokio::test]
async fn one_reader_whose_lease_ends_leaves_the_others_alone() {
    let server = Server::start().await;
    let client = server.client().await;
    let brief = client.rwlock("k").with(
        Terms::new()
            .lease(Lease::Fixed(Duration::from_millis(150)))
            .unwrap(),
    );
    let (brief, lasting) = (
        brief.read().await.unwrap(),
        client.rwlock("k").read().await.unwrap(),
    );
    let loss = tokio::time::timeout(BOUND, brief.loss()).await.unwrap();
    assert_eq!(loss, Loss::LeaseEnded);
    let (lock, wait) = (client.rwlock("k"), Duration::from_millis(300));
    assert!(lock.write_timeout(wait).await.unwrap().is_none());
    assert!(lasting.is_valid());
    let info = client.rwlock("k").info().await.unwrap();
    assert_eq!(info.holders.len(), 1);
}

#[test]
fn the_watchdog_keeps_readers_for_longer_than_their_lease() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let client = server.client().await;
        let lease = Duration::from_millis(900);
        let lock = client.rwlock("k").with(Terms::new().lease(lease).unwrap());
        let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
        assert!(lock.write_timeout(2 * lease).await.unwrap().is_none());
        assert!(readers.iter().all(rlock_client::ReadGuard::is_valid));
        assert_eq!(lock.info().await.unwrap().holders.len(), 2);
    });
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
