//! What replicas receive: plain data commands, and the unlock messages.

use crate::contest::Contest;
use rlock_testkit::Setup;
use rlock_testkit::client::{Client, Subscriber, eventually, text};
use rlock_testkit::{Server, replicated};

/// Waits until the replica has all data of the primary.
#[track_caller]
pub(crate) fn await_in_step(primary: &Server, replica: &Server) {
    eventually("the replica has caught up", || {
        primary.ask("DEBUG DIGEST") == replica.ask("DEBUG DIGEST")
            && primary.info("replication", "master_repl_offset")
                == replica.info("replication", "master_repl_offset")
    });
}

/// A lock's hash and the time of its end.
fn data(server: &Server, key: &str) -> (String, String) {
    (
        server.ask(&format!("HGETALL {key}")),
        server.ask(&format!("PEXPIRETIME {key}")),
    )
}

#[test]
fn replica_that_attaches_under_load_misses_nothing() {
    let primary = Server::start();
    let replica = Server::start();
    let a = primary.client();
    a.number("RLOCK.ACQUIRE k0 owner-a 60000");
    replica.ask(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let mut taken = 0;
    eventually("the replica follows", || {
        taken += 1;
        a.number(&format!("RLOCK.ACQUIRE k{taken} owner-a 60000"));
        a.ask(&format!("RLOCK.RELEASE k{} owner-a", taken - 1));
        replica.info("replication", "master_link_status") == "up"
    });
    await_in_step(&primary, &replica);
    assert_eq!(replica.ask("DBSIZE"), "1");
}

#[test]
fn lease_end_with_a_waiter_leaves_both_sides_equal() {
    let (primary, replica) = replicated();
    for _ in 0..20 {
        let contest = Contest::on(&primary);
        contest.holder.number("RLOCK.RENEW k owner-a 10");
        contest.assert_handed_over();
        await_in_step(&primary, &replica);
        assert!(replica.ask("HGETALL k").starts_with("[owner-b 1 "));
        primary.ask("RLOCK.FORCE k");
    }
}

#[test]
fn unlock_message_reaches_subscribers_of_the_replica() {
    let (primary, replica) = replicated();
    let mut subscriber = replica.listen_to_unlocks();
    let mut sharded = Subscriber::listen(
        replica.port(),
        "SSUBSCRIBE",
        &["redisson_lock__channel:{k}"],
    );
    primary.connection().number("RLOCK.ACQUIRE k owner-a 60000");
    primary.ask("RLOCK.RELEASE k owner-a");
    assert_eq!(subscriber.message(), "0");
    primary.ask("CONFIG SET rlock.publish spublish");
    primary.connection().number("RLOCK.ACQUIRE k owner-a 60000");
    primary.ask("RLOCK.RELEASE k owner-a");
    assert_eq!(sharded.message(), "0");
}

#[test]
fn replica_refuses_changes_and_answers_questions() {
    let (primary, replica) = replicated();
    let contest = Contest::on(&primary);
    await_in_step(&primary, &replica);
    for change in [
        "RLOCK.ACQUIRE k owner-a 60000",
        "RLOCK.ACQUIRE free owner-a 60000 WAIT 0",
        "RLOCK.ACQUIRE k owner-c 60000 WAIT 0 NOTIFY c",
        "RLOCK.RENEW k owner-a 60000",
        "RLOCK.RELEASE k owner-a",
        "RLOCK.FORCE k",
    ] {
        let answer = replica.ask(change);
        assert!(answer.starts_with("READONLY "), "{change}: {answer}");
    }
    assert_eq!(replica.counter("waiters"), 0);
    let info = replica.ask("RLOCK.INFO k");
    assert!(
        info.contains("mode exclusive") && info.contains("owner-a"),
        "{info}"
    );
    assert!(
        info.contains("queued 0"),
        "queues are not replicated: {info}"
    );
    drop(contest);
}

#[test]
fn replica_never_ends_a_hold_by_itself() {
    let (primary, replica) = replicated();
    let a = primary.client();
    a.number("RLOCK.ACQUIRE k owner-a 1500");
    await_in_step(&primary, &replica);
    // The primary sends nothing for more than a lease.
    primary.signal("STOP");
    eventually("the lease is over", || {
        replica.ask("RLOCK.INFO k").contains("mode free")
    });
    assert_eq!(replica.ask("DBSIZE"), "1");
    primary.signal("CONT");
    eventually("the primary removes it", || {
        primary.ask("EXISTS k");
        replica.ask("DBSIZE") == "0"
    });
}

#[test]
fn replica_of_a_replica_has_the_same_data() {
    let (primary, replica) = replicated();
    let second = Setup::new().replica_of(&replica).start();
    eventually("it follows", || {
        second.info("replication", "master_link_status") == "up"
    });
    let mut subscriber = second.listen_to_unlocks();
    crate::kept_holds::exercise(&primary);
    await_in_step(&primary, &replica);
    await_in_step(&replica, &second);
    assert_eq!(data(&primary, "shared"), data(&second, "shared"));
    assert_eq!(subscriber.message(), "0");
}

#[test]
fn writes_of_timers_are_replicated_to_the_database_of_their_lock() {
    let (primary, replica) = replicated();
    let (a, b): (Client, Client) = (primary.client(), primary.client());
    a.ask("SELECT 7");
    b.ask("SELECT 7");
    a.number("RLOCK.ACQUIRE k owner-a 30");
    b.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    b.fence();
    primary.ask("SET unrelated 1");
    await_in_step(&primary, &replica);
    let there = replica.client();
    there.ask("SELECT 7");
    assert!(there.ask("HGETALL k").starts_with("[owner-b 1 "));
}

#[test]
fn expired_hold_taken_by_another_owner_leaves_both_sides_equal() {
    let (primary, replica) = replicated();
    let a = primary.client();
    for _ in 0..20 {
        a.number("RLOCK.ACQUIRE k owner-a 1");
        eventually("another gets in", || {
            a.ask("RLOCK.ACQUIRE k owner-b 60000") != "nil"
        });
        await_in_step(&primary, &replica);
        assert_eq!(replica.ask("HLEN k"), "2");
        assert_eq!(replica.ask("HGET k owner-b"), "1");
        a.ask("RLOCK.FORCE k");
    }
}

#[test]
fn lease_that_ends_within_a_script_leaves_both_sides_equal() {
    let (primary, replica) = replicated();
    // Some servers stop the clock for the keys of a script.
    let script = "redis.call('RLOCK.ACQUIRE', KEYS[1], 'owner-a', '1') local sum = 0 \
        for number = 1, 2000000 do sum = sum + number end \
        return redis.call('RLOCK.ACQUIRE', KEYS[1], 'owner-b', '60000')";
    let fence = text(&primary.connection().call(&["EVAL", script, "1", "k"]));
    await_in_step(&primary, &replica);
    if fence != "nil" {
        assert_eq!(primary.ask("HGET k rlock:fence"), fence);
        assert_eq!(primary.ask("HLEN k"), "2");
    }
    eventually("the first lease is over", || {
        primary.ask("HGET k owner-a") == "nil"
    });
    await_in_step(&primary, &replica);
    assert_eq!(data(&primary, "k"), data(&replica, "k"));
}

/// Data written to a replica is gone after the next synchronization, and its master may have granted the lock.
#[test]
fn writable_replica_grants_no_locks() {
    let (primary, replica) = replicated();
    replica.ask("CONFIG SET replica-read-only no");
    for command in [
        "RLOCK.ACQUIRE k owner-a 60000",
        "RLOCK.ACQUIRE k owner-a 60000 WAIT 0",
        "RLOCK.RENEW k owner-a 60000",
        "RLOCK.RELEASE k owner-a",
        "RLOCK.FORCE k",
    ] {
        let answer = replica.ask(command);
        assert!(answer.starts_with("READONLY "), "{command}: {answer}");
    }
    replica.ask("REPLICAOF NO ONE");
    assert!(replica.connection().number("RLOCK.ACQUIRE k owner-a 60000") > 0);
    drop(primary);
}
