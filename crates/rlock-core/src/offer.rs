//! Fairness towards those who wait outside the queue, as clients of Redisson
//! do: after many hand-offs in a row the lock is left free for a moment.

use crate::{
    Effect, Hold, Locks, Name, Step, Timestamp,
    queue::{Look, QueueId},
};

/// How long a lock is left to those who wait outside the queue, in
/// milliseconds.
const OFFER_MS: u64 = 5;

impl Locks {
    /// Takes back an offer that nobody outside the queue could hear of.
    pub fn nobody_took(&mut self, now: Timestamp, name: Name<'_>, hold: &mut Hold) -> Step<()> {
        if let Some(id) = self.table.find(name) {
            self.end_offer(id);
        }
        self.settle(now, name, hold)
    }

    /// Leaves a free lock to those who wait outside the queue for a moment, if
    /// that is their turn. True while it is.
    pub(crate) fn offers(
        &mut self,
        now: Timestamp,
        id: QueueId,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if self.is_offered(now, id) {
            return true;
        }
        let Some(queue) = self.table.queues.get_mut(&id) else {
            return false;
        };
        if queue.offered {
            // They had their time.
            queue.offered = false;
            return false;
        }
        if self.yield_after == 0 || u64::from(queue.streak) < self.yield_after {
            return false;
        }
        queue.offered = true;
        queue.streak = 0;
        let until = Look::Again(now.plus_millis(OFFER_MS));
        self.table.look(id, until);
        effects.push(Effect::Offer);
        true
    }

    /// Whether the lock is left to those who wait outside the queue.
    pub(crate) fn is_offered(&self, now: Timestamp, id: QueueId) -> bool {
        self.table.queues.get(&id).is_some_and(|queue| {
            let until = queue.look().at();
            // The clock may have been set back since.
            let is_on =
                |until: Timestamp| !until.has_passed(now) && until <= now.plus_millis(OFFER_MS);
            queue.offered && until.is_some_and(is_on)
        })
    }

    pub(crate) fn end_offer(&mut self, id: QueueId) {
        if let Some(queue) = self.table.queues.get_mut(&id) {
            queue.offered = false;
        }
    }

    pub(crate) fn end_streak(&mut self, id: QueueId) {
        if let Some(queue) = self.table.queues.get_mut(&id) {
            queue.streak = 0;
            queue.offered = false;
        }
    }

    /// Takes a hand-off back that nobody was there to hear of.
    pub(crate) fn uncount_in_streak(&mut self, id: QueueId) {
        if let Some(queue) = self.table.queues.get_mut(&id) {
            queue.streak = queue.streak.saturating_sub(1);
        }
    }

    pub(crate) fn count_in_streak(&mut self, id: QueueId) {
        if let Some(queue) = self.table.queues.get_mut(&id) {
            queue.streak = queue.streak.saturating_add(1);
        }
    }
}
