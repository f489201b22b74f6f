//! What the calls of a client and its background task work with together.

use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::sync::{OnceCell, mpsc, watch};

use crate::engine::owner::Owner;
use crate::engine::pulse::Pulse;
use crate::engine::schedule::Schedule;
use crate::engine::terms::{Backoff, Deadline};
use crate::engine::wakeups::Wakeups;
use crate::error::{Error, Fault};
use crate::net::driver::Order;
use crate::net::link::Link;
use crate::wire::protocol;

/// How long a client goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) response: Duration,
    pub(crate) patience: Duration,
}

/// The reply to a request.
pub(crate) struct Answer {
    pub(crate) reply: Value,
    /// Whether the request was made before and not answered, so that it may
    /// have been carried out then.
    pub(crate) is_repeated: bool,
}

/// A request that has been sent, and is to be awaited.
pub(crate) type Asking = Pin<Box<dyn Future<Output = Result<Value, Fault>> + Send>>;

/// Whether there is a connection.
#[derive(Clone, Debug)]
pub(crate) enum Connection {
    Up(Arc<Link>),
    /// Not now, and the last reason why.
    Down(Option<RedisError>),
    /// Never again: the background task is gone.
    Closed,
}

/// What the background task and the calls both work with.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) redis: redis::Client,
    pub(crate) limits: Limits,
    /// What the client's connections are called on the server.
    pub(crate) name: Option<String>,
    /// The channel that the server speaks to this client on.
    pub(crate) channel: String,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) schedule: Schedule,
    pub(crate) pulse: Arc<Pulse>,
    id: String,
    numbers: AtomicU64,
    is_cluster: OnceCell<bool>,
    connection: watch::Sender<Connection>,
    /// The runtime of the background task.
    runtime: tokio::runtime::Handle,
    orders: mpsc::UnboundedSender<Order>,
}

/// What clients, locks and guards keep alive. The background task keeps only
/// the [`State`], and ends when the last `Inner` is gone.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: Arc<State>,
}

impl State {
    /// Also what the background task reads its orders from.
    pub(crate) fn new(
        redis: redis::Client,
        limits: Limits,
        name: Option<String>,
    ) -> (Self, mpsc::UnboundedReceiver<Order>) {
        let id = uuid::Uuid::new_v4().to_string();
        let id = match &name {
            Some(name) => format!("{name}:{id}"),
            None => id,
        };
        let (orders, inbox) = mpsc::unbounded_channel();
        let state = Self {
            redis,
            limits,
            name,
            // No owner shows it, so nobody else can speak on it by knowing one.
            channel: format!("rlock:client:{}", uuid::Uuid::new_v4()),
            wakeups: Arc::default(),
            schedule: Schedule::default(),
            pulse: Arc::default(),
            id,
            numbers: AtomicU64::new(0),
            is_cluster: OnceCell::new(),
            connection: watch::Sender::new(Connection::Down(None)),
            runtime: tokio::runtime::Handle::current(),
            orders,
        };
        (state, inbox)
    }

    /// Hands work to the background. Never blocks, never fails visibly: if
    /// the background is gone, the lease is what ends a hold.
    pub(crate) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Begins to ask, so that the request comes before all that are made
    /// afterwards. The answer is what has to be awaited for the reply.
    pub(crate) fn begin_to_ask(&self, link: Arc<Link>, cmd: Cmd) -> Asking {
        let mut asking: Asking = Box::pin(async move { link.ask(&cmd).await });
        // Its time-out belongs to the background's runtime, which may be about
        // to end: then there is nobody to await the reply either.
        let _entered = self.runtime.enter();
        let mut nobody = Context::from_waker(Waker::noop());
        let begin = AssertUnwindSafe(|| asking.as_mut().poll(&mut nobody));
        match panic::catch_unwind(begin) {
            Ok(Poll::Ready(reply)) => Box::pin(async move { reply }),
            Ok(Poll::Pending) | Err(_) => asking,
        }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn set_connection(&self, connection: Connection) {
        self.connection.send_replace(connection);
    }

    /// The connection, if there is one.
    pub(crate) fn link_now(&self) -> Option<Arc<Link>> {
        match &*self.connection.borrow() {
            Connection::Up(link) if !link.is_retired() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// The connection, waited for until `deadline` if there is none.
    pub(crate) async fn link(&self, deadline: Deadline) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.link_now() {
            return Ok(link);
        }
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
            None => Err(deadline.unavailable(self.last_failure())),
        }
    }

    fn last_failure(&self) -> Option<RedisError> {
        match &*self.connection.borrow() {
            Connection::Down(error) => error.clone(),
            Connection::Up(_) | Connection::Closed => None,
        }
    }

    /// Asks until there is an answer, for at most the client's patience.
    ///
    /// For requests that do no harm if they are carried out twice.
    pub(crate) async fn ask(&self, cmd: &Cmd) -> Result<Value, Error> {
        let deadline = Deadline::after(self.limits.patience);
        Ok(self.ask_until(deadline, cmd).await?.reply)
    }

    /// The same, until `deadline`.
    pub(crate) async fn ask_until(&self, deadline: Deadline, cmd: &Cmd) -> Result<Answer, Error> {
        let (mut backoff, mut is_repeated) = (Backoff::default(), false);
        loop {
            let error = match self.link(deadline).await?.ask(cmd).await {
                Ok(reply) => return Ok(Answer { reply, is_repeated }),
                Err(Fault::Refused(error)) => return Err(error),
                Err(Fault::Broken(error)) => {
                    is_repeated = true;
                    error
                }
                Err(Fault::Passing(error)) => error,
            };
            backoff.pause(deadline).await;
            if deadline.is_over() {
                return Err(deadline.unavailable(Some(error)));
            }
        }
    }

    /// Whether the server is a node of a cluster. Asked once, by the first who
    /// has keys of different slots.
    pub(crate) async fn is_cluster(&self) -> Result<bool, Error> {
        // Every user may say hello.
        let ask = async || protocol::is_cluster(&self.ask(&protocol::hello()).await?);
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

impl Inner {
    pub(crate) fn next_owner(&self) -> Owner {
        Owner::numbered(&self.state.id, self.state.next_number())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.state.order(Order::Close);
    }
}
