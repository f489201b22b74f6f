//! A number of permits for everybody together: its verbs and its questions.

use std::time::{Duration, Instant};

use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;
use rlock_engine::wire::inspect::Info;

use crate::locks::guard::{Guard, Kind, OneKey, sealed};
use crate::locks::{Granted, Lock, left};

/// A number of permits that many can share: at most that number is held at a time.
///
/// Made by [`Client::semaphore`](crate::Client::semaphore); cheap to clone.
/// Permits have a lease, and are renewed and lost like a mutex: if a holder
/// dies, its permits become free when its lease ends. It is served in the order
/// of the requests: a waiter for many permits holds up those behind it that
/// want few.
///
/// The limit belongs to the caller, not to the key. A caller is granted `k`
/// permits if `k` plus the permits held now is at most its own limit. Use the
/// same limit everywhere; to change it, change it there. Each acquisition has
/// its own owner, and cannot be re-entered.
///
/// # Examples
///
/// ```no_run
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let downloads = client.semaphore("downloads", 10);
/// let permit = downloads.acquire().await?; // At most ten at a time.
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` gives another one, and changes none"]
pub struct Semaphore {
    lock: Lock,
    limit: u32,
}

/// Permits of a semaphore: the kind of [`Permits`].
#[derive(Debug)]
pub enum Permit {}

impl Kind for Permit {}
impl OneKey for Permit {}

impl sealed::Kind for Permit {
    const NAME: &str = "Permits";
    type Grants = Granted;
}

/// Holds some of a semaphore's permits, until they are released, dropped, or
/// lost: all of them together.
///
/// The fence is this holder's own. [`split`](Guard::split) makes two of it, which
/// end one by one.
///
/// # Examples
///
/// ```no_run
/// # async fn example(semaphore: rlock_client::Semaphore) -> Result<(), rlock_client::Error> {
/// let permits = semaphore.acquire_many(3).await?;
/// assert_eq!(permits.count(), 3);
/// permits.release().await?;
/// # Ok(()) }
/// ```
pub type Permits = Guard<Permit>;

impl Guard<Permit> {
    /// How many permits this guard holds.
    pub fn count(&self) -> u32 {
        self.held.permits()
    }

    /// Gives `permits` of these permits to a new guard, and keeps the others.
    ///
    /// `None`, and nothing changes, for 0 and for all or more than
    /// [`count`](Self::count): each of the two holds at least one. Nothing is sent.
    ///
    /// The two are parts of one hold. They have one owner, one fence and one
    /// lease: both are lost together, and [`extend`](Self::extend) of either
    /// extends the hold. A part that ends releases only its own permits, and the
    /// last one releases what is left. A [`LossSignal`](crate::LossSignal) of
    /// any of them resolves when the last one ends, or with the loss. If a part
    /// ends with [`release_after`](Self::release_after), no part releases
    /// anything before that time is over: the last one leaves it all taken. What
    /// ended before stays taken until another part ends after that time.
    ///
    /// The permits of a part that ends may be free late. If the connection breaks
    /// before the answer comes, the client asks the server how many it still has
    /// for the hold, and releases only those that no part needs. So it never
    /// releases a permit that is in use. It cannot do so while the server may
    /// still carry out the unanswered request, because it does not let this client
    /// close its earlier connection (`CLIENT KILL`), or if the server refuses
    /// `RLOCK.INFO`, or does not answer until the lease has ended. Then these
    /// permits stay taken until the last part ends, or until the lease ends if this
    /// process dies. [`release`](Self::release) reports that with
    /// [`Error::Unavailable`] or [`Error::Denied`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn copy(part: rlock_client::Permits) {}
    /// # async fn example(semaphore: rlock_client::Semaphore) -> Result<(), rlock_client::Error> {
    /// let mut permits = semaphore.acquire_many(3).await?; // One request for all.
    /// while let Some(one) = permits.split(1) {
    ///     tokio::spawn(copy(one)); // Each releases its permit when it is done.
    /// }
    /// copy(permits).await;
    /// # Ok(()) }
    /// ```
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.held.split(permits).map(Self::new)
    }

    /// Takes over the permits of `other`, which was [split](Self::split) from the
    /// same guard as this one, directly or not. Nothing is sent.
    ///
    /// # Errors
    ///
    /// `other`, unchanged, if it is of another hold: those were acquired one by
    /// one, and end one by one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(semaphore: rlock_client::Semaphore) -> Result<(), rlock_client::Error> {
    /// let mut permits = semaphore.acquire_many(3).await?;
    /// if let Some(part) = permits.split(2) {
    ///     permits.merge(part).expect("it is a part of this");
    /// }
    /// assert_eq!(permits.count(), 3);
    /// # Ok(()) }
    /// ```
    pub fn merge(&mut self, other: Self) -> Result<(), Self> {
        self.held.merge(other.held).map_err(Self::new)
    }

    /// Lowers the number of permits for others, as long as this client exists.
    ///
    /// They stay taken and are renewed as before. They become free when the
    /// client is [closed](crate::Client::close), with their lease when the
    /// client is gone, when an operator takes them, and when their terms end
    /// them; [`Client::loss`](crate::Client::loss) reports the last two. For a
    /// limited time, whatever happens to this process, use
    /// [`release_after`](Self::release_after).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(semaphore: rlock_client::Semaphore) -> Result<(), rlock_client::Error> {
    /// semaphore.acquire_many(2).await?.forget(); // Two less from now on.
    /// # Ok(()) }
    /// ```
    pub fn forget(self) {
        self.held.forget();
    }
}

