//! The exclusive lock for code without async.

use std::time::Duration;

use tokio::runtime::Handle;

use super::held::held;
use super::on_thread::wait_for;
use crate::{Error, Info, Owner, Terms};

/// A lock; see [`crate::Mutex`].
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct Mutex {
    mutex: crate::Mutex,
    runtime: Handle,
}

/// Holds a lock; see [`crate::Guard`].
#[derive(Debug)]
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct Guard {
    guard: crate::Guard,
    runtime: Handle,
}

held!(Guard);

impl Mutex {
    pub(super) fn new(mutex: crate::Mutex, runtime: Handle) -> Self {
        Self { mutex, runtime }
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        self.mutex.key()
    }

    /// The same, held on `terms`; see [`crate::Mutex::with`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::with`].
    pub fn with(&self, terms: Terms) -> Result<Self, Error> {
        let mutex = self.mutex.with(terms)?;
        Ok(Self::new(mutex, self.runtime.clone()))
    }

    /// The same, asked for by `owner`; see [`crate::Mutex::by`].
    pub fn by(&self, owner: &Owner) -> Self {
        Self::new(self.mutex.by(owner), self.runtime.clone())
    }

    /// Waits for the lock, without limit; see [`crate::Mutex::lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::lock`].
    pub fn lock(&self) -> Result<Guard, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.lock().await })
    }

    /// Takes the lock if it is free; see [`crate::Mutex::try_lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::try_lock`].
    pub fn try_lock(&self) -> Result<Option<Guard>, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.try_lock().await })
    }

    /// Waits for at most `wait`; see [`crate::Mutex::lock_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::lock_timeout`].
    pub fn lock_timeout(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.lock_timeout(wait).await })
    }

    /// Whether anybody holds the lock; see [`crate::Mutex::is_locked`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::info`].
    pub fn is_locked(&self) -> Result<bool, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.is_locked().await })
    }

    /// Whether `owner` holds the lock; see [`crate::Mutex::is_held_by`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::info`].
    pub fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        let (mutex, owner) = (self.mutex.clone(), owner.clone());
        wait_for(&self.runtime, async move { mutex.is_held_by(&owner).await })
    }

    /// Who holds the lock and who waits for it; see [`crate::Mutex::info`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::info`].
    pub fn info(&self) -> Result<Info, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.info().await })
    }

    /// Takes the lock from its holders; see [`crate::Mutex::force_release`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::force_release`].
    pub fn force_release(&self) -> Result<u64, Error> {
        let mutex = self.mutex.clone();
        wait_for(&self.runtime, async move { mutex.force_release().await })
    }
}
