//! The grants that an owner has released and that a server may return to it.
//!
//! Replication is asynchronous. A replica that never heard of a release may
//! become the master: there the owner still holds the lock, and its next request
//! is answered with the old grant. Meanwhile the old master may have granted the
//! lock to another owner under a larger fence, and that guard is still valid. So
//! a new hold never starts with a fence that its owner has given up.

use std::time::Duration;

use crate::engine::Engine;
use crate::engine::claims::{Claims, Name, Table};
use crate::engine::instant::Instant;
use crate::engine::terms::Ask;

/// How much the clocks of a master and its successor may differ. Leases are
/// replicated as points in time.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(10);
/// The number of entries below which no search for old ones is worthwhile.
const SWEEP_MIN: usize = 64;

/// What each owner has given up at a key, until the lease of that grant is over on
/// every server.
#[derive(Debug, Default)]
pub(super) struct Released {
    entries: Table<Name, Entry>,
    sweep: Sweep,
}

/// When old entries of a table are removed.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The number of entries at which that is. It is twice the number that stayed the
    /// last time, so a removal costs each entry little.
    at: usize,
}

impl Sweep {
    pub(super) fn is_due(&self, count: usize) -> bool {
        count >= self.at.max(SWEEP_MIN)
    }

    pub(super) fn is_done(&mut self, left: usize) {
        self.at = 2 * left;
    }
}

#[derive(Debug)]
struct Entry {
    /// Fences, and until when each of them matters. Of two, the larger one ends
    /// earlier.
    fences: Vec<(u64, Instant)>,
    /// A grant under an unknown fence was undone by this connection: a grant by
    /// another connection may be the same. And whether it may have been a shared one.
    undone_by: Option<(u64, bool)>,
    kept: Option<Kept>,
    until: Instant,
}

/// A grant that the server keeps, bound, although its guards have ended.
#[derive(Clone, Copy, Debug)]
struct Kept {
    fence: u64,
    /// Whether it cannot have a larger fence.
    is_certain: bool,
    until: Instant,
}

impl Entry {
    fn lasts(&self, now: Instant) -> bool {
        self.until > now
    }

    fn add(&mut self, now: Instant, fence: u64, until: Instant) {
        let says_more = |it: &(u64, Instant)| it.0 > fence || it.1 > until;
        self.fences.retain(|it| it.1 > now && says_more(it));
        let says_all = |it: &(u64, Instant)| it.0 >= fence && it.1 >= until;
        if !self.fences.iter().any(says_all) {
            self.fences.push((fence, until));
        }
    }
}

impl Released {
    fn entry(&mut self, now: Instant, name: &Name, lease_end: Instant) -> &mut Entry {
        if self.sweep.is_due(self.entries.len()) {
            self.entries.retain(|_, entry| entry.lasts(now));
            self.sweep.is_done(self.entries.len());
        }
        let until = lease_end + CLOCK_DIFFERENCE;
        let entry = self.entries.entry(name.clone()).or_insert(Entry {
            fences: Vec::new(),
            undone_by: None,
            kept: None,
            until,
        });
        entry.until = entry.until.max(until);
        entry
    }

    fn has(&self, now: Instant, name: &Name, fence: u64, connection: Option<u64>) -> bool {
        let entry = self.entries.get(name).filter(|entry| entry.lasts(now));
        entry.is_some_and(|entry| {
            let is_new = entry.undone_by.is_none_or(|it| Some(it.0) == connection);
            let mut fences = entry.fences.iter().filter(|it| it.1 > now);
            fences.any(|it| fence <= it.0) || !is_new
        })
    }
}

impl Engine {
    /// The owner has given up the grant with this fence, whose lease ends at
    /// `lease_end` by this clock. Owners for a single call are not remembered:
    /// they never ask again.
    pub(super) fn remember_released(
        &mut self,
        now: Instant,
        claims: &Claims,
        fence: u64,
        lease_end: Instant,
    ) {
        self.remember_ended(now, claims, fence, lease_end);
        for name in names_to_remember(claims) {
            if let Some(entry) = self.released.entries.get_mut(name) {
                (entry.undone_by, entry.kept) = (None, None);
            }
        }
    }

    /// The owner has had the grant with this fence, and it is over. This says nothing
    /// about a grant whose fence the owner never learned.
    pub(super) fn remember_ended(
        &mut self,
        now: Instant,
        claims: &Claims,
        fence: u64,
        lease_end: Instant,
    ) {
        for name in names_to_remember(claims) {
            let entry = self.released.entry(now, name, lease_end);
            entry.add(now, fence, lease_end + CLOCK_DIFFERENCE);
        }
    }

    /// The owner has undone a grant whose fence it never learned, if there was
    /// one. This connection carried the clean-up.
    pub(super) fn remember_undone(
        &mut self,
        now: Instant,
        claims: &Claims,
        (connection, ask): (u64, Option<Ask>),
        lease_end: Instant,
    ) {
        for name in names_to_remember(claims) {
            let may_be_shared = ask.is_none_or(|ask| !ask.is_exclusive());
            let entry = self.released.entry(now, name, lease_end);
            let was_shared = entry.undone_by.is_some_and(|it| it.1);
            entry.undone_by = Some((connection, may_be_shared || was_shared));
        }
    }

