//! Finds owners that could never continue if a request waited.
//!
//! At first all waiting owners count as stuck. Then each owner is freed whose
//! waits are not blocked by a stuck owner, until nobody else can be freed. The
//! rest is a knot: even if all other owners released all their locks, no owner in
//! the knot could continue.

use rlock_core::Mode;

use super::{Kind, Model, Waiting};

impl Model {
    /// Whether the asking owner would become part of a knot by waiting. An existing knot does not count: detection was
    /// off, or other clients have changed keys.
    pub(super) fn closes_cycle(&self, asked: &Waiting) -> bool {
        if !self.limits.detects_deadlocks {
            return false;
        }
        let others = self.requests.iter().filter(|it| it.id != asked.id);
        let mut waiting: Vec<_> = others.filter(|it| !it.is_kept()).collect();
        let old = self.stuck_of(&waiting, &[]);
        waiting.push(asked);
        let stuck = self.stuck_of(&waiting, &old);
        stuck.contains(&asked.owner.as_str())
    }

    /// The owners that can never continue in the current state, even if the owners in `free` release all locks.
    pub fn stuck(&self, free: &[&str]) -> Vec<&str> {
        let waiting = self.requests.iter().filter(|it| !it.is_kept());
        self.stuck_of(&waiting.collect::<Vec<_>>(), free)
    }

    fn stuck_of<'a>(&self, waiting: &[&'a Waiting], free: &[&str]) -> Vec<&'a str> {
        if waiting.len() < 2 {
            return Vec::new();
        }
        let owners = waiting.iter().map(|it| it.owner.as_str());
        let mut stuck: Vec<_> = owners.filter(|it| !free.contains(it)).collect();
        loop {
            let can_continue = |owner: &&str| {
                let mut own = waiting.iter().filter(|it| it.owner == **owner);
                !own.any(|it| self.is_blocked(it, waiting, &stuck))
            };
            let Some(gone) = stuck.iter().copied().find(can_continue) else {
                return stuck;
            };
            stuck.retain(|it| *it != gone);
        }
    }

    /// Whether a stuck owner blocks a request at any of its keys.
    fn is_blocked(&self, request: &Waiting, waiting: &[&Waiting], stuck: &[&str]) -> bool {
        request.keys.iter().any(|at| {
            let mut up_to = self.in_order(*at, waiting).into_iter();
            let mut found = false;
            while let Some(it) = up_to.next().filter(|_| !found) {
                let ahead = it.owner != request.owner && stuck.contains(&it.owner.as_str());
                found = ahead || self.holders_block(*at, it.wanted.mode, &request.owner, stuck);
                if it.id == request.id {
                    break;
                }
            }
            found
        })
    }

    /// The requests among them that wait for a lock, in the order of their
    /// places. A request without a place comes last, or first if it is an
    /// upgrade.
    fn in_order<'a>(&self, at: usize, waiting: &[&'a Waiting]) -> Vec<&'a Waiting> {
        let queue = &self.locks[at].queue;
        let place = |it: &&Waiting| {
            let known = self.requests.iter().find(|old| old.id == it.id);
            let moves = known.is_none_or(|old| old.kind != it.kind);
            match queue.iter().position(|id| *id == it.id) {
                Some(place) if !moves => (1, place),
                _ if it.kind == Kind::Upgrade => (0, 0),
                _ => (2, 0),
            }
        };
        let here = waiting.iter().filter(|it| it.keys.contains(&at));
        let mut here: Vec<_> = here.copied().collect();
        here.sort_by_key(place);
        here
    }

    /// Whether the stuck holders keep owners other than `owner` from holding in
    /// this mode.
    fn holders_block(&self, at: usize, mode: Mode, owner: &str, stuck: &[&str]) -> bool {
        let data = &self.locks[at].data;
        let Some(hash) = data.lock() else {
            return false;
        };
        let live_holders = hash.holders.iter().filter(|it| hash.end_of(it) >= self.now);
        let others = live_holders.filter(|it| it.owner != owner);
        let mut others = others.filter(|it| stuck.contains(&it.owner.as_str()));
        match mode {
            Mode::Shared { permits, limit } if data.is_shared() => {
                let held: u32 = others.map(|it| it.permits).sum();
                held > 0 && limit.is_some_and(|limit| held + permits > limit)
            }
            _ => others.next().is_some(),
        }
    }

    /// Whether `waiter`, which asks for `keys`, may wait for `other` at one of its keys.
    pub fn may_wait_for(&self, waiter: &str, keys: &[usize], other: &str) -> bool {
        let own = self.requests.iter().filter(|it| it.owner == waiter);
        let mut all = own.flat_map(|it| &it.keys).chain(keys);
        all.any(|at| {
            let holds = self.locks[*at].data.holder(other).is_some();
            holds || self.place(*at, other).is_some()
        })
    }

    /// Whether the owner waits for one of these keys.
    pub fn may_wait_at(&self, waiter: &str, keys: &[usize]) -> bool {
        keys.iter().any(|at| self.place(*at, waiter).is_some())
    }
}
