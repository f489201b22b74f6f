//! What the calls of a client and its background task work with together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::sync::{mpsc, watch};

use crate::claim::Claim;
use crate::driver::Order;
use crate::error::{Error, Fault};
use crate::link::Link;
use crate::owner::Owner;
use crate::protocol;
use crate::terms::{Backoff, Deadline};
use crate::wakeups::Wakeups;
use crate::watchdog::Schedule;

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
    id: String,
    numbers: AtomicU64,
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
            id,
            numbers: AtomicU64::new(0),
            connection: watch::Sender::new(Connection::Down(None)),
        }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn set_connection(&self, connection: Connection) {
        self.connection.send_replace(connection);
    }

    /// The connection, waited for until `deadline` if there is none.
    pub(crate) async fn link(&self, deadline: Deadline) -> Result<Arc<Link>, Error> {
        if let Connection::Up(link) = &*self.connection.borrow()
            && !link.is_retired()
        {
            return Ok(Arc::clone(link));
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

    /// The one claim of `owner` at `key`.
    pub(crate) fn claim(self: &Arc<Self>, key: &Arc<[u8]>, owner: Owner) -> Arc<Claim> {
        let name: Arc<[u8]> = protocol::notice_name(owner.as_str(), key).into();
        let make = || Claim::new(Arc::clone(self), owner, Arc::clone(key), Arc::clone(&name));
        self.state.wakeups.claim(&name, make)
    }
}
