//! The main connection of each server, and its replacement when it ends.

use std::time::Duration;

use crate::endpoint::connection::{Connection, Expected, Purpose, ReplyKind};
use crate::endpoint::{
    Action, ConnectionId, Endpoint, Note, Outcome, Source, Timer, To, sentinels,
};
use crate::engine::instant::Instant;
use crate::engine::node::{Node, Routes, slot_of};
use crate::engine::{self, Id};
use crate::error::{Error, Failure, Fault};
use crate::servers::Address;
use crate::wire::replies::Identity;
use crate::wire::requests::Channel;
use crate::wire::resp::Frame;

/// A connection of this age resets the count of failures.
const SETTLED: Duration = Duration::from_secs(5);
/// The number of names that are tried until one is in a slot of the server. For a
/// server with a single slot, they fail in less than 0.1 % of cases.
const TAGS_MAX: u32 = 120_000;

/// How many connections to former masters are remembered.
const ELSEWHERE_MAX: usize = 16;

/// The main connection of a server.
#[derive(Debug, Default)]
pub(super) struct MainConnection {
    stage: Stages,
    /// Failures since the last connection that worked.
    attempts: u32,
    /// Earlier connections that may still be open there; none where the server
    /// did not report its identity.
    pub(super) earlier: Vec<Option<Identity>>,
    /// Why there is no connection.
    failure: Option<Failure>,
    outage: Outage,
}

/// Which failures of the current outage of a server the user has seen.
#[derive(Debug, Default)]
pub(super) enum Outage {
    /// None, or there is no outage.
    #[default]
    Unreported,
    /// A transient failure.
    Transient,
    /// A failure that is not transient, such as a wrong password.
    Permanent,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Stages {
    /// Not needed.
    #[default]
    Idle,
    /// The Sentinels are asked for the address.
    Finding,
    Connecting(ConnectionId),
    Up {
        main: ConnectionId,
        since: Instant,
    },
    /// The next attempt is at this moment.
    Pause(Instant),
}

/// The first connection, for which a caller waits.
#[derive(Debug)]
pub(super) struct Start {
    /// The number of the question whether the module is loaded.
    pub(super) call: Id,
    /// The calls that wait, usually with that question first.
    calls: Vec<Id>,
    /// The server that is being tried.
    tried: Node,
    /// The servers of a cluster that were not tried yet; none before the slots
    /// are known.
    left: Option<Vec<Node>>,
    failures: Vec<(String, Failure)>,
    /// Whether the question about the module was sent.
    is_checking: bool,
}

impl Start {
    /// Whether it waits for the slots: no server is tried or asked yet.
    fn is_open(&self) -> bool {
        self.left.is_none() && !self.is_checking
    }
}

impl Outage {
    /// Whether the user should see this failure too; records that it was shown.
    pub(super) fn is_news(&mut self, failure: &Failure) -> bool {
        let (is_news, known) = match (&self, failure.is_transient()) {
            (Self::Unreported, true) => (true, Self::Transient),
            (Self::Unreported | Self::Transient, false) => (true, Self::Permanent),
            _ => return false,
        };
        *self = known;
        is_news
    }
}

impl MainConnection {
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// These were asked to be closed by a connection with the identity `by`. What is open
    /// at another server stays: that one may become the master again.
    fn were_closed(&mut self, asked: &[Option<Identity>], by: Option<&Identity>) {
        let is_elsewhere = |it: &Option<Identity>| {
            it.as_ref()
                .zip(by)
                .is_some_and(|(it, by)| it.is_elsewhere(by))
        };
        self.earlier
            .retain(|it| !asked.contains(it) || is_elsewhere(it));
        let elsewhere = self.earlier.iter().filter(|it| is_elsewhere(it)).count();
        let mut old = elsewhere.saturating_sub(ELSEWHERE_MAX);
        self.earlier.retain(|it| {
            let is_old = old > 0 && is_elsewhere(it);
            old -= usize::from(is_old);
            !is_old
        });
    }

    /// Adds a connection that may still be open. One without an identity stands
    /// for all of these.
    fn add_earlier(&mut self, identity: Option<Identity>) {
        if identity.is_some() || !self.earlier.contains(&None) {
            self.earlier.push(identity);
        }
    }
}

impl Endpoint {
    /// The main connection of a server.
    pub(super) fn main_connection(&self, node: Node) -> Option<ConnectionId> {
        match self.main_connections.get(&node)?.stage {
            Stages::Up { main, .. } => Some(main),
            _ => None,
        }
    }

