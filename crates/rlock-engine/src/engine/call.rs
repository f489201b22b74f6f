//! From a call for a lock to a grant.
//!
//! A call sends a request and, while it is queued, waits for the server's
//! message. If the connection is lost meanwhile, the call asks again on the
//! next connection. The call always withdraws its place: itself when the wait
//! is over, and as clean-up when its caller is gone. An upgrade is a normal
//! call for a lock that its owner holds in shared mode.

use std::time::Duration;

use crate::engine::claims::{Claims, check_key};
use crate::engine::hold::{Grant, HeldKeys, Hold};
use crate::engine::instant::Instant;
use crate::engine::leaving::CleanUp;
use crate::engine::request::{Reply, Request, Requester, Sent};
use crate::engine::terms::{Ask, Queueing, Terms, Value};
use crate::engine::work::{Context, Input, Next, Stage, Task, Work};
use crate::engine::{ConnectionState, Engine, Id, Outcome};
use crate::error::{Error, Fault};

/// The longest delay of the message that a wait has ended.
const NOTICE_GRACE: Duration = Duration::from_secs(1);
/// The pause before the next request if a stale request may have taken the
/// place over. A stale request was sent on an earlier connection that may still
/// be open on the server. The pause doubles up to 32 s, because such a request
/// can be very late.
const STALE_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Call {
    ask: Ask,
    /// The value to publish with the hold.
    value: Option<Value>,
    /// Those of its caller, or of the hold that it enters.
    terms: Terms,
    /// Those of its caller. What was kept bound stays bound.
    asked: Terms,
    queueing: Queueing,
    entered: Entered,
    phase: Phase,
    /// The grant that replicas must confirm, and when the client began to ask
    /// them.
    unconfirmed: Option<(u64, Instant)>,
    /// How long replicas may take.
    replication: Duration,
    /// The lease of the last request.
    pub(super) lease: Duration,
    /// The connection of the last request for the lock before the current one.
    earlier: Option<u64>,
    /// Whether an earlier request may have got a place in the queue.
    has_waited: bool,
    /// The number of repetitions because a stale request may have its place.
    stale_retries: u32,
    /// Whether it sends the request again if no message comes.
    may_be_stale: bool,
    /// A notice that came before the reply.
    pub(super) early_notice: Option<WaitEnd>,
}

/// What its owner has of these keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    /// Nothing: a grant begins a hold.
    Nothing,
    /// A hold that it enters again.
    Hold(Id),
    /// A shared hold, under this fence, that it makes exclusive.
    Shared(Id, u64),
    /// A hold that was lost after the request in progress, which named its lease.
    Lost,
}

/// The purpose of the current or the last request.
#[derive(Clone, Debug)]
enum Phase {
    /// Releases keys that this owner held and has lost by its own clock. The
    /// server may still have the hold on its old terms, and would grant it again.
    Releasing,
    /// Releases a grant that its owner had given up: a server that did not know
    /// that has answered with it.
    GivingBack {
        fence: u64,
    },
    /// Makes sure that the hold that it upgrades is shared at the server.
    Downgrading,
    /// Asks for loss reports on the hold that it upgrades, by this connection: a
    /// report must come before the grant that an upgrade may still get after a loss.
    Attaching(u64),
    Acquiring,
    /// Asks for a lock only if it is free, without loss reports, because the
    /// server's table of watches is full. A loss is then detected by the clock or
    /// at the next renewal.
    AcquiringUnwatched {
        full: Box<Error>,
    },
    /// Checks that a grant is still valid. A loss of it is reported by this connection; 0
    /// if by none.
    Confirming(u64),
    /// Finds out why the server withdrew the request.
    Withdrawn,
    /// Ends the place that the server keeps for some time after a wait.
    Leaving,
}

/// What ends the wait of a queued request.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitEnd {
    Grant { fence: u64, not_before: Instant },
    TimedOut,
    Withdrawn,
}

