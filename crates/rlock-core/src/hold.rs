//! Who holds a lock, as far as one operation has to know.
//!
//! The store keeps the hold; the core is handed this view of it, changes the
//! view, and the store writes down what changed. Which modes go together is
//! decided here, in [`Hold::admits`], and nowhere else.

use crate::{Fence, Timestamp};

/// How a lock is held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By one owner alone.
    Exclusive,
}

/// Whom a hold belongs to, seen from the operation at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The owner that asks; `count` is how often it has entered.
    Caller {
        /// The hold count, from 1.
        count: u32,
    },
    /// The owner of a ticket, to whom this operation handed the lock over.
    Waiter(Box<[u8]>),
    /// Somebody else; whom does not matter to the operation.
    Other,
}

/// The hold of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody holds it: the key does not exist.
    Free,
    /// One owner holds it alone.
    Exclusive {
        /// Whom it belongs to.
        who: Who,
        /// The fence it was granted under; `None` if it was not granted here.
        fence: Option<Fence>,
        /// When the lease ends.
        deadline: Timestamp,
    },
    /// The key holds something that is no lock. Nothing is granted, and
    /// waiters go on waiting, until it is gone.
    NoLock,
}

impl Hold {
    /// Whether `mode` can be granted beside what is held now.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        match (self, mode) {
            (Self::Free, Mode::Exclusive) => true,
            (Self::Exclusive { .. } | Self::NoLock, Mode::Exclusive) => false,
        }
    }

    /// Drops a hold whose lease has ended; true if there was one.
    pub(crate) fn drop_lapsed(&mut self, now: Timestamp) -> bool {
        let lapsed = self
            .deadline()
            .is_some_and(|deadline| deadline.has_passed(now));
        if lapsed {
            *self = Self::Free;
        }
        lapsed
    }

    /// Sees the hold from `owner`, to whom it may have been handed just now.
    pub(crate) fn seen_by(&mut self, owner: &[u8]) {
        if let Self::Exclusive { who, .. } = self
            && matches!(who, Who::Waiter(waiter) if **waiter == *owner)
        {
            *who = Who::Caller { count: 1 };
        }
    }

    /// When the hold ends, if there is one.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        match self {
            Self::Exclusive { deadline, .. } => Some(*deadline),
            Self::Free | Self::NoLock => None,
        }
    }

    /// The fence of the hold, if there is a hold and it has one.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        match self {
            Self::Exclusive { fence, .. } => *fence,
            Self::Free | Self::NoLock => None,
        }
    }
}
