//! Holds that belong to a connection.

use redis::Value;

use crate::client::{Client, eventually, request};
use crate::contest::wait_for;
use crate::server::{Server, replicated};

/// Waits until the server has seen the end of a connection.
#[track_caller]
fn await_end(server: &Server, id: i64) {
    eventually("the connection has ended", || {
        let list = server.ask(&format!("CLIENT LIST ID {id}"));
        list.trim().is_empty()
    });
}

#[track_caller]
fn is_bound(server: &Server, owner: &str) -> bool {
    let lock = server.lock("k");
    lock.holder(owner).expect("it holds the lock").is_bound
}

#[test]
fn hold_of_a_killed_connection_ends_after_its_grace() {
    let server = Server::start();
    let a = server.client();
    let mut unlocked = server.listen_to_unlocks();
    a.number("RLOCK.ACQUIRE k owner-a 60000 BIND 300");
    assert_eq!(
        a.number("RLOCK.ACQUIRE k owner-a 60000"),
        a.number("RLOCK.RENEW k owner-a 60000")
    );
    assert!(is_bound(&server, "owner-a"));
    assert_eq!(server.counter("bound_holds"), 1);
    let waiter = wait_for(&server, "k", "owner-b", 1);
    server.ask(&format!("CLIENT KILL ID {}", a.id()));
    // The lease is cut, which those who sleep until its end are told.
    assert_eq!(unlocked.message(), "0");
    let left = server.lock("k").holders[0].lease_left_ms;
    assert!((1..=300).contains(&left), "{left}");
    assert!(waiter.reply_by_now().is_none());
    waiter.fence();
    assert_eq!(server.counter("bound_holds"), 0);
    assert_eq!(server.counter("watches"), 0);
    // It went to the next, so it was never free.
    assert_eq!(unlocked.messages(), [""; 0]);
}

#[test]
fn hold_without_a_grace_ends_with_its_connection() {
    let server = Server::start();
    for mode in ["", " SHARED"] {
        let a = server.client();
        a.number(&format!("RLOCK.ACQUIRE k owner-a 60000{mode} BIND 0"));
        a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
        let waiter = wait_for(&server, "k", "owner-b", 1);
        a.close();
        waiter.fence();
        assert_eq!(server.owners("k"), ["owner-b"]);
        assert_eq!(waiter.ask("RLOCK.RELEASE k owner-b"), "0");
        assert_eq!(server.ask("EXISTS k"), "0");
    }
}

#[test]
fn lock_freed_by_the_end_of_a_connection_is_told_to_all() {
    let server = Server::start();
    let mut unlocked = server.listen_to_unlocks();
    let mut heard = server.listen(&["c"]);
    let watching = server.client();
    for grace in [0, 50] {
        let a = server.client();
        let line = format!("RLOCK.ACQUIRE k owner-a 60000 BIND {grace}");
        let fence = a.number(&line);
        // Somebody else has asked to be told of the loss.
        watching.number(&format!("{line} NOTIFY c"));
        a.number(&line);
        a.close();
        watching.ask("PING");
        let told = (0..=usize::from(grace > 0)).map(|_| unlocked.message());
        assert!(told.collect::<Vec<_>>().iter().all(|it| it == "0"));
        eventually("the lock is free", || server.ask("EXISTS k") == "0");
        assert!(fence > 0);
    }
    assert!(heard.messages().iter().all(|it| it.starts_with("c: lost ")));
}

#[test]
fn renewal_within_the_grace_moves_the_hold_to_its_connection() {
    let server = Server::start();
    let (a, b) = (server.client(), server.client());
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 BIND 5000");
    let old = a.id();
    a.close();
    await_end(&server, old);
    eventually("the lease is cut", || {
        server.lock("k").holders[0].lease_left_ms <= 5000
    });
    assert!(is_bound(&server, "owner-a"), "until the grace is over");
    assert_eq!(b.number("RLOCK.RENEW k owner-a 60000"), fence);
    assert!(server.lock("k").holders[0].lease_left_ms > 50_000);
    assert!(is_bound(&server, "owner-a"));
    // It belongs to this one now, with the same grace.
    b.close();
    eventually("the lease is cut", || {
        server.lock("k").holders[0].lease_left_ms <= 5000
    });
    assert_eq!(server.ask("HGET k owner-a"), "1");
}

#[test]
fn end_of_the_old_connection_after_a_renewal_changes_nothing() {
    let server = Server::start();
    for renew in [
        "RLOCK.RENEW k owner-a 60000",
        "RLOCK.ACQUIRE k owner-a 60000",
        "RLOCK.ACQUIRE k owner-a 60000 REENTER",
        "RLOCK.MRENEW owner-a 60000 1 k",
    ] {
        let (a, b) = (server.client(), server.client());
        let mut unlocked = server.listen_to_unlocks();
        a.number("RLOCK.ACQUIRE k owner-a 60000 BIND 0");
        b.number(renew);
        let old = a.id();
        a.close();
        await_end(&server, old);
        assert_eq!(unlocked.messages(), [""; 0]);
        assert!(server.lock("k").holders[0].lease_left_ms > 50_000);
        assert!(is_bound(&server, "owner-a"));
        b.close();
        eventually("the lock is free", || server.ask("EXISTS k") == "0");
    }
}