impl Engine {
    /// Begins a call for a lock.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        id: Id,
        claims: Claims,
        (ask, value): (Ask, Option<Value>),
        terms: Terms,
        queueing: Queueing,
    ) {
        if self.is_leaving || self.is_closed {
            return self.resolve(id, Outcome::Failed(Error::Closed));
        }
        if let Err(error) = check_key(claims.key()) {
            return self.resolve(id, Outcome::Failed(error));
        }
        if queueing == Queueing::Try && !self.is_turn_near(&claims) {
            return self.resolve(id, Outcome::Refused);
        }
        let deadline = match queueing {
            Queueing::Try => Some(now + self.retry_timeout),
            Queueing::AtMost(wait) => Some(now + wait),
            Queueing::Unlimited => None,
        };
        let call = Call {
            ask,
            value,
            terms,
            asked: terms,
            queueing,
            entered: Entered::Nothing,
            phase: Phase::Acquiring,
            unconfirmed: None,
            replication: self.replication,
            lease: terms.lease,
            earlier: None,
            has_waited: false,
            stale_retries: 0,
            may_be_stale: false,
            early_notice: None,
        };
        self.start(now, Work::new(now, id, claims, Task::Call(call), deadline));
    }
}

impl Call {
    pub(super) fn on(&mut self, at: &mut Context<'_>, input: Input) -> Next {
        self.forget_lost(at);
        match input {
            Input::Turn => self.begin(at),
            Input::Connected(connection) => self.request(at, connection),
            Input::Reply(sent, result) => self.reply(at, sent, result),
            Input::Notified(end) => self.wait_is_over(at, end),
            Input::Due => self.due(at),
            Input::Abandoned => self.withdraw(at),
        }
    }

    /// When the reply to a request must have arrived.
    pub(super) fn reply_deadline(&self, deadline: Option<Instant>) -> Option<Instant> {
        let grace = match (self.queueing, &self.phase) {
            (_, Phase::Confirming(_)) if self.terms.replicas > 0 => NOTICE_GRACE + self.replication,
            (Queueing::Try, _) => Duration::ZERO,
            _ => NOTICE_GRACE,
        };
        deadline.map(|deadline| deadline + grace)
    }

    /// Checks what the owner already holds.
    fn begin(&mut self, at: &mut Context<'_>) -> Next {
        let count = at.work.claims.count();
        let (live, hold) = match at.engine.held(at.now, &at.work.claims) {
            HeldKeys::Nothing => return Next::Ask,
            // No guard is left for the existing hold: its release comes first.
            HeldKeys::Same(_, hold) | HeldKeys::Otherwise(hold)
                if hold.guards == 0
                    && (hold.ask != self.ask || hold.proof.claims.count() != count) =>
            {
                return Next::YieldTurn;
            }
            HeldKeys::Same(live, hold) => (live, hold),
            HeldKeys::Otherwise(hold) => {
                let owner = at.work.claims.owner().clone();
                let keys = hold.proof.claims.label();
                return Next::End(Outcome::Failed(Error::HeldOtherwise { owner, keys }));
            }
        };
        // A re-entry gets the terms of the existing hold: a shorter lease would
        // end under the guards that hold it.
        self.terms = hold.terms;
        self.entered = Entered::Hold(live);
        if self.ask.is_exclusive() && !hold.ask.is_exclusive() {
            self.entered = Entered::Shared(live, hold.proof.fence());
            at.engine.set_upgrading(live, true);
        }
        Next::Ask
    }

    /// From the loss of the hold on that it wanted to enter or to upgrade, it is a call
    /// like any other. A bound hold may be alive although its connection was quiet.
    fn forget_lost(&mut self, at: &mut Context<'_>) {
        let is_running = |hold: &Hold| hold.proof.running(at.now).is_some();
        if let Some(live) = self.live()
            && !self.hold(at.engine).is_some_and(is_running)
        {
            at.engine.loss(at.now, live);
            at.engine.remember_end_of(at.now, live);
            self.entered = Entered::Lost;
            // What the server may have bound for this call is not what it asks for.
            if self.terms.bound == self.asked.bound || at.work.asked_by.is_none() {
                self.terms = self.asked;
            }
        }
    }

