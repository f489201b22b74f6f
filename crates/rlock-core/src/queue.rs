//! The waiters of one lock, and who is to be told when its hold is lost.

use std::sync::Arc;

use crate::{Fence, TicketId, Timestamp};

/// Names a queue; never used twice by one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueueId(pub(crate) u64);

/// Somebody who asked to be told when a hold is lost.
#[derive(Debug)]
pub struct Watch {
    /// The holder.
    pub owner: Box<[u8]>,
    /// The fence of the hold, by which it is recognised.
    pub fence: Fence,
    /// Where the loss is published.
    pub channel: Arc<[u8]>,
    /// The connection that asked; the watch ends with it.
    pub session: u64,
}

/// When, and why, a lock has to be looked at without anybody asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Never: whatever concerns it will be told.
    Never,
    /// When the lease of its hold ends.
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
    pub(crate) due: bool,
    pub(crate) look: Look,
    pub(crate) watches: Vec<Watch>,
}

impl Queue {
    pub(crate) const fn new(db: u32, key: Arc<[u8]>) -> Self {
        Self {
            db,
            key,
            front: None,
            back: None,
            len: 0,
            due: false,
            look: Look::Never,
            watches: Vec::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.len == 0 && self.watches.is_empty()
    }
}
