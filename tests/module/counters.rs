//! What `INFO rlock` counts.

use rlock_core::{Counters, Gauges};

use crate::contest::{Contest, wait_for};
use rlock_testkit::client::eventually;
use rlock_testkit::{Server, replicated};

/// Asserts that these counters have these values, and all other counters zero.
#[track_caller]
fn assert_counted(server: &Server, expected: &[(&str, u64)]) {
    let value = |name| {
        expected
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(0, |(_, value)| *value)
    };
    let names = || Counters::METRICS.iter().map(|it| it.name);
    let seen: Vec<_> = names().map(|it| (it, server.counter(it))).collect();
    let counted: Vec<_> = names().map(|it| (it, value(it))).collect();
    assert_eq!(seen, counted);
}

#[test]
fn counters_are_zero_at_start() {
    let server = Server::start();
    assert_counted(&server, &[]);
    for gauge in Gauges::METRICS {
        assert_eq!(server.counter(gauge.name), 0, "{}", gauge.name);
    }
}

#[test]
fn each_outcome_is_counted_once() {
    let server = Server::start();
    let contest = Contest::on(&server);
    assert_counted(&server, &[("acquires", 2), ("grants", 1), ("waits", 1)]);
    assert_eq!(server.counter("waiters"), 1);
    assert_eq!(server.counter("contended_locks"), 1);

    let a = server.client();
    a.ask("RLOCK.ACQUIRE k owner-c 60000");
    a.number("RLOCK.ACQUIRE k owner-a 60000 REENTER");
    a.number("RLOCK.RENEW k owner-a 60000");
    a.ask("RLOCK.RENEW k owner-c 60000");
    a.ask("RLOCK.RELEASE k owner-a");
    a.ask("RLOCK.RELEASE k owner-c");
    let counted = [
        ("acquires", 4),
        ("grants", 2),
        ("refusals", 1),
        ("waits", 1),
        ("renewals", 1),
    ];
    assert_counted(&server, &counted);

    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    assert_eq!(a.ask("RLOCK.ACQUIRE k owner-c 60000 WAIT 1"), "nil");
    a.ask("RLOCK.FORCE k");
    assert_counted(
        &server,
        &[
            ("acquires", 5),
            ("grants", 3),
            ("refusals", 1),
            ("waits", 2),
            ("handoffs", 1),
            ("wait_timeouts", 1),
            ("renewals", 1),
            ("releases", 1),
            ("force_releases", 1),
        ],
    );
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("contended_locks"), 0);
}

#[test]
fn ends_of_waits_and_leases_are_counted_by_their_kind() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let (c, d) = (
        wait_for(&server, "k", "owner-c", 2),
        wait_for(&server, "k", "owner-d", 3),
    );
    // A withdrawal does not count as a disconnected waiter. A takeover counts neither as that nor as another wait.
    server.ask("RLOCK.CANCEL k owner-c");
    assert_eq!(c.answer(), "nil");
    server.ask(&format!("CLIENT KILL ID {}", d.id()));
    server.await_queued("k", 1);
    let b = server.client();
    b.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    assert_eq!(contest.waiter.answer(), "nil");
    contest.holder.number("RLOCK.RENEW k owner-a 10");
    b.fence();
    assert_counted(
        &server,
        &[
            ("acquires", 5),
            ("grants", 2),
            ("waits", 3),
            ("handoffs", 1),
            ("waiters_gone", 1),
            ("lease_expirations", 1),
            ("renewals", 1),
        ],
    );
}

#[test]
fn malformed_requests_are_not_counted() {
    let server = Server::start();
    let a = server.client();
    for line in [
        "RLOCK.ACQUIRE k owner-a 0",
        "RLOCK.ACQUIRE k owner-a 5 SOON",
        "RLOCK.ACQUIRE k",
    ] {
        assert!(a.ask(line).starts_with("ERR "));
    }
    assert_counted(&server, &[]);
}

#[test]
fn requests_for_other_data_are_counted() {
    let server = Server::start();
    let a = server.client();
    a.ask("SET text value");
    for line in [
        "RLOCK.ACQUIRE text o 1000",
        "RLOCK.MACQUIRE o 1000 2 k text",
    ] {
        assert!(a.ask(line).starts_with("WRONGTYPE "), "{line}");
    }
    assert_counted(&server, &[("acquires", 2)]);
}

#[test]
fn resetstat_leaves_the_counters() {
    let server = Server::start();
    server.connection().number("RLOCK.ACQUIRE k owner-a 60000");
    assert_eq!(server.ask("CONFIG RESETSTAT"), "OK");
    assert_counted(&server, &[("acquires", 1), ("grants", 1)]);
}

#[test]
fn wait_time_covers_granted_requests_only() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let waited = || {
        let info = server.ask("RLOCK.INFO k");
        let mut fields = info
            .split(' ')
            .skip_while(|field| !field.ends_with("waited-ms"));
        fields
            .nth(1)
            .and_then(|waited| waited.parse::<u64>().ok())
            .unwrap_or(0)
    };
    eventually("it waits for a while", || waited() >= 30);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    let max = server.counter("wait_usec_max");
    assert!(max >= 29_000, "{max}");
    for percentile in ["wait_usec_p50", "wait_usec_p99"] {
        let value = server.counter(percentile);
        assert!(
            value >= max / 2 && value <= max * 2,
            "{percentile} is {value}, the maximum {max}"
        );
    }
    let histogram = server.info("rlock", "rlock_wait_usec_histogram");
    let fields = histogram.split(',').map(|field| {
        let (name, value) = field.split_once('=').expect("each field has a value");
        (name, value.parse::<u64>().expect("a value is a number"))
    });
    for (name, value) in fields {
        let expected = match name.strip_prefix("le_") {
            Some("inf") => 1,
            Some(bound) => u64::from(max <= bound.parse().expect("a bound is a number")),
            None => max,
        };
        assert_eq!(value, expected, "{name} of {histogram}");
    }
}

