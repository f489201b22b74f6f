//! Carries out the actions of a machine: sockets, time and callers.
//!
//! The machine, a session or a quorum, makes all decisions. One mutex guards it.
//! Callers, the tasks of the connections and the background task pass it events,
//! and then carry out its actions themselves.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rlock_engine::endpoint::{Change, ConnectionId, Endpoint, Event, Limits, Note, Settings, To};
use rlock_engine::engine::claims::{Owner, Table};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::{Id, Metrics};
use rlock_engine::error::{Error, Failure, Loss};
use rlock_engine::session::{Action, Call, Machine, Occurrence, Outcome};
use rlock_engine::wire::resp::{Command, Frame};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::pump::call::{ask, call, done};
use crate::pump::connection::{Peer, serve};
use crate::pump::dial::TlsConfig;

pub(crate) mod call;
mod connection;
pub(crate) mod dial;
#[cfg(feature = "tls-rustls")]
pub(crate) mod tls;

/// The number of changes that are kept for an observer.
const UNTAKEN_MAX: usize = 1024;

pub(crate) struct State {
    pub(crate) limits: Limits,
    tls: TlsConfig,
    id: String,
    owners: AtomicU64,
    core: Mutex<Core>,
    /// Wakes the background when the next deadline has changed.
    alarm: Notify,
    /// The runtime for the tasks of the connections.
    runtime: Handle,
    /// Whether the last client, lock and guard has been dropped.
    is_left: AtomicBool,
    listener: Option<Listener>,
    /// Reports every loss.
    losses: watch::Sender<Loss>,
}

/// The session, and the tasks that wait for its actions.
struct Core {
    machine: Machine,
    /// The number of the last call.
    last: u64,
    peers: BTreeMap<ConnectionId, Peer>,
    callers: Table<Id, Caller>,
    observers: Table<Id, Untaken>,
    /// When the background wakes next. Only an earlier deadline has to wake it,
    /// so a usual lock and release do not.
    alarm: Option<Instant>,
}

/// The target of the events of renewals that fail.
const RENEWAL: &str = "rlock_client::renewal";

/// The caller of a call.
enum Caller {
    Waits(Waker),
    /// It has not taken this yet.
    Untaken(Outcome),
}

/// The changes that an observer received and has not taken yet.
#[derive(Default)]
struct Untaken {
    changes: VecDeque<Result<Change, Error>>,
    waker: Option<Waker>,
}

/// Work after the session is unlocked: a waker may run any code, and that code
/// may lock the session again.
enum Later {
    Wake(Waker),
    Over(Arc<Proof>, Loss),
    Look(Arc<Proof>),
    Occurred(Occurrence),
    Note(Note),
    End(Peer),
}

/// Shared by clients, locks and guards. The background keeps only the [`State`],
/// and ends when the last `Inner` has been dropped.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: Arc<State>,
}

/// A program's function that learns what happens.
#[derive(Clone)]
pub(crate) struct Listener(pub(crate) Arc<dyn Fn(&Occurrence) + Send + Sync>);

impl Listener {
    /// A panic must not end the background, and all locks with it.
    fn hear(&self, occurrence: &Occurrence) {
        let heard = AssertUnwindSafe(|| (self.0)(occurrence));
        if catch_unwind(heard).is_err() {
            tracing::error!("the listener has panicked");
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// Locks, even after a panic elsewhere: no state here is inconsistent then.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// What does nothing yet, with these settings, which its caller has
    /// [checked](Settings::check).
    pub(crate) fn new(
        machine: Machine,
        tls: TlsConfig,
        settings: &Settings,
        listener: Option<Listener>,
    ) -> Self {
        let uuid = uuid::Uuid::new_v4();
        let id = match &settings.name {
            Some(name) => format!("{name}:{uuid}"),
            None => uuid.to_string(),
        };
        Self {
            limits: settings.limits,
            tls,
            id,
            owners: AtomicU64::new(0),
            core: Mutex::new(Core {
                machine,
                last: 0,
                peers: BTreeMap::new(),
                callers: Table::default(),
                observers: Table::default(),
                alarm: None,
            }),
            alarm: Notify::new(),
            runtime: Handle::current(),
            is_left: AtomicBool::new(false),
            listener,
            losses: watch::Sender::new(Loss::Released),
        }
    }

    /// Passes an event to the session, and carries out its actions. Whether anybody
    /// has heard of it.
    pub(crate) fn handle(self: &Arc<Self>, event: Event<'_>) -> bool {
        let handled = self.with_core_told(|core| core.machine.handle(now(), event));
        handled.1
    }

    /// Changes the session, and carries out its actions.
    pub(crate) fn change<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Machine, Instant) -> T,
    ) -> T {
        self.with_core(|core| change(&mut core.machine, now()))
    }

