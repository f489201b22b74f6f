//! The way from a call for a lock to a grant.
//!
//! A call asks, and while it is queued waits for the server's message. If the
//! connection is lost while it waits, it asks again by the next one. Whatever
//! ends it, no place stays behind: the call itself withdraws it when the wait
//! is over, and becomes clean-up when its caller is gone. An upgrade is a call
//! like the others, for a lock that its owner holds in shared mode.

use std::time::Duration;

use crate::engine::claims::Claims;
use crate::engine::hold::{Grant, Possession};
use crate::engine::instant::Instant;
use crate::engine::leaving::CleanUp;
use crate::engine::request::{By, Reply, Request, Sent};
use crate::engine::terms::{Ask, Queueing, Terms, validity_end};
use crate::engine::work::{Input, Next, Progress, Stage, Task, Work};
use crate::engine::{Engine, Id, Link, Outcome};
use crate::error::{Error, Fault};

/// How much later than its wait a request may be told that it ended.
const NOTICE_GRACE: Duration = Duration::from_secs(1);
/// When to ask again if a request of an earlier connection, which might still
/// be open on the server, could have taken the place over to that connection:
/// doubled each time up to 32 s, as nobody knows how late a request can be.
const DOUBT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Call {
    ask: Ask,
    terms: Terms,
    queueing: Queueing,
    /// What is to be entered again, or upgraded.
    live: Option<Id>,
    is_upgrade: bool,
    phase: Phase,
    /// The grant that replicas are asked about, and since when.
    unconfirmed: Option<(u64, Instant)>,
    /// How long replicas may take.
    replication: Duration,
    /// The lease of the last request.
    pub(super) lease: Duration,
    /// The connection that the last request for the lock was made by, before
    /// the one that is under way.
    earlier: Option<u64>,
    /// Whether a request was made that may have got a place in the queue.
    has_waited: bool,
    /// How often it has asked again in case that a request of an earlier
    /// connection has taken its place over to that connection.
    doubts: u32,
    /// Whether it is to do so if it hears nothing.
    is_in_doubt: bool,
    /// What the server has said before its reply was here.
    pub(super) said: Option<Told>,
}

/// What the request is for that is under way, or was last.
#[derive(Clone, Debug)]
enum Phase {
    /// Releasing what this owner held here and has lost by its own clock. The
    /// server may have it still, on terms of then, and would give it again.
    Releasing,
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

impl Engine {
    /// Begins a call for a lock.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        id: Id,
        claims: Claims,
        ask: Ask,
        terms: Terms,
        queueing: Queueing,
    ) {
        if self.is_leaving || self.is_closed {
            return self.resolve(id, Outcome::Failed(Error::Closed));
        }
        if queueing == Queueing::Try && !self.is_turn_near(&claims) {
            return self.resolve(id, Outcome::Refused);
        }
        let deadline = match queueing {
            Queueing::Try => Some(now + self.patience),
            Queueing::AtMost(wait) => Some(now + wait),
            Queueing::Unlimited => None,
        };
        let call = Call {
            ask,
            terms,
            queueing,
            live: None,
            is_upgrade: false,
            phase: Phase::Asking,
            unconfirmed: None,
            replication: self.replication,
            lease: terms.lease,
            earlier: None,
            has_waited: false,
            doubts: 0,
            is_in_doubt: false,
            said: None,
        };
        self.start(now, Work::new(now, id, claims, Task::Call(call), deadline));
    }
}

impl Call {
    pub(super) fn on(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        input: Input,
    ) -> Next {
        match input {
            Input::Turn => self.begin(engine, work, now),
            Input::Link(link) => self.request(engine, work, now, link),
            Input::Reply(sent, result) => self.reply(engine, work, now, sent, result),
            Input::Told(told) => self.wait_is_over(engine, work, now, told),
            Input::Due => self.due(engine, work, now),
            Input::Abandoned => self.withdraw(engine, work, now),
        }
    }

    /// When the reply to a request has to be here.
    pub(super) fn last_word(&self, deadline: Option<Instant>) -> Option<Instant> {
        let grace = match (self.queueing, &self.phase) {
            (_, Phase::Confirming) if self.terms.replicas > 0 => NOTICE_GRACE + self.replication,
            (Queueing::Try, phase) if !matches!(phase, Phase::Leaving) => Duration::ZERO,
            _ => NOTICE_GRACE,
        };
        deadline.map(|deadline| deadline + grace)
    }

