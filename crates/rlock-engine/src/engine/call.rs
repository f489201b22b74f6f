//! The way from a call for a lock to a grant.
//!
//! A call asks, and while it is queued waits for the server's message. If the
//! connection is lost while it waits, it asks again by the next one. Whatever
//! ends it, no place stays behind: the call itself withdraws it when the wait
//! is over, and becomes clean-up when its caller is gone. An upgrade is a call
//! like the others, for a lock that its owner holds in shared mode.

use std::time::Duration;

use crate::engine::ask::{Ask, Queueing};
use crate::engine::claims::Claims;
use crate::engine::hold::Held;
use crate::engine::instant::Instant;
use crate::engine::request::Request;
use crate::engine::terms::Terms;
use crate::engine::work::{Stage, Task, Work};
use crate::engine::{Action, Engine, Id, Outcome};
use crate::error::Error;

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
