//! The way from a call for a lock to a grant.
//!
//! A call asks, and while it is queued waits for the server's message. If the
//! connection is lost while it waits, it asks again by the next one. Whatever
//! ends it, no place stays behind: the call itself withdraws it when the wait
//! is over, and becomes clean-up when its caller is gone. An upgrade is a call
//! like the others, for a lock that its owner holds in shared mode.

use std::time::Duration;

use crate::engine::claims::Claims;
use crate::engine::hold::{Grant, Held};
use crate::engine::instant::Instant;
use crate::engine::request::{By, Reply, Request, Sent};
use crate::engine::terms::{Ask, Queueing, Terms, validity_end};
use crate::engine::work::{Stage, Task, Work};
use crate::engine::{Action, Engine, Id, Link, Outcome};
use crate::error::{Error, Fault};

/// How much later than its wait a request may be told that it ended.
pub(super) const NOTICE_GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Call {
    pub(super) ask: Ask,
    pub(super) terms: Terms,
    pub(super) queueing: Queueing,
    /// What is to be entered again, or upgraded.
    pub(super) live: Option<Id>,
    pub(super) is_upgrade: bool,
    pub(super) step: Step,
    /// How long replicas may take.
    pub(super) replication: Duration,
    /// The grant that replicas are asked about, and since when.
    pub(super) unconfirmed: Option<(u64, Instant)>,
    /// The lease of the last request.
    pub(super) lease: Duration,
    /// The connection that the last request for the lock was made by, before
    /// the one that is under way.
    pub(super) earlier: Option<u64>,
    /// Whether a request was made that may have got a place in the queue.
    pub(super) has_waited: bool,
    /// How often it has asked again in case that a request of an earlier
    /// connection has taken its place over to that connection.
    pub(super) doubts: u32,
    /// Whether it is to do so if it hears nothing.
    pub(super) is_in_doubt: bool,
    /// What the server has said before its reply was here.
    pub(super) said: Option<Told>,
}

/// What the request is for that is under way, or was last.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Having the loss told of what is to be upgraded: it must come before the
    /// grant that an upgrade may still get after it.
    Attaching,
    Asking,
    /// Asking for what can be had at once, for which the server has to remember
    /// nothing: it can remember no more. A loss is then known by the clock, or
    /// at the next renewal.
    AskingQuietly {
        full: Box<Error>,
    },
    /// Making sure that a grant still stands that a message told of.
    Confirming,
    /// Finding out why the server withdrew the request.
    Withdrawn,
    /// Ending the place that the server keeps for some time after a wait.
    Leaving,
}

/// What ends the waiting of a queued request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Grant { fence: u64, not_before: Instant },
    WaitEnded,
    Withdrawn,
}

impl Call {
    /// When the reply to a request has to be here.
    pub(super) fn last_word(&self, deadline: Option<Instant>) -> Option<Instant> {
        match (self.queueing, &self.step) {
            (_, Step::Confirming) if self.terms.replicas > 0 => {
                deadline.map(|deadline| deadline + NOTICE_GRACE + self.replication)
            }
            (Queueing::Try, step) if !matches!(step, Step::Leaving) => deadline,
            _ => deadline.map(|deadline| deadline + NOTICE_GRACE),
        }
    }

    /// Whether it has waited for long enough in doubt.
    pub(super) fn ends_doubt(&mut self) -> bool {
        std::mem::replace(&mut self.is_in_doubt, false)
    }
}

impl Work {
    /// The lease that is waited for, if it is a call.
    pub(super) fn lease(&self) -> Option<Duration> {
        match &self.task {
            Task::Call(call) => Some(call.lease),
            _ => None,
        }
    }

    pub(super) fn call(&mut self) -> Option<&mut Call> {
        match &mut self.task {
            Task::Call(call) => Some(call),
            _ => None,
        }
    }
}

