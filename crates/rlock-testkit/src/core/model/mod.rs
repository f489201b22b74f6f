//! A second, naive implementation of the locks' contract.
//!
//! It is written from the contract alone: read the two together. Everything is a plain list that is searched from its
//! start, nothing is stored that can be computed, and time is a number of milliseconds. It is not fast.

mod acquire;
mod bind;
mod deadlock;
mod grant;
mod hash;
mod keep;
mod many;
mod notify;
mod queue;
mod release;
mod settle;
mod turn;
mod upgrade;
mod value;
mod views;

pub use hash::{Data, Hash, HashMode, Holder};
use rlock_core::{Channel, Counters, Extras, Mode};
pub use views::Contended;

use crate::core::messages::{Ask, OnChannel, Sent};

/// A request with a place in the queue of each of its keys.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub id: u64,
    pub owner: String,
    pub keys: Vec<usize>,
    pub kind: Kind,
    pub wanted: Wanted,
    pub since: u64,
    /// When the wait ends, or the grace of a kept place.
    pub ends: Option<u64>,
    pub via: Via,
    /// The user that asked last.
    pub user: Vec<u8>,
}

/// The request's options, until it is granted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub mode: Mode,
    pub reenter: bool,
    pub lease: u64,
    /// How long its place is kept.
    pub keep: Option<u64>,
    /// How long its hold outlives the connection.
    pub grace: Option<u64>,
    /// The extras of its hold.
    pub extras: Extras<&'static str>,
}

impl Wanted {
    pub fn asked(ask: &Ask<'static>) -> Self {
        let it = &ask.request.options;
        Self {
            mode: it.mode,
            reenter: it.reenter,
            lease: it.lease_ms.into(),
            keep: it.keep.map(|keep| keep.millis().into()),
            grace: it.bind.map(|bind| bind.millis().into()),
            extras: ask.extras(),
        }
    }
}

/// How a request gets its answer.
#[derive(Clone, Debug)]
pub enum Via {
    Call {
        session: u64,
        handle: u64,
    },
    Channel {
        session: u64,
        channel: OnChannel,
    },
    /// Its call is over, and its place is kept.
    Kept,
}

impl Via {
    fn asked(ask: &Ask<'_>) -> Self {
        Self::of(ask.session(), ask.request.channel, ask.call)
    }

    pub fn of(session: u64, channel: Option<Channel<'_>>, handle: u64) -> Self {
        match channel {
            None => Self::Call { session, handle },
            Some(it) => Self::Channel {
                session,
                channel: (it.kind, crate::core::driver::text(it.name)),
            },
        }
    }
}

/// The options of a renewal.
#[derive(Clone, Debug)]
pub struct Renewed {
    pub lease_ms: u32,
    pub raise_to: Option<u64>,
    /// The connection that asks, and its channel if there is one.
    pub via: Via,
    pub grace: Option<u64>,
    pub extras: Extras<&'static str>,
}

impl Renewed {
    pub const fn watches(&self) -> bool {
        self.via.is_channel() || self.grace.is_some() || self.extras.value.is_some()
    }
}

impl Waiting {
    pub const fn is_kept(&self) -> bool {
        matches!(self.via, Via::Kept)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    One,
    /// It held the lock in shared mode when it asked for more.
    Upgrade,
    /// It asked for several keys, even if only for one.
    Many,
}

/// A hold whose end is reported, or that the end of a connection cuts.
#[derive(Clone, Debug)]
pub struct Watching {
    pub owner: String,
    pub fence: u64,
    /// The connection and the channel.
    pub channel: Option<(u64, OnChannel)>,
    pub bind: Option<Bind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    pub session: u64,
    pub grace: u64,
    /// When the connection was closed, if it was.
    pub closed: Option<u64>,
}

#[derive(Debug)]
pub struct Lock {
    pub db: u32,
    pub key: &'static str,
    pub data: Data,
    /// The numbers of the requests, the next one first.
    pub queue: Vec<u64>,
    pub watching: Vec<Watching>,
    /// The earliest lease end that this server has seen, while somebody waits or
    /// watches: a lease end counts once it was seen.
    pub seen_end: Option<u64>,
    /// Whether listeners get an unlock message if the lock stays free.
    pub owes_message: bool,
    /// Whether it must be settled before the command is over.
    pub touched: bool,
    /// Hand-offs since the lock was last left to clients outside the queue.
    pub in_a_row: u64,
    /// Until when the queue waits for a taker outside the queue.
    pub yields_until: Option<u64>,
    /// The largest fence that was granted or found here, at most one hour ahead of the clock.
    pub largest_fence: u64,
    /// The fence and the value of the hold that followers consider current.
    pub followed: Option<(u64, &'static str)>,
}

#[derive(Debug)]
pub struct Model {
    pub now: u64,
    pub locks: Vec<Lock>,
    pub requests: Vec<Waiting>,
    pub listened: Vec<OnChannel>,
    /// Whether a client listens on the unlock channels.
    pub has_listeners: bool,
    pub counters: Counters,
    pub sent: Vec<Sent<u64>>,
    /// The keys granted to requests for several keys since the last check, whether
    /// or not anybody received the grant.
    pub given_together: Vec<&'static str>,
    pub limits: Limits,
    /// No grants before this moment.
    pub grants_from: u64,
    /// The largest fence that was derived from the clock.
    pub last_fence: u64,
    /// The number of fences given.
    pub fences_given: u64,
    pub last_request: u64,
    /// The hand-offs whose places must be kept if they fail, by their fences.
    pub handed_off: Vec<(u64, Waiting)>,
    /// Whether, since the last check, an owner with a kept place was granted before owners that wait.
    pub passed_others: bool,
    /// What happened to kept places and fences since the last check.
    pub events: Vec<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub waiters_max: usize,
    pub places_per_user: usize,
    pub watches_max: usize,
    pub shared_max: usize,
    pub detects_deadlocks: bool,
    pub yield_after: u64,
}

impl Lock {
    pub fn new(db: u32, key: &'static str) -> Self {
        Self {
            db,
            key,
            data: Data::Absent,
            queue: Vec::new(),
            watching: Vec::new(),
            seen_end: None,
            owes_message: false,
            touched: false,
            in_a_row: 0,
            yields_until: None,
            largest_fence: 0,
            followed: None,
        }
    }

