//! The contract of the exclusive lock once more, as simply as it can be said.
//!
//! Written from the contract alone, and meant to be read beside it: everything
//! is a plain list and is searched from its start, time is a number of
//! milliseconds, and a grant has a running number where the server has a
//! fence. Fast it is not.

use rlock_core::{Counters, Wait};

use crate::told::{Ask, Outcome, Reply, Told, Via};

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Absent,
    /// A hash with one owner; a lock while it has an end.
    Hash {
        owner: String,
        count: u32,
        grant: Option<u64>,
        ends: Option<u64>,
    },
    Text,
}

#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) owner: String,
    pub(crate) lease: u64,
    pub(crate) since: u64,
    pub(crate) ends: Option<u64>,
    pub(crate) via: Via,
}

/// A holder that asked to be told of its loss.
#[derive(Clone, Debug)]
pub(crate) struct Watching {
    pub(crate) owner: String,
    pub(crate) grant: u64,
    pub(crate) session: u64,
    pub(crate) channel: String,
}

#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) db: u32,
    pub(crate) key: &'static str,
    pub(crate) data: Data,
    pub(crate) queue: Vec<Waiting>,
    pub(crate) watching: Vec<Watching>,
    /// The end of the hold as this server last saw it, while somebody waits or
    /// watches: what counts a lease end is that it was seen.
    pub(crate) seen_end: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) now: u64,
    pub(crate) locks: Vec<Lock>,
    pub(crate) listened: Vec<String>,
    pub(crate) counters: Counters,
    pub(crate) told: Vec<Told<u64>>,
    pub(crate) waiters_max: usize,
    pub(crate) watches_max: usize,
    /// Before this nothing is granted.
    pub(crate) grants_from: u64,
    pub(crate) last_grant: u64,
}

impl Model {
    pub(crate) fn acquire(&mut self, at: usize, ask: &Ask<'_>) -> Reply<u64> {
        self.settle(at);
        let reply = match self.locks[at].held_by() {
            None if self.locks[at].data != Data::Absent => Reply::WrongType,
            Some(holder) if holder == ask.owner => self.enter_again(at, ask),
            held => {
                let free = held.is_none() && self.now >= self.grants_from;
                self.counters.acquires += 1;
                if free && self.locks[at].queue.is_empty() {
                    self.enter(at, ask)
                } else if ask.wait == Wait::No {
                    self.counters.refusals += 1;
                    Reply::Nil
                } else {
                    self.queue_up(at, ask)
                }
            }
        };
        self.see(at);
        reply
    }

    fn enter(&mut self, at: usize, ask: &Ask<'_>) -> Reply<u64> {
        if ask.watches() && self.watches() >= self.watches_max {
            return Reply::QueueFull;
        }
        let grant = self.next_grant();
        self.counters.grants += 1;
        self.locks[at].data = Data::Hash {
            owner: ask.owner.to_owned(),
            count: 1,
            grant: Some(grant),
            ends: Some(self.now + ask.lease_ms),
        };
        self.watch(at, ask.owner, grant, &ask.via);
        Reply::Fence(grant)
    }

    fn enter_again(&mut self, at: usize, ask: &Ask<'_>) -> Reply<u64> {
        self.counters.acquires += 1;
        let watched = self.locks[at]
            .watching
            .iter()
            .any(|it| it.owner == ask.owner);
        if ask.watches() && !watched && self.watches() >= self.watches_max {
            return Reply::QueueFull;
        }
        if let Data::Hash { count, .. } = &mut self.locks[at].data
            && !ask.once
        {
            *count += 1;
        }
        self.counters.grants += 1;
        let grant = self.set_lease(at, ask.lease_ms);
        self.watch(at, ask.owner, grant, &ask.via);
        Reply::Fence(grant)
    }

