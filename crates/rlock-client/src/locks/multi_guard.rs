//! The proof of holding several locks together.

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use rlock_engine::engine::owner::Owner;
use rlock_engine::error::{Error, Loss};

use crate::locks::guard::{Guard, run_until};
use crate::pump::lost::Lost;

/// Holds several locks until they are released, dropped, or one of them is
/// lost.
///
/// As good as its weakest part: if one lock is lost, the guard is. Release or
/// drop it then, so that the others become free: those that one grant took
/// together are not renewed any more and end with their lease, those that have
/// a grant each, as in a cluster, are renewed until then.
///
/// # Examples
///
/// ```no_run
/// # async fn example(both: rlock_client::MultiLock) -> Result<(), rlock_client::Error> {
/// let guard = both.lock().await?;
/// println!("held, fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "locks are released as soon as their guard is dropped"]
pub struct MultiGuard {
    first: Guard,
    /// The others, where each key was taken by itself.
    rest: Vec<Guard>,
}

impl MultiGuard {
    /// All keys by one grant.
    pub(crate) fn together(guard: Guard) -> Self {
        let rest = Vec::new();
        Self { first: guard, rest }
    }

    /// Each key by a grant of its own; `None` if there is none.
    pub(crate) fn apart(guards: Vec<Guard>) -> Option<Self> {
        let mut guards = guards.into_iter();
        let first = guards.next()?;
        let rest = guards.collect();
        Some(Self { first, rest })
    }

    fn parts(&self) -> impl Iterator<Item = &Guard> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The fencing token: the one fence of all, where the server took them in
    /// one step; else the largest of their fences.
    ///
    /// In the second case it is larger than all earlier ones for the lock that
    /// was taken last only: use [`fence_of`](Self::fence_of) there, which is
    /// right in both.
    pub fn fence(&self) -> u64 {
        self.parts().map(Guard::fence).max().unwrap_or_default()
    }

    /// The fencing token of one of the locks; `None` for a key that is not
    /// among them. See [`Guard::fence`].
    pub fn fence_of(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        let key = key.as_ref();
        let part = self.parts().find(|part| keys(part).any(|held| held == key));
        part.map(Guard::fence)
    }

    /// Who holds them.
    pub fn owner(&self) -> &Owner {
        self.first.owner()
    }

    /// The keys, in the order of their names.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.parts().flat_map(keys)
    }

    /// For how long all of them are held for certain; zero if one was lost.
    ///
    /// See [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.parts().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Whether all of them are held for certain at this moment; once false it
    /// stays false. See [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.parts().all(Guard::is_valid)
    }

    /// Tells when one of them is lost; see [`Guard::loss`].
    pub fn loss(&self) -> Lost {
        Lost::of(self.parts().map(Guard::proof))
    }

    /// Runs `work` for as long as all of them are held; see [`Guard::run`].
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

    /// Has all of them last for at least `lease` from now; see
    /// [`Guard::extend`].
    ///
    /// # Errors
    ///
    /// Those of [`Guard::extend`], of the first for which it failed; the others
    /// may last for longer. All are asked for at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open which of them last for longer.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.extending(lease).await
    }

    /// The same, for another thread.
    pub(crate) fn extending(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let parts = self.parts().map(|part| part.extending(lease));
        let all = join_all(parts);
        async move { all.await.into_iter().collect() }
    }

    /// Releases all of them at once and waits for the servers' word. One that is
    /// away keeps none of the others.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`], of the first that could not be released;
    /// the others are, or the background goes on with them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the release to the background.
    pub async fn release(self) -> Result<(), Error> {
        let parts = std::iter::once(self.first).chain(self.rest);
        let outcomes = join_all(parts.map(Guard::release)).await;
        outcomes.into_iter().collect()
    }
}

fn keys(part: &Guard) -> impl Iterator<Item = &[u8]> {
    part.proof().claims.keys()
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys().map(String::from_utf8_lossy);
        f.debug_struct("MultiGuard")
            .field("keys", &keys.collect::<Vec<_>>())
            .field("owner", self.owner())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish()
    }
}
