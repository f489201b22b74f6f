//! Fencing tokens: positive integers that only ever grow.
//!
//! A resource that remembers the largest fence it has seen can refuse a
//! holder whose lease ended without the holder noticing (M. Kleppmann, "How
//! to do distributed locking", 2016). No counter is stored for that: the seed
//! is the wall clock in microseconds, and the fence of a held lock, which is
//! stored with it, raises the sequence when it is read.

use std::fmt;

use crate::Timestamp;

/// A fencing token, below 2^53 so that every client can keep it exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The largest fence that is taken from the store: 2^52, reached by the
    /// clock in the year 2112. A larger one was not written by this module,
    /// and believing it would leave no room for the fences that follow.
    pub const STORED_MAX: u64 = 1 << 52;

    /// The fence that the store says a hold has, or `None` if the number can
    /// be none: zero, or above [`Fence::STORED_MAX`].
    #[must_use]
    pub const fn from_stored(number: u64) -> Option<Self> {
        match number {
            1..=Self::STORED_MAX => Some(Self(number)),
            _ => None,
        }
    }

    /// The fence as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The sequence of fences of one server.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    last: u64,
}

impl Fences {
    /// The next fence: above every one given or seen before, and at least the
    /// clock, so that the sequence goes on after a restart.
    pub(crate) fn next(&mut self, now: Timestamp) -> Fence {
        self.last = now.micros().min(Fence::STORED_MAX).max(self.last + 1);
        Fence(self.last)
    }

    /// Takes note of a fence that another server, or this one before its
    /// restart, has given.
    pub(crate) fn raise(&mut self, seen: Fence) {
        self.last = self.last.max(seen.0);
    }
}
