//! A hold is lost, or its keys move to another server, while a request of its owner is on its way.

use std::time::Duration;

use rlock_engine::endpoint::Event;
use rlock_engine::engine;
use rlock_engine::engine::terms::{Ask, Terms};

use crate::cluster::{self, answers_of};
use crate::holds::{OVER, fixed, held, upgrades_for_ten_seconds};
use crate::played::{self, Played, bulk, list, push};

fn message(number: usize, text: &str) -> String {
    push(&["message", &format!("rlock:client:c:{number}"), text])
}

fn bound(seconds: u64) -> Terms {
    Terms::new().bound(Duration::from_secs(seconds)).unwrap()
}

fn replicas() -> Terms {
    Terms::new().replicas(2).unwrap()
}

fn is_not_granted_without_replicas(it: &mut Played) {
    let actions = it.actions();
    assert!(
        !actions.contains(&"call 3: granted 9".to_owned()),
        "no replica was asked: {actions:?}"
    );
}

/// `o` asks for `k`, which its server has lost unseen, and is connected again.
fn asks_for_what_is_lost(terms: Terms, it: &mut Played) {
    it.ends(1);
    it.asks_mode_on("k", Ask::Exclusive, terms);
    it.passes(20);
    it.greeted(2);
    it.actions();
}

/// The hold that is upgraded asks for no replicas, and is lost by the clock while the announced grant is confirmed. The
/// caller asked for two replicas: it must not get the grant before they know of it.
#[test]
fn a_hold_that_is_lost_during_the_confirmation_needs_the_replicas_of_the_call() {
    let mut it = Played::connected();
    it.asks_mode_on("k", Ask::Shared, fixed(10));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.passes(9_700);
    it.asks_mode_on("k", Ask::Exclusive, replicas());
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.receives(1, message(1, "grant 9 o k"));
    it.passes(300);
    let actions = it.actions();
    assert!(
        actions.contains(&"over: its lease ended".to_owned()),
        "{actions:?}"
    );
    it.answers(1, "RLOCK.RENEW k o 10000", ":9\r\n");
    is_not_granted_without_replicas(&mut it);
}

/// The same with a longest time: what is granted has ended before the caller learns of it.
#[test]
fn a_hold_that_is_lost_during_the_confirmation_is_renewed_on_the_terms_of_the_call() {
    let mut it = upgrades_for_ten_seconds(9_800);
    it.receives(1, message(1, "grant 9 o k"));
    it.passes(200);
    for _ in 0..2 {
        it.answers_each(1, |asked| match asked.contains("RENEW") {
            true => ":9\r\n".to_owned(),
            false => "+PONG\r\n".to_owned(),
        });
    }
    let did = it.did();
    assert!(did.contains(&"call 3: granted 9".to_owned()), "{did:?}");
    let now = it.now();
    assert!(it.proofs[1].remaining(now) > Duration::from_secs(9));
}

/// The slot has moved, and the hold was renewed at the new server 10 ms ago. Then the former server answers a re-entry.
/// The new server is not silent.
#[test]
fn a_re_entry_by_the_former_server_closes_no_connection() {
    let mut it = cluster::connected();
    // Another hold at the new server ends with its connection.
    let bound = Terms::new().bound(Duration::ZERO).unwrap();
    it.asks_on("b", bound);
    it.answers(2, "RLOCK.ACQUIRE b", ":9\r\n");
    asks_where_the_slots_are(&mut it);
    it.asks_as("o2", "a", &[], Terms::new());
    it.passes(10);
    it.answers_each(2, |asked| answers_of(9, asked, true));
    assert!(it.has_sent("2 RLOCK.RENEW a o2 30000 SNOTIFY"));
    it.passes(1);
    it.answers_each(3, |asked| answers_of(9, asked, false));
    let did = it.did();
    assert_eq!(did, ["call 4: granted 9"]);
}

/// Time passes until the masters are asked where the slots are; `m` has not answered that yet.
fn asks_where_the_slots_are(it: &mut Played) {
    for _ in 0..400 {
        it.passes(50);
        if it.has_sent("2 CLUSTER SLOTS") {
            it.answers_each(3, |asked| answers_of(7, asked, false));
            return;
        }
        for number in [2, 3] {
            it.answers_each(number, |asked| answers_of(7, asked, false));
        }
    }
    panic!("it does not ask");
}

