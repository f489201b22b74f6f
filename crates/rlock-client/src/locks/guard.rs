//! The proof of holding a lock, of whatever kind.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::error::{Error, Loss};
use tokio::runtime::{self, Handle};
use tokio::time::Sleep;

use crate::locks::Granted;
use crate::locks::guard::sealed::Grants as _;
use crate::pump::{now, timer};

/// Holds a lock until it is released, dropped, or lost.
///
/// `K` is the kind of hold. Each kind has its own name, and may have further
/// methods:
///
/// | | holds | made by |
/// |---|---|---|
/// | `Guard` | a lock, alone | [`Mutex`](crate::Mutex) |
/// | [`ReadGuard`](crate::ReadGuard), [`WriteGuard`](crate::WriteGuard) | a lock, with other readers or alone | [`RwLock`](crate::RwLock) |
/// | [`Permits`](crate::Permits) | permits, all of them together | [`Semaphore`](crate::Semaphore) |
/// | [`MultiGuard`](crate::MultiGuard) | several locks | [`MultiLock`](crate::MultiLock) |
/// | [`Leadership`](crate::Leadership) | a lock, alone, with a value | [`Election`](crate::Election) |
/// | [`QuorumGuard`](crate::QuorumGuard) | a lock on a majority of servers | [`QuorumMutex`](crate::QuorumMutex) |
///
/// End it with [`release`](Self::release). Dropping it sends the release and
/// leaves the reply to the background. That never blocks and never fails,
/// inside or outside a runtime, even in a panic. If the runtime is gone, the
/// lock becomes free when its lease ends.
///
/// A lock with a lease can be lost: see [`loss`](Self::loss), and
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
///
/// A function that takes any held lock:
///
/// ```no_run
/// use rlock_client::{Error, Guard, Kind};
///
/// async fn report<K: Kind>(guard: Guard<K>) -> Result<(), Error> {
///     println!("{} holds it under fence {}", guard.owner(), guard.fence());
///     guard.release().await
/// }
/// ```
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct Guard<K: Kind = Exclusive> {
    pub(crate) held: K::Grants,
}

/// What a [`Guard`] holds. Only the kinds of this crate are.
pub trait Kind: sealed::Kind {}

/// What has one key.
pub trait OneKey: Kind {}

/// A lock, alone: the kind of [`Guard`] that a [`Mutex`](crate::Mutex) gives.
#[derive(Debug)]
pub enum Exclusive {}

impl Kind for Exclusive {}
impl OneKey for Exclusive {}

impl sealed::Kind for Exclusive {
    const NAME: &str = "Guard";
    type Grants = Granted;
}

/// Any held lock, for lists of several kinds and the like; see [`Guard`].
///
/// ```no_run
/// use rlock_client::{Held, Permits, ReadGuard};
///
/// fn are_valid(reading: ReadGuard, permits: Permits) -> bool {
///     let held: Vec<Box<dyn Held>> = vec![Box::new(reading), Box::new(permits)];
///     held.iter().all(|guard| guard.is_valid())
/// }
/// ```
pub trait Held: sealed::Sealed + fmt::Debug + Send + Sync {
    /// See [`Guard::fence`].
    fn fence(&self) -> u64;
    /// See [`Guard::owner`].
    fn owner(&self) -> &Owner;
    /// See [`Guard::remaining`].
    fn remaining(&self) -> Duration;
    /// See [`Guard::is_valid`].
    fn is_valid(&self) -> bool;
    /// See [`Guard::loss`].
    fn loss(&self) -> LossSignal;
}

impl<K: Kind> Guard<K> {
    pub(crate) fn new(held: K::Grants) -> Self {
        Self { held }
    }

