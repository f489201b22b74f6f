//! What is under way for an owner: calls, releases and clean-up.
//!
//! They are done at each key in the order in which they were begun. An owner
//! queues at most once per key, and counts its re-entries here, not on the
//! server. So only the first at all of its keys may ask.
//!
//! The work that has the turn asks, and on a lost connection asks again. Asking
//! again is harmless: it finds the grant that is there already, or goes on in
//! the place that the server has kept.
//!
//! Each kind of work is a machine of its own: its input is what happens
//! ([`Input`]), and says what comes next ([`Next`]). What all have in common is
//! done here: turns, connections, pauses, deadlines, and the word to the caller.

use std::time::Duration;

use crate::engine::call::{Call, WaitEnd};
use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::leaving::{CleanUp, Downgrade, Leaving};
use crate::engine::node::Node;
use crate::engine::request::{By, Reply, Request, Sent};
use crate::engine::watchdog::Extension;
use crate::engine::{Action, ConnectionState, Engine, Id, Outcome, Timer};
use crate::error::{Error, Failure, Fault};

#[derive(Debug)]
pub(super) struct Work {
    pub(super) task: Task,
    pub(super) progress: Progress,
}

#[derive(Debug)]
pub(super) enum Task {
    Call(Call),
    Leave(Leaving),
    Downgrade(Downgrade),
    Extend(Extension),
    CleanUp(CleanUp),
}

/// How far a work is, whatever its task.
#[derive(Debug)]
pub(super) struct Progress {
    /// Its number, and the number of the caller's call if there is one.
    pub(super) id: Id,
    pub(super) claims: Claims,
    /// The server that it is done at.
    pub(super) node: Node,
    pub(super) stage: Stage,
    /// Whether a caller waits for the outcome.
    pub(super) is_awaited: bool,
    begun: Instant,
    /// When it ends; none is without limit.
    pub(super) deadline: Option<Instant>,
    /// Whether it has had its turn.
    has_begun: bool,
    /// Failures so far.
    attempts: u32,
    /// The connection that the lock was last asked for by.
    pub(super) asked_by: Option<u64>,
    /// A connection by which a request was made that has got no answer.
    pub(super) unanswered: Option<u64>,
    failure: Option<Box<Failure>>,
    alarm: Option<Instant>,
    /// The lease that it waits for in a server's queue.
    awaited: Option<(Node, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Something else of this owner comes before.
    Turn,
    /// There is no connection.
    Connection,
    /// It is tried again then.
    Pause(Instant),
    /// A request is under way.
    Asked(Id),
    /// In the server's queue, whose word has to come by then.
    Queued(Option<Instant>),
}

/// The state of a work when an input comes: the engine without it, and how
/// far it is.
pub(super) struct Context<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) work: &'a mut Progress,
    pub(super) now: Instant,
}

/// The input of a work.
#[derive(Debug)]
pub(super) enum Input {
    /// It has the turn.
    Turn,
    /// It can ask, by this connection.
    Connected(u64),
    /// The answer to its request.
    Reply(Sent, Result<Reply, Fault>),
    /// The server's word while it is queued.
    Notified(WaitEnd),
    /// Its time is over.
    Due,
    /// Nobody waits for the outcome any more.
    Abandoned,
}

/// What a work does next.
#[derive(Debug)]
pub(super) enum Next {
    /// Asks, when it has the turn and a connection: it gets that input.
    Ask,
    /// Waits for the answer to this.
    Send(Request),
    /// Waits.
    Wait(Stage),
    /// Goes on with what it waits for.
    Stay,
    /// Has those behind it come first.
    GoBehind,
    /// Has what it left cleaned up, behind what is under way.
    CleanUp(CleanUp),
    /// Is over; the outcome is for the caller, if there is one.
    End(Outcome),
}