    fn with_core<T>(self: &Arc<Self>, work: impl FnOnce(&mut Core) -> T) -> T {
        self.with_core_told(work).0
    }

    /// The same, and whether anybody has heard of it.
    fn with_core_told<T>(self: &Arc<Self>, work: impl FnOnce(&mut Core) -> T) -> (T, bool) {
        // A request of a caller has one.
        let (mut first, mut later) = (None, Vec::new());
        let mut core = lock(&self.core);
        let value = work(&mut core);
        while let Some(action) = core.machine.poll_action() {
            let is_first = first.is_none();
            match self.carry_out(&mut core, action) {
                next if is_first => first = next,
                next => later.extend(next),
            }
        }
        let next = core.machine.next_deadline();
        let is_earlier = next.is_some_and(|next| core.alarm.is_none_or(|alarm| next < alarm));
        if is_earlier {
            core.alarm = next;
        }
        // The background also ends here if it has nothing left to wait for.
        let rings = is_earlier || self.is_over(&core);
        drop(core);
        let is_heard = first.is_some();
        for later in first.into_iter().chain(later) {
            self.finish(later);
        }
        if rings {
            self.alarm.notify_one();
        }
        (value, is_heard)
    }

    /// Reads or changes the callers or the connections, without the session.
    fn with_peers<T>(&self, work: impl FnOnce(&mut Core) -> T) -> T {
        work(&mut lock(&self.core))
    }

    fn carry_out(self: &Arc<Self>, core: &mut Core, action: Action) -> Option<Later> {
        match action {
            Action::Connect {
                connection,
                address,
            } => {
                let served = serve(Arc::clone(self), connection, address);
                let task = self.runtime.spawn(served).abort_handle();
                core.peers.insert(connection, Peer::new(task));
                None
            }
            Action::Write { connection } => {
                let peer = core.peers.get_mut(&connection)?;
                peer.writer.take().map(Later::Wake)
            }
            Action::Close { connection } => core.peers.remove(&connection).map(Later::End),
            Action::Resolve { call, outcome } => match (core.callers.get_mut(&call), outcome) {
                (Some(caller), outcome) => {
                    match std::mem::replace(caller, Caller::Untaken(outcome)) {
                        Caller::Waits(waker) => Some(Later::Wake(waker)),
                        Caller::Untaken(_) => None,
                    }
                }
                (None, Outcome::Failed(error)) => observed(core, call, Err(error)),
                (None, _) => None,
            },
            Action::Observed { call, change } => observed(core, call, Ok(change)),
            Action::Ended { proof, why } => Some(Later::Over(proof, why)),
            Action::Wake { proof } => Some(Later::Look(proof)),
            // The proofs of a guard show it.
            Action::Over { .. } => None,
            Action::Occurred { occurrence, .. } => Some(Later::Occurred(occurrence)),
            Action::Note(note) => Some(Later::Note(note)),
        }
    }

    fn finish(&self, later: Later) {
        match later {
            Later::Wake(waker) => waker.wake(),
            Later::Over(proof, why) => {
                if why != Loss::Released {
                    let (key, owner) = (proof.claims.label(), proof.claims.owner());
                    let fence = proof.fence();
                    tracing::warn!(parent: None, %key, %owner, fence, loss = %why, "lock lost");
                    self.losses.send_replace(why);
                }
                proof.wake();
            }
            Later::Look(proof) => proof.wake(),
            Later::Occurred(occurrence) => {
                if let Some(listener) = &self.listener {
                    listener.hear(&occurrence);
                }
            }
            Later::Note(note) => self.log(&note),
            Later::End(peer) => peer.end(),
        }
    }

    /// What concerns some lock is in no span: the current one may be of a call for
    /// another lock, and what is traced must not have a key.
    fn log(&self, note: &Note) {
        let warning = note.warning().unwrap_or_default();
        match note {
            Note::Connected { address } => tracing::info!(address, "connected to the server"),
            Note::NotConnected {
                address,
                is_news: true,
                ..
            } => tracing::warn!(address, "{warning}"),
            Note::NotConnected { failure, .. } => {
                tracing::debug!(%failure, "no connection to the server yet");
            }
            Note::Lost { address } => tracing::warn!(address, "connection to the server lost"),
            Note::Silent => tracing::warn!("the connection is silent"),
            Note::NamedElsewhere => tracing::info!("the Sentinels name another server"),
            Note::NotRenewed { claims, reason } => {
                let key = claims.label();
                tracing::warn!(
                    name: "not-renewed", target: RENEWAL, parent: None, key, reason, "{warning}"
                );
            }
            Note::AtRisk { claims, left, .. } => {
                let (key, left) = (claims.label(), left.as_secs_f64());
                tracing::warn!(
                    name: "at-risk", target: RENEWAL, parent: None, key, left, "{warning}"
                );
            }
            Note::NotReleased { claims, .. } => {
                tracing::warn!(parent: None, key = claims.label(), "{warning}");
            }
            Note::UnknownMessage(message) => {
                let message = String::from_utf8_lossy(message);
                tracing::warn!(%message, "unknown message");
            }
            Note::NoRoutes { is_news: true, .. } => tracing::warn!("{warning}"),
            Note::NoRoutes { failure, .. } => {
                tracing::debug!(%failure, "no server reports the slots");
            }
        }
    }

