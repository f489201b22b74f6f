//! Locks on several independent servers, for code without async.

use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::held::held;
use super::on_thread::wait_for;
use super::run;
use crate::quorum::read;
use crate::{Error, HoldingMember, Owner, QuorumBuilder, Servers, Terms};

/// Independent servers that hold locks together; see [`crate::Quorum`].
#[derive(Clone, Debug)]
pub struct Quorum {
    quorum: crate::Quorum,
    runtime: Handle,
}

/// A lock on a majority of servers; see [`crate::QuorumMutex`].
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct QuorumMutex {
    mutex: crate::QuorumMutex,
    runtime: Handle,
}

/// Holds a lock on a majority of servers; see [`crate::QuorumGuard`].
#[derive(Debug)]
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct QuorumGuard {
    guard: crate::QuorumGuard,
    runtime: Handle,
}

held!(QuorumGuard);

impl QuorumGuard {
    /// The members that hold it now; see [`crate::QuorumGuard::members`].
    pub fn members(&self) -> Vec<HoldingMember> {
        self.guard.members()
    }
}

impl Quorum {
    /// Connects to the servers at `urls`; see [`crate::Quorum::connect`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Quorum::connect`], and [`Error::Closed`] if the system
    /// gives no further thread.
    pub fn connect<S>(servers: impl IntoIterator<Item = S>) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        Self::connect_with(QuorumBuilder::default(), servers)
    }

    /// Connects with settings.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and [`Error::OutOfRange`] for a
    /// setting.
    pub fn connect_with<S>(
        settings: QuorumBuilder,
        servers: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        let (connected, outcome) = mpsc::sync_channel(1);
        let connected = move |quorum| drop(connected.send(quorum));
        let runtime = settings.start_on_thread(read(servers)?, connected)?;
        let quorum = outcome.recv().map_err(|_| Error::Closed)??;
        Ok(Self { quorum, runtime })
    }

    /// The lock at `key`; see [`crate::Quorum::mutex`].
    pub fn mutex(&self, key: impl AsRef<[u8]>) -> QuorumMutex {
        let (mutex, runtime) = (self.quorum.mutex(key), self.runtime.clone());
        QuorumMutex { mutex, runtime }
    }

    /// A new owner; see [`crate::Quorum::owner`].
    pub fn owner(&self) -> Owner {
        self.quorum.owner()
    }

    /// Waits until the background has nothing left to release or withdraw; see
    /// [`crate::Quorum::flush`].
    pub fn flush(&self) {
        let quorum = self.quorum.clone();
        // An error means that the background is gone: nothing is left to do.
        let _ = run(&self.runtime, async move { quorum.flush().await });
    }
}

impl QuorumMutex {
    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        self.mutex.key()
    }

    /// The same, held on `terms`; see [`crate::QuorumMutex::with`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::QuorumMutex::with`].
    pub fn with(&self, terms: Terms) -> Result<Self, Error> {
        let (mutex, runtime) = (self.mutex.with(terms)?, self.runtime.clone());
        Ok(Self { mutex, runtime })
    }

    /// The same, asked for by `owner`; see [`crate::QuorumMutex::by`].
    pub fn by(&self, owner: &Owner) -> Self {
        let (mutex, runtime) = (self.mutex.by(owner), self.runtime.clone());
        Self { mutex, runtime }
    }

    /// Waits for the lock, without limit; see [`crate::QuorumMutex::lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::QuorumMutex::lock`].
    pub fn lock(&self) -> Result<QuorumGuard, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.lock().await })
    }

    /// Takes the lock if it is free; see [`crate::QuorumMutex::try_lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::QuorumMutex::try_lock`].
    pub fn try_lock(&self) -> Result<Option<QuorumGuard>, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.try_lock().await })
    }

    /// Waits for at most `wait`; see [`crate::QuorumMutex::lock_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::QuorumMutex::lock_timeout`].
    pub fn lock_timeout(&self, wait: Duration) -> Result<Option<QuorumGuard>, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.lock_timeout(wait).await })
    }
}
