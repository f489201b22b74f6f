//! Renews what is held, about every third of its lease, at its holder's word too,
//! and sees to it that the connection is known to be there.
//!
//! A renewal that fails is tried again until validity ends, and holds up no
//! other. A hold that was lost is never renewed. After each new connection
//! every hold is checked: the server forgot what it was to tell by the one before.
//!
//! A second renewal is under way at the same server only if there are more than
//! 500 holds, a third if more than 1000, and so on: the server and the calls of
//! this client share one connection. A hold that has waited for a twelfth of
//! its lease is renewed all the same, so that no slow network loses any; and as
//! the network is slow, one more may be under way from then on, for as long as
//! they are needed.
//!
//! A grant by message counts from the last heartbeat before it. So while somebody
//! waits, a quiet connection has four heartbeats in the shortest lease, once for
//! all who wait. They also show early enough that a server hangs.
//!
//! When a connection ends, a bound hold counts only for its grace from when the
//! connection was last known to be there. If that were the last renewal, an end
//! after a quiet time would lose holds that the server still has. So a quiet
//! connection has four heartbeats in the shortest grace. It is given up if
//! nothing comes for half of it, so that its end is seen here before the grace
//! can be over on the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::claims::Numbers;
use crate::engine::hold::Grant;
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::engine::request::{By, Renewal, Reply, Request, Sent};
use crate::engine::terms::{Terms, Value, validity_end};
use crate::engine::work::{Context, Input, Next, Task, Work};
use crate::engine::{Action, ConnectionState, Engine, Id, Outcome, Timer};
use crate::error::{Error, Fault, Loss};

/// How many holds there are for each that may be renewed at the same time.
const HOLDS_PER_RENEWAL: usize = 500;
/// How many may be renewed at the same time at most.
const RENEWALS_MAX: usize = 256;
/// How far apart holds are checked after a new connection, if none is
/// urgent: 5000 a second.
const SPACING: Duration = Duration::from_micros(200);
/// When to check a hold again whose owner has something under way.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// When to check a hold again whose slot is on its way to another server.
const ON_ITS_WAY: Duration = Duration::from_secs(1);
/// A connection is not taken for silent before.
const SILENCE_MIN: Duration = Duration::from_millis(500);
/// If the check itself ran this late, the process was starved. It waits as long
/// again before it concludes anything: the reply may be here, unread.
const STARVED: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// All holds there.
    pub(super) holds: Numbers,
    underway: usize,
    /// How many more may be, as some were late.
    more: usize,
    /// Those that are due and wait for others, by when they are urgent.
    waiting: BTreeSet<(Instant, Id)>,
    /// When the heartbeat was sent that is not answered yet.
    pub(super) ping: Option<Instant>,
}

impl Renewals {
    /// How many may be under way.
    fn at_once(&self) -> usize {
        (self.holds.len().div_ceil(HOLDS_PER_RENEWAL) + self.more).min(RENEWALS_MAX)
    }

    fn has_ended(&mut self) {
        self.underway = self.underway.saturating_sub(1);
        if self.underway < self.at_once() / 2 {
            self.more = self.more.saturating_sub(1);
        }
    }
}

impl Engine {
    /// Has a hold checked when its renewal is due after a lease that was asked for.
    pub(super) fn schedule_after(&mut self, now: Instant, id: Id, sent: Instant, lease: Duration) {
        let Some(hold) = self.holds.get(&id) else {
            return;
        };
        let due = hold.terms.renewal_due(hold.number, hold.taken, sent, lease);
        self.check_at(now, id, due);
    }

    /// Has a hold checked when due, and at its end, to report its loss.
    pub(super) fn check_at(&mut self, now: Instant, id: Id, due: Option<Instant>) {
        self.wait_no_more(id);
        let until = self.holds.get(&id).and_then(|hold| {
            // A caller that asked whether it still counts may have seen its end first.
            let is_news = !hold.is_reported && hold.proof.loss(now).is_some();
            hold.proof.valid_until().or(is_news.then_some(now))
        });
        let alarm = until.map(|until| due.map_or(until, |due| until.min(due)).max(now));
        self.set_alarm(id, alarm);
    }

