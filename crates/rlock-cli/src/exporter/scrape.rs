//! Asks the servers for their metrics.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rlock_client::{Client, Contended, Counters};
use tokio::sync::{Mutex, Semaphore};

use crate::address::Address;
use crate::failure::{Code, Failure};
use crate::output::Output;

/// How long to wait for an unreachable master. Prometheus waits 10 s for all.
const RETRY_TIMEOUT: Duration = Duration::from_secs(3);
/// The limit for a whole scrape.
const SCRAPE_LIMIT: Duration = Duration::from_secs(8);
/// How many scrapes may run at a time, so that many do not load the servers.
const SCRAPES_MAX: usize = 4;

/// Scrapes the servers on demand.
pub(super) struct Scraper {
    address: Address,
    locks: u16,
    /// None until a server has been reached.
    client: Mutex<Option<Client>>,
    free: Semaphore,
    output: Output,
    /// Why the last scrape of a master was incomplete, by the master's address.
    /// Each failure is reported once.
    reported: std::sync::Mutex<BTreeMap<String, String>>,
}

/// The result of a scrape.
pub(super) struct Scrape {
    pub(super) masters: Vec<Master>,
    pub(super) took: Duration,
}

/// The metrics of one master; empty if it is unreachable.
pub(super) struct Master {
    pub(super) address: String,
    pub(super) counters: Option<Counters>,
    pub(super) locks: Vec<Contended>,
    /// Why they are incomplete.
    failure: Option<Failure>,
}

impl Scraper {
    /// An unreachable server is not an error: each scrape tries again. An
    /// invalid address is an error.
    pub(super) async fn start(
        address: &Address,
        locks: u16,
        output: Output,
    ) -> Result<Self, Failure> {
        let client = match address.questioner_with(RETRY_TIMEOUT).await {
            Ok(client) => Some(client),
            Err(failure) if failure.code == Code::Usage => return Err(failure),
            Err(_) => None,
        };
        Ok(Self {
            address: address.clone(),
            locks,
            client: Mutex::new(client),
            free: Semaphore::new(SCRAPES_MAX),
            output,
            reported: std::sync::Mutex::default(),
        })
    }

    /// Scrapes all masters. None if too many scrapes are running.
    pub(super) async fn scrape(&self) -> Option<Scrape> {
        let _permit = self.free.try_acquire().ok()?;
        let began = Instant::now();
        let masters = tokio::time::timeout(SCRAPE_LIMIT, self.masters()).await;
        let masters =
            masters.unwrap_or_else(|_| self.unreachable(self.address.no_answer(SCRAPE_LIMIT)));
        self.report_changes(&masters);
        Some(Scrape {
            masters,
            took: began.elapsed(),
        })
    }

    async fn masters(&self) -> Vec<Master> {
        let client = match self.client().await {
            Ok(client) => client,
            Err(failure) => return self.unreachable(failure),
        };
        let lists = async {
            match self.locks {
                0 => Ok(Vec::new()),
                count => client.list_each(count.into()).await,
            }
        };
        let (counters, lists) = tokio::join!(client.counters(), lists);
        let mut lists = lists.unwrap_or_default();
        let masters = counters.into_iter().map(|master| {
            let list = lists.iter_mut().find(|it| it.address == master.address);
            let list = list.map(|list| list.answer.as_mut().map(std::mem::take));
            let failure = match (&master.answer, &list) {
                (Err(error), _) => Some(down(&master.address, self.address.failure(error))),
                (Ok(_), Some(Err(error))) => {
                    let what = format!("no contended locks of {}", master.address);
                    Some(because(&what, self.address.failure(error)))
                }
                _ => None,
            };
            Master {
                address: master.address,
                counters: master.answer.ok(),
                locks: list.and_then(Result::ok).unwrap_or_default(),
                failure,
            }
        });
        masters.collect()
    }

    /// The client. It connects now if it could not before.
    async fn client(&self) -> Result<Client, Failure> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let connected = self.address.questioner_with(RETRY_TIMEOUT).await?;
        Ok(client.insert(connected).clone())
    }

    /// No master can be reached.
    fn unreachable(&self, failure: Failure) -> Vec<Master> {
        let address = self.address.label();
        vec![Master {
            failure: Some(down(&address, failure)),
            address,
            counters: None,
            locks: Vec::new(),
        }]
    }

    /// Reports new failures of masters, and their ends.
    fn report_changes(&self, masters: &[Master]) {
        let failures = masters.iter().filter_map(|master| {
            let failure = master.failure.as_ref()?;
            Some((master.address.clone(), failure.message.clone()))
        });
        let failures: BTreeMap<_, _> = failures.collect();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        for master in masters {
            let (now, before) = (failures.get(&master.address), reported.get(&master.address));
            match &master.failure {
                Some(failure) if now != before => self.output.failure(failure),
                None if before.is_some() => {
                    let words = format!("rlock: the server at {} answers again", master.address);
                    self.output.say(&words);
                }
                _ => {}
            }
        }
        *reported = failures;
    }
}

fn down(master: &str, failure: Failure) -> Failure {
    because(&format!("rlock_up of {master} is 0"), failure)
}

fn because(what: &str, failure: Failure) -> Failure {
    let message = format!("{what}: {}", failure.message);
    Failure { message, ..failure }
}
