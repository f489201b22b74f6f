//! Sentinels: which of them counts, and how long the client waits for them.

use crate::played::{Played, bulk, list};

fn named(host: &str, epoch: u64) -> String {
    let address = list(&[bulk(host), bulk("6379")]);
    address + &list(&[bulk("config-epoch"), bulk(&epoch.to_string())])
}

/// The answer to a user that may not ask for the epoch.
fn named_without_epoch(host: &str) -> String {
    list(&[bulk(host), bulk("6379")]) + "-NOPERM no\r\n"
}

/// Three of them, all connected and asked.
fn asked() -> Played {
    let mut it = Played::new("redis+sentinel://a,b,c/main");
    it.start();
    let connects = [
        "connect 1 to a:26379",
        "connect 2 to b:26379",
        "connect 3 to c:26379",
    ];
    assert_eq!(it.actions(), connects);
    (1..=3).for_each(|number| it.opens(number));
    assert_eq!(it.actions().len(), 6);
    it
}

/// Connected to the master that all of them name.
fn connected() -> Played {
    let mut it = asked();
    (1..=3).for_each(|number| it.receives(number, named("m", 5)));
    assert_eq!(it.actions(), ["connect 4 to m:6379"]);
    it.greeted(4);
    it.receives(4, "*0\r\n");
    assert_eq!(it.did(), ["call 1: done"]);
    it
}

#[test]
fn a_sentinel_with_a_password_gets_it_first() {
    let mut it = Played::new("redis+sentinel://a/main?sentinel_user=u&sentinel_password=p");
    it.start();
    it.opens(1);
    assert_eq!(it.actions()[1], "1 AUTH u p");
}

#[test]
fn the_newest_answer_counts() {
    let mut it = asked();
    it.receives(1, named("old", 3));
    it.receives(2, named("new", 4));
    assert_eq!(it.actions(), [""; 0]);
    it.receives(3, named("old", 3));
    assert_eq!(it.actions(), ["connect 4 to new:6379"]);
}

#[test]
fn the_others_are_waited_for_once_one_has_answered() {
    let mut it = asked();
    it.passes(300);
    it.receives(2, named("m", 4));
    it.passes(199);
    assert_eq!(it.actions(), [""; 0]);
    it.passes(1);
    assert_eq!(it.actions(), ["connect 4 to m:6379"]);
}

#[test]
fn each_failure_is_reported_if_no_sentinel_names_the_master() {
    let mut it = asked();
    it.ends(1);
    it.receives(2, "*-1\r\n-ERR No such master with that name\r\n");
    it.receives(
        3,
        "-NOAUTH Authentication required.\r\n-NOAUTH Authentication required.\r\n",
    );
    let why = "no Sentinel names the master: a:26379: cut; \
         b:26379: it knows no master of this name: main; \
         c:26379: NOAUTH Authentication required.";
    let failed = format!("call 1: cannot connect to the server: {why}");
    assert_eq!(it.did(), [format!("not connected: {why}"), failed]);
    // The client reconnects to the one that ended; the others are still
    // connected.
    it.passes(500);
    let actions = it.actions();
    assert!(
        actions.contains(&"connect 4 to a:26379".to_owned()),
        "{actions:?}"
    );
    assert!(
        actions.contains(&"2 SENTINEL MASTER main".to_owned()),
        "{actions:?}"
    );
}

#[test]
fn silent_sentinels_are_abandoned_after_a_second() {
    let mut it = connected();
    // Their connections have been idle for longer than an answer may take.
    for _ in 0..4 {
        it.passes(500);
        (1..=3).for_each(|number| it.receives(number, named("m", 5)));
    }
    it.ends(4);
    it.actions();
    it.passes(600);
    assert!(it.actions().contains(&"1 SENTINEL MASTER main".to_owned()));
    it.passes(1100);
    let did = it.did();
    for number in 1..=3 {
        assert!(did.contains(&format!("close {number}")), "{did:?}");
    }
    assert!(did.contains(&"connect 5 to a:26379".to_owned()), "{did:?}");
}

