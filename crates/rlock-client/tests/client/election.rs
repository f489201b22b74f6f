//! Who leads, what it has published, and who is notified of it.

use std::time::{Duration, Instant};

use rlock_client::{Change, Changes, Client, Election, Error, Lease, Loss, Terms, blocking};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::cluster::Cluster;
use rlock_testkit::proxy::{Proxy, Weather};
use rlock_testkit::sentinel::{Sentinel, replica_of};

async fn next(changes: &mut Changes) -> Change {
    let change = tokio::time::timeout(PATIENCE, changes.next()).await;
    change.expect("a change").unwrap().unwrap()
}

/// What an observer sees: fence and value, if anybody leads, and whether it may
/// have missed others.
async fn told(changes: &mut Changes) -> (Option<(u64, Vec<u8>)>, bool) {
    let change = next(changes).await;
    let leader = change.leader.map(|leader| (leader.fence, leader.value));
    (leader, change.missed)
}

fn led(fence: u64, value: impl AsRef<[u8]>) -> (Option<(u64, Vec<u8>)>, bool) {
    (Some((fence, value.as_ref().to_vec())), false)
}

const NOBODY: (Option<(u64, Vec<u8>)>, bool) = (None, false);

fn candidate(election: &Election, value: &'static str) -> tokio::task::JoinHandle<u64> {
    let election = election.clone();
    tokio::spawn(async move {
        let leadership = election.campaign(value).await.unwrap();
        let fence = leadership.fence();
        leadership.resign().await.unwrap();
        fence
    })
}

#[tokio::test]
async fn leaders_follow_each_other_and_observers_see_each_of_them() {
    let server = Server::start().await;
    let (leading, watching) = (server.client().await, server.client().await);
    let (election, observed) = (leading.election("k"), watching.election("k"));
    let mut changes = observed.observe();
    assert_eq!(told(&mut changes).await, NOBODY);
    let first = election.campaign("a").await.unwrap();
    let leader = observed.leader().await.unwrap().unwrap();
    assert_eq!(
        (leader.fence, &leader.value[..]),
        (first.fence(), &b"a"[..])
    );
    assert_eq!(leader.owner, first.owner().as_str());
    assert!(leader.time_left > Duration::from_secs(20));
    let second = candidate(&election, "b");
    server.admin().await.queued(1).await;
    assert_eq!(told(&mut changes).await, led(first.fence(), "a"));
    let value = b"\x00 \xff\r\n";
    first.proclaim(value).await.unwrap();
    assert_eq!(told(&mut changes).await, led(first.fence(), value));
    let fence = first.fence();
    first.resign().await.unwrap();
    let second = second.await.unwrap();
    assert!(second > fence);
    assert_eq!(told(&mut changes).await, led(second, "b"));
    assert_eq!(told(&mut changes).await, NOBODY);
    assert_eq!(observed.leader().await.unwrap(), None);
}

#[tokio::test]
async fn who_holds_the_lock_without_a_value_is_no_leader() {
    let server = Server::start().await;
    let client = server.client().await;
    let election = client.election("k");
    let guard = client.mutex("k").lock().await.unwrap();
    let mut changes = election.observe();
    assert_eq!(told(&mut changes).await, NOBODY);
    assert_eq!(election.leader().await.unwrap(), None);
    let wait = Duration::from_millis(20);
    assert!(election.campaign_for("a", wait).await.unwrap().is_none());
    guard.release().await.unwrap();
    let leadership = election.campaign_for("", Duration::ZERO).await.unwrap();
    let leadership = leadership.unwrap();
    assert_eq!(told(&mut changes).await, led(leadership.fence(), ""));
    drop(leadership);
    assert_eq!(told(&mut changes).await, NOBODY);
}

#[tokio::test]
async fn a_value_has_at_most_1024_bytes() {
    let server = Server::start().await;
    let client = server.client().await;
    let election = client.election("k");
    let (longest, too_long) = ([7; 1024], [7; 1025]);
    let refused = |error: Error| match error {
        Error::OutOfRange {
            argument, value, ..
        } => (argument, value),
        other => panic!("{other:?}"),
    };
    let too_many = ("value", "1025 bytes".to_owned());
    assert_eq!(
        refused(election.campaign(too_long).await.unwrap_err()),
        too_many
    );
    let leadership = election.campaign(longest).await.unwrap();
    assert_eq!(
        refused(leadership.proclaim(too_long).await.unwrap_err()),
        too_many
    );
    assert_eq!(election.leader().await.unwrap().unwrap().value, longest);
    assert!(leadership.is_valid());
}