impl Engine {
    pub(super) fn ask(
        &mut self,
        now: Instant,
        id: Id,
        claims: Claims,
        ask: Ask,
        terms: Terms,
        queueing: Queueing,
    ) {
        if self.is_leaving {
            let outcome = Outcome::Failed(Error::Closed);
            return self
                .actions
                .push_back(Action::Resolve { call: id, outcome });
        }
        let deadline = match queueing {
            Queueing::Try => Some(now + self.patience),
            Queueing::AtMost(wait) => Some(now + wait),
            Queueing::Unlimited => None,
        };
        let is_in_the_way = queueing == Queueing::Try && !self.is_turn_near(&claims);
        let call = Call {
            ask,
            terms,
            queueing,
            live: None,
            is_upgrade: false,
            step: Step::Asking,
            replication: self.replication,
            unconfirmed: None,
            lease: terms.lease,
            earlier: None,
            has_waited: false,
            doubts: 0,
            is_in_doubt: false,
            said: None,
        };
        let work = Work::new(now, claims, Task::Call(call), deadline, true);
        if is_in_the_way {
            let (call, outcome) = (id, Outcome::Refused);
            return self.actions.push_back(Action::Resolve { call, outcome });
        }
        self.start(now, id, work);
    }

    /// Looks at what the owner holds; false if that was all.
    pub(super) fn begin_call(&mut self, now: Instant, id: Id) -> bool {
        let Some(work) = self.works.get(&id) else {
            return false;
        };
        let (count, Task::Call(call)) = (work.claims.count(), &work.task) else {
            return false;
        };
        let ask = call.ask;
        let (live, terms, held_as) = match self.held(now, &work.claims) {
            Held::Nothing => return true,
            // Nobody needs it as it is held any more: its release comes first.
            Held::These(_, hold) | Held::Otherwise(hold)
                if hold.guards == 0 && (hold.ask != ask || hold.proof.claims.count() != count) =>
            {
                self.go_behind(id);
                return false;
            }
            // To enter a lock again is to get the terms of the hold that is
            // there: a shorter lease would end under the guards that hold it.
            Held::These(live, hold) => (live, hold.terms, hold.ask),
            Held::Otherwise(hold) => {
                let error = Error::HeldOtherwise {
                    owner: work.claims.owner().clone(),
                    keys: hold.proof.claims.label(),
                };
                self.end(now, id, Outcome::Failed(error));
                return false;
            }
        };
        let Some(call) = self.works.get_mut(&id).and_then(|work| work.call()) else {
            return false;
        };
        (call.live, call.terms) = (Some(live), terms);
        call.is_upgrade = ask.is_exclusive() && !held_as.is_exclusive();
        let is_upgrade = call.is_upgrade;
        self.set_upgrading(live, is_upgrade);
        true
    }

    pub(super) fn ask_for_lock(&mut self, now: Instant, id: Id, link: u64) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let (earlier, claims) = (work.asked_by, work.claims.clone());
        let left = work.deadline.map(|deadline| deadline - now);
        let Some(call) = work.call() else { return };
        let live = call.live.and_then(|live| self.holds.get(&live));
        if let Some(hold) =
            live.filter(|_| call.is_upgrade && !matches!(call.step, Step::Attaching))
            && hold.notices_by != link
            && let Some(request) = hold.attach_request(now)
        {
            call.step = Step::Attaching;
            return self.request(now, id, link, request);
        }
        let taken = live.map_or(now, |hold| hold.taken);
        call.lease = call.terms.lease_at(taken, now).unwrap_or(call.terms.lease);
        (call.step, call.earlier, call.said) = (Step::Asking, earlier, None);
        let queueing = match (call.queueing, left) {
            // Too late to queue, but an earlier request may have been granted.
            (Queueing::AtMost(_), Some(Duration::ZERO)) => Queueing::Try,
            (Queueing::AtMost(_), Some(left)) => Queueing::AtMost(left),
            (queueing, _) => queueing,
        };
        call.has_waited |= queueing != Queueing::Try;
        let request = Request::Acquire {
            claims,
            ask: call.ask,
            lease: call.lease,
            bound: call.terms.bound,
            queueing,
            notify: true,
        };
        work.asked_by = Some(link);
        self.request(now, id, link, request);
    }

    pub(super) fn call_is_out_of_time(&mut self, now: Instant, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let error = work.unavailable(now);
        let is_leaving = work
            .call()
            .is_some_and(|call| matches!(call.step, Step::Leaving));
        let outcome = match work.stage {
            // Others of this owner were before it for so long.
            Stage::Turn => Outcome::Refused,
            _ if is_leaving => Outcome::Refused,
            // The server said nothing, not even that the wait is over.
            _ => Outcome::Failed(error),
        };
        self.give_up(now, id, outcome);
    }

    /// Ends a call of which the server knows nothing but its grant.
    pub(super) fn leave_nothing(&mut self, now: Instant, id: Id, outcome: Outcome) {
        let call = self.works.get_mut(&id).and_then(|work| work.call());
        if let Some(live) = call.and_then(|call| call.live) {
            self.set_upgrading(live, false);
        }
        self.end(now, id, outcome);
    }

    /// Ends a call, and withdraws what the server may still know of it.
    pub(super) fn give_up(&mut self, now: Instant, id: Id, outcome: Outcome) {
        self.resolve(id, outcome);
        self.withdraw(now, id);
    }

    /// Withdraws what the server may know of a call that nobody waits for.
    pub(super) fn withdraw(&mut self, now: Instant, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let (asked_by, unanswered) = (work.asked_by, work.unanswered);
        let Some(call) = work.call() else { return };
        let upgraded = call.live.filter(|_| call.is_upgrade);
        let lease = call.lease;
        if asked_by.is_none() && unanswered.is_none() {
            return self.leave_nothing(now, id, Outcome::Refused);
        }
        self.clean_up_behind(now, id, upgraded, lease);
    }
}

