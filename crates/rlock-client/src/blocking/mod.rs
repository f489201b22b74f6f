//! The same locks for code without async.
//!
//! Same verbs, same futures: they run on a thread that the [`Client`] owns,
//! and the calling thread waits for them. Works on any thread; on one that
//! runs async code it holds up that code, as every blocking call does.
//!
//! # Examples
//!
//! ```no_run
//! # fn main() -> Result<(), rlock_client::Error> {
//! let client = rlock_client::blocking::Client::connect("redis://127.0.0.1/")?;
//! let guard = client.mutex("invoice:7").lock()?;
//! println!("held, fence {}", guard.fence());
//! guard.release()?;
//! # Ok(()) }
//! ```

use std::sync::mpsc;

use tokio::runtime::Handle;

use crate::{Answer, Contended, Counters, Error, Metrics, Owner, Servers};

mod held;
mod lost;
mod multi;
mod mutex;
mod on_thread;
mod quorum;
mod rwlock;
mod rwlock_guards;
mod semaphore;

pub use lost::Lost;
pub use multi::{MultiGuard, MultiLock};
pub use mutex::{Guard, Mutex};
pub use quorum::{Quorum, QuorumGuard, QuorumMutex};
pub use rwlock::RwLock;
pub use rwlock_guards::{ChangeError, ReadGuard, Upgrade, WriteGuard};
pub use semaphore::{Permits, Semaphore};

/// A connection to one server, or to each of a cluster; see [`crate::Client`].
///
/// Its thread ends when the last client, lock and guard made from it is gone
/// and what they left to the background is done.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Handle,
}

/// Runs `future` on the client's thread and waits for it on this one.
fn run<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T, Error> {
    let (done, outcome) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        let _ = done.send(future.await);
    });
    outcome.recv().map_err(|_| Error::Closed)
}

impl Client {
    /// Connects; see [`Client::connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`](crate::Client::connect), and
    /// [`Error::Connect`] if the system gives no thread.
    pub fn connect<S>(servers: S) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        Self::connect_with(crate::Client::builder(), servers)
    }

    /// Connects with settings.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and [`Error::OutOfRange`] for a
    /// setting.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rlock_client::Error> {
    /// let settings = rlock_client::Client::builder().name("billing@host-7");
    /// let client = rlock_client::blocking::Client::connect_with(settings, "redis://127.0.0.1/")?;
    /// # Ok(()) }
    /// ```
    pub fn connect_with<S>(settings: crate::ClientBuilder, servers: S) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        let (connected, outcome) = mpsc::sync_channel(1);
        let connected = move |client| drop(connected.send(client));
        let runtime = settings.start_on_thread(servers.try_into()?, connected)?;
        let client = outcome.recv().map_err(|_| Error::Closed)??;
        Ok(Self { client, runtime })
    }

    /// The lock at `key`; see [`crate::Client::mutex`].
    pub fn mutex(&self, key: impl AsRef<[u8]>) -> Mutex {
        Mutex::new(self.client.mutex(key), self.runtime.clone())
    }

    /// The lock at `key` for readers and writers; see
    /// [`crate::Client::rwlock`].
    pub fn rwlock(&self, key: impl AsRef<[u8]>) -> RwLock {
        RwLock::new(self.client.rwlock(key), self.runtime.clone())
    }

    /// The semaphore at `key` with so many permits; see
    /// [`crate::Client::semaphore`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Client::semaphore`].
    pub fn semaphore(&self, key: impl AsRef<[u8]>, permits: u32) -> Result<Semaphore, Error> {
        let semaphore = self.client.semaphore(key, permits)?;
        Ok(Semaphore::new(semaphore, self.runtime.clone()))
    }

    /// The locks at all of `keys` as one; see [`crate::Client::multi`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Client::multi`].
    pub fn multi<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<MultiLock, Error> {
        let lock = self.client.multi(keys)?;
        Ok(MultiLock::new(lock, self.runtime.clone()))
    }

    /// The `count` locks that most wait for; see [`crate::Client::list`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Client::list`].
    pub fn list(&self, count: u64) -> Result<Vec<Contended>, Error> {
        let client = self.client.clone();
        run(&self.runtime, async move { client.list(count).await })?
    }

    /// The same by master; see [`crate::Client::list_each`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Client::list_each`].
    pub fn list_each(&self, count: u64) -> Result<Vec<Answer<Vec<Contended>>>, Error> {
        let client = self.client.clone();
        run(&self.runtime, async move { client.list_each(count).await })?
    }

    /// The numbers that each master counts; see [`crate::Client::counters`].
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if the client's thread is gone.
    pub fn counters(&self) -> Result<Vec<Answer<Counters>>, Error> {
        let client = self.client.clone();
        run(&self.runtime, async move { client.counters().await })
    }

    /// A new owner; see [`crate::Client::owner`].
    pub fn owner(&self) -> Owner {
        self.client.owner()
    }

    /// What this client has counted; see [`crate::Client::metrics`].
    pub fn metrics(&self) -> Metrics {
        self.client.metrics()
    }

    /// Waits until the background has nothing left to release or withdraw;
    /// see [`crate::Client::flush`].
    pub fn flush(&self) {
        let client = self.client.clone();
        // An error means that the background is gone: nothing is left to do.
        let _ = run(&self.runtime, async move { client.flush().await });
    }
}