/// The former server answers by the connection for replicas, while its report of the loss is unread on the other one.
#[test]
fn a_former_server_hides_no_loss_by_its_connection_for_replicas() {
    let mut it = cluster::connected();
    it.asks_mode_on("{a}y", Ask::Shared, replicas());
    it.answers(3, "RLOCK.ACQUIRE {a}y o", ":7\r\n");
    it.greeted(4);
    it.answers_each(4, |asked| answers_of(7, asked, false));
    let did = it.did();
    assert!(did.iter().any(|it| it.ends_with("granted 7")), "{did:?}");
    it.asks_mode_on("{a}y", Ask::Exclusive, replicas());
    it.answers(3, "RLOCK.ACQUIRE {a}y o", "+WAITING\r\n");
    // Its renewal is not answered at first.
    let renewal = "4 RLOCK.RENEW {a}y o 30000";
    for _ in 0..400 {
        it.passes(50);
        let actions = it.actions();
        let is_renewed = actions.iter().any(|it| it == renewal);
        for number in [2, 3] {
            it.answers_each(number, |asked| answers_of(7, asked, false));
        }
        if is_renewed {
            break;
        }
    }
    asks_where_the_slots_are(&mut it);
    it.answers_each(2, |asked| answers_of(7, asked, true));
    it.answers(2, "RLOCK.RENEW a o2", ":9\r\n");
    assert!(it.has_sent("2 RLOCK.RENEW {a}y o 30000 SNOTIFY"));
    // It has ended the shared hold, granted the lock to others, and then to the call, before it answers.
    it.answers_each(4, |asked| answers_of(9, asked, true));
    it.receives(
        3,
        push(&["smessage", "rlock:client:{0}:c:3", "lost 7 o {a}y"]),
    );
    for _ in 0..10 {
        it.passes(50);
        for number in 2..=it.connections() {
            if number != 3 {
                it.answers_each(number, |asked| answers_of(9, asked, true));
            }
        }
    }
    let did = it.did();
    assert!(
        did.contains(&OVER.to_owned()),
        "{}: {did:?}",
        it.proofs[1].fence()
    );
}

/// The server has no room for a watch, and replicas confirm the grant: no connection reports its loss, so the next renewal
/// asks for that, and an upgrade hides no loss.
#[test]
fn a_grant_without_a_watch_that_replicas_confirm_is_not_watched() {
    let mut it = Played::connected();
    it.asks_mode_on("k", Ask::Shared, replicas());
    it.answers(1, "RLOCK.ACQUIRE", "-QUEUEFULL no room\r\n");
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.greeted(2);
    let of = |fence: u64, asked: &str| match asked.starts_with("WAIT") {
        true => ":2\r\n".to_owned(),
        false => format!(":{fence}\r\n"),
    };
    it.answers_each(2, |asked| of(7, asked));
    let did = it.did();
    assert!(did.contains(&"call 2: granted 7".to_owned()), "{did:?}");
    it.asks_mode_on("k", Ask::Exclusive, replicas());
    // It is lost, and granted again, without a report.
    for _ in 0..4 {
        it.answers_each(1, |_| ":9\r\n".to_owned());
        it.answers_each(2, |asked| of(9, asked));
        it.passes(20);
    }
    let did = it.did();
    assert!(did.contains(&OVER.to_owned()), "{did:?}");
}

/// The same if a call is confirmed whose hold was lost.
#[test]
fn a_grant_without_a_watch_after_a_loss_is_not_watched() {
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Shared);
    it.receives(1, message(1, "lost 7 o k"));
    it.answers(1, "RLOCK.ACQUIRE", "-QUEUEFULL no room\r\n");
    it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
    it.answers_each(1, |_| ":9\r\n".to_owned());
    let did = it.did();
    assert_eq!(did, [OVER, "call 3: granted 9"]);
    // It is lost, and granted again, without a report.
    it.asks_mode("k", Ask::Exclusive);
    for _ in 0..4 {
        it.answers_each(1, |_| ":11\r\n".to_owned());
        it.passes(20);
    }
    let did = it.did();
    assert!(did.contains(&OVER.to_owned()), "{did:?}");
}

