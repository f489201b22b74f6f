//! Clients, servers, and the network between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rlock_engine::engine::Event;
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;

use crate::actor::Kept;
use crate::client::{Client, WorldEvent};
use crate::cluster::{Kind, Place, Shard, View};
use crate::failover::Unreplicated;
use crate::operation::{ACTORS, CLIENTS, Operation};
use crate::server::Server;
use rlock_testkit::core::store::Stored;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) random: u64,
    pub(crate) last: u64,
    pub(crate) schedule: BTreeMap<(u64, u64), (usize, WorldEvent)>,
    pub(crate) kind: Kind,
    pub(crate) servers: Vec<Server>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) places: Vec<Place>,
    pub(crate) clients: Vec<Client>,
    pub(crate) unreplicated: Vec<Unreplicated>,
    /// The largest fence of all guards, by key, and its owner.
    pub(crate) fences: BTreeMap<Vec<u8>, (u64, String)>,
    /// When an operator last ended locks or set the clock.
    pub(crate) interfered: u64,
    /// The locks that servers have promised to keep.
    pub(crate) kept: Vec<Kept>,
    /// When such a promise was last broken.
    pub(crate) disturbed: u64,
    /// The keys that may stay until the end of their lease, and their owners.
    pub(crate) left: BTreeSet<(Vec<u8>, String)>,
    /// Whether a hold may stay until its lease ends.
    pub(crate) may_leave: bool,
    pub(crate) is_ending: bool,
    /// How many guards became two.
    pub(crate) split: u64,
    /// When the watches of all holds were last checked.
    pub(crate) checked_at: u64,
    /// The first violation.
    pub(crate) wrong: Option<String>,
    /// The log of events, if it is needed.
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) happened: u64,
    pub(crate) granted: u64,
    pub(crate) reconnects: u64,
    pub(crate) moves: u64,
    pub(crate) fail_overs: u64,
}

impl World {
    pub(crate) fn new(kind: Kind, seed: u64) -> Self {
        let count = kind.shards();
        let shards = (0..count).map(|shard| Shard {
            master: shard,
            spare: shard + count,
            is_failing: false,
            next_failover: 0,
        });
        let places = (0..).map(|place| Place {
            shard: place % count,
            moving: None,
            since: 0,
            disputed_until: 0,
        });
        let places: Vec<_> = places.take(View::default().len()).collect();
        let view: View = std::array::from_fn(|place| places[place].shard);
        let servers = (0..2 * count).map(|server| Server {
            is_master: server < count,
            view,
            ..Server::new()
        });
        let clients = (0..CLIENTS as u64).map(|client| Client::new(client, kind.routes(view)));
        let mut world = Self {
            now: SECOND,
            random: seed,
            last: 0,
            schedule: BTreeMap::new(),
            kind,
            servers: servers.collect(),
            shards: shards.collect(),
            places,
            clients: clients.collect(),
            unreplicated: Vec::new(),
            fences: BTreeMap::new(),
            interfered: 0,
            kept: Vec::new(),
            disturbed: 0,
            left: BTreeSet::new(),
            may_leave: false,
            is_ending: false,
            split: 0,
            checked_at: 0,
            wrong: None,
            trace: None,
            happened: 0,
            granted: 0,
            reconnects: 0,
            moves: 0,
            fail_overs: 0,
        };
        // Connections of a cluster open when they are needed.
        if kind == Kind::One {
            for client in 0..CLIENTS {
                world.connects(client, kind.node(0));
            }
        }
        world
    }

