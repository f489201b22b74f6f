//! Settling: drop what lapsed, hand off to all who fit. Who is next, and
//! whether it is anybody's turn, is decided here and nowhere else.

use crate::{
    Announce, Delivery, Effect, Granted, Hold, Locks, Name, Step, Ticket, TicketId, Timestamp,
    granted::Places,
    queue::{Look, QueueId},
};

/// How long until a key that holds no lock is looked at again, in
/// milliseconds. Nearly every way out of that state is told by a key event;
/// this is for the others.
const NO_LOCK_LOOK_MS: u64 = 1000;

impl Locks {
    /// Whether the lock has waiters or watches, so that it has to be settled
    /// before anything else is done with it.
    #[must_use]
    pub fn is_contended(&self, name: Name<'_>) -> bool {
        self.table.find(name).is_some()
    }

    /// Whether any lock has waiters or watches.
    #[must_use]
    pub fn has_contended(&self) -> bool {
        !self.table.queues.is_empty()
    }

    /// Drops what has lapsed and hands the lock to all who fit, from the front.
    ///
    /// Losses come before grants among the effects.
    pub fn settle(&mut self, now: Timestamp, name: Name<'_>, hold: &mut Hold) -> Step<()> {
        let mut step = Step::quiet(());
        let lapsed = self.view(now, name, hold, None);
        if let Some(id) = self.table.find(name) {
            if !lapsed {
                self.count_unseen_lapse(now, id, hold);
            }
            self.tell_losses(now, id, hold, &mut step);
            self.hand_off(now, name, id, hold, &mut step.effects);
            if hold.first_end().is_some_and(|end| end.has_passed(now)) {
                self.table.mark_due(id);
            }
            self.look_at(now, id, hold);
            self.table.drop_if_idle(id);
        }
        step
    }

    /// Takes a grant back that nobody was there to hear of, before it was
    /// written down, and hands the lock to the next, in a later turn if this
    /// one has done what it may. The place is kept if the request asked for
    /// that.
    pub fn skip(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        granted: &Granted,
    ) -> Step<()> {
        if !self.take_back(now, name, hold, granted) {
            return Step::quiet(());
        }
        // With an upgrade goes what its owner held before.
        let announce = if granted.was_upgraded {
            Announce::IfFreed
        } else {
            Announce::No
        };
        if self.budget.is_spent() {
            self.settle_later(name);
            return Step::quiet(()).announcing(announce);
        }
        self.settle(now, name, hold).announcing(announce)
    }

    /// Undoes a hand-off; false, and nothing changes, if it is not the hold's.
    fn take_back(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        granted: &Granted,
    ) -> bool {
        let owner = &granted.ticket.owner;
        if hold.fence_of(owner) != Some(granted.fence) {
            return false;
        }
        self.counters.grants -= 1;
        self.counters.handoffs -= 1;
        self.counters.waiters_gone += 1;
        hold.end_of(owner);
        if let Some(id) = self.table.find(name) {
            self.uncount_in_streak(id);
            if let Some(watch) = self.table.watch_of(id, owner) {
                self.table.remove_watch(watch);
            }
        }
        self.keep_granted(now, &[name], granted);
        true
    }

    /// Sets when the lock has to be looked at, given its hold.
    pub(crate) fn look_at(&mut self, now: Timestamp, id: QueueId, hold: &Hold) {
        let look = match hold {
            Hold::Exclusive { .. } | Hold::Shared(_) => {
                self.end_offer(id);
                hold.first_end().map_or(Look::Never, Look::LeaseEnd)
            }
            Hold::NoLock => {
                self.end_offer(id);
                Look::Again(now.plus_millis(NO_LOCK_LOOK_MS))
            }
            Hold::Free if self.is_offered(now, id) => return,
            Hold::Free => Look::Never,
        };
        self.table.look(id, look);
    }

