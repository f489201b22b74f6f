//! The servers of a cluster: their addresses, and which of them has which slots.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, Value};
use rlock_engine::engine::lane::{Node, Routes};
use rlock_engine::engine::proof::NODES_MAX;
use rlock_engine::engine::request::{Reply, Request};
use rlock_engine::engine::slot::SLOTS;
use rlock_engine::error::{Error, Fault};
use tokio::sync::{Notify, OnceCell};

use crate::net::link::prepared;
use crate::net::source::{address_of, at, connect, host_of, none_of_them, out_of_range};
use crate::net::state::{State, lock};
use crate::wire::cluster::{self, Range, Redirect, Standing};
use crate::wire::failure::failure;
use crate::wire::protocol::{self, Channel, Encoded};
use crate::wire::reply;

/// How long one server may take to say who has which slots, and how often that
/// is asked.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// How often that is asked if nothing makes the answer doubtful.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Cluster {
    /// Where to ask first. How to connect to it is how to connect to all.
    seeds: Vec<redis::Client>,
    /// By their numbers.
    addresses: Mutex<Vec<(String, u16)>>,
    /// Rings when the routes may be wrong.
    doubt: Notify,
    /// Connections by which is asked for what is on its way from one server to
    /// another: one for all who ask a server at the same time, closed after the
    /// last reply.
    asking: Mutex<HashMap<(String, u16), Weak<Asking>>>,
}

/// It is made by the first who asks.
type Asking = OnceCell<MultiplexedConnection>;

impl Cluster {
    pub(crate) fn new(seeds: &[redis::Client]) -> Result<Self, Error> {
        if seeds.is_empty() {
            return Err(out_of_range("nodes", "empty", "at least one"));
        }
        let seeds = seeds.iter().map(prepared).collect::<Result<Vec<_>, _>>();
        let seeds = seeds.map_err(|error| Error::Connect(failure(error)))?;
        for seed in &seeds {
            let info = seed.get_connection_info();
            if host_of(seed).is_none() {
                return Err(out_of_range("nodes", "a Unix socket", "addresses over TCP"));
            }
            if info.redis_settings().db() != 0 {
                let value = format!("database {}", info.redis_settings().db());
                return Err(out_of_range("nodes", &value, "database 0 of a cluster"));
            }
        }
        Ok(Self {
            seeds,
            addresses: Mutex::default(),
            doubt: Notify::new(),
            asking: Mutex::default(),
        })
    }

    fn template(&self) -> Result<&redis::Client, RedisError> {
        let none = || RedisError::from((ErrorKind::InvalidClientConfig, "no address"));
        self.seeds.first().ok_or_else(none)
    }

    pub(crate) fn server(&self, node: Node) -> Result<redis::Client, RedisError> {
        let address = lock(&self.addresses).get(usize::from(node.0)).cloned();
        let unknown = || RedisError::from((ErrorKind::Io, "the server has left the cluster"));
        at(self.template()?, address.ok_or_else(unknown)?)
    }

    /// The routes may be wrong.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// The number of a server; none if too many are in use.
    fn node(&self, state: &State, host: &str, port: u16) -> Option<Node> {
        let mut addresses = lock(&self.addresses);
        let known = addresses.iter().position(|it| it.0 == host && it.1 == port);
        let number = known.unwrap_or(addresses.len());
        if let Ok(number) = u16::try_from(number)
            && number < NODES_MAX
        {
            if known.is_none() {
                addresses.push((host.to_owned(), port));
            }
            return Some(Node(number));
        }
        let free = (0..NODES_MAX).find(|number| !state.is_in_use(Node(*number)))?;
        *addresses.get_mut(usize::from(free))? = (host.to_owned(), port);
        Some(Node(free))
    }

    /// Goes on with the routes whenever they may be wrong, and now and then: who
    /// waits at a master that was cut off hears nothing of its successor.
    pub(crate) async fn follow(&self, state: &State) {
        loop {
            let doubted = self.doubt.notified();
            let _ = tokio::time::timeout(LOOKED_AT_EVERY, doubted).await;
            match self.routes(state).await {
                Ok(routes) => state.set_routes(routes),
                Err(error) => tracing::debug!(%error, "no server tells of the slots"),
            }
            tokio::time::sleep(ASKED_EVERY).await;
        }
    }

