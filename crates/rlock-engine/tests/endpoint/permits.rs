//! Several guards share one hold of permits, and each releases its own.

use rlock_engine::endpoint::Event;
use rlock_engine::engine::terms::Ask;

use crate::played::{Played, bulk, list};

const ALL: &str = "1 RLOCK.RELEASE k o ALL FENCE 7";
const OVER: &str = "over: the server ended it";

fn permits(permits: u32) -> Ask {
    Ask::Permits { limit: 9, permits }
}

/// `o` holds 5 permits under fence 7, as two guards.
fn split() -> Played {
    let mut it = Played::connected();
    it.asks_mode("k", permits(5));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.splits();
    it.actions();
    it
}

/// What the server says when `o` holds this many permits under this fence.
fn info(permits: u32, fence: u64) -> String {
    let number = |number: u64| format!(":{number}\r\n");
    let holder = [
        ("owner", bulk("o")),
        ("count", number(1)),
        ("permits", number(permits.into())),
        ("lease-left-ms", number(1)),
        ("fence", number(fence)),
        ("bound", number(0)),
        ("value", "_\r\n".to_owned()),
    ];
    let all = [
        ("mode", bulk("shared")),
        ("fence", number(fence)),
        ("holders", list(&[map(&holder)])),
        ("queued", number(0)),
        ("waiters", list(&[])),
    ];
    map(&all)
}

fn map(fields: &[(&str, String)]) -> String {
    let items = fields.iter().map(|(name, value)| bulk(name) + value);
    format!("%{}\r\n{}", fields.len(), items.collect::<String>())
}

#[test]
fn each_guard_releases_its_permits_and_the_last_one_the_rest() {
    let mut it = split();
    it.splits();
    it.releases_mode(permits(2));
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o PERMITS 2 FENCE 7"]);
    it.receives(1, ":1\r\n");
    assert_eq!(it.actions(), ["call 3: done"]);
    it.drops_mode(permits(1));
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o PERMITS 1 FENCE 7"]);
    it.receives(1, ":1\r\n");
    it.drops_mode(permits(2));
    assert_eq!(it.actions(), [ALL]);
}

#[test]
fn guards_that_became_one_release_together() {
    let mut it = split();
    it.merges();
    it.drops_mode(permits(5));
    assert_eq!(it.actions(), [ALL]);
}

/// It entered the hold, which keeps its permits, so these are for both.
#[test]
fn a_guard_that_has_no_permits_of_its_own_releases_none() {
    let mut it = split();
    it.asks_mode("k", permits(4));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it.releases_mode(permits(2));
    assert_eq!(it.actions(), ["call 4: done"]);
    it.releases_mode(permits(3));
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o PERMITS 1 FENCE 7"]);
    it.receives(1, ":1\r\n");
    it.actions();
    it.releases_mode(permits(4));
    assert_eq!(it.actions(), [ALL]);
}

/// The owner may enter it again, and needs all of them then.
#[test]
fn a_hold_that_was_not_split_keeps_its_permits() {
    let mut it = Played::connected();
    for asked in [3, 1] {
        it.asks_mode("k", permits(asked));
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    }
    it.actions();
    it.releases_mode(permits(3));
    assert_eq!(it.actions(), ["call 4: done"]);
    it.releases_mode(permits(1));
    assert_eq!(it.actions(), [ALL]);
}

/// The server is asked how many the hold has, and only what is left of them is released.
#[test]
fn a_release_without_an_answer_is_repeated_only_if_it_was_not_carried_out() {
    for (has, fence, next) in [
        (5, 7, "2 RLOCK.RELEASE k o PERMITS 2 FENCE 7"),
        (3, 7, "call 3: done"),
        (5, 8, OVER),
    ] {
        let mut it = split();
        it.releases_mode(permits(2));
        it.reconnects();
        it.actions();
        it.answers(2, "RLOCK.INFO k", info(has, fence));
        assert_eq!(it.actions()[0], next);
    }
}

