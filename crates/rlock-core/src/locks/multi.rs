//! Requests for several locks at once: all or none.
//!
//! Such a request has a ticket in the queue of each key. All are pushed in one
//! step, so that two requests have the same order in every queue that they share.
//! It is granted when it is first in all queues and all locks are free. The data
//! of the whole request is with the ticket of its first key.

use super::acquire::withdrawn;
use super::wait_for::{Place, Target};
use crate::hold::COUNT_MAX;
use crate::table::QueueId;
use crate::ticket::MultiId;
use crate::{
    Admission, Delivery, Effect, Extras, Fence, Hold, Holders, Limits, Locks, Name, Refusal,
    Renewal, Request, Step, Ticket, TicketId, Timestamp, Wait,
};

/// The queue of one of the keys, and the asker's place there.
#[derive(Clone, Copy)]
struct PlaceAt {
    queue: Option<QueueId>,
    own: Option<TicketId>,
}

impl Locks {
    /// Asks for several locks at once, in exclusive mode.
    ///
    /// Like [`Locks::acquire`], for all keys together. An owner that holds all of
    /// them under one fence is a holder that asks again. An owner that holds none
    /// gets all of them if all are free and no ticket waits before it for any.
    /// With [`Announce::Sooner`](crate::Announce::Sooner), any of the holds may
    /// end earlier than before.
    ///
    /// # Errors
    ///
    /// See [`Refusal`]; nothing has changed then.
    pub fn acquire_all(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        holds: &mut [Hold],
        request: &Request<'_>,
        limits: &Limits,
        holders: &dyn Holders,
    ) -> Result<Step<Admission>, Refusal> {
        self.counters.acquires += 1;
        for (name, hold) in names.iter().zip(&mut *holds) {
            self.view(now, *name, hold, Some(request.owner));
        }
        if let Some(key) = holds
            .iter()
            .position(|it| it.of_caller(request.owner).is_some())
        {
            if !holds_all_as_one(holds, request.owner) {
                return Err(Refusal::PartlyHeld { key });
            }
            return self.enter_all_again(now, names, holds, request, limits);
        }
        let free = holds.iter().all(Hold::is_free);
        let places = self.places_at(names, request.owner);
        let own = self.own_place(&places);
        let is_granting = places.iter().all(|it| self.is_granting(now, it.queue));
        if free && is_granting && self.is_next_for_all(&places, own, request) {
            return self.enter_all(now, names, holds, own, request, limits);
        }
        if request.wait == Wait::No {
            self.counters.refusals += 1;
            return Ok(Step::without_effects(Admission::Busy));
        }
        self.check_wait_for_all(&places, own, request, limits)?;
        let targets = names.iter().zip(&*holds).zip(places);
        let targets: Vec<_> = targets
            .map(|((name, hold), at)| self.target(*name, hold, at))
            .collect();
        self.search(now, request, &targets, limits, holders)?;
        Ok(Step::without_effects(Admission::MustWait))
    }

    /// Queues a request that [`Locks::acquire_all`] answered with
    /// [`Admission::MustWait`], last in every queue. If its owner already has
    /// that place, the request takes it over and ends the earlier call.
    pub fn enqueue_all(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        holds: &[Hold],
        request: &Request<'_>,
        delivery: &Delivery,
    ) -> Option<(TicketId, Vec<Effect>)> {
        let stale = names.iter();
        let stale = stale.filter_map(|name| self.withdraw_stale(*name, request.owner));
        let mut effects: Vec<_> = stale.collect();
        let queued = names.first().and_then(|name| {
            let ticket = self
                .table
                .ticket_of(self.table.find(*name)?, request.owner)?;
            self.table.ticket(ticket)?.multi
        });
        let (leader, earlier) = match queued {
            Some(multi) => self.take_over_all(now, names, multi, request, delivery)?,
            None => (self.push_all(now, names, request, delivery)?, None),
        };
        effects.extend(earlier);
        let members = self.members_of(leader);
        for (member, hold) in members.iter().zip(holds) {
            let queue = self.table.ticket(*member)?.queue;
            self.schedule_check(now, queue, hold);
            self.check_soon_if_stale(queue);
        }
        Some((leader, effects))
    }