    /// Asks which server has which slots: those that are connected to, and if
    /// none of them can be relied on, one after the other of those that are known.
    /// Where they disagree, the newest word of those that serve is believed.
    pub(crate) async fn routes(&self, state: &State) -> Result<Routes, RedisError> {
        let links = state.links();
        let asked = links.iter().map(|link| async {
            let (slots, info) = (cluster::slots(), cluster::info());
            let both = async { tokio::join!(link.ask(&slots), link.ask(&info)) };
            let (slots, info) = tokio::time::timeout(ASKED_EVERY, both).await.ok()?;
            let standing = info.map(|info| cluster::standing(&info));
            Some((standing.unwrap_or_default(), slots.ok()?, link.host()))
        });
        let answers = futures_util::future::join_all(asked).await;
        let best = answers.into_iter().flatten();
        let best = best.max_by_key(|(standing, ..)| *standing);
        let mut best = best.and_then(|(standing, slots, host)| {
            let routes = self.read(state, &slots, host)?;
            Some((standing, routes))
        });
        let known = lock(&self.addresses).clone();
        let template = self.template()?;
        let known = known.into_iter().filter_map(|it| at(template, it).ok());
        let mut failures = Vec::new();
        for server in self.seeds.iter().cloned().chain(known) {
            if best.as_ref().is_some_and(|(standing, _)| standing.is_ok) {
                break;
            }
            let host = host_of(&server).unwrap_or_default();
            match ask(&server).await {
                Ok((standing, slots)) => match self.read(state, &slots, host) {
                    Some(routes) if best.as_ref().is_none_or(|(known, _)| standing > *known) => {
                        best = Some((standing, routes));
                    }
                    Some(_) => {}
                    None => failures.push((
                        address_of(&server),
                        RedisError::from((ErrorKind::Io, "it knows of no slots")),
                    )),
                },
                Err(error) => failures.push((address_of(&server), error)),
            }
        }
        match best {
            Some((_, routes)) => Ok(routes),
            None => Err(none_of_them("no server tells of the slots", failures)),
        }
    }

    /// None if nobody has any slot. A slot that nobody has stays where it was.
    fn read(&self, state: &State, reply: &Value, asked: &str) -> Option<Routes> {
        let ranges = cluster::ranges(reply, asked);
        let mut nodes = match state.routes() {
            Routes::Slots(nodes) => nodes.into_vec(),
            Routes::One => Vec::new(),
        };
        let first = ranges.first()?;
        let default = self.node(state, &first.host, first.port)?;
        nodes.resize(usize::from(SLOTS), default);
        for Range {
            first,
            last,
            host,
            port,
        } in &ranges
        {
            let node = self.node(state, host, *port)?;
            let slots = nodes.get_mut(usize::from(*first)..=usize::from(*last));
            slots?.fill(node);
        }
        Some(Routes::Slots(nodes.into()))
    }

    /// As `host:port`, for people.
    pub(crate) fn address(&self, node: Node) -> String {
        let address = lock(&self.addresses).get(usize::from(node.0)).cloned();
        address.map_or_else(String::new, |(host, port)| format!("{host}:{port}"))
    }

    /// The server that the one that was asked has named.
    pub(crate) fn named(
        &self,
        state: &State,
        redirect: &Redirect,
        asked: Option<Node>,
    ) -> Option<Node> {
        let host = match (&redirect.host, asked) {
            (Some(host), _) => host.clone(),
            (None, asked) => lock(&self.addresses).get(usize::from(asked?.0))?.0.clone(),
        };
        self.node(state, &host, redirect.port)
    }

    /// Carries out what is about a hold that is on its way to another server,
    /// before the slot is.
    pub(crate) async fn carry_out(
        &self,
        request: &Request,
        redirect: &Redirect,
        (host, channel): (&str, &Channel),
    ) -> Result<Reply, Fault> {
        let host = redirect.host.as_deref().unwrap_or(host).to_owned();
        let asked = self.asked((host.clone(), redirect.port));
        let connect = async || {
            let server = at(self.template()?, (host, redirect.port))?;
            connect(&server, (ASKED_EVERY, ASKED_EVERY)).await
        };
        let connection = asked.get_or_try_init(connect).await;
        let mut connection = connection
            .map_err(|error| Fault::Passing(failure(error)))?
            .clone();
        let mut cmds = redis::pipe();
        let mut count = 0;
        let mut asking = |cmd: redis::Cmd| {
            cmds.add_command(redis::cmd("ASKING"));
            cmds.add_command(cmd);
            count += 2;
        };
        match protocol::encode(request, channel) {
            Encoded::One(cmd) => asking(cmd),
            Encoded::Several(several) => several.cmd_iter().cloned().for_each(&mut asking),
        }
        let replies = connection.send_packed_commands(&cmds, 0, count).await;
        let replies = replies.map_err(|error| Fault::Passing(failure(error)))?;
        let replies: Vec<_> = replies.into_iter().skip(1).step_by(2).collect();
        reply::decode_all(request, replies)
    }

    /// What a server is asked by, for as long as somebody has it.
    fn asked(&self, address: (String, u16)) -> Arc<Asking> {
        let mut asking = lock(&self.asking);
        if let Some(known) = asking.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        asking.retain(|_, asked| asked.strong_count() > 0);
        let asked = Arc::default();
        asking.insert(address, Arc::downgrade(&asked));
        asked
    }
}

async fn ask(server: &redis::Client) -> Result<(Standing, Value), RedisError> {
    let mut connection = connect(server, (ASKED_EVERY, ASKED_EVERY)).await?;
    let mut cmds = redis::pipe();
    cmds.add_command(cluster::slots());
    cmds.add_command(cluster::info());
    let mut replies = connection.send_packed_commands(&cmds, 0, 2).await?;
    let standing = replies.pop().map(|info| cluster::standing(&info));
    let slots = replies.pop().unwrap_or(Value::Nil).extract_error()?;
    Ok((standing.unwrap_or_default(), slots))
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("addresses", &*lock(&self.addresses))
            .finish_non_exhaustive()
    }
}
