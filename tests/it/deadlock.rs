//! Waits that could never end: which are refused, with what words, and which are not.

use redis::Value;

use crate::client::{Client, eventually, text};
use crate::server::Server;

/// A client of each owner who takes part.
fn clients<const N: usize>(server: &Server) -> [Client; N] {
    std::array::from_fn(|_| server.client())
}

/// Sends a request that has to wait, and waits until it does.
#[track_caller]
fn block(server: &Server, client: &Client, line: &str) {
    let before = server.counter("waiters");
    client.send(line);
    eventually(&format!("{line} waits"), || {
        server.counter("waiters") > before
    });
}

#[track_caller]
fn refused(client: &Client, line: &str, error: &str) {
    assert_eq!(client.ask(line), error, "{line}");
}

#[test]
fn second_of_two_owners_is_refused_in_these_words() {
    let server = Server::start();
    let [a, b] = clients(&server);
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    b.number("RLOCK.ACQUIRE k2 owner-b 60000");
    block(&server, &a, "RLOCK.ACQUIRE k2 owner-a 60000 WAIT 0");
    let words = "DEADLOCK waiting for key 'k1' would close a cycle of owners: 'owner-b' 'owner-a'";
    for line in [
        "RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0",
        "RLOCK.ACQUIRE k1 owner-b 60000 WAIT 5 KEEP 5",
        "RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0 NOTIFY c",
        "RLOCK.ACQUIRE k1 owner-b 60000 SHARED WAIT 0",
        "RLOCK.ACQUIRE k1 owner-b 60000 SHARED LIMIT 9 PERMITS 2 WAIT 0 BIND 5",
    ] {
        refused(&b, line, words);
    }
    // A try does not wait.
    assert_eq!(b.ask("RLOCK.ACQUIRE k1 owner-b 60000"), "nil");
    assert_eq!(server.counter("deadlocks"), 5);
    assert_eq!(server.queued("k1"), 0);
    assert_eq!(server.counter("watches"), 0);
    // The way out: the refused one gives back what it has.
    assert_eq!(b.ask("RLOCK.RELEASE k2 owner-b"), "0");
    a.fence();
    block(&server, &b, "RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
}

#[test]
fn names_are_quoted_so_that_the_error_stays_one_line() {
    let server = Server::start();
    let [a, b] = clients(&server);
    let (key, owner): (&[u8], &[u8]) = (b"k\r\n'\xff", "b\u{fc}rger'".as_bytes());
    let acquire: fn(_, _) -> [&'static [u8]; 4] =
        |key, owner| [b"RLOCK.ACQUIRE", key, owner, b"60000"];
    assert!(matches!(a.call(&acquire(key, b"owner-a")), Value::Int(_)));
    assert!(matches!(b.call(&acquire(b"k2", owner)), Value::Int(_)));
    block(&server, &a, "RLOCK.ACQUIRE k2 owner-a 60000 WAIT 0");
    let wait: [&[u8]; 2] = [b"WAIT", b"0"];
    let error = text(&b.call(&[&acquire(key, owner)[..], &wait].concat()));
    assert!(
        error.starts_with("DEADLOCK waiting for key 'k\\r\\n"),
        "{error}"
    );
    assert!(error.ends_with("'owner-a'"), "{error}");
    assert_eq!(b.ask("PING"), "PONG");
}

#[test]
fn third_of_three_owners_is_refused_across_databases_and_kinds() {
    let server = Server::start();
    let [a, b, c, d] = clients(&server);
    d.ask("SELECT 1");
    a.number("RLOCK.MACQUIRE owner-a 60000 2 k1 k2");
    b.number("RLOCK.ACQUIRE k3 owner-b 60000 SHARED LIMIT 2 PERMITS 2");
    d.number("RLOCK.ACQUIRE k1 owner-c 60000");
    // Owner b waits in another database.
    let other = server.client();
    other.ask("SELECT 1");
    block(
        &server,
        &a,
        "RLOCK.ACQUIRE k3 owner-a 60000 SHARED LIMIT 2 WAIT 0",
    );
    block(&server, &other, "RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
    let cycle = "would close a cycle of owners: 'owner-c' 'owner-a' 'owner-b'";
    refused(
        &c,
        "RLOCK.ACQUIRE k2 owner-c 60000 WAIT 0",
        &format!("DEADLOCK waiting for key 'k2' {cycle}"),
    );
    let error = c.ask("RLOCK.MACQUIRE owner-c 60000 3 free k1 k2 WAIT 0");
    assert!(
        error.starts_with("DEADLOCK waiting for key '") && error.ends_with(cycle),
        "{error}"
    );
    // What is free is not a part of it, and nothing was taken.
    assert_eq!(server.ask("EXISTS free"), "0");
    assert_eq!(server.queued("free") + server.queued("k2"), 0);
    d.ask("RLOCK.RELEASE k1 owner-c");
    other.fence();
    block(&server, &c, "RLOCK.ACQUIRE k2 owner-c 60000 WAIT 0");
}

#[test]
fn those_ahead_in_a_queue_are_waited_for_too() {
    let server = Server::start();
    let [a, b, c] = clients(&server);
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    c.number("RLOCK.ACQUIRE k2 owner-c 60000");
    // Owner b holds nothing, but is ahead of c in one queue and behind it in the other.
    block(&server, &b, "RLOCK.MACQUIRE owner-b 60000 2 k1 k2 WAIT 0");
    refused(
        &c,
        "RLOCK.ACQUIRE k1 owner-c 60000 WAIT 0",
        "DEADLOCK waiting for key 'k1' would close a cycle of owners: 'owner-c' 'owner-b'",
    );
    assert_eq!(c.ask("RLOCK.RELEASE k2 owner-c"), "0");
    block(&server, &c, "RLOCK.ACQUIRE k1 owner-c 60000 WAIT 0");
    assert_eq!(a.ask("RLOCK.RELEASE k1 owner-a"), "0");
    b.fence();
    assert_eq!(b.ask("RLOCK.MRELEASE owner-b 2 k1 k2"), "2");
    c.fence();
}

#[test]
fn upgrade_that_waits_for_its_own_waiter_is_refused() {
    let server = Server::start();
    let [a, b] = clients(&server);
    a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
    b.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
    a.number("RLOCK.ACQUIRE other owner-a 60000");
    block(&server, &b, "RLOCK.ACQUIRE other owner-b 60000 WAIT 0");
    let error = a.ask("RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
    assert!(error.starts_with("DEADLOCK "), "{error}");
    assert!(error.ends_with("'owner-a' 'owner-b'"), "{error}");
    assert_eq!(server.owners("k"), ["owner-a", "owner-b"]);
    assert_eq!(a.ask("RLOCK.RELEASE other owner-a"), "0");
    b.fence();
    block(&server, &a, "RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
}

#[test]
fn lapsed_holders_and_withdrawn_waiters_are_in_nobodys_way() {
    let server = Server::start();
    let [a, b] = clients(&server);
    // Whatever ends one edge ends the cycle.
    for end in ["lease", "cancel", "close", "del"] {
        let waiter = server.client();
        let lease = if end == "lease" { 200 } else { 60_000 };
        a.number("RLOCK.ACQUIRE k1 owner-a 60000");
        b.number(&format!("RLOCK.ACQUIRE k2 owner-b {lease}"));
        b.number(&format!("RLOCK.ACQUIRE k3 owner-b {lease} SHARED"));
        a.number("RLOCK.ACQUIRE k3 owner-a 60000 SHARED");
        block(&server, &waiter, "RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
        let request = "RLOCK.ACQUIRE k3 owner-a 60000 WAIT 1";
        assert!(a.ask(request).starts_with("DEADLOCK "), "{end}");
        match end {
            "lease" => eventually("the leases end", || server.owners("k3") == ["owner-a"]),
            "cancel" => assert_eq!(server.ask("RLOCK.CANCEL k1 owner-b"), "1"),
            "close" => {
                waiter.close();
                server.await_queued("k1", 0);
            }
            _ => {
                server.ask("DEL k1");
                server.await_queued("k1", 0);
            }
        }
        let answer = a.ask(request);
        assert!(!answer.starts_with("DEADLOCK"), "{end}: {answer}");
        server.ask("FLUSHALL");
        eventually("nobody waits", || server.counter("waiters") == 0);
        server.ask("FLUSHALL");
    }
}

#[test]
fn detection_can_be_switched_off() {
    let server = Server::start();
    assert_eq!(server.ask("CONFIG SET rlock.deadlock-detection no"), "OK");
    let [a, b] = clients(&server);
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    b.number("RLOCK.ACQUIRE k2 owner-b 200");
    block(&server, &a, "RLOCK.ACQUIRE k2 owner-a 60000 WAIT 0");
    block(&server, &b, "RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
    assert_eq!(server.counter("deadlocks"), 0);
    // The end of a lease is the way out then.
    a.fence();
    assert_eq!(server.ask("CONFIG SET rlock.deadlock-detection yes"), "OK");
    assert_eq!(server.queued("k1"), 1);
    let [c] = clients(&server);
    c.number("RLOCK.ACQUIRE k3 owner-c 60000");
    block(&server, &c, "RLOCK.ACQUIRE k1 owner-c 60000 WAIT 0");
    refused(
        &server.client(),
        "RLOCK.ACQUIRE k3 owner-a 60000 WAIT 0",
        "DEADLOCK waiting for key 'k3' would close a cycle of owners: 'owner-a' 'owner-c'",
    );
}

#[test]
fn long_chain_of_owners_is_followed_to_its_end() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    let length = 500;
    for number in 0..length {
        a.number(&format!("RLOCK.ACQUIRE k{number} owner-{number} 60000"));
    }
    for number in 1..length {
        let line = format!(
            "RLOCK.ACQUIRE k{} owner-{number} 60000 WAIT 0 NOTIFY c",
            number - 1
        );
        assert_eq!(a.ask(&line), "WAITING");
    }
    let last = length - 1;
    let error = a.ask(&format!(
        "RLOCK.ACQUIRE k{last} owner-0 60000 WAIT 0 NOTIFY c"
    ));
    assert!(error.starts_with("DEADLOCK "), "{error}");
    assert!(error.len() < 5000, "{} bytes", error.len());
    assert_eq!(
        a.ask(&format!(
            "RLOCK.ACQUIRE k{last} newcomer 60000 WAIT 0 NOTIFY c"
        )),
        "WAITING"
    );
    assert_eq!(heard.messages(), [""; 0]);
}

/// The server's time for the quickest of some requests to queue for `S`, in microseconds.
fn queueing_usec(server: &Server, client: &Client) -> u64 {
    let usec = (0..20).map(|_| {
        client.ask("CONFIG RESETSTAT");
        let asked = client.ask("RLOCK.ACQUIRE S asker 60000 WAIT 1 NOTIFY c");
        assert_eq!(asked, "WAITING");
        server.await_queued("S", 0);
        let stats = server.info("commandstats", "cmdstat_rlock.acquire");
        let usec = stats.split(',').find_map(|it| it.strip_prefix("usec="));
        usec.and_then(|it| it.parse().ok()).expect("a number")
    });
    usec.min().unwrap_or(u64::MAX)
}

#[test]
fn search_among_thousands_who_wait_elsewhere_ends_within_a_turn() {
    let server = Server::start();
    let _heard = server.listen(&["c"]);
    let a = server.client();
    a.ask("CONFIG SET rlock.deadlock-detection no");
    a.number("RLOCK.ACQUIRE y owner-y 60000");
    for number in 0..9000 {
        a.send(&format!("RLOCK.ACQUIRE S h{number} 60000 SHARED"));
        a.send(&format!("RLOCK.ACQUIRE y h{number} 60000 WAIT 0 NOTIFY c"));
    }
    (0..18_000).for_each(|_| _ = a.reply());
    a.ask("CONFIG SET rlock.deadlock-detection yes");
    let known = queueing_usec(&server, &a);
    assert!(known < 3000, "{known} µs");
}
