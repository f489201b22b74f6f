//! Ends holds and withdraws requests: for `release`, for dropped guards, and
//! for dropped calls.
//!
//! Everything here may be repeated: an owner that holds nothing and waits for
//! nothing is answered nil, and another owner is never touched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::claim::{Claim, Turn};
use crate::driver::Order;
use crate::error::{Error, Fault, Loss};
use crate::hold::Hold;
use crate::link::Link;
use crate::protocol;
use crate::terms::{Backoff, Deadline};

/// Releases a hold of which the caller has the last guard and the turn.
pub(crate) async fn release(hold: &Hold) -> Result<(), Error> {
    let state = &hold.claim.inner.state;
    hold.end();
    state.schedule.remove(hold);
    send_release(hold, Deadline::after(state.limits.patience)).await?;
    let (key, owner, fence) = (&hold.claim.key, &hold.claim.owner, hold.fence);
    tracing::debug!(key = %String::from_utf8_lossy(key), %owner, fence, "released");
    Ok(())
}

async fn send_release(hold: &Hold, deadline: Deadline) -> Result<(), Error> {
    let cmd = protocol::release(&hold.claim.key, hold.claim.owner.as_str());
    let mut backoff = Backoff::default();
    let mut unanswered = false;
    loop {
        let link = hold.claim.inner.state.link(deadline).await?;
        let error = match link.ask(&cmd).await {
            Ok(Value::Nil) if !unanswered => return Err(Error::Lost(Loss::EndedByServer)),
            // Nil after an unanswered one: that one released it.
            Ok(_) => return Ok(()),
            Err(Fault::Refused(error)) => return Err(error),
            Err(Fault::Broken(error)) => {
                unanswered = true;
                error
            }
            Err(Fault::Passing(error)) => error,
        };
        backoff.pause(deadline).await;
        if deadline.is_over() {
            return Err(deadline.unavailable(Some(error)));
        }
    }
}

/// Releases a hold whose last guard was dropped, unless it was entered again
/// since, or the same owner has a newer hold.
pub(crate) async fn unused(hold: Arc<Hold>) {
    let _turn = hold.claim.turn.lock().await;
    let newest = hold
        .claim
        .hold()
        .is_some_and(|newest| Arc::ptr_eq(&newest, &hold));
    if !newest || !hold.is_unused() {
        return;
    }
    let over = hold.loss() == Some(Loss::EndedByServer);
    hold.end();
    hold.claim.inner.state.schedule.remove(&hold);
    if over {
        return;
    }
    // Later the server has ended it by itself.
    let left = hold.valid_until().saturating_duration_since(Instant::now());
    let patience = hold.claim.inner.state.limits.patience;
    let outcome = send_release(&hold, Deadline::after(left.max(patience))).await;
    let (key, owner, fence) = (&hold.claim.key, &hold.claim.owner, hold.fence);
    tracing::debug!(key = %String::from_utf8_lossy(key), %owner, fence, ?outcome, "dropped");
}

/// The clean-up after a call for a lock of which nobody awaits the outcome.
///
/// It may have been sent or not, be queued, or be granted. Its turn is kept
/// until this is done, so that a next call of the same owner comes after.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    claim: Arc<Claim>,
    /// Kept to the end of the clean-up.
    _turn: Turn,
    /// The lease that was asked for: after it no grant is left anyway.
    lease: Duration,
    /// The connection that the call was last made by.
    asked_by: Option<u64>,
}

/// How often clean-up is repeated where an earlier connection may still be
/// open on the server: after 0.1 s, 1 s and 10 s.
const REPEATS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

impl Withdrawal {
    pub(crate) fn new(claim: Arc<Claim>, turn: Turn, lease: Duration) -> Self {
        Self {
            claim,
            _turn: turn,
            lease,
            asked_by: None,
        }
    }

    /// The same, for a call that was made by that connection.
    pub(crate) fn asked_by(mut self, link: u64) -> Self {
        self.asked_by = Some(link);
        self
    }

    /// Leaves it to the background.
    pub(crate) fn order(self) {
        let inner = Arc::clone(&self.claim.inner);
        inner.order(Order::Withdraw(self));
    }

    /// Cancels the request if it is queued, and releases if it was granted.
    pub(crate) async fn carry_out(self) {
        let Some(link) = self.send().await else {
            return;
        };
        // On the connection that the call was made by the clean-up cannot
        // overtake it. Nor on a later one, if the server closed the earlier.
        if link.is_sole || self.asked_by.is_none_or(|number| number == link.number) {
            return;
        }
        for pause in REPEATS {
            tokio::time::sleep(pause).await;
            self.send().await;
        }
    }

    /// Sends the clean-up once; `None` if no server could be reached.
    async fn send(&self) -> Option<Arc<Link>> {
        let state = &self.claim.inner.state;
        let deadline = Deadline::after(self.lease.max(state.limits.patience));
        let mut backoff = Backoff::default();
        while !deadline.is_over() {
            let link = state.link(deadline).await.ok()?;
            match link.ask_all(&self.commands()).await {
                Ok(_) | Err(Fault::Refused(_)) => return Some(link),
                Err(Fault::Broken(_) | Fault::Passing(_)) => backoff.pause(deadline).await,
            }
        }
        None
    }

    /// A hold with guards on it stays: the call was to enter it again.
    fn commands(&self) -> redis::Pipeline {
        let (key, owner) = (&self.claim.key, self.claim.owner.as_str());
        let mut commands = redis::pipe();
        commands.add_command(protocol::cancel(key, owner));
        if self.claim.live_hold().is_none() {
            commands.add_command(protocol::release(key, owner));
        }
        commands
    }
}
