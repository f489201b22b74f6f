//! Where a client finds its servers: at an address, where Sentinels say, or in
//! a cluster.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ErrorKind, RedisError};

use crate::engine::lane::{Node, Routes};
use crate::error::Error;
use crate::net::cluster::Cluster;
use crate::net::link::prepared;
use crate::net::state::lock;
use crate::wire::protocol;

/// How long one Sentinel may take to answer, and how often one is asked.
const SENTINEL_TIME: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Server(Box<redis::Client>),
    Sentinels(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
    /// A server that has to be fit for something, on each new connection.
    Vetted(Box<redis::Client>, Vet),
}

/// Looks at a server by a new connection, which is given up if it is refused.
#[derive(Clone)]
pub(crate) struct Vet(pub(crate) Arc<dyn Fn(MultiplexedConnection) -> Verdict + Send + Sync>);

type Verdict = Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send>>;

impl fmt::Debug for Vet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vet")
    }
}

/// The Sentinels that watch a master.
pub(crate) struct Sentinels {
    sentinels: Vec<redis::Client>,
    master: String,
    /// How to connect to the master, but for its address.
    template: redis::Client,
    /// A connection to the one that answered last.
    known: Mutex<Option<MultiplexedConnection>>,
}

impl Source {
    pub(crate) fn server(redis: &redis::Client) -> Result<Self, Error> {
        let redis = prepared(redis).map_err(Error::Connect)?;
        Ok(Self::Server(Box::new(redis)))
    }

    pub(crate) fn vetted(redis: &redis::Client, vet: Vet) -> Result<Self, Error> {
        let redis = prepared(redis).map_err(Error::Connect)?;
        Ok(Self::Vetted(Box::new(redis), vet))
    }

    pub(crate) fn sentinels(
        sentinels: Vec<redis::Client>,
        master: &str,
        template: &redis::Client,
    ) -> Result<Self, Error> {
        if sentinels.is_empty() {
            return Err(out_of_range("sentinels", "empty", "at least one"));
        }
        let template = prepared(template).map_err(Error::Connect)?;
        if host_of(&template).is_none() {
            let value = "a Unix socket";
            return Err(out_of_range("server", value, "an address over TCP"));
        }
        Ok(Self::Sentinels(Arc::new(Sentinels {
            sentinels,
            master: master.to_owned(),
            template,
            known: Mutex::new(None),
        })))
    }

    pub(crate) fn cluster(nodes: &[redis::Client]) -> Result<Self, Error> {
        Cluster::new(nodes).map(|cluster| Self::Cluster(Arc::new(cluster)))
    }

    pub(crate) fn as_cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Self::Cluster(cluster) => Some(cluster),
            Self::Server(_) | Self::Sentinels(_) | Self::Vetted(..) => None,
        }
    }

    /// Which server has what, as far as is known without asking.
    pub(crate) fn routes(&self) -> Routes {
        match self {
            Self::Server(_) | Self::Sentinels(_) | Self::Vetted(..) => Routes::One,
            Self::Cluster(_) => Routes::Slots(Box::default()),
        }
    }

    /// The server to connect to now.
    pub(crate) async fn current(&self, node: Node) -> Result<redis::Client, RedisError> {
        match self {
            Self::Server(redis) | Self::Vetted(redis, _) => Ok((**redis).clone()),
            Self::Sentinels(sentinels) => sentinels.current().await,
            Self::Cluster(cluster) => cluster.server(node),
        }
    }

    /// What is known of the address of a server that is not connected.
    pub(crate) fn address(&self, node: Node) -> String {
        match self {
            Self::Server(redis) | Self::Vetted(redis, _) => address_of(redis),
            Self::Sentinels(sentinels) => sentinels.master.clone(),
            Self::Cluster(cluster) => cluster.address(node),
        }
    }

    /// Makes sure that a server which others name is a master: they may not
    /// know yet that it has been restarted as a replica.
    pub(crate) async fn check(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), RedisError> {
        match self {
            Self::Server(_) => return Ok(()),
            Self::Vetted(_, vet) => return (vet.0)(connection.clone()).await,
            Self::Sentinels(_) | Self::Cluster(_) => {}
        }
        let hello = connection.send_packed_command(&protocol::hello()).await?;
        if protocol::is_master(&hello.extract_error()?) {
            return Ok(());
        }
        let what = "the server is no master, though others name it as one";
        Err(RedisError::from((ErrorKind::Io, what)))
    }

    /// Waits until Sentinels name another server than `address`.
    pub(crate) async fn moved(&self, address: &str) {
        let Self::Sentinels(sentinels) = self else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(SENTINEL_TIME).await;
            // That no Sentinel answers is no reason to leave a server.
            if let Ok(redis) = sentinels.current().await
                && address_of(&redis) != address
            {
                return;
            }
        }
    }
}

