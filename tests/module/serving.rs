//! A server that must not grant: its slot has moved or is moving, its cluster is down, or it has too few replicas.

use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::{announce_slot, await_cluster, begin_move, move_keys, two_nodes};
use crate::contest::wait_for;
use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::eventually;

#[test]
fn server_of_a_down_cluster_grants_nothing_even_if_reads_are_allowed() {
    let server = Server::configured(&["cluster-enabled yes", "cluster-allow-reads-when-down yes"]);
    assert_eq!(server.ask("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    await_cluster(&server);
    let mut subscriber = server.listen(&["c"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 3000");
    let queue = "RLOCK.ACQUIRE k owner-b 60000 WAIT 0 NOTIFY c";
    assert_eq!(a.ask(queue), "WAITING");
    assert_eq!(server.ask("CLUSTER DELSLOTS 0"), "OK");
    eventually("the cluster is down", || {
        a.ask("RLOCK.RENEW k nobody 60000")
            .starts_with("CLUSTERDOWN ")
    });
    // If the server notices the end of the lease first, the module counts the replicas when it may grant again.
    eventually("the lease has ended", || server.ask("EXISTS k") == "0");
    assert_eq!(subscriber.messages(), [""; 0]);
    assert_eq!(server.counter("waiters"), 1);
    assert_eq!(server.ask("CLUSTER ADDSLOTS 0"), "OK");
    await_cluster(&server);
    assert!(subscriber.message().starts_with("grant "));
}

#[test]
fn request_for_several_keys_is_not_granted_if_one_key_has_moved() {
    let (first, second) = two_nodes();
    let a = first.client();
    let mut subscriber = first.listen(&["c"]);
    a.number("RLOCK.ACQUIRE {k}held owner-a 60000");
    let queue = "RLOCK.MACQUIRE owner-m 60000 2 {k}held {k}free WAIT 0 NOTIFY c";
    assert_eq!(a.ask(queue), "WAITING");
    // No key has moved yet, but a new request is redirected to the other node.
    begin_move(&first, &second);
    let newcomer = first.ask("RLOCK.ACQUIRE {k}free owner-n 60000");
    assert!(newcomer.starts_with("ASK "), "{newcomer}");
    let n = second.client();
    assert_eq!(n.ask("ASKING"), "OK");
    n.number("RLOCK.ACQUIRE {k}free owner-n 60000");
    assert_eq!(a.ask("RLOCK.RELEASE {k}held owner-a"), "0");
    assert_eq!(subscriber.messages(), ["c: withdrawn 0 owner-m {k}held"]);
    assert_eq!(first.counter("waiters"), 0);
    assert_eq!(first.ask("DBSIZE"), "0");
    announce_slot(&first, &second);
}

#[test]
fn watch_of_a_loss_reports_that_the_slot_has_moved() {
    let (first, second) = two_nodes();
    let mut subscriber = first.listen(&["c"]);
    let (a, b) = (first.client(), first.client());
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
    assert_eq!(
        b.ask("RLOCK.ACQUIRE k owner-b 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    begin_move(&first, &second);
    move_keys(&first, &second);
    announce_slot(&first, &second);
    let mut received = [subscriber.message(), subscriber.message()];
    received.sort();
    assert_eq!(received, ["withdrawn 0 owner-a k", "withdrawn 0 owner-b k"]);
    assert_eq!(first.counter("watches"), 0);
    let there = second.client();
    assert_eq!(
        there.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c"),
        fence
    );
}

#[test]
fn slots_can_be_migrated_where_the_server_does_it_itself() {
    let (first, second) = two_nodes();
    if !first.is_valkey() || !first.is_at_least((99, 0), (9, 0)) {
        return;
    }
    let (a, b) = (first.client(), first.client());
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000");
    b.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    first.await_queued("k", 1);
    let slot = first.ask("CLUSTER KEYSLOT k");
    let to = second.ask("CLUSTER MYID");
    let migrated = first.ask(&format!(
        "CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to}"
    ));
    assert_eq!(migrated, "OK");
    let answer = b.answer();
    assert!(answer.starts_with("TRYAGAIN "), "{answer}");
    let there = second.client();
    eventually("the lock has arrived", || {
        there.ask("RLOCK.RENEW k owner-a 60000") == fence.to_string()
    });
}

/// A server that needs one connected replica, and its replica.
fn with_needed_replica() -> (Server, Server) {
    let primary = Server::configured(&["min-replicas-to-write 1", "min-replicas-max-lag 1"]);
    let replica = Setup::new().replica_of(&primary).start();
    await_good_replicas(&primary, 1);
    (primary, replica)
}

#[track_caller]
fn await_good_replicas(server: &Server, count: usize) {
    eventually("the number of replicas is as expected", || {
        server.info("replication", "min_slaves_good_slaves") == count.to_string()
    });
}

#[test]
fn server_without_the_replicas_that_it_needs_keeps_its_queue_waiting() {
    let (primary, replica) = with_needed_replica();
    let a = primary.client();
    eventually("writes are taken", || {
        !a.ask("RLOCK.ACQUIRE k owner-a 4000")
            .starts_with("NOREPLICAS ")
    });
    let b = wait_for(&primary, "k", "owner-b", 1);
    replica.signal("STOP");
    await_good_replicas(&primary, 0);
    eventually("the lease has ended", || {
        primary.counter("lease_expirations") == 1
    });
    assert_eq!(primary.queued("k"), 1);
    assert!(b.reply_by_now().is_none());
    replica.signal("CONT");
    assert!(b.fence() > 0);
}

#[test]
fn resumed_server_grants_nothing_before_it_has_counted_its_replicas() {
    let (primary, mut replica) = with_needed_replica();
    let a = primary.client();
    eventually("writes are taken", || {
        !a.ask("RLOCK.ACQUIRE k owner-a 1500")
            .starts_with("NOREPLICAS ")
    });
    let b = wait_for(&primary, "k", "owner-b", 1);
    primary.signal("STOP");
    let start = Instant::now();
    replica.kill();
    eventually("the lease is over", || {
        start.elapsed() > Duration::from_secs(3)
    });
    primary.signal("CONT");
    eventually("the lease has ended", || {
        primary.counter("lease_expirations") == 1
    });
    await_good_replicas(&primary, 0);
    assert_eq!(primary.queued("k"), 1);
    assert!(b.reply_by_now().is_none());
    assert_eq!(primary.ask("CONFIG SET min-replicas-to-write 0"), "OK");
    assert!(b.fence() > 0);
}

#[test]
fn server_with_too_few_replicas_serves_no_queue_whatever_ends() {
    let (primary, replica) = with_needed_replica();
    let bound = primary.client();
    eventually("writes are taken", || {
        !bound
            .ask("RLOCK.ACQUIRE bound owner-a 60000 BIND 0")
            .starts_with("NOREPLICAS ")
    });
    let a = primary.client();
    a.number("RLOCK.ACQUIRE permits owner-a 60000 SHARED LIMIT 3 PERMITS 2");
    let gone = primary.client();
    gone.send("RLOCK.ACQUIRE permits owner-b 60000 SHARED LIMIT 3 PERMITS 2 WAIT 0");
    primary.await_queued("permits", 1);
    let fitting = primary.client();
    fitting.send("RLOCK.ACQUIRE permits owner-c 60000 SHARED LIMIT 3 WAIT 0");
    primary.await_queued("permits", 2);
    let waiters = [wait_for(&primary, "bound", "owner-b", 1), fitting];
    replica.signal("STOP");
    await_good_replicas(&primary, 0);
    // A hold ends with its connection, and a waiter ahead disconnects.
    bound.close();
    gone.close();
    primary.await_queued("permits", 1);
    let refused = a.ask("RLOCK.CANCEL permits owner-c");
    assert!(refused.starts_with("NOREPLICAS "), "{refused}");
    // Twice the time for which the module uses a count, and longer than it waits for its next turn.
    let start = Instant::now();
    eventually("it had its turn", || {
        start.elapsed() > Duration::from_millis(300)
    });
    for waiter in &waiters {
        assert!(waiter.reply_by_now().is_none());
    }
    replica.signal("CONT");
    for waiter in &waiters {
        assert!(waiter.fence() > 0);
    }
}

/// Its cron ticks once a second, and that is no stall.
#[test]
fn server_with_a_slow_cron_and_the_replicas_that_it_needs_grants() {
    let (primary, _replica) = with_needed_replica();
    primary.ask("CONFIG SET hz 1");
    primary.ask("CONFIG SET min-replicas-max-lag 10");
    let a = primary.client();
    let start = Instant::now();
    let mut granted = 0;
    while start.elapsed() < Duration::from_secs(3) {
        let answer = a.ask("RLOCK.ACQUIRE k owner-a 60000");
        granted += u32::from(answer.parse::<i64>().is_ok());
        a.ask("RLOCK.RELEASE k owner-a");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(granted > 50, "{granted} of about 150 were granted");
}

#[test]
fn replicas_required_at_run_time_are_required_for_hand_offs() {
    let server = Server::start();
    server.client().number("RLOCK.ACQUIRE k owner-a 500");
    let b = wait_for(&server, "k", "owner-b", 1);
    server.ask("CONFIG SET min-replicas-to-write 1");
    eventually("the lease has ended", || {
        server.counter("lease_expirations") == 1
    });
    assert!(b.reply_by_now().is_none());
    server.ask("CONFIG SET min-replicas-to-write 0");
    assert!(b.fence() > 0);
}
