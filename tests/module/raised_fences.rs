//! Fences that are raised by `RENEW … FENCE`.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::contest::wait_for;
use crate::replication::await_in_step;
use crate::stored_fences::somebody;
use rlock_testkit::client::{Client, eventually};
use rlock_testkit::{Server, replicated};

/// In microseconds; the servers of the tests have the same clock.
const MINUTE: i64 = 60_000_000;
const HOUR: i64 = 60 * MINUTE;

/// The wall clock in microseconds.
fn clock() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("it is after 1970").as_micros();
    i64::try_from(now).expect("it is before the year 294000")
}

/// Raises the fence of a hold of `owner-a`, and returns the resulting fence.
#[track_caller]
fn raise(client: &Client, key: &str, fence: i64) -> i64 {
    client.number(&format!("RLOCK.RENEW {key} owner-a 60000 FENCE {fence}"))
}

#[test]
fn raised_fence_is_remembered_whatever_ends_the_hold() {
    let server = Server::start();
    let a = server.client();
    let mut largest = clock() + 30 * MINUTE;
    for end in [
        "RLOCK.RELEASE k owner-a",
        "RLOCK.FORCE k",
        "DEL k",
        "FLUSHALL",
        "PEXPIRE k 1",
        "RENAME k elsewhere",
        "MOVE k 1",
    ] {
        a.number("RLOCK.ACQUIRE k owner-a 60000");
        largest += 1000;
        assert_eq!(raise(&a, "k", largest), largest);
        a.ask(end);
        // Valkey 8.1.1 leaves the caller of MOVE in the other database.
        a.ask("SELECT 0");
        eventually("the hold has ended", || server.ask("EXISTS k") == "0");
        let next = a.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
        assert!(next > largest, "{end}: {next}");
        let beside = a.number("RLOCK.ACQUIRE k owner-c 60000 SHARED");
        assert!(beside > next, "{end}: {beside}");
        assert_eq!(server.ask("RLOCK.FORCE k"), "2");
        server.ask("FLUSHALL");
        largest = beside;
    }
}

#[test]
fn raised_fence_ends_with_its_hold() {
    let server = Server::start();
    let a = server.client();
    let target = clock() + 30 * MINUTE;
    for name in ["k2", "k3"] {
        a.number("RLOCK.ACQUIRE k owner-a 60000");
        assert!(raise(&a, "k", target) >= target);
        assert_eq!(a.ask(&format!("RENAME k {name}")), "OK");
        // Another client reads it there.
        assert_eq!(a.ask(&format!("RLOCK.ACQUIRE {name} owner-b 60000")), "nil");
        a.ask(&format!("DEL {name}"));
        let next = a.number(&format!("RLOCK.ACQUIRE {name} owner-b 60000"));
        assert!(next > target, "{next}");
    }
}

#[test]
fn fence_more_than_an_hour_ahead_is_refused_and_nothing_is_changed() {
    let server = Server::start();
    let a = server.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 30000");
    let before = server.hash("k");
    let end = a.ask("PEXPIRETIME k");
    // The largest possible fence, and a fence a little above the limit.
    for ahead in [(1 << 53) - 1, clock() + HOUR + MINUTE] {
        let answer = a.ask(&format!("RLOCK.RENEW k owner-a 60000 FENCE {ahead}"));
        // The error names the value, and the largest allowed value.
        let is_clear = answer.starts_with(&format!("ERR FENCE is {ahead}, must be at most "));
        assert!(is_clear, "{answer}");
        let limit = answer
            .split("at most ")
            .nth(1)
            .and_then(|it| it.split(',').next());
        let limit: i64 = limit.and_then(|it| it.parse().ok()).expect("a number");
        assert!((clock() + HOUR - limit).abs() < MINUTE, "{answer}");
    }
    assert_eq!(server.hash("k"), before);
    assert_eq!(a.ask("PEXPIRETIME k"), end);
    let next = a.number("RLOCK.ACQUIRE other owner-b 60000");
    assert!(next > fence && next < clock() + MINUTE);
    let target = clock() + HOUR - MINUTE;
    assert_eq!(raise(&a, "k", target), target);
}

