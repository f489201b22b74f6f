//! The exclusive lock: its verbs and its questions.

use std::time::{Duration, Instant};

use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;
use rlock_engine::wire::inspect::{Info, Mode};

use crate::locks::guard::Guard;
use crate::locks::{Lock, left};

/// A lock that one owner at a time can hold, in the order of asking.
///
/// Made by [`Client::mutex`](crate::Client::mutex); cheap to clone. Waiting
/// takes place in the server's queue and costs no commands.
///
/// # Examples
///
/// ```no_run
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let mutex = client.mutex("invoice:7");
/// let guard = mutex.lock().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct Mutex {
    lock: Lock,
}

impl Mutex {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        &self.lock.key
    }

    /// The same lock, asked for by `owner`, who may hold it already.
    ///
    /// Then it is entered again: at once, past every waiter, with the terms
    /// and the fence of the hold that is there, and its lease set again. It is
    /// free when the last of the owner's guards is gone. Calls of one owner
    /// for one key take turns: [`try_lock`](Self::try_lock) gives `None` while
    /// another one waits. [`Error::HeldOtherwise`] if the owner holds the key
    /// by a guard of several keys.
    ///
    /// Where the owner has only read guards of an [`RwLock`](crate::RwLock)
    /// with this key, asking is an upgrade of what it holds: it waits for all
    /// other readers, and the fence of its guards is the new one then.
    ///
    /// Without this, every call is a new owner, and would wait for the others.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let owner = client.owner();
    /// let mutex = client.mutex("invoice:7").by(&owner);
    /// let outer = mutex.lock().await?;
    /// let inner = mutex.lock().await?;
    /// # Ok(()) }
    /// ```
    pub fn by(&self, owner: &Owner) -> Self {
        Self::new(self.lock.by(owner))
    }

    /// The same, held on `terms` from the next call on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let terms = rlock_client::Terms::new().lease(Duration::from_secs(5))?;
    /// let mutex = client.mutex("report").with(terms);
    /// # Ok(()) }
    /// ```
    pub fn with(&self, terms: Terms) -> Self {
        Self::new(self.lock.with(terms))
    }

    /// Waits for the lock, without limit.
    ///
    /// Waiters get it in the order in which they asked. A broken connection
    /// does not end the wait: it goes on in its place if there is a new one
    /// within 10 s, and is last in the queue after that. Nor does a server that
    /// fails over end it: its successor knows no places, so the order there is the
    /// order of asking again.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`], [`Error::Deadlock`], [`Error::Denied`],
    /// [`Error::NotALock`], [`Error::OutOfMemory`], [`Error::ModuleMissing`],
    /// [`Error::Refused`]: the server refuses. [`Error::Cancelled`]: somebody
    /// else ended the wait. [`Error::Closed`]: the client is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in the queue and leaves nothing on
    /// the server: what was asked for is withdrawn in the background. It may
    /// so be put into `tokio::select!` and `tokio::time::timeout`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// let guard = mutex.lock().await?;
    /// # Ok(()) }
    /// ```
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.lock.wait_for(Ask::Exclusive).await.map(Guard::new)
    }

    /// Takes the lock if it is free and nobody waits for it.
    ///
    /// `None` if not. Never waits for the lock, only for the server's reply,
    /// and for a connection at most as long as the client's retry timeout.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), and [`Error::Unavailable`] if there was
    /// no usable answer within the client's retry timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing on the server.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// match mutex.try_lock().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else holds it"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.ask(Queueing::Try).await
    }

    /// Waits for the lock for at most `wait`; `None` if that was not enough.
    ///
    /// `wait` is rounded up to whole milliseconds, at most what the server
    /// allows (24 h by default); a `wait` of zero is [`try_lock`](Self::try_lock).
    /// If the server does not tell the end of the wait, the call ends 1 s later.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), [`Error::Unavailable`] if the server could not
    /// be reached in that time, and [`Error::OutOfRange`] above 30 days.
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// let Some(guard) = mutex.lock_timeout(Duration::from_secs(5)).await? else {
    ///     return Ok(()); // Still taken after 5 s.
    /// };
    /// # Ok(()) }
    /// ```
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.ask(Queueing::at_most(wait)?).await
    }

    /// Waits for the lock until `deadline`; `None` if that was not enough. See
    /// [`lock_timeout`](Self::lock_timeout); a `deadline` that is over is a try.
    ///
    /// # Errors
    ///
    /// Those of [`lock_timeout`](Self::lock_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock_timeout`](Self::lock_timeout).
    pub async fn lock_until(&self, deadline: Instant) -> Result<Option<Guard>, Error> {
        self.lock_timeout(left(deadline)).await
    }

    /// Whether anybody holds the lock, at the moment of asking.
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info).
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.info().await?.mode != Mode::Free)
    }

    /// Whether `owner` holds the lock, at the moment of asking.
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info).
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.lock.is_held_by(owner).await
    }

    /// Who holds the lock, for how long, and who waits for it.
    ///
    /// Changes nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::Unavailable`]: no answer within the client's retry timeout;
    /// - [`Error::NotALock`], [`Error::Denied`]: the server refuses.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// println!("{:?}", mutex.info().await?);
    /// # Ok(()) }
    /// ```
    pub async fn info(&self) -> Result<Info, Error> {
        self.lock.info().await
    }

    /// Takes the lock from its holders; the number of holders removed.
    ///
    /// The next waiter gets it. The holder learns that it lost the lock, but
    /// may still be at work: this is for operators.
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info). [`Error::Unavailable`] even if the connection
    /// ended before the answer: it is not asked again, as that could take the lock
    /// from the next holder, too. Whether it is done is not known then.
    ///
    /// # Cancel safety
    ///
    /// Whether it is done is not known then.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// if mutex.force_release().await? == 0 {
    ///     println!("it was free");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn force_release(&self) -> Result<u64, Error> {
        self.lock.force().await
    }

    /// Takes the lock from its holders, and ends every place in its queue
    /// before; the number of holders removed.
    ///
    /// Use it where places are left that nobody is going to come back to. A
    /// waiter of this client that is still there asks again, and gets a place at
    /// the end of the queue. For the rest see [`force_release`](Self::force_release).
    ///
    /// # Errors
    ///
    /// As for [`force_release`](Self::force_release).
    ///
    /// # Cancel safety
    ///
    /// Whether it is done is not known then.
    pub async fn force_release_queue(&self) -> Result<u64, Error> {
        self.lock.force_queue().await
    }

    async fn ask(&self, queueing: Queueing) -> Result<Option<Guard>, Error> {
        let held = self.lock.ask(Ask::Exclusive, queueing).await?;
        Ok(held.map(Guard::new))
    }
}
