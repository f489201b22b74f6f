//! Every argument at its limit and one past it: an error names the argument, its value and the limit.

use redis::Value;
use rlock_core::syntax::{Command, Positional};

use rlock_testkit::Server;
use rlock_testkit::client::{Client, text, words};

/// A command on free keys, up to its options.
pub(crate) fn begun(command: Command) -> Vec<&'static str> {
    let words = command.positionals().iter().flat_map(|it| match it {
        Positional::Key => &["k"][..],
        Positional::Owner => &["o"],
        Positional::LeaseMs => &["1000"],
        Positional::NumKeys => &["2"],
        Positional::Keys => &["k", "k2"],
    });
    std::iter::once(command.name())
        .chain(words.copied())
        .collect()
}

/// Each command that has this argument, with this value for it.
fn each_with(argument: Positional, value: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    Command::ALL.into_iter().filter_map(move |command| {
        let place = command
            .positionals()
            .iter()
            .position(|it| *it == argument)?;
        let mut words: Vec<_> = begun(command).into_iter().map(str::as_bytes).collect();
        words[place + 1] = value;
        Some(words)
    })
}

/// Asserts that the command is refused with `ERR` and a text with all these parts.
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
fn lease_is_accepted_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    let maxima = [("86400000", "86400001"), ("1000", "1001")];
    for (max, past) in maxima {
        server.ask(&format!("CONFIG SET rlock.max-lease-ms {max}"));
        let huge = "18446744073709551616";
        for bad in [
            "0", past, huge, "-1", "+5", " 5", "05", "5.0", "1e3", "x", "",
        ] {
            for words in each_with(Positional::LeaseMs, bad.as_bytes()) {
                refused(&a, &words, &["lease-ms", bad, max]);
            }
        }
    }
    nothing_changed(&server);
    for (max, _) in maxima {
        server.ask(&format!("CONFIG SET rlock.max-lease-ms {max}"));
        for good in ["1", max] {
            for words in each_with(Positional::LeaseMs, good.as_bytes()) {
                let answer = text(&a.call(&words));
                assert!(!answer.starts_with("ERR "), "{good}: {answer}");
                a.ask("FLUSHALL");
            }
        }
    }
}

#[test]
fn owner_is_accepted_at_its_limits_and_refused_past_them() {
    let server = Server::start();
    let a = server.client();
    let of = |length| vec![b'o'; length];
    let controls = (0..=0x20).chain([0x7f]).map(|byte| vec![b'o', byte, b'o']);
    let reserved = [b"rlock:fence".to_vec(), b"rlock:x".to_vec()];
    let bad = [of(0), of(257), of(1 << 20)].into_iter();
    for bad in bad.chain(reserved).chain(controls) {
        let named = match bad.first() {
            Some(b'r') => "rlock:",
            _ if bad.len() == 3 => "",
            _ => "256",
        };
        for words in each_with(Positional::Owner, &bad) {
            refused(&a, &words, &["owner", named]);
        }
    }
    nothing_changed(&server);
    let longest = "o".repeat(256);
    // Only the exact prefix is reserved for the module.
    for good in [&longest, "rlock", "RLOCK:x"] {
        a.number(&format!("RLOCK.ACQUIRE k {good} 60000"));
        assert_eq!(a.ask(&format!("RLOCK.RELEASE k {good}")), "0");
    }
}

#[test]
fn commands_are_refused_with_too_few_or_too_many_arguments() {
    let server = Server::start();
    let a = server.client();
    for command in Command::ALL {
        let words = begun(command);
        for few in 1..words.len() {
            refused(&a, &words[..few], &[]);
        }
        refused(&a, &[&words[..], &["more"]].concat(), &[]);
    }
    nothing_changed(&server);
}

#[test]
fn bytes_of_any_kind_pass_unchanged() {
    let server = Server::start();
    let a = server.client();
    let mut subscriber = server.listen(&["%n%s"]);
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
        assert_eq!(
            subscriber.message(),
            format!("lost {fence} {shown} {shown}")
        );
    }
    // Keys have no restrictions.
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
    // The next reply is the reply to the next command.
    assert_eq!(a.ask("PING"), "PONG");
    nothing_changed(&server);
}

#[test]
fn number_of_keys_is_accepted_at_its_limits_and_refused_past_them() {
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

#[test]
fn owner_and_lease_errors_come_before_option_conflicts() {
    let server = Server::start();
    let client = server.client();
    for (line, named) in [
        ("RLOCK.ACQUIRE k rlock:o 1000 KEEP 5", "owner "),
        ("RLOCK.ACQUIRE k o 0 LIMIT 2", "lease-ms "),
        ("RLOCK.MACQUIRE rlock:o 1000 1 k KEEP 5", "owner "),
        ("RLOCK.RENEW k o 1000 FENCE 0 NOTIFY a SNOTIFY b", "FENCE "),
    ] {
        refused(&client, &words(line), &[named]);
    }
}
