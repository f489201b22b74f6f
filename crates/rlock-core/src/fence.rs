//! Fencing tokens: positive integers that only ever grow.
//!
//! A resource that remembers the largest fence it has seen can refuse a
//! holder whose lease ended without the holder noticing (M. Kleppmann, "How
//! to do distributed locking", 2016). No counter is stored for that: the seed
//! is the wall clock in microseconds, and the fence of a held lock, which is
//! stored with it, raises the sequence when it is read.

use std::fmt;

use crate::Timestamp;

/// How far ahead of the clock a stored fence may raise the fences that follow,
/// and [`Locks::renew`](crate::Locks::renew) may raise a hold's: one hour, in
/// microseconds. Who may write one key must not spoil the fences of all others.
const AHEAD_MAX: u64 = 3_600_000_000;

/// A fencing token, below 2^53 so that every client can keep it exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The largest fence: 2^53 - 1, reached by the clock in the year 2255.
    pub const MAX: u64 = (1 << 53) - 1;

    /// The fence of this number, or `None` if the number can be none: zero, or
    /// above [`Fence::MAX`].
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match number {
            1..=Self::MAX => Some(Self(number)),
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
        self.last = now.micros().max(self.last + 1).min(Fence::MAX);
        Fence(self.last)
    }

    /// Takes note of a fence that another server, or this one before its
    /// restart, has given: as far as it may be believed.
    pub(crate) fn raise(&mut self, now: Timestamp, seen: Fence) {
        self.last = self.last.max(seen.0.min(Self::highest(now)));
    }

    /// The largest fence that is believed to be the server's own.
    pub(crate) const fn highest(now: Timestamp) -> u64 {
        now.micros().saturating_add(AHEAD_MAX)
    }
}
