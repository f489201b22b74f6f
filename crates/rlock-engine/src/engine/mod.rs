//! All decisions of a client, without I/O and without a clock.
//!
//! The engine takes each event with the moment at which it happened
//! ([`Engine::handle`]). It returns actions, which are carried out in order
//! ([`Engine::poll_action`]), and the moment at which it needs the next
//! [`Event::Tick`] ([`Engine::next_deadline`]). The same input gives the same
//! output, and `rlock-embed/tests/simulation` checks the rules in this way.
//!
//! - `work`: the operations in progress for each owner, and their order;
//! - `call`: from a call for a lock to a grant, across lost connections;
//! - `leaving`: release, now or later, downgrade, and clean-up after a call;
//! - `part_release`: release of some permits of a hold;
//! - `hold`: what is held, by how many guards, and how a hold ends;
//! - `watchdog`: renewals, extensions, and heartbeats;
//! - `node`: what is known of each server, and which keys it has;
//! - `request`: requests to a server, its replies, and its messages;
//! - `claims`, `terms`: who asks for which keys, in which mode, and for how long;
//! - `released`: the fences that an owner has given up;
//! - `unreleased`: the locks that the server refused to release;
//! - `proof`: what a guard knows without the engine.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Fault, Loss};

mod call;
pub mod claims;
mod hold;
pub mod instant;
mod leaving;
pub mod node;
mod part_release;
pub mod proof;
mod released;
pub mod request;
pub mod terms;
mod unreleased;
mod watchdog;
mod work;

use claims::{Claims, Name, Table};
use hold::Hold;
use instant::Instant;
use node::{Node, NodeState, Routes};
use proof::{Alive, Proof};
use released::Released;
use request::{Notice, Reply, Request, Sent};
use terms::{Ask, Queueing, Terms, Value};
use unreleased::Unreleased;
use work::{Task, Work};

/// Identifies a call, a hold or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

impl Id {
    /// The numbers below this one are for callers; the engine takes the others.
    pub const OF_ENGINE: u64 = 1 << 63;

    /// The call of that [`number`](Self::number), which is below
    /// [`OF_ENGINE`](Self::OF_ENGINE).
    #[must_use]
    pub const fn of_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The connection to a server.
#[derive(Clone, Copy, Debug)]
pub enum ConnectionState {
    /// No connection is needed.
    Idle,
    /// Connected.
    Up {
        /// Unique over all servers.
        number: u64,
        /// Whether no request of an earlier connection can still be carried out.
        is_predecessor_gone: bool,
    },
    /// Not connected now.
    Down,
    /// No connection will be made again.
    Closed,
}

impl ConnectionState {
    fn is(self, connection: u64) -> bool {
        matches!(self, Self::Up { number, .. } if number == connection)
    }
}

/// The counters of a client since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Metrics {
    /// Calls that were granted, including re-entries and upgrades.
    pub grants: u64,
    /// Requests that entered the server's queue. A request that continues on a
    /// new connection counts again.
    pub waits: u64,
    /// Holds that were lost: by their lease, or ended by the server.
    pub losses: u64,
    /// Renewals that waited behind others for more than a twelfth of their lease:
    /// the network is slow for this number of holds.
    pub late_renewals: u64,
    /// Connections after the first.
    pub reconnects: u64,
}

/// The state of one owner at one key.
#[derive(Debug, Default)]
struct Claim {
    /// The operation in progress that has the turn.
    turn: Option<Id>,
    /// The others, in order; usually there are none, and nothing is allocated.
    behind: VecDeque<Id>,
    /// The newest hold.
    hold: Option<Id>,
    /// The largest fence whose loss the server has reported. The report may come
    /// before the reply that granted it.
    fence_lost: u64,
}

impl Claim {
    /// Adds an operation behind the others.
    fn enter(&mut self, id: Id) {
        match self.turn {
            None => self.turn = Some(id),
            Some(_) => self.behind.push_back(id),
        }
    }

    /// Removes an operation, and passes the turn on if it had it.
    fn leave(&mut self, id: Id) {
        match self.turn == Some(id) {
            true => self.turn = self.behind.pop_front(),
            false => self.behind.retain(|it| *it != id),
        }
    }

    /// The operations in progress, in order.
    fn operations(&self) -> impl Iterator<Item = &Id> {
        self.turn.iter().chain(&self.behind)
    }

    /// Whether the owner neither holds the key nor asks for it.
    fn is_unused(&self) -> bool {
        self.turn.is_none() && self.hold.is_none()
    }
}

/// The purpose of a deadline of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Work(Id),
    Hold(Id),
    Heartbeat(Node),
}

