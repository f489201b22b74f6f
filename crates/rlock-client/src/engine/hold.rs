//! One grant as this process sees it: in which mode, by which fence, used by
//! how many guards, lost or not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::ask::Ask;
use crate::engine::claims::Claims;
use crate::engine::clock::Instant;
use crate::engine::pulse::Pulse;
use crate::engine::sync::lock;
use crate::engine::terms::Terms;
use crate::engine::validity::{Phase, Validity};
use crate::error::Loss;

#[derive(Debug)]
struct Standing {
    validity: Validity,
    /// How it is held: an upgrade and a downgrade change it.
    ask: Ask,
    /// An upgrade gives a new one.
    fence: u64,
    /// The guards on it; re-entry makes more than one.
    guards: u32,
    /// Those of them that need it to be exclusive.
    writers: u32,
    /// Whether an upgrade is asked for of which the outcome is not known.
    is_upgrading: bool,
    /// The connection that loss notices come by.
    notices_by: u64,
    /// When the watchdog has it on its schedule.
    scheduled: Option<Instant>,
    /// Renewals that failed since the last that did not.
    failures: u32,
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) claims: Claims,
    pub(crate) terms: Terms,
    pub(crate) taken: Instant,
    /// Tells holds with the same due time apart, and spreads their renewals.
    pub(crate) number: u64,
    standing: Mutex<Standing>,
    changed: Notify,
    pulse: Arc<Pulse>,
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
    pub(crate) fn new(
        claims: Claims,
        terms: Terms,
        ask: Ask,
        grant: Grant,
        number: u64,
        pulse: &Arc<Pulse>,
    ) -> Arc<Self> {
        pulse.add(terms.bound);
        let standing = Standing {
            validity: Validity::of(&grant),
            ask,
            fence: grant.fence,
            guards: 1,
            writers: u32::from(ask.is_exclusive()),
            is_upgrading: false,
            notices_by: grant.link,
            scheduled: None,
            failures: 0,
        };
        Arc::new(Self {
            claims,
            terms,
            taken: grant.sent,
            number,
            standing: Mutex::new(standing),
            changed: Notify::new(),
            pulse: Arc::clone(pulse),
        })
    }

    pub(crate) fn fence(&self) -> u64 {
        lock(&self.standing).fence
    }

    pub(crate) fn ask(&self) -> Ask {
        lock(&self.standing).ask
    }

    /// Counts one more guard, if the grant is this one, or an upgrade of it,
    /// and it is still valid.
    pub(crate) fn enter(&self, grant: Grant, ask: Ask) -> bool {
        // The caller has the turn, so nobody ends the hold meanwhile.
        let upgrades = ask.is_exclusive() && !self.ask().is_exclusive();
        let same = grant.fence == self.fence() || (upgrades && grant.fence > self.fence());
        if !same || !self.prolong(grant) {
            return false;
        }
        let mut standing = lock(&self.standing);
        standing.guards += 1;
        standing.fence = grant.fence;
        standing.notices_by = grant.link;
        if ask.is_exclusive() {
            standing.ask = ask;
            standing.writers += 1;
            standing.is_upgrading = false;
        }
        true
    }

    /// Takes one guard off, unless it is the last.
    pub(crate) fn leave_unless_last(&self, ask: Ask) -> bool {
        let others = lock(&self.standing).guards > 1;
        if others {
            self.leave(ask);
        }
        others
    }

    /// Takes one guard off; true if it was the last.
    pub(crate) fn leave(&self, ask: Ask) -> bool {
        let mut standing = lock(&self.standing);
        standing.guards = standing.guards.saturating_sub(1);
        if ask.is_exclusive() {
            standing.writers = standing.writers.saturating_sub(1);
        }
        standing.guards == 0
    }

    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.standing).guards == 0
    }

    /// Has one guard need it in shared mode only from now on; whether nobody
    /// else needs more, so that the server can let others in.
    pub(crate) fn leave_writers(&self) -> bool {
        let mut standing = lock(&self.standing);
        standing.writers = standing.writers.saturating_sub(1);
        let last = standing.writers == 0;
        if last {
            standing.ask = Ask::Shared;
        }
        last
    }

    /// Notes that an upgrade begins or that its outcome is known.
    pub(crate) fn set_upgrading(&self, is_upgrading: bool) {
        lock(&self.standing).is_upgrading = is_upgrading;
    }

    /// Takes the fence of an upgrade that was granted too late and undone.
    pub(crate) fn take_fence(&self, fence: u64) {
        let mut standing = lock(&self.standing);
        standing.fence = standing.fence.max(fence);
    }

    /// Whether the server means this grant by `fence`, which it named to a
    /// request that was made while the fence was `asked_under`.
    pub(crate) fn is_meant_by(&self, fence: u64, asked_under: u64) -> bool {
        let standing = lock(&self.standing);
        // The grant of an upgrade may be told here before the call that waits
        // for it has run. It cannot be a grant that followed a loss: that is
        // told before, and what is lost stays lost.
        let upgraded = standing.is_upgrading && fence > standing.fence;
        fence == standing.fence || fence == asked_under || upgraded
    }

    /// Sets the end of validity after a renewal.
    ///
    /// False if validity had run out before the answer came: somebody may
    /// have looked in between.
    pub(crate) fn prolong(&self, grant: Grant) -> bool {
        let mut standing = lock(&self.standing);
        if self.judge(&mut standing).is_some() {
            return false;
        }
        standing.failures = 0;
        standing.validity.prolong(grant.sent, grant.lease);
        self.cut_if_over(&mut standing, grant);
        drop(standing);
        self.changed.notify_waiters();
        true
    }

    /// The task that waited for the reply may run only after its connection ended.
    fn cut_if_over(&self, standing: &mut Standing, grant: Grant) {
        if let Some(grace) = self.terms.bound
            && self.pulse.is_over(grant.link)
        {
            standing.validity.cut(grant.sent, grace);
        }
    }

    /// Notes that the connection has ended that `grant` came by, if it has.
    pub(crate) fn check_connection(&self, grant: Grant) {
        self.cut_if_over(&mut lock(&self.standing), grant);
        self.changed.notify_waiters();
    }

    /// Notes that the connection has ended that was last known to be there at
    /// `known_good`. Only a bound hold is concerned.
    pub(crate) fn disconnected(&self, known_good: Instant) {
        if let Some(grace) = self.terms.bound {
            lock(&self.standing).validity.cut(known_good, grace);
            self.changed.notify_waiters();
        }
    }

    /// Why it is lost, if it is, judged now.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.judge(&mut lock(&self.standing))
    }

    fn judge(&self, standing: &mut Standing) -> Option<Loss> {
        let (loss, is_news) = standing.validity.judge();
        if let (Some(loss), true) = (loss, is_news) {
            self.report(loss, standing.fence);
        }
        loss
    }

    /// Marks it lost, unless it is over already, by the clock too.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut standing = lock(&self.standing);
        if self.judge(&mut standing).is_some() || standing.validity.phase != Phase::Held {
            return;
        }
        standing.validity.phase = Phase::Lost(loss);
        self.report(loss, standing.fence);
        drop(standing);
        self.changed.notify_waiters();
    }

    fn report(&self, loss: Loss, fence: u64) {
        let (key, owner) = (self.claims.label(), self.claims.owner());
        tracing::warn!(%key, %owner, fence, %loss, "lock lost");
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
        let mut standing = lock(&self.standing);
        if standing.validity.phase == Phase::Held {
            standing.validity.phase = Phase::Ended;
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        lock(&self.standing).validity.phase == Phase::Ended
    }

    pub(crate) fn valid_until(&self) -> Instant {
        lock(&self.standing).validity.until
    }

    pub(crate) fn lease_end(&self) -> Instant {
        lock(&self.standing).validity.lease_end
    }

    pub(crate) fn notices_by(&self) -> u64 {
        lock(&self.standing).notices_by
    }

    pub(crate) fn set_notices_by(&self, link: u64) {
        lock(&self.standing).notices_by = link;
    }

    /// Notes when the watchdog will look at it, and returns the note before.
    pub(crate) fn note_schedule(&self, due: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut lock(&self.standing).scheduled, due)
    }

    /// Counts a renewal that failed; how many did in a row before.
    pub(crate) fn note_failure(&self) -> u32 {
        let mut standing = lock(&self.standing);
        standing.failures = standing.failures.saturating_add(1);
        standing.failures - 1
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.pulse.remove(self.terms.bound);
    }
}
