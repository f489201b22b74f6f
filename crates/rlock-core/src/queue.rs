//! What is remembered of one lock beside its hold. Who waits for it is in the
//! orders of the table.

use crate::Timestamp;

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

/// A [`Look`] without its time, so that both take nine bytes in a queue: there
/// may be a million.
#[derive(Clone, Copy, Debug)]
enum Why {
    Never,
    LeaseEnd,
    LeaseEnded,
    Again,
}

/// First come, first served. Exists only while it has tickets or watches.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) db: u32,
    pub(crate) key: Box<[u8]>,
    /// How many places it has, kept ones too.
    pub(crate) len: u32,
    pub(crate) watches: u32,
    look_at: Timestamp,
    look_why: Why,
    /// How many hand-offs there were in a row.
    pub(crate) streak: u32,
    pub(crate) due: bool,
    /// Whether the lock is left to those who wait outside the queue, until it
    /// is looked at again.
    pub(crate) offered: bool,
}

impl Queue {
    pub(crate) const fn new(db: u32, key: Box<[u8]>) -> Self {
        Self {
            db,
            key,
            len: 0,
            watches: 0,
            look_at: Timestamp::NEVER,
            look_why: Why::Never,
            streak: 0,
            due: false,
            offered: false,
        }
    }

    /// When, and why, the lock has to be looked at.
    pub(crate) const fn look(&self) -> Look {
        match self.look_why {
            Why::Never => Look::Never,
            Why::LeaseEnd => Look::LeaseEnd(self.look_at),
            Why::LeaseEnded => Look::LeaseEnded,
            Why::Again => Look::Again(self.look_at),
        }
    }

    pub(crate) const fn set_look(&mut self, look: Look) {
        (self.look_why, self.look_at) = match look {
            Look::Never => (Why::Never, Timestamp::NEVER),
            Look::LeaseEnd(at) => (Why::LeaseEnd, at),
            Look::LeaseEnded => (Why::LeaseEnded, Timestamp::NEVER),
            Look::Again(at) => (Why::Again, at),
        };
    }

    pub(crate) const fn is_idle(&self) -> bool {
        self.len == 0 && self.watches == 0
    }
}