/// The server may still carry out the release later, because its connection may be open.
#[test]
fn a_release_that_may_come_late_is_not_repeated() {
    for (has, outcome) in [(5, "no usable answer"), (3, "done")] {
        let mut it = split();
        it.releases_mode(permits(2));
        it.ends(1);
        it.passes(20);
        it.greeted_but(2, "CLIENT KILL", "-NOPERM no\r\n");
        it.actions();
        it.answers(2, "RLOCK.INFO k", info(has, 7));
        let did = it.did();
        let ended = format!("call 3: {outcome}");
        assert!(did[0].starts_with(&ended), "{did:?}");
        it.drops_mode(permits(3));
        let last = it.actions().pop();
        assert_eq!(last.as_deref(), Some("2 RLOCK.RELEASE k o ALL FENCE 7"));
    }
}

#[test]
fn a_release_that_the_server_refuses_for_now_is_repeated() {
    let mut it = split();
    it.releases_mode(permits(2));
    it.answers(1, "RLOCK.RELEASE", "-TRYAGAIN soon\r\n");
    it.passes(20);
    let again = it.actions().pop();
    assert_eq!(
        again.as_deref(),
        Some("1 RLOCK.RELEASE k o PERMITS 2 FENCE 7")
    );
}

/// Nobody else learns of that: a guard was dropped.
#[test]
fn a_refused_release_is_reported() {
    let mut it = split();
    it.drops_mode(permits(2));
    it.answers(1, "RLOCK.RELEASE", "-NOPERM no\r\n");
    it.flushes();
    let did = it.did().pop().unwrap();
    assert!(did.starts_with("flushed: k was not released"), "{did}");
}

/// The rest of the permits is still held.
#[test]
fn permits_that_were_not_released_at_the_end_of_the_client_are_reported() {
    for steps in [
        vec!["ends", "drops"],
        vec!["drops", "ends"],
        vec!["extends", "drops", "ends"],
        vec!["ends", "drops", "drops the rest"],
    ] {
        let mut it = split();
        for step in steps {
            match step {
                "ends" => it.handle(Event::Closed),
                "drops" => it.drops_mode(permits(1)),
                "extends" => it.extends(std::time::Duration::from_secs(60)),
                _ => it.drops_mode(permits(4)),
            }
        }
        it.did();
        it.flushes();
        let closed = "the client has been closed, or its runtime shut down";
        assert_eq!(it.did(), [format!("flushed: k was not released: {closed}")]);
    }
}

#[test]
fn permits_that_are_released_in_the_end_are_not_reported() {
    for all in [false, true] {
        let mut it = split();
        it.splits();
        it.drops_mode(permits(2));
        it.answers(1, "RLOCK.RELEASE k o PERMITS 2", "-NOPERM no\r\n");
        it.drops_mode(permits(1));
        match all {
            true => {
                it.answers(1, "RLOCK.RELEASE k o PERMITS 3", "-NOPERM no\r\n");
                it.drops_mode(permits(2));
                it.answers(1, "RLOCK.RELEASE k o ALL", ":0\r\n");
            }
            false => it.answers(1, "RLOCK.RELEASE k o PERMITS 3", ":1\r\n"),
        }
        it.did();
        it.flushes();
        assert_eq!(it.did(), ["flushed"]);
    }
}

/// The last guard, which was dropped meanwhile, releases all permits.
#[test]
fn a_guard_whose_permits_the_last_one_releases_has_its_outcome() {
    for (reply, outcome) in [
        (":0\r\n", "done"),
        ("-NOPERM no\r\n", "not permitted: no"),
        ("$-1\r\n", "the lock was lost: the server ended it"),
    ] {
        let mut it = split();
        it.splits();
        it.drops_mode(permits(1));
        it.releases_mode(permits(2));
        it.drops_mode(permits(2));
        it.answers(1, "RLOCK.RELEASE k o PERMITS 1", ":1\r\n");
        it.actions();
        it.answers(1, "RLOCK.RELEASE k o ALL", reply);
        assert_eq!(it.did(), [format!("call 3: {outcome}")]);
    }
}