impl Work {
    pub(super) fn new(
        now: Instant,
        id: Id,
        claims: Claims,
        task: Task,
        deadline: Option<Instant>,
    ) -> Self {
        let progress = Progress {
            id,
            claims,
            node: Node::default(),
            stage: Stage::Turn,
            is_awaited: true,
            begun: now,
            deadline,
            has_begun: false,
            attempts: 0,
            asked_by: None,
            unanswered: None,
            failure: None,
            alarm: None,
            awaited: None,
        };
        Self { task, progress }
    }

    /// The same, for which no caller waits.
    pub(super) fn in_background(mut self) -> Self {
        self.progress.is_awaited = false;
        self
    }

    /// Whether [`Engine::is_clean`] has to wait for it.
    pub(super) fn is_clean_up(&self) -> bool {
        let cleans = !matches!(self.task, Task::Call(_) | Task::Extend(_));
        cleans && !self.progress.is_awaited
    }

    /// Whether those behind it have to wait for no more than a reply.
    fn is_short(&self) -> bool {
        let waits = matches!(self.progress.stage, Stage::Connection | Stage::Pause(_));
        !matches!(self.task, Task::Call(_)) && !waits
    }

    /// The lease that it waits for in the server's queue.
    fn lease(&self) -> Option<(Node, Duration)> {
        match (&self.task, self.progress.stage) {
            (Task::Call(call), Stage::Queued(_)) => Some((self.progress.node, call.lease)),
            _ => None,
        }
    }

    fn next_alarm(&self) -> Option<Instant> {
        let deadline = self.progress.deadline;
        match (self.progress.stage, &self.task) {
            (Stage::Turn | Stage::Connection, _) => deadline,
            (Stage::Pause(end), _) => Some(deadline.map_or(end, |last| end.min(last))),
            (Stage::Asked(_), Task::Call(call)) => call.last_word(deadline),
            (Stage::Asked(_), _) if self.progress.is_awaited => deadline,
            // There will be a reply, or word that there is none.
            (Stage::Asked(_), _) => None,
            (Stage::Queued(until), _) => until,
        }
    }

    fn on(&mut self, engine: &mut Engine, now: Instant, input: Input) -> Next {
        let work = &mut self.progress;
        let at = &mut Context { engine, work, now };
        match &mut self.task {
            Task::Call(call) => call.on(at, input),
            Task::Leave(leaving) => leaving.on(at, input),
            Task::Downgrade(downgrade) => downgrade.on(at, input),
            Task::Extend(extension) => extension.on(at, input),
            Task::CleanUp(clean_up) => clean_up.on(at, input),
        }
    }
}

impl Progress {
    /// Tells the caller, if there is one, what its call came to.
    pub(super) fn resolve(&mut self, engine: &mut Engine, outcome: Outcome) {
        if std::mem::replace(&mut self.is_awaited, false) {
            engine.resolve(self.id, outcome);
        }
    }

    /// The error of one that came to its deadline.
    pub(super) fn unavailable(&mut self, now: Instant) -> Error {
        Error::Unavailable {
            waited: now - self.begun,
            source: self.failure.take().map(|failure| *failure),
        }
    }
}

impl Context<'_> {
    /// Tries again after a fault that passes; the error of one that does not.
    pub(super) fn try_again(&mut self, sent: Sent, fault: Fault) -> Result<Next, Error> {
        let is_broken = matches!(fault, Fault::Broken(_));
        let is_moved = matches!(fault, Fault::Moved(_)) && self.work.node != sent.node;
        match fault {
            Fault::Refused(error) => return Err(error),
            Fault::Broken(failure) | Fault::Passing(failure) => {
                self.work.failure = Some(failure.into());
            }
            Fault::Moved(error) => self.work.failure = Some(Box::new(error.into())),
        }
        if is_broken {
            self.work.unanswered = Some(sent.connection);
        }
        let attempts = self.work.attempts;
        self.work.attempts = attempts.saturating_add(1);
        // Connections have pauses of their own. Servers that each name the other
        // as a key's are asked with pauses too.
        let has_other_connection =
            is_broken && !self.engine.connection(sent.node).is(sent.connection);
        Ok(match has_other_connection || (is_moved && attempts == 0) {
            true => Next::Ask,
            false => Next::Wait(Stage::Pause(self.now + self.engine.pause(attempts))),
        })
    }
}

