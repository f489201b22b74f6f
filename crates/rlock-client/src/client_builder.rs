//! How a client connects: its settings, and the first connection.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use rlock_engine::engine::Event;
use rlock_engine::engine::lane::Node;
use rlock_engine::engine::owner::Owner;
use rlock_engine::engine::terms::whole_ms;
use rlock_engine::error::{Error, Fault};
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::net::driver::{self, Order};
use crate::net::link::Link;
use crate::net::source::{Source, none_of_them};
use crate::net::state::{Inner, Limits, State};
use crate::wire::failure::failure;

/// The longest name of a client, in bytes.
const NAME_LEN_MAX: usize = 64;

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
    pub(crate) limits: Limits,
    name: Option<String>,
    pub(crate) has_thread: bool,
    #[cfg(feature = "tls-rustls")]
    pub(crate) certificates: Option<redis::TlsCertificates>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let limits = Limits {
            response: Duration::from_secs(5),
            patience: Duration::from_secs(10),
            replication: Duration::from_secs(1),
        };
        Self {
            limits,
            name: None,
            has_thread: false,
            #[cfg(feature = "tls-rustls")]
            certificates: None,
        }
    }
}

impl ClientBuilder {
    /// How long the server may take for one reply; default 5 s, up to 30 days.
    ///
    /// A connection that takes longer is given up and made anew: holds and
    /// places in queues survive that. Choose it well below the
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

    /// How long replicas may take to say that they know of a grant, where they
    /// are asked; default 1 s, at most 30 days. See
    /// [`Terms::replicas`](crate::Terms::replicas).
    pub fn replication_limit(mut self, limit: Duration) -> Self {
        self.limits.replication = limit;
        self
    }

    /// Names this client to those who look for it on the server; by default it
    /// has no name. For example `billing@host-7`.
    ///
    /// The name comes first in all owners that the client makes, so it is seen
    /// in `RLOCK.INFO` and in deadlocks, and it is the name of the connection
    /// in `CLIENT LIST`. From 1 to 64 bytes without spaces, not starting with
    /// `rlock:`. Several clients may have the same.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Has the work in the background run on a thread of its own; by default it
    /// runs on the runtime that `connect` is called on.
    ///
    /// So the watchdog renews what is held though the tasks of that runtime do
    /// not yield for long, as with work for the processor or blocking calls.
    /// The client then also outlives the runtime. The thread ends when the last
    /// client, lock and guard is gone and what they left is done.
    ///
    /// The calls themselves need a tokio runtime with timers where they are
    /// awaited, with this too: [`Guard::loss`](crate::Guard::loss),
    /// [`Guard::run`](crate::Guard::run) and several keys of a cluster panic
    /// without one. Where there is none, use [`blocking`](crate::blocking).
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

    /// Whom to trust, and what to show, at servers with TLS; by default the
    /// authorities of the system are trusted, and nothing is shown.
    ///
    /// It is for all addresses of [`connect`](Self::connect), and for those of
    /// [`sentinel`](Self::sentinel) and [`cluster`](Self::cluster) that have
    /// TLS. The methods whose names end with `_with` are given clients of
    /// `redis` that have certificates of their own.
    ///
    /// With the feature `tls-rustls`. The cryptography is that of `ring`,
    /// unless the program has installed another provider of `rustls` before.
    ///
    /// # Examples
    ///
    /// A cluster with certificates of a private authority, which asks its
    /// clients for certificates too. The files are PEM. Without `root_cert`
    /// the authorities of the system are trusted.
    ///
    /// ```no_run
    /// use rlock_client::redis::{ClientTlsConfig, TlsCertificates};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let certificates = TlsCertificates {
    ///     root_cert: Some(std::fs::read("authority.pem")?),
    ///     client_tls: Some(ClientTlsConfig {
    ///         client_cert: std::fs::read("billing.pem")?,
    ///         client_key: std::fs::read("billing.key")?,
    ///     }),
    /// };
    /// let builder = rlock_client::Client::builder().certificates(certificates);
    /// let client = builder.connect("rediss+cluster://node-1,node-2").await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls-rustls")]
    pub fn certificates(mut self, certificates: redis::TlsCertificates) -> Self {
        self.certificates = Some(certificates);
        self
    }

