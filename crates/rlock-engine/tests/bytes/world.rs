//! Clients, servers, and bytes in transit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rlock_core::{ChannelKind, Name};
use rlock_engine::endpoint::{
    Action, Change, ConnectionId, Endpoint, Event, Limits, Outcome, Settings, To,
};
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::node::slot_of;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Ask, Lease, Queueing, Terms, Value};
use rlock_engine::engine::{self, Id};
use rlock_engine::error::Failure;
use rlock_engine::servers::Address;
use rlock_engine::wire::requests::value_channel;
use rlock_engine::wire::resp::{Command, Decoder, Frame};

use rlock_testkit::core::server::{Server, Session, bulk, push};
use rlock_testkit::core::store::{Store, Stored};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// When an end notices that the connection has vanished without being closed.
const KEEPALIVE: u64 = 11 * SECOND;
const PATIENCE: Duration = Duration::from_secs(10);
/// How long after its limit a call may end: replicas may have to answer after the
/// server's last message.
const MARGIN: Duration = Duration::from_millis(1301);
const CLIENTS: usize = 2;
const ACTORS: usize = 3;
/// In slots 15495, 3300 and 7365.
const KEYS: [&str; 3] = ["a", "b", "c"];
const STEPS: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of two servers is the master, as three Sentinels say.
    Sentinels,
    /// Two masters have all slots.
    Cluster,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) bytes: usize,
    pub(crate) grants: u64,
    pub(crate) connections: u64,
    pub(crate) moves: u64,
    pub(crate) fail_overs: u64,
    /// The changes that observers received, and how often a change may have
    /// been missed.
    pub(crate) changes: u64,
    pub(crate) missed: u64,
}

pub(crate) struct World {
    kind: Kind,
    now: u64,
    random: u64,
    last: u64,
    happened: u64,
    schedule: BTreeMap<(u64, u64), WorldEvent>,
    /// `m` and `n`.
    servers: [Server; 2],
    /// The server that each Sentinel names, and its epoch.
    named: [(usize, u64); 3],
    master: usize,
    is_failing: bool,
    /// The slots that have moved since the start, and where they are now.
    elsewhere: BTreeMap<u16, usize>,
    /// A slot that is moving, and its target.
    moving: Option<(u16, usize)>,
    clients: Vec<Client>,
    wires: BTreeMap<u64, Wire>,
    fences: BTreeMap<&'static str, u64>,
    /// Whether the clock of each new master is behind the clock of its predecessor.
    is_set_back: bool,
    is_ending: bool,
    pub(crate) seen: Seen,
}

struct Client {
    endpoint: Endpoint,
    actors: [Actor; ACTORS],
    questions: BTreeSet<Id>,
    owners: u64,
    observers: BTreeMap<Id, Observer>,
}

/// An observer of a key, and what it knows.
struct Observer {
    key: &'static str,
    /// The largest fence, whether it is known to have ended, and the value.
    fence: u64,
    leader: Option<(u64, Vec<u8>)>,
    is_notified: bool,
}

#[derive(Default)]
enum Actor {
    #[default]
    Idle,
    Asks(Call, &'static str),
    Holds(Arc<Proof>, &'static str),
    Releases(Call),
}

#[derive(Clone, Copy)]
struct Call {
    id: Id,
    /// The deadline for an outcome.
    latest: Option<u64>,
}

/// A connection, by the server's ID.
struct Wire {
    client: usize,
    connection: ConnectionId,
    /// A server, or a Sentinel with a number after the servers.
    host: usize,
    /// The bytes that the other end has read.
    decoder: Decoder,
    is_cut: bool,
    /// When the last bytes arrive at each end: later bytes arrive later.
    at_server: u64,
    at_client: u64,
}

enum WorldEvent {
    Opens(u64),
    Refused(u64),
    ToServer(u64, Vec<u8>),
    ToClient(u64, Vec<u8>),
    /// The server sees the end of the connection.
    ServerSees(u64),
    ClientSees(u64),
    Promoted(Store),
    Returns(usize),
    Named(usize),
    KeyMoves(&'static str),
    HasMoved,
}

impl Seen {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            grants: self.grants + other.grants,
            connections: self.connections + other.connections,
            moves: self.moves + other.moves,
            fail_overs: self.fail_overs + other.fail_overs,
            changes: self.changes + other.changes,
            missed: self.missed + other.missed,
        }
    }
}

impl World {
    pub(crate) fn new(kind: Kind, seed: u64) -> Self {
        let url = match kind {
            Kind::Sentinels => "redis+sentinel://s,t,u/main",
            Kind::Cluster => "redis+cluster://m:6379,n:6379",
        };
        let clients = (0..CLIENTS).map(|client| {
            let settings = Settings {
                limits: Limits {
                    response: Duration::from_secs(2),
                    retry: PATIENCE,
                    replication: Duration::from_millis(300),
                },
                channel: format!("c{client}"),
                seed: seed + client as u64,
                ..Settings::default()
            };
            Client {
                endpoint: Endpoint::new(url.parse().unwrap(), settings),
                actors: Default::default(),
                questions: BTreeSet::new(),
                owners: 0,
                observers: BTreeMap::new(),
            }
        });
        Self {
            kind,
            now: SECOND,
            random: seed,
            last: 0,
            happened: 0,
            schedule: BTreeMap::new(),
            servers: [Server::new(true), Server::new(kind == Kind::Cluster)],
            named: [(0, 1); 3],
            master: 0,
            is_failing: false,
            elsewhere: BTreeMap::new(),
            moving: None,
            clients: clients.collect(),
            wires: BTreeMap::new(),
            fences: BTreeMap::new(),
            is_set_back: kind == Kind::Sentinels && seed.is_multiple_of(2),
            is_ending: false,
            seen: Seen::default(),
        }
    }

