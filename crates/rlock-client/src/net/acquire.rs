//! The way from a call for a lock to a guard.
//!
//! One loop for every verb and kind: ask, and while queued wait for the
//! message; on a new connection ask again. Asking again is harmless: it finds
//! the grant that is there already, or goes on in the place that the server
//! has kept. Whatever ends the loop, no place stays behind: the loop withdraws
//! it when the wait is over, the background when the loop is dropped. An
//! upgrade is a call like the others, for a lock that its owner holds in
//! shared mode.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::ask::Ask;
use crate::engine::claim::Outcome;
use crate::engine::claims::{Claims, Turn};
use crate::engine::clock::Instant;
use crate::engine::hold::{Grant, Hold};
use crate::engine::terms::{Backoff, Deadline, Terms, validity_end};
use crate::error::{Error, Fault, Loss};
use crate::net::attach::attach;
use crate::net::driver::Order;
use crate::net::link::Link;
use crate::net::release::Withdrawal;
use crate::net::state::State;
use crate::net::turn::take_turn;
use crate::wire::protocol::{self, Acquired, Queueing};

/// How much later than its wait a request may be told that it ended.
const NOTICE_GRACE: Duration = Duration::from_secs(1);
/// When to ask again if a request of an earlier connection, which might still
/// be open on the server, could have taken the place over to that connection.
const DOUBT: Duration = Duration::from_secs(1);

/// One call for a lock.
pub(crate) struct Call {
    state: Arc<State>,
    claims: Claims,
    ask: Ask,
    terms: Terms,
    /// What is to be entered again, or upgraded.
    live: Option<Arc<Hold>>,
    queueing: Queueing,
    deadline: Deadline,
    backoff: Backoff,
    /// Present until the outcome is known; then another call may follow.
    turn: Option<Turn>,
    /// The connection that the last request was made by. While it is there,
    /// the server may know of this call.
    asked_by: Option<u64>,
    /// Whether a request was sent that may have got a place in the queue.
    has_waited: bool,
    doubted: bool,
}

/// What one round of asking came to.
enum Round {
    Granted(Grant),
    Refused,
    AskAgain,
}

/// Asks for `claims` and waits as `queueing` says; `None` if not granted.
///
/// What is granted has one guard more, which the caller makes without delay.
pub(crate) async fn acquire(
    state: &Arc<State>,
    claims: Claims,
    ask: Ask,
    terms: Terms,
    queueing: Queueing,
) -> Result<Option<Arc<Hold>>, Error> {
    let deadline = match queueing {
        Queueing::Try => Deadline::after(state.limits.patience),
        Queueing::AtMost(wait) => Deadline::after(wait),
        Queueing::Unlimited => Deadline::unlimited(),
    };
    let Some((turn, live)) = take_turn(state, &claims, ask, queueing, deadline).await? else {
        return Ok(None);
    };
    // To enter a lock again is to get the terms of the hold that is there:
    // a shorter lease would end under the guards that hold it already.
    let terms = live.as_ref().map_or(terms, |hold| hold.terms);
    let mut call = Call {
        state: Arc::clone(state),
        claims,
        ask,
        terms,
        live,
        queueing,
        deadline,
        backoff: Backoff::default(),
        turn: Some(turn),
        asked_by: None,
        has_waited: false,
        doubted: false,
    };
    call.run().await
}

impl Call {
    async fn run(&mut self) -> Result<Option<Arc<Hold>>, Error> {
        if let Some(hold) = self.upgraded() {
            hold.set_upgrading(true);
        }
        loop {
            let link = self.state.link(self.deadline).await?;
            self.claims.first().await_by(link.number);
            match self.round(&link).await {
                Ok(Round::Granted(grant)) => return Ok(Some(self.granted(grant))),
                Ok(Round::Refused) => {
                    self.not_granted(&link).await;
                    return Ok(None);
                }
                Ok(Round::AskAgain) => {}
                Err(Fault::Refused(error)) => return Err(error),
                Err(Fault::Broken(error) | Fault::Passing(error)) => {
                    tracing::debug!(%error, "asking again");
                    self.backoff.pause(self.deadline).await;
                    if self.deadline.is_over() {
                        return Err(self.deadline.unavailable(Some(error)));
                    }
                }
            }
        }
    }

    /// The shared hold that this call is to make exclusive.
    fn upgraded(&self) -> Option<&Arc<Hold>> {
        let hold = self.live.as_ref()?;
        (self.ask.is_exclusive() && !hold.ask().is_exclusive()).then_some(hold)
    }