    fn request(&mut self, at: &mut Context<'_>, connection: u64) -> Next {
        let upgraded = self.upgraded();
        if let Some(hold) = upgraded.and_then(|live| at.engine.holds.get_mut(&live))
            && !matches!(self.phase, Phase::Attaching(by) if by == connection)
            && hold.notices_by != connection
            && let Some(lease) = hold.next_lease(at.now)
        {
            (self.phase, self.lease) = (Phase::Attaching(connection), lease);
            hold.is_asked_for(at.now, lease);
            return Next::Send(hold.attach_request(lease));
        }
        if self.live().is_none()
            && let Some((claims, fence)) = at.engine.lost_part(at.now, &at.work.claims)
        {
            self.phase = Phase::Releasing;
            return Next::Send(Request::Release { claims, fence });
        }
        self.begin_request(at.engine, at.now);
        if self.live().is_none() {
            let lease_end = at.now + self.lease;
            at.engine
                .losses_are_over(at.now, &at.work.claims, lease_end);
        }
        (self.phase, self.early_notice) = (Phase::Acquiring, None);
        self.earlier = at.work.asked_by.replace(connection);
        let left = at.work.deadline.map(|deadline| deadline - at.now);
        let queueing = match (self.queueing, left) {
            // Too late to queue, but an earlier request may have been granted.
            (Queueing::AtMost(_), Some(Duration::ZERO)) => Queueing::Try,
            (Queueing::AtMost(_), Some(left)) => Queueing::AtMost(left),
            (queueing, _) => queueing,
        };
        self.has_waited |= queueing != Queueing::Try;
        self.acquire(at, queueing, true)
    }

    /// The hold to enter again or to upgrade.
    fn live(&self) -> Option<Id> {
        match self.entered {
            Entered::Hold(live) | Entered::Shared(live, _) => Some(live),
            Entered::Nothing | Entered::Lost => None,
        }
    }

    /// The hold to upgrade.
    fn upgraded(&self) -> Option<Id> {
        match self.entered {
            Entered::Shared(live, _) => Some(live),
            _ => None,
        }
    }

