//! One connection: its greeting, and the replies that the server owes, in order.
//!
//! Requests and messages share one connection. When it ends, the server withdraws
//! its queued requests and messages, so nothing is granted to a client that no
//! longer listens. A connection is used only after its subscription is confirmed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::{ConnectionId, Endpoint, Note, Source, Timer, silent};
use crate::engine::instant::{Instant, LateChecks};
use crate::engine::node::Node;
use crate::engine::request::{Reply, Request};
use crate::engine::{self, Id};
use crate::error::{Failure, Fault};
use crate::servers::{Address, Login};
use crate::wire::replies;
use crate::wire::replies::Identity;
use crate::wire::requests::{self, Channel};
use crate::wire::resp::{Command, Decoder, Frame};

/// The capacity for owed replies that is kept while no reply is owed.
const EXPECTED_KEPT: usize = 1024;

/// The purpose of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Carries all normal requests to a server.
    Main(Node),
    /// Carries requests that wait for replicas, or go to the target of a moving
    /// slot.
    Separate,
    /// Asks the Sentinel of that number.
    Sentinel(usize),
    /// Asks one server about the slots.
    Slots,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The pump is opening it.
    Opening,
    /// Replies to the greeting are still owed.
    Greeting,
    Open,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) purpose: Purpose,
    pub(super) address: Address,
    pub(super) stage: Stage,
    /// The deadline for opening it.
    until: Instant,
    /// How long an answer may take.
    pub(super) limit: Duration,
    /// The next check: not after the moment when it may have failed, unless the
    /// process was starved then.
    pub(super) timer_due: Option<Instant>,
    late_checks: LateChecks,
    pub(super) output: Vec<u8>,
    /// The last command that was encoded, for its memory.
    pub(super) command: Command,
    pub(super) expected: VecDeque<Expected>,
    /// When bytes last arrived.
    last_received: Instant,
    /// The channel for messages to this client.
    pub(super) channel: Option<Channel>,
    pub(super) identity: Option<Identity>,
    /// The earlier connections that the server was asked to close first, and
    /// whether all are closed.
    pub(super) earlier: Vec<Option<Identity>>,
    pub(super) is_predecessor_gone: bool,
    pub(super) greeting: Greeting,
    decoder: Decoder,
}

/// What a server reports about itself on a new connection.
#[derive(Clone, Debug, Default)]
pub struct Greeting {
    is_master: bool,
    pub(super) is_cluster: bool,
    /// The reply to `INFO server replication rlock`, if there is a check.
    pub info: String,
    /// Names and values of the settings that matter; none if the user may not
    /// read them.
    pub settings: Option<Vec<(String, String)>>,
}

/// A reply that a server owes.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) sent: Instant,
    pub(super) kind: ReplyKind,
}

#[derive(Debug)]
pub(super) enum ReplyKind {
    Hello,
    /// Part of the greeting that must succeed.
    Checked,
    /// Part of the greeting that may fail.
    Ignored,
    Identity,
    Killed,
    /// The same on an open connection, for that connection.
    StrayKilled(Identity),
    Info,
    Settings,
    /// Answered by a push or an error.
    Subscribed,
    /// A request with this number of replies, and the replies that have arrived.
    Request {
        id: Id,
        request: Request,
        left: usize,
        replies: Vec<Frame>,
    },
    Question(Id),
    /// Answered like [`ReplyKind::Subscribed`], for the attempt of that number.
    Watched((Arc<[u8]>, Id)),
    /// The leader at that key, for the attempt of that number.
    Leader((Arc<[u8]>, Id)),
    /// The reply to the `HELLO` after an unsubscription. The unsubscription
    /// itself is answered by a push or an error, or by both if the slot has just
    /// moved.
    Unwatched(Arc<[u8]>),
    /// Replies on a separate connection.
    Separate,
    Sentinel,
    /// A reply to `CLUSTER SLOTS` or `CLUSTER INFO`, for the refresh of that number.
    Slots(u64),
}

