//! Checks after each step: core and naive model are equal, and the core's own invariants hold.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use rlock_core::Fence;

use crate::core::{
    foreign::name,
    in_order::in_order_of_keys,
    messages::{Error, Reply, Sent},
    operation::{KEYS, OWNERS, Operation, SETS},
    pair::{Granted, Pair},
    store::Stored,
};

/// More grants than in one walk: fences may be ahead of the clock by this number
/// of microseconds without a foreign fence.
const MANY_GRANTS: u64 = 1_000_000;

impl Pair {
    pub fn compare(
        &mut self,
        operation: Operation,
        (reply, expected): (Reply<Fence>, Reply<u64>),
    ) -> Result<(), String> {
        let mut sent = std::mem::take(&mut self.driver.sent);
        let mut model_sent = std::mem::take(&mut self.model.sent);
        let together = std::mem::take(&mut self.model.given_together);
        if operation.is_several_things() {
            // A lock may be free until the other one has been read.
            sent.retain(|it| !is_unlock(it, &together));
            model_sent.retain(|it| !is_unlock(it, &together));
        }
        let answered = self.check_calls(reply, &sent);
        self.count(operation, reply, &sent);
        let sent = in_order_of_keys(sent);
        let model_sent = in_order_of_keys(model_sent);
        for (sent, model_sent) in sent.iter().zip(&model_sent) {
            if let (Some(fence), Some(expected)) = (sent.granted(), model_sent.granted()) {
                self.fences.entry(*expected).or_insert(*fence);
            }
        }
        if let (Reply::Fence(fence), Reply::Fence(grant)) = (reply, expected) {
            self.fences.entry(grant).or_insert(fence);
        }
        if matches!(operation, Operation::RenewAll { .. }) {
            self.match_silent_grants();
        }
        let sent: Vec<_> = sent.into_iter().map(|it| it.map(Some)).collect();
        let model_sent = model_sent.into_iter();
        let model_sent: Vec<_> = model_sent.map(|it| it.map(|it| self.fence(it))).collect();
        let expected = expected.map(|grant| self.fence(grant));
        same("the reply", &reply.map(Some), &expected)?;
        same("the messages", &sent, &model_sent)?;
        answered?;
        let locks = &self.driver.locks;
        same("the counters", locks.counters(), &self.model.counters)?;
        same("the gauges", &locks.gauges(), &self.model.gauges())
    }

    /// Compares the whole visible state.
    pub fn compare_all(&mut self) -> Result<(), String> {
        for key in 0..KEYS.len() {
            self.compare_lock(key)?;
        }
        for db in 0..2 {
            self.compare_list(db)?;
        }
        self.driver.locks.check_indices()
    }

    /// Each blocked call is answered once, unless its connection ends before.
    fn check_calls(&mut self, reply: Reply<Fence>, sent: &[Sent<Fence>]) -> Result<(), String> {
        if reply == Reply::Blocked {
            self.open_calls.insert(self.clients.last_call);
        }
        for sent in sent {
            if let Sent::Answer { handle, .. } = sent {
                let first = self.open_calls.remove(handle);
                same("a call is answered once", &first, &true)?;
            }
        }
        let waiting = self.model.calls().map(|it| it.1).collect();
        same("waiting calls are not answered", &self.open_calls, &waiting)
    }

