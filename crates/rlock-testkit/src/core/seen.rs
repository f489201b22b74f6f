//! The visible state of each lock: its holders, its waiters, and their numbers.

use rlock_core::{Fence, Mode, Timestamp};

use crate::core::{
    driver::text,
    foreign::name,
    model::{Contended, Data, Hash, Holder, Waiting},
    operation::KEYS,
    pair::Pair,
    pair_checks::same,
    stored::Held,
};

/// A waiter: owner, mode, how long it has waited, the rest of its wait or of the
/// grace of its place, and the connection.
type SeenWaiter<'a> = (&'a [u8], Mode, u128, [Option<u64>; 2], Option<u64>);

impl Pair {
    pub fn compare_lock(&mut self, key: usize) -> Result<(), String> {
        self.model.expire_key(key);
        let now = self.driver.now;
        if !self.is_held_equally(key) {
            let stored = self.driver.store.get(now, name(key));
            let (key, expected) = (KEYS[key].1, &self.model.locks[key].data);
            return Err(format!("{key} differs\n{stored:?}\nexpected {expected:?}"));
        }
        let waiters = self.driver.locks.waiters(now, name(key));
        let waiters = waiters.map(|it| -> SeenWaiter<'_> {
            let left = [it.wait_left_ms, it.kept_left_ms];
            (it.owner, it.mode, it.waited.as_millis(), left, it.session)
        });
        let queue = self.model.locks[key].queue.iter();
        let queue = queue.map(|id| self.waiter(self.model.request(*id)));
        if !waiters.eq(queue.clone()) {
            let waiters: Vec<_> = self.driver.locks.waiters(now, name(key)).collect();
            let queue: Vec<_> = queue.collect();
            return Err(format!(
                "the queue differs\n{waiters:?}\nexpected {queue:?}"
            ));
        }
        if self.settled && self.driver.locks.is_contended(name(key)) {
            let hold = self.driver.store.peek(now, name(key), None);
            self.driver.locks.check_settled(now, name(key), &hold)?;
        }
        self.remember(key);
        Ok(())
    }

    fn waiter<'a>(&self, it: &'a Waiting) -> SeenWaiter<'a> {
        let left = it.ends.map(|ends| ends.saturating_sub(self.model.now));
        let waited = u128::from(self.model.now - it.since);
        let left = match it.is_kept() {
            true => [None, left],
            false => [left, None],
        };
        let owner = it.owner.as_bytes();
        (owner, it.wanted.mode, waited, left, it.via.session())
    }

    pub fn compare_list(&self, db: u32) -> Result<(), String> {
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

    /// Whether driver and model have the same holders with a valid lease. A lock without such holders may be free, or
    /// was not read since.
    fn is_held_equally(&self, key: usize) -> bool {
        let now = self.driver.now;
        let data = &self.model.locks[key].data;
        let stored = self.driver.store.get(now, name(key));
        let held = stored.map(|it| it.held());
        let nobody = |held: &Held| held.live_holders(now).next().is_none();
        match (held, data.lock()) {
            (None, None) => *data == Data::Absent,
            (Some(None), None) => *data != Data::Absent,
            (Some(None), Some(_)) => false,
            (None, Some(hash)) => self.live_holders(hash).next().is_none(),
            (Some(Some(held)), None) => *data == Data::Absent && nobody(held),
            (Some(Some(held)), Some(hash)) if nobody(held) => {
                self.live_holders(hash).next().is_none()
            }
            (Some(Some(held)), Some(hash)) => self.is_alike(now, held, hash),
        }
    }

    fn is_alike(&self, now: Timestamp, held: &Held, hash: &Hash) -> bool {
        let fence = hash.fence.and_then(|it| self.fence(it));
        // The fence of a shared lock may be larger than all grants, because an undelivered grant may have been undone.
        // The next grant replaces a fence that was set by hand.
        let is_undone = |it: Fence| Some(it) > fence && it.get() < Fence::MAX;
        let fences = held.fence == fence || (held.shared && held.fence.is_some_and(is_undone));
        let has = |it: &Holder| {
            let live_holders = held.live(now, &it.owner);
            live_holders.is_some_and(|other| {
                (other.count, other.permits) == (it.count, it.permits)
                    && other.fence == it.fence.and_then(|it| self.fence(it))
                    && other.deadline.millis() == hash.end_of(it)
            })
        };
        let extras = held.extras.clone().map(|it| text(&it));
        fences
            && extras == hash.extras().map(str::to_owned)
            && held.shared == hash.is_shared()
            && held.live_holders(now).count() == self.live_holders(hash).count()
            && self.live_holders(hash).all(has)
    }

    fn live_holders<'a>(&'a self, hash: &'a Hash) -> impl Iterator<Item = &'a Holder> {
        let now = self.model.now;
        let holders = hash.holders.iter();
        holders.filter(move |it| hash.end_of(it) >= now)
    }
}
