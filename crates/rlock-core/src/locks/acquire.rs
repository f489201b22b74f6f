//! Requests for a lock: entry, re-entry, upgrade, or queueing.

use super::wait_for::{Place, Target};
use crate::hold::COUNT_MAX;
use crate::table::QueueId;
use crate::{
    Admission, Announce, Channel, Delivery, Effect, Hold, Holders, Limits, Locks, Mode, Name,
    Refusal, Request, Step, Ticket, TicketId, Timestamp, Wait,
};

impl Locks {
    /// Asks for a lock.
    ///
    /// - A holder's lease starts again; its fence stays, and so does its count
    ///   unless it asks to `reenter`. It never queues.
    /// - A shared holder that asks for exclusive mode is upgraded if it is alone,
    ///   even if others are queued.
    /// - A lock without a queue is granted if it is free, or shared and requested
    ///   in shared mode.
    /// - An owner with a kept place gets the answer for that place, if it repeats
    ///   its request.
    /// - Otherwise, without a wait, the answer is [`Admission::Busy`] and the
    ///   queue does not change.
    /// - Otherwise it is [`Admission::MustWait`]: the caller makes sure that the
    ///   outcome can be delivered, and calls [`Locks::enqueue`].
    ///
    /// # Errors
    ///
    /// See [`Refusal`]; nothing has changed then.
    pub fn acquire(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        request: &Request<'_>,
        limits: &Limits,
        holders: &dyn Holders,
    ) -> Result<Step<Admission>, Refusal> {
        self.counters.acquires += 1;
        self.view(now, name, hold, Some(request.owner));
        let is_holder = hold.of_caller(request.owner).is_some();
        let upgrades = is_holder && is_upgrade(hold, request.options.mode);
        if is_holder && !upgrades {
            return self.enter_again(now, name, hold, request, limits);
        }
        let queue = self.table.find(name);
        let own = queue.and_then(|id| self.table.ticket_of(id, request.owner));
        let fits =
            self.is_granting(now, queue) && hold.admits(now, request.owner, request.options.mode);
        if fits && (upgrades || self.is_next(queue, own, request)) {
            return self.enter(now, name, hold, request, own, limits);
        }
        if request.wait == Wait::No {
            self.counters.refusals += 1;
            return Ok(Step::without_effects(Admission::Busy));
        }
        self.check_wait(now, own, hold, request, limits)?;
        self.check_deadlock(now, (name, queue, own), hold, request, limits, holders)?;
        Ok(Step::without_effects(Admission::MustWait))
    }

    /// Queues a request that [`Locks::acquire`] answered with
    /// [`Admission::MustWait`]: last, or first for an upgrade. If its owner
    /// already has a place, the request takes it over and ends the earlier call
    /// if that still waits.
    pub fn enqueue(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &Hold,
        request: &Request<'_>,
        delivery: Delivery,
    ) -> (TicketId, Option<Effect>) {
        let stale = self.withdraw_stale(name, request.owner);
        let queue = self.table.find_or_insert(name);
        let upgrades = hold.of_caller(request.owner).is_some();
        // An upgrade keeps no place: its owner holds the lock and comes before
        // all others anyway.
        let mut request = *request;
        request.options.keep = request.options.keep.filter(|_| !upgrades);
        let request = &request;
        let own = self.table.ticket_of(queue, request.owner);
        let continues = |id: &TicketId| !upgrades || self.is_upgrade(*id);
        let (id, earlier) = if let Some(id) = own.filter(continues) {
            let earlier = self.take_over(now, id, request, delivery);
            (id, earlier.and_then(withdrawn))
        } else {
            let mut ticket = Ticket::new(now, queue, request, delivery);
            ticket.is_upgrade = upgrades;
            ticket.user = request.user.and_then(|it| self.table.user(it));
            // The owner gives up a place from before it held the lock.
            let earlier = own.and_then(|id| self.table.remove(id));
            if let Some(earlier) = &earlier {
                ticket.since = earlier.since;
            }
            let was_waiting = earlier.as_ref().is_some_and(|it| !it.is_kept());
            self.counters.waits += u64::from(!was_waiting);
            let earlier = earlier.and_then(|it| withdrawn(it.delivery));
            (self.table.push(ticket), earlier)
        };
        self.schedule_check(now, queue, hold);
        self.check_soon_if_stale(queue);
        (id, stale.or(earlier))
    }

