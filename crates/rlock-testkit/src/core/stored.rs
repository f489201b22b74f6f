//! The hold in the keyspace: a hash with a TTL, read and written as by a server's shell.

use std::{collections::BTreeMap, ops::ControlFlow};

use rlock_core::{
    Extra, Extras, Fence, Hold, Holder, Holders, Name, Shared, Timestamp, VisitHolder, Who,
    codec::{self, Orphan, SharedHolders, SoleHolder},
};

use crate::core::{
    driver::text,
    store::{Known, Store, Stored, Value},
};

/// The content of a hash, for any owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub shared: bool,
    pub fence: Option<Fence>,
    /// The key's own end.
    pub ends: Timestamp,
    /// Each holder with the written end of its lease.
    pub holders: BTreeMap<String, Holder>,
    /// What an exclusive holder has beside that.
    pub extras: Extras,
}

impl Held {
    /// The owner's hold, if its lease is not over.
    pub fn live(&self, now: Timestamp, owner: &str) -> Option<Holder> {
        let cut = self.cut(self.holders.get(owner)?);
        (!cut.deadline.has_passed(now)).then_some(cut)
    }

    fn cut(&self, it: &Holder) -> Holder {
        Holder {
            deadline: it.deadline.min(self.ends),
            ..*it
        }
    }

    /// The holders whose leases are not over, each until its own end or the
    /// key's.
    pub fn live_holders(&self, now: Timestamp) -> impl Iterator<Item = (&String, Holder)> {
        let all = self.holders.iter();
        let all = all.map(|(owner, it)| (owner, self.cut(it)));
        all.filter(move |it| !it.1.deadline.has_passed(now))
    }
}

impl Stored {
    /// `None` if the key is not a lock.
    pub fn held(&self) -> Option<&Held> {
        self.read.get_or_init(|| read(self)).as_ref()
    }
}

fn read(stored: &Stored) -> Option<Held> {
    let (Value::Hash(fields), Some(ends_ms)) = (&stored.value, stored.ends_ms) else {
        return None;
    };
    let ends = Timestamp::from_millis(ends_ms);
    let fence = fields.get(codec::FENCE);
    let fence = fence.and_then(|value| codec::fence(value.as_bytes()));
    let shared = match fields.get(codec::MODE).map(String::as_str) {
        None => false,
        Some(codec::SHARED) => true,
        Some(_) => return None,
    };
    let mut all = fields.iter().map(|it| (it.0.as_bytes(), it.1.as_bytes()));
    let mut extras = Extras::NONE;
    let holders = if shared {
        let mut holders = SharedHolders::of(fields.len());
        let _ = all.try_for_each(|(name, value)| holders.add(name, value));
        holders.found(ends, |_| {})?
    } else {
        let mut sole = SoleHolder::default();
        let _ = all.try_for_each(|(name, value)| sole.add(name, value));
        let found = sole.found()?;
        extras = found.extras;
        let holder = Holder::new(fence, ends);
        let count = found.count;
        vec![(found.owner, Holder { count, ..holder })]
    };
    let holders = holders.into_iter().map(|(owner, it)| (text(&owner), it));
    Some(Held {
        shared,
        fence,
        ends,
        holders: holders.collect(),
        extras,
    })
}

impl Store {
    /// The hold as `owner` sees it.
    pub fn load(&mut self, now: Timestamp, name: Name<'_>, owner: Option<&str>) -> Hold {
        let known = self.known(now, name);
        let held = self.get(now, name).and_then(Stored::held);
        match (held.filter(|held| held.shared), known) {
            (Some(held), Some(mut known)) => {
                known.cut_to(held.ends);
                Hold::Shared(known)
            }
            _ => self.peek(now, name, owner),
        }
    }

    /// The hold as `owner` sees it, without caching anything.
    pub fn peek(&self, now: Timestamp, name: Name<'_>, owner: Option<&str>) -> Hold {
        let Some(stored) = self.get(now, name) else {
            return Hold::Free;
        };
        let Some(held) = stored.held() else {
            return Hold::NoLock;
        };
        if held.shared {
            let holders = held.holders.iter();
            let holders = holders.map(|(owner, it)| (owner.as_bytes().into(), *it));
            let mut shared = Shared::stored(holders, held.fence);
            shared.cut_to(held.ends);
            return Hold::Shared(shared);
        }
        let count = owner.and_then(|owner| held.holders.get(owner));
        Hold::Exclusive {
            who: count.map_or(Who::Other, |_| Who::Caller),
            holder: Holder {
                count: count.map_or(1, |it| it.count),
                ..Holder::new(held.fence, held.ends)
            },
            extras: held.extras.clone(),
        }
    }

    /// The hash of the module that a key holds, although it is no lock.
    pub fn orphan(&self, now: Timestamp, name: Name<'_>) -> Option<Orphan> {
        let stored = self.get(now, name).filter(|it| it.held().is_none())?;
        let Value::Hash(fields) = &stored.value else {
            return None;
        };
        let mut orphan = Orphan::default();
        fields
            .iter()
            .for_each(|(name, value)| orphan.add(name.as_bytes(), value.as_bytes()));
        orphan.found()
    }

