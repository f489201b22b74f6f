//! Clients, servers, and what happens when.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rlock_embed::Machine;
use rlock_embed::format::NONE;
use rlock_embed::messages::{Action, Event, Together, read_output};

use crate::calls::{Call, Dropped, Guard};
use crate::configuration::configured;
use crate::hosts::{Forgotten, Host, Shard, Slots};
use crate::network::Wire;
use crate::steps::Step;
use crate::twin::{Twin, Wasm};
use crate::typed::Typed;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;
pub(crate) const CLIENTS: usize = 3;
/// The name of each is one letter.
const MACHINES_MAX: u8 = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    One,
    /// One server that turns out to be in a cluster.
    Node,
    /// Two masters with their replicas.
    Cluster,
    /// One of two servers is the master, as three Sentinels say.
    Sentinels,
    /// Quorums.
    Three,
    Five,
}

impl Kind {
    pub(crate) fn urls(self) -> &'static [&'static str] {
        match self {
            Self::One | Self::Node => &["redis://m"],
            Self::Cluster => &["redis+cluster://m:6379,n:6379"],
            Self::Sentinels => &["redis+sentinel://s,t,u/main"],
            Self::Three => &["redis://m", "redis://n", "redis://o"],
            Self::Five => &[
                "redis://m",
                "redis://n",
                "redis://o",
                "redis://p",
                "redis://q",
            ],
        }
    }

    pub(crate) fn is_quorum(self) -> bool {
        matches!(self, Self::Three | Self::Five)
    }

    /// The masters, and whether each has a replica.
    pub(crate) fn shards(self) -> (usize, bool) {
        match self {
            Self::One | Self::Node => (1, false),
            Self::Cluster => (2, true),
            Self::Sentinels => (1, true),
            Self::Three => (3, false),
            Self::Five => (5, false),
        }
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) events: u64,
    pub(crate) grants: u64,
    /// Guards that ended without their caller.
    pub(crate) losses: u64,
    pub(crate) connections: u64,
    /// Invalid events.
    pub(crate) refused: u64,
    /// Reports to observers.
    pub(crate) changes: u64,
    /// Releases of some permits.
    pub(crate) parts: u64,
    pub(crate) moves: u64,
    pub(crate) fail_overs: u64,
}

impl Seen {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            grants: self.grants + other.grants,
            losses: self.losses + other.losses,
            connections: self.connections + other.connections,
            refused: self.refused + other.refused,
            changes: self.changes + other.changes,
            parts: self.parts + other.parts,
            moves: self.moves + other.moves,
            fail_overs: self.fail_overs + other.fail_overs,
        }
    }
}

pub(crate) struct World<'a> {
    pub(crate) kind: Kind,
    wasm: Option<&'a Wasm>,
    pub(crate) now: u64,
    random: u64,
    last: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) slots: Slots,
    /// The server that each Sentinel names, and its epoch.
    pub(crate) named: [(usize, u64); 3],
    pub(crate) clients: Vec<Client>,
    machines: u8,
    /// By the servers' IDs.
    pub(crate) wires: BTreeMap<u64, Wire>,
    /// Whether clients may close their earlier connections.
    pub(crate) may_kill: bool,
    /// How often each client has sent each request to each server in this second.
    pub(crate) asked: (u64, HashMap<String, u64>),
    /// The last fence of each key's exclusive holds, and its holder.
    pub(crate) fences: BTreeMap<String, (u64, String)>,
    /// How far clocks have gone back: later grants may have smaller fences, and holds last longer.
    pub(crate) set_back: u64,
    pub(crate) forgotten: Vec<Forgotten>,
    /// The locks that the servers must keep: by key and owner, until when.
    pub(crate) kept: Vec<(String, String, u64)>,
    /// When such a promise was last broken.
    pub(crate) disturbed: u64,
    /// When a replica last took over, which may not know of the last releases.
    pub(crate) failed_over: u64,
    /// Until when a dead process may hold something.
    pub(crate) left_until: u64,
    /// No more faults happen.
    pub(crate) is_calm: bool,
    /// Guards end as soon as they are granted.
    pub(crate) is_ending: bool,
    /// Only what a script says happens: callers drop no guards by themselves, and servers can be reached.
    pub(crate) is_scripted: bool,
    pub(crate) wrong: Option<String>,
    pub(crate) is_told: bool,
    pub(crate) seen: Seen,
}