    /// Counts a lease that ended unseen: the key is gone, and it was time.
    fn count_unseen_lapse(&mut self, now: Timestamp, id: QueueId, hold: &Hold) {
        let queue = self.table.queues.get(&id);
        let ended = match queue.map_or(Look::Never, |queue| queue.look()) {
            Look::LeaseEnd(at) => at.has_passed(now),
            Look::LeaseEnded => true,
            Look::Never | Look::Again(_) => false,
        };
        if ended && *hold == Hold::Free {
            self.counters.lease_expirations += 1;
        }
    }

    fn hand_off(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        id: QueueId,
        hold: &mut Hold,
        effects: &mut Vec<Effect>,
    ) {
        if !self.is_granting(now, Some(id)) {
            return;
        }
        let mut any = false;
        while let Some(front) = self.table.front(id) {
            let Some(ticket) = self.table.tickets.get(&front) else {
                return;
            };
            if !hold.admits(now, &ticket.owner, ticket.mode()) {
                return;
            }
            if self.is_left(front) {
                // It is due already, and who is behind it becomes due then.
                return;
            }
            let over = ticket.wait_ends.has_passed(now);
            let (gone, is_multi) = (self.is_gone(ticket), ticket.multi.is_some());
            if (over || gone) && is_multi {
                // It leaves all its queues at once, which is due already.
                return;
            }
            // A lock that was freed goes to the first at once, whatever is left
            // of this turn, so that it is not free in between.
            if any && self.budget.is_spent() {
                self.table.mark_due(id);
                return;
            }
            any = true;
            self.budget.spend(1);
            if over || gone {
                effects.extend(self.end_front(now, front, gone));
            } else if *hold == Hold::Free && self.offers(now, id, effects) {
                return;
            } else if is_multi {
                self.note_if_ready(front);
                return;
            } else if let Some(ticket) = self.table.remove(front) {
                let place = Places::One(front);
                effects.push(Effect::HandOff(self.grant(now, name, hold, ticket, place)));
            }
        }
        self.end_streak(id);
    }

    /// Ends the call of a ticket that is not to be served any more.
    fn end_front(&mut self, now: Timestamp, front: TicketId, gone: bool) -> Option<Effect> {
        let (owner, delivery) = self.end_one_call(now, front)?;
        if gone {
            self.counters.waiters_gone += 1;
            Some(Effect::Withdrawn(delivery))
        } else {
            self.counters.wait_timeouts += 1;
            Some(Effect::WaitEnded { owner, delivery })
        }
    }

    /// Ends the call of one ticket, and its place too, unless that is kept.
    fn end_one_call(&mut self, now: Timestamp, id: TicketId) -> Option<(Box<[u8]>, Delivery)> {
        let ticket = self.table.tickets.get(&id)?;
        if let Some(until) = ticket.kept_until(now) {
            let owner = ticket.owner.clone();
            let delivery = self.table.change(id, |it| it.keep_until(until))?;
            return Some((owner, delivery));
        }
        let ticket = self.table.remove(id)?;
        Some((ticket.owner, ticket.delivery))
    }

    fn grant(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        ticket: Box<Ticket>,
        places: Places,
    ) -> Granted {
        let was_upgraded = ticket.is_upgrade
            && matches!(hold, Hold::Shared(shared) if shared.get(&ticket.owner).is_some());
        let fence = self.give(now, name, hold, &ticket.owner, &ticket.terms());
        hold.seen_from_elsewhere(&ticket.owner);
        self.counters.grants += 1;
        self.counters.handoffs += 1;
        self.count_in_streak(ticket.queue);
        self.remember_ticket(ticket.queue, &ticket, fence);
        Granted {
            waited: now.since(ticket.since),
            was_upgraded,
            ticket,
            fence,
            places,
        }
    }

    pub(crate) fn is_gone(&self, ticket: &Ticket) -> bool {
        match &ticket.delivery {
            Delivery::Notify(listener) => self.sweep.closed.contains_key(&listener.session),
            Delivery::Blocked { .. } | Delivery::Kept => false,
        }
    }
}
