//! The operations in progress for an owner: calls, releases and clean-up.
//!
//! The operations at each key run in the order in which they began. An owner has
//! at most one place per key in the server's queues, and re-entries are counted
//! here, not on the server. So an operation may send requests only when it is the
//! first at all of its keys.
//!
//! The operation that has the turn sends its request, and sends it again after a
//! lost connection. The repetition is harmless: it finds the existing grant, or
//! continues in the place that the server has kept.
//!
//! Each kind of work is its own state machine: it takes an [`Input`] and returns
//! the [`Next`] step. The common parts are here: turns, connections, pauses,
//! deadlines, and the answer to the caller.

use std::time::Duration;

use crate::engine::call::{Call, WaitEnd};
use crate::engine::claims::Claims;
use crate::engine::instant::{Instant, LateChecks};
use crate::engine::leaving::{CleanUp, Downgrade, Leaving};
use crate::engine::node::Node;
use crate::engine::part_release::PartRelease;
use crate::engine::request::{Reply, Request, Requester, Sent};
use crate::engine::watchdog::Extension;
use crate::engine::{Action, Claim, ConnectionState, Engine, Id, Outcome, Timer};
use crate::error::{Error, Failure, Fault};

/// Stands for a connection other than the main ones.
const ELSEWHERE: u64 = 0;

/// A failure that comes this long after the last one has a pause like the first
/// one: the longest pause is half of it.
const ROW_ENDS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Work {
    pub(super) task: Task,
    pub(super) progress: Progress,
}

#[derive(Debug)]
pub(super) enum Task {
    Call(Call),
    Leave(Leaving),
    ReleasePart(PartRelease),
    Downgrade(Downgrade),
    Extend(Extension),
    CleanUp(CleanUp),
}

/// The progress of a work, for all kinds of tasks.
#[derive(Debug)]
pub(super) struct Progress {
    /// Its number, and the number of the caller's call if there is one.
    pub(super) id: Id,
    /// Smaller for a work that has begun earlier.
    pub(super) order: Id,
    pub(super) claims: Claims,
    /// The server at which it runs.
    pub(super) node: Node,
    pub(super) stage: Stage,
    /// Whether a caller waits for the outcome.
    pub(super) is_awaited: bool,
    begun: Instant,
    /// When it must end; none for no limit.
    pub(super) deadline: Option<Instant>,
    /// Whether its turn has come.
    pub(super) has_begun: bool,
    /// Failures in a row, and when the last one was.
    failures: u32,
    failed: Instant,
    /// The connection of the last request for the lock.
    pub(super) asked_by: Option<u64>,
    /// A connection with a request that was never answered.
    pub(super) unanswered: Option<u64>,
    failure: Option<Box<Failure>>,
    timer_due: Option<Instant>,
    late_checks: LateChecks,
    /// The lease of the request that waits in a server's queue.
    awaited: Option<(Node, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// An earlier operation of this owner comes first, or a request by another
    /// connection that is not yet answered.
    Turn,
    /// There is no connection.
    Connection,
    /// It is retried at this moment.
    Pause(Instant),
    /// A request is in progress.
    Asked(Id),
    /// In the server's queue; the server must report by this moment.
    Queued(Option<Instant>),
}

/// The context in which a work takes its input: the engine without this work, and
/// the work's progress.
pub(super) struct Context<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) work: &'a mut Progress,
    pub(super) now: Instant,
}

/// An event for a work.
#[derive(Debug)]
pub(super) enum Input {
    /// It has the turn.
    Turn,
    /// It can send, by this connection.
    Connected(u64),
    /// The answer to its request.
    Reply(Sent, Result<Reply, Fault>),
    /// The server's message while it is queued.
    Notified(WaitEnd),
    /// Its deadline has passed.
    Due,
    /// The caller no longer waits for the outcome.
    Abandoned,
}

