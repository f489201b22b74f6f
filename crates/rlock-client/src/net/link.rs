//! One connection of a client to a server.
//!
//! Requests and messages use the same connection: when it ends, the server
//! withdraws what was queued and what was to be told by it, so nothing is
//! granted to somebody who no longer listens. A new connection is handed out
//! only after its subscription is confirmed.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, PushInfo, PushKind, RedisError, Value};
use rlock_engine::engine::Event;
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::lane::Node;
use rlock_engine::engine::request::{Reply, Request};
use rlock_engine::error::Fault;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::net::acknowledging::{Acknowledger, Asking};
use crate::net::clock::now;
use crate::net::cluster::Cluster;
use crate::net::identity::{Identity, close_earlier, identify, introduce};
use crate::net::source::{address_of, host_of};
use crate::net::state::{Limits, State, lock};
use crate::wire::cluster::redirect;
use crate::wire::failure::failure;
use crate::wire::notice;
use crate::wire::protocol::{self, Channel, Encoded};
use crate::wire::reply;

/// How many requests may be under way before others wait to be sent, so that
/// each has its time for an answer from when it is sent.
const REQUESTS_MAX: usize = 1024;
/// How many may wait in the connection's own queue. Questions that are dropped
/// stay there, and nothing must ever wait for a place in it.
const QUEUE_MAX: usize = 16 * REQUESTS_MAX;

/// One live connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Counts the connections of a client, from 1.
    pub(crate) number: u64,
    /// Whether no request of an earlier connection can still be carried out.
    pub(crate) is_sole: bool,
    /// Of the server.
    pub(super) address: String,
    host: String,
    /// The cluster that it belongs to.
    cluster: Option<Arc<Cluster>>,
    /// Where the server tells this client something.
    channel: Channel,
    connection: MultiplexedConnection,
    pub(super) life: Arc<Life>,
    pub(super) identity: Option<Identity>,
    /// One for each request of the engine that may be under way.
    room: Arc<Semaphore>,
    /// One for each question.
    questions: Semaphore,
    limits: Limits,
    /// How to connect to the same server once more, and where.
    redis: redis::Client,
    name: Option<String>,
    runtime: Handle,
    /// By the number of replicas.
    acknowledgers: Mutex<HashMap<u16, Acknowledger>>,
}

/// What is known of a connection, also by those who take its messages.
#[derive(Debug)]
pub(super) struct Life {
    number: u64,
    retired: AtomicBool,
    /// Whether replies may belong to other requests.
    is_garbled: AtomicBool,
    bell: Notify,
    /// When the last answer was read.
    heard: Mutex<Instant>,
}

impl Life {
    fn new(number: u64) -> Self {
        Self {
            number,
            retired: AtomicBool::new(false),
            is_garbled: AtomicBool::new(false),
            bell: Notify::new(),
            heard: Mutex::new(now()),
        }
    }

    /// Nothing that is read after this is believed.
    fn garble(&self) {
        self.is_garbled.store(true, Ordering::Release);
        self.retire();
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    pub(super) async fn retired(&self) {
        let mut rings = pin!(self.bell.notified());
        rings.as_mut().enable();
        if !self.is_retired() {
            rings.await;
        }
    }

    /// Notes that an answer was read.
    fn has_spoken(&self) {
        *lock(&self.heard) = now();
    }
}

impl Link {
    /// Connects, makes sure that `earlier` connections are closed, subscribes.
    pub(crate) async fn open(
        state: &Arc<State>,
        node: Node,
        earlier: &[Option<Identity>],
    ) -> Result<Arc<Self>, RedisError> {
        let number = state.next_link();
        let life = Arc::new(Life::new(number));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(state.limits.response))
            .set_response_timeout(Some(state.limits.response))
            .set_pipeline_buffer_size(QUEUE_MAX)
            .set_push_sender(receiver(Arc::downgrade(state), Arc::clone(&life)));
        let redis = state.source.current(node).await?;
        let mut connection = redis
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        state.source.check(&mut connection).await?;
        introduce(&mut connection, state.name.as_deref()).await;
        let identity = identify(&mut connection).await;
        let is_sole = close_earlier(&mut connection, earlier).await;
        let channel = state.channel_at(node)?;
        subscribe(&mut connection, &channel).await?;
        life.has_spoken();
        Ok(Arc::new(Self {
            number,
            is_sole,
            address: address_of(&redis),
            host: host_of(&redis).unwrap_or_default().to_owned(),
            cluster: state.source.as_cluster().cloned(),
            channel,
            connection,
            life,
            identity,
            room: Arc::new(Semaphore::new(REQUESTS_MAX)),
            questions: Semaphore::new(REQUESTS_MAX),
            limits: state.limits,
            redis,
            name: state.name.clone(),
            runtime: state.runtime.clone(),
            acknowledgers: Mutex::default(),
        }))
    }

