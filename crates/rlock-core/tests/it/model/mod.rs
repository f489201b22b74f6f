//! The contract of the locks once more, as simply as it can be said.
//!
//! Written from the contract alone, and meant to be read beside it: everything
//! is a plain list and is searched from its start, nothing is kept that can be
//! worked out anew, time is a number of milliseconds, and a grant has a running
//! number where the server has a fence. Fast it is not.

mod acquire;
mod bind;
mod deadlock;
mod grant;
mod hash;
mod many;
mod queue;
mod release;
mod settle;
mod tell;
mod turn;
mod upgrade;
mod views;

pub(crate) use hash::{Data, Hash, HashMode, Holder};
use rlock_core::Counters;
pub(crate) use views::Contended;

use crate::told::{Ask, Mode, Told, Via};

/// A request that waits in the queue of each of its keys.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) owner: String,
    pub(crate) keys: Vec<usize>,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) once: bool,
    pub(crate) lease: u64,
    pub(crate) since: u64,
    pub(crate) ends: Option<u64>,
    pub(crate) via: Via,
    pub(crate) grace: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    One,
    /// It held the lock in shared mode as it asked for more.
    Upgrade,
    /// It asked for several keys, be it one alone.
    Many,
}

/// A hold whose end somebody wants to be told of, or that a connection's end
/// cuts.
#[derive(Clone, Debug)]
pub(crate) struct Watching {
    pub(crate) owner: String,
    pub(crate) grant: u64,
    /// Connection and channel.
    pub(crate) channel: Option<(u64, String)>,
    pub(crate) bind: Option<Bind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) session: u64,
    pub(crate) grace: u64,
    /// When the connection was closed, once it was.
    pub(crate) closed: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) db: u32,
    pub(crate) key: &'static str,
    pub(crate) data: Data,
    /// Numbers of requests, first the one that is next.
    pub(crate) queue: Vec<u64>,
    pub(crate) watching: Vec<Watching>,
    /// The first end of a lease as this server last saw it, while somebody
    /// waits or watches: what counts a lease end is that it was seen.
    pub(crate) seen_end: Option<u64>,
    /// Whether those who only listen are to be told if nobody takes it.
    pub(crate) owes_message: bool,
    /// Whether it has to be settled before the command is over.
    pub(crate) touched: bool,
    /// Hand-offs since somebody else had a chance.
    pub(crate) in_a_row: u64,
    /// Until when the queue waits for a taker from elsewhere.
    pub(crate) yields_until: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) now: u64,
    pub(crate) locks: Vec<Lock>,
    pub(crate) requests: Vec<Waiting>,
    pub(crate) listened: Vec<String>,
    /// Whether somebody listens on the unlock channels.
    pub(crate) overheard: bool,
    pub(crate) counters: Counters,
    pub(crate) told: Vec<Told<u64>>,
    /// The keys that went to requests for several since somebody looked.
    pub(crate) given_together: Vec<&'static str>,
    pub(crate) limits: Limits,
    /// Before this nothing is granted.
    pub(crate) grants_from: u64,
    pub(crate) last_grant: u64,
    pub(crate) last_request: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) waiters_max: usize,
    pub(crate) watches_max: usize,
    pub(crate) detects_deadlocks: bool,
    pub(crate) yield_after: u64,
}

impl Lock {
    pub(crate) fn new(db: u32, key: &'static str) -> Self {
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
        }
    }

    pub(crate) fn is_contended(&self) -> bool {
        !self.queue.is_empty() || !self.watching.is_empty()
    }
}

impl Model {
    pub(crate) fn new(now: u64, locks: Vec<Lock>, limits: Limits, grants_from: u64) -> Self {
        Self {
            now,
            locks,
            requests: Vec::new(),
            listened: Vec::new(),
            overheard: true,
            counters: Counters::default(),
            told: Vec::new(),
            given_together: Vec::new(),
            limits,
            grants_from,
            last_grant: 0,
            last_request: 0,
        }
    }

    pub(crate) fn request(&self, id: u64) -> &Waiting {
        let found = self.requests.iter().find(|it| it.id == id);
        found.expect("who is in a queue has asked")
    }

    /// The request by which the owner waits for the key.
    pub(crate) fn place(&self, at: usize, owner: &str) -> Option<&Waiting> {
        let mut waiting = self.requests.iter();
        waiting.find(|it| it.owner == owner && it.keys.contains(&at))
    }

    pub(crate) fn next_grant(&mut self) -> u64 {
        self.last_grant += 1;
        self.last_grant
    }

    pub(crate) fn waits_to(&self, ask: &Ask<'_>) -> Option<u64> {
        match ask.wait {
            rlock_core::Wait::Millis(wait) => Some(self.now + wait),
            rlock_core::Wait::Forever | rlock_core::Wait::No => None,
        }
    }
}
