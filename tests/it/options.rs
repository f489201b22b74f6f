//! The options of a request, each at its limits and past them, without what it needs, and where it cannot be.

use crate::arguments::{nothing_changed, refused};
use crate::client::{Client, text, words};
use crate::contest::Contest;
use crate::server::Server;

/// Asserts that each line is refused, with an error that names all these parts.
#[track_caller]
fn all_refused(client: &Client, cases: &[(&str, &[&str])]) {
    for (line, parts) in cases {
        refused(client, &words(line), parts);
    }
}

/// Both kinds of request.
const ACQUIRE: [&str; 2] = ["RLOCK.ACQUIRE k o 1000", "RLOCK.MACQUIRE o 1000 2 k k2"];

#[test]
fn keep_is_taken_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    for acquire in ACQUIRE {
        for bad in [
            "0",
            "600001",
            "-1",
            "05",
            "x",
            "\"\"",
            "18446744073709551616",
        ] {
            let line = format!("{acquire} WAIT 1 KEEP {bad}");
            refused(
                &a,
                &words(&line),
                &["KEEP", "grace-ms", bad.trim_matches('"'), "600000"],
            );
        }
        let cases = [
            ("KEEP 5", "WAIT"),
            ("WAIT 1 KEEP", "KEEP"),
            ("KEEP 5 NOTIFY c", "WAIT"),
        ];
        for (options, named) in cases {
            let line = format!("{acquire} {options}");
            refused(&a, &words(&line), &["KEEP", named]);
        }
        let twice = format!("{acquire} WAIT 1 KEEP 5 keep 5");
        refused(&a, &words(&twice), &["KEEP", "twice"]);
    }
    nothing_changed(&server);
    // Its limit does not follow the setting for leases and waits.
    server.ask("CONFIG SET rlock.max-lease-ms 1000");
    a.number("RLOCK.ACQUIRE k other 1000");
    for (owner, keep) in [("o1", 1), ("o2", 600_000)] {
        let line = format!("RLOCK.ACQUIRE k {owner} 1000 keep {keep} wait 1");
        assert_eq!(a.ask(&line), "nil");
    }
    server.await_queued("k", 1);
    let left = server.lock("k").waiters[0].kept_left_ms;
    assert!(left.is_some_and(|left| left > 500_000), "{left:?}");
}

#[test]
fn channels_are_taken_at_their_limits_and_one_kind_at_a_time() {
    let server = Server::start();
    let a = server.client();
    let (longest, too_long) = ("c".repeat(512), "c".repeat(513));
    for acquire in ACQUIRE {
        for option in ["NOTIFY", "SNOTIFY"] {
            for bad in ["\"\"", &too_long] {
                let line = format!("{acquire} WAIT 0 {option} {bad}");
                refused(&a, &words(&line), &["channel", "512"]);
            }
            refused(&a, &words(&format!("{acquire} {option}")), &[option]);
            let twice = format!("{acquire} {option} c {option} c");
            refused(&a, &words(&twice), &[option, "twice"]);
        }
        for both in ["NOTIFY c SNOTIFY c", "SNOTIFY c WAIT 0 NOTIFY d"] {
            let line = format!("{acquire} {both}");
            refused(&a, &words(&line), &["SNOTIFY", " NOTIFY"]);
        }
    }
    nothing_changed(&server);
    a.number(&format!("RLOCK.ACQUIRE k o 1000 snotify {longest}"));
}

#[test]
fn fence_is_taken_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    all_refused(
        &a,
        &[
            ("RLOCK.RENEW k o 1000 FENCE 0", &["FENCE", "0"]),
            ("RLOCK.RENEW k o 1000 FENCE -1", &["FENCE", "-1"]),
            ("RLOCK.RENEW k o 1000 FENCE 05", &["FENCE", "05"]),
            ("RLOCK.RENEW k o 1000 FENCE x", &["FENCE", "x"]),
            (
                "RLOCK.RENEW k o 1000 FENCE 9007199254740992",
                &["FENCE", "9007199254740992", "9007199254740991"],
            ),
            ("RLOCK.RENEW k o 1000 FENCE", &["FENCE"]),
            ("RLOCK.RENEW k o 1000 FENCE 5 FENCE 5", &["FENCE", "twice"]),
            ("RLOCK.RENEW k o 1000 WAIT 5", &["WAIT"]),
            ("RLOCK.MRENEW o 1000 1 k FENCE 5", &["FENCE"]),
            ("RLOCK.ACQUIRE k o 1000 FENCE 5", &["FENCE"]),
        ],
    );
    nothing_changed(&server);
    let fence = a.number("RLOCK.ACQUIRE k o 1000");
    assert_eq!(a.number("RLOCK.RENEW k o 1000 fence 1"), fence);
}

