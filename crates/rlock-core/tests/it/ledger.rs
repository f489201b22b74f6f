//! The requests that wait, and the calls that have been answered: each may end
//! only once.

use std::{collections::BTreeSet, sync::Arc};

use rlock_core::{Counters, Fence, TicketId};

use crate::{
    driver::Queued,
    foreign::name,
    operation::{KEYS, OWNERS, Operation},
    pair::Pair,
    pair_checks::same,
    told::{Reply, Told},
};

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    open: Vec<Open>,
    answered: BTreeSet<u64>,
    counters: Counters,
}

/// A request that waits, known by the first of its tickets.
#[derive(Debug)]
struct Open {
    ticket: TicketId,
    owner: String,
    keys: BTreeSet<Arc<[u8]>>,
}

impl Pair {
    /// Each call is answered once, and each request ends once: by hand-off, by
    /// the end of its wait, by cancelling, or as its connection is gone.
    pub(crate) fn check_outcomes(
        &mut self,
        operation: Operation,
        reply: Reply<Fence>,
        told: &[Told<Fence>],
    ) -> Result<(), String> {
        for told in told {
            if let Told::Answer { handle, .. } = told {
                let first = self.ledger.answered.insert(*handle);
                same("a call is answered once", &first, &true)?;
            }
        }
        let took_over = self.takes_over(operation) && matches!(reply, Reply::Fence(_));
        for queued in std::mem::take(&mut self.driver.queued) {
            self.note(queued);
        }
        let before = self.ledger.open.len();
        let locks = &self.driver.locks;
        let waits = |it: &Open| !locks.keys_of(it.ticket).is_empty();
        self.ledger.open.retain(waits);
        let ended = (before - self.ledger.open.len()) as u64;
        let places: usize = self.ledger.open.iter().map(|it| it.keys.len()).sum();
        let queued = (0..KEYS.len()).map(|at| locks.queued(name(at)) as usize);
        same("who waits has a ticket", &queued.sum(), &places)?;
        let cancelled = matches!(operation, Operation::Cancel { .. }) && reply == Reply::Number(1);
        let now = *locks.counters();
        let then = std::mem::replace(&mut self.ledger.counters, now);
        let accounted = (now.handoffs - then.handoffs)
            + (now.wait_timeouts - then.wait_timeouts)
            + (now.waiters_gone - then.waiters_gone)
            - (now.undelivered_grants - then.undelivered_grants)
            + u64::from(cancelled);
        let one_more = u64::from(took_over && ended > accounted);
        same(
            "each ticket has one outcome",
            &ended,
            &(accounted + one_more),
        )
    }

    /// A place that was given: a new one, or that of an earlier request.
    fn note(&mut self, queued: Queued) {
        let locks = &self.driver.locks;
        let keys = locks.keys_of(queued.ticket);
        let mut keys: BTreeSet<_> = keys.into_iter().map(|it| it.1).collect();
        keys.insert(queued.key.as_bytes().into());
        let mut open = self.ledger.open.iter_mut();
        let same = |it: &&mut Open| {
            let waits = !locks.keys_of(it.ticket).is_empty();
            let waits = waits || it.ticket == queued.ticket;
            waits && it.owner == queued.owner && !it.keys.is_disjoint(&keys)
        };
        if let Some(earlier) = open.find(same) {
            earlier.ticket = queued.ticket;
        } else {
            self.ledger.open.push(Open {
                ticket: queued.ticket,
                owner: queued.owner,
                keys,
            });
        }
    }

    /// Whether an owner that waits asks again, and may be granted at once.
    fn takes_over(&self, operation: Operation) -> bool {
        let Operation::Acquire { key, asked, .. } = operation else {
            return false;
        };
        let waits = |it: &Open| {
            let key = KEYS[key].1.as_bytes();
            it.owner == OWNERS[asked.owner] && it.keys.iter().any(|it| **it == *key)
        };
        self.ledger.open.iter().any(waits)
    }
}
