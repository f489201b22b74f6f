//! Many clients at once that affect each other in every way: the lock stays exclusive, and every client finishes.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::{Client, eventually};

const CLIENTS: usize = 8;
const ROUNDS: usize = 150;
const KEYS: usize = 5;
const DURATION: Duration = Duration::from_secs(3);

/// The state of a lock, as its clients observe it.
#[derive(Default)]
struct Observed {
    holders: AtomicUsize,
    last_fence: AtomicI64,
    grants: AtomicUsize,
}

impl Observed {
    /// Records a hold; no other client may hold the lock.
    fn begin(&self, fence: i64) {
        let others = self.holders.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "nobody else holds the lock");
        let last = self.last_fence.swap(fence, Ordering::SeqCst);
        assert!(last < fence, "fences rise");
        self.grants.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        self.holders.fetch_sub(1, Ordering::SeqCst);
    }

    fn hold(&self, fence: i64) {
        self.begin(fence);
        std::thread::yield_now();
        self.end();
    }
}

/// The actions of one client; `turn` selects one of them.
fn take_part(server_port: u16, number: usize, observed: &Observed) {
    let mut client = Client::connect(server_port);
    let owner = format!("owner-{number}");
    for round in 0..ROUNDS {
        let turn = (round * 7 + number * 13 + round / 11) % 10;
        match turn {
            // A client that disconnects while it waits, or just when it is granted.
            0 => {
                client.send(&format!("RLOCK.ACQUIRE k {owner} 60000 WAIT 0"));
                let granted = client.reply_within(Duration::from_micros(200));
                client.close();
                client = Client::connect(server_port);
                if let Some(Value::Int(fence)) = granted {
                    observed.hold(fence);
                }
                // Releases it after any outcome.
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
            observed.hold(fence);
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
    let observed = Observed::default();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (port, observed) = (server.port(), &observed);
            scope.spawn(move || take_part(port, number, observed));
        }
    });
    eventually("nobody waits", || server.counter("waiters") == 0);
    eventually("the lock is free", || server.ask("EXISTS k") == "0");
    assert!(observed.grants.load(Ordering::SeqCst) > CLIENTS * ROUNDS / 4);
    assert_eq!(server.info("clients", "blocked_clients"), "0");
}

#[test]
fn traffic_with_a_replica_leaves_both_sides_equal() {
    let (primary, replica) = rlock_testkit::replicated();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let port = primary.port();
            scope.spawn(move || {
                let client = Client::connect(port);
                for round in 0..ROUNDS {
                    let key = (round + number) % 3;
                    // Some leases expire, and some locks are forced free.
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

/// Pseudo-random numbers, the same in each run.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("it is below a usize")
    }

    /// Some of the numbers below `limit`, at least one, in any order.
    fn some_of(&mut self, limit: usize) -> Vec<usize> {
        let mut all = (0..limit).collect::<Vec<_>>();
        let count = 1 + self.below(limit);
        (0..count)
            .map(|_| {
                let place = self.below(all.len());
                all.swap_remove(place)
            })
            .collect()
    }
}

/// Takes and releases some of the locks until the time is over; returns how often.
fn take_several(port: u16, number: usize, observed: &[Observed; KEYS]) -> usize {
    let client = Client::connect(port);
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15 ^ (number as u64) << 20);
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < DURATION {
        let chosen = numbers.some_of(KEYS);
        let names = chosen.iter().map(|it| format!("k{it}")).collect::<Vec<_>>();
        let keys = format!("{} {}", names.len(), names.join(" "));
        let fence = client.number(&format!(
            "RLOCK.MACQUIRE owner-{number} 60000 {keys} WAIT 0"
        ));
        for key in &chosen {
            observed[*key].begin(fence);
        }
        if numbers.below(4) == 0 {
            let held = client.ask(&format!("RLOCK.MRENEW owner-{number} 60000 {keys}"));
            assert_eq!(held, names.len().to_string());
        }
        for key in &chosen {
            observed[*key].end();
        }
        let left = client.ask(&format!("RLOCK.MRELEASE owner-{number} {keys} ALL"));
        assert_eq!(left, names.len().to_string());
        rounds += 1;
    }
    rounds
}

#[test]
fn each_of_several_locks_stays_exclusive_and_all_clients_progress() {
    let server = Server::start();
    let observed = <[Observed; KEYS]>::default();
    let rounds = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|number| {
            let (port, observed) = (server.port(), &observed);
            scope.spawn(move || take_several(port, number, observed))
        });
        let clients = clients.collect::<Vec<_>>().into_iter();
        clients
            .map(|client| client.join().expect("it ends in order"))
            .collect::<Vec<_>>()
    });
    // The queue is fair, so no client gets much less than the others.
    let most = rounds.iter().max().copied().unwrap_or(0);
    let least = rounds.iter().min().copied().unwrap_or(0);
    assert!(least > 0 && least > most / 4, "{rounds:?}");
    assert_eq!(server.counter("deadlocks"), 0);
    assert_eq!(server.counter("waiters"), 0);
    eventually("all are free", || server.ask("DBSIZE") == "0");
}