#[test]
fn connection_is_needed_for_what_reports_to_it() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let before = server.hash("k");
    let script = "return redis.pcall(unpack(ARGV))";
    let a = server.client();
    for (option, named) in [
        ("NOTIFY c", "NOTIFY"),
        ("SNOTIFY c", "SNOTIFY"),
        ("WAIT 0 SNOTIFY c", "SNOTIFY"),
        ("WAIT 0 KEEP 5 SNOTIFY c", "SNOTIFY"),
        ("BIND 0", "BIND"),
    ] {
        let mut lines = vec![
            format!("RLOCK.ACQUIRE free o 60000 {option}"),
            format!("RLOCK.ACQUIRE k owner-a 60000 {option}"),
            format!("RLOCK.ACQUIRE k o 60000 {option}"),
        ];
        if named != "BIND" {
            lines.push(format!("RLOCK.MACQUIRE o 60000 2 free k {option}"));
        }
        if !option.starts_with("WAIT") {
            lines.push(format!("RLOCK.RENEW k owner-a 70000 {option}"));
        }
        if !option.starts_with("WAIT") && named != "BIND" {
            lines.push(format!("RLOCK.MRENEW owner-a 70000 2 free k {option}"));
        }
        for line in lines {
            let answer = text(&a.call(&[&["EVAL", script, "0"][..], &words(&line)].concat()));
            let is_clear = answer.contains(named) && answer.contains("script");
            assert!(answer.starts_with("ERR ") && is_clear, "{line}: {answer}");
        }
    }
    assert_eq!(server.hash("k"), before);
    assert_eq!(server.ask("DBSIZE"), "1");
    assert_eq!(server.queued("k"), 1);
    assert_eq!(server.counter("watches"), 0);
    drop(contest);
}

#[test]
fn options_in_multi_are_those_of_its_connection() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut heard = crate::client::Subscriber::listen(server.port(), "SSUBSCRIBE", &["c"]);
    let a = server.client();
    let in_multi = |line: &str| {
        a.ask("MULTI");
        assert_eq!(a.ask(line), "QUEUED");
        a.ask("EXEC")
    };
    assert_eq!(
        in_multi("RLOCK.ACQUIRE k o 60000 WAIT 0 KEEP 60000 SNOTIFY c"),
        "[WAITING]"
    );
    // What cannot block has no wait to be kept.
    assert_eq!(
        in_multi("RLOCK.ACQUIRE k other 60000 WAIT 0 KEEP 5"),
        "[nil]"
    );
    assert_eq!(server.queued("k"), 2);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    let fence = contest.assert_handed_over();
    let target = fence + 5_000_000;
    let renew = format!("RLOCK.RENEW k owner-b 60000 FENCE {target}");
    assert_eq!(in_multi(&renew), format!("[{target}]"));
    let renew = format!("{renew} BIND 60000 SNOTIFY c");
    assert_eq!(in_multi(&renew), format!("[{target}]"));
    assert_eq!(server.counter("bound_holds"), 1);
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert!(heard.message().starts_with("grant "));
    assert!(in_multi("RLOCK.ACQUIRE k o 60000 REENTER") != "[nil]");
    assert_eq!(server.hash("k")["o"], "2");
}

#[test]
fn each_key_that_is_waited_for_is_a_place() {
    let server = Server::start();
    server.ask("CONFIG SET rlock.max-waiters 2");
    let a = server.client();
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    for option in ["", " NOTIFY c", " KEEP 60000"] {
        let line = format!("RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 WAIT 0{option}");
        let full = a.ask(&line);
        assert!(full.starts_with("QUEUEFULL "), "{full}");
        assert!(
            full.contains("rlock.max-waiters") && full.contains('2'),
            "{full}"
        );
    }
    for key in ["k1", "k2", "k3"] {
        assert_eq!(server.queued(key), 0);
    }
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("watches"), 0);
    let m = server.client();
    m.send("RLOCK.MACQUIRE owner-m 60000 2 k1 k2 WAIT 0");
    server.await_queued("k2", 1);
    assert_eq!(server.counter("waiters"), 2);
    let full = a.ask("RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
    assert!(full.starts_with("QUEUEFULL "), "{full}");
    // To ask again takes no more, and what can be granted at once takes none.
    let again = server.client();
    again.send("RLOCK.MACQUIRE owner-m 60000 2 k2 k1 WAIT 0");
    assert_eq!(m.answer(), "nil");
    a.number("RLOCK.MACQUIRE owner-b 60000 3 f1 f2 f3 WAIT 0");
    a.ask("RLOCK.RELEASE k1 owner-a");
    again.fence();
    assert_eq!(server.counter("waiters"), 0);
}
