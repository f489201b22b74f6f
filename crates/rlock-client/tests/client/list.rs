//! Which locks are waited for.

use std::time::Duration;

use rlock_client::{Client, Error, Mode, Terms};
use tokio::task::JoinHandle;

use crate::connects::Connects;
use rlock_testkit::asynchronous::Server;

fn wait_for(client: &Client, key: &str) -> JoinHandle<()> {
    let mutex = client.mutex(key);
    tokio::spawn(async move {
        let _ = mutex.lock().await;
    })
}

#[tokio::test]
async fn the_most_contended_locks_are_listed_first() {
    let server = Server::start().await;
    let client = server.client().await;
    assert!(client.list(10).await.unwrap().is_empty());
    let _one = client.mutex("one").lock().await.unwrap();
    let _two = client.mutex("two").lock().await.unwrap();
    let _readers = [
        client.rwlock("readers").read().await.unwrap(),
        client.rwlock("readers").read().await.unwrap(),
    ];
    let mut waiting = Vec::new();
    for key in ["one", "two", "two", "readers", "readers", "readers"] {
        waiting.push(wait_for(&client, key));
    }
    server.admin().await.queued(6).await;
    let list = client.list(10).await.unwrap();
    let seen: Vec<_> = list
        .iter()
        .map(|lock| (lock.key.as_slice(), lock.waiters, lock.holders, lock.mode))
        .collect();
    assert_eq!(
        seen,
        [
            (&b"readers"[..], 3, 2, Mode::Shared),
            (b"two", 2, 1, Mode::Exclusive),
            (b"one", 1, 1, Mode::Exclusive),
        ]
    );
    assert!(
        list.iter()
            .all(|lock| lock.oldest_wait < Duration::from_secs(60))
    );
    assert_eq!(client.list(1).await.unwrap().len(), 1);
    for task in waiting {
        task.abort();
    }
}

#[tokio::test]
async fn a_count_out_of_range_is_refused_before_anything_is_sent() {
    let server = Server::start().await;
    let client = server.client().await;
    for count in [0, 1001] {
        let Err(Error::OutOfRange { argument, .. }) = client.list(count).await else {
            panic!("{count}");
        };
        assert_eq!(argument, "count");
    }
    assert!(
        !server
            .admin()
            .await
            .calls()
            .await
            .contains_key("rlock.list")
    );
    assert!(client.list(1000).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_questions_tell_mode_permits_and_what_waiters_want() {
    let server = Server::start().await;
    let client = server.client().await;
    let grace = Duration::from_secs(5);
    let semaphore = client.semaphore("k", 5);
    let semaphore = semaphore.with(Terms::new().bound(grace).unwrap());
    let permits = semaphore.acquire_many(4).await.unwrap();
    let lock = client.rwlock("k");
    let tasks = [
        wait_for(&client, "k"),
        tokio::spawn({
            let lock = lock.clone();
            async move {
                let _ = lock.read().await;
            }
        }),
    ];
    server.admin().await.queued(2).await;
    let info = lock.info().await.unwrap();
    assert_eq!((info.mode, info.queued), (Mode::Shared, 2));
    let holder = &info.holders[0];
    assert_eq!((holder.permits, holder.is_bound), (4, true));
    assert_eq!(holder.fence, Some(permits.fence()));
    let mut wanted: Vec<_> = info.waiters.iter().map(|waiter| waiter.mode).collect();
    wanted.sort_by_key(|mode| *mode == Mode::Shared);
    assert_eq!(wanted, [Mode::Exclusive, Mode::Shared]);
    for task in tasks {
        task.abort();
    }
}