    pub(super) fn wait_for_end(&mut self, now: Instant, id: Id) {
        self.check_at(now, id, None);
    }

    pub(super) fn stop_renewing(&mut self, id: Id) {
        self.wait_no_more(id);
        self.set_alarm(id, None);
    }

    fn wait_no_more(&mut self, id: Id) {
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        let node = hold.node;
        if let Some(urgent) = hold.urgent.take() {
            self.node_state(node).renewals.waiting.remove(&(urgent, id));
        }
    }

    pub(super) fn hold_is_due(&mut self, now: Instant, id: Id) {
        let loss = self.loss(now, id);
        let Some(node) = self.holds.get(&id).map(|hold| hold.node) else {
            return;
        };
        let state = self.node_state(node);
        let (connection, heard) = (state.connection, state.heard);
        let (underway, at_once) = (state.renewals.underway, state.renewals.at_once());
        let is_busy = self.is_busy(id);
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        hold.alarm_was = hold.alarm.take();
        let (true, None, ConnectionState::Up { number, .. }) =
            (hold.proof.is_live(now), loss, connection)
        else {
            // On the next connection all holds are checked.
            if loss.is_none() {
                self.wait_for_end(now, id);
            }
            return;
        };
        if let Some(sent) = hold.renewing {
            let due = hold.alarm_was.unwrap_or(now);
            if now - due > STARVED {
                return self.check_at(now, id, Some(now + STARVED));
            }
            // Replicas may be slow where the server is not, and answer by another
            // connection.
            if heard < sent && hold.terms.replicas == 0 {
                self.actions
                    .push_back(Action::Retire { connection: number });
            }
            self.wait_for_end(now, id);
        } else if !hold.terms.renewed && hold.notices_by == number {
            self.wait_for_end(now, id);
        } else if is_busy {
            // What is left of the lease by now could cut an extension short.
            self.check_at(now, id, Some(now + BUSY_PAUSE));
        } else if let Some(urgent) = hold.urgent {
            // It is renewed as soon as another renewal has ended.
            if underway < RENEWALS_MAX && urgent <= now {
                self.metrics.late_renewals += 1;
                let more = &mut self.node_state(node).renewals.more;
                *more = (*more + 1).min(RENEWALS_MAX);
                self.renew(now, id, number);
            }
        } else if underway < at_once {
            self.renew(now, id, number);
        } else {
            let left = hold
                .proof
                .valid_until()
                .map_or(Duration::ZERO, |end| end - now);
            let urgent = now + (hold.terms.lease / 12).min(left / 4);
            hold.urgent = Some(urgent);
            self.node_state(node).renewals.waiting.insert((urgent, id));
            self.set_alarm(id, Some(urgent));
        }
    }

    /// Renews it. If its loss would be reported on an earlier connection, by which
    /// nothing comes any more, the server is asked to tell it by this one.
    fn renew(&mut self, now: Instant, id: Id, connection: u64) {
        let hold = self.holds.get(&id);
        let attaches = hold.is_some_and(|hold| hold.notices_by != connection);
        self.ask_to_renew(now, id, connection, attaches);
    }

    fn ask_to_renew(&mut self, now: Instant, id: Id, connection: u64, attaches: bool) {
        self.wait_no_more(id);
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        let (Some(lease), fence) = (hold.next_lease(now), hold.proof.fence()) else {
            return self.wait_for_end(now, id);
        };
        let request = match attaches {
            true => hold.attach_request(now),
            false => Some(hold.renewal(lease, None, None)),
        };
        let Some(request) = request else {
            return self.wait_for_end(now, id);
        };
        let node = hold.node;
        hold.renewing = Some(now);
        let silence = now + (lease / 3).max(SILENCE_MIN);
        self.node_state(node).renewals.underway += 1;
        let by = By::Renewal(Renewal {
            hold: id,
            lease,
            fence,
            attaches,
        });
        self.send(now, (node, connection), by, request);
        self.check_at(now, id, Some(silence));
    }

