//! Slots that the servers migrate themselves, since Valkey 9.

use crate::cluster::{SLOT, replica_of, two_nodes};
use crate::contest::wait_for;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, Subscriber, eventually};

/// Two nodes that can migrate slots; the first has all slots.
fn two_migrating_nodes() -> Option<(Server, Server)> {
    let (first, second) = two_nodes();
    let can = first.ask("COMMAND INFO CLUSTER|MIGRATESLOTS") != "[nil]";
    can.then_some((first, second))
}

fn migrate(from: &Server, to: &Server) {
    let to = to.ask("CLUSTER MYID");
    let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {SLOT} {SLOT} NODE {to}");
    assert_eq!(from.ask(&line), "OK");
}

#[track_caller]
fn await_stage(from: &Server, stage: &str) {
    eventually("the migration has reached the stage", || {
        let migrations = from.ask("CLUSTER GETSLOTMIGRATIONS");
        migrations.contains(&format!(" state {stage} "))
    });
}

#[track_caller]
fn await_moved(from: &Server, to: &Server) {
    eventually("both nodes know where the slot is", || {
        from.ask("RLOCK.INFO k").starts_with("MOVED ")
            && !to.ask("RLOCK.INFO k").starts_with("MOVED ")
    });
}

/// Delays the end of the copying until `go_on` is called.
fn hold_up(from: &Server) {
    assert_eq!(from.ask("DEBUG SLOTMIGRATION PREVENT-PAUSE 1"), "OK");
}

fn go_on(from: &Server) {
    assert_eq!(from.ask("DEBUG SLOTMIGRATION PREVENT-PAUSE 0"), "OK");
}

#[test]
fn hand_offs_during_the_copy_of_a_slot_are_copied() {
    let Some((first, second)) = two_migrating_nodes() else {
        return;
    };
    let a = first.client();
    let keys = ["{k}1", "{k}2", "{k}3", "{k}4"];
    for key in keys {
        a.number(&format!("RLOCK.ACQUIRE {key} owner-a 60000"));
    }
    let bound = first.client();
    bound.number("RLOCK.ACQUIRE {k}4 owner-a 60000 BIND 0");
    let waiters = keys.map(|key| wait_for(&first, key, "owner-b", 1));
    hold_up(&first);
    migrate(&first, &second);
    await_stage(&first, "waiting-to-pause");
    // The waiters are granted by a command, by a timer, after a key event, and at the end of a connection.
    a.ask("RLOCK.RELEASE {k}1 owner-a");
    a.number("RLOCK.RENEW {k}2 owner-a 10");
    a.ask("DEL {k}3");
    bound.close();
    let fences = waiters.each_ref().map(Client::fence);
    go_on(&first);
    await_moved(&first, &second);
    let there = second.client();
    for (key, fence) in keys.iter().zip(fences) {
        assert_eq!(
            there.number(&format!("RLOCK.RENEW {key} owner-b 60000")),
            fence
        );
        assert_eq!(second.owners(key), ["owner-b"]);
    }
}

#[test]
fn waiters_and_watches_learn_of_a_migrated_slot() {
    let Some((first, second)) = two_migrating_nodes() else {
        return;
    };
    let a = first.client();
    let mut plain = first.listen(&["c"]);
    let mut sharded = Subscriber::listen(first.port(), "SSUBSCRIBE", &["here"]);
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000");
    let watched = a.number("RLOCK.ACQUIRE {k}w owner-w 60000 SNOTIFY here");
    a.number("RLOCK.ACQUIRE {k}v owner-v 60000 NOTIFY c");
    let end = first.ask("PEXPIRETIME k");
    let blocked = wait_for(&first, "k", "owner-b", 1);
    let several = first.client();
    several.send("RLOCK.MACQUIRE owner-m 60000 2 k {k}free WAIT 0");
    first.await_queued("k", 2);
    for (owner, how) in [("owner-n", "NOTIFY c"), ("owner-s", "SNOTIFY here")] {
        let wait = format!("RLOCK.ACQUIRE k {owner} 60000 WAIT 0 {how}");
        assert_eq!(a.ask(&wait), "WAITING");
    }
    migrate(&first, &second);
    for client in [&blocked, &several] {
        let answer = client.answer();
        assert!(answer.starts_with("TRYAGAIN "), "{answer}");
    }
    let mut received = [plain.message(), plain.message()];
    received.sort();
    assert_eq!(
        received,
        ["withdrawn 0 owner-n k", "withdrawn 0 owner-v {k}v"]
    );
    let mut received = [sharded.message(), sharded.message()];
    received.sort();
    assert_eq!(
        received,
        ["withdrawn 0 owner-s k", "withdrawn 0 owner-w {k}w"]
    );
    await_moved(&first, &second);
    for gauge in ["waiters", "watches"] {
        assert_eq!(first.counter(gauge), 0);
    }
    assert_eq!(second.ask("PEXPIRETIME k"), end);
    let there = second.client();
    assert_eq!(there.number("RLOCK.RENEW k owner-a 60000"), fence);
    assert_eq!(there.number("RLOCK.RENEW {k}w owner-w 60000"), watched);
    let next = wait_for(&second, "k", "owner-b", 1);
    assert_eq!(there.ask("RLOCK.RELEASE k owner-a"), "0");
    assert!(next.fence() > fence);
    assert_eq!([plain.messages(), sharded.messages()], [[""; 0]; 2]);
}

