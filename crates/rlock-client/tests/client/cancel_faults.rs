//! Calls of every kind dropped at every point, as in `cancel`, while replies are
//! lost, requests are late, networks are silent and connections are killed.

use std::time::Duration;

use rlock_client::Client;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::cancel::{Locks, Random, nothing_is_left};
use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server};
use rlock_testkit::proxy::{Proxy, Weather};

const TASKS: u64 = 120;
const CALLS: u64 = 100_000;
/// How long a client waits for an answer.
const LIMIT: Duration = Duration::from_millis(50);

/// What replies are lost, or requests late, to.
const WORDS: [&str; 9] = [
    "RLOCK.ACQUIRE",
    "RLOCK.ACQUIRE",
    "RLOCK.ACQUIRE",
    "RLOCK.MACQUIRE",
    "RLOCK.RELEASE",
    "RLOCK.MRELEASE",
    "RLOCK.CANCEL",
    "RLOCK.DOWNGRADE",
    "SUBSCRIBE",
];

fn up_to(random: &mut Random, limit: Duration) -> Duration {
    let micros = u64::try_from(limit.as_micros()).unwrap();
    Duration::from_micros(random.below(micros))
}

/// Gives a call some time, and what it came to, too.
async fn drop_later(call: impl Future, random: &mut Random) {
    let limit = up_to(random, Duration::from_millis(100));
    let outcome = timeout(limit, call).await;
    if outcome.is_ok() {
        sleep(up_to(random, Duration::from_millis(5))).await;
    }
}

async fn ask_at_random(locks: &Locks, random: &mut Random) {
    match random.below(40) {
        0 => drop_later(locks.mutex.lock(), random).await,
        1 => drop_later(locks.rwlock.read(), random).await,
        2 => drop_later(locks.rwlock.write(), random).await,
        3 => drop_later(locks.semaphore.acquire_many(2), random).await,
        4 => drop_later(locks.multi.lock(), random).await,
        _ => locks.ask_at_random(random).await,
    }
}

/// Tasks that all ask for the same few locks by several clients.
async fn start(clients: &[Client]) -> Vec<JoinHandle<()>> {
    let owners: Vec<_> = clients.iter().map(Client::owner).collect();
    let task = |seed| {
        let which = seed as usize % clients.len();
        let locks = Locks::of(&clients[which], &owners[which], seed / 8);
        async move {
            let mut random = Random(seed);
            for _ in 0..CALLS / TASKS {
                ask_at_random(&locks, &mut random).await;
            }
        }
    };
    (0..TASKS).map(|seed| tokio::spawn(task(seed))).collect()
}

/// False if there is none.
async fn a_late_request_arrives(proxy: &Proxy) -> bool {
    let arrives = proxy.let_late_request_arrive();
    timeout(Duration::from_millis(20), arrives).await.is_ok()
}

/// One weather, and the end of it.
async fn weather(proxy: &Proxy, admin: &mut Admin, random: &mut Random) {
    let words = WORDS[random.below(WORDS.len() as u64) as usize];
    let weather = match random.below(16) {
        0 => Weather::Swallow,
        1 => Weather::Fog,
        2 => Weather::Slow(up_to(random, LIMIT / 2)),
        3..7 => Weather::DelayRequest(words),
        7..10 => Weather::CutReplyTo(words),
        _ => Weather::Fair,
    };
    // A silence has to outlast what a client bears.
    let is_silent = matches!(weather, Weather::Swallow | Weather::Fog);
    proxy.set(weather);
    let longest = if is_silent { 3 * LIMIT } else { LIMIT / 4 };
    sleep(up_to(random, longest)).await;
    if random.below(8) == 0 {
        admin.kill_lock_clients().await;
    }
    // Most come when their client has long been connected again.
    if random.below(16) == 0 {
        a_late_request_arrives(proxy).await;
    }
    proxy.forget();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_dropped_beside_faults_leave_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (mut admin, mut random) = (server.admin().await, Random(CALLS));
    let through = async || {
        let builder = Client::builder().response_timeout(LIMIT);
        let builder = builder.retry_timeout(4 * LIMIT);
        loop {
            // A machine that stalls for so short a time fails no test.
            if let Ok(client) = builder.clone().connect(&proxy.url()).await {
                return client;
            }
        }
    };
    // After a fault a client is unreachable for up to a second, but others go
    // on.
    let mut clients = vec![server.client().await, server.client().await];
    for _ in 0..12 {
        clients.push(through().await);
    }
    let tasks = start(&clients).await;
    while !tasks.iter().all(JoinHandle::is_finished) {
        weather(&proxy, &mut admin, &mut random).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let connections: u64 = clients.iter().map(|it| it.metrics().reconnects).sum();
    proxy.set(Weather::Fair);
    for client in &clients {
        timeout(PATIENCE, client.flush())
            .await
            .expect("all is cleaned up")
            .unwrap();
    }
    // What they were about was cleaned up long ago.
    while a_late_request_arrives(&proxy).await {}
    nothing_is_left(&mut admin).await;
    assert!(connections > 50, "there were faults");
    assert!(admin.gauge("grants").await > 500, "and locks");
    assert!(admin.gauge("handoffs").await > 100, "and waits");
}