#[test]
fn a_master_that_they_no_longer_name_is_left() {
    let mut it = connected();
    it.passes(500);
    it.receives(1, named("m", 5));
    it.receives(2, named("other", 6));
    it.actions();
    it.receives(3, named("m", 5));
    assert_eq!(it.did(), ["close 4"]);
    it.passes(20);
    (1..=3).for_each(|number| it.receives(number, named("other", 6)));
    assert_eq!(it.did(), ["connect 5 to other:6379"]);
}

#[test]
fn a_master_is_kept_while_its_epoch_is_the_newest() {
    let mut it = connected();
    it.passes(500);
    // The name of the same server, by Sentinels that announce names.
    it.receives(1, named("name", 5));
    it.receives(2, named("m", 5));
    it.receives(3, named("name", 5));
    it.passes(500);
    it.receives(1, named("name", 5));
    it.receives(3, named("name", 5));
    it.passes(200);
    // The second is late.
    it.receives(2, named("m", 5));
    it.passes(500);
    assert_eq!(it.did(), [""; 0]);
    // Sentinels without their configuration count from zero again.
    (1..=3).for_each(|number| it.receives(number, named("n", 0)));
    it.passes(20);
    (1..=3).for_each(|number| it.receives(number, named("n", 0)));
    assert_eq!(it.did(), ["close 4", "connect 5 to n:6379"]);
}

#[test]
fn most_sentinels_decide_if_none_may_tell_the_epoch() {
    let mut it = asked();
    it.receives(1, named_without_epoch("old"));
    it.receives(2, named_without_epoch("new"));
    it.passes(200);
    assert_eq!(it.actions(), ["connect 4 to old:6379"]);
    it.greeted(4);
    it.receives(4, "*0\r\n");
    assert_eq!(it.did(), ["call 1: done"]);
    it.passes(500);
    it.receives(1, named_without_epoch("old"));
    it.receives(2, named_without_epoch("new"));
    it.passes(200);
    // The same number names the other one.
    assert_eq!(it.did(), [""; 0]);
    // It is late, and counts.
    it.receives(3, named_without_epoch("new"));
    it.passes(500);
    it.receives(1, named_without_epoch("old"));
    it.receives(2, named_without_epoch("new"));
    it.passes(200);
    assert_eq!(it.did(), ["close 4"]);
}

/// The others follow another master since an operator changed it, so the epoch is the same.
#[test]
fn a_sentinel_that_answers_no_more_keeps_no_master() {
    let mut it = asked();
    (1..=3).for_each(|number| it.receives(number, named("m", 0)));
    it.greeted(4);
    it.receives(4, "*0\r\n");
    it.did();
    let mut rounds = 0;
    while !it.did().contains(&"close 4".to_owned()) {
        it.passes(500);
        (1..=2).for_each(|number| it.receives(number, named("new", 0)));
        it.passes(200);
        rounds += 1;
        assert!(rounds < 30);
    }
    // For about ten seconds.
    assert!((14..=15).contains(&rounds), "{rounds}");
}

#[test]
fn another_address_is_tried_if_one_cannot_be_reached() {
    let mut it = asked();
    it.receives(1, named("inside", 5));
    it.receives(2, named("outside", 5));
    it.receives(3, named("inside", 5));
    assert_eq!(it.actions(), ["connect 4 to inside:6379"]);
    it.ends(4);
    it.actions();
    it.passes(500);
    it.receives(1, named("inside", 5));
    it.receives(2, named("outside", 5));
    it.receives(3, named("inside", 5));
    assert_eq!(it.did(), ["connect 5 to outside:6379"]);
}

#[test]
fn a_master_is_kept_if_no_sentinel_answers() {
    let mut it = connected();
    (1..=3).for_each(|number| it.ends(number));
    it.actions();
    it.passes(5000);
    assert!(!it.did().contains(&"close 4".to_owned()));
    it.asks("k");
    it.answers(4, "RLOCK.HELP", "");
    it.answers(4, "RLOCK.ACQUIRE", ":9\r\n");
    assert_eq!(it.did(), ["call 2: granted 9"]);
}

#[test]
fn a_replica_that_they_name_is_not_used() {
    let mut it = asked();
    (1..=3).for_each(|number| it.receives(number, named("m", 5)));
    it.greeted_but(4, "HELLO", "%1\r\n+role\r\n+replica\r\n");
    let did = it.did();
    assert_eq!(did[1], "close 4", "{did:?}");
    assert!(did[2].contains("is not a master"), "{did:?}");
}

