//! A client that closes without waiting: what it has not released yet is released behind the requests in progress.

use std::time::Duration;

use rlock_engine::endpoint::Event;
use rlock_engine::engine::terms::{Ask, Terms};

use crate::played::Played;

const MINUTE: Duration = Duration::from_secs(60);
const RELEASE: &str = "1 RLOCK.RELEASE k o ALL FENCE 7";
const SOME: Ask = Ask::Permits {
    limit: 9,
    permits: 2,
};

/// `o` holds a lock under fence 7.
fn held(ask: Ask) -> Played {
    let mut it = Played::connected();
    it.asks_mode("k", ask);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it
}

/// What it sends after this event.
fn sends(it: &mut Played, event: Event<'_>) -> Vec<String> {
    it.actions();
    it.handle(event);
    let actions = it.actions().into_iter();
    actions.filter(|it| it.starts_with("1 ")).collect()
}

/// What it sends at its end, after all its holds have ended.
fn closes(it: &mut Played) -> Vec<String> {
    it.leaves_all();
    sends(it, Event::Closed)
}

#[test]
fn a_hold_is_released_behind_an_unanswered_request() {
    type Asks = fn(&mut Played);
    let requests: [(Ask, Asks); 5] = [
        (Ask::Exclusive, |it| it.extends(MINUTE)),
        (Ask::Exclusive, Played::downgrades),
        (Ask::Exclusive, |it| it.proclaims("v")),
        (SOME, |it| {
            it.splits();
            it.releases_mode(Ask::Permits {
                limit: 9,
                permits: 1,
            });
        }),
        // The caller of the release learns no outcome.
        (Ask::Exclusive, |it| {
            it.extends(MINUTE);
            it.releases();
        }),
    ];
    for (place, (ask, asks)) in requests.into_iter().enumerate() {
        let mut it = held(ask);
        asks(&mut it);
        assert!(!it.has_sent("RELEASE k o ALL"));
        assert_eq!(closes(&mut it), [RELEASE], "{place}");
    }
}

/// The server may grant it before it reads the end of the wait, or may have granted it.
#[test]
fn a_hold_is_released_under_any_fence_behind_an_upgrade_or_a_re_entry() {
    let any = "1 RLOCK.RELEASE k o ALL";
    for is_queued in [false, true] {
        for is_cancelled in [false, true] {
            let mut it = held(Ask::Shared);
            it.asks_mode("k", Ask::Exclusive);
            if is_queued {
                it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
            }
            if is_cancelled {
                it.abandons(3);
            }
            assert_eq!(closes(&mut it), [any]);
        }
    }
    let mut it = held(Ask::Exclusive);
    it.asks_mode("k", Ask::Exclusive);
    it.leaves_all();
    assert!(it.has_sent("RLOCK.CANCEL k o"));
    assert_eq!(sends(&mut it, Event::Closed), [any]);
}

#[test]
fn all_that_waits_for_its_turn_is_released_once_in_its_order() {
    // Several keys, and one of another owner.
    let mut it = Played::connected();
    it.asks_as("o", "a", &["b"], Terms::new());
    it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    it.extends(MINUTE);
    it.asks_as("p", "c", &[], Terms::new());
    it.leaves_all();
    it.leaves_all();
    let sent = sends(&mut it, Event::Closed);
    assert_eq!(sent, ["1 RLOCK.MRELEASE o 2 a b ALL FENCE 7"]);

    // The caller of another guard ends it after all have ended.
    let mut it = held(Ask::Exclusive);
    it.extends(MINUTE);
    it.leaves_all();
    it.releases();
    assert_eq!(sends(&mut it, Event::Closed), [RELEASE]);
    let mut it = held(Ask::Exclusive);
    it.leaves_all();
    it.releases();
    assert!(sends(&mut it, Event::Closed).is_empty());

    // A release that must leave the lock taken for a while.
    let mut it = held(Ask::Exclusive);
    it.extends(MINUTE);
    it.keeps(20);
    it.releases();
    assert_eq!(closes(&mut it), ["1 RLOCK.RENEW k o 20001"]);
}

/// Holds with guards stay what they are.
#[test]
fn a_client_that_has_not_left_all_releases_what_is_not_in_use() {
    let mut it = held(Ask::Exclusive);
    it.extends(MINUTE);
    assert!(sends(&mut it, Event::Closed).is_empty());
    let mut it = held(Ask::Exclusive);
    it.extends(MINUTE);
    it.drops_mode(Ask::Exclusive);
    assert_eq!(sends(&mut it, Event::Closed), [RELEASE]);
    let mut it = held(SOME);
    it.splits();
    it.extends(MINUTE);
    it.drops_mode(Ask::Permits {
        limit: 9,
        permits: 1,
    });
    let part = "1 RLOCK.RELEASE k o PERMITS 1 FENCE 7";
    assert_eq!(sends(&mut it, Event::Closed), [part]);
    // What is asked for may be granted.
    let mut it = Played::connected();
    it.asks_mode("k", Ask::Exclusive);
    let withdrawn = ["1 RLOCK.CANCEL k o", "1 RLOCK.RELEASE k o ALL"];
    assert_eq!(sends(&mut it, Event::Closed), withdrawn);
}