/// The next step of a work.
#[derive(Debug)]
pub(super) enum Next {
    /// Ask as soon as it has the turn and a connection; then it gets
    /// [`Input::Connected`].
    Ask,
    /// Send this and wait for the answer.
    Send(Request),
    /// Wait in this stage.
    Wait(Stage),
    /// Keep waiting for the same.
    Stay,
    /// Let the operations behind it go first.
    YieldTurn,
    /// Clean up what it left, behind the requests in progress.
    CleanUp(CleanUp),
    /// End; the outcome is for the caller, if there is one.
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
            order: id,
            claims,
            node: Node::default(),
            stage: Stage::Turn,
            is_awaited: true,
            begun: now,
            deadline,
            has_begun: false,
            failures: 0,
            failed: now,
            asked_by: None,
            unanswered: None,
            failure: None,
            timer_due: None,
            late_checks: LateChecks::default(),
            awaited: None,
        };
        Self { task, progress }
    }

    /// The same without a waiting caller.
    pub(super) fn in_background(mut self) -> Self {
        self.progress.is_awaited = false;
        self
    }

    /// Whether [`Engine::is_clean`] has to wait for it.
    pub(super) fn is_clean_up(&self) -> bool {
        let cleans = !matches!(self.task, Task::Call(_) | Task::Extend(_));
        cleans && !self.progress.is_awaited
    }

    /// Whether the operations behind it only wait for a reply.
    fn is_short(&self) -> bool {
        let waits = matches!(self.progress.stage, Stage::Connection | Stage::Pause(_));
        !matches!(self.task, Task::Call(_)) && !waits
    }

    /// The lease of its request in the server's queue.
    fn lease(&self) -> Option<(Node, Duration)> {
        match (&self.task, self.progress.stage) {
            (Task::Call(call), Stage::Queued(_)) => Some((self.progress.node, call.lease)),
            _ => None,
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let deadline = self.progress.deadline;
        match (self.progress.stage, &self.task) {
            (Stage::Turn | Stage::Connection, _) => deadline,
            (Stage::Pause(end), _) => Some(deadline.map_or(end, |last| end.min(last))),
            (Stage::Asked(_), Task::Call(call)) => call.reply_deadline(deadline),
            (Stage::Asked(_), _) if self.progress.is_awaited => deadline,
            // A reply will come, or a report that there is none.
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
            Task::ReleasePart(release) => release.on(at, input),
            Task::Downgrade(downgrade) => downgrade.on(at, input),
            Task::Extend(extension) => extension.on(at, input),
            Task::CleanUp(clean_up) => clean_up.on(at, input),
        }
    }
}

impl Progress {
    /// Gives the outcome to the caller, if there is one.
    pub(super) fn resolve(&mut self, engine: &mut Engine, outcome: Outcome) {
        if std::mem::replace(&mut self.is_awaited, false) {
            engine.resolve(self.id, outcome);
        }
    }

    /// The error of a work that has reached its deadline.
    pub(super) fn unavailable(&mut self, now: Instant) -> Error {
        Error::Unavailable {
            waited: now - self.begun,
            source: self.failure.take().map(|failure| *failure),
        }
    }
}

impl Context<'_> {
    /// Tries again after a transient fault; the error for any other fault.
    pub(super) fn try_again(&mut self, sent: Sent, fault: Fault) -> Result<Next, Error> {
        let is_broken = matches!(fault, Fault::Broken(_));
        if matches!(fault, Fault::Stray(_)) {
            self.work.unanswered = Some(ELSEWHERE);
        }
        let is_moved = matches!(fault, Fault::Moved(_)) && self.work.node != sent.node;
        match fault {
            Fault::Refused(error) => return Err(error),
            Fault::Broken(failure) | Fault::Stray(failure) | Fault::Transient(failure) => {
                self.work.failure = Some(failure.into());
            }
            Fault::Moved(error) => self.work.failure = Some(Box::new(error.into())),
        }
        if is_broken {
            self.work.unanswered = Some(sent.connection);
        }
        // Connections have pauses of their own. Two servers that name each other
        // as the owner of a key also need pauses.
        let has_other_connection =
            is_broken && !self.engine.connection(sent.node).is(sent.connection);
        Ok(match (has_other_connection, is_moved) {
            (true, _) => {
                self.count_failure();
                Next::Ask
            }
            (false, true) => self.ask_again(),
            (false, false) => self.pause(),
        })
    }

    /// Tries again: at once the first time, then after a pause.
    pub(super) fn ask_again(&mut self) -> Next {
        match self.count_failure() {
            0 => Next::Ask,
            before => self.pause_after(before),
        }
    }

    /// Tries again after a pause, which is longer each time.
    pub(super) fn pause(&mut self) -> Next {
        let before = self.count_failure();
        self.pause_after(before)
    }

    fn pause_after(&mut self, failures: u32) -> Next {
        Next::Wait(Stage::Pause(self.now + self.engine.pause(failures)))
    }

    /// How many failures came before this one in a row.
    fn count_failure(&mut self) -> u32 {
        let is_in_row = self.now - self.work.failed < ROW_ENDS;
        let before = if is_in_row { self.work.failures } else { 0 };
        self.work.failures = before.saturating_add(1);
        self.work.failed = self.now;
        before
    }
}