/// It was cut off together with the old master. The others have named a newer one, and are late.
#[test]
fn a_sentinel_cannot_take_back_the_epoch_that_others_have_named() {
    let mut it = connected();
    for _ in 0..3 {
        it.passes(500);
        assert!(it.has_sent("SENTINEL"));
        it.receives(1, named("old", 4));
        it.passes(250);
        let did = it.did();
        assert!(
            !did.iter().any(|it| it == "close 4" || it.contains("old")),
            "{did:?}"
        );
    }
}

/// The others have answered in time, but the process has not read that.
#[test]
fn a_process_that_stalled_may_still_read_what_the_others_name() {
    let mut it = asked();
    it.receives(1, named("old", 3));
    it.stalls(400);
    it.receives(2, named("new", 4));
    it.receives(3, named("new", 4));
    assert_eq!(it.actions(), ["connect 4 to new:6379"]);
}

/// All of them name `old`. Then its host ends together with Sentinel a, unless that one still answers `a`. How many
/// milliseconds until the client tries `new`, which the others name.
fn fail_over(before: [&str; 2], a: Option<&str>, others: &str) -> u64 {
    let mut it = asked();
    it.receives(1, before[0]);
    (2..=3).for_each(|number| it.receives(number, before[1]));
    it.greeted(4);
    it.receives(4, "*0\r\n");
    it.did();
    it.ends(4);
    if a.is_none() {
        it.ends(1);
    }
    for time in 0.. {
        for line in it.actions() {
            match (&*line, a) {
                ("1 SENTINEL MASTER main", Some(a)) => it.receives(1, a),
                ("2 SENTINEL MASTER main", _) => it.receives(2, others),
                ("3 SENTINEL MASTER main", _) => it.receives(3, others),
                _ if line.ends_with("to new:6379") => return time * 10,
                _ => {}
            }
        }
        assert!(time < 6_000, "a minute has passed");
        it.passes(10);
    }
    unreachable!()
}

/// Whatever epoch it had named.
#[test]
fn a_sentinel_that_ends_delays_no_fail_over_for_long() {
    let [old, latest, new] = [named("old", 5), named("old", 6), named("new", 5)];
    let next = named("new", 6);
    assert!(fail_over([&old, &old], None, &next) < 1_000);
    // Only that one knew of a later fail-over.
    assert!(fail_over([&latest, &new], None, &new) < 12_000);
    // The others were set up again.
    assert!(fail_over([&old, &old], None, &named("new", 0)) < 12_000);
    // The others may not tell their epochs.
    let [old_too, new_too] = ["old", "new"].map(named_without_epoch);
    assert!(fail_over([&old, &old_too], None, &new_too) < 1_000);
    // It does not end, but the master was removed from it.
    let unknown = "*-1\r\n-ERR No such master with that name\r\n";
    assert!(fail_over([&old, &old], Some(unknown), &named("new", 0)) < 1_000);
}

/// They answer after each round, and before the next one. Some may not tell the epoch.
#[test]
fn sentinels_that_are_always_late_are_heard() {
    let [m, new] = ["m", "new"].map(named_without_epoch);
    for (first, others) in [
        (named("m", 5), named("new", 6)),
        (m.clone(), named("new", 6)),
        (m, new),
    ] {
        let mut it = asked();
        (1..=3).for_each(|number| it.receives(number, &*first));
        it.greeted(4);
        it.receives(4, "*0\r\n");
        it.did();
        for _ in 0..2 {
            it.passes(500);
            it.receives(1, &*first);
            it.passes(300);
            (2..=3).for_each(|number| it.receives(number, &*others));
        }
        assert_eq!(it.did(), ["close 4"], "{others}");
    }
}

/// A host that is off refuses nothing until the time limit.
#[test]
fn a_host_that_is_off_is_left_when_they_name_another_one() {
    let mut it = connected();
    it.ends(4);
    it.passes(20);
    (1..=3).for_each(|number| it.receives(number, named("m", 5)));
    assert!(it.did().contains(&"connect 5 to m:6379".to_owned()));
    it.passes(500);
    // The name of the same server.
    it.receives(1, named("name", 5));
    it.receives(2, named("m", 5));
    it.receives(3, named("name", 5));
    assert_eq!(it.did(), [""; 0]);
    it.passes(500);
    (1..=3).for_each(|number| it.receives(number, named("new", 6)));
    assert_eq!(it.did(), ["close 5", "connect 6 to new:6379"]);
}

