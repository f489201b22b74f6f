//! A random walk on a delayed server, so that commands come after a deadline and before the timer, while listeners
//! subscribe and leave.
//!
//! Each request has one outcome, after its reply, and a disconnected client gets no grant.

use std::collections::BTreeMap;

use redis::Value;

use crate::traffic::Numbers;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually, request, text, words};

const ACTORS: usize = 8;
const KEYS: usize = 4;
const STEPS: usize = 4000;

/// The known state of an actor's latest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Waiting,
    Granted,
    Releasing,
    Over,
}

/// A connection with one request at a time, each of a new owner.
struct Actor {
    client: Client,
    /// Actors without one are blocked.
    channel: Option<String>,
    listens: bool,
    owner: String,
    keys: Vec<usize>,
    stage: Stage,
}

struct Walk<'a> {
    server: &'a Server,
    actors: Vec<Actor>,
    numbers: Numbers,
    owners: usize,
    /// The lock of the next request, unless it is random.
    next_key: Option<usize>,
    outcomes: BTreeMap<&'static str, usize>,
}

impl Actor {
    fn connect(server: &Server, number: usize) -> Self {
        let by_message = number >= ACTORS / 2;
        Self {
            client: if by_message {
                server.client_resp3()
            } else {
                server.client()
            },
            channel: by_message.then(|| format!("c{number}")),
            listens: false,
            owner: String::new(),
            keys: Vec::new(),
            stage: Stage::Over,
        }
    }

    /// Takes the messages so far. An outcome arrives once, and after its reply.
    fn read(&mut self) -> Option<&'static str> {
        let value = self.client.reply_by_now()?;
        let line = match &value {
            Value::Push { data, .. } => data.last().map(text).unwrap_or_default(),
            value => text(value),
        };
        let is_mine = line.contains(&format!(" {} ", self.owner));
        let (expected, stage, name) = match &value {
            Value::Push { .. } if is_mine && line.starts_with("grant ") => {
                (Stage::Waiting, Stage::Granted, "granted by message")
            }
            Value::Push { .. } if is_mine && line.starts_with("timeout ") => {
                (Stage::Waiting, Stage::Over, "over by message")
            }
            Value::Push { .. } => return Some("other message"),
            Value::Okay => return Some("slept"),
            Value::Nil | Value::Int(_) if self.stage == Stage::Releasing => {
                (Stage::Releasing, Stage::Over, "released")
            }
            _ if line == "WAITING" => (Stage::Asked, Stage::Waiting, "queued"),
            Value::Nil => (Stage::Asked, Stage::Over, "over"),
            Value::Int(_) => (Stage::Asked, Stage::Granted, "granted"),
            _ => panic!("{} got {line}", self.owner),
        };
        assert_eq!(self.stage, expected, "{} got {line}", self.owner);
        self.stage = stage;
        Some(name)
    }
}

