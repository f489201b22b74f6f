//! Guards of one hold: they enter, change the mode, and leave.

use std::time::Duration;

use rlock_engine::endpoint::Event;
use rlock_engine::engine::terms::{Ask, Lease, Terms};
use rlock_engine::error::Loss;

use crate::played::{Played, push};

pub(crate) const OVER: &str = "over: the server ended it";

/// `o` holds a lock under fence 7.
pub(crate) fn held(ask: Ask) -> Played {
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

/// Only an upgrade has a new fence, which is larger. With any other larger fence, a new hold begins.
#[test]
fn a_guard_enters_the_hold_whose_fence_it_gets() {
    let (shared, exclusive) = (Ask::Shared, Ask::Exclusive);
    for (first, second, fence, is_same) in [
        (exclusive, exclusive, 7, true),
        (exclusive, shared, 7, true),
        (shared, shared, 7, true),
        (shared, exclusive, 8, true),
        (exclusive, exclusive, 8, false),
        (exclusive, shared, 8, false),
        (shared, shared, 8, false),
    ] {
        let mut it = held(first);
        enters(&mut it, second, fence);
        if !is_same {
            it.answers(1, "RLOCK.RENEW k o", ":8\r\n");
        }
        let did = it.did();
        assert_eq!(did.contains(&OVER.to_owned()), !is_same, "{did:?}");
        assert_eq!(did.last(), Some(&format!("call 3: granted {fence}")));
        assert_eq!(it.proofs[0].hold == it.proofs[1].hold, is_same);
    }
}

/// A replica that has heard neither of a release nor of the grant after it becomes the master while the owner enters its
/// lock again. What it grants is smaller than what the owner had, and than what others may have had in between.
#[test]
fn a_guard_enters_no_hold_under_a_smaller_fence() {
    let (shared, exclusive) = (Ask::Shared, Ask::Exclusive);
    for (first, second) in [
        (exclusive, exclusive),
        (exclusive, shared),
        (shared, shared),
        (shared, exclusive),
    ] {
        for fence in [6, 7] {
            let mut it = held(first);
            it.releases();
            it.answers(1, "RLOCK.RELEASE k o ALL FENCE 7", ":0\r\n");
            enters(&mut it, first, 12);
            it.did();
            enters(&mut it, second, fence);
            let release = format!("RLOCK.RELEASE k o ALL FENCE {fence}");
            assert_eq!(it.did(), [OVER]);
            it.answers(1, &release, ":0\r\n");
            it.passes(1_000);
            it.answers(1, "RLOCK.ACQUIRE", ":13\r\n");
            let did = it.did();
            assert_eq!(did.last().unwrap(), "call 5: granted 13", "{did:?}");
            assert!(it.proofs[1].hold != it.proofs[2].hold);
        }
    }
}

/// Nor does a new hold begin under it, if an extension was the first to find that out.
#[test]
fn a_lock_that_was_lost_to_an_older_grant_is_not_taken_under_that() {
    let mut it = held(Ask::Exclusive);
    it.extends(Duration::from_secs(40));
    it.asks_mode("k", Ask::Exclusive);
    it.answers(1, "RLOCK.RENEW k o 40000", ":6\r\n");
    it.answers(1, "RLOCK.ACQUIRE", ":6\r\n");
    let did = it.did();
    assert_eq!(
        did,
        [OVER, "call 3: the lock was lost: the server ended it"]
    );
    it.answers(1, "RLOCK.RELEASE k o ALL FENCE 6", ":0\r\n");
    it.passes(1_000);
    it.answers(1, "RLOCK.ACQUIRE", ":13\r\n");
    assert_eq!(it.did().last().unwrap(), "call 4: granted 13");
}

/// A hold is extended, or its value is replaced, over a reconnect, and that is answered before the hold is checked: the
/// new connection must be asked for loss reports nevertheless.
#[test]
fn an_extension_over_a_reconnect_delays_no_loss_report() {
    for has_value in [false, true] {
        let mut it = Played::connected();
        for key in ["a", "b", "c", "d"] {
            it.asks(key);
            it.answers(1, "RLOCK.ACQUIRE", ":5\r\n");
            it.passes(1);
        }
        match has_value {
            true => it.campaigns("k", "v"),
            false => it.asks_mode("k", Ask::Exclusive),
        }
        it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
        it.ends(1);
        match has_value {
            true => it.proclaims("w"),
            false => it.extends(Duration::from_secs(40)),
        }
        it.passes(20);
        it.greeted(2);
        it.actions();
        it.passes_nanos(300_000);
        it.answers(2, "RLOCK.RENEW k o", ":7\r\n");
        // The other holds are checked before it.
        let asks = |it: &mut Played| {
            it.passes(10);
            it.answers_each(2, |_| ":5\r\n".to_owned());
            let asked = it.actions();
            let mut asked = asked.iter().filter(|it| it.contains("NOTIFY"));
            asked.any(|it| it.contains("RENEW k o"))
        };
        assert!((0..10).any(|_| asks(&mut it)));
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
        assert!(did.contains("by another guard"), "{key} {rest:?}: {did}");
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
        let attached = "RLOCK.MRENEW o2 30000 2 k l FENCE 7 NOTIFY rlock:client:c:2";
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
    let lost = push(&["message", "rlock:client:c:1", "lost 7 o2 k"]);
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

/// A hold without guards is entered again only as it is. Otherwise its release comes first.
#[test]
fn a_call_that_cannot_enter_the_hold_that_it_finds_lets_its_release_go_first() {
    let release = "1 RLOCK.RELEASE k o ALL FENCE 7";
    for (rest, ask, is_entered) in [
        (&[][..], Ask::Exclusive, true),
        (&[], Ask::Shared, false),
        (&["l"], Ask::Exclusive, false),
    ] {
        let mut it = held(Ask::Exclusive);
        it.extends(Duration::from_secs(90));
        match rest {
            [] => it.asks_mode("k", ask),
            rest => it.asks_as("o", "k", rest, Terms::new()),
        }
        it.drops_mode(Ask::Exclusive);
        it.actions();
        it.answers(1, "RLOCK.RENEW", ":7\r\n");
        assert_eq!(it.actions()[1] == release, !is_entered);
        it.receives(1, ":7\r\n");
        assert_eq!(it.has_sent("ACQUIRE"), !is_entered);
    }
}

/// Only an upgrade is undone.
#[test]
fn a_re_entry_whose_caller_is_gone_changes_nothing() {
    for ask in [Ask::Exclusive, Ask::Shared] {
        let mut it = held(ask);
        it.asks_mode("k", ask);
        it.abandons(3);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        assert_eq!(it.actions()[1..], ["1 RLOCK.CANCEL k o"]);
        it.answers(1, "RLOCK.CANCEL", ":0\r\n");
        enters(&mut it, ask, 7);
        it.actions();
        it.misses(4, ask);
        assert_eq!(it.actions(), [""; 0]);
    }
    // The shared guard is gone, too.
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Exclusive);
    it.drops_mode(Ask::Shared);
    it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
    it.actions();
    it.misses(3, Ask::Exclusive);
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o ALL FENCE 9"]);
}

/// A shorter lease would end under the other guards.
#[test]
fn a_re_entry_asks_for_what_is_left_of_the_hold() {
    let mut it = Played::connected();
    let terms = Terms::new().max_hold(Duration::from_secs(60)).unwrap();
    it.tries("k", terms);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    for _ in 0..50 {
        it.passes(1_000);
        it.answers_each(1, |_| ":7\r\n".to_owned());
    }
    it.actions();
    it.asks_mode("k", Ask::Exclusive);
    assert!(it.has_sent("1 RLOCK.ACQUIRE k o 10000 "));
}

/// The server has said that it is gone, so there is nothing to release before.
#[test]
fn a_lock_that_the_server_ended_is_asked_for_at_once() {
    let mut it = held(Ask::Exclusive);
    it.receives(1, push(&["message", "rlock:client:c:1", "lost 7 o k"]));
    it.asks_mode("k", Ask::Exclusive);
    let actions = it.actions();
    assert!(actions[1].starts_with("1 RLOCK.ACQUIRE"), "{actions:?}");
}

#[test]
fn a_late_upgrade_that_is_undone_leaves_its_fence() {
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Exclusive);
    it.abandons(3);
    it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
    it.answers(1, "RLOCK.CANCEL", ":0\r\n");
    it.answers(1, "RLOCK.DOWNGRADE", ":9\r\n");
    assert_eq!(it.proofs[0].fence(), 9);
}

#[test]
fn a_hold_is_over_when_its_release_begins() {
    let mut it = held(Ask::Exclusive);
    it.releases();
    let released = Some(Loss::Released);
    assert_eq!(it.proofs[0].end_of(it.now()), released);
    assert!(!it.proofs[0].is_live(it.now()));
    // The close of the client neither repeats the release nor takes its outcome.
    it.leaves_all();
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o ALL FENCE 7"]);
    it.receives(1, ":0\r\n");
    assert_eq!(it.actions(), ["call 3: done"]);

    // A release that waits for another call has not begun.
    let mut it = held(Ask::Exclusive);
    it.extends(Duration::from_secs(90));
    it.leaves_all();
    it.handle(Event::Closed);
    assert_eq!(it.proofs[0].end_of(it.now()), released);
}

#[test]
fn a_repeated_release_or_downgrade_may_find_nothing() {
    let mut it = held(Ask::Exclusive);
    it.releases();
    it.reconnects();
    it.actions();
    it.answers(2, "RLOCK.RELEASE", "$-1\r\n");
    assert_eq!(it.actions(), ["call 3: done"]);
    let mut it = held(Ask::Exclusive);
    it.downgrades();
    it.reconnects();
    it.passes(1);
    it.did();
    it.answers_each(2, |asked| match asked.starts_with("RLOCK.DOWNGRADE") {
        true => "$-1\r\n".to_owned(),
        false => ":7\r\n".to_owned(),
    });
    assert_eq!(it.did(), ["call 3: done"]);
    // But a hold that must stay is gone.
    let mut it = held(Ask::Exclusive);
    it.keeps(20);
    it.releases();
    it.reconnects();
    it.did();
    it.answers(2, "RLOCK.RENEW", "$-1\r\n");
    assert_eq!(it.did(), ["call 3: the lock was lost: the server ended it"]);
}

/// A flush tells what the server refused to release if nobody else learns of that, until the leases end.
#[test]
fn a_refused_release_that_nobody_waits_for_is_reported() {
    let refused = "-NOPERM no\r\n";
    let mut it = Played::connected();
    for key in ["k", "l"] {
        it.asks(key);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        it.drops_mode(Ask::Exclusive);
        it.answers(1, "RLOCK.RELEASE", refused);
    }
    it.did();
    it.flushes();
    let told = ["flushed: k and 1 more were not released: not permitted: no"];
    assert_eq!(it.did(), told);
    it.passes(31_000);
    it.flushes();
    assert_eq!(it.did(), ["flushed"]);

    // This one is not to be released, and that one has a caller.
    let mut it = held(Ask::Exclusive);
    it.keeps(20);
    it.drops_mode(Ask::Exclusive);
    it.answers(1, "RLOCK.RENEW", refused);
    it.asks_for("k", &["l"], Terms::new());
    it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    it.releases();
    it.flushes();
    assert_eq!(it.did().pop().unwrap(), "flushed");
    it.answers(1, "RLOCK.MRELEASE", "-WRONGTYPE key 'l' holds no lock\r\n");
    it.did();
    it.answers(1, "RLOCK.RELEASE k", refused);
    it.answers(1, "RLOCK.RELEASE l", refused);
    it.flushes();
    let told = [
        "call 4: the key holds no lock: key 'l' holds no lock",
        "flushed",
    ];
    assert_eq!(it.did(), told);
}

pub(crate) fn fixed(seconds: u64) -> Terms {
    let lease = Duration::from_secs(seconds);
    Terms::new().lease(Lease::Fixed(lease)).unwrap()
}

/// `key` is held with that lease, its guard is dropped, and the server refuses the release.
fn is_refused(it: &mut Played, key: &str, seconds: u64) {
    it.asks_on(key, fixed(seconds));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.drops_mode(Ask::Exclusive);
    it.answers(1, "RLOCK.RELEASE", "-NOPERM no\r\n");
}

/// The lease begins when the server grants it, and the clocks do not run equally fast.
#[test]
fn a_refused_release_is_reported_until_its_lease_is_certainly_over() {
    for (ms, told) in [
        (100_999, "flushed: k was not released: not permitted: no"),
        (101_003, "flushed"),
    ] {
        let mut it = Played::connected();
        is_refused(&mut it, "k", 100);
        it.passes(ms);
        it.did();
        it.flushes();
        assert_eq!(it.did(), [told]);
    }
    // The reply took two seconds.
    let mut it = Played::connected();
    it.asks_on("k", fixed(100));
    it.passes(2_000);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.drops_mode(Ask::Exclusive);
    it.answers(1, "RLOCK.RELEASE", "-NOPERM no\r\n");
    it.passes(100_999);
    it.did();
    it.flushes();
    assert_eq!(it.did(), ["flushed: k was not released: not permitted: no"]);
}

#[test]
fn each_lock_that_was_not_released_is_reported_until_its_own_lease_ends() {
    let mut it = Played::connected();
    for number in 0..100 {
        is_refused(&mut it, &format!("k{number}"), 90);
        it.passes(60_000);
    }
    it.did();
    it.flushes();
    assert_eq!(
        it.did(),
        ["flushed: k99 was not released: not permitted: no"]
    );

    // The flush itself takes longer than the lease.
    let mut it = Played::connected();
    is_refused(&mut it, "short", 3);
    it.asks("long");
    it.answers(1, "RLOCK.ACQUIRE", ":8\r\n");
    it.ends(1);
    it.drops_mode(Ask::Exclusive);
    it.flushes();
    it.did();
    it.passes(40_000);
    let did = it.did();
    assert!(did.contains(&"flushed".to_owned()), "{did:?}");
}

/// The server has ended one of the keys, and nothing releases the other.
#[test]
fn a_key_that_was_left_of_several_is_reported_at_the_end_of_the_client() {
    let mut it = Played::connected();
    it.asks_for("a", &["b"], Terms::new());
    it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    it.receives(1, push(&["message", "rlock:client:c", "lost 7 o2 a"]));
    it.drops_mode(Ask::Exclusive);
    assert!(it.has_sent("RLOCK.MRELEASE"));
    it.handle(Event::Closed);
    it.did();
    it.flushes();
    let did = it.did();
    assert!(
        did[0].starts_with("flushed: a and 1 more were not released"),
        "{did:?}"
    );
}

/// Nobody waits for it any more, and the server has ended the hold.
#[test]
fn a_release_ends_with_the_lease() {
    for permits in [1, 2] {
        let mut it = Played::connected();
        it.asks_mode("k", Ask::Permits { limit: 9, permits });
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        if permits == 2 {
            it.splits();
        }
        it.ends(1);
        it.releases_mode(Ask::Permits {
            limit: 9,
            permits: 1,
        });
        it.did();
        it.passes(11_000);
        let failed = "call 3: no usable answer from the server within 10s".to_owned();
        assert!(it.did().contains(&failed));
        it.drops_mode(Ask::Permits {
            limit: 9,
            permits: 1,
        });
        it.passes(60_000);
        assert!(it.endpoint.engine().is_empty());
    }
}

fn lost(fence: u64) -> String {
    push(&["message", "rlock:client:c:1", &format!("lost {fence} o k")])
}

/// An operator has ended the hold before the second request, which takes the lock for nobody.
#[test]
fn a_request_that_takes_the_lock_anew_is_undone_if_nobody_waits_for_it() {
    for closes in [false, true] {
        let mut it = held(Ask::Exclusive);
        it.asks_mode("k", Ask::Exclusive);
        if closes {
            it.leaves_all();
        } else {
            it.abandons(3);
        }
        it.receives(1, lost(7));
        it.answers(1, "RLOCK.ACQUIRE", ":8\r\n");
        it.answers(1, "RLOCK.CANCEL", ":0\r\n");
        let did = it.actions();
        let release = "1 RLOCK.RELEASE k o ALL".to_owned();
        assert!(did.contains(&release), "closes: {closes}, {did:?}");
    }
}

#[test]
fn an_extension_without_an_answer_is_released_too() {
    let mut it = held(Ask::Exclusive);
    it.extends(Duration::from_secs(3600));
    it.ends(1);
    it.drops_mode(Ask::Exclusive);
    it.leaves_all();
    it.passes(40_000);
    it.did();
    let number = it.connections();
    it.greeted(number);
    let did = it.actions();
    let release = format!("{number} RLOCK.RELEASE k o ALL");
    assert!(did.iter().any(|it| it.starts_with(&release)), "{did:?}");
}

/// The second one asks the server, although the first one could not.
#[test]
fn guards_that_are_shared_leave_no_exclusive_lock() {
    let mut it = held(Ask::Exclusive);
    it.asks_mode("k", Ask::Exclusive);
    it.ends(1);
    it.downgrades();
    it.passes(12_000);
    let failed = "call 4: no usable answer from the server within 10s".to_owned();
    assert!(it.did().contains(&failed));
    let number = it.connections();
    it.greeted(number);
    it.answers_each(number, |_| ":7\r\n".to_owned());
    it.actions();
    it.downgrades();
    assert_eq!(it.actions(), [format!("{number} RLOCK.DOWNGRADE k o")]);
}

#[test]
fn a_loss_counts_that_is_reported_under_the_fence_of_an_unclaimed_upgrade() {
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Exclusive);
    it.abandons(3);
    it.answers(1, "RLOCK.ACQUIRE", ":8\r\n");
    it.receives(1, lost(8));
    assert!(it.did().contains(&OVER.to_owned()));
}

