//! Who holds a lock, as far as one operation must know.
//!
//! The store keeps the hold. The core gets this view of it and changes the view;
//! the store writes the changes. Only [`Hold::admits`] decides which modes are
//! compatible.

use std::sync::Arc;

use crate::{Extras, Fence, Grace, Shared, Timestamp};

/// The largest hold count.
pub(crate) const COUNT_MAX: u32 = i32::MAX as u32;

/// The mode of a hold or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For one owner alone.
    Exclusive,
    /// Together with other shared holders.
    Shared {
        /// The number of requested permits, from 1.
        permits: u32,
        /// The most permits of all holders together.
        limit: Option<u32>,
    },
}

impl Mode {
    /// Whether both are the same mode, whatever their permits.
    pub(crate) const fn is_like(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Exclusive, Self::Exclusive) | (Self::Shared { .. }, Self::Shared { .. })
        )
    }
}

/// The lease and the options of a request, independent of its owner and of its
/// delivery. They stay together from the words of a command to the ticket and to
/// the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireOptions {
    /// The requested mode.
    pub mode: Mode,
    /// The lease, in milliseconds, counted from the grant.
    pub lease_ms: u32,
    /// Whether a holder enters once more; otherwise its request changes only the
    /// lease.
    pub reenter: bool,
    /// How long the place in the queue outlives the call, if it is kept.
    pub keep: Option<Grace>,
    /// How long the hold outlives its connection, if it is bound to one. Requires
    /// a connection.
    pub bind: Option<Grace>,
}

impl AcquireOptions {
    /// A lease without further options.
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
    /// The number of permits of the hold, from 1.
    pub permits: u32,
    /// Its fence; `None` if it was not granted here.
    pub fence: Option<Fence>,
    /// When the lease ends.
    pub deadline: Timestamp,
}

impl Holder {
    /// A holder that has entered once, with one permit.
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

/// The owner of an exclusive hold, in the view of the current operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The owner that asks.
    Caller,
    /// An owner that got the lock by this operation.
    Waiter(Box<[u8]>),
    /// Another owner; its name does not matter to the operation.
    Other,
}

/// The hold of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody holds it: the key does not exist.
    Free,
    /// One owner holds it exclusively.
    Exclusive {
        /// Its owner.
        who: Who,
        /// Its data. The permits do not count.
        holder: Holder,
        /// What it has beside that.
        extras: Extras,
    },
    /// At least one owner holds it in shared mode.
    Shared(Shared),
    /// The key is not a lock. Until that ends, nothing is granted and waiters
    /// keep waiting.
    NoLock,
}

impl Hold {
    /// The exclusive hold of an owner that has entered once.
    #[must_use]
    pub const fn exclusive(who: Who, fence: Option<Fence>, deadline: Timestamp) -> Self {
        let (holder, extras) = (Holder::new(fence, deadline), Extras::NONE);
        Self::Exclusive {
            who,
            holder,
            extras,
        }
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

    /// Whether `owner` can be granted `mode` beside the current hold. The only
    /// shared holder does not block itself. Holders whose leases have ended block
    /// nobody.
    pub(crate) fn admits(&self, now: Timestamp, owner: &[u8], mode: Mode) -> bool {
        match (self, mode) {
            (Self::Free, _) | (Self::Shared(_), Mode::Shared { limit: None, .. }) => true,
            (Self::Exclusive { .. } | Self::NoLock, _) => false,
            (Self::Shared(shared), Mode::Exclusive) => {
                shared.live(now) == 1 && shared.has_live(now, owner)
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

    /// Whether a grant to `owner` would replace shared holds whose leases have ended
    /// and that are not dropped yet: its own, or in exclusive mode all.
    pub(crate) fn has_ended_for(&self, now: Timestamp, owner: &[u8], mode: Mode) -> bool {
        match (self, mode) {
            (Self::Shared(shared), Mode::Exclusive) => shared.live(now) < shared.len(),
            (Self::Shared(shared), Mode::Shared { .. }) => {
                shared.get(owner).is_some() && !shared.has_live(now, owner)
            }
            (Self::Free | Self::Exclusive { .. } | Self::NoLock, _) => false,
        }
    }

    /// Drops up to `most` holds whose leases have ended, first the hold of
    /// `owner`, and returns their number.
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
                    // The key has ended too.
                    let lapsed = shared.len();
                    *self = Self::Free;
                    return lapsed;
                }
                shared.drop_lapsed(now, owner, most)
            }
        }
    }

    /// Frees a lock without shared holders.
    pub(crate) fn free_if_empty(&mut self) {
        if matches!(self, Self::Shared(shared) if shared.is_empty()) {
            *self = Self::Free;
        }
    }

