//! Renews the holds whose terms ask for it, every third of their lease.
//!
//! One schedule for all holds of a client. A renewal that fails is tried
//! again until validity ends, and holds up no other. A hold that was lost is
//! never renewed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use redis::Value;
use tokio::sync::Notify;

use crate::error::{Error, Fault, Loss};
use crate::hold::Hold;
use crate::link::Link;
use crate::protocol::{self, Acquired, Queueing};
use crate::release::Withdrawal;
use crate::sync::lock;
use crate::terms::{Backoff, Deadline};

/// Which hold is to be looked at next, and when.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    queue: Mutex<Queue>,
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    dues: BTreeMap<(Instant, u64), Weak<Hold>>,
    /// When the background task wakes anyway. Only an earlier due time has to
    /// wake it, so that the usual lock and release do not.
    alarm: Option<Instant>,
}

impl Schedule {
    /// Has `hold` looked at when `due`, instead of when it was to be before.
    pub(crate) fn set(&self, hold: &Arc<Hold>, due: Instant) {
        let mut queue = lock(&self.queue);
        if let Some(before) = hold.note_schedule(Some(due)) {
            queue.dues.remove(&(before, hold.number));
        }
        queue.dues.insert((due, hold.number), Arc::downgrade(hold));
        if queue.alarm.is_none_or(|alarm| due < alarm) {
            queue.alarm = Some(due);
            self.earlier.notify_one();
        }
    }

    pub(crate) fn remove(&self, hold: &Hold) {
        let mut queue = lock(&self.queue);
        if let Some(due) = hold.note_schedule(None) {
            queue.dues.remove(&(due, hold.number));
        }
    }

    /// Waits for the next hold that is due.
    pub(crate) async fn due(&self) -> Arc<Hold> {
        loop {
            match self.take_due(Instant::now()) {
                ControlFlow::Break(hold) => return hold,
                ControlFlow::Continue(Some(alarm)) => {
                    let _ = tokio::time::timeout_at(alarm.into(), self.earlier.notified()).await;
                }
                ControlFlow::Continue(None) => self.earlier.notified().await,
            }
        }
    }

    /// A hold that is due, or when the next one is.
    fn take_due(&self, now: Instant) -> ControlFlow<Arc<Hold>, Option<Instant>> {
        let mut queue = lock(&self.queue);
        while let Some(entry) = queue.dues.first_entry() {
            let (due, _) = *entry.key();
            if due > now {
                queue.alarm = Some(due);
                return ControlFlow::Continue(Some(due));
            }
            if let Some(hold) = entry.remove().upgrade() {
                hold.note_schedule(None);
                return ControlFlow::Break(hold);
            }
        }
        // An alarm that was set stays, though what it was for is gone already:
        // else every lock in a row would wake the task for a new one.
        queue.alarm = queue.alarm.filter(|alarm| *alarm > now);
        ControlFlow::Continue(queue.alarm)
    }
}

/// Renews one hold, and puts it back on the schedule.
///
/// On a new connection the loss notice is asked for again as well.
pub(crate) async fn renew(hold: Arc<Hold>) {
    let state = Arc::clone(&hold.claim.inner.state);
    let mut backoff = Backoff::default();
    while hold.loss().is_none() && !hold.is_ended() {
        let left = hold.valid_until().saturating_duration_since(Instant::now());
        let deadline = Deadline::after(left);
        let Ok(link) = state.link(deadline).await else {
            return;
        };
        match renew_once(&hold, &link).await {
            Ok(()) => return,
            Err(Fault::Refused(Error::NotALock(_))) => return hold.lose(Loss::EndedByServer),
            Err(fault) => {
                let (key, fence) = (String::from_utf8_lossy(&hold.claim.key), hold.fence);
                tracing::debug!(%key, fence, ?fault, "renewal failed, trying again");
            }
        }
        backoff.pause(deadline).await;
    }
}

async fn renew_once(hold: &Arc<Hold>, link: &Link) -> Result<(), Fault> {
    let sent = Instant::now();
    if hold.terms.renewed {
        let Some(lease) = hold.terms.lease_at(hold.taken, sent) else {
            return Ok(());
        };
        let cmd = protocol::renew(&hold.claim.key, hold.claim.owner.as_str(), lease);
        let fence = fence(link.ask(&cmd).await?)?;
        if !confirmed(hold, fence) || !hold.prolong(sent, lease) {
            return Ok(());
        }
        let (key, fence) = (String::from_utf8_lossy(&hold.claim.key), hold.fence);
        tracing::debug!(%key, owner = %hold.claim.owner, fence, ?lease, "renewed");
        if let Some(due) = hold.terms.renewal_due(sent, lease)
            && !hold.is_ended()
        {
            hold.claim.inner.state.schedule.set(hold, due);
        }
    }
    if hold.notices_by() == link.number {
        Ok(())
    } else {
        ask_for_notices(hold, link).await
    }
}

fn fence(reply: Value) -> Result<Option<u64>, Fault> {
    protocol::number_or_nil(&reply).map_err(Fault::Refused)
}

/// Whether the server means this very grant; if not, it was lost.
fn confirmed(hold: &Arc<Hold>, fence: Option<u64>) -> bool {
    if fence == Some(hold.fence) {
        return true;
    }
    hold.lose(Loss::EndedByServer);
    if fence.is_some() {
        give_back(hold);
    }
    false
}

/// Undoes a grant that nobody waits for: the server knows another one of this
/// owner than this process does.
fn give_back(hold: &Arc<Hold>) {
    let (claim, lease) = (Arc::clone(&hold.claim), hold.terms.lease);
    tokio::spawn(async move {
        let turn = Arc::clone(&claim.turn).lock_owned().await;
        Withdrawal::new(claim, turn, lease).carry_out().await;
    });
}

/// Asks for the loss notice on a new connection, by entering the lock again.
///
/// If the hold ended a moment ago this takes the lock anew: the fence tells,
/// and it is given back at once.
async fn ask_for_notices(hold: &Arc<Hold>, link: &Link) -> Result<(), Fault> {
    let sent = Instant::now();
    let left = hold.valid_until().saturating_duration_since(sent);
    let lease = if hold.terms.renewed {
        hold.terms.lease_at(hold.taken, sent)
    } else {
        Some(left)
    };
    let Some(lease) = lease.filter(|lease| *lease >= Duration::from_millis(1)) else {
        return Ok(());
    };
    // Releasing and entering take turns; a release that comes first leaves
    // nothing to ask for.
    let _turn = hold.claim.turn.lock().await;
    if hold.is_ended() || hold.is_unused() {
        return Ok(());
    }
    let channel = &hold.claim.inner.state.channel;
    let owner = hold.claim.owner.as_str();
    let cmd = protocol::acquire(&hold.claim.key, owner, lease, Queueing::Try, channel);
    let reply = match link.ask(&cmd).await {
        // A full server still renews: only the early notice is missing.
        Err(Fault::Refused(Error::OutOfMemory(_) | Error::QueueFull(_))) => return Ok(()),
        reply => reply?,
    };
    let fence = match protocol::acquired(&reply).map_err(Fault::Refused)? {
        Acquired::Granted(fence) => Some(fence),
        Acquired::Queued | Acquired::Refused => None,
    };
    if confirmed(hold, fence) {
        hold.set_notices_by(link.number);
        hold.prolong(sent, lease);
    }
    Ok(())
}
