//! Requests for several locks: how they wait, and how their waits end.

use crate::client::{Client, eventually, request};
use crate::contest::wait_for;
use crate::server::Server;

pub(crate) const KEYS: [&str; 3] = ["k1", "k2", "k3"];

/// `owner-a` holds `k2`, and `owner-m` is blocked until it gets `k1`, `k2` and `k3`.
pub(crate) struct Several {
    pub(crate) holder: Client,
    pub(crate) waiter: Client,
    pub(crate) fence: i64,
}

impl Several {
    #[track_caller]
    pub(crate) fn on(server: &Server) -> Self {
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

/// Asserts that nobody is queued for any of the keys, and that those of them that nobody holds are free.
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

/// Asserts that one owner holds all the keys under one fence.
#[track_caller]
pub(crate) fn assert_all_held_by(server: &Server, owner: &str, fence: i64) {
    for key in KEYS {
        let lock = server.lock(key);
        assert_eq!(lock.owners(), [owner], "{key}");
        assert_eq!(lock.fence, Some(fence), "{key}");
        assert_eq!(lock.mode, "exclusive", "{key}");
    }
}

#[test]
fn request_for_several_is_granted_in_whole_within_the_last_release() {
    let server = Server::start();
    let several = Several::on(&server);
    // Free keys stay free, and are kept from newcomers.
    assert_eq!(server.ask("EXISTS k1 k2 k3"), "1");
    assert_eq!(server.ask("RLOCK.ACQUIRE k1 owner-x 60000"), "nil");
    assert_eq!(server.counter("waiters"), 3);
    assert_eq!(server.ask("RLOCK.RELEASE k2 owner-a"), "0");
    assert_eq!(server.ask("EXISTS k1 k2 k3"), "3");
    let fence = several.waiter.fence();
    assert!(fence > several.fence);
    assert_all_held_by(&server, "owner-m", fence);
    assert_eq!(server.counter("handoffs"), 1);
    assert_eq!(several.waiter.ask("RLOCK.MRELEASE owner-m 3 k3 k1 k2"), "3");
    assert_left(&server);
}

#[test]
fn waiter_for_several_that_ends_leaves_all_queues() {
    let server = Server::start();
    for end in ["kill", "close", "cancel", "wait"] {
        let Several { holder, waiter, .. } = Several::on(&server);
        match end {
            "kill" => {
                let kill = format!("CLIENT KILL ID {}", waiter.id());
                assert_eq!(server.ask(&kill), "1");
            }
            "close" => waiter.close(),
            "cancel" => {
                assert_eq!(server.ask("RLOCK.CANCEL k3 owner-m"), "1");
                assert_eq!(waiter.answer(), "nil");
            }
            _ => {
                let again = server.client();
                again.send("RLOCK.MACQUIRE owner-m 60000 3 k3 k2 k1 WAIT 20");
                assert_eq!(waiter.answer(), "nil");
                assert_eq!(again.answer(), "nil");
            }
        }
        assert_left(&server);
        assert_eq!(holder.ask("RLOCK.RELEASE k2 owner-a"), "0");
        assert_eq!(server.ask("DBSIZE"), "0");
    }
    assert_eq!(server.counter("waiters_gone"), 2);
    assert_eq!(server.counter("wait_timeouts"), 1);
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
    let mut heard = server.listen_to_unlocks();
    let id = several.waiter.id().to_string();
    let turn = [
        request(&["RLOCK.RELEASE", "k2", "owner-a"]),
        request(&["CLIENT", "KILL", "ID", &id]),
    ];
    several.holder.send_bytes(&turn.concat());
    assert_eq!(several.holder.answer(), "0");
    eventually("no ghost holds any of them", || server.ask("DBSIZE") == "0");
    let mut told = (0..3)
        .map(|_| heard.message_within(crate::client::PATIENCE))
        .map(|it| it.map_or(String::new(), |(channel, _)| channel))
        .collect::<Vec<_>>();
    told.sort();
    assert_eq!(
        told,
        KEYS.map(|key| format!("redisson_lock__channel:{{{key}}}"))
    );
    assert_eq!(heard.messages(), [""; 0]);
}

#[test]
fn request_for_several_by_channel_is_told_once_or_skipped_for_all_keys() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let (a, n) = (server.client(), server.client());
    for channel in ["unheard-of", "c"] {
        a.number("RLOCK.ACQUIRE k2 owner-a 60000");
        let line = format!("RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 WAIT 0 NOTIFY {channel}");
        assert_eq!(n.ask(&line), "WAITING");
        assert_eq!(server.counter("waiters"), 3);
        assert_eq!(server.counter("watches"), 3);
        let next = KEYS.map(|key| wait_for(&server, key, "owner-n", 2));
        assert_eq!(a.ask("RLOCK.RELEASE k2 owner-a"), "0");
        if channel == "c" {
            let fence = server.lock("k1").fence.expect("it is held");
            assert_eq!(heard.message(), format!("grant {fence} owner-m k1"));
            assert_all_held_by(&server, "owner-m", fence);
            assert_eq!(n.ask("RLOCK.MRELEASE owner-m 3 k1 k2 k3"), "3");
        }
        for (key, next) in KEYS.iter().zip(&next) {
            next.fence();
            assert_eq!(next.ask(&format!("RLOCK.RELEASE {key} owner-n")), "0");
        }
        assert_eq!(server.counter("watches"), 0);
        assert_left(&server);
    }
    assert_eq!(heard.messages(), [""; 0]);
}

#[test]
fn request_for_several_takes_a_place_for_each_key() {
    let server = Server::start();
    server.ask("CONFIG SET rlock.max-waiters 5");
    let several = Several::on(&server);
    let second = server.client();
    second.send("RLOCK.MACQUIRE owner-n 60000 2 k3 k2 WAIT 0");
    server.await_queued("k3", 2);
    for line in [
        "RLOCK.MACQUIRE owner-o 60000 2 k1 k2 WAIT 0",
        "RLOCK.ACQUIRE k1 owner-o 60000 WAIT 0",
    ] {
        let full = server.ask(line);
        assert!(
            full.starts_with("QUEUEFULL ") && full.contains(" 5"),
            "{full}"
        );
    }
    assert_eq!(server.queued("k1"), 1);
    several.holder.ask("RLOCK.RELEASE k2 owner-a");
    several.waiter.fence();
    // A watch is one for each key.
    server.ask("CONFIG SET rlock.max-watches 2");
    let full = server.ask("RLOCK.MACQUIRE owner-o 60000 3 f1 f2 f3 NOTIFY c");
    assert!(full.starts_with("QUEUEFULL "), "{full}");
    assert_eq!(server.ask("EXISTS f1 f2 f3"), "0");
    server
        .admin()
        .number("RLOCK.MACQUIRE owner-o 60000 2 f1 f2 NOTIFY c");
    assert_eq!(server.counter("watches"), 2);
}
