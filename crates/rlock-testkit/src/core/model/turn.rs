//! Time passes, and deadlines become due.

use super::{Lock, Model};

impl Model {
    /// Does everything that is due now: first the waits, then the locks.
    pub fn turn(&mut self) {
        self.end_waits();
        for lock in &mut self.locks {
            lock.touched = lock.is_contended();
        }
        self.settle_all();
    }

    /// Ends the waits whose time is over.
    pub(super) fn end_waits(&mut self) {
        let now = self.now;
        let over = self.requests.iter();
        let over = over.filter(|it| it.ends.is_some_and(|ends| ends < now));
        let mut over: Vec<_> = over.cloned().collect();
        over.sort_by_key(|it| (it.ends, it.id));
        for it in over {
            self.end_wait(&it);
        }
    }

    /// Lets time pass, with a turn now and after each deadline in between.
    pub fn advance(&mut self, to: u64) {
        self.turn();
        while let Some(next) = self.next_turn().filter(|next| *next <= to) {
            self.now = next;
            self.turn();
        }
        self.now = to;
    }

    /// The millisecond after the next end.
    pub fn next_turn(&self) -> Option<u64> {
        let contended = self.locks.iter().filter(|it| it.is_contended());
        let leases = contended.flat_map(Lock::ends);
        let waits = self.requests.iter().filter_map(|it| it.ends);
        let yields = self.locks.iter().filter_map(|it| it.yields_until);
        let ends = leases.chain(waits).chain(yields);
        let turns = ends.map(|end| end.max(self.now) + 1);
        let start = Some(self.grants_from).filter(|from| *from > self.now);
        turns.chain(start).min()
    }
}

impl Lock {
    fn ends(&self) -> Vec<u64> {
        let Some(hash) = self.data.lock() else {
            return self.data.ends().into_iter().collect();
        };
        hash.holders.iter().map(|it| hash.end_of(it)).collect()
    }
}
