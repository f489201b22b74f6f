//! A request for one key: granted, queued or refused.

use rlock_core::Wait;

use super::{Kind, Model, grant::Taken};
use crate::told::{Ask, Mode, Reply};

impl Model {
    pub(crate) fn acquire(&mut self, at: usize, ask: &Ask<'_>) -> Reply<u64> {
        self.settle(at);
        let data = &self.locks[at].data;
        if data.is_other() {
            return Reply::WrongType;
        }
        self.counters.acquires += 1;
        let covers = data.is_exclusive() || ask.mode != Mode::Exclusive;
        let reply = match data.holder(ask.owner) {
            Some(_) if covers => self.enter_again(&[at], ask),
            Some(_) => self.upgrade(at, ask),
            None => self.enter(at, ask),
        };
        self.settle_all();
        reply
    }

    fn enter(&mut self, at: usize, ask: &Ask<'_>) -> Reply<u64> {
        let lock = &self.locks[at];
        let open = self.now >= self.grants_from;
        if open && lock.queue.is_empty() && lock.data.admits(ask.owner, ask.mode) {
            self.admit(&[at], ask)
        } else if ask.wait == Wait::No {
            self.refuse()
        } else {
            self.queue_up(&[at], ask, Kind::One)
        }
    }

    pub(super) fn refuse(&mut self) -> Reply<u64> {
        self.counters.refusals += 1;
        Reply::Nil
    }

    /// Grants all keys at once, which nothing stands against but the limits.
    pub(super) fn admit(&mut self, keys: &[usize], ask: &Ask<'_>) -> Reply<u64> {
        if self.lacks_watches(keys, ask) {
            return Reply::QueueFull;
        }
        let grant = self.next_grant();
        self.counters.grants += 1;
        for at in keys {
            let taken = Taken {
                owner: ask.owner,
                mode: ask.mode,
                once: ask.once,
                lease: ask.lease_ms.into(),
            };
            self.take(*at, grant, &taken);
            self.watch(*at, grant, ask);
        }
        Reply::Fence(grant)
    }

    /// The owner holds all keys already.
    pub(super) fn enter_again(&mut self, keys: &[usize], ask: &Ask<'_>) -> Reply<u64> {
        if self.lacks_watches_to_stay(keys, ask) {
            return Reply::QueueFull;
        }
        self.counters.grants += 1;
        let mut grant = 0;
        for at in keys {
            let holder = self.locks[*at].data.holder_mut(ask.owner);
            let holder = holder.expect("it is a re-entry");
            holder.count += u32::from(!ask.once);
            grant = self.set_lease(*at, ask.owner, ask.lease_ms.into());
            self.watch(*at, grant, ask);
        }
        Reply::Fence(grant)
    }

    /// Sets the lease of a hold, which gets a number if it has none yet.
    pub(super) fn set_lease(&mut self, at: usize, owner: &str, lease: u64) -> u64 {
        let (now, next) = (self.now, self.last_grant + 1);
        let data = &mut self.locks[at].data;
        let before = data.lock().and_then(|it| it.ends);
        let holder = data.holder_mut(owner).expect("it holds");
        holder.ends = now + lease;
        let grant = *holder.grant.get_or_insert(next);
        let hash = data.lock_mut().expect("it holds");
        hash.largest = hash.largest.max(Some(grant));
        hash.end_with_the_last();
        let after = hash.ends;
        self.last_grant = self.last_grant.max(grant);
        if after < before {
            self.unlock(at);
        }
        grant
    }
}