/// The hold that the call wanted to enter was bound, and is lost before anything is asked for.
#[test]
fn a_call_whose_bound_hold_is_lost_asks_on_its_own_terms() {
    let bound = bound(5);
    let mut it = Played::connected();
    it.asks_mode_on("k", Ask::Exclusive, bound);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.ends(1);
    it.passes(1_000);
    it.asks_mode_on("k", Ask::Exclusive, replicas());
    it.passes(10_000);
    let number = it.connections();
    it.greeted(number);
    it.answers(number, "RLOCK.RELEASE k o ALL FENCE 7", "$-1\r\n");
    it.actions();
    it.answers(number, "RLOCK.ACQUIRE", ":9\r\n");
    is_not_granted_without_replicas(&mut it);
}

/// The request of the call named the binding of the hold that is lost then: its grant is released, and asked for without.
#[test]
fn a_grant_that_is_bound_as_a_lost_hold_was_is_asked_for_again() {
    let bound = bound(5);
    let mut it = Played::connected();
    it.asks_mode_on("k", Ask::Shared, bound);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.asks_mode_on("k", Ask::Exclusive, Terms::new());
    it.answers(1, "RLOCK.ACQUIRE k o 30000 WAIT", "+WAITING\r\n");
    it.receives(1, message(1, "lost 7 o k") + &message(1, "grant 9 o k"));
    it.answers(1, "RLOCK.RENEW k o", ":9\r\n");
    it.answers(1, "RLOCK.RELEASE k o ALL FENCE 9", ":0\r\n");
    it.passes(1_000);
    let actions = it.actions();
    let again = actions.iter().rfind(|it| it.contains("RLOCK.ACQUIRE"));
    assert!(again.is_some_and(|it| !it.contains("BIND")), "{actions:?}");
    it.answers(1, "RLOCK.ACQUIRE", ":11\r\n");
    assert!(it.did().contains(&"call 3: granted 11".to_owned()));
}

/// The guard of a hold that was lost before its upgrade ends after the guard of the new one. The next grant is new.
#[test]
fn a_late_end_of_a_lost_guard_makes_no_grant_suspicious() {
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Exclusive);
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.receives(1, message(1, "lost 7 o k") + &message(1, "grant 9 o k"));
    it.answers(1, "RLOCK.RENEW", ":9\r\n");
    it.releases();
    it.answers(1, "RLOCK.RELEASE k o ALL FENCE 9", ":0\r\n");
    let hold = it.proofs[0].hold;
    it.handle(Event::Call(engine::Event::Leave {
        hold,
        ask: Ask::Shared,
    }));
    it.reconnects();
    it.actions();
    it.asks_mode("k", Ask::Exclusive);
    it.answers(2, "RLOCK.ACQUIRE", ":11\r\n");
    let actions = it.actions();
    assert!(
        actions.iter().any(|it| it.ends_with("granted 11")),
        "{actions:?}"
    );
}

/// The server has ended the lock, and its clock went back, or its successor is behind. For the lease and ten seconds, what is
/// granted under a smaller fence is released. Then it is held, although the guard of what was lost is still there.
#[test]
fn a_lost_guard_does_not_refuse_smaller_fences_for_ever() {
    let mut it = Played::connected();
    it.asks_mode("k", Ask::Exclusive);
    it.answers(1, "RLOCK.ACQUIRE", ":9000\r\n");
    it.receives(1, message(1, "lost 9000 o k"));
    it.waits("k");
    let (mut fence, mut log) = (100, Vec::new());
    for _ in 0..600 {
        it.answers_each(1, |asked| {
            fence += u64::from(asked.starts_with("RLOCK.RELEASE"));
            match asked {
                asked if asked.starts_with("PING") => "+PONG\r\n".to_owned(),
                asked if asked.starts_with("RLOCK.RELEASE") => ":0\r\n".to_owned(),
                _ => format!(":{fence}\r\n"),
            }
        });
        it.passes(100);
        log.extend(it.did());
    }
    assert!(log.contains(&format!("call 3: granted {fence}")), "{log:?}");
    assert!((110..9000).contains(&fence), "{fence}");
    assert!(it.proofs.last().unwrap().is_live(it.now()), "{log:?}");
}

