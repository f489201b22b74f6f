//! The clients of a load, from their start to their end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rlock_client::{Client, Error, Terms};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::address::Address;
use crate::failure::{Code, Failure};

use super::Bench;
use super::report::Tally;

/// The lock of a killed client ends after this time.
const LEASE: Duration = Duration::from_secs(10);
/// How long the releases may take after the end of a run.
const CLEANUP_MAX: Duration = Duration::from_secs(2);
/// How many clients connect at a time.
const CONNECTING_MAX: usize = 32;

pub(super) struct Load {
    clients: Vec<Client>,
    workers: JoinSet<Result<(), Error>>,
    shared: Arc<Shared>,
    address: Address,
    failure: Option<Failure>,
}

/// What all workers share.
struct Shared {
    prefix: String,
    locks: u64,
    /// How many acquires have begun. The limit is `ops_max`.
    begun: AtomicU64,
    ops_max: u64,
    start: Instant,
    end: Instant,
    tally: Mutex<Tally>,
}

impl Load {
    /// Connects all clients. Their time has not started.
    pub(super) async fn connect(bench: &Bench, address: &Address) -> Result<Self, Failure> {
        let mut clients = Vec::new();
        let mut connecting = JoinSet::new();
        for number in 0..bench.clients {
            let address = address.clone();
            connecting.spawn(async move { address.client().await });
            let is_last = number + 1 == bench.clients;
            while connecting.len() >= CONNECTING_MAX || is_last {
                match connecting.join_next().await {
                    Some(joined) => clients.push(joined.map_err(|error| broken(&error))??),
                    None => break,
                }
            }
        }
        let tally = Tally::new()
            .map_err(|error| Failure::new(Code::Internal, format!("no histogram: {error}")))?;
        let start = Instant::now();
        let shared = Shared {
            prefix: format!("rlock-bench:{}:", Uuid::new_v4()),
            locks: u64::from(bench.locks),
            begun: AtomicU64::new(0),
            ops_max: bench.ops.unwrap_or(u64::MAX),
            start,
            end: start + Duration::from_secs(bench.seconds),
            tally: Mutex::new(tally),
        };
        Ok(Self {
            clients,
            workers: JoinSet::new(),
            shared: Arc::new(shared),
            address: address.clone(),
            failure: None,
        })
    }

    /// Starts all clients.
    pub(super) fn start(&mut self) {
        for (client, first) in self.clients.iter().zip(0..) {
            let (client, shared) = (client.clone(), Arc::clone(&self.shared));
            self.workers.spawn(work(client, shared, first));
        }
    }

    /// Waits until all clients have ended, one has failed, or the time is over.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn ended(&mut self) {
        let end = self.shared.end.into();
        while let Ok(Some(joined)) = tokio::time::timeout_at(end, self.workers.join_next()).await {
            self.failure = match joined {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => Some(self.address.failure(&error)),
                Err(error) => Some(broken(&error)),
            };
            return;
        }
    }

    /// How long it has run, and how many acquires are done.
    pub(super) fn progress(&self) -> (Duration, u64) {
        (self.shared.start.elapsed(), self.shared.tally().ops())
    }

    /// Ends all clients. Returns their measurements.
    pub(super) async fn finish(mut self) -> Result<Tally, Failure> {
        let clean_up = async {
            self.workers.shutdown().await;
            for client in &self.clients {
                // The measurements are complete, whatever becomes of the locks.
                let _ = client.flush().await;
            }
        };
        let _ = tokio::time::timeout(CLEANUP_MAX, clean_up).await;
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self.shared.tally().clone()),
        }
    }
}

impl Shared {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more acquire may begin.
    fn may_begin(&self) -> bool {
        Instant::now() < self.end && self.begun.fetch_add(1, Ordering::Relaxed) < self.ops_max
    }
}

/// Acquires and releases the locks in turn, starting with number `first`.
async fn work(client: Client, shared: Arc<Shared>, first: u64) -> Result<(), Error> {
    let mut number = first;
    while shared.may_begin() {
        let key = format!("{}{}", shared.prefix, number % shared.locks);
        number += 1;
        let mutex = client.mutex(key).with(Terms::new().lease(LEASE)?);
        let asked = Instant::now();
        let guard = mutex.lock().await?;
        let granted = Instant::now();
        guard.release().await?;
        let released = Instant::now();
        let elapsed = released - shared.start;
        shared
            .tally()
            .count(granted - asked, released - granted, elapsed);
    }
    Ok(())
}

fn broken(error: &tokio::task::JoinError) -> Failure {
    Failure::new(Code::Internal, format!("a client ended early: {error}"))
}
