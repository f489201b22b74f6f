//! A server that runs out of memory.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::contest::{Contest, wait_for};
use rlock_testkit::Server;
use rlock_testkit::client::{PATIENCE, eventually, request, words};

#[test]
fn out_of_memory_refuses_new_holds_and_nothing_else() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let next = wait_for(&server, "k", "owner-c", 2);
    server.ask("CONFIG SET maxmemory 1");
    for line in [
        "RLOCK.ACQUIRE free owner-d 60000",
        "RLOCK.ACQUIRE k owner-d 60000",
        "RLOCK.ACQUIRE k owner-d 60000 WAIT 0 NOTIFY c",
        "RLOCK.ACQUIRE k owner-d 60000 SHARED",
        "RLOCK.MACQUIRE owner-d 60000 2 free1 free2",
        "RLOCK.MACQUIRE owner-d 60000 2 free1 k WAIT 0",
        // A holder that asks again is refused too.
        "RLOCK.ACQUIRE k owner-a 60000",
    ] {
        assert!(server.ask(line).starts_with("OOM "), "{line}");
    }
    assert_eq!(server.queued("k"), 2);
    assert_eq!(
        contest.holder.number("RLOCK.RENEW k owner-a 60000"),
        contest.fence
    );
    assert_eq!(contest.holder.ask("RLOCK.RELEASE k owner-a"), "0");
    contest.assert_handed_over();
    // A hand-off at the end of a lease works too.
    contest.waiter.number("RLOCK.RENEW k owner-b 20");
    next.fence();
    assert_eq!(server.ask("RLOCK.CANCEL k owner-x"), "0");
    assert_eq!(server.ask("RLOCK.FORCE k"), "1");
    assert_eq!(server.ask("EXISTS k"), "0");
}

#[test]
fn out_of_memory_permits_what_frees_memory() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (a, several) = (server.client(), server.client());
    let fence = a.number("RLOCK.MACQUIRE owner-a 60000 2 k1 k2");
    a.ask("RLOCK.ACQUIRE k1 owner-r 60000 SHARED WAIT 0 NOTIFY c");
    several.send("RLOCK.MACQUIRE owner-m 60000 2 k2 k3 WAIT 0");
    server.await_queued("k3", 1);
    server.ask("CONFIG SET maxmemory 1");
    assert!(
        a.ask("RLOCK.MACQUIRE owner-a 60000 2 k1 k2")
            .starts_with("OOM ")
    );
    assert_eq!(a.ask("RLOCK.MRENEW owner-a 60000 2 k1 k2"), "2");
    assert_eq!(a.number("RLOCK.DOWNGRADE k1 owner-a"), fence);
    assert!(subscriber.message().starts_with("grant "));
    assert_eq!(a.ask("RLOCK.MRELEASE owner-a 2 k1 k2"), "2");
    assert!(several.fence() > fence);
    assert_eq!(a.ask("RLOCK.MRELEASE owner-m 2 k2 k3"), "2");
    assert_eq!(a.ask("RLOCK.RELEASE k1 owner-r"), "0");
    assert_eq!(server.ask("DBSIZE"), "0");
}

#[test]
fn eviction_of_a_lock_lets_the_next_in_and_is_counted() {
    let server = Server::start();
    let contest = Contest::on(&server);
    assert_eq!(server.counter("eviction_risk"), 0);
    server.ask("CONFIG SET maxmemory-policy volatile-ttl");
    server.ask("CONFIG SET maxmemory 1");
    assert_eq!(server.counter("eviction_risk"), 1);
    contest.assert_handed_over();
    eventually("the eviction is counted", || {
        server.ask("SET filler 1");
        server.counter("evicted_locks") >= 1
    });
    server.ask("CONFIG SET maxmemory 0");
    server.ask("CONFIG SET maxmemory-policy noeviction");
    assert_eq!(server.counter("eviction_risk"), 0);
}

#[test]
fn risk_of_eviction_is_warned_of_at_load() {
    let warns = |policy: &str| {
        let policy_line = format!("maxmemory-policy {policy}");
        let server = Server::configured(&["maxmemory 1gb", &policy_line]);
        assert_eq!(
            server.counter("eviction_risk"),
            u64::from(policy != "noeviction")
        );
        server.log().contains("maxmemory-policy")
    };
    assert!(!warns("noeviction"));
    for policy in [
        "allkeys-lru",
        "allkeys-random",
        "volatile-lru",
        "volatile-ttl",
        "volatile-random",
    ] {
        assert!(warns(policy), "{policy}");
    }
}