#[test]
fn cancelled_migration_changes_nothing() {
    let Some((first, second)) = two_migrating_nodes() else {
        return;
    };
    let a = first.client();
    let mut subscriber = first.listen(&["c"]);
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000");
    let watched = a.number("RLOCK.ACQUIRE {k}w owner-w 60000 NOTIFY c");
    let blocked = wait_for(&first, "k", "owner-b", 1);
    let wait = "RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c";
    assert_eq!(a.ask(wait), "WAITING");
    hold_up(&first);
    migrate(&first, &second);
    await_stage(&first, "waiting-to-pause");
    assert_eq!(first.ask("CLUSTER CANCELSLOTMIGRATIONS"), "OK");
    eventually("the copy is gone", || second.ask("DBSIZE") == "0");
    assert_eq!(subscriber.messages(), [""; 0]);
    assert_eq!(first.queued("k"), 2);
    assert_eq!(a.number("RLOCK.RENEW k owner-a 60000"), fence);
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
    let next = blocked.fence();
    assert!(next > fence);
    a.ask("RLOCK.RELEASE k owner-b");
    assert!(subscriber.message().starts_with("grant "));
    a.ask("RLOCK.FORCE {k}w");
    assert_eq!(
        subscriber.message(),
        format!("lost {watched} owner-w {{k}}w")
    );
}

/// The source pauses its writes until the target has taken over. It must not grant a lock that the target may grant.
#[test]
fn lease_that_ends_during_a_migration_is_followed_by_one_grant() {
    let Some((first, second)) = two_migrating_nodes() else {
        return;
    };
    for is_completed in [false, true] {
        let a = first.client();
        let fence = a.number("RLOCK.ACQUIRE k owner-a 60000");
        let blocked = wait_for(&first, "k", "owner-b", 1);
        assert_eq!(second.ask("DEBUG SLOTMIGRATION PREVENT-FAILOVER 1"), "OK");
        hold_up(&first);
        migrate(&first, &second);
        await_stage(&first, "waiting-to-pause");
        a.number("RLOCK.RENEW k owner-a 1000");
        go_on(&first);
        await_stage(&first, "failover-granted");
        eventually("the lease is over", || {
            first.ask("RLOCK.INFO k").contains("mode free")
        });
        assert!(blocked.reply_by_now().is_none());
        if !is_completed {
            assert_eq!(first.ask("CLUSTER CANCELSLOTMIGRATIONS"), "OK");
            assert!(blocked.fence() > fence);
            assert_eq!(first.owners("k"), ["owner-b"]);
            assert_eq!(first.ask("RLOCK.FORCE k"), "1");
            continue;
        }
        assert_eq!(second.ask("DEBUG SLOTMIGRATION PREVENT-FAILOVER 0"), "OK");
        let answer = blocked.answer();
        assert!(answer.starts_with("TRYAGAIN "), "{answer}");
        await_moved(&first, &second);
        assert!(second.connection().number("RLOCK.ACQUIRE k owner-b 60000") > fence);
        assert_eq!(first.ask("DBSIZE"), "0");
    }
}

#[test]
fn replicas_of_both_nodes_have_the_moved_locks() {
    let Some((first, second)) = two_migrating_nodes() else {
        return;
    };
    let (left, right) = (replica_of(&first, false), replica_of(&second, true));
    let a = first.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000");
    let blocked = wait_for(&first, "k", "owner-b", 1);
    migrate(&first, &second);
    let answer = blocked.answer();
    assert!(answer.starts_with("TRYAGAIN "), "{answer}");
    eventually("the first node's replica no longer has the lock", || {
        left.ask("DBSIZE") == "0"
    });
    eventually("the second node's replica has it", || {
        right.ask("DBSIZE") == "1"
    });
    assert_eq!(right.ask("CLUSTER FAILOVER TAKEOVER"), "OK");
    eventually("the replica serves the slot", || {
        right.ask("RLOCK.RENEW k owner-a 60000") == fence.to_string()
    });
}
