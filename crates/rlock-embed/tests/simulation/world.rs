//! Machines, a server, and bytes in transit.

use std::collections::{BTreeMap, HashMap};

use rlock_embed::Machine;
use rlock_embed::format::{Data, NONE};
use rlock_embed::messages::{Action, Event, Fault, read_output};
use rlock_engine::wire::resp::{Decoder, Frame};
use rlock_testkit::core::server::{Server, Session, bulk};
use rlock_testkit::core::store::Store;

use crate::calls::{Call, Guard};
use crate::configuration::configuration;
use crate::twin::{Twin, Wasm};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;
/// When an end notices that the connection is gone although nobody closed it.
const KEEPALIVE: u64 = 11 * SECOND;
pub(crate) const CLIENTS: usize = 3;
/// How often a command may arrive in a second.
const REPEATED_MAX: u64 = 16;
/// The name of each is one letter.
const MACHINES_MAX: u8 = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    One,
    /// One server that turns out to be in a cluster.
    Node,
    Cluster,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) events: u64,
    pub(crate) grants: u64,
    pub(crate) connections: u64,
    /// Invalid events.
    pub(crate) refused: u64,
    /// Reports to observers.
    pub(crate) changes: u64,
    /// Releases of some permits.
    pub(crate) parts: u64,
}

impl Seen {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            grants: self.grants + other.grants,
            connections: self.connections + other.connections,
            refused: self.refused + other.refused,
            changes: self.changes + other.changes,
            parts: self.parts + other.parts,
        }
    }
}

pub(crate) struct World<'a> {
    kind: Kind,
    wasm: Option<&'a Wasm>,
    pub(crate) now: u64,
    random: u64,
    last: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    pub(crate) server: Server,
    /// How often it got each command in this second.
    asked: (u64, HashMap<String, u64>),
    is_down: bool,
    pub(crate) clients: Vec<Client>,
    machines: u8,
    wires: BTreeMap<u64, Wire>,
    /// The last fence of each key's exclusive holds, and its holder.
    pub(crate) fences: BTreeMap<String, (u64, String)>,
    /// Grants of a key up to this fence may appear valid beside others: the server has forgotten them, or an operator
    /// has ended them.
    pub(crate) doubtful: BTreeMap<String, u64>,
    /// The locks that the server must keep: by key and owner, until when.
    pub(crate) kept: Vec<(String, String, u64)>,
    /// When such a promise was last broken.
    pub(crate) disturbed: u64,
    /// Until when a dead process may hold something.
    pub(crate) left_until: u64,
    pub(crate) is_ending: bool,
    pub(crate) wrong: Option<String>,
    pub(crate) is_told: bool,
    pub(crate) seen: Seen,
}

pub(crate) struct Client {
    pub(crate) machine: Machine,
    pub(crate) twin: Twin,
    /// It changes with each end of its process.
    pub(crate) number: u8,
    deadline: u64,
    pub(crate) stopped_until: u64,
    pub(crate) last: u64,
    pub(crate) calls: BTreeMap<u64, Call>,
    pub(crate) guards: BTreeMap<u64, Guard>,
    /// The guard that was dropped when it was granted, and when: later reports about it may have come by then.
    pub(crate) left: Option<(u64, u64)>,
    pub(crate) is_closing: bool,
    /// The server's IDs of its connections.
    pub(crate) open: BTreeMap<u64, u64>,
    connected: u64,
}

/// A connection, by the server's ID.
struct Wire {
    client: usize,
    connection: u64,
    decoder: Decoder,
    is_open: bool,
    /// Nothing arrives by it any more.
    is_cut: bool,
    /// When the last bytes arrive at each end: nothing overtakes.
    at_server: u64,
    at_client: u64,
}

enum Happening {
    Opens(u64),
    /// A client sees the end of a connection, or that there is none.
    Ends(u64),
    ServerSees(u64),
    ToServer(u64, Vec<u8>),
    ToClient(u64, Vec<u8>),
    Returns,
    /// A host has waited long enough for its clean-up.
    Closes(usize, u8),
}

fn shown(action: &Action<'_>) -> String {
    match action {
        Action::Write { connection, bytes } => {
            let text = String::from_utf8_lossy(bytes.0);
            format!("Write {connection} {}", text.replace("\r\n", " "))
        }
        other => format!("{other:?}"),
    }
}

