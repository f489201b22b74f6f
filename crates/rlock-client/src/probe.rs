//! Asks servers what is not about locks, such as `INFO` and `CONFIG GET`,
//! even without the module.
//!
//! For operators' programs. What a program needs besides locks it asks with a
//! client for Redis.

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
/// One of them is connected to, all others when they are asked. A connection
/// is closed when no [`Master`] is left. Of `settings`, the limits and the
/// certificates count.
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

    /// Sends `command`, once; its reply, which may be a [`Frame::Error`].
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
    /// Once it was polled the command may be carried out.
    pub async fn ask(&self, command: &Command) -> Result<Frame, Error> {
        let state = &self.inner.state;
        let limit = Some(state.limits.retry);
        ask(state, To::Node(self.node), (command.clone(), false), limit).await
    }
}
