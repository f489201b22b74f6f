//! What holds after every step, said once more in another way: for tests.

use crate::{Delivery, Hold, Locks, Mode, Name, Timestamp};

impl Locks {
    /// Checks that queues, tickets and indices agree with one another.
    ///
    /// # Errors
    ///
    /// The first disagreement, in words. Takes time in proportion to
    /// everything there is; meant for tests.
    pub fn check_indices(&self) -> Result<(), String> {
        let table = &self.table;
        let mut tickets = 0;
        let mut watches = 0;
        let mut contended = 0;
        for (id, queue) in &table.queues {
            let named = table
                .names
                .get(&queue.db)
                .and_then(|names| names.get(&queue.key));
            ensure(named == Some(id), "a queue is not found by its name")?;
            ensure(
                !queue.is_idle(),
                "a queue without tickets and watches is kept",
            )?;
            let ids: Vec<_> = std::iter::successors(queue.front, |id| {
                table.tickets.get(id).and_then(|ticket| ticket.behind)
            })
            .take(table.tickets.len() + 1)
            .collect();
            ensure(
                ids.len() == queue.len as usize,
                "a queue's length is not that of its chain",
            )?;
            ensure(
                ids.last().copied() == queue.back,
                "a queue's chain does not end at its back",
            )?;
            ensure(ids.is_sorted(), "a queue is not in order of arrival")?;
            let mut owners = std::collections::BTreeSet::new();
            for ticket in ids.iter().filter_map(|id| table.tickets.get(id)) {
                ensure(ticket.queue == *id, "a ticket does not know its queue")?;
                ensure(owners.insert(&ticket.owner), "an owner is twice in a queue")?;
            }
            if let Some(at) = queue.look.at() {
                ensure(
                    queue.due || table.deadlines.looks.contains(&(at, *id)),
                    "a time to look is not in the index",
                )?;
            }
            for watch in &queue.watches {
                let entry = (watch.session, *id);
                ensure(
                    table.session_watches.contains(&entry),
                    "a watch's session is not indexed",
                )?;
            }
            tickets += ids.len();
            watches += queue.watches.len() as u64;
            contended += u64::from(queue.len > 0);
        }
        ensure(tickets == table.tickets.len(), "a ticket is in no queue")?;
        ensure(watches == table.watches, "the number of watches is wrong")?;
        ensure(
            contended == table.contended,
            "the number of contended locks is wrong",
        )?;
        ensure(
            table.by_owner.len() == tickets,
            "the index of owners is wrong",
        )?;
        self.check_ticket_indices()
    }

    /// Checks that nobody waits for a lock that it could have.
    ///
    /// # Errors
    ///
    /// The name of the rule that is broken.
    pub fn check_front(&self, now: Timestamp, name: Name<'_>, hold: &Hold) -> Result<(), String> {
        let Some(id) = self.table.find(name) else {
            return Ok(());
        };
        let Some(queue) = self.table.queues.get(&id) else {
            return Ok(());
        };
        let admissible = hold.admits(Mode::Exclusive) && self.is_granting(now);
        ensure(
            queue.len == 0 || !admissible || queue.due,
            "the front waiter could be granted",
        )
    }

    fn check_ticket_indices(&self) -> Result<(), String> {
        let table = &self.table;
        let waits = table
            .tickets
            .values()
            .filter(|it| it.wait_ends != Timestamp::NEVER)
            .count();
        ensure(
            table.deadlines.waits.len() == waits,
            "the index of waits is wrong",
        )?;
        let notified = table
            .tickets
            .iter()
            .filter(|(_, ticket)| matches!(ticket.delivery, Delivery::Notify { .. }));
        let mut count = 0;
        for (id, ticket) in notified {
            let entry = (ticket.delivery.session(), *id);
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
        for (session, id) in &table.session_watches {
            let queue = table.queues.get(id);
            let watched =
                queue.is_some_and(|queue| queue.watches.iter().any(|it| it.session == *session));
            ensure(watched, "the index of watches has a stale entry")?;
        }
        for (at, id) in &table.deadlines.looks {
            let look = table.queues.get(id).and_then(|queue| queue.look.at());
            ensure(
                look == Some(*at),
                "the index of times to look has a stale entry",
            )?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}
