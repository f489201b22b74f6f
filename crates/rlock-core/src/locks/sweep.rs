//! Work without a request: deadlines, closed connections, flushed databases. It
//! is done piece by piece, from each source in turn, with a limit for each turn.
//!
//! Ten thousand leases may end in one millisecond, and one release may let in ten
//! thousand readers. To handle all at once would stall the server. So an operation over
//! many tickets asks its budget before each ticket, and marks its lock as due
//! when nothing is left. The unit is one ticket: a grant, the end of a wait, the
//! report of a loss, the end of a lease. Each costs the shell some microseconds.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::ops::Bound;

use super::acquire::withdrawn;
use crate::table::{Check, Queue, QueueId};
use crate::watch::{LastValue, WatchId};
use crate::{Delivery, Due, Effect, Ended, Locks, Name, TicketId, Timestamp};

/// Work over many queues or tickets; each call does one piece.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    turns: Turns,
    /// The number of the last ticket or watch from before this server became a
    /// replica, while any of them may remain.
    stale: Option<NonZeroU64>,
    /// The next lock to check for a value that was published before that.
    stale_value: QueueId,
    /// Queues that are being cleared, with the last ticket number at the time of
    /// the request.
    cleared: BTreeMap<QueueId, NonZeroU64>,
    /// Closed connections that still have requests or watches, and when they
    /// closed.
    pub(super) closed: BTreeMap<u64, Timestamp>,
    /// The one that was handled last.
    last_closed: u64,
    /// Bound holds of closed connections, to be cut.
    pub(super) unbound: VecDeque<WatchId>,
    /// Databases whose queues must all be settled.
    rechecks: VecDeque<Recheck>,
}

#[derive(Debug)]
struct Recheck {
    db: Option<u32>,
    from: QueueId,
    /// Whether the reason is that grants may begin again.
    grants: bool,
}

/// A source of work without a request.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Entries from before this server became a replica.
    Stale,
    /// Queues that an operator has cleared.
    Cleared,
    /// Connections that have closed.
    Closed,
    /// Databases that have changed.
    Rechecks,
    /// Waits that are over.
    Waits,
    /// Locks whose leases have ended, or that must be checked for another
    /// reason that depends on time.
    Checks,
    /// Bound holds of closed connections.
    Unbound,
    /// Locks that are marked as due.
    Due,
}

/// The turns of the sources. Each source gives a few pieces of work, then the
/// next one does. So no source delays another, however much work it has.
#[derive(Debug, Default)]
struct Turns {
    /// The number of pieces given, and of attempts without a piece.
    given: usize,
}

impl Turns {
    const ORDER: [Source; 8] = [
        Source::Stale,
        Source::Cleared,
        Source::Closed,
        Source::Rechecks,
        Source::Waits,
        Source::Checks,
        Source::Unbound,
        Source::Due,
    ];
    /// The most pieces that a source gives in a row.
    const SHARE: usize = 16;

    /// The source of the next piece.
    fn next(&mut self) -> Source {
        let source = Self::ORDER.get(self.given / Self::SHARE);
        self.given = (self.given + 1) % (Self::ORDER.len() * Self::SHARE);
        source.copied().unwrap_or(Source::Checks)
    }

    /// Ends the turn of a source without work.
    fn skip(&mut self) {
        let all = Self::ORDER.len() * Self::SHARE;
        self.given = self.given.next_multiple_of(Self::SHARE) % all;
    }

    /// Starts again with the first source.
    fn restart(&mut self) {
        self.given = 0;
    }
}

/// The result of asking a source.
enum Piece {
    /// There was no work.
    Nothing,
    /// The piece is done.
    Done,
    /// The caller must do it.
    Due(Due),
}

impl From<Option<Due>> for Piece {
    fn from(due: Option<Due>) -> Self {
        due.map_or(Self::Nothing, Self::Due)
    }
}

impl Locks {
    /// Leaves the rest of the settling of a lock to [`Locks::next_due`].
    pub fn settle_later(&mut self, name: Name<'_>) {
        if let Some(id) = self.table.find(name) {
            self.table.mark_due(id);
        }
    }

    /// Settles every lock of a database, or of all databases, gradually.
    pub fn settle_all_later(&mut self, db: Option<u32>) {
        // Otherwise a thousand flushes in one turn would go through every queue a
        // thousand times.
        let covered = self.sweep.rechecks.iter().any(|it| {
            let whole = it.from == QueueId(0) && !it.grants;
            whole && (it.db.is_none() || it.db == db)
        });
        if !covered {
            self.recheck(db, false);
        }
    }

