//! A client of a cluster: locks at all its masters, even when slots move and masters change.

use std::time::{Duration, Instant};

use rlock_client::{Address, Client, Error, Guard, Login, Loss, Servers, Terms};

use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server, eventually, free_port, together, url};
use rlock_testkit::cluster::Cluster;

/// How often the nodes have sent somebody elsewhere.
async fn redirections(cluster: &Cluster) -> u64 {
    let mut count = 0;
    for node in 0..cluster.urls().len() {
        let info: String = cluster.admin(node).await.run("INFO errorstats").await;
        let moved = info.lines().filter_map(|line| {
            let (error, rest) = line.strip_prefix("errorstat_")?.split_once(":count=")?;
            (error == "MOVED").then(|| rest.trim().parse::<u64>().unwrap())
        });
        count += moved.sum::<u64>();
    }
    count
}

async fn lock(client: &Client, key: &str) -> Guard {
    let lock = client.mutex(key);
    let guard = tokio::time::timeout(PATIENCE, lock.lock());
    guard.await.unwrap_or_else(|_| panic!("`{key}`")).unwrap()
}

/// A task that waits for `key`, once it is queued at `node`.
async fn waiter(cluster: &Cluster, node: usize, key: &str) -> tokio::task::JoinHandle<Guard> {
    let client = cluster.client().await;
    let key = key.to_owned();
    let waiter = tokio::spawn(async move { lock(&client, &key).await });
    cluster.admin(node).await.queued(1).await;
    waiter
}

