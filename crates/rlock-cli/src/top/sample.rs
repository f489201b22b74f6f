//! What one look at the servers shows.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use rlock_client::{Answer, Client, Contended, Error, Info};
use serde::Serialize;

use crate::address::Address;
use crate::counters::{Counters, Rates};
use crate::failure::Failure;
use crate::info::LockInfo;
use crate::readable::{lossy, printable, whole_ms};
use crate::waits::Waits;

use super::recent::{Percentiles, Recent};

/// For how long an unreachable master holds up what others show.
const PATIENCE: Duration = Duration::from_secs(1);
/// What the user should do if a server did not answer whether it has ended holds.
const LOOK_AGAIN: &str = "whether the holds were ended is not known: look who holds it now";

/// One look, and what has changed since the one before.
#[derive(Debug, Serialize)]
pub(super) struct Sample {
    /// This machine's clock, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// What the rates are measured over.
    pub(super) interval_ms: u64,
    /// The counters of all masters that answered.
    pub(super) counters: Counters,
    pub(super) per_second: Rates,
    /// The waits at all masters that show them; none if no master does.
    pub(super) waits: Option<Percentiles>,
    pub(super) masters: Vec<Master>,
    pub(super) locks: Vec<Contended>,
}

/// One of the masters that were asked.
#[derive(Debug, Serialize)]
pub(super) struct Master {
    pub(super) address: String,
    /// Why it has shown nothing.
    pub(super) error: Option<String>,
}

/// One hold, by which a user knows that it is still the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoldId {
    fence: Option<u64>,
    owner: String,
}

/// Who holds a lock, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The first of the holders, and how many more there are.
    pub(super) by: String,
    pub(super) value: Option<String>,
}

/// Looks again and again.
pub(super) struct Sampler {
    address: Address,
    client: Client,
    /// By the masters' addresses.
    before: BTreeMap<String, Said>,
    looked: Instant,
    recent: Recent,
}

/// What `INFO rlock` of one master says.
struct Said {
    counters: Counters,
    /// None if its module is older than the histogram.
    waits: Option<Waits>,
}

impl Sampler {
    /// Looks for the first time, for this many locks. No rate is known yet.
    pub(super) async fn start(address: &Address, count: u16) -> Result<(Self, Sample), Failure> {
        let mut sampler = Self {
            client: address.questioner_with(PATIENCE).await?,
            address: address.clone(),
            before: BTreeMap::new(),
            looked: Instant::now(),
            recent: Recent::default(),
        };
        let first = sampler.next(count).await?;
        Ok((sampler, first))
    }

    /// Looks once more, for this many locks; an error if no master shows anything.
    pub(super) async fn next(&mut self, count: u16) -> Result<Sample, Failure> {
        let failure = |error| self.address.failure(&error);
        let counters = self.client.counters();
        let lists = self.client.list_each(count.into());
        let (counters, lists) = tokio::join!(counters, lists);
        let (mut masters, mut said) = (Vec::new(), BTreeMap::new());
        let mut locks = Vec::new();
        for Both { address, answer } in both(counters, lists.map_err(failure)?) {
            let error = match answer {
                Ok((numbers, list)) => {
                    said.insert(address.clone(), numbers);
                    locks.extend(list);
                    None
                }
                Err(error) => Some(error),
            };
            masters.push((address, error));
        }
        if said.is_empty()
            && let Some(error) = masters.iter_mut().find_map(|(_, error)| error.take())
        {
            return Err(failure(error));
        }
        locks.sort_by_key(|lock: &Contended| Reverse(lock.waiters));
        locks.truncate(count.into());
        let masters = masters.into_iter().map(Master::new).collect();
        Ok(self.sample(said, masters, locks))
    }

    fn sample(
        &mut self,
        said: BTreeMap<String, Said>,
        masters: Vec<Master>,
        locks: Vec<Contended>,
    ) -> Sample {
        let (before, now) = (self.looked, Instant::now());
        let elapsed = now.duration_since(before);
        let per_second = Rates::total(said.iter().map(|(address, said)| {
            let before = self.before.get(address).unwrap_or(said);
            said.counters.rates(&before.counters, elapsed)
        }));
        let sample = Sample {
            at_ms: now_ms(),
            interval_ms: whole_ms(elapsed),
            counters: Counters::total(said.values().map(|said| &said.counters)),
            per_second,
            waits: self.waits(&said, (before, now)),
            masters,
            locks,
        };
        (self.looked, self.before) = (now, said);
        sample
    }

