//! All queues and watches, the indices to find tickets and watches, and the
//! deadlines: the ends of waits, and the times to check a lock.
//!
//! This file keeps the indices consistent and decides nothing. It is long because
//! the table is one type: whatever touches one index must keep the others right.
//! `table/invariants.rs` states the required consistency again in another way;
//! ARCHITECTURE.md, "The data of the core", shows it with a drawn example.
//! Everything that grows with the number of waiters is in ordered maps: they free
//! their memory as they shrink, and never pause to copy themselves. Deadlines are
//! in ordered sets instead of a heap: an entry is removed together with its
//! cause, so the index has no stale entries.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::BuildHasher;
use std::num::NonZeroU64;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;

use foldhash::quality::RandomState;

use crate::ticket::{Multi, MultiId, Rank};
use crate::watch::{LastValue, Search, Watch, WatchId};
use crate::{Channel, Delivery, Fence, Gauges, Listener, Mode, Name, Ticket, TicketId, Timestamp};

mod deadlines;
mod invariants;
mod queue;

pub(crate) use deadlines::Deadlines;
pub(crate) use queue::{Check, Queue, QueueId, Streak};

/// The half of an entry that comes from the queue.
const QUEUE_HALF: u64 = u32::MAX as u64;
/// The number of stale marks of removed queues that may always stay.
const STALE_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Queues by a hash of their names, which is smaller than the names.
    names: BTreeSet<(u64, QueueId)>,
    queues: BTreeMap<QueueId, Box<Queue>>,
    /// The queue that was found last; it may be gone.
    last_found: Cell<QueueId>,
    /// The listener that asked last: most connections hold one lock after the
    /// other, and nothing else would keep the name of their channel between two.
    last_listener: Option<Arc<Listener>>,
    tickets: BTreeMap<TicketId, Box<Ticket>>,
    multis: BTreeMap<MultiId, Multi>,
    watches: BTreeMap<WatchId, Watch>,
    deadlines: Deadlines,
    /// The progress of the search for lost holds, by lock.
    searches: BTreeMap<QueueId, Search>,
    due: VecDeque<QueueId>,
    /// The number of marked queues that still exist.
    due_now: usize,
    /// Waiting tickets by owner and queue, see `tickets`.
    by_owner: BTreeSet<(u64, TicketId)>,
    /// Kept places by owner and queue.
    kept_by_owner: BTreeSet<(u64, TicketId)>,
    /// Waiting tickets behind the front of their queue, queue by queue, in order.
    behind: BTreeSet<(QueueId, Rank)>,
    /// Kept places, queue by queue, in order.
    kept: BTreeSet<(QueueId, Rank)>,
    /// Waiting tickets whose owners wait elsewhere too.
    linked: BTreeSet<(QueueId, Rank)>,
    /// Queues with places, by database, the longest first.
    contended: BTreeSet<(u32, Reverse<u32>, QueueId)>,
    /// Requests whose outcome is a message, by connection.
    session_tickets: BTreeSet<(u64, TicketId)>,
    session_watches: BTreeSet<(u64, WatchId)>,
    /// Watches beside the first of their lock, by a hash of the owner.
    more_watches: BTreeSet<(QueueId, u64, WatchId)>,
    watched_tickets: u64,
    /// The holds whose values were published, by lock.
    last_values: BTreeMap<QueueId, LastValue>,
    /// The number of those without a watch.
    last_values_unwatched: u64,
    /// The number of places of each user, by a hash of the name.
    places_by_user: BTreeMap<NonZeroU64, u64>,
    /// The number of places in shared mode.
    shared_places: u64,
    bound: u64,
    hasher: RandomState,
    last_id: Option<NonZeroU64>,
    /// The exclusive holders of locks for which several wait.
    holders: BTreeMap<QueueId, (Fence, Arc<[u8]>)>,
}

impl Table {
    pub(crate) fn find(&self, name: Name<'_>) -> Option<QueueId> {
        if self.queues.is_empty() {
            return None;
        }
        // One operation asks for its lock several times.
        let last = self.last_found.get();
        if self.is_named(last, name) {
            return Some(last);
        }
        let hash = self.hasher.hash_one((name.db, name.key));
        let all = (hash, QueueId::MIN)..=(hash, QueueId::MAX);
        let mut found = self.names.range(all).map(|(_, id)| *id);
        let found = found.find(|id| self.is_named(*id, name))?;
        self.last_found.set(found);
        Some(found)
    }