/// A hold with guards has them too.
#[test]
fn keys_whose_clean_up_is_refused_are_not_released_if_they_are_held() {
    let mut it = Played::connected();
    for _ in 0..2 {
        it.asks_as("o", "a", &["b"], Terms::new());
        it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    }
    it.asks_as("o", "a", &["b"], Terms::new());
    it.abandons(4);
    it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    it.answers(1, "RLOCK.CANCEL", "-NOPERM no\r\n");
    let did = it.actions();
    assert!(!did.iter().any(|it| it.contains("RELEASE")), "{did:?}");
}

/// The server may have ended the hold and granted others before, and the report of that went to a connection that is gone.
#[test]
fn an_upgrade_that_a_new_connection_finds_hides_no_loss() {
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Exclusive);
    it.reconnects();
    it.answers_each(2, |_| ":9\r\n".to_owned());
    it.answers_each(2, |_| ":9\r\n".to_owned());
    let did = it.did();
    assert!(did.contains(&OVER.to_owned()), "{did:?}");
    assert!(did.contains(&"call 3: granted 9".to_owned()), "{did:?}");
}

#[test]
fn an_upgrade_that_is_undone_on_a_new_connection_hides_no_loss() {
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Exclusive);
    it.abandons(3);
    it.reconnects();
    it.answers(2, "RLOCK.CANCEL", ":0\r\n");
    it.answers(2, "RLOCK.DOWNGRADE", ":9\r\n");
    let actions = it.actions();
    assert!(actions.contains(&OVER.to_owned()), "{actions:?}");
    assert_eq!(actions.last().unwrap(), "2 RLOCK.RELEASE k o ALL");
    assert_eq!(it.proofs[0].fence(), 7);
}

