//! What happens when: the ends of waits, and the times to look at a lock.
//!
//! Ordered sets rather than a heap: an entry is removed when what it stands
//! for is gone, so the index never holds anything stale.

use std::collections::BTreeSet;

use crate::{TicketId, Timestamp, queue::QueueId};

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    pub(crate) waits: BTreeSet<(Timestamp, TicketId)>,
    pub(crate) looks: BTreeSet<(Timestamp, QueueId)>,
}

impl Deadlines {
    /// The ticket whose wait has been over for longest.
    pub(crate) fn wait_passed(&self, now: Timestamp) -> Option<TicketId> {
        let (at, ticket) = self.waits.first()?;
        at.has_passed(now).then_some(*ticket)
    }

    /// The queue that has been to be looked at for longest.
    pub(crate) fn look_passed(&self, now: Timestamp) -> Option<QueueId> {
        let (at, queue) = self.looks.first()?;
        at.has_passed(now).then_some(*queue)
    }

    /// The first deadline of all.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        let wait = self.waits.first().map(|(at, _)| *at);
        let look = self.looks.first().map(|(at, _)| *at);
        [wait, look].into_iter().flatten().min()
    }
}
