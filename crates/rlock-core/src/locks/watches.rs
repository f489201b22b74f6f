//! The end of watched holds: losses are reported, and bound holds are cut. Also
//! the messages to followers of a lock's value.
//!
//! Watches are compared with the hold: a watched hold is lost if its owner's hold
//! has another fence. A lock may have a hundred thousand watches, so the search
//! continues from turn to turn, and nothing is granted until it ends.

use crate::table::QueueId;
use crate::watch::{Search, Watch, WatchId};
use crate::{Announce, Effect, Fence, Hold, Locks, Name, Step, Timestamp, ValueMessage, Who};

/// The number of watches that are searched for the cost of one report.
const WATCHES_PER_TICKET: usize = 8;

impl Locks {
    /// Reports the holds that have ended since the last time, up to the limit of
    /// this turn. If all ends of shared holds are known, only those are checked.
    pub(super) fn report_losses(
        &mut self,
        now: Timestamp,
        id: QueueId,
        hold: &mut Hold,
        step: &mut Step<()>,
    ) {
        if !self.table.has_watches(id) {
            self.table.set_search(id, None);
            return;
        }
        let ended = match hold {
            Hold::Shared(shared) => shared.take_ended(),
            Hold::Free | Hold::Exclusive { .. } | Hold::NoLock => None,
        };
        let searching = self.table.search(id);
        match (ended, searching) {
            (Some(ended), None) if ended.len() <= self.budget.left() => {
                for owner in &ended {
                    // The owner may hold the lock again, under another fence.
                    if let Some(number) = self.table.watch_of(id, owner)
                        && let Some(watch) = self.table.watch(number)
                        && watch.is_over(hold)
                    {
                        self.report_loss(now, number, step);
                    }
                }
            }
            (ended, Some(search)) => {
                let again = search.again || ended.is_none_or(|ended| !ended.is_empty());
                self.search_losses(now, id, hold, Search { again, ..search }, step);
            }
            (_, None) => self.search_losses(now, id, hold, Search::START, step),
        }
    }

    /// Continues the search for watches of holds that have ended.
    fn search_losses(
        &mut self,
        now: Timestamp,
        id: QueueId,
        hold: &Hold,
        mut search: Search,
        step: &mut Step<()>,
    ) {
        let mut watches_left = self.budget.left().max(1).saturating_mul(WATCHES_PER_TICKET);
        loop {
            let Some((next, watch_id, watch)) = self.table.next_watch(id, search.from) else {
                if !search.again {
                    self.table.set_search(id, None);
                    return;
                }
                search = Search::START;
                continue;
            };
            if watches_left == 0 || (self.budget.is_spent() && !step.effects.is_empty()) {
                self.table.set_search(id, Some(search));
                self.table.mark_due(id);
                return;
            }
            watches_left -= 1;
            search.from = next;
            if watch.is_over(hold) {
                self.report_loss(now, watch_id, step);
            }
        }
    }

    fn report_loss(&mut self, now: Timestamp, id: WatchId, step: &mut Step<()>) {
        let Some(watch) = self.table.remove_watch(id) else {
            return;
        };
        self.budget.spend(1);
        let Watch {
            owner,
            fence,
            notice,
            binding,
            ..
        } = watch;
        if binding.is_some_and(|it| it.has_ended(now)) {
            step.announce = step.announce.max(Announce::IfFree);
        }
        let connected = notice.filter(|it| !self.sweep.closed.contains_key(&it.session));
        if let Some(listener) = connected {
            step.effects.push(Effect::Lost {
                owner,
                fence,
                listener,
            });
        }
    }

    /// The message to the followers of a lock's value, if the value has changed.
    /// Call it once for each operation, after the last change of the hold. So a
    /// hand-off publishes only the new holder's value, and a waiter that is
    /// passed over never appears to lead.
    #[inline]
    pub fn value_message(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &Hold,
    ) -> Option<ValueMessage> {
        // Inlined, because most holds have no value.
        if hold.published().is_none() && !self.table.has_last_values() {
            return None;
        }
        self.change_of_value(now, name, hold)
    }

    fn change_of_value(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &Hold,
    ) -> Option<ValueMessage> {
        let Some((fence, value)) = hold.published() else {
            return self.end_of_value(now, name, hold);
        };
        let queue = self.table.find_or_insert(name);
        let last_value = self
            .table
            .last_value(queue)
            .filter(|it| !self.is_value_stale(it));
        let is_new =
            last_value.is_none_or(|it| (it.fence, it.value) != (fence, self.table.hash(value)));
        if is_new {
            self.table.set_last_value(queue, fence, value);
        }
        self.schedule_check(now, queue, hold);
        is_new.then(|| ValueMessage {
            fence,
            value: Some(value.clone()),
        })
    }

    fn end_of_value(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &Hold,
    ) -> Option<ValueMessage> {
        let queue = self.table.find(name)?;
        let last_value = self.table.last_value(queue)?;
        self.schedule_check(now, queue, hold);
        self.table.forget_last_value(queue);
        let fence = last_value.fence;
        (!self.is_value_stale(&last_value)).then_some(ValueMessage { fence, value: None })
    }

    /// Reports the end of a hold to the followers of its value from now on,
    /// because a client has just seen it. After a restart nothing else may be
    /// known of it.
    pub fn follow_value(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        (fence, value): (Fence, &[u8]),
        ends: Timestamp,
    ) {
        let queue = self.table.find_or_insert(name);
        let last_value = self.table.last_value(queue);
        if last_value.is_none_or(|it| self.is_value_stale(&it)) {
            // Followers that have seen this fence ignore smaller ones.
            self.fences.record(now, name, fence);
            self.table.set_last_value(queue, fence, value);
            self.schedule_check(now, queue, &Hold::exclusive(Who::Other, Some(fence), ends));
        }
    }

    /// Cuts a hold whose connection has closed: it ends after its grace, or at
    /// once if there is none. Nothing changes if another connection has renewed
    /// it since.
    pub fn unbind(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
    ) -> Step<()> {
        self.view(now, name, hold, Some(owner));
        let watch = self.table.watch_named(name, owner);
        let watch = watch.filter(|it| hold.fence_of(owner) == Some(it.fence));
        let binding = watch.and_then(|it| it.binding);
        let ends = binding.and_then(|it| it.ends());
        let (Some(mut held), Some(ends)) = (hold.of_caller(owner), ends) else {
            return Step::without_effects(());
        };
        if binding.is_some_and(|it| it.grace.millis() == 0) {
            hold.lose(owner);
            let step = self.settle(now, name, hold);
            return step.announcing(Announce::IfFreed);
        }
        let before = hold.deadline();
        if ends < held.deadline {
            held.deadline = ends;
            hold.set_of_caller(owner, held);
        }
        self.hold_changed(now, name, hold);
        Step::without_effects(()).announcing(Announce::if_sooner(hold.deadline(), before))
    }
}