impl Sentinels {
    /// The master, by the first of them that knows one.
    async fn current(&self) -> Result<redis::Client, RedisError> {
        let known = lock(&self.known).take();
        if let Some(mut known) = known
            && let Ok(Some(address)) = self.ask(&mut known).await
        {
            *lock(&self.known) = Some(known);
            return at(&self.template, address);
        }
        let mut failures = Vec::new();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(SENTINEL_TIME))
            .set_response_timeout(Some(SENTINEL_TIME));
        for sentinel in &self.sentinels {
            let connection = sentinel.get_multiplexed_async_connection_with_config(&config);
            let answer = async {
                let mut connection = connection.await?;
                let address = self.ask(&mut connection).await?;
                Ok::<_, RedisError>((connection, address))
            };
            match answer.await {
                Ok((connection, Some(address))) => {
                    *lock(&self.known) = Some(connection);
                    return at(&self.template, address);
                }
                Ok((_, None)) => {
                    let (what, name) = ("it knows no master of this name", self.master.clone());
                    let unknown = RedisError::from((ErrorKind::Io, what, name));
                    failures.push((address_of(sentinel), unknown));
                }
                Err(error) => failures.push((address_of(sentinel), error)),
            }
        }
        Err(none_of_them("no Sentinel names the master", failures))
    }

    async fn ask(
        &self,
        sentinel: &mut MultiplexedConnection,
    ) -> Result<Option<(String, u16)>, RedisError> {
        redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.master)
            .query_async(sentinel)
            .await
    }
}

/// The server at an address, connected to in the way of `template`.
pub(crate) fn at(
    template: &redis::Client,
    (host, port): (String, u16),
) -> Result<redis::Client, RedisError> {
    let info = template.get_connection_info().clone();
    let address = match info.addr().clone() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    redis::Client::open(info.set_addr(address))
}

/// None for a Unix socket.
pub(crate) fn host_of(redis: &redis::Client) -> Option<&str> {
    match redis.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
        _ => None,
    }
}

/// Why nobody has answered, by their addresses. What is no matter of the
/// network, such as a wrong password, is an error of that kind.
pub(crate) fn none_of_them(what: &'static str, failures: Vec<(String, RedisError)>) -> RedisError {
    let lasting = failures.iter().find(|(_, error)| !error.is_io_error());
    let kind = lasting.map_or(ErrorKind::Io, |(_, error)| error.kind());
    let each = failures
        .iter()
        .map(|(address, error)| format!("{address}: {error}"));
    let each: Vec<_> = each.collect();
    RedisError::from((kind, what, each.join("; ")))
}

pub(crate) fn address_of(redis: &redis::Client) -> String {
    redis.get_connection_info().addr().to_string()
}

pub(crate) fn out_of_range(argument: &'static str, value: &str, limit: &'static str) -> Error {
    Error::OutOfRange {
        argument,
        value: value.to_owned(),
        limit: limit.into(),
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("master", &self.master)
            .finish_non_exhaustive()
    }
}
