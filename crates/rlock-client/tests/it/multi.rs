//! Several locks as one, where the server takes them in one step.

use std::time::Duration;

use rlock_client::{Client, Error, Loss, Terms};

use crate::calm::on_a_calm_machine;
use crate::proxy::{Proxy, Weather};
use crate::server::{BOUND, Server, eventually};

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
async fn nothing_is_held_unless_all_can_be() {
    let server = Server::start().await;
    let client = server.client().await;
    let held = client.mutex("b").lock().await.unwrap();
    let multi = client.multi(["a", "b"]);
    assert!(multi.try_lock().await.unwrap().is_none());
    let wait = Duration::from_millis(50);
    assert!(multi.lock_timeout(wait).await.unwrap().is_none());
    assert!(!client.mutex("a").is_locked().await.unwrap());
    let waiting = tokio::spawn({
        let multi = multi.clone();
        async move { multi.lock_timeout(BOUND).await.unwrap().unwrap() }
    });
    // A place for each key.
    server.admin().await.queued(2).await;
    // A free key of a request that waits goes to nobody else.
    assert!(!client.mutex("a").is_locked().await.unwrap());
    assert!(client.mutex("a").try_lock().await.unwrap().is_none());
    let fence = held.fence();
    held.release().await.unwrap();
    let guard = tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap();
    assert!(guard.fence() > fence && guard.is_valid());
    guard.release().await.unwrap();
    server.admin().await.untouched("a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_the_same_keys_in_any_order_never_wait_in_a_circle() {
    let server = Server::start().await;
    let clients = [server.client().await, server.client().await];
    let mut tasks = Vec::new();
    for number in 0..12_usize {
        let mut keys = ["a", "b", "c", "d"];
        keys.rotate_left(number % 4);
        let multi = clients[number % 2].multi(&keys[..3]);
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                multi.lock().await.unwrap().release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(BOUND, task).await.unwrap().unwrap();
    }
    let mut admin = server.admin().await;
    assert_eq!(admin.gauge("deadlocks").await, 0);
    admin.untouched("a").await;
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all_and_frees_the_others_with_the_guard() {
    let server = Server::start().await;
    let client = server.client().await;
    let guard = client.multi(["a", "b"]).lock().await.unwrap();
    assert_eq!(client.mutex("b").force_release().await.unwrap(), 1);
    let loss = tokio::time::timeout(BOUND, guard.loss()).await.unwrap();
    assert_eq!(loss, Loss::EndedByServer);
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert!(client.mutex("a").is_locked().await.unwrap());
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    client.flush().await;
    assert!(!client.mutex("a").is_locked().await.unwrap());
}

#[tokio::test]
async fn a_key_that_became_something_else_does_not_keep_the_others() {
    let server = Server::start().await;
    let client = server.client().await;
    let guard = client.multi(["a", "b"]).lock().await.unwrap();
    let _: () = server.admin().await.run("SET b value").await;
    drop(guard);
    client.flush().await;
    assert!(!client.mutex("a").is_locked().await.unwrap());
}

#[test]
fn the_watchdog_renews_all_by_one_command() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let client = server.client().await;
        let lease = Duration::from_millis(600);
        let multi = client.multi(["a", "b"]);
        let multi = multi.with(Terms::new().lease(lease).unwrap());
        let guard = multi.lock().await.unwrap();
        let rival = client.mutex("b").lock_timeout(2 * lease).await.unwrap();
        assert!(rival.is_none() && guard.is_valid());
        let calls = server.admin().await.calls().await;
        assert!(calls["rlock.mrenew"] >= 2 && !calls.contains_key("rlock.renew"));
        guard.release().await.unwrap();
    });
}

#[tokio::test]
async fn holds_of_several_keys_outlast_their_connection() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let multi = client.multi(["a", "b"]);
    let guard = multi.lock().await.unwrap();
    let waiting = tokio::spawn({
        let multi = multi.clone();
        async move { multi.lock().await.unwrap() }
    });
    admin.queued(2).await;
    let waits = admin.gauge("waits").await;
    admin.kill_lock_clients().await;
    eventually("queued again", async || admin.gauge("waits").await > waits).await;
    // The loss notices of both keys are asked for again too.
    eventually("watched again", async || {
        admin.gauge("watches").await >= 2 && admin.gauge("renewals").await > 0
    })
    .await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
    admin.untouched("a").await;
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
    let more = more.by(&owner).lock_timeout(BOUND).await;
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
    client.flush().await;
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
    let proxy = Proxy::to(server.port).await;
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