/// Two servers name each other as the one that has the slot. The connection to which the hold is bound ends while the other
/// server is asked, so its server ends it after the grace. No answer of its server says that it is bound to another one.
#[test]
fn a_bound_hold_ends_with_its_connection_while_another_server_is_asked() {
    for (disagree, late) in [(false, false), (true, false), (true, true)] {
        let bound = bound(1);
        let mut it = cluster::connected();
        // It needs the connection to `n`, too.
        it.asks_on("foo", Terms::new());
        it.answers(3, "RLOCK.ACQUIRE foo", ":9\r\n");
        it.asks_mode_on("{a}y", Ask::Shared, bound);
        it.answers(3, "RLOCK.ACQUIRE {a}y o", ":7\r\n");
        let proof = it.proofs.last().unwrap().clone();
        if disagree {
            it.queries("a");
            it.answers(3, "RLOCK.INFO", "-MOVED 15495 m:7\r\n");
        }
        let moved = |number: usize, asked: &str| match asked {
            asked if asked.starts_with("PING") => "+PONG\r\n".to_owned(),
            asked if asked.starts_with("CLUSTER") => "-ERR no\r\n".to_owned(),
            asked if asked.contains("foo") => ":9\r\n".to_owned(),
            asked if asked.starts_with("RLOCK") && number == 2 => "-MOVED 15495 n:7\r\n".to_owned(),
            asked if asked.starts_with("RLOCK") => "-MOVED 15495 m:7\r\n".to_owned(),
            _ => String::new(),
        };
        if disagree && late {
            it.answers_each(2, |asked| moved(2, asked));
        }
        it.ends(3);
        it.passes(20);
        let number = it.connections();
        it.greeted(number);
        for _ in 0..30 {
            for number in [2, number] {
                it.answers_each(number, |asked| moved(number, asked));
            }
            it.passes(50);
        }
        let now = it.now();
        let left = proof.remaining(now);
        assert!(left.is_zero(), "{disagree} {late}: valid for {left:?}");
    }
}

/// A new master says nothing of the connections to the former one, which becomes the master again. What was still on its
/// way there takes the place over: the call asks the server to close that connection, or asks again.
#[test]
fn a_fail_back_leaves_no_request_of_the_first_connection_behind() {
    let named = |host: &str, epoch: u64| {
        let address = list(&[bulk(host), bulk("6379")]);
        address + &list(&[bulk("config-epoch"), bulk(&epoch.to_string())])
    };
    let mut it = Played::new("redis+sentinel://a,b,c/main");
    it.start();
    (1..=3).for_each(|number| it.opens(number));
    (1..=3).for_each(|number| it.receives(number, named("m", 5)));
    it.greeted(4);
    it.receives(4, "*0\r\n");
    it.waits("k");
    // It is on its way when the connection is given up.
    assert!(it.has_sent("4 RLOCK.ACQUIRE k o"));
    let mut sent = Vec::new();
    for (host, epoch) in [("n", 6), ("m", 7)] {
        it.ends(it.connections());
        let before = it.connections();
        for _ in 0..20 {
            it.passes(100);
            let actions = it.actions();
            if it.connections() > before {
                break;
            }
            for number in 1..=3 {
                if actions
                    .iter()
                    .any(|line| line == &format!("{number} SENTINEL MASTER main"))
                {
                    it.receives(number, named(host, epoch));
                }
            }
        }
        let number = it.connections();
        assert!(number > before);
        it.opens(number);
        sent = it.actions();
        // It knows no such connection.
        it.answers_each(number, |asked| match asked.as_str() {
            "CLIENT INFO" if host == "n" => bulk("id=5 addr=a:5 laddr=n:1 fd=8"),
            asked if asked.starts_with("CLIENT KILL") => ":0\r\n".to_owned(),
            asked => played::usual(number, asked),
        });
        it.answers(number, "RLOCK.ACQUIRE k o", "+WAITING\r\n");
        it.actions();
    }
    let closes = sent
        .iter()
        .any(|line| line.contains("CLIENT KILL ID 4 ADDR a:4"));
    let number = it.connections();
    let mut asks = false;
    for _ in 0..400 {
        it.passes(100);
        asks |= it.has_sent(&format!("{number} RLOCK.ACQUIRE k o"));
        it.answers_each(number, |_| "+PONG\r\n".to_owned());
    }
    assert!(closes || asks, "{sent:?}");
}

