//! Lost replies and silent networks, for every kind of lock.

use std::time::Duration;

use rlock_client::{Client, Loss, Mode, Terms};

use crate::proxy::{Proxy, Weather};
use crate::server::{BOUND, Server, eventually};

/// A client whose traffic goes through a proxy, and gives up soon.
async fn through(proxy: &Proxy) -> Client {
    let builder = Client::builder().response_timeout(Duration::from_millis(400));
    builder.connect(&proxy.url()).await.unwrap()
}

#[tokio::test]
async fn a_lost_reply_gives_readers_and_permits_the_same_grant_once() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port).await;
    let client = through(&proxy).await;
    proxy.set(Weather::CutReplyTo("SHARED"));
    let reading = client.rwlock("k").read().await.unwrap();
    assert_eq!(proxy.weather(), Weather::Fair, "a reply was lost");
    let holders = client.rwlock("k").info().await.unwrap().holders;
    assert_eq!((holders.len(), holders[0].count), (1, 1));
    assert_eq!(holders[0].fence, Some(reading.fence()));
    let semaphore = client.semaphore("s", 5);
    proxy.set(Weather::CutReplyTo("LIMIT"));
    let permits = semaphore.acquire_many(2).await.unwrap();
    let holders = semaphore.info().await.unwrap().holders;
    assert_eq!((holders.len(), holders[0].permits), (1, 2));
    permits.release().await.unwrap();
    reading.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn lost_replies_of_upgrade_and_downgrade_change_nothing_twice() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port).await;
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

#[tokio::test]
async fn lost_replies_about_several_keys_leave_one_grant_and_then_none() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port).await;
    let client = through(&proxy).await;
    let multi = client.multi(["a", "b"]);
    proxy.set(Weather::CutReplyTo("RLOCK.MACQUIRE"));
    let guard = multi.lock().await.unwrap();
    for key in ["a", "b"] {
        let info = client.mutex(key).info().await.unwrap();
        assert_eq!((info.fence, info.queued), (Some(guard.fence()), 0));
        assert_eq!(info.holders[0].count, 1);
    }
    proxy.set(Weather::CutReplyTo("RLOCK.MRELEASE"));
    guard.release().await.unwrap();
    assert_eq!(proxy.weather(), Weather::Fair);
    server.admin().await.untouched("a").await;
}

#[tokio::test]
async fn calls_given_up_while_their_replies_were_lost_leave_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port).await;
    let client = through(&proxy).await;
    let (lock, multi) = (client.rwlock("k"), client.multi(["a", "b"]));
    let semaphore = client.semaphore("s", 2);
    for kind in 0..4 {
        proxy.set(Weather::CutReplyTo("ACQUIRE"));
        let mut call: std::pin::Pin<Box<dyn Future<Output = ()>>> = match kind {
            0 => Box::pin(async { drop(lock.read().await) }),
            1 => Box::pin(async { drop(lock.write().await) }),
            2 => Box::pin(async { drop(multi.lock().await) }),
            _ => Box::pin(async { drop(semaphore.acquire().await) }),
        };
        eventually("the reply is lost", async || {
            let _ = tokio::time::timeout(Duration::from_millis(1), &mut call).await;
            proxy.weather() == Weather::Fair
        })
        .await;
        drop(call);
        client.flush().await;
        let keys: u64 = server.admin().await.run("DBSIZE").await;
        assert_eq!(keys, 0, "kind {kind}");
    }
}

#[tokio::test]
async fn holders_of_every_kind_know_their_loss_before_others_can_have_it() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port).await;
    let (client, other) = (through(&proxy).await, server.client().await);
    let lease = Duration::from_millis(600);
    let lock = client.rwlock("k").with(Terms::new().lease(lease).unwrap());
    let reading = lock.read().await.unwrap();
    let multi = client.multi(["a", "b"]);
    let multi = multi.with(Terms::new().lease(lease).unwrap());
    let guard = multi.lock().await.unwrap();
    proxy.set(Weather::Swallow);
    let writing = other.rwlock("k").write_timeout(BOUND).await.unwrap();
    assert!(writing.is_some() && reading.loss().now() == Some(Loss::LeaseEnded));
    let both = other.multi(["b", "a"]).lock_timeout(BOUND).await;
    assert!(both.unwrap().is_some() && guard.loss().now() == Some(Loss::LeaseEnded));
}