    async fn round(&mut self, link: &Link) -> Result<Round, Fault> {
        // A loss must be told before the grant that an upgrade may still get
        // after it. So a call that waits for one sees to that on each connection.
        if let Some(hold) = self.upgraded().filter(|hold| hold.loss().is_none())
            && hold.notices_by() != link.number
        {
            attach(&self.state, hold, link).await?;
        }
        let sent = Instant::now();
        let (lease, queueing) = (self.lease_at(sent), self.queueing_left());
        let (ask, channel) = (self.ask, Some(&*self.state.channel));
        let cmd = protocol::acquire(&self.claims, ask, &self.terms, lease, queueing, channel);
        let earlier = self.asked_by.replace(link.number);
        self.has_waited |= !matches!(queueing, Queueing::Try);
        let reply = match link.ask(&cmd).await {
            Err(Fault::Refused(full @ Error::QueueFull(_))) if self.terms.bound.is_none() => {
                return self.without_notices(link, earlier, full).await;
            }
            // The first request of a call that is refused has left nothing.
            Err(Fault::Refused(error)) if earlier.is_none() => {
                self.asked_by = None;
                return Err(Fault::Refused(error));
            }
            reply => reply?,
        };
        match protocol::acquired(&reply).map_err(Fault::Refused)? {
            Acquired::Granted(fence) => Ok(Round::Granted(Grant {
                fence,
                sent,
                lease,
                link: link.number,
            })),
            Acquired::Refused => Ok(Round::Refused),
            Acquired::Queued => self.wait(link, earlier, lease).await,
        }
    }

    /// Asks for what can be had at once, for which the server has to remember
    /// nothing: it can remember no more. A loss is then known by the clock, or
    /// at the next renewal.
    async fn without_notices(
        &mut self,
        link: &Link,
        earlier: Option<u64>,
        full: Error,
    ) -> Result<Round, Fault> {
        let sent = Instant::now();
        let (lease, queueing) = (self.lease_at(sent), Queueing::Try);
        let cmd = protocol::acquire(&self.claims, self.ask, &self.terms, lease, queueing, None);
        let reply = link.ask(&cmd).await?;
        match protocol::acquired(&reply).map_err(Fault::Refused)? {
            Acquired::Granted(fence) => Ok(Round::Granted(Grant {
                fence,
                sent,
                lease,
                // No connection has to tell of its loss.
                link: 0,
            })),
            Acquired::Refused | Acquired::Queued => {
                if earlier.is_none() {
                    self.asked_by = None;
                }
                Err(Fault::Refused(full))
            }
        }
    }

    fn lease_at(&self, sent: Instant) -> Duration {
        let taken = self.live.as_ref().map_or(sent, |hold| hold.taken);
        self.terms.lease_at(taken, sent).unwrap_or(self.terms.lease)
    }

    /// What is left of the wait, for a first and for a later request.
    fn queueing_left(&self) -> Queueing {
        match (self.queueing, self.deadline.left()) {
            // Too late to queue, but an earlier request may have been granted.
            (Queueing::AtMost(_), Some(left)) if left.is_zero() => Queueing::Try,
            (Queueing::AtMost(_), Some(left)) => Queueing::AtMost(left),
            (queueing, _) => queueing,
        }
    }

    async fn wait(
        &mut self,
        link: &Link,
        earlier: Option<u64>,
        lease: Duration,
    ) -> Result<Round, Fault> {
        let (key, owner) = (self.claims.label(), self.claims.owner());
        tracing::debug!(%key, %owner, "waiting");
        let in_doubt =
            !self.doubted && !link.is_sole && earlier.is_some_and(|number| number != link.number);
        let claim = self.claims.first();
        let _waiting = self.state.pulse.wait(lease);
        let outcome = if link.is_retired() {
            // Its end was announced before this call could hear of it.
            Some(Outcome::Disconnected)
        } else if in_doubt {
            self.doubted = true;
            let outcome = tokio::time::timeout(DOUBT, claim.outcome()).await;
            Some(outcome.unwrap_or(Outcome::Disconnected))
        } else {
            let deadline = self.deadline.extended(NOTICE_GRACE);
            deadline.bound(claim.outcome()).await
        };
        match outcome {
            Some(Outcome::Granted { fence, not_before }) => {
                let grant = Grant {
                    fence,
                    sent: not_before,
                    lease,
                    link: link.number,
                };
                if self.is_fresh(&grant) {
                    return Ok(Round::Granted(grant));
                }
                self.confirm(link, fence).await
            }
            Some(Outcome::WaitEnded) => Ok(Round::Refused),
            Some(Outcome::Disconnected) => Ok(Round::AskAgain),
            Some(Outcome::Withdrawn) => self.withdrawn(link).await,
            // The server said nothing, not even that the wait is over.
            None => Err(Fault::Refused(self.deadline.unavailable(None))),
        }
    }

