//! The verbs and questions, where nothing goes wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlock_client::{Client, Error, Guard, Loss, Mode};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};

#[tokio::test]
async fn waiters_of_two_clients_get_the_lock_in_the_order_of_asking() {
    let server = Server::start().await;
    let (clients, mut admin) = (
        [server.client().await, server.client().await],
        server.admin().await,
    );
    let first = clients[0].mutex("k").lock().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..10 {
        let (mutex, order) = (clients[number % 2].mutex("k"), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            order.lock().unwrap().push((number, guard.fence()));
            guard.release().await.unwrap();
        }));
        admin.queued(number as u64 + 1).await;
    }
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    assert_eq!(
        order.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
        (0..10).collect::<Vec<_>>()
    );
    assert!(
        order.is_sorted_by(|a, b| a.1 < b.1),
        "fences increase: {order:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_kept_under_the_lock_is_exact_with_two_clients() {
    const TASKS: u64 = 100;
    const ROUNDS: u64 = 10;
    let server = Server::start().await;
    let mut tasks = Vec::new();
    for client in [server.client().await, server.client().await] {
        for _ in 0..TASKS / 2 {
            let (mutex, mut admin) = (client.mutex("k"), server.admin().await);
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = mutex.lock().await.unwrap();
                    let count: Option<u64> = admin.run("GET counter").await;
                    let _: () = admin
                        .run(&format!("SET counter {}", count.unwrap_or(0) + 1))
                        .await;
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let count: u64 = server.admin().await.run("GET counter").await;
    assert_eq!(count, TASKS * ROUNDS);
}

#[tokio::test]
async fn the_questions_tell_holder_and_queue() {
    let server = Server::start().await;
    let client = server.client().await;
    let (mutex, owner) = (client.mutex("k"), client.owner());
    let free = mutex.info().await.unwrap();
    assert_eq!((free.mode, free.fence, free.queued), (Mode::Free, None, 0));
    let guard = mutex.by(&owner).lock().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock_timeout(Duration::from_secs(60)).await }
    });
    server.admin().await.queued(1).await;
    let info = mutex.info().await.unwrap();
    assert_eq!(
        (info.mode, info.fence, info.queued),
        (Mode::Exclusive, Some(guard.fence()), 1)
    );
    assert_eq!(
        (info.holders[0].owner.as_str(), info.holders[0].count),
        (owner.as_str(), 1)
    );
    assert!(info.holders[0].lease_left <= Duration::from_secs(30));
    assert!(info.waiters[0].wait_left.unwrap() <= Duration::from_secs(60));
    assert!(mutex.is_held_by(&owner).await.unwrap());
    assert!(!mutex.is_held_by(&client.owner()).await.unwrap());
    waiter.abort();
}

