//! Grants that count only once replicas know of them.

use std::time::{Duration, Instant};

use rlock_client::{Client, Error, Guard, Loss, Mutex, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server};
use rlock_testkit::sentinel::replica_of;

/// A master and its replica, which has the module too.
struct Pair {
    master: Server,
    replica: Server,
}

impl Pair {
    async fn start() -> Self {
        let master = Server::start().await;
        let replica = replica_of(&master).await;
        Self { master, replica }
    }
}

fn mutex(client: &Client, key: &str, lease: Duration) -> Mutex {
    let terms = Terms::new().lease(lease).unwrap().replicas(1).unwrap();
    client.mutex(key).with(terms)
}

async fn limited(server: &Server, limit: Duration) -> Client {
    let builder = Client::builder().replication_timeout(limit);
    builder.connect(&server.url()).await.unwrap()
}

/// What a server has of a hold: its fence, and when its lease ends.
async fn known(admin: &mut Admin, guard: &Guard) -> Option<(u64, u64)> {
    let key = String::from_utf8(guard.key().to_vec()).unwrap();
    let count: Option<u64> = admin.run(&format!("HGET {key} {}", guard.owner())).await;
    count?;
    let fence: u64 = admin.run(&format!("HGET {key} rlock:fence")).await;
    Some((fence, admin.run(&format!("PEXPIRETIME {key}")).await))
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

#[tokio::test]
async fn a_grant_is_known_to_the_replica_before_anybody_relies_on_it() {
    let pair = Pair::start().await;
    let (one, two) = (pair.master.client().await, pair.master.client().await);
    let mut replica = pair.replica.admin().await;
    let lease = Duration::from_secs(30);
    let mut fences = 0;
    for number in 0..100 {
        let (first, second) = (mutex(&one, "k", lease), mutex(&two, "k", lease));
        let guard = first.lock().await.unwrap();
        let (fence, end) = known(&mut replica, &guard).await.expect("it is known");
        assert!(fence == guard.fence() && fence > fences, "{number}");
        assert!(end >= now_ms() + 29_000, "{number}");
        // The same after a hand-off by message.
        let waiting = tokio::spawn(async move { second.lock().await });
        pair.master.admin().await.queued(1).await;
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        let (fence, _) = known(&mut replica, &guard).await.expect("it is known");
        assert_eq!(fence, guard.fence());
        fences = fence;
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn whoever_is_promoted_after_a_kill_knows_every_hold_and_its_lease() {
    for _ in 0..5 {
        let pair = Pair::start().await;
        let client = pair.master.client().await;
        let mut guards = Vec::new();
        for number in 0..20 {
            let mutex = mutex(&client, &format!("k{number}"), Duration::from_secs(30));
            guards.push(mutex.lock().await.unwrap());
        }
        guards[7].extend(Duration::from_secs(300)).await.unwrap();
        pair.master.signal("-KILL");
        let mut promoted = pair.replica.admin().await;
        let _: () = promoted.run("REPLICAOF NO ONE").await;
        for (number, guard) in guards.iter().enumerate() {
            let (fence, end) = known(&mut promoted, guard).await.expect("it is known");
            assert_eq!(fence, guard.fence());
            let remaining = u64::try_from(guard.remaining().as_millis()).unwrap();
            assert!(end >= now_ms() + remaining, "{number}: {remaining} ms");
        }
        assert!(guards[7].remaining() > Duration::from_secs(250));
    }
}

#[tokio::test]
async fn without_its_replica_a_call_fails_and_nothing_stays_held() {
    let pair = Pair::start().await;
    let client = limited(&pair.master, Duration::from_millis(200)).await;
    let mut admin = pair.master.admin().await;
    let mutex = mutex(&client, "k", Duration::from_secs(30));
    let is_too_few = |error: Error| {
        let (wanted, acknowledged) = (1, 0);
        matches!(error, Error::NotReplicated { wanted: w, acknowledged: a } if (w, a) == (wanted, acknowledged))
    };
    pair.replica.signal("-STOP");
    assert!(is_too_few(mutex.lock().await.unwrap_err()));
    assert!(is_too_few(mutex.try_lock().await.unwrap_err()));
    client.flush().await.unwrap();
    admin.untouched("k").await;
    // After a hand-off, too; and the next one has it.
    let other = pair.master.client().await;
    let held = other.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    admin.queued(1).await;
    let next = tokio::spawn(async move { other.mutex("k").lock().await });
    admin.queued(2).await;
    held.release().await.unwrap();
    assert!(is_too_few(waiting.await.unwrap().unwrap_err()));
    let next = tokio::time::timeout(PATIENCE, next).await.unwrap();
    next.unwrap().unwrap().release().await.unwrap();
    admin.untouched("k").await;
    pair.replica.signal("-CONT");
}

#[tokio::test]
async fn what_is_left_taken_without_its_replica_stays_and_says_so() {
    let pair = Pair::start().await;
    let client = limited(&pair.master, Duration::from_millis(200)).await;
    let (mut master, mut replica) = (pair.master.admin().await, pair.replica.admin().await);
    let lease = Duration::from_secs(30);
    let guard = mutex(&client, "k", lease).lock().await.unwrap();
    let held = known(&mut master, &guard).await.expect("it is held");
    let (key, owner) = (guard.key().to_vec(), guard.owner().clone());
    guard.release_after(2 * lease).await.unwrap();
    let end: u64 = replica.run("PEXPIRETIME k").await;
    assert!(end >= held.1 + 25_000, "the replica knows it");
    let again = mutex(&client, "k", lease).by(&owner);
    let guard = again.lock().await.unwrap();
    assert_eq!((guard.key(), guard.fence()), (&*key, held.0));
    pair.replica.signal("-STOP");
    let error = guard.release_after(2 * lease).await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { .. }), "{error}");
    let end: u64 = master.run("PEXPIRETIME k").await;
    assert!(end >= held.1 + 25_000, "the master keeps it");
    pair.replica.signal("-CONT");
}

#[tokio::test]
async fn a_hold_that_is_entered_again_without_its_replica_stays() {
    let pair = Pair::start().await;
    let client = pair.master.client().await;
    let owner = client.owner();
    let mutex = mutex(&client, "k", Duration::from_secs(30)).by(&owner);
    let guard = mutex.lock().await.unwrap();
    pair.replica.signal("-STOP");
    let error = mutex.lock().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { .. }), "{error}");
    let error = guard.extend(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { .. }), "{error}");
    client.flush().await.unwrap();
    assert!(guard.is_valid() && mutex.is_held_by(&owner).await.unwrap());
    pair.replica.signal("-CONT");
    guard.release().await.unwrap();
    pair.master.admin().await.untouched("k").await;
}

