//! Questions to a server.

use rlock_engine::endpoint::Event;

use crate::played::{Played, push, usual};

#[test]
fn an_answered_or_abandoned_question_leaves_nothing() {
    let mut it = Played::connected();
    // The same limit as for opening a connection.
    it.passes(6000);
    for _ in 0..3 {
        it.queries("k");
        it.answers(1, "RLOCK.INFO", "_\r\n");
    }
    it.queries("k");
    it.abandons(5);
    it.answers(1, "RLOCK.INFO", "_\r\n");
    assert!(
        it.endpoint.next_deadline().is_some(),
        "the connection may fall silent"
    );
    it.passes(5000);
    assert_eq!(it.endpoint.next_deadline(), None);
}

#[test]
fn a_question_is_asked_until_its_limit() {
    let mut it = Played::connected();
    it.queries("k");
    it.answers(1, "RLOCK.INFO", "-LOADING busy\r\n");
    it.passes(10);
    it.answers(1, "RLOCK.INFO", "-NOPERM no\r\n");
    assert_eq!(it.did(), ["call 2: not permitted: no"]);
    it.queries("k");
    it.ends(1);
    it.actions();
    it.passes(20_000);
    let did = it.did();
    let failed = "call 3: no usable answer from the server within 10s";
    assert!(did.contains(&failed.to_owned()), "{did:?}");
    it.greeted(it.connections());
    let actions = it.actions().join("; ");
    assert!(!actions.contains("RLOCK.INFO"), "{actions}");
}

/// The next holder is another owner.
#[test]
fn a_change_that_may_have_been_made_is_not_repeated() {
    let mut it = Played::connected();
    it.forces("k");
    it.answers(1, "RLOCK.FORCE", "-LOADING busy\r\n");
    it.passes(10);
    assert_eq!(it.actions(), ["1 RLOCK.FORCE k", "1 RLOCK.FORCE k"]);
    it.ends(1);
    let failed = "call 2: no usable answer from the server within 10ms";
    assert_eq!(it.did(), [failed]);
    it.passes(10);
    it.greeted(2);
    it.passes(1000);
    let actions = it.actions().join("; ");
    assert!(!actions.contains("RLOCK.FORCE"), "{actions}");
    // A question that was not sent is asked again.
    it.ends(2);
    it.forces("k");
    it.passes(1000);
    it.greeted(3);
    it.answers(3, "RLOCK.FORCE", ":1\r\n");
    let actions = it.did();
    assert!(
        actions.contains(&"call 3: Integer(1)".to_owned()),
        "{actions:?}"
    );
}

#[test]
fn a_start_of_a_closing_client_is_answered_once() {
    for is_leaving in [true, false] {
        let mut it = Played::connected();
        if is_leaving {
            it.leaves_all();
        }
        it.start();
        it.handle(Event::Closed);
        let did = it.did();
        let answers = did.iter().filter(|line| line.starts_with("call 2"));
        assert_eq!(answers.count(), 1, "{did:?}");
    }
}

/// A tool that looks at a server takes no part in its locks, and does not wait for it. Its question may be a subscription.
#[test]
fn a_probe_asks_once() {
    let mut it = Played::with("redis://h:1", true);
    it.queries("k");
    it.opens(1);
    it.answers_each(1, |asked| usual(1, asked));
    assert!(!it.has_sent("SUBSCRIBE"));
    it.answers(1, "RLOCK.INFO", push(&["subscribe", "x", "1"]));
    let did = it.did();
    assert!(did[0].starts_with("call 1: Push"), "{did:?}");
    it.queries("k");
    assert!(it.endpoint.failure().is_none());
    it.ends(1);
    it.queries("k");
    it.passes(20);
    it.ends(2);
    let did = it.did();
    for end in [
        "2: cannot connect to the server: cut",
        "3: cannot connect to the server: h:1: cut",
    ] {
        let failed = format!("call {end}");
        assert!(did.contains(&failed), "{did:?}");
    }
    assert!(it.endpoint.failure().is_some());

    let mut it = Played::connected();
    it.queries("k");
    it.receives(1, push(&["subscribe", "x", "1"]));
    assert_eq!(it.did(), [""; 0]);
}
