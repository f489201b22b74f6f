//! A server that changes its role, or stops writing for a while.

use crate::contest::{Contest, wait_for};
use crate::replication::await_in_step;
use rlock_testkit::client::eventually;
use rlock_testkit::{Server, replicated};
use rlock_testkit::{Setup, module};

#[test]
fn waiters_of_a_former_primary_are_granted_nothing_by_it() {
    let (primary, replica) = replicated();
    let contest = Contest::on(&primary);
    contest.holder.number("RLOCK.RENEW k owner-a 1500");
    await_in_step(&primary, &replica);
    replica.ask("REPLICAOF NO ONE");
    primary.ask(&format!("REPLICAOF 127.0.0.1 {}", replica.port()));
    assert!(contest.waiter.answer().starts_with("UNBLOCKED "));
    // The lease ends while there is no waiter.
    eventually("the lease has ended", || {
        replica.ask("RLOCK.INFO k").contains("mode free")
    });
    let granted = replica.connection().number("RLOCK.ACQUIRE k owner-c 60000");
    assert!(granted > contest.fence);
    eventually("the former primary follows", || {
        primary.ask("HGET k owner-c") == "1" && primary.ask("HGET k owner-b") == "nil"
    });
}

#[test]
fn failover_with_waiters_leaves_both_servers_well() {
    let (primary, replica) = replicated();
    let contest = Contest::on(&primary);
    contest.holder.number("RLOCK.RENEW k owner-a 1500");
    let mut subscriber = primary.listen(&["c"]);
    let n = primary.client();
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    await_in_step(&primary, &replica);
    assert_eq!(
        primary.ask(&format!("FAILOVER TO 127.0.0.1 {}", replica.port())),
        "OK"
    );
    eventually("the roles have changed", || {
        replica.info("replication", "role") == "master"
            && primary.info("replication", "role") == "slave"
            && primary.info("replication", "master_link_status") == "up"
    });
    let answer = contest.waiter.answer();
    assert!(answer.starts_with("UNBLOCKED "), "{answer}");
    assert_eq!(subscriber.message(), "withdrawn 0 owner-n k");
    eventually("the lease has ended", || {
        replica.ask("RLOCK.INFO k").contains("mode free")
    });
    assert!(replica.connection().number("RLOCK.ACQUIRE k owner-c 60000") > contest.fence);
    await_in_step(&replica, &primary);
}

#[test]
fn failover_that_waits_for_its_replica_survives_the_end_of_a_lease() {
    let (primary, replica) = replicated();
    let contest = Contest::on(&primary);
    contest.holder.number("RLOCK.RENEW k owner-a 300");
    await_in_step(&primary, &replica);
    // Writes are paused until the replica has caught up, which is impossible.
    replica.signal("STOP");
    primary.ask("SET something new");
    let failover = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 600", replica.port());
    assert_eq!(primary.ask(&failover), "OK");
    // The attempt ends after the lease; then the waiter gets its turn.
    contest.assert_handed_over();
    eventually("the failover is given up", || {
        primary.info("replication", "master_failover_state") == "no-failover"
    });
    replica.signal("CONT");
    await_in_step(&primary, &replica);
}

#[test]
fn paused_writes_delay_the_end_of_a_lease() {
    for (setup, pause) in [
        ("appendonly yes", "WRITE"),
        ("appendonly no", "WRITE"),
        ("appendonly yes", "ALL"),
    ] {
        let server = Server::configured(&[setup]);
        let contest = Contest::on(&server);
        let watch = server.client();
        let mut subscriber = server.listen(&["c"]);
        contest.holder.number("RLOCK.RENEW k owner-a 100");
        watch.number("RLOCK.ACQUIRE watched owner-w 100 NOTIFY c");
        assert_eq!(server.ask(&format!("CLIENT PAUSE 400 {pause}")), "OK");
        contest.assert_handed_over();
        assert!(subscriber.message().starts_with("lost "));
        assert_eq!(server.ask("HGET k owner-b"), "1");
    }
}

#[test]
fn nothing_is_handed_over_while_writes_are_paused() {
    let (primary, replica) = replicated();
    let contest = Contest::on(&primary);
    let n = primary.client();
    let mut subscriber = primary.listen(&["c"]);
    n.number("RLOCK.ACQUIRE held owner-n 50 NOTIFY c");
    contest.holder.number("RLOCK.RENEW k owner-a 50");
    primary.ask("CLIENT PAUSE 60000 WRITE");
    // The end of the lease, a disconnect and a request need a write, so they wait.
    n.send("RLOCK.ACQUIRE free owner-n 60000");
    eventually("the lease is over", || {
        primary.ask("RLOCK.INFO k").contains("mode free")
    });
    assert!(contest.waiter.reply_by_now().is_none());
    assert!(n.reply_by_now().is_none());
    primary.ask("CLIENT UNPAUSE");
    contest.assert_handed_over();
    n.fence();
    assert!(subscriber.message().starts_with("lost "));
    await_in_step(&primary, &replica);
}

