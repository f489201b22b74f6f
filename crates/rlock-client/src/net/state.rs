//! What the calls of a client and its background task work with together: the
//! engine, and the connection by which its actions are carried out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::sync::{Notify, OnceCell, mpsc, oneshot, watch};

use crate::engine::ask::Queueing;
use crate::engine::claims::Table;
use crate::engine::instant::Instant;
use crate::engine::owner::Owner;
use crate::engine::proof::Proof;
use crate::engine::{Action, Engine, Event, Id, Metrics};
use crate::error::{Error, Fault, Loss};
use crate::net::calling::{Caller, Slot};
use crate::net::clock::now;
use crate::net::deadline::{Backoff, Deadline};
use crate::net::driver::Order;
use crate::net::link::{Link, given_up};
use crate::net::sending::Unsent;
use crate::net::source::Source;
use crate::wire::protocol;

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
pub(crate) struct State {
    pub(crate) source: Source,
    pub(crate) limits: Limits,
    /// What the client's connections are called on the server.
    pub(crate) name: Option<String>,
    /// The channel that the server speaks to this client on.
    pub(crate) channel: Arc<str>,
    id: String,
    owners: AtomicU64,
    is_cluster: OnceCell<bool>,
    core: Mutex<Core>,
    /// Rings when the background has to look at the engine's next deadline.
    alarm: Notify,
    connection: watch::Sender<Connection>,
    /// The runtime of the background task.
    pub(super) runtime: tokio::runtime::Handle,
    orders: mpsc::UnboundedSender<Order>,
}

/// The engine, and those who wait for its actions.
pub(super) struct Core {
    engine: Engine,
    /// The connection that the engine has been told of.
    pub(super) link: Option<Arc<Link>>,
    pub(super) slots: Table<Id, Arc<Slot>>,
    /// What the connection has no room for yet, in order.
    pub(super) unsent: VecDeque<Unsent>,
    flushes: HashMap<Id, oneshot::Sender<()>>,
    /// When the background wakes anyway. Only an earlier deadline has to wake
    /// it, so that the usual lock and release do not.
    alarm: Option<Instant>,
}

/// What is to be done when the engine is not locked any more: to wake somebody
/// may run any code, and that code may come back here.
#[derive(Default)]
pub(super) struct Afterwards {
    pub(super) wakers: Vec<Waker>,
    over: Vec<(Arc<Proof>, Loss)>,
    flushed: Vec<oneshot::Sender<()>>,
    silent: Option<Arc<Link>>,
    is_earlier: bool,
}

/// What clients, locks and guards keep alive. The background task keeps only
/// the [`State`], and ends when the last `Inner` is gone.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: Arc<State>,
}

