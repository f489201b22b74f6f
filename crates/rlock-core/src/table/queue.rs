//! The data of one lock beside its hold. Its waiters are in the orders of the
//! table.

use crate::watch::WatchId;
use crate::{Name, TicketId, Timestamp};

/// The number of a queue; one table never reuses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueueId(pub(crate) u64);

impl QueueId {
    /// Before every queue.
    pub(crate) const MIN: Self = Self(0);
    /// After every queue.
    pub(crate) const MAX: Self = Self(u64::MAX);
}

/// When and why a lock must be checked without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Never: every change will be reported.
    Never,
    /// When the first lease of its hold ends.
    LeaseEnd(Timestamp),
    /// The known lease of its hold has ended; the lock is marked as due.
    LeaseEnded,
    /// Again, because nothing could be decided.
    Again(Timestamp),
}

impl Check {
    pub(crate) const fn at(self) -> Option<Timestamp> {
        match self {
            Self::Never | Self::LeaseEnded => None,
            Self::LeaseEnd(at) | Self::Again(at) => Some(at),
        }
    }
}

/// A [`Check`] without its time, so that both take nine bytes in a queue: there
/// may be a million queues.
#[derive(Clone, Copy, Debug)]
enum CheckKind {
    Never,
    LeaseEnd,
    LeaseEnded,
    Again,
}

/// Hand-offs in a row. After many of them, the lock is offered once to clients
/// outside the queue.
#[derive(Debug, Default)]
pub(crate) struct Streak {
    hand_offs: u32,
    /// Whether the lock is left to them until the next check.
    offered: bool,
}

impl Streak {
    pub(crate) const fn count(&mut self) {
        self.hand_offs = self.hand_offs.saturating_add(1);
    }

    /// Uncounts a hand-off that nobody received.
    pub(crate) const fn uncount(&mut self) {
        self.hand_offs = self.hand_offs.saturating_sub(1);
    }

    /// Whether to offer a free lock, after this number of hand-offs in a row; 0 for
    /// never. After an offer the streak starts again.
    pub(crate) const fn offers(&mut self, after: u64) -> bool {
        let was_offered = self.offered;
        self.offered = !was_offered && after > 0 && self.hand_offs as u64 >= after;
        if self.offered {
            self.hand_offs = 0;
        }
        self.offered
    }

    pub(crate) const fn is_offered(&self) -> bool {
        self.offered
    }

    pub(crate) const fn is_new(&self) -> bool {
        self.hand_offs == 0 && !self.offered
    }

    pub(crate) const fn end_offer(&mut self) {
        self.offered = false;
    }
}

/// First come, first served. Exists only while it has tickets or watches. Only
/// the table changes it.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(super) db: u32,
    pub(super) key: Box<[u8]>,
    /// The number of places, including kept ones.
    pub(super) len: u32,
    pub(super) watches: u32,
    /// The first waiting ticket.
    pub(super) front: Option<TicketId>,
    /// Any of its watches; [`WatchId::MIN`] for none. Most locks have only this one.
    pub(super) first_watch: WatchId,
    check_at: Timestamp,
    check_kind: CheckKind,
    pub(super) streak: Streak,
    pub(super) due: bool,
}

impl Queue {
    pub(super) const fn new(db: u32, key: Box<[u8]>) -> Self {
        Self {
            db,
            key,
            len: 0,
            watches: 0,
            front: None,
            first_watch: WatchId::MIN,
            check_at: Timestamp::NEVER,
            check_kind: CheckKind::Never,
            streak: Streak {
                hand_offs: 0,
                offered: false,
            },
            due: false,
        }
    }

    /// The name of its lock.
    pub(crate) fn name(&self) -> Name<'_> {
        Name {
            db: self.db,
            key: &self.key,
        }
    }

    /// The number of places, including kept ones.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    pub(crate) const fn streak(&self) -> &Streak {
        &self.streak
    }

    /// Whether it has other watches than the first.
    pub(super) fn has_more_watches(&self) -> bool {
        self.watches > u32::from(self.first_watch != WatchId::MIN)
    }

    /// Whether the end of the hold's lease is all that is expected: until this time.
    pub(crate) fn is_quiet_until(&self, lease_end: Timestamp) -> bool {
        !self.due && !self.streak.is_offered() && self.next_check() == Check::LeaseEnd(lease_end)
    }

    /// Whether it is marked for settling.
    pub(crate) const fn is_due(&self) -> bool {
        self.due
    }

    /// Whether the lock was free at the last check, so that it could be granted.
    pub(crate) const fn was_free(&self) -> bool {
        matches!(self.check_kind, CheckKind::Never) && !self.streak.offered
    }

    /// Whether the known lease of the lock has ended.
    pub(crate) const fn was_lease_due(&self, now: Timestamp) -> bool {
        match self.check_kind {
            CheckKind::LeaseEnd => self.check_at.has_passed(now),
            CheckKind::LeaseEnded => true,
            CheckKind::Never | CheckKind::Again => false,
        }
    }

    /// When and why the lock must be checked.
    pub(crate) const fn next_check(&self) -> Check {
        match self.check_kind {
            CheckKind::Never => Check::Never,
            CheckKind::LeaseEnd => Check::LeaseEnd(self.check_at),
            CheckKind::LeaseEnded => Check::LeaseEnded,
            CheckKind::Again => Check::Again(self.check_at),
        }
    }

    pub(super) const fn set_check(&mut self, check: Check) {
        (self.check_kind, self.check_at) = match check {
            Check::Never => (CheckKind::Never, Timestamp::NEVER),
            Check::LeaseEnd(at) => (CheckKind::LeaseEnd, at),
            Check::LeaseEnded => (CheckKind::LeaseEnded, Timestamp::NEVER),
            Check::Again(at) => (CheckKind::Again, at),
        };
    }

    pub(crate) const fn is_idle(&self) -> bool {
        self.len == 0 && self.watches == 0
    }
}
