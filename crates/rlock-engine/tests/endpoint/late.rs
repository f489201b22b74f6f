//! Requests that arrive late, and replies that are read late.

use std::collections::VecDeque;
use std::time::Duration;

use rlock_engine::engine::terms::{Ask, Lease, Terms};

use crate::played::{Played, RESPONSE, push};

const CHANNEL: &str = "rlock:client:c:1";
const NOT_ALLOWED: &str = "-NOPERM no\r\n";

fn renewed_every(lease: Duration) -> Terms {
    Terms::new().lease(Lease::Renewed(lease)).unwrap()
}

/// Its connection ends, and the server may not close it for the next one.
fn reconnects_unsure(it: &mut Played) {
    it.ends(1);
    it.passes(20);
    it.greeted_but(2, "CLIENT KILL", NOT_ALLOWED);
}

/// The message of the grant may have arrived meanwhile.
#[test]
fn a_process_that_stalled_may_still_read_before_a_wait_fails() {
    for grant in ["grant 7 o k", ""] {
        let mut it = Played::connected();
        it.waits_a_second("k", Terms::new());
        it.answers(1, "RLOCK.ACQUIRE k o", "+WAITING\r\n");
        it.did();
        it.passes(900);
        it.stalls(1_300);
        it.passes(99);
        assert_eq!(it.did(), [""; 0]);
        if grant.is_empty() {
            it.passes(1);
            let did = it.did();
            assert!(did[0].starts_with("call 2: no usable answer"), "{did:?}");
        } else {
            it.receives(1, push(&["message", CHANNEL, grant]));
            assert_eq!(it.did(), ["call 2: granted 7"]);
        }
    }
    // The answer itself is not read.
    let mut it = Played::connected();
    it.waits_a_second("k", Terms::new());
    it.stalls(2_200);
    it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
    assert_eq!(it.did(), ["call 2: granted 7"]);
}

