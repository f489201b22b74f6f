//! Settling: drops holds that have lapsed, and hands off to all waiters that fit.
//! Only this file decides which waiter is next, and whether it gets the lock. A
//! request for several keys must be first in all queues while all locks are free.
//!
//! Clients outside the queue, such as clients of Redisson, are treated fairly:
//! after many hand-offs in a row the lock is left free for a moment.

use std::sync::Arc;

use super::grant::Places;
use crate::table::{Check, Queue, QueueId, Streak};
use crate::{
    Announce, Delivery, Effect, Extras, Granted, Hold, Locks, Name, Step, Ticket, TicketId,
    Timestamp,
};

/// How long a lock is left to clients outside the queue, in milliseconds.
const OFFER_MS: u64 = 5;
/// The interval between checks of a key that is not a lock, in milliseconds. A key
/// event reports nearly every end of that state; this is for the others.
const NO_LOCK_CHECK_MS: u64 = 1000;

impl Locks {
    /// Whether the lock has waiters or watches, so that it must be settled before
    /// any other operation on it.
    #[must_use]
    pub fn is_contended(&self, name: Name<'_>) -> bool {
        self.table.find(name).is_some()
    }

    /// Whether [`Locks::settle`] would change nothing, for the most frequent case:
    /// an exclusive hold that was known at the last check, and no watch except the
    /// holder's. Records the fence of the hold, as settling does.
    #[must_use]
    pub fn is_settled(&mut self, now: Timestamp, name: Name<'_>, hold: &Hold) -> bool {
        let Some(id) = self.table.find(name) else {
            return true;
        };
        let (Hold::Exclusive { holder, .. }, Some(queue)) = (hold, self.table.queue(id)) else {
            return false;
        };
        if let Some(fence) = hold.floor() {
            self.fences.record(now, name, fence);
        }
        let end = holder.deadline;
        let is_watched = || {
            self.table
                .only_watch(id)
                .is_some_and(|it| !it.is_over(hold))
        };
        !end.has_passed(now)
            && queue.is_quiet_until(end)
            && self.table.search(id).is_none()
            && (!self.table.has_watches(id) || is_watched())
            // Without a waiter, hand-offs in a row end.
            && (queue.streak().is_new() || self.table.front(id).is_some())
    }

    /// Whether any lock has waiters or watches.
    #[must_use]
    pub fn has_contended(&self) -> bool {
        !self.table.is_empty()
    }

    /// Drops holds that have lapsed, and hands the lock to all waiters that fit,
    /// from the front.
    ///
    /// Losses come before grants among the effects.
    pub fn settle(&mut self, now: Timestamp, name: Name<'_>, hold: &mut Hold) -> Step<()> {
        let mut step = Step::without_effects(());
        let lapsed = self.view(now, name, hold, None);
        if let Some(id) = self.table.find(name) {
            if !lapsed {
                self.count_unseen_lease_end(now, id, hold);
            }
            self.report_losses(now, id, hold, &mut step);
            self.hand_off(now, name, id, hold, &mut step.effects);
            if hold.first_end().is_some_and(|end| end.has_passed(now)) {
                self.table.mark_due(id);
            }
            self.schedule_check(now, id, hold);
            self.table.drop_if_idle(id);
        }
        step
    }

    /// Undoes a grant that nobody received, before it was written. Hands the lock
    /// to the next waiter, in a later turn if the budget of this one is used up.
    /// The place is kept if the request asked for that.
    pub fn skip(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        granted: &Granted,
    ) -> Step<()> {
        if !self.undo_hand_off(now, name, hold, granted) {
            return Step::without_effects(());
        }
        // With an upgrade, the owner's earlier hold ends too.
        let announce = if granted.was_upgraded {
            Announce::IfFreed
        } else {
            Announce::No
        };
        if self.budget.is_spent() {
            if let Some(id) = self.table.find(name) {
                self.table.mark_due(id);
                self.table.drop_if_idle(id);
            }
            return Step::without_effects(()).announcing(announce);
        }
        self.settle(now, name, hold).announcing(announce)
    }

