//! What goes into an operation, what it answers, and whom else it concerns.

use std::sync::Arc;

use crate::{
    AcquireOptions, Channel, Delivery, Fence, Grace, Granted, Listener, TicketId, Timestamp,
};

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
    /// What it asks for.
    pub options: AcquireOptions,
    /// How long to queue if it cannot be granted at once.
    pub wait: Wait,
    /// The connection that asks; a script has none.
    pub session: Option<u64>,
    /// The user of the server that asks, for whom its places count; `None` if
    /// they count for nobody. Looked at when it is queued.
    pub user: Option<&'a [u8]>,
    /// Where outcome and loss are published. Needs a connection.
    pub channel: Option<Channel<'a>>,
    /// What is published with the hold, which is exclusive then.
    pub value: Option<&'a [u8]>,
}

/// A renewal.
#[derive(Clone, Copy, Debug)]
pub struct Renewal<'a> {
    /// The lease, in milliseconds.
    pub lease_ms: u32,
    /// What the fence of the hold is raised to, if it is smaller.
    pub fence: Option<Fence>,
    /// The connection that asks; a script has none.
    pub session: Option<u64>,
    /// Where the loss is published from now on; `None` leaves that as it is.
    /// Needs a connection.
    pub channel: Option<Channel<'a>>,
    /// How long the hold outlives its connection from now on; `None` leaves
    /// that as it is. Needs a connection.
    pub bind: Option<Grace>,
    /// What is published with the hold from now on; `None` leaves that as it
    /// is. Needs an exclusive hold.
    pub value: Option<&'a [u8]>,
}

/// What may be queued.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most places in queues; a request for several keys takes several.
    pub waiters_max: u64,
    /// The most watches.
    pub watches_max: u64,
    /// The most shared holders of all locks, together with those who are queued
    /// to be. One who takes a free lock at once is never one too many.
    pub shared_max: u64,
    /// How many shared holders the other locks have, as far as that is known.
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
    /// To be queued: see [`Locks::enqueue`](crate::Locks::enqueue).
    MustWait,
}

/// Why a request to acquire is refused; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The owner has a place in the queue already, by a request of another
    /// mode or for other keys.
    OtherRequest {
        /// Which of the keys it is queued for.
        key: usize,
    },
    /// The owner holds some of the keys, or not all as one.
    PartlyHeld {
        /// A key that it holds.
        key: usize,
    },
    /// There would be more places than there may be.
    TooManyWaiters {
        /// The limit.
        limit: u64,
    },
    /// The user would have more places than each may have.
    TooManyOfUser {
        /// The limit.
        limit: u64,
    },
    /// There are as many watches as there may be.
    TooManyWatches {
        /// The limit.
        limit: u64,
    },
    /// There are as many shared holders as there may be.
    TooManyShared {
        /// The limit.
        limit: u64,
    },
    /// The hold count is at its largest.
    CountOverflow,
    /// The fence to be set is further ahead of the clock than is believed.
    FenceTooLarge {
        /// The fence that was asked for.
        fence: Fence,
        /// The largest that may be set now.
        limit: u64,
    },
    /// The fence to be set belongs to another holder.
    FenceTaken {
        /// The fence that was asked for.
        fence: Fence,
    },
    /// A value was given for a shared hold.
    ValueOfShared,
    /// Waiting would close a cycle of owners who wait for one another.
    Deadlock {
        /// The cycle, the asker first.
        owners: Vec<Box<[u8]>>,
    },
    /// Another shared holder waits to be upgraded already.
    UpgradeDeadlock {
        /// The asker and the other.
        owners: Vec<Box<[u8]>>,
    },
}

/// Something to report to somebody other than the caller, in this order.
#[derive(Debug)]
pub enum Effect {
    /// A waiter holds the lock now.
    HandOff(Granted),
    /// A hold has ended without a release.
    Lost {
        /// Who had it.
        owner: Box<[u8]>,
        /// Under which fence.
        fence: Fence,
        /// Who gets the message.
        listener: Arc<Listener>,
    },
    /// A wait has ended without a grant.
    WaitEnded {
        /// Who has waited.
        owner: Box<[u8]>,
        /// Through what the outcome reaches it.
        delivery: Delivery,
    },
    /// The request is withdrawn: by its owner, or because another connection
    /// took its place over.
    Withdrawn(Delivery),
    /// The lock is offered to those who wait outside the queue: see
    /// [`Locks::nobody_took`](crate::Locks::nobody_took).
    Offer,
}

/// What observers of the value of a lock receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueMessage {
    /// The fence of the hold that it is about.
    pub fence: Fence,
    /// The value that the hold has now; `None` if the hold has ended.
    pub value: Option<Arc<[u8]>>,
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
/// The greater of two stands for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Announce {
    /// No.
    No,
    /// If this has freed the lock, once all effects have been performed.
    IfFreed,
    /// If the lock is free then, even if its key had gone before.
    IfFree,
    /// Yes: the hold ends earlier than they know.
    Sooner,
}

impl Announce {
    /// After a change of the lease of a hold that went on until `before`.
    pub(crate) fn if_sooner(ends: Option<Timestamp>, before: Option<Timestamp>) -> Self {
        if ends < before {
            Self::Sooner
        } else {
            Self::No
        }
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

/// A request that is over without a grant.
#[derive(Debug)]
pub struct Ended {
    /// The first key of the request.
    pub key: Box<[u8]>,
    /// Who has waited.
    pub owner: Box<[u8]>,
    /// Through what the outcome reaches it.
    pub delivery: Delivery,
}

/// Work that has become due.
#[derive(Debug)]
pub enum Due {
    /// This lock has to be settled.
    Settle {
        /// The number of the database.
        db: u32,
        /// The key.
        key: Box<[u8]>,
    },
    /// The wait of this ticket is over.
    WaitEnd(TicketId),
    /// This request, from before the server became a replica, is at its end: its
    /// owner has to ask again.
    TurnAway(Ended),
    /// A request of a queue that was emptied has been withdrawn, and its owner
    /// must be notified.
    Withdraw(Ended),
    /// The connection has closed that this hold is bound to.
    Unbind {
        /// The number of the database.
        db: u32,
        /// The key.
        key: Box<[u8]>,
        /// Who has it.
        owner: Box<[u8]>,
    },
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

    /// The same step, which calls for an unlock message.
    pub(crate) fn announcing(self, announce: Announce) -> Self {
        Self {
            announce: announce.max(self.announce),
            ..self
        }
    }
}
