//! All that a client decides, without I/O and without a clock.
//!
//! The engine's input is what happens ([`Engine::handle`]) and at which moment. It
//! says what to do ([`Engine::poll_action`]), in order, and when it
//! needs the time again ([`Engine::next_deadline`]). The same input
//! gives the same output, which is how `tests/simulation` shows its rules.
//!
//! - `work`: what is under way for an owner, and in which order;
//! - `call`: from a call for a lock to a grant, over lost connections too;
//! - `leaving`: release, at once or later, downgrade, and what is done behind a call;
//! - `hold`: what is held, by how many guards, and how that ends;
//! - `watchdog`: renewals, leases that a holder extends, and heartbeats;
//! - `node`: what is known of each server, and which keys it has;
//! - `request`: what a server is asked, and what it answers and says by itself;
//! - `claims`, `terms`: who asks for which keys, how, for how long;
//! - `proof`: what guards can tell without the engine.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Fault, Loss};

mod call;
pub mod claims;
mod hold;
pub mod instant;
mod leaving;
pub mod node;
pub mod proof;
pub mod request;
pub mod terms;
mod watchdog;
mod work;

use claims::{Claims, Name, Table};
use hold::Hold;
use instant::Instant;
use node::{Node, NodeState, Routes};
use proof::{Alive, Proof};
use request::{Notice, Reply, Request, Sent};
use terms::{Ask, Queueing, Terms, Value};
use work::{Task, Work};

/// The number of anything that the engine knows: a call, a hold, a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

/// The connection to a server.
#[derive(Clone, Copy, Debug)]
pub enum ConnectionState {
    /// Nobody has needed one.
    Idle,
    /// There is one.
    Up {
        /// Unique over all servers.
        number: u64,
        /// Whether no request of an earlier one can still be carried out.
        is_predecessor_gone: bool,
    },
    /// There is none now.
    Down,
    /// For ever.
    Closed,
}

impl ConnectionState {
    fn is(self, connection: u64) -> bool {
        matches!(self, Self::Up { number, .. } if number == connection)
    }
}

/// What a client has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Metrics {
    /// Calls that got what they asked for, entries and upgrades too.
    pub grants: u64,
    /// Times that a request was put into the server's queue. One that goes on by
    /// a new connection counts again.
    pub waits: u64,
    /// Holds that were lost: by their lease, or ended by the server.
    pub losses: u64,
    /// Renewals that had to wait for others for more than a twelfth of their
    /// lease: the network is slow for this number of holds.
    pub late_renewals: u64,
    /// Connections after the first.
    pub reconnects: u64,
}

/// What is known of one owner at one key.
#[derive(Debug, Default)]
struct Claim {
    /// What is under way, in order; the first has the turn.
    queue: VecDeque<Id>,
    /// The newest hold.
    hold: Option<Id>,
    /// The largest fence that the server said was lost. It may say so before
    /// the reply that granted it is here.
    fence_lost: u64,
}

/// What a deadline of the engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Work(Id),
    Hold(Id),
    Heartbeat(Node),
}

/// All that a client knows and decides; see the documentation of this module.
#[derive(Debug)]
pub struct Engine {
    /// How long calls go on that do not wait for a lock.
    retry_timeout: Duration,
    /// How long a connection may be quiet at most while it is needed.
    quiet: Option<Duration>,
    /// How long replicas may take to say what they know.
    replication: Duration,
    nodes: BTreeMap<Node, NodeState>,
    /// Whether there will be no connection any more, to no server.
    is_closed: bool,
    /// Whether nothing must be taken any more.
    is_leaving: bool,
    routes: Routes,
    /// When each server was last known to be there, for proofs.
    alive: Alive,
    claims: Table<Name, Claim>,
    /// Boxed, as they are large, and a table has room for more than there are.
    works: Table<Id, Box<Work>>,
    holds: Table<Id, Box<Hold>>,
    requests: Table<Id, Sent>,
    timers: BTreeSet<(Instant, Timer)>,
    /// Works that may have the turn now.
    next: VecDeque<Id>,
    flushes: Vec<(HashSet<Id>, Id)>,
    actions: VecDeque<Action>,
    metrics: Metrics,
    /// How many holds there have been.
    begun: u64,
    last: u64,
    random: u64,
}

impl Engine {
    /// How long calls go on that do not wait for a lock, how long replicas may
    /// take, and which server has what. `seed` spreads the pauses of many clients.
    pub fn new(
        (retry_timeout, replication): (Duration, Duration),
        seed: u64,
        routes: Routes,
    ) -> Self {
        Self {
            retry_timeout,
            quiet: None,
            replication,
            nodes: BTreeMap::new(),
            is_closed: false,
            is_leaving: false,
            alive: proof::alive(&routes),
            routes,
            claims: Table::default(),
            works: Table::default(),
            holds: Table::default(),
            requests: Table::default(),
            timers: BTreeSet::new(),
            next: VecDeque::new(),
            flushes: Vec::new(),
            actions: VecDeque::new(),
            metrics: Metrics::default(),
            begun: 0,
            last: 0,
            random: seed,
        }
    }

