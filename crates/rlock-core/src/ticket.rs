//! One waiter's place in one queue.

use std::{
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
};

use crate::{Mode, Timestamp, queue::QueueId};

/// Names a ticket; never used twice by one table, so a stale one finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(NonZeroU64);

impl TicketId {
    /// Before every ticket.
    pub(crate) const MIN: Self = Self(NonZeroU64::MIN);
    /// After every ticket.
    pub(crate) const MAX: Self = Self(NonZeroU64::MAX);

    pub(crate) const fn new(number: NonZeroU64) -> Self {
        Self(number)
    }
}

/// Names a request for several keys, which has a ticket in the queue of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MultiId(pub(crate) NonZeroU64);

/// Through what the outcome reaches the waiter. The core only carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The reply to a blocked call.
    Blocked {
        /// The connection that waits.
        session: u64,
        /// What the shell knows the blocked call by.
        handle: u64,
    },
    /// A message on a channel.
    Notify {
        /// The connection that asked; the request ends with it.
        session: u64,
        /// Where the outcome is published.
        channel: Arc<[u8]>,
    },
}

impl Delivery {
    /// The connection that asked.
    #[must_use]
    pub const fn session(&self) -> u64 {
        match self {
            Self::Blocked { session, .. } | Self::Notify { session, .. } => *session,
        }
    }

    /// The channel, if the outcome is a message.
    #[must_use]
    pub const fn channel(&self) -> Option<&Arc<[u8]>> {
        match self {
            Self::Notify { channel, .. } => Some(channel),
            Self::Blocked { .. } => None,
        }
    }
}

/// How long a bound hold outlives its connection, in four bytes also where
/// there is none: there may be a million tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grace(NonZeroU32);

impl Grace {
    pub(crate) const fn from_millis(millis: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(millis))
    }

    pub(crate) const fn millis(self) -> u32 {
        self.0.get() - 1
    }
}

/// A waiter's place in a queue, and what it asks for.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Who waits.
    pub owner: Box<[u8]>,
    /// How the lock is asked for.
    pub mode: Mode,
    /// Whether an upgrade leaves the hold count as it is.
    pub once: bool,
    /// The lease of the grant, in milliseconds, counted from the hand-off.
    pub lease_ms: u32,
    /// How long the hold outlives its connection, if it is bound to one.
    pub(crate) grace: Option<Grace>,
    /// When the owner asked first; a takeover does not change it.
    pub since: Timestamp,
    /// When the wait ends; [`Timestamp::NEVER`] for a wait without limit.
    pub wait_ends: Timestamp,
    /// Through what the outcome reaches the waiter.
    pub delivery: Delivery,
    pub(crate) multi: Option<MultiId>,
    /// Whether it was put before all others, to be upgraded.
    pub(crate) first: bool,
    pub(crate) queue: QueueId,
    pub(crate) ahead: Option<TicketId>,
    pub(crate) behind: Option<TicketId>,
}

impl Ticket {
    /// Whether the hold, once granted, has to be remembered: its loss is to be
    /// told, or it ends with its connection.
    pub(crate) const fn is_watched(&self) -> bool {
        self.grace.is_some() || matches!(self.delivery, Delivery::Notify { .. })
    }
}

/// Where a ticket stands in its queue, compared with others: by arrival, but
/// whoever is to be upgraded comes before all who were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(i64);

impl Rank {
    /// Before every ticket.
    pub(crate) const MIN: Self = Self(i64::MIN);
    /// After every ticket.
    pub(crate) const MAX: Self = Self(i64::MAX);

    pub(crate) fn of(id: TicketId, first: bool) -> Self {
        // So many tickets there are never.
        let arrival = i64::try_from(id.0.get()).unwrap_or(i64::MAX - 1);
        Self(if first { -arrival } else { arrival })
    }
}
