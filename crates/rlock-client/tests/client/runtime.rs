//! A client ends while others use it: it is closed, or the runtime ends that it
//! was made on.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rlock_client::{Client, Error, Loss, Terms};
use tokio::sync::oneshot;

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server};
use rlock_testkit::proxy::{Proxy, Weather};

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    { runtime }.enable_all().build().unwrap().block_on(future)
}

/// What is made on a runtime of another thread, and what ends that.
async fn elsewhere<T: Send + 'static>(
    made: impl AsyncFnOnce() -> T + Send + 'static,
) -> (T, impl FnOnce()) {
    let (give, given) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let thread = thread::spawn(move || {
        run(async {
            give.send(made().await).ok().unwrap();
            // Runs the client's tasks until it is enabled end.
            ended.await.unwrap();
        });
    });
    let end = move || {
        end.send(()).unwrap();
        thread.join().unwrap();
    };
    (given.await.unwrap(), end)
}

#[tokio::test]
async fn a_waiting_call_ends_with_its_client_s_runtime() {
    let server = Server::start().await;
    let (holder, mut admin) = (server.client().await, server.admin().await);
    let held = holder.mutex("k").lock().await.unwrap();
    let url = server.url();
    let (client, end) = elsewhere(async move || Client::connect(&url).await.unwrap()).await;
    let loss = client.loss();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock().await }
    });
    admin.queued(1).await;
    end();
    let outcome = tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    assert!(matches!(outcome.unwrap(), Err(Error::Closed)));
    for loss in [loss, client.loss()] {
        let loss = tokio::time::timeout(PATIENCE, loss).await;
        assert_eq!(loss.unwrap(), Loss::Released);
    }
    assert!(matches!(client.close(PATIENCE).await, Err(Error::Closed)));
    assert!(matches!(
        client.mutex("k").try_lock().await,
        Err(Error::Closed)
    ));
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_call_ends_behind_a_release_that_its_client_s_runtime_has_ended_before() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let url = proxy.url();
    let (client, end) = elsewhere(async move || Client::connect(&url).await.unwrap()).await;
    let lock = client.rwlock("k").by(&client.owner());
    let guard = lock.write().await.unwrap();
    proxy.set(Weather::Swallow);
    let extending = guard.extend(Duration::from_secs(60));
    let brief = Duration::from_millis(20);
    assert!(tokio::time::timeout(brief, extending).await.is_err());
    drop(guard);
    end();
    // A thread that never ends its call would keep this one from ending the test.
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(run(lock.try_read()).map(drop)));
    let outcome = told.recv_timeout(PATIENCE);
    assert!(matches!(outcome, Ok(Err(Error::Closed))), "{outcome:?}");
}