/// The next call of its owner waits for others.
#[test]
fn nobody_waits_for_a_guard_whose_permits_the_last_one_has_released() {
    let mut it = split();
    it.splits();
    it.drops_mode(permits(1));
    it.releases_mode(permits(2));
    it.drops_mode(permits(2));
    it.asks_mode("k", permits(1));
    it.answers(1, "RLOCK.RELEASE k o PERMITS 1", ":1\r\n");
    it.answers(1, "RLOCK.RELEASE k o ALL", ":0\r\n");
    it.answers(1, "RLOCK.ACQUIRE k o", "+WAITING\r\n");
    it.flushes();
    assert_eq!(it.did(), ["call 3: done", "flushed"]);
}

#[test]
fn permits_of_a_hold_that_is_gone_tell_its_loss() {
    let mut it = split();
    it.releases_mode(permits(2));
    it.answers(1, "RLOCK.RELEASE", "$-1\r\n");
    let lost = "call 3: the lock was lost: the server ended it";
    assert_eq!(it.did(), [OVER, lost]);
}

/// The last guard leaves all of them taken.
#[test]
fn permits_that_stay_taken_are_not_released() {
    let mut it = split();
    it.keeps(20);
    it.releases_mode(permits(2));
    assert_eq!(it.actions(), ["call 3: done"]);
    it.releases_mode(permits(3));
    assert_eq!(it.actions(), ["1 RLOCK.RENEW k o 20001"]);
}

/// The hold is released with all its permits, which are not counted any more.
#[test]
fn guards_that_end_after_the_close_of_the_client_wait_for_its_release() {
    let mut it = split();
    it.leaves_all();
    it.splits();
    it.merges();
    assert_eq!(it.actions(), [ALL]);
    it.releases_mode(permits(2));
    assert_eq!(it.actions(), [""; 0]);
    it.receives(1, ":0\r\n");
    assert_eq!(it.actions(), ["call 3: done"]);
}

/// The guard that enters needs the permits that would have been released.
#[test]
fn permits_that_an_earlier_call_has_entered_are_not_released() {
    let mut it = Played::connected();
    it.asks_mode("k", permits(5));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.splits();
    it.actions();
    it.asks_mode("k", permits(4));
    it.drops_mode(permits(3));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    let did = it.actions();
    assert!(!did.iter().any(|it| it.contains("RELEASE")), "{did:?}");
}

/// An extension is in progress while two of three guards end. The first end releases for both.
fn ends_two() -> Played {
    let mut it = split();
    it.splits();
    it.extends(std::time::Duration::from_secs(60));
    assert_eq!(it.actions(), ["1 RLOCK.RENEW k o 60000"]);
    it.drops_mode(permits(1));
    it.releases_mode(permits(2));
    assert_eq!(it.actions(), [""; 0]);
    it
}

#[test]
fn a_guard_whose_permits_another_one_releases_learns_of_the_loss() {
    let mut it = ends_two();
    it.answers(1, "RLOCK.RENEW", "$-1\r\n");
    let lost = [3, 4].map(|call| format!("call {call}: the lock was lost: the server ended it"));
    assert_eq!(it.did(), [OVER, &*lost[0], &*lost[1]]);
}

#[test]
fn a_guard_whose_permits_another_one_cannot_release_tries_it() {
    const BOTH: &str = "1 RLOCK.RELEASE k o PERMITS 3 FENCE 7";
    let mut it = ends_two();
    it.answers(1, "RLOCK.RENEW", ":7\r\n");
    assert_eq!(it.actions(), ["call 3: done", BOTH]);
    it.answers(1, "RLOCK.RELEASE", "-NOPERM no\r\n");
    assert_eq!(it.actions(), [BOTH]);
    it.answers(1, "RLOCK.RELEASE", ":1\r\n");
    assert_eq!(it.actions(), ["call 4: done"]);
}