/// They are heard in turn, and what they name refuses nothing.
#[test]
fn a_start_ends_although_they_name_different_hosts() {
    let mut it = Played::new("redis+sentinel://a,b/main");
    it.start();
    (1..=2).for_each(|number| it.opens(number));
    let names = ["x", "y"].map(named_without_epoch);
    let mut did = Vec::new();
    for round in 0..15 {
        let first = round % 2;
        it.receives(first + 1, &*names[first]);
        it.passes(700);
        it.receives(2 - first, &*names[1 - first]);
        did.extend(it.did());
    }
    assert!(did.iter().any(|it| it.starts_with("call 1")), "{did:?}");
}

/// They name one master differently, and the link to those that are late fails.
#[test]
fn late_sentinels_that_are_gone_leave_the_master_that_they_have_named() {
    let [host, ip] = ["host", "ip"].map(named_without_epoch);
    let mut it = asked();
    it.receives(1, &*host);
    (2..=3).for_each(|number| it.receives(number, &*ip));
    it.greeted(4);
    it.receives(4, "*0\r\n");
    assert_eq!(it.did(), ["connect 4 to ip:6379", "call 1: done"]);
    (2..=3).for_each(|number| it.ends(number));
    for _ in 0..3 {
        it.passes(500);
        it.receives(1, &*host);
        it.passes(200);
    }
    assert!(!it.did().contains(&"close 4".to_owned()));
}

/// One of two Sentinels was on the host of the old master, which is off.
#[test]
fn a_new_master_is_used_although_a_sentinel_that_is_gone_named_the_old_one() {
    let mut it = Played::new("redis+sentinel://a,b/main");
    it.start();
    (1..=2).for_each(|number| it.opens(number));
    for number in 1..=2 {
        it.answers_each(number, |asked| named_by(asked, "m"));
    }
    it.greeted(3);
    it.answers(3, "RLOCK.HELP", "*0\r\n");
    assert!(it.did().contains(&"call 1: done".to_owned()));
    // Nothing refuses a connection there.
    it.ends(2);
    it.ends(3);
    let mut did = Vec::new();
    for _ in 0..40 {
        it.passes(100);
        it.answers_each(1, |asked| named_by(asked, "n"));
        did.extend(it.did());
    }
    assert!(did.iter().any(|it| it.contains("to n:6379")), "{did:?}");
}

fn named_by(asked: &str, host: &str) -> String {
    match asked.starts_with("SENTINEL MASTER") {
        true => "-NOPERM no\r\n".to_owned(),
        false => list(&[bulk(host), bulk("6379")]),
    }
}

/// Three Sentinels tell no epoch. One is alone with an old master. The connections to all others break for a moment.
#[test]
fn a_sentinel_alone_moves_no_client_to_an_old_master_after_a_short_outage() {
    let mut it = Played::new("redis+sentinel://a,b,c/main");
    it.start();
    (1..=3).for_each(|number| it.opens(number));
    it.answers_each(1, |asked| named_by(asked, "old"));
    it.answers_each(2, |asked| named_by(asked, "m"));
    it.answers_each(3, |asked| named_by(asked, "m"));
    it.greeted(4);
    it.answers(4, "RLOCK.HELP", "*0\r\n");
    assert!(it.did().contains(&"call 1: done".to_owned()));
    for _ in 0..10 {
        it.passes(100);
        it.answers_each(1, |asked| named_by(asked, "old"));
        it.answers_each(2, |asked| named_by(asked, "m"));
        it.answers_each(3, |asked| named_by(asked, "m"));
    }
    it.did();
    (2..=4).for_each(|number| it.ends(number));
    let mut did = Vec::new();
    for _ in 0..5 {
        it.passes(100);
        it.answers_each(1, |asked| named_by(asked, "old"));
        did.extend(it.did());
    }
    assert!(!did.iter().any(|it| it.contains("to old:6379")), "{did:?}");
}
