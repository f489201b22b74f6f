//! The rules: the effect of each operation on hold, queue and time.
//!
//! An operation takes the hold from the store and changes it in place. The caller
//! writes the changes and notifies the owners concerned. If a lock may have
//! waiters, the caller settles it first, so that nobody is refused because of a
//! hold that has ended.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::fence::Fences;
use crate::table::{QueueId, Table};
use crate::{
    Announce, Counters, Ended, Fence, Gauges, Hold, Holder, Name, Refusal, Renewal, Step, TicketId,
    Timestamp,
};

mod acquire;
mod grant;
mod graph;
mod multi;
mod settle;
mod sweep;
mod views;
mod wait_for;
mod watches;

use sweep::{Budget, Sweep};

pub use grant::Granted;
pub use views::{ContendedView, Holding, ViewFields, ViewValue, WaiterView};
pub use wait_for::{Holders, VisitHolder};

/// All locks of a server: their queues, and their fences.
#[derive(Debug, Default)]
pub struct Locks {
    table: Table,
    fences: Fences,
    counters: Counters,
    sweep: Sweep,
    granting_from: Option<Timestamp>,
    yield_after: u64,
    /// Requests for several keys that may be first for all of them.
    ready: VecDeque<TicketId>,
    budget: Budget,
}

impl Locks {
    /// Sets the lease of the caller's hold to `lease_ms` from now. A bound hold
    /// moves to the caller's connection, if it has one. Channel and grace replace
    /// the old ones of the hold.
    ///
    /// Raises the fence of the hold to the renewal's fence, if that is larger;
    /// all later fences of this lock are above it.
    ///
    /// `None` if the caller is not a holder; a hold that has ended is never
    /// revived.
    ///
    /// # Errors
    ///
    /// [`Refusal::FenceTooLarge`] if that fence is more than an hour ahead of the
    /// clock, [`Refusal::FenceTaken`] if another holder has it,
    /// [`Refusal::TooManyWatches`] if it needs a new watch and there are
    /// `watches_max` watches, [`Refusal::ValueOfShared`] if a shared hold should
    /// publish a value.
    pub fn renew(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
        renewal: &Renewal<'_>,
        watches_max: u64,
    ) -> Result<Step<Option<Fence>>, Refusal> {
        self.view(now, name, hold, Some(owner));
        let limit = Fences::highest(now);
        if let Some(fence) = renewal.fence.filter(|it| it.get() > limit) {
            return Err(Refusal::FenceTooLarge { fence, limit });
        }
        let Some(mut held) = hold.of_caller(owner) else {
            return Ok(Step::without_effects(None));
        };
        if !renewal.extras.are_none() && !matches!(hold, Hold::Exclusive { .. }) {
            return Err(Refusal::ValueOfShared);
        }
        let is_taken = |fence: &Fence| is_of_another(hold, owner, *fence);
        if let Some(fence) = renewal.fence.filter(is_taken) {
            return Err(Refusal::FenceTaken { fence });
        }
        let watch = renewal.watch_request(owner);
        self.check_watches_of([name], &watch, watches_max)?;
        let before = hold.deadline();
        held.deadline = now.plus_millis(renewal.lease_ms.into());
        let own = held.fence;
        let fence = own.unwrap_or_else(|| self.fences.next(now, [name]));
        let fence = renewal.fence.map_or(fence, |to| fence.max(to));
        self.fences.record(now, name, fence);
        held.fence = Some(fence);
        hold.set_of_caller(owner, held);
        hold.change_extras(renewal.extras);
        self.counters.renewals += 1;
        self.remember(now, name, hold, fence, &watch);
        let step = if own.is_some_and(|own| own < fence) {
            // Another hold may be watched under the old fence, by chance.
            self.settle(now, name, hold)
        } else {
            self.hold_changed(now, name, hold);
            Step::without_effects(())
        };
        let step = step.with(Some(fence));
        Ok(step.announcing(Announce::if_sooner(hold.deadline(), before)))
    }

    /// Releases one entry of the caller's hold, or `all` of them; with a fence,
    /// only if the hold has this fence.
    ///
    /// Returns the remaining count, `None` if the caller is not a holder or has
    /// another fence. With the last entry the hold ends, and the lock goes to the
    /// waiters that fit.
    pub fn release(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
        all: bool,
        fence: Option<Fence>,
    ) -> Step<Option<u32>> {
        self.view(now, name, hold, Some(owner));
        let matches_fence = |held: &Holder| fence.is_none() || held.fence == fence;
        let Some(mut held) = hold.of_caller(owner).filter(matches_fence) else {
            return Step::without_effects(None);
        };
        if held.count > 1 && !all {
            held.count -= 1;
            hold.set_of_caller(owner, held);
            return Step::without_effects(Some(held.count));
        }
        self.counters.releases += 1;
        self.end_hold(now, name, hold, owner).with(Some(0))
    }

