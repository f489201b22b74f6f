//! Where a client finds its servers: at an address, where Sentinels say, or in
//! a cluster.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ErrorKind, RedisError};
use rlock_engine::engine::lane::{Node, Routes};
use rlock_engine::error::Error;

use crate::net::cluster::Cluster;
use crate::net::link::prepared;
use crate::net::sentinels::{self, Sentinels};
use crate::wire::failure::failure;
use crate::wire::protocol;
use crate::wire::reply;

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

impl Source {
    pub(crate) fn server(redis: &redis::Client) -> Result<Self, Error> {
        let redis = prepared(redis).map_err(|error| Error::Connect(failure(error)))?;
        Ok(Self::Server(Box::new(redis)))
    }

    pub(crate) fn vetted(redis: &redis::Client, vet: Vet) -> Result<Self, Error> {
        let redis = prepared(redis).map_err(|error| Error::Connect(failure(error)))?;
        Ok(Self::Vetted(Box::new(redis), vet))
    }

    pub(crate) fn sentinels(
        sentinels: Vec<redis::Client>,
        master: &str,
        template: &redis::Client,
    ) -> Result<Self, Error> {
        let template = prepared(template).map_err(|error| Error::Connect(failure(error)))?;
        let sentinels = Sentinels::new(sentinels, master, template)?;
        Ok(Self::Sentinels(Arc::new(sentinels)))
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
        if reply::is_master(&hello.extract_error()?) {
            return Ok(());
        }
        let what = "the server is no master, though others name it as one";
        Err(RedisError::from((ErrorKind::Io, what)))
    }

    /// Waits until Sentinels name another server than `address`.
    pub(crate) async fn moved(&self, address: &str) {
        match self {
            Self::Sentinels(sentinels) => sentinels.moved(address).await,
            _ => std::future::pending().await,
        }
    }

    /// How long the pause before another attempt to connect may be.
    pub(crate) fn pause_max(&self) -> Duration {
        match self {
            Self::Sentinels(_) => sentinels::ASKED_EVERY,
            _ => Duration::MAX,
        }
    }
}

/// A connection for questions, with these limits for its making and for each
/// answer.
pub(crate) async fn connect(
    redis: &redis::Client,
    (making, answer): (Duration, Duration),
) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(making))
        .set_response_timeout(Some(answer));
    redis
        .get_multiplexed_async_connection_with_config(&config)
        .await
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
