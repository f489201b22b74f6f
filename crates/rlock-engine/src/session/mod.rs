//! The calls and guards of a client, above its [`Endpoint`].
//!
//! A call has a number that its caller chooses ([`Id::of_number`]), and ends with
//! one [`Action::Resolve`]. A guard has the number of the call that it was
//! granted to. Everything that a caller sees is decided here, for all languages:
//! what several keys need, what becomes of a grant whose caller is gone, and
//! when a guard is lost.
//!
//! - here: calls, from their begin to their outcome;
//! - `locking`: a call for several keys, together or one after the other;
//! - `guards`: what a call was granted;
//! - `quorum`: the same for several servers that hold a lock by majority;
//! - `machine`: either of the two;
//! - `telemetry`: what happens to calls, guards and connections, for a
//!   listener.
//!
//! A [`Session`] is one type, whole: a call may need calls, guards and pauses at
//! once. What can be decided without them is in the other files.
//!
//! As with the endpoint, each input comes with its moment. Then the actions are
//! carried out in order ([`Session::poll_action`]), and [`Session::handle`] gets
//! a [`Tick`](endpoint::Event::Tick) at [`Session::next_deadline`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::{
    self, Change, ConnectionId, Endpoint, Event, Note, Outcome as Resolved, Settings, To,
};
use crate::engine::claims::{Claims, Table};
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::engine::proof::Proof;
use crate::engine::terms::{Ask, Queueing, Terms, Value, lease_ms};
use crate::engine::{self, Id, Outcome as Engine};
use crate::error::{Error, Loss};
use crate::servers::{Address, Servers};
use crate::wire::inspect::{self, Leader};
use crate::wire::resp::{Command, Frame};
use crate::wire::{replies, requests};

mod guards;
mod locking;
mod machine;
#[cfg(feature = "quorum")]
pub mod quorum;
mod telemetry;

pub use guards::Proofs;
use guards::{Grant, Guard};
use locking::{Locking, Next};
pub use machine::Machine;
pub use telemetry::{Occurrence, OccurrenceKind};

/// What a caller asks for.
#[derive(Debug)]
pub enum Call {
    /// Connect now. Done once a server is connected and is known to have the
    /// module.
    Connect,
    /// Hold one lock or several: granted, or refused if the time was not enough.
    /// A wait without limit is never refused.
    Lock(Lock),
    /// Make a shared guard exclusive: granted with the same guard, or refused.
    Upgrade {
        /// The guard's number.
        guard: Id,
        /// Whether and how long to wait.
        queueing: Queueing,
        /// Whether a lock that was lost meanwhile may be taken again. If not, the call
        /// fails with the loss.
        retakes: bool,
    },
    /// Make an exclusive guard shared. It is shared even after an error.
    Downgrade {
        /// The guard's number.
        guard: Id,
    },
    /// Have a guard last for at least this long from now.
    Extend {
        /// The guard's number.
        guard: Id,
        /// How long.
        lease: Duration,
    },
    /// Raise the fence of a guard to at least `fence`. Later renewals use `terms`.
    Raise {
        /// The guard's number.
        guard: Id,
        /// The smallest fence that is acceptable.
        fence: u64,
        /// The terms of later renewals.
        terms: Terms,
    },
    /// Publish another value with an exclusive guard of one key.
    Proclaim {
        /// The guard's number.
        guard: Id,
        /// What is published.
        value: Value,
    },
    /// End a guard, and report how that went.
    Release {
        /// The guard's number.
        guard: Id,
        /// For how long since the grant the lock stays taken; none: not at all.
        /// If this is out of range, the lock becomes free when its lease ends.
        least: Option<Duration>,
    },
    /// Release some permits of a guard, which keeps the others; all of them: as
    /// [`Release`](Self::Release).
    ReleasePermits {
        /// The guard's number.
        guard: Id,
        /// How many.
        permits: u32,
    },
    /// Ask a server, and repeat that until there is an answer.
    Question {
        /// The server to ask; none for each of them.
        to: Option<To>,
        /// The command, which has one reply.
        command: Command,
        /// Whether it changes something. If so, it is not repeated once it may
        /// have been carried out.
        changes: bool,
        /// How long it may take; none for the time for which calls are retried.
        limit: Option<Duration>,
    },
    /// Ask who leads at a key.
    Leader {
        /// The key.
        key: Arc<[u8]>,
    },
    /// Report the leader at a key, now and after each change, until the call is
    /// abandoned or failed.
    Observe {
        /// The key.
        key: Arc<[u8]>,
    },
    /// Wait until nothing is left to clean up. Failed with [`Error::NotReleased`]
    /// if the server refused to release something, or the client ended before.
    Flush,
}