    /// Takes note of the waits at those masters that were seen before.
    fn waits(
        &mut self,
        said: &BTreeMap<String, Said>,
        (before, now): (Instant, Instant),
    ) -> Option<Percentiles> {
        let told = said.values().any(|said| said.waits.is_some());
        let new = said.iter().filter_map(|(address, said)| {
            let earlier = self.before.get(address)?.waits.as_ref()?;
            Some(said.waits.as_ref()?.since(earlier))
        });
        let new: Vec<_> = new.collect();
        if let Some(new) = Waits::total(new.iter()) {
            self.recent.add(before, now, new);
        }
        told.then(|| self.recent.percentiles())
    }

    /// Looks at one lock.
    pub(super) async fn lock(&self, key: &[u8]) -> Result<LockInfo, Failure> {
        let lock = self.client.mutex(key).info().await;
        let lock = lock.map_err(|error| self.address.failure(&error))?;
        Ok(LockInfo::new(key, lock))
    }

    /// Who holds each of these locks.
    pub(super) async fn holders(&self, keys: Vec<Vec<u8>>) -> Vec<(Vec<u8>, Held)> {
        let asked = keys.into_iter().map(async |key| {
            let held = Held::new(self.client.mutex(&key).info().await);
            (key, held)
        });
        join_all(asked).await
    }

    /// Ends the holds of a lock if there are still only these; how many were removed.
    pub(super) async fn force(&self, key: &[u8], shown: &[HoldId]) -> Result<Option<u64>, Failure> {
        // The server cannot do both in one step, so a hold that is granted between
        // them is ended too.
        let held = holds(&self.lock(key).await?.info);
        if held.is_empty() || held.iter().any(|hold| !shown.contains(hold)) {
            return Ok(None);
        }
        let removed = self.client.mutex(key).force_release().await;
        removed.map(Some).map_err(|error| {
            let failure = self.address.failure(&error);
            match error {
                Error::Unavailable { .. } => failure.with_hint(LOOK_AGAIN),
                _ => failure,
            }
        })
    }

    /// The servers' name.
    pub(super) fn shown(&self) -> String {
        self.address.title()
    }
}

impl Held {
    fn new(lock: Result<Info, Error>) -> Self {
        let holders = match lock {
            Ok(lock) => lock.holders,
            Err(Error::Denied(_)) => return Self::by("no access"),
            Err(_) => return Self::by("unknown"),
        };
        let Some(first) = holders.first() else {
            return Self::by("nobody");
        };
        let owner = printable(&first.owner);
        let by = match holders.len() - 1 {
            0 => owner,
            more => format!("{owner} +{more}"),
        };
        let value = first.value.as_deref().map(lossy);
        Self { by, value }
    }

    pub(super) fn by(words: impl Into<String>) -> Self {
        let (by, value) = (words.into(), None);
        Self { by, value }
    }
}

pub(super) fn holds(lock: &Info) -> Vec<HoldId> {
    let holds = lock.holders.iter().map(|holder| HoldId {
        fence: holder.fence,
        owner: holder.owner.clone(),
    });
    holds.collect()
}

impl Master {
    fn new((address, error): (String, Option<Error>)) -> Self {
        let error = error.map(|error| match error {
            Error::Unavailable {
                source: Some(source),
                ..
            } => format!("unreachable: {source}"),
            Error::Unavailable { .. } => "unreachable: no answer".to_owned(),
            error => error.to_string(),
        });
        Self { address, error }
    }
}

/// Both answers of one master.
struct Both {
    address: String,
    answer: Result<(Said, Vec<Contended>), Error>,
}

fn both(
    counters: Vec<Answer<rlock_client::Counters>>,
    lists: Vec<Answer<Vec<Contended>>>,
) -> Vec<Both> {
    let mut lists: BTreeMap<_, _> = lists
        .into_iter()
        .map(|list| (list.address, list.answer))
        .collect();
    let one = |master: Answer<rlock_client::Counters>| {
        let list = lists.remove(&master.address);
        let answer = master.answer.and_then(|numbers| {
            // One that has become known just now is asked in full the next time.
            let list = list.unwrap_or_else(|| Ok(Vec::new()))?;
            let counters = Counters::new(&numbers);
            let waits = Waits::read(&numbers);
            Ok((Said { counters, waits }, list))
        });
        Both {
            address: master.address,
            answer,
        }
    };
    counters.into_iter().map(one).collect()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    whole_ms(since.unwrap_or_default())
}
