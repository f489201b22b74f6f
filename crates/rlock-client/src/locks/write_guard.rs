//! The proof of writing, and how it becomes one of reading.

use rlock_engine::error::Error;

use crate::locks::change::ChangeError;
use crate::locks::guard::Guard;
use crate::locks::held::held;
use crate::locks::read_guard::ReadGuard;

/// Holds a lock alone, until it is released, dropped, or lost.
///
/// Everything that is said of [`Guard`](crate::Guard) holds here too.
///
/// # Examples
///
/// ```no_run
/// # async fn example(lock: rlock_client::RwLock) -> Result<(), rlock_client::Error> {
/// let writing = lock.write().await?;
/// let reading = writing.downgrade().await?; // Others may read now.
/// reading.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct WriteGuard {
    guard: Guard,
    is_unbroken: bool,
}

held!(WriteGuard);

impl WriteGuard {
    pub(crate) fn new(guard: Guard) -> Self {
        Self::upgraded(guard, true)
    }

    pub(crate) fn upgraded(guard: Guard, is_unbroken: bool) -> Self {
        Self { guard, is_unbroken }
    }

    /// Whether nobody can have written since the read guard was taken that
    /// this one was upgraded from.
    ///
    /// True for a guard that is no upgrade. False if the read guard was lost
    /// while the upgrade waited: read again what the writing rests on.
    pub fn is_unbroken(&self) -> bool {
        self.is_unbroken
    }

    /// Goes on reading, and lets other readers in.
    ///
    /// Lease and fence stay as they are. Readers at the front of the queue get
    /// in at once. If the owner has other write guards, nothing is sent, and
    /// the lock stays exclusive until they are downgraded too, or all of its
    /// guards are gone.
    ///
    /// # Errors
    ///
    /// Each gives a read guard, valid unless the lock was lost; the server may
    /// still keep other readers out, until it is released.
    ///
    /// - [`Error::Lost`]: the lock was lost before;
    /// - [`Error::Unavailable`]: no answer within the client's patience;
    /// - [`Error::Denied`], [`Error::NotALock`]: the server refuses.
    ///
    /// # Cancel safety
    ///
    /// The guard belongs to the future: dropping it releases the lock in the
    /// background.
    pub async fn downgrade(self) -> Result<ReadGuard, ChangeError> {
        let (reading, shared) = self.sharing();
        match shared.await {
            Ok(()) => Ok(reading),
            Err(error) => Err(ChangeError::new(reading, error)),
        }
    }

    /// What is left of it, and the request, for any thread.
    pub(crate) fn sharing(
        self,
    ) -> (
        ReadGuard,
        impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let Self { mut guard, .. } = self;
        let shared = guard.sharing();
        (ReadGuard::new(guard), shared)
    }
}