    /// As the server is known to others; empty for a Unix socket.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Room for one more request of the engine.
    pub(crate) fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }

    /// Carries out a request of the engine, for which there is room.
    pub(crate) async fn carry_out(&self, request: &Request) -> Result<Reply, Fault> {
        if request.goes_beside() {
            return self.acknowledge(request).await;
        }
        let replies = match protocol::encode(request, &self.channel) {
            Encoded::One(cmd) => self.send(&cmd).await.map(|reply| vec![reply]),
            Encoded::Several(cmds) => self.ask_all(&cmds).await,
        };
        let outcome = replies.and_then(|replies| reply::decode_all(request, replies));
        if let (Err(Fault::Moved(error)), Some(cluster)) = (&outcome, &self.cluster)
            && request.is_of_a_hold()
            && let Some(redirect) = redirect(error).filter(|redirect| redirect.is_once)
        {
            let here = (&*self.host, &self.channel);
            return cluster.carry_out(request, &redirect, here).await;
        }
        outcome
    }

    /// The same, by another connection, so that nothing here waits for
    /// replicas.
    async fn acknowledge(&self, request: &Request) -> Result<Reply, Fault> {
        let replicas = request.replicas();
        let outcome = {
            let mut all = lock(&self.acknowledgers);
            let begin = || {
                let asking = Asking {
                    redis: self.redis.clone(),
                    name: self.name.clone(),
                    limits: self.limits,
                    replicas,
                };
                Acknowledger::begin(&self.runtime, asking)
            };
            all.entry(replicas).or_insert_with(begin).ask(request)
        };
        tokio::select! {
            biased;
            outcome = outcome => outcome.unwrap_or_else(|_| Err(Fault::Broken(failure(given_up())))),
            () = self.life.retired() => Err(Fault::Broken(failure(given_up()))),
        }
    }

    /// Asks what changes nothing, in any order.
    pub(crate) async fn ask(&self, cmd: &Cmd) -> Result<Value, Fault> {
        let _place = self.questions.acquire().await;
        self.send(cmd).await
    }

    /// Sends one request and waits for its reply.
    ///
    /// A connection that answers nothing in time is given up, as it cannot be
    /// told from one whose other end has vanished.
    ///
    /// # Cancel safety
    ///
    /// Whether the request is sent is not known then. If it is, it is sent
    /// before any request that is made on this connection afterwards.
    async fn send(&self, cmd: &Cmd) -> Result<Value, Fault> {
        let mut connection = self.connection.clone();
        let reply = self.in_time(connection.send_packed_command(cmd)).await;
        self.sorted(reply.and_then(Value::extract_error))
    }

    /// Sends requests together and waits for all replies; a refusal of one is
    /// among the replies and does not keep the others from being carried out.
    async fn ask_all(&self, cmds: &redis::Pipeline) -> Result<Vec<Value>, Fault> {
        let count = cmds.cmd_iter().count();
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(cmds, 0, count);
        let replies = self.in_time(replies).await;
        self.sorted(replies)
    }

    /// Awaits a reply for as long as the connection is not given up.
    async fn in_time<T>(
        &self,
        reply: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let reply = tokio::select! {
            biased;
            reply = reply => reply,
            () = self.life.retired() => Err(given_up()),
        };
        match self.life.is_garbled.load(Ordering::Acquire) {
            true => Err(given_up()),
            false => reply,
        }
    }

    fn sorted<T>(&self, reply: Result<T, RedisError>) -> Result<T, Fault> {
        // Others have been answered meanwhile: this process is slow, or has asked
        // for very much, and a new connection would not help.
        let is_busy = reply.as_ref().is_err_and(RedisError::is_timeout)
            && now() - *lock(&self.life.heard) < self.limits.response;
        let reply = reply.map_err(|error| Fault::from(failure(error)));
        if !matches!(reply, Err(Fault::Broken(_))) {
            self.life.has_spoken();
        }
        reply.inspect_err(|fault| {
            // A demoted server keeps its connections open, while the address
            // may lead to the new one by now.
            if (matches!(fault, Fault::Broken(_)) && !is_busy) || fault.ends_connection() {
                self.retire();
            }
        })
    }

    /// Gives the connection up; a new one is made.
    pub(crate) fn retire(&self) {
        self.life.retire();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.life.is_retired()
    }
}

