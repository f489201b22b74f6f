//! The way from a call of `lock` to a guard.
//!
//! One loop for every verb: ask, and while queued wait for the message; on a
//! new connection, or after a message that this owner's turn has come, ask
//! again. Asking again is harmless, as every request is made with `ONCE`.
//! Wherever the loop is dropped, the background withdraws what it asked for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::claim::{Claim, Outcome, Turn};
use crate::error::{Error, Fault};
use crate::guard::Guard;
use crate::hold::{Grant, Hold};
use crate::link::Link;
use crate::protocol::{self, Acquired, Queueing};
use crate::release::Withdrawal;
use crate::terms::{Backoff, Deadline, Terms};

/// How much later than its wait a request may be told that it ended.
const NOTICE_GRACE: Duration = Duration::from_secs(1);
/// When to ask again if an earlier connection, which might still be open on
/// the server, could take the place in the queue with it.
const DOUBT: Duration = Duration::from_secs(1);

/// One call for a lock.
pub(crate) struct Call {
    claim: Arc<Claim>,
    terms: Terms,
    /// Since when the lock is held, if it is to be entered again.
    taken: Option<Instant>,
    queueing: Queueing,
    deadline: Deadline,
    backoff: Backoff,
    /// Present until the outcome is known; then another call may follow.
    turn: Option<Turn>,
    /// The connection that the last request was made by. While it is there,
    /// the server may know of this call.
    asked_by: Option<u64>,
    doubted: bool,
}

/// What one round of asking came to.
enum Round {
    Granted(Grant),
    Refused,
    AskAgain,
}

/// Asks for `claim` and waits as `queueing` says; `None` if not granted.
pub(crate) async fn acquire(
    claim: Arc<Claim>,
    terms: Terms,
    queueing: Queueing,
) -> Result<Option<Guard>, Error> {
    let deadline = match queueing {
        Queueing::Try => Deadline::after(claim.inner.state.limits.patience),
        Queueing::AtMost(wait) => Deadline::after(wait),
        Queueing::Unlimited => Deadline::unlimited(),
    };
    let Some(turn) = take_turn(&claim, queueing, deadline).await else {
        return Ok(None);
    };
    // Whoever enters a lock again gets the terms of the hold that is there:
    // a shorter lease would end under the guards that hold it already.
    let live = claim.live_hold();
    let terms = live.as_ref().map_or(terms, |hold| hold.terms);
    let taken = live.map(|hold| hold.taken);
    let (backoff, turn) = (Backoff::default(), Some(turn));
    let mut call = Call {
        claim,
        terms,
        taken,
        queueing,
        deadline,
        backoff,
        turn,
        asked_by: None,
        doubted: false,
    };
    call.run().await
}

/// Waits for calls of the same owner for the same key. `None`: not in time.
async fn take_turn(claim: &Claim, queueing: Queueing, deadline: Deadline) -> Option<Turn> {
    let turn = Arc::clone(&claim.turn);
    match (Arc::clone(&turn).try_lock_owned(), queueing) {
        (Ok(turn), _) => Some(turn),
        (Err(_), Queueing::Try) => None,
        (Err(_), Queueing::AtMost(_) | Queueing::Unlimited) => {
            deadline.bound(turn.lock_owned()).await
        }
    }
}