pub(crate) struct Client {
    pub(crate) typed: Typed,
    /// The encoding, unless it is left out.
    pub(crate) machine: Option<Machine>,
    pub(crate) twin: Option<Twin>,
    /// It changes with each end of its process.
    pub(crate) number: u8,
    deadline: u64,
    pub(crate) stopped_until: u64,
    /// It reads nothing until then.
    pub(crate) reads_from: u64,
    /// Until when a fault affects its connections.
    pub(crate) disturbed: u64,
    /// Whether a request of an earlier connection may still be carried out.
    pub(crate) is_unsure: bool,
    /// The longest lease that it has asked for.
    pub(crate) longest: u64,
    pub(crate) last: u64,
    pub(crate) calls: BTreeMap<u64, Call>,
    pub(crate) guards: BTreeMap<u64, Guard>,
    /// The guards that were dropped, by owner. Their permits may be there until the client is closed.
    pub(crate) dropped: BTreeMap<String, Dropped>,
    /// The owners of holds that may be there without a guard: one is kept, or a release has no answer.
    pub(crate) given_up: BTreeSet<String>,
    /// The guard that was dropped when it was granted, and when: later reports about it may have come by then.
    pub(crate) left: Option<(u64, u64)>,
    pub(crate) is_closing: bool,
    /// How many waits, and how many holds, its listener has not heard the end of.
    pub(crate) unheard: (i64, i64),
    /// The server's IDs of its connections.
    pub(crate) open: BTreeMap<u64, u64>,
    pub(crate) connected: BTreeSet<u64>,
    /// Until when it cannot connect to a server, and whether it is refused.
    pub(crate) unreachable: BTreeMap<usize, (u64, bool)>,
}

pub(crate) enum Happening {
    Opens(u64),
    /// A client sees the end of a connection, or that there is none.
    Ends(u64),
    ServerSees(u64),
    ToServer(u64, Vec<u8>),
    ToClient(u64, Vec<u8>),
    /// A host has waited long enough for its clean-up.
    Closes(usize, u8),
    Returns(usize),
    Fails(
        usize,
        crate::steps::Outage,
        u64,
        rlock_testkit::core::store::Store,
    ),
    Promoted(usize, rlock_testkit::core::store::Store),
    Named(usize),
    Learns(usize),
    KeyMoves(&'static str),
    HasMoved,
    Agree(u16),
    /// With a client's call; the client is the process with this number.
    Meddled(usize, u8, u64, u8),
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", " ")
}

fn shown(action: &Action<'_>) -> String {
    match action {
        Action::Write { connection, bytes } => {
            format!("Write {connection} {}", text(bytes.0))
        }
        other => format!("{other:?}"),
    }
}

/// The deadline and the actions; the text of a note is not compared.
fn comparable(output: &[u8]) -> (u64, Vec<Action<'_>>) {
    let (deadline, mut actions) = read_output(output).expect("an output");
    for action in &mut actions {
        if let Action::Note { level, text } = action {
            (*level, *text) = (rlock_embed::messages::Level::Debug, "");
        }
    }
    (deadline, actions)
}

impl<'a> World<'a> {
    pub(crate) fn new(kind: Kind, seed: u64, wasm: Option<&'a Wasm>, is_told: bool) -> Self {
        let (shards, has_spare) = kind.shards();
        let shards = (0..shards).map(|master| Shard {
            master,
            spare: has_spare.then_some(master + shards),
            is_failing: false,
            next_failover: 0,
        });
        let mut world = Self {
            kind,
            wasm,
            now: SECOND,
            random: seed,
            last: 0,
            agenda: BTreeMap::new(),
            hosts: Vec::new(),
            shards: shards.collect(),
            slots: Slots::default(),
            named: [(0, 1); 3],
            clients: Vec::new(),
            machines: 0,
            wires: BTreeMap::new(),
            may_kill: true,
            asked: Default::default(),
            fences: BTreeMap::new(),
            set_back: 0,
            forgotten: Vec::new(),
            kept: Vec::new(),
            disturbed: 0,
            failed_over: 0,
            left_until: 0,
            is_calm: false,
            is_ending: false,
            is_scripted: false,
            wrong: None,
            is_told,
            seen: Seen::default(),
        };
        world.may_kill = world.below(4) > 0;
        world.add_hosts();
        for _ in 0..CLIENTS {
            let client = world.begins();
            world.clients.push(client);
        }
        world
    }

