//! What must be the same in the core and in the naive model after each step,
//! and what must hold in the core whatever the model says.

use std::fmt::Debug;

use rlock_core::Fence;

use crate::{
    in_order::in_order_of_keys,
    operation::{KEYS, OWNERS, Operation, SETS},
    pair::{Granted, Pair},
    seen::Seen,
    told::{Outcome, Reply, Told, Word},
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
        self.check_outcomes(operation, reply, &told)?;
        self.tally(operation, reply, &told);
        let before = self.fence_max;
        let mut fresh = self.fresh_fences(reply, &told)?;
        let told = in_order_of_keys(told);
        let foretold = in_order_of_keys(foretold);
        for (told, foretold) in told.iter().zip(&foretold) {
            if let (Some(fence), Some(grant)) = (told.grant(), foretold.grant()) {
                self.match_grant(&mut fresh, fence, grant);
            }
        }
        if let (Reply::Fence(fence), Reply::Fence(grant)) = (reply, expected) {
            self.match_grant(&mut fresh, fence, grant);
        }
        self.match_silent_grants(before);
        let told: Vec<_> = told.into_iter().map(|it| it.map(Some)).collect();
        let foretold = foretold.into_iter();
        let foretold: Vec<_> = foretold.map(|it| it.map(|it| self.fence(it))).collect();
        let expected = expected.map(|grant| self.fence(grant));
        same("the reply", &reply.map(Some), &expected)?;
        same("what is told", &told, &foretold)?;
        for key in 0..KEYS.len() {
            self.compare_lock(key)?;
        }
        for db in 0..2 {
            self.compare_list(db)?;
        }
        let locks = &self.driver.locks;
        same("the counters", locks.counters(), &self.model.counters)?;
        same("the gauges", &locks.gauges(), &self.model.gauges())?;
        locks.check_indices()
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
        if !matches!(reply, Reply::Deadlock | Reply::SecondUpgrade) {
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
            // Whoever comes first waits ahead of those who are queued there.
            let waits = self.model.may_wait_for(waiter, asked, other)
                || (other == OWNERS[asker] && self.model.may_wait_at(waiter, &keys));
            same("the cycle is one", &(waits && waiter != other), &true)?;
        }
        Ok(())
    }

    /// The fences given in this step: each is larger than all before.
    fn fresh_fences(
        &mut self,
        reply: Reply<Fence>,
        told: &[Told<Fence>],
    ) -> Result<Vec<Fence>, String> {
        let mut fresh: Vec<Fence> = told.iter().filter_map(Told::grant).collect();
        if let Reply::Fence(fence) = reply
            && Some(fence) > self.fence_max
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

    fn match_grant(&mut self, fresh: &mut Vec<Fence>, fence: Fence, grant: u64) {
        let at = usize::try_from(grant).expect("grants are counted from one");
        if self.fences.len() <= at {
            self.fences.resize(at + 1, None);
        }
        if self.fences[at].is_none() && fresh.contains(&fence) {
            fresh.retain(|it| *it != fence);
            self.fences[at] = Some(fence);
        }
    }

    /// The renewal of several holds may give fences without showing them.
    fn match_silent_grants(&mut self, before: Option<Fence>) {
        for key in 0..KEYS.len() {
            let Seen::Held { holders, .. } = self.seen(key) else {
                continue;
            };
            for (owner, it) in holders {
                let expected = self.model.locks[key].data.holder(&owner);
                let grant = expected.and_then(|it| it.grant);
                if it.fence > before
                    && let (Some(fence), Some(grant)) = (it.fence, grant)
                {
                    self.match_grant(&mut vec![fence], fence, grant);
                    self.fence_max = self.fence_max.max(it.fence);
                }
            }
        }
    }

    /// Keeps the latest grants, whose replies may yet turn out to be lost.
    pub(crate) fn remember(&mut self, key: usize) {
        for holder in self.model.locks[key].data.holders() {
            let owner = OWNERS.iter().position(|it| *it == holder.owner);
            let (Some(owner), Some(grant)) = (owner, holder.grant) else {
                continue;
            };
            let known = self.granted.iter().position(|it| it.grant == grant);
            if let Some(known) = known {
                let keys = &mut self.granted[known].keys;
                if !keys.contains(&key) && KEYS[keys[0]].0 == KEYS[key].0 {
                    keys.push(key);
                }
            } else {
                let keys = vec![key];
                self.granted.push_front(Granted { keys, owner, grant });
                self.granted.truncate(4);
            }
        }
    }
}

impl<F: Copy> Told<F> {
    /// The fence of a grant.
    fn grant(&self) -> Option<F> {
        match self {
            Self::Answer {
                outcome: Outcome::Granted(fence),
                ..
            } => Some(*fence),
            Self::Message {
                word: Word::Grant,
                fence,
                ..
            } => *fence,
            _ => None,
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