    /// The lock may be free: a place that only waits for its withdrawal, of the same
    /// owner too, stood before the request when it was decided that it must wait.
    pub(super) fn check_soon_if_stale(&mut self, queue: QueueId) {
        if self.has_stale() {
            self.table.mark_due(queue);
        }
    }

    fn is_upgrade(&self, id: TicketId) -> bool {
        self.table.ticket(id).is_some_and(|it| it.is_upgrade)
    }

    /// Delivery by messages on a channel. Requests of one connection that name
    /// the same channel share its name.
    pub fn by_message(&mut self, session: u64, channel: Channel<'_>) -> Delivery {
        Delivery::Notify(self.table.listener(session, channel))
    }

    /// Gives a ticket to a later request of the same owner; returns the delivery
    /// of the earlier one.
    pub(super) fn take_over(
        &mut self,
        now: Timestamp,
        id: TicketId,
        request: &Request<'_>,
        delivery: Delivery,
    ) -> Option<Delivery> {
        let user = request.user.and_then(|it| self.table.user(it));
        let earlier = self.table.change(id, |ticket| {
            ticket.user = user;
            ticket.take_over(now, request, delivery)
        })?;
        // A request in a kept place is a new wait: the earlier wait was counted
        // as ended.
        self.counters.waits += u64::from(earlier == Delivery::Kept);
        Some(earlier)
    }

    fn enter(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        request: &Request<'_>,
        own: Option<TicketId>,
        limits: &Limits,
    ) -> Result<Step<Admission>, Refusal> {
        let own_ticket = own.and_then(|id| self.table.ticket(id));
        // A place of another kind continues beside the hold.
        let own_ticket = own_ticket.filter(|it| is_same(it, request));
        if !own_ticket.is_some_and(Ticket::is_watched) {
            self.check_watches_of([name], &request.watch_request(), limits.watches_max)?;
        }
        let own = own.filter(|_| own_ticket.is_some());
        if own.is_none() && !hold.is_free() {
            self.check_shared(now, hold, request, limits)?;
        }
        let count = hold.of_caller(request.owner).map_or(0, |it| it.count);
        if count >= COUNT_MAX && request.options.reenter {
            return Err(Refusal::CountOverflow);
        }
        let before = hold.deadline();
        let fence = self.fences.next(now, [name]);
        let extras = request.extras.kept();
        hold.grant(now, request.owner, &request.options, extras, fence);
        self.counters.grants += 1;
        self.remember(now, name, hold, fence, &request.watch_request());
        let mut step = Step::without_effects(Admission::Granted(fence));
        if before.is_some() && matches!(hold, Hold::Exclusive { .. }) {
            step = step.announcing(Announce::if_sooner(hold.deadline(), before));
        }
        // The owner's own earlier request now fits.
        if let Some(ticket) = own.and_then(|id| self.take_out(id)) {
            step.effects.extend(withdrawn(ticket.delivery));
            let rest = self.settle(now, name, hold);
            step.effects.extend(rest.effects);
        }
        Ok(step)
    }