    /// Begins to observe the leader at `key`; returns the observer's number.
    pub(crate) fn observe(self: &Arc<Self>, key: &Arc<[u8]>) -> Id {
        self.with_core(|core| {
            let (observer, key) = (core.next_id(), Arc::clone(key));
            core.observers.insert(observer, Untaken::default());
            core.machine.call(now(), observer, Call::Observe { key });
            observer
        })
    }

    pub(crate) fn unobserve(self: &Arc<Self>, observer: Id) {
        let untaken = self.with_core(|core| {
            core.machine.abandon(now(), observer);
            core.observers.remove(&observer)
        });
        drop(untaken);
    }

    /// The next change for an observer; none after an error.
    pub(crate) fn poll_change(
        &self,
        observer: Id,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Change, Error>>> {
        // Dropping a waker may run any code, so it is dropped after the unlock.
        let mut before = None;
        let poll = self.with_peers(|core| {
            let Some(untaken) = core.observers.get_mut(&observer) else {
                return Poll::Ready(None);
            };
            let Some(change) = untaken.changes.pop_front() else {
                before = untaken.waker.replace(context.waker().clone());
                return Poll::Pending;
            };
            if change.is_err() {
                before = core.observers.remove(&observer).and_then(|it| it.waker);
            }
            Poll::Ready(Some(change))
        });
        drop(before);
        poll
    }

    /// Reads from the endpoint, without a request.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Endpoint) -> T) -> T {
        read(lock(&self.core).machine.endpoint())
    }

    /// The permits that a guard needs.
    pub(crate) fn permits(&self, guard: Id) -> u32 {
        lock(&self.core).machine.permits(guard)
    }

    /// Gives `permits` of a guard to a new one; returns its number.
    pub(crate) fn split(self: &Arc<Self>, guard: Id, permits: u32) -> Option<Id> {
        self.with_core(|core| {
            let part = core.next_id();
            let is_split = core.machine.split(now(), guard, part, permits);
            is_split.then_some(part)
        })
    }

    /// Gives all permits of `part` to `guard`; false if they are of different holds.
    pub(crate) fn merge(self: &Arc<Self>, guard: Id, part: Id) -> bool {
        self.change(|machine, now| machine.merge(now, guard, part))
    }

    pub(crate) fn metrics(&self) -> Metrics {
        self.read(|endpoint| endpoint.engine().metrics())
    }

    /// Why a server is not connected, if one is not.
    pub(crate) fn last_failure(&self) -> Option<Failure> {
        self.read(|endpoint| endpoint.failure().cloned())
    }