    /// The events of `script` played with `seed`, line by line.
    pub(crate) fn trace(kind: Kind, script: &[Operation], seed: u64) -> String {
        let mut world = Self::new(kind, seed);
        world.trace = Some(Vec::new());
        let _ = world.play(script);
        world.trace.unwrap_or_default().join("\n")
    }

    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        let micros = self.now / 1000;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{micros:>9} {}", line()));
        }
    }

    pub(crate) fn play(&mut self, script: &[Operation]) -> Result<(), String> {
        self.play_only(script)?;
        self.end()
    }

    /// Whether a client has closed its first connection.
    pub(crate) fn has_given_up(&self, client: usize) -> bool {
        let client = &self.clients[client];
        client.opened > 1 || client.links.is_empty()
    }

    /// Whether a task has a valid guard.
    pub(crate) fn holds(&self, actor: usize) -> bool {
        let guard = &self.clients[actor % CLIENTS].actors[actor].guard;
        guard.as_ref().is_some_and(|it| self.is_live(&it.proof))
    }

    /// The same without the clean-up at the end.
    pub(crate) fn play_only(&mut self, script: &[Operation]) -> Result<(), String> {
        for operation in script {
            if let Operation::Pass { time } = operation {
                self.run_for(nanos(*time))?;
            }
            self.log(|| format!("{operation:?}"));
            self.operate(*operation);
            self.check()?;
            let time = self.below(3 * MS);
            self.run_for(time)?;
        }
        Ok(())
    }

    /// Everything is released, and no more faults happen.
    fn end(&mut self) -> Result<(), String> {
        self.is_ending = true;
        for (client, actor) in all_actors() {
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
        for (client, actor) in all_actors() {
            if let Some(calling) = &self.clients[client].actors[actor].call {
                return Err(format!("no outcome for {calling:?} of client {client}"));
            }
        }
        for (number, client) in self.clients.iter().enumerate() {
            if !client.is_closed && !client.engine.is_empty() {
                return Err(format!("client {number} remembers {:?}", client.engine));
            }
        }
        for (number, server) in self.servers.iter().enumerate() {
            let (mut holds, gauges) = (server.core.store.keys.clone(), server.core.locks.gauges());
            holds.retain(|key, hold| !self.is_left(server, key, hold));
            if !self.may_leave && server.is_master && !holds.is_empty() {
                return Err(format!("holds are left at {number}: {holds:?}"));
            }
            if gauges.waiters != 0 {
                return Err(format!("places are left at {number}: {gauges:?}"));
            }
        }
        Ok(())
    }

    /// Whether all holders of a key have left it to the end of their lease.
    fn is_left(&self, server: &Server, (db, key): &(u32, Vec<u8>), hold: &Stored) -> bool {
        let Some(held) = hold.held() else {
            return false;
        };
        let name = rlock_core::Name { db: *db, key };
        let is_over = server.core.store.get(server.time(self.now), name).is_none();
        let is_left = |owner: &String| self.left.contains(&(key.clone(), owner.clone()));
        // A key that has moved is watched from its next renewal on. Without a
        // renewal, for instance when its client cannot reach the server, it ends
        // by the server's own clock.
        is_over && (self.is_cluster() || held.holders.keys().all(is_left))
    }

    /// Whether no event is pending.
    fn is_quiet(&self) -> bool {
        let is_done = |client: &Client| client.is_closed || client.engine.is_empty();
        let mut calls =
            all_actors().map(|(client, actor)| &self.clients[client].actors[actor].call);
        self.clients.iter().all(is_done)
            && calls.all(Option::is_none)
            && self.servers.iter().all(|server| server.is_unused(self.now))
    }

    pub(crate) fn is_stopped(&self, client: usize) -> bool {
        self.now < self.clients[client].stopped_until
    }

    pub(crate) fn later(&mut self, time: u64, client: usize, event: WorldEvent) {
        self.last += 1;
        let at = (self.now + time, self.last);
        self.schedule.insert(at, (client, event));
    }

    fn run_for(&mut self, time: u64) -> Result<(), String> {
        let end = self.now + time;
        loop {
            let next = self.schedule.first_key_value().map(|(at, _)| at.0);
            let ticks = (0..CLIENTS).filter_map(|client| Some((self.tick(client)?, client)));
            let tick = ticks.min();
            let server = self.next_of_servers();
            let first = [next, tick.map(|it| it.0), server.map(|it| it.0)];
            let first = first.into_iter().flatten().min();
            let Some(first) = first.filter(|first| *first <= end) else {
                break;
            };
            self.now = first.max(self.now);
            self.check_watches()?;
            self.happened += 1;
            if next == Some(first) {
                self.next_happens();
            } else if let Some((_, client)) = tick.filter(|(at, _)| *at == first) {
                self.send_event(client, Event::Tick);
            } else if let Some((_, server)) = server {
                self.servers[server].set_time(self.now);
                self.has_acted(server);
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

    /// The next deadline of the servers, and the server that has it.
    pub(crate) fn next_of_servers(&self) -> Option<(u64, usize)> {
        let is_there = |server: &usize| !self.servers[*server].is_down(self.now);
        let there = (0..self.servers.len()).filter(is_there);
        let next = there.filter_map(|it| Some((self.servers[it].next_deadline()?, it)));
        next.map(|(at, server)| (at.max(self.now), server)).min()
    }

    /// Whether the world is a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.kind == Kind::Cluster
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

pub(crate) fn all_actors() -> impl Iterator<Item = (usize, usize)> {
    (0..CLIENTS).flat_map(|client| (0..ACTORS).map(move |actor| (client, actor)))
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
