//! Several locks at once: all or none.

use super::{Kind, Model, Renewed};
use crate::core::messages::{Ask, Error, Reply};

impl Model {
    pub fn acquire_all(&mut self, keys: &[usize], ask: &Ask<'static>) -> Reply<u64> {
        if !self.are_locks(keys) {
            return self.done(Reply::WRONG_TYPE);
        }
        self.counters.acquires += 1;
        let reply = match self.partly_held(keys, ask.owner()) {
            Some(_) => Reply::Error(Error::HeldInPart),
            None if self.holds(keys[0], ask.owner()) => self.enter_again(keys, ask),
            None => self.enter(keys, ask, Kind::Many),
        };
        self.settle_all();
        reply
    }

    /// Settles all of them, unless one is not a lock.
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

    /// The first key that differs, if the owner holds some of the keys, but not
    /// all of them exclusively by one grant.
    fn partly_held(&self, keys: &[usize], owner: &str) -> Option<usize> {
        let fence = |at: usize| {
            let data = &self.locks[at].data;
            let holder = data.holder(owner).filter(|_| data.is_exclusive());
            holder.and_then(|it| it.fence)
        };
        let held: Vec<usize> = keys
            .iter()
            .copied()
            .filter(|at| self.holds(*at, owner))
            .collect();
        let first = *held.first()?;
        let alike = |at: &usize| fence(*at).is_some() && fence(*at) == fence(first);
        keys.iter().copied().find(|at| !alike(at))
    }

    pub fn renew_all(
        &mut self,
        keys: &[usize],
        (owner, fence): (&str, Option<u64>),
        renewed: &Renewed,
    ) -> Reply<u64> {
        if !self.are_locks(keys) {
            return self.done(Reply::WRONG_TYPE);
        }
        let mut renewable = keys.to_vec();
        renewable.retain(|at| self.holds_under(*at, owner, fence));
        if self.lacks_watches_to_renew(&renewable, owner, renewed) {
            return self.done(Reply::QUEUE_FULL);
        }
        for at in &renewable {
            self.renew_held(*at, owner, renewed);
        }
        self.settle_all();
        Reply::Number(renewable.len() as u64)
    }

    pub fn release_all(
        &mut self,
        keys: &[usize],
        owner: &str,
        all: bool,
        fence: Option<u64>,
    ) -> Reply<u64> {
        let held: Vec<bool> = keys.iter().map(|at| self.is_held(*at)).collect();
        if !self.are_locks(keys) {
            return self.done(Reply::WRONG_TYPE);
        }
        let mut released = 0;
        for (at, held) in keys.iter().zip(held) {
            if self.holds_under(*at, owner, fence) {
                self.release_held(*at, owner, all, held);
                released += 1;
            }
        }
        self.settle_all();
        Reply::Number(released)
    }
}
