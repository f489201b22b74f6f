//! How an owner leaves a lock and leaves no place or hold behind: its last
//! guard releases it, at once or at the end of a last lease; an exclusive hold
//! becomes shared; or a call that nobody waits for is withdrawn.
//!
//! Repeating any of these is harmless: the server answers nil if the hold is
//! already gone, and never changes another owner's hold.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::claims::Claims;
use crate::engine::hold::{HeldKeys, Hold};
use crate::engine::instant::Instant;
use crate::engine::part_release::PartRelease;
use crate::engine::request::{Reply, Request, Sent, Undo};
use crate::engine::terms::{Ask, Terms};
use crate::engine::work::{Context, Input, Next, Stage, Task, Work};
use crate::engine::{ConnectionState, Engine, Id, Outcome, in_order};
use crate::error::{Error, Fault, Loss};

/// How often clean-up is repeated while an earlier connection may still be open
/// on the server.
const REPEATS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// The end of a guard.
#[derive(Debug)]
pub(super) struct Leaving {
    hold: Id,
    ask: Ask,
    /// Whether the guard was subtracted from the number of guards.
    has_left: bool,
    /// The keys to release once it has the turn: those that the owner has not
    /// re-acquired since.
    rest: Option<Claims>,
    /// Why several keys are released one by one, if they are.
    refusal: Option<Error>,
    /// For how long the last request kept the hold, if it did not release it.
    kept: Option<Duration>,
}

/// One guard needs this hold only in shared mode from now on.
#[derive(Debug)]
pub(super) struct Downgrade {
    hold: Id,
}

/// Clean-up after a call that nobody waits for, so that neither a place nor a
/// hold stays on the server.
///
/// The call may be unsent, sent, queued, or granted. Clean-up keeps the turn, so
/// that the next call of the same owner comes after it.
#[derive(Debug)]
pub(super) struct CleanUp {
    /// The shared hold that the call wanted to make exclusive.
    upgraded: Option<Id>,
    /// What the call asked for, if that is known.
    ask: Option<Ask>,
    /// How the last request undoes a grant.
    undo: Undo,
    is_one_by_one: bool,
    repeats: usize,
}

impl Engine {
    /// When the last guard ends, the server keeps the hold until then.
    pub(super) fn keep(&mut self, id: Id, until: Instant) {
        if let Some(hold) = self.holds.get_mut(&id) {
            hold.kept = hold.kept.max(Some(until));
        }
    }

    /// Ends one of the guards of a hold.
    pub(super) fn release(&mut self, now: Instant, call: Id, id: Id, ask: Ask) {
        let loss = self.loss(now, id);
        let Some(hold) = self.holds.get_mut(&id) else {
            return self.resolve(call, Outcome::Failed(Error::Closed));
        };
        if let Some(loss) = loss {
            self.resolve(call, Outcome::Failed(Error::Lost(loss)));
            return self.leave(now, id, ask);
        }
        if hold.guards == 0 {
            hold.leavers.push(call);
        }
        // If other guards remain, only permits that none of them needs are
        // released.
        let task = if hold.guards > 1 {
            hold.leave(ask);
            match PartRelease::of(now, hold) {
                Some(release) => Task::ReleasePart(release),
                None => return self.resolve(call, Outcome::Done),
            }
        } else {
            Task::Leave(Leaving::of(id, ask, false))
        };
        let claims = hold.proof.claims.clone();
        let deadline = Some(now + self.retry_timeout);
        self.start(now, Work::new(now, call, claims, task, deadline));
    }

    /// A guard was dropped.
    pub(super) fn leave(&mut self, now: Instant, id: Id, ask: Ask) {
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        hold.leave(ask);
        let is_last = hold.guards == 0;
        let task = match is_last {
            true => Some(Task::Leave(Leaving::of(id, ask, true))),
            false => PartRelease::of(now, hold).map(Task::ReleasePart),
        };
        let Some(task) = task else {
            return;
        };
        if !self.is_closed {
            let work = self.next_id();
            return self.end_in_background(now, work, id, task);
        }
        self.release_is_cut_off(now, id);
        if is_last {
            self.end_hold(now, id);
        }
    }