impl Connection {
    pub(super) fn new(
        purpose: Purpose,
        address: Address,
        now: Instant,
        until: Instant,
        limit: Duration,
    ) -> Self {
        Self {
            purpose,
            address,
            stage: Stage::Opening,
            until,
            limit,
            timer_due: Some(until),
            late_checks: LateChecks::default(),
            output: Vec::new(),
            command: Command::default(),
            expected: VecDeque::new(),
            last_received: now,
            channel: None,
            identity: None,
            earlier: Vec::new(),
            is_predecessor_gone: true,
            greeting: Greeting::default(),
            decoder: Decoder::default(),
        }
    }

    /// The host as other servers name it; empty for a Unix socket.
    pub(super) fn host(&self) -> &str {
        self.address.host().unwrap_or_default()
    }

    pub(super) fn write(&mut self, now: Instant, command: &Command, kind: ReplyKind) {
        command.write(&mut self.output);
        self.expected.push_back(Expected { sent: now, kind });
    }

    /// When it fails if no bytes arrive until then; none while no reply is
    /// owed.
    fn deadline(&self) -> Option<Instant> {
        if self.stage != Stage::Open {
            return Some(self.until);
        }
        let oldest = self.expected.front()?;
        Some(oldest.sent.max(self.last_received) + self.limit)
    }

    /// Writes the first commands, without waiting for replies.
    fn greet(
        &mut self,
        now: Instant,
        login: &Login,
        name: Option<&str>,
        library: &(String, String),
    ) {
        let mut hello = Command::new("HELLO");
        hello.arg("3");
        if let Some(password) = &login.password {
            let user = login.user.as_deref().unwrap_or("default");
            hello.arg("AUTH").arg(user).arg(password.expose());
        }
        self.write(now, &hello, ReplyKind::Hello);
        if login.database != 0 {
            let mut select = Command::new("SELECT");
            select.number(u64::from(login.database));
            self.write(now, &select, ReplyKind::Checked);
        }
        // If the user may not set it, the owners still contain the name.
        if let Some(name) = name {
            let mut client = Command::new("CLIENT");
            client.arg("SETNAME").arg(name);
            self.write(now, &client, ReplyKind::Ignored);
        }
        for (what, value) in [("LIB-NAME", &library.0), ("LIB-VER", &library.1)] {
            let mut client = Command::new("CLIENT");
            client.arg("SETINFO").arg(what).arg(value);
            self.write(now, &client, ReplyKind::Ignored);
        }
    }

    /// Writes the additional greeting of a main connection. The server must close
    /// the earlier connections before any renewal. Otherwise their late requests
    /// would be carried out after the requests of this connection: an `ACQUIRE`
    /// after its clean-up, or a `RENEW` that binds a hold to a connection which
    /// is about to end. Closing them may start the grace of bound holds. That is
    /// later than the start that is counted here, the last time that the earlier
    /// connection was known to be alive.
    fn greet_as_main(
        &mut self,
        now: Instant,
        earlier: &[Option<Identity>],
        has_check: bool,
        channel: Channel,
    ) {
        self.close_earlier(now, earlier);
        if has_check {
            let mut info = Command::new("INFO");
            info.arg("server").arg("replication").arg("rlock");
            self.write(now, &info, ReplyKind::Info);
            let mut get = Command::new("CONFIG");
            get.arg("GET").arg("rlock.startup-grace-ms");
            get.arg("appendonly").arg("appendfsync");
            get.arg("no-appendfsync-on-rewrite");
            self.write(now, &get, ReplyKind::Settings);
        }
        self.write(now, &requests::subscribe(&channel), ReplyKind::Subscribed);
        self.channel = Some(channel);
    }

    /// Asks the server to close the earlier connections, and for the identity by
    /// which this one can be closed.
    fn close_earlier(&mut self, now: Instant, earlier: &[Option<Identity>]) {
        self.write(now, &Identity::question(), ReplyKind::Identity);
        self.earlier = earlier.to_vec();
        for identity in earlier {
            match identity {
                Some(identity) => self.write(now, &identity.kill(), ReplyKind::Killed),
                None => self.is_predecessor_gone = false,
            }
        }
    }

