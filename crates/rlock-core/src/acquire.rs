//! Asking for a lock: enter, enter again, or queue.

use crate::{
    Admission, Announce, Delivery, Effect, Fence, Hold, Limits, Locks, Name, Refusal, Request,
    Step, Ticket, TicketId, Timestamp, Wait, Who,
    queue::{QueueId, Watch},
};

/// The largest hold count.
const COUNT_MAX: u32 = i32::MAX as u32;

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
}