#[test]
fn requests_for_one_and_for_several_in_each_mode_end_in_order() {
    let server = Server::start();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let port = server.port();
            scope.spawn(move || disturb(port, number));
        }
    });
    eventually("nobody waits", || server.counter("waiters") == 0);
    eventually("all leases end or are released", || {
        server.ask("DBSIZE") == "0"
    });
    assert_eq!(server.counter("contended_locks"), 0);
    assert_eq!(server.counter("watches"), 0);
}

/// Asks for locks in all ways, and sometimes disconnects during a command.
fn disturb(port: u16, number: usize) {
    let mut client = Client::connect(port);
    let mut numbers = Numbers(77 + number as u64);
    for _ in 0..200 {
        let key = numbers.below(3);
        let owner = format!("owner-{number}");
        let line = match numbers.below(11) {
            0 => format!("RLOCK.MACQUIRE {owner} 60000 3 k0 k1 k2 WAIT 5"),
            1 => format!("RLOCK.MACQUIRE {owner} 50 2 k2 k{} WAIT 0", key % 2),
            2 => format!("RLOCK.ACQUIRE k{key} {owner} 60000 SHARED WAIT 0"),
            3 => format!("RLOCK.ACQUIRE k{key} {owner} 60000 SHARED LIMIT 2 PERMITS 2 WAIT 3"),
            4 => format!("RLOCK.ACQUIRE k{key} {owner} 60000 BIND 0 WAIT 0"),
            5 => format!("RLOCK.ACQUIRE k{key} {owner} 5"),
            6 => format!("RLOCK.FORCE k{key}"),
            7 => format!("RLOCK.RENEW k{key} {owner} 60000 BIND 0 NOTIFY c"),
            8 => format!("RLOCK.MRENEW {owner} 60000 3 k0 k1 k2 NOTIFY c"),
            9 => format!(
                "RLOCK.RELEASE k{key} {owner} FENCE {}",
                1 + numbers.below(2)
            ),
            _ => format!("DEL k{key}"),
        };
        client.send(&line);
        if numbers.below(6) == 0 {
            client.close();
            client = Client::connect(port);
            for key in 0..3 {
                client.ask(&format!("RLOCK.CANCEL k{key} {owner}"));
            }
        } else {
            client.reply();
            client.ask(&format!("RLOCK.ACQUIRE k{key} {owner} 60000 WAIT 1"));
            client.ask(&format!("RLOCK.DOWNGRADE k{key} {owner}"));
        }
        assert_ne!(
            client.ask(&format!("RLOCK.MRELEASE {owner} 3 k0 k1 k2 ALL")),
            "nil"
        );
    }
}

const LIMIT: i64 = 5;
const CONNECTIONS: i64 = 20;
const PERMIT_ROUNDS: i64 = 40;

/// Takes permits in a loop; `held` counts the permits of all connections.
fn take_permits(port: u16, number: i64, held: &AtomicI64, grants: &AtomicI64) {
    let client = Client::connect(port);
    for round in 0..PERMIT_ROUNDS {
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
            scope.spawn(move || take_permits(port, number, held, grants));
        }
    });
    assert_eq!(grants.load(Ordering::SeqCst), CONNECTIONS * PERMIT_ROUNDS);
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(
        server.counter("grants"),
        (CONNECTIONS * PERMIT_ROUNDS) as u64
    );
}