impl Call {
    async fn run(&mut self) -> Result<Option<Guard>, Error> {
        loop {
            self.claim.empty_mailbox();
            let link = self.claim.inner.state.link(self.deadline).await?;
            match self.round(&link).await {
                Ok(Round::Granted(grant)) => return Ok(Some(self.granted(grant))),
                Ok(Round::Refused) => return Ok(self.not_granted()),
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

    async fn round(&mut self, link: &Link) -> Result<Round, Fault> {
        let state = Arc::clone(&self.claim.inner.state);
        let sent = Instant::now();
        let lease = self.lease_at(sent);
        let (key, owner) = (&self.claim.key, self.claim.owner.as_str());
        let cmd = protocol::acquire(key, owner, lease, self.queueing_left(), &state.channel);
        let earlier = self.asked_by.replace(link.number);
        let reply = match link.ask(&cmd).await {
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
            Acquired::Queued => self.wait(link, earlier).await,
        }
    }

    fn lease_at(&self, sent: Instant) -> Duration {
        let taken = self.taken.unwrap_or(sent);
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

    async fn wait(&mut self, link: &Link, earlier: Option<u64>) -> Result<Round, Fault> {
        let (key, owner) = (String::from_utf8_lossy(&self.claim.key), &self.claim.owner);
        tracing::debug!(%key, %owner, "waiting");
        let in_doubt =
            !self.doubted && !link.is_sole && earlier.is_some_and(|number| number != link.number);
        let outcome = if link.is_retired() {
            // Its end was announced before this call could hear of it.
            Some(Outcome::Disconnected)
        } else if in_doubt {
            self.doubted = true;
            let outcome = tokio::time::timeout(DOUBT, self.claim.outcome()).await;
            Some(outcome.unwrap_or(Outcome::Disconnected))
        } else {
            self.deadline
                .extended(NOTICE_GRACE)
                .bound(self.claim.outcome())
                .await
        };
        match outcome {
            Some(Outcome::Granted) => self.confirm(link).await,
            Some(Outcome::WaitEnded) => Ok(Round::Refused),
            Some(Outcome::Disconnected) => Ok(Round::AskAgain),
            Some(Outcome::Withdrawn) => {
                // The server became a replica: another one may answer to its
                // name by now.
                link.retire();
                self.backoff.pause(self.deadline).await;
                Ok(Round::AskAgain)
            }
            // The server said nothing, not even that the wait is over.
            None => Err(Fault::Refused(self.deadline.unavailable(None))),
        }
    }

    /// Makes sure that a grant still stands that a message told of.
    ///
    /// How old the message is cannot be known, as this process may have been
    /// stopped since; so validity counts from before this request.
    async fn confirm(&mut self, link: &Link) -> Result<Round, Fault> {
        let sent = Instant::now();
        let lease = self.lease_at(sent);
        let cmd = protocol::renew(&self.claim.key, self.claim.owner.as_str(), lease);
        let reply = link.ask(&cmd).await?;
        let fence = protocol::number_or_nil(&reply).map_err(Fault::Refused)?;
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

    /// The server's last word was no: it has nothing of this call any more.
    fn not_granted(&mut self) -> Option<Guard> {
        self.asked_by = None;
        None
    }

    /// From reply to guard without a point at which the call could be dropped.
    fn granted(&mut self, grant: Grant) -> Guard {
        self.asked_by = None;
        let claim = &self.claim;
        let (key, owner) = (String::from_utf8_lossy(&claim.key), &claim.owner);
        tracing::debug!(%key, %owner, fence = grant.fence, "granted");
        if let Some(hold) = claim.live_hold() {
            if hold.reenter(grant) {
                return Guard::new(hold);
            }
            hold.lose(crate::error::Loss::EndedByServer);
        }
        let hold = Hold::new(Arc::clone(claim), self.terms, grant);
        claim.set_hold(&hold);
        if claim.is_lost(grant.fence) {
            hold.lose(crate::error::Loss::EndedByServer);
        } else if let Some(due) = self.terms.renewal_due(grant.sent, grant.lease) {
            claim.inner.state.schedule.set(&hold, due);
        }
        Guard::new(hold)
    }
}

impl Drop for Call {
    /// Withdraws what the server may still know of this call.
    fn drop(&mut self) {
        if let (Some(link), Some(turn)) = (self.asked_by, self.turn.take()) {
            let claim = Arc::clone(&self.claim);
            Withdrawal::new(claim, turn, self.terms.lease)
                .asked_by(link)
                .order();
        }
    }
}