    /// Releases some permits of the caller's hold, like [`Locks::release`]. Lease,
    /// fence and count stay, and waiters that now fit are let in. With its last
    /// permit the hold ends, whatever its count.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyPermits`] if the hold has fewer permits.
    pub fn release_permits(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
        permits: u32,
        fence: Option<Fence>,
    ) -> Result<Step<Option<u32>>, Refusal> {
        self.view(now, name, hold, Some(owner));
        let matches_fence = |held: &Holder| fence.is_none() || held.fence == fence;
        let Some(mut held) = hold.of_caller(owner).filter(matches_fence) else {
            return Ok(Step::without_effects(None));
        };
        if permits >= held.permits {
            return match permits > held.permits {
                true => Err(Refusal::TooManyPermits {
                    permits,
                    held: held.permits,
                }),
                false => Ok(self.release(now, name, hold, owner, true, fence)),
            };
        }
        held.permits -= permits;
        hold.set_of_caller(owner, held);
        Ok(self.settle(now, name, hold).with(Some(held.count)))
    }

    /// Changes exclusive to shared mode, with one permit: count, lease and fence
    /// stay, and waiters that now fit are let in.
    ///
    /// `None` if the caller is not the exclusive holder.
    pub fn downgrade(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
    ) -> Step<Option<Fence>> {
        self.view(now, name, hold, Some(owner));
        let held = matches!(hold, Hold::Exclusive { .. }).then(|| hold.of_caller(owner));
        let Some(mut held) = held.flatten() else {
            return Step::without_effects(None);
        };
        let fence = *held
            .fence
            .get_or_insert_with(|| self.fences.next(now, [name]));
        hold.share(owner, held);
        self.settle(now, name, hold).with(Some(fence))
    }

    /// Undoes a grant that did not reach its owner, and passes the lock on. The
    /// owner's earlier hold ends too.
    ///
    /// False, without a change, if the owner no longer holds the lock under that
    /// fence.
    pub fn undeliver(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
        fence: Fence,
    ) -> Step<bool> {
        self.view(now, name, hold, Some(owner));
        let held = hold.of_caller(owner);
        if held.is_none_or(|held| held.fence != Some(fence)) {
            return Step::without_effects(false);
        }
        hold.lose(owner);
        let step = self.settle(now, name, hold);
        step.with(true).announcing(Announce::IfFreed)
    }

    /// Counts a grant that did not reach its owner.
    pub const fn count_undelivered(&mut self) {
        self.counters.undelivered_grants += 1;
        self.counters.waiters_gone += 1;
    }

    /// Ends every hold, of any owner, or only the one with this fence; returns
    /// their number.
    pub fn force(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        fence: Option<Fence>,
    ) -> Step<u64> {
        self.view(now, name, hold, None);
        let holders = match fence {
            None => hold.end_all(now),
            Some(fence) => hold.end_under(now, fence).into(),
        };
        if holders == 0 {
            return Step::without_effects(0);
        }
        self.counters.force_releases += holders;
        let step = self.settle(now, name, hold);
        step.with(holders).announcing(Announce::IfFreed)
    }

    /// Records the fence of an orphan before it is deleted: a hash of this module
    /// that is no lock any more, for instance because its time to live was removed.
    /// Where the lock was left to clients outside the queue, it is not any more.
    pub fn note_orphan(&mut self, now: Timestamp, name: Name<'_>, fence: Option<Fence>) {
        if let Some(fence) = fence {
            self.fences.record(now, name, fence);
        }
        if let Some(id) = self.table.find(name) {
            self.end_offer(id);
        }
    }

    /// Counts the owners of an orphan that was deleted, after the lock is settled.
    pub fn end_orphan(&mut self, now: Timestamp, name: Name<'_>, owners: u64) -> Step<u64> {
        self.counters.force_releases += owners;
        let queue = self.table.find(name);
        let announce = match queue.is_some_and(|id| self.is_offered(now, id)) {
            // With the unlock message.
            true => Announce::No,
            false => Announce::IfFree,
        };
        Step::without_effects(owners).announcing(announce)
    }

    /// Removes the owner's place from the queue, with all places of a request for
    /// several keys. Returns the request that ended; `None` if there was none. A
    /// waiter behind it may now fit: the lock must be settled.
    pub fn cancel(&mut self, name: Name<'_>, owner: &[u8]) -> Option<Ended> {
        let queue = self.table.find(name)?;
        let ticket = self.table.ticket_of(queue, owner)?;
        self.take_out(ticket)
    }