    /// Looks at what the owner holds.
    fn begin(&mut self, engine: &mut Engine, work: &mut Progress, now: Instant) -> Next {
        let count = work.claims.count();
        let (live, hold) = match engine.held(now, &work.claims) {
            Possession::Nothing => return Next::Ask,
            // Nobody needs it as it is held any more: its release comes first.
            Possession::These(_, hold) | Possession::Otherwise(hold)
                if hold.guards == 0
                    && (hold.ask != self.ask || hold.proof.claims.count() != count) =>
            {
                return Next::GoBehind;
            }
            Possession::These(live, hold) => (live, hold),
            Possession::Otherwise(hold) => {
                let owner = work.claims.owner().clone();
                let keys = hold.proof.claims.label();
                return Next::End(Outcome::Failed(Error::HeldOtherwise { owner, keys }));
            }
        };
        // To enter a lock again is to get the terms of the hold that is there: a
        // shorter lease would end under the guards that hold it.
        (self.live, self.terms) = (Some(live), hold.terms);
        self.is_upgrade = self.ask.is_exclusive() && !hold.ask.is_exclusive();
        engine.set_upgrading(live, self.is_upgrade);
        Next::Ask
    }

    fn request(&mut self, engine: &Engine, work: &mut Progress, now: Instant, link: u64) -> Next {
        let live = self.live.and_then(|live| engine.holds.get(&live));
        if let Some(hold) = live
            && self.is_upgrade
            && !matches!(self.phase, Phase::Attaching)
            && hold.notices_by != link
            && let Some(request) = hold.attach_request(now)
        {
            self.phase = Phase::Attaching;
            return Next::Send(request);
        }
        if let Some((claims, fence)) = engine.lost_part(now, &work.claims)
            && self.live.is_none()
        {
            self.phase = Phase::Releasing;
            return Next::Send(Request::Release { claims, fence });
        }
        self.set_lease(engine, now);
        (self.phase, self.said) = (Phase::Asking, None);
        self.earlier = work.asked_by.replace(link);
        let left = work.deadline.map(|deadline| deadline - now);
        let queueing = match (self.queueing, left) {
            // Too late to queue, but an earlier request may have been granted.
            (Queueing::AtMost(_), Some(Duration::ZERO)) => Queueing::Try,
            (Queueing::AtMost(_), Some(left)) => Queueing::AtMost(left),
            (queueing, _) => queueing,
        };
        self.has_waited |= queueing != Queueing::Try;
        Next::Send(Request::Acquire {
            claims: work.claims.clone(),
            ask: self.ask,
            lease: self.lease,
            bound: self.terms.bound,
            queueing,
            notify: true,
        })
    }

    /// The lease of the next request: that of its terms, or what is left of them.
    fn set_lease(&mut self, engine: &Engine, now: Instant) {
        let live = self.live.and_then(|live| engine.holds.get(&live));
        let taken = live.map_or(now, |hold| hold.taken);
        let lease = self.terms.lease_at(taken, now);
        self.lease = lease.unwrap_or(self.terms.lease);
    }

    fn reply(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) -> Next {
        match (self.phase.clone(), result) {
            // If it is refused, asking for the lock is, too.
            (Phase::Releasing, Ok(_) | Err(Fault::Refused(_))) => {
                if let Some((lost, _)) = engine.lost_part(now, &work.claims) {
                    engine.disown(&lost);
                }
                Next::Ask
            }
            (Phase::Attaching, result) => self.attached(engine, work, now, sent, result),
            (Phase::Asking, result) => self.asked(engine, work, now, sent, result),
            (Phase::AskingQuietly { .. }, Ok(Reply::Fence(fence))) => {
                // No connection has to tell of its loss.
                let sent = Sent { link: 0, ..sent };
                self.granted(engine, work, now, fence, sent)
            }
            (Phase::AskingQuietly { full }, Ok(_)) => self.refused(engine, work, now, *full),
            (Phase::Confirming, Ok(Reply::Fence(fence))) => {
                // The connection that it was asked for by tells of its loss.
                let link = work.asked_by.unwrap_or(0);
                self.granted(engine, work, now, fence, Sent { link, ..sent })
            }
            (Phase::Confirming, Ok(Reply::TooFew(acknowledged))) => {
                let wanted = self.terms.replicas;
                let error = Error::NotReplicated {
                    wanted,
                    acknowledged,
                };
                self.give_up(engine, work, now, Outcome::Failed(error))
            }
            (Phase::Confirming, Err(fault)) => self.not_confirmed(engine, work, now, sent, fault),
            // A server that can no longer grant, as it became a replica or gave
            // the slot away, refuses to cancel too: then this call goes on as
            // after any refusal. One that can grant has no place of this owner
            // any more: somebody cancelled it.
            (Phase::Withdrawn, Ok(Reply::Count(0))) => {
                self.give_up(engine, work, now, Outcome::Failed(Error::Cancelled))
            }
            // The grant was lost meanwhile, and nobody ever worked under it; or the
            // server's word was about a request of an earlier connection.
            (Phase::Confirming | Phase::Withdrawn, Ok(_)) => Next::Ask,
            (Phase::Leaving, Ok(Reply::Count(1))) => self.leave_nothing(engine, Outcome::Refused),
            // It may have been granted.
            (Phase::Leaving, _) => self.give_up(engine, work, now, Outcome::Refused),
            (Phase::Releasing | Phase::AskingQuietly { .. } | Phase::Withdrawn, Err(fault)) => {
                self.failed(engine, work, now, sent, fault)
            }
        }
    }

