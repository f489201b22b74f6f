//! The invariants after every step, stated again in another way: for tests.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{Queue, QueueId, Table};
use crate::ticket::Rank;
use crate::{Delivery, Timestamp};

impl Table {
    /// Checks that queues, tickets, watches and indices agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        let table = self;
        let mut tickets = 0;
        let mut contended = 0;
        for (id, queue) in &table.queues {
            tickets += self.check_queue(*id, queue)?;
            contended += usize::from(queue.len > 0);
        }
        ensure(tickets == table.tickets.len(), "a ticket is in no queue")?;
        let fronts = table.queues.values().filter(|it| it.front.is_some());
        let waiting = fronts.count() + table.behind.len();
        ensure(
            tickets == waiting + table.kept.len(),
            "an order has a stale entry",
        )?;
        let of_users = table.tickets.values().filter(|it| it.user.is_some());
        ensure(
            of_users.count() as u64 == table.places_by_user.values().sum::<u64>(),
            "the places of users are miscounted",
        )?;
        ensure(
            contended == table.contended.len() && table.names.len() == table.queues.len(),
            "the number of contended locks is wrong",
        )?;
        ensure(
            table.by_owner.len() == waiting && table.kept_by_owner.len() == table.kept.len(),
            "the index of owners is wrong",
        )?;
        self.check_links()?;
        self.check_ticket_indices()?;
        self.check_multis()?;
        self.check_watches_kept()
    }

    fn check_queue(&self, id: QueueId, queue: &Queue) -> Result<usize, String> {
        let table = self;
        let named = table.find(queue.name());
        ensure(named == Some(id), "a queue is not found by its name")?;
        ensure(
            !queue.is_idle() || table.last_value(id).is_some(),
            "a queue without tickets, watches and a published value is kept",
        )?;
        let places = table.places(id).count();
        ensure(
            places == queue.len as usize,
            "a queue's length differs from its order's length",
        )?;
        ensure(
            table.in_order(id).all(|(_, it)| !it.is_kept()),
            "a kept place is in the order of those who wait",
        )?;
        let ranks: Vec<_> = table.in_order(id).map(|(id, _)| table.rank(id)).collect();
        ensure(ranks.is_sorted(), "a queue is not in order")?;
        let mut owners = BTreeSet::new();
        for ticket in table.places(id) {
            ensure(ticket.queue == id, "a ticket does not know its queue")?;
            let place = table.ticket_of(id, &ticket.owner);
            ensure(place.is_some(), "a place is not found by its owner")?;
            ensure(owners.insert(&ticket.owner), "an owner is twice in a queue")?;
        }
        let entry = (queue.db, Reverse(queue.len), id);
        ensure(
            (queue.len > 0) == table.contended.contains(&entry),
            "a contended lock is not in its index",
        )?;
        if let Some(at) = queue.next_check().at() {
            ensure(
                queue.due || table.deadlines.checks.contains(&(at, id)),
                "the time of a check is not in the index",
            )?;
        }
        ensure(
            table.watches_of(id).count() == queue.watches as usize,
            "the number of a lock's watches is wrong",
        )?;
        Ok(places)
    }

    fn check_links(&self) -> Result<(), String> {
        for (id, ticket) in &self.tickets {
            let several = self.waits_of(&ticket.owner).count() > 1;
            let entry = (ticket.queue, Rank::of(*id, ticket.is_upgrade));
            ensure(
                self.linked.contains(&entry) == (several && !ticket.is_kept()),
                "an owner's tickets are not linked as they are",
            )?;
        }
        let known = |it: &(QueueId, Rank)| self.tickets.contains_key(&it.1.id());
        ensure(
            self.linked.iter().all(known),
            "a link is left of a ticket that has gone",
        )
    }

    fn check_ticket_indices(&self) -> Result<(), String> {
        let table = self;
        let leading = || table.tickets.iter().filter(|(id, _)| table.leads(**id));
        let waits = leading().filter(|it| it.1.wait_ends != Timestamp::NEVER);
        ensure(
            table.deadlines.waits.len() == waits.count(),
            "the index of waits is wrong",
        )?;
        let mut count = 0;
        for (id, ticket) in leading() {
            let Delivery::Notify(listener) = &ticket.delivery else {
                continue;
            };
            let entry = (listener.session, *id);
            ensure(
                table.session_tickets.contains(&entry),
                "a ticket's session is not indexed",
            )?;
            count += 1;
        }
        ensure(
            table.session_tickets.len() == count,
            "the index of sessions is wrong",
        )?;
        let watched = table.tickets.values().filter(|it| it.is_watched()).count();
        ensure(
            table.watched_tickets == watched as u64,
            "the number of watched tickets is wrong",
        )?;
        for (at, id) in &table.deadlines.checks {
            let check = table
                .queues
                .get(id)
                .and_then(|queue| queue.next_check().at());
            ensure(check == Some(*at), "the index of checks has a stale entry")?;
        }
        Ok(())
    }

    fn check_multis(&self) -> Result<(), String> {
        let table = self;
        for (multi, request) in &table.multis {
            for member in &request.members {
                let ticket = table.tickets.get(member);
                ensure(
                    ticket.is_some_and(|it| it.multi == Some(*multi)),
                    "a request for several keys has lost a ticket",
                )?;
            }
        }
        Ok(())
    }

    fn check_watches_kept(&self) -> Result<(), String> {
        let table = self;
        let mut sessions = 0;
        let mut bound = 0;
        for (id, watch) in &table.watches {
            ensure(
                table.watch_of(watch.queue, &watch.owner) == Some(*id),
                "a watch is not found by its owner",
            )?;
            for session in watch.sessions() {
                sessions += 1;
                ensure(
                    table.session_watches.contains(&(session, *id)),
                    "a watch's session is not indexed",
                )?;
            }
            bound += u64::from(watch.binding.is_some());
        }
        ensure(
            table.session_watches.len() == sessions,
            "the index of watches has a stale entry",
        )?;
        let firsts = table.queues.values().map(|it| it.first_watch);
        let firsts = firsts.filter(|it| table.watches.contains_key(it)).count();
        ensure(
            firsts + table.more_watches.len() == table.watches.len(),
            "the index of watches by owner is wrong",
        )?;
        ensure(table.bound == bound, "the number of bound holds is wrong")?;
        let is_known = |id: &QueueId| table.queues.contains_key(id);
        ensure(
            table.last_values.keys().all(is_known),
            "a published value belongs to an unknown lock",
        )?;
        let alone = table
            .last_values
            .keys()
            .filter(|id| !table.has_watches(**id));
        ensure(
            table.last_values_unwatched == alone.count() as u64,
            "the number of holds with a value is wrong",
        )
    }
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}