    fn queue_up(&mut self, at: usize, ask: &Ask<'_>) -> Reply<u64> {
        let ends = match ask.wait {
            Wait::Millis(wait) => Some(self.now + wait),
            Wait::Forever | Wait::No => None,
        };
        let (queued, watches) = (self.waiters(), self.watches());
        let (now, lock) = (self.now, &mut self.locks[at]);
        let place = lock.queue.iter_mut().find(|it| it.owner == ask.owner);
        let watched = place.as_ref().is_some_and(|it| it.via.is_channel());
        if place.is_some() && !ask.once {
            return Reply::AlreadyQueued;
        }
        if place.is_none() && queued >= self.waiters_max {
            return Reply::QueueFull;
        }
        if ask.watches() && !watched && watches >= self.watches_max {
            return Reply::QueueFull;
        }
        if let Some(place) = place {
            let earlier = std::mem::replace(&mut place.via, ask.via.clone());
            place.ends = ends;
            place.lease = ask.lease_ms;
            self.answer(at, &earlier, Outcome::Superseded);
        } else {
            self.counters.waits += 1;
            lock.queue.push(Waiting {
                owner: ask.owner.to_owned(),
                lease: ask.lease_ms,
                since: now,
                ends,
                via: ask.via.clone(),
            });
        }
        if ask.via.is_channel() {
            Reply::Waiting
        } else {
            Reply::Blocked
        }
    }

    pub(crate) fn renew(&mut self, at: usize, owner: &str, lease: u64) -> Reply<u64> {
        self.settle(at);
        let reply = match self.locks[at].held_by() {
            None if self.locks[at].data != Data::Absent => Reply::WrongType,
            Some(holder) if holder == owner => {
                self.counters.renewals += 1;
                Reply::Fence(self.set_lease(at, lease))
            }
            _ => Reply::Nil,
        };
        self.see(at);
        reply
    }

    pub(crate) fn release(&mut self, at: usize, owner: &str, all: bool) -> Reply<u64> {
        let held = self.is_held(at);
        self.settle(at);
        let lock = &mut self.locks[at];
        let reply = match (lock.held_by(), &mut lock.data) {
            (None, Data::Hash { .. } | Data::Text) => Reply::WrongType,
            (
                Some(_),
                Data::Hash {
                    owner: holder,
                    count,
                    ..
                },
            ) if *holder == *owner => {
                if *count > 1 && !all {
                    *count -= 1;
                    Reply::Number((*count).into())
                } else {
                    self.counters.releases += 1;
                    self.give_back(at, held);
                    Reply::Number(0)
                }
            }
            _ => Reply::Nil,
        };
        self.see(at);
        reply
    }

    pub(crate) fn undeliver(&mut self, at: usize, owner: &str, undone: u64) -> Reply<u64> {
        let held = self.is_held(at);
        self.settle(at);
        let lock = &self.locks[at];
        let reply = match (lock.held_by(), &lock.data) {
            (None, Data::Hash { .. } | Data::Text) => Reply::WrongType,
            (Some(holder), Data::Hash { grant, .. })
                if holder == owner && *grant == Some(undone) =>
            {
                self.counters.undelivered_grants += 1;
                self.counters.waiters_gone += 1;
                self.give_back(at, held);
                Reply::Number(1)
            }
            _ => Reply::Number(0),
        };
        self.see(at);
        reply
    }

    pub(crate) fn force(&mut self, at: usize) -> Reply<u64> {
        let held = self.is_held(at);
        self.settle(at);
        let reply = match self.locks[at].held_by() {
            Some(_) => {
                self.counters.force_releases += 1;
                self.locks[at].data = Data::Absent;
                self.hand_on(at, held);
                Reply::Number(1)
            }
            None if self.locks[at].data == Data::Absent => Reply::Number(0),
            None => Reply::WrongType,
        };
        self.see(at);
        reply
    }

    pub(crate) fn cancel(&mut self, at: usize, owner: &str) -> Reply<u64> {
        let queue = &mut self.locks[at].queue;
        let Some(place) = queue.iter().position(|it| it.owner == owner) else {
            return Reply::Number(0);
        };
        let via = queue.remove(place).via;
        self.answer(at, &via, Outcome::Cancelled);
        Reply::Number(1)
    }

    /// The connection of a blocked call ends; false if it is not waiting.
    pub(crate) fn hang_up(&mut self, call: u64) -> bool {
        let before = self.waiters();
        for lock in &mut self.locks {
            lock.queue
                .retain(|it| !matches!(it.via, Via::Call { handle, .. } if handle == call));
        }
        let gone = before - self.waiters();
        self.counters.waiters_gone += gone as u64;
        gone > 0
    }

    /// A connection that asked for messages ends.
    pub(crate) fn close(&mut self, closed: u64) {
        let before = self.waiters();
        for lock in &mut self.locks {
            lock.queue
                .retain(|it| !matches!(it.via, Via::Channel { session, .. } if session == closed));
            lock.watching.retain(|it| it.session != closed);
        }
        self.counters.waiters_gone += (before - self.waiters()) as u64;
    }
}