#[test]
fn renewal_in_the_turn_in_which_the_connection_ends_gives_one_outcome() {
    let server = Server::start();
    for round in 0..40 {
        let (a, b) = (server.client(), server.client());
        let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 BIND 0");
        let kill = request(&["CLIENT", "KILL", "ID", &a.id().to_string()]);
        let renew = request(&["RLOCK.RENEW", "k", "owner-a", "60000"]);
        let both = if round % 2 == 0 {
            [kill, renew]
        } else {
            [renew, kill]
        };
        b.send_bytes(&both.concat());
        let answers = [b.answer(), b.answer()];
        let renewed = answers.contains(&fence.to_string());
        await_end(&server, a.id());
        if renewed {
            assert!(is_bound(&server, "owner-a"), "{answers:?}");
            assert_eq!(b.ask("RLOCK.RELEASE k owner-a"), "0");
        } else {
            assert!(answers.contains(&"nil".to_owned()), "{answers:?}");
            eventually("the lock is free", || server.ask("EXISTS k") == "0");
        }
    }
}

#[test]
fn thousand_holds_of_one_connection_end_with_it() {
    let server = Server::start();
    let a = server.client();
    for number in 0..1000 {
        let mode = ["", " SHARED", " SHARED LIMIT 9 PERMITS 2"][number % 3];
        a.send(&format!(
            "RLOCK.ACQUIRE k{number} owner-a 60000{mode} BIND 0"
        ));
    }
    (0..1000).for_each(|_| _ = a.fence());
    a.number("RLOCK.ACQUIRE unbound owner-a 60000");
    assert_eq!(server.counter("bound_holds"), 1000);
    assert_eq!(server.counter("watches"), 1000);
    a.close();
    eventually("all have ended", || server.ask("DBSIZE") == "1");
    assert_eq!(server.ask("HGET unbound owner-a"), "1");
    assert_eq!(server.counter("bound_holds"), 0);
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn request_that_waits_is_bound_to_the_connection_that_asks() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let (b, c) = (server.client(), server.client());
    b.send("RLOCK.ACQUIRE k owner-b 60000 BIND 0 WAIT 0");
    server.await_queued("k", 1);
    assert_eq!(
        c.ask("RLOCK.ACQUIRE k owner-c 60000 BIND 0 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    assert_eq!(server.counter("watches"), 2);
    a.ask("RLOCK.RELEASE k owner-a");
    b.fence();
    assert!(is_bound(&server, "owner-b"));
    b.close();
    assert!(heard.message().starts_with("grant "));
    assert!(is_bound(&server, "owner-c"));
    c.close();
    eventually("the lock is free", || server.ask("EXISTS k") == "0");
}

#[test]
fn bound_hold_is_an_ordinary_one_after_a_restart_or_fail_over() {
    let (primary, replica) = replicated();
    let a = primary.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 BIND 0");
    crate::replication::await_in_step(&primary, &replica);
    replica.ask("REPLICAOF NO ONE");
    assert!(!is_bound(&replica, "owner-a"));
    let b = replica.client();
    assert_eq!(b.number("RLOCK.RENEW k owner-a 60000"), fence);
    assert!(!is_bound(&replica, "owner-a"));

    let mut server = Server::configured(&["appendonly yes"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000 BIND 0");
    server.shut_down();
    server.start_again();
    let b = server.client();
    b.number("RLOCK.RENEW k owner-a 60000");
    assert!(!is_bound(&server, "owner-a"));
    let id = b.id();
    b.close();
    await_end(&server, id);
    assert_eq!(server.ask("HGET k owner-a"), "1");
}

#[test]
fn bound_holds_count_as_watches_up_to_their_limit() {
    let server = Server::start();
    server.ask("CONFIG SET rlock.max-watches 2");
    let a: Client = server.client();
    a.number("RLOCK.ACQUIRE k1 owner-a 60000 BIND 5000");
    a.number("RLOCK.ACQUIRE k2 owner-a 60000 BIND 5000 NOTIFY c");
    let full = a.ask("RLOCK.ACQUIRE k3 owner-a 60000 BIND 5000");
    assert!(full.starts_with("QUEUEFULL "), "{full}");
    assert_eq!(server.ask("EXISTS k3"), "0");
    a.number("RLOCK.ACQUIRE k3 owner-a 60000");
    a.number("RLOCK.ACQUIRE k1 owner-a 60000 NOTIFY c");
    assert_eq!(server.counter("watches"), 2);
    assert_eq!(a.ask("RLOCK.RELEASE k1 owner-a ALL"), "0");
    assert!(matches!(
        a.call(&["RLOCK.ACQUIRE", "k3", "owner-a", "60000", "BIND", "0"]),
        Value::Int(_)
    ));
    assert_eq!(server.counter("bound_holds"), 2);
}