    fn attached(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) -> Next {
        let live = self.live.and_then(|live| engine.holds.get(&live));
        let asked = live.and_then(|hold| {
            let asked = (hold.next_lease(sent.sent)?, hold.proof.fence());
            Some((hold.proof.hold, asked))
        });
        let attached = asked.map(|(live, asked)| engine.attached(now, live, sent, asked, result));
        match attached {
            Some(Err(fault)) => self.failed(engine, work, now, sent, fault),
            Some(Ok(())) | None => Next::Ask,
        }
    }

    fn asked(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) -> Next {
        match result {
            Ok(Reply::Fence(fence)) => self.granted(engine, work, now, fence, sent),
            Ok(Reply::Queued) => self.queued(engine, work, now, sent),
            Ok(_) => self.not_granted(engine, work, now),
            Err(Fault::Refused(full @ Error::QueueFull(_))) if self.terms.bound.is_none() => {
                let full = Box::new(full);
                self.phase = Phase::AskingQuietly { full };
                Next::Send(Request::Acquire {
                    claims: work.claims.clone(),
                    ask: self.ask,
                    lease: self.lease,
                    bound: None,
                    queueing: Queueing::Try,
                    notify: false,
                })
            }
            Err(Fault::Refused(error)) => self.refused(engine, work, now, error),
            Err(fault) => self.failed(engine, work, now, sent, fault),
        }
    }

    /// The first request of a call that is refused has left nothing.
    fn refused(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        error: Error,
    ) -> Next {
        let outcome = Outcome::Failed(error);
        match self.earlier {
            None => self.leave_nothing(engine, outcome),
            Some(_) => self.give_up(engine, work, now, outcome),
        }
    }

    fn failed(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        sent: Sent,
        fault: Fault,
    ) -> Next {
        match work.try_again(engine, now, sent, fault) {
            Ok(next) => next,
            Err(error) => self.give_up(engine, work, now, Outcome::Failed(error)),
        }
    }

    /// The lock is held for this call, which cannot work under it: for no longer
    /// than replicas may take, as others may want it.
    fn not_confirmed(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        sent: Sent,
        fault: Fault,
    ) -> Next {
        let next = self.failed(engine, work, now, sent, fault);
        let since = self.unconfirmed.filter(|_| self.terms.replicas > 0);
        let is_over = since.is_some_and(|(_, since)| now - since >= self.replication);
        match next {
            Next::Ask | Next::Wait(_) if is_over => {
                let error = work.unavailable(now);
                self.give_up(engine, work, now, Outcome::Failed(error))
            }
            next => next,
        }
    }

    fn queued(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        sent: Sent,
    ) -> Next {
        let is_sole = match engine.link(work.node) {
            Link::Up { number, is_sole } if number == sent.link => is_sole,
            _ => return Next::Ask,
        };
        let deadline = work.deadline.map(|deadline| deadline + NOTICE_GRACE);
        let from_elsewhere = self.earlier.is_some_and(|earlier| earlier != sent.link);
        self.is_in_doubt = !is_sole && (from_elsewhere || self.doubts > 0);
        let until = if self.is_in_doubt {
            let again = now + DOUBT * (1 << self.doubts.min(5));
            self.doubts += 1;
            Some(deadline.map_or(again, |last| last.min(again)))
        } else {
            deadline
        };
        engine.metrics.waits += 1;
        match self.said.take() {
            Some(told) => self.wait_is_over(engine, work, now, told),
            None => Next::Wait(Stage::Queued(until)),
        }
    }

