//! A lock on several independent servers.

use std::time::{Duration, Instant};

use rlock_client::{Error, Loss, Quorum, QuorumGuard, QuorumMutex, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::Setup;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually, free_port, url};
use rlock_testkit::proxy::{Proxy, Weather};

/// The startup grace of members, which is the longest lease.
pub(crate) const GRACE_MS: u64 = 700;

/// Members that grant already.
pub(crate) struct Members(pub(crate) Vec<Server>);

/// What a member is started with: this grace.
pub(crate) fn with_grace(grace_ms: u64) -> Setup {
    Setup::new().module_arguments(&format!("startup-grace-ms {grace_ms}"))
}

/// A member without a grace, which forgets nothing.
fn durable() -> Setup {
    let appends = [("appendonly", "yes"), ("appendfsync", "always")];
    with_grace(0).settings(&appends)
}

/// A server with the grace of members.
pub(crate) async fn member() -> Server {
    with_grace(GRACE_MS).start_async().await
}

impl Members {
    pub(crate) async fn start(count: usize) -> Self {
        let servers = futures_util::future::join_all((0..count).map(|_| member())).await;
        let members = Self(servers);
        for server in &members.0 {
            let mut admin = server.admin().await;
            eventually("it grants", async || {
                admin.gauge("grace_left_ms").await == 0
            })
            .await;
        }
        members
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.0.iter().map(|server| server.url()).collect()
    }

    pub(crate) async fn quorum(&self) -> Quorum {
        Quorum::connect(self.urls()).await.unwrap()
    }

    /// For locks with the usual lease, which no member sits out: where nothing
    /// restarts. A short one is lost on a machine that stalls, and a member
    /// that is slow for a tenth of it is asked once more.
    pub(crate) async fn lasting(&self) -> Quorum {
        let quorum = Quorum::builder().any_grace();
        quorum.connect(self.urls()).await.unwrap()
    }

    /// Waits until nobody holds `key` or waits for it, at any of them.
    pub(crate) async fn untouched(&self, key: &str) {
        for server in &self.0 {
            server.admin().await.untouched(key).await;
        }
    }
}

/// Waits until all three members hold it.
pub(crate) async fn all_hold(guard: &QuorumGuard) {
    eventually("all hold it", async || {
        assert!(guard.is_valid(), "it was lost");
        guard.members().len() == 3
    })
    .await;
}

pub(crate) fn terms() -> Terms {
    Terms::new().lease(Duration::from_millis(GRACE_MS)).unwrap()
}

/// The lock at `k`, with a lease that members sit out.
pub(crate) fn mutex(quorum: &Quorum) -> QuorumMutex {
    quorum.mutex("k").with(terms())
}

/// What looks after a hold runs beside the call that releases it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_lock_is_released_while_another_thread_looks_at_it() {
    let members = Members::start(3).await;
    let quorum = members.lasting().await;
    for number in 0..500 {
        let guard = quorum.mutex("k").lock().await.unwrap();
        if let Err(error) = guard.release().await {
            panic!("lock {number}: {error}");
        }
    }
}

#[test]
fn a_quorum_lock_is_held_by_all_members_under_no_smaller_fence() {
    on_a_calm_machine(async || {
        let members = Members::start(3).await;
        let quorum = members.quorum().await;
        let mutex = mutex(&quorum);
        let guard = mutex.lock().await.unwrap();
        all_hold(&guard).await;
        for server in &members.0 {
            let info = server.client().await.mutex("k").info().await.unwrap();
            assert!(info.fence >= Some(guard.fence()), "{info:?}");
            assert_eq!(info.holders[0].owner.as_str(), guard.owner().as_str());
        }
        assert!(guard.is_valid() && guard.remaining() <= Duration::from_millis(GRACE_MS));
        assert!(mutex.try_lock().await.unwrap().is_none());
        let brief = Duration::from_millis(50);
        assert!(mutex.lock_timeout(brief).await.unwrap().is_none());
        let loss = guard.loss();
        tokio::time::sleep(Duration::from_millis(2 * GRACE_MS)).await;
        assert!(guard.is_valid() && loss.now().is_none());
        let fence = guard.fence();
        guard.release().await.unwrap();
        assert_eq!(loss.await, Loss::Released);
        members.untouched("k").await;
        assert!(mutex.try_lock().await.unwrap().unwrap().fence() > fence);
        quorum.flush().await.unwrap();
        members.untouched("k").await;
    });
}

