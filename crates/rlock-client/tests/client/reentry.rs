//! An owner that enters a lock more than once.

use std::time::Duration;

use rlock_client::{Error, Lease, Terms};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server};

#[tokio::test]
async fn a_loss_concerns_every_guard_of_the_owner() {
    let server = Server::start().await;
    let client = server.client().await;
    let (mutex, owner) = (client.mutex("k"), client.owner());
    let outer = mutex.by(&owner).lock().await.unwrap();
    let inner = mutex.by(&owner).lock().await.unwrap();
    assert_eq!(mutex.force_release().await.unwrap(), 1);
    let lost = async { (outer.loss().await, inner.loss().await) };
    tokio::time::timeout(PATIENCE, lost).await.unwrap();
    // Locking again is a new hold; the old guards stay lost and do no harm.
    let again = mutex.by(&owner).lock().await.unwrap();
    assert!(again.fence() > inner.fence());
    assert!(!outer.is_valid());
    assert!(matches!(inner.release().await, Err(Error::Lost(_))));
    drop(outer);
    client.flush().await.unwrap();
    assert!(mutex.is_held_by(&owner).await.unwrap());
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_shorter_lease_does_not_shorten_the_hold_that_is_there() {
    let server = Server::start().await;
    let client = server.client().await;
    let owner = client.owner();
    let outer = client.mutex("k").by(&owner).lock().await.unwrap();
    let brief = client.mutex("k").with(
        Terms::new()
            .lease(Lease::Fixed(Duration::from_millis(50)))
            .unwrap(),
    );
    let inner = brief.by(&owner).lock().await.unwrap();
    assert!(inner.remaining() > Duration::from_secs(20));
    let info = brief.info().await.unwrap();
    assert!(info.holders[0].lease_left > Duration::from_secs(20));
    drop((outer, inner));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_releases_of_one_owner_may_come_from_many_tasks() {
    let server = Server::start().await;
    let client = server.client().await;
    let owner = client.owner();
    let mut tasks = Vec::new();
    for number in 0..16 {
        let (mutex, owner) = (client.mutex("k"), owner.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..50 {
                let guard = mutex.by(&owner).lock().await.unwrap();
                assert!(guard.is_valid());
                match (number + round) % 3 {
                    0 => drop(guard),
                    _ => guard.release().await.unwrap(),
                }
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    client.flush().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn a_second_call_of_a_waiting_owner_gets_the_same_hold() {
    let server = Server::start().await;
    let client = server.client().await;
    let owner = client.owner();
    let first = client.mutex("k").lock().await.unwrap();
    let mut calls = Vec::new();
    for _ in 0..3 {
        let (mutex, owner) = (client.mutex("k"), owner.clone());
        calls.push(tokio::spawn(async move {
            mutex.by(&owner).lock().await.unwrap()
        }));
    }
    server.admin().await.queued(1).await;
    first.release().await.unwrap();
    let mut guards = Vec::new();
    for call in calls {
        guards.push(tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap());
    }
    assert!(
        guards
            .iter()
            .all(|guard| guard.fence() == guards[0].fence())
    );
}