impl Walk<'_> {
    fn read(&mut self) {
        for actor in &mut self.actors {
            while let Some(name) = actor.read() {
                *self.outcomes.entry(name).or_default() += 1;
            }
        }
    }

    fn step(&mut self) {
        if self.numbers.below(2) == 0 {
            // By then everything sent before has been answered.
            self.server.ask("PING");
        }
        self.read();
        let number = self.numbers.below(ACTORS);
        let actor = &mut self.actors[number];
        match (actor.stage, self.numbers.below(14)) {
            (_, 0) => self.kill_in_the_turn_of_its_grant(number),
            (_, 1) => self.actors[number] = Actor::connect(self.server, number),
            // It may never receive an outcome.
            (Stage::Waiting, 4..) if actor.channel.is_some() && !actor.listens => {
                self.actors[number] = Actor::connect(self.server, number);
            }
            (_, 2..4) => self.ask_unreachable(),
            (Stage::Granted, 4..10) => {
                let key = actor.keys[0];
                let owner = &actor.owner;
                actor.client.send(&format!("RLOCK.RELEASE k{key} {owner}"));
                actor.stage = Stage::Releasing;
            }
            (Stage::Over | Stage::Granted, 12..) => self.listen_or_leave(number),
            (Stage::Over, _) => self.ask(number),
            _ => {}
        }
    }

    /// An unreachable client waits for two locks, before the next request for the first of them.
    fn ask_unreachable(&mut self) {
        self.owners += 1;
        // Two new locks have no other waiters.
        let (owner, first, second) = (self.owners, KEYS + self.owners, 2 * STEPS + self.owners);
        self.next_key = Some(first);
        let admin = self.server;
        admin.ask(&format!("RLOCK.ACQUIRE k{first} holder-{owner} 3"));
        admin.ask(&format!(
            "RLOCK.MACQUIRE unheard-{owner} 60000 2 k{first} k{second} WAIT 20 NOTIFY nobody"
        ));
    }

    fn listen_or_leave(&mut self, number: usize) {
        let actor = &mut self.actors[number];
        let Some(channel) = &actor.channel else {
            return;
        };
        let how = ["SUBSCRIBE", "UNSUBSCRIBE"][usize::from(actor.listens)];
        actor.client.send(&format!("{how} {channel}"));
        actor.listens = !actor.listens;
    }

    /// Asks for one or two locks, usually after a delay of the server.
    fn ask(&mut self, number: usize) {
        self.owners += 1;
        let numbers = &mut self.numbers;
        let lease = [1 + numbers.below(8), 60_000][usize::from(numbers.below(6) == 0)];
        let (first, wait) = (numbers.below(KEYS), 5 + numbers.below(30));
        let first = self.next_key.take().unwrap_or(first);
        let second = (first + 1 + numbers.below(KEYS - 1)) % KEYS;
        let actor = &mut self.actors[number];
        actor.owner = format!("owner-{}", self.owners);
        let owner = &actor.owner;
        let (line, keys) = if numbers.below(3) == 0 {
            let line = format!("RLOCK.MACQUIRE {owner} {lease} 2 k{first} k{second} WAIT {wait}");
            (line, vec![first, second])
        } else {
            let line = format!("RLOCK.ACQUIRE k{first} {owner} {lease} WAIT {wait}");
            (line, vec![first])
        };
        let notify = actor.channel.as_ref().map(|it| format!(" NOTIFY {it}"));
        let line = line + &notify.unwrap_or_default();
        let mut turn = Vec::new();
        if numbers.below(4) > 0 {
            let sleep = format!("DEBUG SLEEP 0.00{}", 2 + numbers.below(7));
            turn.extend(request(&words(&sleep)));
        }
        turn.extend(request(&words(&line)));
        actor.client.send_bytes(&turn);
        (actor.keys, actor.stage) = (keys, Stage::Asked);
    }

    /// A waiter whose connection ends in the turn of its grant holds nothing.
    fn kill_in_the_turn_of_its_grant(&mut self, number: usize) {
        let Actor {
            client,
            owner,
            keys,
            stage,
            ..
        } = &self.actors[number];
        let [key] = keys[..] else { return };
        if !matches!(stage, Stage::Asked | Stage::Waiting) {
            return;
        }
        let turn = [
            format!("RLOCK.INFO k{key}"),
            format!("RLOCK.FORCE k{key}"),
            format!("CLIENT KILL ID {}", client.id()),
        ];
        let turn = turn.map(|line| request(&words(&line)));
        let admin = self.server.connection();
        admin.send_bytes(&turn.concat());
        let (info, _, killed) = (admin.answer(), admin.answer(), admin.answer());
        assert_eq!(killed, "1");
        let waited = info.split(" waiters ").nth(1).unwrap_or_default();
        if waited.contains(&format!("[owner {owner} ")) {
            *self.outcomes.entry("killed").or_default() += 1;
            let key = format!("k{key}");
            eventually("no disconnected waiter holds the lock", || {
                !self.server.owners(&key).contains(owner)
            });
        }
        self.actors[number] = Actor::connect(self.server, number);
    }
}

#[test]
fn late_server_gives_each_request_one_outcome_after_its_reply() {
    let server = Server::start();
    let mut walk = Walk {
        server: &server,
        actors: (0..ACTORS).map(|it| Actor::connect(&server, it)).collect(),
        numbers: Numbers(0x9E37_79B9_7F4A_7C15),
        owners: 0,
        next_key: None,
        outcomes: BTreeMap::new(),
    };
    for _ in 0..STEPS {
        walk.step();
    }
    eventually("each request has an outcome", || {
        walk.read();
        let mut actors = walk.actors.iter();
        // A message without a subscriber is not received.
        actors.all(|it| match it.stage {
            Stage::Asked | Stage::Releasing => false,
            Stage::Waiting => !it.listens,
            Stage::Granted | Stage::Over => true,
        })
    });
    eventually("nobody waits", || server.counter("waiters") == 0);
    assert_eq!(server.info("clients", "blocked_clients"), "0");
    for outcome in [
        "granted",
        "granted by message",
        "over",
        "over by message",
        "killed",
    ] {
        let times = walk.outcomes.get(outcome).copied().unwrap_or_default();
        assert!(times > 10, "{outcome}: {:?}", walk.outcomes);
    }
}
