//! How an owner leaves a lock, with as little left behind as can be: released
//! by its last guard, at once or by the end of a last lease, shared again, or
//! withdrawn after a call that nobody waits for.
//!
//! Repeating any of this is harmless: what is not there any more is answered
//! nil, and another owner is never touched.

use std::time::Duration;

use crate::engine::claims::Claims;
use crate::engine::hold::Held;
use crate::engine::instant::Instant;
use crate::engine::request::{Reply, Request, Sent, Undo};
use crate::engine::terms::Ask;
use crate::engine::work::{Stage, Task, Work};
use crate::engine::{Action, Engine, Id, Link, Outcome, in_order};
use crate::error::{Error, Fault, Loss};

/// The end of a guard.
#[derive(Debug)]
pub(super) struct Leaving {
    hold: Id,
    ask: Ask,
    /// Whether the guard is counted no more.
    has_left: bool,
    /// What is to be released, once it has the turn: the keys that the owner has
    /// not taken anew since.
    rest: Option<Claims>,
    /// Why each of several keys has to be released by itself.
    refusal: Option<Error>,
    /// Whether the last request was to keep it for a while, not to release it.
    is_kept: bool,
}

impl Engine {
    /// Has the last guard's end leave a hold to the server until then.
    pub(super) fn keep(&mut self, id: Id, until: Instant) {
        if let Some(hold) = self.holds.get_mut(&id) {
            hold.kept = hold.kept.max(Some(until));
        }
    }

    /// Ends one of the guards of a hold.
    pub(super) fn release(&mut self, now: Instant, call: Id, id: Id, ask: Ask) {
        let loss = self.loss(now, id);
        let Some(hold) = self.holds.get_mut(&id) else {
            let outcome = Outcome::Failed(Error::Closed);
            return self.actions.push_back(Action::Resolve { call, outcome });
        };
        if let Some(loss) = loss {
            let outcome = Outcome::Failed(Error::Lost(loss));
            self.actions.push_back(Action::Resolve { call, outcome });
            return self.leave(now, id, ask);
        }
        // Nobody has to be waited for to leave a lock to the others.
        if hold.guards > 1 {
            hold.leave(ask);
            let outcome = Outcome::Done;
            return self.actions.push_back(Action::Resolve { call, outcome });
        }
        let claims = hold.proof.claims.clone();
        let task = Task::Release(Leaving::of(id, ask, false));
        let deadline = Some(now + self.patience);
        self.start(now, call, Work::new(now, claims, task, deadline, true));
    }

    /// A guard was dropped.
    pub(super) fn leave(&mut self, now: Instant, id: Id, ask: Ask) {
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        hold.leave(ask);
        if hold.guards > 0 {
            return;
        }
        let claims = hold.proof.claims.clone();
        let deadline = Some(hold.lease_end.max(now + self.patience));
        let task = Task::Release(Leaving::of(id, ask, true));
        let work = self.next_id();
        self.start(now, work, Work::new(now, claims, task, deadline, false));
    }

    /// Ends all guards and all calls for locks.
    pub(super) fn leave_all(&mut self, now: Instant) {
        self.is_leaving = true;
        let is_waiting = |work: &Work| work.is_awaited && matches!(work.task, Task::Call(_));
        let waiting = self.works.iter().filter(|(_, work)| is_waiting(work));
        let waiting: Vec<_> = in_order(waiting.map(|(call, _)| (*call, ()))).collect();
        for (call, ()) in waiting {
            let outcome = Outcome::Failed(Error::Closed);
            self.actions.push_back(Action::Resolve { call, outcome });
            self.abandon(now, call);
        }
        let held = self.holds.iter().filter(|(_, hold)| hold.guards > 0);
        let held: Vec<_> = in_order(held.map(|(id, hold)| (*id, hold.ask))).collect();
        for (id, ask) in held {
            if let Some(hold) = self.holds.get_mut(&id) {
                hold.guards = 1;
                self.leave(now, id, ask);
            }
        }
    }