    /// Gives this outcome to the calls that wait for the end of the hold; which.
    pub(super) fn resolve_leavers(&mut self, id: Id, outcome: &Outcome) -> Vec<Id> {
        let hold = self.holds.get_mut(&id);
        let leavers = hold.map_or_else(Vec::new, |hold| std::mem::take(&mut hold.leavers));
        for call in &leavers {
            let work = self.works.get_mut(call);
            if work.is_some_and(|work| std::mem::take(&mut work.progress.is_awaited)) {
                self.resolve(*call, outcome.clone());
            }
        }
        leavers
    }

    /// Runs a task for a hold in the background until its lease is over, and a
    /// little longer.
    fn end_in_background(&mut self, now: Instant, work: Id, id: Id, task: Task) {
        if let Some(hold) = self.holds.get(&id) {
            let claims = hold.proof.claims.clone();
            let deadline = Some(hold.latest_end().max(now + self.retry_timeout));
            let work = Work::new(now, work, claims, task, deadline);
            self.start(now, work.in_background());
        }
    }

    /// Ends all guards and all calls for locks.
    pub(super) fn leave_all(&mut self, now: Instant) {
        self.is_leaving = true;
        let is_waiting =
            |work: &Work| work.progress.is_awaited && matches!(work.task, Task::Call(_));
        let waiting = self.works.iter().filter(|(_, work)| is_waiting(work));
        let waiting = waiting.map(|(call, work)| (*call, work.progress.order));
        let waiting: Vec<_> = in_order(waiting, |_, order| *order).collect();
        for (call, _) in waiting {
            self.resolve(call, Outcome::Failed(Error::Closed));
            self.abandon(now, call);
        }
        let held = self.holds.iter().filter(|(_, hold)| hold.guards > 0);
        let held: Vec<_> = in_order(held.map(|(id, hold)| (*id, hold.ask)), |id, _| id).collect();
        for (id, ask) in held {
            if let Some(hold) = self.holds.get_mut(&id) {
                hold.guards = 1;
                self.leave(now, id, ask);
            }
        }
    }

    /// There will be no answers: ends all calls, and sends what waits for its turn
    /// behind the requests in progress. The server carries out the requests of one
    /// connection in their order.
    pub(super) fn leave_without_turns(&mut self, now: Instant) {
        let works = self.works.iter();
        let works = works.map(|(id, work)| (*id, work.progress.order));
        let works: Vec<_> = in_order(works, |_, order| *order).collect();
        for (call, _) in &works {
            let work = self.works.get(call);
            if work.is_some_and(|work| work.progress.is_awaited) {
                self.resolve(*call, Outcome::Failed(Error::Closed));
                self.abandon(now, *call);
            }
        }
        let mut released = BTreeSet::new();
        for (id, _) in works {
            let Some(work) = self.works.get(&id).filter(|work| work.is_clean_up()) else {
                continue;
            };
            let is_first = match &work.task {
                Task::Leave(leaving) => released.insert(leaving.hold),
                _ => true,
            };
            let waits = matches!(work.progress.stage, Stage::Turn | Stage::Pause(_));
            let connection = self.connection(work.progress.node);
            if is_first && waits && matches!(connection, ConnectionState::Up { .. }) {
                self.advance(now, id);
            }
        }
    }

    /// Ends a guard whose caller was gone. This undoes an upgrade, because the
    /// owner's other guards only need shared mode.
    pub(super) fn untaken(&mut self, now: Instant, call: Id, id: Id, ask: Ask) {
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        if hold.guards < 2 || hold.upgraded_by != Some(call) {
            return self.leave(now, id, ask);
        }
        let task = Task::Downgrade(Downgrade { hold: id });
        self.end_in_background(now, call, id, task);
        self.leave(now, id, Ask::Shared);
    }

