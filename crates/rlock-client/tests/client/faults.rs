//! Lost replies, dead connections, silent networks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use rlock_client::{Client, Error, Loss, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use crate::kinds::through;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

#[tokio::test]
async fn a_lost_reply_to_a_queued_request_makes_no_second_place() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (client, holder) = (through(&proxy).await, server.client().await);
    let mut admin = server.admin().await;
    let held = holder.mutex("k").lock().await.unwrap();
    proxy.set(Weather::CutReplyTo("RLOCK.ACQUIRE"));
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock_timeout(PATIENCE).await.unwrap().unwrap() }
    });
    eventually("asked again", async || admin.gauge("acquires").await >= 3).await;
    admin.queued(1).await;
    held.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    admin.untouched("k").await;
}

#[tokio::test]
async fn a_request_that_outlives_its_connection_is_not_carried_out() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (client, mut admin) = (through(&proxy).await, server.admin().await);
    proxy.set(Weather::DelayRequest("RLOCK.ACQUIRE"));
    // Asks on its way; gives that connection up, and asks on a new one.
    let guard = client.mutex("k").lock().await.unwrap();
    guard.release().await.unwrap();
    assert!(!proxy.let_late_request_arrive().await);
    admin.untouched("k").await;
    assert_eq!(admin.gauge("acquires").await, 1);
}

#[tokio::test]
async fn a_grant_that_is_heard_of_too_late_is_not_taken_for_a_hold() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (client, other) = (through(&proxy).await, server.client().await);
    let mut admin = server.admin().await;
    let first = other.mutex("k").lock().await.unwrap();
    let lease = Duration::from_millis(200);
    let mutex = client.mutex("k").with(Terms::new().lease(lease).unwrap());
    let late = tokio::spawn(async move { mutex.lock().await.unwrap() });
    admin.queued(1).await;
    proxy.set(Weather::Fog);
    first.release().await.unwrap();
    // Its lease passes before it hears of the grant, and the next one is in.
    let second = other.mutex("k").lock().await.unwrap();
    proxy.set(Weather::Fair);
    admin.queued(1).await;
    assert!(second.is_valid() && !late.is_finished());
    let fence = second.fence();
    second.release().await.unwrap();
    let late = tokio::time::timeout(PATIENCE, late).await.unwrap().unwrap();
    assert!(late.is_valid() && late.fence() > fence);
}

#[tokio::test]
async fn calls_end_within_their_bound_when_the_network_is_silent() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder().response_timeout(Duration::from_millis(200));
    let builder = builder.retry_timeout(Duration::from_millis(500));
    let client = builder.connect(&proxy.url()).await.unwrap();
    let guard = client.mutex("held").lock().await.unwrap();
    proxy.set(Weather::Swallow);
    let begun = Instant::now();
    let wait = Duration::from_millis(300);
    let limited = client.mutex("k").lock_timeout(wait).await;
    assert!(
        matches!(limited, Err(Error::Unavailable { .. })),
        "{limited:?}"
    );
    let tried = client.mutex("k").try_lock().await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    assert!(matches!(
        client.mutex("k").info().await,
        Err(Error::Unavailable { .. })
    ));
    assert!(matches!(
        guard.release().await,
        Err(Error::Unavailable { .. })
    ));
    assert!(begun.elapsed() < Duration::from_secs(5));
    // The background went on trying, and nothing is left once it can.
    proxy.set(Weather::Fair);
    client.flush().await.unwrap();
    let mut admin = server.admin().await;
    admin.untouched("k").await;
    admin.untouched("held").await;
}

#[tokio::test]
async fn a_client_cut_off_for_reading_too_slowly_loses_neither_hold_nor_wait() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (client, mut admin) = (through(&proxy).await, server.admin().await);
    let guard = client.mutex("held").lock().await.unwrap();
    let other = server.client().await;
    let held = other.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock_timeout(PATIENCE).await.unwrap().unwrap() }
    });
    admin.queued(1).await;
    let limit = "pubsub 1 1 1";
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("client-output-buffer-limit").arg(limit);
    let _: () = set.query_async(&mut admin.0).await.unwrap();
    held.release().await.unwrap();
    let next = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(next.is_valid() && guard.is_valid());
}

#[tokio::test]
async fn no_command_carries_a_time_of_this_machine() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let client = through(&proxy).await;
    let mutex = client
        .mutex("k")
        .with(Terms::new().lease(Duration::from_millis(300)).unwrap());
    let guard = mutex.lock().await.unwrap();
    let mut admin = server.admin().await;
    eventually("a renewal", async || admin.gauge("renewals").await > 1).await;
    assert!(
        client
            .mutex("k")
            .lock_timeout(Duration::from_millis(20))
            .await
            .unwrap()
            .is_none()
    );
    let fence = guard.fence();
    guard.release().await.unwrap();
    let sent = String::from_utf8_lossy(&proxy.requests()).into_owned();
    let arguments = sent
        .split("\r\n")
        .filter_map(|word| word.parse::<u64>().ok())
        // The server's own, which a release undoes.
        .filter(|number| *number != fence);
    let largest = arguments.max().unwrap();
    assert_eq!(largest, 30_000, "no number but leases and waits: {largest}");
}

