//! The client: how it is connected, and what is made from it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::driver::{self, Order};
use crate::error::{Error, Fault};
use crate::link::{self, Link};
use crate::mutex::Mutex;
use crate::mutex_builder::MutexBuilder;
use crate::owner::Owner;
use crate::state::{Connection, Inner, Limits, State};
use crate::terms::{Terms, whole_ms};

/// A connection to one server, from which locks are made.
///
/// Cheap to clone; all clones use the same connection, as do all locks and
/// guards made from them, and they keep it open. It comes back by itself when
/// it breaks. The work in the background runs on the tokio runtime that
/// `connect` was called on, in one task.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), rlock_client::Error> {
/// let client = rlock_client::Client::connect("redis://127.0.0.1/").await?;
/// let guard = client.mutex("invoice:7").lock().await?;
/// println!("held, fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

/// Settings of a [`Client`], from [`Client::builder`].
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> Result<(), rlock_client::Error> {
/// let client = rlock_client::Client::builder()
///     .response_limit(Duration::from_secs(2))
///     .patience(Duration::from_secs(4))
///     .connect("redis://127.0.0.1/")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    limits: Limits,
}

impl Client {
    /// Connects to the server at `url`, as `redis://[user:password@]host:port/db`.
    ///
    /// With one of the features `tls-rustls` and `tls-native` also
    /// `rediss://`. See [`builder`](Self::builder) for settings.
    ///
    /// # Errors
    ///
    /// - [`Error::Connect`]: no connection, or the server refused it;
    /// - [`Error::ModuleMissing`]: the server does not have the module.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), rlock_client::Error> {
    /// let client = rlock_client::Client::connect("redis://127.0.0.1:6379/").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Settings to choose before connecting.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), rlock_client::Error> {
    /// let redis = redis::Client::open("redis://127.0.0.1/").map_err(rlock_client::Error::Connect)?;
    /// let client = rlock_client::Client::builder().connect_with(&redis).await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> ClientBuilder {
        let limits = Limits {
            response: Duration::from_secs(5),
            patience: Duration::from_secs(10),
        };
        ClientBuilder { limits }
    }

    /// The lock at `key`, with a lease of 30 s that the watchdog renews.
    ///
    /// Nothing is sent. A key is any bytes, and names the same lock for every
    /// client of the same database.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(client: rlock_client::Client) {
    /// let mutex = client.mutex("invoice:7");
    /// # }
    /// ```
    pub fn mutex(&self, key: impl AsRef<[u8]>) -> Mutex {
        Mutex::new(
            Arc::clone(&self.inner),
            key.as_ref().into(),
            Terms::default(),
        )
    }

    /// The lock at `key`, with terms to choose.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let mutex = client.mutex_builder("report").lease(Duration::from_secs(5)).build()?;
    /// # Ok(()) }
    /// ```
    pub fn mutex_builder(&self, key: impl AsRef<[u8]>) -> MutexBuilder {
        MutexBuilder::new(Arc::clone(&self.inner), key.as_ref().into())
    }

    /// A new owner, for entering a lock more than once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let owner = client.owner();
    /// let guard = client.mutex("invoice:7").lock_as(&owner).await?;
    /// # Ok(()) }
    /// ```
    pub fn owner(&self) -> Owner {
        self.inner.next_owner()
    }

    /// Waits until the background has nothing left to release or withdraw.
    ///
    /// Dropped guards and dropped calls leave their clean-up to the
    /// background. Call this before the end of a process, so that others need
    /// not wait for the end of a lease.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the work goes on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// drop(client.mutex("invoice:7").lock().await?);
    /// client.flush().await;
    /// # Ok(()) }
    /// ```
    pub async fn flush(&self) {
        let (done, idle) = oneshot::channel();
        self.inner.order(Order::Flush(done));
        // An error means that the background is gone: nothing is left to do.
        let _ = idle.await;
    }
}

impl ClientBuilder {
    /// How long the server may take for one reply; default 5 s, up to 30 days.
    ///
    /// A connection that takes longer is given up and made anew: places in
    /// queues are lost by that, holds are not. Choose it well below the
    /// leases in use, so that a vanished server is noticed in time to renew.
    pub fn response_limit(mut self, limit: Duration) -> Self {
        self.limits.response = limit;
        self
    }

    /// How long calls that do not wait for a lock go on in the face of broken
    /// connections and servers that start or fail over; default 10 s.
    ///
    /// These are `try_lock`, `release` and the questions. Calls that wait for
    /// a lock go on as long as their wait. Up to 30 days.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// Connects to the server at `url`, as [`Client::connect`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`], and [`Error::OutOfRange`] for a setting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        self.connect_with(&redis::Client::open(url).map_err(Error::Connect)?)
            .await
    }

    /// Connects as `redis` would: with its address, credentials, TLS set-up.
    ///
    /// A connection of its own is made, over RESP3 whatever `redis` says.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`], and [`Error::OutOfRange`] for a setting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn connect_with(self, redis: &redis::Client) -> Result<Client, Error> {
        self.start(redis).await.map(|(client, _)| client)
    }

    /// Connects, and returns the background task too.
    pub(crate) async fn start(
        self,
        redis: &redis::Client,
    ) -> Result<(Client, JoinHandle<()>), Error> {
        whole_ms("response_limit", self.limits.response)?;
        whole_ms("patience", self.limits.patience)?;
        let redis = link::prepared(redis).map_err(Error::Connect)?;
        let state = Arc::new(State::new(redis, self.limits));
        let link = Link::first(&state).await.map_err(Error::Connect)?;
        check_module(&link).await?;
        state.set_connection(Connection::Up(Arc::clone(&link)));
        let (orders, inbox) = mpsc::unbounded_channel();
        let task = tokio::spawn(driver::drive(Arc::clone(&state), inbox, link));
        Ok((
            Client {
                inner: Arc::new(Inner { state, orders }),
            },
            task,
        ))
    }
}

/// Asks for something that only the module knows and that changes nothing.
async fn check_module(link: &Link) -> Result<(), Error> {
    match link.ask(&redis::cmd("RLOCK.HELP")).await {
        Err(Fault::Refused(error @ Error::ModuleMissing)) => Err(error),
        Err(Fault::Broken(error)) => Err(Error::Connect(error)),
        // A server that is loading has its modules already. Who may lock need
        // not be allowed to read the help.
        Ok(_) | Err(Fault::Passing(_) | Fault::Refused(_)) => Ok(()),
    }
}
