//! The guards of readers and writers, for code without async, and how one
//! becomes the other.

use std::time::Duration;

use rlock_engine::engine::ask::Queueing;
use tokio::runtime::Handle;

use super::held::held;
use super::on_thread::{OnThread, wait_for};
use crate::Error;
use crate::locks::lock::at_most;

/// Holds a lock together with other readers; see [`crate::ReadGuard`].
#[derive(Debug)]
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct ReadGuard {
    guard: crate::ReadGuard,
    runtime: Handle,
}

held!(ReadGuard);

/// Holds a lock alone; see [`crate::WriteGuard`].
#[derive(Debug)]
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct WriteGuard {
    guard: crate::WriteGuard,
    runtime: Handle,
}

held!(WriteGuard);

/// What a reader has that asked to write; see [`crate::Upgrade`].
#[derive(Debug)]
#[must_use = "a lock is released as soon as its guard is dropped"]
pub enum Upgrade {
    /// It writes now.
    Granted(WriteGuard),
    /// Others read as well: it reads as before.
    Refused(ReadGuard),
}

/// A guard that could not be changed, and why; see [`crate::ChangeError`].
///
/// Turns into its [`Error`] with `?`, which releases the guard.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ChangeError {
    /// What is held still: the lock for reading, or what is left of a lost
    /// hold.
    pub guard: ReadGuard,
    /// What went wrong.
    #[source]
    pub error: Error,
}

impl From<ChangeError> for Error {
    fn from(failed: ChangeError) -> Self {
        failed.error
    }
}

impl ReadGuard {
    /// Waits until all other readers are gone, and writes; see
    /// [`crate::ReadGuard::upgrade`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::ReadGuard::upgrade`].
    pub fn upgrade(self) -> Result<WriteGuard, ChangeError> {
        let mut reading = self;
        loop {
            match reading.ask(Queueing::Unlimited)? {
                Upgrade::Granted(writing) => return Ok(writing),
                // The server never says so to a request without limit.
                Upgrade::Refused(guard) => reading = guard,
            }
        }
    }

    /// Writes if nobody else reads; see [`crate::ReadGuard::try_upgrade`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::ReadGuard::try_upgrade`].
    pub fn try_upgrade(self) -> Result<Upgrade, ChangeError> {
        self.ask(Queueing::Try)
    }

    /// Waits to write for at most `wait`; see
    /// [`crate::ReadGuard::upgrade_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::ReadGuard::upgrade_timeout`].
    pub fn upgrade_timeout(self, wait: Duration) -> Result<Upgrade, ChangeError> {
        match at_most(wait) {
            Ok(queueing) => self.ask(queueing),
            Err(error) => Err(ChangeError { guard: self, error }),
        }
    }

    /// The guard stays on this thread, also if the client's is gone.
    fn ask(self, queueing: Queueing) -> Result<Upgrade, ChangeError> {
        match wait_for(&self.runtime, self.guard.asking(queueing)) {
            Ok(Some(writing)) => Ok(Upgrade::Granted(writing)),
            Ok(None) => Ok(Upgrade::Refused(self)),
            Err(error) => Err(ChangeError { guard: self, error }),
        }
    }
}

impl WriteGuard {
    /// Whether nobody can have written since it was a read guard; see
    /// [`crate::WriteGuard::is_unbroken`].
    pub fn is_unbroken(&self) -> bool {
        self.guard.is_unbroken()
    }

    /// Goes on reading, and lets other readers in; see
    /// [`crate::WriteGuard::downgrade`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::WriteGuard::downgrade`].
    pub fn downgrade(self) -> Result<ReadGuard, ChangeError> {
        let (reading, shared) = self.guard.sharing();
        let guard = reading.on(&self.runtime);
        match wait_for(&self.runtime, shared) {
            Ok(()) => Ok(guard),
            Err(error) => Err(ChangeError { guard, error }),
        }
    }
}