    /// A guard that nobody took ends. An upgrade is undone with it, as others of
    /// its owner only read.
    pub(super) fn untaken(&mut self, now: Instant, call: Id, id: Id, ask: Ask) {
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        if hold.guards < 2 || hold.upgraded_by != Some(call) {
            return self.leave(now, id, ask);
        }
        let claims = hold.proof.claims.clone();
        let deadline = Some(hold.lease_end.max(now + self.patience));
        let work = Work::new(now, claims, Task::Downgrade(id), deadline, false);
        self.start(now, call, work);
        self.leave(now, id, Ask::Shared);
    }

    /// The last guard ends, unless the lock was entered meanwhile; false if
    /// that was all.
    pub(super) fn begin_release(&mut self, now: Instant, id: Id) -> bool {
        let Some(Task::Release(leaving)) = self.works.get_mut(&id).map(|work| &mut work.task)
        else {
            return false;
        };
        let (hold, ask) = (leaving.hold, leaving.ask);
        let was_counted = !std::mem::replace(&mut leaving.has_left, true);
        let loss = self.loss(now, hold);
        let Some(row) = self.holds.get_mut(&hold) else {
            self.end(now, id, Outcome::Done);
            return false;
        };
        if was_counted {
            row.leave(ask);
        }
        if row.guards > 0 {
            self.end(now, id, Outcome::Done);
            return false;
        }
        if let Some(loss) = loss {
            self.resolve(id, Outcome::Failed(Error::Lost(loss)));
        }
        // Of several keys the loss of one leaves the others, but for those that
        // the owner has taken anew since.
        let is_gone = loss == Some(Loss::EndedByServer) && self.is_single(hold);
        let rest = self.newest_part(hold).filter(|_| !is_gone);
        let Some(rest) = rest else {
            self.forget(hold);
            self.end(now, id, Outcome::Done);
            return false;
        };
        if let Some(Task::Release(leaving)) = self.works.get_mut(&id).map(|work| &mut work.task) {
            leaving.rest = Some(rest);
        }
        self.end_hold(now, hold);
        true
    }

    pub(super) fn ask_to_release(&mut self, now: Instant, id: Id, link: u64) {
        let Some(Task::Release(leaving)) = self.works.get_mut(&id).map(|work| &mut work.task)
        else {
            return;
        };
        let Some(claims) = leaving.rest.clone() else {
            return;
        };
        let hold = self.holds.get(&leaving.hold);
        let kept = hold.and_then(|hold| Some((hold, hold.kept_for(now)?)));
        leaving.is_kept = kept.is_some();
        let request = match kept {
            Some((hold, lease)) => Request::Renew {
                claims,
                lease,
                known: hold.proof.fence(),
                raise: None,
                // It outlives its connection.
                bound: hold.terms.bound.and(Some(lease)),
                notify: false,
                replicas: hold.terms.replicas,
            },
            None => Request::Release {
                claims,
                fence: hold.and_then(|hold| hold.certain_fence()),
            },
        };
        self.request(now, id, link, request);
    }

    pub(super) fn release_reply(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let (node, is_repeated) = (work.node, work.unanswered.is_some());
        let Task::Release(leaving) = &mut work.task else {
            return;
        };
        let Some(claims) = leaving.rest.clone() else {
            return;
        };
        let (hold, is_kept) = (leaving.hold, leaving.is_kept);
        let refusal = leaving.refusal.take();
        let fence = self.holds.get(&hold).and_then(|hold| hold.certain_fence());
        let outcome = match (result, refusal) {
            (_, Some(refusal)) => Outcome::Failed(refusal),
            // Nil after an unanswered release: that one released it.
            (Ok(Reply::Nil), None) if is_kept || !is_repeated => {
                Outcome::Failed(Error::Lost(Loss::EndedByServer))
            }
            // Its owner has taken it anew elsewhere.
            (Ok(Reply::Fence(kept)), None) if fence.is_some_and(|fence| fence != kept) => {
                Outcome::Failed(Error::Lost(Loss::EndedByServer))
            }
            (Ok(Reply::TooFew(known)), None) => Outcome::Failed(self.too_few(hold, known)),
            (Ok(_), None) => Outcome::Done,
            (Err(Fault::Refused(refusal)), None) if !is_kept && !claims.is_single() => {
                if let Some(Task::Release(leaving)) =
                    self.works.get_mut(&id).map(|work| &mut work.task)
                {
                    leaving.refusal = Some(refusal);
                }
                if let Link::Up { number, .. } = self.link(node) {
                    let each = Request::ReleaseEach { claims, fence };
                    return self.request(now, id, number, each);
                }
                return self.advance(now, id);
            }
            (Err(fault), None) => match self.try_again(now, id, sent, fault) {
                Ok(()) => return,
                Err(error) => Outcome::Failed(error),
            },
        };
        self.forget(hold);
        self.end(now, id, outcome);
    }