#[tokio::test]
async fn renewals_leave_the_value_and_an_owner_that_campaigns_again_replaces_it() {
    let server = Server::start().await;
    let client = server.client().await;
    let terms = Terms::new().lease(Duration::from_millis(300)).unwrap();
    let owner = client.owner();
    let election = client.election("k").with(terms).by(&owner);
    let leadership = election.campaign("a").await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(leadership.is_valid());
    assert_eq!(election.leader().await.unwrap().unwrap().value, b"a");
    let again = election.campaign("b").await.unwrap();
    assert_eq!(again.fence(), leadership.fence());
    assert_eq!(election.leader().await.unwrap().unwrap().value, b"b");
    again.resign().await.unwrap();
    assert!(leadership.is_valid() && election.leader().await.unwrap().is_some());
}

#[tokio::test]
async fn the_end_is_told_whatever_ends_it() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let election = client.election("k");
    let mut changes = election.observe();
    assert_eq!(told(&mut changes).await, NOBODY);
    let lease = Lease::Fixed(Duration::from_millis(100));
    for (value, end) in [("a", "DEL k"), ("b", "RLOCK.FORCE k"), ("c", "FLUSHALL")] {
        let leadership = election.campaign(value).await.unwrap();
        assert_eq!(told(&mut changes).await, led(leadership.fence(), value));
        let _: redis::Value = admin.run(end).await;
        assert_eq!(told(&mut changes).await, NOBODY, "{end}");
        assert_eq!(leadership.loss().await, Loss::EndedByServer);
        let lost = leadership.proclaim("d").await.unwrap_err();
        assert!(matches!(lost, Error::Lost(_)), "{lost:?}");
    }
    let fixed = election.with(Terms::new().lease(lease).unwrap());
    let leadership = fixed.campaign("e").await.unwrap();
    assert_eq!(told(&mut changes).await, led(leadership.fence(), "e"));
    assert_eq!(told(&mut changes).await, NOBODY);
    assert_eq!(leadership.loss().await, Loss::LeaseEnded);
}

#[tokio::test]
async fn observers_share_a_subscription_and_the_last_one_ends_it() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let election = client.election("k");
    let mut observers: Vec<_> = (0..20).map(|_| election.observe()).collect();
    for observer in &mut observers {
        assert_eq!(told(observer).await, NOBODY);
    }
    let leadership = election.campaign("a").await.unwrap();
    for observer in &mut observers {
        assert_eq!(told(observer).await, led(leadership.fence(), "a"));
    }
    let calls = admin.calls().await;
    assert_eq!(
        (calls["subscribe"], calls["rlock.info"]),
        (2, 1),
        "{calls:?}"
    );
    // One that comes later knows it at once.
    assert_eq!(
        told(&mut election.observe()).await,
        led(leadership.fence(), "a")
    );
    let subscribed = "PUBSUB NUMSUB rlock:value:{k}";
    assert_eq!(admin.run::<(String, u64)>(subscribed).await.1, 1);
    drop(observers);
    eventually("nobody listens", async || {
        admin.run::<(String, u64)>(subscribed).await.1 == 0
    })
    .await;
    assert!(leadership.is_valid());
    leadership.resign().await.unwrap();
}

#[tokio::test]
async fn a_silent_connection_is_survived_and_said() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder().response_timeout(Duration::from_millis(500));
    let watching = builder.connect(proxy.url()).await.unwrap();
    let election = server.client().await.election("k");
    let mut changes = watching.election("k").observe();
    let first = election.campaign("a").await.unwrap();
    loop {
        if told(&mut changes).await == led(first.fence(), "a") {
            break;
        }
    }
    proxy.set(Weather::Swallow);
    first.resign().await.unwrap();
    let unseen = election.campaign("b").await.unwrap();
    unseen.resign().await.unwrap();
    let third = election.campaign("c").await.unwrap();
    proxy.set(Weather::Fair);
    let now = Some((third.fence(), b"c".to_vec()));
    assert_eq!(told(&mut changes).await, (now, true));
    third.proclaim("d").await.unwrap();
    assert_eq!(told(&mut changes).await, led(third.fence(), "d"));
}