    /// The main connections of the connected servers.
    pub(super) fn main_connections(&self) -> Vec<ConnectionId> {
        let nodes = self.main_connections.keys();
        nodes
            .filter_map(|node| self.main_connection(*node))
            .collect()
    }

    /// Whether the master that the Sentinels name is connected, or being connected
    /// to.
    pub(super) fn has_master(&self) -> bool {
        let stage = self.main_connections.get(&Node::default());
        let stage = stage.map(|state| &state.stage);
        matches!(stage, Some(Stages::Connecting(_) | Stages::Up { .. }))
    }

    /// Connects to a server that was not needed so far.
    pub(super) fn keep(&mut self, now: Instant, node: Node) {
        if self.main_connections.entry(node).or_default().stage == Stages::Idle {
            self.find(now, node);
        }
    }

    fn find(&mut self, now: Instant, node: Node) {
        let address = match &self.source {
            Source::One(address) => Ok(address.clone()),
            Source::Cluster(cluster) => cluster.server(node),
            Source::Sentinels(_) => {
                self.main_connections.entry(node).or_default().stage = Stages::Finding;
                return self.ask_sentinels(now);
            }
        };
        match address {
            Ok(address) => self.connect_to(now, node, address),
            Err(failure) => self.not_connected(now, node, self.address(node), failure),
        }
    }

    fn connect_to(&mut self, now: Instant, node: Node, address: Address) {
        let limit = self.settings.limits.response;
        if let Source::Sentinels(sentinels) = &mut self.source {
            sentinels.has_tried(&address, true);
        }
        let main = self.new_connection(now, Purpose::Main(node), address, limit);
        self.main_connections.entry(node).or_default().stage = Stages::Connecting(main);
        self.ask_sentinels_later(now);
    }

    /// The Sentinels have named the master, or none of them has.
    pub(super) fn master_is_at(&mut self, now: Instant, found: Result<Address, Failure>) {
        let node = Node::default();
        let stage = self.main_connections.get(&node).map(|state| &state.stage);
        match (stage, found) {
            (Some(Stages::Finding), Ok(address)) => self.connect_to(now, node, address),
            (Some(Stages::Finding), Err(failure)) => {
                self.not_connected(now, node, self.address(node), failure);
            }
            (Some(Stages::Connecting(main) | Stages::Up { main, .. }), Ok(address)) => {
                let (connection, is_up) = (*main, self.main_connection(node).is_some());
                let known = self.connections.get(&connection);
                let is_named = known.is_none_or(|known| known.address == address);
                // A caller that waits for the start learns why it fails.
                if is_named || !is_up && self.start.is_some() {
                    return;
                }
                self.note(Note::NamedElsewhere);
                if is_up {
                    return self.give_up(now, connection, super::silent());
                }
                // A host that is off refuses nothing until the time limit.
                self.actions.push_back(Action::Close { connection });
                self.remove_connection(connection);
                self.connect_to(now, node, address);
            }
            // If no Sentinel answers, the client stays with its server.
            _ => {}
        }
    }

    pub(super) fn main_is_up(&mut self, now: Instant, node: Node, main: ConnectionId) {
        let Some(connection) = self.connections.get(&main) else {
            return;
        };
        let mut is_predecessor_gone = connection.is_predecessor_gone;
        let address = connection.address.to_string();
        let state = self.main_connections.entry(node).or_default();
        state.stage = Stages::Up { main, since: now };
        state.failure = None;
        state.outage = Outage::Unreported;
        state.were_closed(&connection.earlier, connection.identity.as_ref());
        // Those that have ended since this connection was opened.
        is_predecessor_gone &= !state.earlier.contains(&None);
        let since = |it: &&Option<Identity>| !connection.earlier.contains(it);
        let since: Vec<_> = state.earlier.iter().filter(since).cloned().collect();
        for identity in since.into_iter().flatten() {
            self.ask_to_close(now, main, identity);
        }
        self.note(Note::Connected { address });
        let up = engine::Event::ConnectionUp {
            node,
            connection: main.0,
            is_predecessor_gone,
        };
        self.engine.handle(now, up);
        self.resume_questions(now);
        self.resume_watches(now);
        if matches!(self.source, Source::Sentinels(_)) {
            self.ask_sentinels_later(now);
        }
        self.check_module(now, node);
    }

