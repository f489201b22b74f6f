//! The events of a run: calls, holds and faults, all by one clock.

pub mod checker;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Microseconds since the run began.
pub type Moment = u64;

pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// `12.345 s`.
pub fn seconds(moment: Moment) -> String {
    format!("{}.{:03} s", moment / 1_000_000, moment / 1_000 % 1_000)
}

/// One call: `lock`, `release` and so on.
#[derive(Clone, Debug)]
pub struct Call {
    pub contender: usize,
    pub key: &'static str,
    pub verb: &'static str,
    pub asked: Moment,
    /// How long it may take; none if it may wait as long as its caller.
    pub limit: Option<u64>,
    pub ended: Option<Moment>,
    /// `granted`, `refused`, `released`, `dropped`, or the text of an error.
    pub outcome: String,
}

/// One guard, from its grant to its end.
#[derive(Clone, Debug)]
pub struct Hold {
    pub contender: usize,
    pub key: &'static str,
    pub owner: String,
    pub fence: u64,
    pub is_shared: bool,
    /// Whether it has published a value as leader.
    pub leads: bool,
    /// Whether enough replicas acknowledged it, so that no failover may lose it.
    pub is_replicated: bool,
    pub lease: u64,
    pub asked: Moment,
    pub granted: Moment,
    /// The first and the last moment at which it appeared valid: `is_valid` was true right before and right after.
    pub believed: Option<(Moment, Moment)>,
    /// When `is_valid` was first false.
    pub doubted: Option<Moment>,
    pub ended: Option<Moment>,
    /// `released`, `dropped`, `lost` or the text of an error.
    pub end: String,
}

/// The holds that a fault may end without a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loses {
    /// None: the server forgets no grant and no release.
    Nothing,
    /// Grants that only one server knew: a replica became the master.
    Unreplicated,
    /// All holds: an operator's `FLUSHALL`, or a server that lost its data on disk.
    All,
    /// The holds of one key: an operator's `RLOCK.FORCE`.
    Key(&'static str),
}

/// A fault of servers, networks or clients.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: &'static str,
    /// Its target and its duration.
    pub detail: String,
    pub loses: Loses,
    pub begun: Moment,
    /// When servers and clients have recovered.
    pub healed: Option<Moment>,
}

/// An interval in which some clients could not run.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    pub begun: Moment,
    pub ended: Moment,
}

/// A report to an observer of an election.
#[derive(Clone, Debug)]
pub struct Seen {
    pub observer: usize,
    pub moment: Moment,
    /// The leader's fence, if there is a leader.
    pub fence: Option<u64>,
    /// Whether earlier leaders may have been missed.
    pub missed: bool,
}

#[derive(Debug)]
pub struct History {
    start: Instant,
    pub calls: Vec<Call>,
    pub holds: Vec<Hold>,
    pub faults: Vec<Fault>,
    pub stalls: Vec<Stall>,
    /// The reports to the observers of the election.
    pub seen: Vec<Seen>,
    /// Whatever was left at the end and should not be.
    pub remains: Vec<String>,
    /// When contenders had to stop.
    pub stopped: Option<Moment>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            calls: Vec::new(),
            holds: Vec::new(),
            faults: Vec::new(),
            stalls: Vec::new(),
            seen: Vec::new(),
            remains: Vec::new(),
            stopped: None,
        }
    }
}

impl History {
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The moment of the last known event.
    pub fn end(&self) -> Moment {
        let calls = self
            .calls
            .iter()
            .map(|call| call.ended.unwrap_or(call.asked));
        let faults = self
            .faults
            .iter()
            .map(|fault| fault.healed.unwrap_or(fault.begun));
        calls.chain(faults).chain(self.stopped).max().unwrap_or(0)
    }

    /// How long any client was paused between two moments.
    pub fn stalled(&self, from: Moment, to: Moment) -> u64 {
        let overlap = |stall: &Stall| stall.ended.min(to).saturating_sub(stall.begun.max(from));
        self.stalls.iter().map(overlap).sum()
    }

    /// The holds of each key, by the moment of their grant.
    pub fn holds_by_key(&self) -> BTreeMap<&'static str, Vec<usize>> {
        let mut keys: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, hold) in self.holds.iter().enumerate() {
            keys.entry(hold.key).or_default().push(index);
        }
        for holds in keys.values_mut() {
            holds.sort_by_key(|hold| self.holds[*hold].granted);
        }
        keys
    }
}
