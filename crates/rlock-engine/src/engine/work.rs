//! What is under way for an owner: calls, releases and clean-up.
//!
//! They are done at each key in the order in which they were begun. An owner
//! queues at most once per key, and counts its re-entries here, not on the
//! server. So only the first at all of its keys may ask.
//!
//! Whoever has the turn asks, and on a lost connection asks again. Asking again
//! is harmless: it finds the grant that is there already, or goes on in the
//! place that the server has kept.

use std::time::Duration;

use crate::engine::call::Call;
use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::lane::Node;
use crate::engine::leaving::{CleanUp, Leaving};
use crate::engine::request::{By, Reply, Request, Sent};
use crate::engine::watchdog::Extension;
use crate::engine::{Action, Engine, Id, Link, Outcome, Timer};
use crate::error::{Error, Failure, Fault};

#[derive(Debug)]
pub(super) struct Work {
    pub(super) claims: Claims,
    /// The server that it is done at.
    pub(super) node: Node,
    pub(super) task: Task,
    pub(super) stage: Stage,
    /// Whether a caller waits for the outcome.
    pub(super) is_awaited: bool,
    pub(super) begun: Instant,
    /// When it is to end; none is without limit.
    pub(super) deadline: Option<Instant>,
    /// Whether it has had its turn.
    pub(super) has_begun: bool,
    /// Failures so far.
    attempts: u32,
    /// The connection that the lock was last asked for by.
    pub(super) asked_by: Option<u64>,
    /// A connection by which a request was made that has got no answer.
    pub(super) unanswered: Option<u64>,
    pub(super) failure: Option<Box<Failure>>,
    pub(super) alarm: Option<Instant>,
    /// The lease that it waits for in a server's queue.
    awaited: Option<(Node, Duration)>,
}

#[derive(Debug)]
pub(super) enum Task {
    Call(Call),
    Release(Leaving),
    /// The hold that is to be shared.
    Downgrade(Id),
    Extend(Extension),
    CleanUp(CleanUp),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Something else of this owner comes before.
    Turn,
    /// There is no connection.
    Link,
    /// It is tried again then.
    Pause(Instant),
    /// A request is under way.
    Asked(Id),
    /// In the server's queue, whose word has to come by then.
    Queued(Option<Instant>),
}

impl Work {
    pub(super) fn new(
        now: Instant,
        claims: Claims,
        task: Task,
        deadline: Option<Instant>,
        is_awaited: bool,
    ) -> Self {
        Self {
            claims,
            node: Node::default(),
            task,
            stage: Stage::Turn,
            is_awaited,
            begun: now,
            deadline,
            has_begun: false,
            attempts: 0,
            asked_by: None,
            unanswered: None,
            failure: None,
            alarm: None,
            awaited: None,
        }
    }

    /// Whether [`Engine::is_clean`] has to wait for it.
    pub(super) fn is_clean_up(&self) -> bool {
        let cleans = matches!(
            self.task,
            Task::Release(_) | Task::CleanUp(_) | Task::Downgrade(_)
        );
        cleans && !self.is_awaited
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether those behind it have to wait for no more than a reply.
    pub(super) fn is_short(&self) -> bool {
        let waits = matches!(self.stage, Stage::Link | Stage::Pause(_));
        !matches!(self.task, Task::Call(_)) && !waits
    }

    /// The error of one that came to its deadline.
    pub(super) fn unavailable(&mut self, now: Instant) -> Error {
        Error::Unavailable {
            waited: now - self.begun,
            source: self.failure.take().map(|failure| *failure),
        }
    }

    fn next_alarm(&self) -> Option<Instant> {
        match (self.stage, &self.task) {
            (Stage::Turn | Stage::Link, _) => self.deadline,
            (Stage::Pause(end), _) => Some(self.deadline.map_or(end, |last| end.min(last))),
            (Stage::Asked(_), Task::Call(call)) => call.last_word(self.deadline),
            (Stage::Asked(_), _) if self.is_awaited => self.deadline,
            // There will be a reply, or word that there is none.
            (Stage::Asked(_), _) => None,
            (Stage::Queued(until), _) => until,
        }
    }
}

impl Engine {
    /// Goes on with a work that waits for its turn, a connection, or a pause.
    pub(super) fn advance(&mut self, now: Instant, id: Id) {
        let Some(work) = self.works.get(&id) else {
            return;
        };
        let node = work.node;
        if !self.has_turn(id, work) {
            return self.set_stage(now, id, Stage::Turn);
        }
        if !work.has_begun && !self.begin(now, id) {
            return;
        }
        self.connect_if_idle(node);
        match self.link(node) {
            Link::Up { number, .. } => self.make_request(now, id, number),
            Link::Idle | Link::Down => self.set_stage(now, id, Stage::Link),
            Link::Closed => self.end(now, id, Outcome::Failed(Error::Closed)),
        }
    }