    /// A number for a call or a flush that begins.
    pub fn next_id(&mut self) -> Id {
        self.last += 1;
        Id(self.last)
    }

    /// Takes what happens, and when.
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
            Event::Extend { call, hold, lease } => self.extend(now, call, hold, lease, None),
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
            Event::Untaken { call, hold, ask } => self.untaken(now, call, hold, ask),
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
            Event::Flush { flush } => self.flush(flush),
            Event::LeaveAll => self.leave_all(now),
            Event::Tick => {}
        }
        self.pass_turns(now);
        self.do_what_is_due(now);
    }

    /// What to do next; none until something happens.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send the time again, unless something happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Which server has what.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// What was counted so far.
    pub fn metrics(&self) -> Metrics {
        self.metrics
    }

    /// Whether nothing must be taken any more.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether nothing is left to clean up.
    pub fn is_clean(&self) -> bool {
        !self.works.values().any(|work| work.is_clean_up())
    }

    /// Whether nothing is known of anybody.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
            && self.works.is_empty()
            && self.holds.is_empty()
            && self.requests.is_empty()
            && self.timers.is_empty()
            && self.nodes.values().all(NodeState::is_unused)
    }

    fn do_what_is_due(&mut self, now: Instant) {
        while let Some((due, timer)) = self.timers.first().copied() {
            if due > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Work(id) => self.work_is_due(now, id),
                Timer::Hold(id) => self.hold_is_due(now, id),
                Timer::Heartbeat(node) => {
                    self.node_state(node).heartbeat = None;
                    self.keep_heartbeat(now, node);
                }
            }
            self.pass_turns(now);
        }
    }

    /// Sends a request to a server by the connection of that number.
    fn send(
        &mut self,
        now: Instant,
        (node, connection): (Node, u64),
        by: request::By,
        request: Request,
    ) -> Id {
        let id = self.next_id();
        let row = Sent {
            by,
            node,
            connection,
            goes_beside: request.goes_beside(),
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

    fn answered(&mut self, now: Instant, request: Id, result: Result<Reply, Fault>) {
        let Some(sent) = self.requests.remove(&request) else {
            return;
        };
        let node = sent.node;
        // A refusal shows too that the connection is alive. What came by another
        // connection does not.
        let came_by_it = self.connection(node).is(sent.connection) && !sent.goes_beside;
        if came_by_it && !matches!(result, Err(Fault::Broken(_))) {
            let known_good = self.node_state(node).known_good.max(sent.sent);
            self.is_alive(node, known_good, now);
        }
        match sent.by {
            request::By::Work(id) => self.work_reply(now, id, request, sent, result),
            request::By::Renewal(renewal) => {
                self.renewal_reply(now, sent, renewal, result);
                self.renew_waiting(now, node);
            }
            request::By::Ping => self.heartbeat_reply(now, node),
        }
    }

    fn closed(&mut self, now: Instant) {
        self.is_closed = true;
        for state in self.nodes.values_mut() {
            state.connection = ConnectionState::Closed;
            state.works.clear();
        }
        for node in self.nodes.keys() {
            self.cut_bound(now, *node);
        }
        if self.is_leaving {
            self.end_all(now);
        }
        let works = std::mem::take(&mut self.works);
        for (call, work) in in_order(works) {
            if work.progress.is_awaited {
                self.resolve(call, Outcome::Failed(Error::Closed));
            }
        }
        for (_, flush) in std::mem::take(&mut self.flushes) {
            self.actions.push_back(Action::Flushed { flush });
        }
        // Nobody is left to release the rest.
        let left = self.holds.iter().filter(|(_, hold)| hold.guards == 0);
        for hold in left.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.forget(hold);
        }
        self.claims.retain(|_, claim| {
            claim.queue.clear();
            claim.hold.is_some()
        });
        self.timers.clear();
        self.requests.clear();
    }

    fn flush(&mut self, flush: Id) {
        // The end of all comes after this then, so that nobody else waits for those
        // releases either.
        let is_release = |work: &Work| matches!(work.task, Task::Leave(_));
        let is_meant = |work: &Work| work.is_clean_up() || (self.is_leaving && is_release(work));
        let meant = self.works.iter().filter(|(_, work)| is_meant(work));
        let awaited: HashSet<Id> = meant.map(|(id, _)| *id).collect();
        if awaited.is_empty() {
            self.actions.push_back(Action::Flushed { flush });
        } else {
            self.flushes.push((awaited, flush));
        }
    }

    /// The pause before the next attempt, after `attempts` others.
    pub(crate) fn pause(&mut self, attempts: u32) -> Duration {
        // splitmix64
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        pause(attempts, mixed ^ (mixed >> 27))
    }
}

