//! Getting a place in the queue, taking it over, and losing it.

use super::{Kind, Model, Waiting};
use crate::told::{Ask, Mode, Outcome, Reply, Via};

impl Model {
    /// Queues a request that has to wait, or refuses it. An upgrade waits at
    /// the front.
    pub(super) fn queue_up(&mut self, keys: &[usize], ask: &Ask<'_>, kind: Kind) -> Reply<u64> {
        let mut places = keys.iter().filter_map(|at| self.place(*at, ask.owner));
        if let Some(place) = places.next().cloned() {
            if !ask.once {
                return Reply::AlreadyQueued;
            }
            return self.take_over(&place, keys, ask, kind);
        }
        let waiting = self.new_waiting(keys, ask, kind);
        if self.requests.len() >= self.limits.waiters_max || self.lacks_watches_to_queue(keys, ask)
        {
            return Reply::QueueFull;
        }
        if kind == Kind::Upgrade && self.has_upgrade(keys[0]) {
            self.counters.deadlocks += 1;
            return Reply::SecondUpgrade;
        }
        if self.closes_cycle(&waiting) {
            self.counters.deadlocks += 1;
            return Reply::Deadlock;
        }
        self.counters.waits += 1;
        for at in keys {
            let queue = &mut self.locks[*at].queue;
            let front = kind == Kind::Upgrade;
            let place = if front { 0 } else { queue.len() };
            queue.insert(place, waiting.id);
        }
        self.last_request = waiting.id;
        self.requests.push(waiting);
        waits(ask)
    }

    fn has_upgrade(&self, at: usize) -> bool {
        let mut queue = self.locks[at].queue.iter();
        queue.any(|id| {
            let waiting = self.request(*id);
            waiting.kind == Kind::Upgrade && self.is_upgrade(waiting)
        })
    }

    fn new_waiting(&self, keys: &[usize], ask: &Ask<'_>, kind: Kind) -> Waiting {
        Waiting {
            id: self.last_request + 1,
            owner: ask.owner.to_owned(),
            keys: keys.to_vec(),
            kind,
            mode: ask.mode,
            once: ask.once,
            lease: ask.lease_ms.into(),
            since: self.now,
            ends: self.waits_to(ask),
            via: ask.via.clone(),
            grace: ask.grace_ms.map(u64::from),
        }
    }

    /// The owner asks again by `WAIT … ONCE`.
    fn take_over(
        &mut self,
        place: &Waiting,
        keys: &[usize],
        ask: &Ask<'_>,
        kind: Kind,
    ) -> Reply<u64> {
        let same_mode = (place.mode == Mode::Exclusive) == (ask.mode == Mode::Exclusive);
        let same_kind = (place.kind == Kind::Many) == (kind == Kind::Many);
        if !same_kind || !same_mode || sorted(&place.keys) != sorted(keys) {
            return Reply::Conflict;
        }
        if self.lacks_watches_to_queue(keys, ask) {
            return Reply::QueueFull;
        }
        let taken = Waiting {
            id: place.id,
            since: place.since,
            kind: place.kind,
            ..self.new_waiting(keys, ask, kind)
        };
        // What is left to others for a moment goes to the front waiter all the
        // same if it asks; several keys that were all free would be its own.
        if kind == Kind::One && self.is_next(&taken) && !self.is_upgrade(&taken) {
            self.drop_request(place.id);
            self.answer(keys[0], &place.via, Outcome::Superseded);
            return self.admit(keys, ask);
        }
        if self.closes_cycle(&taken) {
            self.counters.deadlocks += 1;
            return Reply::Deadlock;
        }
        let old = self.requests.iter_mut().find(|it| it.id == place.id);
        *old.expect("it waits") = taken;
        self.answer(keys[0], &place.via, Outcome::Superseded);
        waits(ask)
    }

    /// Whether it is the request's turn in all of its queues, and it fits.
    pub(super) fn is_next(&self, waiting: &Waiting) -> bool {
        let first = |at: &usize| self.locks[*at].queue.first() == Some(&waiting.id);
        let fits = |at: &usize| self.fits(*at, waiting);
        waiting.keys.iter().all(first) && waiting.keys.iter().all(fits)
    }

    /// Whether nothing but the queue keeps the request from this lock.
    pub(super) fn fits(&self, at: usize, waiting: &Waiting) -> bool {
        if self.now < self.grants_from {
            return false;
        }
        let data = &self.locks[at].data;
        let holds = data.holder(&waiting.owner).is_some();
        let enters_again = holds && (!data.is_shared() || waiting.kind == Kind::Many);
        !enters_again && data.admits(&waiting.owner, waiting.mode)
    }

    /// Takes a request out of all of its queues.
    pub(super) fn drop_request(&mut self, id: u64) {
        for lock in &mut self.locks {
            lock.touched |= lock.queue.contains(&id);
            lock.queue.retain(|it| *it != id);
        }
        self.requests.retain(|it| it.id != id);
    }

    pub(crate) fn cancel(&mut self, at: usize, owner: &str) -> Reply<u64> {
        let Some(place) = self.place(at, owner).cloned() else {
            return Reply::Number(0);
        };
        self.drop_request(place.id);
        self.answer(at, &place.via, Outcome::Cancelled);
        Reply::Number(1)
    }

    /// The connection of a blocked call ends; false if it is not waiting.
    pub(crate) fn hang_up(&mut self, call: u64) -> bool {
        let mut requests = self.requests.iter();
        let gone = requests
            .find(|it| matches!(it.via, Via::Call { handle, .. } if handle == call))
            .map(|it| it.id);
        if let Some(id) = gone {
            self.drop_request(id);
            self.counters.waiters_gone += 1;
        }
        gone.is_some()
    }
}

fn waits(ask: &Ask<'_>) -> Reply<u64> {
    match ask.via {
        Via::Channel { .. } => Reply::Waiting,
        Via::Call { .. } => Reply::Blocked,
    }
}

fn sorted(keys: &[usize]) -> Vec<usize> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys
}
