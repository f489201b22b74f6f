//! The proof of holding a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::ask::{Ask, Queueing};
use rlock_engine::engine::owner::Owner;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Terms, whole_ms};
use rlock_engine::engine::{Event, Outcome};
use rlock_engine::error::{Error, Loss};

use crate::locks::lock::ask_for;
use crate::pump::call::call;
use crate::pump::clock::now;
use crate::pump::lost::Lost;
use crate::pump::state::Inner;

/// Holds a lock until it is released, dropped, or lost.
///
/// [`release`](Self::release) is the way to end it. Dropping it sends the
/// release and leaves the reply to the background: that never blocks and never
/// fails, in or out of a runtime, also in a panic; if the runtime is gone, the
/// lock is free when its lease ends.
///
/// A lock that rests on a lease can be lost: see [`loss`](Self::loss), and
/// [`fence`](Self::fence) for what to do about it.
///
/// # Examples
///
/// ```no_run
/// # async fn work() {}
/// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
/// let guard = mutex.lock().await?;
/// tokio::select! {
///     () = work() => guard.release().await?,
///     loss = guard.loss() => eprintln!("stopped: the lock was lost, {loss}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct Guard {
    inner: Arc<Inner>,
    proof: Arc<Proof>,
    /// What this guard needs, which may be less than how the lock is held.
    ask: Ask,
    open: bool,
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, proof: Arc<Proof>, ask: Ask) -> Self {
        let open = true;
        Self {
            inner,
            proof,
            ask,
            open,
        }
    }

    /// The fencing token: larger than that of every earlier holder.
    ///
    /// A positive number below 2^53. Send it along with what is done under
    /// the lock, and have the receiver refuse a smaller one than it has seen:
    /// then a holder that does not know yet that it lost the lock does no
    /// harm. Entering again and renewal keep it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// let guard = mutex.lock().await?;
    /// let sql = format!("UPDATE account SET fence = {0} WHERE fence <= {0}", guard.fence());
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> u64 {
        self.proof.fence()
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        self.proof.claims.owner()
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        self.proof.claims.key()
    }

    /// For how long the lock is held for certain; zero if it was lost.
    ///
    /// Counted on this machine's clock from a moment before the grant, less 2 ms
    /// and a hundredth of the lease. Each renewal sets it anew.
    pub fn remaining(&self) -> Duration {
        let now = now();
        match (self.proof.loss(now), self.proof.valid_until()) {
            (None, Some(until)) => until - now,
            _ => Duration::ZERO,
        }
    }

    /// Whether the lock is held for certain at this moment.
    ///
    /// Compares with the clock when it is called, so it is right also if the
    /// runtime could not run for a while. Once false it stays false.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn write() {}
    /// # fn example(guard: &rlock_client::Guard) {
    /// if guard.is_valid() {
    ///     write();
    /// }
    /// # }
    /// ```
    pub fn is_valid(&self) -> bool {
        self.proof.loss(now()).is_none()
    }

    /// Tells when the lock is lost: a future, which can also be asked at once.
    ///
    /// The lock is lost for its holder before the server can grant it to
    /// another: when the lease ends by this process's clock, without contact
    /// to the server too. It is lost at once when the server says so: after a
    /// forced release, a `DEL` or a flush.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(guard: rlock_client::Guard) {
    /// let loss = guard.loss().await;
    /// eprintln!("{loss}");
    /// # }
    /// ```
    pub fn loss(&self) -> Lost {
        Lost::of([&self.proof])
    }

    /// Runs `work` for as long as the lock is held.
    ///
    /// If the lock is lost, `work` is dropped where it stands, and the loss is
    /// the answer. The guard stays: release it afterwards.
    ///
    /// # Errors
    ///
    /// The loss. What `work` has done may then overlap with another holder's
    /// work, if it did not yield in time: see [`fence`](Self::fence).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, and changes nothing else.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// let guard = mutex.lock().await?;
    /// match guard.run(work()).await {
    ///     Ok(()) => guard.release().await?,
    ///     Err(loss) => eprintln!("stopped: the lock was lost, {loss}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Loss> {
        run_until(self.loss(), work).await
    }

    /// Has the lock last for at least `lease` from now.
    ///
    /// For work that turns out to be longer than a
    /// [fixed lease](crate::Terms::fixed_lease). A lock that the watchdog
    /// renews has no shorter lease from now on. Nothing is sent if it lasts for
    /// so long anyway; it never lasts beyond its
    /// [`max_hold`](crate::Terms::max_hold). Range and rounding as for
    /// [`Terms::lease`](crate::Terms::lease).
    ///
    /// # Errors
    ///
    /// The lock is held as before, but for the first.
    ///
    /// - [`Error::Lost`]: the lock was lost;
    /// - [`Error::OutOfRange`], [`Error::Denied`], [`Error::Refused`]: for a
    ///   lease of zero, above 30 days, or longer than the server allows;
    /// - [`Error::Unavailable`]: no answer within the client's patience, or
    ///   another call of the same owner has been at work for as long. The
    ///   lock may last for longer on the server than is known here.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the lock lasts for longer.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(guard: rlock_client::Guard) -> Result<(), rlock_client::Error> {
    /// guard.extend(Duration::from_secs(60)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.extending(lease).await
    }

    /// The same, for another thread.
    pub(crate) fn extending(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let (inner, hold) = (Arc::clone(&self.inner), self.proof.hold);
        async move {
            let lease = whole_ms("lease", lease)?;
            let extend = |call| Event::Extend { call, hold, lease };
            done(call(&inner.state, None, extend).await)
        }
    }

    /// Raises the fence to at least `fence`, and sets the lease anew; held on
    /// `terms` from then on.
    pub(crate) fn raising(
        &self,
        fence: u64,
        terms: Terms,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let (inner, hold) = (Arc::clone(&self.inner), self.proof.hold);
        async move {
            let raise = |call| Event::Raise {
                call,
                hold,
                fence,
                terms,
            };
            done(call(&inner.state, None, raise).await)
        }
    }

    /// Releases the lock and waits for the server's word.
    ///
    /// The next waiter gets it in the same moment. If other guards of the
    /// same owner hold it too, only this one ends, and nothing is sent.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lock was lost before; the server changed nothing;
    /// - [`Error::Unavailable`]: no answer within the client's patience, or
    ///   another call of the same owner has been at work for as long; the
    ///   background goes on trying until the lease ends;
    /// - [`Error::Denied`], [`Error::NotALock`]: the server refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the release to the background, as dropping
    /// the guard does.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// let guard = mutex.lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn release(mut self) -> Result<(), Error> {
        let (hold, ask) = (self.proof.hold, self.ask);
        self.open = false;
        let release = |call| Event::Release { call, hold, ask };
        done(call(&self.inner.state, None, release).await)
    }

    /// Asks for more of what this guard holds, on any thread.
    pub(crate) fn asking_for(
        &self,
        ask: Ask,
        queueing: Queueing,
    ) -> impl Future<Output = Result<Option<Self>, Error>> + Send + use<> {
        let (inner, claims) = (Arc::clone(&self.inner), self.proof.claims.clone());
        // The engine goes by the terms of the hold that is there.
        async move { ask_for(&inner, claims, ask, Terms::default(), queueing).await }
    }

    /// Has this guard need the lock in shared mode only, which lets others in
    /// unless another guard of this owner needs more.
    pub(crate) fn sharing(&mut self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (inner, hold) = (Arc::clone(&self.inner), self.proof.hold);
        self.ask = Ask::Shared;
        async move {
            let downgrade = |call| Event::Downgrade { call, hold };
            done(call(&inner.state, None, downgrade).await)
        }
    }

    /// What it shows, which other guards of the same owner may share.
    pub(crate) fn proof(&self) -> &Arc<Proof> {
        &self.proof
    }

    pub(crate) fn ask(&self) -> Ask {
        self.ask
    }
}

/// What became of a call that is granted nothing.
fn done(outcome: Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Failed(error) => Err(error),
        Outcome::Granted(_) | Outcome::Refused | Outcome::Done => Ok(()),
    }
}

/// Runs `work` until that is lost.
pub(crate) async fn run_until<F: Future>(lost: Lost, work: F) -> Result<F::Output, Loss> {
    tokio::select! {
        biased;
        loss = lost => Err(loss),
        value = work => Ok(value),
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.open {
            let (hold, ask) = (self.proof.hold, self.ask);
            self.inner.state.tell(Event::Leave { hold, ask });
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("owner", self.owner())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish()
    }
}
