//! Several locks at once: all or none.

use rlock_core::Wait;

use super::{Kind, Model};
use crate::told::{Ask, Mode, Reply};

impl Model {
    pub(crate) fn acquire_all(&mut self, keys: &[usize], ask: &Ask<'_>) -> Reply<u64> {
        if !self.are_locks(keys) {
            return Reply::WrongType;
        }
        self.counters.acquires += 1;
        let reply = match self.odd_one(keys, ask.owner) {
            Some(_) => Reply::HeldInPart,
            None if self.holds(keys[0], ask.owner) => self.enter_again(keys, ask),
            None => self.enter_all(keys, ask),
        };
        self.settle_all();
        reply
    }

    /// Settles all of them, unless one is no lock.
    fn are_locks(&mut self, keys: &[usize]) -> bool {
        for at in keys {
            self.expire_key(*at);
            if self.locks[*at].is_contended() {
                self.settle(*at);
            }
        }
        let other = keys.iter().any(|at| self.locks[*at].data.is_other());
        if !other {
            for at in keys {
                self.settle(*at);
            }
        }
        !other
    }

    fn holds(&self, at: usize, owner: &str) -> bool {
        self.locks[at].data.holder(owner).is_some()
    }

    /// The key that keeps the owner from holding all of them exclusively by
    /// one grant, or none of them.
    fn odd_one(&self, keys: &[usize], owner: &str) -> Option<usize> {
        let grant = |at: usize| {
            let data = &self.locks[at].data;
            let holder = data.holder(owner).filter(|_| data.is_exclusive());
            holder.and_then(|it| it.grant)
        };
        let held: Vec<usize> = keys
            .iter()
            .copied()
            .filter(|at| self.holds(*at, owner))
            .collect();
        let first = *held.first()?;
        let alike = |at: &usize| grant(*at).is_some() && grant(*at) == grant(first);
        keys.iter().copied().find(|at| !alike(at))
    }

    fn enter_all(&mut self, keys: &[usize], ask: &Ask<'_>) -> Reply<u64> {
        let open = self.now >= self.grants_from
            && keys.iter().all(|at| {
                let lock = &self.locks[*at];
                let free = lock.data.admits(ask.owner, Mode::Exclusive);
                free && lock.queue.is_empty()
            });
        if open {
            self.admit(keys, ask)
        } else if ask.wait == Wait::No {
            self.refuse()
        } else {
            self.queue_up(keys, ask, Kind::Many)
        }
    }

    pub(crate) fn renew_all(
        &mut self,
        keys: &[usize],
        owner: &str,
        lease: u64,
        session: u64,
    ) -> Reply<u64> {
        if !self.are_locks(keys) {
            return Reply::WrongType;
        }
        let mut renewed = 0;
        for at in keys {
            if self.holds(*at, owner) {
                self.renew_held(*at, owner, lease, session);
                renewed += 1;
            }
        }
        self.settle_all();
        Reply::Number(renewed)
    }

    pub(crate) fn release_all(&mut self, keys: &[usize], owner: &str, all: bool) -> Reply<u64> {
        let held: Vec<bool> = keys.iter().map(|at| self.is_held(*at)).collect();
        if !self.are_locks(keys) {
            return Reply::WrongType;
        }
        let mut released = 0;
        for (at, held) in keys.iter().zip(held) {
            if self.holds(*at, owner) {
                self.release_held(*at, owner, all, held);
                released += 1;
            }
        }
        self.settle_all();
        Reply::Number(released)
    }
}