impl<'a> World<'a> {
    pub(crate) fn new(kind: Kind, seed: u64, wasm: Option<&'a Wasm>, is_told: bool) -> Self {
        let mut server = Server::new(true);
        server.mode = match kind {
            Kind::One => "standalone",
            Kind::Node | Kind::Cluster => "cluster",
        };
        let mut world = Self {
            kind,
            wasm,
            now: SECOND,
            random: seed,
            last: 0,
            agenda: BTreeMap::new(),
            server,
            asked: Default::default(),
            is_down: false,
            clients: Vec::new(),
            machines: 0,
            wires: BTreeMap::new(),
            fences: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            kept: Vec::new(),
            disturbed: 0,
            left_until: 0,
            is_ending: false,
            wrong: None,
            is_told,
            seen: Seen::default(),
        };
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
        let url = match self.kind {
            Kind::One | Kind::Node => "redis://m",
            Kind::Cluster => "redis+cluster://m:6379",
        };
        let configuration = configuration(url, &name);
        Client {
            machine: Machine::new(&configuration).unwrap(),
            twin: Twin::new(self.wasm, &configuration),
            number: self.machines,
            deadline: NONE,
            stopped_until: 0,
            last: 0,
            calls: BTreeMap::new(),
            guards: BTreeMap::new(),
            left: None,
            is_closing: false,
            open: BTreeMap::new(),
            connected: 0,
        }
    }

    pub(crate) fn may_begin(&self) -> bool {
        self.machines < MACHINES_MAX
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.kind != Kind::One
    }

    pub(crate) fn play(&mut self, script: &[[u8; 6]]) -> Result<(), String> {
        for step in script {
            self.step(step);
            let time = match step[5] % 8 {
                0 => 12 * MS,
                1..=3 => MS / 2,
                _ => MS / 20,
            };
            self.run_for(u64::from(step[4]) * time)?;
        }
        self.end()
    }

    pub(crate) fn run_for(&mut self, time: u64) -> Result<(), String> {
        let end = self.now + time;
        for _ in 0..100_000 {
            let next = self.agenda.first_key_value().map(|(at, _)| at.0);
            let ticks = self.clients.iter().enumerate();
            let tick = ticks.map(|(it, client)| (client.deadline.max(client.stopped_until), it));
            let tick = tick.min().filter(|(at, _)| *at != NONE);
            let server = self.server.next_deadline().filter(|_| !self.is_down);
            let all = [next, tick.map(|it| it.0), server];
            let Some(first) = all.into_iter().flatten().min().filter(|it| *it <= end) else {
                self.now = end;
                return self.wrong.take().map_or(Ok(()), Err);
            };
            self.now = first.max(self.now);
            self.seen.events += 1;
            if next == Some(first) {
                if let Some((_, happening)) = self.agenda.pop_first() {
                    self.happens(happening);
                }
            } else if let Some((_, client)) = tick.filter(|(at, _)| *at == first) {
                self.tell(client, Event::Tick {});
            } else {
                self.server.set_time(self.now);
                self.has_acted();
            }
            if let Some(wrong) = self.wrong.take() {
                return Err(wrong);
            }
        }
        Err("it never ends".to_owned())
    }