    /// A process with its own machine, whose name is unique.
    pub(crate) fn begins(&mut self) -> Client {
        self.machines += 1;
        let name = char::from(b'*' + self.machines).to_string();
        let (urls, is_quorum) = (self.kind.urls(), self.kind.is_quorum());
        let together = match is_quorum {
            true => Together::Quorum,
            false => Together::Single,
        };
        let configuration = configured(urls, together, &name);
        // Only the typed machine can split and merge guards.
        let is_encoded = self.below(4) > 0;
        let wasm = self.wasm.filter(|_| is_encoded);
        Client {
            typed: Typed::new(urls, is_quorum, &name, !is_encoded),
            machine: is_encoded.then(|| Machine::new(&configuration).unwrap()),
            twin: wasm.map(|wasm| wasm.open(&configuration).unwrap()),
            number: self.machines,
            deadline: NONE,
            stopped_until: 0,
            reads_from: 0,
            disturbed: self.now,
            is_unsure: false,
            longest: 0,
            last: 0,
            calls: BTreeMap::new(),
            guards: BTreeMap::new(),
            dropped: BTreeMap::new(),
            given_up: BTreeSet::new(),
            left: None,
            is_closing: false,
            unheard: (0, 0),
            open: BTreeMap::new(),
            connected: BTreeSet::new(),
            unreachable: BTreeMap::new(),
        }
    }

    pub(crate) fn may_begin(&self) -> bool {
        self.machines < MACHINES_MAX
    }

    pub(crate) fn play(&mut self, script: &[Step]) -> Result<(), String> {
        self.play_only(script)?;
        self.end()
    }