    pub(super) fn release_is_out_of_time(&mut self, now: Instant, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        if work.is_awaited {
            let error = work.unavailable(now);
            self.resolve(id, Outcome::Failed(error));
            return self.release_in_background(now, id);
        }
        let Task::Release(leaving) = &work.task else {
            return;
        };
        // The server has ended it by itself.
        let hold = leaving.hold;
        self.forget(hold);
        self.end(now, id, Outcome::Done);
    }

    /// The caller is gone, and the background goes on until the lease ends.
    pub(super) fn release_in_background(&mut self, now: Instant, id: Id) {
        let patience = self.patience;
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let (stage, Task::Release(leaving)) = (work.stage, &mut work.task) else {
            return;
        };
        let was_counted = !std::mem::replace(&mut leaving.has_left, true);
        let (hold, ask) = (leaving.hold, leaving.ask);
        let Some(row) = self.holds.get_mut(&hold) else {
            return self.end(now, id, Outcome::Done);
        };
        work.deadline = Some(row.lease_end.max(now + patience));
        if was_counted {
            row.leave(ask);
        }
        self.set_stage(now, id, stage);
    }

    /// One guard needs its lock in shared mode only from now on.
    pub(super) fn downgrade(&mut self, now: Instant, call: Id, id: Id) {
        let loss = self.loss(now, id);
        let outcome = match (self.holds.get(&id), loss) {
            (None, _) => Outcome::Failed(Error::Closed),
            (_, Some(loss)) => Outcome::Failed(Error::Lost(loss)),
            (Some(hold), None) => {
                let claims = hold.proof.claims.clone();
                let deadline = Some(now + self.patience);
                let work = Work::new(now, claims, Task::Downgrade(id), deadline, true);
                return self.start(now, call, work);
            }
        };
        if let Some(hold) = self.holds.get_mut(&id) {
            hold.leave_writers();
        }
        self.actions.push_back(Action::Resolve { call, outcome });
    }

    /// If other guards need the lock exclusively, nothing is to be sent.
    pub(super) fn begin_downgrade(&mut self, now: Instant, id: Id, hold: Id) -> bool {
        let is_last = self.holds.get_mut(&hold).map(|hold| hold.leave_writers());
        let outcome = match self.loss(now, hold) {
            Some(loss) => Outcome::Failed(Error::Lost(loss)),
            None if is_last == Some(true) => return true,
            None => Outcome::Done,
        };
        self.end(now, id, outcome);
        false
    }

    pub(super) fn downgrade_reply(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        hold: Id,
        result: Result<Reply, Fault>,
    ) {
        let work = self.works.get(&id);
        let is_repeated = work.is_some_and(|work| work.unanswered.is_some());
        let outcome = match result {
            // Nil after an unanswered one: that one did it, or the hold was
            // lost, which the next renewal shows.
            Ok(Reply::Nil) if !is_repeated => {
                self.lose(now, hold);
                Outcome::Failed(Error::Lost(Loss::EndedByServer))
            }
            Ok(_) => Outcome::Done,
            Err(fault) => match self.try_again(now, id, sent, fault) {
                Ok(()) => return,
                Err(error) => Outcome::Failed(error),
            },
        };
        self.end(now, id, outcome);
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
            is_kept: false,
        }
    }
}

/// How often clean-up is repeated where an earlier connection may still be
/// open on the server.
const REPEATS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// The call may have been sent or not, be queued, or be granted. The turn is
/// kept until this is done, so that a next call of the same owner comes after.
#[derive(Debug)]
pub(super) struct CleanUp {
    /// The shared hold that the call was to make exclusive.
    upgraded: Option<Id>,
    is_each: bool,
    repeats: usize,
}

