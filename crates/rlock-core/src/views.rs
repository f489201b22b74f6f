//! What an operator sees: who waits for a lock, and which locks are waited for.

use std::cmp::Reverse;
use std::time::Duration;

use crate::queue::QueueId;
use crate::{Locks, Mode, Name, Ticket, Timestamp};

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
    /// How many milliseconds it is still willing to wait; `None` without limit,
    /// or if nobody waits in the place.
    pub wait_left_ms: Option<u64>,
    /// The connection that waits, if any does.
    pub session: Option<u64>,
    /// For how many milliseconds the place is kept, if nobody waits in it.
    pub kept_left_ms: Option<u64>,
}

/// A lock with a queue, as an operator sees it.
#[derive(Clone, Copy, Debug)]
pub struct ContendedView<'a> {
    /// The key.
    pub key: &'a [u8],
    /// How many places its queue has, kept ones too.
    pub waiters: u32,
    /// How long ago the first of them was taken.
    pub oldest_wait: Duration,
}

impl Locks {
    /// The places in the queue of a lock in order, kept ones too.
    pub fn waiters(&self, now: Timestamp, name: Name<'_>) -> impl Iterator<Item = WaiterView<'_>> {
        let queue = self.table.find(name);
        queue.into_iter().flat_map(move |id| {
            let places = self.table.places(id);
            places.map(move |ticket| view(now, ticket))
        })
    }

    /// How many places the queue of a lock has, kept ones too.
    #[must_use]
    pub fn queued(&self, name: Name<'_>) -> u32 {
        let queue = self.table.find(name);
        let queue = queue.and_then(|id| self.table.queues.get(&id));
        queue.map_or(0, |queue| queue.len)
    }

    /// The locks of a database with places in their queues, those with the most
    /// first, and of those with as many the one whose queue has been for longest.
    pub fn most_contended(
        &self,
        now: Timestamp,
        db: u32,
    ) -> impl Iterator<Item = ContendedView<'_>> {
        let all = (db, Reverse(u32::MAX), QueueId::MIN)..=(db, Reverse(0), QueueId::MAX);
        let found = self.table.contended.range(all).map(|(_, _, id)| *id);
        found.filter_map(move |id| {
            let queue = self.table.queues.get(&id)?;
            // Those who were put first may have come after all others.
            let mut since = Timestamp::NEVER;
            for ticket in self.table.places(id).take(FIRST_MAX) {
                since = since.min(ticket.since);
                if !ticket.is_upgrade {
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

fn view(now: Timestamp, ticket: &Ticket) -> WaiterView<'_> {
    let left = (ticket.wait_ends != Timestamp::NEVER).then(|| ticket.wait_ends.millis_from(now));
    WaiterView {
        owner: &ticket.owner,
        mode: ticket.options.mode,
        waited: now.since(ticket.since),
        wait_left_ms: left.filter(|_| !ticket.is_kept()),
        session: ticket.delivery.session(),
        kept_left_ms: left.filter(|_| ticket.is_kept()),
    }
}