    /// Waits until the clean-up that is pending now is done; [`Error::Closed`] if
    /// the client has ended before.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Error> {
        done(call(self, Call::Flush).await)
    }

    /// Every loss from now on; [`Loss::Released`] stands for the end of the client.
    /// None if the client has ended.
    pub(crate) fn losses(&self) -> Option<watch::Receiver<Loss>> {
        self.read(|endpoint| (!endpoint.is_closed()).then(|| self.losses.subscribe()))
    }

    /// Releases all holds, and ends the client.
    pub(crate) async fn close(self: &Arc<Self>, timeout: Duration) -> Result<(), Error> {
        if self.read(|it| it.is_closed() && !it.engine().is_leaving()) {
            return Err(Error::Closed);
        }
        let begun = now();
        self.change(Machine::leave_all);
        let flushed = tokio::time::timeout(timeout, self.flush()).await;
        let source = self.last_failure();
        self.end();
        self.is_left.store(true, Ordering::Release);
        self.alarm.notify_one();
        match flushed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error @ Error::NotReleased { .. })) => Err(error),
            Ok(Err(_)) | Err(_) => Err(Error::Unavailable {
                waited: now() - begun,
                source,
            }),
        }
    }

    /// Ends the client, even if work is left.
    fn end(self: &Arc<Self>) {
        self.handle(Event::Closed);
        self.losses.send_replace(Loss::Released);
    }

    /// Asks the server of `key` as [`ask`] does, for at most the client's retry
    /// timeout.
    pub(crate) async fn ask_at(
        self: &Arc<Self>,
        key: &Arc<[u8]>,
        command: (Command, bool),
    ) -> Result<Frame, Error> {
        ask(self, To::Key(Arc::clone(key)), command).await
    }

    /// Asks every server.
    pub(crate) async fn ask_everywhere(
        self: &Arc<Self>,
        command: &Command,
    ) -> Result<Vec<Frame>, Error> {
        let answers = self.ask_each(command).await.into_iter();
        answers.map(|(_, answer)| answer).collect()
    }

    /// Asks every server; returns each address and its answer.
    pub(crate) async fn ask_each(
        self: &Arc<Self>,
        command: &Command,
    ) -> Vec<(String, Result<Frame, Error>)> {
        let question = Call::Question {
            to: None,
            command: command.clone(),
            changes: false,
            limit: None,
        };
        let answers = match call(self, question).await {
            Outcome::Answers(answers) => answers,
            _ => Vec::new(),
        };
        let addressed = |(node, answer)| (self.read(|it| it.address(node)), answer);
        answers.into_iter().map(addressed).collect()
    }

    /// Whether no client, lock or guard is left, and the clean-up is done.
    fn is_over(&self, core: &Core) -> bool {
        self.is_left.load(Ordering::Acquire) && core.machine.is_clean()
    }

    /// Passes the time to the endpoint until no client, lock or guard is left and
    /// the clean-up is done.
    pub(crate) async fn drive(self: Arc<Self>) {
        let _closing = Closing(Arc::clone(&self));
        loop {
            let alarm = {
                let mut core = lock(&self.core);
                if self.is_over(&core) {
                    return;
                }
                core.alarm = core.machine.next_deadline();
                core.alarm
            };
            let rings = async {
                match alarm {
                    Some(alarm) => tokio::time::sleep_until(timer(alarm)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = rings => {
                    self.handle(Event::Tick);
                }
                () = self.alarm.notified() => {}
            }
        }
    }
}

impl Core {
    fn next_id(&mut self) -> Id {
        self.last += 1;
        Id::of_number(self.last)
    }
}

/// Passes a change to an observer.
fn observed(core: &mut Core, call: Id, change: Result<Change, Error>) -> Option<Later> {
    let untaken = core.observers.get_mut(&call)?;
    untaken.add(change);
    untaken.waker.take().map(Later::Wake)
}

impl Untaken {
    /// Adds a change. Drops the oldest one if there are too many.
    fn add(&mut self, change: Result<Change, Error>) {
        self.changes.push_back(change);
        if self.changes.len() > UNTAKEN_MAX {
            self.changes.pop_front();
            if let Some(Ok(next)) = self.changes.front_mut() {
                next.missed = true;
            }
        }
    }
}

/// Ends the client together with its background, even when the runtime shuts
/// down.
struct Closing(Arc<State>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("id", &self.id)
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
        self.state.is_left.store(true, Ordering::Release);
        self.state.alarm.notify_one();
    }
}

/// The current moment of a clock that also runs while the machine is suspended.
///
/// The server's clock runs during that time too. The standard library's monotonic
/// clock does not on Linux. With it, a hold would appear valid for up to a lease
/// after the machine has woken, while another owner holds the lock.
#[cfg(target_os = "linux")]
pub(crate) fn now() -> Instant {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + nanos)
}

/// The monotonic clock of other systems. Some of them stop while the machine is
/// suspended.
#[cfg(not(target_os = "linux"))]
pub(crate) fn now() -> Instant {
    use rlock_engine::engine::instant::nanos;
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    // The first moments of the clock are reserved.
    Instant::from_nanos(nanos(elapsed).saturating_add(1_000_000_000))
}

/// When a timer must fire. Timers do not run while the machine is suspended, so
/// the deadline is compared with the clock again.
pub(crate) fn timer(moment: Instant) -> tokio::time::Instant {
    tokio::time::Instant::now() + (moment - now())
}

/// The settings of one more client of this library.
pub(crate) fn of_library(settings: Settings) -> Settings {
    let uuid = uuid::Uuid::new_v4();
    Settings {
        library: ("rlock-client".into(), env!("CARGO_PKG_VERSION").into()),
        // It is not a part of any owner, so nobody who knows an owner can
        // publish on it.
        channel: uuid.to_string(),
        seed: uuid::Uuid::new_v4().as_u64_pair().0,
        ..settings
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_runs_as_the_monotonic_clock_does() {
        let (here, there) = (now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (here, there) = (now() - here, there.elapsed());
        assert!(
            here.abs_diff(there) < Duration::from_millis(5),
            "{here:?} {there:?}"
        );
    }
}
