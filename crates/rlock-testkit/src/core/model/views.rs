//! Views of the locks: the most contended ones, and the gauges.

use rlock_core::Gauges;

use super::{Data, Lock, Model, Via, Waiting};
use crate::core::messages::Ask;

/// One line of the list of contended locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contended {
    pub key: String,
    pub waiters: u64,
    pub oldest_wait: u64,
}

impl Ask<'_> {
    pub const fn watches(&self) -> bool {
        let request = &self.request;
        request.channel.is_some()
            || request.options.bind.is_some()
            || request.extras.value.is_some()
    }
}

impl Waiting {
    pub const fn watches(&self) -> bool {
        self.via.is_channel() || self.wanted.grace.is_some() || self.wanted.extras.value.is_some()
    }
}

impl Data {
    pub const fn ends(&self) -> Option<u64> {
        match self {
            Self::Hash(hash) => hash.ends,
            Self::Absent | Self::Text => None,
        }
    }
}

impl Model {
    /// Places in queues, including kept ones.
    pub(super) fn places(&self) -> usize {
        self.requests.iter().map(|it| it.keys.len()).sum()
    }

    pub(super) fn places_kept(&self) -> usize {
        let kept = self.requests.iter().filter(|it| it.is_kept());
        kept.map(|it| it.keys.len()).sum()
    }

    /// The blocked calls, each with its connection.
    pub fn calls(&self) -> impl Iterator<Item = (u64, u64)> {
        self.requests.iter().filter_map(|it| match it.via {
            Via::Call { session, handle } => Some((session, handle)),
            Via::Channel { .. } | Via::Kept => None,
        })
    }

    /// The locks of a database with waiters, most contended first.
    pub fn most_contended(&self, db: u32) -> Vec<Contended> {
        let locks = self.locks.iter();
        let locks = locks.filter(|it| it.db == db && !it.queue.is_empty());
        let mut list: Vec<_> = locks
            .map(|lock| {
                let since = lock.queue.iter().map(|id| self.request(*id).since);
                Contended {
                    key: lock.key.to_owned(),
                    waiters: lock.queue.len() as u64,
                    oldest_wait: self.now - since.min().unwrap_or(self.now),
                }
            })
            .collect();
        list.sort_by_key(|it| u64::MAX - it.waiters);
        list
    }

    /// Holds with a channel, a binding or a value, counted from when they are
    /// queued. Each lock has at most one exclusive hold with a value.
    pub fn watches(&self) -> usize {
        let queued = self.requests.iter().filter(|it| it.watches());
        let queued: usize = queued.map(|it| it.keys.len()).sum();
        let held = |it: &Lock| it.watching.len().max(it.followed.iter().len());
        queued + self.locks.iter().map(held).sum::<usize>()
    }

    pub fn gauges(&self) -> Gauges {
        let contended = self.locks.iter().filter(|it| !it.queue.is_empty());
        let watching = self.locks.iter().flat_map(|it| &it.watching);
        Gauges {
            waiters: self.places() as u64,
            places_kept: self.places_kept() as u64,
            contended_locks: contended.count() as u64,
            watches: self.watches() as u64,
            bound_holds: watching.filter(|it| it.bind.is_some()).count() as u64,
            ..Gauges::default()
        }
    }
}
