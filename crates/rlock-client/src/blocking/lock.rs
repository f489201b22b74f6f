//! Lock and guard for code without async.

use std::time::Duration;

use tokio::runtime::Handle;

use super::run;
use crate::{Error, Info, Loss, Owner};

/// A lock; see [`crate::Mutex`].
#[derive(Clone, Debug)]
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

impl Mutex {
    pub(super) fn new(mutex: crate::Mutex, runtime: Handle) -> Self {
        Self { mutex, runtime }
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        self.mutex.key()
    }

    /// Waits for the lock, without limit; see [`crate::Mutex::lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::lock`].
    pub fn lock(&self) -> Result<Guard, Error> {
        let mutex = self.mutex.clone();
        run(&self.runtime, async move { mutex.lock().await })?.map(|guard| self.guard(guard))
    }

    /// Takes the lock if it is free; see [`crate::Mutex::try_lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::try_lock`].
    pub fn try_lock(&self) -> Result<Option<Guard>, Error> {
        let mutex = self.mutex.clone();
        self.guards(run(&self.runtime, async move { mutex.try_lock().await })?)
    }

    /// Waits for at most `wait`; see [`crate::Mutex::lock_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::lock_timeout`].
    pub fn lock_timeout(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        let mutex = self.mutex.clone();
        self.guards(run(&self.runtime, async move {
            mutex.lock_timeout(wait).await
        })?)
    }

    /// Waits as `owner`; see [`crate::Mutex::lock_as`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::lock_as`].
    pub fn lock_as(&self, owner: &Owner) -> Result<Guard, Error> {
        let (mutex, owner) = (self.mutex.clone(), owner.clone());
        let guard = run(&self.runtime, async move { mutex.lock_as(&owner).await })?;
        guard.map(|guard| self.guard(guard))
    }

    /// Takes it as `owner` if that can be done at once; see
    /// [`crate::Mutex::try_lock_as`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::try_lock_as`].
    pub fn try_lock_as(&self, owner: &Owner) -> Result<Option<Guard>, Error> {
        let (mutex, owner) = (self.mutex.clone(), owner.clone());
        self.guards(run(&self.runtime, async move {
            mutex.try_lock_as(&owner).await
        })?)
    }

    /// Waits as `owner` for at most `wait`; see [`crate::Mutex::lock_timeout_as`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::lock_timeout_as`].
    pub fn lock_timeout_as(&self, owner: &Owner, wait: Duration) -> Result<Option<Guard>, Error> {
        let (mutex, owner) = (self.mutex.clone(), owner.clone());
        self.guards(run(&self.runtime, async move {
            mutex.lock_timeout_as(&owner, wait).await
        })?)
    }

    /// Whether anybody holds the lock; see [`crate::Mutex::is_locked`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::info`].
    pub fn is_locked(&self) -> Result<bool, Error> {
        let mutex = self.mutex.clone();
        run(&self.runtime, async move { mutex.is_locked().await })?
    }

    /// Whether `owner` holds the lock; see [`crate::Mutex::is_held_by`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::info`].
    pub fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        let (mutex, owner) = (self.mutex.clone(), owner.clone());
        run(&self.runtime, async move { mutex.is_held_by(&owner).await })?
    }

    /// Who holds the lock and who waits for it; see [`crate::Mutex::info`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::info`].
    pub fn info(&self) -> Result<Info, Error> {
        let mutex = self.mutex.clone();
        run(&self.runtime, async move { mutex.info().await })?
    }

    /// Takes the lock from whoever holds it; see [`crate::Mutex::force_release`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Mutex::force_release`].
    pub fn force_release(&self) -> Result<u64, Error> {
        let mutex = self.mutex.clone();
        run(&self.runtime, async move { mutex.force_release().await })?
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard {
            guard,
            runtime: self.runtime.clone(),
        }
    }

    fn guards(&self, got: Result<Option<crate::Guard>, Error>) -> Result<Option<Guard>, Error> {
        Ok(got?.map(|guard| self.guard(guard)))
    }
}

impl Guard {
    /// The fencing token; see [`crate::Guard::fence`].
    pub fn fence(&self) -> u64 {
        self.guard.fence()
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        self.guard.owner()
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        self.guard.key()
    }

    /// For how long the lock is held for certain; see [`crate::Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Whether the lock is held for certain; see [`crate::Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Why the lock was lost; `None` while it is held.
    pub fn loss(&self) -> Option<Loss> {
        self.guard.loss()
    }

    /// Blocks until the lock is lost; see [`crate::Guard::lost`].
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if the client's thread is gone.
    pub fn lost(&self) -> Result<Loss, Error> {
        let hold = self.guard.hold();
        run(&self.runtime, async move { hold.lost().await })
    }

    /// Releases the lock and waits for the server's word; see
    /// [`crate::Guard::release`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Guard::release`].
    pub fn release(self) -> Result<(), Error> {
        let guard = self.guard;
        run(&self.runtime, async move { guard.release().await })?
    }
}