/// The hold is renewed meanwhile, and the server refuses to release: its slot moves.
#[test]
fn a_release_that_the_server_refuses_for_a_lease_is_reported_and_left_to_the_next_guard() {
    let mut it = split();
    it.drops_mode(permits(2));
    it.flushes();
    for _ in 0..60 {
        it.passes(1_000);
        it.answers_each(1, |asked| match asked {
            asked if asked.starts_with("RLOCK.RELEASE") => "-TRYAGAIN no\r\n".to_owned(),
            _ => ":7\r\n".to_owned(),
        });
    }
    let failed = "flushed: k was not released: no usable answer from the server within 30.3s";
    assert_eq!(it.did(), [failed]);
    it.splits();
    it.drops_mode(permits(1));
    assert!(it.has_sent("1 RLOCK.RELEASE k o PERMITS 3 FENCE 7"));
}

#[test]
fn permits_are_released_by_a_guard_that_ends_behind_a_call() {
    let mut it = split();
    it.drops_mode(permits(2));
    it.answers(1, "RLOCK.RELEASE k o PERMITS 2", ":1\r\n");
    it.asks_mode("k", permits(1));
    it.releases_mode(permits(3));
    it.actions();
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    let released = "1 RLOCK.RELEASE k o PERMITS 2 FENCE 7";
    assert_eq!(it.actions().last().unwrap(), released);
}

/// The release of all waits behind the one of some.
#[test]
fn permits_that_the_last_guard_releases_are_not_reported() {
    let mut it = split();
    it.drops_mode(permits(2));
    it.drops_mode(permits(3));
    it.flushes();
    let mut did = Vec::new();
    for _ in 0..60 {
        it.passes(1_000);
        it.answers_each(1, |asked| match asked {
            asked if asked.contains("PERMITS") => "-TRYAGAIN no\r\n".to_owned(),
            asked if asked.starts_with("RLOCK.RELEASE") => ":0\r\n".to_owned(),
            _ => ":7\r\n".to_owned(),
        });
        did.extend(it.did());
    }
    assert_eq!(did, ["flushed"]);
}

/// The server had ended the hold, so a re-entry that nobody waits for took the lock.
#[test]
fn what_an_abandoned_re_entry_took_is_released_if_a_part_finds_the_loss() {
    let mut it = split();
    it.asks_mode("k", permits(5));
    it.reconnects();
    it.abandons(3);
    it.drops_mode(permits(2));
    it.answers(2, "RLOCK.ACQUIRE k o", ":8\r\n");
    it.answers(2, "RLOCK.CANCEL", ":0\r\n");
    it.answers(2, "RLOCK.RELEASE k o PERMITS 2 FENCE 7", "$-1\r\n");
    it.answers(2, "RLOCK.CANCEL", ":0\r\n");
    it.answers(2, "RLOCK.RELEASE k o ALL", ":0\r\n");
}

/// A flush has waited for the work that finds out that there is something to undo.
#[test]
fn a_flush_waits_for_what_its_clean_up_has_still_to_undo() {
    let mut it = split();
    it.asks_mode("k", permits(5));
    it.reconnects();
    it.abandons(3);
    it.drops_mode(permits(2));
    it.flushes();
    it.answers(2, "RLOCK.ACQUIRE k o", ":8\r\n");
    it.answers(2, "RLOCK.CANCEL", ":0\r\n");
    it.did();
    it.answers(2, "RLOCK.RELEASE k o PERMITS 2 FENCE 7", "$-1\r\n");
    let did = it.did();
    assert!(did.contains(&OVER.to_owned()), "{did:?}");
    assert!(!did.contains(&"flushed".to_owned()), "{did:?}");
}

/// A call waits for a connection when the hold is lost that it wanted to enter. The server may still have that one.
#[test]
fn a_call_that_began_before_a_loss_does_not_get_the_lost_permits() {
    let mut it = Played::connected();
    it.asks_mode("k", permits(2));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.ends(1);
    it.passes(5_000);
    it.asks_mode("k", permits(5));
    it.passes(27_000);
    let number = it.connections();
    it.greeted(number);
    let actions = it.actions();
    let release = format!("{number} RLOCK.RELEASE k o ALL FENCE 7");
    assert_eq!(actions.last(), Some(&release), "{actions:?}");
}