/// The state of a client, and its decisions; see the documentation of this
/// module.
#[derive(Debug)]
pub struct Engine {
    /// How long calls that do not wait for a lock are retried.
    retry_timeout: Duration,
    /// The longest silence of a connection that is needed.
    quiet: Option<Duration>,
    /// How long replicas may take to acknowledge.
    replication: Duration,
    /// The calls whose holds were renewed, if somebody asks for them.
    renewed: Option<Vec<Id>>,
    /// By their numbers.
    nodes: Vec<NodeState>,
    /// Whether no server will ever be connected again.
    is_closed: bool,
    /// Whether nothing new may be acquired.
    is_leaving: bool,
    routes: Routes,
    /// When each server was last known to be alive, for proofs.
    alive: Alive,
    claims: Table<Name, Claim>,
    released: Released,
    unreleased: Unreleased,
    /// Boxed, because they are large and a table has spare capacity.
    works: Table<Id, Box<Work>>,
    holds: Table<Id, Box<Hold>>,
    requests: Table<Id, Sent>,
    /// The requests in progress that use another connection than the main one,
    /// of owners that may ask again: nothing orders them before the next request
    /// of the same owner.
    separate: Table<Id, Claims>,
    /// How many of them there are for each owner and key.
    separate_at: Table<Name, usize>,
    timers: BTreeSet<(Instant, Timer)>,
    /// Bound holds that have moved to another server at some time.
    moved: BTreeSet<Id>,
    /// Works whose turn may have come.
    next: VecDeque<Id>,
    flushes: Vec<(HashSet<Id>, Id)>,
    actions: VecDeque<Action>,
    metrics: Metrics,
    /// How many holds were created.
    begun: u64,
    last: u64,
    random: u64,
}

impl Engine {
    /// A new engine. `retry_timeout` limits calls that do not wait for a lock,
    /// and `replication` the time that replicas may take. `routes` says which
    /// server has which keys. `seed` spreads the pauses of many clients.
    pub fn new(
        (retry_timeout, replication): (Duration, Duration),
        seed: u64,
        routes: Routes,
    ) -> Self {
        Self {
            retry_timeout,
            quiet: None,
            replication,
            renewed: None,
            nodes: Vec::new(),
            is_closed: false,
            is_leaving: false,
            alive: proof::alive(&routes),
            routes,
            claims: Table::default(),
            released: Released::default(),
            unreleased: Unreleased::default(),
            works: Table::default(),
            holds: Table::default(),
            requests: Table::default(),
            separate: Table::default(),
            separate_at: Table::default(),
            timers: BTreeSet::new(),
            moved: BTreeSet::new(),
            next: VecDeque::new(),
            flushes: Vec::new(),
            actions: VecDeque::new(),
            metrics: Metrics::default(),
            begun: 0,
            last: Id::OF_ENGINE,
            random: seed,
        }
    }

    /// A number for a new call or flush.
    pub fn next_id(&mut self) -> Id {
        self.last += 1;
        Id(self.last)
    }

    /// Takes an event and its moment.
    pub fn handle(&mut self, now: Instant, event: Event) {
        match event {
            Event::Ask {
                call,
                claims,
                ask,
                value,
                terms,
                queueing,
            } => self.ask(now, call, claims, (ask, value), terms, queueing),
            Event::Release { call, hold, ask } => self.release(now, call, hold, ask),
            Event::Downgrade { call, hold } => self.downgrade(now, call, hold),
            Event::Extend { call, hold, lease } => self.extend(now, call, hold, lease),
            Event::Raise {
                call,
                hold,
                fence,
                terms,
            } => self.raise(now, call, hold, fence, terms),
            Event::Proclaim { call, hold, value } => self.proclaim(now, call, hold, value),
            Event::Keep { hold, until } => self.keep(hold, until),
            Event::Abandon { call } => self.abandon(now, call),
            Event::Leave { hold, ask } => self.leave(now, hold, ask),
            Event::Split { hold } => self.change(hold, Hold::split),
            Event::Merge { hold } => self.change(hold, Hold::merge),
            Event::Untaken { call, hold, ask } => self.untaken(now, call, hold, ask),
            Event::SentSeparately { request, claims } => self.is_separate(request, &claims),
            Event::PredecessorStays { connection } => self.predecessor_stays(connection),
            Event::Reply { request, result } => self.answered(now, request, result),
            Event::Notice(notice) => self.notice(now, &notice),
            Event::ConnectionUp {
                node,
                connection,
                is_predecessor_gone,
            } => self.connection_up(now, node, connection, is_predecessor_gone),
            Event::ConnectionDown { node, is_left } => self.connection_down(now, node, is_left),
            Event::Need { node } => self.connect_if_idle(node),
            Event::SlotMoved { slot, node } => self.slot_moved(now, slot, node),
            Event::Routes(routes) => self.set_routes(now, routes),
            Event::Closed => self.closed(now),
            Event::Flush { flush } => self.flush(now, flush),
            Event::LeaveAll => self.leave_all(now),
            Event::Tick => {}
        }
        self.pass_turns(now);
        self.run_due(now);
    }