    pub(crate) fn play(&mut self) {
        for client in 0..CLIENTS {
            let call = self.clients[client].endpoint.next_id();
            self.send_event(client, Event::Start { call });
        }
        self.run_for(SECOND);
        for _ in 0..STEPS {
            self.step();
            let time = match self.below(8) {
                0 => self.below(3 * SECOND),
                _ => self.below(100 * MS),
            };
            self.run_for(time);
        }
        self.end();
    }

    fn step(&mut self) {
        let client = self.below(CLIENTS as u64) as usize;
        let actor = self.below(ACTORS as u64) as usize;
        match self.below(16) {
            0 => self.cut(client),
            1 if self.kind == Kind::Sentinels => self.fails_over(),
            1 => self.moves(),
            2 => self.queries(client),
            3 => self.gives_up(client, actor),
            4 => self.observes(client),
            5 => self.stops_observing(client),
            _ => self.acts(client, actor),
        }
    }

    /// Everything is released, and no more faults happen.
    fn end(&mut self) {
        self.is_ending = true;
        for _ in 0..40 {
            for client in 0..CLIENTS {
                // A client without requests does not notice that a connection is
                // silent.
                self.queries(client);
                for actor in 0..ACTORS {
                    if matches!(self.clients[client].actors[actor], Actor::Holds(..)) {
                        self.acts(client, actor);
                    }
                }
            }
            self.run_for(2 * SECOND);
        }
        self.run_for(2 * SECOND);
        // All clients reach all keys, even keys that have just moved.
        for client in 0..CLIENTS {
            if self.kind == Kind::Cluster {
                self.moves();
                self.run_for(2 * SECOND);
            }
            for (actor, key) in KEYS.into_iter().enumerate() {
                self.asks(client, actor, key, Queueing::Try);
            }
            self.run_for(2 * SECOND);
            self.check_observers();
            for actor in 0..ACTORS {
                let is_held = matches!(self.clients[client].actors[actor], Actor::Holds(..));
                assert!(is_held, "a lock that is free is not granted");
                self.acts(client, actor);
            }
            self.run_for(2 * SECOND);
            self.check_observers();
        }
        for client in 0..CLIENTS {
            while !self.clients[client].observers.is_empty() {
                self.stops_observing(client);
            }
        }
        // A quiet connection gets a heartbeat within this time.
        self.run_for(10 * SECOND);
        self.has_ended();
    }

    fn has_ended(&self) {
        for client in &self.clients {
            let is_idle = |actor: &Actor| matches!(actor, Actor::Idle);
            assert!(client.actors.iter().all(is_idle), "a call has no outcome");
            assert!(client.questions.is_empty(), "a question has no answer");
            assert!(
                client.endpoint.engine().is_empty(),
                "{:?}",
                client.endpoint.engine()
            );
        }
        for server in &self.servers {
            assert_eq!(server.core.locks.gauges().waiters, 0);
            let mut sessions = server.sessions.values();
            assert!(sessions.all(|it| it.values.is_empty()), "still subscribed");
        }
        // A client has one connection to each master and another one for
        // replicas, and one to each Sentinel.
        let limit = match self.kind {
            Kind::Sentinels => CLIENTS * 5,
            Kind::Cluster => CLIENTS * 4,
        };
        let open = self.wires.values().filter(|wire| !wire.is_cut).count();
        assert!(open <= limit, "{open} connections are left");
    }