/// What is released is not known, either.
#[test]
fn what_was_not_released_at_the_end_is_told() {
    let closed = "the client has been closed, or its runtime shut down";
    let told = format!("flushed: k was not released: {closed}");
    for is_connected in [true, false] {
        let mut it = held(Ask::Exclusive);
        it.extends(MINUTE);
        if !is_connected {
            it.ends(1);
        }
        let sent = closes(&mut it);
        assert_eq!(sent.len(), usize::from(is_connected), "{sent:?}");
        it.actions();
        it.flushes();
        assert_eq!(it.did(), [told.as_str()]);
        assert!(it.endpoint.next_deadline().is_none());
    }
}

/// A flush that nobody waits for any more is forgotten. The server is gone, and the lease is long.
#[test]
fn an_abandoned_flush_leaves_nothing() {
    let mut it = Played::connected();
    let hour = Terms::new().lease(Duration::from_secs(3_600)).unwrap();
    it.asks_mode_on("k", Ask::Exclusive, hour);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.ends(1);
    it.drops_mode(Ask::Exclusive);
    let flushes: Vec<_> = (0..1_000)
        .map(|_| {
            let flush = it.endpoint.next_id();
            it.handle(Event::Call(rlock_engine::engine::Event::Flush { flush }));
            it.handle(Event::Call(rlock_engine::engine::Event::Abandon {
                call: flush,
            }));
            flush
        })
        .collect();
    it.actions();
    it.passes(4_000_000);
    let ended = it.did().iter().filter(|it| *it == "flushed").count();
    assert_eq!(ended, 0, "of {}", flushes.len());
}

/// `o` holds `k` under fence 7 with a lease of a minute, granted at the begin. Shortly before its first renewal a call of the
/// same owner asks again, and is abandoned. The server has carried that out, so its lease ends a minute after that moment,
/// which is returned, in milliseconds since the grant.
fn asks_again_and_abandons() -> (Played, u64) {
    let minute = Terms::new().lease(Duration::from_secs(60)).unwrap();
    let begin = || {
        let mut it = Played::connected();
        // Another one comes first: each hold is renewed at another time.
        it.asks("a");
        it.answers(1, "RLOCK.ACQUIRE", ":5\r\n");
        it.releases();
        it.answers(1, "RLOCK.RELEASE", ":0\r\n");
        it.asks_mode_on("k", Ask::Exclusive, minute);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        it.actions();
        it
    };
    let mut it = begin();
    let mut due = 0;
    while !it.has_sent("1 RLOCK.RENEW k") {
        it.passes(100);
        due += 100;
    }
    let mut it = begin();
    it.passes(due - 200);
    let call = 5;
    it.asks_mode_on("k", Ask::Exclusive, minute);
    it.abandons(call);
    let actions = it.actions();
    assert!(
        actions[0].starts_with("1 RLOCK.ACQUIRE k o 60000"),
        "{actions:?}"
    );
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.answers(1, "RLOCK.CANCEL", ":0\r\n");
    let end = due - 200 + 60_000;
    assert!(end > 80_000, "{end}");
    (it, end)
}

/// A flush says that nothing is left only when that is so.
#[test]
fn a_flush_counts_the_lease_of_an_abandoned_re_entry() {
    let (mut it, end) = asks_again_and_abandons();
    it.drops_mode(Ask::Exclusive);
    // The release is lost, and the server cannot be reached any more. It keeps the lock until the lease ends.
    it.ends(1);
    it.flushes();
    it.actions();
    let mut passed = end - 60_000;
    while !it.did().contains(&"flushed".to_owned()) {
        let number = it.connections();
        it.passes(100);
        passed += 100;
        if it.connections() > number {
            it.ends(it.connections());
        }
    }
    assert!(
        passed >= end,
        "all is said to be released {} ms before its lease ends",
        end - passed
    );
}

/// A replica that takes over has not heard of the release. It has the lock until the end of the lease that it knows: until
/// then, and ten seconds longer, its owner must not get it back.
#[test]
fn what_was_released_is_remembered_for_the_lease_of_an_abandoned_re_entry() {
    let (mut it, end) = asks_again_and_abandons();
    it.releases();
    it.answers(1, "RLOCK.RELEASE k o ALL", ":0\r\n");
    it.passes(60_000 - 1_000);
    it.reconnects();
    it.asks_mode("k", Ask::Exclusive);
    it.actions();
    it.answers(2, "RLOCK.ACQUIRE k o", ":7\r\n");
    let actions = it.actions();
    assert!(
        actions.contains(&"2 RLOCK.RELEASE k o ALL FENCE 7".to_owned()),
        "1 s before {end}: {actions:?}"
    );
}
