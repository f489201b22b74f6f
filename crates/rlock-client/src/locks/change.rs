//! What a change from reading to writing, or back, came to.

use rlock_engine::error::Error;

use crate::locks::read_guard::ReadGuard;
use crate::locks::write_guard::WriteGuard;

/// What a reader has that asked to write, and not without limit.
#[derive(Debug)]
#[must_use = "a lock is released as soon as its guard is dropped"]
pub enum Upgrade {
    /// It writes now.
    Granted(WriteGuard),
    /// Others read as well: it reads as before.
    Refused(ReadGuard),
}

/// A guard that could not be changed, and why.
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

impl ChangeError {
    pub(crate) fn new(guard: ReadGuard, error: Error) -> Self {
        Self { guard, error }
    }
}

impl From<ChangeError> for Error {
    fn from(failed: ChangeError) -> Self {
        failed.error
    }
}
