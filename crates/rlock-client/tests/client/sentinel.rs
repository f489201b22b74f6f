//! A client that follows Redis Sentinel from one master to the next.

use std::time::{Duration, Instant};

use rlock_client::{Client, Error, Login, Servers, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server, eventually, free_port, together, url};
use rlock_testkit::proxy::{Proxy, Weather};
use rlock_testkit::sentinel::{Sentinel, replica_of};

/// A master and its replica, which has all that the master has.
async fn pair() -> (Server, Server) {
    let master = Server::start().await;
    let replica = replica_of(&master).await;
    (master, replica)
}

/// Waits until the replica knows the lock at `key`.
async fn knows(replica: &Server, key: &str) {
    let mut admin = replica.admin().await;
    eventually("the replica knows the lock", async || {
        admin.run(&format!("EXISTS {key}")).await
    })
    .await;
}

#[tokio::test]
async fn holds_and_waits_go_on_at_the_next_master() {
    let (master, replica) = pair().await;
    let sentinel = Sentinel::of(&master).await;
    let (holder, waiter) = (sentinel.client().await, sentinel.client().await);
    let guard = holder.mutex("k").lock().await.unwrap();
    let fence = guard.fence();
    let waiting = tokio::spawn({
        let mutex = waiter.mutex("k");
        async move { mutex.lock().await.unwrap() }
    });
    master.admin().await.queued(1).await;
    knows(&replica, "k").await;
    let mut admin = Admin::connect(&url(sentinel.port())).await.unwrap();
    eventually("the fail-over begins", async || {
        admin.ask::<()>("SENTINEL FAILOVER locks").await.is_ok()
    })
    .await;
    sentinel.names(replica.port()).await;
    let mut next = replica.admin().await;
    next.queued(1).await;
    // What the old master is still told, it forgets when it becomes a replica.
    eventually("the holder is there, too", async || {
        holder.metrics().reconnects > 0
    })
    .await;
    assert!(guard.is_valid() && guard.fence() == fence && !waiting.is_finished());
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.is_valid() && guard.fence() > fence);
    assert!(next.run::<bool>("EXISTS k").await);
}

#[tokio::test]
async fn a_server_that_sentinels_do_not_name_any_more_is_asked_for_nothing() {
    let (master, replica) = pair().await;
    let sentinel = Sentinel::of(&master).await;
    let client = sentinel.client().await;
    let kept = client.mutex("kept").lock().await.unwrap();
    knows(&replica, "kept").await;
    master.signal("-STOP");
    sentinel.names(replica.port()).await;
    // Asked for while the old master stalls, and granted by the new one.
    let mutex = client.mutex("k");
    let guard = tokio::time::timeout(PATIENCE, mutex.lock()).await;
    let guard = guard.unwrap().unwrap();
    assert!(kept.is_valid());
    master.signal("-CONT");
    guard.release().await.unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    kept.release().await.unwrap();
    eventually("the old master is a replica", async || {
        // The Sentinel ends the connections to it.
        let info = async {
            let mut old = Admin::connect(&master.url()).await?;
            old.ask::<String>("INFO replication").await
        };
        let is_linked = |info: String| info.contains("role:slave") && info.contains("status:up");
        info.await.is_ok_and(is_linked)
    })
    .await;
    // It may have read what was sent before it stalled, but nothing later.
    let calls = master.admin().await.calls().await;
    assert!(!calls.contains_key("rlock.release"), "{calls:?}");
    assert!(!mutex.is_locked().await.unwrap());
}

#[tokio::test]
async fn one_sentinel_that_knows_the_master_is_enough() {
    let (master, _replica) = pair().await;
    let sentinel = Sentinel::of(&master).await;
    let (nobody, known) = (url(free_port()), url(sentinel.port()));
    let both = together("sentinel", &[&nobody, &known]);
    let connect = |path: &str| {
        let builder = Client::builder().response_timeout(Duration::from_millis(500));
        builder.connect(format!("{both}/{path}"))
    };
    let client = connect("locks/3").await.unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    let mut admin = master.admin().await;
    let _: () = admin.run("SELECT 3").await;
    assert!(admin.run::<bool>("EXISTS k").await);
    guard.release().await.unwrap();
    let unknown = connect("other").await.unwrap_err();
    assert!(matches!(unknown, Error::Connect(_)), "{unknown:?}");
    let nobody = Client::connect(Servers::Sentinels {
        sentinels: Vec::new(),
        sentinel_login: Login::default(),
        master: "locks".to_owned(),
        tls: None,
        login: Login::default(),
    });
    let refused = nobody.await.unwrap_err();
    assert!(matches!(refused, Error::OutOfRange { .. }), "{refused:?}");
    let blocking = tokio::task::spawn_blocking(move || {
        let client = rlock_client::blocking::Client::connect(format!(
            "{}/locks",
            together("sentinel", &[known])
        ));
        client.unwrap().mutex("k").lock().unwrap().fence()
    });
    assert!(blocking.await.unwrap() > 0);
}