/// Its message came by the connection to which losses are reported.
#[test]
fn an_upgrade_that_was_announced_before_the_connection_broke_is_no_loss() {
    for abandons in [false, true] {
        let mut it = held(Ask::Shared);
        it.asks_mode("k", Ask::Exclusive);
        it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
        it.receives(1, push(&["message", "rlock:client:c:1", "grant 9 o k"]));
        if abandons {
            it.abandons(3);
        }
        it.reconnects();
        for _ in 0..2 {
            it.answers_each(2, |asked| match asked {
                asked if asked.starts_with("RLOCK.CANCEL") => ":0\r\n".to_owned(),
                _ => ":9\r\n".to_owned(),
            });
        }
        let did = it.did();
        assert!(!did.contains(&OVER.to_owned()), "{did:?}");
    }
}

/// Others had the lock between the two requests.
#[test]
fn a_downgrade_that_fails_hides_no_loss() {
    let mut it = held(Ask::Exclusive);
    it.asks_mode("k", Ask::Exclusive);
    it.ends(1);
    it.downgrades();
    it.passes(12_000);
    it.did();
    let number = it.connections();
    it.greeted(number);
    for _ in 0..2 {
        it.answers_each(number, |_| ":12\r\n".to_owned());
    }
    let did = it.did();
    assert!(did.contains(&OVER.to_owned()), "{did:?}");
}

