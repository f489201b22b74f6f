//! The arguments of shared and bound holds, of requests for several locks and of lists: each at its limit and one past
//! it.

use crate::arguments::{nothing_changed, refused};
use crate::client::{Client, words};
use crate::server::Server;

/// Asserts that each line is refused, with an error that names all these parts.
#[track_caller]
fn all_refused(client: &Client, cases: &[(&str, &[&str])]) {
    for (line, parts) in cases {
        refused(client, &words(line), parts);
    }
}

#[test]
fn limit_and_permits_are_taken_at_their_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    all_refused(
        &a,
        &[
            (
                "RLOCK.ACQUIRE k o 1000 SHARED LIMIT 0",
                &["LIMIT", "0", "1000000"],
            ),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED LIMIT 1000001",
                &["LIMIT", "1000001", "1000000"],
            ),
            ("RLOCK.ACQUIRE k o 1000 SHARED LIMIT -1", &["LIMIT", "-1"]),
            ("RLOCK.ACQUIRE k o 1000 SHARED LIMIT 05", &["LIMIT", "05"]),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED LIMIT 18446744073709551616",
                &["LIMIT", "18446744073709551616"],
            ),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED LIMIT \"\"",
                &["LIMIT", "1000000"],
            ),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED LIMIT 5 PERMITS 0",
                &["PERMITS", "0", "5"],
            ),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED LIMIT 5 PERMITS 6",
                &["PERMITS", "6", "5"],
            ),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED PERMITS 6 LIMIT 5",
                &["PERMITS", "6", "5"],
            ),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED LIMIT 5 PERMITS x",
                &["PERMITS", "x", "5"],
            ),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED PERMITS 1",
                &["PERMITS", "LIMIT"],
            ),
            ("RLOCK.ACQUIRE k o 1000 PERMITS 1", &["PERMITS"]),
            ("RLOCK.ACQUIRE k o 1000 LIMIT 5", &["LIMIT", "SHARED"]),
            (
                "RLOCK.ACQUIRE k o 1000 LIMIT 5 PERMITS 1",
                &["LIMIT", "SHARED"],
            ),
            ("RLOCK.ACQUIRE k o 1000 SHARED LIMIT", &["LIMIT"]),
            (
                "RLOCK.ACQUIRE k o 1000 SHARED LIMIT 5 PERMITS",
                &["PERMITS"],
            ),
        ],
    );
    nothing_changed(&server);
    a.number("RLOCK.ACQUIRE k1 o 60000 SHARED LIMIT 1");
    a.number("RLOCK.ACQUIRE k2 o 60000 SHARED LIMIT 1000000 PERMITS 1000000");
    a.number("RLOCK.ACQUIRE k3 o 60000 permits 5 limit 5 shared");
    let permits = |key| server.lock(key).holders[0].permits;
    assert_eq!(["k1", "k2", "k3"].map(permits), [1, 1_000_000, 5]);
}

#[test]
fn grace_is_taken_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    all_refused(
        &a,
        &[
            (
                "RLOCK.ACQUIRE k o 1000 BIND 86400001",
                &["grace-ms", "86400001", "86400000"],
            ),
            ("RLOCK.ACQUIRE k o 1000 BIND -1", &["grace-ms", "-1"]),
            ("RLOCK.ACQUIRE k o 1000 BIND 00", &["grace-ms", "00"]),
            (
                "RLOCK.ACQUIRE k o 1000 BIND \"\"",
                &["grace-ms", "86400000"],
            ),
            ("RLOCK.ACQUIRE k o 1000 BIND", &["BIND"]),
            ("RLOCK.MACQUIRE o 1000 1 k BIND 5", &["BIND"]),
        ],
    );
    server.ask("CONFIG SET rlock.max-lease-ms 1000");
    all_refused(
        &a,
        &[(
            "RLOCK.ACQUIRE k o 1000 BIND 1001",
            &["grace-ms", "1001", "1000"],
        )],
    );
    nothing_changed(&server);
    a.number("RLOCK.ACQUIRE k o 1000 BIND 1000");
    server.ask("CONFIG SET rlock.max-lease-ms 86400000");
    a.number("RLOCK.ACQUIRE k o 1000 BIND 86400000");
    a.number("RLOCK.ACQUIRE k o 1000 BIND 0");
}

#[test]
fn options_are_refused_when_repeated() {
    let server = Server::start();
    let a = server.client();
    for option in [
        "SHARED",
        "REENTER",
        "BIND 5",
        "SHARED LIMIT 5",
        "WAIT 1",
        "WAIT 1 KEEP 5",
        "NOTIFY c",
        "SNOTIFY c",
    ] {
        let named = option.split(' ').next().expect("a word");
        let line = format!("RLOCK.ACQUIRE k o 1000 {option} {option}");
        refused(&a, &words(&line), &[named, "twice"]);
    }
    for option in ["LIMIT 5", "PERMITS 1"] {
        let named = option.split(' ').next().expect("a word");
        let line = format!("RLOCK.ACQUIRE k o 1000 SHARED LIMIT 5 PERMITS 1 {option}");
        refused(&a, &words(&line), &[named, "twice"]);
    }
    for option in [
        "REENTER",
        "WAIT 1",
        "WAIT 1 KEEP 5",
        "NOTIFY c",
        "SNOTIFY c",
    ] {
        let line = format!("RLOCK.MACQUIRE o 1000 1 k {option} {option}");
        refused(&a, &words(&line), &["twice"]);
    }
    for line in ["RLOCK.MRELEASE o 1 k ALL ALL", "RLOCK.LIST COUNT 5 COUNT 5"] {
        refused(&a, &words(line), &["twice"]);
    }
    all_refused(
        &a,
        &[
            ("RLOCK.MACQUIRE o 1000 1 k SHARED", &["SHARED"]),
            ("RLOCK.MACQUIRE o 1000 1 k LIMIT 5", &["LIMIT"]),
            ("RLOCK.MACQUIRE o 1000 1 k ALL", &["ALL"]),
            ("RLOCK.MRENEW o 1000 1 k REENTER", &["REENTER"]),
            ("RLOCK.MRELEASE o 1 k REENTER", &["REENTER"]),
            ("RLOCK.LIST ALL", &["ALL"]),
        ],
    );
    nothing_changed(&server);
}

