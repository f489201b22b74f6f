//! The part of the naive model that happens without being asked for: ends of
//! leases and waits, losses, hand-offs.

use crate::{
    model::{Data, Lock, Model, Watching},
    told::{Ask, Outcome, Told, Via, Word},
};

impl Via {
    pub(crate) const fn is_channel(&self) -> bool {
        matches!(self, Self::Channel { .. })
    }
}

impl Ask<'_> {
    pub(crate) const fn watches(&self) -> bool {
        self.via.is_channel()
    }
}

impl Lock {
    /// Who holds the lock, if the key is a lock that somebody holds.
    pub(crate) fn held_by(&self) -> Option<String> {
        match &self.data {
            Data::Hash {
                owner,
                ends: Some(_),
                ..
            } => Some(owner.clone()),
            _ => None,
        }
    }

    pub(crate) const fn ends(&self) -> Option<u64> {
        match self.data {
            Data::Hash { ends, .. } => ends,
            Data::Absent | Data::Text => None,
        }
    }

    fn grant(&self) -> Option<u64> {
        match self.data {
            Data::Hash {
                grant,
                ends: Some(_),
                ..
            } => grant,
            _ => None,
        }
    }

    pub(crate) const fn is_contended(&self) -> bool {
        !self.queue.is_empty() || !self.watching.is_empty()
    }
}

impl Model {
    /// The server takes a key away that is past its end.
    pub(crate) fn expire(&mut self, at: usize) {
        if self.locks[at].ends().is_some_and(|ends| ends < self.now) {
            self.locks[at].data = Data::Absent;
        }
    }

    /// Losses are told; while the lock is free it goes to the one who has
    /// waited longest and is still there.
    pub(crate) fn settle(&mut self, at: usize) {
        self.forget_idle();
        self.expire(at);
        if !self.locks[at].is_contended() {
            return;
        }
        let seen_end = self.locks[at].seen_end;
        if self.locks[at].data == Data::Absent && seen_end.is_some_and(|end| end < self.now) {
            self.counters.lease_expirations += 1;
        }
        let grant = self.locks[at].grant();
        let (kept, lost) = std::mem::take(&mut self.locks[at].watching)
            .into_iter()
            .partition(|it: &Watching| Some(it.grant) == grant);
        self.locks[at].watching = kept;
        for it in lost {
            self.publish(at, &it.channel, Word::Lost, &it.owner, Some(it.grant));
        }
        while self.locks[at].data == Data::Absent
            && self.now >= self.grants_from
            && !self.locks[at].queue.is_empty()
        {
            self.serve_front(at);
        }
        self.see(at);
    }

    fn serve_front(&mut self, at: usize) {
        let front = self.locks[at].queue.remove(0);
        if front.ends.is_some_and(|ends| ends < self.now) {
            self.counters.wait_timeouts += 1;
            self.answer(at, &front.via, Outcome::WaitOver);
            self.publish_to(at, &front.via, Word::WaitOver, &front.owner, None);
            return;
        }
        if let Via::Channel { channel, .. } = &front.via
            && !self.listened.contains(channel)
        {
            self.counters.waiters_gone += 1;
            return;
        }
        let grant = self.next_grant();
        self.counters.grants += 1;
        self.counters.handoffs += 1;
        self.locks[at].data = Data::Hash {
            owner: front.owner.clone(),
            count: 1,
            grant: Some(grant),
            ends: Some(self.now + front.lease),
        };
        self.watch(at, &front.owner, grant, &front.via);
        self.answer(at, &front.via, Outcome::Granted(grant));
        self.publish_to(at, &front.via, Word::Grant, &front.owner, Some(grant));
    }

    /// Everything that is due now: first the waits, then the locks.
    pub(crate) fn turn(&mut self) {
        for at in 0..self.locks.len() {
            let now = self.now;
            let (mut over, left) = std::mem::take(&mut self.locks[at].queue)
                .into_iter()
                .partition::<Vec<_>, _>(|it| it.ends.is_some_and(|ends| ends < now));
            self.locks[at].queue = left;
            over.sort_by_key(|it| it.ends);
            for it in over {
                self.counters.wait_timeouts += 1;
                self.answer(at, &it.via, Outcome::WaitOver);
                self.publish_to(at, &it.via, Word::WaitOver, &it.owner, None);
            }
        }
        for at in 0..self.locks.len() {
            self.settle(at);
        }
    }

    /// Lets time pass, with a turn at once and after each end on the way.
    pub(crate) fn advance(&mut self, to: u64) {
        self.turn();
        while let Some(next) = self.next_turn().filter(|next| *next <= to) {
            self.now = next;
            self.turn();
        }
        self.now = to;
    }

