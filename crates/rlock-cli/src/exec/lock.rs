//! The kinds of lock behind one face.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rlock_client::{
    Client, Error, Guard, Loss, Mutex, Owner, Permits, Quorum, QuorumGuard, QuorumMutex, ReadGuard,
    RwLock, Semaphore, Terms,
};

use super::terms::{Exec, Kind};

/// A lock that is asked for.
pub(super) enum Lock {
    Exclusive(Mutex),
    Shared(RwLock),
    Permits(Semaphore, u32),
    OnMost(QuorumMutex),
}

/// A lock that is held.
pub(super) enum Held {
    Exclusive(Guard),
    Shared(ReadGuard),
    Permits(Permits),
    OnMost(QuorumGuard),
}

/// Where the lock is.
pub(super) enum Servers {
    One(Client),
    Quorum(Quorum),
}

impl Servers {
    /// Waits until nothing is left to release or withdraw.
    pub(super) async fn flush(&self) {
        match self {
            Self::One(client) => client.flush().await,
            Self::Quorum(quorum) => quorum.flush().await,
        }
    }
}

impl Lock {
    /// Nothing is sent yet.
    pub(super) fn new(servers: &Servers, exec: &Exec) -> Result<Self, Error> {
        let key = exec.key().as_bytes();
        let terms = Terms::new().lease(exec.lease()).replicas(exec.replicas());
        let terms = match exec.bind() {
            Some(grace) => terms.bound(grace),
            None => terms,
        };
        let client = match servers {
            Servers::One(client) => client,
            Servers::Quorum(quorum) => return Ok(Self::OnMost(quorum.mutex(key).with(terms)?)),
        };
        Ok(match exec.kind() {
            Kind::Exclusive => Self::Exclusive(client.mutex(key).with(terms)?),
            Kind::Shared => Self::Shared(client.rwlock(key).with(terms)?),
            Kind::Permits { limit, permits } => {
                Self::Permits(client.semaphore(key, limit)?.with(terms)?, permits)
            }
        })
    }

    /// Waits for the lock: without limit if `wait` is none, not at all if it
    /// is zero. `None` if that was not enough.
    ///
    /// # Cancel safety
    ///
    /// The request is withdrawn behind the call.
    pub(super) async fn acquire(&self, wait: Option<Duration>) -> Result<Option<Held>, Error> {
        match (self, wait) {
            (Self::Exclusive(mutex), None) => Ok(Some(Held::Exclusive(mutex.lock().await?))),
            (Self::Exclusive(mutex), Some(wait)) => {
                Ok(mutex.lock_timeout(wait).await?.map(Held::Exclusive))
            }
            (Self::Shared(lock), None) => Ok(Some(Held::Shared(lock.read().await?))),
            (Self::Shared(lock), Some(wait)) => {
                Ok(lock.read_timeout(wait).await?.map(Held::Shared))
            }
            (Self::OnMost(mutex), None) => Ok(Some(Held::OnMost(mutex.lock().await?))),
            (Self::OnMost(mutex), Some(wait)) => {
                Ok(mutex.lock_timeout(wait).await?.map(Held::OnMost))
            }
            (Self::Permits(semaphore, permits), None) => {
                Ok(Some(Held::Permits(semaphore.acquire_many(*permits).await?)))
            }
            (Self::Permits(semaphore, permits), Some(wait)) => {
                let held = semaphore.acquire_many_timeout(*permits, wait).await?;
                Ok(held.map(Held::Permits))
            }
        }
    }
}

impl Held {
    pub(super) fn fence(&self) -> u64 {
        match self {
            Self::Exclusive(guard) => guard.fence(),
            Self::Shared(guard) => guard.fence(),
            Self::Permits(guard) => guard.fence(),
            Self::OnMost(guard) => guard.fence(),
        }
    }

    pub(super) fn owner(&self) -> &Owner {
        match self {
            Self::Exclusive(guard) => guard.owner(),
            Self::Shared(guard) => guard.owner(),
            Self::Permits(guard) => guard.owner(),
            Self::OnMost(guard) => guard.owner(),
        }
    }

    /// Waits until the lock is lost.
    pub(super) async fn lost(&self) -> Loss {
        match self {
            Self::Exclusive(guard) => guard.loss().await,
            Self::Shared(guard) => guard.loss().await,
            Self::Permits(guard) => guard.loss().await,
            Self::OnMost(guard) => guard.loss().await,
        }
    }

    /// Releases the lock and waits for the server's word.
    pub(super) async fn release(self) -> Result<(), Error> {
        match self {
            Self::Exclusive(guard) => guard.release().await,
            Self::Shared(guard) => guard.release().await,
            Self::Permits(guard) => guard.release().await,
            Self::OnMost(guard) => guard.release().await,
        }
    }
}