    /// Renews the owner's holds among these, like [`Locks::renew`]; with a fence,
    /// only the holds with this fence. Returns a step for each key.
    ///
    /// # Errors
    ///
    /// As for [`Locks::renew`]. If no fence is raised, nothing has changed then.
    pub fn renew_all<'a>(
        &mut self,
        now: Timestamp,
        names: &[Name<'a>],
        holds: &mut [Hold],
        (owner, fence): (&[u8], Option<Fence>),
        renewal: &Renewal<'_>,
        watches_max: u64,
    ) -> Result<Vec<Step<Option<Fence>>>, Refusal> {
        for (name, hold) in names.iter().zip(&mut *holds) {
            self.view(now, *name, hold, Some(owner));
        }
        let is_held = |hold: &Hold| {
            let held = hold.of_caller(owner);
            held.is_some_and(|held| fence.is_none() || held.fence == fence)
        };
        let held = names.iter().zip(&*holds).filter(|it| is_held(it.1));
        let held = held.map(|(name, _)| *name);
        self.check_watches_of(held, &renewal.watch_request(owner), watches_max)?;
        let each = names.iter().zip(holds);
        each.map(|(name, hold)| match is_held(hold) {
            true => self.renew(now, *name, hold, owner, renewal, watches_max),
            false => Ok(Step::without_effects(None)),
        })
        .collect()
    }