    /// The next action; none until the next event.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send [`Event::Tick`], unless another event comes before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Which server has which keys.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// The terms on which a lock is held.
    pub fn terms(&self, hold: Id) -> Option<Terms> {
        self.holds.get(&hold).map(|hold| hold.terms)
    }

    /// The counters so far.
    pub fn metrics(&self) -> Metrics {
        self.metrics
    }

    /// Whether nothing new may be acquired.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether a call of this number is in progress, or what is left of it.
    pub fn is_in_progress(&self, call: Id) -> bool {
        self.works.contains_key(&call)
    }

    /// Whether nothing is left to clean up.
    pub fn is_clean(&self) -> bool {
        !self.works.values().any(|work| work.is_clean_up())
    }

    /// Whether no call, hold or request is left.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
            && self.works.is_empty()
            && self.holds.is_empty()
            && self.requests.is_empty()
            && self.separate.is_empty()
            && self.separate_at.is_empty()
            && self.timers.is_empty()
            && self.nodes.iter().all(NodeState::is_unused)
    }

    fn run_due(&mut self, now: Instant) {
        while let Some((due, timer)) = self.timers.first().copied() {
            if due > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Work(id) => self.work_is_due(now, due, id),
                Timer::Hold(id) => self.hold_is_due(now, id),
                Timer::Heartbeat(node) => self.keep_heartbeat(now, node),
            }
            self.pass_turns(now);
        }
    }

    /// Sends a request to a server by the connection with that number.
    fn send(
        &mut self,
        now: Instant,
        (node, connection): (Node, u64),
        by: request::Requester,
        request: Request,
    ) -> Id {
        let id = self.next_id();
        if let Some(claims) = request.claims().filter(|_| request.is_separate()) {
            self.is_separate(id, claims);
        }
        let row = Sent {
            by,
            node,
            connection,
            is_separate: request.is_separate(),
            sent: now,
        };
        self.requests.insert(id, row);
        self.actions.push_back(Action::Send {
            id,
            connection,
            request,
        });
        id
    }

    /// A request uses another connection than the main one.
    fn is_separate(&mut self, request: Id, claims: &Claims) {
        if claims.owner().is_single_use() {
            return;
        }
        if self.separate.insert(request, claims.clone()).is_some() {
            return;
        }
        for name in claims.names() {
            *self.separate_at.entry(name.clone()).or_default() += 1;
        }
    }

    /// Whether a request of the same owner for one of these keys is in progress on
    /// another connection than the main one.
    fn is_asked_separately(&self, claims: &Claims) -> bool {
        let is_asked = |name| self.separate_at.contains_key(name);
        !self.separate_at.is_empty() && claims.names().any(is_asked)
    }

    fn answered(&mut self, now: Instant, request: Id, result: Result<Reply, Fault>) {
        if let Some(claims) = self.separate.remove(&request) {
            for name in claims.names() {
                if let Entry::Occupied(mut number) = self.separate_at.entry(name.clone()) {
                    *number.get_mut() -= 1;
                    if *number.get() == 0 {
                        number.remove();
                    }
                }
            }
            let claims = claims.names().filter_map(|name| self.claims.get(name));
            self.next.extend(claims.filter_map(|claim| claim.turn));
        }
        let Some(sent) = self.requests.remove(&request) else {
            return;
        };
        let node = sent.node;
        // A refusal also shows that the connection is alive. A reply by another
        // connection does not.
        let is_current = self.connection(node).is(sent.connection) && !sent.is_separate;
        if is_current && !matches!(result, Err(Fault::Broken(_))) {
            let known_good = self.node_state(node).known_good.max(sent.sent);
            self.mark_alive(now, node, known_good);
        }
        match sent.by {
            request::Requester::Work(id) => self.work_reply(now, id, request, sent, result),
            request::Requester::Renewal(renewal) => {
                self.renewal_reply(now, sent, renewal, result);
                self.renew_waiting(now, node);
            }
            request::Requester::Ping => self.heartbeat_reply(now, node),
        }
    }

    fn closed(&mut self, now: Instant) {
        self.is_closed = true;
        for state in &mut self.nodes {
            if !matches!(state.connection, ConnectionState::Up { .. }) {
                state.connection = ConnectionState::Closed;
            }
        }
        self.leave_without_turns(now);
        for state in &mut self.nodes {
            state.connection = ConnectionState::Closed;
            state.works.clear();
        }
        for node in (0..).map(Node).take(self.nodes.len()) {
            self.cut_bound(now, node);
        }
        if self.is_leaving {
            self.end_all(now);
        }
        // Nobody learns whether they were released.
        let works = std::mem::take(&mut self.works);
        for (_, work) in in_order(works, |_, work| work.progress.order) {
            if let Task::ReleasePart(release) = &work.task {
                self.release_is_cut_off(now, release.hold);
            }
        }
        let left = self.holds.iter().filter(|(_, hold)| hold.guards == 0);
        for hold in left.map(|(id, _)| *id).collect::<BTreeSet<_>>() {
            self.release_is_cut_off(now, hold);
            self.forget(hold);
        }
        for (_, flush) in std::mem::take(&mut self.flushes) {
            self.flushed(now, flush);
        }
        self.claims.retain(|_, claim| {
            claim.turn = None;
            claim.behind.clear();
            claim.hold.is_some()
        });
        self.timers.clear();
        self.requests.clear();
        self.separate.clear();
        self.separate_at.clear();
    }

    fn flush(&mut self, now: Instant, flush: Id) {
        // The final cleanup comes after these releases, so that nobody waits for
        // them.
        let is_release = |work: &Work| matches!(work.task, Task::Leave(_));
        let is_awaited = |work: &Work| work.is_clean_up() || (self.is_leaving && is_release(work));
        let selected = self.works.iter().filter(|(_, work)| is_awaited(work));
        let awaited: HashSet<Id> = selected.map(|(id, _)| *id).collect();
        if awaited.is_empty() {
            self.flushed(now, flush);
        } else {
            self.flushes.push((awaited, flush));
        }
    }

    fn flushed(&mut self, now: Instant, flush: Id) {
        let failed = self.unreleased.error(now);
        self.actions.push_back(Action::Flushed { flush, failed });
    }

    /// The pause before the next attempt, after `attempts` failed ones.
    pub(crate) fn pause(&mut self, attempts: u32) -> Duration {
        // splitmix64
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        pause(attempts, mixed ^ (mixed >> 27))
    }
}

