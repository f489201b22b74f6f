//! How calls for a lock end without it.

use std::time::Duration;

use rlock_engine::engine::terms::Terms;

use crate::played::{Played, push};

const CHANNEL: &str = "rlock:client:c:1";
const FULL: &str = "-QUEUEFULL the server has 10000 waiters\r\n";

/// Lets time pass; only heartbeats are answered. Returns when which call ended.
fn ends(it: &mut Played, ms: u64) -> Vec<String> {
    let mut lines = Vec::new();
    for at in 1..=ms {
        it.passes(1);
        for action in it.actions() {
            if action.ends_with(" PING") {
                it.answers(1, "PING", "+PONG\r\n");
            }
            lines.extend(action.starts_with("call").then(|| format!("{at} {action}")));
        }
    }
    lines
}

/// The server ends a wait itself. Its message has a second to arrive.
#[test]
fn a_wait_ends_even_if_the_server_does_not_end_it() {
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    assert_eq!(
        ends(&mut it, 70_000),
        ["61000 call 2: no usable answer from the server within 61s"]
    );
}

/// The wait of the second one passes while the first one waits.
#[test]
fn calls_of_one_owner_wait_for_each_other() {
    let mut it = Played::connected();
    it.asks_as("o", "k", &[], Terms::new());
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.passes(500);
    it.asks_as("o", "k", &[], Terms::new());
    // This one does not wait.
    it.tries("k", Terms::new());
    assert_eq!(it.actions().last().unwrap(), "call 4: refused");
    it.receives(1, push(&["message", CHANNEL, "grant 7 o k"]));
    assert_eq!(it.did(), ["call 2: granted 7"]);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    assert_eq!(it.did(), ["call 3: granted 7"]);

    let mut it = Played::connected();
    it.asks_as("o", "k", &[], Terms::new());
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.asks_as("o", "k", &[], Terms::new());
    assert_eq!(ends(&mut it, 60_500), ["60000 call 3: refused"]);
}

#[test]
fn a_call_that_does_not_wait_still_needs_an_answer() {
    let mut it = Played::connected();
    it.tries("k", Terms::new());
    assert_eq!(
        it.actions(),
        ["1 RLOCK.ACQUIRE k o 30000 NOTIFY rlock:client:c:1"]
    );
    it.receives(1, "$-1\r\n");
    assert_eq!(it.actions(), ["call 2: refused"]);
    it.tries("k", Terms::new());
    assert_eq!(
        ends(&mut it, 11_000),
        ["10000 call 3: no usable answer from the server within 10s"]
    );
}

/// Its place is still kept for its owner.
#[test]
fn a_wait_that_is_over_leaves_no_place() {
    let mut it = Played::connected();
    let timeout = push(&["message", CHANNEL, "timeout 0 o2 k"]);
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.receives(1, &timeout);
    it.answers(1, "RLOCK.CANCEL k o2", ":1\r\n");
    assert_eq!(it.actions().last().unwrap(), "call 2: refused");
    it.actions();

    // No place: the lock may have been granted meanwhile.
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.actions();
    it.receives(1, timeout.replace("o2", "o3"));
    it.answers(1, "RLOCK.CANCEL", ":0\r\n");
    let undone = ["1 RLOCK.CANCEL k o3", "1 RLOCK.RELEASE k o3 ALL"];
    assert_eq!(it.actions()[1..], ["call 3: refused", undone[0], undone[1]]);
}

/// The server may keep the request of the connection that ended, and carry it out later.
#[test]
fn a_refusal_after_an_unanswered_request_is_followed_by_a_clean_up() {
    let mut it = Played::connected();
    it.tries("k", Terms::new());
    it.ends(1);
    it.passes(20);
    it.greeted_but(2, "CLIENT KILL", "-NOPERM no\r\n");
    it.actions();
    it.receives(2, "$-1\r\n");
    let undone = ["2 RLOCK.CANCEL k o", "2 RLOCK.RELEASE k o ALL"];
    assert_eq!(it.actions(), ["call 2: refused", undone[0], undone[1]]);
}

