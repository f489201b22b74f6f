//! A client without sockets, clock and threads: bytes in, bytes out.
//!
//! An endpoint takes events and the time ([`Endpoint::handle`]): a connection
//! is open, it has brought bytes, or it has ended. It returns actions
//! ([`Endpoint::poll_action`]): connect to an address, write bytes, report the
//! outcome of a call. The caller must pass the time again at
//! [`Endpoint::next_deadline`]. The caller makes no decisions, so it can use
//! any runtime and any language.
//!
//! The [`Engine`] inside decides about locks. The modules here manage its
//! connections:
//!
//! - `connection`: one connection, its greeting, and the replies that the server
//!   owes;
//! - `main_connection`: the main connection of each server, and its replacement;
//! - `sentinels`, `cluster`: the addresses of the servers;
//! - `separate`: requests that use separate connections;
//! - `questions`: requests that are not about this client's holds;
//! - `observers`: reports of the leader at a key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::claims::{Claims, Owner};
use crate::engine::instant::Instant;
use crate::engine::node::{Node, Routes};
use crate::engine::proof::Proof;
use crate::engine::request::{Reply, Request};
use crate::engine::terms::{millis, whole_ms};
use crate::engine::{self, Engine, Id};
use crate::error::{Error, Failure, Fault, Loss};
use crate::servers::{Address, Login, Servers};
use crate::wire::requests;
use crate::wire::resp::{Command, Frame};

mod cluster;
mod connection;
mod main_connection;
mod observers;
mod questions;
mod sentinels;
mod separate;

use cluster::Cluster;
pub use connection::Greeting;
use connection::{Connection, Expected, Purpose, ReplyKind};
use main_connection::{MainConnection, Start};
use observers::Watch;
pub use observers::{Change, Proclaimed};
use questions::Question;
pub use questions::To;
use sentinels::Sentinels;
use separate::SeparateConnection;

/// The longest name of a client; its connections and owners begin with the name.
const NAME_LEN_MAX: usize = 64;

/// A connection, by its number; no number is used twice.
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

/// Checks a server's own report, and returns the reason if the server must not
/// be used.
pub type Check = Arc<dyn Fn(Instant, &Greeting) -> Result<(), String> + Send + Sync>;

/// The time limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a server may take to connect, and to answer.
    pub response: Duration,
    /// How long calls that do not wait for a lock are retried.
    pub retry: Duration,
    /// How long replicas may take to acknowledge.
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
    /// The time limits.
    pub limits: Limits,
    /// The name of its connections on the server.
    pub name: Option<String>,
    /// The name and version of the library, as the server shows them.
    pub library: (String, String),
    /// A part of the names of this client's channels. It must be secret: a user who
    /// knows it can publish on them.
    pub channel: String,
    /// Spreads the pauses of many clients.
    pub seed: u64,
    /// The requirements on a server.
    pub check: Option<Check>,
    /// Whether the client only asks questions. Then the servers need neither
    /// the module nor the role of a master, and the user needs no subscription.
    /// Each question is asked once, and an error from the server counts as an
    /// answer.
    pub is_probe: bool,
}

impl Default for Settings {
    /// The settings of a client without a name that uses any server.
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
    /// Checks the settings that users choose.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a limit of zero or above 30 days, and for a name
    /// that is longer than 64 bytes or cannot begin an owner.
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

/// Input of an endpoint.
pub enum Event<'a> {
    /// Connect, unless connected. Resolved as done once a server is connected and
    /// is known to have the module, and as failed if that is impossible.
    Start {
        /// Its number.
        call: Id,
    },
    /// Connect, and reconnect whenever the connection ends; resolves nothing.
    Begin,
    /// A call begins, continues or is abandoned.
    Call(engine::Event),
    /// A question begins. Its answer resolves it. Without a limit it is repeated
    /// until it is abandoned.
    Question {
        /// Its number.
        call: Id,
        /// The server to ask.
        to: To,
        /// The command, which has one reply.
        command: Command,
        /// Whether it changes something. If so, it is not repeated once it may
        /// have been carried out.
        changes: bool,
        /// How long it may take.
        limit: Option<Duration>,
    },
    /// Asks for the leader at a key, now and after each change; answered by
    /// [`Action::Observed`].
    Observe {
        /// Its number.
        observer: Id,
        /// The key.
        key: Arc<[u8]>,
    },
    /// An observer ends.
    Unobserve {
        /// Its number.
        observer: Id,
    },
    /// A connection that [`Action::Connect`] asked for is open.
    Opened {
        /// Its number.
        connection: ConnectionId,
    },
    /// A connection has brought these bytes, after all earlier ones.
    Received {
        /// Its number.
        connection: ConnectionId,
        /// What was read.
        bytes: &'a [u8],
    },
    /// A connection has failed to open or has ended.
    Ended {
        /// Its number.
        connection: ConnectionId,
        /// Why.
        failure: Failure,
    },
    /// There will be no more connections.
    Closed,
    /// Time has passed.
    Tick,
}

