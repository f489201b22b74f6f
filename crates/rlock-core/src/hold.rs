//! Who holds a lock, as far as one operation has to know.
//!
//! The store keeps the hold; the core is handed this view of it, changes the
//! view, and the store writes down what changed. Which modes go together is
//! decided here, in [`Hold::admits`], and nowhere else.

use std::sync::Arc;

use crate::{Fence, Grace, Shared, Timestamp};

/// The largest hold count.
pub(crate) const COUNT_MAX: u32 = i32::MAX as u32;

/// How a lock is held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By one owner alone.
    Exclusive,
    /// Beside other shared holders.
    Shared {
        /// How many permits are asked for, from 1.
        permits: u32,
        /// The most permits that all holders may have together then.
        limit: Option<u32>,
    },
}

impl Mode {
    /// Whether both are the same mode, whatever permits they ask for.
    pub(crate) const fn is_like(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Exclusive, Self::Exclusive) | (Self::Shared { .. }, Self::Shared { .. })
        )
    }
}

/// What a request asks for: its lease and its options, whatever the owner and
/// however the outcome reaches it. They are carried whole from the words of a
/// command to the ticket and to the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireOptions {
    /// How the lock is asked for.
    pub mode: Mode,
    /// The lease, in milliseconds, counted from the grant.
    pub lease_ms: u32,
    /// Whether a holder asks for one more entry; else asking again changes
    /// nothing but the lease.
    pub reenter: bool,
    /// How long the place in the queue outlives the call, if it is kept.
    pub keep: Option<Grace>,
    /// How long the hold outlives its connection, if it is bound to one.
    /// Needs a connection.
    pub bind: Option<Grace>,
}

impl AcquireOptions {
    /// A lease without any other option.
    #[must_use]
    pub const fn new(mode: Mode, lease_ms: u32) -> Self {
        Self {
            mode,
            lease_ms,
            reenter: false,
            keep: None,
            bind: None,
        }
    }
}

/// One of the holders of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The hold count, from 1.
    pub count: u32,
    /// How many permits the hold takes, from 1.
    pub permits: u32,
    /// The fence it was granted under; `None` if it was not granted here.
    pub fence: Option<Fence>,
    /// When the lease ends.
    pub deadline: Timestamp,
}

impl Holder {
    /// One who has entered once, with one permit.
    #[must_use]
    pub const fn new(fence: Option<Fence>, deadline: Timestamp) -> Self {
        Self {
            count: 1,
            permits: 1,
            fence,
            deadline,
        }
    }
}

/// Whom an exclusive hold belongs to, seen from the operation at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The owner that asks.
    Caller,
    /// An owner whom this operation handed the lock to.
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
        /// What it has. Its permits count for nothing.
        holder: Holder,
        /// What is published with it: who leads, and where it is reached.
        value: Option<Arc<[u8]>>,
    },
    /// Any number of owners hold it together, at least one.
    Shared(Shared),
    /// The key holds something that is no lock. Nothing is granted, and
    /// waiters go on waiting, until it is gone.
    NoLock,
}

impl Hold {
    /// The hold of one owner alone, who has entered once.
    #[must_use]
    pub const fn exclusive(who: Who, fence: Option<Fence>, deadline: Timestamp) -> Self {
        let holder = Holder::new(fence, deadline);
        let value = None;
        Self::Exclusive { who, holder, value }
    }

