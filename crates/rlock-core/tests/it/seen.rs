//! What is to be seen of each lock: who holds it, who waits, and how many.

use std::collections::BTreeMap;

use rlock_core::Fence;

use crate::{
    driver::text,
    foreign::name,
    model::{Contended, Data, Lock},
    operation::KEYS,
    pair::Pair,
    pair_checks::same,
    stored,
};

/// What a key is seen to hold.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Free,
    Other,
    Held {
        shared: bool,
        fence: Option<Fence>,
        holders: BTreeMap<String, SeenHolder>,
    },
}

impl Seen {
    /// The fence of a shared lock may be larger than all that were granted: one
    /// may have been taken back, as nobody heard of it.
    fn beside(mut self, expected: &Self) -> Self {
        if let (
            Self::Held {
                shared: true,
                fence,
                ..
            },
            Self::Held { fence: granted, .. },
        ) = (&mut self, expected)
            && *fence >= *granted
        {
            *fence = *granted;
        }
        self
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct SeenHolder {
    count: u32,
    permits: u32,
    pub(crate) fence: Option<Fence>,
    ends: u64,
}

impl Pair {
    pub(crate) fn compare_lock(&mut self, key: usize) -> Result<(), String> {
        self.model.expire_key(key);
        let now = self.driver.now;
        let expected = self.expected(&self.model.locks[key]);
        same(KEYS[key].1, &self.seen(key).beside(&expected), &expected)?;
        let waiters = self.driver.locks.waiters(now, name(key)).map(|it| {
            let waited = it.waited.as_millis();
            let left = (it.wait_left_ms, it.kept_left_ms);
            (text(it.owner), it.mode, waited, left, it.session)
        });
        let queue = self.model.locks[key].queue.iter();
        let expected = queue.map(|id| {
            let it = self.model.request(*id);
            let left = it.ends.map(|ends| ends.saturating_sub(self.model.now));
            let left = (left.filter(|_| !it.is_kept()), left.filter(|_| it.is_kept()));
            let waited = u128::from(self.model.now - it.since);
            (it.owner.clone(), it.mode, waited, left, it.via.session())
        });
        same(
            "the queue",
            &waiters.collect::<Vec<_>>(),
            &expected.collect(),
        )?;
        if self.settled {
            let hold = self.driver.store.load(now, name(key), None);
            self.driver.locks.check_front(now, name(key), &hold)?;
        }
        self.remember(key);
        Ok(())
    }

    pub(crate) fn compare_list(&self, db: u32) -> Result<(), String> {
        let got = self.driver.locks.most_contended(self.driver.now, db);
        let got = got.map(|it| Contended {
            key: text(it.key),
            waiters: it.waiters.into(),
            oldest_wait: u64::try_from(it.oldest_wait.as_millis()).expect("it is not long"),
        });
        let mut got: Vec<_> = got.collect();
        let by_waiters = |it: &Contended| u64::MAX - it.waiters;
        same(
            "the list is in order",
            &got.is_sorted_by_key(by_waiters),
            &true,
        )?;
        let mut expected = self.model.most_contended(db);
        got.sort_by(|one, other| one.key.cmp(&other.key));
        expected.sort_by(|one, other| one.key.cmp(&other.key));
        same("the list of contended locks", &got, &expected)
    }

    pub(crate) fn seen(&self, key: usize) -> Seen {
        let now = self.driver.now;
        let Some(stored) = self.driver.store.get(now, name(key)) else {
            return Seen::Free;
        };
        let Some(held) = stored::read(stored) else {
            return Seen::Other;
        };
        let holders: BTreeMap<_, _> = held
            .lives(now)
            .map(|(owner, it)| {
                let holder = SeenHolder {
                    count: it.count,
                    permits: it.permits,
                    fence: it.fence,
                    ends: it.deadline.millis(),
                };
                (owner.clone(), holder)
            })
            .collect();
        if holders.is_empty() {
            return Seen::Free;
        }
        Seen::Held {
            shared: held.shared,
            fence: held.fence,
            holders,
        }
    }

    fn expected(&self, lock: &Lock) -> Seen {
        let Some(hash) = lock.data.lock() else {
            let free = lock.data == Data::Absent;
            return if free { Seen::Free } else { Seen::Other };
        };
        let lives = hash.holders.iter();
        let lives = lives.filter(|it| hash.end_of(it) >= self.model.now);
        let holders: BTreeMap<_, _> = lives
            .map(|it| {
                let holder = SeenHolder {
                    count: it.count,
                    permits: it.permits,
                    fence: it.fence.and_then(|fence| self.fence(fence)),
                    ends: hash.end_of(it),
                };
                (it.owner.clone(), holder)
            })
            .collect();
        if holders.is_empty() {
            return Seen::Free;
        }
        Seen::Held {
            shared: lock.data.is_shared(),
            fence: hash.fence.and_then(|fence| self.fence(fence)),
            holders,
        }
    }
}