    /// When the first key that is not a lock expires. An event reports this; no
    /// event reports the end of a lease.
    pub fn next_expiry_of_others(&self) -> Option<Timestamp> {
        let others = self.keys.values().filter(|it| it.held().is_none());
        let ends = others.filter_map(|it| it.ends_ms).min()?;
        Some(Timestamp::from_millis(ends + 1))
    }

    /// Removes keys past their end, and names them.
    pub fn expire_others(&mut self, now: Timestamp) -> Vec<(u32, Vec<u8>)> {
        let over = |it: &Stored| it.ends_ms.is_some_and(|ends| ends < now.millis());
        let gone = |it: &Stored| over(it) && it.held().is_none();
        let expired = self.keys.iter().filter(|it| gone(it.1));
        let expired: Vec<_> = expired.map(|it| it.0.clone()).collect();
        self.keys.retain(|_, it| !gone(it));
        expired
    }

    /// The remembered holders of a shared lock, if the hash still contains them.
    fn known(&mut self, now: Timestamp, name: Name<'_>) -> Option<Shared> {
        let known = self.known.remove(&(name.db, name.key.to_vec()))?;
        let fields = self.fields(now, name);
        let same = fields.len() == known.fields && fields.get(codec::FENCE) == known.fence.as_ref();
        same.then_some(known.shared)
    }

    /// Writes a command's changes of the hold.
    pub fn save(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        owner: Option<&str>,
        before: &Hold,
        after: Hold,
    ) {
        match after {
            Hold::NoLock => assert_eq!(*before, Hold::NoLock, "a command leaves no other data"),
            Hold::Free => {
                assert_ne!(*before, Hold::NoLock, "other data is never deleted");
                self.delete(now, name);
            }
            Hold::Exclusive {
                who,
                holder,
                extras,
            } => {
                let who = match (&who, owner) {
                    (Who::Waiter(owner), _) => String::from_utf8_lossy(owner),
                    (Who::Caller, Some(owner)) => owner.into(),
                    _ => {
                        let same = matches!(before, Hold::Exclusive { .. });
                        assert!(same, "no other owner gets a hold");
                        return;
                    }
                };
                let mut fields = BTreeMap::from([(who.into_owned(), holder.count.to_string())]);
                fields.extend(
                    holder
                        .fence
                        .map(|fence| (codec::FENCE.to_owned(), fence.to_string())),
                );
                let stored = |it: Extra| Some((it.field().to_owned(), text(&extras.get(it)?)));
                fields.extend(Extra::ALL.into_iter().filter_map(stored));
                self.put(name, Value::Hash(fields), Some(holder.deadline.millis()));
            }
            Hold::Shared(shared) => self.save_shared(now, name, before, shared),
        }
    }

    fn save_shared(&mut self, now: Timestamp, name: Name<'_>, before: &Hold, mut shared: Shared) {
        let mut fields = match before {
            // The previous holder has left, and the lock was free in between.
            Hold::Shared(_) if !shared.is_new() => self.fields(now, name),
            _ => BTreeMap::new(),
        };
        fields.insert(codec::MODE.to_owned(), codec::SHARED.to_owned());
        if let Some(fence) = shared.fence() {
            fields.insert(codec::FENCE.to_owned(), fence.to_string());
        }
        for change in shared.take_changes() {
            let owner = text(&change.owner);
            let terms = codec::with_terms_field(owner.as_bytes(), text);
            if let Some(it) = change.holder {
                fields.insert(terms, codec::with_terms(&it, text));
                if change.stored_count != Some(it.count) {
                    fields.insert(owner, it.count.to_string());
                }
            } else {
                fields.remove(&terms);
                fields.remove(&owner);
            }
        }
        let ends = shared.last_end().map(Timestamp::millis);
        shared.remember();
        let known = Known {
            fields: fields.len(),
            fence: fields.get(codec::FENCE).cloned(),
            shared,
        };
        self.put(name, Value::Hash(fields), ends);
        self.known.insert((name.db, name.key.to_vec()), known);
    }
}

/// The holders of the locks that an operation does not concern.
pub struct Others<'a> {
    pub store: &'a Store,
    pub now: Timestamp,
}

impl Others<'_> {
    /// The number of shared holders of all locks except one.
    pub fn shared_elsewhere(&self, besides: Name<'_>) -> u64 {
        let others = self
            .store
            .keys
            .keys()
            .map(|(db, key)| Name { db: *db, key });
        let mut shared = 0;
        for name in others.filter(|it| *it != besides) {
            self.visit(name, &mut |_, permits| {
                shared += u64::from(permits.is_some());
                ControlFlow::Continue(())
            });
        }
        shared
    }
}

impl Holders for Others<'_> {
    fn is_over(&self) -> bool {
        false
    }

    fn visit(&self, name: Name<'_>, visit: &mut VisitHolder<'_>) {
        let held = self.store.get(self.now, name).and_then(Stored::held);
        if let Some(held) = held {
            let mut live_holders = held.live_holders(self.now);
            let _ = live_holders.try_for_each(|(owner, it)| {
                visit(owner.as_bytes(), held.shared.then_some(it.permits))
            });
        }
    }
}