    fn observes(&mut self, client: usize) {
        let key = KEYS[self.below(3) as usize];
        let this = &mut self.clients[client];
        if this.observers.len() > 8 {
            return;
        }
        let observer = this.endpoint.next_id();
        let (fence, leader, is_notified) = (0, None, false);
        let it = Observer {
            key,
            fence,
            leader,
            is_notified,
        };
        this.observers.insert(observer, it);
        let key = key.as_bytes().into();
        self.send_event(client, Event::Observe { observer, key });
    }

    fn stops_observing(&mut self, client: usize) {
        let observers = &self.clients[client].observers;
        let which = observers.len() as u64;
        let which = self.below(which) as usize;
        let observers = &mut self.clients[client].observers;
        if let Some(observer) = observers.keys().nth(which).copied() {
            observers.remove(&observer);
            self.send_event(client, Event::Unobserve { observer });
        }
    }

    /// Each change is a real one, and fences never decrease while an observer is
    /// connected.
    fn observed(&mut self, client: usize, observer: Id, change: Change) {
        self.seen.changes += 1;
        self.seen.missed += u64::from(change.missed);
        let observers = &mut self.clients[client].observers;
        let it = observers.get_mut(&observer).expect("it observes");
        let leader = change.leader.map(|it| (it.fence, it.value));
        let is_first = !std::mem::replace(&mut it.is_notified, true);
        assert!(!(is_first && change.missed), "nothing was missed before");
        let is_news = is_first || change.missed || leader != it.leader;
        assert!(is_news, "reported again: {leader:?}");
        if change.missed {
            it.fence = 0;
        }
        if let Some((fence, _)) = leader {
            assert!(fence >= it.fence, "{fence} after {}", it.fence);
            it.fence = fence;
        }
        it.leader = leader;
    }

    /// Once no more faults happen, all observers know the leader.
    fn check_observers(&mut self) {
        let all = self.clients.iter().flat_map(|it| it.observers.values());
        for Observer { key, leader, .. } in all {
            let server = &self.servers[self.home(slot_of(key.as_bytes()))];
            let key = key.as_bytes();
            let stored = server.core.store.get(server.core.now, Name { db: 0, key });
            let held = stored.and_then(Stored::held);
            let published =
                held.and_then(|it| Some((it.fence?.get(), it.extras.value.as_deref()?)));
            let known = leader.as_ref().map(|it| (it.0, &*it.1));
            assert_eq!(known, published, "of {}", String::from_utf8_lossy(key));
        }
    }

    fn acts(&mut self, client: usize, actor: usize) {
        let patient = self.now + nanos(PATIENCE + MARGIN);
        let this = &mut self.clients[client];
        match &this.actors[actor] {
            Actor::Idle => {
                let key = KEYS[self.below(3) as usize];
                let queueing = match self.below(3) {
                    0 => Queueing::Try,
                    1 => Queueing::AtMost(Duration::from_millis(1 + self.below(5000))),
                    _ => Queueing::Unlimited,
                };
                self.asks(client, actor, key, queueing);
            }
            Actor::Holds(proof, _) => {
                let (hold, ask) = (proof.hold, Ask::Exclusive);
                let call = this.endpoint.next_id();
                if self.below(3) == 0 && !self.is_ending {
                    self.clients[client].questions.insert(call);
                    let value = self.value();
                    let event = engine::Event::Proclaim { call, hold, value };
                    return self.send_event(client, Event::Call(event));
                }
                let (next, event) = match self.below(2) {
                    0 => (Actor::Idle, engine::Event::Leave { hold, ask }),
                    _ => {
                        let (id, latest) = (call, Some(patient));
                        let next = Actor::Releases(Call { id, latest });
                        (next, engine::Event::Release { call, hold, ask })
                    }
                };
                self.clients[client].actors[actor] = next;
                self.send_event(client, Event::Call(event));
            }
            Actor::Asks(..) | Actor::Releases(_) => {}
        }
    }

