//! Several locks as one, where the server takes them in one step.

use std::time::Duration;

use rlock_client::{Client, Error, Loss, Terms};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server};
use rlock_testkit::proxy::{Proxy, Weather};

#[tokio::test]
async fn all_are_held_under_one_fence_by_one_command_each_way() {
    let server = Server::start().await;
    let client = server.client().await;
    let mut admin = server.admin().await;
    let multi = client.multi(["c", "a", "b"]);
    assert_eq!(multi.keys().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    let guard = multi.lock().await.unwrap();
    assert_eq!(guard.keys().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    for key in ["a", "b", "c"] {
        let info = client.mutex(key).info().await.unwrap();
        assert_eq!(info.fence, Some(guard.fence()));
        assert_eq!(info.holders[0].owner, guard.owner().as_str());
        assert_eq!(guard.fence_of(key), Some(guard.fence()));
    }
    assert_eq!(guard.fence_of("d"), None);
    assert!(guard.is_valid() && guard.remaining() > Duration::from_secs(29));
    guard.release().await.unwrap();
    let calls = admin.calls().await;
    assert_eq!((calls["rlock.macquire"], calls["rlock.mrelease"]), (1, 1));
    assert!(!calls.contains_key("rlock.acquire"));
    let keys: u64 = admin.run("DBSIZE").await;
    assert_eq!(keys, 0);
}

#[tokio::test]
async fn a_key_that_became_something_else_does_not_keep_the_others() {
    let server = Server::start().await;
    let client = server.client().await;
    let guard = client.multi(["a", "b"]).lock().await.unwrap();
    let _: () = server.admin().await.run("SET b value").await;
    drop(guard);
    client.flush().await.unwrap();
    assert!(!client.mutex("a").is_locked().await.unwrap());
}

#[tokio::test]
async fn the_same_owner_enters_the_same_keys_again_but_no_others() {
    let server = Server::start().await;
    let client = server.client().await;
    let owner = client.owner();
    let multi = client.multi(["a", "b"]);
    let outer = multi.by(&owner).lock().await.unwrap();
    let inner = multi.by(&owner).try_lock().await.unwrap().unwrap();
    assert_eq!(inner.fence(), outer.fence());
    let part = client.mutex("a").by(&owner).lock().await;
    let Err(Error::HeldOtherwise { owner: who, keys }) = part else {
        panic!("{part:?}");
    };
    assert_eq!((who, keys.as_str()), (owner.clone(), "a and 1 more"));
    let more = client.multi(["a", "b", "c"]);
    let more = more.by(&owner).lock_timeout(PATIENCE).await;
    assert!(matches!(more, Err(Error::HeldOtherwise { .. })));
    outer.release().await.unwrap();
    assert!(inner.is_valid());
    inner.release().await.unwrap();
    // And the other way round: what is held singly is not part of several.
    let single = client.mutex("a").by(&owner).lock().await.unwrap();
    let both = multi.by(&owner).lock().await;
    assert!(matches!(both, Err(Error::HeldOtherwise { .. })));
    // A guard that was dropped just now is none.
    drop(single);
    let both = multi.by(&owner).lock().await.unwrap();
    drop(both);
    let single = client.mutex("b").by(&owner).lock().await.unwrap();
    single.release().await.unwrap();
    client.flush().await.unwrap();
    server.admin().await.untouched("a").await;
}

#[tokio::test]
async fn keys_are_checked_before_anything_is_sent() {
    let server = Server::start().await;
    let client = server.client().await;
    let many: Vec<_> = (0..1025).map(|number| format!("k{number}")).collect();
    for (keys, named) in [
        (vec![], "0 keys"),
        (vec!["a", "b", "a"], "`a` more than once"),
        (many.iter().map(String::as_str).collect(), "1025 keys"),
    ] {
        let Err(Error::OutOfRange {
            argument, value, ..
        }) = client.multi(keys).lock().await
        else {
            panic!("{named}");
        };
        assert_eq!((argument, value.as_str()), ("keys", named));
    }
    assert_eq!(server.admin().await.gauge("acquires").await, 0);
    let guard = client.multi(&many[..1024]).lock().await.unwrap();
    let keys: u64 = server.admin().await.run("DBSIZE").await;
    assert_eq!(keys, 1024);
    guard.release().await.unwrap();
    let one = client.multi(["a"]).lock().await.unwrap();
    assert!(client.mutex("a").is_held_by(one.owner()).await.unwrap());
}

/// Keys of several slots are asked for together where the server is no cluster.
#[tokio::test]
async fn what_a_server_is_asked_first_is_a_part_of_the_wait() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let client = Client::connect(proxy.url()).await.unwrap();
    let held = server.client().await.mutex("a").lock().await.unwrap();
    proxy.set(Weather::Slow(Duration::from_millis(300)));
    let multi = client.multi(["a", "b"]);
    let wait = Duration::from_millis(1000);
    assert!(multi.lock_timeout(wait).await.unwrap().is_none());
    let asked = String::from_utf8_lossy(&proxy.requests()).into_owned();
    let (_, wait) = asked.split_once("WAIT\r\n").unwrap();
    let wait: u64 = wait.lines().nth(1).unwrap().parse().unwrap();
    assert!((1..=700).contains(&wait), "{wait}");
    held.release().await.unwrap();
}

/// The message of the loss was swallowed, and the server counts the keys of the newer grant, unless it is asked for those
/// under the fence.
#[tokio::test]
async fn a_newer_grant_of_the_same_owner_is_not_renewed() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let client = Client::connect(proxy.url()).await.unwrap();
    let terms = Terms::new().lease(PATIENCE).unwrap();
    let guard = client.multi(["a", "b"]).with(terms).lock().await.unwrap();
    proxy.set(Weather::Swallow);
    let mut admin = server.admin().await;
    for key in ["a", "b"] {
        let _: u64 = admin.run(&format!("RLOCK.FORCE {key}")).await;
    }
    let again = format!("RLOCK.MACQUIRE {} 60000 2 a b", guard.owner());
    let fence: u64 = admin.run(&again).await;
    assert!(fence > guard.fence() && guard.is_valid());
    // What is asked next ends the connection that has lost bytes.
    proxy.set(Weather::Fair);
    client.mutex("a").info().await.unwrap();
    assert_eq!(guard.loss().await, Loss::EndedByServer);
    let left: u64 = admin.run("PTTL a").await;
    assert!(left > 30_000, "{left}");
}

#[tokio::test]
async fn a_grant_that_comes_after_the_wait_counts_as_for_one_key() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    proxy.set(Weather::Slow(Duration::from_millis(20)));
    let wait = Duration::from_millis(5);
    let one = client.mutex("k").lock_timeout(wait).await.unwrap();
    let both = client
        .multi(["{t}a", "{t}b"])
        .lock_timeout(wait)
        .await
        .unwrap();
    assert_eq!((one.is_some(), both.is_some()), (true, true));
}

#[tokio::test]
async fn one_of_several_keys_cannot_be_bound_either() {
    let server = Server::start().await;
    let client = server.client().await;
    let bound = Terms::new().bound(Duration::from_secs(1)).unwrap();
    let refused = client.multi(["k"]).with(bound).lock().await;
    assert!(
        matches!(
            refused,
            Err(Error::OutOfRange {
                argument: "bound",
                ..
            })
        ),
        "{refused:?}"
    );
}
