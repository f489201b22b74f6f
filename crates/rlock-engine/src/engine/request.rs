//! What the engine asks the server, and what it can be answered.

use std::time::Duration;

use crate::engine::Id;
use crate::engine::ask::{Ask, Queueing};
use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::lane::Node;

/// A request. None of them does harm if it is carried out twice.
#[derive(Clone, Debug)]
pub enum Request {
    /// Answered with a fence, [`Reply::Queued`] or nil.
    Acquire {
        /// Who asks, and for what.
        claims: Claims,
        /// How it is to be held.
        ask: Ask,
        /// How long a grant lasts.
        lease: Duration,
        /// How long it lasts after the end of its connection, if it is bound.
        bound: Option<Duration>,
        /// Whether and how long to wait.
        queueing: Queueing,
        /// Whether the server is to tell of the outcome and of a loss.
        notify: bool,
    },
    /// Answered with a fence, or nil if not everything is held. For several
    /// keys the server names no fence; then it is the one known before.
    /// Answered with [`Reply::TooFew`] if it was done, but not enough replicas
    /// have said in time that they know it.
    Renew {
        /// Who holds what.
        claims: Claims,
        /// How long the hold lasts from then on.
        lease: Duration,
        /// The fence that is known.
        known: u64,
        /// What the fence is to be raised to, if it is smaller; of one key only.
        raise: Option<u64>,
        /// How long it lasts after the end of its connection from then on; none
        /// leaves that as it is.
        bound: Option<Duration>,
        /// Whether the server is to tell of a loss by this connection from then on.
        notify: bool,
        /// How many replicas have to know it.
        replicas: u16,
    },
    /// Answered with `Done`, or nil if not everything was held. With a fence
    /// only what is held under it is released, so that a release that arrives
    /// late frees nothing that its owner has taken anew.
    Release {
        /// Who held what.
        claims: Claims,
        /// Under which fence; none is any.
        fence: Option<u64>,
    },
    /// Each key by itself, for when one of them holds something that is no
    /// lock, and keeps the server from releasing any.
    ReleaseEach {
        /// Who held what.
        claims: Claims,
        /// Under which fence; none is any.
        fence: Option<u64>,
    },
    /// Answered with a fence, or nil.
    Downgrade {
        /// Who holds what.
        claims: Claims,
    },
    /// Withdraws a request, or ends the place that was kept for it; answered
    /// with how many there were.
    Cancel {
        /// Who waits for what.
        claims: Claims,
    },
    /// Withdraws a request and undoes its grant; answered with what undoing
    /// came to.
    CleanUp {
        /// Who has asked for what.
        claims: Claims,
        /// What is to be done about a grant.
        undo: Undo,
    },
    /// Asks for a sign of life.
    Ping,
}

impl Request {
    /// How many replicas have to know of what it does.
    pub fn replicas(&self) -> u16 {
        match self {
            Self::Renew { replicas, .. } => *replicas,
            _ => 0,
        }
    }

    /// Whether it goes by a connection of its own, as it waits for replicas. Its
    /// answer, or that there is none, says nothing of the one that all others
    /// go by.
    pub fn goes_beside(&self) -> bool {
        self.replicas() > 0
    }

    /// Whether it is about what is there already, which goes with its key from
    /// one server to another, and has the server tell of nothing.
    pub fn is_of_a_hold(&self) -> bool {
        match self {
            Self::Renew { notify, .. } => !notify,
            Self::Release { .. }
            | Self::ReleaseEach { .. }
            | Self::Downgrade { .. }
            | Self::CleanUp { .. } => true,
            Self::Acquire { .. } | Self::Cancel { .. } | Self::Ping => false,
        }
    }
}

/// How to undo what a request that nobody waits for may have been granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// It can have been granted what has guards on it only.
    Nothing,
    /// It was free.
    Release,
    /// It was shared.
    Downgrade,
}

/// What a server answers to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It holds, under this fence.
    Fence(u64),
    /// It does not hold.
    Nil,
    /// The request waits.
    Queued,
    /// So many were there.
    Count(u64),
    /// So many replicas know it.
    TooFew(u16),
    /// It was done.
    Done,
    /// Of several requests the last was refused.
    Refused,
}

/// A request that was sent and not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) by: By,
    pub(super) node: Node,
    pub(super) link: u64,
    pub(super) goes_beside: bool,
    pub(super) sent: Instant,
}

/// A renewal that the watchdog has asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    pub(super) hold: Id,
    /// The lease that was asked for, and the fence by then.
    pub(super) lease: Duration,
    pub(super) fence: u64,
    /// Whether it has the loss told by its connection.
    pub(super) attaches: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    Work(Id),
    Renewal(Renewal),
    Ping,
}