    /// One guard needs its lock only in shared mode from now on.
    pub(super) fn downgrade(&mut self, now: Instant, call: Id, id: Id) {
        let loss = self.loss(now, id);
        let Some(hold) = self.holds.get_mut(&id) else {
            return self.resolve(call, Outcome::Failed(Error::Closed));
        };
        if let Some(loss) = loss {
            hold.leave_writers();
            return self.resolve(call, Outcome::Failed(Error::Lost(loss)));
        }
        let claims = hold.proof.claims.clone();
        let task = Task::Downgrade(Downgrade { hold: id });
        let deadline = Some(now + self.retry_timeout);
        self.start(now, Work::new(now, call, claims, task, deadline));
    }

    /// The server does not have it as it is known here. A request without an answer
    /// may have taken the lock again after the loss.
    pub(super) fn lose_with_rest(&mut self, now: Instant, id: Id) {
        self.lose(now, id);
        if let Some(hold) = self.holds.get(&id).filter(|hold| hold.is_fence_uncertain) {
            let (claims, lease) = (hold.proof.claims.clone(), hold.terms.lease);
            self.undo_unclaimed_grant(now, claims, lease);
        }
    }

    /// Undoes a grant that nobody waits for.
    pub(super) fn undo_unclaimed_grant(&mut self, now: Instant, claims: Claims, lease: Duration) {
        let task = Task::CleanUp(CleanUp::of_unknown());
        let deadline = Some(now + lease.max(self.retry_timeout));
        let id = self.next_id();
        for (awaited, _) in &mut self.flushes {
            awaited.insert(id);
        }
        let work = Work::new(now, id, claims, task, deadline);
        self.start(now, work.in_background());
    }
}

impl Leaving {
    fn of(hold: Id, ask: Ask, has_left: bool) -> Self {
        Self {
            hold,
            ask,
            has_left,
            rest: None,
            refusal: None,
            kept: None,
        }
    }

    pub(super) fn on(&mut self, at: &mut Context<'_>, input: Input) -> Next {
        match input {
            Input::Turn => self.begin(at),
            Input::Connected(_) => self.request(at.engine, at.now),
            Input::Reply(sent, result) => self.reply(at, sent, result),
            Input::Due if at.work.is_awaited => {
                let error = at.work.unavailable(at.now);
                at.work.resolve(at.engine, Outcome::Failed(error));
                self.continue_in_background(at)
            }
            Input::Due => match at.engine.holds.get(&self.hold).map(|it| it.latest_end()) {
                // It was renewed while other work of its owner came first.
                Some(lease_end) if lease_end > at.now => {
                    at.work.deadline = Some(lease_end);
                    Next::Stay
                }
                // The server has already ended it.
                _ => self.end(at, Outcome::Done),
            },
            Input::Abandoned => self.continue_in_background(at),
            Input::Notified(_) => Next::Stay,
        }
    }

    /// The last guard ends, unless the lock was entered again meanwhile.
    fn begin(&mut self, at: &mut Context<'_>) -> Next {
        let loss = at.engine.loss(at.now, self.hold);
        self.leave(at.engine);
        let Some(hold) = at.engine.holds.get(&self.hold) else {
            return Next::End(Outcome::Done);
        };
        // A call has entered it meanwhile.
        if hold.guards > 0 {
            if let Some(part) = PartRelease::of(at.now, hold).map(Task::ReleasePart) {
                let work = at.engine.next_id();
                at.engine.end_in_background(at.now, work, self.hold, part);
            }
            return Next::End(Outcome::Done);
        }
        if let Some(loss) = loss {
            at.work
                .resolve(at.engine, Outcome::Failed(Error::Lost(loss)));
        }
        // If one of several keys is lost, the other keys are released, except
        // those that the owner has re-acquired since.
        self.rest = at.engine.rest(at.now, self.hold);
        if self.rest.is_none() {
            return self.end(at, Outcome::Done);
        }
        at.engine.end_hold(at.now, self.hold);
        Next::Ask
    }