    fn asks(&mut self, client: usize, actor: usize, key: &'static str, queueing: Queueing) {
        let lease = Duration::from_millis(1000 + self.below(9000));
        let leased = || Terms::new().lease(lease).unwrap();
        let terms = match self.below(6) {
            // At the end nothing may happen by itself while observers are checked.
            0 if !self.is_ending => Terms::new().lease(Lease::Fixed(lease)).unwrap(),
            1 => leased().bound(lease / 2).unwrap(),
            2 if !self.is_ending => leased().replicas(1).unwrap(),
            _ => leased(),
        };
        let latest = match queueing {
            Queueing::Try => Some(PATIENCE),
            Queueing::AtMost(wait) => Some(wait),
            Queueing::Unlimited => None,
        };
        let latest = latest.map(|it| self.now + nanos(it + MARGIN));
        let value = match self.below(3) {
            0 => None,
            _ => Some(self.value()),
        };
        let this = &mut self.clients[client];
        let call = this.endpoint.next_id();
        this.owners += 1;
        let owner = Owner::new(format!("o{client}.{}", this.owners)).unwrap();
        this.actors[actor] = Actor::Asks(Call { id: call, latest }, key);
        let event = engine::Event::Ask {
            call,
            claims: Claims::new(owner, key.as_bytes(), &[]),
            ask: Ask::Exclusive,
            value,
            terms,
            queueing,
        };
        self.send_event(client, Event::Call(event));
    }

    fn value(&mut self) -> Value {
        let value = self.below(3).to_string().repeat(self.below(3) as usize);
        Value::new(value.as_bytes()).unwrap()
    }

    fn gives_up(&mut self, client: usize, actor: usize) {
        let this = &mut self.clients[client].actors[actor];
        if let Actor::Asks(Call { id: call, .. }, _) | Actor::Releases(Call { id: call, .. }) =
            *this
        {
            *this = Actor::Idle;
            self.send_event(client, Event::Call(engine::Event::Abandon { call }));
        }
    }

    fn queries(&mut self, client: usize) {
        let key = KEYS[self.below(3) as usize];
        let mut command = Command::new("RLOCK.INFO");
        command.arg(key);
        let this = &mut self.clients[client];
        let call = this.endpoint.next_id();
        this.questions.insert(call);
        let (to, limit) = (
            To::Key(key.as_bytes().into()),
            Some(Duration::from_secs(10)),
        );
        let question = Event::Question {
            call,
            to,
            command,
            changes: false,
            limit,
        };
        self.send_event(client, question);
    }

    fn send_event(&mut self, client: usize, event: Event<'_>) {
        let now = Instant::from_nanos(self.now);
        self.clients[client].endpoint.handle(now, event);
        while let Some(action) = self.clients[client].endpoint.poll_action() {
            self.carry_out(client, action);
        }
        self.check();
    }

    fn carry_out(&mut self, client: usize, action: Action) {
        match action {
            Action::Connect {
                connection,
                address,
            } => self.connects(client, connection, &address),
            Action::Write { connection } => {
                let mut output = Vec::new();
                self.clients[client]
                    .endpoint
                    .take_output(connection, &mut output);
                if let Some(session) = self.session(client, connection) {
                    self.passes(session, &output, true);
                }
            }
            Action::Close { connection } => {
                if let Some(session) = self.session(client, connection) {
                    let late = match self.wires[&session].is_cut {
                        true => KEEPALIVE,
                        false => self.below(20 * MS),
                    };
                    let sees = self.wires[&session].at_server.max(self.now) - self.now + late;
                    self.later(sees, WorldEvent::ServerSees(session));
                }
            }
            Action::Resolve { call, outcome } => self.resolved(client, call, outcome),
            Action::Observed { observer, change } => {
                self.observed(client, observer, change.expect("nothing ends it"));
            }
            Action::Over { .. } | Action::Flushed { .. } | Action::Note(_) => {}
        }
    }

    fn resolved(&mut self, client: usize, call: Id, outcome: Outcome) {
        let this = &mut self.clients[client];
        this.questions.remove(&call);
        for actor in &mut this.actors {
            match (&*actor, &outcome) {
                (Actor::Asks(asked, key), Outcome::Lock(engine::Outcome::Granted(proof, _)))
                    if asked.id == call =>
                {
                    let (key, fence) = (*key, proof.fence());
                    let before = self.fences.insert(key, fence);
                    assert!(before.is_none_or(|before| before < fence), "fences grow");
                    self.seen.grants += 1;
                    *actor = Actor::Holds(Arc::clone(proof), key);
                }
                (Actor::Asks(asked, _) | Actor::Releases(asked), _) if asked.id == call => {
                    *actor = Actor::Idle;
                }
                _ => {}
            }
        }
    }