    /// The first thing that is done in a turn; false if that was all.
    fn begin(&mut self, now: Instant, id: Id) -> bool {
        let Some(work) = self.works.get_mut(&id) else {
            return false;
        };
        work.has_begun = true;
        match work.task {
            Task::Call(_) => self.begin_call(now, id),
            Task::Release(_) => self.begin_release(now, id),
            Task::Downgrade(hold) => self.begin_downgrade(now, id, hold),
            Task::CleanUp(_) | Task::Extend(_) => true,
        }
    }

    fn make_request(&mut self, now: Instant, id: Id, link: u64) {
        let Some(work) = self.works.get(&id) else {
            return;
        };
        let claims = work.claims.clone();
        match &work.task {
            Task::Call(_) => self.ask_for_lock(now, id, link),
            Task::Release(_) => self.ask_to_release(now, id, link),
            Task::Downgrade(_) => self.request(now, id, link, Request::Downgrade { claims }),
            Task::CleanUp(_) => self.ask_to_clean_up(now, id, link),
            Task::Extend(extension) => {
                let extension = *extension;
                self.ask_to_extend(now, id, link, extension);
            }
        }
    }

    pub(super) fn request(&mut self, now: Instant, id: Id, link: u64, request: Request) {
        let node = self
            .works
            .get(&id)
            .map_or(Node::default(), |work| work.node);
        let request = self.send(now, (node, link), By::Work(id), request);
        self.set_stage(now, id, Stage::Asked(request));
    }

    pub(super) fn work_reply(
        &mut self,
        now: Instant,
        id: Id,
        request: Id,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) {
        let stage = Stage::Asked(request);
        let Some(work) = self.works.get(&id).filter(|work| work.stage == stage) else {
            // It was given up, and is being cleaned up behind this request.
            return;
        };
        match work.task {
            Task::Call(_) => self.call_reply(now, id, sent, result),
            Task::Release(_) => self.release_reply(now, id, sent, result),
            Task::Downgrade(hold) => self.downgrade_reply(now, id, sent, hold, result),
            Task::CleanUp(_) => self.clean_up_reply(now, id, sent, result),
            Task::Extend(extension) => self.extend_reply(now, id, sent, extension, result),
        }
    }

    /// Tries again after a failure that passes; the error of one that does not.
    pub(super) fn try_again(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        fault: Fault,
    ) -> Result<(), Error> {
        let link = self.link(sent.node);
        let Some(work) = self.works.get_mut(&id) else {
            return Ok(());
        };
        let is_broken = matches!(fault, Fault::Broken(_));
        let is_moved = matches!(fault, Fault::Moved(_)) && work.node != sent.node;
        match fault {
            Fault::Refused(error) => return Err(error),
            Fault::Broken(failure) | Fault::Passing(failure) => {
                work.failure = Some(failure.into());
            }
            Fault::Moved(error) => work.failure = Some(Box::new(error.into())),
        }
        if is_broken {
            work.unanswered = Some(sent.link);
        }
        let attempts = work.attempts;
        work.attempts = attempts.saturating_add(1);
        // Connections have pauses of their own. Servers that each name the other
        // as a key's are asked with pauses too.
        if (is_broken && !link.is(sent.link)) || (is_moved && attempts == 0) {
            self.advance(now, id);
        } else {
            let end = now + self.pause(attempts);
            self.set_stage(now, id, Stage::Pause(end));
        }
        Ok(())
    }

    pub(super) fn work_is_due(&mut self, now: Instant, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        work.alarm = None;
        let is_over = work.is_over(now);
        let ends_doubt = match &mut work.task {
            Task::Call(call) => call.ends_doubt(),
            _ => false,
        };
        match (work.stage, &work.task) {
            (Stage::Pause(_), _) if !is_over => self.advance(now, id),
            (Stage::Queued(_), _) if ends_doubt => self.advance(now, id),
            (_, Task::Call(_)) => self.call_is_out_of_time(now, id),
            (_, Task::Release(_)) => self.release_is_out_of_time(now, id),
            (_, Task::Downgrade(_) | Task::Extend(_)) => {
                let error = work.unavailable(now);
                self.end(now, id, Outcome::Failed(error));
            }
            (_, Task::CleanUp(_)) => self.clean_up_is_done(now, id),
        }
    }

    /// All works that wait for that connection go on, in order.
    pub(super) fn go_on(&mut self, now: Instant, node: Node) {
        let waiting = self.works_at(node);
        let waiting = waiting.filter(|(_, work)| work.stage == Stage::Link);
        let waiting: Vec<Id> = waiting.map(|(id, _)| id).collect();
        for id in waiting {
            self.advance(now, id);
        }
    }

    /// What waits in the server's queue will hear no more by this connection.
    /// Requests that are under way have their replies still to come.
    pub(super) fn lose_link(&mut self, now: Instant, node: Node) {
        let queued = self.works_at(node);
        let queued = queued.filter(|(_, work)| matches!(work.stage, Stage::Queued(_)));
        let queued: Vec<Id> = queued.map(|(id, _)| id).collect();
        for id in queued {
            self.advance(now, id);
        }
    }