/// The server may have cut the lease to the grace meanwhile.
#[test]
fn a_grant_of_a_bound_hold_that_is_read_late_is_confirmed() {
    let mut it = Played::connected();
    it.asks_on("k", Terms::new().bound(Duration::from_secs(2)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE k o2", "+WAITING\r\n");
    it.passes(1_001);
    it.actions();
    it.receives(1, push(&["message", CHANNEL, "grant 7 o2 k"]));
    assert_eq!(it.actions(), ["1 RLOCK.RENEW k o2 30000 BIND 2000"]);
}

/// The server must report a loss before the grant that an upgrade may still get.
#[test]
fn an_upgrade_on_a_new_connection_first_asks_for_loss_reports() {
    let mut it = Played::connected();
    it.asks_mode("k", Ask::Shared);
    it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
    it.ends(1);
    it.asks_mode("k", Ask::Exclusive);
    it.passes(20);
    it.actions();
    it.greeted(2);
    let actions = it.actions();
    let last = actions.last().unwrap();
    assert!(last.starts_with("2 RLOCK.RENEW k o "), "{actions:?}");
    assert!(last.contains(" NOTIFY "), "{actions:?}");
    it.receives(2, "$-1\r\n");
    let actions = it.actions();
    assert_eq!(actions[0], "over: the server ended it");
    assert!(
        actions[1].starts_with("2 RLOCK.ACQUIRE k o "),
        "{actions:?}"
    );
}

#[test]
fn a_connection_whose_reply_was_not_read_by_a_stalled_process_is_kept() {
    let mut it = Played::connected();
    it.asks_on("k", renewed_every(Duration::from_secs(3)));
    it.answers(1, "RLOCK.ACQUIRE k o2", ":7\r\n");
    it.actions();
    let mut renewed = Vec::new();
    while renewed.is_empty() {
        it.passes(1);
        renewed = it.actions();
    }
    assert_eq!(renewed, ["1 RLOCK.RENEW k o2 3000"]);
    it.stalls(1_150);
    it.answers(1, "RLOCK.RENEW", ":7\r\n");
    assert_eq!(it.did(), ["at risk: k: 1.769s, 1.199s left"]);
    it.passes(500);
    assert_eq!(it.did(), ["at risk: k: 1.5s, 1.468s left"]);
}

/// The request may be carried out after its clean-up.
#[test]
fn clean_up_is_repeated_while_an_earlier_connection_may_still_be_open() {
    let mut it = Played::connected();
    it.asks("k");
    it.abandons(2);
    reconnects_unsure(&mut it);
    it.actions();
    for pause in [100, 1_000, 10_000] {
        it.receives(2, ":0\r\n$-1\r\n");
        it.passes(pause - 1);
        it.actions();
        it.passes(1);
        let again = ["2 RLOCK.CANCEL k o2", "2 RLOCK.RELEASE k o2 ALL"];
        assert_eq!(it.actions(), again, "{pause}");
    }
    it.receives(2, ":0\r\n$-1\r\n");
    it.passes(60_000);
    assert_eq!(it.did(), [""; 0]);
    assert!(it.endpoint.engine().is_empty());
}

/// The server may not close a separate connection, and the main one ends after that.
#[test]
fn a_connection_that_could_not_be_closed_is_not_forgotten_with_the_next_one() {
    for (refused, is_repeated) in [(NOT_ALLOWED, true), (":1\r\n", false)] {
        let mut it = Played::connected();
        it.asks_on("r", Terms::new().replicas(1).unwrap());
        it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
        it.greeted(2);
        it.ends(2);
        it.answers(1, "CLIENT KILL ID 2", refused);
        it.asks("k");
        it.abandons(3);
        it.actions();
        it.ends(1);
        it.passes(20);
        let main = it.connections();
        it.greeted(main);
        let actions = it.actions();
        assert!(!actions.iter().any(|it| it.contains("KILL ID 2 ")));
        let clean_up = [
            format!("{main} RLOCK.CANCEL k o3"),
            format!("{main} RLOCK.RELEASE k o3 ALL"),
        ];
        it.answers_each(main, |_| ":0\r\n".to_owned());
        it.passes(100);
        let actions = it.actions();
        let again = clean_up.iter().all(|line| actions.contains(line));
        assert_eq!(again, is_repeated, "{refused:?}: {actions:?}");
    }
}

/// It may have been granted under a new fence.
#[test]
fn a_hold_whose_upgrade_was_dropped_is_released_under_any_fence() {
    let mut it = Played::connected();
    it.asks_mode("k", Ask::Shared);
    it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
    it.asks_mode("k", Ask::Exclusive);
    it.abandons(3);
    it.answers(1, "RLOCK.ACQUIRE k o", "+WAITING\r\n");
    it.answers(1, "RLOCK.CANCEL k o", ":1\r\n");
    it.answers(1, "RLOCK.DOWNGRADE k o", "$-1\r\n");
    it.actions();
    it.releases();
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o ALL"]);
}

/// A late request of the earlier connection may have taken the place over. The
/// message would go there.
#[test]
fn a_place_that_an_earlier_connection_may_take_over_is_asked_for_again() {
    let mut it = Played::connected();
    it.asks("k");
    reconnects_unsure(&mut it);
    it.answers(2, "RLOCK.ACQUIRE k o2", "+WAITING\r\n");
    for pause in [1_000, 2_000, 4_000] {
        it.passes(pause - 1);
        it.actions();
        it.passes(1);
        let actions = it.actions();
        assert!(
            actions[0].starts_with("2 RLOCK.ACQUIRE k o2"),
            "{actions:?}"
        );
        it.receives(2, "+WAITING\r\n");
    }
}

/// One renewal after the other would take 90 seconds.
#[test]
fn no_hold_is_lost_on_a_slow_network() {
    const HOLDS: usize = 600;
    const ROUND_TRIP: u64 = 150;
    let mut it = Played::connected();
    for key in 0..HOLDS {
        it.asks(&format!("k{key}"));
    }
    it.answers_each(1, |_| ":7\r\n".to_owned());
    it.actions();
    let mut on_its_way = VecDeque::new();
    for now in 0..60_000 {
        for action in it.actions() {
            assert!(!action.starts_with("over"), "{action} after {now} ms");
            on_its_way.extend(action.starts_with("1 ").then_some(now + ROUND_TRIP));
        }
        while on_its_way.front().is_some_and(|due| *due <= now) {
            on_its_way.pop_front();
            it.receives(1, ":7\r\n");
        }
        it.passes(1);
    }
}

/// The owner lost it, and a late request of its own acquired the lock again.
#[test]
fn a_hold_that_a_renewal_finds_under_another_fence_is_lost() {
    let mut it = Played::connected();
    it.asks_on("k", renewed_every(Duration::from_secs(3)));
    it.answers(1, "RLOCK.ACQUIRE k o2", ":7\r\n");
    it.passes(1_250);
    it.actions();
    it.answers(1, "RLOCK.RENEW", ":9\r\n");
    assert_eq!(it.did(), ["over: the server ended it"]);
}

/// The reply may have arrived meanwhile, and may even have been read: the pump hands it over in parts.
#[test]
fn a_process_that_stalled_may_still_read_before_a_connection_is_given_up() {
    let mut it = Played::connected();
    it.asks("k");
    it.stalls(RESPONSE + 1_000);
    it.passes(99);
    it.answers(1, "RLOCK.ACQUIRE k o2", ":7\r\n");
    assert_eq!(it.did(), ["call 2: granted 7"]);
    it.passes(1_000);
    it.asks("l");
    it.actions();
    it.stalls(RESPONSE + 1_000);
    it.passes(99);
    assert_eq!(it.did(), [""; 0]);
    it.passes(1);
    assert_eq!(it.did(), ["close 1"]);
}

/// Callers may compute one after the other before anything is read, each time.
#[test]
fn a_process_that_stalls_again_may_still_read() {
    let mut it = Played::connected();
    let hour = Lease::Fixed(Duration::from_secs(3_600));
    for call in 2..6 {
        it.asks_on("k", Terms::new().lease(hour).unwrap());
        it.stalls(RESPONSE + 1_000);
        it.stalls(RESPONSE + 1_000);
        it.answers(1, "RLOCK.ACQUIRE", format!(":{call}\r\n"));
        assert_eq!(it.did(), [format!("call {call}: granted {call}")]);
    }
}

/// Each turn of its loop takes 270 ms, so a check that is repeated after 100 ms comes late again.
#[test]
fn a_process_that_is_always_late_gives_a_silent_server_up() {
    let mut it = Played::connected();
    it.asks("k");
    it.did();
    for _ in 0..RESPONSE / 270 + 10 {
        it.stalls(270);
    }
    assert_eq!(it.did()[0], "close 1");
}

/// The answer to a heartbeat may be waiting to be read, too.
#[test]
fn a_process_that_stalled_may_still_read_before_a_bound_hold_needs_another_connection() {
    let mut it = Played::connected();
    it.asks_on("k", Terms::new().bound(Duration::from_secs(2)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE k o2", ":7\r\n");
    assert_eq!(it.did(), ["call 2: granted 7"]);
    let reply = |asked: &String| match &**asked {
        "PING" => "+PONG\r\n".to_owned(),
        _ => ":7\r\n".to_owned(),
    };
    for _ in 0..6 {
        it.passes(600);
        it.stalls(1_200);
        it.passes(99);
        it.answers_each(1, reply);
        // The next heartbeat is due at once.
        it.answers_each(1, reply);
        assert_eq!(it.did(), [""; 0]);
    }
    it.passes(600);
    it.stalls(1_200);
    it.passes(99);
    assert_eq!(it.did(), [""; 0]);
    it.passes(1);
    assert_eq!(it.did(), ["close 1"]);
}

/// A wait has sent it, for which it is not too late.
#[test]
fn a_bound_hold_does_not_judge_a_heartbeat_that_was_sent_before_it() {
    let mut it = Played::connected();
    it.asks_on("w", renewed_every(Duration::from_secs(4)));
    it.answers(1, "RLOCK.ACQUIRE w", "+WAITING\r\n");
    it.passes(900);
    it.asks_on("k", Terms::new().bound(Duration::from_secs(2)).unwrap());
    it.passes(100);
    assert_eq!(it.actions().last().unwrap(), "1 PING");
    it.passes(1_050);
    it.receives(1, ":7\r\n+PONG\r\n");
    assert_eq!(it.did(), ["call 3: granted 7"]);
}

/// The connection opens, is greeted, and answers for the module, each time unread at first.
#[test]
fn a_process_that_stalls_while_it_connects_may_still_read() {
    let mut it = Played::new("redis://h:1");
    it.start();
    it.stalls(RESPONSE + 1_000);
    it.passes(99);
    it.opens(1);
    it.stalls(RESPONSE + 1_000);
    it.passes(99);
    it.greeted(1);
    it.stalls(RESPONSE + 1_000);
    it.passes(99);
    assert_eq!(it.did(), ["connect 1 to h:1"]);
    it.answers(1, "RLOCK.HELP", "*0\r\n");
    assert_eq!(it.did(), ["call 1: done"]);
}

/// An observer asks for its heartbeat meanwhile.
#[test]
fn nobody_hastens_the_second_look_of_a_process_that_stalled() {
    let mut it = Played::connected();
    it.asks_on("k", Terms::new().bound(Duration::from_secs(2)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE k o2", ":7\r\n");
    it.passes(600);
    it.stalls(1_200);
    it.observes("e");
    it.passes(99);
    assert_eq!(it.did(), ["call 2: granted 7"]);
}

/// The greeting was answered, which the client sees a moment later.
#[test]
fn a_process_that_stalled_while_it_connects_may_still_read_before_a_call_fails() {
    let mut it = Played::new("redis://h:1");
    it.tries("k", Terms::new());
    it.passes(4_000);
    it.opens(1);
    it.passes(1_000);
    it.stalls(5_200);
    assert_eq!(it.did(), ["connect 1 to h:1"]);
}

/// A hold that is bound for three seconds.
fn bound() -> Played {
    let mut it = Played::connected();
    let terms = Terms::new().bound(Duration::from_secs(3)).unwrap();
    it.asks_on("k", terms);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it
}

/// The same; a renewal has no answer yet, nor has a heartbeat that was sent later.
fn bound_and_asked() -> Played {
    let mut it = bound();
    let mut renewed = 0;
    for ms in 0..20_000 {
        it.passes(1);
        let actions = it.actions();
        if actions.iter().any(|line| line.starts_with("1 RLOCK.RENEW")) {
            renewed = ms;
        }
        if renewed > 0 && actions.contains(&"1 PING".to_owned()) {
            assert!(ms - renewed > 150);
            return it;
        }
        if renewed == 0 {
            it.answers_each(1, |_| "+PONG\r\n".to_owned());
        }
    }
    panic!("no heartbeat after a renewal");
}

/// The process was stopped, and nothing arrives afterwards.
#[test]
fn a_loss_after_a_stall_is_reported_after_one_more_look() {
    let mut it = bound();
    it.stalls(5_000);
    let mut after = 0;
    while !it.did().contains(&"over: its lease ended".to_owned()) {
        it.passes(10);
        after += 10;
        assert!(after < 10_000);
    }
    assert!(after <= 120, "{after} ms");
}

/// A renewal and a heartbeat were answered during the stall. The answer to the renewal, which was sent first, is read first.
#[test]
fn a_bound_hold_outlasts_a_stall_although_the_answer_to_an_older_request_is_read_first() {
    let mut it = bound_and_asked();
    it.is_paused(2_900);
    // In one read.
    it.answers_each(1, |asked| match asked.starts_with("PING") {
        true => "+PONG\r\n".to_owned(),
        false => ":7\r\n".to_owned(),
    });
    let did = it.did();
    assert!(!did.iter().any(|it| it.starts_with("over")), "{did:?}");
}

/// Nothing newer than the extension was answered, so the hold is over when its answer is read.
#[test]
fn an_extension_of_a_hold_that_is_over_is_not_done() {
    let mut it = bound();
    it.extends(Duration::from_secs(60));
    it.is_paused(3_500);
    it.answers(1, "RLOCK.RENEW", ":7\r\n");
    let remaining = it.proofs[0].remaining(it.now());
    let did = it.did();
    assert_eq!(remaining, Duration::ZERO);
    assert!(!did.contains(&"call 3: done".to_owned()), "{did:?}");
}

/// An older answer is read by itself after the timers have fired, and then the heartbeat's.
#[test]
fn a_bound_hold_outlasts_a_stall_although_timers_fire_first() {
    let mut it = bound_and_asked();
    it.stalls(2_900);
    it.answers(1, "RLOCK.RENEW", ":7\r\n");
    it.answers(1, "PING", "+PONG\r\n");
    let did = it.did();
    assert!(!did.iter().any(|it| it.starts_with("over")), "{did:?}");
}

/// As `a_bound_hold_outlasts_a_stall_although_the_answer_to_an_older_request_is_read_first`, but the older request is a
/// re-entry: it and a heartbeat were answered during the stall.
#[test]
fn a_bound_hold_outlasts_a_stall_during_a_re_entry() {
    let three = Terms::new().bound(Duration::from_secs(3)).unwrap();
    let mut it = Played::connected();
    it.asks_mode_on("k", Ask::Exclusive, three);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.passes(400);
    it.asks_mode_on("k", Ask::Exclusive, three);
    it.actions();
    it.passes(400);
    assert!(it.has_sent("1 PING"));
    // The heartbeat is younger than the grace, the re-entry is not.
    it.is_paused(2_850);
    it.answers_each(1, |asked| match asked.starts_with("PING") {
        true => "+PONG\r\n".to_owned(),
        false => ":7\r\n".to_owned(),
    });
    let did = it.did();
    assert!(!did.iter().any(|it| it.starts_with("over")), "{did:?}");
    let (proofs, now) = (it.proofs.clone(), it.now());
    assert!(proofs.iter().all(|it| it.is_live(now)), "{did:?}");
    assert!(proofs[0].hold == proofs[1].hold);
}
