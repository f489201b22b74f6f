//! What one look at the servers shows.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use rlock_client::{Answer, Client, Contended, Error};
use serde::Serialize;

use crate::address::Address;
use crate::counters::{Counters, Rates};
use crate::failure::Failure;
use crate::info::LockInfo;
use crate::readable::whole_ms;

/// For how long an unreachable master holds up what others show.
const PATIENCE: Duration = Duration::from_secs(1);

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

/// Looks again and again.
pub(super) struct Sampler {
    address: Address,
    client: Client,
    /// How many locks to ask for.
    locks: u16,
    /// By the masters' addresses.
    before: BTreeMap<String, Counters>,
    looked: Instant,
}

impl Sampler {
    /// Looks for the first time.
    pub(super) async fn start(address: &Address, locks: u16) -> Result<Self, Failure> {
        let mut sampler = Self {
            client: address.impatient(PATIENCE).await?,
            address: address.clone(),
            locks,
            before: BTreeMap::new(),
            looked: Instant::now(),
        };
        sampler.next().await?;
        Ok(sampler)
    }

    /// Looks once more; an error if no master shows anything.
    pub(super) async fn next(&mut self) -> Result<Sample, Failure> {
        let failure = |error| self.address.failure(&error);
        let counters = self.client.counters();
        let lists = self.client.list_each(self.locks.into());
        let (counters, lists) = tokio::join!(counters, lists);
        let (mut masters, mut numbers) = (Vec::new(), BTreeMap::new());
        let mut locks = Vec::new();
        for Both { address, answer } in both(counters, lists.map_err(failure)?) {
            let error = match answer {
                Ok((counters, list)) => {
                    numbers.insert(address.clone(), counters);
                    locks.extend(list);
                    None
                }
                Err(error) => Some(error),
            };
            masters.push((address, error));
        }
        if numbers.is_empty()
            && let Some(error) = masters.iter_mut().find_map(|(_, error)| error.take())
        {
            return Err(failure(error));
        }
        locks.sort_by_key(|lock: &Contended| Reverse(lock.waiters));
        locks.truncate(self.locks.into());
        let (elapsed, per_second) = (self.looked.elapsed(), self.rates(&numbers));
        let counters = Counters::total(numbers.values());
        self.looked = Instant::now();
        self.before = numbers;
        Ok(Sample {
            at_ms: now_ms(),
            interval_ms: whole_ms(elapsed),
            counters,
            per_second,
            masters: masters.into_iter().map(Master::new).collect(),
            locks,
        })
    }

    /// How fast the numbers grow at those masters that were seen before.
    fn rates(&self, numbers: &BTreeMap<String, Counters>) -> Rates {
        let elapsed = self.looked.elapsed();
        Rates::total(numbers.iter().map(|(address, now)| {
            let before = self.before.get(address).unwrap_or(now);
            now.rates(before, elapsed)
        }))
    }

    /// Looks at one lock.
    pub(super) async fn lock(&mut self, key: &[u8]) -> Result<LockInfo, Failure> {
        let lock = self.client.mutex(key).info().await;
        let lock = lock.map_err(|error| self.address.failure(&error))?;
        Ok(LockInfo::new(key, lock))
    }

    /// The servers' name.
    pub(super) fn shown(&self) -> String {
        self.address.title()
    }
}

impl Master {
    fn new((address, error): (String, Option<Error>)) -> Self {
        let error = error.map(|error| match error {
            Error::Unavailable {
                source: Some(source),
                ..
            } => format!("away: {source}"),
            Error::Unavailable { .. } => "away: no answer".to_owned(),
            error => error.to_string(),
        });
        Self { address, error }
    }
}

/// Both answers of one master.
struct Both {
    address: String,
    answer: Result<(Counters, Vec<Contended>), Error>,
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
            Ok((Counters::new(&numbers), list))
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
