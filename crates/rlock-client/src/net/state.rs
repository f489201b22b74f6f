//! What the calls of a client and its background task work with together: the
//! engine, and the connection by which its actions are carried out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rlock_engine::engine::claims::Table;
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::lane::{Node, Routes};
use rlock_engine::engine::owner::Owner;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::request::Reply;
use rlock_engine::engine::{Action, Engine, Event, Id, Metrics};
use rlock_engine::error::{Error, Failure, Fault, Loss};
use tokio::sync::{Notify, OnceCell, mpsc, oneshot};

use crate::net::calling::{Caller, Slot};
use crate::net::clock::now;
use crate::net::driver::Order;
use crate::net::link::{Link, given_up};
use crate::net::sending::Unsent;
use crate::net::servers::{Connection, Servers};
use crate::net::source::Source;
use crate::wire::failure::failure;

/// How long a client goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) response: Duration,
    pub(crate) patience: Duration,
    pub(crate) replication: Duration,
}

/// What the background task and the calls both work with.
pub(crate) struct State {
    pub(crate) source: Source,
    pub(crate) limits: Limits,
    /// What the client's connections are called on the server.
    pub(crate) name: Option<String>,
    /// Names the channels that servers speak to this client on.
    pub(super) channel: uuid::Uuid,
    id: String,
    owners: AtomicU64,
    pub(super) is_cluster: OnceCell<bool>,
    pub(super) servers: Mutex<Servers>,
    links: AtomicU64,
    core: Mutex<Core>,
    /// Rings when the background has to look at the engine's next deadline.
    alarm: Notify,
    /// The runtime of the background task.
    pub(super) runtime: tokio::runtime::Handle,
    orders: mpsc::UnboundedSender<Order>,
}

/// The engine, and those who wait for its actions.
pub(super) struct Core {
    engine: Engine,
    /// The connections that the engine has been told of.
    pub(super) lines: Vec<Line>,
    pub(super) slots: Table<Id, Arc<Slot>>,
    flushes: HashMap<Id, oneshot::Sender<()>>,
    /// When the background wakes anyway. Only an earlier deadline has to wake
    /// it, so that the usual lock and release do not.
    alarm: Option<Instant>,
}

/// A connection, and what it has no room for yet, in order.
pub(super) struct Line {
    pub(super) link: Arc<Link>,
    pub(super) unsent: VecDeque<Unsent>,
}