/// The connection to which it is bound ends with the runtime.
#[tokio::test]
async fn a_bound_hold_is_lost_after_its_grace_if_its_client_s_runtime_has_ended() {
    let server = Server::start().await;
    for grace in [Duration::ZERO, Duration::from_secs(1)] {
        let url = server.url();
        let (guard, end) = elsewhere(async move || {
            let client = Client::connect(&url).await.unwrap();
            let terms = Terms::new().bound(grace).unwrap();
            client.mutex("k").with(terms).lock().await.unwrap()
        })
        .await;
        let works = guard.run(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            end();
            std::future::pending::<()>().await;
        });
        let waits = tokio::spawn(guard.loss());
        let outcomes = async { tokio::join!(works, waits) };
        let (worked, waited) = tokio::time::timeout(PATIENCE, outcomes).await.unwrap();
        assert_eq!(worked.unwrap_err(), Loss::LeaseEnded);
        assert_eq!(waited.unwrap(), Loss::LeaseEnded);
        assert_eq!(guard.loss().await, Loss::LeaseEnded);
        let next = server
            .client()
            .await
            .mutex("k")
            .lock_timeout(PATIENCE)
            .await;
        next.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_loss_is_waited_for_on_another_runtime_if_the_first_one_has_ended() {
    let server = Server::start().await;
    let url = server.url();
    let ((guard, loss), end) = elsewhere(async move || {
        let client = Client::connect(&url).await.unwrap();
        let terms = Terms::new().lease(Duration::from_secs(1)).unwrap();
        let guard = client.mutex("k").with(terms).lock().await.unwrap();
        let mut loss = guard.loss();
        let brief = tokio::time::timeout(Duration::from_millis(20), &mut loss);
        assert!(brief.await.is_err());
        (guard, loss)
    })
    .await;
    end();
    let lost = tokio::time::timeout(PATIENCE, loss).await.unwrap();
    assert_eq!(lost, Loss::LeaseEnded);
    assert!(!guard.is_valid());
}

#[cfg(feature = "quorum")]
#[tokio::test]
async fn a_bound_hold_of_a_quorum_is_lost_after_its_grace_if_the_runtime_has_ended() {
    let members = crate::quorum::Members::start(3).await;
    for grace in [Duration::ZERO, Duration::from_secs(1)] {
        let urls = members.urls();
        let builder = rlock_client::Quorum::builder().any_grace();
        let (guard, end) = elsewhere(async move || {
            let quorum = builder.connect(urls).await.unwrap();
            let terms = Terms::new().bound(grace).unwrap();
            quorum.mutex("k").with(terms).lock().await.unwrap()
        })
        .await;
        let waits = tokio::spawn(guard.loss());
        tokio::time::sleep(Duration::from_millis(50)).await;
        end();
        let lost = tokio::time::timeout(PATIENCE, waits).await.unwrap();
        assert_eq!(lost.unwrap(), Loss::LeaseEnded);
        assert!(!guard.is_valid());
    }
}

#[cfg(feature = "quorum")]
#[tokio::test]
async fn the_calls_of_a_quorum_end_with_its_runtime() {
    let members = crate::quorum::Members::start(3).await;
    let urls = members.urls();
    let builder = rlock_client::Quorum::builder().any_grace();
    let (quorum, end) = elsewhere(async move || builder.connect(urls).await.unwrap()).await;
    let other = members.lasting().await;
    let held = other.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = quorum.mutex("k");
        async move { mutex.lock().await }
    });
    let kept = quorum.mutex("kept").lock().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    end();
    let waited = tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    assert!(matches!(waited.unwrap(), Err(Error::Closed)));
    assert!(kept.is_valid(), "its lease has not ended");
    let late = tokio::time::timeout(PATIENCE, quorum.mutex("free").lock()).await;
    assert!(matches!(late.unwrap(), Err(Error::Closed)));
    held.release().await.unwrap();
}

/// With a watchdog on this thread, which does not yield, the lock would be lost.
#[tokio::test]
async fn a_thread_of_its_own_renews_while_this_one_is_busy() {
    let server = Server::start().await;
    let builder = Client::builder().dedicated_thread();
    let client = builder.connect(&server.url()).await.unwrap();
    let lease = Duration::from_millis(1000);
    let mutex = client.mutex("k").with(Terms::new().lease(lease).unwrap());
    let guard = mutex.lock().await.unwrap();
    // The thread itself must block here.
    thread::sleep(3 * lease);
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    server.admin().await.untouched("k").await;
}

#[tokio::test]
async fn a_client_is_not_closed_before_others_have_released() {
    let server = Server::start().await;
    let client = server.client().await;
    let (one, other) = (client.mutex("k"), client.mutex("kept"));
    let (one, other) = (one.lock().await.unwrap(), other.lock().await.unwrap());
    let minute = Duration::from_secs(60);
    let outcomes = tokio::join!(
        one.release(),
        other.release_after(minute),
        client.close(PATIENCE),
    );
    outcomes.0.unwrap();
    outcomes.1.unwrap();
    outcomes.2.unwrap();
    let mut admin = server.admin().await;
    assert!(!admin.run::<bool>("EXISTS k").await);
    assert!(admin.run::<u64>("PTTL kept").await > 40_000);
}

