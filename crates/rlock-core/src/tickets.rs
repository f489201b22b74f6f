//! The indices by which a ticket is found, and its neighbours in the queue.

use std::{cmp::Reverse, hash::BuildHasher};

use crate::{
    Delivery, Ticket, TicketId, Timestamp,
    queue::QueueId,
    table::Table,
    ticket::{MultiId, Rank},
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

    pub(crate) fn ticket_of(&self, id: QueueId, owner: &[u8]) -> Option<TicketId> {
        let entry = of_both(self.hash(owner), id);
        let found = self
            .by_owner
            .range((entry, TicketId::MIN)..=(entry, TicketId::MAX));
        found.map(|(_, ticket)| *ticket).find(|ticket| {
            let ticket = self.tickets.get(ticket);
            ticket.is_some_and(|it| it.queue == id && *it.owner == *owner)
        })
    }

    /// All tickets of an owner.
    pub(crate) fn tickets_of(&self, owner: &[u8]) -> impl Iterator<Item = (TicketId, &Ticket)> {
        let first = of_both(self.hash(owner), QueueId::MIN);
        let range = (first, TicketId::MIN)..=(first | QUEUE_HALF, TicketId::MAX);
        let found = self.by_owner.range(range);
        found.filter_map(move |(_, id)| {
            let ticket = &**self.tickets.get(id)?;
            (*ticket.owner == *owner).then_some((*id, ticket))
        })
    }

    /// Puts a ticket last in its queue, or before all others.
    pub(crate) fn push(&mut self, mut ticket: Ticket) -> TicketId {
        let id = TicketId::new(self.next_id());
        let Some(queue) = self.queues.get_mut(&ticket.queue) else {
            return id;
        };
        if ticket.first {
            ticket.behind = queue.front.replace(id);
            queue.back.get_or_insert(id);
        } else {
            ticket.ahead = queue.back.replace(id);
            queue.front.get_or_insert(id);
        }
        let (ahead, behind) = (ticket.ahead, ticket.behind);
        self.resize(ticket.queue, 1);
        self.connect(ahead, behind, Some(id), Some(id));
        let entry = of_both(self.hash(&ticket.owner), ticket.queue);
        self.by_owner.insert((entry, id));
        self.watched_tickets += u64::from(ticket.is_watched());
        self.tickets.insert(id, Box::new(ticket));
        self.link(id);
        self.index(id);
        id
    }

    /// Takes a ticket out of its queue. The queue stays, even if it is idle now.
    pub(crate) fn remove(&mut self, id: TicketId) -> Option<Box<Ticket>> {
        self.unindex(id);
        let ticket = self.tickets.remove(&id)?;
        let entry = of_both(self.hash(&ticket.owner), ticket.queue);
        self.by_owner.remove(&(entry, id));
        self.linked.remove(&link(id, &ticket));
        self.unlink(&ticket.owner);
        self.watched_tickets -= u64::from(ticket.is_watched());
        self.connect(ticket.ahead, ticket.behind, ticket.behind, ticket.ahead);
        self.resize(ticket.queue, -1);
        let queue = self.queues.get_mut(&ticket.queue)?;
        if queue.front == Some(id) {
            queue.front = ticket.behind;
        }
        if queue.back == Some(id) {
            queue.back = ticket.ahead;
        }
        Some(ticket)
    }

    /// Changes a ticket; its place and its owner stay.
    pub(crate) fn change(&mut self, id: TicketId, change: impl FnOnce(&mut Ticket)) {
        self.unindex(id);
        if let Some(ticket) = self.tickets.get_mut(&id) {
            self.watched_tickets -= u64::from(ticket.is_watched());
            change(ticket);
            self.watched_tickets += u64::from(ticket.is_watched());
        }
        self.index(id);
    }

    /// Whether the ticket stands for its request: deadline and connection of a
    /// request for several keys are those of its first.
    pub(crate) fn leads(&self, id: TicketId) -> bool {
        let multi = self.tickets.get(&id).and_then(|ticket| ticket.multi);
        multi.is_none_or(|multi| self.members(multi).first() == Some(&id))
    }

    /// The tickets of a request for several keys, in the order of its keys.
    pub(crate) fn members(&self, multi: MultiId) -> &[TicketId] {
        self.multis.get(&multi).map_or(&[], |members| members)
    }

    /// Makes tickets one request, for which the first stands.
    pub(crate) fn join(&mut self, multi: MultiId, members: Vec<TicketId>) {
        self.followers += (members.len() as u64).saturating_sub(1);
        let leader = members.first().copied();
        self.multis.insert(multi, members);
        if let Some(leader) = leader {
            self.index(leader);
        }
    }

    /// Forgets that tickets are one request.
    pub(crate) fn part(&mut self, multi: MultiId) {
        let members = self.multis.remove(&multi).unwrap_or_default();
        self.followers -= (members.len() as u64).saturating_sub(1);
        if let Some(leader) = members.first() {
            self.unindex(*leader);
        }
    }

    /// Where a ticket stands in its queue.
    pub(crate) fn rank(&self, id: TicketId) -> Rank {
        let first = self.tickets.get(&id).is_some_and(|ticket| ticket.first);
        Rank::of(id, first)
    }

    pub(crate) fn index(&mut self, id: TicketId) {
        if !self.leads(id) {
            return;
        }
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        if ticket.wait_ends != Timestamp::NEVER {
            self.deadlines.waits.insert((ticket.wait_ends, id));
        }
        if let Delivery::Notify { session, .. } = ticket.delivery {
            self.session_tickets.insert((session, id));
        }
    }

    pub(crate) fn unindex(&mut self, id: TicketId) {
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        self.deadlines.waits.remove(&(ticket.wait_ends, id));
        let session = ticket.delivery.session();
        self.session_tickets.remove(&(session, id));
    }

    pub(crate) fn in_order(&self, id: QueueId) -> impl Iterator<Item = (TicketId, &Ticket)> {
        let front = self.queues.get(&id).and_then(|queue| queue.front);
        let ticket = move |id: TicketId| self.tickets.get(&id).map(|it| (id, &**it));
        std::iter::successors(front.and_then(ticket), move |(_, it)| {
            it.behind.and_then(ticket)
        })
    }

    /// Makes two neighbours know who comes behind the one and ahead of the
    /// other.
    fn connect(
        &mut self,
        ahead: Option<TicketId>,
        behind: Option<TicketId>,
        behind_ahead: Option<TicketId>,
        ahead_of_behind: Option<TicketId>,
    ) {
        if let Some(ahead) = ahead.and_then(|it| self.tickets.get_mut(&it)) {
            ahead.behind = behind_ahead;
        }
        if let Some(behind) = behind.and_then(|it| self.tickets.get_mut(&it)) {
            behind.ahead = ahead_of_behind;
        }
    }

    fn resize(&mut self, id: QueueId, by: i32) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        let entry = |len| (queue.db, Reverse(len), id);
        self.contended.remove(&entry(queue.len));
        let len = queue.len.saturating_add_signed(by);
        if len > 0 {
            self.contended.insert(entry(len));
        }
        queue.len = len;
    }

    /// Marks a new ticket as linked if its owner has others, and with the
    /// second also the first.
    fn link(&mut self, id: TicketId) {
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        let entry = link(id, ticket);
        let few = self.tickets_of(&ticket.owner).take(2);
        let few: Vec<_> = few.map(|(id, ticket)| link(id, ticket)).collect();
        if few.len() == 2 {
            self.linked.extend(few);
            self.linked.insert(entry);
        }
    }

    /// Takes the mark off the last ticket that an owner has left.
    fn unlink(&mut self, owner: &[u8]) {
        let mut few = self.tickets_of(owner).map(|(id, ticket)| link(id, ticket));
        let last = few.next().filter(|_| few.next().is_none());
        drop(few);
        if let Some(last) = last {
            self.linked.remove(&last);
        }
    }
}

fn link(id: TicketId, ticket: &Ticket) -> (QueueId, Rank, TicketId) {
    (ticket.queue, Rank::of(id, ticket.first), id)
}
