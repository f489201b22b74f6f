//! A holder that changes its mode: from shared to exclusive, and back.

use rlock_core::{Extras, Mode, Wait};

use super::{HashMode, Kind, Model, Waiting, Wanted};
use crate::core::messages::{Ask, Reply};

impl Model {
    /// A shared holder asks for exclusive.
    pub(super) fn upgrade(&mut self, at: usize, ask: &Ask<'static>) -> Reply<u64> {
        let alone = self.locks[at].data.admits(ask.owner(), Mode::Exclusive);
        if alone && self.now >= self.grants_from {
            return self.upgrade_now(at, ask);
        }
        if ask.request.wait == Wait::No {
            return self.refuse();
        }
        self.queue_up(&[at], ask, Kind::Upgrade)
    }

    fn upgrade_now(&mut self, at: usize, ask: &Ask<'static>) -> Reply<u64> {
        if self.lacks_watches(&[at], ask, Kind::Upgrade) {
            return Reply::QUEUE_FULL;
        }
        // The owner may have had a place before it got the lock.
        self.consume_place(&[at], ask, Kind::Upgrade);
        let before = self.locks[at].data.lock().and_then(|it| it.ends);
        let fence = self.next_fence(&[at]);
        self.counters.grants += 1;
        self.make_exclusive(at, ask.owner(), &Wanted::asked(ask), fence);
        self.watch(at, fence, ask);
        if self.locks[at].data.lock().and_then(|it| it.ends) < before {
            self.unlock(at);
        }
        Reply::Fence(fence)
    }

    /// The only shared holder becomes the exclusive one.
    pub(super) fn make_exclusive(&mut self, at: usize, owner: &str, wanted: &Wanted, fence: u64) {
        let ends = self.now + wanted.lease;
        let hash = self.locks[at].data.lock_mut().expect("it holds");
        hash.mode = HashMode::Exclusive;
        hash.extras = wanted.extras;
        hash.ends = Some(ends);
        hash.fence = Some(fence);
        let holder = hash.holders.iter_mut().find(|it| it.owner == owner);
        let holder = holder.expect("it holds");
        holder.count += u32::from(wanted.reenter);
        holder.permits = 1;
        holder.ends = ends;
        holder.fence = Some(fence);
    }

    /// Whether the request waits for the other holders to leave the lock to its
    /// owner.
    pub(super) fn is_upgrade(&self, waiting: &Waiting) -> bool {
        let shared = |at: &usize| {
            let data = &self.locks[*at].data;
            data.is_shared() && data.holder(&waiting.owner).is_some()
        };
        waiting.wanted.mode == Mode::Exclusive && waiting.keys.iter().all(shared)
    }

    pub fn downgrade(&mut self, at: usize, owner: &str) -> Reply<u64> {
        self.settle(at);
        let data = &self.locks[at].data;
        if data.is_other() {
            return Reply::WRONG_TYPE;
        }
        if !data.is_exclusive() || data.holder(owner).is_none() {
            return self.done(Reply::Nil);
        }
        let own = self.locks[at].data.holder(owner).and_then(|it| it.fence);
        let fence = own.unwrap_or_else(|| self.next_fence(&[at]));
        let hash = self.locks[at].data.lock_mut().expect("it holds");
        (hash.mode, hash.extras) = (HashMode::Shared, Extras::NONE);
        hash.fence = Some(fence);
        let ends = hash.ends.expect("it is a lock");
        let holder = hash.holders.first_mut().expect("it holds");
        holder.ends = ends;
        holder.fence = Some(fence);
        self.settle_all();
        Reply::Fence(fence)
    }
}
