//! The servers that a client knows: whether there is a connection to each, and
//! what is asked there that changes nothing.

use std::sync::{Arc, Mutex};

use redis::{Cmd, RedisError, Value};
use rlock_engine::engine::Event;
use rlock_engine::engine::ask::Queueing;
use rlock_engine::engine::lane::{Node, Routes};
use rlock_engine::engine::slot;
use rlock_engine::error::{Error, Failure, Fault, ServerError};
use tokio::sync::watch;

use crate::net::deadline::{Backoff, Deadline};
use crate::net::identity::Identity;
use crate::net::link::Link;
use crate::net::state::{State, lock};
use crate::wire::cluster;
use crate::wire::protocol::{self, Channel};
use crate::wire::reply;

/// So many names are tried until one is in a slot of a server: it takes more
/// for one with a single slot in a thousand cases of a million.
const TAGS_MAX: u32 = 120_000;

/// Whether there is a connection.
#[derive(Clone, Debug)]
pub(crate) enum Connection {
    Up(Arc<Link>),
    /// Not now, and the last reason why.
    Down(Option<Failure>),
    /// Never again: the background task is gone.
    Closed,
}

/// One server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    connection: watch::Sender<Connection>,
    /// Connections that may be open there still.
    earlier: Arc<Mutex<Vec<Option<Identity>>>>,
}

/// By their numbers.
#[derive(Debug, Default)]
pub(super) struct Servers {
    all: Vec<Server>,
    are_closed: bool,
}

impl Server {
    fn new(connection: Connection) -> Self {
        Self {
            connection: watch::Sender::new(connection),
            earlier: Arc::default(),
        }
    }

    pub(crate) fn set(&self, connection: Connection) {
        self.connection.send_replace(connection);
    }

    pub(crate) fn earlier(&self) -> Vec<Option<Identity>> {
        lock(&self.earlier).clone()
    }

    pub(crate) fn has_lost(&self, identity: Option<Identity>) {
        lock(&self.earlier).push(identity);
    }

    /// The first so many of those are closed, as far as can be.
    pub(crate) fn has_closed(&self, count: usize) {
        lock(&self.earlier).drain(..count);
    }

    /// The connection, waited for until `deadline` if there is none.
    async fn link(&self, deadline: Deadline) -> Result<Arc<Link>, Error> {
        let mut changes = self.connection.subscribe();
        let settled = async {
            changes
                .wait_for(is_settled)
                .await
                .map(|state| state.clone())
        };
        match deadline.bound(settled).await {
            Some(Ok(Connection::Up(link))) => Ok(link),
            Some(_) => Err(Error::Closed),
            None => Err(deadline.unavailable(self.failure())),
        }
    }

    /// Why there is no connection.
    fn failure(&self) -> Option<Failure> {
        match &*self.connection.borrow() {
            Connection::Down(error) => error.clone(),
            Connection::Up(_) | Connection::Closed => None,
        }
    }
}

impl State {
    pub(crate) fn server(&self, node: Node) -> Server {
        let mut servers = lock(&self.servers);
        let count = usize::from(node.0) + 1;
        while servers.all.len() < count {
            let first = match servers.are_closed {
                true => Connection::Closed,
                false => Connection::Down(None),
            };
            servers.all.push(Server::new(first));
        }
        match servers.all.get(usize::from(node.0)) {
            Some(server) => server.clone(),
            None => Server::new(Connection::Closed),
        }
    }

    pub(super) fn close_servers(&self) {
        let mut servers = lock(&self.servers);
        servers.are_closed = true;
        for server in &servers.all {
            server.set(Connection::Closed);
        }
    }