/// When to ask again if a request of an earlier connection, which might still
/// be open on the server, could have taken the place over to that connection:
/// doubled each time up to 32 s, as nobody knows how late a request can be.
const DOUBT: Duration = Duration::from_secs(1);

impl Engine {
    pub(super) fn call_reply(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let asked_by = work.asked_by;
        let Some(call) = work.call() else { return };
        match call.step.clone() {
            Step::Attaching => self.upgraded_is_attached(now, id, sent, result),
            Step::Asking => self.asked(now, id, sent, result),
            Step::AskingQuietly { full } => match result {
                Ok(Reply::Fence(fence)) => {
                    // No connection has to tell of its loss.
                    let sent = Sent { link: 0, ..sent };
                    self.granted(now, id, fence, sent);
                }
                Ok(_) => self.refused(now, id, *full),
                Err(fault) => self.call_failed(now, id, sent, fault),
            },
            Step::Confirming => match result {
                Ok(Reply::Fence(fence)) => {
                    // The connection that it was asked for by tells of its loss.
                    let link = asked_by.unwrap_or(0);
                    self.granted(now, id, fence, Sent { link, ..sent });
                }
                Ok(Reply::TooFew(acknowledged)) => {
                    let wanted = call.terms.replicas;
                    let error = Error::NotReplicated {
                        wanted,
                        acknowledged,
                    };
                    self.give_up(now, id, Outcome::Failed(error));
                }
                // It was lost meanwhile, and nobody ever worked under it.
                Ok(_) => self.advance(now, id),
                Err(fault) => self.not_confirmed(now, id, sent, fault),
            },
            // A server that can no longer grant, as it became a replica or gave
            // the slot away, refuses to cancel too: then this call goes on as
            // after any refusal. One that can grant has no place of this owner
            // any more: somebody cancelled it.
            Step::Withdrawn => match result {
                Ok(Reply::Count(0)) => self.give_up(now, id, Outcome::Failed(Error::Cancelled)),
                // The message was about a request of an earlier connection.
                Ok(_) => self.advance(now, id),
                Err(fault) => self.call_failed(now, id, sent, fault),
            },
            Step::Leaving => match result {
                Ok(Reply::Count(1)) => self.leave_nothing(now, id, Outcome::Refused),
                // It may have been granted.
                _ => self.give_up(now, id, Outcome::Refused),
            },
        }
    }

    fn upgraded_is_attached(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let node = work.node;
        let Some(hold) = work.call().and_then(|call| call.live) else {
            return;
        };
        let row = self.holds.get(&hold);
        let asked = row.and_then(|row| Some((row.next_lease(sent.sent)?, row.proof.fence())));
        let attached = match asked {
            Some(asked) => self.attached(now, hold, sent, asked, result),
            None => Ok(()),
        };
        match (attached, self.link(node)) {
            (Ok(()), Link::Up { number, .. }) => self.ask_for_lock(now, id, number),
            (Ok(()), _) => self.advance(now, id),
            (Err(fault), _) => self.call_failed(now, id, sent, fault),
        }
    }