    pub(super) fn renewal_reply(
        &mut self,
        now: Instant,
        sent: Sent,
        renewal: Renewal,
        result: Result<Reply, Fault>,
    ) {
        let Renewal {
            hold: id,
            lease,
            fence: asked_under,
            attaches,
        } = renewal;
        self.node_state(sent.node).renewals.has_ended();
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        if hold.renewing == Some(sent.sent) {
            hold.renewing = None;
        }
        let fence = match result {
            // It is being renewed at the server that it has moved to.
            Err(Fault::Moved(_)) if hold.renewing.is_some() => return,
            Err(Fault::Moved(_))
                if attaches && hold.terms.renewed && hold.terms.bound.is_none() =>
            {
                hold.is_on_its_way = true;
                return self.renew_besides(now, id, sent);
            }
            result if attaches => {
                return match self.attached(now, id, sent, (lease, asked_under), result) {
                    Ok(()) => self.renew_besides(now, id, sent),
                    Err(fault) => self.check_failed(now, id, &fault),
                };
            }
            Ok(Reply::Fence(fence)) => Some(fence),
            // It counts no longer than they know of.
            Ok(Reply::TooFew(_)) => return self.check_again(now, id),
            Ok(_) => None,
            Err(fault) => return self.check_failed(now, id, &fault),
        };
        self.renewed(now, id, sent, (lease, asked_under), fence);
    }

    /// Takes the reply to a renewal that moves the loss messages to its
    /// connection; the fault of one that has to be asked for again.
    pub(super) fn attached(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        (lease, asked_under): (Duration, u64),
        result: Result<Reply, Fault>,
    ) -> Result<(), Fault> {
        let fence = match result {
            Ok(Reply::Fence(fence)) => Some(fence),
            Ok(_) => None,
            // A full server still renews: only the early notice is missing.
            Err(Fault::Refused(Error::OutOfMemory(_) | Error::QueueFull(_))) => return Ok(()),
            Err(fault) => return Err(fault),
        };
        if self.is_confirmed(now, id, fence, asked_under)
            && let Some(hold) = self.holds.get_mut(&id)
        {
            hold.notified_by(sent.connection);
            // If replicas must acknowledge a lease, none has acknowledged this one.
            if hold.terms.replicas == 0 {
                self.count(now, id, sent, (lease, asked_under));
            }
        }
        Ok(())
    }

    /// Whether something is under way for the owner of a hold with a fixed lease.
    fn is_busy(&self, id: Id) -> bool {
        let hold = self.holds.get(&id).filter(|hold| !hold.terms.renewed);
        let mut names = hold.iter().flat_map(|hold| hold.proof.claims.names());
        names.any(|name| self.claims.get(name).is_some_and(|it| !it.queue.is_empty()))
    }

    /// Renews as ever what could not be attached, or has to be known by replicas.
    fn renew_besides(&mut self, now: Instant, id: Id, sent: Sent) {
        let Some(hold) = self.holds.get(&id) else {
            return;
        };
        let is_counted = hold.notices_by == sent.connection && hold.terms.replicas == 0;
        let is_due = hold.terms.renewed && !is_counted && hold.renewing.is_none();
        match self.connection(hold.node) {
            ConnectionState::Up { number, .. } if is_due && hold.proof.is_live(now) => {
                self.ask_to_renew(now, id, number, false);
            }
            _ => {}
        }
    }

    /// Counts a lease that was asked for under a fence, and answered with
    /// `fence`; false if the hold is over.
    pub(super) fn renewed(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        asked: (Duration, u64),
        fence: Option<u64>,
    ) -> bool {
        self.is_confirmed(now, id, fence, asked.1) && self.count(now, id, sent, asked)
    }

