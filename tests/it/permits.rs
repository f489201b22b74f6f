//! Shared locks with a limit: semaphores whose permits are leased and owned.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::client::Client;
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
