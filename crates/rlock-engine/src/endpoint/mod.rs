//! A client without its sockets, its clock and its threads: bytes in, bytes
//! out.
//!
//! The input of an endpoint: that a connection is open, which bytes came by it,
//! that it has ended, and what time it is ([`Endpoint::handle`]). It says which
//! address to connect to, that there are bytes to write, and what became of a
//! call ([`Endpoint::poll_action`]). It wants the time again at
//! [`Endpoint::next_deadline`]. The caller decides nothing, so it can be done
//! with any runtime and in any language.
//!
//! The [`Engine`] in it decides about locks. What is here gives the engine its
//! connections:
//!
//! - `connection`: one connection, its greeting, and the replies it owes;
//! - `keeper`: which connection each server has, and when there is a new one;
//! - `sentinels`, `cluster`: where the servers are;
//! - `beside`: requests that go by a connection of their own;
//! - `questions`: what is asked and changes nothing;
//! - `observers`: who learns who leads at a key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::claims::Owner;
use crate::engine::instant::Instant;
use crate::engine::node::{Node, Routes};
use crate::engine::proof::Proof;
use crate::engine::request::{Reply, Request};
use crate::engine::terms::whole_ms;
use crate::engine::{self, Engine, Id};
use crate::error::{Error, Failure, Fault, Loss};
use crate::servers::{Address, Login, Servers};
use crate::wire::requests;
use crate::wire::resp::{Command, Frame};

mod beside;
mod cluster;
mod connection;
mod keeper;
mod observers;
mod questions;
mod sentinels;

use beside::Beside;
use cluster::Cluster;
pub use connection::Greeting;
use connection::{Connection, Expected, Purpose, What};
use keeper::{Keeper, Start};
use observers::Watch;
pub use observers::{Change, Proclaimed};
use questions::Question;
pub use questions::To;
use sentinels::Sentinels;

/// The longest name of a client, which its connections and owners begin with.
const NAME_LEN_MAX: usize = 64;

/// A connection, by its number; none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// The connection of that [`number`](Self::number).
    #[must_use]
    pub const fn of_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number, for a pump that is not written in Rust.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Whether a server may be used, by what it says of itself; why not.
pub type Check = Arc<dyn Fn(Instant, &Greeting) -> Result<(), String> + Send + Sync>;

/// How long a client goes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a server may take to connect, and to answer.
    pub response: Duration,
    /// How long calls go on that do not wait for a lock.
    pub retry: Duration,
    /// How long replicas may take to say what they know.
    pub replication: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            response: Duration::from_secs(5),
            retry: Duration::from_secs(10),
            replication: Duration::from_secs(1),
        }
    }
}

/// How a client behaves.
#[derive(Clone)]
pub struct Settings {
    /// How long it goes on.
    pub limits: Limits,
    /// What connections are called on the server.
    pub name: Option<String>,
    /// What the library is called there, and its version.
    pub library: (String, String),
    /// The name of this client's channels. Who knows it can speak on them, so
    /// it must not be guessed.
    pub channel: String,
    /// Spreads the pauses of many clients.
    pub seed: u64,
    /// What a server has to be fit for.
    pub check: Option<Check>,
    /// Whether questions are all that servers are asked. Then they need not have
    /// the module, be masters, or let the user subscribe. Each question is asked
    /// once, and an error that a server answers with is an answer, too.
    pub is_probe: bool,
}

impl Default for Settings {
    /// Those of a client without a name that asks any server.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            name: None,
            library: (
                env!("CARGO_PKG_NAME").into(),
                env!("CARGO_PKG_VERSION").into(),
            ),
            channel: String::new(),
            seed: 0,
            check: None,
            is_probe: false,
        }
    }
}

