//! One grant as this process sees it: valid until when, used by how many
//! guards, lost or not.
//!
//! Validity is a comparison with the monotonic clock, made when it is asked
//! for: no task has to run for it, so none can be too late. A loss is final,
//! also if the server later turns out to have renewed in time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::claim::Claim;
use crate::error::Loss;
use crate::sync::lock;
use crate::terms::{Terms, validity_end};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// Its last guard is being released; nothing renews it any more.
    Ended,
    Lost(Loss),
}

#[derive(Debug)]
struct Validity {
    until: Instant,
    /// When the request was sent that `until` follows from.
    asked: Instant,
    phase: Phase,
    /// The guards on it; re-entry makes more than one.
    guards: u32,
    /// The connection that loss notices come by.
    notices_by: u64,
    /// When the watchdog has it on its schedule.
    scheduled: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) claim: Arc<Claim>,
    pub(crate) fence: u64,
    pub(crate) terms: Terms,
    pub(crate) taken: Instant,
    /// Tells holds with the same due time apart.
    pub(crate) number: u64,
    validity: Mutex<Validity>,
    changed: Notify,
}

/// A grant as the server gave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) fence: u64,
    /// When the request was sent that the lease counts from.
    pub(crate) sent: Instant,
    pub(crate) lease: Duration,
    /// The connection that it came by.
    pub(crate) link: u64,
}

impl Hold {
    /// A hold with one guard on it.
    pub(crate) fn new(claim: Arc<Claim>, terms: Terms, grant: Grant) -> Arc<Self> {
        let number = claim.inner.state.next_number();
        let validity = Validity {
            until: validity_end(grant.sent, grant.lease),
            asked: grant.sent,
            phase: Phase::Held,
            guards: 1,
            notices_by: grant.link,
            scheduled: None,
        };
        let taken = grant.sent;
        let validity = Mutex::new(validity);
        let changed = Notify::new();
        Arc::new(Self {
            claim,
            fence: grant.fence,
            terms,
            taken,
            number,
            validity,
            changed,
        })
    }

    /// Counts one more guard, if the grant is the same one and still valid.
    pub(crate) fn reenter(&self, grant: Grant) -> bool {
        if grant.fence != self.fence || !self.prolong(grant.sent, grant.lease) {
            return false;
        }
        // The caller has the claim's turn, so nobody ends the hold meanwhile.
        let mut validity = lock(&self.validity);
        validity.guards += 1;
        validity.notices_by = grant.link;
        true
    }

    /// Takes one guard off, unless it is the last.
    pub(crate) fn leave_unless_last(&self) -> bool {
        let mut validity = lock(&self.validity);
        if validity.guards <= 1 {
            return false;
        }
        validity.guards -= 1;
        true
    }

    /// Takes one guard off; true if it was the last.
    pub(crate) fn leave(&self) -> bool {
        let mut validity = lock(&self.validity);
        validity.guards = validity.guards.saturating_sub(1);
        validity.guards == 0
    }

    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.validity).guards == 0
    }

    /// Sets the end of validity after a renewal that was asked for at `sent`.
    ///
    /// False if validity had run out before the answer came: somebody may
    /// have looked in between, and what was lost stays lost.
    pub(crate) fn prolong(&self, sent: Instant, lease: Duration) -> bool {
        let mut validity = lock(&self.validity);
        if self.judge(&mut validity).is_some() {
            return false;
        }
        // A later request's answer may have come first. Its lease is the one
        // that counts, also if it is shorter: the last before `max_hold` is.
        if sent >= validity.asked {
            validity.asked = sent;
            validity.until = validity_end(sent, lease);
        }
        drop(validity);
        self.changed.notify_waiters();
        true
    }

    /// Why it is lost, if it is, judged now.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.judge(&mut lock(&self.validity))
    }

    fn judge(&self, validity: &mut Validity) -> Option<Loss> {
        if validity.phase == Phase::Held && Instant::now() >= validity.until {
            validity.phase = Phase::Lost(Loss::LeaseEnded);
            self.report(Loss::LeaseEnded);
        }
        match validity.phase {
            Phase::Lost(loss) => Some(loss),
            Phase::Held | Phase::Ended => None,
        }
    }

    /// Marks it lost, unless it is over already, by the clock too.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut validity = lock(&self.validity);
        if self.judge(&mut validity).is_some() || validity.phase != Phase::Held {
            return;
        }
        validity.phase = Phase::Lost(loss);
        drop(validity);
        self.report(loss);
        self.changed.notify_waiters();
    }

    fn report(&self, loss: Loss) {
        let key = String::from_utf8_lossy(&self.claim.key);
        tracing::warn!(%key, owner = %self.claim.owner, fence = self.fence, %loss, "lock lost");
    }

    /// Waits until it is lost.
    pub(crate) async fn lost(&self) -> Loss {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(loss) = self.loss() {
                return loss;
            }
            let _ = tokio::time::timeout_at(self.valid_until().into(), changed).await;
        }
    }

    /// Ends it on purpose: from here nothing renews it and nothing is a loss.
    pub(crate) fn end(&self) {
        let mut validity = lock(&self.validity);
        if validity.phase == Phase::Held {
            validity.phase = Phase::Ended;
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        lock(&self.validity).phase == Phase::Ended
    }

    pub(crate) fn valid_until(&self) -> Instant {
        lock(&self.validity).until
    }

    pub(crate) fn notices_by(&self) -> u64 {
        lock(&self.validity).notices_by
    }

    pub(crate) fn set_notices_by(&self, link: u64) {
        lock(&self.validity).notices_by = link;
    }

    /// Notes when the watchdog will look at it, and returns the note before.
    pub(crate) fn note_schedule(&self, due: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut lock(&self.validity).scheduled, due)
    }
}
