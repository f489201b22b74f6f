//! The lock that readers share and a writer has alone: its verbs and its
//! questions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;
use rlock_engine::session::Call;
use rlock_engine::wire::inspect::Info;

use crate::locks::guard::sealed::{self, Grants};
use crate::locks::guard::{Guard, Kind, OneKey};
use crate::locks::{Granted, Lock, left, never_refused};

/// A lock that any number of readers can hold together, or one writer alone.
///
/// Made by [`Client::rwlock`](crate::Client::rwlock); cheap to clone. It is
/// served in the order of the requests: consecutive readers get it together,
/// and no later request gets it before a waiting writer. Each reader has its
/// own lease and its own fence.
///
/// It is the same lock as a [`Mutex`](crate::Mutex) with the same key, which
/// counts as a writer.
///
/// # Examples
///
/// ```no_run
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let catalogue = client.rwlock("catalogue");
/// let reading = catalogue.read().await?; // Others may read too.
/// reading.release().await?;
/// let writing = catalogue.write().await?; // Nobody else reads or writes now.
/// writing.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct RwLock {
    lock: Lock,
}

impl RwLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        &self.lock.key
    }

    /// The same lock, for `owner`, which may already hold it.
    ///
    /// If it does, the lock is re-entered at once, with the terms and the fence
    /// of the existing hold. It becomes free when the last of the owner's
    /// guards is gone. A writer may read as well; the lock stays exclusive
    /// meanwhile. If a reader asks to write, that is an upgrade, as with
    /// [`ReadGuard::upgrade`](Guard::upgrade): it waits for all other readers,
    /// and then all guards of the owner have the new fence, even if the call
    /// was dropped at that moment. The lock stays exclusive until the last of
    /// the owner's guards is gone, or the last of its write guards is
    /// downgraded.
    ///
    /// Calls of one owner for one key take turns: a try returns `None` while
    /// another call waits. [`Error::HeldOtherwise`] if the owner holds the key
    /// with a guard of several keys.
    pub fn by(&self, owner: &Owner) -> Self {
        Self::new(self.lock.by(owner))
    }

    /// The same, held on `terms` from the next call on.
    pub fn with(&self, terms: Terms) -> Self {
        Self::new(self.lock.with(terms))
    }

    /// Waits to read, without limit.
    ///
    /// Continues after a broken connection, as
    /// [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue and leaves nothing
    /// on the server.
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.lock.wait_for(Ask::Shared).await.map(Guard::new)
    }

    /// Reads if nobody writes and nobody waits; `None` if not.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing on the server.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        self.ask_to_read(Queueing::Try).await
    }

    /// Waits to read for at most `wait`; `None` if the time was not enough.
    ///
    /// Range and rounding as for
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn read_timeout(&self, wait: Duration) -> Result<Option<ReadGuard>, Error> {
        self.ask_to_read(Queueing::at_most(wait)?).await
    }

    /// Waits to read until `deadline`; `None` if the time was not enough. See
    /// [`read_timeout`](Self::read_timeout); a past `deadline` is a try.
    ///
    /// # Errors
    ///
    /// The errors of [`read_timeout`](Self::read_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`read_timeout`](Self::read_timeout).
    pub async fn read_until(&self, deadline: Instant) -> Result<Option<ReadGuard>, Error> {
        self.read_timeout(left(deadline)).await
    }

    /// Waits to write, without limit.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        let held = self.lock.wait_for(Ask::Exclusive).await?;
        Ok(Guard::new(Writing::new(held)))
    }

    /// Writes if nobody holds the lock and nobody waits; `None` if not.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing on the server.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.ask_to_write(Queueing::Try).await
    }

    /// Waits to write for at most `wait`; `None` if the time was not enough.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn write_timeout(&self, wait: Duration) -> Result<Option<WriteGuard>, Error> {
        self.ask_to_write(Queueing::at_most(wait)?).await
    }

    /// Waits to write until `deadline`; `None` if the time was not enough. See
    /// [`write_timeout`](Self::write_timeout); a past `deadline` is a try.
    ///
    /// # Errors
    ///
    /// The errors of [`write_timeout`](Self::write_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`write_timeout`](Self::write_timeout).
    pub async fn write_until(&self, deadline: Instant) -> Result<Option<WriteGuard>, Error> {
        self.write_timeout(left(deadline)).await
    }

    /// Whether `owner` reads or writes, at the moment of asking.
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info).
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.lock.is_held_by(owner).await
    }

    /// Who holds the lock, for how long, and who waits for it; see
    /// [`Mutex::info`](crate::Mutex::info).
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::info`](crate::Mutex::info).
    pub async fn info(&self) -> Result<Info, Error> {
        self.lock.info().await
    }

    /// Takes the lock from all its holders; the number of holders removed. See
    /// [`Mutex::force_release`](crate::Mutex::force_release).
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::force_release`](crate::Mutex::force_release).
    pub async fn force_release(&self) -> Result<u64, Error> {
        self.lock.force().await
    }

    async fn ask_to_read(&self, how: Queueing) -> Result<Option<ReadGuard>, Error> {
        let held = self.lock.ask(Ask::Shared, how).await?;
        Ok(held.map(Guard::new))
    }

    async fn ask_to_write(&self, how: Queueing) -> Result<Option<WriteGuard>, Error> {
        let held = self.lock.ask(Ask::Exclusive, how).await?;
        Ok(held.map(Writing::new).map(Guard::new))
    }
}

/// A lock, together with other readers: the kind of [`ReadGuard`].
#[derive(Debug)]
pub enum Shared {}

/// A lock, alone, of those that have readers: the kind of [`WriteGuard`].
#[derive(Debug)]
pub enum Write {}