impl Settings {
    /// Checks what users choose.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a limit of zero or above 30 days, and for a name
    /// that no owner can begin with, or of more than 64 bytes.
    pub fn check(&self) -> Result<(), Error> {
        whole_ms("response_timeout", self.limits.response)?;
        whole_ms("retry_timeout", self.limits.retry)?;
        whole_ms("replication_timeout", self.limits.replication)?;
        let is_name = |name: &String| name.len() <= NAME_LEN_MAX && Owner::new(name).is_ok();
        match &self.name {
            Some(name) if !is_name(name) => Err(Error::OutOfRange {
                argument: "name",
                value: format!("{name:?}"),
                limit: format!(
                    "1 to {NAME_LEN_MAX} bytes without spaces, not starting with `rlock:`"
                )
                .into(),
            }),
            _ => Ok(()),
        }
    }
}

/// What happens.
pub enum Event<'a> {
    /// Connect, if it has not. Resolved as done once a server is connected and is
    /// known to have the module, and as failed if it cannot be.
    Start {
        /// Its number.
        call: Id,
    },
    /// Connect, and again whenever the connection is gone; resolves nothing.
    Begin,
    /// A call begins, goes on or is given up.
    Call(engine::Event),
    /// A question begins, resolved by its answer; without a limit it is asked
    /// until it is abandoned.
    Question {
        /// Its number.
        call: Id,
        /// Who is asked.
        to: To,
        /// What has one reply.
        command: Command,
        /// Whether it changes something. Then it is not asked again where it may
        /// have been carried out.
        changes: bool,
        /// How long it may take.
        limit: Option<Duration>,
    },
    /// Somebody wants to know who leads at a key, now and after each change; told
    /// by [`Action::Observed`].
    Observe {
        /// Its number.
        observer: Id,
        /// The key.
        key: Arc<[u8]>,
    },
    /// That observer is gone.
    Unobserve {
        /// Its number.
        observer: Id,
    },
    /// What [`Action::Connect`] asked for is there.
    Opened {
        /// Its number.
        connection: ConnectionId,
    },
    /// These bytes came by it, after all that came before.
    Received {
        /// Its number.
        connection: ConnectionId,
        /// What was read.
        bytes: &'a [u8],
    },
    /// It could not be made, or has ended.
    Ended {
        /// Its number.
        connection: ConnectionId,
        /// Why.
        failure: Failure,
    },
    /// There will be no connection any more.
    Closed,
    /// Time has passed.
    Tick,
}

/// What to do, in this order.
#[derive(Debug)]
pub enum Action {
    /// Make a connection, and say when it is open or why it is not.
    Connect {
        /// What it is called from now on.
        connection: ConnectionId,
        /// Where to.
        address: Address,
    },
    /// There is output for a connection; [`Endpoint::take_output`] gives it.
    Write {
        /// Its number.
        connection: ConnectionId,
    },
    /// Close a connection; nothing more is expected by it.
    Close {
        /// Its number.
        connection: ConnectionId,
    },
    /// The call is over.
    Resolve {
        /// Its number.
        call: Id,
        /// How it ended.
        outcome: Outcome,
    },
    /// Wake those who wait for the end of a hold, and log it if it was lost.
    Over {
        /// The hold.
        proof: Arc<Proof>,
        /// How it ended.
        why: Loss,
    },
    /// Tell an observer who leads from now on.
    Observed {
        /// Its number.
        observer: Id,
        /// Who leads; or why nothing more comes.
        change: Result<Change, Error>,
    },
    /// Everything that needed cleaning up at the request is clean.
    Flushed {
        /// The number of what was asked.
        flush: Id,
    },
    /// Something that may be logged.
    Note(Note),
}

/// How a call or a question ends.
#[derive(Debug)]
pub enum Outcome {
    /// The outcome of a call, or of the start.
    Lock(engine::Outcome),
    /// What a server said to a question.
    Answer(Frame),
    /// There is no answer.
    Failed(Error),
}