/// Nor do the renewals that ask for its lease while it is tried.
#[test]
fn a_refused_extension_keeps_no_flush_waiting() {
    let mut it = held(Ask::Exclusive);
    it.extends(Duration::from_secs(20 * 24 * 3600));
    for _ in 0..60 {
        it.answers_each(1, |_| "-LOADING no\r\n".to_owned());
        it.passes(250);
    }
    it.drops_mode(Ask::Exclusive);
    it.ends(1);
    it.flushes();
    it.passes(60_000);
    assert!(it.did().contains(&"flushed".to_owned()));
}

/// The hold was ended, others had the lock, and it was granted again. Twice the request for loss reports fails: its
/// connection breaks, or the server refuses it for now.
#[test]
fn an_upgrade_without_loss_reports_hides_no_loss() {
    for refused in 0..20 {
        let mut it = held(Ask::Shared);
        it.asks_mode("k", Ask::Exclusive);
        it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
        it.reconnects();
        let attaches = "2 RLOCK.RENEW k o 30000 NOTIFY rlock:client:c:2";
        assert_eq!(it.actions().last().unwrap(), attaches);
        let mut number = 2;
        if refused == 0 {
            it.reconnects();
            number = 3;
        }
        let mut is_granted = false;
        // The watchdog asks for them, too.
        for round in 0..40 {
            it.passes(if round < refused { 1 } else { 20 });
            it.answers_each(number, |asked| {
                is_granted |= asked.starts_with("RLOCK.ACQUIRE");
                let reply = match (is_granted, round < refused) {
                    (true, _) => ":9\r\n",
                    (false, true) => "-LOADING no\r\n",
                    (false, false) => "$-1\r\n",
                };
                reply.to_owned()
            });
        }
        let did = it.did();
        assert!(did.contains(&"call 3: granted 9".to_owned()), "{did:?}");
        assert!(did.contains(&OVER.to_owned()), "{refused}: {did:?}");
    }
}