    /// Stops counting the guard.
    fn leave(&mut self, engine: &mut Engine) {
        if !std::mem::replace(&mut self.has_left, true)
            && let Some(hold) = engine.holds.get_mut(&self.hold)
        {
            hold.leave(self.ask);
        }
    }

    fn request(&mut self, engine: &Engine, now: Instant) -> Next {
        let Some(claims) = self.rest.clone() else {
            return Next::End(Outcome::Done);
        };
        let hold = engine.holds.get(&self.hold);
        let kept = hold.and_then(|hold| Some((hold, hold.kept_for(now)?)));
        self.kept = kept.map(|(_, lease)| lease);
        let fence = hold.and_then(|hold| hold.certain_fence());
        Next::Send(match kept {
            Some((hold, lease)) => Request::Renew {
                claims,
                terms: Terms {
                    // The hold outlives its connection.
                    bound: hold.terms.bound.and(Some(lease)),
                    ..hold.terms.lasting(lease)
                },
                known: hold.proof.fence(),
                raise: None,
                notify: false,
                value: None,
            },
            None if self.refusal.is_some() => Request::ReleaseEach { claims, fence },
            None => Request::Release { claims, fence },
        })
    }

    fn reply(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        let is_repeated = at.work.unanswered.is_some();
        let is_single = self.rest.as_ref().is_none_or(Claims::is_single);
        let hold = at.engine.holds.get(&self.hold);
        let fence = hold.and_then(|hold| hold.certain_fence());
        let outcome = match result {
            Err(Fault::Refused(refusal)) if self.refusal.is_none() => {
                if self.kept.is_some() || is_single {
                    self.report(at, &refusal);
                    return self.end(at, Outcome::Failed(refusal));
                }
                self.refusal = Some(refusal);
                return Next::Ask;
            }
            Err(fault) => match at.try_again(sent, fault) {
                Ok(next) => return next,
                Err(error) => {
                    self.report(at, &error);
                    Outcome::Failed(error)
                }
            },
            // Nil after an unanswered release: that release succeeded.
            Ok(Reply::Nil) if self.kept.is_some() || !is_repeated => {
                Outcome::Failed(Error::Lost(Loss::EndedByServer))
            }
            // The owner has re-acquired it under another hold.
            Ok(Reply::Fence(kept)) if fence.is_some_and(|fence| fence != kept) => {
                Outcome::Failed(Error::Lost(Loss::EndedByServer))
            }
            Ok(Reply::TooFew(known)) => Outcome::Failed(at.engine.too_few(self.hold, known)),
            Ok(_) => Outcome::Done,
        };
        let refusal = self.refusal.take().map(Outcome::Failed);
        self.end(at, refusal.unwrap_or(outcome))
    }

    /// The server refuses the release. Without a caller, a flush reports it.
    fn report(&self, at: &mut Context<'_>, refusal: &Error) {
        if let Some(rest) = &self.rest
            && self.kept.is_none()
            && !at.work.is_awaited
        {
            at.engine.not_released(at.now, self.hold, rest, refusal);
        }
    }

    /// The caller is gone. The work continues in the background until the lease
    /// ends.
    fn continue_in_background(&mut self, at: &mut Context<'_>) -> Next {
        self.leave(at.engine);
        let Some(hold) = at.engine.holds.get(&self.hold) else {
            return Next::End(Outcome::Done);
        };
        at.work.deadline = Some(hold.latest_end().max(at.now + at.engine.retry_timeout));
        Next::Stay
    }