#[test]
fn number_of_keys_is_taken_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    let many = |count: usize| (0..count).map(|it| format!("k{it}")).collect::<Vec<_>>();
    let keys = many(1025).join(" ");
    for command in [
        "RLOCK.MACQUIRE o 60000",
        "RLOCK.MRENEW o 60000",
        "RLOCK.MRELEASE o",
    ] {
        for number in ["0", "1025", "-1", "01", "x", "18446744073709551617"] {
            let line = format!("{command} {number} {keys}");
            refused(&a, &words(&line), &["numkeys", number, "1024"]);
        }
        refused(
            &a,
            &words(&format!("{command} 3 k1 k2")),
            &["numkeys", "3", "2"],
        );
        for twice in ["k1 k1", "k1 k2 k1", "\"\" \"\""] {
            let count = twice.split(' ').count();
            let line = format!("{command} {count} {twice}");
            refused(&a, &words(&line), &["key", "twice"]);
        }
        let line = format!("{command} 1024 {} k7", many(1023).join(" "));
        refused(&a, &words(&line), &["'k7'", "twice"]);
    }
    nothing_changed(&server);
    let keys = many(1024).join(" ");
    a.number(&format!("RLOCK.MACQUIRE o 60000 1024 {keys}"));
    assert_eq!(server.ask("DBSIZE"), "1024");
    assert_eq!(a.ask(&format!("RLOCK.MRENEW o 60000 1024 {keys}")), "1024");
    assert_eq!(a.ask(&format!("RLOCK.MRELEASE o 1024 {keys} ALL")), "1024");
    a.number("RLOCK.MACQUIRE o 60000 1 k");
    assert_eq!(a.ask("RLOCK.MRELEASE o 1 k"), "1");
}

#[test]
fn owner_and_times_of_several_locks_have_the_limits_of_one() {
    let server = Server::start();
    let a = server.client();
    let long = "o".repeat(257);
    for command in [
        "RLOCK.MACQUIRE {} 1000 1 k",
        "RLOCK.MRENEW {} 1000 1 k",
        "RLOCK.MRELEASE {} 1 k",
        "RLOCK.DOWNGRADE k {}",
    ] {
        for owner in ["\"\"", "rlock:x", long.as_str()] {
            refused(&a, &words(&command.replace("{}", owner)), &["owner"]);
        }
    }
    all_refused(
        &a,
        &[
            ("RLOCK.MACQUIRE o 0 1 k", &["lease-ms", "0", "86400000"]),
            ("RLOCK.MACQUIRE o 86400001 1 k", &["lease-ms", "86400001"]),
            ("RLOCK.MRENEW o 0 1 k", &["lease-ms", "0"]),
            (
                "RLOCK.MACQUIRE o 1000 1 k WAIT 86400001",
                &["wait-ms", "86400001"],
            ),
            ("RLOCK.MACQUIRE o 1000 1 k NOTIFY \"\"", &["channel", "512"]),
            ("RLOCK.LIST COUNT 0", &["COUNT", "0", "1000"]),
            ("RLOCK.LIST COUNT 1001", &["COUNT", "1001", "1000"]),
            ("RLOCK.LIST COUNT x", &["COUNT", "x"]),
            ("RLOCK.LIST COUNT", &["COUNT"]),
        ],
    );
    for line in [
        "RLOCK.MACQUIRE",
        "RLOCK.MACQUIRE o",
        "RLOCK.MACQUIRE o 1000 1",
        "RLOCK.MRENEW o 1000 1",
        "RLOCK.MRELEASE o 1",
        "RLOCK.DOWNGRADE k",
        "RLOCK.DOWNGRADE k o more",
    ] {
        let answer = a.ask(line);
        assert!(answer.starts_with("ERR "), "{line}: {answer}");
    }
    nothing_changed(&server);
}

#[test]
fn count_of_each_of_several_locks_goes_up_to_its_limit() {
    let server = Server::start();
    let a = server.client();
    let fence = a.number("RLOCK.MACQUIRE o 60000 2 k1 k2");
    a.ask("HSET k2 o 2147483647");
    let full = a.ask("RLOCK.MACQUIRE o 30000 2 k1 k2 REENTER");
    assert!(
        full.starts_with("ERR ") && full.contains("2147483647"),
        "{full}"
    );
    assert_eq!(server.hash("k1")["o"], "1");
    assert!(a.number("PTTL k1") > 30_000);
    assert_eq!(a.number("RLOCK.MACQUIRE o 60000 2 k1 k2"), fence);
    a.number("RLOCK.ACQUIRE k3 o 60000 SHARED");
    a.ask("HSET k3 o 2147483647");
    let full = a.ask("RLOCK.ACQUIRE k3 o 60000 SHARED REENTER");
    assert!(
        full.starts_with("ERR ") && full.contains("2147483647"),
        "{full}"
    );
    let full = a.ask("RLOCK.ACQUIRE k3 o 60000 REENTER");
    assert!(
        full.starts_with("ERR ") && full.contains("2147483647"),
        "{full}"
    );
    assert_eq!(server.lock("k3").mode, "shared");
}