/// The server has no room for another watch, so nothing would tell a loss from the upgrade.
#[test]
fn an_upgrade_that_the_server_cannot_watch_is_refused() {
    for full in ["-QUEUEFULL no room\r\n", "-OOM no room\r\n"] {
        for reconnects in [false, true] {
            let mut it = Played::connected();
            it.asks_mode("k", Ask::Shared);
            if reconnects {
                it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
                it.reconnects();
            } else {
                it.answers(1, "RLOCK.ACQUIRE", "-QUEUEFULL no room\r\n");
                it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
            }
            it.actions();
            it.asks_mode("k", Ask::Exclusive);
            for _ in 0..4 {
                it.passes(20);
                it.answers_each(it.connections(), |asked| match asked.contains("NOTIFY") {
                    true => full.to_owned(),
                    false => ":7\r\n".to_owned(),
                });
            }
            let actions = it.actions();
            let refused = |it: &String| it.starts_with("call 3: ") && it.ends_with("no room");
            assert!(actions.iter().any(refused), "{actions:?}");
            let unexpected = |it: &String| it.starts_with("over") || it.contains("ACQUIRE");
            assert!(!actions.iter().any(unexpected), "{actions:?}");
        }
    }
}

/// Its upgrade has taken the lock again, as the answer to a renewal tells.
#[test]
fn a_lost_guard_keeps_its_fence() {
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Exclusive);
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.passes(250);
    while !it.has_sent("1 RLOCK.RENEW k o 30000") {
        it.answers_each(1, |_| "+PONG\r\n".to_owned());
        it.passes(250);
    }
    for message in ["lost 7 o k", "grant 9 o k"] {
        it.receives(1, push(&["message", "rlock:client:c:1", message]));
    }
    it.answers(1, "RLOCK.RENEW", ":9\r\n");
    assert_eq!(it.proofs[0].fence(), 7);
    it.answers(1, "RLOCK.RENEW", ":9\r\n");
    assert_eq!(it.did(), [OVER, "call 3: granted 9"]);
}