/// What a table has, as it was begun.
fn in_order<T>(table: impl IntoIterator<Item = (Id, T)>) -> impl Iterator<Item = (Id, T)> {
    let mut rows: Vec<_> = table.into_iter().collect();
    rows.sort_unstable_by_key(|(id, _)| *id);
    rows.into_iter()
}

/// The pause after `attempts` attempts: 10 ms, doubled up to 1 s, half of it
/// random so that many clients do not come back in step.
pub fn pause(attempts: u32, random: u64) -> Duration {
    let full = Duration::from_millis(10 << attempts.min(7)).min(Duration::from_secs(1));
    full / 2 + full / 2000 * u32::try_from(random % 1000).unwrap_or(0)
}

/// What happens.
#[derive(Debug)]
pub enum Event {
    /// Somebody asks for a lock; answered by [`Action::Resolve`].
    Ask {
        /// The call's number.
        call: Id,
        /// Who asks, and for what.
        claims: Claims,
        /// Alone, shared, or some of a number of permits.
        ask: Ask,
        /// What is published with the hold, of one key that is held alone.
        value: Option<Value>,
        /// On which terms.
        terms: Terms,
        /// Whether and how long to wait.
        queueing: Queueing,
    },
    /// A guard ends, and somebody wants to know how; answered likewise.
    Release {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// How the guard holds it.
        ask: Ask,
    },
    /// An exclusive guard becomes a shared one; answered likewise.
    Downgrade {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
    },
    /// A hold is to last for at least `lease` from now.
    Extend {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// How long from now.
        lease: Duration,
    },
    /// Raises the fence of a hold to at least `fence`; answered likewise. The hold is
    /// renewed on these terms from now on, but stays bound or not as it was.
    Raise {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// The smallest fence that will do.
        fence: u64,
        /// On which terms.
        terms: Terms,
    },
    /// Publishes another value with a hold, of one key that is held alone; answered
    /// likewise.
    Proclaim {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// What is published.
        value: Value,
    },
    /// The server must keep a hold until then, even if its last guard ends
    /// before; nothing is sent until that ends.
    Keep {
        /// The hold's number.
        hold: Id,
        /// Until when.
        until: Instant,
    },
    /// Nobody waits for that answer any more.
    Abandon {
        /// The call's number.
        call: Id,
    },
    /// A guard was dropped.
    Leave {
        /// The hold's number.
        hold: Id,
        /// How the guard held it.
        ask: Ask,
    },
    /// The call was granted, and its caller was gone before it knew.
    Untaken {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// How the call asked for it.
        ask: Ask,
    },
    /// The answer to [`Action::Send`].
    Reply {
        /// The request's number.
        request: Id,
        /// What was answered, or why nothing was.
        result: Result<Reply, Fault>,
    },
    /// The server has said something.
    Notice(Notice),
    /// There is a connection to a server.
    ConnectionUp {
        /// The server.
        node: Node,
        /// The connection's number.
        connection: u64,
        /// Whether no request of an earlier one can still be carried out.
        is_predecessor_gone: bool,
    },
    /// It is gone.
    ConnectionDown {
        /// The server.
        node: Node,
        /// Whether no other one is made before it is needed.
        is_left: bool,
    },
    /// A connection to a server is wanted, before there is anything to ask.
    Need {
        /// The server.
        node: Node,
    },
    /// A server said that another one has this slot.
    SlotMoved {
        /// The slot, below 16384.
        slot: u16,
        /// The server that has it now.
        node: Node,
    },
    /// Which server has which slots.
    Routes(Routes),
    /// There will never be one again.
    Closed,
    /// Somebody wants to know when nothing is left to clean up; answered by
    /// [`Action::Flushed`].
    Flush {
        /// The number of this question.
        flush: Id,
    },
    /// Nothing must be taken any more: calls that wait for a lock end with
    /// [`Error::Closed`], and all that is held is
    /// released.
    LeaveAll,
    /// Time has passed.
    Tick,
}

/// What to do.
#[derive(Debug)]
pub enum Action {
    /// Send `request` by a connection, after all that were sent before by it.
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
    /// Wake those who wait for the end of a hold, and log it if it was lost.
    Over {
        /// The hold.
        proof: Arc<Proof>,
        /// How it ended.
        why: Loss,
    },
    /// Connect to a server, and again whenever the connection is gone.
    Connect {
        /// The server.
        node: Node,
    },
    /// Give the connection up: it is silent.
    Retire {
        /// The connection's number.
        connection: u64,
    },
    /// Everything that needed cleaning up at the request is clean.
    Flushed {
        /// The number of the question.
        flush: Id,
    },
}

/// How a call ends.
#[derive(Debug)]
pub enum Outcome {
    /// With one guard more.
    Granted(Arc<Proof>),
    /// Not in time; no error.
    Refused,
    /// Released, or downgraded.
    Done,
    /// With an error.
    Failed(Error),
}