/// The former server answers a re-entry, and the new one says that the slot is there. From then on all is as before, and the
/// connection to the former server is alive.
#[test]
fn a_re_entry_by_the_former_server_leaves_a_bound_hold_bound_to_it() {
    let bound = bound(1);
    let mut it = cluster::connected();
    it.asks_mode_on("{a}y", Ask::Exclusive, bound);
    it.answers(3, "RLOCK.ACQUIRE {a}y o", ":7\r\n");
    asks_where_the_slots_are(&mut it);
    it.asks_mode_on("{a}y", Ask::Exclusive, bound);
    it.passes(10);
    it.actions();
    it.answers_each(2, |asked| answers_of(7, asked, true));
    it.answers_each(3, |asked| answers_of(7, asked, false));
    let mut log = it.actions();
    let mut has_moved = true;
    for _ in 0..60 {
        let mut moves = false;
        it.answers_each(2, |asked| match asked.starts_with("RLOCK") {
            true => {
                moves = true;
                "-MOVED 15495 n:7\r\n".to_owned()
            }
            false => answers_of(7, asked, has_moved),
        });
        has_moved &= !moves;
        for number in 3..=it.connections() {
            it.answers_each(number, |asked| answers_of(7, asked, has_moved));
        }
        it.passes(50);
        log.extend(it.actions());
    }
    assert!(!log.iter().any(|it| it.starts_with("over")), "{log:?}");
}

/// The lock was lost unseen, and an abandoned re-entry has taken it again. Its guard ends, and leaves it taken for a while.
#[test]
fn what_is_said_to_be_kept_is_kept() {
    let mut it = held(Ask::Exclusive);
    it.asks_mode("k", Ask::Exclusive);
    it.abandons(3);
    it.passes(100);
    it.keeps(10);
    it.releases();
    it.reconnects();
    it.passes(1);
    let mut log = it.actions();
    for _ in 0..5 {
        it.answers_each(2, |asked| match asked.starts_with("RLOCK.CANCEL") {
            true => ":0\r\n".to_owned(),
            false => ":9\r\n".to_owned(),
        });
        it.passes(5);
        log.extend(it.actions());
    }
    let is_done = log.iter().any(|it| it.ends_with(": done"));
    let is_released = log.iter().any(|it| it.starts_with("2 RLOCK.RELEASE"));
    assert!(!(is_done && is_released), "{log:?}");
}

/// A call without a binding gets the grant of its request, which named the binding of the hold that was lost. The server
/// cannot release it for a moment, or the connection breaks. The server still has it bound under a grace of 5 s: asking
/// again without `BIND` leaves that, and so a guard of 30 s outlives the hold.
#[test]
fn a_grant_that_could_not_be_given_back_is_not_taken_as_unbound() {
    for breaks in [false, true] {
        let mut it = Played::connected();
        it.asks_mode_on("k", Ask::Shared, bound(5));
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        it.asks_mode_on("k", Ask::Exclusive, Terms::new());
        it.answers(1, "RLOCK.ACQUIRE k o 30000 WAIT", "+WAITING\r\n");
        assert!(it.has_sent("BIND 5000"));
        it.receives(1, message(1, "lost 7 o k") + &message(1, "grant 9 o k"));
        it.answers(1, "RLOCK.RENEW k o", ":9\r\n");
        let number = if breaks {
            assert!(it.has_sent("1 RLOCK.RELEASE k o ALL FENCE 9"));
            it.reconnects();
            2
        } else {
            let busy = "-NOREPLICAS Not enough good replicas to write.\r\n";
            it.answers(1, "RLOCK.RELEASE k o ALL FENCE 9", busy);
            it.passes(20);
            1
        };
        // The server still has it, bound: asking again is harmless.
        it.answers(number, "RLOCK.ACQUIRE k o 30000", ":9\r\n");
        let actions = it.actions();
        let mut asked = actions.iter().filter(|it| it.contains("RLOCK.ACQUIRE"));
        assert!(!asked.next().unwrap().contains("BIND"), "{actions:?}");
        // Its grace is 5 s there: it must not be held without.
        let granted = "call 3: granted 9".to_owned();
        assert!(!actions.contains(&granted), "{breaks}: {actions:?}");
        it.answers(number, "RLOCK.RELEASE k o ALL FENCE 9", ":0\r\n");
    }
}