    /// The fencing token: larger than the fence of every earlier holder.
    ///
    /// A positive number below 2^53. Send it with every write under the lock,
    /// and let the receiver refuse a smaller one than it has seen. Then a
    /// holder that does not know of its loss yet does no harm. Re-entry and
    /// renewal keep the fence.
    ///
    /// The fence of a reader or of permits belongs to this holder. It is larger
    /// than the fence of every earlier holder that excludes this one. For
    /// several keys see [`fence_of`](Guard::fence_of).
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
        let fences = self.held.proofs().map(|proof| proof.fence());
        fences.max().unwrap_or_default()
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        self.held.granted().proof().claims.owner()
    }

    /// The keys of what is held, in the order of their names.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.held.proofs().flat_map(|proof| proof.claims.keys())
    }

    /// How long it is certainly still held; zero if it was lost.
    ///
    /// Counts on this machine's clock from a moment before the grant, minus 2
    /// ms and a hundredth of the lease. Each renewal sets it again. With
    /// several keys the first that ends counts, and with a quorum the last
    /// member of a majority. A [bound](crate::Terms::bound) hold ends sooner if
    /// its connection does.
    pub fn remaining(&self) -> Duration {
        self.held.look();
        let now = now();
        let left = self.held.proofs().map(|proof| proof.remaining(now));
        left.min().unwrap_or_default()
    }

    /// Whether it is certainly held at this moment.
    ///
    /// Compares with the clock at each call, so it is right even if the runtime
    /// could not run for a while. Once false it stays false. With several keys
    /// all must be held, and with a quorum a majority of the members.
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
        self.held.look();
        let now = now();
        self.held.proofs().all(|proof| proof.is_live(now))
    }

    /// Reports its loss: a future that can also be polled at once.
    ///
    /// The holder loses the lock before the server can grant it to another
    /// owner: when the lease ends by this process's clock, even without contact
    /// to the server. It is lost at once when the server says so: after a
    /// forced release, a `DEL` or a flush. With several keys the first loss
    /// counts. A quorum lock is lost when fewer members than a majority hold
    /// it; the background asks a single member that has lost it again.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(guard: rlock_client::Guard) {
    /// let loss = guard.loss().await;
    /// eprintln!("{loss}");
    /// # }
    /// ```
    pub fn loss(&self) -> LossSignal {
        LossSignal::of(self.held.proofs())
    }

    /// Runs `work` while it is held.
    ///
    /// If it is lost, `work` is dropped, and the loss is returned. The guard
    /// stays: release it afterwards.
    ///
    /// # Errors
    ///
    /// The loss. If `work` did not yield in time, it may overlap with another
    /// holder's work: see [`fence`](Self::fence).
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
        tokio::select! {
            biased;
            loss = self.loss() => Err(loss),
            value = work => Ok(value),
        }
    }

    /// Extends the hold to at least `lease` from now.
    ///
    /// Use this for work that takes longer than a [fixed
    /// lease](crate::Lease::Fixed). If the watchdog renews the lock, later
    /// leases are not shorter. Nothing is sent if the hold already lasts long
    /// enough; it never lasts beyond its [`max_hold`](crate::Terms::max_hold).
    /// Range and rounding as for [`Terms::lease`](crate::Terms::lease).
    ///
    /// # Errors
    ///
    /// After an error it is held as before, except for the first one. Several
    /// keys are asked for at once: the error comes from the first that failed,
    /// and the others may last longer.
    ///
    /// - [`Error::Lost`]: the lock was lost;
    /// - [`Error::OutOfRange`], [`Error::Denied`], [`Error::Refused`]: for a
    ///   lease below 3 ms, above 30 days, or longer than the server allows;
    /// - [`Error::Unavailable`]: no answer within the client's retry timeout, or
    ///   another call of the same owner was under way for that time. The
    ///   lock may last for longer on the server than is known here;
    /// - [`Error::Member`]: in a quorum, for a lease above the startup grace of
    ///   a member.
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
        self.held.granted().extend(lease).await
    }

    /// Releases it and waits for the server's reply.
    ///
    /// The next waiter gets it at the same moment. If other guards of the same
    /// owner hold it too, only this one ends, and nothing is sent; but a part of
    /// [`Permits`](crate::Permits) releases its own permits. Several keys
    /// are released at once, so an unreachable server of one key does not delay
    /// the others. A quorum lock waits for a majority, and for the other
    /// members if they answer soon.
    ///
    /// # Errors
    ///
    /// For several keys, the error of the first that could not be released.
    ///
    /// - [`Error::Lost`]: the lock was lost before. What the server may have of it
    ///   still is released all the same;
    /// - [`Error::Unavailable`]: no answer within the client's retry timeout, or
    ///   another call of the same owner was under way for that time; the
    ///   background keeps trying until the lease ends;
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
    pub async fn release(self) -> Result<(), Error> {
        self.held.into_granted().release().await
    }

    /// Ends this guard, and keeps the lock taken until `least` after its grant.
    ///
    /// For work that must happen at most once in `least`, in any process: a job
    /// that a timer starts on many machines at once, or a rate-limited call
    /// (with [`Permits`](crate::Permits)). The clocks of the machines do not
    /// have to agree, and nothing has to be recorded.
    ///
    /// The server does this. The client asks once more for a lease, for the
    /// rest of `least`, and then nobody renews the lock. Once the server has
    /// answered, the lock is taken until `least` after its grant and then free,
    /// whatever happens to this process, its client or its connection. That
    /// shortens a longer lease. [`bound`](crate::Terms::bound) and
    /// [`max_hold`](crate::Terms::max_hold) do not end it. If `least` is
    /// already over, the lock is [released](Self::release).
    ///
    /// - `least` counts on this machine's clock from when the grant was known
    ///   here, so the lock is not free before `least` after the grant, and later
    ///   by the way of the reply and a millisecond or two. For a lock that was
    ///   entered again or upgraded that is its first grant; for keys that were
    ///   taken one after the other, the last one.
    /// - Other guards of the same owner hold it on, and nothing is sent: the
    ///   last of them leaves it taken like this, however it ends.
    /// - A process that dies before this is called leaves the lock for its
    ///   [lease](crate::Terms::lease): choose one of at least `least` where it
    ///   must stay taken even so.
    /// - An operator can free it, and so can an [`Owner`] that is kept: it enters
    ///   the lock under the same fence, and releases it, or cancels that call.
    /// - A server that loses what it acknowledged, in a crash or a failover, may
    ///   lose this as it may lose any lock. With
    ///   [`replicas`](crate::Terms::replicas) as many have to know it.
    /// - Where the server does not let this client close its own earlier connection
    ///   (`CLIENT KILL`), a call for the lock that was lost with that may still
    ///   arrive, and set the lease to its own.
    /// - In a quorum a majority keeps it. A member that crashes keeps it for its
    ///   startup grace at least.
    ///
    /// # Errors
    ///
    /// No error frees the lock: if it could not be kept for `least`, it becomes
    /// free when its lease ends, or when `least` is over if that is later. For
    /// several keys, the error of the first that has one.
    ///
    /// - [`Error::Lost`]: the lock was lost before, or while this was asked for;
    /// - [`Error::OutOfRange`]: `least` is above 30 days;
    /// - [`Error::Unavailable`]: no answer within the client's retry timeout, or
    ///   another call of the same owner was under way for that time; the
    ///   background keeps trying until the lease ends;
    /// - [`Error::Refused`]: what is left of `least`, and a millisecond, is longer
    ///   than the server allows for a lease (24 h by default), and nothing was
    ///   changed;
    /// - [`Error::Denied`], [`Error::NotALock`]: the server refuses;
    /// - [`Error::NotReplicated`]: the server keeps it, but fewer replicas know.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any time leaves the work to the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn report() {}
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// // On each of many machines, every hour.
    /// if let Some(guard) = mutex.try_lock().await? {
    ///     report().await;
    ///     guard.release_after(Duration::from_secs(60)).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn release_after(
        self,
        least: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<K> {
        let kept = self.held.granted().keep(least);
        async move {
            kept?;
            self.held.into_granted().release().await
        }
    }
}