/// Locks, also after a panic elsewhere: nothing here is left half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Also what the background task reads its orders from.
    pub(crate) fn new(
        source: Source,
        limits: Limits,
        name: Option<String>,
    ) -> (Self, mpsc::UnboundedReceiver<Order>) {
        let uuid = uuid::Uuid::new_v4();
        let id = match &name {
            Some(name) => format!("{name}:{uuid}"),
            None => uuid.to_string(),
        };
        let (orders, inbox) = mpsc::unbounded_channel();
        let seed = uuid.as_u64_pair().0;
        let core = Core {
            engine: Engine::new(limits.patience, seed),
            link: None,
            slots: Table::default(),
            unsent: VecDeque::new(),
            flushes: HashMap::new(),
            alarm: None,
        };
        let state = Self {
            source,
            limits,
            name,
            // No owner shows it, so nobody else can speak on it by knowing one.
            channel: format!("rlock:client:{}", uuid::Uuid::new_v4()).into(),
            id,
            owners: AtomicU64::new(0),
            is_cluster: OnceCell::new(),
            core: Mutex::new(core),
            alarm: Notify::new(),
            connection: watch::Sender::new(Connection::Down(None)),
            runtime: tokio::runtime::Handle::current(),
            orders,
        };
        (state, inbox)
    }

    /// Tells the engine what has happened, and does what it says.
    pub(crate) fn handle(&self, event: Event) {
        self.with_core(None, |core| core.engine.handle(now(), event));
    }

    /// The same, for the task that awaits the outcome of a call.
    pub(crate) fn handle_for(&self, caller: Caller<'_>, event: Event) {
        self.with_core(Some(caller), |core| core.engine.handle(now(), event));
    }

    /// Begins the call of `caller`.
    pub(crate) fn begin(&self, caller: Caller<'_>, event: impl FnOnce(Id) -> Event) -> Id {
        self.with_core(Some(caller), |core| {
            let call = core.engine.next_id();
            core.slots.insert(call, Arc::clone(caller.slot));
            core.engine.handle(now(), event(call));
            call
        })
    }

    /// Nobody waits for the outcome of a call any more.
    pub(crate) fn forget(&self, call: Id) {
        let slot = lock(&self.core).slots.remove(&call);
        drop(slot);
    }

    /// Waits until nothing is left of what there is to clean up now.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.with_core(None, |core| {
            let flush = core.engine.next_id();
            core.flushes.insert(flush, done);
            core.engine.handle(now(), Event::Flush { flush });
        });
        // An error means that the background is gone: nothing is left to do.
        let _ = flushed.await;
    }

    pub(crate) fn metrics(&self) -> Metrics {
        lock(&self.core).engine.metrics()
    }

    pub(crate) fn is_clean(&self) -> bool {
        lock(&self.core).engine.is_clean()
    }

    /// When the background has to wake, from which on it need not be told.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        let mut core = lock(&self.core);
        core.alarm = core.engine.next_deadline();
        core.alarm
    }

    pub(crate) async fn alarm_is_earlier(&self) {
        self.alarm.notified().await;
    }

    fn with_core<T>(&self, caller: Option<Caller<'_>>, work: impl FnOnce(&mut Core) -> T) -> T {
        let mut afterwards = Afterwards::default();
        let mut core = lock(&self.core);
        let value = work(&mut core);
        while let Some(action) = core.engine.poll_action() {
            self.carry_out(&mut core, caller, action, &mut afterwards);
        }
        self.send_on(&mut core);
        let next = core.engine.next_deadline();
        if next.is_some_and(|next| core.alarm.is_none_or(|alarm| next < alarm)) {
            core.alarm = next;
            afterwards.is_earlier = true;
        }
        drop(core);
        self.finish(afterwards);
        value
    }

    fn carry_out(
        &self,
        core: &mut Core,
        caller: Option<Caller<'_>>,
        action: Action,
        afterwards: &mut Afterwards,
    ) {
        match action {
            Action::Send { id, request, call } => {
                let unsent = Unsent { id, request, call };
                self.send(core, caller, unsent, afterwards);
            }
            Action::Resolve { call, outcome } => {
                if let Some(slot) = core.slots.remove(&call) {
                    afterwards.wakers.extend(slot.put_outcome(outcome));
                }
            }
            Action::Over { proof, why } => afterwards.over.push((proof, why)),
            Action::Retire { link } => {
                let current = core.link.as_ref();
                afterwards.silent = current.filter(|known| known.number == link).cloned();
            }
            Action::Flushed { flush } => {
                afterwards.flushed.extend(core.flushes.remove(&flush));
            }
        }
    }

    fn finish(&self, afterwards: Afterwards) {
        for (proof, why) in afterwards.over {
            if why != Loss::Released {
                let (key, owner) = (proof.claims.label(), proof.claims.owner());
                tracing::warn!(%key, %owner, fence = proof.fence(), loss = %why, "lock lost");
            }
            proof.wake();
        }
        for waker in afterwards.wakers {
            waker.wake();
        }
        for flushed in afterwards.flushed {
            let _: Result<(), ()> = flushed.send(());
        }
        if let Some(link) = afterwards.silent {
            tracing::warn!("the connection is silent");
            link.retire();
        }
        if afterwards.is_earlier {
            self.alarm.notify_one();
        }
    }

    /// Hands work to the background. Never blocks, never fails visibly: if
    /// the background is gone, the lease is what ends a hold.
    pub(crate) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    pub(crate) fn set_connection(&self, connection: Connection) {
        self.connection.send_replace(connection);
    }

    /// There is a connection, by which everything is asked from now on.
    pub(crate) fn link_up(&self, link: &Arc<Link>) {
        self.set_connection(Connection::Up(Arc::clone(link)));
        let (number, is_sole) = (link.number, link.is_sole);
        self.with_core(None, |core| {
            core.link = Some(Arc::clone(link));
            let link = number;
            core.engine.handle(now(), Event::LinkUp { link, is_sole });
        });
    }

    /// It is gone.
    pub(crate) fn link_down(&self) {
        self.set_connection(Connection::Down(None));
        let _link = self.with_core(None, |core| {
            core.engine.handle(now(), Event::LinkDown);
            for Unsent { id, .. } in std::mem::take(&mut core.unsent) {
                let (request, result) = (id, Err(Fault::Broken(given_up())));
                core.engine.handle(now(), Event::Reply { request, result });
            }
            core.link.take()
        });
    }

    /// There will never be one again.
    pub(crate) fn close(&self) {
        self.set_connection(Connection::Closed);
        lock(&self.core).unsent.clear();
        self.handle(Event::Closed);
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
            None => Err(deadline.unavailable(self.last_failure())),
        }
    }

    /// Whether there is a connection now.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(&*self.connection.borrow(), Connection::Up(_))
    }

    /// Every change between having a connection and having none.
    pub(crate) fn connections(&self) -> watch::Receiver<Connection> {
        self.connection.subscribe()
    }

    /// Why there is no connection.
    pub(crate) fn last_failure(&self) -> Option<RedisError> {
        match &*self.connection.borrow() {
            Connection::Down(error) => error.clone(),
            Connection::Up(_) | Connection::Closed => None,
        }
    }

    /// Asks until there is an answer, for at most the client's patience.
    ///
    /// For questions, which change nothing: all else is the engine's.
    pub(crate) async fn ask(&self, cmd: &Cmd) -> Result<Value, Error> {
        let deadline = Deadline::after(self.limits.patience);
        self.ask_until(deadline, cmd).await
    }

    async fn ask_until(&self, deadline: Deadline, cmd: &Cmd) -> Result<Value, Error> {
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
    pub(crate) async fn is_cluster(&self, queueing: Queueing) -> Result<bool, Error> {
        let deadline = match queueing {
            Queueing::Try => Deadline::after(self.limits.patience),
            Queueing::AtMost(wait) => Deadline::after(wait),
            Queueing::Unlimited => Deadline::unlimited(),
        };
        // Every user may say hello.
        let hello = protocol::hello();
        let ask = async || protocol::is_cluster(&self.ask_until(deadline, &hello).await?);
        self.is_cluster.get_or_try_init(ask).await.copied()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("id", &self.id)
            .field("connection", &*self.connection.borrow())
            .finish_non_exhaustive()
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
        let number = self.state.owners.fetch_add(1, Ordering::Relaxed);
        Owner::numbered(&self.state.id, number)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.state.order(Order::Close);
    }
}
