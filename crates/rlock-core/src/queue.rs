//! The waiters of one lock.

use std::sync::Arc;

use crate::{TicketId, Timestamp};

/// Names a queue; never used twice by one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueueId(pub(crate) u64);

impl QueueId {
    /// Before every queue.
    pub(crate) const MIN: Self = Self(0);
    /// After every queue.
    pub(crate) const MAX: Self = Self(u64::MAX);
}

/// When, and why, a lock has to be looked at without anybody asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Never: whatever concerns it will be told.
    Never,
    /// When the first lease of its hold ends.
    LeaseEnd(Timestamp),
    /// The lease of its hold, as far as it was known, has ended; the lock is
    /// marked as due.
    LeaseEnded,
    /// Once more, as nothing could be decided.
    Again(Timestamp),
}

impl Look {
    pub(crate) const fn at(self) -> Option<Timestamp> {
        match self {
            Self::Never | Self::LeaseEnded => None,
            Self::LeaseEnd(at) | Self::Again(at) => Some(at),
        }
    }
}

/// First come, first served. Exists only while it has tickets or watches.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) db: u32,
    pub(crate) key: Arc<[u8]>,
    pub(crate) front: Option<TicketId>,
    pub(crate) back: Option<TicketId>,
    pub(crate) len: u32,
    pub(crate) watches: u32,
    pub(crate) look: Look,
    /// How many hand-offs there were in a row.
    pub(crate) streak: u32,
    pub(crate) due: bool,
    /// Whether the lock is left to those who wait outside the queue, until it
    /// is looked at again.
    pub(crate) offered: bool,
}

impl Queue {
    pub(crate) const fn new(db: u32, key: Arc<[u8]>) -> Self {
        Self {
            db,
            key,
            front: None,
            back: None,
            len: 0,
            watches: 0,
            look: Look::Never,
            streak: 0,
            due: false,
            offered: false,
        }
    }

    pub(crate) const fn is_idle(&self) -> bool {
        self.len == 0 && self.watches == 0
    }
}
