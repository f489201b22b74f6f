//! All queues, and the indices by which a ticket or a watch is found.
//!
//! This file keeps things in step and decides nothing. Ordered maps are used
//! for what grows with the number of waiters: they give their memory back as
//! they shrink, and never stop to copy themselves.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    num::NonZeroU64,
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use crate::{
    Delivery, Gauges, Mode, Name, Ticket, TicketId, Timestamp,
    deadlines::Deadlines,
    queue::{Look, Queue, QueueId, Watch},
};

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

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) names: HashMap<u32, HashMap<Arc<[u8]>, QueueId>>,
    pub(crate) queues: BTreeMap<QueueId, Box<Queue>>,
    pub(crate) tickets: BTreeMap<TicketId, Box<Ticket>>,
    pub(crate) deadlines: Deadlines,
    pub(crate) due: VecDeque<QueueId>,
    /// Tickets by the hash of queue and owner.
    pub(crate) by_owner: BTreeSet<(u64, TicketId)>,
    /// Tickets whose outcome is a message, by connection.
    pub(crate) session_tickets: BTreeSet<(u64, TicketId)>,
    pub(crate) session_watches: BTreeSet<(u64, QueueId)>,
    pub(crate) contended: u64,
    pub(crate) watches: u64,
    hasher: RandomState,
    last_id: Option<NonZeroU64>,
}

impl Table {
    pub(crate) fn find(&self, name: Name<'_>) -> Option<QueueId> {
        if self.queues.is_empty() {
            return None;
        }
        self.names.get(&name.db)?.get(name.key).copied()
    }

    pub(crate) fn find_or_insert(&mut self, name: Name<'_>) -> QueueId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let id = QueueId(self.next_id().get());
        let key: Arc<[u8]> = name.key.into();
        self.names
            .entry(name.db)
            .or_default()
            .insert(Arc::clone(&key), id);
        self.queues.insert(id, Box::new(Queue::new(name.db, key)));
        id
    }

    /// Forgets a queue that has neither tickets nor watches.
    pub(crate) fn drop_if_idle(&mut self, id: QueueId) {
        if !self.queues.get(&id).is_some_and(|queue| queue.is_idle()) {
            return;
        }
        self.look(id, Look::Never);
        let Some(queue) = self.queues.remove(&id) else {
            return;
        };
        let Some(names) = self.names.get_mut(&queue.db) else {
            return;
        };
        names.remove(&queue.key);
        if names.is_empty() {
            self.names.remove(&queue.db);
        } else if names.len() * 4 < names.capacity() {
            names.shrink_to(names.len() * 2);
        }
    }

    pub(crate) fn ticket_of(&self, id: QueueId, owner: &[u8]) -> Option<TicketId> {
        let hash = self.hasher.hash_one((id, owner));
        self.by_owner
            .range((hash, TicketId::MIN)..=(hash, TicketId::MAX))
            .map(|(_, ticket)| *ticket)
            .find(|ticket| {
                let ticket = self.tickets.get(ticket);
                ticket.is_some_and(|ticket| ticket.queue == id && *ticket.owner == *owner)
            })
    }

    /// Puts a ticket last in its queue.
    pub(crate) fn push(&mut self, mut ticket: Ticket) -> TicketId {
        let id = TicketId::new(self.next_id());
        let Some(queue) = self.queues.get_mut(&ticket.queue) else {
            return id;
        };
        ticket.ahead = queue.back.replace(id);
        ticket.behind = None;
        queue.len += 1;
        if queue.len == 1 {
            queue.front = Some(id);
            self.contended += 1;
        }
        if let Some(ahead) = ticket.ahead.and_then(|ahead| self.tickets.get_mut(&ahead)) {
            ahead.behind = Some(id);
        }
        self.by_owner
            .insert((self.hasher.hash_one((ticket.queue, &*ticket.owner)), id));
        self.tickets.insert(id, Box::new(ticket));
        self.index(id);
        id
    }

    /// Takes a ticket out of its queue. The queue stays, even if it is idle now.
    pub(crate) fn remove(&mut self, id: TicketId) -> Option<Box<Ticket>> {
        self.unindex(id);
        let ticket = self.tickets.remove(&id)?;
        self.by_owner
            .remove(&(self.hasher.hash_one((ticket.queue, &*ticket.owner)), id));
        if let Some(ahead) = ticket.ahead.and_then(|ahead| self.tickets.get_mut(&ahead)) {
            ahead.behind = ticket.behind;
        }
        if let Some(behind) = ticket
            .behind
            .and_then(|behind| self.tickets.get_mut(&behind))
        {
            behind.ahead = ticket.ahead;
        }
        let queue = self.queues.get_mut(&ticket.queue)?;
        queue.len -= 1;
        if queue.front == Some(id) {
            queue.front = ticket.behind;
        }
        if queue.back == Some(id) {
            queue.back = ticket.ahead;
        }
        if queue.len == 0 {
            self.contended -= 1;
        }
        Some(ticket)
    }

