//! Requests that use separate connections: renewals that wait for replicas, and
//! requests for a hold whose slot is moving to another server.
//!
//! `WAIT` counts the replicas that have all earlier writes of the same
//! connection, and blocks everything after it. So the holder renews on a separate
//! connection and waits there. Requests that arrive meanwhile go out together,
//! with one `WAIT` for all: many holds cost little more than one.

use std::collections::VecDeque;

use crate::endpoint::cluster::ASKED_EVERY;
use crate::endpoint::connection::{Purpose, ReplyKind, Stage};
use crate::endpoint::{Action, ConnectionId, Endpoint, silent};
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::engine::request::{Reply, Request};
use crate::engine::{self, Id};
use crate::error::{Failure, Fault, ServerError};
use crate::servers::Address;
use crate::wire::replies::Identity;
use crate::wire::resp::{Command, Frame};
use crate::wire::topology::redirect;
use crate::wire::{replies, requests};

/// The largest number of requests that are sent together.
const TOGETHER_MAX: usize = 256;

pub(super) struct SeparateConnection {
    kind: Kind,
    /// The server.
    node: Node,
    connection: ConnectionId,
    waiting: VecDeque<(Id, Request)>,
    /// The requests in progress, with the number of replies of each.
    sent: Vec<(Id, Request, usize)>,
    /// The number of replies to all of them, and the replies that have arrived.
    expected: usize,
    replies: Vec<Frame>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Waits for `count` replicas of the server of this main connection.
    Replicas { main: ConnectionId, count: u16 },
    /// Asks the server to which a slot is moving. It is closed after its last
    /// request.
    Asking(Address),
}

impl Endpoint {
    /// Sends a renewal that replicas must acknowledge.
    pub(super) fn send_separately(
        &mut self,
        now: Instant,
        id: Id,
        main: ConnectionId,
        request: Request,
    ) {
        let Some(connection) = self.connections.get(&main) else {
            return self.answered(now, id, Err(Fault::Broken(silent())));
        };
        let (address, count) = (connection.address.clone(), request.replicas());
        let Purpose::Main(node) = connection.purpose else {
            return;
        };
        let kind = Kind::Replicas { main, count };
        self.put_separate(now, (kind, node), address, (id, request));
    }

    /// Sends a request for a hold to the server to which its slot is moving;
    /// false if `error` is not about that.
    pub(super) fn ask_where_slot_is_going(
        &mut self,
        now: Instant,
        asked: ConnectionId,
        id: Id,
        request: &Request,
        error: &ServerError,
    ) -> bool {
        let Some(asked) = self.connections.get(&asked) else {
            return false;
        };
        let from = asked.host().to_owned();
        let redirect = redirect(error).filter(|redirect| redirect.is_once);
        let Some((node, address)) = redirect.and_then(|it| self.going_to(&it, &from)) else {
            return false;
        };
        if let Some(claims) = request.claims() {
            let (request, claims) = (id, claims.clone());
            let sent = engine::Event::SentSeparately { request, claims };
            self.engine.handle(now, sent);
        }
        let kind = Kind::Asking(address.clone());
        self.put_separate(now, (kind, node), address, (id, request.clone()));
        true
    }

    fn put_separate(
        &mut self,
        now: Instant,
        (kind, node): (Kind, Node),
        address: Address,
        request: (Id, Request),
    ) {
        let mut known = self.separate.iter_mut();
        if let Some(separate) = known.find(|separate| separate.kind == kind) {
            separate.waiting.push_back(request);
            let connection = separate.connection;
            return self.send_together(now, connection);
        }
        let limit = match kind {
            Kind::Replicas { .. } => self.settings.limits.response,
            Kind::Asking(_) => ASKED_EVERY,
        };
        let connection = self.new_connection(now, Purpose::Separate, address, limit);
        self.separate.push(SeparateConnection {
            kind,
            node,
            connection,
            waiting: VecDeque::from([request]),
            sent: Vec::new(),
            expected: 0,
            replies: Vec::new(),
        });
    }

    pub(super) fn separate_is_open(&mut self, now: Instant, id: ConnectionId) {
        let mut all = self.separate.iter();
        let Some(separate) = all.find(|separate| separate.connection == id) else {
            return;
        };
        if matches!(separate.kind, Kind::Replicas { .. })
            && let Some(connection) = self.connections.get_mut(&id)
        {
            connection.limit += self.settings.limits.replication;
        }
        self.earlier_were_asked_for(separate.node, id);
        self.send_together(now, id);
    }

