//! Several locks as one, all or none: the verbs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;
use rlock_engine::wire::inspect::Info;

use crate::locks::guard::sealed::{self, Grants};
use crate::locks::guard::{Guard, Kind};
use crate::locks::{All, Lock, left, never_refused};
use crate::pump::Inner;

/// Several locks that are held together or not at all.
///
/// Made by [`Client::multi`](crate::Client::multi); cheap to clone. Each is
/// the same lock as a [`Mutex`](crate::Mutex) with its key.
///
/// On a single server, and in a cluster if all keys are in one slot (such as
/// keys with the same `{tag}`), the server takes them in one step, under one
/// fence. A waiting call has a place in every queue and holds nothing
/// meanwhile. Two such requests never wait for each other in a cycle.
///
/// Otherwise the client takes them one after the other, in the order of their
/// names as bytes, so two such calls never wait for each other in a cycle. It
/// keeps and renews those already taken while it waits for the next, so others
/// may wait for them. If the wait ends first, it releases them. Each has its
/// own fence. This needs a client of the cluster (`redis+cluster://`): a client
/// of a single node gets [`Error::Refused`] (`MOVED`) for the keys of others.
///
/// These holds are not bound to a connection: the server cannot do it for
/// several keys.
///
/// # Examples
///
/// ```no_run
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let both = client.multi(["account:1", "account:2"]);
/// let guard = both.lock().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct MultiLock {
    /// The first of them.
    lock: Lock,
    keys: Arc<[Arc<[u8]>]>,
}

/// Several locks: the kind of [`MultiGuard`].
#[derive(Debug)]
pub enum Several {}

/// Holds several locks until they are released, dropped, or one of them is
/// lost.
///
/// If one lock is lost, the guard is lost. Then release or drop it, so that the
/// others become free. Locks that one grant took together are no longer
/// renewed, and end with their lease. Locks with a grant each, as in a cluster,
/// are renewed until then.
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
pub type MultiGuard = Guard<Several>;

impl Kind for Several {}

impl sealed::Kind for Several {
    const NAME: &str = "MultiGuard";
    type Grants = All;
}

impl Guard<Several> {
    /// The fencing token of one of the locks; `None` for a key that is not
    /// among them.
    ///
    /// If the server took them in one step, they all have the same fence. If
    /// each has its own, the [`fence`](Self::fence) of the guard is the largest
    /// of them, which is larger than all earlier fences of only one of the
    /// locks.
    pub fn fence_of(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        let key = key.as_ref();
        let mut proofs = self.held.proofs();
        let proof = proofs.find(|proof| proof.claims.keys().any(|held| held == key))?;
        Some(proof.fence())
    }
}

impl MultiLock {
    pub(crate) fn new(inner: Arc<Inner>, mut keys: Vec<Arc<[u8]>>) -> Self {
        keys.sort_unstable();
        // Without keys every call is refused.
        let first = keys.first().cloned().unwrap_or_default();
        Self {
            lock: Lock::new(inner, first),
            keys: keys.into(),
        }
    }

    /// The keys, in the order of their names.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|key| &**key)
    }

    /// The same locks, for `owner`, which may already hold them.
    ///
    /// If it holds exactly these with guards of such a lock, they are
    /// re-entered at once, under the same fence. [`Error::HeldOtherwise`] if it
    /// holds some of them with other guards; if the keys are taken one after
    /// the other, those are re-entered instead. [`try_lock`](Self::try_lock)
    /// returns `None` while another call of this owner waits for one of them.
    pub fn by(&self, owner: &Owner) -> Self {
        Self {
            lock: self.lock.by(owner),
            ..self.clone()
        }
    }

    /// The same, held on `terms` from the next call on.
    ///
    /// Not [`bound`](Terms::bound), which the server cannot do for several keys:
    /// then every call fails with [`Error::OutOfRange`].
    pub fn with(&self, terms: Terms) -> Self {
        Self {
            lock: self.lock.with(terms),
            ..self.clone()
        }
    }

    /// Waits for all of them, without limit.
    ///
    /// Continues after a broken connection, as
    /// [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`](crate::Mutex::lock), and [`Error::OutOfRange`] for
    /// no keys, for more than 1024, and for one that is named twice. None of the
    /// locks is held then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the places in the queues and leaves nothing
    /// on the server.
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        let guard = self.ask(Queueing::Unlimited).await?;
        guard.ok_or_else(never_refused)
    }

    /// Takes all of them if all are free and nobody waits for any.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`](crate::Mutex::try_lock) and of
    /// [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing on the server.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        self.ask(Queueing::Try).await
    }

    /// Waits for all of them for at most `wait`; `None` if the time was not
    /// enough.
    ///
    /// Range and rounding as for
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock_timeout`](crate::Mutex::lock_timeout) and of
    /// [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<MultiGuard>, Error> {
        self.ask(Queueing::at_most(wait)?).await
    }

    /// Waits for all of them until `deadline`; `None` if the time was not enough. See
    /// [`lock_timeout`](Self::lock_timeout); a past `deadline` is a try.
    ///
    /// # Errors
    ///
    /// The errors of [`lock_timeout`](Self::lock_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock_timeout`](Self::lock_timeout).
    pub async fn lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard>, Error> {
        self.lock_timeout(left(deadline)).await
    }

    /// Who holds each lock, and who waits for it, in the order of
    /// [`keys`](Self::keys); see [`Mutex::info`](crate::Mutex::info). All are
    /// asked at once, each for itself, so they may be of different moments.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::info`](crate::Mutex::info), for the first key that has
    /// one.
    pub async fn info(&self) -> Result<Vec<Info>, Error> {
        let locks: Vec<_> = self.keys.iter().map(|key| self.lock.at(key)).collect();
        let infos = join_all(locks.iter().map(Lock::info)).await;
        infos.into_iter().collect()
    }

    async fn ask(&self, queueing: Queueing) -> Result<Option<MultiGuard>, Error> {
        // Even for one key, so that a list of any length means the same.
        self.lock.terms.check_for_several()?;
        let claims = Claims::checked(self.lock.owner(), self.keys.to_vec())?;
        let held = self.lock.ask_for(claims, Ask::Exclusive, queueing).await?;
        Ok(held.map(Guard::new))
    }
}
