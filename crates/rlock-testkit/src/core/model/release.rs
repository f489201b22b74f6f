//! Renewing a hold, and releasing it.

use super::{Data, Hash, Model, Renewed};
use crate::core::messages::{Error, Reply};

impl Model {
    pub fn renew(&mut self, at: usize, owner: &str, renewed: &Renewed) -> Reply<u64> {
        let raise_to = renewed.raise_to;
        self.settle(at);
        let data = &self.locks[at].data;
        if data.is_other() {
            return Reply::WRONG_TYPE;
        }
        if raise_to.is_some_and(|to| to > self.highest_fence()) {
            return self.done(Reply::Error(Error::FenceTooLarge));
        }
        if data.holder(owner).is_none() {
            return self.done(Reply::Nil);
        }
        if !renewed.extras.are_none() && data.is_shared() {
            return self.done(Reply::Error(Error::ValueOfShared));
        }
        let mut others = data.holders().iter().filter(|it| it.owner != owner);
        if raise_to.is_some() && others.any(|it| it.fence == raise_to) {
            return self.done(Reply::Error(Error::FenceTaken));
        }
        let before = data.holder(owner).and_then(|it| it.fence);
        if self.lacks_watches_to_renew(&[at], owner, renewed) {
            return self.done(Reply::QUEUE_FULL);
        }
        let fence = self.renew_held(at, owner, renewed);
        if raise_to == Some(fence) && before < raise_to {
            self.event("fence", "raised");
        }
        self.settle_all();
        Reply::Fence(fence)
    }

    pub(super) fn renew_held(&mut self, at: usize, owner: &str, renewed: &Renewed) -> u64 {
        self.counters.renewals += 1;
        let fence = self.set_lease(at, owner, renewed.lease_ms, renewed.raise_to);
        self.change_extras(at, renewed.extras);
        self.watch_as(at, owner, fence, &renewed.via, renewed.grace);
        if renewed.watches() {
            self.event("renewal", "watched");
        }
        fence
    }

    /// With a fence, only a hold with that fence counts.
    pub(super) fn holds_under(&self, at: usize, owner: &str, fence: Option<u64>) -> bool {
        let holder = self.locks[at].data.holder(owner);
        holder.is_some_and(|it| fence.is_none() || it.fence == fence)
    }

    pub fn release(&mut self, at: usize, owner: &str, all: bool, fence: Option<u64>) -> Reply<u64> {
        let held = self.is_held(at);
        if let Some(reply) = self.nothing_to_release(at, owner, fence) {
            return reply;
        }
        let left = self.release_held(at, owner, all, held);
        self.settle_all();
        Reply::Number(left.into())
    }

    pub fn release_permits(
        &mut self,
        at: usize,
        owner: &str,
        permits: u32,
        fence: Option<u64>,
    ) -> Reply<u64> {
        let held = self.is_held(at);
        if let Some(reply) = self.nothing_to_release(at, owner, fence) {
            return reply;
        }
        let holder = self.locks[at].data.holder_mut(owner).expect("it holds");
        if permits > holder.permits {
            return self.done(Reply::Error(Error::TooManyPermits));
        }
        let left = if permits < holder.permits {
            holder.permits -= permits;
            let count = holder.count;
            self.event("release", "of some permits");
            count
        } else {
            self.release_held(at, owner, true, held)
        };
        self.settle_all();
        Reply::Number(left.into())
    }

    /// The reply to a release if there is nothing to release.
    fn nothing_to_release(
        &mut self,
        at: usize,
        owner: &str,
        fence: Option<u64>,
    ) -> Option<Reply<u64>> {
        self.settle(at);
        let data = &self.locks[at].data;
        if data.is_other() {
            return Some(Reply::WRONG_TYPE);
        }
        if data.holder(owner).is_none() {
            return Some(self.done(Reply::Nil));
        }
        if !self.holds_under(at, owner, fence) {
            self.event("release", "of another fence");
            return Some(self.done(Reply::Nil));
        }
        if fence.is_some() {
            self.event("release", "of this fence");
        }
        None
    }

