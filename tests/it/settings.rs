//! Each setting at its limits and one past them, and what it does.

use crate::client::eventually;
use crate::contest::Contest;
use crate::server::Server;

/// Asserts that the setting takes the first values, and refuses the others without a change.
#[track_caller]
fn limits(server: &Server, name: &str, good: &[&str], bad: &[&str]) {
    let get = || server.ask(&format!("CONFIG GET rlock.{name}"));
    for value in good {
        assert_eq!(
            server.ask(&format!("CONFIG SET rlock.{name} {value}")),
            "OK",
            "{name} {value}"
        );
        assert_eq!(get(), format!("[rlock.{name} {value}]"));
    }
    let before = get();
    for value in bad {
        let answer = server.ask(&format!("CONFIG SET rlock.{name} {value}"));
        assert!(answer.starts_with("ERR "), "{name} {value}: {answer}");
        assert_eq!(get(), before, "{name} {value}");
    }
}

#[test]
fn settings_have_their_defaults_and_no_others_exist() {
    let server = Server::start();
    for (name, default) in [
        ("max-lease-ms", "86400000"),
        ("max-waiters", "10000"),
        ("max-places-per-user", "0"),
        ("max-watches", "100000"),
        ("max-shared-holders", "262144"),
        ("channel-prefix", "redisson_lock__channel"),
        ("publish", "auto"),
        ("yield-after", "64"),
        ("deadlock-detection", "yes"),
        ("startup-grace-ms", "0"),
    ] {
        let shown = server.ask(&format!("CONFIG GET rlock.{name}"));
        assert_eq!(shown, format!("[rlock.{name} {default}]"));
    }
    assert_eq!(server.ask("CONFIG GET rlock.*").split(' ').count(), 20);
}

#[test]
fn settings_are_taken_at_their_limits_and_refused_past_them() {
    let server = Server::start();
    let no_numbers = ["-1", "x", "\"\"", "1.5", "99999999999999999999"];
    let with = |past: &[&'static str]| [past, &no_numbers].concat();
    limits(
        &server,
        "max-lease-ms",
        &["1000", "2592000000"],
        &with(&["999", "2592000001"]),
    );
    limits(
        &server,
        "max-waiters",
        &["1", "1000000"],
        &with(&["0", "1000001"]),
    );
    limits(
        &server,
        "max-shared-holders",
        &["1", "10000000"],
        &with(&["0", "10000001"]),
    );
    limits(
        &server,
        "max-watches",
        &["0", "10000000"],
        &with(&["10000001"]),
    );
    limits(
        &server,
        "yield-after",
        &["0", "1000000"],
        &with(&["1000001"]),
    );
    limits(
        &server,
        "deadlock-detection",
        &["no", "yes"],
        &["maybe", "1", "\"\""],
    );
    limits(
        &server,
        "startup-grace-ms",
        &["0", "86400000"],
        &with(&["86400001"]),
    );
    let (longest, too_long) = ("p".repeat(256), "p".repeat(257));
    limits(
        &server,
        "channel-prefix",
        &["p", &longest, "%n%s"],
        &[&too_long, "\"\""],
    );
    limits(
        &server,
        "publish",
        &["spublish", "both", "none", "publish", "auto"],
        &["loudly", "\"\"", "0"],
    );
}

#[test]
fn settings_survive_a_rewrite_of_the_configuration() {
    let mut server = Server::start();
    server.ask("CONFIG SET rlock.max-waiters 77 rlock.publish both");
    assert_eq!(server.ask("CONFIG REWRITE"), "OK");
    let written = std::fs::read_to_string(server.directory().join("server.conf"));
    let written = written.expect("it was written");
    assert!(written.contains("rlock.max-waiters 77") && written.contains("rlock.publish both"));
    server.shut_down();
}

#[test]
fn one_waiter_more_than_the_limit_is_refused() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut heard = server.listen(&["c"]);
    assert_eq!(server.ask("CONFIG SET rlock.max-waiters 3"), "OK");
    let n = server.client();
    n.number("RLOCK.ACQUIRE k2 owner-a 60000");
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n1 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k2 owner-n2 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    for line in [
        "RLOCK.ACQUIRE k owner-n3 60000 WAIT 0",
        "RLOCK.ACQUIRE k2 owner-n3 60000 WAIT 0 NOTIFY c",
    ] {
        let answer = n.ask(line);
        assert!(
            answer.starts_with("QUEUEFULL ") && answer.contains('3'),
            "{answer}"
        );
    }
    assert_eq!(server.counter("waiters"), 3);
    assert_eq!(server.counter("watches"), 2);
    // Taking over one's own place needs no other; trying needs none.
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n1 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    assert_eq!(n.ask("RLOCK.ACQUIRE k owner-n3 60000"), "nil");
    // A lower limit leaves those that wait alone.
    assert_eq!(server.ask("CONFIG SET rlock.max-waiters 1"), "OK");
    assert_eq!(server.counter("waiters"), 3);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert!(heard.message().starts_with("grant "));
    assert!(
        n.ask("RLOCK.ACQUIRE k2 owner-n3 60000 WAIT 0")
            .starts_with("QUEUEFULL ")
    );
    n.number("RLOCK.ACQUIRE free owner-n3 60000 WAIT 0");
}