    fn count(&mut self, now: Instant, id: Id, sent: Sent, (lease, fence): (Duration, u64)) -> bool {
        let grant = Grant {
            fence,
            sent: sent.sent,
            lease,
            connection: sent.connection,
        };
        if !self.prolong(now, id, grant) {
            return false;
        }
        self.schedule_after(now, id, sent.sent, lease);
        if let Some(hold) = self.holds.get(&id) {
            let is_watched = self.connection(hold.node).is(hold.notices_by);
            let soon = match hold.is_on_its_way {
                true => Some(now + ON_ITS_WAY),
                // It was extended before it was checked on a new connection, and
                // its lease is fixed: nothing else has its loss told there.
                false => (!hold.terms.renewed && !is_watched).then_some(now),
            };
            if let Some(soon) = soon {
                let due = hold.alarm.map_or(soon, |alarm| alarm.min(soon));
                self.check_at(now, id, Some(due));
            }
        }
        true
    }

    /// Those that are due and have waited for others.
    pub(super) fn renew_waiting(&mut self, now: Instant, node: Node) {
        let ConnectionState::Up { number, .. } = self.connection(node) else {
            return;
        };
        loop {
            let renewals = &mut self.node_state(node).renewals;
            let Some((urgent, id)) = renewals.waiting.first().copied() else {
                return;
            };
            let allowed = match urgent <= now {
                true => RENEWALS_MAX,
                false => renewals.at_once(),
            };
            if renewals.underway >= allowed {
                return;
            }
            self.renew(now, id, number);
        }
    }

    /// Tries again later what could not be done for a hold.
    pub(super) fn check_failed(&mut self, now: Instant, id: Id, fault: &Fault) {
        if matches!(fault, Fault::Refused(Error::NotALock(_))) {
            return self.lose(now, id);
        }
        self.check_again(now, id);
    }

    fn check_again(&mut self, now: Instant, id: Id) {
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        if !hold.proof.is_live(now) {
            return;
        }
        let failures = hold.failures;
        hold.failures = failures.saturating_add(1);
        let due = now + self.pause(failures);
        self.check_at(now, id, Some(due));
    }

    /// Has every hold there checked soon, because there is a new connection. Bound holds
    /// come at once, in the order in which they would be lost; the others follow.
    pub(super) fn check_all(&mut self, now: Instant, node: Node) {
        let live = self.holds_at(node).filter_map(|(id, hold)| {
            let until = hold.proof.valid_until().filter(|until| now < *until)?;
            Some((hold.terms.bound.is_none(), until, id))
        });
        let mut live: Vec<_> = live.collect();
        live.sort_unstable();
        let mut due = now;
        for (is_unbound, until, id) in live {
            if is_unbound {
                due = due + SPACING;
            }
            if let Some(hold) = self.holds.get_mut(&id) {
                hold.renewing = None;
            }
            self.check_at(now, id, Some(due.min(now + (until - now) / 4)));
        }
    }
}