    /// Passes an event to both machines, carries out their actions, and then notifies callers.
    pub(crate) fn tell(&mut self, client: usize, event: Event<'_>) {
        let (now, bytes) = (self.now, event.to_bytes());
        let this = &mut self.clients[client];
        let output = this.machine.handle(now, &bytes, Vec::new());
        let same = this.twin.handle(now, &bytes);
        let Ok(output) = output else {
            return self.is_wrong(|| format!("refused: {event:?}"));
        };
        let (deadline, actions) = read_output(&output).unwrap();
        if self.is_told {
            println!("{} client {client}: {event:?}", now / 1000);
            actions.iter().for_each(|it| println!("  {}", shown(it)));
        }
        if same.as_ref() != Some(&output) {
            let same = same.as_deref().map(read_output);
            return self.is_wrong(|| format!("{event:?}: {actions:?}, but its twin: {same:?}"));
        }
        this.deadline = deadline;
        if deadline != NONE && self.below(8) == 0 {
            // Timers are late sometimes.
            self.clients[client].deadline += self.below(20 * MS);
        }
        let mut told = Vec::new();
        for action in actions {
            match action {
                Action::Connect { connection, .. } => self.connects(client, connection),
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
        self.check(client);
    }

    pub(crate) fn is_wrong(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    fn session(&self, client: usize, connection: u64) -> Option<u64> {
        self.clients[client].open.get(&connection).copied()
    }

    fn connects(&mut self, client: usize, connection: u64) {
        self.last += 1;
        self.seen.connections += 1;
        let (session, this) = (self.last, &mut self.clients[client]);
        if connection <= this.connected {
            return self.is_wrong(|| format!("connection {connection} was there before"));
        }
        this.connected = connection;
        this.open.insert(connection, session);
        let wire = Wire {
            client,
            connection,
            decoder: Decoder::default(),
            is_open: false,
            is_cut: false,
            at_server: 0,
            at_client: 0,
        };
        self.wires.insert(session, wire);
        // Sometimes nobody answers at all.
        if self.is_ending || self.below(30) != 0 {
            let late = self.delay();
            self.later(late, Happening::Opens(session));
        }
    }

    /// A client ends a connection; the server sees that after all written bytes.
    pub(crate) fn client_ends(&mut self, session: u64) {
        let late = self.below(20 * MS);
        let now = self.now;
        let wire = &self.wires[&session];
        let late = match wire.is_cut {
            true => KEEPALIVE,
            false => wire.at_server.max(now) - now + late,
        };
        self.clients[wire.client].open.remove(&wire.connection);
        self.later(late, Happening::ServerSees(session));
    }

    /// A connection ends at the server, and soon after at its client.
    fn server_ends(&mut self, session: u64) {
        let soon = self.below(30 * MS);
        if let Some(wire) = self.wires.get_mut(&session).filter(|wire| !wire.is_cut) {
            wire.is_cut = true;
            self.later(soon, Happening::Ends(session));
        }
        self.later(0, Happening::ServerSees(session));
    }

    /// A connection breaks: both ends see it, one of them, or none.
    pub(crate) fn cut(&mut self, client: usize, which: u8, how: u8) {
        let open: Vec<u64> = self.clients[client].open.values().copied().collect();
        let Some(session) = open.get(usize::from(which) % open.len().max(1)).copied() else {
            return;
        };
        if let Some(wire) = self.wires.get_mut(&session) {
            wire.is_cut = true;
        }
        if how.is_multiple_of(2) {
            let late = self.below(30 * MS);
            self.later(late, Happening::Ends(session));
        }
        let late = match how / 2 % 2 {
            0 => self.below(30 * MS),
            _ => KEEPALIVE,
        };
        self.later(late, Happening::ServerSees(session));
    }

    /// The server restarts, with or without its keys.
    pub(crate) fn restarts(&mut self, keeps: bool, time: u64) {
        if self.is_down {
            return;
        }
        self.server.set_time(self.now);
        let keys = match keeps {
            true => std::mem::take(&mut self.server.core.store),
            false => Store::default(),
        };
        self.server.becomes(self.now, true, keys);
        let sessions: Vec<u64> = self.server.sessions.keys().copied().collect();
        for session in sessions {
            self.server_ends(session);
        }
        self.is_down = true;
        self.later(time, Happening::Returns);
    }

    fn happens(&mut self, happening: Happening) {
        let session = match &happening {
            Happening::Opens(session)
            | Happening::Ends(session)
            | Happening::ToClient(session, _) => *session,
            _ => return self.happens_there(happening),
        };
        let (client, connection) = (self.wires[&session].client, self.wires[&session].connection);
        if self.session(client, connection) != Some(session) {
            return;
        }
        let stopped_until = self.clients[client].stopped_until;
        if stopped_until > self.now {
            return self.later(stopped_until - self.now, happening);
        }
        let (is_down, is_cut) = (self.is_down, self.wires[&session].is_cut);
        let event = match happening {
            Happening::ToClient(_, bytes) => {
                if is_cut {
                    return;
                }
                let bytes = Data(&bytes);
                return self.tell(client, Event::Received { connection, bytes });
            }
            Happening::Opens(_) if !is_down => {
                if !is_cut {
                    self.server.sessions.insert(session, Session::default());
                }
                self.wires.get_mut(&session).unwrap().is_open = true;
                Event::Opened { connection }
            }
            _ => {
                self.clients[client].open.remove(&connection);
                let failure = [Fault::Io, Fault::Time][self.below(2) as usize];
                let text = "cut";
                Event::Ended {
                    connection,
                    failure,
                    text,
                }
            }
        };
        self.tell(client, event);
    }

    fn happens_there(&mut self, happening: Happening) {
        match happening {
            Happening::ServerSees(session) => {
                if let Some(wire) = self.wires.get_mut(&session) {
                    wire.is_cut = true;
                    self.server.set_time(self.now);
                    self.server.close(session);
                    self.has_acted();
                }
            }
            Happening::ToServer(session, bytes) => self.arrives(session, &bytes),
            Happening::Returns => self.is_down = false,
            Happening::Closes(client, number) => {
                if self.clients[client].number == number {
                    self.has_closed(client);
                }
            }
            Happening::Opens(_) | Happening::Ends(_) | Happening::ToClient(..) => {}
        }
    }

    /// Delivers the messages about the server's actions.
    pub(crate) fn has_acted(&mut self) {
        for other in std::mem::take(&mut self.server.killed) {
            self.server_ends(other);
        }
        for (session, message) in self.server.messages() {
            self.passes(session, message.as_bytes(), false);
        }
    }

    fn arrives(&mut self, session: u64, bytes: &[u8]) {
        let Some(wire) = self.wires.get_mut(&session).filter(|wire| !wire.is_cut) else {
            return;
        };
        wire.decoder.feed(bytes);
        let mut commands = Vec::new();
        while let Some(Frame::Array(words)) = wire.decoder.next().expect("a command") {
            let words = words.into_iter().map(Frame::into_text);
            commands.push(words.collect::<Option<Vec<_>>>().expect("words"));
        }
        for words in commands {
            self.server.set_time(self.now);
            let reply = self.answer(session, &words);
            if self.is_told {
                println!(
                    "{} server: {} -> {reply:?}",
                    self.now / 1000,
                    words.join(" ")
                );
            }
            self.has_acted();
            self.passes(session, reply.as_bytes(), false);
        }
    }

    /// Every way to ask again for a lock has a pause.
    fn counts(&mut self, words: &[String]) {
        let (second, asked) = &mut self.asked;
        if *second != self.now / SECOND {
            (*second, *asked) = (self.now / SECOND, HashMap::new());
        }
        let times = asked.entry(words.join(" ")).or_default();
        *times += 1;
        // Callers may ask who holds a lock as often as they like.
        if *times > REPEATED_MAX && words[0] == "RLOCK.ACQUIRE" {
            self.is_wrong(|| format!("{REPEATED_MAX} times in a second: {words:?}"));
        }
    }

    fn answer(&mut self, session: u64, words: &[String]) -> String {
        self.counts(words);
        let second = words.get(1).map_or("", String::as_str);
        match (words[0].as_str(), second) {
            ("WAIT", _) => format!(":{}\r\n", self.below(8).min(1)),
            ("CLUSTER", "SLOTS") => {
                let host = bulk("m");
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{host}:6379\r\n")
            }
            ("CLUSTER", "INFO") => bulk("cluster_state:ok\r\ncluster_current_epoch:1\r\n"),
            ("RLOCK.MACQUIRE", _) if self.is_cluster() => {
                "-CROSSSLOT not understood\r\n".to_owned()
            }
            (command, _) if command.starts_with("RLOCK.A") && !self.is_ending => {
                match self.below(200) {
                    0 => "-LOADING or whatever passes\r\n".to_owned(),
                    _ => self.server.answer(session, words),
                }
            }
            _ => self.server.answer(session, words),
        }
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
            let (late, now) = (self.delay(), self.now);
            let Some(wire) = self.wires.get_mut(&session).filter(|wire| !wire.is_cut) else {
                return;
            };
            let at = match is_up {
                true => &mut wire.at_server,
                false => &mut wire.at_client,
            };
            *at = (now + late).max(*at + 1);
            let (time, piece) = (*at - now, piece.to_vec());
            let arrives = match is_up {
                true => Happening::ToServer(session, piece),
                false => Happening::ToClient(session, piece),
            };
            self.later(time, arrives);
        }
    }

    fn later(&mut self, time: u64, happening: Happening) {
        self.last += 1;
        self.agenda.insert((self.now + time, self.last), happening);
    }

    pub(crate) fn closes_by(&mut self, client: usize, time: u64) {
        let number = self.clients[client].number;
        self.later(time, Happening::Closes(client, number));
    }

    /// The delay of a delivery: usually short, sometimes long.
    fn delay(&mut self) -> u64 {
        match self.below(60) {
            0 if !self.is_ending => self.below(SECOND),
            1..=5 => self.below(50 * MS),
            _ => self.below(MS),
        }
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}
