//! Many clients at once, with whatever they do to each other: the lock stays exclusive, and all ends in order.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;

use crate::client::{Client, eventually};
use crate::setup::Setup;

const CLIENTS: usize = 8;
const ROUNDS: usize = 150;

/// What all clients know together.
#[derive(Default)]
struct Witness {
    holders: AtomicUsize,
    last_fence: AtomicI64,
    grants: AtomicUsize,
}

impl Witness {
    /// Holds the lock for a moment, in which nobody else may.
    fn hold(&self, fence: i64) {
        assert_eq!(
            self.holders.fetch_add(1, Ordering::SeqCst),
            0,
            "nobody else holds the lock"
        );
        assert!(
            self.last_fence.swap(fence, Ordering::SeqCst) < fence,
            "fences rise"
        );
        self.grants.fetch_add(1, Ordering::SeqCst);
        std::thread::yield_now();
        self.holders.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One client's doings; `turn` chooses among them.
fn take_part(server_port: u16, number: usize, witness: &Witness) {
    let mut client = Client::connect(server_port);
    let owner = format!("owner-{number}");
    for round in 0..ROUNDS {
        let turn = (round * 7 + number * 13 + round / 11) % 10;
        match turn {
            // A client that goes while it waits, or just when it is granted.
            0 => {
                client.send(&format!("RLOCK.ACQUIRE k {owner} 60000 WAIT 0"));
                let granted = client.reply_within(Duration::from_micros(200));
                client.close();
                client = Client::connect(server_port);
                if let Some(Value::Int(fence)) = granted {
                    witness.hold(fence);
                }
                // Whatever became of it.
                client.ask(&format!("RLOCK.CANCEL k {owner}"));
                client.ask(&format!("RLOCK.RELEASE k {owner} ALL"));
                continue;
            }
            1 => client.send(&format!("RLOCK.ACQUIRE k {owner} 60000")),
            2 => client.send(&format!("RLOCK.ACQUIRE k {owner} 60000 WAIT 1")),
            3 => client.send(&format!("RLOCK.ACQUIRE k {owner} 60000 WAIT 5")),
            _ => client.send(&format!("RLOCK.ACQUIRE k {owner} 60000 WAIT 60000")),
        }
        if let Value::Int(fence) = client.reply() {
            witness.hold(fence);
            if turn == 9 {
                assert_eq!(
                    client.number(&format!("RLOCK.ACQUIRE k {owner} 60000")),
                    fence
                );
            }
            assert_eq!(client.ask(&format!("RLOCK.RELEASE k {owner} ALL")), "0");
        }
    }
}

#[test]
fn lock_stays_exclusive_under_traffic() {
    let setup = Setup::new().line("appendonly yes").line("appendfsync no");
    let server = setup.start();
    let witness = Witness::default();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (port, witness) = (server.port(), &witness);
            scope.spawn(move || take_part(port, number, witness));
        }
    });
    eventually("nobody waits", || server.counter("waiters") == 0);
    eventually("the lock is free", || server.ask("EXISTS k") == "0");
    assert!(witness.grants.load(Ordering::SeqCst) > CLIENTS * ROUNDS / 4);
    assert_eq!(server.info("clients", "blocked_clients"), "0");
}

#[test]
fn traffic_with_a_replica_leaves_both_sides_equal() {
    let (primary, replica) = crate::server::replicated();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let port = primary.port();
            scope.spawn(move || {
                let client = Client::connect(port);
                for round in 0..ROUNDS {
                    let key = (round + number) % 3;
                    // Some leases end by themselves, some locks are taken away.
                    let lease = if round % 5 == 0 { 3 } else { 60_000 };
                    client.ask(&format!(
                        "RLOCK.ACQUIRE k{key} owner-{number} {lease} WAIT 20"
                    ));
                    match round % 16 {
                        3 => drop(client.ask(&format!("DEL k{key}"))),
                        7 => drop(client.ask(&format!("RLOCK.FORCE k{key}"))),
                        11 => drop(client.ask("FLUSHALL")),
                        _ => {}
                    }
                    client.ask(&format!("RLOCK.RELEASE k{key} owner-{number} ALL"));
                }
            });
        }
    });
    eventually("nobody waits", || primary.counter("waiters") == 0);
    eventually("leases end", || {
        (0..3).all(|key| primary.ask(&format!("EXISTS k{key}")) == "0")
    });
    crate::replication::await_in_step(&primary, &replica);
    assert_eq!(replica.ask("DBSIZE"), "0");
}