    pub(super) fn main_ended(
        &mut self,
        now: Instant,
        node: Node,
        main: ConnectionId,
        connection: Connection,
        failure: Failure,
    ) {
        let state = self.main_connections.entry(node).or_default();
        let Stages::Up { since, .. } = state.stage else {
            let address = connection.address.to_string();
            if let Source::Sentinels(sentinels) = &mut self.source {
                sentinels.has_tried(&connection.address, false);
            }
            return self.not_connected(now, node, address, failure);
        };
        // A connection that is closed right after it opened counts as a failure:
        // the server may be a demoted master.
        if now - since >= SETTLED {
            state.attempts = 0;
        }
        state.earlier.push(connection.identity);
        let address = connection.address.to_string();
        self.watches_are_lost(main);
        self.pause_main_connection(now, node);
        self.note(Note::Lost {
            address: address.clone(),
        });
        let is_left = false;
        self.engine
            .handle(now, engine::Event::ConnectionDown { node, is_left });
        if self.engine.is_cut_off(now) {
            self.mark_routes_stale(now);
        }
        for Expected { kind, .. } in connection.expected {
            match kind {
                ReplyKind::Request { id, .. } => {
                    self.answered(now, id, Err(Fault::Broken(failure.clone())));
                }
                ReplyKind::Question(call) => self.question_is_lost(now, call, failure.clone()),
                ReplyKind::Slots(_) => {
                    self.slots_failed(now, main, address.clone(), failure.clone());
                }
                _ => {}
            }
        }
        self.leave_separate(now, main, &failure);
    }

    /// A connection to a server has ended with requests that are not answered and
    /// that did not belong to its main connection.
    pub(super) fn has_stray(&mut self, now: Instant, node: Node, identity: Option<Identity>) {
        let state = self.main_connections.entry(node).or_default();
        state.add_earlier(identity.clone());
        match (self.main_connection(node), identity) {
            (Some(main), Some(identity)) => self.ask_to_close(now, main, identity),
            (Some(main), None) => self.predecessor_stays(now, main),
            (None, _) => {}
        }
    }

    /// A separate connection was greeted: the server has closed the earlier ones,
    /// or will not.
    pub(super) fn earlier_were_asked_for(&mut self, node: Node, separate: ConnectionId) {
        let connection = self.connections.get(&separate);
        let state = self.main_connections.get_mut(&node);
        if let (Some(connection), Some(state)) = (connection, state) {
            state.were_closed(&connection.earlier, connection.identity.as_ref());
            if !connection.is_predecessor_gone {
                state.add_earlier(None);
            }
        }
    }

    /// Asks the server to close an earlier connection, before all later requests.
    fn ask_to_close(&mut self, now: Instant, main: ConnectionId, identity: Identity) {
        let Some(connection) = self.connections.get_mut(&main) else {
            return;
        };
        let was_empty = connection.output.is_empty();
        let kill = identity.kill();
        connection.write(now, &kill, ReplyKind::StrayKilled(identity));
        self.has_output(now, main, was_empty);
    }

    /// The reply to [`ask_to_close`](Self::ask_to_close).
    pub(super) fn stray_is_closed(
        &mut self,
        now: Instant,
        main: ConnectionId,
        identity: &Identity,
        frame: &Frame,
    ) {
        let is_closed = matches!(frame, Frame::Integer(_));
        let by = self
            .connections
            .get(&main)
            .and_then(|it| it.identity.as_ref());
        let mut all = self.main_connections.values_mut();
        let is_main = |stage: &Stages| matches!(stage, Stages::Up { main: it, .. } if *it == main);
        if let Some(state) = all.find(|state| is_main(&state.stage)) {
            state.were_closed(&[Some(identity.clone())], by);
            if !is_closed {
                state.add_earlier(None);
            }
        }
        if !is_closed {
            self.predecessor_stays(now, main);
        }
    }

    pub(super) fn predecessor_stays(&mut self, now: Instant, main: ConnectionId) {
        let stays = engine::Event::PredecessorStays { connection: main.0 };
        self.engine.handle(now, stays);
    }

