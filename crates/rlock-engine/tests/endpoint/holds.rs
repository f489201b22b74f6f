//! Guards of one hold: they enter, change the mode, and leave.

use rlock_engine::engine::terms::{Ask, Terms};

use crate::played::{Played, push};

const OVER: &str = "over: the server ended it";

/// `o` holds a lock under fence 7.
fn held(ask: Ask) -> Played {
    let mut it = Played::connected();
    it.asks_mode("k", ask);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it
}

/// The owner asks for its lock again, and gets it under this fence.
fn enters(it: &mut Played, ask: Ask, fence: u64) {
    it.asks_mode("k", ask);
    it.answers(1, "RLOCK.ACQUIRE", format!(":{fence}\r\n"));
}

#[test]
fn the_last_guard_releases_the_lock() {
    let mut it = held(Ask::Exclusive);
    enters(&mut it, Ask::Exclusive, 7);
    enters(&mut it, Ask::Exclusive, 7);
    it.actions();
    it.releases();
    it.releases();
    assert_eq!(it.actions(), ["call 5: done", "call 6: done"]);
    it.releases();
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o ALL FENCE 7"]);
}

/// Only an upgrade has a new fence, which is larger. With any other fence, a new hold begins.
#[test]
fn a_guard_enters_the_hold_whose_fence_it_gets() {
    let (shared, exclusive) = (Ask::Shared, Ask::Exclusive);
    for (first, second, fence, is_same) in [
        (exclusive, exclusive, 7, true),
        (exclusive, shared, 7, true),
        (shared, shared, 7, true),
        (shared, exclusive, 7, true),
        (shared, exclusive, 8, true),
        (exclusive, exclusive, 8, false),
        (exclusive, exclusive, 6, false),
        (exclusive, shared, 8, false),
        (shared, shared, 8, false),
        (shared, exclusive, 6, false),
    ] {
        let mut it = held(first);
        enters(&mut it, second, fence);
        let did = it.did();
        assert_eq!(did.contains(&OVER.to_owned()), !is_same, "{did:?}");
        assert_eq!(did.last(), Some(&format!("call 3: granted {fence}")));
        assert_eq!(it.proofs[0].hold == it.proofs[1].hold, is_same);
    }
}

#[test]
fn several_keys_are_entered_only_together() {
    let mut it = Played::connected();
    it.asks_as("me", "a", &["b"], Terms::new());
    it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    for (key, rest, command) in [
        ("a", &["b"][..], "RLOCK.MACQUIRE me 30000 2 a b"),
        ("b", &["a"], "RLOCK.MACQUIRE me 30000 2 b a"),
        ("c", &["d"], "RLOCK.MACQUIRE me 30000 2 c d"),
        ("e", &[], "RLOCK.ACQUIRE e me"),
    ] {
        it.asks_as("me", key, rest, Terms::new());
        it.answers(1, command, ":7\r\n");
        assert!(it.did().pop().unwrap().ends_with(": granted 7"));
    }
    for (key, rest) in [
        ("a", &[][..]),
        ("b", &[]),
        ("a", &["z"]),
        ("a", &["b", "z"]),
        ("a", &["c"]),
        ("e", &["z"]),
    ] {
        it.asks_as("me", key, rest, Terms::new());
        let did = it.actions().pop().unwrap();
        assert!(did.contains("me already holds"), "{key} {rest:?}: {did}");
    }
}

/// The server does not name the fence of several keys, so it is asked under the one that is known.
#[test]
fn several_keys_are_attached_only_under_their_fence() {
    for (held, is_lost) in [(2, false), (1, true), (0, true)] {
        let mut it = Played::connected();
        it.asks_for("k", &["l"], Terms::new());
        it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
        it.reconnects();
        it.passes(1);
        let attached = "RLOCK.MRENEW o2 30000 2 k l FENCE 7 NOTIFY rlock:client:c";
        it.answers(2, attached, format!(":{held}\r\n"));
        let did = it.did();
        assert_eq!(did.contains(&OVER.to_owned()), is_lost, "{held}: {did:?}");
    }
}

/// The server can let shared holders in only then.
#[test]
fn the_last_guard_in_exclusive_mode_downgrades_the_lock() {
    let mut it = held(Ask::Exclusive);
    enters(&mut it, Ask::Exclusive, 7);
    it.actions();
    it.downgrades();
    assert_eq!(it.actions(), ["call 4: done"]);
    it.downgrades();
    assert_eq!(it.actions(), ["1 RLOCK.DOWNGRADE k o"]);
    it.receives(1, ":7\r\n");
    assert_eq!(it.actions(), ["call 5: done"]);
}