/// Output of an endpoint; carried out in order.
#[derive(Debug)]
pub enum Action {
    /// Open a connection, and report when it is open or why it is not.
    Connect {
        /// The number of the new connection.
        connection: ConnectionId,
        /// The address.
        address: Address,
    },
    /// A connection has output; [`Endpoint::take_output`] returns it.
    Write {
        /// Its number.
        connection: ConnectionId,
    },
    /// Close a connection; nothing more is expected from it.
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
    /// Wake the tasks that wait for the end of a hold, and log a loss.
    Over {
        /// The hold.
        proof: Arc<Proof>,
        /// How it ended.
        why: Loss,
    },
    /// Tell the holders that no renewal of a hold has been confirmed for half of its
    /// lease.
    AtRisk {
        /// The hold.
        proof: Arc<Proof>,
        /// When it is lost, unless a renewal succeeds.
        left: Duration,
    },
    /// Report a new leader to an observer.
    Observed {
        /// Its number.
        observer: Id,
        /// The leader, or why there are no more reports.
        change: Result<Change, Error>,
    },
    /// The clean-up that was pending at the flush is done.
    Flushed {
        /// The number of the flush.
        flush: Id,
        /// What could not be released; [`Error::NotReleased`].
        failed: Option<Error>,
    },
    /// An event for a log.
    Note(Note),
}

/// How a call or a question ends.
#[derive(Debug)]
pub enum Outcome {
    /// The outcome of a call or of the start.
    Lock(engine::Outcome),
    /// A server's answer to a question.
    Answer(Frame),
    /// There is no answer.
    Failed(Error),
}

/// What happened to a connection.
#[derive(Clone, Debug)]
pub enum Note {
    /// A server is connected.
    Connected {
        /// Its address.
        address: String,
    },
    /// A connection to a server failed. It is retried.
    NotConnected {
        /// Its address.
        address: String,
        /// Why.
        failure: Failure,
        /// Whether the user should see it: once per outage, and once more at
        /// the first failure that is not transient. False if the failure ends
        /// [`Event::Start`].
        is_news: bool,
    },
    /// A server is no longer connected.
    Lost {
        /// Its address.
        address: String,
    },
    /// A connection is closed because nothing has arrived for too long.
    Silent,
    /// Sentinels name another server.
    NamedElsewhere,
    /// A server sent a message that this client does not understand.
    UnknownMessage(Vec<u8>),
    /// The server refused to renew a hold; once until a renewal succeeds. Renewing
    /// is retried until the hold is lost.
    NotRenewed {
        /// Its keys and their owner.
        claims: Claims,
        /// The server's error.
        reason: String,
    },
    /// No renewal of a hold has been confirmed for half of its lease; once until a
    /// renewal succeeds.
    AtRisk {
        /// Its keys and their owner.
        claims: Claims,
        /// For how long.
        since: Duration,
        /// When it is lost, unless a renewal succeeds.
        left: Duration,
    },
    /// The server refused to release a hold that nobody releases by a call.
    NotReleased {
        /// Its keys and their owner.
        claims: Claims,
        /// The server's error.
        reason: String,
    },
    /// No server reports the slots. The servers are asked again.
    NoRoutes {
        /// Why.
        failure: Failure,
        /// Whether the user should see it, as for
        /// [`NotConnected`](Self::NotConnected).
        is_news: bool,
    },
}

