//! What is kept of a hold beside the store: who must be notified of its loss,
//! and which connection it ends with; and what observers have received.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::table::QueueId;
use crate::{Fence, Grace, Listener, Timestamp};

/// Names a watch; never used twice by one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WatchId(pub(crate) u64);

impl WatchId {
    /// The one after this, which there may be or not.
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Before every watch.
    pub(crate) const MIN: Self = Self(0);
    /// After every watch.
    pub(crate) const MAX: Self = Self(u64::MAX);
}

/// The connection that a hold ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The connection.
    pub session: u64,
    /// How long the hold outlives it.
    pub grace: Grace,
    /// When the connection closed, once it has.
    pub closed: Option<Timestamp>,
}

impl Binding {
    /// When the hold ends, once the connection has closed.
    pub(crate) fn ends(&self) -> Option<Timestamp> {
        Some(self.closed?.plus_millis(self.grace.millis().into()))
    }

    /// Whether the hold has outlived its connection for as long as it may.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        self.ends().is_some_and(|end| end.has_passed(now))
    }
}

/// A hold whose loss must be reported, or that is bound, or both.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) queue: QueueId,
    pub(crate) owner: Box<[u8]>,
    /// The fence of the hold, by which it is recognised.
    pub(crate) fence: Fence,
    /// Who asked to be notified of its loss.
    pub(crate) notice: Option<Arc<Listener>>,
    pub(crate) binding: Option<Binding>,
}

impl Watch {
    /// The connections that it concerns.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = u64> {
        let notice = self.notice.as_ref().map(|it| it.session);
        // The one that has closed is not heard of again.
        let open = self.binding.filter(|it| it.closed.is_none());
        let binding = open.map(|it| it.session).filter(|it| Some(*it) != notice);
        notice.into_iter().chain(binding)
    }
}

/// What observers of the value of a lock received last, of a hold that
/// goes on as far as they know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// The fence of the hold.
    pub(crate) fence: Fence,
    /// A hash of its value, which may be a kilobyte.
    pub(crate) value: u64,
    /// A number of its own, from the counter that tickets and watches have.
    pub(crate) number: NonZeroU64,
}

/// How far a search through the watches of a lock has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub(crate) from: (u64, WatchId),
    /// Whether a hold has ended since it began, so that it has to start again.
    pub(crate) again: bool,
}

impl Search {
    pub(crate) const START: Self = Self {
        from: (0, WatchId::MIN),
        again: false,
    };
}