/// The owner's other guard needs only shared mode. Without another one, the lock is released.
#[test]
fn an_upgrade_whose_caller_is_gone_is_undone() {
    let mut it = held(Ask::Shared);
    enters(&mut it, Ask::Exclusive, 9);
    it.actions();
    it.misses(3, Ask::Exclusive);
    assert_eq!(it.actions(), ["1 RLOCK.DOWNGRADE k o"]);
    it.receives(1, ":9\r\n");
    it.releases();
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o ALL FENCE 9"]);

    let mut it = held(Ask::Exclusive);
    it.misses(2, Ask::Exclusive);
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o ALL FENCE 7"]);
}

/// The message was sent before the grant was read.
#[test]
fn a_grant_that_was_lost_before_it_is_read_is_lost() {
    let mut it = Played::connected();
    it.asks("k");
    it.actions();
    let lost = push(&["message", "rlock:client:c", "lost 7 o2 k"]);
    it.receives(1, format!("{lost}:7\r\n"));
    assert_eq!(it.did(), [OVER, "call 2: granted 7"]);
}

#[test]
fn a_release_that_nobody_confirms_is_not_done() {
    let mut it = held(Ask::Exclusive);
    it.releases();
    it.passes(12_000);
    let did = it.did();
    let failed = "call 3: no usable answer from the server within 10s".to_owned();
    assert!(did.contains(&failed), "{did:?}");
}

#[test]
fn a_hold_that_is_kept_under_another_fence_is_lost() {
    for (fence, outcome) in [(7, "done"), (9, "the lock was lost: the server ended it")] {
        let mut it = held(Ask::Exclusive);
        it.keeps(20);
        it.releases();
        // Rounded up.
        assert_eq!(it.actions(), ["1 RLOCK.RENEW k o 20001"]);
        it.answers(1, "RLOCK.RENEW", format!(":{fence}\r\n"));
        let did = it.did();
        assert!(did.contains(&format!("call 3: {outcome}")), "{did:?}");
    }
}

/// Nil says that the owner does not hold it in exclusive mode.
#[test]
fn a_downgrade_of_a_hold_that_is_gone_tells_its_loss() {
    let mut it = held(Ask::Exclusive);
    it.downgrades();
    it.answers(1, "RLOCK.DOWNGRADE k o", "$-1\r\n");
    let did = it.did();
    assert!(did.contains(&OVER.to_owned()), "{did:?}");
}

/// One of the keys is no lock any more, so the server releases none of them at once.
#[test]
fn what_cannot_be_released_at_once_is_released_one_by_one() {
    let mut it = Played::connected();
    it.asks_for("k", &["l"], Terms::new());
    it.abandons(2);
    it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    it.actions();
    it.answers(1, "RLOCK.CANCEL k o2", ":0\r\n");
    it.answers(1, "RLOCK.MRELEASE", "-WRONGTYPE key 'l' holds no lock\r\n");
    let each = ["1 RLOCK.RELEASE k o2 ALL", "1 RLOCK.RELEASE l o2 ALL"];
    assert_eq!(it.actions(), each);
}

/// The grant of an upgrade may show in the reply to a renewal first. It has a larger fence.
#[test]
fn a_renewal_under_the_fence_of_an_upgrade_confirms_the_hold() {
    for (is_upgrading, fence, is_lost) in [
        (true, 9, false),
        (true, 7, false),
        (true, 6, true),
        (false, 9, true),
    ] {
        let mut it = held(Ask::Shared);
        if is_upgrading {
            it.asks_mode("k", Ask::Exclusive);
            it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
        }
        it.actions();
        let mut renewed = String::new();
        while !renewed.starts_with("1 RLOCK.RENEW") {
            it.passes(1);
            renewed = it.actions().pop().unwrap_or_default();
            if renewed == "1 PING" {
                it.answers(1, "PING", "+PONG\r\n");
            }
        }
        it.answers(1, "RLOCK.RENEW", format!(":{fence}\r\n"));
        let did = it.did();
        assert_eq!(did.contains(&OVER.to_owned()), is_lost, "{fence}: {did:?}");
    }
}
