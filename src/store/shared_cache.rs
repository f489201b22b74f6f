//! The holders of shared locks, as they were written last.
//!
//! A shared lock with many holders is not looked through for each command. Its
//! holders are kept here, ordered, and are believed as long as the hash has as
//! many fields and the largest fence that it had then (every grant changes the
//! fence) and as what it says of those who are decided upon is what is here.
//! All of it can be read from the key at any time, so nothing is lost when it
//! is dropped: with its key, when its leases have ended, or when there is too
//! much of it.
//!
//! Ordered maps, as they never stop to copy themselves; and what is forgotten
//! all at once is freed by and by.

use std::collections::{BTreeMap, BTreeSet};

use rlock_core::{Fence, Name, Shared, Timestamp};

/// Locks with fewer holders than this are looked through.
const HOLDERS_MIN: usize = 2;
/// The most holders that are kept, of all locks together; each takes about 250
/// bytes.
const HOLDERS_MAX: usize = 1 << 18;
/// How many locks one call drops.
const DROPPED_MAX: usize = 256;

/// What a shared lock is recognised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) fields: usize,
    pub(crate) fence: Option<Fence>,
}

struct Entry {
    stamp: Stamp,
    /// The holders; taken out while a command is about the lock.
    shared: Option<Shared>,
    holders: usize,
    ends: Timestamp,
}

type Locks = BTreeMap<Box<[u8]>, Entry>;
type Ends = BTreeSet<(Timestamp, u32, Box<[u8]>)>;

/// What is known of shared locks.
#[derive(Default)]
pub(crate) struct Known {
    locks: BTreeMap<u32, Locks>,
    ends: Ends,
    holders: usize,
    /// What has been forgotten, and is still to be freed.
    forgotten: Vec<(Locks, Ends)>,
}

impl Known {
    /// Whether there is nothing that a key event could concern.
    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Takes the holders of a lock out, if they are still what they were.
    pub(crate) fn take(&mut self, name: Name<'_>, stamp: Stamp) -> Option<Shared> {
        let entry = self.locks.get_mut(&name.db)?.get_mut(name.key)?;
        entry.shared.take().filter(|_| entry.stamp == stamp)
    }

    /// Looks at the holders of a lock, if they are still what they were.
    pub(crate) fn look(&self, name: Name<'_>, stamp: Stamp) -> Option<&Shared> {
        let entry = self.locks.get(&name.db)?.get(name.key)?;
        entry.shared.as_ref().filter(|_| entry.stamp == stamp)
    }

    /// Keeps the holders of a lock, if they are worth it.
    pub(crate) fn keep(&mut self, name: Name<'_>, stamp: Stamp, mut shared: Shared) {
        let holders = shared.len();
        let Some(ends) = shared.last_end().filter(|_| holders >= HOLDERS_MIN) else {
            return self.forget(name);
        };
        shared.remember();
        let entry = Entry {
            stamp,
            shared: Some(shared),
            holders,
            ends,
        };
        let locks = self.locks.entry(name.db).or_default();
        if let Some(known) = locks.get_mut(name.key).filter(|it| it.ends == ends) {
            self.holders = self.holders - known.holders + holders;
            *known = entry;
        } else {
            self.forget(name);
            self.holders += holders;
            self.ends.insert((ends, name.db, name.key.into()));
            let locks = self.locks.entry(name.db).or_default();
            locks.insert(name.key.into(), entry);
        }
        self.make_room();
    }

    /// Forgets a lock, so that it is looked through.
    pub(crate) fn forget(&mut self, name: Name<'_>) {
        let Some(locks) = self.locks.get_mut(&name.db) else {
            return;
        };
        if let Some((key, entry)) = locks.remove_entry(name.key) {
            self.holders -= entry.holders;
            self.ends.remove(&(entry.ends, name.db, key));
        }
        if locks.is_empty() {
            self.locks.remove(&name.db);
        }
    }

    /// Forgets everything: the keys may have changed places.
    pub(crate) fn clear(&mut self) {
        let mut ends = std::mem::take(&mut self.ends);
        for (_, locks) in std::mem::take(&mut self.locks) {
            self.forgotten.push((locks, std::mem::take(&mut ends)));
        }
        self.holders = 0;
    }

    /// Forgets locks all of whose leases have ended, and frees what has been
    /// forgotten, a piece of both.
    pub(crate) fn drop_ended(&mut self, now: Timestamp) {
        for _ in 0..DROPPED_MAX {
            if let Some((locks, ends)) = self.forgotten.last_mut() {
                let freed = (locks.pop_first(), ends.pop_first());
                if matches!(freed, (None, None)) {
                    self.forgotten.pop();
                }
                continue;
            }
            let first = self.ends.first().filter(|it| it.0.has_passed(now));
            let Some((_, db, key)) = first.cloned() else {
                return;
            };
            self.forget(Name { db, key: &key });
        }
    }

    /// Forgets locks that end first while there is too much, a piece of them. A
    /// lock that is too large by itself is not kept.
    fn make_room(&mut self) {
        for _ in 0..DROPPED_MAX {
            let first = self.ends.first().filter(|_| self.holders > HOLDERS_MAX);
            let Some((_, db, key)) = first.cloned() else {
                return;
            };
            self.forget(Name { db, key: &key });
        }
    }
}