    fn wait_is_over(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        told: Told,
    ) -> Next {
        match told {
            Told::Grant { fence, not_before } => {
                let is_plain = self.live.is_none()
                    && self.terms.max_hold.is_none()
                    && self.terms.replicas == 0;
                // Whether at least half of the lease is left for certain, and half
                // of the grace. A request was made at `not_before` and answered
                // before the message came, by the same connection, so the grant
                // was made after that.
                let left = |time| validity_end(not_before, time) - now >= time / 2;
                let is_fresh = left(self.lease) && self.terms.bound.is_none_or(left);
                match work.asked_by {
                    Some(link) if is_plain && is_fresh && !engine.is_lost(&work.claims, fence) => {
                        let sent = Sent {
                            by: By::Work(work.id),
                            node: work.node,
                            link,
                            goes_beside: false,
                            sent: not_before,
                        };
                        self.granted(engine, work, now, fence, sent)
                    }
                    // How old the message is cannot be known, as this process may
                    // have been stopped since.
                    _ => self.confirm(engine, work, now, fence),
                }
            }
            Told::WaitEnded => self.not_granted(engine, work, now),
            Told::Withdrawn => {
                self.phase = Phase::Withdrawn;
                let claims = work.claims.clone();
                Next::Send(Request::Cancel { claims })
            }
        }
    }

    /// Makes sure that a grant stands, and that replicas know it where they are
    /// to.
    fn confirm(&mut self, engine: &Engine, work: &mut Progress, now: Instant, fence: u64) -> Next {
        self.set_lease(engine, now);
        self.phase = Phase::Confirming;
        let before = self.unconfirmed.filter(|(known, _)| *known == fence);
        self.unconfirmed = before.or(Some((fence, now)));
        Next::Send(Request::Renew {
            claims: work.claims.clone(),
            lease: self.lease,
            known: fence,
            raise: None,
            bound: self.terms.bound,
            notify: false,
            replicas: self.terms.replicas,
        })
    }

    fn granted(
        &mut self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        fence: u64,
        sent: Sent,
    ) -> Next {
        if self.terms.replicas > 0 && !matches!(self.phase, Phase::Confirming) {
            return self.confirm(engine, work, now, fence);
        }
        let grant = Grant {
            fence,
            sent: sent.sent,
            lease: self.lease,
            link: sent.link,
        };
        let proof = engine.take(now, work.claims.clone(), self.ask, self.terms, grant);
        if let (true, Some(hold)) = (self.is_upgrade, engine.holds.get_mut(&proof.hold)) {
            hold.upgraded_by = Some(work.id);
        }
        engine.metrics.grants += 1;
        self.leave_nothing(engine, Outcome::Granted(proof))
    }

    /// The server's last word was no. All that it may still have of this call
    /// is the place of a wait, which is kept for some time after its end; an
    /// upgrade keeps none.
    fn not_granted(&mut self, engine: &mut Engine, work: &mut Progress, now: Instant) -> Next {
        let has_place = self.has_waited && !self.is_upgrade;
        match engine.link(work.node) {
            Link::Up { .. } if has_place => {
                self.phase = Phase::Leaving;
                let claims = work.claims.clone();
                Next::Send(Request::Cancel { claims })
            }
            Link::Idle | Link::Down if has_place => {
                self.give_up(engine, work, now, Outcome::Refused)
            }
            Link::Up { is_sole: false, .. } if work.unanswered.is_some() => {
                self.give_up(engine, work, now, Outcome::Refused)
            }
            _ => self.leave_nothing(engine, Outcome::Refused),
        }
    }

    fn due(&mut self, engine: &mut Engine, work: &mut Progress, now: Instant) -> Next {
        let is_in_doubt = std::mem::replace(&mut self.is_in_doubt, false);
        let outcome = match work.stage {
            Stage::Queued(_) if is_in_doubt => return Next::Ask,
            // Others of this owner were before it for so long.
            Stage::Turn => Outcome::Refused,
            _ if matches!(self.phase, Phase::Leaving) => Outcome::Refused,
            // The server said nothing, not even that the wait is over.
            _ => Outcome::Failed(work.unavailable(now)),
        };
        self.give_up(engine, work, now, outcome)
    }

    /// Ends it, as the server knows nothing of it but its grant.
    fn leave_nothing(&self, engine: &mut Engine, outcome: Outcome) -> Next {
        if let Some(live) = self.live {
            engine.set_upgrading(live, false);
        }
        Next::End(outcome)
    }

    /// Ends it, and withdraws what the server may still know of it.
    fn give_up(
        &self,
        engine: &mut Engine,
        work: &mut Progress,
        now: Instant,
        outcome: Outcome,
    ) -> Next {
        work.resolve(engine, outcome);
        self.withdraw(engine, work, now)
    }

    /// Withdraws what the server may know of it, as nobody waits for it.
    fn withdraw(&self, engine: &mut Engine, work: &mut Progress, now: Instant) -> Next {
        if work.asked_by.is_none() && work.unanswered.is_none() {
            return self.leave_nothing(engine, Outcome::Refused);
        }
        // After its lease no grant is left anyway.
        work.deadline = Some(now + self.lease.max(engine.patience));
        Next::CleanUp(CleanUp::of(self.live.filter(|_| self.is_upgrade)))
    }
}
