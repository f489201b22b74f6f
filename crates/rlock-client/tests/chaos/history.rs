//! What happened in a run: calls, holds and faults, all by one clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Microseconds since the run began.
pub(crate) type Moment = u64;

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// `12.345 s`.
pub(crate) fn seconds(moment: Moment) -> String {
    format!("{}.{:03} s", moment / 1_000_000, moment / 1_000 % 1_000)
}

/// One call: `lock`, `release` and so on.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) contender: usize,
    pub(crate) key: &'static str,
    pub(crate) verb: &'static str,
    pub(crate) asked: Moment,
    /// How long it may take; none if it may wait for as long as its caller does.
    pub(crate) limit: Option<u64>,
    pub(crate) ended: Option<Moment>,
    /// `granted`, `refused`, `released`, `dropped`, or an error's words.
    pub(crate) outcome: String,
}

/// One guard, from its grant to its end.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) contender: usize,
    pub(crate) key: &'static str,
    pub(crate) owner: String,
    pub(crate) fence: u64,
    pub(crate) is_shared: bool,
    /// Whether enough replicas know of it, so that no fail-over may lose it.
    pub(crate) is_replicated: bool,
    pub(crate) lease: u64,
    pub(crate) asked: Moment,
    pub(crate) granted: Moment,
    /// The first and the last moment at which it was believed valid: `is_valid` said so right before and right after.
    pub(crate) believed: Option<(Moment, Moment)>,
    /// When `is_valid` first said no.
    pub(crate) doubted: Option<Moment>,
    pub(crate) ended: Option<Moment>,
    /// `released`, `dropped`, `lost` or an error's words.
    pub(crate) end: String,
}

/// Which holds a fault may end without anybody's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loses {
    /// None: neither a grant nor a release is forgotten.
    Nothing,
    /// Grants that a server gave and no other knew of: a replica became the master.
    Unreplicated,
    /// All of them: an operator's `FLUSHALL`, a server that lost what it had on disk.
    All,
    /// Those of one key: an operator's `RLOCK.FORCE`.
    Key(&'static str),
}

/// Something that was done to servers, networks or clients.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: &'static str,
    /// To whom, and for how long.
    pub(crate) detail: String,
    pub(crate) loses: Loses,
    pub(crate) begun: Moment,
    /// When all is well again, for servers and clients alike.
    pub(crate) healed: Option<Moment>,
}

/// A time in which some clients could not run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standstill {
    pub(crate) begun: Moment,
    pub(crate) ended: Moment,
}

#[derive(Debug)]
pub(crate) struct History {
    start: Instant,
    pub(crate) calls: Vec<Call>,
    pub(crate) holds: Vec<Hold>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) standstills: Vec<Standstill>,
    /// What was still there in the end that should not be.
    pub(crate) remains: Vec<String>,
    /// When contenders were told to stop.
    pub(crate) stopped: Option<Moment>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            calls: Vec::new(),
            holds: Vec::new(),
            faults: Vec::new(),
            standstills: Vec::new(),
            remains: Vec::new(),
            stopped: None,
        }
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// When the last thing happened that is known of.
    pub(crate) fn end(&self) -> Moment {
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

    /// For how long some client stood still between two moments.
    pub(crate) fn stood_still(&self, from: Moment, to: Moment) -> u64 {
        let overlap =
            |still: &Standstill| still.ended.min(to).saturating_sub(still.begun.max(from));
        self.standstills.iter().map(overlap).sum()
    }

    /// The holds of each key, by the moment of their grant.
    pub(crate) fn holds_by_key(&self) -> BTreeMap<&'static str, Vec<usize>> {
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
