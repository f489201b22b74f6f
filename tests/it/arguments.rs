//! Every argument at its limit and one past it: an error names the argument, its value and the limit.

use redis::Value;

use crate::client::{Client, text, words};
use crate::server::Server;

const MAX_LEASE_MS: u64 = 86_400_000;

/// Asserts that the command is refused with `ERR` and a sentence with all these parts.
#[track_caller]
pub(crate) fn refused<A: AsRef<[u8]>>(client: &Client, arguments: &[A], parts: &[&str]) {
    let error = text(&client.call(arguments));
    assert!(error.starts_with("ERR "), "not refused: {error}");
    assert!(
        error.len() < 1000,
        "an error is one sentence: {} bytes",
        error.len()
    );
    for part in parts {
        assert!(error.contains(part), "\"{error}\" does not name {part}");
    }
}

#[track_caller]
pub(crate) fn nothing_changed(server: &Server) {
    assert_eq!(server.ask("DBSIZE"), "0");
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("watches"), 0);
    assert_eq!(server.counter("grants"), 0);
}

#[test]
fn lease_is_taken_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    for bad in [
        "0",
        "86400001",
        "18446744073709551616",
        "-1",
        "+5",
        " 5",
        "05",
        "5.0",
        "1e3",
        "x",
        "",
    ] {
        refused(
            &a,
            &["RLOCK.ACQUIRE", "k", "owner-a", bad],
            &["lease-ms", bad, "86400000"],
        );
    }
    nothing_changed(&server);
    a.number("RLOCK.ACQUIRE shortest owner-a 1");
    a.number(&format!("RLOCK.ACQUIRE longest owner-a {MAX_LEASE_MS}"));
    refused(
        &a,
        &["RLOCK.RENEW", "longest", "owner-a", "0"],
        &["lease-ms", "0", "86400000"],
    );
    refused(
        &a,
        &["RLOCK.RENEW", "longest", "owner-a", "86400001"],
        &["lease-ms", "86400001"],
    );
    a.number(&format!("RLOCK.RENEW longest owner-a {MAX_LEASE_MS}"));
    a.number("RLOCK.RENEW longest owner-a 1");
}

#[test]
fn lease_and_wait_follow_the_setting() {
    let server = Server::start();
    assert_eq!(server.ask("CONFIG SET rlock.max-lease-ms 1000"), "OK");
    let a = server.client();
    refused(
        &a,
        &["RLOCK.ACQUIRE", "k", "owner-a", "1001"],
        &["lease-ms", "1001", "1000"],
    );
    refused(
        &a,
        &["RLOCK.ACQUIRE", "k", "owner-a", "1", "WAIT", "1001"],
        &["wait-ms", "1001", "1000"],
    );
    nothing_changed(&server);
    a.number("RLOCK.ACQUIRE k owner-a 1000 WAIT 1000");
}

#[test]
fn owner_is_taken_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    let longest = "o".repeat(256);
    let too_long = "o".repeat(257);
    for command in [
        "RLOCK.ACQUIRE",
        "RLOCK.RENEW",
        "RLOCK.RELEASE",
        "RLOCK.CANCEL",
    ] {
        let with = |owner: &[u8]| {
            let mut arguments = vec![command.as_bytes().to_vec(), b"k".to_vec(), owner.to_vec()];
            if matches!(command, "RLOCK.ACQUIRE" | "RLOCK.RENEW") {
                arguments.push(b"1000".to_vec());
            }
            arguments
        };
        refused(&a, &with(b""), &["owner", "256"]);
        refused(&a, &with(too_long.as_bytes()), &["owner", "256"]);
        refused(&a, &with(&vec![b'o'; 1 << 20]), &["owner", "256"]);
        refused(&a, &with(b"rlock:fence"), &["owner", "rlock:"]);
        for byte in (0..=0x20).chain([0x7f]) {
            refused(&a, &with(&[b'o', byte, b'o']), &["owner"]);
        }
    }
    nothing_changed(&server);
    a.number(&format!("RLOCK.ACQUIRE k1 {longest} 60000"));
    assert_eq!(a.ask(&format!("RLOCK.RELEASE k1 {longest}")), "0");
    // Only the exact beginning is kept for the module.
    a.number("RLOCK.ACQUIRE k2 rlock 60000");
    a.number("RLOCK.ACQUIRE k3 RLOCK:x 60000");
}