/// A free lock can be granted without a watch, but such a hold cannot be bound or publish a value.
#[test]
fn a_full_server_may_still_grant_a_free_lock() {
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", FULL);
    it.answers(1, "RLOCK.ACQUIRE k o2 30000", ":7\r\n");
    assert_eq!(it.did(), ["call 2: granted 7"]);
    it.asks("l");
    it.answers(1, "RLOCK.ACQUIRE", FULL);
    it.answers(1, "RLOCK.ACQUIRE l o3 30000", "$-1\r\n");
    let full = "the server's queue is full: the server has 10000 waiters";
    assert_eq!(it.did(), [format!("call 3: {full}")]);
    it.asks_on("m", Terms::new().bound(Duration::from_secs(1)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", FULL);
    assert_eq!(it.did(), [format!("call 4: {full}")]);
    it.campaigns("n", "v");
    it.answers(1, "RLOCK.ACQUIRE", FULL);
    assert_eq!(it.did(), [format!("call 5: {full}")]);
}

/// Connection 2 has asked.
fn waits_and_does_not_ask_again(mut it: Played) {
    it.answers(2, "RLOCK.ACQUIRE k o2", "+WAITING\r\n");
    it.actions();
    it.passes(4_000);
    let actions = it.actions().join("; ");
    assert!(!actions.contains("RLOCK.ACQUIRE"), "{actions}");
}

/// The place was there before the connection, and the server has closed the earlier one.
#[test]
fn a_place_that_nobody_else_may_take_over_is_asked_for_once() {
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.reconnects();
    waits_and_does_not_ask_again(it);
}

/// A request of this connection cannot be late, whatever came before the connection.
#[test]
fn a_first_request_is_not_repeated_because_of_an_earlier_connection() {
    let mut it = Played::connected();
    it.ends(1);
    it.passes(20);
    it.greeted_but(2, "CLIENT KILL", "-NOPERM no\r\n");
    it.asks("k");
    waits_and_does_not_ask_again(it);
}

/// The message says neither whether replicas know of the grant, nor how long the hold may last.
#[test]
fn a_grant_by_message_with_replicas_or_a_longest_hold_is_confirmed() {
    let with_replicas = Terms::new().replicas(1).unwrap();
    let longest = Terms::new().max_hold(Duration::from_secs(60)).unwrap();
    for terms in [with_replicas, longest] {
        let mut it = Played::connected();
        it.asks_on("k", terms);
        it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
        it.receives(1, push(&["message", CHANNEL, "grant 7 o2 k"]));
        let did = it.did();
        assert!(!did.contains(&"call 2: granted 7".to_owned()), "{did:?}");
    }
}

/// Only a call that waits for replicas gives up after a second.
#[test]
fn a_grant_is_confirmed_as_long_as_the_wait_lasts() {
    let mut it = Played::connected();
    it.asks_on("k", Terms::new().max_hold(Duration::from_secs(60)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.receives(1, push(&["message", CHANNEL, "grant 7 o2 k"]));
    it.passes(1_500);
    it.answers(1, "RLOCK.RENEW k o2", "-LOADING busy\r\n");
    it.passes(100);
    assert_eq!(it.did(), [""; 0]);
    it.answers_each(1, |_| ":7\r\n".to_owned());
    assert_eq!(it.did(), ["call 2: granted 7"]);
}

/// The server has ended the wait, but does not say whether the place is gone.
#[test]
fn a_wait_that_is_over_is_refused_even_if_nothing_else_is_known() {
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    assert_eq!(ends(&mut it, 59_500), [""; 0]);
    it.receives(1, push(&["message", CHANNEL, "timeout 0 o2 k"]));
    it.passes(2_000);
    assert_eq!(it.did(), ["call 2: refused"]);
}

#[test]
fn nothing_begins_after_the_close_of_the_client() {
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.leaves_all();
    it.ends(1);
    it.actions();
    it.asks("l");
    it.start();
    let closed = "the client has been closed, or its runtime shut down";
    assert_eq!(
        it.actions(),
        [3, 4].map(|call| format!("call {call}: {closed}"))
    );
}

/// A second after the wait, or as long as replicas may take on top of that. A call that does not wait has no second more.
#[test]
fn a_reply_is_late_when_the_wait_is_over() {
    let with_replicas = Terms::new().replicas(1).unwrap();
    let longest = Terms::new().max_hold(Duration::from_secs(60)).unwrap();
    for (terms, is_granted, end) in [
        (Terms::new(), false, 2_000),
        (longest, true, 2_000),
        (with_replicas, true, 3_000),
    ] {
        let mut it = Played::connected();
        it.waits_a_second("k", terms);
        if is_granted {
            it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
            it.receives(1, push(&["message", CHANNEL, "grant 7 o k"]));
        }
        let failed = format!("no usable answer from the server within {}s", end / 1_000);
        assert_eq!(ends(&mut it, 5_000), [format!("{end} call 2: {failed}")]);
    }
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.ends(1);
    it.tries("k", Terms::new());
    it.releases();
    it.passes(8_000);
    it.greeted(it.connections());
    it.did();
    let failed = "no usable answer from the server within 10s";
    assert_eq!(
        ends(&mut it, 4_000),
        [3, 4].map(|call| format!("2000 call {call}: {failed}"))
    );
}

/// The server may send its message before its reply.
#[test]
fn a_grant_by_message_may_come_before_the_reply() {
    let mut it = Played::connected();
    it.asks("k");
    it.receives(1, push(&["message", CHANNEL, "grant 7 o2 k"]));
    assert_eq!(it.did(), [""; 0]);
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    assert_eq!(it.did(), ["call 2: granted 7"]);
}

/// The answer to a release comes at once, unless there is no connection.
#[test]
fn a_call_that_does_not_wait_waits_for_a_release() {
    for is_connected in [true, false] {
        let mut it = Played::connected();
        it.tries("k", Terms::new());
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        if !is_connected {
            it.ends(1);
        }
        it.releases();
        it.actions();
        it.tries("k", Terms::new());
        let refused = it.actions() == ["call 4: refused"];
        assert_eq!(refused, !is_connected);
    }
}

/// Long waits meet many fail-overs.
#[test]
fn pauses_are_short_again_after_a_time_without_failures() {
    let mut it = Played::connected();
    it.asks("k");
    let mut paused = Vec::new();
    for quiet in [0, 0, 0, 0, 0, 0, 0, 900, 2100] {
        it.passes(quiet);
        it.answers(1, "RLOCK.ACQUIRE k", "-LOADING busy\r\n");
        it.actions();
        let mut ms = 0;
        while !it.has_sent("1 RLOCK.ACQUIRE k") {
            it.passes(1);
            ms += 1;
        }
        paused.push(ms);
    }
    assert!(
        paused[..8].windows(2).all(|it| it[0] < 2 * it[1]),
        "{paused:?}"
    );
    assert!(paused[7] >= 320 && paused[8] <= 10, "{paused:?}");
}

#[test]
fn what_happened_is_counted() {
    let mut it = Played::connected();
    for key in ["k", "l"] {
        it.asks(key);
        it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    }
    for lock in ["7 o2 k", "8 o3 l"] {
        it.receives(1, push(&["message", CHANNEL, &format!("grant {lock}")]));
        it.receives(1, push(&["message", CHANNEL, &format!("lost {lock}")]));
    }
    it.ends(1);
    it.passes(20);
    it.greeted(2);
    it.reconnects();
    let metrics = it.endpoint.engine().metrics();
    let counted = [
        metrics.grants,
        metrics.waits,
        metrics.losses,
        metrics.reconnects,
    ];
    assert_eq!(counted, [2; 4]);
}