impl<K: OneKey> Guard<K> {
    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        self.held.granted().proof().claims.key()
    }
}

impl<K: Kind> Held for Guard<K> {
    fn fence(&self) -> u64 {
        self.fence()
    }

    fn owner(&self) -> &Owner {
        self.owner()
    }

    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn is_valid(&self) -> bool {
        self.is_valid()
    }

    fn loss(&self) -> LossSignal {
        self.loss()
    }
}

impl<K: Kind> sealed::Sealed for Guard<K> {}

impl<K: Kind> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys().map(String::from_utf8_lossy);
        f.debug_struct(K::NAME)
            .field("keys", &keys.collect::<Vec<_>>())
            .field("owner", self.owner())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// What the kinds are made of.
pub(crate) mod sealed {
    use std::sync::Arc;

    use rlock_engine::engine::proof::Proof;

    use crate::locks::Granted;

    pub trait Sealed {}

    pub trait Kind {
        /// The name of the guard.
        const NAME: &str;
        type Grants: Grants;
    }

    /// A guard of the session, and what its kind adds. Dropping it releases it in
    /// the background.
    pub trait Grants: Send + Sync {
        fn granted(&self) -> &Granted;

        fn into_granted(self) -> Granted;

        fn proofs(&self) -> impl Iterator<Item = &Arc<Proof>> {
            std::iter::once(self.granted().proof())
        }

