//! Waiting for the loss of a lock in code without async.

use tokio::runtime::Handle;

use super::run;
use crate::{Error, Loss};

/// Tells when a lock is lost; see [`crate::Lost`].
#[derive(Clone, Debug)]
pub struct Lost {
    lost: crate::Lost,
    runtime: Handle,
}

impl Lost {
    pub(super) fn of(lost: crate::Lost, runtime: &Handle) -> Self {
        let runtime = runtime.clone();
        Self { lost, runtime }
    }

    /// Why the lock was lost; `None` while it is held. See
    /// [`crate::Lost::now`].
    pub fn now(&self) -> Option<Loss> {
        self.lost.now()
    }

    /// Blocks until the lock is lost.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if the client's thread is gone.
    pub fn wait(self) -> Result<Loss, Error> {
        run(&self.runtime, self.lost)
    }
}