    fn is_named(&self, id: QueueId, name: Name<'_>) -> bool {
        let queue = self.queues.get(&id);
        queue.is_some_and(|it| it.db == name.db && *it.key == *name.key)
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
        self.last_found.set(id);
        id
    }

    /// Whether there is any queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(&id).map(|it| &**it)
    }

    /// The hand-offs in a row of a queue.
    pub(crate) fn streak(&mut self, id: QueueId) -> Option<&mut Streak> {
        self.queues.get_mut(&id).map(|it| &mut it.streak)
    }

    pub(crate) fn ticket(&self, id: TicketId) -> Option<&Ticket> {
        self.tickets.get(&id).map(|it| &**it)
    }

    /// The number of places in all queues, including kept ones.
    pub(crate) fn places_len(&self) -> u64 {
        self.tickets.len() as u64
    }

    /// The number of places in shared mode.
    pub(crate) const fn shared_places(&self) -> u64 {
        self.shared_places
    }

    /// The place with the smallest number.
    pub(crate) fn oldest_place(&self) -> Option<TicketId> {
        self.tickets.keys().next().copied()
    }

    /// Any request of a connection whose outcome is a message.
    pub(crate) fn ticket_of_session(&self, session: u64) -> Option<TicketId> {
        let range = (session, TicketId::MIN)..=(session, TicketId::MAX);
        self.session_tickets.range(range).next().map(|(_, id)| *id)
    }

    pub(crate) fn request(&self, multi: MultiId) -> Option<&Multi> {
        self.multis.get(&multi)
    }

    /// Records which ticket of a request was last seen not ready.
    pub(crate) fn note_unready(&mut self, multi: MultiId, unready: usize) {
        if let Some(request) = self.multis.get_mut(&multi) {
            request.unready = unready;
        }
    }

    pub(crate) fn watch(&self, id: WatchId) -> Option<&Watch> {
        self.watches.get(&id)
    }

    pub(crate) fn has_watches(&self, id: QueueId) -> bool {
        self.queues.get(&id).is_some_and(|it| it.watches > 0)
    }

    /// The watch with the smallest number.
    pub(crate) fn oldest_watch(&self) -> Option<WatchId> {
        self.watches.keys().next().copied()
    }

    /// Whether the value of any hold was published.
    pub(crate) fn has_last_values(&self) -> bool {
        !self.last_values.is_empty()
    }

    /// The first lock from `from` on with a published value.
    pub(crate) fn last_value_from(&self, from: QueueId) -> Option<(QueueId, LastValue)> {
        let (id, last_value) = self.last_values.range(from..).next()?;
        Some((*id, *last_value))
    }

    /// The last published value of the hold of a lock.
    pub(crate) fn last_value(&self, id: QueueId) -> Option<LastValue> {
        self.last_values.get(&id).copied()
    }

    /// Records that the value of a hold was published.
    pub(crate) fn set_last_value(&mut self, id: QueueId, fence: Fence, value: &[u8]) {
        let last_value = LastValue {
            fence,
            value: self.hash(value),
            number: self.next_id(),
        };
        let is_new = self.last_values.insert(id, last_value).is_none();
        self.last_values_unwatched += u64::from(is_new && !self.has_watches(id));
    }

    /// Forgets a published value, because its end was published.
    pub(crate) fn forget_last_value(&mut self, id: QueueId) {
        let was_known = self.last_values.remove(&id).is_some();
        self.last_values_unwatched -= u64::from(was_known && !self.has_watches(id));
        self.drop_if_idle(id);
    }

    /// The progress of the search for lost holds of a lock, if it is not
    /// finished.
    pub(crate) fn search(&self, id: QueueId) -> Option<Search> {
        self.searches.get(&id).copied()
    }

    pub(crate) fn set_search(&mut self, id: QueueId, search: Option<Search>) {
        match search {
            Some(search) => self.searches.insert(id, search),
            None => self.searches.remove(&id),
        };
    }

    /// The queues of a database with places, the longest first.
    pub(crate) fn contended(&self, db: u32) -> impl Iterator<Item = (QueueId, &Queue)> {
        let all = (db, Reverse(u32::MAX), QueueId::MIN)..=(db, Reverse(0), QueueId::MAX);
        let found = self.contended.range(all);
        found.filter_map(|(_, _, id)| Some((*id, self.queue(*id)?)))
    }

    /// The waiting tickets before a place whose owners wait elsewhere too, the
    /// nearest first.
    pub(crate) fn linked_ahead(&self, id: QueueId, rank: Rank) -> impl Iterator<Item = TicketId> {
        let ahead = self.linked.range((id, Rank::MIN)..(id, rank));
        ahead.rev().map(|(_, rank)| rank.id())
    }

    /// Whether any lock is marked as due.
    pub(crate) const fn has_due(&self) -> bool {
        self.due_now > 0
    }

    pub(crate) const fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Forgets a queue without tickets, watches and a published value; false if it
    /// has any of these.
    pub(crate) fn drop_if_idle(&mut self, id: QueueId) -> bool {
        if !self.queues.get(&id).is_some_and(|queue| queue.is_idle())
            || self.last_value(id).is_some()
        {
            return false;
        }
        self.set_check(id, Check::Never);
        self.searches.remove(&id);
        self.holders.remove(&id);
        let Some(queue) = self.queues.remove(&id) else {
            return false;
        };
        self.due_now -= usize::from(queue.due);
        let hash = self.hasher.hash_one((queue.db, &*queue.key));
        self.names.remove(&(hash, id));
        true
    }

    /// Sets when the lock must be checked.
    pub(crate) fn set_check(&mut self, id: QueueId, check: Check) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        if queue.next_check() == check {
            return;
        }
        if let Some(at) = queue.next_check().at() {
            self.deadlines.checks.remove(&(at, id));
        }
        if let Some(at) = check.at() {
            self.deadlines.checks.insert((at, id));
        }
        queue.set_check(check);
    }

    pub(crate) fn mark_due(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id)
            && !queue.due
        {
            queue.due = true;
            self.due_now += 1;
            self.due.push_back(id);
            // Marks of removed queues must not pile up.
            if self.due.len() > 2 * self.due_now + STALE_MAX {
                self.due.retain(|id| self.queues.contains_key(id));
            }
        }
    }

    /// Unmarks the queue that has been marked for longest, and returns it.
    pub(crate) fn next_due(&mut self) -> Option<&Queue> {
        loop {
            let id = self.due.pop_front()?;
            if self.due.is_empty() {
                self.due.shrink_to(64);
            }
            // A queue that was removed meanwhile has left its mark behind.
            if self.queues.contains_key(&id) {
                let queue = self.queues.get_mut(&id)?;
                queue.due = false;
                self.due_now -= 1;
                return Some(queue);
            }
        }
    }

    /// The queues from `from` on, oldest first.
    pub(crate) fn queues_from(&self, from: QueueId) -> impl Iterator<Item = (QueueId, &Queue)> {
        let range = (Bound::Included(from), Bound::Unbounded);
        self.queues.range(range).map(|(id, queue)| (*id, &**queue))
    }

    pub(crate) fn gauges(&self) -> Gauges {
        Gauges {
            waiters: self.tickets.len() as u64,
            places_kept: self.kept.len() as u64,
            contended_locks: self.contended.len() as u64,
            watches: self.watched_tickets + self.watches.len() as u64 + self.last_values_unwatched,
            bound_holds: self.bound,
            ..Gauges::default()
        }
    }

    /// The last number that was used.
    pub(crate) const fn last_id(&self) -> Option<NonZeroU64> {
        self.last_id
    }

    /// A new number; the numbers last for centuries.
    pub(crate) const fn next_id(&mut self) -> NonZeroU64 {
        let id = match self.last_id {
            None => NonZeroU64::MIN,
            Some(last) => last.saturating_add(1),
        };
        self.last_id = Some(id);
        id
    }

    pub(crate) fn hash(&self, owner: &[u8]) -> u64 {
        self.hasher.hash_one(owner)
    }

    /// The identity by which a user's places are counted.
    pub(crate) fn user(&self, name: &[u8]) -> Option<NonZeroU64> {
        NonZeroU64::new(self.hash(name))
    }

    /// The number of places of a user, including kept ones.
    pub(crate) fn places_of_user(&self, name: &[u8]) -> u64 {
        let places = self.user(name).and_then(|it| self.places_by_user.get(&it));
        places.copied().unwrap_or(0)
    }

    fn count_of_user(&mut self, user: Option<NonZeroU64>, by: i64) {
        let Some(user) = user else { return };
        let places = self.places_by_user.entry(user).or_default();
        *places = places.saturating_add_signed(by);
        if *places == 0 {
            self.places_by_user.remove(&user);
        }
    }

    /// The place of an owner in a queue, kept or not.
    pub(crate) fn ticket_of(&self, id: QueueId, owner: &[u8]) -> Option<TicketId> {
        if self.queues.get(&id)?.len == 0 {
            return None;
        }
        let entry = of_both(self.hash(owner), id);
        let all = (entry, TicketId::MIN)..=(entry, TicketId::MAX);
        let waits = self.by_owner.range(all.clone());
        let found = waits.chain(self.kept_by_owner.range(all));
        found.map(|(_, ticket)| *ticket).find(|ticket| {
            let ticket = self.tickets.get(ticket);
            ticket.is_some_and(|it| it.queue == id && *it.owner == *owner)
        })
    }

    /// Whether an owner may have a place anywhere, kept or not.
    pub(crate) fn has_places(&self, owner: &[u8]) -> bool {
        let all = all_of_owner(self.hash(owner));
        let mut places = self.by_owner.range(all.clone());
        let mut kept = self.kept_by_owner.range(all);
        places.next().or_else(|| kept.next()).is_some()
    }

    /// All places in which an owner waits.
    pub(crate) fn waits_of(&self, owner: &[u8]) -> impl Iterator<Item = (TicketId, &Ticket)> {
        let found = self.by_owner.range(all_of_owner(self.hash(owner)));
        found.filter_map(move |(_, id)| {
            let ticket = &**self.tickets.get(id)?;
            (*ticket.owner == *owner).then_some((*id, ticket))
        })
    }

    /// The first waiting ticket of a queue.
    pub(crate) fn front(&self, id: QueueId) -> Option<TicketId> {
        self.queues.get(&id)?.front
    }

    /// Any place of a queue, kept or not.
    pub(crate) fn first_place(&self, id: QueueId) -> Option<TicketId> {
        self.front(id)
            .or_else(|| self.kept_ranks(id).next().map(Rank::id))
    }

    /// Any place of a queue with a number up to `last`, kept or not.
    pub(crate) fn first_place_until(&self, id: QueueId, last: NonZeroU64) -> Option<TicketId> {
        // Only upgrades come before older tickets. There may be several, if holders
        // have left after they had asked.
        let mut upgrades = true;
        let is_first_of_each = |rank: &Rank| std::mem::replace(&mut upgrades, rank.is_upgrade());
        let waiting = self.waiting_ranks(id).take_while(is_first_of_each);
        let mut places = waiting.chain(self.kept_ranks(id).take(1)).map(Rank::id);
        places.find(|place| place.number() <= last)
    }

    /// The exclusive holder of a lock, as its key was last read or written, with the
    /// fence of its hold.
    pub(crate) fn holder(&self, id: QueueId) -> Option<&(Fence, Arc<[u8]>)> {
        self.holders.get(&id)
    }

    /// Remembers the exclusive holder of a lock for which several wait: a lock with
    /// one waiter is not worth the memory.
    pub(crate) fn know_holder(
        &mut self,
        id: QueueId,
        fence: Fence,
        owner: impl FnOnce() -> Option<Arc<[u8]>>,
    ) {
        let is_known = self.holder(id).is_some_and(|it| it.0 == fence);
        let is_worth_it = !is_known && self.queues.get(&id).is_some_and(|it| it.len > 1);
        if let Some(owner) = is_worth_it.then(owner).flatten() {
            self.holders.insert(id, (fence, owner));
        }
    }

    /// Whether a ticket waits before this place.
    pub(crate) fn has_ahead(&self, ticket: TicketId) -> bool {
        let Some(queue) = self.tickets.get(&ticket).map(|it| it.queue) else {
            return false;
        };
        let front = self.front(queue);
        front.is_some_and(|front| self.rank(front) < self.rank(ticket))
    }

    /// Puts a ticket last in its queue, or before all others.
    pub(crate) fn push(&mut self, ticket: Ticket) -> TicketId {
        let id = TicketId::new(self.next_id());
        self.insert(id, Box::new(ticket));
        id
    }

    /// Puts a ticket where its number belongs. Its queue must exist.
    pub(crate) fn insert(&mut self, id: TicketId, ticket: Box<Ticket>) {
        self.count_place(&ticket, 1);
        self.tickets.insert(id, ticket);
        self.enter_order(id);
    }

    /// Removes a ticket from its queue. The queue stays, even if it is idle now.
    pub(crate) fn remove(&mut self, id: TicketId) -> Option<Box<Ticket>> {
        self.leave_order(id);
        let ticket = self.tickets.remove(&id)?;
        self.count_place(&ticket, -1);
        Some(ticket)
    }

    /// Changes a ticket, possibly from waiting to kept or back; its place, owner
    /// and mode stay. It leaves the orders and enters them again, so these cannot
    /// know which places were added or removed: `count_place` records that.
    pub(crate) fn change<R>(
        &mut self,
        id: TicketId,
        change: impl FnOnce(&mut Ticket) -> R,
    ) -> Option<R> {
        self.leave_order(id);
        let before = self.tickets.get(&id).and_then(|it| it.user);
        let changed = self.tickets.get_mut(&id).map(|ticket| change(ticket));
        let after = self.tickets.get(&id).and_then(|it| it.user);
        if before != after {
            self.count_of_user(before, -1);
            self.count_of_user(after, 1);
        }
        self.enter_order(id);
        changed
    }

    /// Whether the ticket represents its request: a request for several keys has
    /// its deadline and connection with its first ticket.
    pub(crate) fn leads(&self, id: TicketId) -> bool {
        let multi = self.tickets.get(&id).and_then(|ticket| ticket.multi);
        multi.is_none_or(|multi| self.members(multi).first() == Some(&id))
    }

    /// The tickets of a request for several keys, in the order of its keys.
    pub(crate) fn members(&self, multi: MultiId) -> &[TicketId] {
        self.multis.get(&multi).map_or(&[], |it| &it.members)
    }

    /// Joins tickets to one request, which the first represents.
    pub(crate) fn join(&mut self, multi: MultiId, members: Vec<TicketId>) {
        let leader = members.first().copied();
        let unready = 0;
        self.multis.insert(multi, Multi { members, unready });
        if let Some(leader) = leader {
            self.index(leader);
        }
    }

    /// Forgets that tickets are one request.
    pub(crate) fn part(&mut self, multi: MultiId) {
        let members = self.multis.remove(&multi).map(|it| it.members);
        let members = members.unwrap_or_default();
        if let Some(leader) = members.first() {
            self.unindex(*leader);
        }
    }

    /// The position of a ticket in its queue.
    pub(crate) fn rank(&self, id: TicketId) -> Rank {
        let is_upgrade = self.tickets.get(&id).is_some_and(|it| it.is_upgrade);
        Rank::of(id, is_upgrade)
    }

    fn index(&mut self, id: TicketId) {
        if !self.leads(id) {
            return;
        }
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        if ticket.wait_ends != Timestamp::NEVER {
            self.deadlines.waits.insert((ticket.wait_ends, id));
        }
        if let Delivery::Notify(listener) = &ticket.delivery {
            self.session_tickets.insert((listener.session, id));
        }
    }

    fn unindex(&mut self, id: TicketId) {
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        self.deadlines.waits.remove(&(ticket.wait_ends, id));
        if let Delivery::Notify(listener) = &ticket.delivery {
            self.session_tickets.remove(&(listener.session, id));
        }
    }

    /// The waiting tickets of a queue, in order.
    pub(crate) fn in_order(&self, id: QueueId) -> impl Iterator<Item = (TicketId, &Ticket)> {
        let ids = self.waiting_ranks(id).map(Rank::id);
        ids.filter_map(|id| Some((id, &**self.tickets.get(&id)?)))
    }

    /// The positions of the waiting tickets of a queue, in order.
    fn waiting_ranks(&self, id: QueueId) -> impl Iterator<Item = Rank> {
        let front = self.front(id).map(|front| self.rank(front));
        let behind = self.behind.range(all_of(id)).map(|(_, rank)| *rank);
        front.into_iter().chain(behind)
    }

    /// The positions of the kept places of a queue, in order.
    fn kept_ranks(&self, id: QueueId) -> impl Iterator<Item = Rank> {
        self.kept.range(all_of(id)).map(|(_, rank)| *rank)
    }

    /// All places of a queue in order, including kept ones.
    pub(crate) fn places(&self, id: QueueId) -> impl Iterator<Item = &Ticket> {
        let mut waiting = self.waiting_ranks(id).peekable();
        let mut kept = self.kept_ranks(id).peekable();
        let ranks = std::iter::from_fn(move || match (waiting.peek(), kept.peek()) {
            (Some(one), Some(other)) if one > other => kept.next(),
            (None, _) => kept.next(),
            _ => waiting.next(),
        });
        ranks.filter_map(|rank| self.tickets.get(&rank.id()).map(|it| &**it))
    }

    /// Adds a ticket to the orders and indices that depend on its state.
    fn enter_order(&mut self, id: TicketId) {
        let rank = self.rank(id);
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        let queue = ticket.queue;
        let entry = (of_both(self.hash(&ticket.owner), queue), id);
        self.watched_tickets += u64::from(ticket.is_watched());
        if ticket.is_kept() {
            self.kept.insert((queue, rank));
            self.kept_by_owner.insert(entry);
        } else {
            self.by_owner.insert(entry);
            self.link(id);
            match self.front(queue).map(|front| self.rank(front)) {
                Some(front) if front < rank => drop(self.behind.insert((queue, rank))),
                front => {
                    self.behind.extend(front.map(|front| (queue, front)));
                    self.set_front(queue, Some(id));
                }
            }
        }
        self.index(id);
    }

    /// Undoes [`Table::enter_order`].
    fn leave_order(&mut self, id: TicketId) {
        self.unindex(id);
        let rank = self.rank(id);
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        let queue = ticket.queue;
        let entry = (of_both(self.hash(&ticket.owner), queue), id);
        self.watched_tickets -= u64::from(ticket.is_watched());
        if ticket.is_kept() {
            self.kept.remove(&(queue, rank));
            self.kept_by_owner.remove(&entry);
        } else {
            self.unlink(id);
            self.by_owner.remove(&entry);
            if self.front(queue) == Some(id) {
                let next = self.behind.range(all_of(queue)).next().copied();
                if let Some(next) = next {
                    self.behind.remove(&next);
                }
                self.set_front(queue, next.map(|(_, rank)| rank.id()));
            } else {
                self.behind.remove(&(queue, rank));
            }
        }
    }

    fn set_front(&mut self, id: QueueId, front: Option<TicketId>) {
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.front = front;
        }
    }

    /// Counts a place that was added or removed, wherever in its queue. Nothing
    /// else counts places.
    fn count_place(&mut self, ticket: &Ticket, by: i32) {
        self.count_of_user(ticket.user, by.into());
        if ticket.options.mode != Mode::Exclusive {
            self.shared_places = self.shared_places.saturating_add_signed(by.into());
        }
        let id = ticket.queue;
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        let entry = |len| (queue.db, Reverse(len), id);
        let len = queue.len.saturating_add_signed(by);
        if queue.len > 0 {
            self.contended.remove(&entry(queue.len));
        }
        if len > 0 {
            self.contended.insert(entry(len));
        }
        queue.len = len;
    }

    /// Marks a ticket as linked if its owner waits elsewhere too. The second
    /// ticket also marks the first.
    fn link(&mut self, id: TicketId) {
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        let mut waits = self.waits_of(&ticket.owner).map(|(id, it)| link(id, it));
        if let (Some(one), Some(other)) = (waits.next(), waits.next()) {
            let are_marked = waits.next().is_some();
            drop(waits);
            let entry = link(id, ticket);
            if are_marked {
                self.linked.insert(entry);
            } else {
                self.linked.extend([one, other]);
            }
        }
    }

    /// Unmarks a ticket, and the last other ticket of its owner.
    fn unlink(&mut self, id: TicketId) {
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        let entry = link(id, ticket);
        if !self.linked.contains(&entry) {
            return;
        }
        let others = self.waits_of(&ticket.owner).filter(|it| it.0 != id);
        let others: Vec<_> = others.take(2).map(|(id, it)| link(id, it)).collect();
        self.linked.remove(&entry);
        if let [last] = others[..] {
            self.linked.remove(&last);
        }
    }

    pub(crate) fn watch_of(&self, queue: QueueId, owner: &[u8]) -> Option<WatchId> {
        let of_lock = self.queues.get(&queue)?;
        let is_of = |id: &WatchId| self.watches.get(id).is_some_and(|it| *it.owner == *owner);
        let first = Some(of_lock.first_watch).filter(is_of);
        if first.is_some() || !of_lock.has_more_watches() {
            return first;
        }
        let hash = self.hash(owner);
        let all = (queue, hash, WatchId::MIN)..=(queue, hash, WatchId::MAX);
        let mut found = self.more_watches.range(all).map(|(_, _, id)| *id);
        found.find(is_of)
    }

    /// The watch of an owner's hold, if there is one.
    pub(crate) fn watch_named(&self, name: Name<'_>, owner: &[u8]) -> Option<&Watch> {
        let id = self.watch_of(self.find(name)?, owner)?;
        self.watches.get(&id)
    }

    /// The number of these locks for which a hold of this owner would need new
    /// memory: there is neither a watch of this owner nor a published value. Each
    /// lock has one value, and the value of another hold ends with that hold.
    pub(crate) fn count_unwatched<'a>(
        &self,
        names: impl IntoIterator<Item = Name<'a>>,
        owner: &[u8],
    ) -> u64 {
        let has_value = |id: QueueId| self.last_values.contains_key(&id);
        let is_watched = |id| self.watch_of(id, owner).is_some();
        let is_new = |name: &Name<'_>| {
            let queue = self.find(*name);
            !queue.is_some_and(|id| has_value(id) || is_watched(id))
        };
        names.into_iter().filter(is_new).count() as u64
    }

    /// The watches of one lock.
    pub(crate) fn watches_of(&self, queue: QueueId) -> impl Iterator<Item = (WatchId, &Watch)> {
        let mut from = Search::START.from;
        std::iter::from_fn(move || {
            let (next, id, watch) = self.next_watch(queue, from)?;
            from = next;
            Some((id, watch))
        })
    }

    /// The watch of a lock, if it is the only one.
    pub(crate) fn only_watch(&self, id: QueueId) -> Option<&Watch> {
        if self.queues.get(&id)?.watches != 1 {
            return None;
        }
        let (_, watch) = self.watches_of(id).next()?;
        Some(watch)
    }

    /// The first watch of a lock from `from` on, in an arbitrary order, and where
    /// the next one begins.
    pub(crate) fn next_watch(
        &self,
        queue: QueueId,
        from: (u64, WatchId),
    ) -> Option<((u64, WatchId), WatchId, &Watch)> {
        let of_lock = self.queues.get(&queue)?;
        if from == Search::START.from
            && let Some(watch) = self.watches.get(&of_lock.first_watch)
        {
            return Some(((0, WatchId::MIN.next()), of_lock.first_watch, watch));
        }
        if !of_lock.has_more_watches() {
            return None;
        }
        let range = (queue, from.0, from.1)..=(queue, u64::MAX, WatchId::MAX);
        let mut found = self.more_watches.range(range);
        found.find_map(|(_, hash, id)| Some(((*hash, id.next()), *id, self.watches.get(id)?)))
    }

    /// Sets a watch, and replaces the owner's previous one.
    pub(crate) fn set_watch(&mut self, watch: Watch) {
        if let Some(earlier) = self.watch_of(watch.queue, &watch.owner) {
            self.remove_watch(earlier);
        }
        let id = WatchId(self.next_id().get());
        let Some(queue) = self.queues.get_mut(&watch.queue) else {
            return;
        };
        queue.watches += 1;
        if queue.watches == 1 && self.last_values.contains_key(&watch.queue) {
            self.last_values_unwatched -= 1;
        }
        if queue.first_watch == WatchId::MIN {
            queue.first_watch = id;
        } else {
            let entry = (watch.queue, self.hash(&watch.owner), id);
            self.more_watches.insert(entry);
        }
        self.index_watch(id, &watch);
        self.watches.insert(id, watch);
    }

    /// Changes a watch; lock and owner stay. It is removed if nothing is left.
    pub(crate) fn change_watch(&mut self, id: WatchId, change: impl FnOnce(&mut Watch)) {
        let Some(mut watch) = self.watches.remove(&id) else {
            return;
        };
        self.unindex_watch(id, &watch);
        change(&mut watch);
        self.index_watch(id, &watch);
        let is_over = watch.notice.is_none() && watch.binding.is_none();
        self.watches.insert(id, watch);
        if is_over {
            self.remove_watch(id);
        }
    }

    /// Ends a watch. The queue stays, even if it is idle now.
    pub(crate) fn remove_watch(&mut self, id: WatchId) -> Option<Watch> {
        let watch = self.watches.remove(&id)?;
        self.unindex_watch(id, &watch);
        if let Some(queue) = self.queues.get_mut(&watch.queue) {
            queue.watches -= 1;
            if queue.first_watch == id {
                queue.first_watch = WatchId::MIN;
            } else {
                let hash = self.hasher.hash_one(&*watch.owner);
                self.more_watches.remove(&(watch.queue, hash, id));
            }
            if queue.watches == 0 && self.last_values.contains_key(&watch.queue) {
                self.last_values_unwatched += 1;
            }
        }
        Some(watch)
    }

    /// Any watch that concerns a connection.
    pub(crate) fn watch_of_session(&self, session: u64) -> Option<WatchId> {
        let range = (session, WatchId::MIN)..=(session, WatchId::MAX);
        self.session_watches.range(range).next().map(|(_, id)| *id)
    }

    /// The listener of a connection's latest request, if it is the same, so that
    /// ten thousand requests on one channel store its name once.
    pub(crate) fn listener(&mut self, session: u64, channel: Channel<'_>) -> Arc<Listener> {
        let is_same = |it: &&Arc<Listener>| it.session == session && it.channel() == channel;
        if let Some(last) = self.last_listener.as_ref().filter(is_same) {
            return Arc::clone(last);
        }
        let tickets = (session, TicketId::MIN)..=(session, TicketId::MAX);
        let ticket = self.session_tickets.range(tickets).next_back();
        let known = ticket
            .and_then(|(_, id)| self.tickets.get(id)?.delivery.listener())
            .or_else(|| {
                let watch = self.watches.get(&self.watch_of_session(session)?)?;
                watch.notice.as_ref()
            });
        let new = || {
            Arc::new(Listener {
                session,
                kind: channel.kind,
                channel: channel.name.into(),
            })
        };
        let listener = known.filter(is_same).map_or_else(new, Arc::clone);
        self.last_listener = Some(Arc::clone(&listener));
        listener
    }

    /// Forgets the listener of a connection that has closed.
    pub(crate) fn forget_listener(&mut self, session: u64) {
        self.last_listener.take_if(|it| it.session == session);
    }

    fn index_watch(&mut self, id: WatchId, watch: &Watch) {
        self.bound += u64::from(watch.binding.is_some());
        for session in watch.sessions() {
            self.session_watches.insert((session, id));
        }
    }

    fn unindex_watch(&mut self, id: WatchId, watch: &Watch) {
        self.bound -= u64::from(watch.binding.is_some());
        for session in watch.sessions() {
            self.session_watches.remove(&(session, id));
        }
    }
}

/// The index key of tickets: half of it from the owner, half from the queue. The
/// tickets themselves distinguish equal keys.
const fn of_both(owner: u64, queue: QueueId) -> u64 {
    (owner & !QUEUE_HALF) | (queue.0 & QUEUE_HALF)
}

/// All entries of an owner with this hash, in whatever queue.
const fn all_of_owner(owner: u64) -> RangeInclusive<(u64, TicketId)> {
    let first = of_both(owner, QueueId::MIN);
    (first, TicketId::MIN)..=(first | QUEUE_HALF, TicketId::MAX)
}

/// All entries of a queue in an order.
const fn all_of(id: QueueId) -> RangeInclusive<(QueueId, Rank)> {
    (id, Rank::MIN)..=(id, Rank::MAX)
}

fn link(id: TicketId, ticket: &Ticket) -> (QueueId, Rank) {
    (ticket.queue, Rank::of(id, ticket.is_upgrade))
}
