//! Requests for several locks: how they wait, and how their waits end.

use crate::contest::wait_for;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually, request};

const KEYS: [&str; 3] = ["k1", "k2", "k3"];

/// `owner-a` holds `k2`, and `owner-m` is blocked until it gets `k1`, `k2` and `k3`.
struct Several {
    holder: Client,
    waiter: Client,
    fence: i64,
}

impl Several {
    #[track_caller]
    fn on(server: &Server) -> Self {
        let (holder, waiter) = (server.client(), server.client());
        let fence = holder.number("RLOCK.ACQUIRE k2 owner-a 60000");
        waiter.send("RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 WAIT 0");
        server.await_queued("k2", 1);
        Self {
            holder,
            waiter,
            fence,
        }
    }
}

/// Asserts that nobody is queued for any of the keys, and that each key without a holder is free.
#[track_caller]
fn assert_left(server: &Server) {
    for key in KEYS {
        server.await_queued(key, 0);
    }
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("contended_locks"), 0);
    for key in ["k1", "k3"] {
        let other = format!("RLOCK.ACQUIRE {key} another 60000");
        assert_ne!(server.ask(&other), "nil");
        assert_eq!(server.ask(&format!("RLOCK.RELEASE {key} another")), "0");
    }
}

#[test]
fn client_unblock_ends_a_wait_for_several_where_the_server_can() {
    let server = Server::start();
    let several = Several::on(&server);
    let unblock = format!("CLIENT UNBLOCK {}", several.waiter.id());
    if server.is_at_least((7, 4), (8, 0)) {
        assert_eq!(server.ask(&unblock), "1");
        assert_eq!(several.waiter.answer(), "nil");
        assert_left(&server);
        several
            .waiter
            .send("RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 WAIT 0");
        server.await_queued("k2", 1);
        assert_eq!(server.ask(&format!("{unblock} ERROR")), "1");
        assert!(several.waiter.answer().starts_with("UNBLOCKED "));
        assert_left(&server);
    } else {
        assert_eq!(server.ask(&unblock), "0");
        several.holder.ask("RLOCK.RELEASE k2 owner-a");
        several.waiter.fence();
    }
}

#[test]
fn undelivered_grant_of_several_is_passed_on_for_all_keys() {
    let server = Server::start();
    for round in 1..=20 {
        let several = Several::on(&server);
        let next = KEYS.map(|key| wait_for(&server, key, "owner-n", 2));
        let id = several.waiter.id().to_string();
        let turn = [
            request(&["RLOCK.RELEASE", "k2", "owner-a"]),
            request(&["CLIENT", "KILL", "ID", &id]),
        ];
        several.holder.send_bytes(&turn.concat());
        assert_eq!(several.holder.answer(), "0");
        for (key, next) in KEYS.iter().zip(&next) {
            assert!(next.fence() > several.fence);
            assert_eq!(server.owners(key), ["owner-n"]);
            assert_eq!(next.ask(&format!("RLOCK.RELEASE {key} owner-n")), "0");
        }
        assert_eq!(server.counter("undelivered_grants"), round);
    }
    assert_left(&server);
}

#[test]
fn undelivered_grant_of_several_frees_all_keys_when_nobody_waits() {
    let server = Server::start();
    let several = Several::on(&server);
    let mut subscriber = server.listen_to_unlocks();
    let id = several.waiter.id().to_string();
    let turn = [
        request(&["RLOCK.RELEASE", "k2", "owner-a"]),
        request(&["CLIENT", "KILL", "ID", &id]),
    ];
    several.holder.send_bytes(&turn.concat());
    assert_eq!(several.holder.answer(), "0");
    eventually("no disconnected waiter holds any of them", || {
        server.ask("DBSIZE") == "0"
    });
    let mut received = (0..3)
        .map(|_| subscriber.message_within(rlock_testkit::client::PATIENCE))
        .map(|it| it.map_or(String::new(), |(channel, _)| channel))
        .collect::<Vec<_>>();
    received.sort();
    assert_eq!(
        received,
        KEYS.map(|key| format!("redisson_lock__channel:{{{key}}}"))
    );
    assert_eq!(subscriber.messages(), [""; 0]);
}

#[test]
fn waiter_behind_an_unreachable_request_for_several_is_served_at_once() {
    let server = Server::start();
    let mut subscriber = server.listen_to_unlocks();
    let (a, m, b) = (server.client(), server.client(), server.client());
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    let queue = "RLOCK.MACQUIRE owner-m 60000 2 k1 k2 WAIT 0 NOTIFY nobody";
    assert_eq!(m.ask(queue), "WAITING");
    b.send("RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
    server.await_queued("k1", 2);
    // In one turn, so no other client can intervene.
    for line in ["MULTI", "RLOCK.RELEASE k1 owner-a", "RLOCK.INFO k1"] {
        a.ask(line);
    }
    let done = a.ask("EXEC");
    assert!(done.contains("mode exclusive"), "{done}");
    b.fence();
    assert_eq!(subscriber.messages(), [""; 0]);
}