/// The entries of a table, those with the smallest `order` first.
fn in_order<T>(
    table: impl IntoIterator<Item = (Id, T)>,
    order: impl Fn(Id, &T) -> Id,
) -> impl Iterator<Item = (Id, T)> {
    let mut rows: Vec<_> = table.into_iter().collect();
    rows.sort_unstable_by_key(|(id, row)| order(*id, row));
    rows.into_iter()
}

/// The pause after `attempts` attempts: 10 ms, doubled up to 1 s. Half of it is
/// random, so that many clients do not retry at the same moment.
fn pause(attempts: u32, random: u64) -> Duration {
    let full = Duration::from_millis(10 << attempts.min(7)).min(Duration::from_secs(1));
    full / 2 + full / 2000 * u32::try_from(random % 1000).unwrap_or(0)
}

/// Input of the engine.
#[derive(Debug)]
pub enum Event {
    /// A call for a lock; answered by [`Action::Resolve`].
    Ask {
        /// The call's number.
        call: Id,
        /// The owner, and the keys that it asks for.
        claims: Claims,
        /// Exclusive, shared, or a number of permits.
        ask: Ask,
        /// The value to publish with the hold; for a single exclusive key only.
        value: Option<Value>,
        /// The terms of the hold.
        terms: Terms,
        /// Whether and how long to wait.
        queueing: Queueing,
    },
    /// Releases a guard and reports how that ended; answered by
    /// [`Action::Resolve`].
    Release {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// The mode of the guard.
        ask: Ask,
    },
    /// Turns an exclusive guard into a shared one; answered by
    /// [`Action::Resolve`].
    Downgrade {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
    },
    /// Extends a hold to at least `lease` from now; answered by
    /// [`Action::Resolve`].
    Extend {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// The lease, from now on.
        lease: Duration,
    },
    /// Raises the fence of a hold to at least `fence`; answered by
    /// [`Action::Resolve`]. Later renewals of the hold use `terms`, but its
    /// binding does not change.
    Raise {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// The smallest fence that is acceptable.
        fence: u64,
        /// The terms of later renewals.
        terms: Terms,
    },
    /// Publishes another value with a hold of a single exclusive key; answered by
    /// [`Action::Resolve`].
    Proclaim {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// What is published.
        value: Value,
    },
    /// Keeps the hold on the server until this moment, even if its last guard
    /// ends before. Nothing is sent until that guard ends.
    Keep {
        /// The hold's number.
        hold: Id,
        /// Until when.
        until: Instant,
    },
    /// The caller no longer waits for the answer.
    Abandon {
        /// The call's number.
        call: Id,
    },
    /// A guard was dropped.
    Leave {
        /// The hold's number.
        hold: Id,
        /// The mode of the guard.
        ask: Ask,
    },
    /// A guard of permits became two, which have its permits between them. Each
    /// ends with [`Event::Release`] or [`Event::Leave`], in the mode of its own
    /// permits.
    Split {
        /// The hold's number.
        hold: Id,
    },
    /// Two guards of permits of one hold became one, which has the permits of both.
    Merge {
        /// The hold's number.
        hold: Id,
    },
    /// The call was granted, but its caller was gone before it learned of the
    /// grant.
    Untaken {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// The mode that the call asked for.
        ask: Ask,
    },
    /// A request goes to another server or by another connection than
    /// [`Action::Send`] names: the server has said that its slot is moving.
    SentSeparately {
        /// The request's number.
        request: Id,
        /// Its owner and keys.
        claims: Claims,
    },
    /// A request that was sent by another connection than this one may still be
    /// carried out after those of this connection.
    PredecessorStays {
        /// The connection's number.
        connection: u64,
    },
    /// The answer to [`Action::Send`]. A request that was sent separately and got
    /// no answer ends with [`Fault::Stray`].
    Reply {
        /// The request's number.
        request: Id,
        /// The answer, or why there is none.
        result: Result<Reply, Fault>,
    },
    /// A message from the server.
    Notice(Notice),
    /// A server is connected.
    ConnectionUp {
        /// The server.
        node: Node,
        /// The connection's number.
        connection: u64,
        /// Whether no request of an earlier connection can still be carried out.
        is_predecessor_gone: bool,
    },
    /// The connection to a server ended.
    ConnectionDown {
        /// The server.
        node: Node,
        /// Whether there will be no new connection until one is needed.
        is_left: bool,
    },
    /// Asks for a connection to a server before there is a request for it.
    Need {
        /// The server.
        node: Node,
    },
    /// A server said that another server has this slot.
    SlotMoved {
        /// The slot, below 16384.
        slot: u16,
        /// The server that has it now.
        node: Node,
    },
    /// Which server has which slots.
    Routes(Routes),
    /// There will be no more connections.
    Closed,
    /// Asks for [`Action::Flushed`] once nothing is left to clean up.
    Flush {
        /// The number of this flush.
        flush: Id,
    },
    /// Acquires nothing more: calls that wait for a lock end with
    /// [`Error::Closed`], and all holds are released.
    LeaveAll,
    /// Time has passed.
    Tick,
}