    /// The owners in a refusal: the asker comes first, each waits for the next,
    /// and the last waits for the first.
    pub fn check_cycle(&self, operation: Operation, reply: Reply<Fence>) -> Result<(), String> {
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
            // An upgrade waits ahead of the queued requests.
            let waits = self.model.may_wait_for(waiter, asked, other)
                || (other == OWNERS[asker] && self.model.may_wait_at(waiter, &keys));
            same(
                "each owner of the cycle waits for the next",
                &(waits && waiter != other),
                &true,
            )?;
        }
        Ok(())
    }

    /// A knot needs a cause: a key that was changed from outside, or an owner with a kept place that was granted before
    /// owners that wait.
    pub fn check_stuck(&mut self, operation: Operation) -> Result<(), String> {
        let passed = std::mem::take(&mut self.model.passed_others);
        let foreign = matches!(operation, Operation::Foreign { .. });
        let old: Vec<_> = self.stuck.iter().map(String::as_str).collect();
        let new = !self.model.stuck(&old).is_empty();
        if self.model.limits.detects_deadlocks && !passed && !foreign {
            same("no owner is stuck", &new, &false)?;
        }
        self.stuck = self
            .model
            .stuck(&[])
            .into_iter()
            .map(str::to_owned)
            .collect();
        if passed && new {
            self.model.event("place", "left in a knot");
        }
        Ok(())
    }

    /// Each grant of a lock has a larger fence than all earlier ones. The content
    /// of other keys moves no fence ahead of the clock.
    pub fn check_fences(&mut self, operation: Operation) -> Result<(), String> {
        let clock = self.driver.now.micros();
        let is_foreign = matches!(operation, Operation::Foreign { .. });
        let held = [0, 1, 2, 3].map(|key| self.fences_of(key));
        let mut fresh = BTreeMap::<_, Vec<usize>>::new();
        for (key, held) in held.iter().enumerate() {
            let is_fresh = |it: &(&Arc<[u8]>, &Fence)| self.known[key].held.get(it.0) != Some(it.1);
            for (owner, fence) in held.iter().filter(is_fresh) {
                let raised = matches!(operation, Operation::Renew { key: of, .. } if of == key);
                let given = if raised || is_foreign {
                    0
                } else {
                    self.known[key].given
                };
                let larger = fence.get() > given;
                same("the fence is larger than those before", &larger, &true)?;
                let keys = fresh.entry((fence.get(), owner.clone())).or_default();
                keys.push(key);
            }
        }
        for ((fence, _), keys) in &fresh {
            let raised = matches!(operation, Operation::Renew { .. });
            let largest = keys
                .iter()
                .map(|key| self.model.locks[*key].largest_fence)
                .max();
            let highest = largest.map_or(clock, |largest| largest.max(clock)) + MANY_GRANTS;
            let is_own = raised || is_foreign || *fence <= highest;
            same("the fence is the clock's, or its keys'", &is_own, &true)?;
        }
        for ((fence, _), keys) in fresh {
            for key in keys {
                let known = &mut self.known[key];
                if !is_foreign {
                    known.given = known.given.max(fence);
                }
            }
        }
        for (known, held) in self.known.iter_mut().zip(held) {
            known.held = held;
        }
        Ok(())
    }

    /// The fences in a key, by their holders.
    pub fn fences_of(&self, key: usize) -> BTreeMap<Arc<[u8]>, Fence> {
        let stored = self.driver.store.get(self.driver.now, name(key));
        let held = stored.and_then(Stored::held).into_iter();
        let fences = held.flat_map(|held| {
            let holders = held.holders.iter();
            let own = holders.filter_map(|(owner, it)| Some((owner.as_bytes().into(), it.fence?)));
            // It may differ from the fences of all holders.
            own.chain(held.fence.map(|fence| (Arc::from(&b""[..]), fence)))
        });
        fences.collect()
    }

    /// The renewal of several holds may give fences without showing them.
    fn match_silent_grants(&mut self) {
        for key in 0..KEYS.len() {
            let stored = self.driver.store.get(self.driver.now, name(key));
            let holders = stored.and_then(Stored::held).map(|it| it.holders.clone());
            for (owner, it) in holders.into_iter().flatten() {
                let expected = self.model.locks[key].data.holder(&owner);
                let expected = expected.and_then(|it| it.fence);
                if let (Some(fence), Some(expected)) = (it.fence, expected) {
                    self.fences.entry(expected).or_insert(fence);
                }
            }
        }
    }

    /// Records the latest grants, whose replies may turn out to be lost.
    pub fn remember(&mut self, key: usize) {
        for holder in self.model.locks[key].data.holders() {
            let owner = OWNERS.iter().position(|it| *it == holder.owner);
            let (Some(owner), Some(fence)) = (owner, holder.fence) else {
                continue;
            };
            let known = self
                .granted
                .iter()
                .position(|it| it.fence == fence && it.owner == owner);
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

fn is_unlock<F>(sent: &Sent<F>, keys: &[&str]) -> bool {
    matches!(sent, Sent::Unlock { key } if keys.contains(&&**key))
}

pub fn same<T: PartialEq + Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    if got == expected {
        Ok(())
    } else {
        Err(format!(
            "{what} differs\n     got {got:?}\nexpected {expected:?}"
        ))
    }
}