    /// Handles a reply to the greeting; the error if the connection cannot be
    /// used.
    fn greeted(&mut self, kind: &ReplyKind, frame: Frame) -> Result<(), Failure> {
        match (kind, frame) {
            (
                ReplyKind::Hello | ReplyKind::Checked | ReplyKind::Subscribed | ReplyKind::Info,
                Frame::Error(error),
            ) => {
                return Err(Failure::Server(error));
            }
            (ReplyKind::Hello, hello) => {
                self.greeting.is_master = replies::is_master(&hello);
                self.greeting.is_cluster = replies::is_cluster(&hello).unwrap_or(false);
            }
            (ReplyKind::Identity, frame) => {
                self.identity = Identity::read(&frame, &self.address.to_string());
            }
            // 0 is also a success: the connection was already closed.
            (ReplyKind::Killed, frame) => {
                self.is_predecessor_gone &= matches!(frame, Frame::Integer(_));
            }
            (ReplyKind::Info, frame) => {
                self.greeting.info = frame.into_text().unwrap_or_default();
            }
            (ReplyKind::Settings, frame) => self.greeting.settings = settings(frame),
            _ => {}
        }
        Ok(())
    }
}

/// None for an error: a user may lack the permission.
fn settings(frame: Frame) -> Option<Vec<(String, String)>> {
    let Frame::Map(pairs) = frame else {
        return None;
    };
    let pairs = pairs.into_iter();
    pairs
        .map(|(name, value)| Some((name.into_text()?, value.into_text()?)))
        .collect()
}

impl Endpoint {
    pub(super) fn opened(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let purpose = connection.purpose.clone();
        let channel = match purpose {
            Purpose::Main(node) if !self.settings.is_probe => match self.channel_at(node, id) {
                Ok(channel) => Some(channel),
                Err(failure) => return self.give_up(now, id, failure),
            },
            _ => None,
        };
        let node = match purpose {
            Purpose::Main(node) => Some(node),
            Purpose::Separate => self.node_of_separate(id),
            Purpose::Sentinel(_) | Purpose::Slots => None,
        };
        let state = node.and_then(|node| self.main_connections.get(&node));
        let earlier = state.map_or(&[][..], |state| &state.earlier);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.stage = Stage::Greeting;
        connection.last_received = now;
        connection.late_checks = LateChecks::default();
        connection.until = now + connection.limit;
        match (purpose, &self.source) {
            (Purpose::Sentinel(_), Source::Sentinels(sentinels)) => {
                // RESP2, because older Sentinels do not know `HELLO`.
                if let Some(login) = sentinels.greeting() {
                    connection.write(now, &login, ReplyKind::Checked);
                } else {
                    connection.stage = Stage::Open;
                }
            }
            (purpose, _) => {
                let name = self.settings.name.as_deref();
                connection.greet(now, &self.login, name, &self.settings.library);
                match (purpose, channel) {
                    (Purpose::Main(_), Some(channel)) => {
                        let has_check = self.settings.check.is_some();
                        connection.greet_as_main(now, earlier, has_check, channel);
                    }
                    (Purpose::Separate, _) => connection.close_earlier(now, earlier),
                    _ => {}
                }
            }
        }
        let is_open = connection.stage == Stage::Open;
        self.has_output(now, id, true);
        if is_open {
            self.is_open(now, id);
        }
    }

    /// All replies to the greeting have arrived.
    fn is_open(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.stage = Stage::Open;
        match connection.purpose {
            Purpose::Main(node) => {
                if let Err(failure) = self.check(now, id) {
                    return self.give_up(now, id, failure);
                }
                self.main_is_up(now, node, id);
            }
            Purpose::Separate => self.separate_is_open(now, id),
            Purpose::Sentinel(_) => self.ask_sentinel(now, id),
            Purpose::Slots => self.ask_for_slots(now, id),
        }
    }