impl Engine {
    /// Begins a work as soon as everything else of its owner is done that was
    /// begun before, at any of its keys.
    pub(super) fn start(&mut self, now: Instant, mut work: Work) {
        let progress = &mut work.progress;
        progress.node = self.routes.node(progress.claims.slot());
        for name in progress.claims.names() {
            let claim = self.claims.entry(name.clone()).or_default();
            claim.queue.push_back(progress.id);
        }
        self.node_state(progress.node).works.insert(progress.id);
        self.go_on_with(now, Box::new(work), Next::Ask);
    }

    /// Goes on with a work that waits for its turn, a connection, or a pause.
    pub(super) fn advance(&mut self, now: Instant, id: Id) {
        if let Some(work) = self.works.remove(&id) {
            self.go_on_with(now, work, Next::Ask);
        }
    }

    /// Tells a work what happens.
    pub(super) fn tell(&mut self, now: Instant, id: Id, input: Input) {
        if let Some(mut work) = self.works.remove(&id) {
            let next = work.on(self, now, input);
            self.go_on_with(now, work, next);
        }
    }

    /// Does what a work wants next, until it has to wait or is over.
    fn go_on_with(&mut self, now: Instant, mut work: Box<Work>, mut next: Next) {
        work.progress.stage = loop {
            let (id, node) = (work.progress.id, work.progress.node);
            next = match next {
                Next::Ask if !self.has_turn(&work.progress) => break Stage::Turn,
                Next::Ask if !work.progress.has_begun => {
                    work.progress.has_begun = true;
                    work.on(self, now, Input::Turn)
                }
                Next::Ask => {
                    self.connect_if_idle(node);
                    match self.connection(node) {
                        ConnectionState::Up { number, .. } => {
                            work.on(self, now, Input::Connected(number))
                        }
                        ConnectionState::Idle | ConnectionState::Down => break Stage::Connection,
                        ConnectionState::Closed => Next::End(Outcome::Failed(Error::Closed)),
                    }
                }
                Next::Send(request) => match self.connection(node) {
                    ConnectionState::Up { number, .. } => {
                        let by = By::Work(id);
                        break Stage::Asked(self.send(now, (node, number), by, request));
                    }
                    ConnectionState::Idle | ConnectionState::Down | ConnectionState::Closed => {
                        Next::Ask
                    }
                },
                Next::Wait(stage) => break stage,
                Next::Stay => break work.progress.stage,
                Next::GoBehind => {
                    work.progress.has_begun = false;
                    self.go_behind(&work.progress);
                    break Stage::Turn;
                }
                Next::CleanUp(clean_up) => {
                    work.task = Task::CleanUp(clean_up);
                    Next::Ask
                }
                Next::End(outcome) => return self.end(*work, outcome),
            }
        };
        let (id, alarm, awaited) = (work.progress.id, work.next_alarm(), work.lease());
        let before = std::mem::replace(&mut work.progress.alarm, alarm);
        let awaited_before = std::mem::replace(&mut work.progress.awaited, awaited);
        self.works.insert(id, work);
        if before != alarm {
            let timer = |due| (due, Timer::Work(id));
            before.map(|before| self.timers.remove(&timer(before)));
            self.timers.extend(alarm.map(timer));
        }
        if let Some((node, lease)) = awaited_before {
            self.lease_is_not_awaited(node, lease);
        }
        if let Some((node, lease)) = awaited {
            self.lease_is_awaited(now, node, lease);
        }
    }