    /// Gives a ticket another deadline and delivery; its place stays.
    pub(crate) fn change(&mut self, id: TicketId, change: impl FnOnce(&mut Ticket)) {
        self.unindex(id);
        if let Some(ticket) = self.tickets.get_mut(&id) {
            change(ticket);
        }
        self.index(id);
    }

    fn index(&mut self, id: TicketId) {
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

    fn unindex(&mut self, id: TicketId) {
        let Some(ticket) = self.tickets.get(&id) else {
            return;
        };
        self.deadlines.waits.remove(&(ticket.wait_ends, id));
        self.session_tickets
            .remove(&(ticket.delivery.session(), id));
    }

    pub(crate) fn set_watch(&mut self, id: QueueId, watch: Watch) {
        self.remove_watch(id, &watch.owner);
        if let Some(queue) = self.queues.get_mut(&id) {
            self.session_watches.insert((watch.session, id));
            queue.watches.push(watch);
            self.watches += 1;
        }
    }

    /// Ends the watch of a holder. The queue stays, even if it is idle now.
    pub(crate) fn remove_watch(&mut self, id: QueueId, owner: &[u8]) -> Option<Watch> {
        self.remove_watch_if(id, |watch| *watch.owner == *owner)
    }

    pub(crate) fn remove_watch_if(
        &mut self,
        id: QueueId,
        test: impl Fn(&Watch) -> bool,
    ) -> Option<Watch> {
        let queue = self.queues.get_mut(&id)?;
        let watch = queue
            .watches
            .swap_remove(queue.watches.iter().position(test)?);
        self.watches -= 1;
        if !queue
            .watches
            .iter()
            .any(|other| other.session == watch.session)
        {
            self.session_watches.remove(&(watch.session, id));
        }
        Some(watch)
    }

    /// Sets when the lock has to be looked at.
    pub(crate) fn look(&mut self, id: QueueId, look: Look) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        if queue.look == look {
            return;
        }
        if let Some(at) = queue.look.at() {
            self.deadlines.looks.remove(&(at, id));
        }
        if let Some(at) = look.at() {
            self.deadlines.looks.insert((at, id));
        }
        queue.look = look;
    }

    pub(crate) fn mark_due(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id)
            && !queue.due
        {
            queue.due = true;
            self.due.push_back(id);
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
                return Some(queue);
            }
        }
    }

    /// The channel as the connection's other requests name it, so that ten
    /// thousand requests on one channel keep its name once.
    pub(crate) fn channel(&self, session: u64, channel: &[u8]) -> Arc<[u8]> {
        let tickets = (session, TicketId::MIN)..=(session, TicketId::MAX);
        let ticket = self.session_tickets.range(tickets).next_back();
        let known = ticket
            .and_then(|(_, id)| self.tickets.get(id)?.delivery.channel())
            .or_else(|| self.watch_channel(session));
        match known {
            Some(known) if **known == *channel => Arc::clone(known),
            _ => channel.into(),
        }
    }

    fn watch_channel(&self, session: u64) -> Option<&Arc<[u8]>> {
        let watches = (session, QueueId(0))..=(session, QueueId(u64::MAX));
        let (_, id) = self.session_watches.range(watches).next_back()?;
        let mut watches = self.queues.get(id)?.watches.iter();
        watches
            .find(|watch| watch.session == session)
            .map(|watch| &watch.channel)
    }

    /// The queues from `from` on, in the order in which they came to be.
    pub(crate) fn queues_from(&self, from: QueueId) -> impl Iterator<Item = (QueueId, &Queue)> {
        let range = (Bound::Included(from), Bound::Unbounded);
        self.queues.range(range).map(|(id, queue)| (*id, &**queue))
    }

    pub(crate) fn in_order(&self, id: QueueId) -> impl Iterator<Item = &Ticket> {
        let front = self.queues.get(&id).and_then(|queue| queue.front);
        let ticket = move |id: TicketId| self.tickets.get(&id).map(|ticket| &**ticket);
        std::iter::successors(front.and_then(ticket), move |it| it.behind.and_then(ticket))
    }

    pub(crate) fn gauges(&self) -> Gauges {
        Gauges {
            waiters: self.tickets.len() as u64,
            contended_locks: self.contended,
            watches: self.session_tickets.len() as u64 + self.watches,
        }
    }

    /// A number that was never given before; they would last for centuries.
    const fn next_id(&mut self) -> NonZeroU64 {
        let id = match self.last_id {
            None => NonZeroU64::MIN,
            Some(last) => last.saturating_add(1),
        };
        self.last_id = Some(id);
        id
    }
}
