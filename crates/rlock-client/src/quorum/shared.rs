//! What the locks of a quorum work with together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rlock_engine::engine::claims::Owner;
use rlock_engine::error::{Error, Failure};
use tokio::runtime::Handle;
use tokio::sync::Mutex as Turn;
use tokio::task::JoinHandle;

use crate::pump::{Limits, lock};
use crate::quorum::hold::Hold;
use crate::quorum::member::Member;
use crate::quorum::plan::majority;

/// Who asks, and for which key.
pub(crate) type Name = (Owner, Arc<[u8]>);

/// What an owner holds; locked while one of its calls asks for it.
pub(crate) type Entry = Arc<Turn<Weak<Hold>>>;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) members: Vec<Member>,
    /// The shortest startup grace of those that were met first, and whose it
    /// is; none if any will do.
    pub(crate) shortest_grace: Option<(Duration, String)>,
    pub(crate) any_grace: bool,
    pub(crate) limits: Limits,
    pub(crate) runtime: Handle,
    pub(crate) entries: Mutex<HashMap<Name, Entry>>,
    /// The tasks that looked after holds, and are about to end.
    pub(crate) ending: Mutex<Vec<JoinHandle<()>>>,
}

impl Shared {
    /// How long a member may take for an answer that others could give.
    pub(crate) fn slow(&self, lease: Duration) -> Duration {
        let limit = (self.limits.response / 4).min(lease / 10);
        limit.max(Duration::from_millis(5))
    }

    /// Whether each member can be asked for a lock with that lease now. Those
    /// that were too slow are left alone only where the others are a majority.
    pub(crate) fn usable(&self, lease: Option<Duration>) -> Vec<bool> {
        let lease = lease.filter(|_| !self.any_grace);
        let members = self.members.iter();
        let usable: Vec<_> = members.map(|it| it.why_not(lease).is_none()).collect();
        let quick = self.members.iter().zip(&usable);
        let quick: Vec<_> = quick
            .map(|(it, usable)| *usable && !it.was_slow())
            .collect();
        let count = quick.iter().filter(|is_quick| **is_quick).count();
        match count >= majority(quick.len()) {
            true => quick,
            false => usable,
        }
    }

    /// Whether a lease is over before that member grants after a crash.
    pub(crate) fn outlives(&self, member: usize, lease: Duration) -> bool {
        let grace = self.members.get(member).and_then(Member::grace);
        self.any_grace || grace.is_none_or(|grace| grace >= lease)
    }

    /// Why too few can be asked; `said` is what members have refused, by their
    /// numbers.
    pub(crate) fn failure(&self, lease: Duration, said: &[(usize, Error)]) -> Failure {
        let lease = (!self.any_grace).then_some(lease);
        let why = self
            .members
            .iter()
            .enumerate()
            .filter_map(|(number, member)| {
                let said = said.iter().find(|(known, _)| *known == number);
                let slow = || member.was_slow().then(|| "it is too slow".to_owned());
                let why = member.why_not(lease).or_else(slow);
                let why = why.or_else(|| said.map(|(_, error)| error.to_string()))?;
                Some(format!("{}: {why}", member.address))
            });
        let why: Vec<_> = why.collect();
        let what = "too few members of the quorum answer";
        Failure::Io(format!("{what}: {}", why.join("; ")))
    }

    pub(crate) fn check_grace(&self, lease: Duration) -> Result<(), Error> {
        match &self.shortest_grace {
            Some((grace, address)) if *grace < lease => Err(Error::Member {
                address: address.clone(),
                reason: format!(
                    "its `rlock.startup-grace-ms` is {}, below the lease of {} ms, so after a \
                     crash it may grant what is still held: raise it, set `appendonly yes` and \
                     `appendfsync always`, or call `QuorumBuilder::any_grace`",
                    grace.as_millis(),
                    lease.as_millis(),
                ),
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn entry(&self, name: &Name) -> Entry {
        let mut entries = lock(&self.entries);
        Arc::clone(entries.entry(name.clone()).or_default())
    }

    /// Forgets what an owner held if it holds nothing and asks for nothing.
    pub(crate) fn forget(&self, name: &Name) {
        let mut entries = lock(&self.entries);
        let is_unused = |entry: &Entry| {
            let is_alone = Arc::strong_count(entry) == 1;
            is_alone && entry.try_lock().is_ok_and(|held| held.strong_count() == 0)
        };
        if entries.get(name).is_some_and(is_unused) {
            entries.remove(name);
        }
    }
}