    /// Changes the view to `owner`, which may just have got the lock.
    pub(crate) fn seen_by(&mut self, owner: &[u8]) {
        if let Self::Exclusive { who, .. } = self
            && let Who::Waiter(waiter) = who
            && **waiter == *owner
        {
            *who = Who::Caller;
        }
    }

    /// The hold of the owner that asks, if it has one.
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

    /// Sets the hold of the owner that asks; the mode stays.
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
            // Only its fence identifies an exclusive hold, and another owner's
            // watch may have the same fence by chance.
            let mut shared = Shared::begun(!matches!(self, Self::Exclusive { .. }));
            shared.grant(owner, holder);
            *self = Self::Shared(shared);
        }
    }

    /// Ends the hold of an owner that knows of it.
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

    /// Ends the hold of an owner that must be notified.
    pub(crate) fn lose(&mut self, owner: &[u8]) {
        if let Self::Shared(shared) = self {
            shared.lose(owner);
        }
        self.end_of(owner);
    }

    /// Ends all holds, and returns their number.
    pub(crate) fn end_all(&mut self, now: Timestamp) -> u64 {
        let holders = self.holders(now) as u64;
        if holders > 0 {
            *self = Self::Free;
        }
        holders
    }

    /// Ends the hold with this fence, whose owner must be notified; false if there
    /// is none.
    pub(crate) fn end_under(&mut self, now: Timestamp, fence: Fence) -> bool {
        let owner: Arc<[u8]> = match self {
            Self::Free | Self::NoLock => return false,
            Self::Exclusive { holder, .. } => {
                let is_its = holder.fence == Some(fence);
                if is_its {
                    *self = Self::Free;
                }
                return is_its;
            }
            Self::Shared(shared) => {
                let is_its = |it: &Holder| it.fence == Some(fence) && !it.deadline.has_passed(now);
                match shared.iter().find(|(_, it)| is_its(it)) {
                    Some((owner, _)) => owner.into(),
                    None => return false,
                }
            }
        };
        self.lose(&owner);
        true
    }

    /// The published value of the hold, and its fence. A hold without a fence was
    /// not granted here.
    #[must_use]
    pub fn published(&self) -> Option<(Fence, &Arc<[u8]>)> {
        match self {
            Self::Exclusive { holder, extras, .. } => holder.fence.zip(extras.value.as_ref()),
            Self::Free | Self::Shared(_) | Self::NoLock => None,
        }
    }

    /// Changes each of the extras that is given, of an exclusive hold.
    pub(crate) fn change_extras(&mut self, new: Extras<&[u8]>) {
        if let Self::Exclusive { extras, .. } = self {
            extras.change(new.kept());
        }
    }

    /// Makes the asking owner a holder. It may already be one, in shared mode.
    pub(crate) fn grant(
        &mut self,
        now: Timestamp,
        owner: &[u8],
        options: &AcquireOptions,
        extras: Extras,
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
                *self = Self::Exclusive {
                    who: Who::Caller,
                    holder,
                    extras,
                };
            }
            Mode::Shared { .. } => self.share(owner, holder),
        }
    }

    /// Changes the view of the hold of `owner` to another owner's view.
    pub(crate) fn view_as_other(&mut self, owner: &[u8]) {
        if let Self::Exclusive { who, .. } = self
            && *who == Who::Caller
        {
            *who = Who::Waiter(owner.into());
        }
    }

    /// The fence under which `owner` holds the lock. An exclusive hold's owner is
    /// not checked: there is only one hold, and its fence identifies it.
    pub(crate) fn fence_of(&self, owner: &[u8]) -> Option<Fence> {
        match self {
            Self::Free | Self::NoLock => None,
            Self::Exclusive { holder, .. } => holder.fence,
            Self::Shared(shared) => shared.get(owner)?.fence,
        }
    }

    /// When the first lease ends, if there is one.
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

    /// The largest fence of the hold, if there is one.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        match self {
            Self::Free | Self::NoLock => None,
            Self::Exclusive { holder, .. } => holder.fence,
            Self::Shared(shared) => shared.fence(),
        }
    }

    /// The next fence of this lock must be above this one.
    pub(crate) fn floor(&self) -> Option<Fence> {
        match self {
            Self::Shared(shared) => shared.floor(),
            Self::Free | Self::Exclusive { .. } | Self::NoLock => self.fence(),
        }
    }

    /// The number of holders.
    #[must_use]
    pub fn holders(&self, now: Timestamp) -> usize {
        match self {
            Self::Free | Self::NoLock => 0,
            Self::Exclusive { .. } => 1,
            Self::Shared(shared) => shared.live(now),
        }
    }
}
