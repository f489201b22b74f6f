//! A holder that changes its mode: from shared to exclusive, and back.

use rlock_core::Wait;

use super::{HashMode, Kind, Model, Waiting};
use crate::told::{Ask, Mode, Outcome, Reply};

impl Model {
    /// A shared holder asks for exclusive.
    pub(super) fn upgrade(&mut self, at: usize, ask: &Ask<'_>) -> Reply<u64> {
        let alone = self.locks[at].data.admits(ask.owner, Mode::Exclusive);
        if alone && self.now >= self.grants_from {
            return self.upgrade_now(at, ask);
        }
        if ask.wait == Wait::No {
            return self.refuse();
        }
        self.queue_up(&[at], ask, Kind::Upgrade)
    }

    fn upgrade_now(&mut self, at: usize, ask: &Ask<'_>) -> Reply<u64> {
        if self.lacks_watches(&[at], ask) {
            return Reply::QueueFull;
        }
        // It may have been queued before it came to hold, by a rename.
        if let Some(place) = self.place(at, ask.owner).cloned() {
            self.drop_request(place.id);
            self.answer(at, &place.via, Outcome::Superseded);
        }
        let before = self.locks[at].data.lock().and_then(|it| it.ends);
        let grant = self.next_grant();
        self.counters.grants += 1;
        self.make_exclusive(at, ask.owner, ask.once, ask.lease_ms.into(), grant);
        self.watch(at, grant, ask);
        if self.locks[at].data.lock().and_then(|it| it.ends) < before {
            self.unlock(at);
        }
        Reply::Fence(grant)
    }

    /// The one shared holder becomes the exclusive one.
    pub(super) fn make_exclusive(
        &mut self,
        at: usize,
        owner: &str,
        once: bool,
        lease: u64,
        grant: u64,
    ) {
        let ends = self.now + lease;
        let hash = self.locks[at].data.lock_mut().expect("it holds");
        hash.mode = HashMode::Exclusive;
        hash.ends = Some(ends);
        hash.largest = Some(grant);
        let holder = hash.holders.iter_mut().find(|it| it.owner == owner);
        let holder = holder.expect("it holds");
        holder.count += u32::from(!once);
        holder.permits = 1;
        holder.ends = ends;
        holder.grant = Some(grant);
    }

    /// Whether the request waits for the others to leave the lock to its owner.
    pub(super) fn is_upgrade(&self, waiting: &Waiting) -> bool {
        let shared = |at: &usize| {
            let data = &self.locks[*at].data;
            data.is_shared() && data.holder(&waiting.owner).is_some()
        };
        waiting.mode == Mode::Exclusive && waiting.keys.iter().all(shared)
    }

    pub(crate) fn downgrade(&mut self, at: usize, owner: &str) -> Reply<u64> {
        self.settle(at);
        let data = &self.locks[at].data;
        if data.is_other() {
            return Reply::WrongType;
        }
        if !data.is_exclusive() || data.holder(owner).is_none() {
            return self.done(Reply::Nil);
        }
        let next = self.last_grant + 1;
        let hash = self.locks[at].data.lock_mut().expect("it holds");
        hash.mode = HashMode::Shared;
        let ends = hash.ends.expect("it is a lock");
        let holder = hash.holders.first_mut().expect("it holds");
        holder.ends = ends;
        let grant = *holder.grant.get_or_insert(next);
        hash.largest = Some(grant);
        self.last_grant = self.last_grant.max(grant);
        self.settle_all();
        Reply::Fence(grant)
    }
}