#[test]
fn waiter_that_goes_while_writes_are_paused_leaves_the_queue() {
    let server = Server::configured(&["appendonly yes"]);
    let contest = Contest::on(&server);
    contest.holder.number("RLOCK.RENEW k owner-a 1000");
    server.ask("CLIENT PAUSE 60000 WRITE");
    server.ask(&format!("CLIENT KILL ID {}", contest.waiter.id()));
    eventually("nobody waits", || server.counter("waiters") == 0);
    eventually("the lease is over", || {
        server.ask("RLOCK.INFO k").contains("mode free")
    });
    server.ask("CLIENT UNPAUSE");
    assert!(server.connection().number("RLOCK.ACQUIRE k owner-c 60000") > contest.fence);
}

#[test]
fn replica_without_the_module_keeps_the_holds_until_the_module_is_loaded() {
    let mut primary = Server::start();
    let replica = Setup::new().without_module().replica_of(&primary).start();
    eventually("the replica follows", || {
        replica.info("replication", "master_link_status") == "up"
    });
    let contest = Contest::on(&primary);
    await_in_step(&primary, &replica);
    let end = primary.ask("PEXPIRETIME k");
    primary.kill();
    replica.ask("REPLICAOF NO ONE");
    let refused = replica.ask("RLOCK.RENEW k owner-a 60000");
    assert!(refused.starts_with("ERR unknown command"), "{refused}");
    assert_eq!(replica.ask("PEXPIRETIME k"), end);
    let load = format!("MODULE LOAD {}", module().display());
    assert_eq!(replica.ask(&load), "OK");
    let a = replica.client();
    assert_eq!(a.ask("RLOCK.ACQUIRE k owner-b 60000"), "nil");
    assert_eq!(a.number("RLOCK.RENEW k owner-a 60000"), contest.fence);
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
    assert!(a.number("RLOCK.ACQUIRE k owner-b 60000") > contest.fence);
}

#[test]
fn disconnected_replica_receives_what_it_missed() {
    let (primary, mut replica) = replicated();
    let contest = Contest::on(&primary);
    let last = wait_for(&primary, "k", "owner-c", 2);
    await_in_step(&primary, &replica);
    let synchronized = |how: &str| primary.info("stats", how).parse::<u64>().expect("a number");
    let (full, partial) = (synchronized("sync_full"), synchronized("sync_partial_ok"));
    replica.signal("STOP");
    assert_eq!(primary.ask("CLIENT KILL TYPE replica"), "1");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.number("RLOCK.RENEW k owner-b 10");
    let fence = last.fence();
    replica.signal("CONT");
    eventually("it asked for the rest", || {
        synchronized("sync_partial_ok") > partial
    });
    await_in_step(&primary, &replica);
    assert_eq!(synchronized("sync_full"), full);
    primary.signal("STOP");
    replica.ask("REPLICAOF NO ONE");
    assert_eq!(
        replica.connection().number("RLOCK.RENEW k owner-c 60000"),
        fence
    );
    replica.assert_well();
    primary.signal("CONT");
}

#[test]
fn waiters_are_served_during_a_full_synchronization() {
    for load in ["disabled", "swapdb"] {
        let primary = Server::configured(&["repl-diskless-sync yes", "rdb-key-save-delay 2000"]);
        for n in 0..500 {
            primary.ask(&format!("SET filler{n} value"));
        }
        let contest = Contest::on(&primary);
        let mut subscriber = primary.listen(&["c"]);
        let wait = "RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c";
        assert_eq!(contest.holder.ask(wait), "WAITING");
        let replica = Setup::new()
            .line(&format!("repl-diskless-load {load}"))
            .start();
        replica.ask(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
        eventually("the data are on their way", || {
            primary.info("persistence", "rdb_bgsave_in_progress") == "1"
        });
        contest.holder.ask("RLOCK.RELEASE k owner-a");
        contest.assert_handed_over();
        contest.waiter.number("RLOCK.RENEW k owner-b 10");
        let granted = subscriber.message();
        assert_eq!(primary.info("persistence", "rdb_bgsave_in_progress"), "1");
        eventually("the replica follows", || {
            replica.info("replication", "master_link_status") == "up"
        });
        await_in_step(&primary, &replica);
        replica.ask("REPLICAOF NO ONE");
        let fence = replica.connection().number("RLOCK.RENEW k owner-n 60000");
        assert_eq!(granted, format!("grant {fence} owner-n k"));
    }
}

/// Requests from before a demotion are withdrawn, even if the demotion is reversed at once; a repeated request stays.
#[test]
fn reversed_demotion_withdraws_no_later_request() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (a, n, bound) = (server.client(), server.client(), server.client());
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let ask = |number| format!("RLOCK.ACQUIRE k owner-{number} 60000 WAIT 0 NOTIFY c");
    for number in 0..600 {
        assert_eq!(n.ask(&ask(number)), "WAITING");
    }
    let turn = ["MULTI", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "EXEC"];
    for line in turn {
        a.ask(line);
    }
    bound.number("RLOCK.ACQUIRE bound owner-b 60000 BIND 0");
    for number in 0..600 {
        assert_eq!(
            subscriber.message(),
            format!("withdrawn 0 owner-{number} k")
        );
        assert_eq!(n.ask(&ask(number)), "WAITING");
    }
    assert_eq!(subscriber.messages(), [""; 0]);
    assert_eq!(server.queued("k"), 600);
    bound.close();
    eventually("the bound hold ends", || server.ask("EXISTS bound") == "0");
}