/// The user may not downgrade. Nobody else had the lock: the owner has it alone from its grant on, while it is renewed, by the
/// next connection, and if it enters the hold again.
#[test]
fn an_upgrade_that_cannot_be_undone_is_no_loss() {
    for (is_renewed, reconnects) in [(true, true), (true, false), (false, false)] {
        let mut it = held(Ask::Shared);
        it.asks_mode("k", Ask::Exclusive);
        it.abandons(3);
        it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
        it.answers(1, "RLOCK.CANCEL", ":0\r\n");
        it.answers(1, "RLOCK.DOWNGRADE", "-NOPERM no\r\n");
        for _ in 0..if is_renewed { 60 } else { 0 } {
            it.passes(250);
            it.answers_each(1, |_| ":9\r\n".to_owned());
        }
        if reconnects {
            it.reconnects();
            for _ in 0..10 {
                it.passes(20);
                it.answers_each(2, |_| ":9\r\n".to_owned());
            }
        } else {
            it.asks_mode("k", Ask::Shared);
            it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
        }
        let did = it.did();
        assert!(!did.contains(&OVER.to_owned()), "{did:?}");
    }
}

/// The server had ended the hold, so a re-entry that nobody waits for took the lock, in shared mode.
#[test]
fn what_an_abandoned_re_entry_took_is_released_if_a_downgrade_finds_the_loss() {
    let mut it = held(Ask::Exclusive);
    it.asks_mode("k", Ask::Shared);
    it.reconnects();
    it.abandons(3);
    it.downgrades();
    it.answers(2, "RLOCK.ACQUIRE k o", ":8\r\n");
    it.answers(2, "RLOCK.CANCEL", ":0\r\n");
    it.answers(2, "RLOCK.DOWNGRADE", "$-1\r\n");
    let did = it.did();
    assert!(did.contains(&OVER.to_owned()), "{did:?}");
    it.answers(2, "RLOCK.CANCEL", ":0\r\n");
    it.answers(2, "RLOCK.RELEASE k o ALL", ":0\r\n");
}

