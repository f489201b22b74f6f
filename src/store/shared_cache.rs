//! A cache of the holders of shared locks, as last written.
//!
//! A shared lock with many holders is not scanned for each command. Its holders
//! are kept here, ordered. They are trusted while the hash has the same number
//! of fields and the same largest fence (every grant changes the fence), and
//! while the holders that matter are the same here and there. The key contains
//! all of it, so nothing is lost when an entry is dropped: with its key, when
//! its leases have ended, or when the cache is full. Grants do not fill the
//! cache, because they are refused before (`max-shared-holders`).
//!
//! Ordered maps never stop to copy themselves. Dropped entries are freed later,
//! unless they are small.

use std::collections::{BTreeMap, BTreeSet};

use rlock_core::{Fence, Name, Shared, Timestamp};

/// Locks with fewer holders than this are scanned each time.
const HOLDERS_MIN: usize = 2;
/// The smallest limit of cached holders, of all locks together; each takes
/// about 250 bytes.
const HOLDERS_KEPT: usize = 1 << 18;
/// How many locks one call drops.
const DROPPED_MAX: usize = 256;
/// The largest number of locks of a database, and of holders of a lock, that is
/// freed at once.
const FREED_AT_ONCE: usize = 64;
/// For each added holder, this many dropped ones are freed. So there are never
/// more of these than were added before.
const FREED_PER_ADDED: usize = 2;

/// How a shared lock is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) fields: usize,
    pub(crate) fence: Option<Fence>,
}

struct Entry {
    stamp: Stamp,
    /// The holders; taken out while a command handles the lock.
    shared: Option<Shared>,
    holders: usize,
    ends: Timestamp,
}

/// The known locks of one database.
#[derive(Default)]
struct Database {
    locks: BTreeMap<Box<[u8]>, Entry>,
    ends: BTreeSet<(Timestamp, Box<[u8]>)>,
    holders: usize,
}

/// The shared locks whose holders are cached.
#[derive(Default)]
pub(crate) struct SharedCache {
    databases: BTreeMap<u32, Database>,
    /// A lock whose key is being renamed.
    renamed: Option<Entry>,
    forgotten: Forgotten,
}

/// Dropped entries that are still to be freed.
#[derive(Default)]
struct Forgotten {
    databases: Vec<Database>,
    shared: Vec<Shared>,
}

impl SharedCache {
    /// Whether no key event can matter.
    pub(crate) fn is_empty(&self) -> bool {
        self.databases.is_empty()
    }

    /// How many shared holders are known.
    pub(crate) fn holders(&self) -> usize {
        self.databases.values().map(|it| it.holders).sum()
    }

    /// How many shared holders of all locks but one are known.
    pub(crate) fn holders_except(&self, name: Name<'_>) -> usize {
        let database = self.databases.get(&name.db);
        let entry = database.and_then(|it| it.locks.get(name.key));
        self.holders() - entry.map_or(0, |it| it.holders)
    }

    /// Takes out the holders of a lock, if the lock is unchanged and they are
    /// `right`.
    pub(crate) fn take(
        &mut self,
        name: Name<'_>,
        stamp: Stamp,
        right: impl FnOnce(&Shared) -> bool,
    ) -> Option<Shared> {
        let entry = self.databases.get_mut(&name.db)?.locks.get_mut(name.key)?;
        let shared = entry.shared.take()?;
        if entry.stamp == stamp && right(&shared) {
            return Some(shared);
        }
        self.forgotten.add(shared);
        None
    }

    /// Reads the holders of a lock, if the lock is unchanged.
    pub(crate) fn peek(&self, name: Name<'_>, stamp: Stamp) -> Option<&Shared> {
        let entry = self.databases.get(&name.db)?.locks.get(name.key)?;
        entry.shared.as_ref().filter(|_| entry.stamp == stamp)
    }

    /// Keeps the holders of a lock, if there are enough of them to matter, and
    /// at most `most` in all.
    pub(crate) fn keep(&mut self, name: Name<'_>, stamp: Stamp, mut shared: Shared, most: usize) {
        let holders = shared.len();
        let Some(ends) = shared.last_end().filter(|_| holders >= HOLDERS_MIN) else {
            self.forgotten.add(shared);
            return self.forget(name);
        };
        shared.remember();
        let entry = Entry {
            stamp,
            shared: Some(shared),
            holders,
            ends,
        };
        self.put(name, entry);
        self.make_room(most.max(HOLDERS_KEPT));
    }

    /// Keeps the holders of a lock that were read and not changed. What a scan has
    /// found is dropped: until the lock is settled, nobody knows who has ended.
    pub(crate) fn put_back(&mut self, name: Name<'_>, stamp: Stamp, shared: Shared, most: usize) {
        if shared.is_known() {
            return self.keep(name, stamp, shared, most);
        }
        self.forgotten.add(shared);
        self.forget(name);
    }

