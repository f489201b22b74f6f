//! What must be the same in the core and in the naive model after each step,
//! and what must hold in the core whatever the model says.

use std::fmt::Debug;

use rlock_core::Fence;

use crate::{
    foreign::name,
    in_order::in_order_of_keys,
    operation::{KEYS, OWNERS, Operation, SETS},
    pair::{Granted, Pair},
    store::Stored,
    told::{Error, Reply, Told},
};

impl Pair {
    pub(crate) fn compare(
        &mut self,
        operation: Operation,
        (reply, expected): (Reply<Fence>, Reply<u64>),
    ) -> Result<(), String> {
        let mut told = std::mem::take(&mut self.driver.told);
        let mut foretold = std::mem::take(&mut self.model.told);
        let together = std::mem::take(&mut self.model.given_together);
        if operation.is_several_things() {
            // A lock may be free until the other has been looked at.
            told.retain(|it| !is_unlock(it, &together));
            foretold.retain(|it| !is_unlock(it, &together));
        }
        let answered = self.check_calls(reply, &told);
        self.tally(operation, reply, &told);
        let before = self.fence_max;
        let mut fresh = self.fresh_fences(reply, &told)?;
        let told = in_order_of_keys(told);
        let foretold = in_order_of_keys(foretold);
        for (told, foretold) in told.iter().zip(&foretold) {
            if let (Some(fence), Some(expected)) = (told.granted(), foretold.granted()) {
                self.match_grant(&mut fresh, *fence, *expected);
            }
        }
        if let (Reply::Fence(fence), Reply::Fence(grant)) = (reply, expected) {
            self.match_grant(&mut fresh, fence, grant);
        }
        if matches!(operation, Operation::RenewAll { .. }) {
            self.match_silent_grants(before);
        }
        let told: Vec<_> = told.into_iter().map(|it| it.map(Some)).collect();
        let foretold = foretold.into_iter();
        let foretold: Vec<_> = foretold.map(|it| it.map(|it| self.fence(it))).collect();
        let expected = expected.map(|grant| self.fence(grant));
        same("the reply", &reply.map(Some), &expected)?;
        same("what is told", &told, &foretold)?;
        answered?;
        let locks = &self.driver.locks;
        same("the counters", locks.counters(), &self.model.counters)?;
        same("the gauges", &locks.gauges(), &self.model.gauges())
    }

    /// Compares all that is to be seen.
    pub(crate) fn compare_all(&mut self) -> Result<(), String> {
        for key in 0..KEYS.len() {
            self.compare_lock(key)?;
        }
        for db in 0..2 {
            self.compare_list(db)?;
        }
        self.driver.locks.check_indices()
    }

    /// Each blocked call is answered once, unless its connection ends before.
    fn check_calls(&mut self, reply: Reply<Fence>, told: &[Told<Fence>]) -> Result<(), String> {
        if reply == Reply::Blocked {
            self.open_calls.insert(self.last_call);
        }
        for told in told {
            if let Told::Answer { handle, .. } = told {
                let first = self.open_calls.remove(handle);
                same("a call is answered once", &first, &true)?;
            }
        }
        let waiting = self.model.calls().map(|it| it.1).collect();
        same("who waits is not answered", &self.open_calls, &waiting)
    }

    /// The owners that a refusal names: the asker first, each waiting for the
    /// next, and the last for the first.
    pub(crate) fn check_cycle(
        &self,
        operation: Operation,
        reply: Reply<Fence>,
    ) -> Result<(), String> {
        let (keys, asker) = match operation {
            Operation::Acquire { key, asked, .. } => (vec![key], asked.owner),
            Operation::AcquireAll { set, asked } => (SETS[set].to_vec(), asked.owner),
            _ => return Ok(()),
        };
        if !matches!(reply, Reply::Error(Error::Deadlock | Error::SecondUpgrade)) {
            return Ok(());
        }
        let cycle = &self.driver.cycle;
        same(
            "the asker",
            &cycle.first().map(String::as_str),
            &Some(OWNERS[asker]),
        )?;
        let next = cycle.iter().cycle().skip(1);
        for (waiter, other) in cycle.iter().zip(next) {
            let asked: &[usize] = if waiter == OWNERS[asker] { &keys } else { &[] };
            // An upgrade waits ahead of those who are queued there.
            let waits = self.model.may_wait_for(waiter, asked, other)
                || (other == OWNERS[asker] && self.model.may_wait_at(waiter, &keys));
            same("the cycle is one", &(waits && waiter != other), &true)?;
        }
        Ok(())
    }