    pub(super) fn set_stage(&mut self, now: Instant, id: Id, stage: Stage) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        work.stage = stage;
        let alarm = work.next_alarm();
        let before = std::mem::replace(&mut work.alarm, alarm);
        let awaited = match stage {
            Stage::Queued(_) => work.lease().map(|lease| (work.node, lease)),
            _ => None,
        };
        let awaited_before = std::mem::replace(&mut work.awaited, awaited);
        if before != alarm {
            if let Some(before) = before {
                self.agenda.remove(&(before, Timer::Work(id)));
            }
            if let Some(alarm) = alarm {
                self.agenda.insert((alarm, Timer::Work(id)));
            }
        }
        if let Some((node, lease)) = awaited_before {
            self.lease_is_not_awaited(node, lease);
        }
        if let Some((node, lease)) = awaited {
            self.lease_is_awaited(now, node, lease);
        }
    }

    pub(super) fn awaited(&self, id: Id) -> Option<Id> {
        let work = self.works.get(&id)?;
        work.is_awaited.then_some(id)
    }

    /// Tells the caller, if there is one, what its call came to.
    pub(super) fn resolve(&mut self, call: Id, outcome: Outcome) {
        let work = self.works.get_mut(&call);
        if work.is_some_and(|work| std::mem::replace(&mut work.is_awaited, false)) {
            self.actions.push_back(Action::Resolve { call, outcome });
        }
    }

    /// Nobody waits for the outcome any more.
    pub(super) fn abandon(&mut self, now: Instant, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        work.is_awaited = false;
        match work.task {
            Task::Call(_) => self.withdraw(now, id),
            Task::Release(_) => self.release_in_background(now, id),
            // The end of its guard releases what is held.
            Task::Downgrade(_) | Task::Extend(_) | Task::CleanUp(_) => {}
        }
    }
}

impl Engine {
    /// Begins `work` as soon as everything else of its owner is done that was
    /// begun before, at any of its keys.
    pub(super) fn start(&mut self, now: Instant, id: Id, mut work: Work) {
        work.node = self.routes.node(work.claims.slot());
        for name in work.claims.names() {
            let claim = self.claims.entry(name.clone()).or_default();
            claim.queue.push_back(id);
        }
        self.lane(work.node).works.insert(id);
        self.works.insert(id, Box::new(work));
        self.advance(now, id);
    }

    /// Whether everything that is to be done before a new work at `claims` is
    /// done soon, so that even those can wait for it who do not want to wait.
    pub(super) fn is_turn_near(&self, claims: &Claims) -> bool {
        let ahead = claims.names().filter_map(|name| self.claims.get(name));
        let mut ahead = ahead.flat_map(|claim| &claim.queue);
        ahead.all(|id| self.works.get(id).is_some_and(|work| work.is_short()))
    }

    pub(super) fn has_turn(&self, id: Id, work: &Work) -> bool {
        let mut claims = work.claims.names().map(|name| self.claims.get(name));
        claims.all(|claim| claim.is_some_and(|claim| claim.queue.front() == Some(&id)))
    }

    /// Has a work wait for those behind it.
    pub(super) fn go_behind(&mut self, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        work.has_begun = false;
        for name in work.claims.names() {
            if let Some(claim) = self.claims.get_mut(name) {
                claim.queue.retain(|queued| *queued != id);
                claim.queue.push_back(id);
                self.next.extend(claim.queue.front());
            }
        }
    }

    /// Ends a work that has left nothing to do; the next has its turn.
    pub(super) fn end(&mut self, now: Instant, id: Id, outcome: Outcome) {
        self.resolve(id, outcome);
        self.set_stage(now, id, Stage::Turn);
        let Some(work) = self.works.remove(&id) else {
            return;
        };
        self.lane(work.node).works.remove(&id);
        if let Some(alarm) = work.alarm {
            self.agenda.remove(&(alarm, Timer::Work(id)));
        }
        for name in work.claims.names() {
            if let Some(claim) = self.claims.get_mut(name) {
                claim.queue.retain(|queued| *queued != id);
                self.next.extend(claim.queue.front());
            }
            self.forget_if_unused(name);
        }
        self.tell_flushed(id);
    }

    pub(super) fn tell_flushed(&mut self, ended: Id) {
        for (awaited, _) in &mut self.flushes {
            awaited.remove(&ended);
        }
        for (_, flush) in self.flushes.extract_if(.., |(left, _)| left.is_empty()) {
            self.actions.push_back(Action::Flushed { flush });
        }
    }

    pub(super) fn pass_turns(&mut self, now: Instant) {
        while let Some(id) = self.next.pop_front() {
            let work = self.works.get(&id);
            if work.is_some_and(|work| work.stage == Stage::Turn) {
                self.advance(now, id);
            }
        }
    }
}