    pub(crate) async fn connect_to(self, source: Source) -> Result<Client, Error> {
        if !self.has_thread {
            return self.start(source).await.map(|(client, _)| client);
        }
        let (connected, outcome) = oneshot::channel();
        // Whoever is gone by then drops the client, which closes it.
        self.start_on_thread(source, |client| drop(connected.send(client)))?;
        outcome.await.map_err(|_| Error::Closed)?
    }

    /// Connects on a thread of its own, and says there how that went; the
    /// runtime of that thread.
    pub(crate) fn start_on_thread(
        self,
        source: Source,
        connected: impl FnOnce(Result<Client, Error>) + Send + 'static,
    ) -> Result<Handle, Error> {
        let background = async move {
            match self.start(source).await {
                Ok((client, task)) => {
                    connected(Ok(client));
                    // Until all guards are gone and what they left is done.
                    let _ = task.await;
                }
                Err(error) => connected(Err(error)),
            }
        };
        on_thread(background)
    }

    /// Connects, and returns the background task too.
    pub(crate) async fn start(self, source: Source) -> Result<(Client, JoinHandle<()>), Error> {
        let (state, inbox) = self.state(source)?;
        let (node, link) = first_link(&state)
            .await
            .map_err(|error| Error::Connect(failure(error)))?;
        check_module(&link).await?;
        state.link_up(node, &link);
        state.order(Order::Connect(node, Some(link)));
        let task = tokio::spawn(driver::drive(Arc::clone(&state), inbox));
        Ok((Client::new(Inner { state }), task))
    }

    /// Begins to connect, and returns the background task too.
    pub(crate) fn begin(self, source: Source) -> Result<(Client, JoinHandle<()>), Error> {
        let (state, inbox) = self.state(source)?;
        let node = Node::default();
        state.handle(Event::Need { node });
        let task = tokio::spawn(driver::drive(Arc::clone(&state), inbox));
        Ok((Client::new(Inner { state }), task))
    }

    pub(crate) fn state(
        self,
        source: Source,
    ) -> Result<(Arc<State>, UnboundedReceiver<Order>), Error> {
        whole_ms("response_limit", self.limits.response)?;
        whole_ms("patience", self.limits.patience)?;
        whole_ms("replication_limit", self.limits.replication)?;
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        let (state, inbox) = State::new(source, self.limits, self.name);
        Ok((Arc::new(state), inbox))
    }
}

/// Connects to the server, or to the first of a cluster that can be reached.
async fn first_link(state: &Arc<State>) -> Result<(Node, Arc<Link>), RedisError> {
    if let Some(cluster) = state.source.as_cluster() {
        state.set_routes(cluster.routes(state).await?);
    }
    let mut failures = Vec::new();
    for node in state.routes().nodes() {
        match Link::open(state, node, &[]).await {
            Ok(link) => return Ok((node, link)),
            Err(error) => match state.source.as_cluster() {
                Some(cluster) => failures.push((cluster.address(node), error)),
                None => return Err(error),
            },
        }
    }
    Err(none_of_them(
        "no server of the cluster can be used",
        failures,
    ))
}

/// Runs `background` on a thread of its own; the runtime of that thread.
pub(crate) fn on_thread(
    background: impl Future<Output = ()> + Send + 'static,
) -> Result<Handle, Error> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Connect((&error).into()))?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("rlock-client".to_owned())
        .spawn(move || runtime.block_on(background))
        .map_err(|error| Error::Connect((&error).into()))?;
    Ok(handle)
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.len() <= NAME_LEN_MAX && Owner::new(name).is_ok() {
        return Ok(());
    }
    Err(Error::OutOfRange {
        argument: "name",
        value: format!("{name:?}"),
        limit: format!("1 to {NAME_LEN_MAX} bytes without spaces, not starting with `rlock:`")
            .into(),
    })
}

/// Asks for something that only the module knows, with a word too many. A server
/// says that it does not know the command, or that the words are wrong, before it
/// looks whether the user may use it: so nothing is in `ACL LOG` of one who may
/// not.
async fn check_module(link: &Link) -> Result<(), Error> {
    match link.ask(redis::cmd("RLOCK.HELP").arg("?")).await {
        Err(Fault::Refused(error @ Error::ModuleMissing)) => Err(error),
        Err(Fault::Broken(error)) => Err(Error::Connect(error)),
        // A server that is loading has its modules already.
        Ok(_) | Err(Fault::Passing(_) | Fault::Moved(_) | Fault::Refused(_)) => Ok(()),
    }
}