#[test]
fn free_locks_leave_nothing_behind() {
    let server = Server::start();
    let a = server.client();
    let round = |name: &str| {
        for number in 0..2000 {
            a.send(&format!("RLOCK.ACQUIRE {name}{number} owner-a 60000"));
            a.send(&format!("RLOCK.RELEASE {name}{number} owner-a"));
        }
        (0..4000).for_each(|_| _ = a.reply());
        assert_eq!(server.ask("DBSIZE"), "0");
        server
            .info("memory", "used_memory")
            .parse::<i64>()
            .expect("a number")
    };
    round("warm-up");
    let before = round("first");
    let after = round("second");
    // Two thousand leaked names would take ten times as much.
    assert!((after - before).abs() < 50_000, "{before} {after}");
}

/// The steps of each client: it takes the lock in every way, hands it over, waits, gives up, and loses it.
const LIFE: [&str; 11] = [
    "RLOCK.ACQUIRE {} owner-a 60000 NOTIFY c",
    "RLOCK.ACQUIRE {} owner-b 60000 WAIT 0 KEEP 60000 SNOTIFY s",
    "RLOCK.ACQUIRE {} owner-c 60000 WAIT 0 NOTIFY c",
    "RLOCK.CANCEL {} owner-c",
    // The lock passes to owner-b. That cannot be notified, so its place is kept.
    "RLOCK.RELEASE {} owner-a",
    "RLOCK.ACQUIRE {} owner-b 60000 SHARED",
    "RLOCK.CANCEL {} owner-b",
    "RLOCK.ACQUIRE {} owner-a 60000 SHARED LIMIT 9 PERMITS 2 BIND 0 NOTIFY c",
    "RLOCK.FORCE {}",
    "RLOCK.MACQUIRE owner-a 60000 2 {} {}-too",
    "RLOCK.MRELEASE owner-a 2 {} {}-too",
];
/// How often each client also takes the lock and releases it.
const PAIRS: usize = 20;
const CLIENTS_AT_ONCE: usize = 50;

/// The requests of this number of clients, each for its own lock.
fn lives() -> Vec<u8> {
    let lives = (0..CLIENTS_AT_ONCE).flat_map(|number| {
        let key = format!("k{number}");
        let pair = ["RLOCK.ACQUIRE {} owner-a 60000", "RLOCK.RELEASE {} owner-a"];
        let pairs = pair.into_iter().cycle().take(2 * PAIRS);
        let lines = pairs.chain(LIFE).map(move |line| line.replace("{}", &key));
        lines.flat_map(|line| request(&words(&line)))
    });
    let end = request(&["ECHO", "the-end"]);
    lives.chain(end).collect()
}

/// Sends the requests and takes all their replies.
fn live(stream: &mut TcpStream, lives: &[u8]) {
    stream.write_all(lives).expect("it reads");
    let (mut last, mut piece) = (Vec::new(), [0; 1 << 16]);
    while !last.ends_with(b"the-end\r\n") {
        let length = stream.read(&mut piece).expect("it replies");
        last.extend_from_slice(&piece[..length]);
        let old = last.len().saturating_sub(9);
        last.drain(..old);
    }
}

#[test]
fn million_grants_leave_nothing_behind() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a bound is fine");
    let lives = lives();
    let used = || {
        let used = server.info("memory", "used_memory");
        used.parse::<i64>().expect("a number")
    };
    let mut before = None;
    while server.counter("grants") < 1_000_000 {
        for _ in 0..20 {
            live(&mut stream, &lives);
        }
        let received = subscriber.messages();
        assert_eq!(received.len(), 20 * CLIENTS_AT_ONCE, "each loses one hold");
        before = before.or_else(|| Some(used()));
    }
    for gauge in ["waiters", "places_kept", "watches", "contended_locks"] {
        assert_eq!(server.counter(gauge), 0, "{gauge}");
    }
    assert_eq!(server.ask("DBSIZE"), "0");
    let (before, after) = (before.unwrap_or(0), used());
    // One leaked byte for each grant would be ten times as much.
    assert!((after - before).abs() < 100_000, "{before} {after}");
}

#[test]
fn flushed_shared_locks_leak_no_memory() {
    let server = Server::start();
    let a = server.client();
    let used = || {
        let used = server.info("memory", "used_memory");
        used.parse::<i64>().expect("a number")
    };
    // Many small databases, and some that take several steps to free.
    for (locks, rounds, flush) in [
        (1, 2000, "FLUSHDB"),
        (1, 1000, "SWAPDB 0 1"),
        (300, 20, "FLUSHALL ASYNC"),
    ] {
        let round = || {
            for number in 0..locks {
                for owner in ["owner-a", "owner-b"] {
                    a.send(&format!("RLOCK.ACQUIRE k{number} {owner} 60000 SHARED"));
                }
            }
            a.send(flush);
            (0..=2 * locks).for_each(|_| _ = a.reply());
        };
        (0..3).for_each(|_| round());
        let before = used();
        (0..rounds).for_each(|_| round());
        let bytes = used() - before;
        // The rest of the last round may still be there.
        let last = 2000 * i64::from(locks) + 100_000;
        assert!(bytes < last, "{flush}: {bytes} bytes");
    }
}
