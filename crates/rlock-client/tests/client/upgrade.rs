//! Readers who become writers, and what may come between.

use std::time::Duration;

use rlock_client::{ChangeError, Error, Loss, Mode, ReadGuard, RwLock, Terms, Upgrade, WriteGuard};
use tokio::task::JoinHandle;

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use crate::kinds::through;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

fn in_background(reading: ReadGuard) -> JoinHandle<Result<WriteGuard, ChangeError>> {
    tokio::spawn(async move { reading.upgrade().await })
}

async fn outcome<T>(task: JoinHandle<T>) -> T {
    tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap()
}

/// Two readers, the first of which waits for its upgrade.
async fn waiting(
    server: &Server,
    lock: &RwLock,
) -> (JoinHandle<Result<WriteGuard, ChangeError>>, ReadGuard) {
    let (upgraded, other) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    let task = in_background(upgraded);
    server.admin().await.queued(1).await;
    (task, other)
}

#[tokio::test]
async fn a_lone_reader_is_upgraded_at_once_and_gets_a_new_fence() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let reading = lock.read().await.unwrap();
    let fence = reading.fence();
    let writing = reading.upgrade().await.unwrap();
    assert!(writing.fence() > fence && writing.is_valid() && writing.is_unbroken());
    let info = lock.info().await.unwrap();
    assert_eq!(
        (info.mode, info.fence, info.holders[0].count),
        (Mode::Exclusive, Some(writing.fence()), 1)
    );
    let reading = writing.downgrade().await.unwrap();
    reading.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn an_upgrade_that_is_not_granted_gives_the_reader_back() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let (reading, other) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    let fence = reading.fence();
    let Upgrade::Refused(reading) = reading.try_upgrade().await.unwrap() else {
        panic!("two readers");
    };
    let wait = Duration::from_millis(50);
    let Upgrade::Refused(reading) = reading.upgrade_timeout(wait).await.unwrap() else {
        panic!("two readers");
    };
    assert!(reading.is_valid() && reading.fence() == fence);
    // Nothing is left to be cancelled, which would be in the way of the next try.
    client.flush().await.unwrap();
    assert_eq!(server.admin().await.calls().await.get("rlock.cancel"), None);
    let failed = reading.upgrade_timeout(Duration::MAX).await.unwrap_err();
    assert!(matches!(failed.error, Error::OutOfRange { .. }));
    let reading = failed.guard;
    other.release().await.unwrap();
    let Upgrade::Granted(writing) = reading.try_upgrade().await.unwrap() else {
        panic!("alone now");
    };
    writing.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn the_second_of_two_upgrades_is_a_deadlock_and_keeps_its_guard() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let (task, other) = waiting(&server, &lock).await;
    let (me, fence) = (other.owner().clone(), other.fence());
    let failed = other.upgrade().await.unwrap_err();
    let Error::Deadlock { owners, text } = &failed.error else {
        panic!("{failed}");
    };
    assert_eq!(owners.len(), 2, "{text}");
    assert_eq!(owners[0], me.as_str());
    assert!(failed.guard.is_valid() && failed.guard.fence() == fence);
    failed.guard.release().await.unwrap();
    let writing = outcome(task).await.unwrap();
    assert_eq!(owners[1], writing.owner().as_str());
    assert!(writing.is_valid() && writing.is_unbroken());
}

#[test]
fn a_shared_hold_is_renewed_while_its_upgrade_waits() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let client = server.client().await;
        let lease = Duration::from_millis(600);
        let lock = client.rwlock("k").with(Terms::new().lease(lease).unwrap());
        let (task, other) = waiting(&server, &lock).await;
        let mut admin = server.admin().await;
        let renewals = admin.gauge("renewals").await;
        eventually("both were renewed past their lease", async || {
            admin.gauge("renewals").await >= renewals + 12
        })
        .await;
        other.release().await.unwrap();
        let writing = outcome(task).await.unwrap();
        assert!(writing.is_valid() && writing.is_unbroken());
        // And it is renewed as what it is now.
        assert!(lock.read_timeout(2 * lease).await.unwrap().is_none());
        assert!(writing.is_valid());
    });
}

#[tokio::test]
async fn an_upgrade_whose_reader_was_lost_is_granted_but_not_unbroken() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let (task, other) = waiting(&server, &lock).await;
    let mut admin = server.admin().await;
    // A writer holds the lock between the reader and its upgrade.
    let removed: u64 = admin.run("RLOCK.FORCE k").await;
    assert_eq!(removed, 2);
    let loss = tokio::time::timeout(PATIENCE, other.loss()).await.unwrap();
    assert_eq!(loss, Loss::EndedByServer);
    let writing = outcome(task).await.unwrap();
    assert!(writing.is_valid() && !writing.is_unbroken());
    let info = lock.info().await.unwrap();
    assert_eq!(info.fence, Some(writing.fence()));
    writing.release().await.unwrap();
    admin.untouched("k").await;
}

#[tokio::test]
async fn an_upgrade_goes_on_over_a_new_connection() {
    let server = Server::start().await;
    let client = server.client().await;
    let other = server.client().await.rwlock("k").read().await.unwrap();
    let lock = client.rwlock("k");
    let task = in_background(lock.read().await.unwrap());
    let mut admin = server.admin().await;
    admin.queued(1).await;
    for _ in 0..3 {
        let waits = admin.gauge("waits").await;
        admin.kill_lock_clients().await;
        eventually("queued again", async || admin.gauge("waits").await > waits).await;
        admin.queued(1).await;
    }
    other.release().await.unwrap();
    let writing = outcome(task).await.unwrap();
    assert!(writing.is_unbroken() && writing.is_valid());
    writing.release().await.unwrap();
    admin.untouched("k").await;
}