    fn hold<'a>(&self, engine: &'a Engine) -> Option<&'a Hold> {
        engine.holds.get(&self.live()?).map(|hold| &**hold)
    }

    /// Asks for the lock. With `notify` the server sends messages about the
    /// outcome and a loss.
    fn acquire(&self, at: &Context<'_>, queueing: Queueing, notify: bool) -> Next {
        Next::Send(Request::Acquire {
            claims: at.work.claims.clone(),
            ask: self.ask,
            terms: self.terms.lasting(self.lease),
            queueing,
            notify,
            value: self.value.clone(),
        })
    }

    /// Sets the lease of the next request: the lease of its terms, or the rest of it. That
    /// names no lease of a hold that was lost before.
    fn begin_request(&mut self, engine: &Engine, now: Instant) {
        if self.entered == Entered::Lost {
            self.entered = Entered::Nothing;
        }
        let lease = match self.hold(engine) {
            Some(hold) => hold.full_lease(now),
            None => self.terms.lease_at(now, now),
        };
        self.lease = lease.unwrap_or(self.terms.lease);
    }

    fn reply(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        match (self.phase.clone(), result) {
            // If this is refused, the request for the lock is refused too.
            (Phase::Releasing, Ok(_) | Err(Fault::Refused(_))) => {
                if let Some((lost, _)) = at.engine.lost_part(at.now, &at.work.claims) {
                    at.engine.remember_lost(at.now, &lost, sent.connection);
                    at.engine.forget_lost_holds(&lost);
                }
                Next::Ask
            }
            (Phase::GivingBack { fence }, Ok(_)) => {
                let (claims, lease_end) = (at.work.claims.clone(), at.now + self.lease);
                at.engine
                    .remember_released(at.now, &claims, fence, lease_end);
                at.pause()
            }
            (Phase::Downgrading, Ok(reply)) => self.downgraded(at, &reply),
            (Phase::Attaching(_), result) => self.attached(at, sent, result),
            (Phase::Acquiring, result) => self.asked(at, sent, result),
            (Phase::AcquiringUnwatched { .. }, Ok(Reply::Fence(fence))) => {
                // No connection reports its loss, unless this one does for the hold that
                // it enters.
                let by = self.hold(at.engine).map(|hold| hold.notices_by);
                let connection = by.filter(|by| *by == sent.connection).unwrap_or(0);
                self.granted(at, fence, Sent { connection, ..sent })
            }
            (Phase::AcquiringUnwatched { full }, Ok(_)) => self.refused(at, *full),
            // The connection of the reports may have the report of a loss in between.
            (Phase::Confirming(_), Ok(Reply::Fence(fence)))
                if self.upgraded().is_some()
                    && self.unconfirmed.is_none_or(|(known, _)| known != fence) =>
            {
                at.ask_again()
            }
            (Phase::Confirming(connection), Ok(Reply::Fence(fence))) => {
                self.granted(at, fence, Sent { connection, ..sent })
            }
            (Phase::Confirming(_), Ok(Reply::TooFew(acknowledged))) => {
                let error = Error::NotReplicated {
                    wanted: self.terms.replicas,
                    acknowledged,
                };
                self.give_up(at, Outcome::Failed(error))
            }
            (Phase::Confirming(_), Err(fault)) => self.not_confirmed(at, sent, fault),
            // If the server can no longer grant, because it became a replica or
            // its slot moved, it also refuses to cancel, and this call
            // continues as after any refusal. If the server can grant, it no
            // longer has a place of this owner: somebody cancelled the wait.
            (Phase::Withdrawn, Ok(Reply::Count(0))) => {
                self.give_up(at, Outcome::Failed(Error::Cancelled))
            }
            // The grant was lost before its caller received it, or the server's
            // message was for a request of an earlier connection.
            (Phase::Confirming(_) | Phase::Withdrawn, Ok(_)) => at.ask_again(),
            (Phase::Leaving, Ok(Reply::Count(1))) => {
                self.leave_nothing(at.engine, Outcome::Refused)
            }
            // It may have been granted.
            (Phase::Leaving, _) => self.give_up(at, Outcome::Refused),
            (
                Phase::Releasing
                | Phase::GivingBack { .. }
                | Phase::Downgrading
                | Phase::AcquiringUnwatched { .. }
                | Phase::Withdrawn,
                Err(fault),
            ) => self.failed(at, sent, fault),
        }
    }

    fn downgraded(&self, at: &mut Context<'_>, reply: &Reply) -> Next {
        if let (Reply::Nil, Some(live)) = (reply, self.upgraded()) {
            at.engine.lose_with_rest(at.now, live);
        }
        at.pause()
    }

    fn attached(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        let live = self.hold(at.engine);
        let asked = live.map(|hold| (hold.proof.hold, (self.lease, hold.proof.fence())));
        // Without reports, the grant of an upgrade may hide that its hold was lost before.
        if let (
            Some(_),
            Err(Fault::Refused(full @ (Error::QueueFull(_) | Error::OutOfMemory(_)))),
        ) = (asked, &result)
        {
            return self.give_up(at, Outcome::Failed(full.clone()));
        }
        let attached =
            asked.map(|(live, asked)| at.engine.attached(at.now, live, sent, asked, result));
        match attached {
            Some(Err(fault)) => {
                // It asks again, at the next connection too.
                self.phase = Phase::Acquiring;
                self.failed(at, sent, fault)
            }
            Some(Ok(())) | None => Next::Ask,
        }
    }

    fn asked(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        match result {
            Ok(Reply::Fence(fence)) => self.granted(at, fence, sent),
            Ok(reply) => {
                if self.live().is_none() {
                    // An owner that shares the lock with others is refused exclusive mode.
                    let (claims, may_share) = (&at.work.claims, self.ask.is_exclusive());
                    at.engine
                        .only_new_grants_by(claims, sent.connection, may_share);
                }
                match reply {
                    Reply::Queued => self.queued(at, sent),
                    _ => self.not_granted(at),
                }
            }
            // The server can only bind a hold, or publish its value, if it
            // keeps the watch.
            Err(Fault::Refused(full @ Error::QueueFull(_)))
                if self.terms.bound.is_none() && self.value.is_none() =>
            {
                let full = Box::new(full);
                self.phase = Phase::AcquiringUnwatched { full };
                self.acquire(at, Queueing::Try, false)
            }
            Err(Fault::Refused(error)) => self.refused(at, error),
            Err(fault) => self.failed(at, sent, fault),
        }
    }

    /// If the first request of a call is refused, it has left nothing behind.
    fn refused(&mut self, at: &mut Context<'_>, error: Error) -> Next {
        let outcome = Outcome::Failed(error);
        match self.earlier {
            None => self.leave_nothing(at.engine, outcome),
            Some(_) => self.give_up(at, outcome),
        }
    }

    fn failed(&mut self, at: &mut Context<'_>, sent: Sent, fault: Fault) -> Next {
        match at.try_again(sent, fault) {
            Ok(next) => next,
            Err(error) => self.give_up(at, Outcome::Failed(error)),
        }
    }

    /// The server holds the lock for this call, but replicas have not confirmed
    /// it. The call waits no longer than `replication`, as others may want the
    /// lock.
    fn not_confirmed(&mut self, at: &mut Context<'_>, sent: Sent, fault: Fault) -> Next {
        let next = self.failed(at, sent, fault);
        let since = self.unconfirmed.filter(|_| self.terms.replicas > 0);
        let is_over = since.is_some_and(|(_, since)| at.now - since >= self.replication);
        match next {
            Next::Ask | Next::Wait(_) if is_over => {
                let error = at.work.unavailable(at.now);
                self.give_up(at, Outcome::Failed(error))
            }
            next => next,
        }
    }

    fn queued(&mut self, at: &mut Context<'_>, sent: Sent) -> Next {
        let is_predecessor_gone = match at.engine.connection(at.work.node) {
            ConnectionState::Up {
                number,
                is_predecessor_gone,
            } if number == sent.connection => is_predecessor_gone,
            _ => return Next::Ask,
        };
        let deadline = at.work.deadline.map(|deadline| deadline + NOTICE_GRACE);
        let from_elsewhere = self
            .earlier
            .is_some_and(|earlier| earlier != sent.connection);
        self.may_be_stale = !is_predecessor_gone && (from_elsewhere || self.stale_retries > 0);
        let until = if self.may_be_stale {
            let again = at.now + STALE_RETRY * (1 << self.stale_retries.min(5));
            self.stale_retries += 1;
            Some(deadline.map_or(again, |last| last.min(again)))
        } else {
            deadline
        };
        at.engine.metrics.waits += 1;
        match self.early_notice.take() {
            Some(end) => self.wait_is_over(at, end),
            None => Next::Wait(Stage::Queued(until)),
        }
    }

    fn wait_is_over(&mut self, at: &mut Context<'_>, end: WaitEnd) -> Next {
        match end {
            WaitEnd::Grant { fence, not_before } => {
                let by = at.work.asked_by.unwrap_or(0);
                self.upgrade_is_announced(at, fence, by);
                at.engine.only_new_grants_by(&at.work.claims, by, false);
                let is_plain = self.entered == Entered::Nothing
                    && self.terms.max_hold.is_none()
                    && self.terms.replicas == 0;
                // Whether at least half of the lease and half of the grace are
                // certainly left. A request was made at `not_before` and answered
                // before the message came, on the same connection, so the grant
                // is younger than that.
                let left = |time: Duration| {
                    let end = self.terms.validity_end(not_before, time);
                    end - at.now >= time.saturating_sub(self.terms.margin) / 2
                };
                let is_fresh = left(self.lease) && self.terms.bound.is_none_or(left);
                match at.work.asked_by {
                    Some(connection)
                        if is_plain && is_fresh && !at.engine.is_lost(&at.work.claims, fence) =>
                    {
                        let sent = Sent {
                            by: Requester::Work(at.work.id),
                            node: at.work.node,
                            connection,
                            is_separate: false,
                            sent: not_before,
                        };
                        self.granted(at, fence, sent)
                    }
                    // The age of the message is unknown, because this process may
                    // have been stopped since.
                    _ => self.confirm(at, fence, by),
                }
            }
            WaitEnd::TimedOut => self.not_granted(at),
            WaitEnd::Withdrawn => {
                self.phase = Phase::Withdrawn;
                let claims = at.work.claims.clone();
                Next::Send(Request::Cancel { claims })
            }
        }
    }

    /// The server has named the fence of an upgrade by the connection `by`, and it waits
    /// for its confirmation.
    fn upgrade_is_announced(&self, at: &mut Context<'_>, fence: u64, by: u64) {
        let live = self.live().and_then(|live| at.engine.holds.get_mut(&live));
        if let Some(hold) = live
            && by != 0
            && hold.notices_by == by
        {
            hold.announced = Some(fence);
        }
    }

    /// Checks that a grant is still valid, on the terms of the call, and that replicas
    /// know it if they must.
    fn confirm(&mut self, at: &mut Context<'_>, fence: u64, reported_by: u64) -> Next {
        self.begin_request(at.engine, at.now);
        self.phase = Phase::Confirming(reported_by);
        let before = self.unconfirmed.filter(|(known, _)| *known == fence);
        self.unconfirmed = before.or(Some((fence, at.now)));
        Next::Send(Request::Renew {
            claims: at.work.claims.clone(),
            terms: self.terms.lasting(self.lease),
            known: fence,
            raise: None,
            notify: false,
            value: None,
        })
    }

    fn granted(&mut self, at: &mut Context<'_>, fence: u64, sent: Sent) -> Next {
        // The server has lost the hold that the call enters, and only now shows it.
        if let Some(hold) = self.hold(at.engine)
            && !hold.is_entered_by(self.ask, fence, sent.connection)
        {
            let live = hold.proof.hold;
            at.engine.lose(at.now, live);
            self.forget_lost(at);
        }
        let is_new = self.live().is_none();
        let claims = at.work.claims.clone();
        // The server has bound it, or not, as the hold was that is lost.
        let is_bound_otherwise = is_new && self.terms.bound != self.asked.bound;
        if is_bound_otherwise {
            self.terms = self.asked;
        }
        if is_bound_otherwise || is_new && self.was_given_up(at, fence) {
            // If it cannot be released now, the next answer is the same grant.
            let lease_end = at.now + self.lease;
            at.engine.remember_ended(at.now, &claims, fence, lease_end);
            self.phase = Phase::GivingBack { fence };
            let fence = Some(fence);
            return Next::Send(Request::Release { claims, fence });
        }
        // The server does not know of the downgrade before. Another one may have known it,
        // and may have let others in under larger fences.
        if matches!(self.entered, Entered::Shared(_, shared) if shared == fence) {
            self.phase = Phase::Downgrading;
            return Next::Send(Request::Downgrade { claims });
        }
        // It is still bound with the grace for which it was kept. One as long as the lease
        // ends nothing early, unless the lease is extended. Several keys were not kept.
        if is_new
            && self.asked.bound.is_none()
            && claims.is_single()
            && at.engine.is_kept_bound(at.now, &claims, fence)
        {
            self.asked.bound = Some(self.asked.lease);
            self.terms.bound = self.asked.bound;
            return at.ask_again();
        }
        let is_confirmed = matches!(self.phase, Phase::Confirming(_)) || self.terms.replicas == 0;
        if self.entered == Entered::Lost || !is_confirmed {
            self.upgrade_is_announced(at, fence, sent.connection);
            return self.confirm(at, fence, sent.connection);
        }
        let grant = Grant {
            fence,
            sent: sent.sent,
            lease: self.lease,
            connection: sent.connection,
        };
        let proof = at
            .engine
            .take(at.now, at.work.id, claims, self.ask, self.terms, grant);
        if let Some(hold) = at.engine.holds.get_mut(&proof.hold)
            && self.upgraded().is_some()
        {
            hold.upgraded_by = Some(at.work.id);
        }
        at.engine.metrics.grants += 1;
        self.leave_nothing(at.engine, Outcome::Granted(proof, self.ask))
    }

    /// Whether the owner may have given up this grant before.
    fn was_given_up(&self, at: &Context<'_>, fence: u64) -> bool {
        let asked_by = at.work.asked_by;
        at.engine
            .is_released(at.now, &at.work.claims, fence, asked_by)
    }

    /// The server did not grant. It may still keep the place for some time
    /// after the wait, but not for an upgrade.
    fn not_granted(&mut self, at: &mut Context<'_>) -> Next {
        // No server refuses a wait without limit; a broken one must not be asked
        // without a pause.
        if self.queueing == Queueing::Unlimited {
            return at.pause();
        }
        let has_place = self.has_waited && self.upgraded().is_none();
        match at.engine.connection(at.work.node) {
            ConnectionState::Up { .. } if has_place => {
                self.phase = Phase::Leaving;
                let claims = at.work.claims.clone();
                Next::Send(Request::Cancel { claims })
            }
            ConnectionState::Idle | ConnectionState::Down if has_place => {
                self.give_up(at, Outcome::Refused)
            }
            ConnectionState::Up {
                is_predecessor_gone: false,
                ..
            } if at.work.unanswered.is_some() => self.give_up(at, Outcome::Refused),
            _ => self.leave_nothing(at.engine, Outcome::Refused),
        }
    }

    fn due(&mut self, at: &mut Context<'_>) -> Next {
        let may_be_stale = std::mem::replace(&mut self.may_be_stale, false);
        let outcome = match at.work.stage {
            Stage::Queued(_) if may_be_stale => return Next::Ask,
            // Earlier calls of the same owner used up the time.
            Stage::Turn => Outcome::Refused,
            _ if matches!(self.phase, Phase::Leaving) => Outcome::Refused,
            // The server sent nothing, not even that the wait is over.
            _ => Outcome::Failed(at.work.unavailable(at.now)),
        };
        self.give_up(at, outcome)
    }

    /// Ends the call; the server knows nothing of it except its grant.
    fn leave_nothing(&self, engine: &mut Engine, outcome: Outcome) -> Next {
        if let Some(live) = self.upgraded() {
            engine.set_upgrading(live, false);
        }
        Next::End(outcome)
    }

    /// Ends the call and withdraws what the server may still know of it.
    fn give_up(&self, at: &mut Context<'_>, outcome: Outcome) -> Next {
        at.work.resolve(at.engine, outcome);
        self.withdraw(at)
    }

    /// Withdraws what the server may know of the call, because nobody waits for
    /// it.
    fn withdraw(&self, at: &mut Context<'_>) -> Next {
        if at.work.asked_by.is_none() && at.work.unanswered.is_none() {
            return self.leave_nothing(at.engine, Outcome::Refused);
        }
        // The server may have carried the request out.
        if let Some(hold) = self.live().and_then(|live| at.engine.holds.get_mut(&live)) {
            hold.is_asked_for(at.now, self.lease);
        }
        // No grant outlives its lease.
        at.work.deadline = Some(at.now + self.lease.max(at.engine.retry_timeout));
        Next::CleanUp(CleanUp::of(self.upgraded(), self.ask))
    }
}
