//! The input of an operation, its reply, and its effects on others.

use std::sync::Arc;

use crate::{
    AcquireOptions, Channel, Delivery, Extras, Fence, Grace, Granted, Listener, TicketId, Timestamp,
};

/// The name of a lock: a key in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The number of the database.
    pub db: u32,
    /// The key.
    pub key: &'a [u8],
}

/// How long a request may queue.
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

/// A request to acquire a lock.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// Its lease and its options.
    pub options: AcquireOptions,
    /// How long to queue if it cannot be granted at once.
    pub wait: Wait,
    /// The connection that asks; a script has none.
    pub session: Option<u64>,
    /// The user that asks, whose places are counted; `None` to count for no user.
    /// It matters when the request is queued.
    pub user: Option<&'a [u8]>,
    /// The channel for the outcome and a loss. Requires a connection.
    pub channel: Option<Channel<'a>>,
    /// What the hold gets beside that. Requires exclusive mode.
    pub extras: Extras<&'a [u8]>,
}

/// A renewal.
#[derive(Clone, Copy, Debug)]
pub struct Renewal<'a> {
    /// The lease, in milliseconds.
    pub lease_ms: u32,
    /// Raises the fence of the hold to this, if it is smaller.
    pub fence: Option<Fence>,
    /// The connection that asks; a script has none.
    pub session: Option<u64>,
    /// The new channel for a loss; `None` leaves it unchanged. Requires a
    /// connection.
    pub channel: Option<Channel<'a>>,
    /// How long the hold outlives its connection from now on; `None` leaves that
    /// unchanged. Requires a connection.
    pub bind: Option<Grace>,
    /// The new extras of the hold; what is not given stays. Requires an exclusive
    /// hold.
    pub extras: Extras<&'a [u8]>,
}

/// The limits for queueing.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most places in queues; a request for several keys takes several
    /// places.
    pub waiters_max: u64,
    /// The most watches.
    pub watches_max: u64,
    /// The most shared holders of all locks, together with the queued requests
    /// for shared mode. An owner that takes a free lock at once never exceeds it.
    pub shared_max: u64,
    /// The number of shared holders of the other locks, as far as it is known.
    pub shared_elsewhere: u64,
    /// Whether a request that would close a cycle of waiters is refused.
    pub detects_deadlocks: bool,
}

/// The answer to a request to acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The caller holds the lock.
    Granted(Fence),
    /// Not now.
    Busy,
    /// It must be queued: see [`Locks::enqueue`](crate::Locks::enqueue).
    MustWait,
}

/// Why a request to acquire is refused; nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The owner already has a place in the queue, with another mode or other
    /// keys.
    OtherRequest {
        /// The index of the key for which it is queued.
        key: usize,
    },
    /// The owner holds some of the keys, or all but not by one grant.
    PartlyHeld {
        /// A key that it holds.
        key: usize,
    },
    /// The request would exceed the limit of places.
    TooManyWaiters {
        /// The limit.
        limit: u64,
    },
    /// The request would exceed the limit of places for each user.
    TooManyOfUser {
        /// The limit.
        limit: u64,
    },
    /// The limit of watches is reached.
    TooManyWatches {
        /// The limit.
        limit: u64,
    },
    /// The limit of shared holders is reached.
    TooManyShared {
        /// The limit.
        limit: u64,
    },
    /// The hold has fewer permits than the release names.
    TooManyPermits {
        /// The permits to release.
        permits: u32,
        /// The permits of the hold.
        held: u32,
    },
    /// The hold count has its largest value.
    CountOverflow,
    /// The new fence is too far ahead of the clock.
    FenceTooLarge {
        /// The requested fence.
        fence: Fence,
        /// The largest fence that is allowed now.
        limit: u64,
    },
    /// Another holder has the new fence.
    FenceTaken {
        /// The requested fence.
        fence: Fence,
    },
    /// A shared hold cannot publish a value.
    ValueOfShared,
    /// Waiting would close a cycle of owners who wait for one another.
    Deadlock {
        /// The cycle, the asker first.
        owners: Vec<Box<[u8]>>,
    },
    /// Another shared holder already waits for an upgrade.
    UpgradeDeadlock {
        /// The asker and the other.
        owners: Vec<Box<[u8]>>,
    },
}