        /// Counts again where the clock is not enough.
        fn look(&self) {}
    }
}

/// Resolves when a lock is lost; from [`Guard::loss`](crate::Guard::loss).
///
/// It borrows nothing, so it can move to another task and outlive the guard. If
/// the lock is released, it resolves with [`Loss::Released`], so that such a
/// task ends. It never does so while the guard exists. Dropping it changes
/// nothing.
///
/// # Cancel safety
///
/// Dropping it changes nothing.
///
/// # Examples
///
/// ```no_run
/// # async fn example(guard: rlock_client::Guard) {
/// let loss = guard.loss();
/// tokio::spawn(async move { eprintln!("not held any more: {}", loss.await) });
/// # }
/// ```
#[must_use = "it does nothing unless it is awaited or asked"]
pub struct LossSignal {
    /// At least one; several for several keys that are held one by one.
    parts: Vec<Part>,
    /// It has its own timer, so it does not depend on another task to notice the
    /// end of a lease.
    timer: Option<Timer>,
}

struct Part {
    proof: Arc<Proof>,
    /// Its place among those who wait.
    place: u64,
}

struct Timer {
    until: Instant,
    /// A timer must not be polled after the end of its runtime.
    runtime: runtime::Id,
    sleep: Pin<Box<Sleep>>,
}

impl LossSignal {
    pub(crate) fn of<'a>(proofs: impl IntoIterator<Item = &'a Arc<Proof>>) -> Self {
        let parts = proofs.into_iter().map(|proof| Part {
            proof: Arc::clone(proof),
            place: 0,
        });
        let (parts, timer) = (parts.collect(), None);
        Self { parts, timer }
    }

    /// What it would resolve with now; `None` while the lock is held.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: &rlock_client::Guard) {
    /// if let Some(loss) = guard.loss().now() {
    ///     eprintln!("lost: {loss}");
    /// }
    /// # }
    /// ```
    pub fn now(&self) -> Option<Loss> {
        let now = now();
        first(self.parts.iter().map(|part| part.proof.end_of(now)))
    }

    /// What it resolves with; or when to look again, unless `waker` is woken before.
    pub(crate) fn look(&mut self, waker: &Waker) -> Result<Loss, Instant> {
        for part in &mut self.parts {
            part.proof.wait(&mut part.place, waker);
        }
        if let Some(loss) = self.now() {
            return Ok(loss);
        }
        let ends = self.parts.iter().map(|part| part.proof.valid_until());
        // What is over by now has none, which is the least.
        Err(ends.min().flatten().unwrap_or_default())
    }

    /// A timer of this runtime that rings then.
    fn timer_at(&mut self, until: Instant) -> Pin<&mut Sleep> {
        let runtime = Handle::current().id();
        let known = self.timer.take();
        let known = known.filter(|it| (it.until, it.runtime) == (until, runtime));
        let timer = self.timer.insert(known.unwrap_or_else(|| Timer {
            until,
            runtime,
            sleep: Box::pin(tokio::time::sleep_until(timer(until))),
        }));
        timer.sleep.as_mut()
    }
}

/// The first loss, or else that one was released.
fn first(ends: impl Iterator<Item = Option<Loss>>) -> Option<Loss> {
    ends.flatten()
        .reduce(|known, next| if known == Loss::Released { next } else { known })
}

impl Future for LossSignal {
    type Output = Loss;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Loss> {
        let this = self.get_mut();
        loop {
            let until = match this.look(context.waker()) {
                Ok(loss) => return Poll::Ready(loss),
                Err(until) => until,
            };
            if this.timer_at(until).poll(context).is_pending() {
                return Poll::Pending;
            }
            this.timer = None;
        }
    }
}

impl Clone for LossSignal {
    fn clone(&self) -> Self {
        Self::of(self.parts.iter().map(|part| &part.proof))
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LossSignal").field(&self.now()).finish()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.proof.stop_waiting(self.place);
    }
}
