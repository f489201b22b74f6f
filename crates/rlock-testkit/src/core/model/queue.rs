//! How a request gets a place in the queue, takes one over, and loses it.

use rlock_core::{Mode, Wait};

use super::{Kind, Model, Via, Waiting, Wanted};
use crate::core::messages::{Ask, Error, MessageKind, Outcome, Reply};

impl Waiting {
    /// Whether a request repeats this one. An upgrade asks for one key in
    /// exclusive mode.
    pub(super) fn repeats(&self, keys: &[usize], ask: &Ask<'_>, kind: Kind) -> bool {
        let exclusive = |mode| mode == Mode::Exclusive;
        let same_mode = exclusive(self.wanted.mode) == exclusive(ask.request.options.mode);
        let same_kind = (self.kind == Kind::Many) == (kind == Kind::Many);
        same_kind && same_mode && sorted(&self.keys) == sorted(keys)
    }
}

impl Model {
    /// Queues a request that must wait, or refuses it. An upgrade waits at the
    /// front.
    pub(super) fn queue_up(
        &mut self,
        keys: &[usize],
        ask: &Ask<'static>,
        kind: Kind,
    ) -> Reply<u64> {
        if let Some(place) = self.place_of_any(keys, ask.owner()).cloned() {
            return self.take_over(&place, keys, ask, kind);
        }
        let waiting = self.new_waiting(keys, ask, kind);
        if self.places() + keys.len() > self.limits.waiters_max
            || self.lacks_watches_to_queue(keys, ask, kind)
            || self.is_one_shared_too_many(ask)
        {
            return Reply::QUEUE_FULL;
        }
        if let Some(refused) = self.refuse_if_stuck(&waiting, kind) {
            return refused;
        }
        if self.is_too_much_for_its_user(&waiting) {
            self.event("user", "has no place left");
            return Reply::QUEUE_FULL;
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

    /// The refusal of a request whose wait could never end.
    fn refuse_if_stuck(&mut self, waiting: &Waiting, kind: Kind) -> Option<Reply<u64>> {
        let error = if kind == Kind::Upgrade && self.has_upgrade(waiting) {
            Error::SecondUpgrade
        } else if self.closes_cycle(waiting) {
            Error::Deadlock
        } else {
            return None;
        };
        self.counters.deadlocks += 1;
        Some(Reply::Error(error))
    }

    /// Whether the user would exceed its limit of places with this request.
    fn is_too_much_for_its_user(&self, waiting: &Waiting) -> bool {
        let same = self.requests.iter().filter(|it| it.user == waiting.user);
        let places: usize = same.map(|it| it.keys.len()).sum();
        let most = self.limits.places_per_user;
        most > 0 && places + waiting.keys.len() > most
    }

    fn has_upgrade(&self, waiting: &Waiting) -> bool {
        let queue = self.waiting_at(waiting.keys[0]);
        let mut others = queue.iter().filter(|it| it.owner != waiting.owner);
        others.any(|it| it.kind == Kind::Upgrade && self.is_upgrade(it))
    }

    fn new_waiting(&self, keys: &[usize], ask: &Ask<'static>, kind: Kind) -> Waiting {
        let request = &ask.request;
        let mut wanted = Wanted::asked(ask);
        wanted.keep = wanted.keep.filter(|_| kind != Kind::Upgrade);
        Waiting {
            id: self.last_request + 1,
            owner: ask.owner().to_owned(),
            keys: keys.to_vec(),
            kind,
            wanted,
            since: self.now,
            ends: match request.wait {
                Wait::Millis(wait) => Some(self.now + wait),
                Wait::Forever | Wait::No => None,
            },
            via: Via::asked(ask),
            user: request.user.unwrap_or_default().to_vec(),
        }
    }

    /// The owner asks again, and keeps its place.
    fn take_over(
        &mut self,
        place: &Waiting,
        keys: &[usize],
        ask: &Ask<'static>,
        kind: Kind,
    ) -> Reply<u64> {
        if !place.repeats(keys, ask, kind) {
            return Reply::Error(Error::OtherRequest);
        }
        if self.lacks_watches_to_queue(keys, ask, kind) {
            return Reply::QUEUE_FULL;
        }
        let comes_first = kind == Kind::Upgrade && place.kind != Kind::Upgrade;
        let taken = Waiting {
            id: place.id,
            since: place.since,
            kind: if comes_first { kind } else { place.kind },
            ..self.new_waiting(keys, ask, kind)
        };
        if let Some(refused) = self.refuse_if_stuck(&taken, kind) {
            return refused;
        }
        if place.user != taken.user && self.is_too_much_for_its_user(&taken) {
            self.event("user", "may not take over");
            return Reply::QUEUE_FULL;
        }
        if place.is_kept() {
            self.event("place", "waited in again");
            self.counters.waits += 1;
        }
        if comes_first {
            let queue = &mut self.locks[keys[0]].queue;
            queue.retain(|id| *id != place.id);
            queue.insert(0, place.id);
        }
        let old = self.requests.iter_mut().find(|it| it.id == place.id);
        *old.expect("it has a place") = taken;
        self.answer(keys[0], &place.via, Outcome::Superseded);
        waits(ask)
    }

    /// Whether it is the request's turn in all of its queues, and it fits.
    pub(super) fn is_next(&self, waiting: &Waiting) -> bool {
        let first = |at: &usize| self.ahead_of(*at, waiting.id).is_empty();
        let fits = |at: &usize| self.fits(*at, waiting);
        waiting.keys.iter().all(first) && waiting.keys.iter().all(fits)
    }

    /// Whether the request would get this lock if the queue were empty.
    pub(super) fn fits(&self, at: usize, waiting: &Waiting) -> bool {
        if self.now < self.grants_from {
            return false;
        }
        let data = &self.locks[at].data;
        let holds = data.holder(&waiting.owner).is_some();
        let enters_again = holds && (!data.is_shared() || waiting.kind == Kind::Many);
        !enters_again && data.admits(&waiting.owner, waiting.wanted.mode)
    }

    /// Removes a request from all of its queues.
    pub(super) fn drop_request(&mut self, id: u64) {
        for lock in &mut self.locks {
            lock.touched |= lock.queue.contains(&id);
            lock.queue.retain(|it| *it != id);
        }
        self.requests.retain(|it| it.id != id);
    }

    pub fn cancel(&mut self, at: usize, owner: &str, session: u64) -> Reply<u64> {
        let Some(place) = self.place(at, owner).cloned() else {
            return Reply::Number(0);
        };
        if place.is_kept() {
            self.event("place", "cancelled");
        }
        self.withdraw(&place, Some(session));
        Reply::Number(1)
    }

    /// A request is withdrawn, by its own connection or by another one.
    fn withdraw(&mut self, place: &Waiting, by: Option<u64>) {
        self.drop_request(place.id);
        let at = place.keys[0];
        if by.is_none() || place.via.session() != by {
            self.publish_to(at, &place.via, MessageKind::Withdrawn, &place.owner, None);
        }
        self.answer(at, &place.via, Outcome::Cancelled);
    }

    /// All places of a lock end.
    pub(super) fn clear_queue(&mut self, at: usize) {
        for id in self.locks[at].queue.clone() {
            let place = self.request(id).clone();
            if place.is_kept() {
                self.event("place", "ended by force");
            } else {
                self.counters.waiters_gone += 1;
            }
            self.withdraw(&place, None);
        }
    }

    /// The connection of a blocked call ends; false if the call is not waiting.
    pub fn hang_up(&mut self, call: u64) -> bool {
        let mut requests = self.requests.iter();
        let gone = requests
            .find(|it| matches!(it.via, Via::Call { handle, .. } if handle == call))
            .map(|it| it.id);
        if let Some(id) = gone {
            self.counters.waiters_gone += 1;
            self.end_call(id, "kept for a call that is gone");
        }
        gone.is_some()
    }
}

fn waits(ask: &Ask<'_>) -> Reply<u64> {
    match ask.request.channel {
        Some(_) => Reply::Waiting,
        None => Reply::Blocked,
    }
}

fn sorted(keys: &[usize]) -> Vec<usize> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys
}