/// A connection that answers is not given up, however long its last answer takes.
#[test]
fn a_burst_of_calls_does_not_give_the_connection_up() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let builder = Client::builder().response_timeout(Duration::from_secs(1));
        let client = builder.connect(&proxy.url()).await.unwrap();
        let mut admin = server.admin().await;
        let connections = admin.lock_clients().await;
        // All of them together take longer than the limit.
        proxy.set(Weather::Slow(Duration::from_millis(100)));
        let calls: Vec<_> = (0..100_000)
            .map(|_| {
                let mutex = client.mutex("k");
                tokio::spawn(async move { mutex.is_locked().await })
            })
            .collect();
        let begun = Instant::now();
        for call in calls {
            assert!(!call.await.unwrap().unwrap());
        }
        assert!(begun.elapsed() > Duration::from_secs(1), "it was a burst");
        assert_eq!(admin.lock_clients().await, connections);
    });
}

/// Each byte of a session is the last that arrives once, of those that the client sends and of those that the server does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_cut_anywhere_comes_to_its_right_end() {
    let server = Server::start().await;
    let other = server.client().await;
    for cut in [Weather::CutRequests, Weather::CutReplies] {
        let mut sessions = futures_util::stream::iter(1..10_000)
            .map(|byte| session(&server, &other, cut(byte)))
            .buffered(8);
        let mut count = 0;
        while let Some(was_cut) = sessions.next().await
            && was_cut
        {
            count += 1;
        }
        assert!(count > 800, "{count}");
        println!("cut after each of {count} bytes");
    }
}

/// Locks, waits, is granted by a message, renews, has a bound hold, and releases; whether it was cut.
async fn session(server: &Server, other: &Client, cut: Weather) -> bool {
    static SESSIONS: AtomicUsize = AtomicUsize::new(0);
    let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
    let keys = ["free", "bound", "held"].map(|kind| format!("{kind}-{number}"));
    let [free, bound, held] = &keys;
    let run = async {
        let first = other.mutex(held).lock().await.unwrap();
        let proxy = Proxy::to(server.port()).await;
        proxy.set(cut.clone());
        let client = match Client::connect(&proxy.url()).await {
            Ok(client) => client,
            // What is tried once fails once.
            Err(error) => {
                assert!(matches!(error, Error::Connect(_)), "{error:?}");
                assert!(error.is_transient() && proxy.weather() == Weather::Fair);
                Client::connect(&proxy.url()).await.unwrap()
            }
        };
        let one = client.mutex(free).lock().await.unwrap();
        let terms = Terms::new().bound(Duration::from_secs(5)).unwrap();
        let two = client.mutex(bound).with(terms);
        let two = two.lock().await.unwrap();
        let waiting = tokio::spawn({
            let mutex = client.mutex(held);
            async move { mutex.lock().await.unwrap() }
        });
        while other.mutex(held).info().await.unwrap().queued == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.release().await.unwrap();
        let three = waiting.await.unwrap();
        one.extend(Duration::from_secs(40)).await.unwrap();
        for guard in [one, two, three] {
            assert!(guard.is_valid());
            guard.release().await.unwrap();
        }
        client.flush().await.unwrap();
        for key in &keys {
            let info = other.mutex(key).info().await.unwrap();
            assert_eq!((info.holders.len(), info.queued), (0, 0), "{key}");
        }
        proxy.weather() == Weather::Fair
    };
    let run = tokio::time::timeout(PATIENCE, run).await;
    run.unwrap_or_else(|_| panic!("{cut:?}: it hangs"))
}

/// The lock may have another holder by then.
#[tokio::test]
async fn a_forced_release_without_an_answer_is_not_repeated() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let operator = Client::connect(proxy.url()).await.unwrap();
    let client = server.client().await;
    let mutex = client.mutex("k");
    let first = mutex.lock().await.unwrap();
    let next = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.unwrap() }
    });
    server.admin().await.queued(1).await;
    proxy.set(Weather::CutReplyTo("RLOCK.FORCE"));
    let outcome = operator.mutex("k").force_release().await;
    assert!(
        matches!(outcome, Err(Error::Unavailable { .. })),
        "{outcome:?}"
    );
    assert_eq!(first.loss().await, Loss::EndedByServer);
    let next = next.await.unwrap();
    // The connection is there again, and nothing comes by it.
    operator.mutex("k").info().await.unwrap();
    assert_eq!(next.loss().now(), None);
    next.release().await.unwrap();
}
