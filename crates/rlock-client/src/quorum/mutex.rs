//! The exclusive lock of a quorum.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::terms::{Queueing, Terms};
use rlock_engine::error::Error;

use crate::locks::{at_most, left};
use crate::quorum::acquire::acquire;
use crate::quorum::deadline::Deadline;
use crate::quorum::guard::QuorumGuard;
use crate::quorum::shared::{Entry, Name, Shared};

/// A lock that one owner at a time can hold, on a majority of independent
/// servers.
///
/// Made by [`Quorum::mutex`](crate::Quorum::mutex); cheap to clone.
///
/// # Examples
///
/// ```no_run
/// # async fn example(quorum: rlock_client::Quorum) -> Result<(), rlock_client::Error> {
/// let mutex = quorum.mutex("invoice:7");
/// let guard = mutex.lock().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct QuorumMutex {
    shared: Arc<Shared>,
    key: Arc<[u8]>,
    terms: Terms,
    /// Who asks; a new one each time where none is named.
    owner: Option<Owner>,
}

impl QuorumMutex {
    pub(crate) fn new(shared: Arc<Shared>, key: Arc<[u8]>) -> Self {
        Self {
            shared,
            key,
            terms: Terms::default(),
            owner: None,
        }
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The same lock, held on `terms`; see [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use rlock_client::Terms;
    /// # fn example(quorum: rlock_client::Quorum) -> Result<(), rlock_client::Error> {
    /// let brief = Terms::new().lease(Duration::from_secs(5))?;
    /// let mutex = quorum.mutex("invoice:7").with(brief);
    /// # Ok(()) }
    /// ```
    pub fn with(&self, terms: Terms) -> Self {
        Self {
            terms,
            ..self.clone()
        }
    }

    /// The same lock, asked for by `owner`, who may hold it already: then it is
    /// entered again, under the same fence. See [`Mutex::by`](crate::Mutex::by).
    ///
    /// Only what this [`Quorum`](crate::Quorum) and its clones have taken for
    /// that owner is entered.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(quorum: rlock_client::Quorum) -> Result<(), rlock_client::Error> {
    /// let owner = quorum.owner();
    /// let mutex = quorum.mutex("invoice:7").by(&owner);
    /// let outer = mutex.lock().await?;
    /// let inner = mutex.lock().await?;
    /// assert_eq!(outer.fence(), inner.fence());
    /// # Ok(()) }
    /// ```
    pub fn by(&self, owner: &Owner) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self.clone()
        }
    }

    /// Waits for the lock, without limit: also while too few members can be
    /// reached.
    ///
    /// # Errors
    ///
    /// - [`Error::Member`]: a member's startup grace is below the lease;
    /// - [`Error::Deadlock`], [`Error::Cancelled`]: so says a member that was
    ///   waited at;
    /// - [`Error::Closed`]: the runtime of the quorum is gone;
    /// - [`Error::Denied`], [`Error::NotALock`], [`Error::Refused`],
    ///   [`Error::QueueFull`]: the members that do not refuse are fewer than a majority.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves neither a hold nor a place in a queue at any
    /// member: they are withdrawn in the background.
    pub async fn lock(&self) -> Result<QuorumGuard, Error> {
        loop {
            // Nobody says no to one who waits without limit.
            if let Some(guard) = self.ask(Queueing::Unlimited).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes the lock if it is free; `None` if somebody holds it.
    ///
    /// Of several that try at the same time one gets it: the one that the gate
    /// granted. It waits for the others to leave the other members: for half of
    /// the response limit, or a fifth of the lease if that is less, but for half
    /// a second at least. A member that still refuses is held.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), and [`Error::Unavailable`] if no majority
    /// has answered within the retry timeout of the members' settings. Its source
    /// says what each of the others does.
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<QuorumGuard>, Error> {
        self.ask(Queueing::Try).await
    }

    /// Waits for at most `wait`; `None` if somebody else has held the lock for
    /// so long. At the end all members are asked once more, as the one that was
    /// waited at may hang; that is no longer than a slow member is waited for.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), and [`Error::Unavailable`] if too few
    /// members could be reached at the end of that time.
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<QuorumGuard>, Error> {
        self.ask(at_most(wait)?).await
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
    pub async fn lock_until(&self, deadline: Instant) -> Result<Option<QuorumGuard>, Error> {
        self.lock_timeout(left(deadline)).await
    }

    async fn ask(&self, queueing: Queueing) -> Result<Option<QuorumGuard>, Error> {
        self.shared.check_grace(self.terms.lease)?;
        let deadline = match queueing {
            Queueing::Try => Deadline::after(self.shared.limits.retry),
            Queueing::AtMost(wait) => Deadline::after(wait),
            Queueing::Unlimited => Deadline::unlimited(),
        };
        let owner = self.owner.clone().or_else(|| self.shared.next_owner());
        let owner = owner.ok_or(Error::Closed)?;
        let turn = Turn::of(&self.shared, (owner, Arc::clone(&self.key)));
        let Some(mut held) = turn.wait(queueing, deadline).await else {
            return Ok(None);
        };
        if let Some(hold) = held.upgrade()
            && let Some(guard) = QuorumGuard::again(hold).await
        {
            return Ok(Some(guard));
        }
        let taken = acquire(&self.shared, &turn.name, self.terms, queueing, deadline).await?;
        Ok(taken.map(|hold| {
            *held = Arc::downgrade(&hold);
            QuorumGuard::of(hold)
        }))
    }
}

/// The calls of one owner for one key take turns.
struct Turn {
    shared: Arc<Shared>,
    name: Name,
    entry: Option<Entry>,
}

type Locked<'a> = tokio::sync::MutexGuard<'a, std::sync::Weak<crate::quorum::hold::Hold>>;

impl Turn {
    fn of(shared: &Arc<Shared>, name: Name) -> Self {
        let entry = Some(shared.entry(&name));
        let shared = Arc::clone(shared);
        Self {
            shared,
            name,
            entry,
        }
    }

    /// What the owner holds, when it is this call's turn.
    async fn wait(&self, queueing: Queueing, deadline: Deadline) -> Option<Locked<'_>> {
        let entry = self.entry.as_ref()?;
        match queueing {
            Queueing::Try => entry.try_lock().ok(),
            Queueing::AtMost(_) | Queueing::Unlimited => deadline.bound(entry.lock()).await,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.entry = None;
        self.shared.forget(&self.name);
    }
}
