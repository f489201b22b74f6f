//! A random walk among locks, in which each refusal has to be right, and each wait too.
//!
//! One driver sends all requests, so the locks stand still while it looks at them, and it knows by itself who waits
//! for whom.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use crate::client::{Client, eventually, text};
use crate::multi_traffic::Numbers;
use crate::server::Server;

const OWNERS: usize = 6;
const KEYS: usize = 4;
const HELD_MAX: usize = 2;
const STEPS: usize = 1000;

/// Whom each owner waits for.
type Edges = BTreeMap<String, BTreeSet<String>>;

/// An owner with its connection, and the keys that its blocked call waits for.
struct Actor {
    owner: String,
    client: Client,
    waits_for: Option<Vec<usize>>,
}

/// Adds whom `owner` would wait for at the place after `ahead` in the queue of a lock.
fn wait_behind(edges: &mut Edges, owner: &str, holders: &[&str], ahead: &[&str]) {
    let targets = holders.iter().chain(ahead).filter(|it| **it != owner);
    edges
        .entry(owner.to_owned())
        .or_default()
        .extend(targets.map(|it| (*it).to_owned()));
}

/// Whom everybody waits for, by what the server shows of the locks, and whom `asker` would wait for with a request
/// for `keys`.
///
/// All are asked for in exclusive mode, or are held so: there is nothing that one waits for only in part.
fn edges(server: &Server, asker: Option<(&str, &[usize], bool)>) -> Edges {
    let mut edges = Edges::new();
    for key in 0..KEYS {
        let lock = server.lock(&format!("k{key}"));
        let (holders, waiting) = (lock.owners(), lock.waiting());
        assert_eq!(waiting.len() as i64, lock.queued, "all are shown");
        for (place, owner) in waiting.iter().enumerate() {
            wait_behind(&mut edges, owner, &holders, &waiting[..place]);
        }
        let Some((owner, keys, shared)) = asker else {
            continue;
        };
        if !keys.contains(&key) {
            continue;
        }
        if holders.contains(&owner) {
            // An upgrade is before all others.
            assert!(!shared);
            wait_behind(&mut edges, owner, &holders, &[]);
            for other in &waiting {
                wait_behind(&mut edges, other, &[owner], &[]);
            }
        } else {
            let in_the_way = if shared && lock.mode == "shared" && !exclusive_waits(&lock.waiters) {
                &[][..]
            } else {
                &holders
            };
            wait_behind(&mut edges, owner, in_the_way, &waiting);
        }
    }
    edges
}

fn exclusive_waits(waiters: &[crate::views::Waiter]) -> bool {
    waiters.iter().any(|it| it.mode == "exclusive")
}

