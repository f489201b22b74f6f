//! The guards of readers and writers, for code without async, and how one
//! becomes the other.

use std::time::Duration;

use tokio::runtime::Handle;

use super::held::held;
use super::on_thread::OnThread;
use super::run;
use crate::Error;

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

impl OnThread for crate::Upgrade {
    type Blocking = Upgrade;

    fn on(self, runtime: &Handle) -> Upgrade {
        match self {
            Self::Granted(guard) => Upgrade::Granted(guard.on(runtime)),
            Self::Refused(guard) => Upgrade::Refused(guard.on(runtime)),
        }
    }
}

/// A guard that could not be changed, and why; see [`crate::ChangeError`].
///
/// Turns into its [`Error`] with `?`, which releases the guard.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ChangeError {
    /// What is held still; none if the client's thread is gone.
    pub guard: Option<ReadGuard>,
    /// What went wrong.
    #[source]
    pub error: Error,
}

impl From<ChangeError> for Error {
    fn from(failed: ChangeError) -> Self {
        failed.error
    }
}

/// Waits on this thread for a change that runs on the client's.
fn change<T: OnThread>(
    runtime: &Handle,
    call: impl Future<Output = Result<T, crate::ChangeError>> + Send + 'static,
) -> Result<T::Blocking, ChangeError> {
    match run(runtime, call) {
        Ok(Ok(guard)) => Ok(guard.on(runtime)),
        Ok(Err(failed)) => Err(ChangeError {
            guard: Some(failed.guard.on(runtime)),
            error: failed.error,
        }),
        Err(error) => Err(ChangeError { guard: None, error }),
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
        change(&self.runtime, self.guard.upgrade())
    }

    /// Writes if nobody else reads; see [`crate::ReadGuard::try_upgrade`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::ReadGuard::try_upgrade`].
    pub fn try_upgrade(self) -> Result<Upgrade, ChangeError> {
        change(&self.runtime, self.guard.try_upgrade())
    }

    /// Waits to write for at most `wait`; see
    /// [`crate::ReadGuard::upgrade_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::ReadGuard::upgrade_timeout`].
    pub fn upgrade_timeout(self, wait: Duration) -> Result<Upgrade, ChangeError> {
        change(&self.runtime, self.guard.upgrade_timeout(wait))
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
        change(&self.runtime, self.guard.downgrade())
    }
}
