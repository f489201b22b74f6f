//! How a client connects: its settings, and the first connection.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::endpoint::{Limits, Settings};
use rlock_engine::error::Error;
use rlock_engine::servers::Servers;
use rlock_engine::session::{Call, Machine, Occurrence};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::pump::dial::TlsConfig;
#[cfg(feature = "tls-rustls")]
use crate::pump::tls::Certificates;
use crate::pump::{Inner, Listener, State, call, of_library};

/// Settings of a [`Client`], from [`Client::builder`].
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> Result<(), rlock_client::Error> {
/// let client = rlock_client::Client::builder()
///     .response_timeout(Duration::from_secs(2))
///     .retry_timeout(Duration::from_secs(4))
///     .connect("redis://127.0.0.1/")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClientBuilder {
    pub(crate) limits: Limits,
    name: Option<String>,
    listener: Option<Listener>,
    pub(crate) has_thread: bool,
    #[cfg(feature = "tls-rustls")]
    pub(crate) certificates: Option<Certificates>,
}

impl ClientBuilder {
    /// How long the server may take for one reply; default 5 s, up to 30 days.
    ///
    /// If a connection takes longer, the client replaces it: holds and places
    /// in queues survive that. Choose a time well below the leases in use, so
    /// that the client notices a vanished server in time to renew.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.limits.response = timeout;
        self
    }

    /// How long calls that do not wait for a lock keep trying while connections
    /// break and servers start or fail over; default 10 s.
    ///
    /// These calls are `try_lock`, `release` and the questions. Calls that wait
    /// for a lock try for as long as their wait. Up to 30 days.
    pub fn retry_timeout(mut self, timeout: Duration) -> Self {
        self.limits.retry = timeout;
        self
    }

    /// How long replicas may take to acknowledge a grant; default 1 s, at most
    /// 30 days. See [`Terms::replicas`](crate::Terms::replicas).
    pub fn replication_timeout(mut self, timeout: Duration) -> Self {
        self.limits.replication = timeout;
        self
    }

    /// Names this client for people who inspect the server; by default it has
    /// no name. For example `billing@host-7`.
    ///
    /// All owners of the client begin with the name, so it appears in
    /// `RLOCK.INFO` and in deadlocks. It is also the name of the connection in
    /// `CLIENT LIST`. From 1 to 64 bytes without spaces, not starting with
    /// `rlock:`. Several clients may have the same name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Tells `listener` what happens, as it happens: how waits and holds ended, and
    /// after how long, renewals that are late or refused, connections. For metrics
    /// and traces; see [`Occurrence`].
    ///
    /// It runs between the client's own steps, on any thread, and the client waits
    /// for it: it should only count, record, or send to a channel that is not
    /// full. Several threads may call it at once. So it may hear of a hold before
    /// the wait for it, and of either after the caller has gone on. Its panics are
    /// logged, and change nothing else. A later one replaces an earlier one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rlock_client::{Client, OccurrenceKind};
    ///
    /// # async fn example() -> Result<(), rlock_client::Error> {
    /// let builder = Client::builder().listener(|it| match it.kind {
    ///     OccurrenceKind::AtRisk => eprintln!("lost in {:?}, unless renewed", it.duration),
    ///     OccurrenceKind::Wait => println!("{} after {:?}", it.outcome, it.duration),
    ///     _ => {}
    /// });
    /// let client = builder.connect("redis://127.0.0.1/").await?;
    /// # Ok(()) }
    /// ```
    pub fn listener(mut self, listener: impl Fn(&Occurrence) + Send + Sync + 'static) -> Self {
        self.listener = Some(Listener(Arc::new(listener)));
        self
    }

    /// Runs the background work on a separate thread; by default it runs on the
    /// runtime that calls `connect`.
    ///
    /// Then the watchdog renews even if tasks on your runtime block it for a
    /// long time (CPU-bound work, blocking calls). The client also outlives the
    /// runtime. The thread ends when the last client, lock and guard is gone
    /// and their clean-up is done.
    ///
    /// The calls themselves still need a tokio runtime with timers:
    /// [`Guard::loss`](crate::Guard::loss), [`Guard::run`](crate::Guard::run),
    /// [`Client::close`] and the calls of a quorum panic without one. Without a
    /// runtime, use [`blocking`](crate::blocking).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), rlock_client::Error> {
    /// let builder = rlock_client::Client::builder().dedicated_thread();
    /// let client = builder.connect("redis://127.0.0.1/").await?;
    /// # Ok(()) }
    /// ```
    pub fn dedicated_thread(mut self) -> Self {
        self.has_thread = true;
        self
    }

    /// The certificates to trust and to present at servers with TLS. By default
    /// the client trusts the system's authorities and presents no certificate.
    ///
    /// They apply to all addresses, including Sentinels and the nodes of a
    /// cluster.
    ///
    /// Needs the feature `tls-rustls`. The cryptography comes from `ring`,
    /// unless the program has installed another provider of `rustls` before.
    ///
    /// # Examples
    ///
    /// A cluster with certificates of a private authority that also asks its
    /// clients for certificates. The files are PEM.
    ///
    /// ```no_run
    /// use rlock_client::{Certificates, Client};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let certificates = Certificates::new()
    ///     .authorities(std::fs::read("authority.pem")?)
    ///     .client(std::fs::read("billing.pem")?, std::fs::read("billing.key")?);
    /// let builder = Client::builder().certificates(certificates);
    /// let client = builder.connect("rediss+cluster://node-1,node-2").await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls-rustls")]
    pub fn certificates(mut self, certificates: Certificates) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// Connects to `servers`, as [`Client::connect`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::connect`], and [`Error::OutOfRange`] for a setting or
    /// for certificates that cannot be used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn connect<S>(self, servers: S) -> Result<Client, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        let servers = servers.try_into()?;
        if self.has_thread {
            return on_thread(self.start(servers))?.1.await;
        }
        Ok(self.start(servers).await?.0)
    }

    pub(crate) async fn start(self, servers: Servers) -> Started<Client> {
        let (client, task) = self.client(servers, false)?;
        call::done(call::call(&client.inner.state, Call::Connect).await)?;
        Ok((client, vec![task]))
    }

    /// Connects to ask what is not about locks.
    pub(crate) async fn probe(self, servers: Servers) -> Result<Client, Error> {
        let (client, _) = self.client(servers, true)?;
        call::done(call::call(&client.inner.state, Call::Connect).await)?;
        Ok(client)
    }

    fn client(self, servers: Servers, is_probe: bool) -> Result<(Client, JoinHandle<()>), Error> {
        let tls = self.tls(&servers);
        let settings = self.settings(is_probe);
        let machine = Machine::of(servers, of_library(settings.clone()))?;
        let (inner, task) = begin(machine, tls?, &settings, self.listener);
        Ok((Client { inner }, task))
    }

    /// What is shared by the locks of these members.
    #[cfg(feature = "quorum")]
    pub(crate) fn quorum(
        self,
        members: Vec<Servers>,
        any_grace: bool,
    ) -> Result<(Arc<Inner>, JoinHandle<()>), Error> {
        let (settings, mut tls) = (self.settings(false), TlsConfig::default());
        for servers in &members {
            tls = self.tls(servers)?;
        }
        let machine = Machine::of_members(members, &of_library(settings.clone()), any_grace)?;
        Ok(begin(machine, tls, &settings, self.listener))
    }

    fn settings(&self, is_probe: bool) -> Settings {
        Settings {
            limits: self.limits,
            name: self.name.clone(),
            is_probe,
            ..Settings::default()
        }
    }

    /// Certificates are of no use without TLS.
    #[cfg(feature = "tls-rustls")]
    fn tls(&self, servers: &Servers) -> Result<TlsConfig, Error> {
        let Some(certificates) = &self.certificates else {
            return Ok(TlsConfig::default());
        };
        if servers.tls().is_none() {
            return Err(Error::OutOfRange {
                argument: "url",
                value: "without TLS".to_owned(),
                limit: "rediss://, rediss+sentinel:// or rediss+cluster:// with certificates"
                    .into(),
            });
        }
        TlsConfig::new(certificates)
    }

    #[cfg(not(feature = "tls-rustls"))]
    fn tls(&self, _: &Servers) -> Result<TlsConfig, Error> {
        Ok(TlsConfig {})
    }
}