    /// Whether nobody holds the lock.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// Takes the hold out, and leaves a free one.
    #[must_use]
    pub const fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Free)
    }

    /// Whether `owner` can be granted `mode` beside what is held now. A shared
    /// holder that is alone does not stand in its own way.
    /// Those whose leases have ended stand in nobody's way.
    pub(crate) fn admits(&self, now: Timestamp, owner: &[u8], mode: Mode) -> bool {
        match (self, mode) {
            (Self::Free, _) | (Self::Shared(_), Mode::Shared { limit: None, .. }) => true,
            (Self::Exclusive { .. } | Self::NoLock, _) => false,
            (Self::Shared(shared), Mode::Exclusive) => {
                shared.live(now) == 1 && shared.get(owner).is_some()
            }
            (
                Self::Shared(shared),
                Mode::Shared {
                    permits,
                    limit: Some(limit),
                },
            ) => shared.live_permits(now) + u64::from(permits) <= u64::from(limit),
        }
    }

    /// Drops holds whose leases have ended, up to `most`, the hold of `owner`
    /// first, and says how many those were.
    pub(crate) fn drop_lapsed(
        &mut self,
        now: Timestamp,
        owner: Option<&[u8]>,
        most: usize,
    ) -> usize {
        match self {
            Self::Free | Self::NoLock => 0,
            Self::Exclusive { holder, .. } => {
                let lapsed = holder.deadline.has_passed(now);
                if lapsed {
                    *self = Self::Free;
                }
                lapsed.into()
            }
            Self::Shared(shared) => {
                if shared.last_end().is_none_or(|end| end.has_passed(now)) {
                    // So has the key.
                    let lapsed = shared.len();
                    *self = Self::Free;
                    return lapsed;
                }
                shared.drop_lapsed(now, owner, most)
            }
        }
    }

    /// A lock that the last shared holder has left is free.
    pub(crate) fn free_if_empty(&mut self) {
        if matches!(self, Self::Shared(shared) if shared.is_empty()) {
            *self = Self::Free;
        }
    }

    /// Sees the hold from `owner`, to whom it may have been handed just now.
    pub(crate) fn seen_by(&mut self, owner: &[u8]) {
        if let Self::Exclusive { who, .. } = self
            && let Who::Waiter(waiter) = who
            && **waiter == *owner
        {
            *who = Who::Caller;
        }
    }

    /// What the owner who asks holds, if anything.
    pub(crate) fn of_caller(&self, owner: &[u8]) -> Option<Holder> {
        match self {
            Self::Exclusive {
                who: Who::Caller,
                holder,
                ..
            } => Some(*holder),
            Self::Shared(shared) => shared.get(owner).copied(),
            Self::Free | Self::Exclusive { .. } | Self::NoLock => None,
        }
    }

    /// Sets what the owner who asks holds; the mode stays.
    pub(crate) fn set_of_caller(&mut self, owner: &[u8], holder: Holder) {
        match self {
            Self::Exclusive {
                who, holder: held, ..
            } => (*who, *held) = (Who::Caller, holder),
            Self::Shared(shared) => shared.put(owner, holder),
            Self::Free | Self::NoLock => {}
        }
    }

    /// Grants shared mode. An exclusive hold of another owner ends.
    pub(crate) fn share(&mut self, owner: &[u8], holder: Holder) {
        if let Self::Shared(shared) = self {
            shared.grant(owner, holder);
        } else {
            // An exclusive hold is known by its fence alone, which another
            // owner's watch may have by chance.
            let mut shared = Shared::begun(!matches!(self, Self::Exclusive { .. }));
            shared.grant(owner, holder);
            *self = Self::Shared(shared);
        }
    }

    /// Ends the hold of an owner who has one, and who knows.
    pub(crate) fn end_of(&mut self, owner: &[u8]) {
        match self {
            Self::Exclusive { .. } => *self = Self::Free,
            Self::Shared(shared) => {
                shared.remove(owner);
                self.free_if_empty();
            }
            Self::Free | Self::NoLock => {}
        }
    }

    /// Ends the hold of an owner who has one, and reports it.
    pub(crate) fn lose(&mut self, owner: &[u8]) {
        if let Self::Shared(shared) = self {
            shared.lose(owner);
        }
        self.end_of(owner);
    }

    /// What is published with the hold, and under which fence. A hold without
    /// a fence was not granted here.
    #[must_use]
    pub fn published(&self) -> Option<(Fence, &Arc<[u8]>)> {
        match self {
            Self::Exclusive {
                holder,
                value: Some(value),
                ..
            } => holder.fence.map(|fence| (fence, value)),
            Self::Free | Self::Exclusive { .. } | Self::Shared(_) | Self::NoLock => None,
        }
    }

    /// Publishes another value with an exclusive hold.
    pub(crate) fn publish(&mut self, new: &[u8]) {
        if let Self::Exclusive { value, .. } = self {
            *value = Some(new.into());
        }
    }

    /// Makes the owner who asks a holder, who may be one already, in shared mode.
    pub(crate) fn grant(
        &mut self,
        now: Timestamp,
        owner: &[u8],
        options: &AcquireOptions,
        value: Option<Arc<[u8]>>,
        fence: Fence,
    ) {
        let held = self.of_caller(owner).map_or(0, |held| held.count);
        let raise = u32::from(held == 0 || options.reenter);
        let holder = Holder {
            count: held.saturating_add(raise).min(COUNT_MAX),
            permits: match options.mode {
                Mode::Exclusive => 1,
                Mode::Shared { permits, .. } => permits.max(1),
            },
            fence: Some(fence),
            deadline: now.plus_millis(options.lease_ms.into()),
        };
        match options.mode {
            Mode::Exclusive => {
                let who = Who::Caller;
                *self = Self::Exclusive { who, holder, value };
            }
            Mode::Shared { .. } => self.share(owner, holder),
        }
    }

    /// Sees the hold of `owner` from any other owner.
    pub(crate) fn seen_from_elsewhere(&mut self, owner: &[u8]) {
        if let Self::Exclusive { who, .. } = self
            && *who == Who::Caller
        {
            *who = Who::Waiter(owner.into());
        }
    }

    /// The fence under which `owner` holds the lock. Whom an exclusive hold
    /// belongs to is not asked: there is one, and its fence tells.
    pub(crate) fn fence_of(&self, owner: &[u8]) -> Option<Fence> {
        match self {
            Self::Free | Self::NoLock => None,
            Self::Exclusive { holder, .. } => holder.fence,
            Self::Shared(shared) => shared.get(owner)?.fence,
        }
    }

    /// When the first of the leases ends, if there is one.
    pub(crate) fn first_end(&self) -> Option<Timestamp> {
        match self {
            Self::Free | Self::NoLock => None,
            Self::Exclusive { holder, .. } => Some(holder.deadline),
            Self::Shared(shared) => shared.first_end(),
        }
    }

    /// When the hold ends, if there is one: the last of the leases.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        match self {
            Self::Free | Self::NoLock => None,
            Self::Exclusive { holder, .. } => Some(holder.deadline),
            Self::Shared(shared) => shared.last_end(),
        }
    }

    /// The largest fence of the hold, if there is a hold and it has one.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        match self {
            Self::Free | Self::NoLock => None,
            Self::Exclusive { holder, .. } => holder.fence,
            Self::Shared(shared) => shared.fence(),
        }
    }

    /// The fence that the next one of this lock has to be above.
    pub(crate) fn floor(&self) -> Option<Fence> {
        match self {
            Self::Shared(shared) => shared.floor(),
            Self::Free | Self::Exclusive { .. } | Self::NoLock => self.fence(),
        }
    }

    /// How many hold the lock.
    #[must_use]
    pub fn holders(&self, now: Timestamp) -> usize {
        match self {
            Self::Free | Self::NoLock => 0,
            Self::Exclusive { .. } => 1,
            Self::Shared(shared) => shared.live(now),
        }
    }
}
