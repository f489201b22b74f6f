//! Fencing tokens: positive integers that only grow.
//!
//! A resource that remembers the largest fence it has seen can refuse a holder
//! whose lease ended without the holder noticing (M. Kleppmann, "How to do
//! distributed locking", 2016). No counter is stored: the seed is the wall clock
//! in microseconds.
//!
//! A fence in a key, or one that was raised there, may be ahead of the clock. It
//! affects only that key. If it moved the fences of other keys, these would go
//! back at the next restart, because a free lock stores nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;

use crate::{Name, Timestamp};

/// How far ahead of the clock a stored fence may raise later fences of its key,
/// and [`Locks::renew`](crate::Locks::renew) may raise a hold's fence: one hour,
/// in microseconds.
const AHEAD_MAX: u64 = 3_600_000_000;

/// The number of keys whose fences ahead of the clock are remembered.
const KEYS_MAX: usize = 65_536;

/// The number of keys that are forgotten at once after the clock has passed their
/// fences.
const FORGOTTEN_AT_ONCE: usize = 4;

/// A fencing token, below 2^53 so that every client can store it exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// The largest fence: 2^53 - 1, reached by the clock in the year 2255.
    pub const MAX: u64 = (1 << 53) - 1;

    /// The fence with this number; `None` for zero and above [`Fence::MAX`].
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

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.get()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fences of one server: a sequence that follows its clock, and the keys
/// whose fences are ahead of it.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    /// The largest fence that came from the clock or that the clock has passed.
    last: u64,
    ahead: Ahead,
}

impl Fences {
    /// The next fence for a hold of all these keys. It is above every fence that
    /// was given or found in any of them, and not behind the clock, so that
    /// fences also rise after a restart.
    pub(crate) fn next<'a>(
        &mut self,
        now: Timestamp,
        names: impl IntoIterator<Item = Name<'a>, IntoIter: Clone>,
    ) -> Fence {
        let next = now.micros().max(self.last + 1).min(Fence::MAX);
        if self.ahead.is_empty() {
            self.last = next;
            return Fence(next);
        }
        self.next_above(next, names.into_iter())
    }

    /// Records a fence from another server, from this server before its restart,
    /// or from a raise, as far as it can be believed.
    pub(crate) fn record(&mut self, now: Timestamp, name: Name<'_>, seen: Fence) {
        if seen.0 > self.last {
            self.record_ahead(now, name, seen);
        }
    }

    /// The largest fence that is believed.
    pub(crate) const fn highest(now: Timestamp) -> u64 {
        now.micros().saturating_add(AHEAD_MAX)
    }

    #[cold]
    fn next_above<'a>(
        &mut self,
        next: u64,
        names: impl Iterator<Item = Name<'a>> + Clone,
    ) -> Fence {
        // The clock has passed every number below the next fence, and may go
        // back.
        self.last = self.last.max(next - 1);
        self.ahead.forget_below(next);
        let known = names.clone().filter_map(|name| self.ahead.get(name)).max();
        let Some(known) = known.filter(|known| *known >= next) else {
            self.last = next;
            return Fence(next);
        };
        let above = (known + 1).min(Fence::MAX);
        for name in names {
            self.ahead.put(name, above);
        }
        Fence(above)
    }

    #[cold]
    fn record_ahead(&mut self, now: Timestamp, name: Name<'_>, seen: Fence) {
        if seen.0 <= now.micros() {
            self.last = seen.0;
        } else {
            self.ahead.put(name, seen.0.min(Self::highest(now)));
        }
    }
}

/// The fences ahead of the clock, by key. A hash of its name identifies a key,
/// whatever its length. Two keys with the same hash share the larger fence, which
/// harms neither.
#[derive(Debug, Default)]
struct Ahead {
    hasher: RandomState,
    by_key: BTreeMap<u64, u64>,
    by_fence: BTreeSet<(u64, u64)>,
}

impl Ahead {
    fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    fn get(&self, name: Name<'_>) -> Option<u64> {
        self.by_key.get(&self.key_of(name)).copied()
    }

    /// Remembers the fence, unless a larger one is known. If there are too many,
    /// the one furthest ahead is dropped: the clocks of a quorum's servers are
    /// milliseconds apart, and a flood of fences an hour ahead must not displace
    /// their fences.
    fn put(&mut self, name: Name<'_>, fence: u64) {
        let key = self.key_of(name);
        match self.by_key.get(&key).copied() {
            Some(known) if known >= fence => return,
            Some(known) => {
                self.by_fence.remove(&(known, key));
            }
            None if self.by_key.len() >= KEYS_MAX => {
                if let Some((_, furthest)) = self.by_fence.pop_last() {
                    self.by_key.remove(&furthest);
                }
            }
            None => {}
        }
        self.by_key.insert(key, fence);
        self.by_fence.insert((fence, key));
    }

    fn forget_below(&mut self, next: u64) {
        for _ in 0..FORGOTTEN_AT_ONCE {
            let Some((_, key)) = self.by_fence.first().copied().filter(|it| it.0 < next) else {
                return;
            };
            self.by_fence.pop_first();
            self.by_key.remove(&key);
        }
    }

    fn key_of(&self, name: Name<'_>) -> u64 {
        self.hasher.hash_one((name.db, name.key))
    }
}