    fn recheck(&mut self, db: Option<u32>, grants: bool) {
        if !self.table.is_empty() {
            self.sweep.rechecks.push_back(Recheck {
                db,
                from: QueueId(0),
                grants,
            });
        }
    }

    /// The earliest moment for grants to new holders; `None` for any time,
    /// whatever the clock shows.
    ///
    /// From then on every lock is settled gradually. If the first lock shows that
    /// grants must wait longer, and this is called again, the rest waits until
    /// the new time.
    pub fn grant_from(&mut self, from: Option<Timestamp>) {
        let was_delayed = self.granting_from.is_some();
        self.granting_from = from;
        if from.is_some() {
            self.sweep.rechecks.retain(|it| !it.grants);
        } else if was_delayed {
            self.recheck(None, true);
        }
    }

    /// The next work that is due. `None` if there is none, or if the budget of
    /// this turn is used up.
    ///
    /// The sources of work take turns.
    pub fn next_due(&mut self, now: Timestamp) -> Option<Due> {
        if self.granting_from.is_some_and(|from| from <= now) {
            self.grant_from(None);
        }
        let mut nothing = 0;
        while nothing < Turns::ORDER.len() {
            let source = self.sweep.turns.next();
            match self.piece_of(source, now) {
                Piece::Nothing => {
                    nothing += 1;
                    self.sweep.turns.skip();
                }
                Piece::Done if self.budget.is_spent() => return None,
                Piece::Done => nothing = 0,
                Piece::Due(due) => return Some(due),
            }
        }
        self.sweep.turns.restart();
        None
    }

    fn piece_of(&mut self, source: Source, now: Timestamp) -> Piece {
        match source {
            Source::Stale => self.piece_of_stale(),
            Source::Cleared => self.piece_of_cleared(),
            Source::Checks => self.next_due_check(now).into(),
            Source::Due => self.table.next_due().map(due_to_settle).into(),
            Source::Unbound => self.next_unbound().into(),
            Source::Closed => self.sweep_closed(),
            Source::Rechecks => self.recheck_one(),
            Source::Waits => self
                .table
                .deadlines()
                .wait_passed(now)
                .map(Due::WaitEnd)
                .into(),
        }
    }

    /// The lock whose check has been overdue for longest.
    fn next_due_check(&mut self, now: Timestamp) -> Option<Due> {
        let id = self.table.deadlines().check_passed(now)?;
        let queue = self.table.queue(id)?;
        let due = due_to_settle(queue);
        let again = matches!(queue.next_check(), Check::Again(_));
        self.table.set_check(
            id,
            if again {
                Check::Never
            } else {
                Check::LeaseEnded
            },
        );
        Some(due)
    }