/// The server had ended the hold, so a re-entry that nobody waits for took both keys.
#[test]
fn what_an_abandoned_re_entry_took_of_several_keys_is_released_if_a_renewal_finds_the_loss() {
    let mut it = Played::connected();
    it.asks_as("o", "a", &["b"], Terms::new());
    it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    it.asks_as("o", "a", &["b"], Terms::new());
    it.abandons(3);
    it.reconnects();
    it.answers(2, "RLOCK.CANCEL", ":0\r\n");
    it.passes(1);
    it.answers(2, "RLOCK.MRENEW o 30000 2 a b FENCE 7", ":0\r\n");
    let mut released = false;
    for _ in 0..100 {
        let did = it.actions();
        released |= did.iter().any(|line| line.contains("RELEASE"));
        it.answers_each(2, |_| ":0\r\n".to_owned());
        it.passes(250);
    }
    assert!(released);
}

/// An abandoned re-entry may have taken the lock again, under another fence. A server that has not heard of the release
/// answers with that grant.
#[test]
fn a_grant_under_an_unknown_fence_that_was_released_is_given_back() {
    let mut it = held(Ask::Exclusive);
    it.asks_mode("k", Ask::Exclusive);
    it.abandons(3);
    it.reconnects();
    it.answers(2, "RLOCK.CANCEL", ":0\r\n");
    it.releases();
    it.answers(2, "RLOCK.RELEASE k o ALL", ":0\r\n");
    assert!(it.did().contains(&"call 4: done".to_owned()));
    it.reconnects();
    it.asks_mode("k", Ask::Exclusive);
    it.answers(3, "RLOCK.ACQUIRE", ":8\r\n");
    let actions = it.actions();
    assert_eq!(actions.last().unwrap(), "3 RLOCK.RELEASE k o ALL FENCE 8");
}