/// An effect on somebody other than the caller. Effects are carried out in order.
#[derive(Debug)]
pub enum Effect {
    /// A waiter holds the lock now.
    HandOff(Granted),
    /// A hold has ended without a release.
    Lost {
        /// The owner.
        owner: Box<[u8]>,
        /// The fence.
        fence: Fence,
        /// The listener to notify.
        listener: Arc<Listener>,
    },
    /// A wait has ended without a grant.
    WaitEnded {
        /// The owner.
        owner: Box<[u8]>,
        /// How the outcome is delivered.
        delivery: Delivery,
    },
    /// The request is withdrawn: by its owner, or because another connection took
    /// over its place.
    Withdrawn(Delivery),
    /// The lock is offered to clients outside the queue: see
    /// [`Locks::nobody_took`](crate::Locks::nobody_took).
    Offer,
}

/// The message to followers of the value of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueMessage {
    /// The fence of the hold.
    pub fence: Fence,
    /// The current value of the hold; `None` if the hold has ended.
    pub value: Option<Arc<[u8]>>,
}

/// The outcome of an operation: the reply for the caller, and effects on others.
#[derive(Debug)]
pub struct Step<R> {
    /// For the caller.
    pub reply: R,
    /// For others; empty, without an allocation, if there are none.
    pub effects: Vec<Effect>,
    /// Whether clients outside the queue must try again.
    pub announce: Announce,
}

/// Whether the unlock message for clients outside the queue is due. For two
/// steps, the greater value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Announce {
    /// No.
    No,
    /// If this has freed the lock, after all effects were carried out.
    IfFreed,
    /// If the lock is free then, even if its key had already gone.
    IfFree,
    /// Yes: the hold ends earlier than announced.
    Sooner,
}

impl Announce {
    /// After a change of the lease of a hold that lasted until `before`.
    pub(crate) fn if_sooner(ends: Option<Timestamp>, before: Option<Timestamp>) -> Self {
        if ends < before {
            Self::Sooner
        } else {
            Self::No
        }
    }
}

impl<R> Step<R> {
    pub(crate) const fn without_effects(reply: R) -> Self {
        Self {
            reply,
            effects: Vec::new(),
            announce: Announce::No,
        }
    }
}

/// A request that ended without a grant.
#[derive(Debug)]
pub struct Ended {
    /// The first key of the request.
    pub key: Box<[u8]>,
    /// The owner.
    pub owner: Box<[u8]>,
    /// How the outcome is delivered.
    pub delivery: Delivery,
}

/// Work that is due.
#[derive(Debug)]
pub enum Due {
    /// This lock must be settled.
    Settle {
        /// The number of the database.
        db: u32,
        /// The key.
        key: Box<[u8]>,
    },
    /// The wait of this ticket is over.
    WaitEnd(TicketId),
    /// This request is left from before the server became a replica, and ends:
    /// its owner must ask again.
    TurnAway(Ended),
    /// A request in a cleared queue was withdrawn, and its owner must be
    /// notified.
    Withdraw(Ended),
    /// The connection of this bound hold has closed.
    Unbind {
        /// The number of the database.
        db: u32,
        /// The key.
        key: Box<[u8]>,
        /// The owner.
        owner: Box<[u8]>,
    },
}

impl<R> Step<R> {
    /// A step with at most one effect.
    pub fn with_effect(reply: R, other: Option<Effect>) -> Self {
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

    /// The same step, with an unlock message.
    pub(crate) fn announcing(self, announce: Announce) -> Self {
        Self {
            announce: announce.max(self.announce),
            ..self
        }
    }
}
