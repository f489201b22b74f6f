//! What an operator sees: who waits for a lock, and which locks are waited for.

use std::{cmp::Reverse, time::Duration};

use crate::{Locks, Mode, Name, Timestamp, queue::QueueId};

/// How many waiters are looked at to find who has waited for longest.
const FIRST_MAX: usize = 64;

/// One waiter, as an operator sees it.
#[derive(Clone, Copy, Debug)]
pub struct WaiterView<'a> {
    /// Who waits.
    pub owner: &'a [u8],
    /// How the lock is asked for.
    pub mode: Mode,
    /// How long it has waited, from its first asking.
    pub waited: Duration,
    /// How many milliseconds it is still willing to wait; `None` without limit.
    pub wait_left_ms: Option<u64>,
    /// The connection that waits.
    pub session: u64,
}

/// A lock with waiters, as an operator sees it.
#[derive(Clone, Copy, Debug)]
pub struct ContendedView<'a> {
    /// The key.
    pub key: &'a [u8],
    /// How many wait for it.
    pub waiters: u32,
    /// How long the one has waited who has done so for longest.
    pub oldest_wait: Duration,
}

impl Locks {
    /// The waiters of a lock in order.
    pub fn waiters(&self, now: Timestamp, name: Name<'_>) -> impl Iterator<Item = WaiterView<'_>> {
        let queue = self.table.find(name);
        queue.into_iter().flat_map(move |id| {
            self.table.in_order(id).map(move |(_, ticket)| WaiterView {
                owner: &ticket.owner,
                mode: ticket.mode,
                waited: now.since(ticket.since),
                wait_left_ms: (ticket.wait_ends != Timestamp::NEVER)
                    .then(|| ticket.wait_ends.millis_from(now)),
                session: ticket.delivery.session(),
            })
        })
    }

    /// How many wait for a lock.
    #[must_use]
    pub fn queued(&self, name: Name<'_>) -> u32 {
        let queue = self.table.find(name);
        let queue = queue.and_then(|id| self.table.queues.get(&id));
        queue.map_or(0, |queue| queue.len)
    }

    /// The locks of a database with waiters, those with the most first.
    pub fn most_contended(
        &self,
        now: Timestamp,
        db: u32,
    ) -> impl Iterator<Item = ContendedView<'_>> {
        let all = (db, Reverse(u32::MAX), QueueId::MIN)..=(db, Reverse(0), QueueId::MAX);
        let found = self.table.contended.range(all);
        found.filter_map(move |(_, _, id)| {
            let queue = self.table.queues.get(id)?;
            // Those who were put first may have come after all others.
            let mut first = self.table.in_order(*id).take(FIRST_MAX);
            let mut since = Timestamp::NEVER;
            for (_, ticket) in first.by_ref() {
                since = since.min(ticket.since);
                if !ticket.first {
                    break;
                }
            }
            Some(ContendedView {
                key: &queue.key,
                waiters: queue.len,
                oldest_wait: now.since(since),
            })
        })
    }
}
