//! Shared locks with a limit: semaphores whose permits are leased and owned.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::client::{Client, eventually};
use crate::server::Server;

const LIMIT: i64 = 5;
const CONNECTIONS: i64 = 20;
const ROUNDS: i64 = 40;

/// Takes permits in a loop; `held` are those of all connections.
fn take_part(port: u16, number: i64, held: &AtomicI64, grants: &AtomicI64) {
    let client = Client::connect(port);
    for round in 0..ROUNDS {
        let permits = 1 + (round + number) % 3;
        client.number(&format!(
            "RLOCK.ACQUIRE k owner-{number} 60000 SHARED LIMIT {LIMIT} PERMITS {permits} WAIT 0"
        ));
        let now = held.fetch_add(permits, Ordering::SeqCst) + permits;
        assert!(now <= LIMIT, "{now} permits are held");
        grants.fetch_add(1, Ordering::SeqCst);
        if round % 4 == 0 {
            let lease = client.number(&format!("RLOCK.RENEW k owner-{number} 60000"));
            assert!(lease > 0);
        }
        std::thread::yield_now();
        held.fetch_sub(permits, Ordering::SeqCst);
        assert_eq!(client.ask(&format!("RLOCK.RELEASE k owner-{number}")), "0");
    }
}

#[test]
fn no_more_permits_are_held_than_the_limit_and_nobody_starves() {
    let server = Server::start();
    let (held, grants) = (AtomicI64::new(0), AtomicI64::new(0));
    std::thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let (port, held, grants) = (server.port(), &held, &grants);
            scope.spawn(move || take_part(port, number, held, grants));
        }
    });
    assert_eq!(grants.load(Ordering::SeqCst), CONNECTIONS * ROUNDS);
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(server.counter("grants"), (CONNECTIONS * ROUNDS) as u64);
}

#[test]
fn permits_of_those_who_vanish_come_back_with_their_leases() {
    let server = Server::start();
    let a = server.client();
    for number in 0..LIMIT {
        a.number(&format!(
            "RLOCK.ACQUIRE k gone-{number} {} SHARED LIMIT {LIMIT}",
            40 + 20 * number
        ));
    }
    a.close();
    // Each takes the place of one who is gone, in its order.
    let waiters = (0..LIMIT).map(|number| {
        let client = server.client();
        let line = format!("RLOCK.ACQUIRE k owner-{number} 60000 SHARED LIMIT {LIMIT} WAIT 0");
        client.send(&line);
        eventually("it waits, or not any more", || {
            let lock = server.lock("k");
            lock.queued > 0 || lock.holder(&format!("owner-{number}")).is_some()
        });
        client
    });
    let mut last = 0;
    for waiter in waiters.collect::<Vec<_>>() {
        let fence = waiter.fence();
        assert!(fence > last);
        last = fence;
    }
    let permits = server.lock("k").holders.iter().map(|it| it.permits).sum();
    assert!((1..=LIMIT).contains(&permits));
    eventually("the gone are gone", || server.owners("k").len() == 5);
    assert_eq!(
        server.ask(&format!("RLOCK.ACQUIRE k late 60000 SHARED LIMIT {LIMIT}")),
        "nil"
    );
}

#[test]
fn thousands_of_permits_are_given_up_to_the_limit() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    let all = "RLOCK.ACQUIRE k owner-a 60000 SHARED LIMIT 1000000 PERMITS 1000000";
    a.number(all);
    for number in 0..1001 {
        let line = format!(
            "RLOCK.ACQUIRE k owner-{number} 60000 SHARED LIMIT 1000000 PERMITS 1000 WAIT 0 NOTIFY c"
        );
        assert_eq!(a.ask(&line), "WAITING");
    }
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
    server.await_queued("k", 1);
    assert_eq!(server.lock("k").holders.len(), 1000);
    for number in 0..1000 {
        assert!(heard.message().ends_with(&format!(" owner-{number} k")));
    }
    assert_eq!(heard.messages(), [""; 0]);
    assert_eq!(a.ask("RLOCK.RELEASE k owner-500"), "0");
    assert!(heard.message().ends_with(" owner-1000 k"));
}

#[test]
fn each_brings_its_own_limit_whatever_the_others_have() {
    let server = Server::start();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k plain 60000 SHARED");
    a.number("RLOCK.ACQUIRE k three 60000 SHARED LIMIT 4 PERMITS 3");
    for (line, fits) in [
        ("RLOCK.ACQUIRE k x 60000 SHARED LIMIT 4", false),
        ("RLOCK.ACQUIRE k x 60000 SHARED LIMIT 5 PERMITS 2", false),
        ("RLOCK.ACQUIRE k x 60000 SHARED LIMIT 5", true),
        ("RLOCK.ACQUIRE k x 60000 SHARED LIMIT 1 REENTER", true),
        ("RLOCK.ACQUIRE k y 60000 SHARED", true),
        ("RLOCK.ACQUIRE k z 60000 SHARED LIMIT 6", false),
        ("RLOCK.ACQUIRE k z 60000", false),
    ] {
        assert_eq!(a.ask(line) != "nil", fits, "{line}");
    }
    // A holder that re-enters keeps what it has.
    a.number("RLOCK.ACQUIRE k three 60000 SHARED LIMIT 9 PERMITS 9 REENTER");
    let lock = server.lock("k");
    assert_eq!(lock.holder("three").map(|it| it.permits), Some(3));
    assert_eq!(lock.holder("three").map(|it| it.count), Some(2));
    assert_eq!(lock.holder("x").map(|it| it.count), Some(2));
    assert!(lock.holders.iter().all(|it| it.lease_left_ms > 50_000));
}