    /// Checks whether the server can be used: other servers may still name it
    /// as a master after it restarted as a replica.
    fn check(&self, now: Instant, id: ConnectionId) -> Result<(), Failure> {
        let Some(connection) = self.connections.get(&id) else {
            return Ok(());
        };
        if let Some(check) = &self.settings.check {
            return check(now, &connection.greeting)
                .map_err(|why| Failure::Io(format!("the server cannot take part: {why}")));
        }
        match &self.source {
            Source::Sentinels(_) | Source::Cluster(_)
                if !connection.greeting.is_master && !self.settings.is_probe =>
            {
                let why = "the server is not a master, although others name it as one";
                Err(Failure::Io(why.to_owned()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn received(&mut self, now: Instant, id: ConnectionId, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.last_received = now;
        connection.late_checks = LateChecks::default();
        connection.decoder.feed(bytes);
        // Each frame may end the connection.
        while let Some(connection) = self.connections.get_mut(&id) {
            match connection.decoder.next() {
                Ok(Some(frame)) => self.take(now, id, frame),
                Ok(None) => return,
                Err(malformed) => {
                    let failure = Failure::Protocol(malformed.to_string());
                    return self.give_up(now, id, failure);
                }
            }
            // The consequences of a reply are handled before the next reply, as
            // on the server.
            self.follow_engine(now);
        }
    }

    fn take(&mut self, now: Instant, id: ConnectionId, frame: Frame) {
        if let Frame::Push(push) = frame {
            return self.pushed(now, id, &push);
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let Some(Expected {
            kind: ReplyKind::Request { left, replies, .. },
            ..
        }) = connection.expected.front_mut()
            && *left > 1
        {
            *left -= 1;
            return replies.push(frame);
        }
        let front = connection.expected.front().map(|it| &it.kind);
        if matches!(
            (front, &frame),
            (Some(ReplyKind::Unwatched(_)), Frame::Error(_))
        ) {
            return;
        }
        let expected = connection.expected.pop_front();
        if connection.expected.is_empty() {
            connection.expected.shrink_to(EXPECTED_KEPT);
        }
        let Some(Expected { kind, .. }) = expected else {
            let failure = Failure::Protocol("a reply without a request".to_owned());
            return self.give_up(now, id, failure);
        };
        match kind {
            ReplyKind::Request {
                id: request_id,
                request,
                mut replies,
                ..
            } => {
                let result = if replies.is_empty() {
                    replies::decode(&request, std::slice::from_ref(&frame))
                } else {
                    replies.push(frame);
                    replies::decode(&request, &replies)
                };
                self.replied(now, id, request_id, &request, result);
            }
            ReplyKind::Question(call) => self.question_is_answered(now, id, call, frame),
            ReplyKind::Watched(asked) => self.watch_is_refused(now, id, &asked, frame),
            ReplyKind::Leader(asked) => self.leader_reply(now, id, &asked, frame),
            ReplyKind::Unwatched(_) => {}
            ReplyKind::Separate => self.separate_replied(now, id, frame),
            ReplyKind::StrayKilled(identity) => self.stray_is_closed(now, id, &identity, &frame),
            ReplyKind::Sentinel => self.sentinel_reply(now, id, frame),
            ReplyKind::Slots(refresh) => self.slots_reply(now, id, refresh, frame),
            kind => {
                let outcome = connection.greeted(&kind, frame);
                self.continue_greeting(now, id, outcome);
            }
        }
    }

    fn continue_greeting(&mut self, now: Instant, id: ConnectionId, outcome: Result<(), Failure>) {
        let left = self.connections.get(&id).map(|it| it.expected.len());
        match (outcome, left) {
            (Err(failure), _) => self.give_up(now, id, failure),
            (Ok(()), Some(0)) => self.is_open(now, id),
            (Ok(()), _) => {}
        }
    }

    fn replied(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        id: Id,
        request: &Request,
        result: Result<Reply, Fault>,
    ) {
        if let Err(Fault::Moved(error)) = &result
            && request.is_of_a_hold()
            && self.ask_where_slot_is_going(now, connection, id, request, error)
        {
            return;
        }
        let ends = result.as_ref().is_err_and(Fault::ends_connection);
        self.answered(now, id, result);
        // A demoted server keeps its connections open, but the address may
        // already lead to the new master.
        if ends {
            self.give_up(now, connection, silent());
        }
    }

    /// Handles a push, before any later reply.
    fn pushed(&mut self, now: Instant, id: ConnectionId, push: &[Frame]) {
        let kind = push.first().and_then(Frame::as_bytes).unwrap_or_default();
        match (kind, push) {
            (b"message" | b"smessage", [_, channel, message]) => {
                let channel = channel.as_bytes().unwrap_or_default();
                let message = message.as_bytes().unwrap_or_default();
                if channel.starts_with(requests::VALUE_CHANNEL) {
                    return self.published(id, channel, message);
                }
                let own = self.connections.get(&id).and_then(|it| it.channel.as_ref());
                let is_own = own.is_some_and(|own| own.name.as_bytes() == channel);
                match replies::notice(message, id.0).filter(|_| is_own) {
                    Some(notice) => self.engine.handle(now, engine::Event::Notice(notice)),
                    None => self.note(Note::UnknownMessage(message.to_vec())),
                }
            }
            (b"subscribe" | b"ssubscribe", _) => {
                let Some(connection) = self.connections.get_mut(&id) else {
                    return;
                };
                let front = connection.expected.front();
                match front.map(|it| &it.kind) {
                    Some(ReplyKind::Subscribed) => {
                        connection.expected.pop_front();
                        self.continue_greeting(now, id, Ok(()));
                    }
                    Some(ReplyKind::Watched(_)) => {
                        connection.expected.pop_front();
                    }
                    Some(&ReplyKind::Question(call)) if self.settings.is_probe => {
                        connection.expected.pop_front();
                        self.question_is_answered(now, id, call, Frame::Push(push.to_vec()));
                    }
                    _ => {}
                }
            }
            (b"unsubscribe" | b"sunsubscribe", [_, channel, ..])
                if channel
                    .as_bytes()
                    .is_some_and(|it| it.starts_with(requests::VALUE_CHANNEL)) =>
            {
                self.unsubscribed(now, id, channel.as_bytes().unwrap_or_default());
            }
            // The slot of the channel has moved: no more messages come.
            (b"sunsubscribe", _) => self.give_up(now, id, silent()),
            _ => {}
        }
    }

    pub(super) fn connection_is_due(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let (checked, deadline) = (connection.timer_due, connection.deadline());
        connection.timer_due = match connection.late_checks.next(checked, deadline, now) {
            Some(due) if due <= now => {
                let (address, limit) = (&connection.address, connection.limit);
                let what = match connection.stage {
                    Stage::Opening => "no connection",
                    Stage::Greeting | Stage::Open => "no answer",
                };
                let failure = Failure::TimedOut(format!("{address}: {what} within {limit:?}"));
                return self.give_up(now, id, failure);
            }
            due => due,
        };
        let due = connection.timer_due;
        self.timers
            .extend(due.map(|due| (due, Timer::Connection(id))));
    }

    /// Closes a connection that can no longer be used.
    pub(super) fn give_up(&mut self, now: Instant, id: ConnectionId, failure: Failure) {
        if self.connections.contains_key(&id) {
            let connection = id;
            self.actions.push_back(super::Action::Close { connection });
            self.ended(now, id, failure);
        }
    }

    pub(super) fn ended(&mut self, now: Instant, id: ConnectionId, failure: Failure) {
        let Some(connection) = self.remove_connection(id) else {
            return;
        };
        match connection.purpose {
            Purpose::Main(node) => self.main_ended(now, node, id, connection, failure),
            Purpose::Separate => {
                self.separate_ended(now, id, connection.identity, &failure);
            }
            Purpose::Sentinel(number) => self.sentinel_ended(now, number, failure),
            Purpose::Slots => {
                let address = connection.address.to_string();
                self.slots_failed(now, id, address, failure);
            }
        }
    }
}
