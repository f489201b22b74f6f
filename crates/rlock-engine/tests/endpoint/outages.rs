//! Which failures to connect the user should see.

use std::time::Duration;

use rlock_engine::endpoint::Note;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::error::{Failure, ServerError};

use crate::played::Played;

const WRONG: &str = "-WRONGPASS invalid username-password pair\r\n";

/// Lets each of the next attempts fail.
fn fails(it: &mut Played, attempts: usize) {
    for _ in 0..attempts {
        let number = it.connections();
        it.ends(number);
        it.passes(2_000);
    }
}

#[test]
fn an_outage_is_news_once() {
    let mut it = Played::new("redis://h:1");
    it.asks("k");
    fails(&mut it, 5);
    assert_eq!(it.news(), ["h:1: cut"]);
    let number = it.connections();
    it.greeted(number);
    fails(&mut it, 6);
    assert_eq!(it.news(), ["h:1: cut"]);
}

#[test]
fn the_time_limit_of_an_attempt_is_news() {
    let mut it = Played::new("redis://h:1");
    it.asks("k");
    it.passes(4_999);
    assert!(it.news().is_empty());
    it.passes(1);
    assert_eq!(it.news(), ["h:1: no connection within 5s"]);
}

#[test]
fn a_wrong_password_is_news_even_after_a_failure_that_passes() {
    let mut it = Played::new("redis://:p@h:1");
    it.asks("k");
    fails(&mut it, 2);
    for _ in 0..3 {
        let number = it.connections();
        it.greeted_but(number, "HELLO", WRONG);
        it.passes(2_000);
        fails(&mut it, 1);
    }
    let wrong = "h:1: WRONGPASS invalid username-password pair";
    assert_eq!(it.news(), ["h:1: cut", wrong]);
}

#[test]
fn what_a_caller_of_the_start_gets_is_no_news() {
    for url in ["redis://h:1", "redis+cluster://h:1"] {
        let mut it = Played::new(url);
        it.start();
        fails(&mut it, 3);
        assert!(it.did().iter().any(|line| line.starts_with("call 1: ")));
        assert!(it.news().is_empty(), "{url}");
    }
}

#[test]
fn an_outage_of_a_whole_cluster_is_news_once() {
    let mut it = Played::new("redis+cluster://h:1");
    it.asks("k");
    fails(&mut it, 5);
    let failure = "no server reports the slots: h:1: cut";
    assert_eq!(it.news().len(), 1);
    let no_routes = format!("no routes: {failure}");
    assert!(it.did().contains(&no_routes));
}

#[test]
fn an_outage_of_a_master_is_news_once_in_a_cluster() {
    let mut it = crate::cluster::connected();
    it.ends(3);
    it.passes(10);
    for _ in 0..3 {
        let number = it.connections();
        it.ends(number);
        it.passes(100);
    }
    assert_eq!(it.news(), ["n:7: cut"]);
}

#[test]
fn an_outage_behind_sentinels_names_what_is_unreachable() {
    let mut it = Played::new("redis+sentinel://a/main");
    it.asks("k");
    fails(&mut it, 3);
    let why = "no Sentinel names the master: a:26379: cut";
    assert_eq!(it.news(), [format!("main: {why}")]);
}

/// How long it takes until the next attempt.
fn pause(it: &mut Played) -> u64 {
    let before = it.connections();
    let mut pause = 0;
    while it.connections() == before {
        it.passes(1);
        pause += 1;
    }
    pause
}

/// A demoted master closes each connection right after it was opened.
#[test]
fn pauses_grow_until_a_connection_lasts() {
    let mut it = Played::connected();
    let mut pauses = Vec::new();
    for lasts in [0, 0, 0, 0, 0, 4_999, 5_000] {
        it.passes(lasts);
        it.ends(it.connections());
        pauses.push(pause(&mut it));
        it.greeted(it.connections());
    }
    assert!(pauses[4] > 100 && pauses[5] > 100, "{pauses:?}");
    assert!(pauses[6] <= 20, "{pauses:?}");
}

#[test]
fn a_call_that_no_longer_waits_for_the_start_gets_no_outcome() {
    let mut it = Played::new("redis://h:1");
    it.start();
    it.start();
    it.start();
    it.abandons(2);
    it.greeted(1);
    it.answers(1, "RLOCK.HELP", "*0\r\n");
    let did = it.did();
    assert_eq!(did, ["connect 1 to h:1", "call 1: done", "call 3: done"]);
}

#[test]
fn warnings_say_what_and_why() {
    let cut = || Failure::Io("cut".to_owned());
    let refused = Failure::Server(ServerError {
        code: "WRONGPASS".to_owned(),
        message: "invalid".to_owned(),
    });
    let address = || "h:1".to_owned();
    let not_connected = |failure, is_news| Note::NotConnected {
        address: address(),
        failure,
        is_news,
    };
    let (claims, reason) = (
        Claims::new(Owner::numbered("o", 1), b"k", &[]),
        "why".to_owned(),
    );
    for (note, warning) in [
        (
            not_connected(cut(), true),
            Some("cannot reach h:1 (cut), trying again"),
        ),
        (
            not_connected(refused, true),
            Some("h:1 refuses the connection (WRONGPASS invalid), trying again"),
        ),
        (not_connected(cut(), false), None),
        (
            Note::NoRoutes {
                failure: cut(),
                is_news: true,
            },
            Some("cannot reach the cluster (cut), trying again"),
        ),
        (
            Note::NotRenewed {
                claims: claims.clone(),
                reason: reason.clone(),
            },
            Some("cannot renew k (why), trying again"),
        ),
        (
            Note::AtRisk {
                claims: claims.clone(),
                since: Duration::from_micros(5_000_700),
                left: Duration::from_millis(4_898),
            },
            Some("k is at risk (no renewal for 5.001s, lost in 4.898s), trying again"),
        ),
        (
            Note::NotReleased { claims, reason },
            Some("cannot release k (why), it becomes free when its lease ends"),
        ),
        (Note::Connected { address: address() }, None),
    ] {
        assert_eq!(note.warning().as_deref(), warning, "{note:?}");
    }
}
