//! Holds a lock of a quorum.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::owner::Owner;
use rlock_engine::engine::terms::whole_ms;
use rlock_engine::error::{Error, Loss};

use crate::locks::guard::run_until;
use crate::pump::clock::now;
use crate::pump::lost::Lost;
use crate::quorum::hold::Hold;

/// Holds a lock of a [`Quorum`](crate::Quorum) until it is released, dropped, or
/// lost.
///
/// As with [`Guard`](crate::Guard), dropping it leaves the release to the
/// background.
///
/// # Examples
///
/// ```no_run
/// # async fn work() {}
/// # async fn example(mutex: rlock_client::QuorumMutex) -> Result<(), rlock_client::Error> {
/// let guard = mutex.lock().await?;
/// match guard.run(work()).await {
///     Ok(()) => guard.release().await?,
///     Err(loss) => eprintln!("stopped: the lock was lost, {loss}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct QuorumGuard {
    hold: Arc<Hold>,
    open: bool,
}

/// One member that holds a lock of a quorum; from [`QuorumGuard::members`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldingMember {
    /// The server, as it was named to connect to it.
    pub address: String,
    /// For how long it holds for certain, as [`Guard::remaining`] has it.
    ///
    /// [`Guard::remaining`]: crate::Guard::remaining
    pub remaining: Duration,
}

impl QuorumGuard {
    /// The first one of a hold.
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        let open = true;
        Self { hold, open }
    }

    /// Another one, after the lease of the whole was set anew; none if the hold
    /// is over.
    pub(crate) async fn again(hold: Arc<Hold>) -> Option<Self> {
        let guard = hold.enter().then(|| Self::new(hold))?;
        if guard.hold.look() {
            guard.hold.renew().await;
        }
        guard.hold.look().then_some(guard)
    }

    /// The fencing token: larger than that of every earlier holder.
    ///
    /// A majority of the members has it written down, so it rises whatever
    /// their clocks say and whichever of them take part. See
    /// [`Guard::fence`](crate::Guard::fence) for its use. Entering again and
    /// renewal keep it.
    pub fn fence(&self) -> u64 {
        self.hold.proof.fence()
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        self.hold.proof.claims.owner()
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        self.hold.proof.claims.key()
    }

    /// The members that hold it now. Others may be away, or be asked just now.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: &rlock_client::QuorumGuard) {
    /// for member in guard.members() {
    ///     println!("{} for {:?}", member.address, member.remaining);
    /// }
    /// # }
    /// ```
    pub fn members(&self) -> Vec<HoldingMember> {
        let parts = self.hold.parts().into_iter();
        let held = parts.filter_map(|(member, remaining)| {
            let address = self.hold.shared.members.get(member)?.address.clone();
            Some(HoldingMember { address, remaining })
        });
        held.collect()
    }

    /// For how long a majority holds it for certain; zero if it was lost.
    ///
    /// Of three members the second longest counts. See
    /// [`Guard::remaining`](crate::Guard::remaining).
    pub fn remaining(&self) -> Duration {
        match (self.hold.look(), self.hold.proof.valid_until()) {
            (true, Some(until)) => until - now(),
            _ => Duration::ZERO,
        }
    }

    /// Whether a majority holds it for certain at this moment; once false it
    /// stays false. See [`Guard::is_valid`](crate::Guard::is_valid).
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    /// Tells when fewer members than a majority hold it.
    ///
    /// That one member has lost it is no loss: it is asked again in the
    /// background. See [`Guard::loss`](crate::Guard::loss).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(guard: rlock_client::QuorumGuard) {
    /// let loss = guard.loss().await;
    /// eprintln!("{loss}");
    /// # }
    /// ```
    pub fn loss(&self) -> Lost {
        Lost::of([&self.hold.proof])
    }

    /// Runs `work` for as long as the lock is held; see
    /// [`Guard::run`](crate::Guard::run).
    ///
    /// # Errors
    ///
    /// The loss that ended `work`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, and changes nothing else.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Loss> {
        run_until(self.loss(), work).await
    }

    /// Has a majority hold the lock for at least `lease` from now; see
    /// [`Guard::extend`](crate::Guard::extend).
    ///
    /// # Errors
    ///
    /// Those of [`Guard::extend`](crate::Guard::extend), and [`Error::Member`]
    /// for a lease above the startup grace of a member.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open which members hold it for longer.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.extending(lease).await
    }

    /// The same, for another thread.
    pub(crate) fn extending(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let hold = Arc::clone(&self.hold);
        async move { hold.extend(whole_ms("lease", lease)?).await }
    }

    /// Releases the lock at all members, and waits for the word of a majority.
    /// The others are waited for if they answer soon.
    ///
    /// If other guards of the same owner hold it too, only this one ends, and
    /// nothing is sent.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lock was lost before: fewer members than a
    ///   majority still held it;
    /// - [`Error::Unavailable`], [`Error::Denied`], [`Error::NotALock`]: fewer
    ///   members than a majority have released it, within the patience of their
    ///   settings. The background goes on trying until the lease ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the release to the background.
    pub async fn release(mut self) -> Result<(), Error> {
        self.open = false;
        match self.hold.leave() {
            true => self.hold.release().await,
            false => Ok(()),
        }
    }
}

impl Drop for QuorumGuard {
    fn drop(&mut self) {
        if self.open && self.hold.leave() {
            self.hold.abandon();
        }
    }
}

impl fmt::Debug for QuorumGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumGuard")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("owner", self.owner())
            .field("fence", &self.fence())
            .field("members", &self.members())
            .finish()
    }
}