    /// When work will be due if there is no request before: now, or after the
    /// first deadline.
    #[must_use]
    pub fn next_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        let rechecks = !self.sweep.rechecks.is_empty() && self.has_contended();
        if rechecks
            || !self.sweep.closed.is_empty()
            || self.sweep.stale.is_some()
            || !self.sweep.cleared.is_empty()
            || self.table.has_due()
            || !self.sweep.unbound.is_empty()
        {
            return Some(now);
        }
        // A deadline has passed once its millisecond is over.
        let first = self.table.deadlines().first().map(|at| at.plus_millis(1));
        let granting = self.granting_from.filter(|_| self.has_contended());
        let first = first.into_iter().chain(granting).min()?;
        Some(first.max(now))
    }

    /// Ends a wait that is over, or the grace of a kept place. The end of a grace
    /// notifies nobody.
    pub fn end_wait(&mut self, now: Timestamp, id: TicketId) -> Option<Ended> {
        let ticket = self.table.ticket(id)?;
        if !ticket.wait_ends.has_passed(now) {
            return None;
        }
        if ticket.is_kept() {
            self.take_out(id);
            return None;
        }
        self.counters.wait_timeouts += 1;
        self.end_call(now, id)
    }

    /// Ends a request because its blocked call is gone. False if it has another
    /// delivery by now.
    pub fn caller_gone(&mut self, now: Timestamp, id: TicketId, handle: u64) -> bool {
        let gone = self.table.ticket(id).is_some_and(|ticket| {
            let call = ticket.delivery.blocked_call();
            call.is_some_and(|call| call.handle == handle)
        });
        if gone {
            self.counters.waiters_gone += 1;
            self.end_call(now, id);
        }
        gone
    }

    /// Records that a connection has closed. [`Locks::next_due`] then withdraws
    /// its requests and watches and cuts the holds bound to it, one by one; none
    /// of its requests is served any more.
    pub fn session_closed(&mut self, now: Timestamp, session: u64) {
        self.table.forget_listener(session);
        let has_ticket = self.table.ticket_of_session(session).is_some();
        if has_ticket || self.table.watch_of_session(session).is_some() {
            self.sweep.closed.insert(session, now);
        }
    }

    /// Withdraws one request or watch of a closed connection; the connections
    /// take turns.
    fn sweep_closed(&mut self) -> Piece {
        let after = (Bound::Excluded(self.sweep.last_closed), Bound::Unbounded);
        let next = self.sweep.closed.range(after).next();
        let next = next.or_else(|| self.sweep.closed.first_key_value());
        let Some((session, at)) = next.map(|(session, at)| (*session, *at)) else {
            return Piece::Nothing;
        };
        self.sweep.last_closed = session;
        if !self.withdraw_one_of(session, at) {
            self.sweep.closed.remove(&session);
        }
        Piece::Done
    }

    /// Marks one lock of a changed database as due.
    fn recheck_one(&mut self) -> Piece {
        let Some(recheck) = self.sweep.rechecks.front_mut() else {
            return Piece::Nothing;
        };
        self.budget.spend(1);
        let next = self.table.queues_from(recheck.from).next();
        let Some((id, of)) = next.map(|(id, queue)| (id, queue.name().db)) else {
            self.sweep.rechecks.pop_front();
            return Piece::Done;
        };
        recheck.from = QueueId(id.0 + 1);
        if recheck.db.is_none_or(|db| db == of) {
            self.table.mark_due(id);
        }
        Piece::Done
    }

    /// Records that this server has become a replica: it cannot grant any queued
    /// request or report any loss, even if it becomes a master again at once.
    /// Later requests are not affected.
    pub fn demote(&mut self) {
        self.sweep.stale = self.table.last_id();
        self.sweep.stale_value = QueueId::MIN;
    }

    /// The next request from before this server became a replica, which is turned
    /// away; after the last request the watches end. `None` if nothing is left,
    /// or if the budget of this turn is used up. A master handles them in
    /// [`Locks::next_due`].
    pub fn next_stale(&mut self) -> Option<Ended> {
        loop {
            match self.piece_of_stale() {
                Piece::Due(Due::TurnAway(ended)) => return Some(ended),
                Piece::Done if !self.budget.is_spent() => {}
                Piece::Done | Piece::Due(_) | Piece::Nothing => return None,
            }
        }
    }

    fn piece_of_stale(&mut self) -> Piece {
        let Some(last) = self.sweep.stale else {
            return Piece::Nothing;
        };
        let ticket = self.table.oldest_place();
        if let Some(first) = ticket.filter(|id| id.number() <= last) {
            return self.withdraw(first).map(Due::TurnAway).into();
        }
        let watch = self.table.oldest_watch();
        if let Some(first) = watch.filter(|id| self.is_watch_stale(*id)) {
            self.budget.spend(1);
            if let Some(watch) = self.table.remove_watch(first) {
                self.table.drop_if_idle(watch.queue);
            }
            return Piece::Done;
        }
        if let Some((next, last_value)) = self.table.last_value_from(self.sweep.stale_value) {
            self.budget.spend(1);
            self.sweep.stale_value = QueueId(next.0 + 1);
            if self.is_value_stale(&last_value) {
                self.table.forget_last_value(next);
            }
            return Piece::Done;
        }
        self.sweep.stale = None;
        if self.table.is_empty() {
            // So no work can remain.
            self.sweep = Sweep::default();
            self.ready.clear();
        }
        Piece::Done
    }

    /// Ends all current places of a queue, including kept ones; a request for
    /// several keys also loses its places in other queues. Returns the ended
    /// requests that this turn allows, and leaves the rest to
    /// [`Locks::next_due`]. None of them is granted any more; later requests are
    /// not affected.
    pub fn clear_queue(&mut self, name: Name<'_>) -> Vec<Ended> {
        let mut ended = Vec::new();
        let queue = self.table.find(name);
        if let (Some(queue), Some(last)) = (queue, self.table.last_id()) {
            self.sweep.cleared.insert(queue, last);
            while !self.budget.is_spent() && self.sweep.cleared.contains_key(&queue) {
                ended.extend(self.end_cleared(queue));
            }
        }
        ended
    }

    /// Ends one place of a queue that is being cleared. When none is left, the
    /// queue is a normal one again.
    fn end_cleared(&mut self, queue: QueueId) -> Option<Ended> {
        let last = *self.sweep.cleared.get(&queue)?;
        let place = self.table.first_place_until(queue, last);
        let ended = place.and_then(|id| self.withdraw(id));
        if ended.is_none() {
            self.sweep.cleared.remove(&queue);
            if self.table.front(queue).is_some() {
                self.table.mark_due(queue);
            }
        }
        ended
    }

    fn piece_of_cleared(&mut self) -> Piece {
        let Some(queue) = self.sweep.cleared.keys().next().copied() else {
            return Piece::Nothing;
        };
        self.budget.spend(1);
        let ended = self.end_cleared(queue);
        ended.map_or(Piece::Done, |ended| Piece::Due(Due::Withdraw(ended)))
    }

    /// Whether a ticket only waits for its withdrawal: it is from before this
    /// server became a replica, or from before its queue was cleared. If its
    /// owner asks again, that counts as a first request.
    pub(super) fn is_stale(&self, id: TicketId) -> bool {
        self.sweep.stale.is_some_and(|last| id.number() <= last) || self.is_in_cleared(id)
    }

    pub(super) fn has_stale(&self) -> bool {
        self.sweep.stale.is_some() || !self.sweep.cleared.is_empty()
    }

    /// Whether any ticket of a request only waits for its withdrawal; then the
    /// whole request does.
    pub(super) fn is_request_stale(&self, id: TicketId) -> bool {
        self.has_stale() && self.members_of(id).iter().any(|it| self.is_stale(*it))
    }

    /// Ends an owner's request that only waits for its withdrawal, because the
    /// owner has asked again. Returns the end of its call.
    pub(super) fn withdraw_stale(&mut self, name: Name<'_>, owner: &[u8]) -> Option<Effect> {
        if !self.has_stale() {
            return None;
        }
        let own = self.table.ticket_of(self.table.find(name)?, owner);
        let stale = own.filter(|id| self.is_request_stale(*id))?;
        withdrawn(self.withdraw(stale)?.delivery)
    }

    /// Whether a watch is from before this server became a replica.
    pub(super) fn is_watch_stale(&self, id: WatchId) -> bool {
        self.sweep.stale.is_some_and(|last| id.0 <= last.get())
    }

    /// Whether a value was published before this server became a replica.
    pub(super) fn is_value_stale(&self, last_value: &LastValue) -> bool {
        self.sweep
            .stale
            .is_some_and(|last| last_value.number <= last)
    }

    fn is_in_cleared(&self, id: TicketId) -> bool {
        if self.sweep.cleared.is_empty() {
            return false;
        }
        let ticket = self.table.ticket(id);
        let last = ticket.and_then(|it| self.sweep.cleared.get(&it.queue));
        last.is_some_and(|last| id.number() <= *last)
    }

    /// Removes any ticket from a queue that this server no longer serves. When
    /// none is left, its watches end, one by one.
    pub fn withdraw_one(&mut self, name: Name<'_>) -> Option<Ended> {
        let id = self.table.find(name)?;
        if let Some(first) = self.table.first_place(id) {
            return self.withdraw(first);
        }
        let watch = self.table.watches_of(id).map(|it| it.0).next();
        let Some(watch) = watch.and_then(|id| self.table.remove_watch(id)) else {
            // Followers of its value ask the server that has it now.
            self.table.forget_last_value(id);
            return None;
        };
        let key = self.table.queue(id)?.name().key.into();
        self.budget.spend(1);
        self.table.drop_if_idle(id);
        Some(Ended {
            key,
            owner: watch.owner,
            delivery: watch.notice.map_or(Delivery::Kept, Delivery::Notify),
        })
    }

    fn withdraw(&mut self, id: TicketId) -> Option<Ended> {
        let ended = self.take_out(id)?;
        self.counters.waiters_gone += u64::from(ended.delivery != Delivery::Kept);
        Some(ended)
    }

    /// Ends the call of a request, and its place unless that is kept.
    fn end_call(&mut self, now: Timestamp, id: TicketId) -> Option<Ended> {
        let ticket = self.table.ticket(id)?;
        let Some(until) = ticket.kept_until(now) else {
            return self.take_out(id);
        };
        let key = self.table.queue(ticket.queue)?.name().key.into();
        let owner = ticket.owner.clone();
        let multi = ticket.multi;
        let members = self.members_of(id);
        self.budget.spend(members.len());
        if let Some(multi) = multi {
            self.table.part(multi);
        }
        let mut delivery = None;
        for member in &members {
            let was_front = self.is_front(*member);
            let ended = self.table.change(*member, |it| it.keep_until(until));
            delivery = delivery.or(ended);
            if let Some(queue) = was_front {
                self.table.mark_due(queue);
            }
        }
        if let Some(multi) = multi {
            self.table.join(multi, members);
        }
        let delivery = delivery?;
        Some(Ended {
            key,
            owner,
            delivery,
        })
    }

    /// The queue of a ticket that is at its front.
    fn is_front(&self, id: TicketId) -> Option<QueueId> {
        let queue = self.table.ticket(id)?.queue;
        (self.table.front(queue) == Some(id)).then_some(queue)
    }

    /// Removes a request from its queues, and the queues that are idle then. A
    /// ticket behind it may now fit, so those locks become due.
    pub(super) fn take_out(&mut self, id: TicketId) -> Option<Ended> {
        let members = self.members_of(id);
        self.budget.spend(members.len());
        if let Some(multi) = self.table.ticket(id)?.multi {
            self.table.part(multi);
        }
        let mut first = None;
        for member in members {
            let taken = self.take_one_out(member);
            first = first.or(taken);
        }
        first
    }

    fn take_one_out(&mut self, id: TicketId) -> Option<Ended> {
        let was_front = self.is_front(id);
        let ticket = *self.table.remove(id)?;
        let key = self.table.queue(ticket.queue)?.name().key.into();
        if let Some(queue) = was_front.filter(|queue| self.table.front(*queue).is_some()) {
            self.table.mark_due(queue);
        }
        self.table.drop_if_idle(ticket.queue);
        Some(Ended {
            key,
            owner: ticket.owner,
            delivery: ticket.delivery,
        })
    }

    /// The next bound hold to cut because its connection has closed.
    fn next_unbound(&mut self) -> Option<Due> {
        while let Some(id) = self.sweep.unbound.pop_front() {
            let watch = self.table.watch(id);
            // It may have been lost or renewed meanwhile.
            let closed = |it: &crate::Binding| it.closed.is_some();
            let watch = watch.filter(|it| it.binding.as_ref().is_some_and(closed));
            let queue = watch.and_then(|it| self.table.queue(it.queue));
            if let (Some(watch), Some(queue)) = (watch, queue) {
                return Some(Due::Unbind {
                    db: queue.name().db,
                    key: queue.name().key.into(),
                    owner: watch.owner.clone(),
                });
            }
        }
        None
    }

    /// Withdraws one request or watch of a connection, or marks a hold that is
    /// bound to it; false if there is none.
    fn withdraw_one_of(&mut self, session: u64, closed: Timestamp) -> bool {
        if let Some(id) = self.table.ticket_of_session(session) {
            self.counters.waiters_gone += 1;
            self.end_call(closed, id);
            return true;
        }
        let Some(id) = self.table.watch_of_session(session) else {
            return false;
        };
        let mut queue = None;
        self.budget.spend(1);
        self.table.change_watch(id, |watch| {
            queue = Some(watch.queue);
            watch.notice = watch.notice.take().filter(|it| it.session != session);
            let binding = watch.binding.as_mut();
            if let Some(binding) = binding.filter(|it| it.session == session) {
                binding.closed = Some(closed);
                self.sweep.unbound.push_back(id);
            }
        });
        if let Some(queue) = queue {
            self.table.drop_if_idle(queue);
        }
        true
    }
}

fn due_to_settle(queue: &Queue) -> Due {
    let Name { db, key } = queue.name();
    let key = key.into();
    Due::Settle { db, key }
}

/// The number of tickets that may still be handled in this turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: usize::MAX }
    }
}

impl Budget {
    pub(super) const fn of(tickets: usize) -> Self {
        Self { left: tickets }
    }

    /// Takes `tickets` from the budget, or all that remain.
    pub(super) const fn spend(&mut self, tickets: usize) {
        self.left = self.left.saturating_sub(tickets);
    }

    pub(super) const fn left(&self) -> usize {
        self.left
    }

    pub(super) const fn is_spent(&self) -> bool {
        self.left == 0
    }
}
