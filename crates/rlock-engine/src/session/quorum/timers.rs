//! What is due when.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::Id;
use crate::engine::instant::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A member has been gone for long enough.
    Gone(usize),
    Question(Id),
    Hold(Id),
    Call(Id),
}

/// At most one moment for each timer.
#[derive(Default)]
pub(super) struct Timers {
    due: BTreeMap<Timer, Instant>,
    order: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, due: Option<Instant>) {
        let before = match due {
            Some(due) => self.due.insert(timer, due),
            None => self.due.remove(&timer),
        };
        if let Some(before) = before {
            self.order.remove(&(before, timer));
        }
        self.order.extend(due.map(|due| (due, timer)));
    }

    pub(super) fn due(&self, timer: Timer) -> Option<Instant> {
        self.due.get(&timer).copied()
    }

    pub(super) fn first(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// The next one that is due, and since when.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Instant, Timer)> {
        let (due, timer) = self.order.first().copied()?;
        (due <= now).then(|| {
            self.set(timer, None);
            (due, timer)
        })
    }
}