    /// Those connections that there are.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        let servers = lock(&self.servers);
        let links = servers.all.iter();
        let links = links.filter_map(|server| match &*server.connection.borrow() {
            Connection::Up(link) => Some(Arc::clone(link)),
            Connection::Down(_) | Connection::Closed => None,
        });
        links.collect()
    }

    /// Whether there is a connection to the server, where there is one.
    pub(crate) fn is_connected(&self) -> bool {
        let server = self.server(Node::default());
        matches!(&*server.connection.borrow(), Connection::Up(_))
    }

    /// Every change between having a connection to it and having none.
    pub(crate) fn connections(&self) -> watch::Receiver<Connection> {
        self.server(Node::default()).connection.subscribe()
    }

    /// Why there is no connection to some server.
    pub(crate) fn last_failure(&self) -> Option<Failure> {
        let servers = lock(&self.servers);
        servers.all.iter().find_map(Server::failure)
    }

    /// Where a server is to tell this client something: in a cluster a channel
    /// in one of the server's own slots.
    pub(crate) fn channel_at(&self, node: Node) -> Result<Channel, RedisError> {
        let id = &self.channel;
        let routes = self.routes();
        if let Routes::One = routes {
            return Ok(Channel {
                name: format!("rlock:client:{id}"),
                is_sharded: false,
            });
        }
        let mut tags = (0..TAGS_MAX).map(|tag| tag.to_string());
        let tag = tags.find(|tag| routes.node(slot::of(tag.as_bytes())) == node);
        let none = || RedisError::from((redis::ErrorKind::Io, "the server has no slots"));
        let tag = tag.ok_or_else(none)?;
        Ok(Channel {
            name: format!("rlock:client:{{{tag}}}:{id}"),
            is_sharded: true,
        })
    }

    /// Takes the word of the server that was asked that another one has a slot,
    /// or that it serves none: another one may, in its place.
    pub(crate) fn redirected(&self, error: &ServerError, asked: Option<Node>) {
        let Some(cluster) = self.source.as_cluster() else {
            return;
        };
        if error.code == "CLUSTERDOWN" {
            cluster.doubt();
        }
        if let Some(redirect) = cluster::redirect(error)
            && !redirect.is_once
            && let Some(node) = cluster.named(self, &redirect, asked)
        {
            let slot = redirect.slot;
            self.handle(Event::SlotMoved { slot, node });
            cluster.doubt();
        }
    }

    /// Asks the server of `key` until there is an answer, for at most the
    /// client's patience.
    ///
    /// For questions, which change nothing: all else is the engine's.
    pub(crate) async fn ask_at(&self, key: &[u8], cmd: &Cmd) -> Result<Value, Error> {
        let deadline = Deadline::after(self.limits.patience);
        self.ask_until(deadline, |routes| routes.node_of(key), cmd)
            .await
    }

    /// Asks every server.
    pub(crate) async fn ask_everywhere(&self, cmd: &Cmd) -> Result<Vec<Value>, Error> {
        let deadline = Deadline::after(self.limits.patience);
        let nodes = self.routed(Routes::nodes).into_iter();
        let asked = nodes.map(|node| self.ask_until(deadline, move |_| node, cmd));
        futures_util::future::try_join_all(asked).await
    }

    /// Asks every server; the answer of each, and its address.
    pub(crate) async fn ask_each(&self, cmd: &Cmd) -> Vec<(String, Result<Value, Error>)> {
        let deadline = Deadline::after(self.limits.patience);
        let nodes = self.routed(Routes::nodes).into_iter();
        let asked = nodes.map(async |node| {
            let answer = self.ask_until(deadline, move |_| node, cmd).await;
            (self.address(node), answer)
        });
        futures_util::future::join_all(asked).await
    }

    /// Where a server is, as far as is known, for people.
    fn address(&self, node: Node) -> String {
        let server = self.server(node);
        if let Connection::Up(link) = &*server.connection.borrow() {
            return link.address.clone();
        }
        self.source.address(node)
    }

    async fn ask_until(
        &self,
        deadline: Deadline,
        node: impl Fn(&Routes) -> Node,
        cmd: &Cmd,
    ) -> Result<Value, Error> {
        let mut backoff = Backoff::default();
        loop {
            let node = self.routed(&node);
            self.handle(Event::Need { node });
            let link = self.server(node).link(deadline).await?;
            let failure = match link.ask(cmd).await {
                Ok(reply) => return Ok(reply),
                Err(Fault::Refused(error)) => return Err(error),
                Err(Fault::Moved(error)) if self.source.as_cluster().is_none() => {
                    return Err(Error::Refused(error));
                }
                Err(Fault::Moved(error) | Fault::Passing(Failure::Server(error))) => {
                    self.redirected(&error, Some(node));
                    error.into()
                }
                Err(Fault::Passing(failure) | Fault::Broken(failure)) => failure,
            };
            backoff.pause(deadline).await;
            if deadline.is_over() {
                return Err(deadline.unavailable(Some(failure)));
            }
        }
    }

    /// Whether the server is a node of a cluster. Asked once, by the first who
    /// has keys of different slots.
    pub(crate) async fn is_cluster(&self, queueing: Queueing) -> Result<bool, Error> {
        if self.source.as_cluster().is_some() {
            return Ok(true);
        }
        let deadline = match queueing {
            Queueing::Try => Deadline::after(self.limits.patience),
            Queueing::AtMost(wait) => Deadline::after(wait),
            Queueing::Unlimited => Deadline::unlimited(),
        };
        // Every user may say hello.
        let hello = protocol::hello();
        let hello = async || self.ask_until(deadline, |_| Node::default(), &hello).await;
        let ask = async || reply::is_cluster(&hello().await?);
        self.is_cluster.get_or_try_init(ask).await.copied()
    }
}

fn is_settled(connection: &Connection) -> bool {
    match connection {
        Connection::Up(link) => !link.is_retired(),
        Connection::Down(_) => false,
        Connection::Closed => true,
    }
}