/// Output of the engine.
#[derive(Debug)]
pub enum Action {
    /// Send `request` by a connection, after all earlier requests on it.
    Send {
        /// The request's number.
        id: Id,
        /// The connection's number.
        connection: u64,
        /// What to send.
        request: Request,
    },
    /// The call is over.
    Resolve {
        /// The call's number.
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
    /// The server refused to renew a hold. Renewing is retried until the hold is
    /// lost.
    NotRenewed {
        /// Its keys and their owner.
        claims: Claims,
        /// The server's error.
        reason: String,
    },
    /// No renewal of a hold has been confirmed for half of its lease.
    AtRisk {
        /// The hold.
        proof: Arc<Proof>,
        /// For how long.
        since: Duration,
        /// When it is lost, unless a renewal succeeds.
        left: Duration,
    },
    /// Connect to a server, and reconnect whenever the connection ends.
    Connect {
        /// The server.
        node: Node,
    },
    /// Close the connection: it is silent.
    Retire {
        /// The connection's number.
        connection: u64,
    },
    /// The server refused to release a hold that nobody releases by a call.
    NotReleased {
        /// Its keys and their owner.
        claims: Claims,
        /// The server's error.
        reason: String,
    },
    /// The clean-up that was pending at [`Event::Flush`] is done.
    Flushed {
        /// The number of the flush.
        flush: Id,
        /// What could not be released; [`Error::NotReleased`].
        failed: Option<Error>,
    },
}

/// How a call ends.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Granted in this mode: one more guard.
    Granted(Arc<Proof>, Ask),
    /// Not granted in time; no error.
    Refused,
    /// Released, or downgraded.
    Done,
    /// Failed.
    Failed(Error),
}