fn reaches(edges: &Edges, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(owner) = open.pop() {
        for next in edges.get(owner).into_iter().flatten() {
            if next == to {
                return true;
            }
            if seen.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    false
}

fn has_cycle(edges: &Edges) -> bool {
    edges.keys().any(|owner| reaches(edges, owner, owner))
}

struct Walk<'a> {
    server: &'a Server,
    actors: Vec<Actor>,
    numbers: Numbers,
    refusals: usize,
    waits: usize,
}

impl Walk<'_> {
    fn step(&mut self) {
        let number = self.numbers.below(OWNERS);
        if self.actors[number].waits_for.is_some() {
            if self.numbers.below(4) == 0 {
                self.give_up(number);
            }
        } else {
            let held = self.held_by(number);
            if !held.is_empty() && (held.len() >= HELD_MAX || self.numbers.below(3) == 0) {
                let key = held[self.numbers.below(held.len())];
                self.release(number, key);
            } else {
                self.acquire(number);
            }
        }
        self.collect();
        assert!(
            !has_cycle(&edges(self.server, None)),
            "nobody waits for itself"
        );
    }

    fn held_by(&self, number: usize) -> Vec<usize> {
        let owner = &self.actors[number].owner;
        (0..KEYS)
            .filter(|key| self.server.lock(&format!("k{key}")).holder(owner).is_some())
            .collect()
    }

    fn give_up(&mut self, number: usize) {
        let actor = &mut self.actors[number];
        let keys = actor.waits_for.take().expect("it waits");
        let cancel = format!("RLOCK.CANCEL k{} {}", keys[0], actor.owner);
        assert_eq!(self.server.ask(&cancel), "1");
        assert_eq!(actor.client.answer(), "nil");
    }

    fn release(&mut self, number: usize, key: usize) {
        let actor = &self.actors[number];
        let release = format!("RLOCK.RELEASE k{key} {} ALL", actor.owner);
        assert_eq!(self.server.ask(&release), "0");
    }

    fn acquire(&mut self, number: usize) {
        let first = self.numbers.below(KEYS);
        let owner = self.actors[number].owner.clone();
        let kind = self.numbers.below(4);
        let (keys, line) = match kind {
            0 => {
                let second = (first + 1 + self.numbers.below(KEYS - 1)) % KEYS;
                let line = format!("RLOCK.MACQUIRE {owner} 60000 2 k{first} k{second} WAIT 0");
                (vec![first, second], line)
            }
            1 => (
                vec![first],
                format!("RLOCK.ACQUIRE k{first} {owner} 60000 SHARED WAIT 0"),
            ),
            _ => (
                vec![first],
                format!("RLOCK.ACQUIRE k{first} {owner} 60000 WAIT 0"),
            ),
        };
        // What the server shows is what it decides on: nothing happens in between.
        let held = self.held_by(number);
        let before = if kind == 1 && held.contains(&first) {
            Edges::new()
        } else if kind == 0 && keys.iter().any(|key| held.contains(key)) {
            // Refused for what it holds, or a re-entry.
            Edges::new()
        } else {
            edges(self.server, Some((&owner, &keys, kind == 1)))
        };
        self.actors[number].client.send(&line);
        self.judge(number, keys, &line, &before);
    }

    /// Looks what became of a request; `edges` are those that would be if it waited.
    fn judge(&mut self, number: usize, keys: Vec<usize>, line: &str, edges: &Edges) {
        let owner = self.actors[number].owner.clone();
        let would_close = reaches(edges, &owner, &owner);
        let mut answer = None;
        let key = format!("k{}", keys[0]);
        eventually("it is answered, or waits", || {
            answer = self.actors[number].client.reply_by_now();
            let lock = self.server.lock(&key);
            answer.is_some() || lock.waiting().contains(&owner.as_str())
        });
        match answer {
            Some(Value::ServerError(error)) if error.code() == "DEADLOCK" => {
                let error = text(&Value::ServerError(error));
                assert!(would_close, "{line}: {error}, but {edges:?}");
                self.assert_is_a_cycle(&error, &owner, edges);
                self.refusals += 1;
            }
            Some(_) => {}
            None => {
                assert!(!would_close, "{line} waits, but {edges:?}");
                self.actors[number].waits_for = Some(keys);
                self.waits += 1;
            }
        }
    }

    /// The owners that an error names wait for each other, one for the next, in this order.
    fn assert_is_a_cycle(&self, error: &str, asker: &str, edges: &Edges) {
        let (_, named) = error.split_once("owners: ").expect("owners are named");
        let named = named.split(' ').map(|it| it.trim_matches('\''));
        let named = named.collect::<Vec<_>>();
        assert_eq!(named[0], asker, "{error}");
        for (place, owner) in named.iter().enumerate() {
            let next = named[(place + 1) % named.len()];
            assert!(
                reaches(edges, owner, next),
                "{error}: {owner} waits for {next}: {edges:?}"
            );
        }
    }

    /// Takes the answers of those that were granted.
    fn collect(&mut self) {
        for actor in &mut self.actors {
            let Some(keys) = &actor.waits_for else {
                continue;
            };
            let lock = self.server.lock(&format!("k{}", keys[0]));
            if !lock.waiting().contains(&actor.owner.as_str()) {
                actor.client.fence();
                actor.waits_for = None;
            }
        }
    }
}

#[test]
fn each_refusal_is_a_cycle_and_no_wait_is_one() {
    let server = Server::start();
    for seed in [1, 2, 3] {
        let actors = (0..OWNERS).map(|number| Actor {
            owner: format!("owner-{number}"),
            client: server.client(),
            waits_for: None,
        });
        let mut walk = Walk {
            server: &server,
            actors: actors.collect(),
            numbers: Numbers(0x1234_5678_9ABC_DEF1 * seed),
            refusals: 0,
            waits: 0,
        };
        (0..STEPS).for_each(|_| walk.step());
        assert!(walk.refusals > 20, "{} were refused", walk.refusals);
        assert!(walk.waits > 100, "{} had to wait", walk.waits);
        drop(walk);
        eventually("nobody waits", || server.counter("waiters") == 0);
        server.ask("FLUSHALL");
    }
}