#[tokio::test]
async fn whoever_closes_a_client_hears_that_it_was_not_in_time() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let client = Client::connect(proxy.url()).await.unwrap();
    let (guard, busy) = (client.mutex("k"), client.mutex("busy"));
    let (guard, busy) = (guard.lock().await.unwrap(), busy.lock().await.unwrap());
    proxy.set(Weather::Swallow);
    // Its release comes after this.
    let extending = busy.extend(Duration::from_secs(60));
    let (extended, one, other) = tokio::join!(
        extending,
        client.close(PATIENCE),
        client.close(Duration::from_millis(20)),
    );
    assert!(matches!(extended, Err(Error::Closed)), "{extended:?}");
    for outcome in [one, other] {
        assert!(
            matches!(&outcome, Err(Error::Unavailable { waited, .. }) if *waited < PATIENCE),
            "{outcome:?}"
        );
    }
    for guard in [guard, busy] {
        assert_eq!(guard.loss().now(), Some(Loss::Released));
        assert!(!guard.is_valid());
    }
    // The leases still run.
    for outcome in [client.flush().await, client.close(PATIENCE).await] {
        assert!(
            matches!(&outcome, Err(Error::NotReleased { count: 2, source, .. }) if matches!(**source, Error::Closed)),
            "{outcome:?}"
        );
    }
}

/// Goes on until the client is closed, the others in its way.
async fn works(client: Client, way: u32) -> Error {
    let (brief, owner) = (Duration::from_millis(3), client.owner());
    let lock = client.rwlock("k").by(&owner);
    let (several, permits) = (client.multi(["k", "l"]), client.semaphore("s", 3));
    let once = async || {
        match way {
            0 => {
                let guard = lock.write_timeout(brief).await?;
                let longer = guard.as_ref().map(|it| it.extend(2 * PATIENCE));
                drop(tokio::time::timeout(brief / 10, async { longer?.await.ok() }).await);
                drop(guard);
            }
            1 => {
                if let Some(reading) = lock.read_timeout(brief).await? {
                    drop(reading.upgrade_timeout(brief).await);
                }
            }
            2 => {
                if let Some(guard) = several.lock_timeout(brief).await? {
                    guard.release().await?;
                }
            }
            3 => {
                if let Some(permits) = permits.acquire_many_timeout(2, brief).await? {
                    permits.forget();
                }
            }
            _ => drop(tokio::time::timeout(brief / 10, lock.write()).await),
        }
        // Even where nothing else would tell.
        client.mutex("other").try_lock().await.map(drop)
    };
    loop {
        if let Err(error @ Error::Closed) = once().await {
            return error;
        }
    }
}

#[tokio::test]
async fn a_client_that_is_closed_at_any_moment_leaves_nothing() {
    let server = Server::start().await;
    let mut admin = server.admin().await;
    for round in 0..150 {
        let client = server.client().await;
        // Alone as well: what is done for others may hide what is not done.
        let ways = (0..1 + round % 3 * 5).map(|task| (task + round / 3) % 5);
        let tasks = ways.map(|way| tokio::spawn(works(client.clone(), way)));
        let tasks: Vec<_> = tasks.collect();
        tokio::time::sleep(Duration::from_micros(100 * u64::from(round))).await;
        if round % 2 == 0 {
            admin.kill_lock_clients().await;
        }
        client.close(PATIENCE).await.unwrap();
        for task in tasks {
            let ended = tokio::time::timeout(PATIENCE, task).await;
            ended.expect("the call ends").unwrap();
        }
        let keys: u64 = admin.run("DBSIZE").await;
        assert_eq!(
            (keys, admin.gauge("waiters").await),
            (0, 0),
            "round {round}"
        );
    }
}