impl Engine {
    /// Undoes a grant that nobody waits for.
    pub(super) fn give_back(&mut self, now: Instant, claims: Claims, lease: Duration) {
        let task = Task::CleanUp(CleanUp::of(None));
        let deadline = Some(now + lease.max(self.patience));
        let id = self.next_id();
        self.start(now, id, Work::new(now, claims, task, deadline, false));
    }

    /// Has a call become the clean-up behind it.
    pub(super) fn clean_up_behind(
        &mut self,
        now: Instant,
        id: Id,
        upgraded: Option<Id>,
        lease: Duration,
    ) {
        let patience = self.patience;
        // What is under way is answered before what is asked now.
        self.set_stage(now, id, Stage::Turn);
        if let Some(work) = self.works.get_mut(&id) {
            work.task = Task::CleanUp(CleanUp::of(upgraded));
            // After its lease no grant is left anyway.
            work.deadline = Some(now + lease.max(patience));
        }
        self.advance(now, id);
    }

    /// A hold with guards on it stays: the call was to enter it again, or to
    /// upgrade it. An upgrade that was granted in the meantime is undone.
    pub(super) fn ask_to_clean_up(&mut self, now: Instant, id: Id, link: u64) {
        let Some(work) = self.works.get(&id) else {
            return;
        };
        let claims = work.claims.clone();
        self.fence_is_in_doubt(&claims);
        let Some(Task::CleanUp(clean_up)) = self.works.get(&id).map(|work| &work.task) else {
            return;
        };
        let undo = match (self.held(now, &claims), clean_up.upgraded) {
            (Held::Nothing, _) => Undo::Release,
            (Held::These(..), Some(_)) => Undo::Downgrade,
            (Held::These(..) | Held::Otherwise(_), _) => Undo::Nothing,
        };
        let request = match clean_up.is_each {
            // What it was granted, and under which fence, is not known.
            true => Request::ReleaseEach {
                claims,
                fence: None,
            },
            false => Request::CleanUp { claims, undo },
        };
        self.request(now, id, link, request);
    }

    pub(super) fn clean_up_reply(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) {
        let is_sole = matches!(self.link(sent.node), Link::Up { is_sole: true, .. });
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        // On the connection that the call was made by, clean-up cannot overtake
        // it. Nor on a later one, if the server closed the earlier.
        let is_certain = is_sole || work.unanswered.is_none_or(|link| link == sent.link);
        let is_single = work.claims.is_single();
        let Task::CleanUp(clean_up) = &mut work.task else {
            return;
        };
        let upgraded = clean_up.upgraded;
        match result {
            Ok(Reply::Refused) if !is_single && !clean_up.is_each => {
                clean_up.is_each = true;
                return self.advance(now, id);
            }
            Ok(Reply::Fence(fence)) => {
                if let Some(hold) = upgraded {
                    self.undone(now, hold, fence);
                }
            }
            Ok(_) => {}
            Err(fault) => match self.try_again(now, id, sent, fault) {
                Ok(()) => return,
                Err(_) => return self.clean_up_is_done(now, id),
            },
        }
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let Task::CleanUp(clean_up) = &mut work.task else {
            return;
        };
        match REPEATS.get(clean_up.repeats) {
            Some(pause) if !is_certain => {
                clean_up.repeats += 1;
                let end = now + *pause;
                work.deadline = work.deadline.map(|deadline| deadline.max(end + *pause));
                self.set_stage(now, id, Stage::Pause(end));
            }
            _ => self.clean_up_is_done(now, id),
        }
    }

    /// Only now may the server's word about the hold be taken literally.
    pub(super) fn clean_up_is_done(&mut self, now: Instant, id: Id) {
        if let Some(Task::CleanUp(clean_up)) = self.works.get(&id).map(|work| &work.task)
            && let Some(hold) = clean_up.upgraded
        {
            self.set_upgrading(hold, false);
        }
        self.end(now, id, Outcome::Done);
    }
}

impl CleanUp {
    fn of(upgraded: Option<Id>) -> Self {
        Self {
            upgraded,
            is_each: false,
            repeats: 0,
        }
    }
}
