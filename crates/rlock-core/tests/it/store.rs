//! The keyspace, as far as locks are concerned: hashes and texts with a TTL.
//!
//! A key is gone once the clock is past its deadline, as in Redis.

use std::collections::BTreeMap;

use rlock_core::{Fence, Hold, Name, Timestamp, Who};

const FENCE: &str = "rlock:fence";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Hash(BTreeMap<String, String>),
    Text(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) value: Value,
    pub(crate) ends_ms: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    keys: BTreeMap<(u32, Vec<u8>), Stored>,
}

impl Store {
    pub(crate) fn get(&self, now: Timestamp, name: Name<'_>) -> Option<&Stored> {
        let stored = self.keys.get(&(name.db, name.key.to_vec()))?;
        let gone = stored.ends_ms.is_some_and(|ends| now.millis() > ends);
        (!gone).then_some(stored)
    }

    pub(crate) fn get_mut(&mut self, now: Timestamp, name: Name<'_>) -> Option<&mut Stored> {
        self.get(now, name)?;
        self.keys.get_mut(&(name.db, name.key.to_vec()))
    }

    /// The hold as `owner` sees it.
    pub(crate) fn load(&self, now: Timestamp, name: Name<'_>, owner: Option<&str>) -> Hold {
        let Some(stored) = self.get(now, name) else {
            return Hold::Free;
        };
        let (Value::Hash(fields), Some(ends_ms)) = (&stored.value, stored.ends_ms) else {
            return Hold::NoLock;
        };
        let mut owners = fields.iter().filter(|(key, _)| !key.starts_with("rlock:"));
        let (Some((holder, count)), None) = (owners.next(), owners.next()) else {
            return Hold::NoLock;
        };
        let who = if owner == Some(holder) {
            match decimal(count).and_then(|count| u32::try_from(count).ok()) {
                Some(count @ 1..) => Who::Caller { count },
                _ => return Hold::NoLock,
            }
        } else {
            Who::Other
        };
        let fence = fields.get(FENCE).and_then(|text| decimal(text));
        Hold::Exclusive {
            who,
            fence: fence.and_then(Fence::from_stored),
            deadline: Timestamp::from_millis(ends_ms),
        }
    }

    /// Writes down what a command has made of the hold.
    pub(crate) fn save(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        owner: Option<&str>,
        before: &Hold,
        after: &Hold,
    ) {
        if before == after {
            return;
        }
        let Hold::Exclusive {
            who,
            fence,
            deadline,
        } = after
        else {
            assert_ne!(*before, Hold::NoLock, "what is no lock is never deleted");
            self.delete(now, name);
            return;
        };
        let mut fields = BTreeMap::new();
        match (who, owner) {
            (Who::Waiter(waiter), _) => {
                let waiter = String::from_utf8_lossy(waiter).into_owned();
                fields.insert(waiter, "1".to_owned());
            }
            (Who::Caller { count }, Some(owner)) => {
                fields.insert(owner.to_owned(), count.to_string());
            }
            _ => unreachable!("a command changes no hold but the caller's"),
        }
        if let Some(fence) = fence {
            fields.insert(FENCE.to_owned(), fence.to_string());
        }
        self.put(name, Value::Hash(fields), Some(deadline.millis()));
    }

    pub(crate) fn put(&mut self, name: Name<'_>, value: Value, ends_ms: Option<u64>) {
        let key = (name.db, name.key.to_vec());
        self.keys.insert(key, Stored { value, ends_ms });
    }

    /// Sets a field of a hash, which is made if there is no such key. True if
    /// the field is new, `None` if the key holds something else.
    pub(crate) fn set_field(
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

    pub(crate) fn delete(&mut self, now: Timestamp, name: Name<'_>) -> bool {
        let there = self.get(now, name).is_some();
        self.keys.remove(&(name.db, name.key.to_vec()));
        there
    }

    pub(crate) fn rename(&mut self, now: Timestamp, from: Name<'_>, to: Name<'_>) -> bool {
        let Some(stored) = self.get(now, from).cloned() else {
            return false;
        };
        self.keys.remove(&(from.db, from.key.to_vec()));
        self.keys.insert((to.db, to.key.to_vec()), stored);
        true
    }

    pub(crate) fn flush(&mut self, db: Option<u32>) {
        self.keys
            .retain(|(of, _), _| db.is_some_and(|db| db != *of));
    }
}

/// A number as Redis writes it: no sign, no leading zero.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = text == "0" || !text.starts_with('0');
    (digits && plain).then(|| text.parse().ok())?
}