/// The server has lost the hold unseen, and so the grant for the owner's next call is a new one. It must be what that call
/// asked for, as if the loss had been seen before.
#[test]
fn a_call_that_finds_a_loss_by_its_grant_gets_it_on_its_own_terms() {
    let mut it = held(Ask::Exclusive);
    asks_for_what_is_lost(replicas(), &mut it);
    it.answers(2, "RLOCK.ACQUIRE k o", ":9\r\n");
    is_not_granted_without_replicas(&mut it);
}

#[test]
fn a_call_that_finds_a_loss_by_its_grant_has_its_own_margin() {
    let mut it = held(Ask::Exclusive);
    let margin = Terms::new().margin(Duration::from_secs(10)).unwrap();
    asks_for_what_is_lost(margin, &mut it);
    it.answers(2, "RLOCK.ACQUIRE k o", ":9\r\n");
    it.passes(1);
    it.answers_each(2, |asked| match asked.starts_with("RLOCK") {
        true => ":9\r\n".to_owned(),
        false => "+PONG\r\n".to_owned(),
    });
    let did = it.did();
    assert!(did.contains(&"call 3: granted 9".to_owned()), "{did:?}");
    let left = it.proofs.last().unwrap().remaining(it.now());
    assert!(
        left <= Duration::from_secs(20),
        "{left:?} of 30 s with a margin of 10 s"
    );
}

#[test]
fn a_call_that_finds_a_loss_by_its_grant_has_its_own_lease() {
    let mut it = Played::connected();
    it.asks_mode_on("k", Ask::Exclusive, fixed(10));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    asks_for_what_is_lost(Terms::new(), &mut it);
    let mut log = Vec::new();
    for _ in 0..400 {
        it.answers_each(2, |asked| match asked.starts_with("RLOCK") {
            true => ":9\r\n".to_owned(),
            false => "+PONG\r\n".to_owned(),
        });
        it.passes(50);
        log.extend(it.actions());
    }
    assert!(log.contains(&"call 3: granted 9".to_owned()), "{log:?}");
    // It asked for a lease that is renewed.
    let left = it.proofs.last().unwrap().remaining(it.now());
    assert!(!left.is_zero(), "{log:?}");
}

/// An extension is answered by the former server after the new one has taken the hold over, or while that one renews another
/// hold. The connection to the new server is alive all the time.
#[test]
fn a_late_answer_by_the_former_server_ends_no_bound_hold() {
    for is_taken_over in [true, false] {
        let mut it = cluster::connected();
        it.asks_mode_on("{a}y", Ask::Exclusive, bound(1));
        it.answers(3, "RLOCK.ACQUIRE {a}y o", ":7\r\n");
        asks_where_the_slots_are(&mut it);
        it.extends(Duration::from_secs(40));
        assert!(it.has_sent("3 RLOCK.RENEW {a}y o 40000"));
        it.passes(10);
        it.answers_each(2, |asked| answers_of(7, asked, true));
        it.passes(1);
        let mut log = it.actions();
        if is_taken_over {
            for _ in 0..3 {
                it.answers_each(2, |asked| answers_of(7, asked, true));
                it.passes(1);
            }
            log.extend(it.actions());
            let attach = "2 RLOCK.RENEW {a}y o 40000 SNOTIFY";
            assert!(log.iter().any(|it| it.starts_with(attach)), "{log:?}");
        }
        // It was carried out before the slot moved.
        it.answers_each(3, |asked| answers_of(7, asked, false));
        for _ in 0..60 {
            for number in 2..=it.connections() {
                it.answers_each(number, |asked| answers_of(7, asked, true));
            }
            it.passes(50);
            log.extend(it.actions());
        }
        assert!(
            !log.iter().any(|it| it.starts_with("over")),
            "{is_taken_over}: {log:?}"
        );
    }
}

