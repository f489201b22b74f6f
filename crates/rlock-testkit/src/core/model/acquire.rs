//! A request for one key: granted, queued or refused.

use rlock_core::{Mode, Wait};

use super::{Kind, Model, Wanted, hash::Hash};
use crate::core::messages::{Ask, Reply};

impl Model {
    pub fn acquire(&mut self, at: usize, ask: &Ask<'static>) -> Reply<u64> {
        self.settle(at);
        let data = &self.locks[at].data;
        if data.is_other() {
            return Reply::WRONG_TYPE;
        }
        self.counters.acquires += 1;
        let covers = data.is_exclusive() || ask.request.options.mode != Mode::Exclusive;
        let reply = match data.holder(ask.owner()) {
            Some(_) if covers => self.enter_again(&[at], ask),
            Some(_) => self.upgrade(at, ask),
            None => self.enter(&[at], ask, Kind::One),
        };
        self.settle_all();
        reply
    }

    /// The owner holds none of the keys.
    pub(super) fn enter(&mut self, keys: &[usize], ask: &Ask<'static>, kind: Kind) -> Reply<u64> {
        let fits = |at: &usize| {
            let data = &self.locks[*at].data;
            data.admits(ask.owner(), ask.request.options.mode)
        };
        let open = self.now >= self.grants_from && keys.iter().all(fits);
        if open && self.is_its_turn(keys, ask, kind) {
            self.admit(keys, ask, kind)
        } else if ask.request.wait == Wait::No {
            self.refuse()
        } else {
            self.queue_up(keys, ask, kind)
        }
    }

    /// Whether no waiting request comes before this one. An owner with a place asks from its place. A try does not
    /// change a waiting request, and ignores a place of another kind.
    fn is_its_turn(&self, keys: &[usize], ask: &Ask<'_>, kind: Kind) -> bool {
        let is_try = ask.request.wait == Wait::No;
        let Some(own) = self.place_of_any(keys, ask.owner()) else {
            return keys.iter().all(|at| self.waiting_at(*at).is_empty());
        };
        if own.repeats(keys, ask, kind) && (own.is_kept() || !is_try) {
            let first = |at: &usize| self.ahead_of(*at, own.id).is_empty();
            return keys.iter().all(first);
        }
        is_try && keys.iter().all(|at| self.waiting_at(*at).is_empty())
    }

    pub(super) fn refuse(&mut self) -> Reply<u64> {
        self.counters.refusals += 1;
        Reply::Nil
    }

    /// Grants all keys at once; only the limits can prevent it.
    fn admit(&mut self, keys: &[usize], ask: &Ask<'static>, kind: Kind) -> Reply<u64> {
        if self.lacks_watches(keys, ask, kind) {
            return Reply::QUEUE_FULL;
        }
        let own = self.place_of_any(keys, ask.owner());
        let is_counted = own.is_some_and(|it| it.repeats(keys, ask, kind));
        let is_free = self.locks[keys[0]].data.holders().is_empty();
        if !is_counted && !is_free && self.is_one_shared_too_many(ask) {
            return Reply::QUEUE_FULL;
        }
        self.consume_place(keys, ask, kind);
        let fence = self.next_fence(keys);
        self.counters.grants += 1;
        for at in keys {
            self.take(*at, fence, ask.owner(), &Wanted::asked(ask));
            self.watch(*at, fence, ask);
        }
        Reply::Fence(fence)
    }

    /// Whether one more would exceed the limit of owners that hold or are queued
    /// in shared mode.
    pub(super) fn is_one_shared_too_many(&self, ask: &Ask<'_>) -> bool {
        let shared = |mode| mode != Mode::Exclusive;
        let hashes = self.locks.iter().filter_map(|it| it.data.lock());
        let live = |hash: &Hash| {
            let ends = hash.holders.iter().map(|it| hash.end_of(it));
            ends.filter(|ends| *ends >= self.now).count()
        };
        let hold: usize = hashes.filter(|it| it.is_shared()).map(live).sum();
        let queued = self
            .requests
            .iter()
            .filter(|it| shared(it.wanted.mode))
            .count();
        shared(ask.request.options.mode) && hold + queued >= self.limits.shared_max
    }

    /// The owner no longer has to wait for these keys.
    pub(super) fn consume_place(&mut self, keys: &[usize], ask: &Ask<'_>, kind: Kind) {
        let own = self.place_of_any(keys, ask.owner());
        let Some(own) = own.filter(|it| it.repeats(keys, ask, kind)).cloned() else {
            return;
        };
        if own.is_kept() {
            let others = keys.iter().any(|at| !self.waiting_at(*at).is_empty());
            self.passed_others |= others;
            let by_try = ask.request.wait == Wait::No;
            self.event(
                "place",
                if by_try {
                    "left by a try"
                } else {
                    "left by a request that fits"
                },
            );
        }
        self.drop_request(own.id);
        self.answer(
            keys[0],
            &own.via,
            crate::core::messages::Outcome::Superseded,
        );
    }

    /// The owner already holds all keys.
    pub(super) fn enter_again(&mut self, keys: &[usize], ask: &Ask<'static>) -> Reply<u64> {
        if self.lacks_watches_to_stay(keys, ask) {
            return Reply::QUEUE_FULL;
        }
        self.counters.grants += 1;
        let mut fence = 0;
        for at in keys {
            let holder = self.locks[*at].data.holder_mut(ask.owner());
            let holder = holder.expect("it asks again");
            holder.count += u32::from(ask.request.options.reenter);
            fence = self.set_lease(*at, ask.owner(), ask.request.options.lease_ms, None);
            self.change_extras(*at, ask.extras());
            self.watch(*at, fence, ask);
        }
        Reply::Fence(fence)
    }

    /// Sets the lease of a hold. A hold without a fence gets one, and the fence
    /// is raised if requested.
    pub(super) fn set_lease(
        &mut self,
        at: usize,
        owner: &str,
        lease_ms: u32,
        raise_to: Option<u64>,
    ) -> u64 {
        let now = self.now;
        let before = self.locks[at].data.lock().and_then(|it| it.ends);
        let stored = self.locks[at].data.holder(owner).expect("it holds").fence;
        let own = stored.unwrap_or_else(|| self.next_fence(&[at]));
        let fence = raise_to.map_or(own, |to| own.max(to));
        let is_new = stored != Some(fence);
        self.note_fence(at, fence);
        let hash = self.locks[at].data.lock_mut().expect("it holds");
        if is_new {
            hash.fence = hash.fence.max(Some(fence));
        }
        let mut holders = hash.holders.iter_mut();
        let holder = holders.find(|it| it.owner == owner).expect("it holds");
        holder.ends = now + u64::from(lease_ms);
        holder.fence = Some(fence);
        hash.end_with_the_last();
        if hash.ends < before {
            self.unlock(at);
        }
        fence
    }
}
