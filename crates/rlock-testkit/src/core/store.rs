//! The part of the keyspace that locks need: hashes and strings with a TTL.
//!
//! A key is gone once the clock is past its deadline, as in Redis.

use std::{cell::OnceCell, collections::BTreeMap};

use rlock_core::{Name, Shared, Timestamp};

use crate::core::stored::Held;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Hash(BTreeMap<String, String>),
    Text(String),
}

#[derive(Clone, Debug)]
pub struct Stored {
    pub value: Value,
    pub ends_ms: Option<u64>,
    /// The parsed content, once it was parsed.
    pub read: OnceCell<Option<Held>>,
}

#[derive(Debug, Default)]
pub struct Store {
    pub keys: BTreeMap<(u32, Vec<u8>), Stored>,
    /// The holders of shared locks as they were last written.
    pub known: BTreeMap<(u32, Vec<u8>), Known>,
}

/// The holders of a shared lock, and what identifies them.
#[derive(Debug)]
pub struct Known {
    pub fields: usize,
    pub fence: Option<String>,
    pub shared: Shared,
}

impl Store {
    pub fn get(&self, now: Timestamp, name: Name<'_>) -> Option<&Stored> {
        let stored = self.keys.get(&(name.db, name.key.to_vec()))?;
        let gone = stored.ends_ms.is_some_and(|ends| now.millis() > ends);
        (!gone).then_some(stored)
    }

    /// The key for a change.
    pub fn get_mut(&mut self, now: Timestamp, name: Name<'_>) -> Option<&mut Stored> {
        self.get(now, name)?;
        let stored = self.keys.get_mut(&(name.db, name.key.to_vec()))?;
        stored.read.take();
        Some(stored)
    }

    /// The fields of a hash; none if the key holds anything else.
    pub fn fields(&self, now: Timestamp, name: Name<'_>) -> BTreeMap<String, String> {
        match self.get(now, name).map(|it| &it.value) {
            Some(Value::Hash(fields)) => fields.clone(),
            _ => BTreeMap::new(),
        }
    }

    pub fn put(&mut self, name: Name<'_>, value: Value, ends_ms: Option<u64>) {
        let key = (name.db, name.key.to_vec());
        let read = OnceCell::new();
        let stored = Stored {
            value,
            ends_ms,
            read,
        };
        self.keys.insert(key, stored);
    }

    /// Sets a field of a hash; the hash is created if the key does not exist.
    /// True if the field is new, `None` if the key is not a hash.
    pub fn set_field(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        field: &str,
        value: &str,
    ) -> Option<bool> {
        if self.get(now, name).is_none() {
            self.put(name, Value::Hash(BTreeMap::new()), None);
        }
        match &mut self.get_mut(now, name)?.value {
            Value::Hash(fields) => {
                Some(fields.insert(field.to_owned(), value.to_owned()).is_none())
            }
            Value::Text(_) => None,
        }
    }

    /// Removes a field; a hash without fields is deleted. True if the field
    /// existed, `None` if the key is not a hash.
    pub fn delete_field(&mut self, now: Timestamp, name: Name<'_>, field: &str) -> Option<bool> {
        let Some(stored) = self.get_mut(now, name) else {
            return Some(false);
        };
        let Value::Hash(fields) = &mut stored.value else {
            return None;
        };
        let was_there = fields.remove(field).is_some();
        if fields.is_empty() {
            self.delete(now, name);
        }
        Some(was_there)
    }

    pub fn delete(&mut self, now: Timestamp, name: Name<'_>) -> bool {
        let there = self.get(now, name).is_some();
        self.keys.remove(&(name.db, name.key.to_vec()));
        there
    }

    pub fn rename(&mut self, now: Timestamp, from: Name<'_>, to: Name<'_>) -> bool {
        let Some(stored) = self.get(now, from).cloned() else {
            return false;
        };
        self.keys.remove(&(from.db, from.key.to_vec()));
        self.keys.insert((to.db, to.key.to_vec()), stored);
        self.known.clear();
        true
    }

    pub fn flush(&mut self, db: Option<u32>) {
        self.keys
            .retain(|(of, _), _| db.is_some_and(|db| db != *of));
        self.known.clear();
    }
}
