//! Several locks as one in a cluster, where keys may be in different slots.

use std::time::Duration;

use rlock_client::{Error, Lease, Loss, Terms};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};

#[tokio::test]
async fn keys_of_one_slot_are_taken_in_one_step() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let multi = client.multi(["{x}a", "{x}b"]);
    let guard = multi.lock().await.unwrap();
    assert_eq!(guard.fence_of("{x}a"), guard.fence_of("{x}b"));
    guard.release().await.unwrap();
    let calls = server.admin().await.calls().await;
    assert!(calls.contains_key("rlock.macquire") && !calls.contains_key("rlock.acquire"));
}

#[tokio::test]
async fn keys_of_several_slots_are_taken_one_by_one_each_with_its_fence() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let guard = client.multi(["b", "a", "c"]).lock().await.unwrap();
    let fences = ["a", "b", "c"].map(|key| guard.fence_of(key).unwrap());
    assert!(
        fences.is_sorted_by(|a, b| a < b),
        "in their order: {fences:?}"
    );
    assert_eq!(guard.fence(), fences[2]);
    assert_eq!(guard.keys().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    for key in ["a", "b", "c"] {
        assert!(client.mutex(key).is_held_by(guard.owner()).await.unwrap());
    }
    guard.release().await.unwrap();
    let mut admin = server.admin().await;
    let keys: u64 = admin.run("DBSIZE").await;
    assert_eq!(keys, 0);
    let hellos = admin.calls().await["hello"];
    let again = client.multi(["d", "e"]).lock().await.unwrap();
    again.release().await.unwrap();
    let calls = admin.calls().await;
    assert_eq!(calls["hello"], hellos, "what the server is, is asked once");
}

#[tokio::test]
async fn what_was_taken_is_given_back_if_one_cannot_be_had() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let held = client.mutex("b").lock().await.unwrap();
    let multi = client.multi(["a", "b", "c"]);
    assert!(multi.try_lock().await.unwrap().is_none());
    let wait = Duration::from_millis(50);
    assert!(multi.lock_timeout(wait).await.unwrap().is_none());
    client.flush().await.unwrap();
    for key in ["a", "c"] {
        assert!(!client.mutex(key).is_locked().await.unwrap());
    }
    assert_eq!(server.admin().await.gauge("waiters").await, 0);
    let _: () = server.admin().await.run("SET c value").await;
    drop(held);
    assert!(matches!(multi.lock().await, Err(Error::NotALock(_))));
    client.flush().await.unwrap();
    assert!(!client.mutex("a").is_locked().await.unwrap());
}

#[tokio::test]
async fn one_that_is_lost_while_the_next_is_waited_for_is_taken_again() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let held = client.mutex("b").lock().await.unwrap();
    let multi = client.multi(["a", "b"]);
    let waiting = tokio::spawn(async move { multi.lock_timeout(PATIENCE).await });
    let mut admin = server.admin().await;
    admin.queued(1).await;
    assert_eq!(client.mutex("a").force_release().await.unwrap(), 1);
    held.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    let guard = guard.unwrap().unwrap();
    assert!(guard.is_valid());
    for key in ["a", "b"] {
        assert!(client.mutex(key).is_held_by(guard.owner()).await.unwrap());
    }
}

#[tokio::test]
async fn a_lease_that_is_too_short_for_all_is_asked_for_with_pauses() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let short = Lease::Fixed(Duration::from_millis(3));
    let short = Terms::new().lease(short).unwrap();
    // Their requests take longer on any machine.
    let multi = client
        .multi((0..300).map(|at| format!("k{at}")))
        .with(short);
    let wait = Duration::from_secs(1);
    assert!(multi.lock_timeout(wait).await.unwrap().is_none());
    let calls = server.admin().await.calls().await["rlock.acquire"];
    assert!(calls < 6000, "{calls} times");
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let guard = client.multi(["a", "b"]).lock().await.unwrap();
    assert_eq!(client.mutex("b").force_release().await.unwrap(), 1);
    let loss = tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
    assert_eq!(loss, Loss::EndedByServer);
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    eventually("the other is released", async || {
        !client.mutex("a").is_locked().await.unwrap()
    })
    .await;
}

#[tokio::test]
async fn an_owner_enters_them_again_one_by_one() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let (multi, owner) = (client.multi(["a", "b"]), client.owner());
    let single = client.mutex("a").by(&owner).lock().await.unwrap();
    let outer = multi.by(&owner).lock().await.unwrap();
    assert_eq!(outer.fence_of("a"), Some(single.fence()));
    let inner = multi.by(&owner).lock().await.unwrap();
    outer.release().await.unwrap();
    single.release().await.unwrap();
    assert!(inner.is_valid());
    inner.release().await.unwrap();
    let keys: u64 = server.admin().await.run("DBSIZE").await;
    assert_eq!(keys, 0);
}
