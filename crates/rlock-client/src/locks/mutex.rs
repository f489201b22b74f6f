//! The exclusive lock: its verbs and its questions.

use std::time::{Duration, Instant};

use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;
use rlock_engine::wire::inspect::{Info, Mode};

use crate::locks::guard::Guard;
use crate::locks::{Lock, left};

/// A lock that one owner at a time can hold, first come, first served.
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

    /// The same lock, for `owner`, which may already hold it.
    ///
    /// If it does, the lock is re-entered: at once, ahead of every waiter, with
    /// the terms and the fence of the existing hold, and with a new lease. It
    /// becomes free when the last of the owner's guards is gone. Calls of one
    /// owner for one key take turns: [`try_lock`](Self::try_lock) returns
    /// `None` while another one waits. [`Error::HeldOtherwise`] if the owner
    /// holds the key with a guard of several keys.
    ///
    /// If the owner has only read guards of an [`RwLock`](crate::RwLock) with
    /// this key, the call is an upgrade: it waits for all other readers, and
    /// the guards of the owner then have the new fence.
    ///
    /// Without this, every call has a new owner, and would wait for the others.
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
    /// Waiters are served in the order of their requests. A broken connection
    /// does not end the wait: it keeps its place if there is a new connection
    /// within 10 s, and goes to the end of the queue after that. A fail-over
    /// does not end it either: the successor knows no places, so waiters queue
    /// again in the order in which they ask.
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
    /// Dropping the future gives up the place in the queue and leaves nothing
    /// on the server: the client withdraws the request in the background. So it
    /// may be used in `tokio::select!` and `tokio::time::timeout`.
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
    /// `None` otherwise. Never waits for the lock, only for the server's reply,
    /// and for a connection for at most the client's retry timeout.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), and [`Error::Unavailable`] if there was
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

    /// Waits for the lock for at most `wait`; `None` if the time was not enough.
    ///
    /// `wait` is rounded up to whole milliseconds, at most the server's limit
    /// (24 h by default); a `wait` of zero is [`try_lock`](Self::try_lock). If
    /// the server does not report the end of the wait, the call ends 1 s later.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), [`Error::Unavailable`] if the server could not
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

    /// Waits for the lock until `deadline`; `None` if the time was not enough. See
    /// [`lock_timeout`](Self::lock_timeout); a past `deadline` is a try.
    ///
    /// # Errors
    ///
    /// The errors of [`lock_timeout`](Self::lock_timeout).
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
    /// The next waiter gets it. The former holder learns of its loss, but may
    /// still be working. This is for operators.
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info), and [`Error::Unavailable`] if the
    /// connection ended before the answer: the client does not repeat the
    /// request, because that could take the lock from the next holder too. It
    /// is then unknown whether the release happened.
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

    /// Takes the lock from the holder with this fence, and not from its
    /// successor; the number of holders removed, 0 if no holder has it.
    ///
    /// [`info`](Self::info) shows the fences. Otherwise as
    /// [`force_release`](Self::force_release).
    ///
    /// # Errors
    ///
    /// As for [`force_release`](Self::force_release), and [`Error::OutOfRange`]
    /// for a fence of 0 or above 9007199254740991.
    ///
    /// # Cancel safety
    ///
    /// Whether it is done is not known then.
    pub async fn force_release_under(&self, fence: u64) -> Result<u64, Error> {
        self.lock.force_under(fence).await
    }

    /// Takes the lock from its holders after ending every place in its queue;
    /// the number of holders removed.
    ///
    /// Use it for abandoned places. A waiter of this client that still waits
    /// asks again, and gets a place at the end of the queue. Otherwise as
    /// [`force_release`](Self::force_release).
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