    fn asked(&mut self, now: Instant, id: Id, sent: Sent, result: Result<Reply, Fault>) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let (claims, node) = (work.claims.clone(), work.node);
        let Some(call) = work.call() else { return };
        match result {
            Ok(Reply::Fence(fence)) => self.granted(now, id, fence, sent),
            Ok(Reply::Queued) => self.queued(now, id, sent),
            Ok(_) => self.not_granted(now, id),
            Err(Fault::Refused(full @ Error::QueueFull(_))) if call.terms.bound.is_none() => {
                let request = Request::Acquire {
                    claims,
                    ask: call.ask,
                    lease: call.lease,
                    bound: None,
                    queueing: Queueing::Try,
                    notify: false,
                };
                let full = Box::new(full);
                call.step = Step::AskingQuietly { full };
                match self.link(node) {
                    Link::Up { number, .. } => self.request(now, id, number, request),
                    Link::Idle | Link::Down | Link::Closed => self.advance(now, id),
                }
            }
            Err(Fault::Refused(error)) => self.refused(now, id, error),
            Err(fault) => self.call_failed(now, id, sent, fault),
        }
    }

    /// The first request of a call that is refused has left nothing.
    fn refused(&mut self, now: Instant, id: Id, error: Error) {
        let call = self.works.get_mut(&id).and_then(|work| work.call());
        let outcome = Outcome::Failed(error);
        match call.is_some_and(|call| call.earlier.is_none()) {
            true => self.leave_nothing(now, id, outcome),
            false => self.give_up(now, id, outcome),
        }
    }

    fn call_failed(&mut self, now: Instant, id: Id, sent: Sent, fault: Fault) {
        if let Err(error) = self.try_again(now, id, sent, fault) {
            self.give_up(now, id, Outcome::Failed(error));
        }
    }

    /// The lock is held for this call, which cannot work under it: for no longer
    /// than replicas may take, as others may want it.
    fn not_confirmed(&mut self, now: Instant, id: Id, sent: Sent, fault: Fault) {
        if let Err(error) = self.try_again(now, id, sent, fault) {
            return self.give_up(now, id, Outcome::Failed(error));
        }
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let Some(call) = work.call() else { return };
        let limit = call.replication;
        let since = call.unconfirmed.filter(|_| call.terms.replicas > 0);
        if since.is_some_and(|(_, since)| now - since >= limit) {
            let error = work.unavailable(now);
            self.give_up(now, id, Outcome::Failed(error));
        }
    }

    fn queued(&mut self, now: Instant, id: Id, sent: Sent) {
        let link = self.link_of(id);
        let Link::Up { number, is_sole } = link else {
            return self.advance(now, id);
        };
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        if number != sent.link {
            return self.advance(now, id);
        }
        let deadline = work.deadline.map(|deadline| deadline + NOTICE_GRACE);
        let Some(call) = work.call() else { return };
        let from_elsewhere = call.earlier.is_some_and(|earlier| earlier != sent.link);
        call.is_in_doubt = !is_sole && (from_elsewhere || call.doubts > 0);
        let until = if call.is_in_doubt {
            let again = now + DOUBT * (1 << call.doubts.min(5));
            call.doubts += 1;
            Some(deadline.map_or(again, |last| last.min(again)))
        } else {
            deadline
        };
        let said = call.said.take();
        self.metrics.waits += 1;
        self.set_stage(now, id, Stage::Queued(until));
        if let Some(told) = said {
            self.wait_is_over(now, id, told);
        }
    }

    /// Takes what the server says to a call by the connection that it was made
    /// by.
    pub(super) fn tell_call(&mut self, now: Instant, id: Id, link: u64, told: Told) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        // About a request of an earlier connection: the next one finds out.
        if work.asked_by != Some(link) {
            return;
        }
        match work.stage {
            Stage::Queued(_) => self.wait_is_over(now, id, told),
            Stage::Asked(_) => {
                if let Some(call) = work.call() {
                    call.said = Some(told);
                }
            }
            Stage::Turn | Stage::Link | Stage::Pause(_) => {}
        }
    }

    fn wait_is_over(&mut self, now: Instant, id: Id, told: Told) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let Some(link) = work.asked_by else { return };
        let node = work.node;
        let claims = work.claims.clone();
        let is_lost = matches!(told, Told::Grant { fence, .. } if self.is_lost(&claims, fence));
        let Some(call) = self.works.get_mut(&id).and_then(|work| work.call()) else {
            return;
        };
        match told {
            Told::Grant { fence, not_before } => {
                let lease = call.lease;
                let is_plain = call.live.is_none()
                    && call.terms.max_hold.is_none()
                    && call.terms.replicas == 0;
                // Whether at least half of the lease is left for certain, and half
                // of the grace. A request was made at `not_before` and answered
                // before the message came, by the same connection, so the grant
                // was made after that.
                let left = |time| validity_end(not_before, time) - now >= time / 2;
                let is_fresh = left(lease) && call.terms.bound.is_none_or(left);
                if is_plain && is_fresh && !is_lost {
                    let by = By::Work(id);
                    let sent = Sent {
                        by,
                        node,
                        link,
                        goes_beside: false,
                        sent: not_before,
                    };
                    return self.granted(now, id, fence, sent);
                }
                // How old the message is cannot be known, as this process may
                // have been stopped since.
                self.confirm(now, id, link, fence);
            }
            Told::WaitEnded => self.not_granted(now, id),
            Told::Withdrawn => {
                call.step = Step::Withdrawn;
                self.request(now, id, link, Request::Cancel { claims });
            }
        }
    }

    /// Makes sure that a grant stands, and that replicas know it where they are
    /// to.
    fn confirm(&mut self, now: Instant, id: Id, link: u64, fence: u64) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let claims = work.claims.clone();
        let Some(call) = work.call() else { return };
        let live = call.live.and_then(|live| self.holds.get(&live));
        let taken = live.map_or(now, |hold| hold.taken);
        call.lease = call.terms.lease_at(taken, now).unwrap_or(call.terms.lease);
        call.step = Step::Confirming;
        let before = call.unconfirmed.filter(|(known, _)| *known == fence);
        call.unconfirmed = before.or(Some((fence, now)));
        let request = Request::Renew {
            claims,
            lease: call.lease,
            known: fence,
            raise: None,
            bound: None,
            notify: false,
            replicas: call.terms.replicas,
        };
        self.request(now, id, link, request);
    }

    fn granted(&mut self, now: Instant, id: Id, fence: u64, sent: Sent) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let (claims, node) = (work.claims.clone(), work.node);
        let Some(call) = work.call() else { return };
        if call.terms.replicas > 0 && !matches!(call.step, Step::Confirming) {
            return match self.link(node) {
                Link::Up { number, .. } => self.confirm(now, id, number, fence),
                Link::Idle | Link::Down | Link::Closed => self.advance(now, id),
            };
        }
        let grant = Grant {
            fence,
            sent: sent.sent,
            lease: call.lease,
            link: sent.link,
        };
        let (ask, terms) = (call.ask, call.terms);
        let upgraded_by = call.is_upgrade.then_some(id);
        let proof = self.take(now, claims, ask, terms, grant);
        if let (Some(_), Some(hold)) = (upgraded_by, self.holds.get_mut(&proof.hold)) {
            hold.upgraded_by = upgraded_by;
        }
        self.metrics.grants += 1;
        self.leave_nothing(now, id, Outcome::Granted(proof));
    }

    /// The server's last word was no. All that it may still have of this call
    /// is the place of a wait, which is kept for some time after its end; an
    /// upgrade keeps none.
    fn not_granted(&mut self, now: Instant, id: Id) {
        let link = self.link_of(id);
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let has_unanswered = work.unanswered.is_some();
        let claims = work.claims.clone();
        let Some(call) = work.call() else { return };
        let has_place = call.has_waited && !call.is_upgrade;
        match link {
            Link::Up { number, .. } if has_place => {
                call.step = Step::Leaving;
                self.request(now, id, number, Request::Cancel { claims });
            }
            Link::Idle | Link::Down if has_place => self.give_up(now, id, Outcome::Refused),
            Link::Up { is_sole: false, .. } if has_unanswered => {
                self.give_up(now, id, Outcome::Refused);
            }
            _ => self.leave_nothing(now, id, Outcome::Refused),
        }
    }
}