    /// The same without the clean-up at the end.
    pub(crate) fn play_only(&mut self, script: &[Step]) -> Result<(), String> {
        for step in script {
            self.says(|| format!("{step:?}"));
            match step {
                Step::Pass { time } => self.run_for(*time)?,
                step => {
                    self.step(step);
                    let time = self.below(3 * MS);
                    self.run_for(time)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn run_for(&mut self, time: u64) -> Result<(), String> {
        let end = self.now + time;
        for _ in 0..200_000 {
            let next = self.agenda.first_key_value().map(|(at, _)| at.0);
            let ticks = self.clients.iter().enumerate();
            let tick = ticks.map(|(it, client)| (client.deadline.max(client.stopped_until), it));
            let tick = tick.min().filter(|(at, _)| *at != NONE);
            let server = self.next_of_hosts();
            let all = [next, tick.map(|it| it.0), server.map(|it| it.0)];
            let Some(first) = all.into_iter().flatten().min().filter(|it| *it <= end) else {
                self.now = end;
                return self.wrong.take().map_or(Ok(()), Err);
            };
            self.now = first.max(self.now);
            self.seen.events += 1;
            if next == Some(first) {
                if let Some(((_, number), happening)) = self.agenda.pop_first() {
                    self.happens(number, happening);
                }
            } else if let Some((_, client)) = tick.filter(|(at, _)| *at == first) {
                self.tell(client, &Event::Tick {});
            } else if let Some((_, host)) = server {
                self.hosts[host].server.set_time(self.now);
                self.has_acted(host);
            }
            self.check_all();
            if let Some(wrong) = self.wrong.take() {
                return Err(wrong);
            }
        }
        Err("it never ends".to_owned())
    }

    fn happens(&mut self, number: u64, happening: Happening) {
        match happening {
            Happening::Opens(_) | Happening::Ends(_) | Happening::ToClient(..) => {
                self.reaches_client(number, happening);
            }
            Happening::ServerSees(_) | Happening::ToServer(..) => {
                self.reaches_server(number, happening);
            }
            Happening::Closes(client, number) => {
                if self.clients[client].number == number {
                    self.has_closed(client);
                }
            }
            Happening::Returns(host) => self.returns(host),
            Happening::Fails(shard, outage, back, copy) => self.fails(shard, outage, back, copy),
            Happening::Promoted(shard, copy) => self.is_promoted(shard, copy),
            Happening::Named(sentinel) => {
                let epoch = self.named[sentinel].1 + 1;
                self.named[sentinel] = (self.shards[0].master, epoch);
            }
            Happening::Learns(host) => self.hosts[host].view = self.view(),
            Happening::KeyMoves(key) => self.key_moves(key),
            Happening::HasMoved => self.has_moved(),
            Happening::Agree(slot) => self.agrees(slot),
            Happening::Meddled(client, number, call, how) => {
                if self.clients[client].number == number {
                    self.has_meddled(client, call, how);
                }
            }
        }
    }

    /// Passes an event to all machines, carries out their actions, and then notifies callers.
    pub(crate) fn tell(&mut self, client: usize, event: &Event<'_>) {
        let now = self.now;
        let this = &mut self.clients[client];
        let output = this.typed.handle(now, event);
        let (deadline, actions) = comparable(&output);
        if self.is_told {
            match event {
                Event::Received { connection, bytes } => {
                    println!(
                        "{} client {client}: {connection} {}",
                        now / 1000,
                        text(bytes.0)
                    );
                }
                event => println!("{} client {client}: {event:?}", now / 1000),
            }
            actions.iter().for_each(|it| println!("  {}", shown(it)));
        }
        if let Some(machine) = &mut this.machine {
            let bytes = event.to_bytes();
            let encoded = machine.handle(now, &bytes, Vec::new());
            let twin = this.twin.as_mut().map(|it| it.handle(now, &bytes));
            let Ok(encoded) = encoded else {
                return self.is_wrong(|| format!("refused: {event:?}"));
            };
            if comparable(&encoded) != (deadline, actions.clone()) {
                let wrong = format!(
                    "{event:?}: {actions:?}, encoded: {:?}",
                    read_output(&encoded)
                );
                return self.is_wrong(|| wrong);
            }
            if twin.is_some_and(|it| it.as_ref() != Some(&encoded)) {
                return self.is_wrong(|| format!("{event:?}: {actions:?}, but not WebAssembly"));
            }
        }
        self.clients[client].deadline = deadline;
        if deadline != NONE && !self.is_calm && self.below(8) == 0 {
            // Timers are late sometimes.
            self.clients[client].deadline += self.below(20 * MS);
        }
        self.carries_out(client, actions);
    }

    pub(crate) fn carries_out(&mut self, client: usize, actions: Vec<Action<'_>>) {
        let mut told = Vec::new();
        for action in actions {
            match action {
                Action::Connect {
                    connection, host, ..
                } => self.connects(client, connection, host),
                Action::Write { connection, bytes } => match self.session(client, connection) {
                    Some(session) if self.wires[&session].is_open => {
                        self.passes(session, bytes.0, true);
                    }
                    _ => self.is_wrong(|| format!("{connection} is not open to be written to")),
                },
                Action::Close { connection } => match self.session(client, connection) {
                    Some(session) => self.client_ends(session),
                    None => self.is_wrong(|| format!("{connection} is not there to be closed")),
                },
                other => told.push(other),
            }
        }
        for action in told {
            self.told(client, action);
        }
        self.check_told(client);
    }

    pub(crate) fn is_wrong(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    pub(crate) fn says(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            println!("{} {}", self.now / 1000, what());
        }
    }

    pub(crate) fn session(&self, client: usize, connection: u64) -> Option<u64> {
        self.clients[client].open.get(&connection).copied()
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn later(&mut self, time: u64, happening: Happening) {
        self.last += 1;
        self.agenda.insert((self.now + time, self.last), happening);
    }

    /// Does something that is due only then, in its old order.
    pub(crate) fn not_before(&mut self, time: u64, number: u64, happening: Happening) {
        self.agenda.insert((time, number), happening);
    }

    pub(crate) fn closes_by(&mut self, client: usize, time: u64) {
        let number = self.clients[client].number;
        self.later(time, Happening::Closes(client, number));
    }

    /// Kept locks may be gone from here on.
    pub(crate) fn disturbs(&mut self) {
        self.disturbed = self.now;
        self.kept.clear();
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}