    /// Whether the owner's hold here counts as a watch, or will once it has one.
    /// At most one hold with a value is followed, and that ends when another
    /// owner holds the lock.
    pub fn is_watched(&self, owner: &str) -> bool {
        self.followed.is_some() || self.watching.iter().any(|it| it.owner == owner)
    }

    pub fn is_contended(&self) -> bool {
        !self.queue.is_empty() || !self.watching.is_empty() || self.followed.is_some()
    }
}

impl Model {
    pub fn new(now: u64, locks: Vec<Lock>, limits: Limits, grants_from: u64) -> Self {
        Self {
            now,
            locks,
            requests: Vec::new(),
            listened: Vec::new(),
            has_listeners: true,
            counters: Counters::default(),
            sent: Vec::new(),
            given_together: Vec::new(),
            limits,
            grants_from,
            last_fence: 0,
            fences_given: 0,
            last_request: 0,
            handed_off: Vec::new(),
            passed_others: false,
            events: Vec::new(),
        }
    }

    pub fn request(&self, id: u64) -> &Waiting {
        let found = self.requests.iter().find(|it| it.id == id);
        found.expect("a queued owner has asked")
    }

    /// The owner's request with a place in the queue of the key.
    pub fn place(&self, at: usize, owner: &str) -> Option<&Waiting> {
        let mut requests = self.requests.iter();
        requests.find(|it| it.owner == owner && it.keys.contains(&at))
    }

    /// The same for the first of the keys that has one.
    pub fn place_of_any(&self, keys: &[usize], owner: &str) -> Option<&Waiting> {
        keys.iter().find_map(|at| self.place(*at, owner))
    }

    /// The requests that wait for a lock, in order. Nobody waits in a kept place.
    pub fn waiting_at(&self, at: usize) -> Vec<&Waiting> {
        let queue = self.locks[at].queue.iter().map(|id| self.request(*id));
        queue.filter(|it| !it.is_kept()).collect()
    }

    /// The waiting requests before this one.
    pub fn ahead_of(&self, at: usize, id: u64) -> Vec<&Waiting> {
        let queue = self.locks[at].queue.iter();
        let ahead = queue
            .take_while(|it| **it != id)
            .map(|id| self.request(*id));
        ahead.filter(|it| !it.is_kept()).collect()
    }

    /// A fence above all fences that were granted or found in the keys, and not
    /// behind the clock in microseconds.
    pub fn next_fence(&mut self, keys: &[usize]) -> u64 {
        self.fences_given += 1;
        let by_clock = (self.last_fence + 1).max(self.now * 1000);
        let largest = keys.iter().map(|at| self.locks[*at].largest_fence).max();
        let fence = by_clock.max(largest.map_or(0, |largest| largest + 1));
        if fence == by_clock {
            self.last_fence = fence;
        } else {
            self.event("fence", "ahead of the clock");
        }
        for at in keys {
            self.locks[*at].largest_fence = fence;
        }
        fence
    }

    /// A fence was found in a key. Later fences there are larger, but a found fence counts for at most one hour ahead
    /// of the clock.
    pub fn note_fence(&mut self, at: usize, fence: u64) {
        let fence = fence.min(self.highest_fence());
        self.locks[at].largest_fence = self.locks[at].largest_fence.max(fence);
    }

    /// The server restarts with its keys only.
    pub fn restart(&mut self) {
        let locks = self.locks.drain(..).map(|lock| Lock {
            data: lock.data,
            ..Lock::new(lock.db, lock.key)
        });
        let locks = locks.collect();
        let before = std::mem::replace(self, Self::new(self.now, locks, self.limits, self.now));
        self.last_request = before.last_request;
        (self.listened, self.has_listeners) = (before.listened, before.has_listeners);
    }

    /// One hour ahead of the clock.
    pub const fn highest_fence(&self) -> u64 {
        (self.now + 3_600_000) * 1000
    }

    pub fn event(&mut self, of: &'static str, what: &'static str) {
        self.events.push((of, what));
    }
}
