//! All queues, and the indices by which a ticket is found.
//!
//! This file keeps things in step and decides nothing. Ordered maps are used
//! for what grows with the number of waiters: they give their memory back as
//! they shrink, and never stop to copy themselves.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{BuildHasher, RandomState},
    num::NonZeroU64,
    ops::Bound,
};

use crate::{
    Gauges, Name, Ticket, TicketId,
    deadlines::Deadlines,
    losses::Search,
    queue::{Look, Queue, QueueId},
    ticket::{Multi, MultiId, Rank},
    watch::{Watch, WatchId},
};

/// How many marks of queues that are gone are kept at least.
const STALE_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Queues by a hash of their names, which costs less than the names.
    pub(crate) names: BTreeSet<(u64, QueueId)>,
    pub(crate) queues: BTreeMap<QueueId, Box<Queue>>,
    pub(crate) tickets: BTreeMap<TicketId, Box<Ticket>>,
    pub(crate) multis: BTreeMap<MultiId, Multi>,
    pub(crate) watches: BTreeMap<WatchId, Watch>,
    pub(crate) deadlines: Deadlines,
    /// How far the search for lost holds has come, lock by lock.
    pub(crate) searches: BTreeMap<QueueId, Search>,
    pub(crate) due: VecDeque<QueueId>,
    /// How many of those marked as due are still there.
    pub(crate) due_now: usize,
    /// Those who wait by owner and queue, see `tickets`.
    pub(crate) by_owner: BTreeSet<(u64, TicketId)>,
    /// Kept places by owner and queue.
    pub(crate) kept_by_owner: BTreeSet<(u64, TicketId)>,
    /// Those who wait, queue by queue, in order.
    pub(crate) waiting: BTreeSet<(QueueId, Rank)>,
    /// Kept places, queue by queue, in order.
    pub(crate) kept: BTreeSet<(QueueId, Rank)>,
    /// Of those who wait the ones whose owners wait elsewhere too.
    pub(crate) linked: BTreeSet<(QueueId, Rank)>,
    /// Queues with places by database, the longest first.
    pub(crate) contended: BTreeSet<(u32, Reverse<u32>, QueueId)>,
    /// Requests whose outcome is a message, by connection.
    pub(crate) session_tickets: BTreeSet<(u64, TicketId)>,
    pub(crate) session_watches: BTreeSet<(u64, WatchId)>,
    pub(crate) watches_by_owner: BTreeSet<(QueueId, u64, WatchId)>,
    pub(crate) watched_tickets: u64,
    /// How many places each user has, by a hash of the name.
    pub(crate) places_by_user: BTreeMap<NonZeroU64, u64>,
    /// How many places are asked for in shared mode.
    pub(crate) shared_places: u64,
    pub(crate) bound: u64,
    pub(crate) hasher: RandomState,
    last_id: Option<NonZeroU64>,
}

impl Table {
    pub(crate) fn find(&self, name: Name<'_>) -> Option<QueueId> {
        if self.queues.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one((name.db, name.key));
        let all = (hash, QueueId::MIN)..=(hash, QueueId::MAX);
        let mut found = self.names.range(all).map(|(_, id)| *id);
        found.find(|id| {
            let queue = self.queues.get(id);
            queue.is_some_and(|it| it.db == name.db && *it.key == *name.key)
        })
    }

    pub(crate) fn find_or_insert(&mut self, name: Name<'_>) -> QueueId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let id = QueueId(self.next_id().get());
        let hash = self.hasher.hash_one((name.db, name.key));
        self.names.insert((hash, id));
        let queue = Queue::new(name.db, name.key.into());
        self.queues.insert(id, Box::new(queue));
        id
    }

    /// Forgets a queue that has neither tickets nor watches.
    pub(crate) fn drop_if_idle(&mut self, id: QueueId) {
        if !self.queues.get(&id).is_some_and(|queue| queue.is_idle()) {
            return;
        }
        self.look(id, Look::Never);
        self.searches.remove(&id);
        let Some(queue) = self.queues.remove(&id) else {
            return;
        };
        self.due_now -= usize::from(queue.due);
        let hash = self.hasher.hash_one((queue.db, &*queue.key));
        self.names.remove(&(hash, id));
    }

    /// Sets when the lock has to be looked at.
    pub(crate) fn look(&mut self, id: QueueId, look: Look) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        if queue.look() == look {
            return;
        }
        if let Some(at) = queue.look().at() {
            self.deadlines.looks.remove(&(at, id));
        }
        if let Some(at) = look.at() {
            self.deadlines.looks.insert((at, id));
        }
        queue.set_look(look);
    }

    pub(crate) fn mark_due(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id)
            && !queue.due
        {
            queue.due = true;
            self.due_now += 1;
            self.due.push_back(id);
            // Marks of queues that are gone must not pile up.
            if self.due.len() > 2 * self.due_now + STALE_MAX {
                self.due.retain(|id| self.queues.contains_key(id));
            }
        }
    }

    /// The queue that has been marked for longest, no longer marked.
    pub(crate) fn next_due(&mut self) -> Option<&Queue> {
        loop {
            let id = self.due.pop_front()?;
            if self.due.is_empty() {
                self.due.shrink_to(64);
            }
            // A queue that went idle meanwhile has left its mark behind.
            if self.queues.contains_key(&id) {
                let queue = self.queues.get_mut(&id)?;
                queue.due = false;
                self.due_now -= 1;
                return Some(queue);
            }
        }
    }

    /// The queues from `from` on, in the order in which they came to be.
    pub(crate) fn queues_from(&self, from: QueueId) -> impl Iterator<Item = (QueueId, &Queue)> {
        let range = (Bound::Included(from), Bound::Unbounded);
        self.queues.range(range).map(|(id, queue)| (*id, &**queue))
    }

    pub(crate) fn gauges(&self) -> Gauges {
        Gauges {
            waiters: self.tickets.len() as u64,
            places_kept: self.kept.len() as u64,
            contended_locks: self.contended.len() as u64,
            watches: self.watched_tickets + self.watches.len() as u64,
            bound_holds: self.bound,
        }
    }

    /// The number that was given last.
    pub(crate) const fn last_id(&self) -> Option<NonZeroU64> {
        self.last_id
    }

    /// A number that was never given before; they would last for centuries.
    pub(crate) const fn next_id(&mut self) -> NonZeroU64 {
        let id = match self.last_id {
            None => NonZeroU64::MIN,
            Some(last) => last.saturating_add(1),
        };
        self.last_id = Some(id);
        id
    }
}