    /// Begins a turn, in which about this number of tickets may be handled. The
    /// rest is due at once, see [`Locks::next_due`].
    pub const fn begin_turn(&mut self, tickets: usize) {
        self.budget = Budget::of(tickets);
    }

    /// Whether the turn's budget is used up.
    #[must_use]
    pub const fn turn_is_over(&self) -> bool {
        self.budget.is_spent()
    }

    /// The counters since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The current state.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        self.table.gauges()
    }

    /// The owner of the hold with this fence, if the lock is exclusive and several
    /// wait for it, as the shell has last read or written it. The key may say
    /// something else by now.
    #[must_use]
    pub fn known_holder(&self, name: Name<'_>, fence: Fence) -> Option<&Arc<[u8]>> {
        let (known, owner) = self.table.holder(self.table.find(name)?)?;
        (*known == fence).then_some(owner)
    }

    /// Remembers an exclusive holder for [`Locks::known_holder`], if it is worth it.
    pub fn know_holder(
        &mut self,
        name: Name<'_>,
        fence: Option<Fence>,
        owner: impl FnOnce() -> Option<Arc<[u8]>>,
    ) {
        if let Some((id, fence)) = self.table.find(name).zip(fence) {
            self.table.know_holder(id, fence, owner);
        }
    }

    /// Counts a request that the store has refused: its key is not a lock.
    pub const fn count_refused_acquire(&mut self) {
        self.counters.acquires += 1;
    }

    /// The number of hand-offs in a row after which clients outside the queue get
    /// a chance; 0 for never.
    pub const fn yield_after(&mut self, hand_offs: u64) {
        self.yield_after = hand_offs;
    }

    /// The first step of every operation: records the fence of the hold, drops
    /// holds that have ended, and changes the view to the asking owner. True if
    /// any has ended.
    fn view(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: Option<&[u8]>,
    ) -> bool {
        if let Some(fence) = hold.floor() {
            self.fences.record(now, name, fence);
        }
        // The asking owner gets a correct answer, whatever is left of this turn.
        let most = self.budget.left().div_ceil(2);
        let lapsed = hold.drop_lapsed(now, owner, most);
        self.counters.lease_expirations += lapsed as u64;
        self.budget.spend(lapsed);
        if let Some(owner) = owner {
            hold.seen_by(owner);
            if lapsed > 0 {
                // The operation may not settle, and then reports no loss.
                self.settle_later(name);
            }
        }
        lapsed > 0
    }

    /// Ends the caller's hold and settles; its watch ends too, without a message.
    fn end_hold(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
    ) -> Step<()> {
        hold.end_of(owner);
        let queue = self.table.find(name);
        if let Some(watch) = queue.and_then(|id| self.table.watch_of(id, owner)) {
            self.table.remove_watch(watch);
        }
        let step = if queue.is_some_and(|id| !self.table.drop_if_idle(id)) {
            self.settle(now, name, hold)
        } else {
            if !hold.is_free() {
                // The leases of all others may have ended.
                self.view(now, name, hold, None);
            }
            Step::without_effects(())
        };
        step.announcing(Announce::IfFreed)
    }

    /// False during the grace after a start, and while losses of a lock must
    /// still be reported: these come before its next grant.
    fn is_granting(&self, now: Timestamp, queue: Option<QueueId>) -> bool {
        let is_searching = || queue.is_some_and(|id| self.table.search(id).is_some());
        self.granting_from.is_none_or(|from| from <= now) && !is_searching()
    }

    fn hold_changed(&mut self, now: Timestamp, name: Name<'_>, hold: &Hold) {
        if let Some(id) = self.table.find(name) {
            self.schedule_check(now, id, hold);
        }
    }

    /// Checks that queues, tickets, watches and indices agree; for tests. The
    /// time is proportional to all of them.
    ///
    /// # Errors
    ///
    /// A description of the first disagreement.
    pub fn check_indices(&self) -> Result<(), String> {
        self.table.check()
    }
}

/// Whether another shared holder has this fence. An exclusive holder has no
/// others beside it.
fn is_of_another(hold: &Hold, owner: &[u8], fence: Fence) -> bool {
    let Hold::Shared(shared) = hold else {
        return false;
    };
    let holds_it = |(of, it): (&[u8], &Holder)| *of != *owner && it.fence == Some(fence);
    shared.floor() >= Some(fence) && shared.iter().any(holds_it)
}