    /// The owner has left the grant with this fence bound to its connection. If the fence
    /// is not certain, it may be larger.
    pub(super) fn remember_kept(
        &mut self,
        now: Instant,
        claims: &Claims,
        (fence, is_certain): (u64, bool),
        lease_end: Instant,
    ) {
        let until = lease_end + CLOCK_DIFFERENCE;
        for name in names_to_remember(claims) {
            self.released.entry(now, name, lease_end).kept = Some(Kept {
                fence,
                is_certain,
                until,
            });
        }
    }

    /// Whether the server ends this grant some time after its connection, although nobody
    /// has asked for that now.
    pub(super) fn is_kept_bound(&self, now: Instant, claims: &Claims, fence: u64) -> bool {
        let entries = names_to_remember(claims).filter_map(|name| self.released.entries.get(name));
        let mut kept = entries.filter_map(|it| it.kept.filter(|kept| now < kept.until));
        kept.any(|kept| match kept.is_certain {
            true => kept.fence == fence,
            false => kept.fence <= fence,
        })
    }

    /// The server will only make new grants on this connection: it has not granted what
    /// was asked for, so the owner holds nothing of this, or it has granted by a message.
    /// With `may_share` the owner may still share the lock with others.
    pub(super) fn only_new_grants_by(&mut self, claims: &Claims, connection: u64, may_share: bool) {
        for name in names_to_remember(claims) {
            if let Some(entry) = self.released.entries.get_mut(name)
                && let Some((by, may_be_shared)) = &mut entry.undone_by
                && !(may_share && *may_be_shared)
            {
                *by = connection;
            }
        }
    }

    /// Whether a grant by this connection may be one that the owner has given up
    /// at any of these keys.
    pub(super) fn is_released(
        &self,
        now: Instant,
        claims: &Claims,
        fence: u64,
        connection: Option<u64>,
    ) -> bool {
        let is_released = |name| self.released.has(now, name, fence, connection);
        !claims.owner().is_single_use() && claims.names().any(is_released)
    }
}

fn names_to_remember(claims: &Claims) -> impl Iterator<Item = &Name> {
    claims.names().filter(|_| !claims.owner().is_single_use())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(20);

    fn at(second: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_secs(second)
    }

    fn name(number: u64) -> Name {
        Name::new(format!("owner key{number}").as_bytes())
    }

    /// One lock is released each second, and remembered for 30 s.
    #[test]
    fn what_is_remembered_is_limited_by_the_leases() {
        let mut released = Released::default();
        for second in 0..1000 {
            let now = at(second);
            let entry = released.entry(now, &name(second), now + LEASE);
            entry.add(now, second, entry.until);
            assert!(released.entries.len() <= SWEEP_MIN);
            for age in [0, 29, 30].into_iter().filter(|age| *age <= second) {
                let (name, fence) = (name(second - age), second - age);
                assert_eq!(released.has(now, &name, fence, None), age < 30);
            }
        }
    }

    #[test]
    fn a_smaller_fence_makes_no_larger_one_last() {
        let mut released = Released::default();
        let mut release = |second, fence, end| {
            let entry = released.entry(at(second), &name(0), at(end));
            entry.add(at(second), fence, at(end) + CLOCK_DIFFERENCE);
            entry.fences.clone()
        };
        let until = |second| at(second) + CLOCK_DIFFERENCE;
        assert_eq!(release(0, 50, 20), [(50, until(20))]);
        // It says nothing new.
        assert_eq!(release(0, 40, 10), [(50, until(20))]);
        assert_eq!(release(0, 10, 30), [(50, until(20)), (10, until(30))]);
        assert_eq!(release(0, 11, 31), [(50, until(20)), (11, until(31))]);
        // A larger fence makes no smaller one shorter.
        assert_eq!(
            release(0, 60, 15),
            [(50, until(20)), (11, until(31)), (60, until(15))]
        );
        for (now, fence, is_released) in [
            (24, 60, true),
            (25, 60, false),
            (29, 50, true),
            (29, 51, false),
            (30, 50, false),
            (30, 12, false),
            (40, 11, true),
            (41, 11, false),
        ] {
            let has = released.has(at(now), &name(0), fence, None);
            assert_eq!(has, is_released, "{now} {fence}");
        }
    }

    /// Entries that must stay are gone through again only when there are twice as many.
    #[test]
    fn searches_for_old_entries_become_rarer_the_more_must_stay() {
        let (mut released, mut searches) = (Released::default(), 0);
        for number in 0..10_000 {
            let before = released.sweep.at;
            released.entry(at(0), &name(number), at(0) + LEASE);
            searches += u64::from(released.sweep.at != before);
        }
        // At 64, 128 and so on up to 8,192.
        assert_eq!(searches, 8);
    }
}