#[test]
fn fence_of_another_shared_holder_is_refused() {
    let server = Server::start();
    let a = server.client();
    // The module looks up few holders in another way than many.
    for others in [1, 20] {
        let first = a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
        let fences =
            (0..others).map(|it| a.number(&format!("RLOCK.ACQUIRE k owner-{it} 60000 SHARED")));
        let fences: Vec<_> = fences.collect();
        let before = server.hash("k");
        for taken in [fences[0], fences[others - 1]] {
            let answer = a.ask(&format!("RLOCK.RENEW k owner-a 50000 FENCE {taken}"));
            let is_clear = answer.contains("FENCE") && answer.contains("'k'");
            assert!(answer.starts_with("ERR ") && is_clear, "{answer}");
        }
        assert_eq!(server.hash("k"), before);
        // A fence that no holder has is accepted.
        let target = clock() + MINUTE;
        assert_eq!(raise(&a, "k", target), target);
        let lock = server.lock("k");
        assert_eq!(lock.holder("owner-a").and_then(|it| it.fence), Some(target));
        let other = lock.holder("owner-0").and_then(|it| it.fence);
        assert_eq!(other, Some(fences[0]));
        assert_eq!(lock.fence, Some(target));
        assert!(target > first);
        server.ask("RLOCK.FORCE k");
    }
}

#[test]
fn raised_fence_outlives_fail_over_and_restart() {
    let (primary, replica) = replicated();
    let target = clock() + 30 * MINUTE;
    primary.connection().number("RLOCK.ACQUIRE k owner-a 60000");
    raise(primary.connection(), "k", target);
    await_in_step(&primary, &replica);
    replica.ask("REPLICAOF NO ONE");
    let b = replica.client();
    assert_eq!(b.number("RLOCK.RENEW k owner-a 60000"), target);
    let other = b.number("RLOCK.ACQUIRE other owner-b 60000");
    assert!(other < clock() + MINUTE, "{other}");
    assert_eq!(b.ask("RLOCK.RELEASE k owner-a"), "0");
    assert!(b.number("RLOCK.ACQUIRE k owner-b 60000") > target);

    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    server.connection().number("RLOCK.ACQUIRE k owner-a 60000");
    raise(server.connection(), "k", target);
    server.kill();
    server.start_again();
    let waiter = wait_for(&server, "k", "owner-b", 1);
    assert_eq!(server.ask("RLOCK.RELEASE k owner-a"), "0");
    assert!(waiter.fence() > target);
}

#[test]
fn hold_of_a_foreign_client_gets_the_requested_fence() {
    let server = Server::start();
    let a = server.client();
    a.ask("HSET k owner-a 1");
    a.ask("PEXPIRE k 60000");
    let target = clock() + MINUTE;
    assert_eq!(raise(&a, "k", target), target);
    assert_eq!(server.lock("k").fence, Some(target));
    a.ask("HSET k2 owner-a 1");
    a.ask("PEXPIRE k2 60000");
    let own = raise(&a, "k2", 1);
    assert!((own - clock()).abs() < MINUTE, "{own}");
}

/// A free lock stores nothing. So the fences of all locks may depend on the clock only: otherwise they would decrease
/// after a restart.
#[test]
fn fences_of_others_rise_over_a_restart_whatever_one_user_does() {
    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    let eve = somebody(&server);
    let take = |server: &Server| {
        let fence = server.connection().number("RLOCK.ACQUIRE k owner-a 60000");
        assert_eq!(server.ask("RLOCK.RELEASE k owner-a"), "0");
        fence
    };
    let before = take(&server);
    eve.number("RLOCK.ACQUIRE eve:1 e 60000");
    assert!(
        eve.number(&format!(
            "RLOCK.RENEW eve:1 e 60000 FENCE {}",
            clock() + HOUR - MINUTE
        )) > before
    );
    eve.number("RLOCK.ACQUIRE eve:2 e 60000");
    eve.ask(&format!("HSET eve:2 rlock:fence {}", i64::pow(2, 53) - 1));
    for command in [
        "RLOCK.RELEASE eve:1 e",
        "RLOCK.RELEASE eve:2 e",
        "RLOCK.ACQUIRE eve:1 e 1 SHARED",
        "RLOCK.MACQUIRE e 60000 2 eve:2 eve:3",
    ] {
        eve.ask(command);
    }
    let after = take(&server);
    assert!(after > before && after < clock() + MINUTE, "{after}");
    drop(eve);
    server.kill();
    server.start_again();
    let restarted = take(&server);
    assert!(restarted > after, "{restarted} after {after}");
}
