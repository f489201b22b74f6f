//! Becoming a holder: at once, or in turn.

use rlock_core::Mode;

use super::{Data, Hash, HashMode, Holder, Kind, Model, Via, Waiting, Wanted};
use crate::core::messages::{MessageKind, Outcome};

/// How long a queue waits for a taker outside the queue.
const YIELD_MS: u64 = 5;

impl Model {
    /// Adds a holder. One that got the lock by a rename while it was queued
    /// enters again, and has what it was queued for.
    pub(super) fn take(&mut self, at: usize, fence: u64, owner: &str, wanted: &Wanted) {
        let ends = self.now + wanted.lease;
        let data = &mut self.locks[at].data;
        if *data == Data::Absent {
            *data = Data::Hash(Hash {
                mode: match wanted.mode {
                    Mode::Exclusive => HashMode::Exclusive,
                    Mode::Shared { .. } => HashMode::Shared,
                },
                holders: Vec::new(),
                fence: None,
                extras: wanted.extras,
                ends: Some(ends),
            });
        }
        let Data::Hash(hash) = data else {
            unreachable!("other data is never taken");
        };
        hash.fence = Some(fence);
        let permits = match wanted.mode {
            Mode::Exclusive => 1,
            Mode::Shared { permits, .. } => permits,
        };
        if let Some(holder) = hash.holders.iter_mut().find(|it| it.owner == owner) {
            holder.count += u32::from(wanted.reenter);
            (holder.ends, holder.fence) = (ends, Some(fence));
            holder.permits = permits;
        } else {
            hash.holders.push(Holder {
                owner: owner.to_owned(),
                count: 1,
                permits,
                fence: Some(fence),
                ends,
            });
        }
        hash.end_with_the_last();
    }

    /// Resolves the first request in the queue, if it has an outcome.
    pub(super) fn serve_first(&mut self, at: usize) -> bool {
        let Some(front) = self.waiting_at(at).first().map(|it| (*it).clone()) else {
            return false;
        };
        for key in &front.keys {
            self.lose(*key);
        }
        if !self.fits(at, &front) {
            return false;
        }
        if front.ends.is_some_and(|ends| ends < self.now) {
            self.leave_free(&front);
            self.end_wait(&front);
            return true;
        }
        let mut yields = false;
        for key in &front.keys {
            yields |= self.yields(*key, front.id);
        }
        if yields || !self.is_next(&front) {
            return false;
        }
        self.leave_free(&front);
        if front.kind == Kind::Many {
            let keys = front.keys.iter().map(|at| self.locks[*at].key);
            self.given_together.extend(keys);
        }
        match &front.via {
            Via::Channel { channel, .. } if !self.listened.contains(channel) => {
                self.skip(at, &front);
            }
            _ => {
                self.drop_request(front.id);
                self.hand_off(&front);
            }
        }
        true
    }

    /// A request for several locks leaves each of them free until it gets all of them or yields. The messages about the
    /// end of the previous hold are sent before.
    fn leave_free(&mut self, front: &Waiting) {
        for at in front.keys.iter().filter(|_| front.kind == Kind::Many) {
            self.value_message(*at);
        }
    }

    /// Nobody would receive the grant. Only its fence remains, as the last fence.
    fn skip(&mut self, at: usize, front: &Waiting) {
        let fence = self.next_fence(&front.keys);
        for key in &front.keys {
            if let Some(hash) = self.locks[*key].data.lock_mut().filter(|it| it.is_shared()) {
                hash.fence = Some(fence);
            }
        }
        self.counters.waiters_gone += 1;
        let upgrade = front.kind == Kind::Upgrade;
        self.end_call(front.id, "kept for a grant without a listener");
        if self.locks[at].data.holder(&front.owner).is_some() {
            // It counts as disconnected, like the holder of an undelivered grant.
            self.end_hold(at, &front.owner);
            self.locks[at].owes_message |= upgrade;
        }
    }

    /// Whether a free lock is reserved for a moment for clients that only listen.
    fn yields(&mut self, at: usize, front: u64) -> bool {
        let after = self.limits.yield_after;
        let (now, has_listeners) = (self.now, self.has_listeners);
        let first = self.waiting_at(at).first().map(|it| it.id);
        let lock = &mut self.locks[at];
        if lock.data != Data::Absent || first != Some(front) {
            return false;
        }
        if let Some(until) = lock.yields_until {
            if until < now {
                lock.yields_until = None;
            }
            return until >= now;
        }
        if after == 0 || lock.in_a_row < after {
            return false;
        }
        lock.in_a_row = 0;
        if has_listeners {
            lock.owes_message = false;
            lock.yields_until = Some(now + YIELD_MS);
            self.unlock(at);
        }
        has_listeners
    }

    fn hand_off(&mut self, front: &Waiting) {
        let fence = self.next_fence(&front.keys);
        self.counters.grants += 1;
        self.counters.handoffs += 1;
        let upgrade = self.is_upgrade(front);
        for at in &front.keys {
            if upgrade {
                self.make_exclusive(*at, &front.owner, &front.wanted, fence);
            } else {
                self.take(*at, fence, &front.owner, &front.wanted);
            }
            self.watch_as(*at, &front.owner, fence, &front.via, front.wanted.grace);
            self.locks[*at].in_a_row += 1;
            self.see(*at);
        }
        self.may_come_back(fence, front);
        let at = front.keys[0];
        self.answer(at, &front.via, Outcome::Granted(fence));
        self.publish_to(
            at,
            &front.via,
            MessageKind::Grant,
            &front.owner,
            Some(fence),
        );
    }

    pub(super) fn end_wait(&mut self, waiting: &Waiting) {
        if waiting.is_kept() {
            self.event("place", "lost at the end of its grace");
            self.drop_request(waiting.id);
            return;
        }
        self.counters.wait_timeouts += 1;
        let at = waiting.keys[0];
        self.answer(at, &waiting.via, Outcome::WaitOver);
        self.publish_to(
            at,
            &waiting.via,
            MessageKind::WaitOver,
            &waiting.owner,
            None,
        );
        self.end_call(waiting.id, "kept at the end of a wait");
    }
}