/// A request to hold one lock or several.
#[derive(Clone, Debug)]
pub struct Lock {
    /// Who asks, and for which keys.
    pub claims: Claims,
    /// Exclusive, shared, or a number of permits.
    pub ask: Ask,
    /// The value to publish with the lock; for a single exclusive key only.
    pub value: Option<Value>,
    /// On which terms it is held.
    pub terms: Terms,
    /// Whether and how long to wait.
    pub queueing: Queueing,
}

/// Output of a session; carried out in order.
#[derive(Debug)]
pub enum Action {
    /// Open a connection, and report when it is open or why it is not.
    Connect {
        /// The number of the new connection.
        connection: ConnectionId,
        /// The address.
        address: Address,
    },
    /// A connection has output; [`Session::take_output`] returns it.
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
    /// A guard is no longer valid, and was not released by its caller; once for
    /// each guard.
    Over {
        /// Its number.
        guard: Id,
        /// How it ended.
        why: Loss,
    },
    /// Wake the tasks that wait for the end of what was granted by one request,
    /// and log a loss.
    Ended {
        /// What was granted.
        proof: Arc<Proof>,
        /// How it ended.
        why: Loss,
    },
    /// Wake the tasks that wait for the end of what was granted by one request: it
    /// may come sooner, and no action tells of it.
    Wake {
        /// What was granted.
        proof: Arc<Proof>,
    },
    /// Tell the listener. Without one, this is only a risk.
    Occurred {
        /// The guard that it concerns.
        guard: Option<Id>,
        /// What happened.
        occurrence: Occurrence,
    },
    /// Report a new leader to an observer.
    Observed {
        /// The number of its call.
        call: Id,
        /// The leader.
        change: Change,
    },
    /// An event for a log.
    Note(Note),
}

/// How a call ends.
#[derive(Debug)]
pub enum Outcome {
    /// It holds what it asked for.
    Granted {
        /// The number of the guard.
        guard: Id,
        /// What its caller can check without the session.
        proofs: Proofs,
    },
    /// Not granted in time; no error.
    Refused,
    /// Done.
    Done,
    /// The server's answer.
    Answer(Frame),
    /// The answer of each server.
    Answers(Vec<(Node, Result<Frame, Error>)>),
    /// Who leads.
    Leader(Option<Leader>),
    /// Failed.
    Failed(Error),
}

/// What is known of a call that needs more than one answer, or more than an
/// answer.
enum Progress {
    Several(Box<Locking>),
    Upgrade {
        guard: Id,
        retakes: bool,
    },
    /// Several answers become one: those that are left, and the first error.
    Parts {
        left: BTreeSet<Id>,
        error: Option<Error>,
    },
    /// The servers that were asked, by part, with their answers, and how many are
    /// left.
    Each {
        left: usize,
        asked: BTreeMap<Id, (Node, Option<Result<Frame, Error>>)>,
    },
    Leader,
    Observer,
    Flush,
}

/// A client without sockets and without a clock; see the documentation of this
/// module.
pub struct Session {
    endpoint: Endpoint,
    /// How long questions are retried.
    retry: Duration,
    /// Whether the single server is a node of a cluster, once it has reported
    /// that.
    is_cluster: Option<bool>,
    calls: Table<Id, Progress>,
    /// The call of each part in progress; a call that has one part only has its
    /// number.
    parts: Table<Id, Id>,
    guards: Table<Id, Guard>,
    /// The guards of each hold, except those with the number of the call that was
    /// granted it first. Several guards of one owner may share a hold.
    of_holds: BTreeSet<(Id, Id)>,
    /// Calls that continue at that moment.
    pauses: BTreeSet<(Instant, Id)>,
    /// The moment of the last input.
    now: Instant,
    actions: VecDeque<Action>,
}

impl Session {
    /// A client with these `settings`, which their caller has
    /// [checked](Settings::check). It does nothing before its first input.
    #[must_use]
    pub fn new(servers: Servers, settings: Settings) -> Self {
        Self {
            retry: settings.limits.retry,
            endpoint: Endpoint::new(servers, settings),
            is_cluster: None,
            calls: Table::default(),
            parts: Table::default(),
            guards: Table::default(),
            of_holds: BTreeSet::new(),
            pauses: BTreeSet::new(),
            now: Instant::from_nanos(0),
            actions: VecDeque::new(),
        }
    }