    /// No two clients hold the same lock, and each call ends in time.
    fn check(&self) {
        let now = Instant::from_nanos(self.now);
        let mut held = BTreeSet::new();
        for actor in self.clients.iter().flat_map(|client| &client.actors) {
            match actor {
                Actor::Holds(proof, key) if proof.is_live(now) => {
                    assert!(held.insert(*key), "two hold {key}");
                }
                Actor::Asks(call, _) | Actor::Releases(call) => {
                    let is_late = call.latest.is_some_and(|latest| self.now > latest);
                    assert!(!is_late, "a call has no outcome in time");
                }
                Actor::Idle | Actor::Holds(..) => {}
            }
        }
    }

    fn connects(&mut self, client: usize, connection: ConnectionId, address: &Address) {
        let host = ["m", "n", "s", "t", "u"].iter();
        let host = host
            .clone()
            .position(|it| address.host() == Some(it))
            .unwrap();
        self.last += 1;
        self.seen.connections += 1;
        let session = self.last;
        let wire = Wire {
            client,
            connection,
            host,
            decoder: Decoder::default(),
            is_cut: false,
            at_server: 0,
            at_client: 0,
        };
        self.wires.insert(session, wire);
        let late = self.delay();
        let is_down = self.servers.get(host).is_some_and(|server| server.is_down);
        match self.below(30) {
            // The server does not answer at all.
            0 if !self.is_ending => self.wires.get_mut(&session).unwrap().is_cut = true,
            _ if is_down => self.later(late, WorldEvent::Refused(session)),
            _ => self.later(late, WorldEvent::Opens(session)),
        }
    }

    fn session(&self, client: usize, connection: ConnectionId) -> Option<u64> {
        let mut wires = self.wires.iter();
        let wire = wires.find(|(_, it)| it.client == client && it.connection == connection);
        wire.map(|(session, _)| *session)
    }