/// Holds a lock together with other readers, until it is released, dropped,
/// or lost.
///
/// The fence is this reader's own: larger than the fence of every writer before it.
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
    type Grants = Granted;
}

impl Kind for Write {}
impl OneKey for Write {}

impl sealed::Kind for Write {
    const NAME: &str = "WriteGuard";
    type Grants = Writing;
}

/// What a writer holds.
pub struct Writing {
    granted: Granted,
    is_unbroken: bool,
}

impl Writing {
    pub(crate) fn new(granted: Granted) -> Self {
        let is_unbroken = true;
        Self {
            granted,
            is_unbroken,
        }
    }
}

impl Grants for Writing {
    fn granted(&self) -> &Granted {
        &self.granted
    }

    fn into_granted(self) -> Granted {
        self.granted
    }
}

impl Guard<Shared> {
    /// Waits, without limit, until all other readers are gone, and writes.
    ///
    /// The lock is held throughout, so what was read stays true. The upgrade
    /// goes ahead of all waiting readers and writers. The fence is new, for all
    /// guards of this owner.
    ///
    /// While it waits, the watchdog keeps renewing the hold. If the hold is
    /// lost meanwhile, through its lease or an operator, or may have been while
    /// there was no connection, the request continues as an ordinary request to
    /// write. Then others may have written before it was granted, and
    /// [`WriteGuard::is_unbroken`](Guard::is_unbroken) is false.
    ///
    /// # Errors
    ///
    /// Each error returns the read guard, which is valid unless it was lost.
    ///
    /// - [`Error::Deadlock`]: another reader waits for its upgrade already,
    ///   and so for this one to stop reading. Release the guard, then write;
    /// - [`Error::Lost`]: it was lost before; nothing was sent;
    /// - those of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// The guard belongs to the future: dropping it withdraws the request and
    /// releases the hold, like dropping the guard. Other guards of the same
    /// owner keep reading, even if the upgrade was granted at that moment: it
    /// is undone, and only their fence is new. To stop waiting and keep
    /// reading, use [`upgrade_timeout`](Self::upgrade_timeout).
    pub async fn upgrade(self) -> Result<WriteGuard, ChangeError> {
        match self.ask(Queueing::Unlimited).await? {
            Upgrade::Granted(writing) => Ok(writing),
            Upgrade::Refused(reading) => Err(ChangeError::new(reading, never_refused())),
        }
    }

    /// Writes at once if nobody else reads; otherwise returns the guard.
    ///
    /// Also returned while another call of this owner for this key is under
    /// way.
    ///
    /// # Errors
    ///
    /// The errors of [`upgrade`](Self::upgrade) except [`Error::Deadlock`], and
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

    /// Waits to write for at most `wait`; returns the guard if the time was
    /// not enough.
    ///
    /// Range and rounding of `wait` as for
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Errors
    ///
    /// The errors of [`upgrade`](Self::upgrade), [`Error::Unavailable`] if the
    /// server could not be reached in that time, and [`Error::OutOfRange`].
    ///
    /// # Cancel safety
    ///
    /// As for [`upgrade`](Self::upgrade).
    pub async fn upgrade_timeout(self, wait: Duration) -> Result<Upgrade, ChangeError> {
        match Queueing::at_most(wait) {
            Ok(queueing) => self.ask(queueing).await,
            Err(error) => Err(ChangeError::new(self, error)),
        }
    }

    /// Asks to write. The guard stays as it is meanwhile: nothing is released in
    /// between.
    async fn ask(self, queueing: Queueing) -> Result<Upgrade, ChangeError> {
        match self.held.upgraded(queueing).await {
            Ok(Some(granted)) => {
                let is_unbroken = Arc::ptr_eq(self.held.proof(), granted.proof());
                self.held.forget();
                Ok(Upgrade::Granted(Guard::new(Writing {
                    granted,
                    is_unbroken,
                })))
            }
            Ok(None) => Ok(Upgrade::Refused(self)),
            Err(error) => Err(ChangeError::new(self, error)),
        }
    }
}

impl Guard<Write> {
    /// Whether nobody can have written since this guard's read guard was taken.
    ///
    /// True for a guard that is not an upgrade. False if the read guard was
    /// lost while the upgrade waited: read the data again.
    pub fn is_unbroken(&self) -> bool {
        self.held.is_unbroken
    }

    /// Keeps reading, and lets other readers in.
    ///
    /// Lease and fence stay the same. Readers at the front of the queue get in
    /// at once. If the owner has other write guards, nothing is sent, and the
    /// lock stays exclusive until they are downgraded too, or all its guards
    /// are gone.
    ///
    /// # Errors
    ///
    /// Each error returns a read guard, which is valid unless the lock was
    /// lost; the server may keep other readers out until it is released.
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
        let reading: ReadGuard = Guard::new(self.held.granted);
        let guard = reading.held.guard;
        match reading.held.change(Call::Downgrade { guard }).await {
            Ok(()) => Ok(reading),
            Err(error) => Err(ChangeError::new(reading, error)),
        }
    }
}

/// The result of a try to upgrade, or of one with a limited wait.
#[derive(Debug)]
#[must_use = "a lock is released as soon as its guard is dropped"]
pub enum Upgrade<W = WriteGuard, R = ReadGuard> {
    /// It writes now.
    Granted(W),
    /// There are other readers: it still reads.
    Refused(R),
}

/// A guard that could not be changed, and why.
///
/// Turns into its [`Error`] with `?`, which releases the guard.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ChangeError<R = ReadGuard> {
    /// What is still held: the lock for reading, or the rest of a lost hold.
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