/// What happened to a connection.
#[derive(Clone, Debug)]
pub enum Note {
    /// A server can be asked.
    Connected {
        /// Where it is.
        address: String,
    },
    /// It cannot yet.
    NotConnected {
        /// Why.
        failure: Failure,
    },
    /// It cannot any more.
    Lost {
        /// Where it is.
        address: String,
    },
    /// A connection is given up, because nothing was heard for too long.
    Silent,
    /// Sentinels name another server.
    NamedElsewhere,
    /// A server said what is not understood here.
    UnknownMessage(Vec<u8>),
    /// Nobody says which server has which slots.
    NoRoutes {
        /// Why.
        failure: Failure,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Connection(ConnectionId),
    Keeper(Node),
    Sentinels,
    Cluster,
    Question(Id),
    Watches,
}

/// Where the servers are.
enum Source {
    One(Address),
    Sentinels(Sentinels),
    Cluster(Cluster),
}

/// A client without its sockets; see the documentation of this module.
pub struct Endpoint {
    engine: Engine,
    settings: Settings,
    login: Login,
    source: Source,
    keepers: BTreeMap<Node, Keeper>,
    connections: BTreeMap<ConnectionId, Connection>,
    questions: BTreeMap<Id, Question>,
    /// What is observed at which key, and the key of each observer.
    watches: BTreeMap<Arc<[u8]>, Watch>,
    /// Those that are tried again, and when.
    paused_watches: BTreeSet<(Instant, Arc<[u8]>)>,
    observers: BTreeMap<Id, Arc<[u8]>>,
    beside: Vec<Beside>,
    start: Option<Start>,
    timers: BTreeSet<(Instant, Timer)>,
    actions: VecDeque<Action>,
    is_closed: bool,
    last: u64,
}

impl Source {
    fn new(servers: Servers) -> (Self, Login) {
        match servers {
            Servers::One { address, login } => (Self::One(address), login),
            Servers::Sentinels {
                sentinels,
                sentinel_login,
                master,
                tls,
                login,
            } => {
                let sentinels = Sentinels::new(sentinels, sentinel_login, master, tls);
                (Self::Sentinels(sentinels), login)
            }
            Servers::Cluster { nodes, login } => (Self::Cluster(Cluster::new(nodes)), login),
        }
    }
}

impl Endpoint {
    /// One that does nothing before it is enabled.
    #[must_use]
    pub fn new(servers: Servers, settings: Settings) -> Self {
        let (source, login) = Source::new(servers);
        let routes = match &source {
            Source::One(_) | Source::Sentinels(_) => Routes::One,
            Source::Cluster(_) => Routes::Slots(Box::default()),
        };
        let limits = (settings.limits.retry, settings.limits.replication);
        Self {
            engine: Engine::new(limits, settings.seed, routes),
            settings,
            login,
            source,
            keepers: BTreeMap::new(),
            connections: BTreeMap::new(),
            questions: BTreeMap::new(),
            watches: BTreeMap::new(),
            paused_watches: BTreeSet::new(),
            observers: BTreeMap::new(),
            beside: Vec::new(),
            start: None,
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            is_closed: false,
            last: 0,
        }
    }

    /// A number for a call, a question, an observer or a flush that begins.
    pub fn next_id(&mut self) -> Id {
        self.engine.next_id()
    }

    /// Takes what happens, and when; what follows is in
    /// [`poll_action`](Self::poll_action).
    pub fn handle(&mut self, now: Instant, event: Event<'_>) {
        match event {
            Event::Start { call } => self.start(now, call),
            Event::Begin => {
                let node = Node::default();
                self.engine.handle(now, engine::Event::Need { node });
            }
            Event::Call(engine::Event::Abandon { call })
                if self.leave_start(call) || self.forget_question(call) => {}
            Event::Call(event) => self.engine.handle(now, event),
            Event::Question {
                call,
                to,
                command,
                changes,
                limit,
            } => self.question(now, call, to, (command, changes), limit),
            Event::Observe { observer, key } => self.observe(now, observer, key),
            Event::Unobserve { observer } => self.unobserve(now, observer),
            Event::Opened { connection } => self.opened(now, connection),
            Event::Received { connection, bytes } => self.received(now, connection, bytes),
            Event::Ended {
                connection,
                failure,
            } => self.ended(now, connection, failure),
            Event::Closed => self.close(now),
            Event::Tick => {}
        }
        self.settle(now);
    }