    fn put(&mut self, name: Name<'_>, entry: Entry) {
        let (ends, holders) = (entry.ends, entry.holders);
        let database = self.databases.entry(name.db).or_default();
        database.holders += holders;
        let mut added = holders;
        if let Some(known) = database.locks.get_mut(name.key) {
            let known = std::mem::replace(known, entry);
            database.holders -= known.holders;
            added = holders.saturating_sub(known.holders);
            if ends != known.ends {
                database.ends.remove(&(known.ends, name.key.into()));
                database.ends.insert((ends, name.key.into()));
            }
            self.forgotten.add_entry(known);
        } else {
            database.ends.insert((ends, name.key.into()));
            database.locks.insert(name.key.into(), entry);
        }
        self.forgotten.free(1 + FREED_PER_ADDED * added);
    }

    /// Drops a lock, so that it is scanned.
    pub(crate) fn forget(&mut self, name: Name<'_>) {
        if let Some(entry) = self.remove(name) {
            self.forgotten.add_entry(entry);
        }
    }

    fn remove(&mut self, name: Name<'_>) -> Option<Entry> {
        let database = self.databases.get_mut(&name.db)?;
        let (key, entry) = database.locks.remove_entry(name.key)?;
        database.holders -= entry.holders;
        database.ends.remove(&(entry.ends, key));
        if database.locks.is_empty() {
            self.databases.remove(&name.db);
        }
        Some(entry)
    }

    /// Records that a key is being renamed; the next call names the new key.
    pub(crate) fn rename_from(&mut self, name: Name<'_>) {
        let renamed = self.remove(name);
        if let Some(earlier) = std::mem::replace(&mut self.renamed, renamed) {
            self.forgotten.add_entry(earlier);
        }
    }

    /// The entry moves with its key, and stays trusted. The holders that the new key
    /// had have ended.
    pub(crate) fn rename_to(&mut self, name: Name<'_>) {
        match self.renamed.take() {
            Some(mut entry) => {
                if let Some(shared) = &mut entry.shared {
                    shared.doubt();
                }
                self.put(name, entry);
            }
            None => self.forget(name),
        }
    }

    /// Drops the locks of one or all databases, which may have other keys now.
    pub(crate) fn clear(&mut self, db: Option<u32>) {
        let databases = match db {
            Some(db) => BTreeMap::from_iter(self.databases.remove_entry(&db)),
            None => std::mem::take(&mut self.databases),
        };
        for (_, database) in databases {
            self.forgotten.add_database(database);
        }
    }

    /// Drops locks whose leases have all ended, and frees dropped entries, a
    /// piece of both. Returns whether there may be more.
    pub(crate) fn drop_ended(&mut self, now: Timestamp) -> bool {
        self.forgotten.free(DROPPED_MAX);
        for _ in 0..DROPPED_MAX {
            let Some((_, db, key)) = self.first_end().filter(|it| it.0.has_passed(now)) else {
                return !self.forgotten.is_empty();
            };
            self.forget(Name { db, key: &key });
        }
        true
    }

    /// Drops the locks that end first while there are more holders than `most`,
    /// a piece of them. A lock that is too large by itself is not kept.
    fn make_room(&mut self, most: usize) {
        for _ in 0..DROPPED_MAX {
            if self.holders() <= most {
                return;
            }
            let Some((_, db, key)) = self.first_end() else {
                return;
            };
            self.forget(Name { db, key: &key });
        }
    }

    /// The lock whose last lease ends first.
    fn first_end(&self) -> Option<(Timestamp, u32, Box<[u8]>)> {
        let first_ends = self.databases.iter();
        let first_ends = first_ends.filter_map(|(db, it)| Some((it.ends.first()?, *db)));
        let ((end, key), db) = first_ends.min()?;
        Some((*end, db, key.clone()))
    }
}

impl Forgotten {
    const fn is_empty(&self) -> bool {
        self.databases.is_empty() && self.shared.is_empty()
    }

    fn add(&mut self, shared: Shared) {
        if shared.len() > FREED_AT_ONCE {
            self.shared.push(shared);
        }
    }

    fn add_entry(&mut self, entry: Entry) {
        if let Some(shared) = entry.shared {
            self.add(shared);
        }
    }

    fn add_database(&mut self, database: Database) {
        if database.locks.len() > FREED_AT_ONCE {
            return self.databases.push(database);
        }
        for entry in database.locks.into_values() {
            self.add_entry(entry);
        }
    }

    /// Frees this number of locks and holders.
    fn free(&mut self, most: usize) {
        let mut left = most;
        while left > 0 {
            if let Some(shared) = self.shared.last_mut() {
                left -= shared.drop_some(left).clamp(1, left);
                if shared.is_empty() {
                    self.shared.pop();
                }
            } else if let Some(database) = self.databases.last_mut() {
                database.ends.pop_first();
                match database.locks.pop_first() {
                    Some((_, entry)) => self.add_entry(entry),
                    None => drop(self.databases.pop()),
                }
                left -= 1;
            } else {
                return;
            }
        }
    }
}
