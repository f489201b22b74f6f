//! Both protocols, and the order of replies around a blocked call.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use redis::Value;

use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::{PATIENCE, request, text, words};

/// Long enough to notice a reply that must not come.
const MOMENT: Duration = Duration::from_millis(50);

#[test]
fn subscribed_resp3_connection_waits_or_gets_an_error_that_says_how() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client_resp3();
    c.send("SUBSCRIBE c");
    assert!(matches!(c.reply(), Value::Push { .. }));
    c.send("RLOCK.ACQUIRE k owner-c 60000 WAIT 0");
    // Since Valkey 8.1, no module can block a subscribed connection.
    if server.is_valkey() && server.is_at_least((0, 0), (8, 1)) {
        let error = c.answer();
        assert!(
            error.starts_with("ERR ") && error.contains("NOTIFY"),
            "{error}"
        );
        assert_eq!(server.queued("k"), 1);
        // A request that is granted at once does not block.
        assert!(matches!(
            c.call(&["RLOCK.ACQUIRE", "free", "owner-c", "60000", "WAIT", "0"]),
            Value::Int(_)
        ));
    } else {
        server.await_queued("k", 2);
        server.ask("RLOCK.FORCE k");
        contest.assert_handed_over();
        server.ask("RLOCK.FORCE k");
        c.fence();
    }
    // One connection can receive its own grant.
    c.ask("RLOCK.ACQUIRE other owner-a 60000");
    assert_eq!(
        c.ask("RLOCK.ACQUIRE other owner-c 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    server.ask("RLOCK.FORCE other");
    assert!(text(&c.reply()).contains("grant "));
}

#[test]
fn info_is_a_map_in_resp3() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client_resp3();
    let Value::Map(fields) = c.call(&["RLOCK.INFO", "k"]) else {
        panic!("a map")
    };
    let names = fields
        .iter()
        .map(|(name, _)| text(name))
        .collect::<Vec<_>>();
    assert_eq!(names, ["mode", "fence", "holders", "queued", "waiters"]);
    let names_of = |list: &Value| match list {
        Value::Array(maps) => match maps.as_slice() {
            [Value::Map(pairs)] => pairs.iter().map(|(name, _)| text(name)).collect::<Vec<_>>(),
            other => panic!("one map, not {other:?}"),
        },
        other => panic!("a list, not {other:?}"),
    };
    let holder = [
        "owner",
        "count",
        "permits",
        "lease-left-ms",
        "fence",
        "bound",
        "value",
    ];
    assert_eq!(names_of(&fields[2].1), holder);
    let waiter = [
        "owner",
        "mode",
        "waited-ms",
        "wait-left-ms",
        "client-id",
        "kept-left-ms",
    ];
    assert_eq!(names_of(&fields[4].1), waiter);
    let waiting = text(&fields[4].1);
    let id = contest.waiter.id().to_string();
    assert!(waiting.contains(&id), "{waiting} names client {id}");
}

#[test]
fn pipelined_commands_behind_a_wait_are_answered_in_order() {
    let server = Server::start();
    let contest = Contest::on(&server);
    server.ask("SET stock 90");
    let c = server.client();
    let acquire = request(&["RLOCK.ACQUIRE", "k", "owner-c", "60000", "WAIT", "0"]);
    let rest = [
        request(&["GET", "stock"]),
        request(&["RLOCK.RELEASE", "k", "owner-c"]),
    ];
    c.send_bytes(&[acquire, rest.concat()].concat());
    server.await_queued("k", 2);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    assert!(c.reply_within(MOMENT).is_none());
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    c.fence();
    assert_eq!(c.answer(), "90");
    assert_eq!(c.answer(), "0");
    assert_eq!(server.ask("EXISTS k"), "0");
}

#[test]
fn connection_without_replies_stays_aligned() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client();
    c.send("CLIENT REPLY OFF");
    c.send("RLOCK.ACQUIRE k owner-c 60000 WAIT 0");
    server.await_queued("k", 2);
    c.send("CLIENT REPLY ON");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert_eq!(c.answer(), "OK");
    assert_eq!(c.ask("RLOCK.RELEASE k owner-c"), "0");
    // A skipped reply stays skipped, even if it is late.
    contest.holder.number("RLOCK.ACQUIRE k owner-a 60000");
    c.send("CLIENT REPLY SKIP");
    c.send("RLOCK.ACQUIRE k owner-c 60000 WAIT 0");
    server.await_queued("k", 1);
    c.send("PING");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    assert_eq!(c.answer(), "PONG");
    assert_eq!(c.ask("RLOCK.RELEASE k owner-c"), "0");
}

#[test]
fn replies_are_these_bytes() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let bytes_of = |line: &str, protocol: &str| {
        let line = line.replace("owner-c", &format!("owner-{protocol}"));
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a bound is fine");
        let hello = request(&["HELLO", protocol]);
        let request = [hello, request(&words(&line)), request(&["ECHO", "the-end"])].concat();
        stream.write_all(&request).expect("it reads");
        let mut seen = Vec::new();
        while !seen.ends_with(b"$7\r\nthe-end\r\n") {
            let mut piece = [0; 4096];
            let length = stream.read(&mut piece).expect("it replies");
            seen.extend_from_slice(&piece[..length]);
        }
        // The reply to HELLO precedes it.
        let seen = String::from_utf8_lossy(&seen).into_owned();
        seen.trim_end_matches("$7\r\nthe-end\r\n").to_owned()
    };
    let fence = contest.fence;
    for (line, resp2, resp3) in [
        ("RLOCK.ACQUIRE k owner-c 60000", "$-1\r\n", "_\r\n"),
        ("RLOCK.ACQUIRE k owner-c 60000 WAIT 1", "$-1\r\n", "_\r\n"),
        (
            "RLOCK.ACQUIRE k owner-c 60000 WAIT 0 NOTIFY c",
            "+WAITING\r\n",
            "+WAITING\r\n",
        ),
        ("RLOCK.RELEASE k owner-c", "$-1\r\n", "_\r\n"),
        ("RLOCK.RENEW k owner-c 60000", "$-1\r\n", "_\r\n"),
        ("RLOCK.CANCEL k owner-x", ":0\r\n", ":0\r\n"),
        ("RLOCK.FORCE free", ":0\r\n", ":0\r\n"),
    ] {
        assert!(bytes_of(line, "2").ends_with(resp2), "{line}");
        assert!(bytes_of(line, "3").ends_with(resp3), "{line}");
    }
    for protocol in ["2", "3"] {
        let renewed = bytes_of("RLOCK.RENEW k owner-a 60000", protocol);
        assert!(renewed.ends_with(&format!("\r\n:{fence}\r\n")), "{renewed}");
    }
}
