//! Holds that are bound to a connection.

use rlock_testkit::client::{eventually, request};
use rlock_testkit::{Server, replicated};

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
fn renewal_in_the_turn_of_a_disconnect_gives_one_outcome() {
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
fn asking_again_for_several_locks_moves_the_binding_of_each() {
    let server = Server::start();
    for keys in ["k k2", "k2 k"] {
        let (a, b) = (server.client(), server.client());
        let fence = a.number(&format!("RLOCK.MACQUIRE owner-a 60000 2 {keys}"));
        a.number("RLOCK.RENEW k owner-a 60000 BIND 0");
        let again = b.number(&format!("RLOCK.MACQUIRE owner-a 60000 2 {keys}"));
        assert_eq!(again, fence);
        let id = a.id();
        a.close();
        await_end(&server, id);
        assert!(is_bound(&server, "owner-a"), "{keys}");
        assert_eq!(b.ask("RLOCK.MRELEASE owner-a 2 k k2"), "2");
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