    fn end(&self, at: &mut Context<'_>, outcome: Outcome) -> Next {
        // What is kept is not given up: its owner can enter it again.
        if let (Some(hold), Some(lease)) = (at.engine.holds.get(&self.hold), self.kept) {
            let is_lost = matches!(outcome, Outcome::Failed(Error::Lost(_)));
            if hold.terms.bound.is_some() && !is_lost {
                let claims = hold.proof.claims.clone();
                let is_certain = hold.ask.is_exclusive() && hold.certain_fence().is_some();
                let fence = (hold.proof.fence(), is_certain);
                // If the server has refused it, the lease before may be longer.
                let lease_end = hold.latest_end().max(at.now + lease);
                at.engine.remember_kept(at.now, &claims, fence, lease_end);
            }
        } else if let Some(hold) = at.engine.holds.get(&self.hold) {
            let fence = hold.proof.fence();
            let (lease_end, kept) = (hold.latest_end(), hold.kept);
            let (certain, ask) = (hold.certain_fence(), hold.ask);
            let node = at.work.node;
            // A newer hold of its owner says more.
            if let Some(claims) = at.engine.newest_part(self.hold) {
                at.engine
                    .remember_released(at.now, &claims, fence, lease_end);
                if let (None, ConnectionState::Up { number, .. }) =
                    (certain, at.engine.connection(node))
                {
                    let by = (number, Some(ask));
                    at.engine.remember_undone(at.now, &claims, by, lease_end);
                }
            }
            // A call that wanted to keep it came too late.
            if kept.is_some_and(|until| until > at.now) {
                let closed = Outcome::Failed(Error::Closed);
                at.engine.resolve_leavers(self.hold, &closed);
            }
        }
        if matches!(outcome, Outcome::Done | Outcome::Failed(Error::Lost(_))) {
            at.engine.unreleased.forget(self.hold);
        }
        let leavers = at.engine.resolve_leavers(self.hold, &outcome);
        at.engine.forget(self.hold);
        // Another call of their owner may come first, and wait for others.
        for call in leavers {
            at.engine.advance_with(at.now, call, Input::Abandoned);
        }
        Next::End(outcome)
    }
}

impl Downgrade {
    pub(super) fn on(&mut self, at: &mut Context<'_>, input: Input) -> Next {
        let outcome = match input {
            Input::Turn => {
                let hold = at.engine.holds.get_mut(&self.hold);
                let is_last = hold.is_some_and(|hold| hold.leave_writers());
                match at.engine.loss(at.now, self.hold) {
                    Some(loss) => Outcome::Failed(Error::Lost(loss)),
                    None if is_last => return Next::Ask,
                    // Other guards still need exclusive mode, so nothing is sent.
                    None => Outcome::Done,
                }
            }
            Input::Connected(_) => {
                let claims = at.work.claims.clone();
                return Next::Send(Request::Downgrade { claims });
            }
            // Nil after an unanswered downgrade: it succeeded, or the hold was
            // lost, which the next renewal reveals.
            Input::Reply(_, Ok(Reply::Nil)) if at.work.unanswered.is_none() => {
                at.engine.lose_with_rest(at.now, self.hold);
                Outcome::Failed(Error::Lost(Loss::EndedByServer))
            }
            Input::Reply(_, Ok(_)) => Outcome::Done,
            Input::Reply(sent, Err(fault)) => {
                if matches!(fault, Fault::Refused(_)) && at.work.unanswered.is_none() {
                    at.engine.change(self.hold, Hold::stays_exclusive);
                }
                match at.try_again(sent, fault) {
                    Ok(next) => return next,
                    Err(error) => Outcome::Failed(error),
                }
            }
            Input::Due => {
                let hold = at.engine.holds.get_mut(&self.hold);
                // Its guard is shared, although its turn has not come. At the server
                // the hold stays exclusive until another guard is downgraded.
                if let Some(hold) = hold.filter(|_| at.work.stage == Stage::Turn) {
                    hold.leave_writers_here();
                }
                Outcome::Failed(at.work.unavailable(at.now))
            }
            // The end of its guard releases the hold.
            Input::Abandoned | Input::Notified(_) => return Next::Stay,
        };
        Next::End(outcome)
    }
}

impl CleanUp {
    pub(super) fn of(upgraded: Option<Id>, ask: Ask) -> Self {
        Self {
            upgraded,
            // An upgrade may leave the shared hold.
            ask: Some(ask).filter(|_| upgraded.is_none()),
            ..Self::of_unknown()
        }
    }