#[test]
fn channel_is_taken_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    let too_long = "c".repeat(513);
    refused(
        &a,
        &["RLOCK.ACQUIRE", "k", "owner-a", "1000", "NOTIFY", ""],
        &["channel", "512"],
    );
    refused(
        &a,
        &["RLOCK.ACQUIRE", "k", "owner-a", "1000", "NOTIFY", &too_long],
        &["channel", "512"],
    );
    nothing_changed(&server);
    let longest = "c".repeat(512);
    let mut heard = server.listen(&[&longest, "c"]);
    a.number(&format!("RLOCK.ACQUIRE k1 owner-a 60000 NOTIFY {longest}"));
    a.number("RLOCK.ACQUIRE k2 owner-a 60000 NOTIFY c");
    server.ask("DEL k1");
    assert!(heard.message().starts_with("lost "));
}

#[test]
fn commands_are_refused_with_too_few_or_too_many_arguments() {
    let server = Server::start();
    let a = server.client();
    for line in [
        "RLOCK.ACQUIRE",
        "RLOCK.ACQUIRE k",
        "RLOCK.ACQUIRE k owner-a",
        "RLOCK.RENEW k owner-a",
        "RLOCK.RENEW k owner-a 1000 more",
        "RLOCK.RELEASE k",
        "RLOCK.CANCEL k",
        "RLOCK.CANCEL k owner-a more",
        "RLOCK.FORCE",
        "RLOCK.FORCE k more",
        "RLOCK.FORCE k QUEUE QUEUE",
        "RLOCK.INFO",
        "RLOCK.INFO k more",
        "RLOCK.HELP more",
    ] {
        let answer = a.ask(line);
        assert!(
            answer.starts_with("ERR "),
            "{line} was answered by {answer}"
        );
    }
    nothing_changed(&server);
}

#[test]
fn bytes_of_any_kind_pass_unchanged() {
    let server = Server::start();
    let a = server.client();
    let mut heard = server.listen(&["%n%s"]);
    let names: [&[u8]; 7] = [
        b"%n%n%n%s%s",
        b"\xff\xfe\x80",
        b"{",
        b"}{",
        b"{}",
        "schl\u{fc}ssel".as_bytes(),
        b"\"'\\",
    ];
    for name in names {
        let acquire: [&[u8]; 6] = [b"RLOCK.ACQUIRE", name, name, b"60000", b"NOTIFY", b"%n%s"];
        let Value::Int(fence) = a.call(&acquire) else {
            panic!("granted")
        };
        assert_eq!(
            a.call(&[b"HGET", name, name]),
            Value::BulkString(b"1".to_vec())
        );
        let info = a.call(&[b"RLOCK.INFO", name]);
        assert!(
            text(&info).contains(&*String::from_utf8_lossy(name)),
            "{}",
            text(&info)
        );
        assert_eq!(a.call(&[b"RLOCK.FORCE", name]), Value::Int(1));
        let shown = String::from_utf8_lossy(name);
        assert_eq!(heard.message(), format!("lost {fence} {shown} {shown}"));
    }
    // Keys have no rules of their own.
    let huge = vec![b'%'; 1 << 20];
    let keys: [&[u8]; 5] = [b"", b" ", b"\0", b"\r\n+OK\r\n", &huge];
    for key in keys {
        let acquire: [&[u8]; 4] = [b"RLOCK.ACQUIRE", key, b"owner-a", b"60000"];
        assert!(matches!(a.call(&acquire), Value::Int(_)));
        assert_eq!(a.call(&[b"RLOCK.RELEASE", key, b"owner-a"]), Value::Int(0));
    }
    assert_eq!(server.ask("DBSIZE"), "0");
}

#[test]
fn errors_stay_on_one_line_whatever_they_quote() {
    let server = Server::start();
    let a = server.client();
    let acquire: [&[u8]; 4] = [b"RLOCK.ACQUIRE", b"k", b"a\r\n+OK\r\n", b"1000"];
    refused(&a, &acquire, &["owner"]);
    let acquire: [&[u8]; 5] = [b"RLOCK.ACQUIRE", b"k", b"owner-a", b"1000", b"X\r\n:1\r\n"];
    refused(&a, &acquire, &[]);
    let acquire: [&[u8]; 4] = [b"RLOCK.ACQUIRE", b"k", b"owner-a", b"%n%s%n\r\n\0"];
    refused(&a, &acquire, &["lease-ms"]);
    // The next reply is that of the next command.
    assert_eq!(a.ask("PING"), "PONG");
    nothing_changed(&server);
}

/// Asserts that each line is refused, with an error that names all these parts.
#[track_caller]
fn all_refused(client: &Client, cases: &[(&str, &[&str])]) {
    for (line, parts) in cases {
        refused(client, &words(line), parts);
    }
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
