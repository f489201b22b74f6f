//! What a request asks for: to be alone, to share, or some of a number of
//! permits; and for how long it waits.

use std::time::Duration;

/// How a lock is asked for, and then held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// By one owner.
    Exclusive,
    /// Together with all others that share it.
    Shared,
    /// `permits` of at most `limit`, which every caller names itself.
    Permits {
        /// How many there are.
        limit: u32,
        /// How many of them; from 1.
        permits: u32,
    },
}

impl Ask {
    /// Whether nobody else can hold it then.
    pub fn is_exclusive(self) -> bool {
        self == Self::Exclusive
    }

    /// How many permits a hold has that was asked for like this.
    pub fn permits(self) -> u32 {
        match self {
            Self::Exclusive | Self::Shared => 1,
            Self::Permits { permits, .. } => permits,
        }
    }
}

/// How a request for a lock is told its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// Not at all: now or never.
    Try,
    /// Waits in the server's queue, at most this long.
    AtMost(Duration),
    /// Waits in the server's queue without limit.
    Unlimited,
}
