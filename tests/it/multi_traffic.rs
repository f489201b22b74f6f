//! Many clients that each want several locks, in any order: each lock stays exclusive, and all get on.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Client, eventually};
use crate::server::Server;

const CLIENTS: usize = 8;
const KEYS: usize = 5;
const DURATION: Duration = Duration::from_secs(3);

/// What all clients know of a lock.
#[derive(Default)]
struct Witness {
    holders: AtomicUsize,
    last_fence: AtomicI64,
}

/// Numbers that look random, and are the same in each run.
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

/// Takes and gives back some of the locks until the time is over; how often, is the result.
fn take_part(port: u16, number: usize, witnesses: &[Witness; KEYS]) -> usize {
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
            let witness = &witnesses[*key];
            let others = witness.holders.fetch_add(1, Ordering::SeqCst);
            assert_eq!(others, 0, "nobody else holds k{key}");
            let last = witness.last_fence.swap(fence, Ordering::SeqCst);
            assert!(last < fence, "fences of k{key} rise");
        }
        if numbers.below(4) == 0 {
            let held = client.ask(&format!("RLOCK.MRENEW owner-{number} 60000 {keys}"));
            assert_eq!(held, names.len().to_string());
        }
        for key in &chosen {
            witnesses[*key].holders.fetch_sub(1, Ordering::SeqCst);
        }
        let left = client.ask(&format!("RLOCK.MRELEASE owner-{number} {keys} ALL"));
        assert_eq!(left, names.len().to_string());
        rounds += 1;
    }
    rounds
}

#[test]
fn each_of_several_locks_stays_exclusive_and_all_clients_get_on() {
    let server = Server::start();
    let witnesses = <[Witness; KEYS]>::default();
    let rounds = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|number| {
            let (port, witnesses) = (server.port(), &witnesses);
            scope.spawn(move || take_part(port, number, witnesses))
        });
        let clients = clients.collect::<Vec<_>>().into_iter();
        clients
            .map(|client| client.join().expect("it ends in order"))
            .collect::<Vec<_>>()
    });
    // The queue is fair, so nobody has a fraction of what others have.
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

/// Asks for locks in all ways, and goes away in the midst of it now and then.
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