    /// Releases a hold; returns the remaining count.
    pub(super) fn release_held(&mut self, at: usize, owner: &str, all: bool, held: bool) -> u32 {
        let holder = self.locks[at].data.holder_mut(owner).expect("it holds");
        if holder.count > 1 && !all {
            holder.count -= 1;
            return holder.count;
        }
        self.counters.releases += 1;
        self.give_back(at, owner, held);
        0
    }

    /// The owner ends its hold itself, so it gets no message about that.
    pub(super) fn give_back(&mut self, at: usize, owner: &str, held: bool) {
        let lock = &mut self.locks[at];
        lock.watching.retain(|it| it.owner != owner);
        self.end_hold(at, owner);
        self.locks[at].owes_message |= held;
    }

    pub(super) fn end_hold(&mut self, at: usize, owner: &str) {
        let lock = &mut self.locks[at];
        lock.seen_end = None;
        let hash = lock.data.lock_mut().expect("it holds");
        hash.holders.retain(|it| it.owner != owner);
        if hash.holders.is_empty() {
            lock.data = Data::Absent;
        } else {
            hash.end_with_the_last();
        }
    }

    /// A grant from the queue did not reach its owner: all of its locks pass to
    /// the next requests.
    pub fn undeliver(&mut self, keys: &[usize], owner: &str, undone: u64) -> Reply<u64> {
        let held: Vec<bool> = keys.iter().map(|at| self.is_held(*at)).collect();
        let mut from = Vec::new();
        for at in keys {
            self.settle(*at);
        }
        for (at, held) in keys.iter().zip(held) {
            let holder = self.locks[*at].data.holder(owner);
            if holder.is_some_and(|it| it.fence == Some(undone)) {
                self.end_hold(*at, owner);
                self.locks[*at].owes_message |= held;
                from.push(*at);
            }
        }
        let taken = u64::from(!from.is_empty());
        self.counters.undelivered_grants += taken;
        self.counters.waiters_gone += taken;
        self.settle_all();
        if taken > 0 {
            self.restore_place(&from, owner, undone);
        }
        Reply::Number(taken)
    }

    pub fn force(&mut self, at: usize, queue: bool, fence: Option<u64>) -> Reply<u64> {
        let held = self.is_held(at);
        let orphan = self.locks[at].data.orphan().cloned();
        if queue {
            if orphan.is_none() && self.locks[at].data.is_other() {
                return Reply::WRONG_TYPE;
            }
            self.clear_queue(at);
        }
        if let Some(orphan) = orphan {
            return self.end_orphan(at, &orphan, fence);
        }
        self.settle(at);
        let data = &self.locks[at].data;
        if data.is_other() {
            return Reply::WRONG_TYPE;
        }
        let holders = data.holders().iter();
        let ended = holders.filter(|it| fence.is_none() || it.fence == fence);
        let ended: Vec<String> = ended.map(|it| it.owner.clone()).collect();
        for owner in &ended {
            self.counters.force_releases += 1;
            self.end_hold(at, owner);
            self.locks[at].owes_message |= held;
        }
        if fence.is_some() && !ended.is_empty() {
            self.event("force", "of this fence");
        }
        self.settle_all();
        Reply::Number(ended.len() as u64)
    }

    /// Deletes a hash of the module that is no lock any more.
    fn end_orphan(&mut self, at: usize, orphan: &Hash, fence: Option<u64>) -> Reply<u64> {
        if fence.is_some() && orphan.fence != fence {
            return self.done(Reply::Number(0));
        }
        self.event("force", "an orphan");
        if let Some(fence) = orphan.fence {
            self.note_fence(at, fence);
        }
        let owners = orphan.holders.len() as u64;
        self.counters.force_releases += owners;
        let lock = &mut self.locks[at];
        (lock.data, lock.yields_until) = (Data::Absent, None);
        lock.owes_message = true;
        self.settle(at);
        self.done(Reply::Number(owners))
    }

    pub(super) fn is_held(&mut self, at: usize) -> bool {
        self.expire_key(at);
        self.locks[at].data.lock().is_some()
    }
}