impl Engine {
    /// Starts a work as soon as all earlier work of its owner at any of its keys
    /// is done.
    pub(super) fn start(&mut self, now: Instant, mut work: Work) {
        let order = self.next_id();
        let progress = &mut work.progress;
        progress.order = order;
        progress.node = self.routes.node(progress.claims.slot());
        for name in progress.claims.names() {
            let claim = self.claims.entry(name.clone()).or_default();
            claim.enter(progress.id);
        }
        self.node_state(progress.node).works.insert(progress.id);
        self.run_steps(now, Box::new(work), Next::Ask);
    }

    /// Continues a work that waits for its turn, a connection, or a pause.
    pub(super) fn advance(&mut self, now: Instant, id: Id) {
        if let Some(work) = self.works.remove(&id) {
            self.run_steps(now, work, Next::Ask);
        }
    }

    /// Gives an event to a work.
    pub(super) fn advance_with(&mut self, now: Instant, id: Id, input: Input) {
        if let Some(mut work) = self.works.remove(&id) {
            let next = work.on(self, now, input);
            self.run_steps(now, work, next);
        }
    }

    /// Carries out the steps of a work until it has to wait or is over.
    fn run_steps(&mut self, now: Instant, mut work: Box<Work>, mut next: Next) {
        let mut has_turn = false;
        work.progress.stage = loop {
            let (id, node) = (work.progress.id, work.progress.node);
            next = match next {
                Next::Ask if !has_turn => {
                    has_turn = self.has_turn(&work.progress);
                    if !has_turn {
                        break Stage::Turn;
                    }
                    Next::Ask
                }
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
                        let by = Requester::Work(id);
                        break Stage::Asked(self.send(now, (node, number), by, request));
                    }
                    ConnectionState::Idle | ConnectionState::Down | ConnectionState::Closed => {
                        Next::Ask
                    }
                },
                Next::Wait(stage) => break stage,
                Next::Stay => break work.progress.stage,
                Next::YieldTurn => {
                    work.progress.has_begun = false;
                    self.yield_turn(&work.progress);
                    break Stage::Turn;
                }
                Next::CleanUp(clean_up) => {
                    work.task = Task::CleanUp(clean_up);
                    Next::Ask
                }
                Next::End(outcome) => return self.end(now, &mut work.progress, outcome),
            }
        };
        let (id, due, awaited) = (work.progress.id, work.next_due(), work.lease());
        let before = std::mem::replace(&mut work.progress.timer_due, due);
        let awaited_before = std::mem::replace(&mut work.progress.awaited, awaited);
        self.works.insert(id, work);
        if before != due {
            let timer = |due| (due, Timer::Work(id));
            before.map(|before| self.timers.remove(&timer(before)));
            self.timers.extend(due.map(timer));
        }
        if let Some((node, lease)) = awaited_before {
            self.lease_is_not_awaited(node, lease);
        }
        if let Some((node, lease)) = awaited {
            self.lease_is_awaited(now, node, lease);
        }
    }

    /// Ends a work that has nothing left to do, and passes the turn on.
    fn end(&mut self, now: Instant, work: &mut Progress, outcome: Outcome) {
        let id = work.id;
        work.resolve(self, outcome);
        self.node_state(work.node).works.remove(&id);
        if let Some(due) = work.timer_due {
            self.timers.remove(&(due, Timer::Work(id)));
        }
        if let Some((node, lease)) = work.awaited {
            self.lease_is_not_awaited(node, lease);
        }
        for name in work.claims.names() {
            let Some(claim) = self.claims.get_mut(name) else {
                continue;
            };
            claim.leave(id);
            self.next.extend(claim.turn);
            if claim.is_unused() {
                self.claims.remove(name);
            }
        }
        for (awaited, _) in &mut self.flushes {
            awaited.remove(&id);
        }
        let flushed = self.flushes.extract_if(.., |(left, _)| left.is_empty());
        for (_, flush) in flushed.collect::<Vec<_>>() {
            self.flushed(now, flush);
        }
    }

    /// Gives a caller the outcome of its call.
    pub(super) fn resolve(&mut self, call: Id, outcome: Outcome) {
        self.actions.push_back(Action::Resolve { call, outcome });
    }

    /// Whether all work before a new one at `claims` ends soon, so that even a
    /// call that does not want to wait can wait for it.
    pub(super) fn is_turn_near(&self, claims: &Claims) -> bool {
        let ahead = claims.names().filter_map(|name| self.claims.get(name));
        let mut ahead = ahead.flat_map(Claim::operations);
        ahead.all(|id| self.works.get(id).is_some_and(|work| work.is_short()))
    }

    /// Whether it comes first at all of its keys, and nothing of its owner is in
    /// progress on another connection. At the end of the client nothing waits.
    fn has_turn(&self, work: &Progress) -> bool {
        if self.is_closed {
            return true;
        }
        let mut claims = work.claims.names().map(|name| self.claims.get(name));
        let is_first = |claim: &Claim| claim.turn == Some(work.id);
        claims.all(|claim| claim.is_some_and(is_first)) && !self.is_asked_separately(&work.claims)
    }

    fn yield_turn(&mut self, work: &Progress) {
        for name in work.claims.names() {
            if let Some(claim) = self.claims.get_mut(name) {
                claim.leave(work.id);
                claim.enter(work.id);
                self.next.extend(claim.turn);
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
        // If it was abandoned, clean-up waits behind this request.
        if work.is_some_and(|work| work.progress.stage == Stage::Asked(request)) {
            self.advance_with(now, id, Input::Reply(sent, result));
        }
    }

    pub(super) fn work_is_due(&mut self, now: Instant, due: Instant, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let progress = &mut work.progress;
        progress.timer_due = None;
        let is_unread = |stage| {
            matches!(
                stage,
                Stage::Asked(_) | Stage::Queued(_) | Stage::Connection
            )
        };
        if is_unread(progress.stage)
            && let Some(again) = progress.late_checks.again(due, now)
        {
            progress.timer_due = Some(again);
            self.timers.insert((again, Timer::Work(id)));
            return;
        }
        let is_over = progress.deadline.is_some_and(|last| last <= now);
        match progress.stage {
            Stage::Pause(_) if !is_over => self.advance(now, id),
            _ => self.advance_with(now, id, Input::Due),
        }
    }

    /// The caller no longer waits for the outcome.
    pub(super) fn abandon(&mut self, now: Instant, id: Id) {
        self.flushes.retain(|(_, flush)| *flush != id);
        if let Some(work) = self.works.get_mut(&id)
            && work.progress.is_awaited
        {
            work.progress.is_awaited = false;
            self.advance_with(now, id, Input::Abandoned);
        }
    }

    /// Continues all works that wait for that connection, in order.
    pub(super) fn resume(&mut self, now: Instant, node: Node) {
        self.advance_all(now, node, |stage| stage == Stage::Connection);
    }

    /// Requests that are queued get no message by the old connection. Replies to
    /// requests in progress may still come.
    pub(super) fn connection_lost(&mut self, now: Instant, node: Node) {
        self.advance_all(now, node, |stage| matches!(stage, Stage::Queued(_)));
    }

    fn advance_all(&mut self, now: Instant, node: Node, is_selected: impl Fn(Stage) -> bool) {
        let works = self.works_at(node);
        let selected = works.filter(|(_, work)| is_selected(work.progress.stage));
        let selected: Vec<Id> = selected.map(|(id, _)| id).collect();
        for id in selected {
            self.advance(now, id);
        }
    }
}