    fn not_connected(&mut self, now: Instant, node: Node, address: String, failure: Failure) {
        let is_news = self.is_news_of(node, &failure);
        self.note(Note::NotConnected {
            address: address.clone(),
            failure: failure.clone(),
            is_news,
        });
        if let Failure::Server(error) = &failure {
            self.redirected(now, error, Some(node));
        }
        let failure = failure.at(&address);
        let of_calls = match &self.source {
            Source::Cluster(_) => Failure::NoneOf {
                what: "a master cannot be reached",
                failures: vec![(address, failure.clone())],
            },
            Source::One(_) | Source::Sentinels(_) => failure.clone(),
        };
        self.questions_fail_at(node, &of_calls);
        self.main_connections.entry(node).or_default().failure = Some(of_calls);
        if self.is_cluster() {
            self.mark_routes_stale(now);
            // Before the slots are known, no other server can be asked.
            let routes = self.engine.routes();
            if !routes.has(node) && !routes.nodes().is_empty() {
                let state = self.main_connections.entry(node).or_default();
                (state.stage, state.attempts, state.failure) = (Stages::Idle, 0, None);
                state.outage = Outage::Unreported;
                let is_left = true;
                self.engine
                    .handle(now, engine::Event::ConnectionDown { node, is_left });
                return self.continue_start(now, node, failure);
            }
        }
        self.pause_main_connection(now, node);
        self.continue_start(now, node, failure);
    }

    /// Whether the user should see this failure of a server.
    fn is_news_of(&mut self, node: Node, failure: &Failure) -> bool {
        // The address of a server without slots is not known yet, or no longer.
        if self.is_cluster() && !self.engine.routes().has(node) {
            return false;
        }
        let state = self.main_connections.entry(node).or_default();
        let is_news = state.outage.is_news(failure);
        // The callers that wait for the start get the failure.
        let ends_start = !self.is_cluster() && self.start.is_some();
        is_news && !ends_start
    }

    fn pause_main_connection(&mut self, now: Instant, node: Node) {
        let attempts = self.main_connections.entry(node).or_default().attempts;
        let pause = self.engine.pause(attempts);
        let pause = match self.source {
            Source::Sentinels(_) => pause.min(sentinels::ASKED_EVERY),
            Source::One(_) | Source::Cluster(_) => pause,
        };
        let until = now + pause;
        let state = self.main_connections.entry(node).or_default();
        state.attempts = attempts.saturating_add(1);
        state.stage = Stages::Pause(until);
        self.timers.insert((until, Timer::MainConnection(node)));
    }

    pub(super) fn main_connection_is_due(&mut self, now: Instant, node: Node) {
        let stage = self.main_connections.get(&node).map(|state| &state.stage);
        if matches!(stage, Some(Stages::Pause(until)) if *until <= now) {
            self.find(now, node);
        }
    }

    /// The channel for messages from a server to a connection: in a cluster, a
    /// channel in one of the server's slots. No other connection has it. Otherwise a
    /// former master could still report its grants and losses: its replicas, of which
    /// one is its successor, pass its messages on.
    pub(super) fn channel_at(&self, node: Node, main: ConnectionId) -> Result<Channel, Failure> {
        let id = format!("{}:{}", self.settings.channel, main.0);
        let routes = self.engine.routes();
        if let Routes::One = routes {
            return Ok(Channel {
                name: format!("rlock:client:{id}"),
                is_sharded: false,
            });
        }
        let none = || Failure::Io("the server has no slots".to_owned());
        if !routes.has(node) {
            return Err(none());
        }
        let mut tags = (0..TAGS_MAX).map(|tag| tag.to_string());
        let tag = tags.find(|tag| routes.node(slot_of(tag.as_bytes())) == node);
        let tag = tag.ok_or_else(none)?;
        Ok(Channel {
            name: format!("rlock:client:{{{tag}}}:{id}"),
            is_sharded: true,
        })
    }

    /// Connects unless connected, in a cluster to one server, and asks it for
    /// the module.
    pub(super) fn start(&mut self, now: Instant, call: Id) {
        if self.is_closed || self.engine.is_leaving() {
            return self.resolve(call, Outcome::Failed(Error::Closed));
        }
        if let Some(start) = &mut self.start {
            return start.calls.push(call);
        }
        self.start = Some(Start {
            call,
            calls: vec![call],
            tried: Node::default(),
            left: None,
            failures: Vec::new(),
            is_checking: false,
        });
        let mut nodes = self.main_connections.keys().copied();
        if let Some(node) = nodes.find(|it| self.is_connected(*it)) {
            return self.check_module(now, node);
        }
        match self.source {
            Source::Cluster(_) => self.refresh_slots(now),
            Source::One(_) | Source::Sentinels(_) => {
                let node = Node::default();
                self.engine.handle(now, engine::Event::Need { node });
            }
        }
    }