    /// Ends a work that has left nothing to do; the next has its turn.
    fn end(&mut self, work: Work, outcome: Outcome) {
        let mut progress = work.progress;
        let id = progress.id;
        progress.resolve(self, outcome);
        self.node_state(progress.node).works.remove(&id);
        if let Some(alarm) = progress.alarm {
            self.timers.remove(&(alarm, Timer::Work(id)));
        }
        if let Some((node, lease)) = progress.awaited {
            self.lease_is_not_awaited(node, lease);
        }
        for name in progress.claims.names() {
            if let Some(claim) = self.claims.get_mut(name) {
                // As a rule it is the first, and there may be many behind it.
                match claim.queue.front() == Some(&id) {
                    true => drop(claim.queue.pop_front()),
                    false => claim.queue.retain(|queued| *queued != id),
                }
                self.next.extend(claim.queue.front());
            }
            self.forget_if_unused(name);
        }
        for (awaited, _) in &mut self.flushes {
            awaited.remove(&id);
        }
        for (_, flush) in self.flushes.extract_if(.., |(left, _)| left.is_empty()) {
            self.actions.push_back(Action::Flushed { flush });
        }
    }

    /// Tells a caller what its call came to.
    pub(super) fn resolve(&mut self, call: Id, outcome: Outcome) {
        self.actions.push_back(Action::Resolve { call, outcome });
    }

    /// Whether everything that must be done before a new work at `claims` is
    /// done soon, so that even those can wait for it who do not want to wait.
    pub(super) fn is_turn_near(&self, claims: &Claims) -> bool {
        let ahead = claims.names().filter_map(|name| self.claims.get(name));
        let mut ahead = ahead.flat_map(|claim| &claim.queue);
        ahead.all(|id| self.works.get(id).is_some_and(|work| work.is_short()))
    }

    fn has_turn(&self, work: &Progress) -> bool {
        let mut claims = work.claims.names().map(|name| self.claims.get(name));
        claims.all(|claim| claim.is_some_and(|claim| claim.queue.front() == Some(&work.id)))
    }

    fn go_behind(&mut self, work: &Progress) {
        for name in work.claims.names() {
            if let Some(claim) = self.claims.get_mut(name) {
                claim.queue.retain(|queued| *queued != work.id);
                claim.queue.push_back(work.id);
                self.next.extend(claim.queue.front());
            }
        }
    }

    pub(super) fn pass_turns(&mut self, now: Instant) {
        while let Some(id) = self.next.pop_front() {
            let work = self.works.get(&id);
            if work.is_some_and(|work| work.progress.stage == Stage::Turn) {
                self.advance(now, id);
            }
        }
    }

    pub(super) fn work_reply(
        &mut self,
        now: Instant,
        id: Id,
        request: Id,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) {
        let work = self.works.get(&id);
        // If it was given up, it is being cleaned up behind this request.
        if work.is_some_and(|work| work.progress.stage == Stage::Asked(request)) {
            self.tell(now, id, Input::Reply(sent, result));
        }
    }

    pub(super) fn work_is_due(&mut self, now: Instant, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        work.progress.alarm = None;
        let is_over = work.progress.deadline.is_some_and(|last| last <= now);
        match work.progress.stage {
            Stage::Pause(_) if !is_over => self.advance(now, id),
            _ => self.tell(now, id, Input::Due),
        }
    }

    /// Nobody waits for the outcome any more.
    pub(super) fn abandon(&mut self, now: Instant, id: Id) {
        if let Some(work) = self.works.get_mut(&id) {
            work.progress.is_awaited = false;
            self.tell(now, id, Input::Abandoned);
        }
    }

    /// All works that wait for that connection go on, in order.
    pub(super) fn go_on(&mut self, now: Instant, node: Node) {
        self.advance_all(now, node, |stage| stage == Stage::Connection);
    }

    /// What waits in the server's queue will hear no more by this connection.
    /// Requests that are under way have their replies still to come.
    pub(super) fn connection_lost(&mut self, now: Instant, node: Node) {
        self.advance_all(now, node, |stage| matches!(stage, Stage::Queued(_)));
    }

    fn advance_all(&mut self, now: Instant, node: Node, are_meant: impl Fn(Stage) -> bool) {
        let works = self.works_at(node);
        let meant = works.filter(|(_, work)| are_meant(work.progress.stage));
        let meant: Vec<Id> = meant.map(|(id, _)| id).collect();
        for id in meant {
            self.advance(now, id);
        }
    }
}
