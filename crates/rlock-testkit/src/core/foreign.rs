//! Changes of keys by other clients, made separately in the driver's keyspace and in the naive model.

use rlock_core::{Extra, Extras, Name, codec};

use crate::core::{
    driver::Driver,
    model::{Data, Hash, HashMode, Holder, Model},
    operation::{Foreign, KEYS, OWNERS, SETS},
    store::Value,
};

pub fn name(key: usize) -> Name<'static> {
    let (db, key) = KEYS[key];
    let key = key.as_bytes();
    Name { db, key }
}

/// The keys of a set.
pub fn names(set: usize) -> Vec<Name<'static>> {
    SETS[set].iter().map(|key| name(*key)).collect()
}

impl Driver {
    /// Changes a key without the module; the server's key event settles the lock later.
    pub fn change(&mut self, change: Foreign) {
        let now = self.now;
        match change {
            Foreign::Del { key } => {
                self.store.delete(now, name(key));
            }
            Foreign::Pexpire { key, ms } => {
                let stored = self.store.get_mut(now, name(key));
                // The expiry of a text has its own event, which means nothing for
                // a lock.
                if let Some(stored) = stored.filter(|it| matches!(it.value, Value::Hash(_))) {
                    stored.ends_ms = Some(now.millis() + u64::from(ms));
                }
            }
            Foreign::Persist { key } => {
                if let Some(stored) = self.store.get_mut(now, name(key)) {
                    stored.ends_ms = None;
                }
            }
            Foreign::Set { key } => {
                let value = Value::Text("hello".to_owned());
                self.store.put(name(key), value, None);
            }
            Foreign::Take { key, owner, ms } => {
                if self.store.get(now, name(key)).is_none() {
                    self.store.set_field(now, name(key), OWNERS[owner], "1");
                    if let Some(stored) = self.store.get_mut(now, name(key)) {
                        stored.ends_ms = Some(now.millis() + u64::from(ms));
                    }
                }
            }
            Foreign::DropCount { key, owner } => {
                self.store.delete_field(now, name(key), OWNERS[owner]);
            }
            Foreign::Rename { from } => {
                self.store.rename(now, name(from), name(1 - from));
                self.locks.settle_later(name(1 - from));
            }
            Foreign::FarFence { key, ahead_ms } => {
                let fence = far_fence(now.millis(), ahead_ms).to_string();
                self.store.set_field(now, name(key), codec::FENCE, &fence);
            }
            Foreign::Value { key, value } => {
                let (name, field) = (name(key), Extra::Value.field());
                // The number of fields identifies shared holders, so this and a
                // removed count would hide each other.
                self.store.known.clear();
                match value {
                    Some(value) => drop(self.store.set_field(now, name, field, value)),
                    None => drop(self.store.delete_field(now, name, field)),
                }
            }
            Foreign::Flush { db } => {
                self.store.flush(db);
                self.locks.settle_all_later(db);
            }
        }
        if let Some(key) = change.key() {
            self.locks.settle_later(name(key));
        }
    }
}

impl Foreign {
    const fn key(self) -> Option<usize> {
        match self {
            Self::Del { key }
            | Self::Pexpire { key, .. }
            | Self::Persist { key }
            | Self::Set { key }
            | Self::Take { key, .. }
            | Self::DropCount { key, .. }
            | Self::Rename { from: key }
            | Self::FarFence { key, .. }
            | Self::Value { key, .. } => Some(key),
            Self::Flush { .. } => None,
        }
    }
}

impl Model {
    pub fn change(&mut self, change: Foreign) {
        for at in 0..self.locks.len() {
            self.expire_key(at);
        }
        let now = self.now;
        match change {
            Foreign::Del { key } => self.locks[key].data = Data::Absent,
            Foreign::Pexpire { key, ms } => {
                if let Data::Hash(hash) = &mut self.locks[key].data {
                    hash.ends = Some(now + u64::from(ms));
                }
            }
            Foreign::Persist { key } => {
                if let Data::Hash(hash) = &mut self.locks[key].data {
                    hash.ends = None;
                }
            }
            Foreign::Set { key } => self.locks[key].data = Data::Text,
            Foreign::Take { key, owner, ms } => {
                if self.locks[key].data == Data::Absent {
                    self.locks[key].data = taken(OWNERS[owner], now + u64::from(ms));
                }
            }
            Foreign::DropCount { key, owner } => {
                let data = &mut self.locks[key].data;
                if let Data::Hash(hash) = data {
                    hash.holders.retain(|it| it.owner != OWNERS[owner]);
                    data.remove_if_empty();
                }
            }
            Foreign::Rename { from } => {
                if self.locks[from].data != Data::Absent {
                    let data = std::mem::replace(&mut self.locks[from].data, Data::Absent);
                    self.locks[1 - from].data = data;
                }
            }
            Foreign::FarFence { key, ahead_ms } => {
                self.locks[key].data.set_far_fence(far_fence(now, ahead_ms));
            }
            Foreign::Value { key, value } => {
                let data = &mut self.locks[key].data;
                if value.is_some() {
                    data.be_a_key();
                }
                if let Data::Hash(hash) = data {
                    hash.extras.value = value;
                    data.remove_if_empty();
                }
            }
            Foreign::Flush { db } => {
                for lock in &mut self.locks {
                    if db.is_none_or(|db| db == lock.db) {
                        lock.data = Data::Absent;
                    }
                }
            }
        }
    }
}

/// A fence that another client writes: ahead of the clock by an odd number, so that it cannot be a granted fence.
pub fn far_fence(now: u64, ahead_ms: u32) -> u64 {
    (now + u64::from(ahead_ms)) * 1000 + 789
}

impl Data {
    /// A field is written: the key becomes a hash if it did not exist.
    fn be_a_key(&mut self) {
        if *self == Self::Absent {
            *self = Self::Hash(Hash {
                mode: HashMode::Exclusive,
                holders: Vec::new(),
                fence: None,
                extras: Extras::NONE,
                ends: None,
            });
        }
    }

    /// A hash without fields is not a key.
    fn remove_if_empty(&mut self) {
        if let Self::Hash(hash) = self
            && hash.mode == HashMode::Exclusive
            && (hash.fence, hash.extras) == (None, Extras::NONE)
            && hash.holders.is_empty()
        {
            *self = Self::Absent;
        }
    }

    fn set_far_fence(&mut self, fence: u64) {
        self.be_a_key();
        if let Self::Hash(hash) = self {
            hash.fence = Some(fence);
            if hash.mode == HashMode::Exclusive {
                // The key's fence is also the hold's fence.
                for holder in &mut hash.holders {
                    holder.fence = hash.fence;
                }
            }
        }
    }
}

/// A lock as Redisson takes it.
fn taken(owner: &str, ends: u64) -> Data {
    Data::Hash(Hash {
        mode: HashMode::Exclusive,
        holders: vec![Holder {
            owner: owner.to_owned(),
            count: 1,
            permits: 1,
            fence: None,
            ends,
        }],
        fence: None,
        extras: Extras::NONE,
        ends: Some(ends),
    })
}
