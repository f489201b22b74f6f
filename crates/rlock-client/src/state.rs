//! What the calls of a client and its background task work with together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::sync::{OnceCell, mpsc, watch};

use crate::claim::Claim;
use crate::claims::Claims;
use crate::driver::Order;
use crate::error::{Error, Fault};
use crate::hold::Hold;
use crate::link::Link;
use crate::notice;
use crate::owner::Owner;
use crate::protocol;
use crate::pulse::Pulse;
use crate::schedule::Schedule;
use crate::terms::{Backoff, Deadline};
use crate::wakeups::Wakeups;

/// How long a client goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) response: Duration,
    pub(crate) patience: Duration,
}

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
    /// The channel that the server speaks to this client on.
    pub(crate) channel: String,
    pub(crate) wakeups: Wakeups,
    pub(crate) schedule: Schedule,
    pub(crate) pulse: Pulse,
    id: String,
    numbers: AtomicU64,
    /// The number of the last connection that has ended.
    over: AtomicU64,
    is_cluster: OnceCell<bool>,
    connection: watch::Sender<Connection>,
}

/// What clients, locks and guards keep alive. The background task keeps only
/// the [`State`], and ends when the last `Inner` is gone.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: Arc<State>,
    pub(crate) orders: mpsc::UnboundedSender<Order>,
}

impl State {
    pub(crate) fn new(redis: redis::Client, limits: Limits) -> Self {
        let id = uuid::Uuid::new_v4().to_string();
        Self {
            redis,
            limits,
            channel: format!("rlock:client:{id}"),
            wakeups: Wakeups::default(),
            schedule: Schedule::default(),
            pulse: Pulse::default(),
            id,
            numbers: AtomicU64::new(0),
            over: AtomicU64::new(0),
            is_cluster: OnceCell::new(),
            connection: watch::Sender::new(Connection::Down(None)),
        }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn set_connection(&self, connection: Connection) {
        self.connection.send_replace(connection);
    }

    /// Notes that a connection has ended, before anybody is told.
    pub(crate) fn set_over(&self, link: u64) {
        self.over.store(link, Ordering::SeqCst);
    }

    /// Whether the connection of that number has ended.
    pub(crate) fn is_over(&self, link: u64) -> bool {
        link <= self.over.load(Ordering::SeqCst)
    }

    /// Every hold that still counts, once each.
    pub(crate) fn live_holds(&self) -> Vec<Arc<Hold>> {
        let mut holds = Vec::new();
        for claim in self.wakeups.all() {
            // A hold of several keys is met at each of its claims.
            let hold = claim.live_hold();
            holds.extend(hold.filter(|hold| Arc::ptr_eq(hold.claims.first(), &claim)));
        }
        holds
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
        let mut backoff = Backoff::default();
        loop {
            let error = match self.link(deadline).await?.ask(cmd).await {
                Ok(reply) => return Ok(reply),
                Err(Fault::Refused(error)) => return Err(error),
                Err(Fault::Broken(error) | Fault::Passing(error)) => error,
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
    /// Hands work to the background. Never blocks, never fails visibly: if
    /// the background is gone, the lease is what ends a hold.
    pub(crate) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    pub(crate) fn next_owner(&self) -> Owner {
        Owner::numbered(&self.state.id, self.state.next_number())
    }

    /// The claims of `owner` at these keys.
    pub(crate) fn claims(
        self: &Arc<Self>,
        key: &Arc<[u8]>,
        rest: &[Arc<[u8]>],
        owner: &Owner,
    ) -> Claims {
        let rest = rest.iter().map(|key| self.claim(key, owner));
        Claims::new(self.claim(key, owner), rest.collect())
    }

    /// The one claim of `owner` at `key`.
    fn claim(self: &Arc<Self>, key: &Arc<[u8]>, owner: &Owner) -> Arc<Claim> {
        let name: Arc<[u8]> = notice::name(owner.as_str(), key).into();
        let (owner, key) = (owner.clone(), Arc::clone(key));
        let make = || Claim::new(Arc::clone(self), owner, key, Arc::clone(&name));
        self.state.wakeups.claim(&name, make)
    }
}
