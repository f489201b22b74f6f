//! A sample: what the servers show at one moment.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use rlock_client::{Answer, Client, Contended, Error, Holder, Info};
use serde::Serialize;

use crate::address::Address;
use crate::counters::{Counters, Rates};
use crate::failure::Failure;
use crate::force;
use crate::info::LockInfo;
use crate::readable::{lossy, printable, whole_ms};
use crate::waits::Waits;

use super::recent::{Percentiles, Recent};

/// How long an unreachable master delays the others.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// The hint if a server did not answer whether it has ended holds.
const CHECK_HOLDERS: &str =
    "it is unknown whether the holds were ended: check who holds the lock now";

/// A sample, and the changes since the previous one.
#[derive(Debug, Serialize)]
pub(super) struct Sample {
    /// This machine's clock, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// The interval that the rates cover.
    pub(super) interval_ms: u64,
    /// The counters of all masters that answered.
    pub(super) counters: Counters,
    pub(super) per_second: Rates,
    /// The waits at all masters with the histogram; none if no master has it.
    pub(super) waits: Option<Percentiles>,
    pub(super) masters: Vec<Master>,
    pub(super) locks: Vec<Contended>,
}

/// One of the masters that were asked.
#[derive(Debug, Serialize)]
pub(super) struct Master {
    pub(super) address: String,
    /// Why it shows nothing.
    pub(super) error: Option<String>,
}

/// The holders of a lock, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The first holder, and the number of the others.
    pub(super) by: String,
    pub(super) value: Option<String>,
}

/// Takes samples.
pub(super) struct Sampler {
    address: Address,
    client: Client,
    /// The numbers of the previous sample, by the masters' addresses.
    before: BTreeMap<String, Numbers>,
    sampled: Instant,
    recent: Recent,
}

/// The numbers in `INFO rlock` of one master.
struct Numbers {
    counters: Counters,
    /// None if its module does not have the histogram.
    waits: Option<Waits>,
}

impl Sampler {
    /// Takes the first sample, with at most `count` locks. It has no rates.
    pub(super) async fn start(address: &Address, count: u16) -> Result<(Self, Sample), Failure> {
        let mut sampler = Self {
            client: address.questioner_with(RETRY_TIMEOUT).await?,
            address: address.clone(),
            before: BTreeMap::new(),
            sampled: Instant::now(),
            recent: Recent::default(),
        };
        let first = sampler.next(count).await?;
        Ok((sampler, first))
    }

    /// Takes the next sample, with at most `count` locks. It is an error if no
    /// master answers.
    pub(super) async fn next(&mut self, count: u16) -> Result<Sample, Failure> {
        let failure = |error| self.address.failure(&error);
        let counters = self.client.counters();
        let lists = self.client.list_each(count.into());
        let (counters, lists) = tokio::join!(counters, lists);
        let (mut masters, mut by_master) = (Vec::new(), BTreeMap::new());
        let mut locks = Vec::new();
        for Both { address, answer } in both(counters, lists.map_err(failure)?) {
            let error = match answer {
                Ok((numbers, list)) => {
                    by_master.insert(address.clone(), numbers);
                    locks.extend(list);
                    None
                }
                Err(error) => Some(error),
            };
            masters.push((address, error));
        }
        if by_master.is_empty()
            && let Some(error) = masters.iter_mut().find_map(|(_, error)| error.take())
        {
            return Err(failure(error));
        }
        locks.sort_by_key(|lock: &Contended| Reverse(lock.waiters));
        locks.truncate(count.into());
        let masters = masters.into_iter().map(Master::new).collect();
        Ok(self.sample(by_master, masters, locks))
    }

    fn sample(
        &mut self,
        by_master: BTreeMap<String, Numbers>,
        masters: Vec<Master>,
        locks: Vec<Contended>,
    ) -> Sample {
        let (before, now) = (self.sampled, Instant::now());
        let elapsed = now.duration_since(before);
        let per_second = Rates::total(by_master.iter().map(|(address, now)| {
            let before = self.before.get(address).unwrap_or(now);
            now.counters.rates(&before.counters, elapsed)
        }));
        let sample = Sample {
            at_ms: now_ms(),
            interval_ms: whole_ms(elapsed),
            counters: Counters::total(by_master.values().map(|it| &it.counters)),
            per_second,
            waits: self.waits(&by_master, (before, now)),
            masters,
            locks,
        };
        (self.sampled, self.before) = (now, by_master);
        sample
    }

    /// Adds the waits of the masters that the previous sample had.
    fn waits(
        &mut self,
        by_master: &BTreeMap<String, Numbers>,
        (before, now): (Instant, Instant),
    ) -> Option<Percentiles> {
        let has_histogram = by_master.values().any(|it| it.waits.is_some());
        let new = by_master.iter().filter_map(|(address, numbers)| {
            let earlier = self.before.get(address)?.waits.as_ref()?;
            Some(numbers.waits.as_ref()?.since(earlier))
        });
        let new: Vec<_> = new.collect();
        if let Some(new) = Waits::total(new.iter()) {
            self.recent.add(before, now, new);
        }
        has_histogram.then(|| self.recent.percentiles())
    }

    /// Holders and queue of one lock.
    pub(super) async fn lock(&self, key: &[u8]) -> Result<LockInfo, Failure> {
        let lock = self.client.mutex(key).info().await;
        let lock = lock.map_err(|error| self.address.failure(&error))?;
        Ok(LockInfo::new(key, lock))
    }

    /// The holders of each of these locks.
    pub(super) async fn holders(&self, keys: Vec<Vec<u8>>) -> Vec<(Vec<u8>, Held)> {
        let asked = keys.into_iter().map(async |key| {
            let held = Held::new(self.client.mutex(&key).info().await);
            (key, held)
        });
        join_all(asked).await
    }

    /// Ends these holds of a lock; returns their number.
    pub(super) async fn force(&self, key: &[u8], shown: &[Holder]) -> Result<u64, Failure> {
        let removed = force::end_shown(&self.client.mutex(key), shown).await;
        removed.map_err(|error| {
            let failure = self.address.failure(&error);
            match error {
                Error::Unavailable { .. } => failure.with_hint(CHECK_HOLDERS),
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

/// Both answers of a master.
struct Both {
    address: String,
    answer: Result<(Numbers, Vec<Contended>), Error>,
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
            // A new master is asked for its locks the next time.
            let list = list.unwrap_or_else(|| Ok(Vec::new()))?;
            let counters = Counters::new(&numbers);
            let waits = Waits::read(&numbers);
            Ok((Numbers { counters, waits }, list))
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