    /// Sends the waiting requests, once the previous requests are answered.
    fn send_together(&mut self, now: Instant, id: ConnectionId) {
        let mut all = self.separate.iter_mut();
        let separate = all.find(|separate| separate.connection == id);
        let connection = self.connections.get_mut(&id);
        let (Some(separate), Some(connection)) = (separate, connection) else {
            return;
        };
        if connection.stage != Stage::Open || !separate.sent.is_empty() {
            return;
        }
        let was_empty = connection.output.is_empty();
        while separate.sent.len() < TOGETHER_MAX
            && let Some((request_id, request)) = separate.waiting.pop_front()
        {
            // The holds of these requests are over.
            if self.engine.server_of(request_id).is_none() {
                continue;
            }
            let commands = match separate.kind {
                Kind::Replicas { .. } => requests::renew_in_writing(&request),
                Kind::Asking(_) => {
                    let asking = || Command::new("ASKING");
                    let commands = requests::commands(&request).into_iter();
                    commands.flat_map(|it| [asking(), it]).collect()
                }
            };
            for command in &commands {
                connection.write(now, command, ReplyKind::Separate);
            }
            separate.expected += commands.len();
            separate.sent.push((request_id, request, commands.len()));
        }
        if let (Kind::Replicas { count, .. }, false) = (&separate.kind, separate.sent.is_empty()) {
            let wait = requests::wait(*count, self.settings.limits.replication);
            connection.write(now, &wait, ReplyKind::Separate);
            separate.expected += 1;
        }
        let is_over = separate.sent.is_empty() && matches!(separate.kind, Kind::Asking(_));
        if is_over {
            self.give_up(now, id, silent());
        } else if separate.expected > 0 {
            self.has_output(now, id, was_empty);
        }
    }

    pub(super) fn separate_replied(&mut self, now: Instant, id: ConnectionId, frame: Frame) {
        let mut all = self.separate.iter_mut();
        let Some(separate) = all.find(|separate| separate.connection == id) else {
            return;
        };
        separate.replies.push(frame);
        if separate.replies.len() < separate.expected {
            return;
        }
        separate.expected = 0;
        let kind = separate.kind.clone();
        let sent = std::mem::take(&mut separate.sent);
        let mut frames = std::mem::take(&mut separate.replies).into_iter();
        let mut results = Vec::new();
        for (request_id, request, count) in sent {
            // The second reply of each pair is the result.
            let replies = frames.by_ref().take(count).skip(1).step_by(2);
            let replies: Vec<_> = replies.collect();
            let result = replies::decode(&request, &replies);
            results.push((request_id, result));
        }
        if let Kind::Replicas { count, .. } = kind {
            let known = known(frames.next());
            for (_, result) in &mut results {
                match (&result, &known) {
                    (Ok(Reply::Fence(_)), Ok(known)) if *known < count => {
                        *result = Ok(Reply::TooFew(*known));
                    }
                    (Ok(Reply::Fence(_)), Err(failure)) => {
                        *result = Err(failure.clone().into());
                    }
                    _ => {}
                }
            }
        }
        let connection = self.connections.get(&id);
        let is_predecessor_gone = connection.is_some_and(|it| it.is_predecessor_gone);
        let ends = |result: &Result<_, Fault>| result.as_ref().is_err_and(Fault::ends_connection);
        let is_at_end = results.iter().any(|(_, result)| ends(result));
        for (request_id, result) in results {
            let main = self.engine.server_of(request_id);
            let main = main.filter(|_| !is_predecessor_gone);
            if let Some(main) = main.and_then(|node| self.main_connection(node)) {
                self.predecessor_stays(now, main);
            }
            self.answered(now, request_id, result);
        }
        match kind {
            // It leads to the same server.
            Kind::Replicas { main, .. } if is_at_end => self.give_up(now, main, silent()),
            _ => self.send_together(now, id),
        }
    }

    pub(super) fn node_of_separate(&self, id: ConnectionId) -> Option<Node> {
        let mut all = self.separate.iter();
        Some(all.find(|separate| separate.connection == id)?.node)
    }

    pub(super) fn separate_ended(
        &mut self,
        now: Instant,
        id: ConnectionId,
        identity: Option<Identity>,
        failure: &Failure,
    ) {
        let place = self.separate.iter().position(|it| it.connection == id);
        if let Some(place) = place {
            let separate = self.separate.swap_remove(place);
            self.fail_all(now, separate, identity, failure);
        }
    }

    /// The main connection has ended.
    pub(super) fn leave_separate(&mut self, now: Instant, main: ConnectionId, failure: &Failure) {
        let of_main = |separate: &mut SeparateConnection| matches!(separate.kind, Kind::Replicas { main: of, .. } if of == main);
        let gone: Vec<_> = self.separate.extract_if(.., of_main).collect();
        for separate in gone {
            let connection = separate.connection;
            let removed = self.remove_connection(connection);
            let identity = removed.and_then(|removed| removed.identity);
            self.actions.push_back(Action::Close { connection });
            self.fail_all(now, separate, identity, failure);
        }
    }

    /// The server must close the connection before any repetition of its
    /// requests, because they may still be carried out.
    fn fail_all(
        &mut self,
        now: Instant,
        separate: SeparateConnection,
        identity: Option<Identity>,
        failure: &Failure,
    ) {
        if !separate.sent.is_empty() {
            self.has_stray(now, separate.node, identity);
        }
        for (id, ..) in separate.sent {
            self.answered(now, id, Err(Fault::Stray(failure.clone())));
        }
        for (id, _) in separate.waiting {
            self.answered(now, id, Err(Fault::Transient(failure.clone())));
        }
    }
}

/// The reply to `WAIT`.
fn known(frame: Option<Frame>) -> Result<u16, ServerError> {
    match frame {
        Some(Frame::Integer(known)) => Ok(u16::try_from(known).unwrap_or(0)),
        Some(Frame::Error(error)) => Err(error),
        _ => Ok(0),
    }
}
