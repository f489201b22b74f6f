//! One waiter's place in one queue.

use std::{num::NonZeroU64, sync::Arc};

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

/// A waiter's place in a queue, and what it asks for.
#[derive(Debug)]
pub struct Ticket {
    /// Who waits.
    pub owner: Box<[u8]>,
    /// How the lock is asked for.
    pub mode: Mode,
    /// The lease of the grant, in milliseconds, counted from the hand-off.
    pub lease_ms: u64,
    /// When the owner asked first; a takeover does not change it.
    pub since: Timestamp,
    /// When the wait ends; [`Timestamp::NEVER`] for a wait without limit.
    pub wait_ends: Timestamp,
    /// Through what the outcome reaches the waiter.
    pub delivery: Delivery,
    pub(crate) queue: QueueId,
    pub(crate) ahead: Option<TicketId>,
    pub(crate) behind: Option<TicketId>,
}
