//! What one look at the servers shows.

use std::time::{Duration, Instant};

use rlock_client::{Client, Contended, Counters};
use tokio::sync::{Mutex, Semaphore};

use crate::address::Address;
use crate::failure::{Code, Failure};

/// How long a master that is away is waited for. Prometheus waits 10 s for all.
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
}

/// What the servers have shown.
pub(super) struct Looks {
    pub(super) masters: Vec<Master>,
    pub(super) took: Duration,
}

/// What one master has shown; nothing if it is away.
pub(super) struct Master {
    pub(super) address: String,
    pub(super) counters: Option<Counters>,
    pub(super) locks: Vec<Contended>,
}

impl Looker {
    /// A server that is away now is looked for again later. An address that
    /// cannot be read is an error.
    pub(super) async fn start(address: &Address, locks: u16) -> Result<Self, Failure> {
        let client = match address.impatient(PATIENCE).await {
            Ok(client) => Some(client),
            Err(failure) if failure.code == Code::Usage => return Err(failure),
            Err(_) => None,
        };
        Ok(Self {
            address: address.clone(),
            locks,
            client: Mutex::new(client),
            free: Semaphore::new(LOOKS_MAX),
        })
    }

    /// Looks at all masters; none if too many are looking already.
    pub(super) async fn look(&self) -> Option<Looks> {
        let _permit = self.free.try_acquire().ok()?;
        let began = Instant::now();
        let masters = tokio::time::timeout(LIMIT, self.masters()).await;
        let masters = masters.unwrap_or_else(|_| self.away());
        Some(Looks {
            masters,
            took: began.elapsed(),
        })
    }

    async fn masters(&self) -> Vec<Master> {
        let Some(client) = self.client().await else {
            return self.away();
        };
        let lists = async {
            match self.locks {
                0 => Vec::new(),
                count => client.list_each(count.into()).await.unwrap_or_default(),
            }
        };
        let (counters, mut lists) = tokio::join!(client.counters(), lists);
        let masters = counters.into_iter().map(|master| {
            let list = lists.iter_mut().find(|it| it.address == master.address);
            let locks = list.and_then(|list| list.answer.as_mut().ok().map(std::mem::take));
            Master {
                address: master.address,
                counters: master.answer.ok(),
                locks: locks.unwrap_or_default(),
            }
        });
        masters.collect()
    }

    /// The client, which connects now if it could not before.
    async fn client(&self) -> Option<Client> {
        let mut client = self.client.lock().await;
        if client.is_none() {
            *client = self.address.impatient(PATIENCE).await.ok();
        }
        client.clone()
    }

    /// None of them can be reached.
    fn away(&self) -> Vec<Master> {
        vec![Master {
            address: self.address.title(),
            counters: None,
            locks: Vec::new(),
        }]
    }
}