/// A machine with its background task.
fn begin(
    mut machine: Machine,
    tls: TlsConfig,
    settings: &Settings,
    listener: Option<Listener>,
) -> (Arc<Inner>, JoinHandle<()>) {
    if listener.is_some() {
        machine.listen();
    }
    let state = Arc::new(State::new(machine, tls, settings, listener));
    let task = tokio::spawn(Arc::clone(&state).drive());
    (Arc::new(Inner { state }), task)
}

/// What has connected, and the tasks that work for it.
pub(crate) type Started<T> = Result<(T, Vec<JoinHandle<()>>), Error>;

/// Connects on a thread of its own: the runtime of that thread, and how it went.
pub(crate) fn on_thread<T: Send + 'static>(
    start: impl Future<Output = Started<T>> + Send + 'static,
) -> Result<(Handle, impl Future<Output = Result<T, Error>>), Error> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Connect((&error).into()))?;
    let handle = runtime.handle().clone();
    let (connected, outcome) = oneshot::channel();
    let background = async move {
        let (started, tasks) = match start.await {
            Ok((started, tasks)) => (Ok(started), tasks),
            Err(error) => (Err(error), Vec::new()),
        };
        // If the caller is gone by then, this drops the client, which closes it.
        drop(connected.send(started));
        // Until all guards are gone and what they left is done.
        for task in tasks {
            let _ = task.await;
        }
    };
    std::thread::Builder::new()
        .name("rlock-client".to_owned())
        .spawn(move || runtime.block_on(background))
        .map_err(|error| Error::Connect((&error).into()))?;
    let outcome = async { outcome.await.map_err(|_| Error::Closed)? };
    Ok((handle, outcome))
}
