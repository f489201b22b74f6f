//! The holders of shared locks, as they were written last.
//!
//! A shared lock with many holders is not looked through for each command. Its
//! holders are kept here, ordered, and are believed as long as the hash has as
//! many fields and the largest fence that it had then (every grant changes the
//! fence) and as what it says of those who are decided upon is what is here.
//! All of it can be read from the key at any time, so nothing is lost when it
//! is dropped.

use std::collections::{BTreeSet, HashMap};

use rlock_core::{Fence, Name, Shared, Timestamp};

/// Locks with fewer holders than this are looked through.
const HOLDERS_MIN: usize = 2;
/// How many ended entries one call drops.
const DROPPED_MAX: usize = 256;

/// What a shared lock is recognised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) fields: usize,
    pub(crate) fence: Option<Fence>,
}

struct Entry {
    stamp: Stamp,
    shared: Shared,
    ends: Timestamp,
}

/// What is known of shared locks.
#[derive(Default)]
pub(crate) struct Known {
    locks: HashMap<u32, HashMap<Box<[u8]>, Entry>>,
    ends: BTreeSet<(Timestamp, u32, Box<[u8]>)>,
}

impl Known {
    /// Takes the holders of a lock out, if they are still what they were.
    pub(crate) fn take(&mut self, name: Name<'_>, stamp: Stamp) -> Option<Shared> {
        let entry = self.remove(name)?;
        (entry.stamp == stamp).then_some(entry.shared)
    }

    /// Looks at the holders of a lock, if they are still what they were.
    pub(crate) fn look(&self, name: Name<'_>, stamp: Stamp) -> Option<&Shared> {
        let entry = self.locks.get(&name.db)?.get(name.key)?;
        (entry.stamp == stamp).then_some(&entry.shared)
    }

    /// Keeps the holders of a lock, if they are worth it.
    pub(crate) fn keep(&mut self, name: Name<'_>, stamp: Stamp, mut shared: Shared) {
        let Some(ends) = shared.last_end() else {
            return;
        };
        if shared.len() < HOLDERS_MIN {
            return;
        }
        shared.remember();
        let entry = Entry {
            stamp,
            shared,
            ends,
        };
        self.ends.insert((ends, name.db, name.key.into()));
        let locks = self.locks.entry(name.db).or_default();
        locks.insert(name.key.into(), entry);
    }

    /// Forgets a lock, so that it is looked through.
    pub(crate) fn forget(&mut self, name: Name<'_>) {
        self.remove(name);
    }

    /// Forgets everything: the keys may have changed places.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets locks all of whose leases have ended, a piece of them.
    pub(crate) fn drop_ended(&mut self, now: Timestamp) {
        for _ in 0..DROPPED_MAX {
            let first = self.ends.first().filter(|it| it.0.has_passed(now));
            let Some((_, db, key)) = first.cloned() else {
                return;
            };
            self.remove(Name { db, key: &key });
        }
    }

    fn remove(&mut self, name: Name<'_>) -> Option<Entry> {
        let locks = self.locks.get_mut(&name.db)?;
        let (key, entry) = locks.remove_entry(name.key)?;
        self.ends.remove(&(entry.ends, name.db, key));
        if locks.is_empty() {
            self.locks.remove(&name.db);
        }
        Some(entry)
    }
}