#[test]
fn version_and_commit_match_the_source() {
    let server = Server::start();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(server.info("rlock", "rlock_version"), version);
    let [major, minor, patch] = [0, 1, 2].map(|part| version.split('.').nth(part));
    let number = |part: Option<&str>| part.and_then(|it| it.parse::<u64>().ok());
    let [major, minor, patch] = [major, minor, patch].map(|part| number(part).unwrap());
    let listed = format!("name rlock ver {} ", major * 10_000 + minor * 100 + patch);
    let modules = server.ask("MODULE LIST");
    assert!(modules.contains(&listed), "{modules}");
    let commit = server.info("rlock", "rlock_commit");
    assert_ne!(commit, "");
    let logged = format!("<rlock> version {version} ({commit})\n");
    assert!(server.log().contains(&logged), "{}", server.log());
}

#[test]
fn replicas_are_counted_while_they_are_connected() {
    let (primary, replica) = replicated();
    assert_eq!(primary.counter("replicas"), 1);
    assert_eq!(replica.counter("replicas"), 0);
    drop(replica);
    eventually("the replica is gone", || primary.counter("replicas") == 0);
}

#[test]
fn failed_dump_counts_until_one_succeeds() {
    let server = Server::start();
    assert_eq!(server.counter("write_errors"), 0);
    let in_its_way = server.directory().join("dump.rdb");
    std::fs::create_dir(&in_its_way).unwrap();
    assert_eq!(server.ask("BGSAVE"), "Background saving started");
    eventually("the dump has failed", || {
        server.counter("write_errors") == 1
    });
    std::fs::remove_dir(&in_its_way).unwrap();
    assert_eq!(server.ask("SAVE"), "OK");
    assert_eq!(server.counter("write_errors"), 0);
}

#[test]
fn request_for_several_locks_counts_as_one() {
    let server = Server::start();
    let (a, b) = (server.client(), server.client());
    a.number("RLOCK.MACQUIRE owner-a 60000 3 k1 k2 k3");
    a.number("RLOCK.MACQUIRE owner-a 60000 3 k1 k2 k3 REENTER");
    a.ask("RLOCK.MACQUIRE owner-b 60000 2 k3 k4");
    b.send("RLOCK.MACQUIRE owner-b 60000 2 k3 k4 WAIT 0");
    server.await_queued("k4", 1);
    let counted = [
        ("acquires", 4),
        ("grants", 2),
        ("refusals", 1),
        ("waits", 1),
    ];
    assert_counted(&server, &counted);
    assert_eq!(server.counter("waiters"), 2);
    assert_eq!(server.counter("contended_locks"), 2);
    assert_eq!(a.ask("RLOCK.MRENEW owner-a 60000 3 k1 k2 k4"), "2");
    assert_eq!(a.ask("RLOCK.MRELEASE owner-a 3 k1 k2 k3"), "3");
    assert_eq!(a.ask("RLOCK.MRELEASE owner-a 3 k1 k2 k3"), "3");
    b.fence();
    assert_eq!(b.ask("RLOCK.CANCEL k3 owner-b"), "0");
    let counted = [
        ("acquires", 4),
        ("grants", 3),
        ("refusals", 1),
        ("waits", 1),
        ("handoffs", 1),
        ("renewals", 2),
        ("releases", 3),
    ];
    assert_counted(&server, &counted);
    assert_eq!(server.counter("contended_locks"), 0);
}

#[test]
fn shared_and_bound_holds_and_deadlocks_are_counted() {
    let server = Server::start();
    let (a, b) = (server.client(), server.client());
    a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED BIND 0");
    b.number("RLOCK.ACQUIRE k owner-b 60000 SHARED LIMIT 3 PERMITS 2 NOTIFY c");
    assert_eq!(server.counter("bound_holds"), 1);
    assert_eq!(server.counter("watches"), 2);
    a.ask("RLOCK.ACQUIRE k owner-c 60000 SHARED LIMIT 3");
    b.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    server.await_queued("k", 1);
    let deadlock = a.ask("RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
    assert!(deadlock.starts_with("DEADLOCK "), "{deadlock}");
    let counted = [
        ("acquires", 5),
        ("grants", 2),
        ("refusals", 1),
        ("waits", 1),
        ("deadlocks", 1),
    ];
    assert_counted(&server, &counted);
    // The end of the bound hold does not count as a lease end; the upgrade counts as a hand-off.
    a.close();
    b.fence();
    assert_eq!(b.ask("RLOCK.RELEASE k owner-b ALL"), "0");
    let counted = [
        ("acquires", 5),
        ("grants", 3),
        ("refusals", 1),
        ("waits", 1),
        ("handoffs", 1),
        ("releases", 1),
        ("deadlocks", 1),
    ];
    assert_counted(&server, &counted);
    for gauge in ["bound_holds", "watches", "waiters", "contended_locks"] {
        assert_eq!(server.counter(gauge), 0, "{gauge}");
    }
}