/// What is to be done when the engine is not locked any more: to wake somebody
/// may run any code, and that code may come back here.
#[derive(Default)]
pub(super) struct Afterwards {
    pub(super) wakers: Vec<Waker>,
    over: Vec<(Arc<Proof>, Loss)>,
    flushed: Vec<oneshot::Sender<()>>,
    silent: Vec<Arc<Link>>,
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
            engine: Engine::new((limits.patience, limits.replication), seed, source.routes()),
            lines: Vec::new(),
            slots: Table::default(),
            flushes: HashMap::new(),
            alarm: None,
        };
        let state = Self {
            source,
            limits,
            name,
            // No owner shows it, so nobody else can speak on it by knowing one.
            channel: uuid::Uuid::new_v4(),
            id,
            owners: AtomicU64::new(0),
            is_cluster: OnceCell::new(),
            servers: Mutex::default(),
            links: AtomicU64::new(0),
            core: Mutex::new(core),
            alarm: Notify::new(),
            runtime: tokio::runtime::Handle::current(),
            orders,
        };
        (state, inbox)
    }

    /// Tells the engine what has happened, and does what it says.
    pub(crate) fn handle(&self, event: Event) {
        self.with_core(None, |core| core.engine.handle(now(), event));
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

    /// Has the connection be quiet for so long at most while it is needed.
    pub(crate) fn set_quiet(&self, quiet: Duration) {
        lock(&self.core).engine.set_quiet(quiet);
    }

    /// When the last request was made that the one server answered.
    pub(crate) fn known_good(&self) -> Instant {
        lock(&self.core).engine.known_good(Node::default())
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
            Action::Send {
                id,
                link,
                request,
                call,
            } => {
                let unsent = Unsent { id, request, call };
                self.send(core, caller, link, unsent, afterwards);
            }
            Action::Resolve { call, outcome } => {
                if let Some(slot) = core.slots.remove(&call) {
                    afterwards.wakers.extend(slot.put_outcome(outcome));
                }
            }
            Action::Connect { node } => self.order(Order::Connect(node, None)),
            Action::Over { proof, why } => afterwards.over.push((proof, why)),
            Action::Retire { link } => {
                let line = core.lines.iter().find(|line| line.link.number == link);
                afterwards
                    .silent
                    .extend(line.map(|line| Arc::clone(&line.link)));
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
        for link in afterwards.silent {
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

    /// The number of the next connection.
    pub(crate) fn next_link(&self) -> u64 {
        1 + self.links.fetch_add(1, Ordering::Relaxed)
    }

    /// There is a connection to a server, by which everything is asked there
    /// from now on.
    pub(crate) fn link_up(&self, node: Node, link: &Arc<Link>) {
        self.server(node).set(Connection::Up(Arc::clone(link)));
        let (number, is_sole) = (link.number, link.is_sole);
        self.with_core(None, |core| {
            core.lines.push(Line {
                link: Arc::clone(link),
                unsent: VecDeque::new(),
            });
            let up = Event::LinkUp {
                node,
                link: number,
                is_sole,
            };
            core.engine.handle(now(), up);
        });
    }

    /// It is gone. `is_left`: no other one is made before it is needed.
    pub(crate) fn link_down(&self, node: Node, link: Option<u64>, is_left: bool) {
        self.server(node).set(Connection::Down(None));
        let _lines = self.with_core(None, |core| {
            core.engine.handle(now(), Event::LinkDown { node, is_left });
            let lines = core.lines.iter_mut();
            let mut lines = lines.filter(|line| Some(line.link.number) == link);
            let unsent = lines.next().map(|line| std::mem::take(&mut line.unsent));
            for Unsent { id, .. } in unsent.unwrap_or_default() {
                let (request, result) = (id, Err(Fault::Broken(failure(given_up()))));
                core.engine.handle(now(), Event::Reply { request, result });
            }
            let gone = core
                .lines
                .extract_if(.., |line| Some(line.link.number) == link);
            gone.collect::<Vec<_>>()
        });
    }

    /// Which server has what.
    pub(crate) fn routes(&self) -> Routes {
        self.routed(Routes::clone)
    }

    /// The same for one look, without a copy: there are many slots.
    pub(super) fn routed<T>(&self, look: impl FnOnce(&Routes) -> T) -> T {
        look(lock(&self.core).engine.routes())
    }

    pub(crate) fn set_routes(&self, routes: Routes) {
        self.handle(Event::Routes(routes));
    }

    /// Whether a server's number stands for it still.
    pub(super) fn is_in_use(&self, node: Node) -> bool {
        lock(&self.core).engine.is_in_use(node)
    }

    /// Takes the reply to a request, and first what it says of other servers.
    pub(crate) fn answered(
        &self,
        caller: Option<Caller<'_>>,
        request: Id,
        result: Result<Reply, Fault>,
    ) {
        let result = match result {
            Err(Fault::Moved(error)) if self.source.as_cluster().is_none() => {
                Err(Fault::Refused(Error::Refused(error)))
            }
            result => result,
        };
        if let Err(Fault::Moved(error) | Fault::Passing(Failure::Server(error))) = &result {
            let asked = lock(&self.core).engine.server_of(request);
            self.redirected(error, asked);
        }
        let reply = Event::Reply { request, result };
        self.with_core(caller, |core| core.engine.handle(now(), reply));
    }

    /// There will never be one again.
    pub(crate) fn close(&self) {
        self.close_servers();
        for line in &mut lock(&self.core).lines {
            line.unsent.clear();
        }
        self.handle(Event::Closed);
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("id", &self.id)
            .field("servers", &*lock(&self.servers))
            .finish_non_exhaustive()
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
