//! The lock that readers share and a writer has alone: its verbs and its
//! questions.

use std::time::{Duration, Instant};

use rlock_engine::engine::ask::{Ask, Queueing};
use rlock_engine::engine::owner::Owner;
use rlock_engine::engine::terms::Terms;
use rlock_engine::error::Error;

use crate::locks::guard::Guard;
use crate::locks::lock::{Lock, at_most, left};
use crate::locks::upgrade::{ReadGuard, WriteGuard, Writing};
use rlock_engine::wire::inspect::Info;

/// A lock that any number of readers can hold together, or one writer alone.
///
/// Made by [`Client::rwlock`](crate::Client::rwlock); cheap to clone. Everybody
/// is served in the order of asking: readers that ask one after the other get
/// it together, and nobody who asks after a writer gets it before that writer.
/// Each reader has its own lease and its own fence.
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

    /// The same lock, asked for by `owner`, who may hold it already.
    ///
    /// Then it is entered again, at once, with the terms and the fence of the
    /// hold that is there, and is free when the last of the owner's guards is
    /// gone. A writer may read as well; the lock stays exclusive meanwhile. For
    /// a reader, to write is an upgrade of what it holds, as
    /// [`ReadGuard::upgrade`](Guard::upgrade) is: it waits for all other readers, and all its
    /// guards have the new fence then, also if the call was dropped in that
    /// very moment. The lock stays exclusive until the last of the owner's
    /// guards is gone, or the last of its write guards is downgraded.
    ///
    /// Calls of one owner for one key take turns: those that try give `None`
    /// while another one waits. [`Error::HeldOtherwise`] if the owner holds the
    /// key by a guard of several keys.
    pub fn by(&self, owner: &Owner) -> Self {
        Self::new(self.lock.by(owner))
    }

    /// The same, held on `terms` from the next call on.
    pub fn with(&self, terms: Terms) -> Self {
        Self::new(self.lock.with(terms))
    }

    /// Waits to read, without limit.
    ///
    /// Goes on over broken connections as
    /// [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in the queue and leaves nothing on
    /// the server.
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.lock.wait_for(Ask::Shared).await.map(Guard::new)
    }

    /// Reads if nobody writes and nobody waits; `None` if not.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing on the server.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        self.ask_to_read(Queueing::Try).await
    }

    /// Waits to read for at most `wait`; `None` if that was not enough.
    ///
    /// Range and rounding as for
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn read_timeout(&self, wait: Duration) -> Result<Option<ReadGuard>, Error> {
        self.ask_to_read(at_most(wait)?).await
    }

    /// Waits to read until `deadline`; `None` if that was not enough. See
    /// [`read_timeout`](Self::read_timeout); a `deadline` that is over is a try.
    ///
    /// # Errors
    ///
    /// Those of [`read_timeout`](Self::read_timeout).
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
    /// Those of [`Mutex::lock`](crate::Mutex::lock).
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
    /// Those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing on the server.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.ask_to_write(Queueing::Try).await
    }

    /// Waits to write for at most `wait`; `None` if that was not enough.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn write_timeout(&self, wait: Duration) -> Result<Option<WriteGuard>, Error> {
        self.ask_to_write(at_most(wait)?).await
    }

    /// Waits to write until `deadline`; `None` if that was not enough. See
    /// [`write_timeout`](Self::write_timeout); a `deadline` that is over is a try.
    ///
    /// # Errors
    ///
    /// Those of [`write_timeout`](Self::write_timeout).
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
    /// Those of [`Mutex::info`](crate::Mutex::info).
    pub async fn info(&self) -> Result<Info, Error> {
        self.lock.info().await
    }

    /// Takes the lock from all who hold it; the number of holders removed. See
    /// [`Mutex::force_release`](crate::Mutex::force_release).
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info).
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
