//! Several locks as one, all or none: the verbs.
//!
//! Decides whether the server can take them in one step. If not, they are
//! taken one after the other in the order of their names, so that two calls
//! never wait for each other, and released if one is not granted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rlock_engine::engine::claims::{Owner, check_keys};
use rlock_engine::engine::instant::Instant as Moment;
use rlock_engine::engine::node::slot_of;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;
use rlock_engine::wire::inspect::Info;

use crate::locks::guard::sealed::{self, Grants};
use crate::locks::guard::{Guard, Kind};
use crate::locks::{Lock, Single, left};
use crate::pump::{Inner, now, pause_after};

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
    /// All keys as one request.
    lock: Lock,
    keys: Arc<[Arc<[u8]>]>,
    is_one_slot: bool,
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

/// What is held of several keys: one grant of all, or one of each.
pub struct All {
    first: Single,
    rest: Vec<Single>,
}

impl Grants for All {
    fn first(&self) -> &Arc<Proof> {
        self.first.first()
    }

    fn proofs(&self) -> impl Iterator<Item = &Arc<Proof>> {
        std::iter::once(&self.first)
            .chain(&self.rest)
            .map(Single::first)
    }

    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let all = std::iter::once(&self.first).chain(&self.rest);
        let outcomes = join_all(all.map(|single| single.extending(lease))).await;
        outcomes.into_iter().collect()
    }

    fn keep(&self, until: Moment) {
        let all = std::iter::once(&self.first).chain(&self.rest);
        all.for_each(|single| single.keep(until));
    }

    async fn release(self) -> Result<(), Error> {
        let all = std::iter::once(self.first).chain(self.rest);
        let outcomes = join_all(all.map(Single::release)).await;
        outcomes.into_iter().collect()
    }
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

/// How to wait until `deadline`, if there is one; none if it is over.
fn rest_of(queueing: Queueing, deadline: Option<Moment>) -> Result<Option<Queueing>, Error> {
    let left = deadline.map(|deadline| deadline - now());
    match left {
        None => Ok(Some(queueing)),
        Some(Duration::ZERO) => Ok(None),
        Some(left) => Queueing::at_most(left).map(Some),
    }
}

impl MultiLock {
    pub(crate) fn new(inner: Arc<Inner>, mut keys: Vec<Arc<[u8]>>) -> Self {
        keys.sort_unstable();
        // Without keys every call is refused.
        let first = keys.first().cloned().unwrap_or_default();
        let slot = slot_of(&first);
        let is_one_slot = keys.iter().all(|key| slot_of(key) == slot);
        let rest = keys.get(1..).unwrap_or_default();
        Self {
            lock: Lock::new(inner, first, rest),
            keys: keys.into(),
            is_one_slot,
        }
    }

    /// What can be asked for together.
    fn check(&self) -> Result<(), Error> {
        check_keys(&self.keys)?;
        self.lock.terms.check_for_several()
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
        let owner = self.owner();
        loop {
            if let Some(guard) = self.ask(&owner, Queueing::Unlimited).await? {
                return Ok(guard);
            }
        }
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
        self.ask(&self.owner(), Queueing::Try).await
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
        self.ask(&self.owner(), Queueing::at_most(wait)?).await
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

    /// The owner for the request, which may give keys back and ask for them again.
    fn owner(&self) -> Owner {
        self.lock.owner().reusable()
    }

    async fn ask(&self, owner: &Owner, queueing: Queueing) -> Result<Option<MultiGuard>, Error> {
        self.check()?;
        let deadline = match queueing {
            Queueing::AtMost(wait) => Some(now() + wait),
            Queueing::Try | Queueing::Unlimited => None,
        };
        if self.is_one_slot || !self.lock.inner.state.is_cluster(queueing).await? {
            let Some(queueing) = rest_of(queueing, deadline)? else {
                return Ok(None);
            };
            let held = self.lock.ask_as(owner, Ask::Exclusive, queueing).await?;
            let rest = Vec::new();
            return Ok(held.map(|first| Guard::new(All { first, rest })));
        }
        let mut attempts = 0;
        loop {
            let Some(held) = self.in_order(owner, queueing, deadline).await? else {
                return Ok(None);
            };
            let mut held = held.into_iter();
            let first = held
                .next()
                .ok_or_else(|| Error::Protocol("no grant of any key".to_owned()))?;
            let rest = held.collect();
            let guard = Guard::new(All { first, rest });
            // The first may have been lost while the last was waited for.
            if guard.is_valid() {
                return Ok(Some(guard));
            }
            let is_over = deadline.is_some_and(|deadline| deadline <= now());
            if matches!(queueing, Queueing::Try) || is_over {
                return Ok(None);
            }
            // The lease may be shorter than it takes to take them all.
            drop(guard);
            tokio::time::sleep(pause_after(&mut attempts)).await;
        }
    }

    /// Takes one after the other. Wherever this is left, what was had is
    /// dropped, and so released.
    async fn in_order(
        &self,
        owner: &Owner,
        queueing: Queueing,
        deadline: Option<Moment>,
    ) -> Result<Option<Vec<Single>>, Error> {
        let mut held = Vec::with_capacity(self.keys.len());
        for key in &*self.keys {
            let Some(queueing) = rest_of(queueing, deadline)? else {
                return Ok(None);
            };
            let lock = self.lock.at(key);
            match lock.ask_as(owner, Ask::Exclusive, queueing).await? {
                Some(single) => held.push(single),
                None => return Ok(None),
            }
        }
        Ok(Some(held))
    }
}