    /// Nobody ties a knot but those who change keys from outside, and those
    /// who are let in from a kept place before others who wait.
    pub(crate) fn check_knots(&mut self, operation: Operation) -> Result<(), String> {
        let passed = std::mem::take(&mut self.model.passed_others);
        let foreign = matches!(operation, Operation::Foreign { .. });
        let old: Vec<_> = self.stuck.iter().map(String::as_str).collect();
        let new = !self.model.stuck(&old).is_empty();
        if self.model.limits.detects_deadlocks && !passed && !foreign {
            same("who can never go on", &new, &false)?;
        }
        self.stuck = self
            .model
            .stuck(&[])
            .into_iter()
            .map(str::to_owned)
            .collect();
        if passed && new {
            self.model.event("place", "left into a knot");
        }
        Ok(())
    }

    /// The fences given in this step: each is larger than all before.
    fn fresh_fences(
        &mut self,
        reply: Reply<Fence>,
        told: &[Told<Fence>],
    ) -> Result<Vec<Fence>, String> {
        let granted = told.iter().filter_map(Told::granted);
        let mut fresh: Vec<Fence> = granted.copied().collect();
        if let Reply::Fence(fence) = reply
            && Some(fence) > self.fence_max
            && fence.get() < Fence::MAX
            && !fresh.contains(&fence)
        {
            fresh.push(fence);
        }
        // Of several in one step it is told by key, not in order.
        fresh.sort();
        for fence in &fresh {
            let larger = Some(*fence) > self.fence_max;
            same("the fence is larger", &larger, &true)?;
            self.fence_max = Some(*fence);
        }
        Ok(fresh)
    }

    fn match_grant(&mut self, fresh: &mut Vec<Fence>, fence: Fence, expected: u64) {
        if fresh.contains(&fence) {
            fresh.retain(|it| *it != fence);
            self.fences.entry(expected).or_insert(fence);
        }
    }

    /// The renewal of several holds may give fences without showing them.
    fn match_silent_grants(&mut self, before: Option<Fence>) {
        for key in 0..KEYS.len() {
            let stored = self.driver.store.get(self.driver.now, name(key));
            let holders = stored.and_then(Stored::held).map(|it| it.holders.clone());
            for (owner, it) in holders.into_iter().flatten() {
                let expected = self.model.locks[key].data.holder(&owner);
                let expected = expected.and_then(|it| it.fence);
                if it.fence > before
                    && let (Some(fence), Some(expected)) = (it.fence, expected)
                    && fence.get() < Fence::MAX
                {
                    self.match_grant(&mut vec![fence], fence, expected);
                    self.fence_max = self.fence_max.max(it.fence);
                }
            }
        }
    }

    /// Keeps the latest grants, whose replies may yet turn out to be lost.
    pub(crate) fn remember(&mut self, key: usize) {
        for holder in self.model.locks[key].data.holders() {
            let owner = OWNERS.iter().position(|it| *it == holder.owner);
            let (Some(owner), Some(fence)) = (owner, holder.fence) else {
                continue;
            };
            let known = self.granted.iter().position(|it| it.fence == fence);
            if let Some(known) = known {
                let keys = &mut self.granted[known].keys;
                if !keys.contains(&key) && KEYS[keys[0]].0 == KEYS[key].0 {
                    keys.push(key);
                }
            } else {
                let keys = vec![key];
                self.granted.push_front(Granted { keys, owner, fence });
                self.granted.truncate(4);
            }
        }
    }
}

fn is_unlock<F>(told: &Told<F>, keys: &[&str]) -> bool {
    matches!(told, Told::Unlock { key } if keys.contains(&&**key))
}

pub(crate) fn same<T: PartialEq + Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    if got == expected {
        Ok(())
    } else {
        Err(format!(
            "{what} differs\n     got {got:?}\nexpected {expected:?}"
        ))
    }
}
