//! The grants that an owner has released and that a server may return to it.
//!
//! Replication is asynchronous. A replica that never heard of a release may
//! become the master: there the owner still holds the lock, and its next request
//! is answered with the old grant. Meanwhile the old master may have granted the
//! lock to another owner under a larger fence, and that guard is still valid. So
//! a new hold never starts with a fence that its owner has given up.

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::claims::{Claims, Name, Table};
use crate::engine::instant::Instant;

/// How much the clocks of a master and its successor may differ. Leases are
/// replicated as points in time.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(10);
/// The number of entries below which no search for old ones is worthwhile.
const SWEEP_MIN: usize = 64;

/// The largest fence that each owner has given up at a key, until the lease of
/// that grant is over on every server.
#[derive(Debug, Default)]
pub(super) struct Released {
    fences: Table<Name, (u64, Instant)>,
    /// The number of entries at which old ones are removed. It is twice the number
    /// that stayed the last time, so a removal costs each entry little.
    sweep_at: usize,
}

impl Released {
    fn insert(&mut self, now: Instant, name: &Name, fence: u64, until: Instant) {
        if self.fences.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.fences.retain(|_, (_, until)| *until > now);
            self.sweep_at = 2 * self.fences.len();
        }
        let entry = self.fences.entry(name.clone()).or_insert((fence, until));
        *entry = (entry.0.max(fence), entry.1.max(until));
    }

    fn has(&self, now: Instant, name: &Name, fence: u64) -> bool {
        let known = self.fences.get(name);
        known.is_some_and(|(given_up, until)| *until > now && fence <= *given_up)
    }
}

impl Engine {
    /// The owner has given up a grant whose lease ends at `lease_end` by this
    /// clock. Owners for a single call are not remembered: they never ask again.
    pub(super) fn remember_released(
        &mut self,
        now: Instant,
        claims: &Claims,
        fence: u64,
        lease_end: Instant,
    ) {
        if claims.owner().is_single_use() {
            return;
        }
        for name in claims.names() {
            let until = lease_end + CLOCK_DIFFERENCE;
            self.released.insert(now, name, fence, until);
        }
    }

    /// Whether the owner has given up the grant with this fence, or a later one,
    /// at any of these keys.
    pub(super) fn is_released(&self, now: Instant, claims: &Claims, fence: u64) -> bool {
        let is_released = |name| self.released.has(now, name, fence);
        !claims.owner().is_single_use() && claims.names().any(is_released)
    }
}