    fn enter_all(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        holds: &mut [Hold],
        own: Option<MultiId>,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<Step<Admission>, Refusal> {
        if !self.is_watched_place(own) {
            let names = names.iter().copied();
            self.check_watches_of(names, &request.watch_request(), limits.watches_max)?;
        }
        let fence = self.fences.next(now, names.iter().copied());
        self.counters.grants += 1;
        let own = own.and_then(|multi| self.table.members(multi).first().copied());
        let earlier = own.and_then(|id| self.take_out(id));
        for (name, hold) in names.iter().zip(holds) {
            hold.grant(now, request.owner, &request.options, Extras::NONE, fence);
            self.remember(now, *name, hold, fence, &request.watch_request());
            self.hold_changed(now, *name, hold);
        }
        let mut step = Step::without_effects(Admission::Granted(fence));
        let earlier = earlier.and_then(|ticket| withdrawn(ticket.delivery));
        step.effects.extend(earlier);
        Ok(step)
    }

    /// The owner's place in the queues of exactly these keys, by one request.
    fn own_place(&self, places: &[PlaceAt]) -> Option<MultiId> {
        let multi_at = |at: &PlaceAt| self.table.ticket(at.own?)?.multi;
        let multi = multi_at(places.first()?)?;
        let all = places.iter().all(|at| multi_at(at) == Some(multi));
        (all && self.table.members(multi).len() == places.len()).then_some(multi)
    }

    fn places_at(&self, names: &[Name<'_>], owner: &[u8]) -> Vec<PlaceAt> {
        let has_places = self.table.has_places(owner);
        let place_at = |name: &Name<'_>| {
            let queue = self.table.find(*name);
            let own = queue.filter(|_| has_places);
            let own = own.and_then(|id| self.table.ticket_of(id, owner));
            PlaceAt { queue, own }
        };
        names.iter().map(place_at).collect()
    }

    /// Like [`Locks::acquire`] for each queue: whether no ticket waits before the
    /// request in any of them.
    fn is_next_for_all(
        &self,
        places: &[PlaceAt],
        own: Option<MultiId>,
        request: &Request<'_>,
    ) -> bool {
        let is_try = request.wait == Wait::No;
        if let Some(multi) = own {
            let members = self.table.members(multi);
            if members.iter().any(|id| self.is_stale(*id)) {
                return false;
            }
            let first = members.first().and_then(|id| self.table.ticket(*id));
            let is_kept = first.is_some_and(|it| it.is_kept());
            return (is_kept || !is_try) && !members.iter().any(|id| self.table.has_ahead(*id));
        }
        let mut queues = places.iter().filter_map(|at| at.queue);
        let nobody_waits = queues.all(|queue| self.table.front(queue).is_none());
        let has_places = || places.iter().any(|at| at.own.is_some());
        nobody_waits && (is_try || !has_places())
    }

    /// Whether its place already counts the watches of a request.
    fn is_watched_place(&self, own: Option<MultiId>) -> bool {
        let first = own.and_then(|multi| self.table.members(multi).first());
        let ticket = first.and_then(|id| self.table.ticket(*id));
        ticket.is_some_and(Ticket::is_watched)
    }

    fn enter_all_again(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        holds: &mut [Hold],
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<Step<Admission>, Refusal> {
        let overflows = |hold: &Hold| {
            hold.of_caller(request.owner)
                .is_some_and(|it| it.count >= COUNT_MAX)
        };
        if request.options.reenter && holds.iter().any(overflows) {
            return Err(Refusal::CountOverflow);
        }
        let all = names.iter().copied();
        self.check_watches_of(all, &request.watch_request(), limits.watches_max)?;
        let mut step = Step::without_effects(Admission::Busy);
        let grants = self.counters.grants;
        for (name, hold) in names.iter().zip(holds) {
            let one = self.enter_again(now, *name, hold, request, limits)?;
            step = Step::without_effects(one.reply).announcing(one.announce.max(step.announce));
        }
        self.counters.grants = grants + 1;
        Ok(step)
    }

    fn check_wait_for_all(
        &self,
        places: &[PlaceAt],
        own: Option<MultiId>,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<(), Refusal> {
        if own.is_none() {
            let has_place = |at: &PlaceAt| at.own.is_some_and(|id| !self.is_request_stale(id));
            if let Some(key) = places.iter().position(has_place) {
                return Err(Refusal::OtherRequest { key });
            }
            self.check_waiters(places.len() as u64, limits)?;
        }
        if self.is_watched_place(own) {
            return Ok(());
        }
        self.check_watches(&request.watch_request(), limits.watches_max, || {
            places.len() as u64
        })
    }

    fn target<'a>(&self, name: Name<'a>, hold: &'a Hold, at: PlaceAt) -> Target<'a> {
        let own = at.own.filter(|id| !self.is_request_stale(*id));
        Target {
            name,
            hold,
            queue: at.queue,
            place: own.map_or(Place::Last, Place::At),
        }
    }

    fn push_all(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        request: &Request<'_>,
        delivery: &Delivery,
    ) -> Option<TicketId> {
        let multi = MultiId(self.table.next_id());
        let mut members = Vec::with_capacity(names.len());
        for name in names {
            let queue = self.table.find_or_insert(*name);
            let mut ticket = Ticket::new(now, queue, request, delivery.clone());
            ticket.multi = Some(multi);
            ticket.user = request.user.and_then(|it| self.table.user(it));
            members.push(self.table.push(ticket));
        }
        self.counters.waits += 1;
        let leader = members.first().copied()?;
        self.table.join(multi, members);
        Some(leader)
    }

    fn take_over_all(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        multi: MultiId,
        request: &Request<'_>,
        delivery: &Delivery,
    ) -> Option<(TicketId, Option<Effect>)> {
        let mut earlier = None;
        let mut members = Vec::with_capacity(names.len());
        let waits = self.counters.waits;
        self.table.part(multi);
        for name in names {
            let id = self
                .table
                .ticket_of(self.table.find(*name)?, request.owner)?;
            earlier = self.take_over(now, id, request, delivery.clone());
            members.push(id);
        }
        // Several keys are one wait.
        self.counters.waits = self.counters.waits.min(waits + 1);
        let leader = members.first().copied()?;
        self.table.join(multi, members);
        Some((leader, earlier.and_then(withdrawn)))
    }
}

fn holds_all_as_one(holds: &[Hold], owner: &[u8]) -> bool {
    let fence = holds.first().and_then(Hold::fence);
    let same = |hold: &Hold| {
        let exclusive = matches!(hold, Hold::Exclusive { .. });
        exclusive && hold.of_caller(owner).is_some() && hold.fence() == fence
    };
    fence.is_some() && holds.iter().all(same)
}