#[tokio::test]
async fn a_fail_over_is_survived_and_said() {
    let master = Server::start().await;
    let replica = replica_of(&master).await;
    let sentinel = Sentinel::of(&master).await;
    let (leading, watching) = (sentinel.client().await, sentinel.client().await);
    let mut changes = watching.election("k").observe();
    assert_eq!(told(&mut changes).await, NOBODY);
    let leadership = leading.election("k").campaign("a").await.unwrap();
    let fence = leadership.fence();
    assert_eq!(told(&mut changes).await, led(fence, "a"));
    let mut copy = replica.admin().await;
    eventually("the replica knows it", async || copy.run("EXISTS k").await).await;
    let mut admin = rlock_testkit::asynchronous::Admin::connect(&rlock_testkit::asynchronous::url(
        sentinel.port(),
    ))
    .await
    .unwrap();
    eventually("the fail-over begins", async || {
        admin.ask::<()>("SENTINEL FAILOVER locks").await.is_ok()
    })
    .await;
    sentinel.names(replica.port()).await;
    assert_eq!(
        told(&mut changes).await,
        (Some((fence, b"a".to_vec())), true)
    );
    assert!(leadership.is_valid());
    leadership.proclaim("b").await.unwrap();
    let mut change = told(&mut changes).await;
    while change.1 {
        change = told(&mut changes).await;
    }
    assert_eq!(change, led(fence, "b"));
    leadership.resign().await.unwrap();
    assert_eq!(told(&mut changes).await, NOBODY);
}

#[tokio::test]
async fn in_a_cluster_observers_follow_the_slot() {
    let cluster = Cluster::start(3, 0).await;
    let (leading, watching) = (cluster.client().await, cluster.client().await);
    let key = cluster.key_at(0).await;
    let (election, observed) = (leading.election(&key), watching.election(&key));
    let mut changes = observed.observe();
    assert_eq!(told(&mut changes).await, NOBODY);
    let leadership = election.campaign("a").await.unwrap();
    let fence = leadership.fence();
    assert_eq!(told(&mut changes).await, led(fence, "a"));
    let slot = cluster.slot_of(&key).await;
    cluster.move_slot(slot, 0, 1).await;
    let begun = Instant::now();
    let mut change = told(&mut changes).await;
    // Nobody seems to lead while the key is on its way.
    while change != (Some((fence, b"a".to_vec())), true) {
        assert!(begun.elapsed() < PATIENCE, "{change:?}");
        change = told(&mut changes).await;
    }
    leadership.proclaim("b").await.unwrap();
    let mut change = told(&mut changes).await;
    while change != led(fence, "b") {
        assert!(begun.elapsed() < PATIENCE, "{change:?}");
        change = told(&mut changes).await;
    }
    leadership.resign().await.unwrap();
    assert_eq!(told(&mut changes).await, NOBODY);
}

#[tokio::test]
async fn what_does_not_pass_ends_an_observer() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let _: () = admin.run("SET k text").await;
    let mut changes = client.election("k").observe();
    let error = changes.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NotALock(_)), "{error:?}");
    assert!(changes.next().await.is_none());
    let mut changes = client.election("other").observe();
    assert_eq!(told(&mut changes).await, NOBODY);
    client.close(PATIENCE).await.unwrap();
    let error = changes.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Closed), "{error:?}");
    assert!(changes.next().await.is_none());
    let mut late = client.election("k").observe();
    assert!(matches!(late.next().await, Some(Err(Error::Closed))));
}

#[tokio::test]
async fn an_observer_that_takes_nothing_keeps_the_last_1024_changes() {
    let server = Server::start().await;
    let client = server.client().await;
    let election = client.election("k");
    let mut changes = election.observe();
    assert_eq!(told(&mut changes).await, NOBODY);
    let leadership = election.campaign("").await.unwrap();
    for number in 0..1100_u32 {
        leadership.proclaim(number.to_be_bytes()).await.unwrap();
    }
    let first = next(&mut changes).await;
    assert!(first.missed);
    let mut last = first.leader.unwrap().value;
    for _ in 1..1024 {
        let change = next(&mut changes).await;
        assert!(!change.missed);
        let value = change.leader.unwrap().value;
        assert!(value > last);
        last = value;
    }
    assert_eq!(last, 1099_u32.to_be_bytes());
}

#[test]
fn the_same_without_async() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let client = blocking::Client::connect(server.url()).unwrap();
    let election = client.election("k");
    let mut changes = election.observe();
    assert_eq!(changes.next().unwrap().unwrap().leader, None);
    let leadership = election.campaign("a").unwrap();
    leadership.proclaim("b").unwrap();
    assert_eq!(election.leader().unwrap().unwrap().value, b"b");
    let wait = Duration::from_millis(20);
    assert!(election.campaign_for("c", wait).unwrap().is_none());
    let fence = leadership.fence();
    leadership.resign().unwrap();
    let told: Vec<_> = changes.take(3).map(|it| it.unwrap().leader).collect();
    let told: Vec<_> = told
        .into_iter()
        .map(|it| it.map(|it| (it.fence, it.value)))
        .collect();
    let led = |value: &[u8]| Some((fence, value.to_vec()));
    assert_eq!(told, [led(b"a"), led(b"b"), None]);
}
