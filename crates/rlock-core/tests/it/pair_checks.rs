//! What must be the same in the core and in the naive model after each step,
//! and what must hold in the core whatever the model says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use rlock_core::{Counters, Fence, Gauges, TicketId};

use crate::{
    driver::text,
    foreign::name,
    model::{Data, Lock},
    operation::{KEYS, OWNERS, Operation},
    pair::Pair,
    store::{Stored, Value},
    told::{Outcome, Reply, Told, Via, Word},
};

/// The tickets that wait, each with its key and owner, and the calls that have
/// been answered: each may end only once.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    open: BTreeMap<TicketId, (String, String)>,
    last: Option<TicketId>,
    answered: BTreeSet<u64>,
    counters: Counters,
}

impl Pair {
    pub(crate) fn compare(
        &mut self,
        operation: Operation,
        (reply, expected): (Reply<Fence>, Reply<u64>),
    ) -> Result<(), String> {
        let told = std::mem::take(&mut self.driver.told);
        let foretold = std::mem::take(&mut self.model.told);
        self.check_outcomes(operation, reply, &told)?;
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
        let told: Vec<_> = told.into_iter().map(|it| it.map(Some)).collect();
        let foretold = foretold.into_iter();
        let foretold: Vec<_> = foretold.map(|it| it.map(|it| self.fence(it))).collect();
        same("what is told", &told, &foretold)?;
        let expected = expected.map(|grant| self.fence(grant));
        same("the reply", &reply.map(Some), &expected)?;
        for key in 0..KEYS.len() {
            self.compare_lock(key)?;
        }
        let locks = &self.driver.locks;
        same("the counters", locks.counters(), &self.model.counters)?;
        same("the gauges", &locks.gauges(), &self.expected_gauges())?;
        locks.check_indices()
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
        for fence in &fresh {
            same(
                "the fence is larger",
                &(Some(*fence) > self.fence_max),
                &true,
            )?;
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

    /// Each call is answered once, and each ticket ends once: by hand-off, by
    /// the end of its wait, by cancelling, or as its connection is gone.
    fn check_outcomes(
        &mut self,
        operation: Operation,
        reply: Reply<Fence>,
        told: &[Told<Fence>],
    ) -> Result<(), String> {
        let ledger = &mut self.ledger;
        for told in told {
            if let Told::Answer { handle, .. } = told {
                same(
                    "a call is answered once",
                    &ledger.answered.insert(*handle),
                    &true,
                )?;
            }
        }
        for queued in std::mem::take(&mut self.driver.queued) {
            let place = (queued.key, queued.owner);
            if let Some(earlier) = ledger.open.get(&queued.ticket) {
                same("a takeover keeps the place", earlier, &place)?;
            } else {
                same(
                    "a ticket is new",
                    &(Some(queued.ticket) > ledger.last),
                    &true,
                )?;
                ledger.last = Some(queued.ticket);
                ledger.open.insert(queued.ticket, place);
            }
        }
        let mut waiting = BTreeSet::new();
        for (at, (_, key)) in KEYS.iter().enumerate() {
            let waiters = self.driver.locks.waiters(self.driver.now, name(at));
            waiting.extend(waiters.map(|it| ((*key).to_owned(), text(it.owner))));
        }
        let before = ledger.open.len();
        let open = std::mem::take(&mut ledger.open);
        // The latest ticket of a place is the one that waits.
        for (ticket, place) in open.into_iter().rev() {
            if waiting.remove(&place) {
                ledger.open.insert(ticket, place);
            }
        }
        same("who waits has a ticket", &waiting, &BTreeSet::new())?;
        let ended = (before - ledger.open.len()) as u64;
        let cancelled = matches!(operation, Operation::Cancel { .. }) && reply == Reply::Number(1);
        let now = *self.driver.locks.counters();
        let then = std::mem::replace(&mut ledger.counters, now);
        let accounted = (now.handoffs - then.handoffs)
            + (now.wait_timeouts - then.wait_timeouts)
            + (now.waiters_gone - then.waiters_gone)
            - (now.undelivered_grants - then.undelivered_grants)
            + u64::from(cancelled);
        same("each ticket has one outcome", &ended, &accounted)
    }

    fn compare_lock(&mut self, key: usize) -> Result<(), String> {
        self.model.expire(key);
        let now = self.driver.now;
        let lock = &self.model.locks[key];
        let expected = self.expected_value(lock);
        same(
            "the key",
            &self.driver.store.get(now, name(key)).cloned(),
            &expected,
        )?;
        let waiters = self.driver.locks.waiters(now, name(key)).map(|it| {
            let waited = it.waited.as_millis();
            (text(it.owner), waited, it.wait_left_ms, it.session)
        });
        let expected = lock.queue.iter().map(|it| {
            let left = it.ends.map(|ends| ends.saturating_sub(self.model.now));
            let waited = u128::from(self.model.now - it.since);
            let (Via::Call { session, .. } | Via::Channel { session, .. }) = it.via;
            (it.owner.clone(), waited, left, session)
        });
        same(
            "the queue",
            &waiters.collect::<Vec<_>>(),
            &expected.collect(),
        )?;
        if self.settled {
            let hold = self.driver.store.load(now, name(key), None);
            self.driver.locks.check_front(now, name(key), &hold)?;
        }
        if let Data::Hash {
            owner,
            grant: Some(grant),
            ..
        } = &lock.data
            && let Some(owner) = OWNERS.iter().position(|it| it == owner)
        {
            self.remember(key, owner, *grant);
        }
        Ok(())
    }

    fn expected_value(&self, lock: &Lock) -> Option<Stored> {
        match &lock.data {
            Data::Absent => None,
            Data::Text => Some(Stored {
                value: Value::Text("hello".to_owned()),
                ends_ms: None,
            }),
            Data::Hash {
                owner,
                count,
                grant,
                ends,
            } => {
                let mut fields = BTreeMap::from([(owner.clone(), count.to_string())]);
                if let Some(grant) = grant {
                    let fence = self.fence(*grant).map(|it| it.to_string());
                    fields.insert("rlock:fence".to_owned(), fence.unwrap_or_default());
                }
                Some(Stored {
                    value: Value::Hash(fields),
                    ends_ms: *ends,
                })
            }
        }
    }

    fn expected_gauges(&self) -> Gauges {
        let contended = self.model.locks.iter().filter(|it| !it.queue.is_empty());
        Gauges {
            waiters: self.model.waiters() as u64,
            contended_locks: contended.count() as u64,
            watches: self.model.watches() as u64,
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

/// Locks have nothing to do with one another, so the order matters for each
/// alone.
fn in_order_of_keys<F>(mut told: Vec<Told<F>>) -> Vec<Told<F>> {
    told.sort_by(|one, other| one.key().cmp(other.key()));
    told
}

fn same<T: PartialEq + Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    if got == expected {
        Ok(())
    } else {
        Err(format!(
            "{what} differs\n     got {got:?}\nexpected {expected:?}"
        ))
    }
}
