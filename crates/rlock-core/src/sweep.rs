//! What has to be done without anybody asking: deadlines that have come,
//! connections that have closed, databases that were emptied. In pieces of a
//! size that the caller chooses.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    Delivery, Due, Locks, Name, Ticket, TicketId, Timestamp,
    queue::{Look, QueueId},
};

/// Work over many queues or tickets, of which each call does a piece.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// Connections that have closed and still have requests or watches.
    pub(crate) closed: BTreeSet<u64>,
    /// Databases of which every queue has to be settled.
    rechecks: VecDeque<Recheck>,
}

#[derive(Debug)]
struct Recheck {
    db: Option<u32>,
    from: QueueId,
}

impl Locks {
    /// Leaves the rest of the settling of a lock to [`Locks::next_due`].
    pub fn settle_later(&mut self, name: Name<'_>) {
        if let Some(id) = self.table.find(name) {
            self.table.mark_due(id);
        }
    }

    /// Has every lock of a database, or of all, settled by and by.
    pub fn settle_all_later(&mut self, db: Option<u32>) {
        // Without this a thousand flushes in one turn would go through every
        // queue a thousand times.
        let covered = self.sweep.rechecks.iter().any(|it| {
            let whole = it.from == QueueId(0);
            whole && (it.db.is_none() || it.db == db)
        });
        if !covered && !self.table.queues.is_empty() {
            self.sweep.rechecks.push_back(Recheck {
                db,
                from: QueueId(0),
            });
        }
    }

    /// The next thing that is due, if anything is.
    pub fn next_due(&mut self, now: Timestamp) -> Option<Due> {
        if let Some(ticket) = self.table.deadlines.wait_passed(now) {
            return Some(Due::WaitEnd(ticket));
        }
        if let Some(id) = self.table.deadlines.look_passed(now) {
            let again = self
                .table
                .queues
                .get(&id)
                .is_some_and(|it| matches!(it.look, Look::Again(_)));
            self.table
                .look(id, if again { Look::Never } else { Look::LeaseEnded });
            self.table.mark_due(id);
        }
        let queue = self.table.next_due()?;
        Some(Due::Settle {
            db: queue.db,
            key: Arc::clone(&queue.key),
        })
    }

    /// When something will be due, if nothing is asked before: at once, or
    /// after the deadline that comes first.
    #[must_use]
    pub fn next_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        let swept = self.sweep.closed.is_empty() && self.sweep.rechecks.is_empty();
        if !swept || !self.table.due.is_empty() {
            return Some(now);
        }
        // A deadline has passed once its millisecond is over.
        Some(self.table.deadlines.first()?.plus_millis(1).max(now))
    }

    /// Ends a wait that is over, and says for which key.
    pub fn end_wait(&mut self, now: Timestamp, id: TicketId) -> Option<(Box<Ticket>, Arc<[u8]>)> {
        let ticket = self.table.tickets.get(&id)?;
        if !ticket.wait_ends.has_passed(now) {
            return None;
        }
        let key = Arc::clone(&self.table.queues.get(&ticket.queue)?.key);
        self.counters.wait_timeouts += 1;
        Some((self.take_out(id)?, key))
    }

    /// Takes a request out of its queue because the blocked call is gone that
    /// it was to be answered through. False if it has another one by now.
    pub fn caller_gone(&mut self, id: TicketId, handle: u64) -> bool {
        let gone = self.table.tickets.get(&id).is_some_and(|ticket| {
            matches!(ticket.delivery, Delivery::Blocked { handle: other, .. } if other == handle)
        });
        if gone {
            self.counters.waiters_gone += 1;
            self.take_out(id);
        }
        gone
    }

    /// Takes note that a connection has closed: its requests and watches are
    /// withdrawn, in pieces, by [`Locks::sweep`]; none of them is served
    /// any more.
    pub fn session_closed(&mut self, session: u64) {
        let from = (session, TicketId::MIN);
        let ticket = self.table.session_tickets.range(from..).next();
        let watch = self
            .table
            .session_watches
            .range((session, QueueId(0))..)
            .next();
        let has = ticket.is_some_and(|(of, _)| *of == session)
            || watch.is_some_and(|(of, _)| *of == session);
        if has {
            self.sweep.closed.insert(session);
        }
    }

    /// Does up to `pieces` pieces of the work that closed connections and
    /// emptied databases have left. True if that was all.
    pub fn sweep(&mut self, pieces: usize) -> bool {
        for _ in 0..pieces {
            if let Some(session) = self.sweep.closed.first().copied() {
                if !self.withdraw_one_of(session) {
                    self.sweep.closed.remove(&session);
                }
            } else if let Some(recheck) = self.sweep.rechecks.front_mut() {
                let (db, from) = (recheck.db, recheck.from);
                let next = self
                    .table
                    .queues_from(from)
                    .next()
                    .map(|(id, queue)| (id, queue.db));
                match next {
                    Some((id, of)) => {
                        recheck.from = QueueId(id.0 + 1);
                        if db.is_none_or(|db| db == of) {
                            self.table.mark_due(id);
                        }
                    }
                    None => drop(self.sweep.rechecks.pop_front()),
                }
            } else {
                return true;
            }
        }
        self.sweep.closed.is_empty() && self.sweep.rechecks.is_empty()
    }

    /// Takes any ticket out of any queue, for a server that can grant nothing
    /// any more. Once there is none left, the watches end too.
    pub fn withdraw_any(&mut self) -> Option<(Box<Ticket>, Arc<[u8]>)> {
        let first = self
            .table
            .tickets
            .first_key_value()
            .map(|(id, ticket)| (*id, ticket.queue));
        let Some((id, queue)) = first else {
            self.end_watches();
            return None;
        };
        let key = Arc::clone(&self.table.queues.get(&queue)?.key);
        self.counters.waiters_gone += 1;
        Some((self.take_out(id)?, key))
    }

    /// Takes the front ticket out of a queue that this server no longer serves.
    pub fn withdraw_front(&mut self, name: Name<'_>) -> Option<Box<Ticket>> {
        let id = self.table.find(name)?;
        let Some(front) = self.table.queues.get(&id)?.front else {
            while self.table.remove_watch_if(id, |_| true).is_some() {}
            self.table.drop_if_idle(id);
            return None;
        };
        self.counters.waiters_gone += 1;
        self.take_out(front)
    }

    /// Takes a ticket out of its queue, and the queue away if it is idle then.
    pub(crate) fn take_out(&mut self, id: TicketId) -> Option<Box<Ticket>> {
        let ticket = self.table.remove(id)?;
        self.table.drop_if_idle(ticket.queue);
        Some(ticket)
    }

    /// Withdraws one request or watch of a connection; false if it has none.
    fn withdraw_one_of(&mut self, session: u64) -> bool {
        let ticket = self
            .table
            .session_tickets
            .range((session, TicketId::MIN)..)
            .next();
        if let Some((of, id)) = ticket.copied()
            && of == session
        {
            self.counters.waiters_gone += 1;
            self.take_out(id);
            return true;
        }
        let watch = self
            .table
            .session_watches
            .range((session, QueueId(0))..)
            .next();
        if let Some((of, id)) = watch.copied()
            && of == session
        {
            self.table
                .remove_watch_if(id, |watch| watch.session == session);
            self.table.drop_if_idle(id);
            return true;
        }
        false
    }

    fn end_watches(&mut self) {
        while let Some((_, id)) = self.table.session_watches.first().copied() {
            while self.table.remove_watch_if(id, |_| true).is_some() {}
            self.table.drop_if_idle(id);
        }
    }
}