async fn granted(waiter: tokio::task::JoinHandle<Guard>) -> Guard {
    tokio::time::timeout(PATIENCE, waiter)
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn every_master_is_asked_for_its_own_keys_and_by_one_connection() {
    let cluster = Cluster::start(3, 0).await;
    let client = cluster.client().await;
    for node in 0..3 {
        let key = cluster.key_at(node).await;
        let guard = lock(&client, &key).await;
        let waiter = waiter(&cluster, node, &key).await;
        guard.release().await.unwrap();
        let next = granted(waiter).await;
        assert!(client.mutex(&key).is_locked().await.unwrap());
        next.release().await.unwrap();
        let mine = cluster.admin(node).await.lock_clients().await.len();
        // Of this client and of the one that waits; the latter may be gone already.
        assert!((1..=2).contains(&mine), "{mine}");
    }
    assert_eq!(redirections(&cluster).await, 0);
    assert_eq!(client.metrics().reconnects, 0);
}

/// Released together, at masters of which one is not there any more.
#[tokio::test]
async fn a_master_that_is_away_keeps_no_key_of_another() {
    let mut cluster = Cluster::start(3, 0).await;
    let client = cluster.client().await;
    let mut keys = [String::new(), String::new()];
    for number in 0..1_000 {
        // In the order of their names.
        let key = format!("{number:03}");
        match cluster.node_of(&key).await {
            0 if keys[0].is_empty() => keys[0] = key,
            1 if !keys[0].is_empty() && keys[1].is_empty() => keys[1] = key,
            _ => {}
        }
        if !keys[1].is_empty() {
            break;
        }
    }
    let guard = client.multi(&keys).lock().await.unwrap();
    let waiter = waiter(&cluster, 1, &keys[1]).await;
    let covers = "CONFIG SET cluster-require-full-coverage no";
    let _: () = cluster.admin(1).await.run(covers).await;
    cluster.kill(0);
    let releasing = tokio::spawn(guard.release());
    let next = granted(waiter).await;
    // The patience of a call is ten seconds.
    assert!(!releasing.is_finished());
    assert!(matches!(
        releasing.await.unwrap(),
        Err(Error::Unavailable { .. })
    ));
    next.release().await.unwrap();
}

/// It is cut off from the others only, and says of itself that the node serves no slots.
#[tokio::test]
async fn a_master_that_has_a_successor_is_asked_no_more() {
    let cluster = Cluster::start(3, 1).await;
    let client = cluster.client().await;
    let (key, other) = (cluster.key_at(0).await, cluster.key_at(1).await);
    let terms = Terms::new().lease(Duration::from_secs(20)).unwrap();
    let guard = client.mutex(&key).with(terms);
    let guard = guard.lock().await.unwrap();
    let waiter = waiter(&cluster, 0, &key).await;
    let elsewhere = lock(&client, &other).await;
    cluster.copied(0, 3).await;
    cluster.cut_off(0).await;
    let _: () = cluster
        .admin(3)
        .await
        .run("CLUSTER FAILOVER TAKEOVER")
        .await;
    let (renew, port) = (format!("RLOCK.RENEW {key} a 1"), cluster.server(3).port());
    eventually("the others know the successor", async || {
        let moved = cluster.admin(1).await.ask::<u64>(&renew).await;
        moved.unwrap_err().to_string().contains(&port.to_string())
    })
    .await;
    let renewed = async || cluster.admin(3).await.gauge("renewals").await > 0;
    eventually("renewed by the successor", renewed).await;
    assert!(guard.is_valid() && elsewhere.is_valid());
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// Without a host name to announce, the first setting makes it `?` and the second none.
#[tokio::test]
async fn servers_that_report_no_host_are_found() {
    let cluster = Cluster::start(3, 0).await;
    for preferred in ["hostname", "unknown-endpoint"] {
        for node in 0..3 {
            let prefer = format!("CONFIG SET cluster-preferred-endpoint-type {preferred}");
            let _: () = cluster.admin(node).await.run(&prefer).await;
        }
        let seed = together("cluster", &cluster.urls()[..1]);
        let client = Client::connect(seed).await.unwrap();
        for node in 0..3 {
            let key = cluster.key_at(node).await;
            let guard = lock(&client, &key).await;
            cluster
                .move_slot(cluster.slot_of(&key).await, node, (node + 1) % 3)
                .await;
            guard.release().await.unwrap();
            lock(&client, &key).await.release().await.unwrap();
        }
    }
}

/// One of them reports host names and the others addresses.
#[tokio::test]
async fn servers_that_report_hosts_differently_are_not_left() {
    let cluster = Cluster::start(3, 0).await;
    for node in 0..3 {
        let announce = "CONFIG SET cluster-announce-hostname localhost";
        let _: () = cluster.admin(node).await.run(announce).await;
    }
    let prefer = "CONFIG SET cluster-preferred-endpoint-type hostname";
    let _: () = cluster.admin(0).await.run(prefer).await;
    eventually("the host names are known", async || {
        let slots: String = cluster.admin(0).await.run("CLUSTER NODES").await;
        slots.matches(",localhost").count() == 3
    })
    .await;
    let client = cluster.client().await;
    let mut guards = Vec::new();
    for node in 0..3 {
        let mutex = client.mutex(cluster.key_at(node).await);
        let bound = Terms::new().bound(Duration::ZERO).unwrap();
        guards.push(mutex.with(bound).lock().await.unwrap());
    }
    // The test itself speaks RESP2, and the client RESP3.
    let connections = async || {
        let mut all = Vec::new();
        for node in 0..3 {
            let list: String = cluster.admin(node).await.run("CLIENT LIST").await;
            let lines = list.lines().filter(|line| line.contains("resp=3"));
            let ids = lines.filter_map(|line| line.split(' ').next());
            all.push(ids.map(str::to_owned).collect::<Vec<_>>());
        }
        all
    };
    let first = connections().await;
    let mut admin = cluster.admin(0).await;
    let asked = async |admin: &mut Admin| admin.calls().await.get("cluster|slots").copied();
    let before = asked(&mut admin).await.unwrap_or(0);
    eventually("the slots are asked for again", async || {
        asked(&mut admin)
            .await
            .is_some_and(|calls| calls > before + 1)
    })
    .await;
    assert_eq!(connections().await, first);
    assert!(guards.iter().all(Guard::is_valid));
}

#[tokio::test]
async fn a_master_that_nobody_needs_is_not_connected_to() {
    let cluster = Cluster::start(3, 0).await;
    let client = cluster.client().await;
    let key = cluster.key_at(2).await;
    lock(&client, &key).await.release().await.unwrap();
    let mut connections = Vec::new();
    for node in 0..3 {
        connections.push(cluster.admin(node).await.lock_clients().await.len());
    }
    assert!(
        connections[2] == 1 && connections.contains(&0),
        "{connections:?}"
    );
}

#[tokio::test]
async fn the_longest_queues_of_all_masters_are_listed() {
    let cluster = Cluster::start(2, 0).await;
    let client = cluster.client().await;
    let mut tasks = Vec::new();
    for node in 0..2 {
        let key = cluster.key_at(node).await;
        let guard = lock(&client, &key).await;
        tasks.push((guard, waiter(&cluster, node, &key).await));
    }
    assert_eq!(client.list(10).await.unwrap().len(), 2);
    assert_eq!(client.list(1).await.unwrap().len(), 1);
    for (guard, waiter) in tasks {
        let (key, fence) = (guard.key().to_vec(), guard.fence());
        assert_eq!(client.mutex(&key).force_release().await.unwrap(), 1);
        assert!(granted(waiter).await.fence() > fence);
    }
}

#[tokio::test]
async fn keys_of_several_masters_are_held_together() {
    let cluster = Cluster::start(3, 0).await;
    let client = cluster.client().await;
    let keys = [
        cluster.key_at(0).await,
        cluster.key_at(1).await,
        cluster.key_at(2).await,
    ];
    let guard = client.multi(&keys).lock().await.unwrap();
    for key in &keys {
        assert!(client.mutex(key).try_lock().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    for key in &keys {
        assert!(!client.mutex(key).is_locked().await.unwrap());
    }
}

#[tokio::test]
async fn holds_and_waits_go_with_their_slot() {
    let cluster = Cluster::start(2, 0).await;
    for is_atomic in [false, true] {
        let (from, to) = (usize::from(is_atomic), usize::from(!is_atomic));
        let key = cluster.key_at(from).await;
        let slot = cluster.slot_of(&key).await;
        let client = cluster.client().await;
        let lease = Terms::new().lease(Duration::from_secs(2)).unwrap();
        let guard = client.mutex(&key).with(lease).lock().await.unwrap();
        let (fence, owner) = (guard.fence(), guard.owner().clone());
        let waiter = waiter(&cluster, from, &key).await;
        if is_atomic {
            if !cluster.migrate_slots(slot..=slot, from, to).await {
                return;
            }
        } else {
            cluster.move_slot(slot, from, to).await;
        }
        cluster.admin(to).await.queued(1).await;
        // It is renewed there.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert!(guard.is_valid() && guard.fence() == fence);
        assert!(client.mutex(&key).is_held_by(&owner).await.unwrap());
        guard.release().await.unwrap();
        let next = granted(waiter).await;
        assert!(next.fence() > fence);
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_on_its_way_to_another_master_is_renewed_and_released_there() {
    let cluster = Cluster::start(2, 0).await;
    let key = cluster.key_at(0).await;
    let slot = cluster.slot_of(&key).await;
    let client = cluster.client().await;
    let lease = Terms::new().lease(Duration::from_secs(2)).unwrap();
    let mutex = client.mutex(&key).with(lease);
    let guard = mutex.lock().await.unwrap();
    cluster.begin_move(slot, 0, 1).await;
    cluster.move_keys(slot, 0, 1).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(guard.is_valid(), "renewed where its key is");
    guard.release().await.unwrap();
    // No connection stays of those that asked there.
    let mut importing = cluster.admin(1).await;
    eventually("they are closed", async || {
        importing.lock_clients().await.is_empty()
    })
    .await;
    // It is free, and an acquire waits until the slot has settled.
    let waits = mutex.lock_timeout(PATIENCE);
    let settles = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.finish_move(slot, 0, 1).await;
    };
    let (guard, ()) = tokio::join!(waits, settles);
    guard.unwrap().unwrap().release().await.unwrap();
    assert_eq!(cluster.node_of(&key).await, 1);
}

#[tokio::test]
async fn a_loss_is_told_at_the_master_that_has_the_slot_now() {
    let cluster = Cluster::start(2, 0).await;
    let key = cluster.key_at(0).await;
    let client = cluster.client().await;
    let lease = Terms::new().lease(Duration::from_secs(6)).unwrap();
    let guard = client.mutex(&key).with(lease).lock().await.unwrap();
    cluster.move_slot(cluster.slot_of(&key).await, 0, 1).await;
    let mut admin = cluster.admin(1).await;
    eventually("its loss is watched there", async || {
        admin.gauge("watches").await == 1
    })
    .await;
    let _: u64 = admin.run(&format!("RLOCK.FORCE {key}")).await;
    let told = tokio::time::timeout(Duration::from_millis(1500), guard.loss());
    assert_eq!(told.await.unwrap(), Loss::EndedByServer);
}

#[tokio::test]
async fn a_master_that_is_killed_takes_no_hold_and_no_wait_along() {
    let mut cluster = Cluster::start(3, 1).await;
    let key = cluster.key_at(0).await;
    let client = cluster.client().await;
    let lease = Terms::new().lease(Duration::from_secs(60)).unwrap();
    let guard = client.mutex(&key).with(lease).lock().await.unwrap();
    let (fence, waiter) = (guard.fence(), waiter(&cluster, 0, &key).await);
    cluster.copied(0, 3).await;
    let other = cluster.key_at(1).await;
    cluster.kill(0);
    // What others have is not touched meanwhile.
    let begun = Instant::now();
    lock(&client, &other).await.release().await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    cluster.agreed().await;
    cluster.admin(3).await.queued(1).await;
    assert!(guard.is_valid() && guard.fence() == fence);
    guard.release().await.unwrap();
    assert!(granted(waiter).await.fence() > fence);
}

/// It does not know at first that it has a successor. So it ends the leases that it knows, and grants the locks to those
/// who waited; and the successor passes its messages on.
#[tokio::test]
async fn a_master_that_was_stopped_grants_and_ends_nothing_at_its_successor() {
    let cluster = Cluster::start(3, 1).await;
    let client = async || {
        let builder = Client::builder().response_timeout(Duration::from_millis(500));
        builder.connect(cluster.url()).await.unwrap()
    };
    let (holder, other) = (client().await, client().await);
    let tag = cluster.key_at(0).await;
    let lease = Duration::from_secs(8);
    let terms = Terms::new().lease(lease).unwrap();
    let (mut guards, mut waiters) = (Vec::new(), tokio::task::JoinSet::new());
    for number in 0..40 {
        let key = format!("{{{tag}}}{number}");
        let guard = holder.mutex(&key).with(terms).lock().await;
        guards.push(guard.unwrap());
        let mutex = other.mutex(&key).with(terms);
        waiters.spawn(async move { mutex.lock().await });
    }
    cluster.admin(0).await.queued(40).await;
    cluster.copied(0, 3).await;
    cluster.server(0).signal("-STOP");
    let stopped = Instant::now();
    let mut successor = cluster.admin(3).await;
    let _: () = successor.run("CLUSTER FAILOVER TAKEOVER").await;
    successor.queued(40).await;
    eventually("the successor reports their losses", async || {
        successor.gauge("watches").await == 80
    })
    .await;
    tokio::time::sleep(lease.saturating_sub(stopped.elapsed())).await;
    cluster.server(0).signal("-CONT");
    cluster.agreed().await;
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    let granted = std::iter::from_fn(|| waiters.try_join_next()).count();
    assert_eq!((lost, granted), (0, 0));
    drop(guards);
    while let Some(guard) = waiters.join_next().await {
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_fail_over_by_hand_takes_no_hold_and_no_wait_along() {
    let cluster = Cluster::start(3, 1).await;
    let key = cluster.key_at(0).await;
    let client = cluster.client().await;
    let guard = lock(&client, &key).await;
    let (fence, waiter) = (guard.fence(), waiter(&cluster, 0, &key).await);
    cluster.fail_over(3).await;
    cluster.admin(3).await.queued(1).await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert!(granted(waiter).await.fence() > fence);
}

/// The server says in between its replies that a channel's slot has gone.
#[tokio::test]
async fn no_reply_is_taken_for_another_when_the_slot_of_the_channel_moves() {
    let cluster = Cluster::start(2, 0).await;
    let client = cluster.client().await;
    let key = cluster.key_at(0).await;
    let guard = lock(&client, &key).await;
    let (mut admin, mut target) = (cluster.admin(0).await, cluster.admin(1).await);
    let channels: Vec<String> = admin.run("PUBSUB SHARDCHANNELS rlock:client:*").await;
    let slot = cluster.slot_of(&channels[0]).await;
    assert_ne!(slot, cluster.slot_of(&key).await);
    cluster.begin_move(slot, 0, 1).await;
    let id: String = target.run("CLUSTER MYID").await;
    // While the server is busy, requests arrive that it reads after it has given the slot away.
    let busy = "local t = redis.call('TIME'); local e = t[1] * 1000000 + t[2] + 300000; \
                repeat t = redis.call('TIME') until t[1] * 1000000 + t[2] >= e";
    let mut commands = redis::pipe();
    commands.cmd("EVAL").arg(busy).arg(0);
    commands
        .cmd("CLUSTER")
        .arg("SETSLOT")
        .arg(slot)
        .arg("NODE")
        .arg(id);
    let moving = tokio::spawn(async move {
        commands
            .query_async::<(redis::Value, String)>(&mut admin.0)
            .await
            .unwrap();
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let asked = (0..8).map(|_| async {
        let mutex = client.mutex(&key);
        let info = client.mutex(&key);
        tokio::join!(async { mutex.try_lock().await.unwrap() }, async {
            info.info().await.unwrap()
        })
    });
    for (granted, info) in futures_util::future::join_all(asked).await {
        assert!(granted.is_none(), "{granted:?}");
        assert_eq!(info.holders.len(), 1);
        assert_eq!(info.holders[0].fence, Some(guard.fence()));
    }
    moving.await.unwrap();
    assert_eq!(client.metrics().reconnects, 1);
    cluster.finish_move(slot, 0, 1).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_bound_hold_goes_with_its_slot_and_its_bond_too() {
    let cluster = Cluster::start(2, 0).await;
    let key = cluster.key_at(0).await;
    let client = cluster.client().await;
    let bound = Terms::new().bound(Duration::from_secs(2)).unwrap();
    let guard = client.mutex(&key).with(bound).lock().await.unwrap();
    cluster.move_slot(cluster.slot_of(&key).await, 0, 1).await;
    let mut admin = cluster.admin(1).await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(guard.is_valid(), "its bond was renewed at the other master");
    let info: redis::Value = admin.run(&format!("RLOCK.INFO {key}")).await;
    assert!(format!("{info:?}").contains("bound"), "{info:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_is_no_cluster_is_said_with_its_address() {
    let server = Server::start().await;
    let error = Client::connect(together("cluster", &[server.url()]))
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&format!("127.0.0.1:{}", server.port())),
        "{text}"
    );
    assert!(text.contains("cluster support disabled"), "{text}");
    assert!(!error.is_transient());
    let (one, two) = (free_port(), free_port());
    let error = Client::connect(together("cluster", &[url(one), url(two)]))
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&one.to_string()) && text.contains(&two.to_string()),
        "{text}"
    );
    assert!(error.is_transient());
    let login = Login {
        database: 3,
        ..Login::default()
    };
    let (path, address) = ("/tmp/s".into(), "redis://127.0.0.1/".parse::<Servers>());
    let address = address.unwrap().addresses()[0].clone();
    for (nodes, login, said) in [
        (vec![], Login::default(), "at least one"),
        (vec![Address::Unix { path }], Login::default(), "over TCP"),
        (vec![address], login, "database 0"),
    ] {
        let error = Client::connect(Servers::Cluster { nodes, login })
            .await
            .unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test]
async fn a_cluster_that_is_down_is_waited_for_no_longer_than_the_caller_said() {
    let mut cluster = Cluster::start(3, 0).await;
    let client = cluster.client().await;
    let key = cluster.key_at(0).await;
    lock(&client, &key).await.release().await.unwrap();
    cluster.kill(1);
    let mut admin = cluster.admin(0).await;
    eventually("the cluster is down", async || {
        let info: String = admin.run("CLUSTER INFO").await;
        info.contains("cluster_state:fail")
    })
    .await;
    let begun = Instant::now();
    let wait = Duration::from_secs(1);
    let error = client.mutex(&key).lock_timeout(wait).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.is_transient() && begun.elapsed() < Duration::from_secs(4));
}

/// Each of two masters says that the other one has the slot.
#[tokio::test]
async fn masters_that_name_each_other_are_asked_with_pauses_and_no_longer_than_the_caller_said() {
    let cluster = Cluster::start(2, 0).await;
    let key = cluster.key_at(0).await;
    let (slot, client) = (cluster.slot_of(&key).await, cluster.client().await);
    let id: String = cluster.admin(1).await.run("CLUSTER MYID").await;
    let given = format!("CLUSTER SETSLOT {slot} NODE {id}");
    let _: () = cluster.admin(0).await.run(&given).await;
    let begun = Instant::now();
    let wait = Duration::from_secs(1);
    let error = client.mutex(&key).lock_timeout(wait).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    let asked = redirections(&cluster).await;
    assert!((2..100).contains(&asked), "{asked} times");
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { lock(&client, &key).await }
    });
    let _: () = cluster.admin(1).await.run(&given).await;
    granted(waiting).await.release().await.unwrap();
}