#[test]
fn one_watch_more_than_the_limit_is_refused() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let _heard = server.listen(&["c"]);
    assert_eq!(server.ask("CONFIG SET rlock.max-watches 2"), "OK");
    let n = server.client();
    n.number("RLOCK.ACQUIRE k1 owner-n 60000 NOTIFY c");
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    for line in [
        "RLOCK.ACQUIRE k2 owner-n 60000 NOTIFY c",
        "RLOCK.ACQUIRE k owner-m 60000 WAIT 0 NOTIFY c",
    ] {
        assert!(n.ask(line).starts_with("QUEUEFULL "), "{line}");
    }
    assert_eq!(server.ask("EXISTS k2"), "0");
    assert_eq!(server.queued("k"), 2);
    assert_eq!(server.counter("watches"), 2);
    n.number("RLOCK.ACQUIRE k2 owner-n 60000");
    // Replacing a channel needs no other.
    n.number("RLOCK.ACQUIRE k1 owner-n 60000 NOTIFY d");
    assert_eq!(n.ask("RLOCK.RELEASE k1 owner-n ALL"), "0");
    n.number("RLOCK.ACQUIRE k3 owner-n 60000 NOTIFY c");
    assert_eq!(server.ask("CONFIG SET rlock.max-watches 0"), "OK");
    assert_eq!(server.counter("watches"), 2);
    assert!(
        n.ask("RLOCK.ACQUIRE k4 owner-n 60000 NOTIFY c")
            .starts_with("QUEUEFULL ")
    );
    drop(contest);
}

#[test]
fn shorter_longest_lease_leaves_held_locks_alone() {
    let server = Server::start();
    let contest = Contest::on(&server);
    assert_eq!(server.ask("CONFIG SET rlock.max-lease-ms 1000"), "OK");
    assert!(server.admin().number("PTTL k") > 1000);
    assert!(
        contest
            .holder
            .ask("RLOCK.RENEW k owner-a 60000")
            .starts_with("ERR ")
    );
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    // What was asked for while it was allowed is given.
    assert!(server.admin().number("PTTL k") > 1000);
}

#[test]
fn grace_set_later_does_not_begin_anew() {
    let server = Server::start();
    eventually("the server is up for a while", || {
        server.info("server", "uptime_in_seconds") != "0"
    });
    assert_eq!(server.ask("CONFIG SET rlock.startup-grace-ms 1"), "OK");
    server.admin().number("RLOCK.ACQUIRE k owner-a 60000");
}
