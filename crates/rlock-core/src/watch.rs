//! Data of a hold beside the store: the listener for its loss, the connection to
//! which it is bound, and the value that followers know.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::hold::Hold;
use crate::table::QueueId;
use crate::{Fence, Grace, Listener, Timestamp};

/// The number of a watch; one table never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WatchId(pub(crate) u64);

impl WatchId {
    /// The next number, which may be unused.
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Before every watch.
    pub(crate) const MIN: Self = Self(0);
    /// After every watch.
    pub(crate) const MAX: Self = Self(u64::MAX);
}

/// The connection to which a hold is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The connection.
    pub session: u64,
    /// How long the hold outlives it.
    pub grace: Grace,
    /// When the connection closed, if it did.
    pub closed: Option<Timestamp>,
}

impl Binding {
    /// When the hold ends, once the connection has closed.
    pub(crate) fn ends(&self) -> Option<Timestamp> {
        Some(self.closed?.plus_millis(self.grace.millis().into()))
    }

    /// Whether a hold that is gone has ended with its grace.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        self.ends().is_some_and(|end| end.has_come(now))
    }
}

/// A hold whose loss is reported, or that is bound, or both.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) queue: QueueId,
    pub(crate) owner: Box<[u8]>,
    /// The fence of the hold, which identifies it.
    pub(crate) fence: Fence,
    /// The listener for its loss.
    pub(crate) notice: Option<Arc<Listener>>,
    pub(crate) binding: Option<Binding>,
}

impl Watch {
    /// Whether its hold is not among these any more.
    pub(crate) fn is_over(&self, hold: &Hold) -> bool {
        hold.fence_of(&self.owner) != Some(self.fence)
    }

    /// The connections that it concerns.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = u64> {
        let notice = self.notice.as_ref().map(|it| it.session);
        // The closed connection will not be seen again.
        let open = self.binding.filter(|it| it.closed.is_none());
        let binding = open.map(|it| it.session).filter(|it| Some(*it) != notice);
        notice.into_iter().chain(binding)
    }
}

/// The last published value of a lock's hold; followers believe that the hold
/// continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastValue {
    /// The fence of the hold.
    pub(crate) fence: Fence,
    /// A hash of its value, which may be a kilobyte.
    pub(crate) value: u64,
    /// A number of its own, from the counter of tickets and watches.
    pub(crate) number: NonZeroU64,
}

/// The progress of a search through the watches of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub(crate) from: (u64, WatchId),
    /// Whether a hold has ended since it began, so that it must start again.
    pub(crate) again: bool,
}

impl Search {
    pub(crate) const START: Self = Self {
        from: (0, WatchId::MIN),
        again: false,
    };
}
