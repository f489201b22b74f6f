//! The rules: what each operation makes of hold, queue and time.
//!
//! An operation is handed the hold as the store has it and changes it in
//! place; writing down what changed, and telling those concerned, is the
//! caller's. Where a lock may have waiters the caller settles it first, so
//! that nobody is refused because of a hold that has ended.

use crate::{
    Announce, Counters, Delivery, Fence, Gauges, Hold, Name, Step, Timestamp, WaiterView, Who,
    fence::Fences, sweep::Sweep, table::Table,
};

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

    /// Counts a request that the store has refused: its key holds no lock.
    pub const fn count_refused_acquire(&mut self) {
        self.counters.acquires += 1;
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

    /// False during the grace after a start.
    pub(crate) fn is_granting(&self, now: Timestamp) -> bool {
        self.granting_from.is_none_or(|from| from <= now)
    }

    pub(crate) fn hold_changed(&mut self, now: Timestamp, name: Name<'_>, hold: &Hold) {
        if let Some(id) = self.table.find(name) {
            self.look_at(now, id, hold);
        }
    }
}
