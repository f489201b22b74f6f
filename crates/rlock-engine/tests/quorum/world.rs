//! Clients, members, and bytes in transit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rlock_engine::endpoint::{ConnectionId, Event, Settings};
use rlock_engine::engine::Id;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Ask, Lease, Queueing, Terms};
use rlock_engine::error::{Error, Failure, Loss};
use rlock_engine::session::quorum::Quorum;
use rlock_engine::session::{Action, Call, Lock, Outcome};
use rlock_engine::wire::resp::{Decoder, Frame};
use rlock_testkit::core::server::{Server, Session, bulk};
use rlock_testkit::core::store::Store;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const CLIENTS: usize = 3;
/// The startup grace of members, and the longest lease.
const GRACE_MS: u64 = 2000;
/// How long after its wait a call may end.
const MARGIN: u64 = 26 * SECOND;
/// How many requests one client may send to one member in a second.
const REQUESTS_MAX: u64 = 150;

#[derive(Default)]
pub(crate) struct World {
    now: u64,
    /// Whether no more faults happen.
    is_calm: bool,
    random: u64,
    last: u64,
    /// What happens when to which wire.
    agenda: BTreeMap<(u64, u64), (u64, What)>,
    members: Vec<(Server, Member)>,
    clients: Vec<(Quorum, Client)>,
    wires: BTreeMap<u64, Wire>,
    /// When the last bytes arrive at either end of a wire: nothing overtakes.
    arrivals: HashMap<(u64, bool), u64>,
    /// The last fence of each key, and its holder.
    fences: HashMap<&'static str, (u64, Owner)>,
    /// How many requests were sent in each second, by which client to which member.
    asked: HashMap<(u64, u64, usize), u64>,
    is_told: bool,
    wrong: Option<String>,
    pub(crate) granted: u64,
    /// How many locks were entered again.
    pub(crate) entered: u64,
    pub(crate) lost: u64,
}

#[derive(Default)]
struct Member {
    starts: u64,
    grants_from: u64,
    down_until: u64,
    stalled_until: u64,
}