#[tokio::test]
async fn contenders_of_a_quorum_lock_exclude_each_other_and_fences_rise() {
    let members = Members::start(3).await;
    let mut tasks = Vec::new();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    for _ in 0..4 {
        let mutex = members.lasting().await.mutex("k");
        let seen = std::sync::Arc::clone(&seen);
        tasks.push(tokio::spawn(async move {
            for _ in 0..25 {
                let guard = mutex.lock().await.unwrap();
                let begun = Instant::now();
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(guard.is_valid());
                seen.lock()
                    .unwrap()
                    .push((begun, Instant::now(), guard.fence()));
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort_unstable();
    for pair in seen.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two held at once");
        assert!(pair[0].2 < pair[1].2, "fences rise in the order of holding");
    }
    assert_eq!(seen.len(), 100);
}

/// Each is nearest to another member, so each is granted by one at first.
#[tokio::test]
async fn of_several_that_try_a_free_quorum_lock_at_once_one_gets_it() {
    let members = Members::start(3).await;
    let (mut quorums, mut proxies) = (Vec::new(), Vec::new());
    for near in 0..3 {
        let mut urls = Vec::new();
        for (number, server) in members.0.iter().enumerate() {
            let proxy = Proxy::to(server.port()).await;
            urls.push(proxy.url());
            proxies.push((number == near, proxy));
        }
        let quorum = Quorum::builder().any_grace().connect(urls).await;
        quorums.push(quorum.unwrap());
    }
    for (_, far) in proxies.iter().filter(|(is_near, _)| !is_near) {
        far.set(Weather::Slow(Duration::from_millis(10)));
    }
    for key in ["a", "b", "c", "d"] {
        let mutexes = quorums.iter().map(|quorum| quorum.mutex(key));
        let tries = mutexes.map(|mutex| async move { mutex.try_lock().await.unwrap() });
        let tried = futures_util::future::join_all(tries).await;
        assert_eq!(tried.iter().flatten().count(), 1, "{key}: {tried:?}");
    }
}

#[tokio::test]
async fn an_owner_enters_a_quorum_lock_again_under_the_same_fence() {
    let members = Members::start(3).await;
    let quorum = members.quorum().await;
    let owner = quorum.owner();
    let mutex = mutex(&quorum);
    let outer = mutex.by(&owner).lock().await.unwrap();
    let inner = mutex.by(&owner).try_lock().await.unwrap().unwrap();
    assert_eq!(outer.fence(), inner.fence());
    outer.release().await.unwrap();
    assert!(inner.is_valid() && mutex.try_lock().await.unwrap().is_none());
    inner.release().await.unwrap();
    members.untouched("k").await;
}

#[tokio::test]
async fn dropped_futures_and_guards_leave_nothing_at_any_member() {
    let members = Members::start(3).await;
    let quorum = members.quorum().await;
    let mutex = mutex(&quorum);
    for micros in (0..3000).step_by(60) {
        let locking = mutex.lock();
        drop(tokio::time::timeout(Duration::from_micros(micros), locking).await);
    }
    quorum.flush().await.unwrap();
    members.untouched("k").await;
    let held = members.quorum().await;
    let guard = held.mutex("k").with(terms()).lock().await.unwrap();
    for micros in (0..3000).step_by(150) {
        let locking = mutex.lock();
        drop(tokio::time::timeout(Duration::from_micros(micros), locking).await);
    }
    guard.release().await.unwrap();
    quorum.flush().await.unwrap();
    members.untouched("k").await;
}

#[tokio::test]
async fn a_quorum_that_would_protect_nothing_is_refused() {
    let members = Members::start(3).await;
    let urls = members.urls();
    for count in [0, 1, 2, 4, 10] {
        let urls = urls.iter().cycle().take(count);
        let refused = Quorum::connect(urls).await.unwrap_err();
        assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
    }
    let port = members.0[0].port();
    let twice = [
        urls[0].clone(),
        format!("redis://localhost:{port}/"),
        urls[1].clone(),
    ];
    let refused = Quorum::connect(twice).await.unwrap_err().to_string();
    assert!(refused.contains("is the same server as"), "{refused}");
    assert!(refused.contains(&format!("localhost:{port}")), "{refused}");
    assert!(refused.contains(&format!("127.0.0.1:{port}")), "{refused}");

    let replica = member().await;
    let mut admin = replica.admin().await;
    let () = admin.run(&format!("REPLICAOF 127.0.0.1 {port}")).await;
    let with_replica = [urls[1].clone(), urls[2].clone(), replica.url()];
    let refused = Quorum::connect(with_replica).await.unwrap_err().to_string();
    assert!(refused.contains("it is a replica"), "{refused}");
    assert!(
        refused.starts_with(&format!("127.0.0.1:{}", replica.port())),
        "{refused}"
    );

    let bare = Setup::new().without_module().start_async().await;
    let with_bare = [urls[0].clone(), urls[1].clone(), bare.url()];
    let refused = Quorum::connect(with_bare).await.unwrap_err().to_string();
    assert!(
        refused.contains("does not have the rlock module"),
        "{refused}"
    );

    let nowhere = [urls[0].clone(), url(free_port()), url(free_port())];
    let refused = Quorum::connect(nowhere).await.unwrap_err();
    assert!(
        matches!(refused, Error::Connect(_)) && refused.is_transient(),
        "{refused}"
    );
}

#[tokio::test]
async fn an_address_that_is_not_of_one_server_is_refused_as_that_member() {
    for other in ["redis+sentinel://h/m", "rediss+cluster://h", "nothing"] {
        let refused = Quorum::connect(["redis://h", other, "redis://h"]).await;
        let refused = refused.unwrap_err();
        let is_named =
            matches!(&refused, Error::OutOfRange { argument, .. } if *argument == "members[1]");
        assert!(is_named, "{refused}");
    }
}

#[tokio::test]
async fn an_empty_key_is_refused() {
    let quorum = Quorum::connect(Members::start(3).await.urls()).await;
    let error = quorum.unwrap().mutex("").try_lock().await.unwrap_err();
    assert!(matches!(
        error,
        Error::OutOfRange {
            argument: "key",
            ..
        }
    ));
}

#[tokio::test]
async fn a_lease_above_the_grace_of_a_member_is_refused() {
    let members = Members::start(2).await;
    let forgetful = with_grace(0).start_async().await;
    let urls = [members.urls(), vec![forgetful.url()]].concat();
    let quorum = Quorum::connect(&urls).await.unwrap();
    let refused = quorum.mutex("k").lock().await.unwrap_err().to_string();
    assert!(
        refused.starts_with(&format!("127.0.0.1:{}", forgetful.port())),
        "{refused}"
    );
    assert!(refused.contains("startup-grace-ms"), "{refused}");
    assert!(mutex(&quorum).try_lock().await.is_err());
    let any = Quorum::builder().any_grace().connect(&urls).await.unwrap();
    let guard = any.mutex("k").lock().await.unwrap();
    guard.release().await.unwrap();
    let late = durable().line("no-appendfsync-on-rewrite yes");
    let late = late.start_async().await;
    let urls = [members.urls(), vec![late.url()]].concat();
    let quorum = Quorum::connect(&urls).await.unwrap();
    assert!(mutex(&quorum).try_lock().await.is_err());
    let safe = durable().start_async().await;
    let urls = [members.urls(), vec![safe.url()]].concat();
    let quorum = Quorum::connect(&urls).await.unwrap();
    quorum
        .mutex("k")
        .with(terms())
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_quorum_lock_is_not_extended_beyond_the_grace_of_a_member() {
    let members = Members::start(3).await;
    let quorum = members.quorum().await;
    let guard = mutex(&quorum).lock().await.unwrap();
    let beyond = Duration::from_millis(GRACE_MS + 1);
    let refused = guard.extend(beyond).await.unwrap_err();
    assert!(matches!(refused, Error::Member { .. }), "{refused}");
    assert!(guard.is_valid() && guard.remaining() <= Duration::from_millis(GRACE_MS));
    guard.release().await.unwrap();
    let any = Quorum::builder().any_grace();
    let any = any.connect(members.urls()).await.unwrap();
    let guard = mutex(&any).lock().await.unwrap();
    guard.extend(beyond).await.unwrap();
    guard.release().await.unwrap();
}

/// It would grant again what it forgets, while it is held here.
#[tokio::test]
async fn entering_again_extends_nothing_beyond_the_grace_of_a_member_that_came_late() {
    let (one, other) = (durable().start_async().await, durable().start_async().await);
    let port = free_port();
    let quorum = Quorum::connect([one.url(), other.url(), url(port)]);
    let quorum = quorum.await.unwrap();
    let late = with_grace(GRACE_MS).at(port).start_async().await;
    let (owner, mut admin) = (quorum.owner(), late.admin().await);
    // Each key has another order of the members.
    for key in ["a", "b", "c", "d", "e", "f"] {
        let mutex = quorum.mutex(key).with(terms()).by(&owner);
        let guard = mutex.lock().await.unwrap();
        all_hold(&guard).await;
        guard.extend(Duration::from_secs(60)).await.unwrap();
        let again = mutex.lock().await.unwrap();
        assert!(again.remaining() > Duration::from_secs(50));
        let left: u64 = admin.run(&format!("PTTL {key}")).await;
        assert!(left <= GRACE_MS, "{key}: {left}");
    }
}

/// Asking and raising; then nothing but releases.
#[tokio::test]
async fn an_uncontended_quorum_lock_takes_two_round_trips_and_its_release_one() {
    let members = Members::start(3).await;
    let mutex = members.lasting().await.mutex("k");
    for server in &members.0 {
        let () = server.admin().await.run("CONFIG RESETSTAT").await;
    }
    for _ in 0..10 {
        let guard = mutex.lock().await.unwrap();
        all_hold(&guard).await;
        guard.release().await.unwrap();
    }
    let mut all = std::collections::HashMap::new();
    for server in &members.0 {
        for (command, count) in server.admin().await.calls().await {
            *all.entry(command).or_insert(0) += count;
        }
    }
    assert_eq!(
        (all["rlock.acquire"], all["rlock.release"]),
        (30, 30),
        "{all:?}"
    );
    assert!(all["rlock.renew"] <= 30, "{all:?}");
}

#[test]
fn a_quorum_lock_works_without_async() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let members = runtime.block_on(Members::start(3));
    let quorum = rlock_client::blocking::Quorum::connect(members.urls()).unwrap();
    let mutex = quorum.mutex("k").with(terms());
    let guard = mutex.lock().unwrap();
    assert!(guard.members().len() >= 2 && mutex.try_lock().unwrap().is_none());
    guard.extend(Duration::from_millis(GRACE_MS)).unwrap();
    assert!(matches!(
        guard.extend(Duration::from_millis(GRACE_MS + 1)),
        Err(Error::Member { .. })
    ));
    guard.release().unwrap();
    drop(mutex.lock().unwrap());
    quorum.flush().unwrap();
    runtime.block_on(members.untouched("k"));
}

#[test]
fn a_quorum_leaves_a_lock_taken_until_then_and_no_longer() {
    on_a_calm_machine(async || {
        let members = Members::start(3).await;
        let quorum = members.quorum().await;
        let lease = Terms::new().lease(Duration::from_millis(500)).unwrap();
        let (least, late) = (Duration::from_millis(600), Duration::from_millis(300));
        let (one, other) = (quorum.mutex("k"), quorum.mutex("k").with(lease));
        let begun = Instant::now();
        let guard = one.with(lease).lock().await.unwrap();
        guard.release_after(least).await.unwrap();
        assert!(other.try_lock().await.unwrap().is_none());
        let next = other.lock_timeout(PATIENCE).await.unwrap().unwrap();
        let free = begun.elapsed();
        assert!((least..least + late).contains(&free), "{free:?}");
        next.release().await.unwrap();
        // Its parts, too, where it is dropped.
        let guard = one.with(lease).lock().await.unwrap();
        drop(guard.release_after(least));
        quorum.flush().await.unwrap();
        assert!(other.try_lock().await.unwrap().is_none());
    });
}

/// The gate too, though its answer may still be on its way: a try that got the gate would wait for the other members.
#[tokio::test]
async fn a_quorum_lock_that_is_released_at_once_stays_taken_at_its_gate() {
    let members = Members::start(3).await;
    let (one, other) = (members.lasting().await, members.lasting().await);
    let least = Duration::from_secs(2);
    for key in (0..20).map(|key| format!("k{key}")) {
        let guard = one.mutex(&key).lock().await.unwrap();
        let releases = guard.release_after(least);
        let taken = other.mutex(&key);
        let (released, tried) = tokio::join!(releases, taken.try_lock());
        released.unwrap();
        assert!(tried.unwrap().is_none(), "{key}");
        assert!(taken.try_lock().await.unwrap().is_none(), "{key}");
    }
}