/// The shortest and the longest interval of heartbeats, unless shorter ones are
/// asked for.
const HEARTBEAT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl Engine {
    /// Sets the longest interval of heartbeats while they are needed.
    pub fn set_quiet(&mut self, quiet: Duration) {
        self.quiet = Some(quiet);
    }

    /// When the last request was made that the server answered.
    pub fn known_good(&self, node: Node) -> Instant {
        let state = self.nodes.get(&node);
        state.map_or(Instant::from_nanos(0), |state| state.known_good)
    }

    /// Somebody waits for a message of that server for whom such a lease matters.
    pub(crate) fn lease_is_awaited(&mut self, now: Instant, node: Node, lease: Duration) {
        if count(&mut self.node_state(node).leases, lease) {
            self.keep_heartbeat(now, node);
        }
    }

    /// One of them does not any more.
    pub(crate) fn lease_is_not_awaited(&mut self, node: Node, lease: Duration) {
        uncount(&mut self.node_state(node).leases, lease);
    }

    pub(super) fn grace_begins(&mut self, now: Instant, node: Node, grace: Duration) {
        if !grace.is_zero() && count(&mut self.node_state(node).graces, grace) {
            self.keep_heartbeat(now, node);
        }
    }

    pub(super) fn grace_ends(&mut self, node: Node, grace: Duration) {
        uncount(&mut self.node_state(node).graces, grace);
    }

    /// Sends a heartbeat if the last answer is too old.
    pub(super) fn keep_heartbeat(&mut self, now: Instant, node: Node) {
        let quiet = self.quiet.unwrap_or(HEARTBEAT.1);
        let state = self.node_state(node);
        let grace = state.graces.keys().next().copied();
        let lease = state.leases.keys().next().copied();
        let shortest = grace.into_iter().chain(lease).min();
        let interval = shortest.map(|shortest| (shortest / 4).clamp(HEARTBEAT.0, quiet));
        let (Some(interval), ConnectionState::Up { number, .. }) = (interval, state.connection)
        else {
            return self.set_heartbeat(node, None);
        };
        let age = now - state.known_good;
        if age < interval && state.renewals.ping.is_none() {
            return self.set_heartbeat(node, Some(now + (interval - age)));
        }
        let is_new = state.renewals.ping.is_none();
        let sent = *state.renewals.ping.get_or_insert(now);
        if is_new {
            self.send(now, (node, number), By::Ping, Request::Ping);
        }
        let silence = grace.map(|grace| sent + (grace / 2).max(HEARTBEAT.0));
        if silence.is_some_and(|silence| silence <= now) {
            self.actions
                .push_back(Action::Retire { connection: number });
            return self.set_heartbeat(node, None);
        }
        self.set_heartbeat(node, silence);
    }

    pub(super) fn heartbeat_reply(&mut self, now: Instant, node: Node) {
        self.node_state(node).renewals.ping = None;
        self.keep_heartbeat(now, node);
    }

    pub(super) fn set_heartbeat(&mut self, node: Node, due: Option<Instant>) {
        if let Some(before) = std::mem::replace(&mut self.node_state(node).heartbeat, due) {
            self.timers.remove(&(before, Timer::Heartbeat(node)));
        }
        if let Some(due) = due {
            self.timers.insert((due, Timer::Heartbeat(node)));
        }
    }
}

/// Counts one more of that length; whether it is shorter than all others.
fn count(all: &mut BTreeMap<Duration, usize>, length: Duration) -> bool {
    let shortest = all.keys().next().copied();
    *all.entry(length).or_default() += 1;
    shortest.is_none_or(|shortest| length < shortest)
}

fn uncount(all: &mut BTreeMap<Duration, usize>, length: Duration) {
    if let Some(count) = all.get_mut(&length) {
        *count -= 1;
        if *count == 0 {
            all.remove(&length);
        }
    }
}

/// A hold that is to last for at least `lease` from now.
#[derive(Debug)]
pub(super) struct Extension {
    hold: Id,
    lease: Duration,
    /// The fence to raise it to.
    raise: Option<u64>,
    /// The value to publish.
    value: Option<Value>,
    /// The lease that its renewals go back to if the server refuses.
    before: Option<Duration>,
    /// What was asked for last, and the fence by then.
    asked: (Duration, u64),
}

impl Engine {
    /// Raises the fence of a hold, which is renewed on `terms` from now on.
    pub(super) fn raise(&mut self, now: Instant, call: Id, id: Id, fence: u64, terms: Terms) {
        if let Some(hold) = self.holds.get_mut(&id) {
            let bound = hold.terms.bound;
            (hold.taken, hold.terms) = (now, Terms { bound, ..terms });
        }
        self.extend(now, call, id, terms.lease, Some(fence));
    }

    /// Publishes another value with a hold, which lasts for as long as before.
    pub(super) fn proclaim(&mut self, now: Instant, call: Id, id: Id, value: Value) {
        self.renew_once(now, call, id, (Duration::ZERO, None, Some(value)));
    }

    pub(super) fn extend(
        &mut self,
        now: Instant,
        call: Id,
        id: Id,
        lease: Duration,
        raise: Option<u64>,
    ) {
        self.renew_once(now, call, id, (lease, raise, None));
    }

