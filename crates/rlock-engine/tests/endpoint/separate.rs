//! Renewals that replicas must acknowledge.

use std::time::Duration;

use rlock_engine::engine::terms::{Ask, Terms};

use crate::played::{self, Played, push};

fn granted() -> Played {
    let mut it = Played::connected();
    it.asks_on("k", Terms::new().replicas(2).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
    assert_eq!(it.did(), ["connect 2 to h:1"]);
    it.greeted(2);
    let actions = it.actions();
    let asked = [
        "2 RLOCK.RENEW k o2 29999",
        "2 RLOCK.RENEW k o2 30000",
        "2 WAIT 2 1000",
    ];
    assert_eq!(actions[actions.len() - 3..], asked);
    it
}

#[test]
fn a_grant_counts_once_enough_replicas_know_of_it() {
    let mut it = granted();
    it.receives(2, ":9\r\n:9\r\n:2\r\n");
    assert_eq!(it.did(), ["call 2: granted 9"]);
}

#[test]
fn too_few_replicas_are_reported_and_the_grant_is_released() {
    let mut it = granted();
    it.receives(2, ":9\r\n:9\r\n:1\r\n");
    let actions = it.actions();
    let too_few = "call 2: only 1 of 2 replicas acknowledged it in time";
    assert!(actions.contains(&too_few.to_owned()), "{actions:?}");
    assert!(
        actions.contains(&"1 RLOCK.RELEASE k o2 ALL".to_owned()),
        "{actions:?}"
    );
}

#[test]
fn a_separate_connection_has_time_for_replicas_on_top_of_its_own() {
    let mut it = granted();
    it.passes(5999);
    assert_eq!(it.did(), [""; 0]);
    it.passes(1);
    assert_eq!(it.did()[0], "close 2");
}

#[test]
fn a_separate_connection_ends_with_its_main_connection() {
    let mut it = granted();
    it.ends(1);
    assert_eq!(it.did(), ["close 2"]);
}

/// Its late renewal could shorten the lease of a later hold of the same owner.
#[test]
fn a_separate_connection_that_did_not_answer_is_closed_before_later_requests() {
    let mut it = granted();
    it.passes(6000);
    it.abandons(2);
    let actions = it.actions();
    let place = |line: &str| actions.iter().position(|it| it.starts_with(line));
    let kill = place("1 CLIENT KILL ID 2 ADDR a:2");
    assert!(
        kill.is_some() && kill < place("1 RLOCK.CANCEL k o2"),
        "{actions:?}"
    );
    assert!(place("1 RLOCK.RELEASE k o2 ALL").is_some(), "{actions:?}");
}

/// The user may not close connections, so the clean-up is repeated.
#[test]
fn clean_up_is_repeated_while_a_separate_connection_may_still_be_open() {
    let mut it = granted();
    it.passes(6000);
    it.abandons(2);
    it.receives(1, "-NOPERM no\r\n:0\r\n:0\r\n");
    it.actions();
    it.passes(100);
    assert_eq!(
        it.actions(),
        ["1 RLOCK.CANCEL k o2", "1 RLOCK.RELEASE k o2 ALL"]
    );
}

#[test]
fn a_release_waits_for_a_renewal_on_a_separate_connection() {
    let mut it = granted();
    it.receives(2, ":9\r\n:9\r\n:2\r\n");
    it.passes(12_000);
    let renewal = it.actions().pop().unwrap();
    assert_eq!(renewal, "2 WAIT 2 1000");
    it.releases();
    assert_eq!(it.actions(), [""; 0]);
    it.receives(2, ":9\r\n:9\r\n:2\r\n");
    assert_eq!(it.actions(), ["1 RLOCK.RELEASE k o2 ALL FENCE 9"]);
}

/// `WAIT` counts what its own connection has written before.
#[test]
fn renewals_that_arrive_meanwhile_wait_and_go_out_together() {
    let mut it = granted();
    let replicas = || Terms::new().replicas(2).unwrap();
    for key in ["a", "b"] {
        it.asks_on(key, replicas());
        it.answers(1, "RLOCK.ACQUIRE", ":8\r\n");
    }
    let actions = it.actions();
    assert!(
        actions.iter().all(|it| !it.starts_with("2 ")),
        "{actions:?}"
    );
    it.receives(2, ":9\r\n:9\r\n:2\r\n");
    let together = [
        "2 RLOCK.RENEW a o3 29999",
        "2 RLOCK.RENEW a o3 30000",
        "2 RLOCK.RENEW b o4 29999",
        "2 RLOCK.RENEW b o4 30000",
        "2 WAIT 2 1000",
        "call 2: granted 9",
    ];
    assert_eq!(it.actions(), together);
}

#[test]
fn at_most_256_renewals_go_out_together() {
    let mut it = granted();
    for key in 0..300 {
        it.asks_on(&format!("k{key}"), Terms::new().replicas(2).unwrap());
    }
    it.answers_each(1, |_| ":8\r\n".to_owned());
    it.actions();
    it.receives(2, ":9\r\n:9\r\n:2\r\n");
    let actions = it.actions();
    let renewals = actions.iter().filter(|it| it.starts_with("2 RLOCK.RENEW"));
    assert_eq!(renewals.count(), 2 * 256);
}

#[test]
fn a_grant_does_not_count_if_the_server_refuses_to_count_replicas() {
    let mut it = granted();
    it.receives(2, ":9\r\n:9\r\n-NOPERM no WAIT\r\n");
    assert_eq!(it.did(), ["call 2: not permitted: no WAIT"]);
}

/// The server has closed the earlier separate connection, so nothing of it can come late.
#[test]
fn a_confirmation_after_a_reconnect_leaves_no_doubt_about_a_place() {
    let mut it = granted();
    it.receives(2, ":9\r\n:9\r\n:2\r\n");
    it.asks("l");
    for _ in 0..6 {
        it.passes(300);
        it.answers(1, "RLOCK.ACQUIRE l", "-TRYAGAIN x\r\n");
    }
    it.ends(1);
    it.passes(20);
    it.greeted(3);
    it.passes(1);
    it.answers(3, "RLOCK.RENEW k", ":9\r\n");
    it.greeted(4);
    it.receives(4, ":9\r\n:9\r\n:2\r\n");
    it.passes(1_000);
    it.answers(3, "RLOCK.ACQUIRE l", "+WAITING\r\n");
    it.actions();
    it.passes(4_000);
    assert!(!it.has_sent("ACQUIRE"));
}

/// Its address may already lead to the new master, and nothing else uses the main connection.
#[test]
fn a_demoted_server_is_left() {
    let mut it = granted();
    it.receives(2, ":9\r\n:9\r\n:2\r\n");
    assert_eq!(it.did(), ["call 2: granted 9"]);
    it.passes(10_000);
    it.receives(2, "-READONLY no\r\n-READONLY no\r\n:0\r\n");
    let refused = "not renewed: k: READONLY no";
    assert_eq!(it.did(), ["close 1", "close 2", refused]);
}

/// `o` holds it under fence 7, and renewals go by connection 2.
fn held(ask: Ask) -> Played {
    let mut it = Played::connected();
    it.asks_mode_on("k", ask, Terms::new().replicas(2).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.greeted(2);
    it.answers_each(2, |asked| usual_of(7, asked));
    assert!(it.did().contains(&"call 2: granted 7".to_owned()));
    it
}

fn usual_of(fence: u64, asked: &str) -> String {
    match asked.split_once(' ') {
        Some(("WAIT", _)) => ":2\r\n".to_owned(),
        Some((command, _)) if command.starts_with("RLOCK.") => format!(":{fence}\r\n"),
        _ => played::usual(2, asked),
    }
}

/// The reply came by the connection to which losses are reported, and replicas are asked then.
#[test]
fn an_upgrade_that_was_granted_before_the_connection_broke_is_no_loss() {
    let mut it = held(Ask::Shared);
    let terms = Terms::new().replicas(2).unwrap();
    it.asks_mode_on("k", Ask::Exclusive, terms);
    it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
    it.ends(1);
    it.passes(20);
    it.greeted(3);
    it.answers_each(3, |asked| usual_of(9, asked));
    it.passes(20);
    let did = it.did();
    assert!(!did.iter().any(|it| it.starts_with("over")), "{did:?}");
}

/// The report of a loss may come later than the answer to a renewal: the server is asked where it reports losses.
#[test]
fn an_upgrade_that_a_renewal_finds_by_the_other_connection_hides_no_loss() {
    for is_lost in [false, true] {
        let mut it = held(Ask::Shared);
        it.passes(4_000);
        let terms = Terms::new().replicas(2).unwrap();
        it.asks_mode_on("k", Ask::Exclusive, terms);
        it.passes(4_000);
        assert!(it.has_sent("2 RLOCK.RENEW k o 30000"));
        it.answers_each(2, |asked| usual_of(9, asked));
        let asks = "1 RLOCK.RENEW k o 30000 NOTIFY rlock:client:c:1";
        assert_eq!(it.actions(), [asks]);
        if is_lost {
            let lost = push(&["message", "rlock:client:c:1", "lost 7 o k"]);
            it.receives(1, lost);
        }
        for _ in 0..2 {
            it.answers_each(1, |asked| usual_of(9, asked));
            it.answers_each(2, |asked| usual_of(9, asked));
        }
        let did = it.did();
        let is_over = did.contains(&"over: the server ended it".to_owned());
        assert_eq!(is_over, is_lost, "{did:?}");
        assert!(did.contains(&"call 3: granted 9".to_owned()), "{did:?}");
    }
}

/// The shorter lease of the request for loss reports could arrive last. Nobody waits for the upgrade, and the user may not
/// downgrade.
#[test]
fn an_extension_waits_for_the_connection_of_loss_reports() {
    let mut it = held(Ask::Shared);
    let terms = Terms::new().replicas(2).unwrap();
    it.asks_mode_on("k", Ask::Exclusive, terms);
    it.abandons(3);
    it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
    it.answers(1, "RLOCK.CANCEL", ":0\r\n");
    it.answers(1, "RLOCK.DOWNGRADE", "-NOPERM no\r\n");
    it.passes(8_000);
    it.answers_each(2, |asked| usual_of(9, asked));
    it.extends(Duration::from_secs(60));
    it.passes(100);
    assert!(!it.has_sent("2 RLOCK.RENEW k o 60000"));
    for _ in 0..3 {
        it.answers_each(1, |asked| usual_of(9, asked));
        it.answers_each(2, |asked| usual_of(9, asked));
        it.passes(50);
    }
    assert_eq!(it.did(), ["call 4: done"]);
}

/// The same for the answer that confirms the upgrade: it names another grant than the one that was announced.
#[test]
fn a_grant_that_was_not_announced_confirms_no_upgrade() {
    let mut it = held(Ask::Shared);
    let terms = Terms::new().replicas(2).unwrap();
    it.asks_mode_on("k", Ask::Exclusive, terms);
    it.answers(1, "RLOCK.ACQUIRE", ":8\r\n");
    it.answers_each(2, |asked| usual_of(9, asked));
    let actions = it.actions();
    assert!(actions[actions.len() - 1].starts_with("1 RLOCK.ACQUIRE"));
    let lost = push(&["message", "rlock:client:c:1", "lost 8 o k"]);
    it.receives(1, lost + ":9\r\n");
    it.answers_each(2, |asked| usual_of(9, asked));
    let did = it.did();
    assert_eq!(did, ["over: the server ended it", "call 3: granted 9"]);
}

/// The answer to an extension hides no loss either.
#[test]
fn an_upgrade_that_an_extension_finds_by_the_other_connection_hides_no_loss() {
    for is_lost in [false, true] {
        let mut it = held(Ask::Shared);
        let terms = Terms::new().replicas(2).unwrap();
        it.asks_mode_on("k", Ask::Exclusive, terms);
        it.abandons(3);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        it.answers(1, "RLOCK.CANCEL", ":0\r\n");
        it.answers(1, "RLOCK.DOWNGRADE", "-NOPERM no\r\n");
        it.extends(Duration::from_secs(60));
        assert!(it.has_sent("2 RLOCK.RENEW k o 60000"));
        it.answers_each(2, |asked| usual_of(9, asked));
        if is_lost {
            let lost = push(&["message", "rlock:client:c:1", "lost 7 o k"]);
            it.receives(1, lost);
        }
        for _ in 0..3 {
            it.answers_each(1, |asked| usual_of(9, asked));
            it.answers_each(2, |asked| usual_of(9, asked));
            it.passes(50);
        }
        let did = it.did();
        let is_over = did.contains(&"over: the server ended it".to_owned());
        assert_eq!(is_over, is_lost, "{did:?}");
        assert_eq!(
            did.contains(&"call 4: done".to_owned()),
            !is_lost,
            "{did:?}"
        );
    }
}

/// It has begun, and waits for a renewal by the other connection when its time ends.
#[test]
fn a_release_of_permits_that_has_begun_is_not_forgotten() {
    let permits = |permits| Ask::Permits { limit: 9, permits };
    let mut it = held(permits(5));
    it.splits();
    it.drops_mode(permits(2));
    let mut number = 2;
    for step in 0..140 {
        it.passes(250);
        it.answers_each(1, |asked| match asked {
            asked if asked.starts_with("RLOCK.RELEASE") && step < 123 => {
                "-TRYAGAIN no\r\n".to_owned()
            }
            asked => usual_of(7, asked),
        });
        if it.connections() > number {
            number = it.connections();
            it.greeted(number);
        }
        // Replicas hang for a while.
        if !(72..123).contains(&step) {
            it.answers_each(number, |asked| usual_of(7, asked));
        }
    }
    it.actions();
    it.splits();
    it.drops_mode(permits(1));
    assert!(it.has_sent("1 RLOCK.RELEASE k o PERMITS 3 FENCE 7"));
}

/// It has been attached to a connection that breaks while the watchdog asks replicas, and its turn comes back only then.
#[test]
fn an_upgrade_that_was_attached_to_an_earlier_connection_hides_no_loss() {
    let terms = Terms::new().replicas(2).unwrap();
    let mut it = Played::connected();
    // Another lock, which is renewed first.
    it.asks_on("a", terms);
    it.answers(1, "RLOCK.ACQUIRE a", ":5\r\n");
    it.greeted(2);
    it.answers_each(2, |asked| usual_of(5, asked));
    it.passes(1);
    it.asks_mode_on("k", Ask::Shared, terms);
    it.answers(1, "RLOCK.ACQUIRE k", ":7\r\n");
    it.answers_each(2, |asked| usual_of(7, asked));
    it.ends(1);
    it.passes(20);
    it.greeted(3);
    it.passes(1);
    it.answers(3, "RLOCK.RENEW a o2 30000 NOTIFY", ":5\r\n");
    it.greeted(4);
    it.answers_each(4, |asked| match asked.starts_with("WAIT") {
        true => ":1\r\n".to_owned(),
        false => usual_of(5, asked),
    });
    it.passes(1);
    it.asks_mode_on("k", Ask::Exclusive, terms);
    for _ in 0..2 {
        it.answers(3, "RLOCK.RENEW k o 30000 NOTIFY", ":7\r\n");
    }
    // The server ends the hold of `k`, others have the lock, and it is free again.
    it.ends(3);
    it.passes(20);
    it.greeted(5);
    it.did();
    let mut is_granted = false;
    let mut reply = |asked: &str| {
        is_granted |= asked.starts_with("RLOCK.ACQUIRE");
        match asked {
            asked if asked.contains(" a ") => usual_of(5, asked),
            asked if asked.contains(" k ") && !is_granted => "$-1\r\n".to_owned(),
            asked => usual_of(9, asked),
        }
    };
    it.answers_each(5, |asked| reply(asked));
    it.passes(1);
    it.answers_each(5, |asked| reply(asked));
    it.greeted(6);
    for _ in 0..20 {
        it.answers_each(6, |asked| reply(asked));
        it.answers_each(5, |asked| reply(asked));
        it.passes(100);
    }
    let did = it.did();
    assert!(did.contains(&"call 4: granted 9".to_owned()), "{did:?}");
    assert!(
        did.contains(&"over: the server ended it".to_owned()),
        "{did:?}"
    );
}

/// The server has the lease that it was asked for last, whether its replicas know of it or not.
#[test]
fn a_renewal_that_replicas_do_not_know_of_leaves_no_guard_without_its_hold() {
    let mut it = held(Ask::Exclusive);
    it.passes(5_000);
    it.extends(Duration::from_secs(300));
    // The watchdog asks for as much.
    it.passes(5_000);
    let mut acknowledged = [1, 2].into_iter().chain(std::iter::repeat(1));
    let mut until = it.now();
    for _ in 0..60 {
        let now = it.now();
        it.answers_each(2, |asked| match asked.strip_prefix("RLOCK.RENEW k o ") {
            Some(ms) => {
                until = now + Duration::from_millis(ms.parse().unwrap());
                ":7\r\n".to_owned()
            }
            None => format!(":{}\r\n", acknowledged.next().unwrap()),
        });
        assert!(it.proofs[0].valid_until().unwrap() <= until);
        it.passes(1_000);
    }
    let did = it.did();
    let failed = "call 3: only 1 of 2 replicas acknowledged it in time";
    assert!(did.contains(&failed.to_owned()), "{did:?}");
    assert!(it.proofs[0].is_live(it.now() + Duration::from_secs(200)));
}

/// It goes by the main connection, so it may come later.
#[test]
fn an_extension_for_replicas_waits_for_a_shorter_renewal_on_another_connection() {
    let mut it = held(Ask::Exclusive);
    let withdrawn = push(&["message", "rlock:client:c:1", "withdrawn 0 o k"]);
    it.receives(1, withdrawn);
    let attaches = "1 RLOCK.RENEW k o 30000 NOTIFY rlock:client:c:1";
    it.passes(1);
    assert_eq!(it.actions().pop().unwrap(), attaches);
    it.extends(Duration::from_secs(300));
    it.passes(1_000);
    assert!(!it.has_sent("RENEW"));
    it.answers(1, "RLOCK.RENEW", ":7\r\n");
    for _ in 0..100 {
        it.answers_each(2, |asked| usual_of(7, asked));
        it.passes(10);
    }
    assert!(it.actions().contains(&"call 3: done".to_owned()));
}
