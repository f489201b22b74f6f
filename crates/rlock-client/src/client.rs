//! The client: how it is connected, and what is made from it.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::Metrics;
use rlock_engine::engine::claims::Owner;
use rlock_engine::error::{Error, Loss};
use rlock_engine::servers::Servers;
use rlock_engine::wire::inspect::{self, Answer, Contended, Counters};
use rlock_engine::wire::requests;

use crate::client_builder::ClientBuilder;
use crate::locks::Lock;
use crate::locks::election::Election;
use crate::locks::multi_lock::MultiLock;
use crate::locks::mutex::Mutex;
use crate::locks::rwlock::RwLock;
use crate::locks::semaphore::Semaphore;
use crate::pump::Inner;

/// A connection to one server, or to each master of a cluster, which creates
/// locks.
///
/// Cheap to clone. All clones, locks and guards of a client share its
/// connections and keep them open. The client reconnects by itself. Its
/// background work runs on the tokio runtime that called `connect`, in one task
/// plus one for each connection. While that runtime does not run, the client
/// renews nothing and answers no call.
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
    pub(crate) inner: Arc<Inner>,
}

impl Client {
    /// Connects to `servers`, a URL or a [`Servers`]: one server, the master that
    /// Sentinels name, or a cluster.
    ///
    /// | URL | |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/database]` | a server over TCP, port 6379 |
    /// | `redis+unix:///path[?db=2&user=ann&pass=secret]` | a server by a Unix socket |
    /// | `redis+sentinel://[user:password@]host[:port][,…]/master[/database]` | the master that Sentinels name, port 26379 |
    /// | `redis+cluster://[user:password@]host[:port][,…]` | a cluster, port 6379 |
    /// | `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…` | the same over TLS, with the feature `tls-rustls` |
    ///
    /// The user and password are for the servers that hold the locks. Give
    /// those for Sentinels at the end:
    /// `?sentinel_user=ann&sentinel_password=secret`. Percent-encode special
    /// characters: `%40` for an `@`. Put IPv6 addresses in brackets:
    /// `[::1]:6379`. With TLS the Sentinels must use TLS too.
    ///
    /// Nothing in a URL is ignored: other parameters, fragments and a user without
    /// a password are refused. Write `ann:@host` for a user that has none.
    ///
    /// Settings that a URL cannot express, such as certificates, are in
    /// [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// - [`Error::Connect`]: no connection, or the server refused it;
    /// - [`Error::ModuleMissing`]: the server does not have the module;
    /// - [`Error::OutOfRange`]: the URL is not of these forms. It says what is
    ///   wrong, and repeats no password.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), rlock_client::Error> {
    /// let url = std::env::var("REDIS_URL");
    /// let url = url.as_deref().unwrap_or("redis+sentinel://sentinel-1,sentinel-2/locks");
    /// let client = rlock_client::Client::connect(url).await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect<S>(servers: S) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        Self::builder().connect(servers).await
    }

    /// Settings to choose before connecting.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), rlock_client::Error> {
    /// let builder = rlock_client::Client::builder().name("billing@host-7");
    /// let client = builder.connect("redis://127.0.0.1/").await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The lock at `key`, with a lease of 30 s that the watchdog renews.
    ///
    /// This sends nothing. A key may be any bytes, and names the same lock for
    /// every client of the same database. Each call that would take the lock of
    /// an empty key fails with [`Error::OutOfRange`]: usually a variable was not
    /// set.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(client: rlock_client::Client) {
    /// let mutex = client.mutex("invoice:7");
    /// # }
    /// ```
    pub fn mutex(&self, key: impl AsRef<[u8]>) -> Mutex {
        Mutex::new(self.lock_at(key.as_ref()))
    }

    pub(crate) fn lock_at(&self, key: &[u8]) -> Lock {
        Lock::new(Arc::clone(&self.inner), key.into())
    }

    /// The lock at `key` that readers share and a writer holds alone, on terms
    /// as for [`mutex`](Self::mutex).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let reading = client.rwlock("catalogue").read().await?;
    /// # Ok(()) }
    /// ```
    pub fn rwlock(&self, key: impl AsRef<[u8]>) -> RwLock {
        RwLock::new(self.lock_at(key.as_ref()))
    }

    /// The semaphore at `key` with that number of permits, from 1 to 1,000,000, on
    /// terms as for [`mutex`](Self::mutex).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let permit = client.semaphore("downloads", 10).acquire().await?;
    /// # Ok(()) }
    /// ```
    pub fn semaphore(&self, key: impl AsRef<[u8]>, permits: u32) -> Semaphore {
        Semaphore::new(self.lock_at(key.as_ref()), permits)
    }

    /// The election at `key`: the holder of its lock leads and publishes a
    /// value. Terms are as for [`mutex`](Self::mutex).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let leadership = client.election("orders").campaign("10.0.0.7:80").await?;
    /// # Ok(()) }
    /// ```
    pub fn election(&self, key: impl AsRef<[u8]>) -> Election {
        Election::new(self.lock_at(key.as_ref()))
    }

    /// All locks at `keys` as one, all or none, on terms as for
    /// [`mutex`](Self::mutex). From 1 to 1024 different keys.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let guard = client.multi(["account:1", "account:2"]).lock().await?;
    /// # Ok(()) }
    /// ```
    pub fn multi(&self, keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> MultiLock {
        let keys = keys.into_iter().map(|key| key.as_ref().into());
        MultiLock::new(Arc::clone(&self.inner), keys.collect())
    }

    /// The `count` locks with the longest queues, from 1 to 1000, the longest
    /// first; in a cluster, of all masters.
    ///
    /// Only locks with places in their queue, including kept ones. For
    /// operators: it shows key names, and needs the command `RLOCK.LIST`.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`] for another `count`;
    /// - [`Error::Unavailable`]: no answer within the client's retry timeout;
    /// - [`Error::Denied`]: the server refuses.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let worst = client.list(1).await?;
    /// # Ok(()) }
    /// ```
    pub async fn list(&self, count: u64) -> Result<Vec<Contended>, Error> {
        let list = requests::list(count)?;
        inspect::longest(count, &self.inner.state.ask_everywhere(&list).await?)
    }

    /// The same for each master that answers: its own `count` locks.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for another `count`; each master's own error is in
    /// its place.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// for master in client.list_each(10).await? {
    ///     match master.answer {
    ///         Ok(locks) => println!("{}: {} locks waited for", master.address, locks.len()),
    ///         Err(error) => println!("{}: {error}", master.address),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn list_each(&self, count: u64) -> Result<Vec<Answer<Vec<Contended>>>, Error> {
        let list = requests::list(count)?;
        let answers = self.inner.state.ask_each(&list).await;
        Ok(Answer::all(answers, inspect::list))
    }

    /// The metrics of each master, with its address; one server is one master.
    ///
    /// They come from `INFO rlock`. They cover all databases and all clients of
    /// the server, and most of them count since it started: see [`Counters`].
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) {
    /// for master in client.counters().await {
    ///     match master.answer {
    ///         Ok(counters) => println!("{}: {} wait", master.address, counters.numbers["waiters"]),
    ///         Err(error) => println!("{}: {error}", master.address),
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn counters(&self) -> Vec<Answer<Counters>> {
        let answers = self.inner.state.ask_each(&requests::counters()).await;
        Answer::all(answers, inspect::counters)
    }

    /// A new owner, to enter a lock more than once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let owner = client.owner();
    /// let guard = client.mutex("invoice:7").by(&owner).lock().await?;
    /// # Ok(()) }
    /// ```
    pub fn owner(&self) -> Owner {
        self.inner.next_owner().reusable()
    }

    /// The counters of this client and its clones, since it was created.
    ///
    /// Sends nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(client: rlock_client::Client) {
    /// let metrics = client.metrics();
    /// println!("{} locks lost, {} new connections", metrics.losses, metrics.reconnects);
    /// # }
    /// ```
    pub fn metrics(&self) -> Metrics {
        self.inner.state.metrics()
    }

    /// Waits until the background has nothing left to release or withdraw.
    ///
    /// Dropped guards and dropped calls leave their clean-up to the background.
    /// Call this before the end of a process, so that others do not have to
    /// wait for the end of a lease.
    ///
    /// # Errors
    ///
    /// - [`Error::NotReleased`]: the server refused to release the locks of
    ///   dropped guards, or the client ended before they were released, and
    ///   their leases have not ended yet. After a dropped call this is not known;
    /// - [`Error::Closed`]: the client ended meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Safe: the work goes on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// drop(client.mutex("invoice:7").lock().await?);
    /// client.flush().await?;
    /// # Ok(()) }
    /// ```
    pub async fn flush(&self) -> Result<(), Error> {
        self.inner.state.flush().await
    }

    /// Ends this client and all its clones, within `timeout`: releases all
    /// holds, withdraws all requests, and closes the connections.
    ///
    /// Waiting calls and all later calls fail with [`Error::Closed`]. Guards
    /// are no longer valid: their [`loss`](crate::Guard::loss) is
    /// [`Loss::Released`].
    ///
    /// # Errors
    ///
    /// A lock that could not be released becomes free when its lease ends.
    ///
    /// - [`Error::Unavailable`]: not all of it was answered in time. The client has
    ///   ended all the same;
    /// - [`Error::NotReleased`]: the server refused, or an earlier `close` was not
    ///   answered in time. The client has ended all the same;
    /// - [`Error::Closed`]: its runtime was shut down before.
    ///
    /// # Cancel safety
    ///
    /// Holds are released in the background; the connections stay.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// client.close(Duration::from_secs(5)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn close(&self, timeout: Duration) -> Result<(), Error> {
        self.inner.state.close(timeout).await
    }

    /// Waits for the next loss of any lock that this client holds: one signal
    /// for a program that stops when it loses anything.
    ///
    /// Losses before this call do not count. The background reports it, so
    /// while its runtime stalls it comes later than
    /// [`Guard::loss`](crate::Guard::loss). It is [`Loss::Released`] when the
    /// client ends. A quorum's client has none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(client: rlock_client::Client) {
    /// let lost = client.loss();
    /// tokio::select! {
    ///     () = work() => {}
    ///     loss = lost => eprintln!("stopped: a lock was lost, {loss}"),
    /// }
    /// # }
    /// ```
    pub fn loss(&self) -> impl Future<Output = Loss> + Send + use<> {
        let losses = self.inner.state.losses();
        async move {
            let Some(mut losses) = losses else {
                return Loss::Released;
            };
            match losses.changed().await {
                Ok(()) => *losses.borrow(),
                Err(_) => Loss::Released,
            }
        }
    }
}