    /// Delivers bytes, in pieces.
    fn passes(&mut self, session: u64, bytes: &[u8], is_up: bool) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let most = rest.len() as u64;
            let length = match self.below(3) {
                0 => 1 + self.below(most),
                _ => most,
            };
            let (piece, left) = rest.split_at(length as usize);
            rest = left;
            let late = self.delay();
            let now = self.now;
            let Some(wire) = self.wires.get_mut(&session).filter(|wire| !wire.is_cut) else {
                return;
            };
            let at = if is_up {
                &mut wire.at_server
            } else {
                &mut wire.at_client
            };
            *at = (now + late).max(*at + 1);
            let time = *at - now;
            self.seen.bytes += piece.len();
            let piece = piece.to_vec();
            self.later(
                time,
                match is_up {
                    true => WorldEvent::ToServer(session, piece),
                    false => WorldEvent::ToClient(session, piece),
                },
            );
        }
    }

    /// A client's connection ends: both ends see it, one of them, or none. A
    /// client that does not see the end must close the connection by itself.
    fn cut(&mut self, client: usize) {
        let wires = self.wires.iter();
        let wires = wires.filter(|(_, wire)| wire.client == client && !wire.is_cut);
        let sessions: Vec<u64> = wires.map(|(session, _)| *session).collect();
        let Some(session) = sessions.get(self.below(sessions.len() as u64) as usize) else {
            return;
        };
        let session = *session;
        self.wires.get_mut(&session).unwrap().is_cut = true;
        let (client_sees, server_sees) = match self.below(4) {
            0 => (false, false),
            1 => (true, false),
            2 => (false, true),
            _ => (true, true),
        };
        if client_sees {
            let late = self.below(30 * MS);
            self.later(late, WorldEvent::ClientSees(session));
        }
        let late = match server_sees {
            true => self.below(30 * MS),
            false => KEEPALIVE,
        };
        self.later(late, WorldEvent::ServerSees(session));
    }

    fn fails_over(&mut self) {
        if self.is_failing {
            return;
        }
        self.is_failing = true;
        let now = self.now;
        let old = self.master;
        self.servers[old].set_time(now);
        self.servers[old].is_down = true;
        let keys = std::mem::take(&mut self.servers[old].core.store);
        self.servers[old].becomes(now, false, Store::default());
        self.has_acted(old);
        let sessions: Vec<u64> = self.servers[old].sessions.keys().copied().collect();
        for session in sessions {
            self.ends(session);
        }
        let late = self.below(2 * SECOND);
        self.later(late, WorldEvent::Promoted(keys));
        let back = late + self.below(3 * SECOND);
        self.later(back, WorldEvent::Returns(old));
    }

    /// A connection ends at its server, and soon after at its client.
    fn ends(&mut self, session: u64) {
        let soon = self.below(30 * MS);
        let wire = self.wires.get_mut(&session);
        if let Some(wire) = wire.filter(|wire| !wire.is_cut) {
            wire.is_cut = true;
            self.later(soon, WorldEvent::ClientSees(session));
        }
        self.later(0, WorldEvent::ServerSees(session));
    }

    /// The server that has a slot.
    fn home(&self, slot: u16) -> usize {
        match self.kind {
            Kind::Sentinels => self.master,
            Kind::Cluster => {
                let first = usize::from(slot > 8191);
                self.elsewhere.get(&slot).copied().unwrap_or(first)
            }
        }
    }

    /// A slot moves from one master to the other: the slot of a key or of a
    /// client's channel.
    fn moves(&mut self) {
        if self.moving.is_some() {
            return;
        }
        let channels = self
            .servers
            .iter()
            .flat_map(|server| server.sessions.values());
        let channels = channels.filter_map(|session| session.channel.as_ref());
        let names = channels.map(|(_, name)| slot_of(name.as_bytes()));
        let slots: Vec<u16> = names
            .chain(KEYS.map(|key| slot_of(key.as_bytes())))
            .collect();
        let slot = slots[self.below(slots.len() as u64) as usize];
        let to = 1 - self.home(slot);
        self.moving = Some((slot, to));
        let window = self.below(2 * SECOND);
        for key in KEYS {
            if slot_of(key.as_bytes()) == slot {
                let time = self.below(window);
                self.later(time, WorldEvent::KeyMoves(key));
            }
        }
        self.later(window, WorldEvent::HasMoved);
    }

    fn key_moves(&mut self, key: &'static str) {
        let Some((_, to)) = self.moving else { return };
        let now = self.now;
        self.servers
            .iter_mut()
            .for_each(|server| server.set_time(now));
        let (name, row) = (
            Name {
                db: 0,
                key: key.as_bytes(),
            },
            (0, key.as_bytes().to_vec()),
        );
        let source = &mut self.servers[1 - to].core;
        let stored = source.store.get(source.now, name).cloned();
        source.store.delete(source.now, name);
        source.store.known.remove(&row);
        self.servers[1 - to].turns_away(key.as_bytes());
        let target = &mut self.servers[to].core;
        target.store.known.remove(&row);
        if let Some(stored) = stored {
            target.store.keys.insert(row, stored);
        }
        self.has_acted(0);
        self.has_acted(1);
    }

    fn has_moved(&mut self) {
        let Some((slot, to)) = self.moving else {
            return;
        };
        for key in KEYS {
            if slot_of(key.as_bytes()) == slot {
                self.key_moves(key);
            }
        }
        self.moving = None;
        self.elsewhere.insert(slot, to);
        self.seen.moves += 1;
        let mut gone = Vec::new();
        for (session, it) in &mut self.servers[1 - to].sessions {
            if let Some(channel) = it.channel.take_if(|it| slot_of(it.1.as_bytes()) == slot) {
                gone.push((*session, channel.1.clone()));
                self.servers[1 - to].core.listened.remove(&channel);
            }
            let values = KEYS.map(|key| value_channel(key.as_bytes()));
            for channel in values.into_iter().filter(|it| slot_of(it) == slot) {
                let channel = String::from_utf8(channel).unwrap();
                if it.values.remove(&channel).is_some() {
                    gone.push((*session, channel));
                }
            }
        }
        for (session, channel) in gone {
            let bytes = push("sunsubscribe", &channel, ":0\r\n");
            self.passes(session, bytes.as_bytes(), false);
        }
    }

    /// Delivers the messages about a server's actions.
    fn has_acted(&mut self, server: usize) {
        for (session, message) in self.servers[server].messages() {
            self.passes(session, message.as_bytes(), false);
        }
    }

    fn happens(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Opens(session) => {
                let wire = &self.wires[&session];
                let (client, connection, host) = (wire.client, wire.connection, wire.host);
                if let Some(server) = self.servers.get_mut(host)
                    && !wire.is_cut
                {
                    server.sessions.insert(session, Session::default());
                }
                self.send_event(client, Event::Opened { connection });
            }
            WorldEvent::Refused(session) | WorldEvent::ClientSees(session) => {
                let Some(wire) = self.wires.get(&session) else {
                    return;
                };
                let (client, connection) = (wire.client, wire.connection);
                let failure = Failure::Io("cut".to_owned());
                self.send_event(
                    client,
                    Event::Ended {
                        connection,
                        failure,
                    },
                );
            }
            WorldEvent::ServerSees(session) => {
                if let Some(wire) = self.wires.get_mut(&session) {
                    wire.is_cut = true;
                    let (host, now) = (wire.host, self.now);
                    if let Some(server) = self.servers.get_mut(host) {
                        server.set_time(now);
                        server.close(session);
                        self.has_acted(host);
                    }
                }
            }
            WorldEvent::ToServer(session, bytes) => self.arrives(session, &bytes),
            WorldEvent::ToClient(session, bytes) => {
                let wire = &self.wires[&session];
                if !wire.is_cut {
                    let (client, connection, bytes) = (wire.client, wire.connection, &*bytes);
                    self.send_event(client, Event::Received { connection, bytes });
                }
            }
            WorldEvent::Promoted(keys) => {
                let new = 1 - self.master;
                let now = self.now;
                self.servers[new].set_time(now);
                if self.is_set_back {
                    // Fences of other holders may be smaller now.
                    let behind = self.servers[1 - new].behind + self.below(SECOND) / 1000;
                    self.servers[new].behind = behind;
                    self.fences.clear();
                }
                self.servers[new].becomes(now, true, keys);
                self.master = new;
                self.seen.fail_overs += 1;
                // The last Sentinel is cut off from the others.
                for sentinel in 0..2 {
                    let late = self.below(SECOND);
                    self.later(late, WorldEvent::Named(sentinel));
                }
            }
            WorldEvent::Returns(server) => {
                self.servers[server].is_down = false;
                self.is_failing = false;
            }
            WorldEvent::Named(sentinel) => {
                let epoch = self.named[sentinel].1 + 1;
                self.named[sentinel] = (self.master, epoch);
            }
            WorldEvent::KeyMoves(key) => self.key_moves(key),
            WorldEvent::HasMoved => self.has_moved(),
        }
    }

    fn arrives(&mut self, session: u64, bytes: &[u8]) {
        let now = self.now;
        let Some(wire) = self.wires.get_mut(&session).filter(|wire| !wire.is_cut) else {
            return;
        };
        let host = wire.host;
        for words in commands(&mut wire.decoder, bytes) {
            let reply = match self.servers.get_mut(host) {
                None => self.sentinel_says(host - 2, &words),
                Some(server) if server.is_down => return,
                Some(server) => {
                    server.set_time(now);
                    let reply = self.answer(host, session, &words);
                    self.has_acted(host);
                    reply
                }
            };
            self.passes(session, reply.as_bytes(), false);
        }
    }

    fn sentinel_says(&self, sentinel: usize, words: &[String]) -> String {
        let (master, epoch) = self.named[sentinel];
        match words[1].as_str() {
            "MASTER" => format!("*2\r\n{}{}", bulk("config-epoch"), bulk(&epoch.to_string())),
            _ => format!("*2\r\n{}{}", bulk(["m", "n"][master]), bulk("6379")),
        }
    }

    fn answer(&mut self, host: usize, session: u64, words: &[String]) -> String {
        let ok = || "+OK\r\n".to_owned();
        let server = &mut self.servers[host];
        let is_asking = match server.sessions.get_mut(&session) {
            Some(session) => std::mem::take(&mut session.is_asking),
            None => return String::new(),
        };
        let second = words.get(1).map_or("", String::as_str);
        match (words[0].as_str(), second) {
            (command @ ("SSUBSCRIBE" | "SUNSUBSCRIBE"), name) => {
                let slot = slot_of(name.as_bytes());
                match self.home(slot) {
                    home if home == host && command == "SUNSUBSCRIBE" => {
                        self.servers[host].answer(session, words)
                    }
                    home if home == host => {
                        self.servers[host].listen(session, ChannelKind::Sharded, name)
                    }
                    home => moved("MOVED", slot, home),
                }
            }
            ("WAIT", _) => format!(":{}\r\n", self.below(4).min(1)),
            ("ASKING", _) => {
                server.sessions.get_mut(&session).unwrap().is_asking = true;
                ok()
            }
            ("CLUSTER", "SLOTS") => self.slots(),
            ("CLUSTER", "INFO") => bulk("cluster_state:ok\r\ncluster_current_epoch:1\r\n"),
            (command, key) if command.starts_with("RLOCK.") && command != "RLOCK.HELP" => {
                self.locks(host, session, is_asking, key.to_owned(), words)
            }
            _ => {
                let reply = server.answer(session, words);
                for other in std::mem::take(&mut server.killed) {
                    self.has_acted(host);
                    self.ends(other);
                }
                reply
            }
        }
    }

    fn locks(
        &mut self,
        host: usize,
        session: u64,
        is_asking: bool,
        key: String,
        words: &[String],
    ) -> String {
        if self.kind == Kind::Cluster {
            let slot = slot_of(key.as_bytes());
            let home = self.home(slot);
            let to = self.moving.filter(|(moving, _)| *moving == slot);
            let is_coming = is_asking && to == Some((slot, host));
            if home != host && !is_coming {
                return moved("MOVED", slot, home);
            }
            if let Some((_, to)) = to
                && home == host
                && !self.servers[host].has(key.as_bytes())
            {
                return moved("ASK", slot, to);
            }
        } else if !self.servers[host].is_master {
            return "-READONLY You can't write against a read only replica.\r\n".to_owned();
        }
        if !self.is_ending && self.below(200) == 0 {
            return "-LOADING or whatever passes\r\n".to_owned();
        }
        self.servers[host].answer(session, words)
    }

    /// Later ranges override earlier ones.
    fn slots(&self) -> String {
        let range = |first: u16, last: u16, host: usize| {
            let host = bulk(["m", "n"][host]);
            format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n{host}:6379\r\n")
        };
        let elsewhere = self.elsewhere.iter();
        let elsewhere: String = elsewhere
            .map(|(slot, host)| range(*slot, *slot, *host))
            .collect();
        let count = 2 + self.elsewhere.len();
        let all = range(0, 8191, 0) + &range(8192, 16383, 1);
        format!("*{count}\r\n{all}{elsewhere}")
    }

    fn later(&mut self, time: u64, event: WorldEvent) {
        self.last += 1;
        self.schedule.insert((self.now + time, self.last), event);
    }

    fn run_for(&mut self, time: u64) {
        let end = self.now + time;
        loop {
            let next = self.schedule.first_key_value().map(|(at, _)| at.0);
            let ticks = self.clients.iter().enumerate();
            let ticks = ticks
                .filter_map(|(it, client)| Some((client.endpoint.next_deadline()?.nanos(), it)));
            let tick = ticks.min();
            let servers = self.servers.iter().enumerate();
            let server = servers.filter(|(_, server)| !server.is_down);
            let server = server.filter_map(|(it, server)| Some((server.next_deadline()?, it)));
            let server = server.min();
            let all = [next, tick.map(|it| it.0), server.map(|it| it.0)];
            let first = all.into_iter().flatten().min();
            let Some(first) = first.filter(|first| *first <= end) else {
                break;
            };
            self.now = first.max(self.now);
            self.happened += 1;
            assert!(
                self.happened < 1_000_000,
                "it never ends: {:?}",
                (self.now, next, tick, server)
            );
            if next == Some(first) {
                if let Some((_, event)) = self.schedule.pop_first() {
                    self.happens(event);
                }
            } else if let Some((_, client)) = tick.filter(|(at, _)| *at == first) {
                self.send_event(client, Event::Tick);
            } else if let Some((_, server)) = server {
                let now = self.now;
                self.servers[server].set_time(now);
                self.has_acted(server);
            }
            self.check();
        }
        self.now = end;
    }

    /// The delay of a delivery: usually short, sometimes long.
    fn delay(&mut self) -> u64 {
        match self.below(60) {
            0 if !self.is_ending => self.below(SECOND),
            1..=5 => self.below(50 * MS),
            _ => self.below(MS),
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}

/// The complete commands.
fn commands(decoder: &mut Decoder, bytes: &[u8]) -> Vec<Vec<String>> {
    decoder.feed(bytes);
    let mut commands = Vec::new();
    while let Some(Frame::Array(words)) = decoder.next().expect("a command") {
        let words = words.into_iter().map(Frame::into_text);
        commands.push(words.collect::<Option<_>>().expect("words"));
    }
    commands
}

fn moved(code: &str, slot: u16, host: usize) -> String {
    format!("-{code} {slot} {}:6379\r\n", ["m", "n"][host])
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}
