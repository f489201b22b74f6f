//! Which hold the watchdog looks at next, when, and how many at a time.
//!
//! One schedule for all holds of a client, in the order of their due times. A
//! second renewal is under way at the same time only if there are more than
//! 500 holds, a third if more than 1000, and so on: the server and the calls
//! of this client share one connection.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::engine::clock::Instant;
use crate::engine::hold::{Grant, Hold};
use crate::engine::sync::lock;

/// How many holds there are for each that may be renewed at the same time.
const HOLDS_PER_RENEWAL: usize = 500;
/// How many may be renewed at the same time if the network is so slow that
/// holds would be lost otherwise.
const RENEWALS_MAX: usize = 256;

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

    /// Has `hold` looked at when it is time after `grant`, if ever.
    pub(crate) fn after(&self, hold: &Arc<Hold>, grant: Grant) {
        let terms = &hold.terms;
        let due = terms.renewal_due(hold.number, hold.taken, grant.sent, grant.lease);
        if let Some(due) = due
            && !hold.is_ended()
        {
            self.set(hold, due);
        }
    }

    pub(crate) fn remove(&self, hold: &Hold) {
        let mut queue = lock(&self.queue);
        if let Some(due) = hold.note_schedule(None) {
            queue.dues.remove(&(due, hold.number));
        }
    }

    /// Waits for the next hold that is due, while `underway` are renewed.
    pub(crate) async fn due(&self, underway: usize) -> Arc<Hold> {
        loop {
            match self.take_due(Instant::now(), underway) {
                ControlFlow::Break(hold) => return hold,
                ControlFlow::Continue(Some(alarm)) => {
                    let _ = tokio::time::timeout_at(alarm.into(), self.earlier.notified()).await;
                }
                ControlFlow::Continue(None) => self.earlier.notified().await,
            }
        }
    }

    /// A hold that is due, or when to look for one again.
    fn take_due(&self, now: Instant, underway: usize) -> ControlFlow<Arc<Hold>, Option<Instant>> {
        let mut queue = lock(&self.queue);
        let allowed = (queue.dues.len() + underway).div_ceil(HOLDS_PER_RENEWAL);
        while let Some(entry) = queue.dues.first_entry() {
            let (due, _) = *entry.key();
            let Some(hold) = entry.get().upgrade() else {
                entry.remove();
                continue;
            };
            let alarm = if underway < allowed {
                due
            } else {
                // Half of the lease is left then.
                due + hold.terms.lease / 12
            };
            if alarm > now {
                queue.alarm = Some(alarm);
                return ControlFlow::Continue(Some(alarm));
            }
            if underway >= RENEWALS_MAX {
                break;
            }
            entry.remove();
            hold.note_schedule(None);
            return ControlFlow::Break(hold);
        }
        // An alarm that was set stays, though what it was for is gone already:
        // else every lock in a row would wake the task for a new one.
        queue.alarm = queue.alarm.filter(|alarm| *alarm > now);
        ControlFlow::Continue(queue.alarm)
    }
}