/// The replica knew a shared grant of the owner, but neither did this client nor does the replica know that it was undone. It
/// refuses the exclusive mode to a shared holder that is not alone: that does not mean that the owner holds nothing. The old
/// grant must not come back: the former master may have granted the lock to somebody else since.
#[test]
fn a_shared_grant_that_was_undone_does_not_come_back_after_a_refused_upgrade() {
    let mut it = Played::connected();
    it.asks_mode("k", Ask::Shared);
    it.abandons(2);
    it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
    it.answers(1, "RLOCK.CANCEL k o", ":0\r\n");
    it.answers(1, "RLOCK.RELEASE k o", ":0\r\n");
    it.reconnects();
    it.tries("k", Terms::new());
    it.answers(2, "RLOCK.ACQUIRE k o", "$-1\r\n");
    assert!(it.did().contains(&"call 3: refused".to_owned()));
    it.asks_mode("k", Ask::Shared);
    it.answers(2, "RLOCK.ACQUIRE k o", ":7\r\n");
    assert!(it.has_sent("2 RLOCK.RELEASE k o ALL FENCE 7"));
}

/// The server has let readers in after a downgrade, and then failed. Its successor knows the exclusive hold, and not the
/// downgrade. An upgrade has a new and larger fence, or it is none: the readers have larger ones than the old one.
#[test]
fn an_upgrade_after_a_lost_downgrade_has_a_new_fence() {
    for refuses in [false, true] {
        let mut it = held(Ask::Exclusive);
        it.downgrades();
        it.answers(1, "RLOCK.DOWNGRADE k o", ":7\r\n");
        assert_eq!(it.did(), ["call 3: done"]);
        it.reconnects();
        it.passes(10);
        it.answers_each(2, |_| ":7\r\n".to_owned());
        it.asks_mode("k", Ask::Exclusive);
        it.answers(2, "RLOCK.ACQUIRE", ":7\r\n");
        if refuses {
            it.answers(2, "RLOCK.DOWNGRADE k o", "-NOPERM no\r\n");
            let did = it.did();
            assert!(did.last().unwrap().starts_with("call 4: not permitted"));
            continue;
        }
        it.answers(2, "RLOCK.DOWNGRADE k o", ":7\r\n");
        it.passes(1_000);
        it.answers(2, "RLOCK.ACQUIRE", ":9\r\n");
        assert!(it.did().contains(&"call 4: granted 9".to_owned()));
        assert!(it.proofs[0].hold == it.proofs[1].hold);
    }
}

/// The server has ended the lock and granted it to somebody else, and its successor knows nothing of either.
#[test]
fn a_grant_that_was_lost_does_not_come_back_after_a_fail_over() {
    let mut it = held(Ask::Exclusive);
    it.receives(1, message(1, "lost 7 o k"));
    it.reconnects();
    it.asks_mode("k", Ask::Exclusive);
    it.answers(2, "RLOCK.ACQUIRE", ":7\r\n");
    assert!(it.has_sent("2 RLOCK.RELEASE k o ALL FENCE 7"));
    // The same for a grant that no guard was made of.
    let mut it = Played::connected();
    let ends = Terms::new().max_hold(Duration::from_secs(60)).unwrap();
    it.asks_mode_on("k", Ask::Exclusive, ends);
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.receives(1, message(1, "grant 7 o k") + &message(1, "lost 7 o k"));
    it.reconnects();
    it.answers(2, "RLOCK.ACQUIRE", ":7\r\n");
    assert!(it.has_sent("2 RLOCK.RELEASE k o ALL FENCE 7"));
}

/// A lock is kept bound after its release, with a grace of that time, or the server has refused that, and has the one before.
/// The owner enters it without a binding, or upgrades it: it is bound for as long as its lease, which ends nothing early.
#[test]
fn a_kept_bound_lock_is_entered_with_a_grace_as_long_as_its_lease() {
    let margin = Terms::new().margin(Duration::from_secs(4)).unwrap();
    for (ask, answer, fence) in [
        (Ask::Exclusive, ":7\r\n", 7),
        (Ask::Exclusive, "-ERR too long\r\n", 7),
        (Ask::Shared, ":7\r\n", 9),
    ] {
        for terms in [Terms::new(), replicas(), margin] {
            let mut it = Played::connected();
            it.asks_mode_on("k", ask, bound(5));
            it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
            it.keeps(10);
            it.releases();
            it.answers(1, "RLOCK.RENEW k o 10001 BIND 10001", answer);
            it.asks_mode_on("k", Ask::Exclusive, terms);
            it.answers(1, "RLOCK.ACQUIRE k o 30000", format!(":{fence}\r\n"));
            let actions = it.actions();
            let again = actions.last().unwrap();
            assert!(again.starts_with("1 RLOCK.ACQUIRE") && again.ends_with("BIND 30000"));
            it.answers(1, "RLOCK.ACQUIRE", format!(":{fence}\r\n"));
            let actions = it.actions();
            assert!(
                !actions.iter().any(|it| it.contains("RELEASE")),
                "{actions:?}"
            );
            let granted = actions.contains(&format!("call 4: granted {fence}"));
            assert_eq!(granted, terms.replicas == 0, "{actions:?}");
        }
    }
}

