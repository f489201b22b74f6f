//! Permits for code without async.

use std::time::Duration;

use tokio::runtime::Handle;

use super::held::held;
use super::on_thread::wait_for;
use crate::{Error, Info, Terms};

/// A number of permits for everybody together; see [`crate::Semaphore`].
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct Semaphore {
    semaphore: crate::Semaphore,
    runtime: Handle,
}

/// Holds some of a semaphore's permits; see [`crate::Permits`].
#[derive(Debug)]
#[must_use = "permits are released as soon as their guard is dropped"]
pub struct Permits {
    guard: crate::Permits,
    runtime: Handle,
}

held!(Permits);

impl Permits {
    /// How many they are.
    pub fn count(&self) -> u32 {
        self.guard.count()
    }
}

impl Semaphore {
    pub(super) fn new(semaphore: crate::Semaphore, runtime: Handle) -> Self {
        Self { semaphore, runtime }
    }

    /// The semaphore's key.
    pub fn key(&self) -> &[u8] {
        self.semaphore.key()
    }

    /// How many permits there are, held or not.
    pub fn permits(&self) -> u32 {
        self.semaphore.permits()
    }

    /// The same, held on `terms`; see [`crate::Semaphore::with`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::with`].
    pub fn with(&self, terms: Terms) -> Result<Self, Error> {
        let semaphore = self.semaphore.with(terms)?;
        Ok(Self::new(semaphore, self.runtime.clone()))
    }

    /// Waits for one permit, without limit; see [`crate::Semaphore::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::acquire`].
    pub fn acquire(&self) -> Result<Permits, Error> {
        self.acquire_many(1)
    }

    /// Waits for `permits` permits together; see
    /// [`crate::Semaphore::acquire_many`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::acquire_many`].
    pub fn acquire_many(&self, permits: u32) -> Result<Permits, Error> {
        let semaphore = self.semaphore.clone();
        let call = async move { semaphore.acquire_many(permits).await };
        wait_for(&self.runtime, call)
    }

    /// Takes one permit if one is free; see [`crate::Semaphore::try_acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Permits>, Error> {
        self.try_acquire_many(1)
    }

    /// Takes `permits` permits if so many are free; see
    /// [`crate::Semaphore::try_acquire_many`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::try_acquire_many`].
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permits>, Error> {
        let semaphore = self.semaphore.clone();
        let call = async move { semaphore.try_acquire_many(permits).await };
        wait_for(&self.runtime, call)
    }

    /// Waits for one permit for at most `wait`; see
    /// [`crate::Semaphore::acquire_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::acquire_timeout`].
    pub fn acquire_timeout(&self, wait: Duration) -> Result<Option<Permits>, Error> {
        self.acquire_many_timeout(1, wait)
    }

    /// Waits for `permits` permits for at most `wait`; see
    /// [`crate::Semaphore::acquire_many_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::acquire_many_timeout`].
    pub fn acquire_many_timeout(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<Permits>, Error> {
        let semaphore = self.semaphore.clone();
        let call = async move { semaphore.acquire_many_timeout(permits, wait).await };
        wait_for(&self.runtime, call)
    }

    /// Who holds permits and who waits; see [`crate::Semaphore::info`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::info`].
    pub fn info(&self) -> Result<Info, Error> {
        let semaphore = self.semaphore.clone();
        wait_for(&self.runtime, async move { semaphore.info().await })
    }

    /// Takes all permits from those who hold them; see
    /// [`crate::Semaphore::force_release`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Semaphore::info`].
    pub fn force_release(&self) -> Result<u64, Error> {
        let semaphore = self.semaphore.clone();
        wait_for(
            &self.runtime,
            async move { semaphore.force_release().await },
        )
    }
}