    /// Whether a grant that a message told of can be used without asking once
    /// more: at least half of its lease is left for certain.
    ///
    /// A request was sent at `sent` and answered before the message came, by
    /// the same connection, so the grant was made after that. The lease is that
    /// of the request, as all requests of one call have the same, unless it
    /// enters a hold or has a limit.
    fn is_fresh(&self, grant: &Grant) -> bool {
        let left = validity_end(grant.sent, grant.lease).saturating_duration_since(Instant::now());
        let is_plain = self.live.is_none() && self.terms.max_hold.is_none();
        is_plain && left >= grant.lease / 2 && !self.claims.is_lost(grant.fence)
    }

    /// Makes sure that a grant still stands that a message told of.
    ///
    /// How old the message is cannot be known, as this process may have been
    /// stopped since. So validity counts from before this request.
    async fn confirm(&mut self, link: &Link, told: u64) -> Result<Round, Fault> {
        let sent = Instant::now();
        let lease = self.lease_at(sent);
        let reply = link.ask(&protocol::renew(&self.claims, lease)).await?;
        let fence = protocol::renewed(&reply, &self.claims, told).map_err(Fault::Refused)?;
        let link = link.number;
        // Nil: it was lost meanwhile, and nobody ever worked under it.
        Ok(fence.map_or(Round::AskAgain, |fence| {
            Round::Granted(Grant {
                fence,
                sent,
                lease,
                link,
            })
        }))
    }

    /// Finds out why the server withdrew the request.
    ///
    /// A server that can no longer grant, as it became a replica or gave the
    /// slot away, refuses to cancel too: then this call goes on as after any
    /// refusal. One that can grant has no place of this owner any more:
    /// somebody cancelled it.
    async fn withdrawn(&self, link: &Link) -> Result<Round, Fault> {
        let reply = link.ask(&protocol::cancel(&self.claims)).await?;
        match protocol::number(&reply).map_err(Fault::Refused)? {
            0 => Err(Fault::Refused(Error::Cancelled)),
            // The message was about a request of an earlier connection.
            _ => Ok(Round::AskAgain),
        }
    }

    /// The server's last word was no. All that it may still have of this call
    /// is the place of a wait, which is kept for some time after its end; an
    /// upgrade keeps none.
    async fn not_granted(&mut self, link: &Link) {
        if self.has_waited && self.upgraded().is_none() {
            let cancel = protocol::cancel(&self.claims);
            let deadline = self.deadline.extended(NOTICE_GRACE);
            let reply = deadline.bound(link.ask(&cancel)).await;
            let places = reply.and_then(|reply| protocol::number(&reply.ok()?).ok());
            if places != Some(1) {
                // It may have been granted. That is left to the background.
                return;
            }
        }
        self.asked_by = None;
    }

    /// From reply to hold without a point at which the call could be dropped.
    fn granted(&mut self, grant: Grant) -> Arc<Hold> {
        self.asked_by = None;
        let (claims, ask) = (&self.claims, self.ask);
        let (key, owner) = (claims.label(), claims.owner());
        tracing::debug!(%key, %owner, fence = grant.fence, "granted");
        let entered = claims.live_hold().and_then(|hold| {
            let entered = hold.enter(grant, ask);
            if !entered {
                hold.lose(Loss::EndedByServer);
            }
            entered.then_some(hold)
        });
        let hold = entered.unwrap_or_else(|| self.begin(grant));
        if claims.is_lost(grant.fence) {
            hold.lose(Loss::EndedByServer);
        }
        hold
    }

    fn begin(&self, grant: Grant) -> Arc<Hold> {
        let (state, claims) = (&self.state, self.claims.clone());
        let number = state.next_number();
        let hold = Hold::new(claims, self.terms, self.ask, grant, number, &state.pulse);
        self.claims.set_hold(&hold);
        hold.check_connection(grant);
        state.schedule.after(&hold, grant);
        hold
    }
}

impl Drop for Call {
    /// Withdraws what the server may still know of this call.
    fn drop(&mut self) {
        let upgraded = self.upgraded().cloned();
        self.claims.first().await_nothing();
        if let (Some(link), Some(turn)) = (self.asked_by, self.turn.take()) {
            let withdrawal = Withdrawal::new(self.claims.clone(), turn, self.terms.lease);
            let withdrawal = withdrawal.asked_by(link, upgraded);
            self.state.order(Order::Withdraw(withdrawal));
        } else if let Some(hold) = upgraded {
            hold.set_upgrading(false);
        }
    }
}
