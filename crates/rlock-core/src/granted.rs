//! A hand-off, until it is sure that it has reached the waiter.

use std::time::Duration;

use crate::{Fence, Locks, Name, Ticket, TicketId, Timestamp, ticket::MultiId};

/// A lock, or several, handed to a waiter.
#[derive(Debug)]
pub struct Granted {
    /// Its former place in the queue.
    pub ticket: Box<Ticket>,
    /// The fence of its hold.
    pub fence: Fence,
    /// How long it has waited.
    pub waited: Duration,
    /// Whether it held the lock already, and has been upgraded.
    pub(crate) was_upgraded: bool,
    /// The numbers of its places, in the order of the keys.
    pub(crate) places: Places,
}

/// The numbers of the places of one request.
#[derive(Clone, Debug)]
pub(crate) enum Places {
    One(TicketId),
    Several(Box<[TicketId]>),
}

impl Places {
    fn as_slice(&self) -> &[TicketId] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Several(ids) => ids,
        }
    }
}

/// A place that its owner gets back if the grant does not reach it.
#[derive(Clone, Debug)]
pub struct KeptPlace {
    ticket: Box<Ticket>,
    places: Places,
}

impl Granted {
    /// The place to be given back if the grant does not arrive, if the request
    /// asked for that.
    #[must_use]
    pub fn kept_place(&self) -> Option<Box<KeptPlace>> {
        self.ticket.keep?;
        let (ticket, places) = (self.ticket.clone(), self.places.clone());
        Some(Box::new(KeptPlace { ticket, places }))
    }
}

impl Locks {
    /// Keeps a place for a waiter whom its grant has not reached. Nothing is
    /// kept for an owner that has asked anew meanwhile.
    pub fn keep_place(&mut self, now: Timestamp, names: &[Name<'_>], place: &KeptPlace) {
        self.restore(now, names, &place.ticket, place.places.as_slice());
    }

    pub(crate) fn keep_granted(&mut self, now: Timestamp, names: &[Name<'_>], granted: &Granted) {
        self.restore(now, names, &granted.ticket, granted.places.as_slice());
    }

    fn restore(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        ticket: &Ticket,
        places: &[TicketId],
    ) {
        let Some(until) = ticket.kept_until(now) else {
            return;
        };
        let is_queued = |name: &Name<'_>| {
            let queue = self.table.find(*name);
            queue.is_some_and(|id| self.table.ticket_of(id, &ticket.owner).is_some())
        };
        if names.iter().any(is_queued) {
            return;
        }
        let multi = ticket.multi.map(|_| MultiId(self.table.next_id()));
        for (name, id) in names.iter().zip(places) {
            let is_new = self.table.find(*name).is_none();
            let queue = self.table.find_or_insert(*name);
            let mut ticket = Box::new(ticket.clone());
            (ticket.queue, ticket.multi) = (queue, multi);
            ticket.keep_until(until);
            self.table.insert(*id, ticket);
            if is_new {
                // It is not known yet when the lock has to be looked at.
                self.table.mark_due(queue);
            }
        }
        if let Some(multi) = multi {
            self.table.join(multi, places.to_vec());
        }
    }
}