    /// Undoes a hand-off; false, without a change, if the hold is another one.
    fn undo_hand_off(
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
        hold.lose(owner);
        if let Some(id) = self.table.find(name) {
            self.uncount_in_streak(id);
            if let Some(watch) = self.table.watch_of(id, owner) {
                self.table.remove_watch(watch);
            }
            // Settling reports the loss of the earlier hold.
            if let Some((fence, listener)) = &granted.replaced {
                let listener = Some(Arc::clone(listener));
                self.keep_watch(id, owner, *fence, listener, None, None);
            }
        }
        self.keep_place(now, &[name], granted);
        true
    }

    /// Sets the next check of the lock, from its hold.
    pub(super) fn schedule_check(&mut self, now: Timestamp, id: QueueId, hold: &Hold) {
        let check = match hold {
            Hold::Exclusive { .. } | Hold::Shared(_) => {
                self.end_offer(id);
                hold.first_end().map_or(Check::Never, Check::LeaseEnd)
            }
            Hold::NoLock => {
                self.end_offer(id);
                Check::Again(now.plus_millis(NO_LOCK_CHECK_MS))
            }
            Hold::Free if self.is_offered(now, id) => return,
            Hold::Free => Check::Never,
        };
        self.table.set_check(id, check);
    }

    /// Counts a lease that ended unseen: the key is gone, and it was time.
    fn count_unseen_lease_end(&mut self, now: Timestamp, id: QueueId, hold: &Hold) {
        let queue = self.table.queue(id);
        if queue.is_some_and(|it| it.was_lease_due(now)) && hold.is_free() {
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
            let Some(ticket) = self.table.ticket(front) else {
                return;
            };
            let (owner, mode) = (&ticket.owner, ticket.options.mode);
            // The loss of what has ended is reported before the grant. What this
            // turn did not drop is due again.
            if !hold.admits(now, owner, mode) || hold.has_ended_for(now, owner, mode) {
                return;
            }
            if self.is_stale(front) {
                // It is already due, and the tickets behind it become due then.
                return;
            }
            let over = ticket.wait_ends.has_passed(now);
            let (gone, is_multi) = (self.is_gone(ticket), ticket.multi.is_some());
            if (over || gone) && is_multi {
                // It will leave all its queues at once; that is already due.
                return;
            }
            // A freed lock goes to the first waiter at once, whatever is left of
            // this turn, so that it is not free in between.
            if any && self.budget.is_spent() {
                self.table.mark_due(id);
                return;
            }
            any = true;
            self.budget.spend(1);
            if over || gone {
                effects.extend(self.end_front(now, front, gone));
            } else if hold.is_free() && self.offers(now, id, effects) {
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

    /// Ends the call of a ticket that will not be served.
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

    /// Ends the call of one ticket, and its place unless that is kept.
    fn end_one_call(&mut self, now: Timestamp, id: TicketId) -> Option<(Box<[u8]>, Delivery)> {
        let ticket = self.table.ticket(id)?;
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
        let replaced = self.listener_of(ticket.queue, &ticket.owner);
        let fence = self.fences.next(now, [name]);
        let extras = ticket.extras.as_deref().cloned().unwrap_or_default();
        hold.grant(now, &ticket.owner, &ticket.options, extras, fence);
        hold.view_as_other(&ticket.owner);
        self.counters.grants += 1;
        self.counters.handoffs += 1;
        self.count_in_streak(ticket.queue);
        self.remember_ticket(ticket.queue, &ticket, fence);
        Granted {
            waited: now.since(ticket.since),
            was_upgraded,
            replaced,
            ticket,
            fence,
            places,
        }
    }

    pub(super) fn is_gone(&self, ticket: &Ticket) -> bool {
        match &ticket.delivery {
            Delivery::Notify(listener) => self.sweep.closed.contains_key(&listener.session),
            Delivery::Blocked(_) | Delivery::Kept => false,
        }
    }

    /// The next request for several keys that may be first for all of them;
    /// [`Locks::grant_all`] grants it.
    pub fn next_ready(&mut self) -> Option<TicketId> {
        self.ready.pop_front()
    }

    /// Whether there is such a request.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Leaves these requests to [`Locks::next_due`].
    pub fn settle_ready_later(&mut self) {
        while let Some(id) = self.ready.pop_front() {
            if let Some(ticket) = self.table.ticket(id) {
                self.table.mark_due(ticket.queue);
            }
        }
    }

    /// The keys of a request, in its order; messages name the first.
    #[must_use]
    pub fn keys_of(&self, ticket: TicketId) -> Vec<(u32, Box<[u8]>)> {
        let key = |id: &TicketId| {
            let queue = self.table.ticket(*id)?.queue;
            let queue = self.table.queue(queue)?;
            Some((queue.name().db, queue.name().key.into()))
        };
        self.members_of(ticket).iter().filter_map(key).collect()
    }

    /// Grants a request for several keys, if it is first in all queues and all
    /// locks are free; `names` and `holds` belong to its keys, in its order. All
    /// keys count as one hand-off.
    pub fn grant_all(
        &mut self,
        now: Timestamp,
        id: TicketId,
        names: &[Name<'_>],
        holds: &mut [Hold],
    ) -> Option<Granted> {
        let members = self.members_of(id);
        let mut grantable = !holds.is_empty() && members.len() == holds.len();
        for ((member, name), hold) in members.iter().zip(names).zip(&mut *holds) {
            self.view(now, *name, hold, None);
            let ticket = self.table.ticket(*member)?;
            let (queue, gone) = (ticket.queue, self.is_gone(ticket) || self.is_stale(*member));
            let over = ticket.wait_ends.has_passed(now);
            let front = self.table.front(queue);
            let offered = self.is_offered(now, queue);
            self.schedule_check(now, queue, hold);
            let free = hold.is_free() && !offered;
            grantable &= free
                && self.is_granting(now, Some(queue))
                && front == Some(*member)
                && !over
                && !gone;
        }
        if !grantable {
            return None;
        }
        self.hand_all(now, &members, names, holds)
    }

    /// Undoes a grant of several keys that nobody received, before it was
    /// written. The tickets behind it come next.
    pub fn skip_all(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        holds: &mut [Hold],
        granted: &Granted,
    ) {
        self.counters.grants -= 1;
        self.counters.handoffs -= 1;
        self.counters.waiters_gone += 1;
        for (name, hold) in names.iter().zip(holds) {
            *hold = Hold::Free;
            let Some(id) = self.table.find(*name) else {
                continue;
            };
            self.uncount_in_streak(id);
            if let Some(watch) = self.table.watch_of(id, &granted.ticket.owner) {
                self.table.remove_watch(watch);
            }
            self.table.set_check(id, Check::Never);
            self.table.mark_due(id);
            self.table.drop_if_idle(id);
        }
        self.keep_place(now, names, granted);
    }

    /// Records that a request for several keys is first for all of them, and that
    /// all locks were free at the last check.
    pub(super) fn note_if_ready(&mut self, id: TicketId) {
        let Some(multi) = self.table.ticket(id).and_then(|it| it.multi) else {
            return;
        };
        let Some(request) = self.table.request(multi) else {
            return;
        };
        let (len, from) = (request.members.len(), request.unready);
        let mut order = (from..len).chain(0..from.min(len));
        let unready = order.find(|at| {
            let member = request.members.get(*at);
            member.is_some_and(|member| !self.is_ready(*member, id))
        });
        match (unready, request.members.first().copied()) {
            (Some(at), _) => self.table.note_unready(multi, at),
            (None, Some(leader)) if !self.ready.contains(&leader) => self.ready.push_back(leader),
            (None, _) => {}
        }
    }

    /// Whether a ticket is first for its lock, and the lock was free at the last
    /// check. The lock of `now` is being settled and known to be free.
    fn is_ready(&self, id: TicketId, now: TicketId) -> bool {
        let Some(ticket) = self.table.ticket(id) else {
            return true;
        };
        let queue = self.table.queue(ticket.queue);
        self.table.front(ticket.queue) == Some(id)
            && (id == now || queue.is_some_and(Queue::was_free))
    }

    /// All tickets of a ticket's request.
    pub(super) fn members_of(&self, id: TicketId) -> Vec<TicketId> {
        let multi = self.table.ticket(id).and_then(|it| it.multi);
        multi.map_or_else(|| vec![id], |multi| self.table.members(multi).to_vec())
    }

    fn hand_all(
        &mut self,
        now: Timestamp,
        members: &[TicketId],
        names: &[Name<'_>],
        holds: &mut [Hold],
    ) -> Option<Granted> {
        let first = self.table.ticket(*members.first()?)?;
        let multi = first.multi?;
        let fence = self.fences.next(now, names.iter().copied());
        self.budget.spend(members.len());
        self.counters.grants += 1;
        self.counters.handoffs += 1;
        self.table.part(multi);
        let mut leader = None;
        for (member, hold) in members.iter().zip(holds) {
            let ticket = self.table.remove(*member)?;
            hold.grant(now, &ticket.owner, &ticket.options, Extras::NONE, fence);
            hold.view_as_other(&ticket.owner);
            self.count_in_streak(ticket.queue);
            self.remember_ticket(ticket.queue, &ticket, fence);
            self.schedule_check(now, ticket.queue, hold);
            self.table.drop_if_idle(ticket.queue);
            leader = leader.or(Some(ticket));
        }
        let ticket = leader?;
        Some(Granted {
            waited: now.since(ticket.since),
            ticket,
            fence,
            was_upgraded: false,
            replaced: None,
            places: Places::Several(members.into()),
        })
    }

    /// Undoes an offer, because no client outside the queue could hear it.
    pub fn nobody_took(&mut self, now: Timestamp, name: Name<'_>, hold: &mut Hold) -> Step<()> {
        if let Some(id) = self.table.find(name) {
            self.end_offer(id);
        }
        self.settle(now, name, hold)
    }

    /// Leaves a free lock to clients outside the queue for a moment, if it is
    /// their turn. True during that time.
    pub(super) fn offers(
        &mut self,
        now: Timestamp,
        id: QueueId,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if self.is_offered(now, id) {
            return true;
        }
        let yield_after = self.yield_after;
        let streak = self.table.streak(id);
        if !streak.is_some_and(|it| it.offers(yield_after)) {
            return false;
        }
        let until = Check::Again(now.plus_millis(OFFER_MS));
        self.table.set_check(id, until);
        effects.push(Effect::Offer);
        true
    }

    /// Whether the lock is left to clients outside the queue.
    pub(super) fn is_offered(&self, now: Timestamp, id: QueueId) -> bool {
        self.table.queue(id).is_some_and(|queue| {
            let until = queue.next_check().at();
            // The clock may have been set back since.
            let is_on =
                |until: Timestamp| !until.has_passed(now) && until <= now.plus_millis(OFFER_MS);
            queue.streak().is_offered() && until.is_some_and(is_on)
        })
    }

    pub(super) fn end_offer(&mut self, id: QueueId) {
        if let Some(streak) = self.table.streak(id) {
            streak.end_offer();
        }
    }

    fn end_streak(&mut self, id: QueueId) {
        if let Some(streak) = self.table.streak(id) {
            *streak = Streak::default();
        }
    }

    /// Uncounts a hand-off that nobody received.
    fn uncount_in_streak(&mut self, id: QueueId) {
        if let Some(streak) = self.table.streak(id) {
            streak.uncount();
        }
    }

    fn count_in_streak(&mut self, id: QueueId) {
        if let Some(streak) = self.table.streak(id) {
            streak.count();
        }
    }

    /// Checks that nobody waits for a lock that it could have, and that nothing is
    /// remembered of a hold that has ended, unless the lock is due; for tests.
    ///
    /// # Errors
    ///
    /// The name of the violated rule.
    pub fn check_settled(&self, now: Timestamp, name: Name<'_>, hold: &Hold) -> Result<(), String> {
        let id = self.table.find(name);
        let Some((id, queue)) = id.and_then(|id| Some((id, self.table.queue(id)?))) else {
            return Ok(());
        };
        let front = self.table.front(id).and_then(|it| self.table.ticket(it));
        let admissible = front.is_some_and(|it| {
            it.multi.is_none()
                && hold.admits(now, &it.owner, it.options.mode)
                && self.is_granting(now, Some(id))
        });
        if admissible && !queue.is_due() && !self.is_offered(now, id) {
            return Err("the front waiter could be granted".into());
        }
        let mut watches = self.table.watches_of(id);
        if !queue.is_due() && watches.any(|(_, it)| it.is_over(hold)) {
            return Err("a watch has outlived its hold".into());
        }
        Ok(())
    }
}