impl Semaphore {
    pub(crate) fn new(lock: Lock, limit: u32) -> Self {
        Self { lock, limit }
    }

    /// The semaphore's key.
    pub fn key(&self) -> &[u8] {
        &self.lock.key
    }

    /// How many permits there are, held or not.
    pub fn permits(&self) -> u32 {
        self.limit
    }

    /// The same, held on `terms` from the next call on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// // Those of a dead process come back soon.
    /// let terms = rlock_client::Terms::new().bound(Duration::from_secs(5))?;
    /// let workers = client.semaphore("workers", 20).with(terms);
    /// # Ok(()) }
    /// ```
    pub fn with(&self, terms: Terms) -> Self {
        Self::new(self.lock.with(terms), self.limit)
    }

    /// Waits for one permit, without limit.
    ///
    /// Continues after a broken connection, as
    /// [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`](crate::Mutex::lock), and [`Error::OutOfRange`] for
    /// a semaphore of 0 or above 1,000,000 permits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue and leaves nothing
    /// on the server.
    pub async fn acquire(&self) -> Result<Permits, Error> {
        self.acquire_many(1).await
    }

    /// Waits for `permits` permits together, without limit; from 1 to all.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire), and [`Error::OutOfRange`] for 0 and for
    /// more permits than there are.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Permits, Error> {
        let held = self.lock.wait_for(self.ask_for(permits)?).await?;
        Ok(Guard::new(held))
    }

    /// Takes one permit if one is free and nobody waits; `None` if not.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing on the server.
    pub async fn try_acquire(&self) -> Result<Option<Permits>, Error> {
        self.try_acquire_many(1).await
    }

    /// Takes `permits` permits if that many are free and nobody waits.
    ///
    /// # Errors
    ///
    /// As for [`try_acquire`](Self::try_acquire), and [`Error::OutOfRange`].
    ///
    /// # Cancel safety
    ///
    /// As for [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Permits>, Error> {
        self.ask(permits, Queueing::Try).await
    }

    /// Waits for one permit for at most `wait`; `None` if the time was not enough.
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
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, wait: Duration) -> Result<Option<Permits>, Error> {
        self.acquire_many_timeout(1, wait).await
    }

    /// Waits for `permits` permits together for at most `wait`.
    ///
    /// # Errors
    ///
    /// As for [`acquire_timeout`](Self::acquire_timeout), and
    /// [`Error::OutOfRange`].
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(semaphore: rlock_client::Semaphore) -> Result<(), rlock_client::Error> {
    /// let wait = Duration::from_secs(5);
    /// let Some(permits) = semaphore.acquire_many_timeout(3, wait).await? else {
    ///     return Ok(()); // Never three free in 5 s.
    /// };
    /// # Ok(()) }
    /// ```
    pub async fn acquire_many_timeout(
        &self,
        permits: u32,
        wait: Duration,
    ) -> Result<Option<Permits>, Error> {
        self.ask(permits, Queueing::at_most(wait)?).await
    }

    /// Waits for one permit until `deadline`; `None` if the time was not enough. See
    /// [`acquire_timeout`](Self::acquire_timeout); a past `deadline` is a try.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire_timeout`](Self::acquire_timeout).
    pub async fn acquire_until(&self, deadline: Instant) -> Result<Option<Permits>, Error> {
        self.acquire_timeout(left(deadline)).await
    }

    /// Waits for `permits` permits together until `deadline`; `None` if the time was not enough. See
    /// [`acquire_many_timeout`](Self::acquire_many_timeout); a past `deadline` is a try.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many_timeout`](Self::acquire_many_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire_many_timeout`](Self::acquire_many_timeout).
    pub async fn acquire_many_until(
        &self,
        permits: u32,
        deadline: Instant,
    ) -> Result<Option<Permits>, Error> {
        self.acquire_many_timeout(permits, left(deadline)).await
    }

    /// How many permits of this limit are free, at the moment of asking.
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info).
    pub async fn available_permits(&self) -> Result<u32, Error> {
        let held = self.info().await?.holders;
        let held = held
            .iter()
            .fold(0, |sum: u64, holder| sum.saturating_add(holder.permits));
        Ok(u64::from(self.limit)
            .saturating_sub(held)
            .try_into()
            .unwrap_or(u32::MAX))
    }

    /// Whether `owner` holds permits, at the moment of asking.
    ///
    /// # Errors
    ///
    /// As for [`info`](Self::info).
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        self.lock.is_held_by(owner).await
    }

    /// Who holds permits, how many, and who waits; see
    /// [`Mutex::info`](crate::Mutex::info).
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::info`](crate::Mutex::info).
    pub async fn info(&self) -> Result<Info, Error> {
        self.lock.info().await
    }

    /// Takes all permits from their holders; the number of holders removed. See
    /// [`Mutex::force_release`](crate::Mutex::force_release).
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::force_release`](crate::Mutex::force_release).
    pub async fn force_release(&self) -> Result<u64, Error> {
        self.lock.force().await
    }

    async fn ask(&self, permits: u32, queueing: Queueing) -> Result<Option<Permits>, Error> {
        let held = self.lock.ask(self.ask_for(permits)?, queueing).await?;
        Ok(held.map(Guard::new))
    }

    fn ask_for(&self, permits: u32) -> Result<Ask, Error> {
        Ask::of_permits(permits, self.limit)
    }
}
