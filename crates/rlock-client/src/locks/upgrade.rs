//! The guards of readers and writers, and how one becomes the other.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::ask::{Ask, Queueing};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::error::Error;

use crate::locks::guard::sealed::{self, Grants};
use crate::locks::guard::{Guard, Kind, OneKey};
use crate::locks::lock::at_most;
use crate::locks::single::Single;

/// A lock, together with other readers: the kind of [`ReadGuard`].
#[derive(Debug)]
pub enum Shared {}

/// A lock, alone, of those that have readers: the kind of [`WriteGuard`].
#[derive(Debug)]
pub enum Write {}

/// Holds a lock together with other readers, until it is released, dropped,
/// or lost.
///
/// The fence is this reader's own: larger than that of every writer before it.
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
pub type ReadGuard = Guard<Shared>;

/// Holds a lock alone, until it is released, dropped, or lost.
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
pub type WriteGuard = Guard<Write>;

impl Kind for Shared {}
impl OneKey for Shared {}

impl sealed::Kind for Shared {
    const NAME: &str = "ReadGuard";
    type Grants = Single;
}

impl Kind for Write {}
impl OneKey for Write {}

impl sealed::Kind for Write {
    const NAME: &str = "WriteGuard";
    type Grants = Writing;
}

/// What a writer holds.
pub struct Writing {
    single: Single,
    is_unbroken: bool,
}

impl Writing {
    pub(crate) fn new(single: Single) -> Self {
        let is_unbroken = true;
        Self {
            single,
            is_unbroken,
        }
    }
}

impl Grants for Writing {
    fn first(&self) -> &Arc<Proof> {
        self.single.first()
    }

    fn extend(&self, lease: Duration) -> impl Future<Output = Result<(), Error>> + Send {
        self.single.extend(lease)
    }

    fn keep(&self, until: Instant) {
        self.single.keep(until);
    }

    fn release(self) -> impl Future<Output = Result<(), Error>> + Send {
        self.single.release()
    }
}

impl Guard<Shared> {
    /// Waits, without limit, until all other readers are gone, and writes.
    ///
    /// The lock is not given up in between, so what was read still stands;
    /// readers and writers who wait already are passed. The fence is a new
    /// one, for all guards of this owner.
    ///
    /// While it waits, the watchdog goes on renewing what is held. If that is
    /// lost meanwhile, by its lease or an operator, the request goes on as
    /// one for writing only: then others may have written before it was
    /// granted, and [`WriteGuard::is_unbroken`](Guard::is_unbroken) is false.
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
    /// client's retry timeout.
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

    /// Asks to write; `None` is a no. The owner keeps on reading meanwhile, so it
    /// is a guard that is entered: nothing is released in between.
    async fn asking(&self, queueing: Queueing) -> Result<Option<WriteGuard>, Error> {
        if let Some(loss) = self.loss().now() {
            return Err(Error::Lost(loss));
        }
        let single = self.held.asking_for(Ask::Exclusive, queueing).await?;
        Ok(single.map(|single| {
            let is_unbroken = Arc::ptr_eq(self.held.first(), single.first());
            Guard::new(Writing {
                single,
                is_unbroken,
            })
        }))
    }
}

impl Guard<Write> {
    /// Whether nobody can have written since the read guard was taken that
    /// this one was upgraded from.
    ///
    /// True for a guard that is no upgrade. False if the read guard was lost
    /// while the upgrade waited: read again what the writing rests on.
    pub fn is_unbroken(&self) -> bool {
        self.held.is_unbroken
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
    /// - [`Error::Unavailable`]: no answer within the client's retry timeout;
    /// - [`Error::Denied`], [`Error::NotALock`]: the server refuses.
    ///
    /// # Cancel safety
    ///
    /// The guard belongs to the future: dropping it releases the lock in the
    /// background.
    pub async fn downgrade(self) -> Result<ReadGuard, ChangeError> {
        let mut single = self.held.single;
        let shared = single.share().await;
        let reading = Guard::new(single);
        match shared {
            Ok(()) => Ok(reading),
            Err(error) => Err(ChangeError::new(reading, error)),
        }
    }
}

/// What a reader has that asked to write, and not without limit.
#[derive(Debug)]
#[must_use = "a lock is released as soon as its guard is dropped"]
pub enum Upgrade<W = WriteGuard, R = ReadGuard> {
    /// It writes now.
    Granted(W),
    /// Others read as well: it reads as before.
    Refused(R),
}

/// A guard that could not be changed, and why.
///
/// Turns into its [`Error`] with `?`, which releases the guard.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ChangeError<R = ReadGuard> {
    /// What is held still: the lock for reading, or what is left of a lost
    /// hold.
    pub guard: R,
    /// What went wrong.
    #[source]
    pub error: Error,
}

impl<R> ChangeError<R> {
    pub(crate) fn new(guard: R, error: Error) -> Self {
        Self { guard, error }
    }
}

impl<R> From<ChangeError<R>> for Error {
    fn from(failed: ChangeError<R>) -> Self {
        failed.error
    }
}
