//! Who could never go on if a request were to wait.
//!
//! The owner that asks is taken to be stuck. Then everybody is who waits for
//! somebody stuck, until there is nobody more. If one of those is in the way
//! of the request, its waiting would close a cycle.

use super::{Kind, Model, Waiting};
use crate::told::Mode;

impl Model {
    pub(super) fn closes_cycle(&self, asked: &Waiting) -> bool {
        if !self.limits.detects_deadlocks {
            return false;
        }
        let others = self.requests.iter().filter(|it| it.id != asked.id);
        let waiting: Vec<&Waiting> = others.chain([asked]).collect();
        let mut stuck = vec![asked.owner.as_str()];
        loop {
            let mut more = waiting.iter().filter(|it| {
                !stuck.contains(&it.owner.as_str()) && self.is_stuck(it, asked, &stuck)
            });
            match more.next() {
                Some(found) => stuck.push(&found.owner),
                None => return self.is_stuck(asked, asked, &stuck),
            }
        }
    }

    /// The owner of a request that waits for itself, if there is one.
    pub(crate) fn cycle(&self) -> Option<String> {
        let mut requests = self.requests.iter();
        let found = requests.find(|it| self.closes_cycle(it));
        found.map(|it| it.owner.clone())
    }

    /// Whether one of those who are waited for by `waiter`, which asks for
    /// `keys` or waits for others, is `other`.
    pub(crate) fn may_wait_for(&self, waiter: &str, keys: &[usize], other: &str) -> bool {
        let own = self.requests.iter().filter(|it| it.owner == waiter);
        let mut all = own.flat_map(|it| &it.keys).chain(keys);
        all.any(|at| {
            let holds = self.locks[*at].data.holder(other).is_some();
            holds || self.place(*at, other).is_some()
        })
    }

    /// Whether somebody waits for one of these keys.
    pub(crate) fn may_wait_at(&self, waiter: &str, keys: &[usize]) -> bool {
        keys.iter().any(|at| self.place(*at, waiter).is_some())
    }

    fn is_stuck(&self, waiting: &Waiting, asked: &Waiting, stuck: &[&str]) -> bool {
        let mut keys = waiting.keys.iter();
        keys.any(|at| {
            self.stuck_ahead(*at, waiting, asked, stuck) || self.stuck_holders(*at, waiting, stuck)
        })
    }

    /// Whether somebody stuck is ahead of it in the queue, where the request
    /// that is asked for has its place already.
    fn stuck_ahead(&self, at: usize, waiting: &Waiting, asked: &Waiting, stuck: &[&str]) -> bool {
        let queue = self.locks[at].queue.iter();
        let mut queue: Vec<&Waiting> = queue.map(|id| self.request(*id)).collect();
        if asked.keys.contains(&at) && !queue.iter().any(|it| it.id == asked.id) {
            let front = asked.kind == Kind::Upgrade;
            let place = if front { 0 } else { queue.len() };
            queue.insert(place, asked);
        }
        let ahead = queue.iter().take_while(|it| it.id != waiting.id);
        let mut ahead = ahead.filter(|it| it.owner != waiting.owner);
        ahead.any(|it| stuck.contains(&it.owner.as_str()))
    }

    fn stuck_holders(&self, at: usize, waiting: &Waiting, stuck: &[&str]) -> bool {
        let data = &self.locks[at].data;
        let Some(hash) = data.lock() else {
            return false;
        };
        let lives = hash.holders.iter().filter(|it| hash.end_of(it) >= self.now);
        let others = lives.filter(|it| it.owner != waiting.owner);
        let mut others = others.filter(|it| stuck.contains(&it.owner.as_str()));
        match waiting.mode {
            Mode::Shared { permits, limit } if data.is_shared() => {
                let held: u32 = others.map(|it| it.permits).sum();
                limit.is_some_and(|limit| held + permits > limit)
            }
            _ => others.next().is_some(),
        }
    }
}