    /// The millisecond after the next end of anything.
    pub(crate) fn next_turn(&self) -> Option<u64> {
        let contended = self.locks.iter().filter(|it| it.is_contended());
        let leases = contended.filter_map(Lock::ends);
        let queued = self.locks.iter().flat_map(|it| &it.queue);
        let waits = queued.filter_map(|it| it.ends);
        let turns = leases.chain(waits).map(|end| end.max(self.now) + 1);
        let start = Some(self.grants_from).filter(|from| *from > self.now);
        turns.chain(start).min()
    }

    /// Ends the hold of its owner, who wants no message for that.
    pub(crate) fn give_back(&mut self, at: usize, held: bool) {
        let owner = self.locks[at].held_by();
        self.locks[at]
            .watching
            .retain(|it| Some(&it.owner) != owner.as_ref());
        self.locks[at].data = Data::Absent;
        self.hand_on(at, held);
    }

    /// Whoever is next gets the lock; if nobody does, it is free, and those
    /// who saw it `held` and only listen are told.
    pub(crate) fn hand_on(&mut self, at: usize, held: bool) {
        self.locks[at].seen_end = None;
        self.settle(at);
        if held && self.locks[at].data == Data::Absent {
            self.unlock(at);
        }
    }

    /// Sets the lease of a hold, which gets a number if it has none yet.
    pub(crate) fn set_lease(&mut self, at: usize, lease: u64) -> u64 {
        let sooner = self.locks[at].ends() > Some(self.now + lease);
        let next = self.last_grant + 1;
        let now = self.now;
        let Data::Hash { grant, ends, .. } = &mut self.locks[at].data else {
            unreachable!("only a holder sets its lease");
        };
        *ends = Some(now + lease);
        let grant = *grant.get_or_insert(next);
        self.last_grant = self.last_grant.max(grant);
        if sooner {
            self.unlock(at);
        }
        grant
    }

    pub(crate) fn watch(&mut self, at: usize, owner: &str, grant: u64, via: &Via) {
        if let Via::Channel { session, channel } = via {
            let watching = &mut self.locks[at].watching;
            watching.retain(|it| it.owner != owner);
            watching.push(Watching {
                owner: owner.to_owned(),
                grant,
                session: *session,
                channel: channel.clone(),
            });
        }
    }

    pub(crate) fn is_held(&mut self, at: usize) -> bool {
        self.expire(at);
        self.locks[at].held_by().is_some()
    }

    /// A command or a turn has looked at the key.
    pub(crate) fn see(&mut self, at: usize) {
        let lock = &mut self.locks[at];
        let held = lock.held_by().is_some();
        lock.seen_end = if held { lock.ends() } else { None };
        self.forget_idle();
    }

    /// Nothing is remembered of a lock that nobody waits for or watches.
    pub(crate) fn forget_idle(&mut self) {
        for lock in &mut self.locks {
            if !lock.is_contended() {
                lock.seen_end = None;
            }
        }
    }

    pub(crate) fn waiters(&self) -> usize {
        self.locks.iter().map(|it| it.queue.len()).sum()
    }

    /// Holds with a channel, counted from when they are queued.
    pub(crate) fn watches(&self) -> usize {
        let queued = self.locks.iter().flat_map(|it| &it.queue);
        let queued = queued.filter(|it| it.via.is_channel()).count();
        let held: usize = self.locks.iter().map(|it| it.watching.len()).sum();
        queued + held
    }

    pub(crate) const fn next_grant(&mut self) -> u64 {
        self.last_grant += 1;
        self.last_grant
    }

    pub(crate) fn answer(&mut self, at: usize, via: &Via, outcome: Outcome<u64>) {
        if let Via::Call { session, handle } = via {
            self.told.push(Told::Answer {
                key: self.locks[at].key.to_owned(),
                session: *session,
                handle: *handle,
                outcome,
            });
        }
    }

    fn publish_to(&mut self, at: usize, via: &Via, word: Word, owner: &str, grant: Option<u64>) {
        if let Via::Channel { channel, .. } = via {
            self.publish(at, channel, word, owner, grant);
        }
    }

    fn publish(&mut self, at: usize, channel: &str, word: Word, owner: &str, grant: Option<u64>) {
        if self.listened.iter().any(|it| it == channel) {
            self.told.push(Told::Message {
                key: self.locks[at].key.to_owned(),
                channel: channel.to_owned(),
                word,
                owner: owner.to_owned(),
                fence: grant,
            });
        }
    }

    fn unlock(&mut self, at: usize) {
        let key = self.locks[at].key.to_owned();
        self.told.push(Told::Unlock { key });
    }
}