/// The owner has given up a shared call, and has connected again. It waits for exclusive mode, and is granted it by the queue:
/// such a grant is always a new one, and is not released.
#[test]
fn a_grant_by_the_queue_is_kept_after_a_shared_call_was_given_up() {
    let mut it = Played::connected();
    it.asks_mode("k", Ask::Shared);
    it.abandons(2);
    it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
    it.answers(1, "RLOCK.CANCEL k o", ":0\r\n");
    it.answers(1, "RLOCK.RELEASE k o", ":0\r\n");
    it.reconnects();
    it.asks_mode("k", Ask::Exclusive);
    it.answers(2, "RLOCK.ACQUIRE k o", "+WAITING\r\n");
    it.actions();
    it.receives(2, message(2, "grant 9 o k"));
    let mut log = it.actions();
    it.answers_each(2, |asked| match asked.starts_with("RLOCK.RENEW") {
        true => ":9\r\n".to_owned(),
        false => ":0\r\n".to_owned(),
    });
    log.extend(it.actions());
    assert!(log.contains(&"call 3: granted 9".to_owned()), "{log:?}");
}

/// The server refuses the downgrade: it has the lock exclusively, under fence 7, all the time. So it can be upgraded again.
#[test]
fn an_upgrade_after_a_refused_downgrade_is_granted() {
    let mut it = held(Ask::Exclusive);
    it.downgrades();
    it.answers(1, "RLOCK.DOWNGRADE k o", "-NOPERM no\r\n");
    it.asks_mode("k", Ask::Exclusive);
    let mut log = it.actions();
    for _ in 0..5 {
        it.answers_each(1, |asked| match asked {
            asked if asked.starts_with("RLOCK.DOWNGRADE") => "-NOPERM no\r\n".to_owned(),
            asked if asked.starts_with("RLOCK.CANCEL") => ":0\r\n".to_owned(),
            _ => ":7\r\n".to_owned(),
        });
        it.passes(10);
        log.extend(it.actions());
    }
    assert!(log.contains(&"call 4: granted 7".to_owned()), "{log:?}");
}

/// The server does not do the downgrade that it confirms. The call ends, and it does not ask without a pause.
#[test]
fn an_upgrade_that_keeps_its_fence_is_asked_for_with_pauses() {
    let mut it = held(Ask::Shared);
    it.asks_mode("k", Ask::Exclusive);
    let mut log = Vec::new();
    for _ in 0..700 {
        it.answers_each(1, |asked| match asked {
            asked if asked.starts_with("PING") => "+PONG\r\n".to_owned(),
            asked if asked.starts_with("RLOCK.CANCEL") => ":0\r\n".to_owned(),
            _ => ":7\r\n".to_owned(),
        });
        it.passes(100);
        log.extend(it.actions());
    }
    let asked = log.iter().filter(|it| it.contains("RLOCK.ACQUIRE")).count();
    assert!(asked < 200, "{asked}");
    assert!(log.iter().any(|it| it.starts_with("call 3")), "{log:?}");
    assert!(!log.iter().any(|it| it.starts_with("over")), "{log:?}");
}

/// What its owner is granted after the server has ended what was kept is not bound.
#[test]
fn a_grant_after_a_kept_one_is_not_bound() {
    let mut it = Played::connected();
    it.asks_mode_on("k", Ask::Exclusive, bound(5));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.keeps(10);
    it.releases();
    it.answers(1, "RLOCK.RENEW k o 10001 BIND 10001", ":7\r\n");
    it.asks_mode("k", Ask::Exclusive);
    it.answers(1, "RLOCK.ACQUIRE k o 30000", ":9\r\n");
    assert!(it.did().contains(&"call 4: granted 9".to_owned()));
}