/// Why there is no answer from a connection that is of no more use.
pub(crate) fn given_up() -> RedisError {
    RedisError::from((ErrorKind::Io, "given up"))
}

/// Takes the messages of one connection. It runs on the connection's own
/// task, in the order of the wire, so it must not block.
fn receiver(
    state: Weak<State>,
    life: Arc<Life>,
) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> + Send + Sync + 'static {
    move |push| {
        match (push.kind, push.data.as_slice()) {
            (PushKind::Disconnection, _) => life.retire(),
            // The slot of the channel has moved. The server says so without
            // being asked, and `redis` takes it for the reply to the oldest
            // request, as it comes before that reply.
            (PushKind::SUnsubscribe, _) => life.garble(),
            (PushKind::Message | PushKind::SMessage, [_, Value::BulkString(message)]) => {
                if let Some(state) = state.upgrade() {
                    deliver(&state, &life, message);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Hands a message on, before any reply that comes after it.
fn deliver(state: &State, life: &Life, message: &[u8]) {
    match notice::read(message, life.number) {
        Some(notice) => state.handle(Event::Notice(notice)),
        None => {
            let message = String::from_utf8_lossy(message);
            tracing::warn!(%message, "unknown message");
        }
    }
}

async fn subscribe(
    connection: &mut MultiplexedConnection,
    channel: &Channel,
) -> Result<(), RedisError> {
    if !channel.is_sharded {
        return connection.subscribe(&*channel.name).await;
    }
    let mut cmd = redis::cmd("SSUBSCRIBE");
    cmd.arg(&*channel.name);
    let reply = connection.send_packed_command(&cmd).await?;
    reply.extract_error().map(drop)
}

/// Makes a `redis` client speak RESP3, without which there are no messages
/// beside replies, and notice a vanished server without sending commands.
pub(crate) fn prepared(client: &redis::Client) -> Result<redis::Client, RedisError> {
    #[cfg(feature = "tls-rustls")]
    choose_cryptography();
    let info = client.get_connection_info().clone();
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(redis::ProtocolVersion::RESP3)
        .set_lib_name("rlock-client", env!("CARGO_PKG_VERSION"));
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    let tcp = info
        .tcp_settings()
        .clone()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    redis::Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp))
}

/// Has rustls work with `ring`, if the program has not chosen anything else.
///
/// Rustls chooses by itself only where the whole program was built with one
/// provider, and `redis` cannot be given one: it would panic.
#[cfg(feature = "tls-rustls")]
fn choose_cryptography() {
    use rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        // An error means that somebody else has just chosen.
        let _ = ring::default_provider().install_default();
    }
}