#[tokio::test]
async fn keys_may_have_spaces_and_any_bytes() {
    let server = Server::start().await;
    let client = server.client().await;
    for key in [&b"two words "[..], b"\xff\x00\r\n", b"%n{}"] {
        let guard = client.mutex(key).lock().await.unwrap();
        let waiter = tokio::spawn({
            let mutex = client.mutex(key);
            async move { mutex.lock().await.unwrap().release().await.unwrap() }
        });
        server.admin().await.queued(1).await;
        guard.release().await.unwrap();
        tokio::time::timeout(PATIENCE, waiter)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn guards_and_calls_can_go_to_other_tasks() {
    fn check<T: Send + 'static>(value: T) -> T {
        value
    }
    let server = Server::start().await;
    let client = server.client().await;
    let mutex = client.mutex("k");
    let guard: Guard = check(mutex.lock().await.unwrap());
    let task = async move { check(guard).release().await.unwrap() };
    tokio::spawn(check(task)).await.unwrap();
}

#[tokio::test]
async fn a_url_names_the_database() {
    let server = Server::start().await;
    let client = Client::connect(format!("{}3", server.url())).await.unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    let mut admin = server.admin().await;
    let _: () = admin.run("SELECT 3").await;
    let exists: bool = admin.run("EXISTS k").await;
    assert!(exists);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_background_task_ends_with_the_last_handle() {
    let server = Server::start().await;
    let mut admin = server.admin().await;
    let client = server.client().await;
    let guard = client.mutex("k").lock().await.unwrap();
    drop(client);
    assert_eq!(admin.lock_clients().await.len(), 1);
    drop(guard);
    eventually("its connection is closed", async || {
        admin.lock_clients().await.is_empty()
    })
    .await;
    let exists: bool = admin.run("EXISTS k").await;
    assert!(!exists, "the last guard was released before the end");
}

/// The release is on its way before the guard is gone.
#[tokio::test]
async fn what_is_asked_for_after_a_drop_comes_after_the_release() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let mutex = client.mutex("k");
    for _ in 0..1000 {
        let guard = mutex.try_lock().await.unwrap();
        drop(guard.expect("it was released before"));
    }
    client.flush().await.unwrap();
    admin.untouched("k").await;
    let calls = admin.calls().await;
    assert_eq!(
        (calls["rlock.acquire"], calls["rlock.release"]),
        (1000, 1000)
    );
}

#[tokio::test]
async fn a_client_with_a_name_is_found_by_it() {
    let server = Server::start().await;
    let mut admin = server.admin().await;
    let named = |name: &str| Client::builder().name(name);
    let client = named("billing@host-7")
        .connect(&server.url())
        .await
        .unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(guard.owner().as_str().starts_with("billing@host-7:"));
    let list: String = admin.run("CLIENT LIST").await;
    assert!(list.contains(" name=billing@host-7 "), "{list}");
    guard.release().await.unwrap();
    for name in ["", "two words", "rlock:x", &"n".repeat(65)] {
        let refused = named(name).connect(&server.url()).await.unwrap_err();
        assert!(refused.to_string().starts_with("name is "), "{refused}");
    }
    assert!(named(&"n".repeat(64)).connect(&server.url()).await.is_ok());
}

/// It waits for what was left before it was asked, not for an idle moment.
#[tokio::test]
async fn a_flush_does_not_wait_for_what_comes_after_it() {
    let server = Server::start().await;
    let client = server.client().await;
    // At every moment something is left to the background.
    let busy: Vec<_> = (0..64)
        .map(|number| {
            let mutex = client.mutex(format!("k{number}"));
            tokio::spawn(async move {
                loop {
                    drop(mutex.lock().await.unwrap());
                }
            })
        })
        .collect();
    for _ in 0..50 {
        let flushed = tokio::time::timeout(Duration::from_secs(2), client.flush());
        flushed.await.expect("flushed in time").unwrap();
        tokio::task::yield_now().await;
    }
    busy.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_client_that_is_closed_leaves_nothing() {
    let server = Server::start().await;
    let (client, other) = (server.client().await, server.client().await);
    let owner = client.owner();
    let mutex = client.mutex("k").by(&owner);
    let (guard, again) = (mutex.lock().await.unwrap(), mutex.lock().await.unwrap());
    let taken = other.mutex("taken").lock().await.unwrap();
    let waiting = client.mutex("taken");
    let waiting = tokio::spawn(async move { waiting.lock().await });
    let mut admin = server.admin().await;
    admin.queued(1).await;
    let losses = (guard.loss(), client.loss());
    client.close(PATIENCE).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert_eq!(
        (losses.0.await, losses.1.await),
        (Loss::Released, Loss::Released)
    );
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert!(matches!(mutex.lock().await, Err(Error::Closed)));
    assert!(matches!(mutex.info().await, Err(Error::Closed)));
    assert!(guard.release().await.is_err());
    let loss = tokio::time::timeout(PATIENCE, client.loss()).await;
    assert_eq!(loss.unwrap(), Loss::Released, "the end is over");
    client.close(Duration::MAX).await.unwrap();
    drop(again);
    taken.release().await.unwrap();
    other.flush().await.unwrap();
    for key in ["k", "taken"] {
        admin.untouched(key).await;
    }
    eventually("closed", async || admin.lock_clients().await.len() == 1).await;
}

#[tokio::test]
async fn a_client_tells_of_any_loss() {
    let server = Server::start().await;
    let client = server.client().await;
    let guards = [
        client.mutex("a").lock().await.unwrap(),
        client.mutex("b").lock().await.unwrap(),
    ];
    let lost = client.loss();
    client
        .mutex("c")
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    client.mutex("b").force_release().await.unwrap();
    assert_eq!(lost.await, Loss::EndedByServer);
    assert!(guards[0].is_valid() && !guards[1].is_valid());
}

#[tokio::test]
async fn only_the_hold_with_a_fence_is_ended() {
    let server = Server::start().await;
    let client = server.client().await;
    let mutex = client.mutex("k");
    let guard = mutex.lock().await.unwrap();
    let fence = guard.fence();
    assert_eq!(mutex.force_release_under(fence - 1).await.unwrap(), 0);
    assert!(guard.is_valid());
    assert_eq!(mutex.force_release_under(fence).await.unwrap(), 1);
    assert_eq!(guard.loss().await, Loss::EndedByServer);
    let calls = server.admin().await.calls().await["rlock.force"];
    for fence in [0, 1 << 53] {
        let Err(error) = mutex.force_release_under(fence).await else {
            panic!("{fence}");
        };
        let expected = format!("fence is {fence}, it must be from 1 to 9007199254740991");
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(server.admin().await.calls().await["rlock.force"], calls);
}

#[tokio::test]
async fn a_wait_until_an_instant_ends_then() {
    let server = Server::start().await;
    let client = server.client().await;
    let (mutex, lock) = (client.mutex("m"), client.rwlock("r"));
    let soon = || Instant::now() + Duration::from_millis(30);
    let guard = mutex.lock_until(soon()).await.unwrap().unwrap();
    let writing = lock.write_until(soon()).await.unwrap().unwrap();
    let until = soon();
    assert!(mutex.lock_until(until).await.unwrap().is_none());
    assert!(Instant::now() >= until);
    let until = soon();
    assert!(lock.read_until(until).await.unwrap().is_none());
    assert!(Instant::now() >= until);
    let reading = writing.downgrade().await.unwrap();
    assert!(lock.read_until(until).await.unwrap().is_some(), "a try");
    client.flush().await.unwrap();
    let until = soon();
    assert!(lock.write_until(until).await.unwrap().is_none());
    assert!(Instant::now() >= until);
    drop((guard, reading));
}