#[test]
fn a_hold_ends_with_the_last_lease_that_its_replica_knew() {
    on_a_calm_machine(async || {
        let pair = Pair::start().await;
        let client = pair.master.client().await;
        let guard = mutex(&client, "k", Duration::from_secs(2))
            .lock()
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(guard.is_valid(), "renewed with its replica");
        pair.replica.signal("-STOP");
        let begun = Instant::now();
        let loss = tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
        assert_eq!(loss, Loss::LeaseEnded);
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
        pair.replica.signal("-CONT");
    });
}

#[test]
fn a_replica_that_is_away_delays_nobody_who_does_not_ask_for_it() {
    on_a_calm_machine(async || {
        let pair = Pair::start().await;
        let client = pair.master.client().await;
        let lease = Terms::new().lease(Duration::from_secs(2)).unwrap();
        let kept = client.mutex("kept").with(lease).lock().await.unwrap();
        pair.replica.signal("-STOP");
        let mut asked = tokio::task::JoinSet::new();
        for number in 0..2000 {
            let mutex = mutex(&client, &format!("k{number}"), Duration::from_secs(30));
            asked.spawn(async move { mutex.lock().await.is_err() });
        }
        let begun = Instant::now();
        let mut longest = Duration::ZERO;
        while begun.elapsed() < Duration::from_secs(3) {
            let asked = Instant::now();
            client
                .mutex("other")
                .lock()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            longest = longest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(longest < Duration::from_millis(700), "{longest:?}");
        assert!(kept.is_valid());
        pair.replica.signal("-CONT");
        while let Some(outcome) = asked.join_next().await {
            outcome.unwrap();
        }
        assert_eq!(client.metrics().reconnects, 0);
    });
}

#[tokio::test]
async fn many_are_asked_for_together() {
    let pair = Pair::start().await;
    let client = pair.master.client().await;
    let mut admin = pair.master.admin().await;
    let _: () = admin.run("CONFIG RESETSTAT").await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..100 {
        let mutex = mutex(&client, &format!("k{number}"), Duration::from_secs(30));
        calls.spawn(async move { mutex.lock().await.unwrap() });
    }
    let guards = calls.join_all().await;
    assert_eq!(guards.len(), 100);
    let waits = admin.calls().await["wait"];
    assert!(waits <= 20, "{waits} times");
}

#[tokio::test]
async fn what_the_server_refuses_is_told_as_without_replicas() {
    let pair = Pair::start().await;
    let mut admin = pair.master.admin().await;
    let rules = "ACL SETUSER u on >p ~* &* +@all -rlock.renew";
    let _: () = admin.run(rules).await;
    let url = format!("redis://u:p@127.0.0.1:{}/", pair.master.port());
    let client = Client::connect(&url).await.unwrap();
    let error = mutex(&client, "k", Duration::from_secs(9)).lock().await;
    let error = error.unwrap_err();
    assert!(
        matches!(&error, Error::Denied(why) if why.contains("rlock.renew")),
        "{error:?}"
    );
    client.flush().await.unwrap();
    admin.untouched("k").await;
    // A key that holds something else is a loss at the next renewal.
    let client = pair.master.client().await;
    let guard = mutex(&client, "k", Duration::from_secs(3)).lock().await;
    let guard = guard.unwrap();
    let _: () = admin.run("SET k something").await;
    let loss = tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
    assert_eq!(loss, Loss::EndedByServer);
}

#[tokio::test]
async fn what_is_bound_cannot_be_asked_of_replicas() {
    let server = Server::start().await;
    let terms = Terms::new()
        .replicas(1)
        .unwrap()
        .bound(Duration::from_secs(2));
    let error = terms.unwrap_err();
    assert!(error.to_string().contains("replicas"), "{error}");
    // A server without any says so after the limit.
    let client = limited(&server, Duration::from_millis(100)).await;
    let error = mutex(&client, "k", Duration::from_secs(9)).lock().await;
    let error = error.unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("0 of 1 replicas"),
        "{error}"
    );
}
