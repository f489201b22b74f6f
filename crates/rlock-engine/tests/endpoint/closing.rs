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