#[tokio::test]
async fn the_newest_word_counts_where_sentinels_disagree() {
    let (master, replica) = pair().await;
    let sentinel = Sentinel::of(&master).await;
    master.signal("-KILL");
    sentinel.names(replica.port()).await;
    // It has not heard of the fail-over, and nobody can tell it.
    let stale = Sentinel::start(master.port(), 1, "").await;
    let sentinels = [url(stale.port()), url(sentinel.port())];
    let client = Client::connect(format!("{}/locks", together("sentinel", &sentinels))).await;
    let guard = client.unwrap().mutex("k").lock().await.unwrap();
    assert!(replica.admin().await.run::<bool>("EXISTS k").await);
    guard.release().await.unwrap();
    let alone = Client::connect(format!("{}/locks", together("sentinel", &sentinels[..1]))).await;
    assert!(alone.unwrap_err().is_transient());
}

/// One of them announces host names, and so spells the address differently.
#[tokio::test]
async fn a_server_is_kept_while_sentinels_spell_its_address_differently() {
    let master = Server::start().await;
    let by_ip = Sentinel::start(master.port(), 1, "").await;
    let names = "sentinel resolve-hostnames yes\nsentinel announce-hostnames yes";
    let by_name = Sentinel::start(master.port(), 1, names).await;
    let mut admin = Admin::connect(&by_name.url()).await.unwrap();
    let _: () = admin.run("SENTINEL REMOVE locks").await;
    let monitor = format!("SENTINEL MONITOR locks localhost {} 1", master.port());
    let _: () = admin.run(&monitor).await;
    let named = "SENTINEL GET-MASTER-ADDR-BY-NAME locks";
    assert_eq!(admin.run::<(String, u16)>(named).await.0, "localhost");
    let proxies = [
        Proxy::to(by_ip.port()).await,
        Proxy::to(by_name.port()).await,
    ];
    let urls = proxies.each_ref().map(Proxy::url);
    let client = Client::connect(format!("{}/locks", together("sentinel", &urls))).await;
    let client = client.unwrap();
    let terms = Terms::new().bound(Duration::ZERO).unwrap();
    let guard = client.mutex("k").with(terms).lock().await.unwrap();
    for silent in [0, 1] {
        proxies[silent].set(Weather::Fog);
        let other = &proxies[1 - silent];
        other.forget();
        eventually("the other is asked several times", async || {
            let requests = String::from_utf8_lossy(&other.requests()).into_owned();
            requests.matches("GET-MASTER").count() >= 3
        })
        .await;
        proxies[silent].set(Weather::Fair);
    }
    assert_eq!(client.metrics().reconnects, 0);
    assert!(guard.is_valid());
}

#[test]
fn waits_go_on_within_a_second_of_the_next_masters_being_named() {
    on_a_calm_machine(async || {
        let (master, replica) = pair().await;
        let sentinel = Sentinel::of(&master).await;
        let (holder, waiter) = (sentinel.client().await, sentinel.client().await);
        let guard = holder.mutex("k").lock().await.unwrap();
        let waiting = tokio::spawn(async move { waiter.mutex("k").lock().await.unwrap() });
        master.admin().await.queued(1).await;
        knows(&replica, "k").await;
        master.signal("-KILL");
        sentinel.names(replica.port()).await;
        let named = Instant::now();
        // The Sentinel ends the connections to it once more.
        eventually("the wait goes on there", async || {
            let asked = async {
                let mut next = Admin::connect(&replica.url()).await?;
                next.ask::<String>("INFO rlock").await
            };
            asked
                .await
                .is_ok_and(|info| info.contains("rlock_waiters:1"))
        })
        .await;
        let late = named.elapsed();
        assert!(late < Duration::from_secs(1), "{late:?}");
        guard.release().await.unwrap();
        let _guard = tokio::time::timeout(PATIENCE, waiting)
            .await
            .unwrap()
            .unwrap();
    });
}

#[tokio::test]
async fn what_is_wrong_is_said_with_the_sentinels_addresses() {
    let (master, _replica) = pair().await;
    let sentinel = Sentinel::of(&master).await;
    let nobody = free_port();
    let sentinels = [url(nobody), url(sentinel.port())];
    let error = Client::connect(format!("{}/other", together("sentinel", &sentinels))).await;
    let said = error.unwrap_err().to_string();
    let (one, two) = (
        format!("127.0.0.1:{nobody}: "),
        format!("127.0.0.1:{}: ", sentinel.port()),
    );
    assert!(said.contains(&one) && said.contains(&two), "{said}");
    assert!(
        said.contains("no master of this name") && said.contains("other"),
        "{said}"
    );
}