    /// After a grant that nobody has asked for.
    fn of_unknown() -> Self {
        Self {
            upgraded: None,
            ask: None,
            undo: Undo::Nothing,
            is_one_by_one: false,
            repeats: 0,
        }
    }

    pub(super) fn on(&mut self, at: &mut Context<'_>, input: Input) -> Next {
        match input {
            Input::Turn => Next::Ask,
            Input::Connected(_) => Next::Send(self.request(at)),
            Input::Reply(sent, result) => self.reply(at, sent, result),
            Input::Due => self.end(at, 0),
            Input::Abandoned | Input::Notified(_) => Next::Stay,
        }
    }

    /// A hold with guards stays: the call wanted to enter it again or to upgrade
    /// it. An upgrade granted in the meantime is undone.
    fn request(&mut self, at: &mut Context<'_>) -> Request {
        let claims = at.work.claims.clone();
        at.engine.fence_is_uncertain(&claims);
        self.undo = match (at.engine.held(at.now, &claims), self.upgraded) {
            (HeldKeys::Nothing, _) => Undo::Release,
            (HeldKeys::Same(..), Some(_)) => Undo::Downgrade,
            (HeldKeys::Same(..) | HeldKeys::Otherwise(_), _) => Undo::Nothing,
        };
        if self.is_one_by_one && self.undo == Undo::Release {
            // It is unknown whether it was granted, and under which fence.
            let fence = None;
            return Request::ReleaseEach { claims, fence };
        }
        let undo = self.undo;
        Request::CleanUp { claims, undo }
    }

    fn reply(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        let is_last_resort = self.is_one_by_one || at.work.claims.is_single();
        match result {
            Ok(Reply::Refused) if self.undo == Undo::Release && !is_last_resort => {
                self.is_one_by_one = true;
                return Next::Ask;
            }
            // An upgrade may stay: its fence is still to come.
            Ok(Reply::Refused) => self.upgraded = None,
            Ok(Reply::Fence(fence)) => {
                if let Some(hold) = self.upgraded {
                    at.engine.undone(at.now, hold, fence, sent.in_order_with());
                }
            }
            Ok(_) => {}
            Err(fault) => {
                let next = at.try_again(sent, fault);
                return next.unwrap_or_else(|_| self.end(at, sent.connection));
            }
        }
        // The hold was lost meanwhile, and the call may have taken the lock again.
        if self.undo != Undo::Release
            && let HeldKeys::Nothing = at.engine.held(at.now, &at.work.claims)
        {
            return Next::Ask;
        }
        // On the connection of the call, clean-up cannot overtake the call. The
        // same is true for a later connection if the server closed the earlier
        // one.
        let is_predecessor_gone = matches!(
            at.engine.connection(sent.node),
            ConnectionState::Up {
                is_predecessor_gone: true,
                ..
            }
        );
        let is_certain = is_predecessor_gone
            || at
                .work
                .unanswered
                .is_none_or(|connection| connection == sent.connection);
        match REPEATS.get(self.repeats) {
            Some(pause) if !is_certain => {
                self.repeats += 1;
                let end = at.now + *pause;
                at.work.deadline = at.work.deadline.map(|deadline| deadline.max(end + *pause));
                Next::Wait(Stage::Pause(end))
            }
            _ => self.end(at, sent.connection),
        }
    }

    /// Only from now on is the server's report about the hold unambiguous.
    fn end(&self, at: &mut Context<'_>, connection: u64) -> Next {
        let claims = &at.work.claims;
        if let (HeldKeys::Nothing, Some(lease_end)) =
            (at.engine.held(at.now, claims), at.work.deadline)
        {
            let by = (connection, self.ask);
            at.engine.remember_undone(at.now, claims, by, lease_end);
        }
        if let Some(hold) = self.upgraded {
            at.engine.set_upgrading(hold, false);
        }
        Next::End(Outcome::Done)
    }
}