    pub(super) fn enter_again(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<Step<Admission>, Refusal> {
        self.check_watches_of([name], &request.watch_request(), limits.watches_max)?;
        let Some(mut held) = hold.of_caller(request.owner) else {
            return Ok(Step::without_effects(Admission::Busy));
        };
        if request.options.reenter {
            if held.count >= COUNT_MAX {
                return Err(Refusal::CountOverflow);
            }
            held.count += 1;
        }
        let before = hold.deadline();
        held.deadline = now.plus_millis(request.options.lease_ms.into());
        let fence = *held
            .fence
            .get_or_insert_with(|| self.fences.next(now, [name]));
        hold.set_of_caller(request.owner, held);
        hold.change_extras(request.extras);
        self.counters.grants += 1;
        self.remember(now, name, hold, fence, &request.watch_request());
        self.hold_changed(now, name, hold);
        let step = Step::without_effects(Admission::Granted(fence));
        Ok(step.announcing(Announce::if_sooner(hold.deadline(), before)))
    }

    /// Whether no waiting ticket comes before the request. An owner with a place
    /// asks from there; but a try does not use the place of a call that still
    /// waits, nor a place of another kind.
    fn is_next(
        &self,
        queue: Option<QueueId>,
        own: Option<TicketId>,
        request: &Request<'_>,
    ) -> bool {
        let Some(queue) = queue else { return true };
        let own = own.and_then(|id| Some((id, self.table.ticket(id)?)));
        let is_try = request.wait == Wait::No;
        match own {
            Some((id, ticket)) if is_same(ticket, request) && !self.is_stale(id) => {
                (ticket.is_kept() || !is_try) && !self.table.has_ahead(id)
            }
            Some(_) if !is_try => false,
            Some(_) | None => self.table.front(queue).is_none(),
        }
    }

    fn check_wait(
        &self,
        now: Timestamp,
        own: Option<TicketId>,
        hold: &Hold,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<(), Refusal> {
        let earlier = own.and_then(|id| Some((id, self.table.ticket(id)?)));
        let Some((id, earlier)) = earlier else {
            self.check_waiters(1, limits)?;
            self.check_shared(now, hold, request, limits)?;
            return self.check_watches(&request.watch_request(), limits.watches_max, || 1);
        };
        if !is_same(earlier, request) {
            if !self.is_request_stale(id) {
                return Err(Refusal::OtherRequest { key: 0 });
            }
            self.check_shared(now, hold, request, limits)?;
        }
        if earlier.is_watched() {
            return Ok(());
        }
        self.check_watches(&request.watch_request(), limits.watches_max, || 1)
    }

    fn check_deadlock(
        &mut self,
        now: Timestamp,
        (name, queue, own): (Name<'_>, Option<QueueId>, Option<TicketId>),
        hold: &Hold,
        request: &Request<'_>,
        limits: &Limits,
        holders: &dyn Holders,
    ) -> Result<(), Refusal> {
        let upgrades = hold.of_caller(request.owner).is_some();
        if upgrades && let Some(other) = self.other_upgrade(now, queue, hold, request.owner) {
            self.counters.deadlocks += 1;
            return Err(Refusal::UpgradeDeadlock {
                owners: vec![request.owner.into(), other],
            });
        }
        let place = match own.filter(|id| !self.is_request_stale(*id)) {
            Some(own) if !upgrades || self.is_upgrade(own) => Place::At(own),
            _ if upgrades => Place::First,
            _ => Place::Last,
        };
        let target = Target {
            name,
            hold,
            queue,
            place,
        };
        self.search(now, request, &[target], limits, holders)
    }

    /// The other shared holder that waits for an upgrade, if there is one.
    fn other_upgrade(
        &self,
        now: Timestamp,
        queue: Option<QueueId>,
        hold: &Hold,
        owner: &[u8],
    ) -> Option<Box<[u8]>> {
        let front = self.table.front(queue?)?;
        let front = self.table.ticket(front).filter(|_| !self.is_stale(front))?;
        let other = front.is_upgrade && *front.owner != *owner;
        let holds = matches!(hold, Hold::Shared(it) if it.has_live(now, &front.owner));
        (other && holds).then(|| front.owner.clone())
    }
}

/// Whether a shared holder asks for exclusive mode.
fn is_upgrade(hold: &Hold, mode: Mode) -> bool {
    matches!(hold, Hold::Shared(_)) && mode == Mode::Exclusive
}

/// Whether a request repeats the queued one.
fn is_same(ticket: &Ticket, request: &Request<'_>) -> bool {
    ticket.multi.is_none() && ticket.options.mode.is_like(request.options.mode)
}

/// The end of a call, if one waits.
pub(super) fn withdrawn(delivery: Delivery) -> Option<Effect> {
    (delivery != Delivery::Kept).then_some(Effect::Withdrawn(delivery))
}