    /// The connections below.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The same, to change its settings.
    pub fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// The next action; none until the next input. The input is handled once there
    /// is none.
    pub fn poll_action(&mut self) -> Option<Action> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if let Some(action) = self.endpoint.poll_action() {
                match self.carry_out(action) {
                    None => {}
                    action => return action,
                }
            } else {
                let first = *self.pauses.first().filter(|it| it.0 <= self.now)?;
                self.pauses.remove(&first);
                self.go_on(first.1);
            }
        }
    }

    /// When to send [`Event::Tick`], unless another input comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let pause = self.pauses.first().map(|(due, _)| *due);
        pause.into_iter().chain(self.endpoint.next_deadline()).min()
    }

    /// Exchanges the output of a connection for `empty`.
    pub fn take_output(&mut self, connection: ConnectionId, empty: &mut Vec<u8>) {
        self.endpoint.take_output(connection, empty);
    }

    /// How long a guard stays valid if nothing more arrives; zero if it is over.
    #[must_use]
    pub fn remaining(&self, guard: Id, now: Instant) -> Duration {
        let guard = self.guards.get(&guard);
        guard.map_or(Duration::ZERO, |guard| guard.remaining(now))
    }

    /// Whether a call or a guard has this number, so that no other call can have it.
    #[must_use]
    pub fn is_known(&self, number: Id) -> bool {
        self.calls.contains_key(&number)
            || self.guards.contains_key(&number)
            || self.endpoint.is_in_progress(number)
    }

    /// Whether nobody waits or holds anything, and nothing is left to clean up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_idle = self.calls.is_empty() && self.parts.is_empty() && self.pauses.is_empty();
        let is_free = self.guards.is_empty() && self.of_holds.is_empty();
        is_idle && is_free && self.endpoint.engine().is_empty()
    }

    /// Whether nothing is left to clean up.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.endpoint.engine().is_clean()
    }

    /// Takes an event of a connection or of time.
    pub fn handle(&mut self, now: Instant, event: Event<'_>) {
        self.now = now;
        let is_closed = matches!(event, Event::Closed);
        if is_closed {
            // The keys that such a call has so far are released. Nothing more is cleaned up.
            self.end_calls(|it| matches!(it, Progress::Several(_) | Progress::Flush));
        }
        self.endpoint.handle(now, event);
        if is_closed {
            // What is bound ends sooner, and nothing more happens here.
            let grants = self.guards.values().flat_map(Guard::grants);
            let awaited = grants.filter(|it| it.proof.is_awaited());
            let proofs = awaited.map(|it| Arc::clone(&it.proof));
            self.actions
                .extend(proofs.map(|proof| Action::Wake { proof }));
        }
    }

    /// Ends these calls with [`Error::Closed`].
    fn end_calls(&mut self, are_ended: impl Fn(&Progress) -> bool) {
        let calls = self.calls.iter().filter(|(_, it)| are_ended(it));
        for call in calls.map(|(call, _)| *call).collect::<BTreeSet<_>>() {
            self.abandon(self.now, call);
            self.fail(call, Error::Closed);
        }
    }

    /// Begins a call with this number, which no earlier call had.
    pub fn call(&mut self, now: Instant, call: Id, begun: Call) {
        self.now = now;
        match begun {
            Call::Connect => self.endpoint.handle(now, Event::Start { call }),
            Call::Lock(lock) => self.lock(call, lock),
            Call::Upgrade {
                guard,
                queueing,
                retakes,
            } => self.upgrade(call, guard, queueing, retakes),
            Call::Downgrade { guard } => self.downgrade(call, guard),
            Call::Extend { guard, lease } => match lease_ms("lease", lease) {
                Ok(lease) => self.change(call, guard, |call, hold| engine::Event::Extend {
                    call,
                    hold,
                    lease,
                }),
                Err(error) => self.fail(call, error),
            },
            Call::Raise {
                guard,
                fence,
                terms,
            } => self.change(call, guard, |call, hold| engine::Event::Raise {
                call,
                hold,
                fence,
                terms,
            }),
            Call::Proclaim { guard, value } => {
                match self.guards.get(&guard).map(Guard::check_alone) {
                    Some(Err(error)) => self.fail(call, error),
                    _ => self.change(call, guard, |call, hold| {
                        let value = value.clone();
                        engine::Event::Proclaim { call, hold, value }
                    }),
                }
            }
            Call::Release { guard, least } => self.release(call, guard, least),
            Call::ReleasePermits { guard, permits } => {
                self.release_permits(call, guard, permits);
            }
            Call::Question {
                to,
                command,
                changes,
                limit,
            } => {
                let (question, limit) = ((command, changes), limit.unwrap_or(self.retry));
                match to {
                    Some(to) => self.question(call, to, question, Some(limit)),
                    None => self.ask_each(call, question, Some(limit)),
                }
            }
            Call::Leader { key } => {
                self.calls.insert(call, Progress::Leader);
                let info = (requests::info(&key), false);
                self.question(call, To::Key(key), info, Some(self.retry));
            }
            Call::Observe { key } => {
                self.calls.insert(call, Progress::Observer);
                let observer = call;
                self.endpoint.handle(now, Event::Observe { observer, key });
            }
            Call::Flush => {
                self.calls.insert(call, Progress::Flush);
                self.tell(engine::Event::Flush { flush: call });
            }
        }
    }

    /// Nobody waits for a call any more.
    pub fn abandon(&mut self, now: Instant, call: Id) {
        self.now = now;
        match self.calls.remove(&call) {
            Some(Progress::Observer) => {
                let observer = call;
                self.endpoint.handle(now, Event::Unobserve { observer });
            }
            Some(Progress::Several(locking)) => {
                if let Some(paused) = locking.paused {
                    self.pauses.remove(&(paused, call));
                }
                self.abandon_parts(locking.part);
                self.give_back(locking.into_grants());
            }
            Some(Progress::Parts { left, .. }) => self.abandon_parts(left),
            Some(Progress::Each { asked, .. }) => self.abandon_parts(asked.into_keys()),
            _ => self.tell(engine::Event::Abandon { call }),
        }
    }

    /// A guard ends, and nobody waits for the outcome.
    pub fn leave(&mut self, now: Instant, guard: Id) {
        self.now = now;
        if let Some(guard) = self.end_guard(guard) {
            self.give_back(guard.into_grants());
        }
    }

    /// The same for a guard that its caller never received: it is as if it had not
    /// been granted.
    pub fn untaken(&mut self, now: Instant, guard: Id) {
        self.now = now;
        let guard = self.end_guard(guard);
        for grant in guard.into_iter().flat_map(Guard::into_grants) {
            let (call, hold, ask) = (grant.part, grant.proof.hold, grant.ask);
            self.tell(engine::Event::Untaken { call, hold, ask });
        }
    }

    /// The permits that a guard needs; 0 if it has ended.
    #[must_use]
    pub fn permits(&self, guard: Id) -> u32 {
        let guard = self.guards.get(&guard);
        guard.map_or(0, |guard| guard.first().ask.permits())
    }

    /// Gives `permits` of a guard to a new one with the number `part`; false, and
    /// nothing changes, unless both have some then. A part of a guard that is over
    /// is over, too, and no action says so.
    pub fn split(&mut self, now: Instant, guard: Id, part: Id, permits: u32) -> bool {
        self.now = now;
        let Some(guard) = self.guards.get_mut(&guard) else {
            return false;
        };
        let (is_over, whole) = (guard.is_over, guard.first_mut());
        let Some((rest, ask)) = whole.ask.split(permits) else {
            return false;
        };
        whole.ask = rest;
        let (proof, hold) = (Arc::clone(&whole.proof), whole.proof.hold);
        let mut divided = Guard::new(Grant { proof, ask, part }, Vec::new());
        divided.is_over = is_over;
        self.enter(part, divided);
        self.tell(engine::Event::Split { hold });
        true
    }

    /// Gives all permits of `part` to `guard`, and ends `part`; false, and nothing
    /// changes, if they are of different holds, or the same guard.
    pub fn merge(&mut self, now: Instant, guard: Id, part: Id) -> bool {
        self.now = now;
        let (Some(one), Some(other)) = (self.guards.get(&guard), self.guards.get(&part)) else {
            return false;
        };
        let (one, other) = (one.first(), other.first());
        let hold = one.proof.hold;
        let Some(both) = one
            .ask
            .merge(other.ask)
            .filter(|_| other.proof.hold == hold && part != guard)
        else {
            return false;
        };
        self.remove_guard(part);
        if let Some(guard) = self.guards.get_mut(&guard) {
            guard.first_mut().ask = both;
        }
        self.tell(engine::Event::Merge { hold });
        true
    }

    /// Has the end of a guard leave the lock taken until `least` after its grant.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] above 30 days. The guard has ended then, and its lock
    /// becomes free when its lease ends.
    pub fn keep(&mut self, now: Instant, guard: Id, least: Duration) -> Result<(), Error> {
        self.now = now;
        let Some(held) = self.guards.get(&guard) else {
            return Ok(());
        };
        match held.kept_until(least) {
            Ok(until) => {
                self.keep_until(now, guard, until);
                Ok(())
            }
            Err(error) => {
                let until = now + held.remaining(now);
                self.keep_until(now, guard, until);
                self.leave(now, guard);
                Err(error)
            }
        }
    }

    /// Has the end of a guard leave the lock taken until then.
    pub fn keep_until(&mut self, now: Instant, guard: Id, until: Instant) {
        self.now = now;
        for hold in self.holds(guard) {
            self.tell(engine::Event::Keep { hold, until });
        }
    }

    /// Acquires nothing more: calls for locks end with [`Error::Closed`], and all
    /// guards are released.
    pub fn leave_all(&mut self, now: Instant) {
        self.now = now;
        self.end_calls(|it| matches!(it, Progress::Several(_)));
        let held = self.guards.iter().filter(|(_, it)| !it.is_over);
        // The process may have been stopped for longer than a lease.
        let ended = |it: &Guard| it.loss(now).unwrap_or(Loss::Released);
        let held = held.map(|(guard, it)| (*guard, ended(it)));
        for (guard, why) in held.collect::<BTreeMap<_, _>>() {
            self.guard_is_over(guard, why);
        }
        self.tell(engine::Event::LeaveAll);
    }

    fn tell(&mut self, event: engine::Event) {
        self.endpoint.handle(self.now, Event::Call(event));
    }

    fn resolve(&mut self, call: Id, outcome: Outcome) {
        self.actions.push_back(Action::Resolve { call, outcome });
    }

    fn fail(&mut self, call: Id, error: Error) {
        self.resolve(call, Outcome::Failed(error));
    }

    /// A number for a part of a call that has several.
    fn part(&mut self, call: Id) -> Id {
        let part = self.endpoint.next_id();
        self.parts.insert(part, call);
        part
    }

    fn abandon_parts(&mut self, parts: impl IntoIterator<Item = Id>) {
        for call in parts {
            if self.parts.remove(&call).is_some() {
                self.tell(engine::Event::Abandon { call });
            }
        }
    }

    fn lock(&mut self, call: Id, lock: Lock) {
        if !lock.claims.is_single() {
            return match Locking::new(self.now, lock) {
                Ok(locking) => {
                    self.calls
                        .insert(call, Progress::Several(Box::new(locking)));
                    self.go_on(call);
                }
                Err(error) => self.fail(call, error),
            };
        }
        self.ask(call, lock);
    }

    fn ask(&mut self, call: Id, lock: Lock) {
        let Lock {
            claims,
            ask,
            value,
            terms,
            queueing,
        } = lock;
        let event = engine::Event::Ask {
            call,
            claims,
            ask,
            value,
            terms,
            queueing,
        };
        self.tell(event);
    }

    /// Takes the next step of a call for several keys.
    fn go_on(&mut self, call: Id) {
        let is_cluster = match self.endpoint.is_cluster() {
            true => Some(true),
            false => self.is_cluster,
        };
        let Some(Progress::Several(locking)) = self.calls.get_mut(&call) else {
            return;
        };
        match locking.next(self.now, is_cluster) {
            Next::AskWhetherCluster(queueing) => {
                let part = self.part(call);
                let limit = match queueing {
                    Queueing::Try => Some(self.retry),
                    Queueing::AtMost(wait) => Some(wait),
                    Queueing::Unlimited => None,
                };
                // Every user may send `HELLO`.
                let hello = (requests::hello(), false);
                self.question(part, To::Node(Node::default()), hello, limit);
                self.set_step(call, Some(part), None);
            }
            Next::Ask(lock) => {
                let part = self.part(call);
                self.ask(part, lock);
                self.set_step(call, Some(part), None);
            }
            Next::Granted(guard) => {
                self.calls.remove(&call);
                self.grant(call, call, guard);
            }
            Next::Pause(attempts, grants) => {
                self.give_back(grants);
                let due = self.now + self.endpoint.pause(attempts);
                self.pauses.insert((due, call));
                self.set_step(call, None, Some(due));
            }
            Next::Refused => self.end_locking(call, Outcome::Refused),
        }
    }

    /// What a call for several keys waits for.
    fn set_step(&mut self, call: Id, part: Option<Id>, paused: Option<Instant>) {
        if let Some(Progress::Several(locking)) = self.calls.get_mut(&call) {
            (locking.part, locking.paused) = (part, paused);
        }
    }

    /// A call for several keys ends without a grant.
    fn end_locking(&mut self, call: Id, outcome: Outcome) {
        if let Some(Progress::Several(locking)) = self.calls.remove(&call) {
            self.give_back(locking.into_grants());
        }
        self.resolve(call, outcome);
    }

    fn give_back(&mut self, grants: impl IntoIterator<Item = Grant>) {
        for grant in grants {
            let (hold, ask) = (grant.proof.hold, grant.ask);
            self.tell(engine::Event::Leave { hold, ask });
        }
    }

    /// Hands a guard to its caller.
    fn grant(&mut self, call: Id, number: Id, mut guard: Guard) {
        let proofs = guard.proofs();
        // It may have been lost while the call waited for replicas and nobody had
        // it.
        let loss = guard.loss(self.now);
        guard.is_over = loss.is_some();
        self.enter(number, guard);
        let guard = number;
        self.resolve(call, Outcome::Granted { guard, proofs });
        if let Some(why) = loss {
            self.actions.push_back(Action::Over { guard, why });
        }
    }

    fn enter(&mut self, number: Id, guard: Guard) {
        let others = guard.grants().filter(|it| it.proof.call != number);
        self.of_holds
            .extend(others.map(|grant| (grant.proof.hold, number)));
        self.guards.insert(number, guard);
    }

    fn remove_guard(&mut self, number: Id) -> Option<Guard> {
        let guard = self.guards.remove(&number)?;
        for grant in guard.grants().filter(|it| it.proof.call != number) {
            self.of_holds.remove(&(grant.proof.hold, number));
        }
        Some(guard)
    }

    /// Its caller ends a guard. What would make it exclusive ends first, so that no
    /// release waits for that.
    fn end_guard(&mut self, number: Id) -> Option<Guard> {
        let guard = self.remove_guard(number)?;
        let is_open = |call: &Id| matches!(self.calls.get(call), Some(Progress::Upgrade { .. }));
        // The last one first: none of them gets the turn of another.
        let open = guard.upgrades.iter().rev().copied();
        let open: Vec<_> = open.filter(is_open).collect();
        for call in &open {
            self.fail(*call, Error::Lost(Loss::Released));
            self.abandon(self.now, *call);
        }
        if !open.is_empty() {
            self.forget_outcomes(&open);
        }
        Some(guard)
    }

    /// Takes back what the engine had decided for these calls before it learned that
    /// nobody waits for them.
    fn forget_outcomes(&mut self, calls: &[Id]) {
        while let Some(action) = self.endpoint.poll_action() {
            match action {
                endpoint::Action::Resolve { call, outcome } if calls.contains(&call) => {
                    if let endpoint::Outcome::Lock(engine::Outcome::Granted(proof, ask)) = outcome {
                        let hold = proof.hold;
                        self.tell(engine::Event::Untaken { call, hold, ask });
                    }
                }
                action => {
                    let action = self.carry_out(action);
                    self.actions.extend(action);
                }
            }
        }
    }

    fn holds(&self, guard: Id) -> Vec<Id> {
        let guard = self.guards.get(&guard);
        let grants = guard.into_iter().flat_map(Guard::grants);
        grants.map(|grant| grant.proof.hold).collect()
    }

    fn release(&mut self, call: Id, guard: Id, least: Option<Duration>) {
        if let Some(least) = least
            && let Err(error) = self.keep(self.now, guard, least)
        {
            return self.fail(call, error);
        }
        let Some(guard) = self.end_guard(guard) else {
            return self.fail(call, Error::Lost(Loss::Released));
        };
        let lost = guard.grants().find_map(|it| it.proof.loss(self.now));
        if let Some(loss) = lost.filter(|_| self.forgets_losses()) {
            self.give_back(guard.into_grants());
            return self.fail(call, Error::Lost(loss));
        }
        let count = guard.count();
        self.in_parts(call, count, guard.into_grants(), |call, grant| {
            let (hold, ask) = (grant.proof.hold, grant.ask);
            engine::Event::Release { call, hold, ask }
        });
    }

    /// Whether the engine forgets what is lost, because it has ended, or is about to.
    fn forgets_losses(&self) -> bool {
        self.endpoint.engine().is_leaving() || self.endpoint.is_closed()
    }

    fn release_permits(&mut self, call: Id, guard: Id, permits: u32) {
        let forgets_losses = self.forgets_losses();
        let Some(grant) = self.guards.get_mut(&guard).map(Guard::first_mut) else {
            return self.fail(call, Error::Lost(Loss::Released));
        };
        let (hold, all) = (grant.proof.hold, grant.ask.permits());
        match grant.ask.split(permits) {
            Some((rest, ask)) => {
                grant.ask = rest;
                let lost = grant.proof.loss(self.now).filter(|_| forgets_losses);
                self.tell(engine::Event::Split { hold });
                match lost {
                    Some(loss) => {
                        self.tell(engine::Event::Leave { hold, ask });
                        self.fail(call, Error::Lost(loss));
                    }
                    None => self.tell(engine::Event::Release { call, hold, ask }),
                }
            }
            None if permits == all => self.release(call, guard, None),
            None => {
                let error = Error::OutOfRange {
                    argument: "permits",
                    value: permits.to_string(),
                    limit: format!("from 1 to the {all} that it has").into(),
                };
                self.fail(call, error);
            }
        }
    }

    /// Changes each hold of a guard.
    fn change(&mut self, call: Id, guard: Id, event: impl Fn(Id, Id) -> engine::Event) {
        let holds = self.holds(guard);
        match holds.len() {
            0 => self.fail(call, Error::Lost(Loss::Released)),
            count => self.in_parts(call, count, holds, event),
        }
    }

    /// Sends an event for each of these. A single one has the number of the call.
    fn in_parts<T>(
        &mut self,
        call: Id,
        count: usize,
        of: impl IntoIterator<Item = T>,
        event: impl Fn(Id, T) -> engine::Event,
    ) {
        // Nothing is allocated for a single one.
        let (mut left, error) = (BTreeSet::new(), None);
        for one in of {
            let mut part = call;
            if count > 1 {
                part = self.part(call);
                left.insert(part);
            }
            self.tell(event(part, one));
        }
        if count > 1 {
            self.calls.insert(call, Progress::Parts { left, error });
        }
    }

    fn downgrade(&mut self, call: Id, guard: Id) {
        match self.guards.get_mut(&guard).map(Guard::one) {
            Some(Err(error)) => self.fail(call, error),
            // The server answers nil to this, as for a lost hold.
            Some(Ok(grant)) if grant.ask == Ask::Shared => match grant.proof.end_of(self.now) {
                None => self.resolve(call, Outcome::Done),
                Some(loss) => self.fail(call, Error::Lost(loss)),
            },
            Some(Ok(grant)) => {
                grant.ask = Ask::Shared;
                let hold = grant.proof.hold;
                self.tell(engine::Event::Downgrade { call, hold });
            }
            None => self.fail(call, Error::Lost(Loss::Released)),
        }
    }

    fn upgrade(&mut self, call: Id, guard: Id, queueing: Queueing, retakes: bool) {
        let held = self.guards.get_mut(&guard);
        let grant = held.map_or(Err(Error::Lost(Loss::Released)), Guard::one);
        let held = grant.and_then(|grant| match grant.proof.end_of(self.now) {
            None => Ok((grant.proof.claims.clone(), grant.proof.hold)),
            Some(loss) => Err(Error::Lost(loss)),
        });
        match held {
            Ok((claims, hold)) => {
                // It may be lost before it is upgraded. Then the lock is taken again.
                let terms = self.endpoint.engine().terms(hold);
                self.calls
                    .insert(call, Progress::Upgrade { guard, retakes });
                if let Some(guard) = self.guards.get_mut(&guard) {
                    guard.upgrades.retain(|it| self.calls.contains_key(it));
                    guard.upgrades.push(call);
                }
                let lock = Lock {
                    claims,
                    ask: Ask::Exclusive,
                    value: None,
                    terms: terms.unwrap_or_default(),
                    queueing,
                };
                self.ask(call, lock);
            }
            Err(error) => self.fail(call, error),
        }
    }

    /// The new grant replaces the guard's shared one, unless that was lost and may not
    /// be taken again.
    fn upgraded(&mut self, call: Id, number: Id, grant: Grant, retakes: bool) {
        let before = self.guards.get(&number).and_then(|it| it.grants().next());
        let before = before.map(|it| &it.proof);
        let lost = before.filter(|it| !retakes && it.hold != grant.proof.hold);
        if let Some(lost) = lost {
            let loss = lost.loss(self.now).unwrap_or(Loss::EndedByServer);
            self.give_back([grant]);
            return self.fail(call, Error::Lost(loss));
        }
        let mut guard = Guard::new(grant, Vec::new());
        if let Some(mut before) = self.remove_guard(number) {
            guard.upgrades = std::mem::take(&mut before.upgrades);
            self.give_back(before.into_grants());
        }
        self.grant(call, number, guard);
    }

    fn question(
        &mut self,
        call: Id,
        to: To,
        (command, changes): (Command, bool),
        limit: Option<Duration>,
    ) {
        let question = Event::Question {
            call,
            to,
            command,
            changes,
            limit,
        };
        self.endpoint.handle(self.now, question);
    }

    fn ask_each(&mut self, call: Id, (command, changes): (Command, bool), limit: Option<Duration>) {
        let mut asked = BTreeMap::new();
        for node in self.endpoint.nodes() {
            let part = self.part(call);
            asked.insert(part, (node, None));
            self.question(part, To::Node(node), (command.clone(), changes), limit);
        }
        match asked.len() {
            0 => self.resolve(call, Outcome::Answers(Vec::new())),
            left => drop(self.calls.insert(call, Progress::Each { left, asked })),
        }
    }

    /// Carries out what the endpoint asks for; what is left to do for the caller.
    fn carry_out(&mut self, action: endpoint::Action) -> Option<Action> {
        Some(match action {
            endpoint::Action::Connect {
                connection,
                address,
            } => Action::Connect {
                connection,
                address,
            },
            endpoint::Action::Write { connection } => Action::Write { connection },
            endpoint::Action::Close { connection } => Action::Close { connection },
            endpoint::Action::Note(note) => Action::Note(note),
            endpoint::Action::Resolve { call, outcome } => {
                self.resolved(call, outcome);
                return None;
            }
            endpoint::Action::Over { proof, why } => {
                self.over(&proof, why);
                Action::Ended { proof, why }
            }
            endpoint::Action::AtRisk { proof, left } => {
                for number in self.guards_of(&proof) {
                    let guard = self.guards.get_mut(&number);
                    if guard.is_some_and(Guard::is_newly_at_risk) {
                        let risk = Occurrence::at_risk(number, &proof.claims, left);
                        self.actions.push_back(risk);
                    }
                }
                return None;
            }
            endpoint::Action::Observed {
                observer: call,
                change: Ok(change),
            } => Action::Observed { call, change },
            endpoint::Action::Observed {
                observer: call,
                change: Err(error),
            } => {
                self.calls.remove(&call);
                let outcome = Outcome::Failed(error);
                Action::Resolve { call, outcome }
            }
            endpoint::Action::Flushed {
                flush: call,
                failed,
            } => {
                self.calls.remove(&call)?;
                let outcome = failed.map_or(Outcome::Done, Outcome::Failed);
                Action::Resolve { call, outcome }
            }
        })
    }

    fn over(&mut self, proof: &Proof, why: Loss) {
        for guard in self.guards_of(proof) {
            self.guard_is_over(guard, why);
        }
    }

    fn guard_is_over(&mut self, guard: Id, why: Loss) {
        if let Some(it) = self.guards.get_mut(&guard) {
            it.is_over = true;
            self.actions.push_back(Action::Over { guard, why });
        }
    }

    /// The guards of a hold whose end was not reported.
    fn guards_of(&self, proof: &Proof) -> Vec<Id> {
        let others = (proof.hold, Id::of_number(0))..=(proof.hold, Id::of_number(u64::MAX));
        let others = self.of_holds.range(others).map(|(_, guard)| *guard);
        let guards = std::iter::once(proof.call).chain(others);
        let is_open = |it: &Guard| !it.is_over && it.has(proof.hold);
        guards
            .filter(|number| self.guards.get(number).is_some_and(is_open))
            .collect()
    }

    /// A part of a call has its outcome.
    fn resolved(&mut self, part: Id, outcome: Resolved) {
        let outcome = match outcome {
            Resolved::Lock(Engine::Granted(proof, ask)) => {
                return self.granted(Grant { proof, ask, part });
            }
            Resolved::Lock(Engine::Refused) => Outcome::Refused,
            Resolved::Lock(Engine::Done) => Outcome::Done,
            Resolved::Lock(Engine::Failed(error)) | Resolved::Failed(error) => {
                Outcome::Failed(error)
            }
            Resolved::Answer(frame) => Outcome::Answer(frame),
        };
        let Some(call) = self.parts.remove(&part) else {
            return self.answered(part, outcome);
        };
        match (self.calls.get_mut(&call), outcome) {
            (Some(Progress::Several(_)), Outcome::Answer(hello)) => {
                match replies::is_cluster(&hello) {
                    Ok(is_cluster) => {
                        self.is_cluster = Some(is_cluster);
                        self.go_on(call);
                    }
                    Err(error) => self.end_locking(call, Outcome::Failed(error)),
                }
            }
            (Some(Progress::Several(_)), outcome) => self.end_locking(call, outcome),
            (Some(Progress::Parts { left, error }), outcome) => {
                if let Outcome::Failed(failed) = outcome {
                    error.get_or_insert(failed);
                }
                left.remove(&part);
                if left.is_empty() {
                    let outcome = error.take().map_or(Outcome::Done, Outcome::Failed);
                    self.calls.remove(&call);
                    self.resolve(call, outcome);
                }
            }
            (Some(Progress::Each { left, asked }), outcome) => {
                if let Some((_, answer)) = asked.get_mut(&part) {
                    *answer = match outcome {
                        Outcome::Answer(frame) => Some(Ok(frame)),
                        Outcome::Failed(error) => Some(Err(error)),
                        _ => None,
                    };
                }
                *left -= 1;
                if *left == 0 {
                    let answers = std::mem::take(asked).into_values();
                    let answers = answers.filter_map(|(node, answer)| Some((node, answer?)));
                    let answers = answers.collect();
                    self.calls.remove(&call);
                    self.resolve(call, Outcome::Answers(answers));
                }
            }
            _ => {}
        }
    }

    /// A call with a single part has its outcome, which is no grant.
    fn answered(&mut self, call: Id, outcome: Outcome) {
        let outcome = match (self.calls.remove(&call), outcome) {
            (Some(Progress::Leader), Outcome::Answer(frame)) => match inspect::info(&frame) {
                Ok(info) => Outcome::Leader(info.leader()),
                Err(error) => Outcome::Failed(error),
            },
            (_, outcome) => outcome,
        };
        self.resolve(call, outcome);
    }

    fn granted(&mut self, grant: Grant) {
        let call = self.parts.remove(&grant.part).unwrap_or(grant.part);
        match self.calls.get_mut(&call) {
            None => self.grant(call, call, Guard::new(grant, Vec::new())),
            Some(Progress::Several(locking)) => {
                locking.granted(grant);
                self.go_on(call);
            }
            Some(Progress::Upgrade { guard, retakes }) => {
                let (guard, retakes) = (*guard, *retakes);
                self.calls.remove(&call);
                self.upgraded(call, guard, grant, retakes);
            }
            _ => {}
        }
    }
}