#[tokio::test]
async fn an_upgrade_that_is_dropped_gives_up_its_place_and_its_hold() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let (task, other) = waiting(&server, &lock).await;
    task.abort();
    let mut admin = server.admin().await;
    admin.queued(0).await;
    eventually("one reader is left", async || {
        lock.info().await.unwrap().holders.len() == 1
    })
    .await;
    assert!(other.is_valid());
    let Upgrade::Granted(writing) = other.try_upgrade().await.unwrap() else {
        panic!("the only reader");
    };
    drop(writing);
    client.flush().await.unwrap();
    admin.untouched("k").await;
}

#[tokio::test]
async fn a_write_that_is_dropped_leaves_the_same_owners_readers() {
    let server = Server::start().await;
    let client = server.client().await;
    let (lock, owner) = (client.rwlock("k"), client.owner());
    let reading = lock.by(&owner).read().await.unwrap();
    for polls in 0..6 {
        let other = lock.read().await.unwrap();
        let upgrading = lock.by(&owner);
        let mut call = Box::pin(upgrading.write());
        for poll in 0..polls {
            // Halfway the other reader leaves: the upgrade may be granted.
            if poll == polls / 2 {
                drop(lock.try_read().await);
            }
            let _ = tokio::time::timeout(Duration::from_millis(1), &mut call).await;
        }
        drop(other);
        tokio::task::yield_now().await;
        drop(call);
        client.flush().await.unwrap();
        assert!(reading.is_valid(), "after {polls} polls");
        let info = lock.info().await.unwrap();
        assert_eq!((info.mode, info.queued), (Mode::Shared, 0));
        assert_eq!(info.fence, Some(reading.fence()));
    }
    // A loss is reported by the fence that it has now.
    assert_eq!(lock.force_release().await.unwrap(), 1);
    let loss = tokio::time::timeout(PATIENCE, reading.loss())
        .await
        .unwrap();
    assert_eq!(loss, Loss::EndedByServer);
}

#[tokio::test]
async fn an_upgrade_granted_while_nobody_looks_is_undone() {
    let server = Server::start().await;
    let client = server.client().await;
    let (lock, owner) = (client.rwlock("k"), client.owner());
    let reading = lock.by(&owner).read().await.unwrap();
    let other = lock.read().await.unwrap();
    let (fence, mut admin) = (reading.fence(), server.admin().await);
    let upgrading = lock.by(&owner);
    let mut call = Box::pin(upgrading.write());
    let queued = tokio::time::timeout(Duration::from_millis(50), &mut call).await;
    assert!(queued.is_err());
    admin.queued(1).await;
    other.release().await.unwrap();
    eventually("granted", async || admin.gauge("handoffs").await == 1).await;
    drop(call);
    client.flush().await.unwrap();
    let info = lock.info().await.unwrap();
    assert_eq!(info.mode, Mode::Shared);
    assert!(reading.is_valid() && reading.fence() > fence);
    assert_eq!(info.fence, Some(reading.fence()));
    reading.release().await.unwrap();
    admin.untouched("k").await;
}

#[tokio::test]
async fn an_owner_that_reads_and_asks_to_write_is_upgraded() {
    let server = Server::start().await;
    let client = server.client().await;
    let (lock, owner) = (client.rwlock("k"), client.owner());
    let reading = lock.by(&owner).read().await.unwrap();
    let before = reading.fence();
    let writing = lock.by(&owner).write().await.unwrap();
    assert!(writing.fence() > before);
    assert_eq!(reading.fence(), writing.fence(), "one hold, two guards");
    let reading_still = writing.downgrade().await.unwrap();
    assert!(lock.try_read().await.unwrap().is_some());
    drop((reading, reading_still));
    client.flush().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn a_lost_reader_is_not_upgraded() {
    let server = Server::start().await;
    let client = server.client().await;
    let lock = client.rwlock("k");
    let reading = lock.read().await.unwrap();
    lock.force_release().await.unwrap();
    tokio::time::timeout(PATIENCE, reading.loss())
        .await
        .unwrap();
    let failed = reading.upgrade().await.unwrap_err();
    assert!(matches!(failed.error, Error::Lost(Loss::EndedByServer)));
    assert!(matches!(Error::from(failed), Error::Lost(_)));
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn lost_replies_of_upgrade_and_downgrade_change_nothing_twice() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let client = through(&proxy).await;
    let lock = client.rwlock("k");
    let reading = lock.read().await.unwrap();
    proxy.set(Weather::CutReplyTo("RLOCK.ACQUIRE"));
    let writing = reading.upgrade().await.unwrap();
    assert_eq!(proxy.weather(), Weather::Fair);
    let info = lock.info().await.unwrap();
    assert_eq!(
        (info.mode, info.fence),
        (Mode::Exclusive, Some(writing.fence()))
    );
    proxy.set(Weather::CutReplyTo("RLOCK.DOWNGRADE"));
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(proxy.weather(), Weather::Fair);
    let info = lock.info().await.unwrap();
    assert_eq!(
        (info.mode, info.fence),
        (Mode::Shared, Some(reading.fence()))
    );
    assert!(reading.is_valid());
    reading.release().await.unwrap();
    server.admin().await.untouched("k").await;
}