    fn renew_once(
        &mut self,
        now: Instant,
        call: Id,
        id: Id,
        (lease, raise, value): (Duration, Option<u64>, Option<Value>),
    ) {
        let error = match (self.loss(now, id), self.holds.get(&id)) {
            (Some(loss), _) => Error::Lost(loss),
            (None, None) => Error::Closed,
            (None, Some(hold)) => {
                let task = Task::Extend(Extension {
                    hold: id,
                    lease,
                    raise,
                    value,
                    before: None,
                    asked: (lease, hold.proof.fence()),
                });
                let claims = hold.proof.claims.clone();
                let deadline = Some(now + self.retry_timeout);
                return self.start(now, Work::new(now, call, claims, task, deadline));
            }
        };
        self.resolve(call, Outcome::Failed(error));
    }

    pub(super) fn too_few(&self, hold: Id, known: u16) -> Error {
        Error::NotReplicated {
            wanted: self.holds.get(&hold).map_or(0, |hold| hold.terms.replicas),
            acknowledged: known,
        }
    }
}

impl Extension {
    pub(super) fn on(&mut self, at: &mut Context<'_>, input: Input) -> Next {
        match input {
            Input::Turn => Next::Ask,
            Input::Connected(_) => self.request(at.engine, at.now),
            Input::Reply(sent, result) => self.reply(at, sent, result),
            Input::Due => self.fail(at.engine, at.work.unavailable(at.now)),
            // The end of its guard releases what is held.
            Input::Abandoned | Input::Notified(_) => Next::Stay,
        }
    }

    fn request(&mut self, engine: &mut Engine, now: Instant) -> Next {
        let loss = engine.loss(now, self.hold);
        let Some(hold) = engine.holds.get_mut(&self.hold) else {
            return Next::End(Outcome::Failed(Error::Closed));
        };
        // A renewal that is asked for from now on must not end it sooner.
        let before = *self.before.get_or_insert(hold.terms.lease);
        hold.terms.lease = before.max(self.lease);
        let lease = match self.value {
            Some(_) => hold.next_lease(now),
            None => hold.terms.lease_at(hold.taken, now),
        };
        let (Some(lease), None) = (lease, loss) else {
            let loss = loss.unwrap_or(Loss::LeaseEnded);
            return Next::End(Outcome::Failed(Error::Lost(loss)));
        };
        // A call that raises several fences need not ask where the largest was just
        // granted.
        let (is_raised, late) = match self.raise {
            Some(raise) => (hold.proof.fence() >= raise, self.lease / 20),
            None => (true, Duration::ZERO),
        };
        let is_told = self.value.is_none();
        if is_raised && is_told && hold.lease_end + late >= validity_end(now, self.lease) {
            return Next::End(Outcome::Done);
        }
        hold.raised = hold.raised.max(self.raise);
        self.asked = (lease, hold.proof.fence());
        Next::Send(hold.renewal(lease, self.raise, self.value.clone()))
    }

    fn reply(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        let error = match result {
            Ok(Reply::TooFew(known)) => at.engine.too_few(self.hold, known),
            Ok(reply) => {
                let fence = match reply {
                    Reply::Fence(fence) => Some(fence),
                    _ => None,
                };
                if at
                    .engine
                    .renewed(at.now, self.hold, sent, self.asked, fence)
                {
                    return Next::End(Outcome::Done);
                }
                let loss = at.engine.loss(at.now, self.hold);
                let loss = loss.unwrap_or(Loss::EndedByServer);
                return Next::End(Outcome::Failed(Error::Lost(loss)));
            }
            Err(fault) => match at.try_again(sent, fault) {
                Ok(next) => return next,
                Err(error) => error,
            },
        };
        // An earlier sending that nobody answered may have raised the fence.
        if matches!(error, Error::Refused(_))
            && at.work.unanswered.is_none()
            && let Some(hold) = at.engine.holds.get_mut(&self.hold)
        {
            hold.raised = None;
        }
        self.fail(at.engine, error)
    }

    /// Renewals ask for the lease of before again: the server may refuse this one.
    fn fail(&self, engine: &mut Engine, error: Error) -> Next {
        if let (Some(hold), Some(before)) = (engine.holds.get_mut(&self.hold), self.before) {
            hold.terms.lease = before;
        }
        Next::End(Outcome::Failed(error))
    }
}
