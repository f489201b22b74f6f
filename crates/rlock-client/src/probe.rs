//! Sends servers questions that are not about locks, such as `INFO` and `CONFIG
//! GET`, even without the module.
//!
//! For operators' programs. Other programs use an ordinary Redis client for
//! that.

use std::sync::Arc;

use rlock_engine::endpoint::{Endpoint, To};
use rlock_engine::engine::node::Node;
use rlock_engine::error::Error;
use rlock_engine::servers::Servers;

#[doc(inline)]
pub use rlock_engine::wire::inspect::fields;
#[doc(inline)]
pub use rlock_engine::wire::resp::{Command, Frame};

use crate::client_builder::ClientBuilder;
use crate::pump::Inner;
use crate::pump::call::ask;

/// A master, from [`masters`].
#[derive(Clone, Debug)]
pub struct Master {
    inner: Arc<Inner>,
    node: Node,
    address: String,
}

/// The masters of `servers`: the one server, even if it is a replica; the one
/// that Sentinels name; or all of a cluster.
///
/// Connects to one of them now, and to the others when they are asked. A
/// connection is closed when no [`Master`] is left. Only the limits and the
/// certificates of `settings` apply.
///
/// # Errors
///
/// - [`Error::Connect`]: no Sentinel names a master, no node of a cluster tells
///   of its slots, or none of the masters can be connected to;
/// - [`Error::OutOfRange`]: the servers or the settings cannot be used.
///
/// # Cancel safety
///
/// Dropping the future closes the connections.
///
/// # Examples
///
/// ```no_run
/// use rlock_client::probe::{self, Command};
///
/// # async fn example() -> Result<(), rlock_client::Error> {
/// let mut info = Command::new("INFO");
/// info.arg("memory");
/// let settings = rlock_client::Client::builder();
/// for master in probe::masters(settings, "redis+cluster://node-1,node-2").await? {
///     println!("{}: {:?}", master.address(), master.ask(&info).await);
/// }
/// # Ok(()) }
/// ```
pub async fn masters<S>(settings: ClientBuilder, servers: S) -> Result<Vec<Master>, Error>
where
    S: TryInto<Servers>,
    Error: From<S::Error>,
{
    let client = settings.probe(servers.try_into()?).await?;
    let masters = client.inner.state.read(|endpoint| {
        let of = |node| (node, endpoint.address(node));
        Endpoint::nodes(endpoint).into_iter().map(of).collect()
    });
    let masters: Vec<_> = masters;
    let masters = masters.into_iter().map(|(node, address)| Master {
        inner: Arc::clone(&client.inner),
        node,
        address,
    });
    Ok(masters.collect())
}

impl Master {
    /// `host:port`, or the path of a Unix socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends `command` once; returns its reply, which may be a
    /// [`Frame::Error`].
    ///
    /// The answer to `SUBSCRIBE` is a [`Frame::Push`]; messages are not passed on.
    ///
    /// # Errors
    ///
    /// - [`Error::Connect`]: no connection, or it ended before the reply;
    /// - [`Error::Unavailable`]: no reply within the retry timeout of the settings.
    ///
    /// # Cancel safety
    ///
    /// Once the future was polled, the command may be executed.
    pub async fn ask(&self, command: &Command) -> Result<Frame, Error> {
        let question = (command.clone(), false);
        ask(&self.inner.state, To::Node(self.node), question).await
    }
}
