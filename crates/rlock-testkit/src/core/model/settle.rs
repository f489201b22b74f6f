//! Changes without a command: ends of leases, losses, hand-offs.

use super::{Data, Model, Watching};
use crate::core::messages::{MessageKind, Reply};

impl Model {
    /// The server deletes a key past its end.
    pub fn expire_key(&mut self, at: usize) {
        if self.locks[at].data.ends().is_some_and(|it| it < self.now) {
            self.locks[at].data = Data::Absent;
        }
    }

    /// Removes holders past their end.
    fn drop_lapsed(&mut self, at: usize) {
        let now = self.now;
        let data = &mut self.locks[at].data;
        let Some(hash) = data.lock_mut() else {
            return;
        };
        if hash.holders.iter().all(|it| hash.end_of(it) >= now) {
            return;
        }
        let before = hash.clone();
        hash.holders.retain(|it| before.end_of(it) >= now);
        let lapsed = before.holders.len() - hash.holders.len();
        if hash.holders.is_empty() {
            *data = Data::Absent;
        }
        self.counters.lease_expirations += lapsed as u64;
        if lapsed > 0 {
            self.locks[at].seen_end = None;
        }
    }

    /// Reports losses. Then hands the lock to the owner that has waited longest,
    /// and to the next, until one must keep waiting.
    pub fn settle(&mut self, at: usize) {
        self.locks[at].touched = true;
        self.forget_idle();
        self.lose(at);
        while self.serve_first(at) {}
        let nobody_waits = self.waiting_at(at).is_empty();
        let lock = &mut self.locks[at];
        if nobody_waits && self.now >= self.grants_from {
            (lock.in_a_row, lock.yields_until) = (0, None);
        }
        self.see(at);
    }

    /// Settles the touched locks until nothing changes: the end of a request for
    /// several keys frees its places in all of their queues.
    pub fn settle_all(&mut self) {
        loop {
            let before = (self.requests.len(), self.places_kept(), self.fences_given);
            for at in 0..self.locks.len() {
                if self.locks[at].touched {
                    self.settle(at);
                }
            }
            let after = (self.requests.len(), self.places_kept(), self.fences_given);
            if before == after {
                break;
            }
        }
        for at in 0..self.locks.len() {
            if std::mem::take(&mut self.locks[at].touched) {
                self.value_message(at);
            }
            let lock = &mut self.locks[at];
            if std::mem::take(&mut lock.owes_message) && lock.data == Data::Absent {
                self.unlock(at);
            }
        }
    }

    /// The end of a command that has no more consequences.
    pub(super) fn done(&mut self, reply: Reply<u64>) -> Reply<u64> {
        self.settle_all();
        reply
    }

    /// Removes holds whose lease is over, and notifies the owners that asked for
    /// it.
    pub(super) fn lose(&mut self, at: usize) {
        self.expire_key(at);
        let hash = self.locks[at].data.lock();
        let holders = hash.iter().flat_map(|it| &it.holders);
        let fences = holders.map(|it| it.fence).chain(hash.map(|it| it.fence));
        if let Some(fence) = fences.max().flatten() {
            self.note_fence(at, fence);
        }
        self.drop_lapsed(at);
        self.cut_by_key(at);
        let now = self.now;
        let seen_end = self.locks[at].seen_end.take();
        let watching = std::mem::take(&mut self.locks[at].watching);
        let lock = &self.locks[at];
        if lock.data == Data::Absent && seen_end.is_some_and(|end| end < now) {
            self.counters.lease_expirations += 1;
        }
        // The fence identifies an exclusive hold. Another owner's hold with the
        // same fence may have come here by a rename.
        let exclusive = lock.data.lock().filter(|_| lock.data.is_exclusive());
        let holds = |it: &Watching| {
            let shared = || lock.data.holder(&it.owner)?.fence;
            exclusive.map_or_else(shared, |hash| hash.fence) == Some(it.fence)
        };
        let (kept, lost): (_, Vec<_>) = watching.into_iter().partition(holds);
        self.locks[at].watching = kept;
        for it in lost {
            let closed = it.bind.as_ref().and_then(|it| Some(it.closed? + it.grace));
            if closed.is_some_and(|end| end <= now) {
                self.locks[at].owes_message = true;
            }
            if let Some((_, channel)) = &it.channel {
                self.publish(at, channel, MessageKind::Lost, &it.owner, Some(it.fence));
            }
        }
        self.see(at);
    }

    /// The key's end cuts longer leases, and becomes the end of the longest
    /// again.
    fn cut_by_key(&mut self, at: usize) {
        if let Some(hash) = self.locks[at].data.lock_mut()
            && hash.holders.iter().any(|it| Some(it.ends) != hash.ends)
        {
            let before = hash.clone();
            for holder in &mut hash.holders {
                holder.ends = before.end_of(holder);
            }
            hash.end_with_the_last();
        }
    }

    /// A command or a turn has read the key.
    pub(super) fn see(&mut self, at: usize) {
        let lock = &mut self.locks[at];
        lock.seen_end = lock.data.lock().and_then(|hash| {
            let ends = hash.holders.iter().map(|it| hash.end_of(it));
            ends.min()
        });
        if lock.data != Data::Absent {
            lock.yields_until = None;
        }
        self.forget_idle();
    }

    /// Forgets locks without waiters and watches.
    fn forget_idle(&mut self) {
        for lock in &mut self.locks {
            if !lock.is_contended() {
                lock.seen_end = None;
                (lock.in_a_row, lock.yields_until) = (0, None);
            }
        }
    }
}
