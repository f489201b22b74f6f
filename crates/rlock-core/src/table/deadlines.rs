//! What happens without a request, by the time when it is due.

use std::collections::BTreeSet;

use super::QueueId;
use crate::{TicketId, Timestamp};

/// The ends of waits, and the times to check a lock.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    pub(super) waits: BTreeSet<(Timestamp, TicketId)>,
    pub(super) checks: BTreeSet<(Timestamp, QueueId)>,
}

impl Deadlines {
    /// The ticket whose wait has been over for longest.
    pub(crate) fn wait_passed(&self, now: Timestamp) -> Option<TicketId> {
        let (at, ticket) = self.waits.first()?;
        at.has_passed(now).then_some(*ticket)
    }

    /// The queue whose check has been overdue for longest.
    pub(crate) fn check_passed(&self, now: Timestamp) -> Option<QueueId> {
        let (at, queue) = self.checks.first()?;
        at.has_passed(now).then_some(*queue)
    }

    /// The first deadline.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        let wait = self.waits.first().map(|(at, _)| *at);
        let check = self.checks.first().map(|(at, _)| *at);
        [wait, check].into_iter().flatten().min()
    }
}