    /// What to do next; none until something happens.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send the time again, unless something happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let own = self.timers.first().map(|(due, _)| *due);
        own.into_iter().chain(self.engine.next_deadline()).min()
    }

    /// Exchanges the bytes to write to a connection for `empty`.
    pub fn take_output(&mut self, connection: ConnectionId, empty: &mut Vec<u8>) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            std::mem::swap(&mut connection.output, empty);
        }
    }

    /// What is known of the locks.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Sets how long a connection may be quiet at most while it is needed.
    pub fn set_quiet(&mut self, quiet: Duration) {
        self.engine.set_quiet(quiet);
    }

    /// The servers that have keys.
    #[must_use]
    pub fn nodes(&self) -> BTreeSet<Node> {
        self.engine.routes().nodes()
    }

    /// Whether a server can be asked.
    #[must_use]
    pub fn is_connected(&self, node: Node) -> bool {
        self.main_connection(node).is_some()
    }

    /// Whether there will be no connection any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether the servers are a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self.source, Source::Cluster(_))
    }

    /// Why there is no connection to some server.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.keepers.values().find_map(Keeper::failure)
    }

    /// Where a server is, as far as is known, for people.
    #[must_use]
    pub fn address(&self, node: Node) -> String {
        let main = self
            .main_connection(node)
            .and_then(|main| self.connections.get(&main));
        match (main, &self.source) {
            (Some(main), _) => main.address.to_string(),
            (None, Source::One(address)) => address.to_string(),
            (None, Source::Sentinels(sentinels)) => sentinels.master().to_owned(),
            (None, Source::Cluster(cluster)) => cluster.address_text(node),
        }
    }

    /// Does what has become due, and what follows from it.
    fn settle(&mut self, now: Instant) {
        loop {
            self.follow_engine(now);
            let due = self.timers.first().copied().filter(|(due, _)| *due <= now);
            if let Some(first) = due {
                self.timers.remove(&first);
                self.fire(now, first.1);
            } else if self.engine.next_deadline().is_some_and(|due| due <= now) {
                self.engine.handle(now, engine::Event::Tick);
            } else {
                return;
            }
        }
    }

    fn fire(&mut self, now: Instant, alarm: Timer) {
        match alarm {
            Timer::Connection(connection) => self.connection_is_due(now, connection),
            Timer::Keeper(node) => self.keeper_is_due(now, node),
            Timer::Sentinels => self.sentinels_are_due(now),
            Timer::Cluster => self.cluster_is_due(now),
            Timer::Question(call) => self.question_is_due(now, call),
            Timer::Watches => self.paused_watches_go_on(now),
        }
    }

    /// Carries out what the engine says.
    fn follow_engine(&mut self, now: Instant) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                engine::Action::Send {
                    id,
                    connection,
                    request,
                    ..
                } => self.send(now, id, ConnectionId(connection), request),
                engine::Action::Resolve { call, outcome } => {
                    let outcome = self.explained(outcome);
                    self.resolve(call, outcome);
                }
                engine::Action::Over { proof, why } => {
                    self.actions.push_back(Action::Over { proof, why });
                }
                engine::Action::Connect { node } => self.keep(now, node),
                engine::Action::Retire { connection } => {
                    self.note(Note::Silent);
                    self.give_up(now, ConnectionId(connection), silent());
                }
                engine::Action::Flushed { flush } => {
                    self.actions.push_back(Action::Flushed { flush });
                }
            }
        }
    }

    /// Says why there is no connection, which the engine does not know.
    fn explained(&self, mut outcome: engine::Outcome) -> Outcome {
        if let engine::Outcome::Failed(Error::Unavailable { source, .. }) = &mut outcome
            && source.is_none()
        {
            *source = self.failure().cloned();
        }
        Outcome::Lock(outcome)
    }

    fn resolve(&mut self, call: Id, outcome: Outcome) {
        self.actions.push_back(Action::Resolve { call, outcome });
    }

    fn note(&mut self, note: Note) {
        self.actions.push_back(Action::Note(note));
    }

    /// Sends a request by a connection; one that has ended is as good as one
    /// that ends now.
    fn send(&mut self, now: Instant, id: Id, main: ConnectionId, request: Request) {
        if request.goes_beside() {
            return self.send_beside(now, id, main, request);
        }
        let Some(connection) = self.connections.get_mut(&main) else {
            return self.answered(now, id, Err(Fault::Broken(silent())));
        };
        let Some(channel) = &connection.channel else {
            return;
        };
        let was_empty = connection.output.is_empty();
        let left = requests::encode(&request, channel, &mut connection.output);
        connection.expected.push_back(Expected {
            sent: now,
            what: What::Request {
                id,
                request,
                left,
                replies: Vec::new(),
            },
        });
        self.has_output(now, main, was_empty);
    }

    /// Has the output of a connection written, and its reply waited for.
    fn has_output(&mut self, now: Instant, id: ConnectionId, was_empty: bool) {
        if was_empty {
            self.actions.push_back(Action::Write { connection: id });
        }
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.alarm.is_none()
        {
            let due = now + connection.limit;
            connection.alarm = Some(due);
            self.timers.insert((due, Timer::Connection(id)));
        }
    }

    /// Takes the reply to a request, and first what it says of other servers.
    fn answered(&mut self, now: Instant, request: Id, result: Result<Reply, Fault>) {
        let result = match result {
            Err(Fault::Moved(error)) if !self.is_cluster() => {
                Err(Fault::Refused(Error::Refused(error)))
            }
            result => result,
        };
        if let Err(Fault::Moved(error) | Fault::Passing(Failure::Server(error))) = &result {
            let asked = self.engine.server_of(request);
            let error = error.clone();
            self.redirected(now, &error, asked);
        }
        self.engine
            .handle(now, engine::Event::Reply { request, result });
    }

    fn close(&mut self, now: Instant) {
        self.is_closed = true;
        for (connection, _) in std::mem::take(&mut self.connections) {
            self.actions.push_back(Action::Close { connection });
        }
        self.timers.clear();
        self.beside.clear();
        self.keepers.clear();
        self.start_ends(Err(Error::Closed));
        self.watches_are_closed();
        for (call, _) in std::mem::take(&mut self.questions) {
            self.resolve(call, Outcome::Failed(Error::Closed));
        }
        self.engine.handle(now, engine::Event::Closed);
    }

    fn new_connection(
        &mut self,
        now: Instant,
        purpose: Purpose,
        address: Address,
        limit: Duration,
    ) -> ConnectionId {
        self.last += 1;
        let id = ConnectionId(self.last);
        self.actions.push_back(Action::Connect {
            connection: id,
            address: address.clone(),
        });
        let until = now + limit;
        self.timers.insert((until, Timer::Connection(id)));
        let connection = Connection::new(purpose, address, now, until, limit);
        self.connections.insert(id, connection);
        id
    }

    /// Forgets a connection, with its alarm.
    fn remove_connection(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        if let Some(alarm) = connection.alarm {
            self.timers.remove(&(alarm, Timer::Connection(id)));
        }
        Some(connection)
    }
}

/// Why there is no answer from a connection that is of no more use.
fn silent() -> Failure {
    Failure::Io("given up".to_owned())
}
