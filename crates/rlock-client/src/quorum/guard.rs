//! Holds a lock of a quorum.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::whole_ms;
use rlock_engine::error::Error;

use crate::locks::guard::sealed::{self, Grants};
use crate::locks::guard::{Guard, Kind, OneKey};
use crate::quorum::hold::Hold;

/// A lock on a majority of servers: the kind of [`QuorumGuard`].
#[derive(Debug)]
pub enum Majority {}

/// Holds a lock of a [`Quorum`](crate::Quorum) until it is released, dropped, or
/// lost.
///
/// A majority of the members has its fence written down, so it rises whatever
/// their clocks say and whichever of them take part.
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
pub type QuorumGuard = Guard<Majority>;

/// One member that holds a lock of a quorum; from
/// [`QuorumGuard::members`](Guard::members).
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

impl Kind for Majority {}
impl OneKey for Majority {}

impl sealed::Kind for Majority {
    const NAME: &str = "QuorumGuard";
    type Grants = Share;
}

/// Uses what the members hold until it is released or dropped.
pub struct Share {
    hold: Arc<Hold>,
    open: bool,
}

impl Guard<Majority> {
    /// The first one of a hold.
    pub(crate) fn of(hold: Arc<Hold>) -> Self {
        Self::new(Share { hold, open: true })
    }

    /// Another one, after the lease of the whole was set anew; none if the hold
    /// is over.
    pub(crate) async fn again(hold: Arc<Hold>) -> Option<Self> {
        let guard = hold.enter().then(|| Self::of(hold))?;
        if guard.held.hold.look() {
            guard.held.hold.renew().await;
        }
        guard.held.hold.look().then_some(guard)
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
        let parts = self.held.hold.parts().into_iter();
        let held = parts.filter_map(|(member, remaining)| {
            let address = self.held.hold.shared.members.get(member)?.address.clone();
            Some(HoldingMember { address, remaining })
        });
        held.collect()
    }
}

impl Grants for Share {
    fn first(&self) -> &Arc<Proof> {
        &self.hold.proof
    }

    fn look(&self) {
        self.hold.look();
    }

    fn check(&self) {
        self.hold.is_valid();
    }

    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.hold.extend(whole_ms("lease", lease)?).await
    }

    fn keep(&self, until: Instant) {
        self.hold.keep(until);
    }

    async fn release(mut self) -> Result<(), Error> {
        self.open = false;
        match self.hold.leave() {
            true => self.hold.release().await,
            false => Ok(()),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.open && self.hold.leave() {
            self.hold.abandon();
        }
    }
}
