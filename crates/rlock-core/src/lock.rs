//! The rules: what each operation makes of hold, queue and time.
//!
//! An operation is handed the hold as the store has it and changes it in
//! place; writing down what changed, and telling those concerned, is the
//! caller's. Where a lock may have waiters the caller settles it first, so
//! that nobody is refused because of a hold that has ended.

use crate::{
    Admission, Announce, Counters, Delivery, Effect, Fence, Gauges, Hold, Limits, Name, Refusal,
    Request, Step, Ticket, TicketId, Timestamp, Wait, WaiterView, Who,
    fence::Fences,
    queue::{QueueId, Watch},
    settle::Sweep,
    table::Table,
};

/// The largest hold count.
const COUNT_MAX: u32 = i32::MAX as u32;

/// All locks of a server: their queues, and the sequence of their fences.
#[derive(Debug, Default)]
pub struct Locks {
    pub(crate) table: Table,
    pub(crate) fences: Fences,
    pub(crate) counters: Counters,
    pub(crate) sweep: Sweep,
    pub(crate) granting_from: Option<Timestamp>,
}

impl Locks {
    /// Asks for a lock.
    ///
    /// - A holder enters once more: its count is raised by one (not if
    ///   `once`), its lease starts anew, its fence stays. It never queues.
    /// - A free lock without a queue is granted.
    /// - Else, without a wait, the answer is [`Admission::Busy`] and the queue
    ///   is not touched.
    /// - Else it is [`Admission::MustWait`]: the caller makes sure that it can
    ///   be told of the outcome, and calls [`Locks::enqueue`].
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
    ) -> Result<Step<Admission>, Refusal> {
        self.counters.acquires += 1;
        self.view(now, hold, Some(request.owner));
        let queue = self.table.find(name);
        if let Hold::Exclusive {
            who: Who::Caller { .. },
            ..
        } = hold
        {
            return self.enter_again(now, name, hold, request, limits);
        }
        if queue.is_none_or(|id| self.is_empty(id)) && self.may_grant(now, hold, request) {
            return self.enter(now, name, hold, request, limits);
        }
        if request.wait == Wait::No {
            self.counters.refusals += 1;
            return Ok(Step::quiet(Admission::Busy));
        }
        self.check_wait(queue, request, limits)?;
        Ok(Step::quiet(Admission::MustWait))
    }

    /// Queues a request that [`Locks::acquire`] answered with
    /// [`Admission::MustWait`], last; or, if its owner is queued already, gives
    /// it that place, and ends the earlier call.
    pub fn enqueue(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &Hold,
        request: &Request<'_>,
        delivery: Delivery,
    ) -> (TicketId, Option<Effect>) {
        let queue = self.table.find_or_insert(name);
        let wait_ends = request.wait.ends(now);
        let place = if let Some(id) = self.table.ticket_of(queue, request.owner) {
            let mut earlier = delivery;
            self.table.change(id, |ticket| {
                std::mem::swap(&mut ticket.delivery, &mut earlier);
                ticket.lease_ms = request.lease_ms;
                ticket.wait_ends = wait_ends;
            });
            (id, Some(Effect::Withdrawn(earlier)))
        } else {
            self.counters.waits += 1;
            let id = self.table.push(Ticket {
                owner: request.owner.into(),
                mode: request.mode,
                lease_ms: request.lease_ms,
                since: now,
                wait_ends,
                delivery,
                queue,
                ahead: None,
                behind: None,
            });
            (id, None)
        };
        self.look_at(now, queue, hold);
        place
    }

    /// The delivery of a request by messages on a channel. Requests of one
    /// connection that name the same channel share its name.
    #[must_use]
    pub fn by_message(&self, session: u64, channel: &[u8]) -> Delivery {
        Delivery::Notify {
            session,
            channel: self.table.channel(session, channel),
        }
    }

    /// Sets the lease of the caller's hold to `lease_ms` from now.
    ///
    /// `None` if the caller is not the holder; a hold that has ended is never
    /// revived.
    pub fn renew(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
        lease_ms: u64,
    ) -> Step<Option<Fence>> {
        self.view(now, hold, Some(owner));
        let Hold::Exclusive {
            who: Who::Caller { .. },
            fence,
            deadline,
        } = hold
        else {
            return Step::quiet(None);
        };
        let earlier = std::mem::replace(deadline, now.plus_millis(lease_ms));
        let announce = Announce::if_sooner(*deadline, earlier);
        let fence = *fence.get_or_insert_with(|| self.fences.next(now));
        self.counters.renewals += 1;
        self.hold_changed(now, name, hold);
        Step {
            announce,
            ..Step::quiet(Some(fence))
        }
    }

    /// Gives back one entry of the caller's hold, or `all` of them.
    ///
    /// Answers the count that is left, `None` if the caller is not the holder.
    /// With the last one the hold ends, and the lock goes to the next waiter.
    pub fn release(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
        all: bool,
    ) -> Step<Option<u32>> {
        self.view(now, hold, Some(owner));
        let Hold::Exclusive {
            who: Who::Caller { count },
            ..
        } = hold
        else {
            return Step::quiet(None);
        };
        if *count > 1 && !all {
            *count -= 1;
            return Step::quiet(Some(*count));
        }
        self.counters.releases += 1;
        Step {
            announce: Announce::IfFree,
            ..self.end_hold(now, name, hold, owner).with(Some(0))
        }
    }

    /// Takes back a grant that did not reach its owner, and passes it on.
    ///
    /// False, and nothing changes, if the owner does not hold the lock under
    /// that fence any more.
    pub fn undeliver(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
        fence: Fence,
    ) -> Step<bool> {
        self.view(now, hold, Some(owner));
        let Hold::Exclusive {
            who: Who::Caller { .. },
            fence: held,
            ..
        } = hold
        else {
            return Step::quiet(false);
        };
        if *held != Some(fence) {
            return Step::quiet(false);
        }
        self.counters.undelivered_grants += 1;
        self.counters.waiters_gone += 1;
        Step {
            announce: Announce::IfFree,
            ..self.end_hold(now, name, hold, owner).with(true)
        }
    }

    /// Ends every hold, whoever has it, and answers how many there were.
    pub fn force(&mut self, now: Timestamp, name: Name<'_>, hold: &mut Hold) -> Step<u64> {
        self.view(now, hold, None);
        if !matches!(hold, Hold::Exclusive { .. }) {
            return Step::quiet(0);
        }
        self.counters.force_releases += 1;
        *hold = Hold::Free;
        let step = self.settle(now, name, hold);
        Step {
            announce: Announce::IfFree,
            ..step.with(1)
        }
    }

    /// Takes the owner's request out of the queue, and says through what it
    /// was to be answered; `None` if there was none.
    pub fn cancel(&mut self, name: Name<'_>, owner: &[u8]) -> Option<Delivery> {
        let queue = self.table.find(name)?;
        let ticket = self.table.ticket_of(queue, owner)?;
        Some(self.take_out(ticket)?.delivery)
    }

    /// The waiters of a lock in order.
    pub fn waiters(&self, now: Timestamp, name: Name<'_>) -> impl Iterator<Item = WaiterView<'_>> {
        let queue = self.table.find(name);
        queue.into_iter().flat_map(move |id| {
            self.table.in_order(id).map(move |ticket| WaiterView {
                owner: &ticket.owner,
                mode: ticket.mode,
                waited: now.since(ticket.since),
                wait_left_ms: (ticket.wait_ends != Timestamp::NEVER)
                    .then(|| ticket.wait_ends.millis_from(now)),
                session: ticket.delivery.session(),
            })
        })
    }

    /// How many wait for a lock.
    #[must_use]
    pub fn queued(&self, name: Name<'_>) -> u32 {
        let queue = self
            .table
            .find(name)
            .and_then(|id| self.table.queues.get(&id));
        queue.map_or(0, |queue| queue.len)
    }

    /// What has happened since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What there is now.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        self.table.gauges()
    }

    /// From when on anything is granted to somebody who does not hold it yet.
    pub const fn grant_from(&mut self, from: Timestamp) {
        self.granting_from = Some(from);
    }

    /// What every operation does first: learns the fence of the hold, drops
    /// the hold if it has ended, and sees it from the owner who asks.
    /// True if the hold has ended.
    pub(crate) fn view(&mut self, now: Timestamp, hold: &mut Hold, owner: Option<&[u8]>) -> bool {
        if let Some(fence) = hold.fence() {
            self.fences.raise(fence);
        }
        let lapsed = hold.drop_lapsed(now);
        if lapsed {
            self.counters.lease_expirations += 1;
        }
        if let Some(owner) = owner {
            hold.seen_by(owner);
        }
        lapsed
    }

    fn enter(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<Step<Admission>, Refusal> {
        self.check_watch(None, request, limits)?;
        let fence = self.fences.next(now);
        let deadline = now.plus_millis(request.lease_ms);
        *hold = Hold::Exclusive {
            who: Who::Caller { count: 1 },
            fence: Some(fence),
            deadline,
        };
        self.counters.grants += 1;
        self.watch(now, name, hold, fence, request);
        Ok(Step::quiet(Admission::Granted(fence)))
    }

    fn enter_again(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<Step<Admission>, Refusal> {
        self.check_watch(self.table.find(name), request, limits)?;
        let Hold::Exclusive {
            who: Who::Caller { count },
            fence,
            deadline,
        } = hold
        else {
            return Ok(Step::quiet(Admission::Busy));
        };
        if !request.once {
            if *count >= COUNT_MAX {
                return Err(Refusal::CountOverflow);
            }
            *count += 1;
        }
        let earlier = std::mem::replace(deadline, now.plus_millis(request.lease_ms));
        let announce = Announce::if_sooner(*deadline, earlier);
        let fence = *fence.get_or_insert_with(|| self.fences.next(now));
        self.counters.grants += 1;
        self.watch(now, name, hold, fence, request);
        self.hold_changed(now, name, hold);
        Ok(Step {
            announce,
            ..Step::quiet(Admission::Granted(fence))
        })
    }

    fn watch(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &Hold,
        fence: Fence,
        request: &Request<'_>,
    ) {
        let Some((session, channel)) = request.notify else {
            return;
        };
        let id = self.table.find_or_insert(name);
        let channel = self.table.channel(session, channel);
        self.table.set_watch(
            id,
            Watch {
                owner: request.owner.into(),
                fence,
                channel,
                session,
            },
        );
        self.look_at(now, id, hold);
    }

    /// Ends the caller's hold and settles; the watch of the hold ends with it,
    /// silently.
    fn end_hold(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
    ) -> Step<()> {
        *hold = Hold::Free;
        let Some(id) = self.table.find(name) else {
            return Step::quiet(());
        };
        self.table.remove_watch(id, owner);
        self.settle(now, name, hold)
    }

    fn check_wait(
        &self,
        queue: Option<QueueId>,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<(), Refusal> {
        let earlier = queue.and_then(|id| self.table.ticket_of(id, request.owner));
        let earlier = earlier.and_then(|id| self.table.tickets.get(&id));
        let Some(earlier) = earlier else {
            if self.table.tickets.len() as u64 >= limits.waiters_max {
                return Err(Refusal::TooManyWaiters {
                    limit: limits.waiters_max,
                });
            }
            return self.check_watch(None, request, limits);
        };
        if !request.once {
            return Err(Refusal::AlreadyQueued);
        }
        match earlier.delivery {
            Delivery::Notify { .. } => Ok(()),
            Delivery::Blocked { .. } => self.check_watch(None, request, limits),
        }
    }

    /// Whether one more watch may be kept; one that replaces another always.
    fn check_watch(
        &self,
        queue: Option<QueueId>,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<(), Refusal> {
        let replaces = queue
            .and_then(|id| self.table.queues.get(&id))
            .is_some_and(|queue| {
                queue
                    .watches
                    .iter()
                    .any(|watch| *watch.owner == *request.owner)
            });
        if request.notify.is_none() || replaces {
            return Ok(());
        }
        if self.gauges().watches >= limits.watches_max {
            return Err(Refusal::TooManyWatches {
                limit: limits.watches_max,
            });
        }
        Ok(())
    }

    fn is_empty(&self, id: QueueId) -> bool {
        self.table
            .queues
            .get(&id)
            .is_none_or(|queue| queue.len == 0)
    }

    fn may_grant(&self, now: Timestamp, hold: &Hold, request: &Request<'_>) -> bool {
        self.is_granting(now) && hold.admits(request.mode)
    }

    /// False during the grace after a start.
    pub(crate) fn is_granting(&self, now: Timestamp) -> bool {
        self.granting_from.is_none_or(|from| from <= now)
    }

    fn hold_changed(&mut self, now: Timestamp, name: Name<'_>, hold: &Hold) {
        if let Some(id) = self.table.find(name) {
            self.look_at(now, id, hold);
        }
    }
}