/// `o` holds it shared, for at most 10 s, and waits for an upgrade, `ms` later.
pub(crate) fn upgrades_for_ten_seconds(ms: u64) -> Played {
    let terms = Terms::new().max_hold(Duration::from_secs(10)).unwrap();
    let mut it = Played::connected();
    it.asks_mode_on("k", Ask::Shared, terms);
    it.answers(1, "RLOCK.ACQUIRE k o 10000", ":7\r\n");
    it.asks_mode_on("k", Ask::Exclusive, terms);
    it.answers(1, "RLOCK.ACQUIRE k o 10000", "+WAITING\r\n");
    for _ in 0..ms / 50 {
        it.passes(50);
        it.answers_each(1, |_| "+PONG\r\n".to_owned());
    }
    it.actions();
    it
}

/// It is lost by its longest time, or by its server shortly before that. Then the call has a new hold, with a longest time
/// of its own.
#[test]
fn an_upgrade_after_a_loss_has_a_lease_and_a_longest_time_of_its_own() {
    for is_ended in [false, true] {
        let mut it = upgrades_for_ten_seconds(if is_ended { 9_850 } else { 10_500 });
        if is_ended {
            it.receives(1, push(&["message", "rlock:client:c:1", "lost 7 o k"]));
        }
        it.passes(140);
        it.receives(1, push(&["message", "rlock:client:c:1", "grant 9 o k"]));
        it.answers(1, "RLOCK.RENEW k o 10000", ":9\r\n");
        assert_eq!(it.did().last().unwrap(), "call 3: granted 9");
        let now = it.now();
        let valid = it.proofs[1].remaining(now);
        assert!((9_800..=10_000).contains(&valid.as_millis()), "{valid:?}");
    }
}

/// `o` has lost its lock by the clock, without a connection, while it asks for it with a lease of 60 s. The next
/// connection, whose number is returned, releases it first.
#[track_caller]
fn asks_for_what_it_loses(first: Ask, second: Ask, release: &str) -> (Played, usize) {
    let mut it = held(first);
    it.ends(1);
    it.passes(20_000);
    let terms = Terms::new().lease(Duration::from_secs(60)).unwrap();
    it.asks_mode_on("k", second, terms);
    it.passes(10_000);
    let over = "over: its lease ended".to_owned();
    assert!(it.did().contains(&over));
    let number = it.connections();
    it.greeted(number);
    let (actions, release) = (it.actions(), format!("{number} {release}"));
    assert_eq!(actions.last(), Some(&release), "{actions:?}");
    (it, number)
}

/// The next server may still have the old grant, although others had the lock since.
#[test]
fn a_call_that_began_before_a_loss_does_not_get_the_lost_grant() {
    let release = "RLOCK.RELEASE k o ALL FENCE 7";
    let (mut it, number) = asks_for_what_it_loses(Ask::Exclusive, Ask::Exclusive, release);
    it.answers(number, "RLOCK.RELEASE", "-NOPERM no\r\n");
    it.answers(number, "RLOCK.ACQUIRE k o 60000", ":7\r\n");
    assert!(!it.did().iter().any(|it| it.contains("granted")));
}

/// A lost hold is neither renewed for its upgrade nor does the server keep a place as for one.
#[test]
fn an_upgrade_whose_hold_is_lost_is_a_call_like_any_other() {
    let release = "RLOCK.RELEASE k o ALL";
    let (mut it, number) = asks_for_what_it_loses(Ask::Shared, Ask::Exclusive, release);
    it.answers(number, "RLOCK.RELEASE", "$-1\r\n");
    it.answers(number, "RLOCK.ACQUIRE k o 60000", "+WAITING\r\n");
    let channel = format!("rlock:client:c:{number}");
    it.receives(number, push(&["message", &channel, "timeout 0 o k"]));
    assert!(it.has_sent(&format!("{number} RLOCK.CANCEL k o")));
}
