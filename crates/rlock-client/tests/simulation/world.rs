//! Clients, a server, a network between them, and what must always hold.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::actor::Guard;
use crate::client::{Client, Happening};
use crate::engine::Event;
use crate::engine::ask::Ask;
use crate::engine::instant::Instant;
use crate::engine::proof::Proof;
use crate::operation::{ACTORS, CLIENTS, Operation};
use crate::server::Server;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) random: u64,
    pub(crate) last: u64,
    pub(crate) agenda: BTreeMap<(u64, u64), (usize, Happening)>,
    pub(crate) server: Server,
    pub(crate) clients: Vec<Client>,
    /// The largest fence that a guard has shown, by key, and whose it was.
    pub(crate) fences: BTreeMap<Vec<u8>, (u64, String)>,
    /// When somebody last took locks away, or set the clock.
    pub(crate) meddled: u64,
    /// Whether something may stay until its lease ends.
    pub(crate) may_leave: bool,
    pub(crate) is_ending: bool,
    /// What should not have happened.
    pub(crate) wrong: Option<String>,
    /// What happened, if somebody wants to read it.
    pub(crate) story: Option<Vec<String>>,
    pub(crate) happened: u64,
    pub(crate) granted: u64,
    pub(crate) reconnects: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut world = Self {
            now: SECOND,
            random: seed,
            last: 0,
            agenda: BTreeMap::new(),
            server: Server::new(),
            clients: (0..CLIENTS as u64).map(Client::new).collect(),
            fences: BTreeMap::new(),
            meddled: 0,
            may_leave: false,
            is_ending: false,
            wrong: None,
            story: None,
            happened: 0,
            granted: 0,
            reconnects: 0,
        };
        for client in 0..CLIENTS {
            world.connects(client);
        }
        world
    }

    /// What happens when `script` is played with `seed`, line by line.
    pub(crate) fn story(script: &[Operation], seed: u64) -> String {
        let mut world = Self::new(seed);
        world.story = Some(Vec::new());
        let _ = world.play(script);
        world.story.unwrap_or_default().join("\n")
    }

    pub(crate) fn tells(&mut self, line: impl FnOnce() -> String) {
        let micros = self.now / 1000;
        if let Some(story) = &mut self.story {
            story.push(format!("{micros:>9} {}", line()));
        }
    }

    pub(crate) fn play(&mut self, script: &[Operation]) -> Result<(), String> {
        self.play_only(script)?;
        self.end()
    }

    /// Whether a client has had enough of its first connection.
    pub(crate) fn has_given_up(&self, client: usize) -> bool {
        let client = &self.clients[client];
        client.links > 1 || client.link.is_none()
    }

    /// The same, and then leaves everything as it is.
    pub(crate) fn play_only(&mut self, script: &[Operation]) -> Result<(), String> {
        for operation in script {
            if let Operation::Pass { time } = operation {
                self.run_for(nanos(*time))?;
            }
            self.tells(|| format!("{operation:?}"));
            self.operate(*operation);
            self.check()?;
            let time = self.below(3 * MS);
            self.run_for(time)?;
        }
        Ok(())
    }

    /// Everything is let go, and nothing goes wrong any more.
    fn end(&mut self) -> Result<(), String> {
        self.is_ending = true;
        for (client, actor) in everybody() {
            if self.clients[client].actors[actor].call.is_none() {
                self.drop_guard(client, actor);
            }
        }
        for _ in 0..200 {
            self.run_for(SECOND)?;
            if self.is_quiet() {
                break;
            }
        }
        for (client, actor) in everybody() {
            if let Some(calling) = &self.clients[client].actors[actor].call {
                return Err(format!("no outcome for {calling:?} of client {client}"));
            }
        }
        for (number, client) in self.clients.iter().enumerate() {
            if !client.is_closed && !client.engine.is_empty() {
                return Err(format!("client {number} remembers {:?}", client.engine));
            }
        }
        let (holds, gauges) = (
            &self.server.core.store.keys,
            self.server.core.locks.gauges(),
        );
        if !self.may_leave && !holds.is_empty() {
            return Err(format!("holds are left: {holds:?}"));
        }
        if gauges.waiters != 0 {
            return Err(format!("places are left: {gauges:?}"));
        }
        Ok(())
    }

    /// Whether nothing is left to happen.
    fn is_quiet(&self) -> bool {
        let is_done = |client: &Client| client.is_closed || client.engine.is_empty();
        let mut calls = everybody().map(|(client, actor)| &self.clients[client].actors[actor].call);
        let core = &self.server.core;
        self.clients.iter().all(is_done)
            && calls.all(Option::is_none)
            && core.store.keys.is_empty()
            && core.locks.gauges().waiters == 0
    }

    pub(crate) fn is_stopped(&self, client: usize) -> bool {
        self.now < self.clients[client].stopped_until
    }

    pub(crate) fn later(&mut self, time: u64, client: usize, happening: Happening) {
        self.last += 1;
        let at = (self.now + time, self.last);
        self.agenda.insert(at, (client, happening));
    }

    fn run_for(&mut self, time: u64) -> Result<(), String> {
        let end = self.now + time;
        loop {
            let next = self.agenda.first_key_value().map(|(at, _)| at.0);
            let ticks = (0..CLIENTS).filter_map(|client| Some((self.tick(client)?, client)));
            let tick = ticks.min();
            let server = self.server.next_deadline().map(|at| at.max(self.now));
            let first = [next, tick.map(|(at, _)| at), server]
                .into_iter()
                .flatten()
                .min();
            let Some(first) = first.filter(|first| *first <= end) else {
                break;
            };
            self.now = first.max(self.now);
            self.happened += 1;
            if next == Some(first) {
                self.next_happens();
            } else if let Some((_, client)) = tick.filter(|(at, _)| *at == first) {
                self.tell(client, Event::Tick);
            } else {
                self.server.set_time(self.now);
                self.server_has_acted();
            }
            self.check()?;
        }
        self.now = end;
        Ok(())
    }

    fn tick(&self, client: usize) -> Option<u64> {
        let client = &self.clients[client];
        let due = client.engine.next_deadline()?.nanos();
        Some(due.max(self.now).max(client.stopped_until))
    }

    /// What must hold at every moment.
    fn check(&mut self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let now = self.instant();
        let mut held: Vec<&Guard> = Vec::new();
        for client in &self.clients {
            let is_stopped = self.now < client.stopped_until;
            for actor in &client.actors {
                if let Some(calling) = &actor.call
                    && let Some(latest) = calling.latest
                    && !is_stopped
                    && self.now > latest + MS
                {
                    return Err(format!("no outcome in time for {calling:?}"));
                }
                if let Some(Guard { proof, .. }) = &actor.guard
                    && proof.is_live(now)
                    && let Some(name) = proof.claims.names().find(|name| {
                        let lost = ((*name).clone(), proof.fence());
                        client.lost.contains(&lost)
                    })
                {
                    return Err(format!("{proof:?} counts, though {name:?} was lost"));
                }
                if let Some(guard) = &actor.guard
                    && !guard.is_taken_away
                    && !(client.is_unsure && is_kept(&guard.proof))
                    && guard.proof.is_live(now)
                {
                    held.push(guard);
                }
            }
        }
        for guard in &held {
            if guard.ask != Ask::Exclusive {
                continue;
            }
            let owner = guard.proof.claims.owner();
            for other in &held {
                if other.proof.claims.owner() != owner && shares_a_key(guard, other) {
                    return Err(format!("held by {guard:?} and {other:?}"));
                }
            }
            let (fence, owner) = (guard.proof.fence(), owner.as_str());
            for key in guard.proof.claims.keys() {
                match self.fences.get_mut(key) {
                    Some((last, by)) if fence < *last && by != owner => {
                        return Err(format!("fence {last} of {by} was before {guard:?}"));
                    }
                    Some((last, _)) if fence == *last => {}
                    _ => drop(self.fences.insert(key.to_vec(), (fence, owner.to_owned()))),
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_live(&self, proof: &Proof) -> bool {
        proof.is_live(self.instant())
    }

    pub(crate) fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}

pub(crate) fn everybody() -> impl Iterator<Item = (usize, usize)> {
    (0..CLIENTS).flat_map(|client| (0..ACTORS).map(move |actor| (client, actor)))
}

/// Whether its owner may have made requests before it took this lock.
fn is_kept(proof: &Proof) -> bool {
    proof.claims.owner().as_str().contains("kept")
}

fn shares_a_key(one: &Guard, other: &Guard) -> bool {
    let (mut keys, other) = (one.proof.claims.keys(), &other.proof.claims);
    keys.any(|key| other.keys().any(|it| it == key))
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