impl Note {
    /// The text of a warning that the user should see, the same in all languages;
    /// none for other notes.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let (what, why) = match self {
            Self::NotConnected {
                address,
                failure,
                is_news: true,
            } => {
                let what = match failure {
                    Failure::Server(_) => format!("{address} refuses the connection"),
                    _ => format!("cannot reach {address}"),
                };
                (what, failure.reason(address))
            }
            Self::NoRoutes {
                failure,
                is_news: true,
            } => ("cannot reach the cluster".to_owned(), failure.to_string()),
            Self::NotRenewed { claims, reason } => {
                (format!("cannot renew {}", claims.label()), reason.clone())
            }
            Self::AtRisk {
                claims,
                since,
                left,
            } => {
                let [since, left] = [since, left].map(|it| Duration::from_millis(millis(*it)));
                let why = format!("no renewal for {since:?}, lost in {left:?}");
                (format!("{} is at risk", claims.label()), why)
            }
            Self::NotReleased { claims, reason } => {
                let key = claims.label();
                return Some(format!(
                    "cannot release {key} ({reason}), it becomes free when its lease ends"
                ));
            }
            _ => return None,
        };
        Some(format!("{what} ({why}), trying again"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Connection(ConnectionId),
    MainConnection(Node),
    Sentinels,
    Cluster,
    Question(Id),
    Watches,
}

/// How to find the servers.
enum Source {
    One(Address),
    Sentinels(Sentinels),
    Cluster(Cluster),
}

/// A client without sockets; see the documentation of this module.
pub struct Endpoint {
    engine: Engine,
    settings: Settings,
    login: Login,
    source: Source,
    main_connections: BTreeMap<Node, MainConnection>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// What is still to be written by the connections that were there at the end.
    last_output: BTreeMap<ConnectionId, Vec<u8>>,
    questions: BTreeMap<Id, Question>,
    /// The observed keys, and the key of each observer.
    watches: BTreeMap<Arc<[u8]>, Watch>,
    /// The watches that are retried, and when.
    paused_watches: BTreeSet<(Instant, Arc<[u8]>)>,
    observers: BTreeMap<Id, Arc<[u8]>>,
    separate: Vec<SeparateConnection>,
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
    /// A new endpoint, which does nothing before its first event.
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
            main_connections: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_output: BTreeMap::new(),
            questions: BTreeMap::new(),
            watches: BTreeMap::new(),
            paused_watches: BTreeSet::new(),
            observers: BTreeMap::new(),
            separate: Vec::new(),
            start: None,
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            is_closed: false,
            last: 0,
        }
    }

    /// A number for a new call, question, observer or flush.
    pub fn next_id(&mut self) -> Id {
        self.engine.next_id()
    }

    /// Takes an event and its moment. The resulting actions are in
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

    /// The next action; none until the next event.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send [`Event::Tick`], unless another event comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let own = self.timers.first().map(|(due, _)| *due);
        own.into_iter().chain(self.engine.next_deadline()).min()
    }

    /// Exchanges the output of a connection for `empty`.
    pub fn take_output(&mut self, connection: ConnectionId, empty: &mut Vec<u8>) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            std::mem::swap(&mut connection.output, empty);
        } else if let Some(output) = self.last_output.remove(&connection) {
            *empty = output;
        }
    }

    /// The state of the locks.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The pause before the next attempt, after `attempts` failed ones.
    pub(crate) fn pause(&mut self, attempts: u32) -> Duration {
        self.engine.pause(attempts)
    }

    /// Sets the longest silence of a connection that is needed.
    pub fn set_quiet(&mut self, quiet: Duration) {
        self.engine.set_quiet(quiet);
    }

    /// See [`Engine::tell_renewals`].
    pub fn tell_renewals(&mut self) {
        self.engine.tell_renewals();
    }

    /// See [`Engine::next_renewed`].
    pub fn next_renewed(&mut self) -> Option<Id> {
        self.engine.next_renewed()
    }

    /// The servers that have keys.
    #[must_use]
    pub fn nodes(&self) -> BTreeSet<Node> {
        self.engine.routes().nodes()
    }

    /// Whether a call or a question of this number is in progress.
    #[must_use]
    pub fn is_in_progress(&self, call: Id) -> bool {
        self.engine.is_in_progress(call)
            || self.questions.contains_key(&call)
            || self.is_starting(call)
    }

    /// Whether a server is connected.
    #[must_use]
    pub fn is_connected(&self, node: Node) -> bool {
        self.main_connection(node).is_some()
    }

    /// Whether there will be no more connections.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether the servers are a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self.source, Source::Cluster(_))
    }

    /// Why a server is not connected, if one is not.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.main_connections
            .values()
            .find_map(MainConnection::failure)
    }

    /// The address of a server for display; if it is not known, a substitute
    /// such as the master's name.
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

    /// Carries out everything that is due, and the consequences.
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

    fn fire(&mut self, now: Instant, timer: Timer) {
        match timer {
            Timer::Connection(connection) => self.connection_is_due(now, connection),
            Timer::MainConnection(node) => self.main_connection_is_due(now, node),
            Timer::Sentinels => self.sentinels_are_due(now),
            Timer::Cluster => self.cluster_is_due(now),
            Timer::Question(call) => self.question_is_due(now, call),
            Timer::Watches => self.resume_paused_watches(now),
        }
    }

    /// Carries out the actions of the engine.
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
                engine::Action::NotRenewed { claims, reason } => {
                    self.note(Note::NotRenewed { claims, reason });
                }
                engine::Action::AtRisk { proof, since, left } => {
                    let claims = proof.claims.clone();
                    self.note(Note::AtRisk {
                        claims,
                        since,
                        left,
                    });
                    self.actions.push_back(Action::AtRisk { proof, left });
                }
                engine::Action::Connect { node } => self.keep(now, node),
                engine::Action::Retire { connection } => {
                    self.note(Note::Silent);
                    self.give_up(now, ConnectionId(connection), silent());
                }
                engine::Action::NotReleased { claims, reason } => {
                    self.note(Note::NotReleased { claims, reason });
                }
                engine::Action::Flushed { flush, failed } => {
                    self.actions.push_back(Action::Flushed { flush, failed });
                }
            }
        }
    }

    /// Adds the reason why there is no connection, which the engine does not
    /// know.
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

    /// Sends a request by a connection. If the connection has already ended,
    /// the request fails as if the connection ended now.
    fn send(&mut self, now: Instant, id: Id, main: ConnectionId, request: Request) {
        // No separate connection would open in time, and nobody needs its answer.
        if request.is_separate() && !self.is_closed {
            return self.send_separately(now, id, main, request);
        }
        let Some(connection) = self.connections.get_mut(&main) else {
            return self.answered(now, id, Err(Fault::Broken(silent())));
        };
        let Some(channel) = &connection.channel else {
            return;
        };
        let was_empty = connection.output.is_empty();
        let (command, output) = (&mut connection.command, &mut connection.output);
        let left = requests::encode(&request, channel, command, output);
        connection.expected.push_back(Expected {
            sent: now,
            kind: ReplyKind::Request {
                id,
                request,
                left,
                replies: Vec::new(),
            },
        });
        self.has_output(now, main, was_empty);
    }

    /// Requests a write of a connection's output, and sets its timer for the
    /// reply.
    fn has_output(&mut self, now: Instant, id: ConnectionId, was_empty: bool) {
        if was_empty {
            self.actions.push_back(Action::Write { connection: id });
        }
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.timer_due.is_none()
        {
            let due = now + connection.limit;
            connection.timer_due = Some(due);
            self.timers.insert((due, Timer::Connection(id)));
        }
    }

    /// Handles the reply to a request; first, what it says about other servers.
    fn answered(&mut self, now: Instant, request: Id, result: Result<Reply, Fault>) {
        let result = match result {
            Err(Fault::Moved(error)) if !self.is_cluster() => {
                Err(Fault::Refused(Error::Refused(error)))
            }
            result => result,
        };
        if let Err(Fault::Moved(error) | Fault::Transient(Failure::Server(error))) = &result {
            let asked = self.engine.server_of(request);
            let error = error.clone();
            self.redirected(now, &error, asked);
        }
        self.engine
            .handle(now, engine::Event::Reply { request, result });
    }

    fn close(&mut self, now: Instant) {
        self.is_closed = true;
        self.engine.handle(now, engine::Event::Closed);
        self.follow_engine(now);
        for (id, connection) in std::mem::take(&mut self.connections) {
            self.actions.push_back(Action::Close { connection: id });
            self.last_output.insert(id, connection.output);
        }
        self.timers.clear();
        self.separate.clear();
        self.main_connections.clear();
        self.start_ends(Err(Error::Closed));
        self.watches_are_closed();
        for (call, _) in std::mem::take(&mut self.questions) {
            self.resolve(call, Outcome::Failed(Error::Closed));
        }
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

    /// Forgets a connection and its timer.
    fn remove_connection(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        if let Some(due) = connection.timer_due {
            self.timers.remove(&(due, Timer::Connection(id)));
        }
        Some(connection)
    }
}

/// Why a connection that can no longer be used gives no answer.
fn silent() -> Failure {
    Failure::Io("given up".to_owned())
}
