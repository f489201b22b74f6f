//! What one look at the servers shows.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rlock_client::{Client, Contended, Counters};
use tokio::sync::{Mutex, Semaphore};

use crate::address::Address;
use crate::failure::{Code, Failure};
use crate::output::Output;

/// How long an unreachable master is waited for. Prometheus waits 10 s for all.
const PATIENCE: Duration = Duration::from_secs(3);
/// When the whole look ends, whatever happens.
const LIMIT: Duration = Duration::from_secs(8);
/// How many may look at a time, so that a crowd of scrapes is no load.
const LOOKS_MAX: usize = 4;

/// Looks at the servers whenever it is asked to.
pub(super) struct Looker {
    address: Address,
    locks: u16,
    /// None until a server has been reached.
    client: Mutex<Option<Client>>,
    free: Semaphore,
    output: Output,
    /// Why the last look did not show all of a master, by its address. It was
    /// said when it began.
    said: std::sync::Mutex<BTreeMap<String, String>>,
}

/// What the servers have shown.
pub(super) struct Looks {
    pub(super) masters: Vec<Master>,
    pub(super) took: Duration,
}

/// What one master has shown; nothing if it is unreachable.
pub(super) struct Master {
    pub(super) address: String,
    pub(super) counters: Option<Counters>,
    pub(super) locks: Vec<Contended>,
    /// Why it did not show all.
    trouble: Option<Failure>,
}

impl Looker {
    /// An unreachable server now is looked for again later. An address that
    /// cannot be read is an error.
    pub(super) async fn start(
        address: &Address,
        locks: u16,
        output: Output,
    ) -> Result<Self, Failure> {
        let client = match address.questioner_with(PATIENCE).await {
            Ok(client) => Some(client),
            Err(failure) if failure.code == Code::Usage => return Err(failure),
            Err(_) => None,
        };
        Ok(Self {
            address: address.clone(),
            locks,
            client: Mutex::new(client),
            free: Semaphore::new(LOOKS_MAX),
            output,
            said: std::sync::Mutex::default(),
        })
    }

    /// Looks at all masters; none if too many are looking already.
    pub(super) async fn look(&self) -> Option<Looks> {
        let _permit = self.free.try_acquire().ok()?;
        let began = Instant::now();
        let masters = tokio::time::timeout(LIMIT, self.masters()).await;
        let masters = masters.unwrap_or_else(|_| self.away(self.address.silent(LIMIT)));
        self.say_changes(&masters);
        Some(Looks {
            masters,
            took: began.elapsed(),
        })
    }

    async fn masters(&self) -> Vec<Master> {
        let client = match self.client().await {
            Ok(client) => client,
            Err(failure) => return self.away(failure),
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
            let trouble = match (&master.answer, &list) {
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
                trouble,
            }
        });
        masters.collect()
    }

    /// The client, which connects now if it could not before.
    async fn client(&self) -> Result<Client, Failure> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let connected = self.address.questioner_with(PATIENCE).await?;
        Ok(client.insert(connected).clone())
    }

    /// None of them can be reached.
    fn away(&self, why: Failure) -> Vec<Master> {
        let address = self.address.label();
        vec![Master {
            trouble: Some(down(&address, why)),
            address,
            counters: None,
            locks: Vec::new(),
        }]
    }

    /// Says why a master does not show all, once, and when it does again.
    fn say_changes(&self, masters: &[Master]) {
        let troubles = masters.iter().filter_map(|master| {
            let trouble = master.trouble.as_ref()?;
            Some((master.address.clone(), trouble.message.clone()))
        });
        let troubles: BTreeMap<_, _> = troubles.collect();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        for master in masters {
            let (now, before) = (troubles.get(&master.address), said.get(&master.address));
            match &master.trouble {
                Some(trouble) if now != before => self.output.failure(trouble),
                None if before.is_some() => {
                    let words = format!("rlock: the server at {} answers again", master.address);
                    self.output.say(&words);
                }
                _ => {}
            }
        }
        *said = troubles;
    }
}

fn down(master: &str, why: Failure) -> Failure {
    because(&format!("rlock_up of {master} is 0"), why)
}

fn because(what: &str, why: Failure) -> Failure {
    let message = format!("{what}: {}", why.message);
    Failure { message, ..why }
}
