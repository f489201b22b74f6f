//! What goes into an operation, what it answers, and whom else it concerns.

use std::time::Duration;

use crate::{Delivery, Fence, Mode, Ticket, TicketId, Timestamp, queue::Watch};

/// The name of a lock: a key in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The number of the database.
    pub db: u32,
    /// The key.
    pub key: &'a [u8],
}

/// How long a request is willing to queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// This many milliseconds.
    Millis(u64),
    /// Without limit.
    Forever,
}

impl Wait {
    /// When a wait that begins `now` ends.
    pub(crate) fn ends(self, now: Timestamp) -> Timestamp {
        match self {
            Self::No => now,
            Self::Millis(millis) => now.plus_millis(millis),
            Self::Forever => Timestamp::NEVER,
        }
    }
}

/// A request to acquire.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who asks.
    pub owner: &'a [u8],
    /// How the lock is asked for.
    pub mode: Mode,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// Whether asking again is the same request once more, not one more entry.
    pub once: bool,
    /// How long to queue if it cannot be granted at once.
    pub wait: Wait,
    /// Where outcome and loss are published, and for which connection.
    pub notify: Option<(u64, &'a [u8])>,
}

/// What may be queued, and from when on grants are given.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most tickets.
    pub waiters_max: u64,
    /// The most watches.
    pub watches_max: u64,
}

/// The answer to a request to acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The caller holds the lock.
    Granted(Fence),
    /// Not now.
    Busy,
    /// To be queued: see [`Locks::enqueue`](crate::Locks::enqueue).
    MustWait,
}

/// Why a request to acquire is refused; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The owner is queued already, and this is not the same request again.
    AlreadyQueued,
    /// There are as many tickets as there may be.
    TooManyWaiters {
        /// The limit.
        limit: u64,
    },
    /// There are as many watches as there may be.
    TooManyWatches {
        /// The limit.
        limit: u64,
    },
    /// The hold count is at its largest.
    CountOverflow,
}

/// Something to be told to somebody other than the caller, in this order.
#[derive(Debug)]
pub enum Effect {
    /// The owner of the ticket holds the lock now.
    HandOff {
        /// Its former place in the queue.
        ticket: Box<Ticket>,
        /// The fence of its hold.
        fence: Fence,
        /// How long it has waited.
        waited: Duration,
    },
    /// The hold that this watch is for has ended without a release.
    Lost(Watch),
    /// The wait has ended without a grant.
    WaitEnded(Box<Ticket>),
    /// The request is withdrawn: by its owner, or because another connection
    /// took its place over.
    Withdrawn(Delivery),
}

/// The outcome of an operation: the reply for the caller, effects for others.
#[derive(Debug)]
pub struct Step<R> {
    /// For the caller.
    pub reply: R,
    /// For others; empty, and then not allocated, if nobody else is concerned.
    pub effects: Vec<Effect>,
    /// Whether those who wait outside the queue have to look again.
    pub announce: Announce,
}

/// Whether the unlock message is due, for those who wait outside the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    /// No.
    No,
    /// If the lock is free once all effects have been performed.
    IfFree,
    /// Yes: the hold ends earlier than they were told.
    Sooner,
}

impl Announce {
    pub(crate) fn if_sooner(ends: Timestamp, than: Timestamp) -> Self {
        if ends < than { Self::Sooner } else { Self::No }
    }
}

impl<R> Step<R> {
    pub(crate) const fn quiet(reply: R) -> Self {
        Self {
            reply,
            effects: Vec::new(),
            announce: Announce::No,
        }
    }
}

/// Work that has become due.
#[derive(Debug)]
pub enum Due {
    /// This lock has to be settled.
    Settle {
        /// The number of the database.
        db: u32,
        /// The key.
        key: std::sync::Arc<[u8]>,
    },
    /// The wait of this ticket is over.
    WaitEnd(TicketId),
}

impl<R> Step<R> {
    /// A step that concerns one other at most.
    pub fn telling(reply: R, other: Option<Effect>) -> Self {
        Self {
            reply,
            effects: other.into_iter().collect(),
            announce: Announce::No,
        }
    }

    /// The same step with another reply.
    pub fn with<S>(self, reply: S) -> Step<S> {
        Step {
            reply,
            effects: self.effects,
            announce: self.announce,
        }
    }
}
