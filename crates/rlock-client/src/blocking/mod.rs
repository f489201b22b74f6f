//! The same locks for code without async.
//!
//! Same verbs, same futures: the calling thread runs them, and what works in the
//! background runs on a thread that the [`Client`] owns. Works on any thread; on
//! one that runs async code it holds up that code, as every blocking call does.
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

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Handle;

#[cfg(feature = "quorum")]
use crate::QuorumBuilder;
#[cfg(feature = "quorum")]
use crate::quorum::read;
use crate::{Answer, ClientBuilder, Contended, Counters, Error, Metrics, Owner, Servers};

mod guard;
mod verbs;

#[cfg(feature = "quorum")]
pub use guard::QuorumGuard;
pub use guard::{
    ChangeError, Guard, LossSignal, MultiGuard, Permits, ReadGuard, Upgrade, WriteGuard,
};
#[cfg(feature = "quorum")]
pub use verbs::QuorumMutex;
pub use verbs::{MultiLock, Mutex, RwLock, Semaphore};
use verbs::{OnThread, verbs};

/// Runs `future` on this thread; its timers are those of the client's thread.
fn run<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _timers = runtime.enter();
    // A task that blocks here must not lend it its budget, which nobody refills.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// A thread that waits for a future.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

verbs! {
    ///
    /// Its thread ends when the last client, lock and guard made from it is gone
    /// and what they left to the background is done.
    Client {
        has mutex(key: impl AsRef<[u8]>) -> Mutex;
        has rwlock(key: impl AsRef<[u8]>) -> RwLock;
        has semaphore(key: impl AsRef<[u8]>, permits: u32) -> Semaphore;
        has multi(keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> MultiLock;
        has owner() -> Owner;
        has metrics() -> Metrics;
        waits close(timeout: Duration) -> ();
        waits list(count: u64) -> Vec<Contended>;
        waits list_each(count: u64) -> Vec<Answer<Vec<Contended>>>;
    }
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
    pub fn connect_with<S>(settings: ClientBuilder, servers: S) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        let (connected, outcome) = mpsc::sync_channel(1);
        let connected = move |client| drop(connected.send(client));
        let runtime = settings.start_on_thread(servers.try_into()?, connected)?;
        let client = outcome.recv().map_err(|_| Error::Closed)??;
        Ok(client.on(&runtime))
    }

    /// Blocks; see [`crate::Client::counters`].
    pub fn counters(&self) -> Vec<Answer<Counters>> {
        run(&self.runtime, self.inner.counters())
    }

    /// Blocks; see [`crate::Client::flush`].
    pub fn flush(&self) {
        run(&self.runtime, self.inner.flush());
    }
}

#[cfg(feature = "quorum")]
verbs! {
    Quorum {
        has mutex(key: impl AsRef<[u8]>) -> QuorumMutex;
        has owner() -> Owner;
    }
}

#[cfg(feature = "quorum")]
impl Quorum {
    /// Connects to independent servers; see [`crate::Quorum::connect`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Quorum::connect`], and [`Error::Connect`] if the system
    /// gives no thread.
    pub fn connect<S>(servers: impl IntoIterator<Item = S>) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        Self::connect_with(QuorumBuilder::default(), servers)
    }

    /// Connects with settings.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and [`Error::OutOfRange`] for a
    /// setting.
    pub fn connect_with<S>(
        settings: QuorumBuilder,
        servers: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        let (connected, outcome) = mpsc::sync_channel(1);
        let connected = move |quorum| drop(connected.send(quorum));
        let runtime = settings.start_on_thread(read(servers)?, connected)?;
        let quorum = outcome.recv().map_err(|_| Error::Closed)??;
        Ok(quorum.on(&runtime))
    }

    /// Blocks; see [`crate::Quorum::flush`].
    pub fn flush(&self) {
        run(&self.runtime, self.inner.flush());
    }
}
