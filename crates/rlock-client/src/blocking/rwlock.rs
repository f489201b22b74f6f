//! The lock for readers and writers, for code without async.

use std::time::Duration;

use tokio::runtime::Handle;

use super::on_thread::wait_for;
use super::rwlock_guards::{ReadGuard, WriteGuard};
use crate::{Error, Info, Owner, Terms};

/// A lock that readers share and a writer has alone; see [`crate::RwLock`].
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct RwLock {
    lock: crate::RwLock,
    runtime: Handle,
}

impl RwLock {
    pub(super) fn new(lock: crate::RwLock, runtime: Handle) -> Self {
        Self { lock, runtime }
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        self.lock.key()
    }

    /// The same, held on `terms`; see [`crate::RwLock::with`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::with`].
    pub fn with(&self, terms: Terms) -> Result<Self, Error> {
        let lock = self.lock.with(terms)?;
        Ok(Self::new(lock, self.runtime.clone()))
    }

    /// The same, asked for by `owner`; see [`crate::RwLock::by`].
    pub fn by(&self, owner: &Owner) -> Self {
        Self::new(self.lock.by(owner), self.runtime.clone())
    }

    /// Waits to read, without limit; see [`crate::RwLock::read`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::read`].
    pub fn read(&self) -> Result<ReadGuard, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.read().await })
    }

    /// Reads if that can be done at once; see [`crate::RwLock::try_read`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::try_read`].
    pub fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.try_read().await })
    }

    /// Waits to read for at most `wait`; see [`crate::RwLock::read_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::read_timeout`].
    pub fn read_timeout(&self, wait: Duration) -> Result<Option<ReadGuard>, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.read_timeout(wait).await })
    }

    /// Waits to write, without limit; see [`crate::RwLock::write`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::write`].
    pub fn write(&self) -> Result<WriteGuard, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.write().await })
    }

    /// Writes if that can be done at once; see [`crate::RwLock::try_write`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::try_write`].
    pub fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.try_write().await })
    }

    /// Waits to write for at most `wait`; see [`crate::RwLock::write_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::write_timeout`].
    pub fn write_timeout(&self, wait: Duration) -> Result<Option<WriteGuard>, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.write_timeout(wait).await })
    }

    /// Whether `owner` reads or writes; see [`crate::RwLock::is_held_by`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::info`].
    pub fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        let (lock, owner) = (self.lock.clone(), owner.clone());
        wait_for(&self.runtime, async move { lock.is_held_by(&owner).await })
    }

    /// Who holds the lock and who waits for it; see [`crate::RwLock::info`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::info`].
    pub fn info(&self) -> Result<Info, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.info().await })
    }

    /// Takes the lock from all who hold it; see [`crate::RwLock::force_release`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RwLock::info`].
    pub fn force_release(&self) -> Result<u64, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.force_release().await })
    }
}