    /// The slots of the cluster are known.
    pub(super) fn start_at_nodes(&mut self, now: Instant) {
        let nodes = self.engine.routes().nodes();
        if let Some(start) = self.start.as_mut().filter(|start| start.is_open()) {
            start.left = Some(nodes.into_iter().rev().collect());
            self.start_at_next(now);
        }
    }

    /// No server reports the slots; whether callers that wait for the start get
    /// this failure.
    pub(super) fn start_at_nobody(&mut self, failure: &Failure) -> bool {
        let ends = self.start.as_ref().is_some_and(Start::is_open);
        if ends {
            self.start_ends(Err(Error::Connect(failure.clone())));
        }
        ends
    }

    fn start_at_next(&mut self, now: Instant) {
        let Some(start) = &mut self.start else {
            return;
        };
        match start.left.as_mut().and_then(Vec::pop) {
            Some(node) => {
                start.tried = node;
                self.engine.handle(now, engine::Event::Need { node });
            }
            None => {
                let failure = Failure::NoneOf {
                    what: "no server of the cluster can be used",
                    failures: std::mem::take(&mut start.failures),
                };
                self.start_ends(Err(Error::Connect(failure)));
            }
        }
    }

    fn continue_start(&mut self, now: Instant, node: Node, failure: Failure) {
        let address = self.address(node);
        let is_cluster = self.is_cluster();
        // Servers that failed before are retried meanwhile.
        let Some(start) = self.start.as_mut().filter(|start| start.tried == node) else {
            return;
        };
        if is_cluster {
            start.failures.push((address, failure));
            self.start_at_next(now);
        } else {
            self.start_ends(Err(Error::Connect(failure)));
        }
    }

    /// Makes sure that the first server has the module.
    fn check_module(&mut self, now: Instant, node: Node) {
        let Some(start) = &mut self.start else {
            return;
        };
        if std::mem::replace(&mut start.is_checking, true) {
            return;
        }
        start.tried = node;
        if self.settings.is_probe {
            return self.start_ends(Ok(()));
        }
        if self.engine.is_leaving() {
            return self.start_ends(Err(Error::Closed));
        }
        let call = start.call;
        let mut help = crate::wire::resp::Command::new("RLOCK.HELP");
        help.arg("?");
        // The connection's own limit bounds it.
        self.question(now, call, To::Node(node), (help, false), None);
    }

    /// Whether the answer to this question is needed for the start.
    pub(super) fn is_start(&self, call: Id) -> bool {
        self.start.as_ref().is_some_and(|start| start.call == call)
    }

    /// A server that is loading its data already has its modules.
    pub(super) fn module_is_there(&mut self, answer: Result<(), Fault>) {
        let address = self.start.as_ref().map(|start| self.address(start.tried));
        let address = address.unwrap_or_default();
        self.start_ends(match answer {
            Err(Fault::Refused(error @ Error::ModuleMissing)) => Err(error),
            Err(Fault::Broken(failure) | Fault::Stray(failure)) => {
                Err(Error::Connect(failure.at(&address)))
            }
            Ok(()) | Err(Fault::Transient(_) | Fault::Moved(_) | Fault::Refused(_)) => Ok(()),
        });
    }

    pub(super) fn start_ends(&mut self, outcome: Result<(), Error>) {
        let Some(start) = self.start.take() else {
            return;
        };
        // Its question, which may have no answer yet, has the same number.
        self.remove_question(start.call);
        for call in start.calls {
            let outcome = match outcome.clone() {
                Ok(()) => Outcome::Lock(engine::Outcome::Done),
                Err(error) => Outcome::Failed(error),
            };
            self.resolve(call, outcome);
        }
    }

    /// Whether a call waits for the start.
    pub(super) fn is_starting(&self, call: Id) -> bool {
        let start = self.start.as_ref();
        start.is_some_and(|start| start.calls.contains(&call))
    }

    /// Removes a call that waits for the start; false if it does not.
    pub(super) fn leave_start(&mut self, call: Id) -> bool {
        let Some(start) = &mut self.start else {
            return false;
        };
        let before = start.calls.len();
        start.calls.retain(|it| *it != call);
        start.calls.len() < before
    }
}
