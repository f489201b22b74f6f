//! Locks in a cluster: keys of one slot, and slots that move.

use crate::contest::{Contest, wait_for};
use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::{Client, Subscriber, eventually};

/// The slot of `k`.
pub(crate) const SLOT: u16 = 7629;

#[track_caller]
pub(crate) fn await_cluster(server: &Server) {
    eventually("the cluster is up", || {
        server.ask("CLUSTER INFO").contains("cluster_state:ok")
    });
}

/// A cluster of one node.
pub(crate) fn one_node() -> Server {
    let server = Server::configured(&["cluster-enabled yes"]);
    assert_eq!(server.ask("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    await_cluster(&server);
    server
}

/// A cluster of two nodes; the first has all slots.
pub(crate) fn two_nodes() -> (Server, Server) {
    let (first, second) = (one_node(), Server::configured(&["cluster-enabled yes"]));
    let meet = format!("CLUSTER MEET 127.0.0.1 {}", first.port());
    assert_eq!(second.ask(&meet), "OK");
    let know_each_other = |server: &Server| server.ask("CLUSTER INFO").contains("known_nodes:2");
    eventually("the nodes know each other", || {
        know_each_other(&first) && know_each_other(&second)
    });
    await_cluster(&second);
    (first, second)
}

/// A replica of one node of the cluster, optionally with the module.
pub(crate) fn replica_of(master: &Server, has_module: bool) -> Server {
    let setup = Setup::new().line("cluster-enabled yes");
    let setup = if has_module {
        setup
    } else {
        setup.without_module()
    };
    let replica = setup.start();
    let meet = format!("CLUSTER MEET 127.0.0.1 {}", master.port());
    assert_eq!(replica.ask(&meet), "OK");
    let replicate = format!("CLUSTER REPLICATE {}", master.ask("CLUSTER MYID"));
    eventually("the replica knows its master", || {
        replica.ask(&replicate) == "OK"
    });
    eventually("the replica follows", || {
        replica.info("replication", "master_link_status") == "up"
    });
    await_cluster(&replica);
    replica
}

/// Starts to move the slot of `k`: from now on, a node redirects requests for a key that it lacks to the other node.
pub(crate) fn begin_move(from: &Server, to: &Server) {
    let id = |server: &Server| server.ask("CLUSTER MYID");
    let importing = format!("CLUSTER SETSLOT {SLOT} IMPORTING {}", id(from));
    assert_eq!(to.ask(&importing), "OK");
    let migrating = format!("CLUSTER SETSLOT {SLOT} MIGRATING {}", id(to));
    assert_eq!(from.ask(&migrating), "OK");
}

/// Moves all keys of the slot of `k`, as a cluster's tools do. After that, only the new place of the slot must be
/// announced.
pub(crate) fn move_keys(from: &Server, to: &Server) {
    loop {
        let keys = from.ask(&format!("CLUSTER GETKEYSINSLOT {SLOT} 100"));
        let keys = keys.trim_matches(['[', ']']);
        if keys.is_empty() {
            return;
        }
        let migrate = format!("MIGRATE 127.0.0.1 {} \"\" 0 5000 KEYS {keys}", to.port());
        assert_eq!(from.ask(&migrate), "OK");
    }
}

pub(crate) fn announce_slot(from: &Server, to: &Server) {
    let owner = format!("CLUSTER SETSLOT {SLOT} NODE {}", to.ask("CLUSTER MYID"));
    assert_eq!(to.ask(&owner), "OK");
    assert_eq!(from.ask(&owner), "OK");
}

#[test]
fn keys_of_one_request_share_a_slot() {
    let server = one_node();
    assert_eq!(server.ask("CLUSTER KEYSLOT k"), SLOT.to_string());
    let a = server.client();
    for line in [
        "RLOCK.MACQUIRE owner-a 60000 2 k1 k2",
        "RLOCK.MACQUIRE owner-a 60000 2 k1 k2 WAIT 0",
        "RLOCK.MRENEW owner-a 60000 2 k1 k2",
        "RLOCK.MRELEASE owner-a 2 k1 k2",
    ] {
        let answer = a.ask(line);
        assert!(answer.starts_with("CROSSSLOT "), "{line}: {answer}");
    }
    assert_eq!(server.ask("DBSIZE"), "0");
    let fence = a.number("RLOCK.MACQUIRE owner-a 60000 3 {t}1 {t}2 {t}3");
    let waiter = wait_for(&server, "{t}2", "owner-b", 1);
    assert_eq!(a.ask("RLOCK.MRENEW owner-a 60000 3 {t}3 {t}2 {t}1"), "3");
    assert_eq!(a.ask("RLOCK.MRELEASE owner-a 3 {t}1 {t}2 {t}3"), "3");
    assert!(waiter.fence() > fence);
}

#[test]
fn keys_of_another_node_are_redirected() {
    let (first, second) = two_nodes();
    for line in [
        "RLOCK.ACQUIRE k owner-a 60000",
        "RLOCK.ACQUIRE k owner-a 60000 WAIT 0",
        "RLOCK.RENEW k owner-a 60000",
        "RLOCK.RELEASE k owner-a",
        "RLOCK.DOWNGRADE k owner-a",
        "RLOCK.CANCEL k owner-a",
        "RLOCK.FORCE k",
        "RLOCK.INFO k",
        "RLOCK.MACQUIRE owner-a 60000 2 {k}1 k WAIT 0",
        "RLOCK.MRENEW owner-a 60000 1 k",
        "RLOCK.MRELEASE owner-a 1 k",
    ] {
        let answer = second.ask(line);
        let moved = format!("MOVED {SLOT} 127.0.0.1:{}", first.port());
        assert_eq!(answer, moved, "{line}");
    }
    assert_eq!(second.counter("acquires"), 0);
}

/// The waiters of a lock that moves are notified, or at least never granted it here.
fn assert_not_granted(client: &Client, what: &str) {
    if let Some(answer) = client.reply_by_now() {
        let answer = rlock_testkit::client::text(&answer);
        let refused = ["MOVED ", "TRYAGAIN ", "UNBLOCKED "];
        assert!(
            refused.iter().any(|word| answer.starts_with(word)),
            "{what}: {answer}"
        );
    }
}

#[test]
fn lock_whose_slot_moves_is_never_granted_where_it_was() {
    for mode in ["", " SHARED"] {
        let (first, second) = two_nodes();
        let a = first.client();
        let fence = a.number(&format!("RLOCK.ACQUIRE k owner-a 60000{mode}"));
        let mut subscriber = first.listen(&["c"]);
        let writer = wait_for(&first, "k", "owner-w", 1);
        let limited = first.client();
        limited.send("RLOCK.ACQUIRE k owner-s 60000 SHARED LIMIT 3 PERMITS 3 WAIT 0");
        first.await_queued("k", 2);
        let several = first.client();
        several.send("RLOCK.MACQUIRE owner-m 60000 2 k {k}2 WAIT 0");
        first.await_queued("k", 3);
        let n = first.client();
        assert_eq!(
            n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c"),
            "WAITING"
        );
        let hash = first.hash("k");
        begin_move(&first, &second);
        move_keys(&first, &second);
        announce_slot(&first, &second);
        eventually("the first node knows", || {
            first.ask("RLOCK.INFO k").starts_with("MOVED ")
        });
        // The lock has arrived unchanged, and works there.
        let b = second.client();
        assert_eq!(second.hash("k"), hash);
        assert_eq!(b.number("RLOCK.RENEW k owner-a 60000"), fence);
        assert_eq!(b.ask("RLOCK.ACQUIRE k owner-b 60000"), "nil");
        assert_eq!(b.ask("RLOCK.RELEASE k owner-a"), "0");
        assert!(b.number("RLOCK.ACQUIRE k owner-b 60000") > fence);
        for (what, client) in [
            ("writer", &writer),
            ("limited", &limited),
            ("several", &several),
        ] {
            assert_not_granted(client, what);
        }
        let granted = subscriber.messages();
        assert!(
            !granted.iter().any(|it| it.contains("grant ")),
            "{granted:?}"
        );
        assert_eq!(second.owners("k"), ["owner-b"]);
    }
}

#[test]
fn cluster_of_one_node_serves_its_slots() {
    let server = Server::configured(&["cluster-enabled yes"]);
    assert!(
        server
            .ask("RLOCK.ACQUIRE k owner-a 60000")
            .starts_with("CLUSTERDOWN ")
    );
    assert_eq!(server.ask("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    await_cluster(&server);
    let contest = Contest::on(&server);
    let channel = ["redisson_lock__channel:{k}"];
    let mut subscriber = Subscriber::listen(server.port(), "SSUBSCRIBE", &channel);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    assert_eq!(contest.waiter.ask("RLOCK.RELEASE k owner-b"), "0");
    assert_eq!(subscriber.message(), "0");
}
