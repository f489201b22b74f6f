//! Several locks as one, for code without async.

use std::time::Duration;

use tokio::runtime::Handle;

use super::lost::Lost;
use super::on_thread::{OnThread, wait_for};
use super::run;
use crate::{Error, Owner, Terms};

/// Several locks that are held together or not at all; see
/// [`crate::MultiLock`].
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct MultiLock {
    lock: crate::MultiLock,
    runtime: Handle,
}

/// Holds several locks; see [`crate::MultiGuard`].
#[derive(Debug)]
#[must_use = "locks are released as soon as their guard is dropped"]
pub struct MultiGuard {
    guard: crate::MultiGuard,
    runtime: Handle,
}

impl OnThread for crate::MultiGuard {
    type Blocking = MultiGuard;

    fn on(self, runtime: &Handle) -> MultiGuard {
        let runtime = runtime.clone();
        MultiGuard {
            guard: self,
            runtime,
        }
    }
}

impl MultiLock {
    pub(super) fn new(lock: crate::MultiLock, runtime: Handle) -> Self {
        Self { lock, runtime }
    }

    /// The keys, in the order of their names.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.lock.keys()
    }

    /// The same, held on `terms`; see [`crate::MultiLock::with`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::MultiLock::with`].
    pub fn with(&self, terms: Terms) -> Result<Self, Error> {
        let lock = self.lock.with(terms)?;
        Ok(Self::new(lock, self.runtime.clone()))
    }

    /// The same, asked for by `owner`; see [`crate::MultiLock::by`].
    pub fn by(&self, owner: &Owner) -> Self {
        Self::new(self.lock.by(owner), self.runtime.clone())
    }

    /// Waits for all of them, without limit; see [`crate::MultiLock::lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::MultiLock::lock`].
    pub fn lock(&self) -> Result<MultiGuard, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.lock().await })
    }

    /// Takes all of them if all are free; see [`crate::MultiLock::try_lock`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::MultiLock::try_lock`].
    pub fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.try_lock().await })
    }

    /// Waits for all of them for at most `wait`; see
    /// [`crate::MultiLock::lock_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::MultiLock::lock_timeout`].
    pub fn lock_timeout(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        let lock = self.lock.clone();
        wait_for(&self.runtime, async move { lock.lock_timeout(wait).await })
    }
}

impl MultiGuard {
    /// The fencing token; see [`crate::MultiGuard::fence`].
    pub fn fence(&self) -> u64 {
        self.guard.fence()
    }

    /// The fencing token of one of the locks; see
    /// [`crate::MultiGuard::fence_of`].
    pub fn fence_of(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        self.guard.fence_of(key)
    }

    /// Who holds them.
    pub fn owner(&self) -> &Owner {
        self.guard.owner()
    }

    /// The keys, in the order of their names.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.guard.keys()
    }

    /// For how long all of them are held for certain; see
    /// [`crate::MultiGuard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Whether all of them are held for certain; see
    /// [`crate::MultiGuard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Tells when one of them is lost; see [`crate::MultiGuard::loss`].
    pub fn loss(&self) -> Lost {
        Lost::of(self.guard.loss(), &self.runtime)
    }

    /// Has all of them last for at least `lease` from now; see
    /// [`crate::MultiGuard::extend`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::MultiGuard::extend`].
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        run(&self.runtime, self.guard.extending(lease))?
    }

    /// Releases all of them and waits for the server's word; see
    /// [`crate::MultiGuard::release`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::MultiGuard::release`].
    pub fn release(self) -> Result<(), Error> {
        let guard = self.guard;
        run(&self.runtime, async move { guard.release().await })?
    }
}