#[derive(Default)]
struct Client {
    /// Another one for each process.
    number: u64,
    stalled_until: u64,
    last: u64,
    calls: BTreeMap<Id, Expected>,
    guards: BTreeMap<Id, (&'static str, Owner, Arc<Proof>)>,
    /// Those whose end it knows.
    over: BTreeSet<Id>,
    open: HashMap<ConnectionId, u64>,
}

/// What a call asks for, if it is for a lock, and when it must be over.
type Expected = (Option<(&'static str, Owner)>, u64);

/// A connection, by the number that its server has for it.
struct Wire {
    client: usize,
    connection: ConnectionId,
    member: usize,
    is_cut: bool,
}

enum What {
    Opens,
    /// The client sees the end.
    Ends,
    /// The server does.
    Closes,
    ToServer(Vec<u8>),
    ToClient(Vec<u8>),
}

impl World {
    pub(crate) fn new(members: usize, seed: u64, is_told: bool) -> Self {
        let mut world = Self::default();
        (world.now, world.random, world.is_told) = (SECOND, seed, is_told);
        for _ in 0..members {
            let mut server = Server::new(true);
            // Their clocks differ, by less than the grace.
            server.behind = world.below(GRACE_MS * 500);
            world.members.push((server, Member::default()));
        }
        world
            .clients
            .extend((0..CLIENTS).map(|_| (quorum(members, 0), Client::default())));
        world
    }

    pub(crate) fn play(&mut self) -> Result<(), String> {
        (0..CLIENTS).for_each(|client| self.begins(client));
        for _ in 0..50 + self.below(200) {
            let most = [2 * MS, 2 * MS, 50 * MS, 500 * MS][self.below(4) as usize];
            let time = self.below(most);
            self.run_for(time)?;
            self.step();
        }
        // Everything is released, and no more faults happen. A message that takes a second is one: with leases of a
        // fraction of that, seven callers may not get a lock for a minute.
        self.is_calm = true;
        for _ in 0..60 {
            for client in 0..CLIENTS {
                for guard in Vec::from_iter(self.clients[client].1.guards.keys().copied()) {
                    self.releases(client, guard, None);
                }
            }
            self.run_for(SECOND)?;
            self.members
                .iter_mut()
                .for_each(|(server, _)| server.set_time(self.now));
            let mut clients = self.clients.iter();
            if clients.all(|(quorum, it)| it.calls.is_empty() && quorum.is_empty())
                && self.members.iter().all(|(server, _)| server.is_unused())
            {
                return Ok(());
            }
        }
        let calls = self
            .clients
            .iter()
            .map(|(quorum, it)| (&it.calls, quorum.is_empty()));
        Err(format!("something is left, {:?}", Vec::from_iter(calls)))
    }

    /// A process begins.
    fn begins(&mut self, client: usize) {
        self.last += 1;
        self.clients[client] = (quorum(self.members.len(), self.last), Client::default());
        self.clients[client].1.number = self.last;
        if self.below(3) > 0 {
            self.call(client, None, 0, Call::Connect);
        }
    }

    /// One thing that a caller does, or a fault.
    fn step(&mut self) {
        let client = self.below(CLIENTS as u64) as usize;
        let member = self.below(self.members.len() as u64) as usize;
        let (now, time, which) = (self.now, self.below(3 * SECOND), self.random as usize);
        let what = self.below(48);
        let this = &mut self.clients[client].1;
        let call = this
            .calls
            .keys()
            .nth(which % this.calls.len().max(1))
            .copied();
        let guard = this
            .guards
            .keys()
            .nth(which % this.guards.len().max(1))
            .copied();
        let is_running = this.stalled_until <= now;
        match (what, guard, call) {
            (0..=16, ..) if is_running => self.asks(client),
            (17..=26, Some(guard), _) if is_running => {
                let least = (time < SECOND / 2).then(|| Duration::from_nanos(time));
                self.releases(client, guard, least);
            }
            (27, Some(guard), _) if is_running => {
                self.clients[client].1.guards.remove(&guard);
                self.tell(client, |quorum, now| quorum.leave(now, guard));
            }
            (28, Some(guard), _) if is_running => {
                let lease = Duration::from_nanos(time);
                self.call(client, None, 0, Call::Extend { guard, lease });
            }
            (29, Some(guard), _) if is_running => self.tell(client, |it, now| it.look(now, guard)),
            (30..=33, _, Some(call)) if is_running => {
                self.clients[client].1.calls.remove(&call);
                self.tell(client, |quorum, now| quorum.abandon(now, call));
            }
            (34, ..) if is_running => self.call(client, None, MARGIN, Call::Flush),
            (35, ..) if is_running => {
                self.clients[client].1.guards.clear();
                self.tell(client, Quorum::leave_all);
            }
            (36, ..) => {
                self.tell(client, |quorum, now| quorum.handle(now, Event::Closed));
                let calls = std::mem::take(&mut self.clients[client].1.calls);
                self.check_that(calls.is_empty(), || format!("after its process: {calls:?}"));
                self.begins(client);
            }
            (37..=39, ..) if is_running => {
                this.stalled_until = now + time / [1, 100][which % 2];
            }
            (40 | 41, ..) if self.members[member].1.stalled_until <= now => {
                self.members[member].1.stalled_until = now + time / 2;
            }
            (42 | 43, ..) => self.restarts(member, time / 2),
            _ => {
                if let Some(wire) = this.open.values().min().copied() {
                    self.breaks(wire);
                }
            }
        }
    }

    fn asks(&mut self, client: usize) {
        self.last += 1;
        let key = ["a", "b"][self.below(2) as usize];
        let name = format!("owner-{}", self.clients[client].1.number);
        let owner = match self.below(2) {
            0 => Owner::new(name).unwrap(),
            _ => Owner::numbered(&name, self.last),
        };
        let lease = Duration::from_millis(300 + self.below(GRACE_MS - 300));
        let mut terms = Terms::new().lease(lease).unwrap();
        match self.below(8) {
            0 => terms = Terms::new().lease(Lease::Fixed(lease)).unwrap(),
            1 => terms.max_hold = Some(2 * lease),
            2 => terms.bound = Some(lease / 2),
            _ => {}
        }
        let wait = self.below(2 * SECOND);
        let (queueing, limit) = match self.below(4) {
            0 => (Queueing::Try, 0),
            1 => (Queueing::AtMost(Duration::from_nanos(wait)), wait),
            _ => (Queueing::Unlimited, 10 * MARGIN),
        };
        let lock = Lock {
            claims: Claims::new(owner.clone(), key.as_bytes(), &[]),
            ask: Ask::Exclusive,
            value: None,
            terms,
            queueing,
        };
        self.call(client, Some((key, owner)), limit, Call::Lock(lock));
    }

    fn releases(&mut self, client: usize, guard: Id, least: Option<Duration>) {
        self.clients[client].1.guards.remove(&guard);
        self.call(client, None, 0, Call::Release { guard, least });
    }

    fn call(&mut self, client: usize, of: Option<(&'static str, Owner)>, wait: u64, call: Call) {
        let this = &mut self.clients[client].1;
        this.last += 1;
        let number = Id::of_number(this.last);
        this.calls.insert(number, (of, self.now + wait + MARGIN));
        self.tells(|| format!("client {client} calls {number:?}: {call:?}"));
        self.tell(client, |quorum, now| quorum.call(now, number, call));
    }

    /// A member restarts, with or without its keys.
    fn restarts(&mut self, member: usize, time: u64) {
        let wires = self
            .wires
            .iter()
            .filter(|(_, it)| it.member == member && !it.is_cut);
        for wire in Vec::from_iter(wires.map(|(wire, _)| *wire)) {
            self.members[member].0.close(wire);
            self.breaks(wire);
        }
        let (server, it) = &mut self.members[member];
        let keys = match time % 2 {
            0 => std::mem::take(&mut server.core.store),
            _ => Store::default(),
        };
        server.becomes(self.now, true, keys);
        (it.starts, it.down_until) = (it.starts + 1, self.now + time);
        it.grants_from = it.down_until + GRACE_MS * MS;
        let grants_from = server.core.now.plus_millis(time / MS + 1 + GRACE_MS);
        server.core.locks.grant_from(Some(grants_from));
    }

    /// Both ends see the end of a connection, sooner or later.
    fn breaks(&mut self, number: u64) {
        let (soon, late) = (self.below(30 * MS), self.below(2 * SECOND));
        if let Some(wire) = self.wires.get_mut(&number).filter(|wire| !wire.is_cut) {
            wire.is_cut = true;
            self.later(soon, number, What::Ends);
            self.later(late, number, What::Closes);
        }
    }

    fn run_for(&mut self, time: u64) -> Result<(), String> {
        let end = self.now + time;
        for _ in 0..200_000 {
            let agenda = self.agenda.keys().next().map(|(at, _)| (*at, 0, 0));
            let clients = self
                .clients
                .iter()
                .enumerate()
                .filter_map(|(place, (quorum, it))| {
                    Some((
                        quorum.next_deadline()?.nanos().max(it.stalled_until),
                        1,
                        place,
                    ))
                });
            let members = self
                .members
                .iter()
                .enumerate()
                .filter_map(|(place, (server, it))| {
                    Some((server.next_deadline()?.max(it.stalled_until), 2, place))
                });
            let next = agenda.into_iter().chain(clients).chain(members).min();
            let Some((at, kind, place)) = next.filter(|(at, ..)| *at <= end) else {
                self.now = end;
                return Ok(());
            };
            self.now = at.max(self.now);
            match kind {
                0 => self.happens(),
                1 => self.tell(place, |quorum, now| quorum.handle(now, Event::Tick)),
                _ => self.has_acted(place),
            }
            self.wrong.take().map_or(Ok(()), Err)?;
        }
        Err("it never ends".to_owned())
    }

    fn happens(&mut self) {
        let Some((_, (number, what))) = self.agenda.pop_first() else {
            return;
        };
        let wire = self.wires.get_mut(&number).unwrap();
        let (client, member, connection) = (wire.client, wire.member, wire.connection);
        let (this, (server, it)) = (&mut self.clients[client].1, &mut self.members[member]);
        let stalled_until = match what {
            What::Closes | What::ToServer(_) => it.stalled_until,
            _ => this.stalled_until,
        };
        if stalled_until > self.now {
            return self.later(stalled_until - self.now, number, what);
        }
        let is_there = this.open.get(&connection) == Some(&number);
        match what {
            What::ToServer(bytes) if !wire.is_cut => self.arrives(number, &bytes),
            What::Closes => {
                wire.is_cut = true;
                server.set_time(self.now);
                server.close(number);
                self.has_acted(member);
            }
            What::ToClient(bytes) if is_there && !wire.is_cut => {
                let bytes = &bytes[..];
                self.hears(client, Event::Received { connection, bytes });
            }
            What::Opens if is_there && !wire.is_cut && it.down_until <= self.now => {
                server.sessions.insert(number, Session::default());
                self.hears(client, Event::Opened { connection });
            }
            What::Opens | What::Ends if is_there => {
                this.open.remove(&connection);
                let failure = Failure::Io("cut".to_owned());
                self.hears(
                    client,
                    Event::Ended {
                        connection,
                        failure,
                    },
                );
            }
            _ => {}
        }
    }

    fn hears(&mut self, client: usize, event: Event<'_>) {
        self.tell(client, |quorum, now| quorum.handle(now, event));
    }

    fn has_acted(&mut self, member: usize) {
        self.members[member].0.set_time(self.now);
        for other in std::mem::take(&mut self.members[member].0.killed) {
            self.breaks(other);
        }
        for (wire, message) in self.members[member].0.messages() {
            self.passes(wire, message.into_bytes(), false);
        }
    }

    fn arrives(&mut self, number: u64, bytes: &[u8]) {
        let (client, member) = (self.wires[&number].client, self.wires[&number].member);
        let mut decoder = Decoder::default();
        decoder.feed(bytes);
        while let Some(Frame::Array(words)) = decoder.next().expect("a command") {
            let words = words
                .into_iter()
                .map(|word| word.into_text().expect("a word"));
            let words = Vec::from_iter(words);
            let (server, it) = &mut self.members[member];
            server.set_time(self.now);
            let left = it.grants_from.saturating_sub(self.now).div_ceil(MS);
            let reply = match words[0].as_str() {
                "INFO" => bulk(&format!(
                    "run_id:{member}-{}\r\nrole:master\r\nmaster_replid:{member}\r\nrlock_grace_left_ms:{left}\r\n",
                    it.starts
                )),
                "CONFIG" => format!("%1\r\n{}{}", bulk("rlock.startup-grace-ms"), bulk("2000")),
                _ => server.answer(number, &words),
            };
            self.tells(|| format!("member {member}, client {client}: {words:?} -> {reply:?}"));
            let process = self.clients[client].1.number;
            // Every way to ask again has a pause.
            let asked = self
                .asked
                .entry((self.now / SECOND, process, member))
                .or_default();
            *asked += u64::from(words[0].starts_with("RLOCK."));
            let is_rare = *asked <= REQUESTS_MAX;
            self.check_that(is_rare, || format!("client {client} asks too often"));
            self.has_acted(member);
            self.passes(number, reply.into_bytes(), false);
        }
    }

    fn passes(&mut self, number: u64, bytes: Vec<u8>, is_up: bool) {
        let most = [MS, MS, MS, MS, MS, MS, MS, 20 * MS, 20 * MS, SECOND][self.below(10) as usize];
        let most = if self.is_calm { MS } else { most };
        let late = self.below(most).min(self.below(most));
        if self.wires.get(&number).is_some_and(|wire| !wire.is_cut) {
            let arrival = self.arrivals.entry((number, is_up)).or_default();
            *arrival = (self.now + late).max(*arrival + 1);
            let time = *arrival - self.now;
            self.later(
                time,
                number,
                if is_up {
                    What::ToServer
                } else {
                    What::ToClient
                }(bytes),
            );
        }
    }

    /// Passes an input to a client's machine, and carries out its actions.
    fn tell(&mut self, client: usize, input: impl FnOnce(&mut Quorum, Instant)) {
        input(&mut self.clients[client].0, Instant::from_nanos(self.now));
        while let Some(action) = self.clients[client].0.poll_action() {
            self.tells(|| format!("client {client}: {action:?}"));
            let (quorum, this) = &mut self.clients[client];
            match action {
                Action::Connect {
                    connection,
                    address,
                } => {
                    self.last += 1;
                    this.open.insert(connection, self.last);
                    let member = address.to_string()[1..2].parse().unwrap();
                    let is_cut = false;
                    self.wires.insert(
                        self.last,
                        Wire {
                            client,
                            connection,
                            member,
                            is_cut,
                        },
                    );
                    self.later(MS, self.last, What::Opens);
                }
                Action::Write { connection } => {
                    let (wire, mut bytes) = (this.open[&connection], Vec::new());
                    quorum.take_output(connection, &mut bytes);
                    self.passes(wire, bytes, true);
                }
                Action::Close { connection } => {
                    let wire = this.open.remove(&connection).expect("an open connection");
                    let last = self.arrivals.get(&(wire, true)).copied().unwrap_or(0);
                    self.later(last.saturating_sub(self.now) + MS, wire, What::Closes);
                }
                Action::Resolve { call, outcome } => self.resolved(client, call, outcome),
                Action::Over { guard, .. } => {
                    let is_news = this.over.insert(guard);
                    self.check_that(is_news, || format!("{guard:?} is over again"));
                }
                Action::Ended { why, .. } => self.lost += u64::from(why != Loss::Released),
                _ => {}
            }
        }
        self.check(client);
    }

    fn resolved(&mut self, client: usize, call: Id, outcome: Outcome) {
        let expected = self.clients[client].1.calls.remove(&call);
        self.check_that(expected.is_some(), || format!("{call:?} is over again"));
        match (outcome, expected.and_then(|(of, _)| of)) {
            (Outcome::Granted { guard, proofs }, Some((key, owner))) => {
                let proof = Arc::clone(proofs.first());
                if proof.is_live(Instant::from_nanos(self.now)) {
                    self.has_granted(key, &owner, proof.fence());
                }
                self.clients[client]
                    .1
                    .guards
                    .insert(guard, (key, owner, proof));
            }
            (Outcome::Done, None) | (Outcome::Refused, Some(_)) => {}
            (Outcome::Failed(error), of) => {
                let is_usual = match &error {
                    Error::Unavailable { .. } | Error::Closed | Error::Deadlock { .. } => true,
                    Error::Protocol(_) | Error::Denied(_) | Error::Refused(_) => false,
                    _ => of.is_none(),
                };
                self.check_that(is_usual, || format!("{of:?} ends with {error:?}"));
            }
            (other, of) => self.check_that(false, || format!("{of:?} ends with {other:?}")),
        }
    }

    /// A later holder of a key has a larger fence.
    fn has_granted(&mut self, key: &'static str, owner: &Owner, fence: u64) {
        self.granted += 1;
        let before = self.fences.insert(key, (fence, owner.clone()));
        if let Some((last, of)) = before {
            self.entered += u64::from(last == fence);
            let is_larger = last < fence || (last == fence && of == *owner);
            self.check_that(is_larger, || {
                format!("{key}: {fence} of {owner} after {last} of {of}")
            });
        }
    }

    fn check(&mut self, told: usize) {
        let now = Instant::from_nanos(self.now);
        let guards = self.clients.iter().flat_map(|(quorum, it)| {
            let valid = |guard: &Id| !quorum.remaining(*guard, now).is_zero();
            it.guards.iter().filter(move |(guard, _)| valid(guard))
        });
        let valid = Vec::from_iter(guards.map(|(_, it)| it));
        let mut pairs = valid
            .iter()
            .flat_map(|one| valid.iter().map(move |other| (one, other)));
        let two = pairs.find(|(one, other)| one.0 == other.0 && one.1 != other.1);
        let two = two.map(|two| format!("held at once: {two:?}"));
        let (quorum, this) = &self.clients[told];
        let untold = this.guards.iter().find(|(guard, (_, _, proof))| {
            let is_live = proof.is_live(now);
            is_live == this.over.contains(guard)
                || (!is_live && !quorum.remaining(**guard, now).is_zero())
        });
        let untold = untold.map(|it| format!("client {told}: the end is not told rightly: {it:?}"));
        let is_late = |latest: u64| latest.max(this.stalled_until + MARGIN) < self.now;
        let late = this.calls.iter().find(|(_, (_, latest))| is_late(*latest));
        let late = late.map(|late| format!("client {told}: no outcome in time of {late:?}"));
        self.wrong = self.wrong.take().or(two).or(untold).or(late);
    }

    fn check_that(&mut self, is_right: bool, wrong: impl FnOnce() -> String) {
        if !is_right {
            self.wrong.get_or_insert_with(wrong);
        }
    }

    fn tells(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            println!("{} {}", self.now / 1000, what());
        }
    }

    fn later(&mut self, time: u64, wire: u64, what: What) {
        self.last += 1;
        self.agenda
            .insert((self.now + time, self.last), (wire, what));
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}

/// The machine of a process with that number.
fn quorum(members: usize, process: u64) -> Quorum {
    let members = (0..members).map(|member| {
        let mut settings = Settings::default();
        (settings.channel, settings.seed) = (format!("{process}-{member}"), process);
        (format!("redis://m{member}").parse().unwrap(), settings)
    });
    Quorum::new(members.collect(), false).unwrap()
}
