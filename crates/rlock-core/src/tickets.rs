//! The indices by which a ticket is found, and its neighbours in the queue.

use std::{cmp::Reverse, hash::BuildHasher, num::NonZeroU64};

use crate::{
    Delivery, Mode, Ticket, TicketId, Timestamp,
    queue::QueueId,
    table::Table,
    ticket::{Multi, MultiId, Rank},
};

/// The half of an entry that comes from the queue.
const QUEUE_HALF: u64 = u32::MAX as u64;

/// What tickets are found by: half of it from the owner, half from the queue.
/// Two that have it in common by chance are told apart by their tickets.
const fn of_both(owner: u64, queue: QueueId) -> u64 {
    (owner & !QUEUE_HALF) | (queue.0 & QUEUE_HALF)
}

impl Table {
    pub(crate) fn hash(&self, owner: &[u8]) -> u64 {
        self.hasher.hash_one(owner)
    }

    /// What the places of a user are counted by.
    pub(crate) fn user(&self, name: &[u8]) -> Option<NonZeroU64> {
        NonZeroU64::new(self.hash(name))
    }

    /// How many places a user has, kept ones too.
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
        let entry = of_both(self.hash(owner), id);
        let all = (entry, TicketId::MIN)..=(entry, TicketId::MAX);
        let waits = self.by_owner.range(all.clone());
        let found = waits.chain(self.kept_by_owner.range(all));
        found.map(|(_, ticket)| *ticket).find(|ticket| {
            let ticket = self.tickets.get(ticket);
            ticket.is_some_and(|it| it.queue == id && *it.owner == *owner)
        })
    }

    /// All places in which an owner waits.
    pub(crate) fn waits_of(&self, owner: &[u8]) -> impl Iterator<Item = (TicketId, &Ticket)> {
        let first = of_both(self.hash(owner), QueueId::MIN);
        let range = (first, TicketId::MIN)..=(first | QUEUE_HALF, TicketId::MAX);
        let found = self.by_owner.range(range);
        found.filter_map(move |(_, id)| {
            let ticket = &**self.tickets.get(id)?;
            (*ticket.owner == *owner).then_some((*id, ticket))
        })
    }

    /// The first who waits in a queue.
    pub(crate) fn front(&self, id: QueueId) -> Option<TicketId> {
        let first = self.waiting.range((id, Rank::MIN)..=(id, Rank::MAX)).next();
        first.map(|(_, rank)| rank.id())
    }

    /// Any place of a queue, kept or not.
    pub(crate) fn first_place(&self, id: QueueId) -> Option<TicketId> {
        let all = (id, Rank::MIN)..=(id, Rank::MAX);
        let mut places = self.waiting.range(all.clone()).chain(self.kept.range(all));
        places.next().map(|(_, rank)| rank.id())
    }

    /// Any place of a queue whose number is not above `last`, kept or not.
    pub(crate) fn first_place_until(&self, id: QueueId, last: NonZeroU64) -> Option<TicketId> {
        let all = (id, Rank::MIN)..=(id, Rank::MAX);
        // Only one, which is to be upgraded, may stand before older ones.
        let waiting = self.waiting.range(all.clone()).take(2);
        let mut places = waiting.chain(self.kept.range(all).take(1));
        let found = places.find(|(_, rank)| rank.id().number() <= last);
        found.map(|(_, rank)| rank.id())
    }

    /// Whether somebody waits before this place.
    pub(crate) fn has_ahead(&self, ticket: TicketId) -> bool {
        let Some(queue) = self.tickets.get(&ticket).map(|it| it.queue) else {
            return false;
        };
        let ahead = (queue, Rank::MIN)..(queue, self.rank(ticket));
        self.waiting.range(ahead).next().is_some()
    }

    /// Puts a ticket last in its queue, or before all others.
    pub(crate) fn push(&mut self, ticket: Ticket) -> TicketId {
        let id = TicketId::new(self.next_id());
        self.insert(id, Box::new(ticket));
        id
    }

    /// Puts a ticket where its number says. Its queue has to be there.
    pub(crate) fn insert(&mut self, id: TicketId, ticket: Box<Ticket>) {
        self.resize(ticket.queue, 1);
        self.count_of_user(ticket.user, 1);
        self.shared_places += u64::from(ticket.mode() != Mode::Exclusive);
        self.tickets.insert(id, ticket);
        self.enter_order(id);
    }

    /// Takes a ticket out of its queue. The queue stays, even if it is idle now.
    pub(crate) fn remove(&mut self, id: TicketId) -> Option<Box<Ticket>> {
        self.leave_order(id);
        let ticket = self.tickets.remove(&id)?;
        self.resize(ticket.queue, -1);
        self.count_of_user(ticket.user, -1);
        self.shared_places -= u64::from(ticket.mode() != Mode::Exclusive);
        Some(ticket)
    }

    /// Changes a ticket, also from waiting to kept or back; its place and its
    /// owner stay.
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

    /// Whether the ticket stands for its request: deadline and connection of a
    /// request for several keys are those of its first.
    pub(crate) fn leads(&self, id: TicketId) -> bool {
        let multi = self.tickets.get(&id).and_then(|ticket| ticket.multi);
        multi.is_none_or(|multi| self.members(multi).first() == Some(&id))
    }

    /// The tickets of a request for several keys, in the order of its keys.
    pub(crate) fn members(&self, multi: MultiId) -> &[TicketId] {
        self.multis.get(&multi).map_or(&[], |it| &it.members)
    }

    /// Makes tickets one request, for which the first stands.
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

    /// Where a ticket stands in its queue.
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

    /// Those who wait in a queue, in order.
    pub(crate) fn in_order(&self, id: QueueId) -> impl Iterator<Item = (TicketId, &Ticket)> {
        let waiting = self.waiting.range((id, Rank::MIN)..=(id, Rank::MAX));
        waiting.filter_map(|(_, rank)| Some((rank.id(), &**self.tickets.get(&rank.id())?)))
    }

    /// All places of a queue in order, kept ones too.
    pub(crate) fn places(&self, id: QueueId) -> impl Iterator<Item = &Ticket> {
        let all = (id, Rank::MIN)..=(id, Rank::MAX);
        let mut waiting = self.waiting.range(all.clone()).peekable();
        let mut kept = self.kept.range(all).peekable();
        let ranks = std::iter::from_fn(move || match (waiting.peek(), kept.peek()) {
            (Some(one), Some(other)) if one > other => kept.next(),
            (None, _) => kept.next(),
            _ => waiting.next(),
        });
        ranks.filter_map(|(_, rank)| self.tickets.get(&rank.id()).map(|it| &**it))
    }

    /// Enters a ticket into the orders and indices that depend on what it is.
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
            self.waiting.insert((queue, rank));
            self.by_owner.insert(entry);
            self.link(id);
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
            self.waiting.remove(&(queue, rank));
            self.by_owner.remove(&entry);
        }
    }

    fn resize(&mut self, id: QueueId, by: i32) {
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

    /// Marks a ticket as linked if its owner waits elsewhere too, and with the
    /// second also the first.
    fn link(&mut self, id: TicketId) {
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        let few = self.waits_of(&ticket.owner).take(2);
        let few: Vec<_> = few.map(|(id, ticket)| link(id, ticket)).collect();
        if few.len() == 2 {
            let entry = link(id, ticket);
            self.linked.extend(few);
            self.linked.insert(entry);
        }
    }

    /// Takes the mark off a ticket, and off the last one that its owner has
    /// beside it.
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
}

fn link(id: TicketId, ticket: &Ticket) -> (QueueId, Rank) {
    (ticket.queue, Rank::of(id, ticket.is_upgrade))
}
