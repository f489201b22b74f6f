//! The proof of reading, and how it becomes one of writing.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::ask::{Ask, Queueing};
use rlock_engine::error::Error;

use crate::locks::change::{ChangeError, Upgrade};
use crate::locks::guard::Guard;
use crate::locks::held::held;
use crate::locks::lock::at_most;
use crate::locks::write_guard::WriteGuard;

/// Holds a lock together with other readers, until it is released, dropped,
/// or lost.
///
/// Everything that is said of [`Guard`](crate::Guard) holds here too. The
/// fence is this reader's own: larger than that of every writer before it.
///
/// # Examples
///
/// ```no_run
/// # async fn example(lock: rlock_client::RwLock) -> Result<(), rlock_client::Error> {
/// let reading = lock.read().await?;
/// let writing = reading.upgrade().await?; // `?` gives up reading on an error.
/// writing.downgrade().await?.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct ReadGuard {
    guard: Guard,
}

held!(ReadGuard);

impl ReadGuard {
    pub(crate) fn new(guard: Guard) -> Self {
        Self { guard }
    }

    /// Waits, without limit, until all other readers are gone, and writes.
    ///
    /// The lock is not given up in between, so what was read still stands;
    /// readers and writers who wait already are passed. The fence is a new
    /// one, for all guards of this owner.
    ///
    /// While it waits, the watchdog goes on renewing what is held. If that is
    /// lost meanwhile, by its lease or an operator, the request goes on as
    /// one for writing only: then others may have written before it was
    /// granted, and [`WriteGuard::is_unbroken`] is false.
    ///
    /// # Errors
    ///
    /// Each gives the read guard back, valid unless it was lost.
    ///
    /// - [`Error::Deadlock`]: another reader waits for its upgrade already,
    ///   and so for this one to stop reading. Release the guard, then write;
    /// - [`Error::Lost`]: it was lost before; nothing was sent;
    /// - those of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// The guard belongs to the future: dropping it withdraws the request and
    /// releases what was held, as dropping the guard does. Other guards of
    /// the same owner keep on reading, also if the upgrade was granted in
    /// that very moment: it is undone, and only their fence is a new one. To
    /// give up waiting and go on reading use
    /// [`upgrade_timeout`](Self::upgrade_timeout).
    pub async fn upgrade(self) -> Result<WriteGuard, ChangeError> {
        loop {
            match self.asking(Queueing::Unlimited).await {
                Ok(Some(writing)) => return Ok(writing),
                // The server never says so to a request without limit.
                Ok(None) => {}
                Err(error) => return Err(ChangeError::new(self, error)),
            }
        }
    }

    /// Writes if nobody else reads, at once; gives the guard back if not.
    ///
    /// Also given back while another call of this owner for this key is under
    /// way.
    ///
    /// # Errors
    ///
    /// Those of [`upgrade`](Self::upgrade) but for [`Error::Deadlock`], and
    /// [`Error::Unavailable`] if there was no usable answer within the
    /// client's patience.
    ///
    /// # Cancel safety
    ///
    /// As for [`upgrade`](Self::upgrade).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lock: rlock_client::RwLock) -> Result<(), rlock_client::Error> {
    /// use rlock_client::Upgrade;
    ///
    /// match lock.read().await?.try_upgrade().await? {
    ///     Upgrade::Granted(writing) => writing.release().await?,
    ///     Upgrade::Refused(reading) => reading.release().await?,
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_upgrade(self) -> Result<Upgrade, ChangeError> {
        self.ask(Queueing::Try).await
    }

    /// Waits to write for at most `wait`; gives the guard back if that was
    /// not enough.
    ///
    /// Range and rounding of `wait` as for
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Errors
    ///
    /// Those of [`upgrade`](Self::upgrade), [`Error::Unavailable`] if the
    /// server could not be reached in that time, and [`Error::OutOfRange`].
    ///
    /// # Cancel safety
    ///
    /// As for [`upgrade`](Self::upgrade).
    pub async fn upgrade_timeout(self, wait: Duration) -> Result<Upgrade, ChangeError> {
        match at_most(wait) {
            Ok(queueing) => self.ask(queueing).await,
            Err(error) => Err(ChangeError::new(self, error)),
        }
    }

    async fn ask(self, queueing: Queueing) -> Result<Upgrade, ChangeError> {
        match self.asking(queueing).await {
            Ok(Some(writing)) => Ok(Upgrade::Granted(writing)),
            Ok(None) => Ok(Upgrade::Refused(self)),
            Err(error) => Err(ChangeError::new(self, error)),
        }
    }

    /// The request to write, for any thread; none is a no. It is to end before
    /// this guard does.
    pub(crate) fn asking(
        &self,
        queueing: Queueing,
    ) -> impl Future<Output = Result<Option<WriteGuard>, Error>> + Send + use<> {
        let (loss, before) = (self.loss().now(), Arc::clone(self.guard.proof()));
        let asking = self.guard.asking_for(Ask::Exclusive, queueing);
        async move {
            if let Some(loss) = loss {
                return Err(Error::Lost(loss));
            }
            // A guard that is entered and one that is left: the hold is in use at
            // every moment, so nothing is released in between.
            let guard = asking.await?;
            Ok(guard.map(|guard| {
                let is_unbroken = Arc::ptr_eq(&before, guard.proof());
                WriteGuard::upgraded(guard, is_unbroken)
            }))
        }
    }
}
