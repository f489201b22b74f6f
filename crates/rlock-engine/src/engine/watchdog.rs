//! Renews holds, about every third of their lease and when the holder extends
//! them, and makes sure that each needed connection is alive.
//!
//! A failed renewal is retried until validity ends, and does not delay other
//! renewals. A lost hold is never renewed. Every hold is checked after each
//! reconnect: the server forgot the notifications that it owed to the previous
//! connection.
//!
//! At each server, a second renewal may be in progress only with more than 500
//! holds, a third with more than 1000, and so on: the server and this client's
//! calls share one connection. A hold that has waited for a twelfth of its lease
//! is renewed regardless, so that a slow network loses no hold. From then on one
//! more renewal may be in progress, because the network is slow, for as long as
//! the renewals need it.
//!
//! A grant by message counts from the last heartbeat before it. So while a call
//! waits, a quiet connection has four heartbeats in the shortest lease, shared by
//! all waiting calls. They also reveal a server that hangs in time.
//!
//! When a connection ends, a bound hold is valid only for its grace, counted from
//! the last time that the connection was known to be alive. If only renewals
//! proved that, the end of a quiet connection would lose holds that the server
//! still has. So a quiet connection has four heartbeats in the shortest grace. It
//! is closed if nothing arrives for half of the grace, so that the client sees
//! its end before the grace can be over on the server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::claims::Numbers;
use crate::engine::hold::Grant;
use crate::engine::instant::{Instant, LateChecks, STARVED};
use crate::engine::node::Node;
use crate::engine::request::{Renewal, Reply, Request, Requester, Sent};
use crate::engine::terms::{Terms, Value, validity_end};
use crate::engine::work::{Context, Input, Next, Stage, Task, Work};
use crate::engine::{Action, ConnectionState, Engine, Id, Outcome, Timer};
use crate::error::{Error, Failure, Fault, Loss};

/// The number of holds for each renewal that may be in progress.
const HOLDS_PER_RENEWAL: usize = 500;
/// The largest number of renewals in progress.
const RENEWALS_MAX: usize = 256;
/// The interval between checks of holds after a reconnect, if no hold is urgent:
/// 5000 a second.
const SPACING: Duration = Duration::from_micros(200);
/// The pause before another check of a hold whose owner has work in progress.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// The pause before another attempt, however little is left of a hold.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The pause before another check of a hold whose slot is moving.
const MOVING_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time after which a connection counts as silent.
const SILENCE_MIN: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// All holds at the server.
    pub(super) holds: Numbers,
    underway: usize,
    /// Additional renewals that may be in progress, because some were late.
    more: usize,
    /// Holds that are due and wait for other renewals, by the moment when they
    /// are urgent.
    waiting: BTreeSet<(Instant, Id)>,
    /// Since when an answer to a heartbeat is awaited.
    pub(super) ping: Option<Instant>,
    pub(super) late_checks: LateChecks,
}

impl Renewals {
    /// The number of renewals that may be in progress.
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
    /// Schedules the check of a hold for its next renewal, after a lease that was
    /// requested at `sent`.
    pub(super) fn schedule_after(&mut self, now: Instant, id: Id, sent: Instant, lease: Duration) {
        let Some(hold) = self.holds.get(&id) else {
            return;
        };
        let due = hold.terms.renewal_due(hold.number, hold.taken, sent, lease);
        self.check_at(now, id, due);
    }

    /// Schedules the check of a hold for `due`, and for its end, to report its
    /// loss.
    pub(super) fn check_at(&mut self, now: Instant, id: Id, due: Option<Instant>) {
        self.wait_no_more(id);
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        // Its guards may have noticed its end first.
        let is_running = hold.proof.running(now).is_some();
        let is_news = !hold.is_reported && !is_running && hold.proof.loss(now).is_some();
        let until = hold.proof.valid_until().or(is_news.then_some(now));
        hold.check_due = until.map(|until| due.map_or(until, |due| until.min(due)));
        let due = hold.next_due(now);
        self.set_timer(id, due);
    }

    pub(super) fn wait_for_end(&mut self, now: Instant, id: Id) {
        self.check_at(now, id, None);
    }

    pub(super) fn stop_renewing(&mut self, id: Id) {
        self.wait_no_more(id);
        self.set_timer(id, None);
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

    /// Reports once that no renewal has been confirmed for half of the lease.
    fn report_risk(&mut self, now: Instant, id: Id) {
        if let Some(hold) = self.holds.get_mut(&id)
            && let Some((since, left)) = hold.risk(now)
        {
            let proof = Arc::clone(&hold.proof);
            self.actions
                .push_back(Action::AtRisk { proof, since, left });
        }
    }

    pub(super) fn hold_is_due(&mut self, now: Instant, id: Id) {
        if let Some(hold) = self.holds.get_mut(&id)
            && let Some(again) = hold.late_check(now)
        {
            return self.set_timer(id, Some(again));
        }
        self.report_risk(now, id);
        if let Some(hold) = self.holds.get(&id) {
            let is_early = hold.check_due.is_some_and(|check| now < check);
            if is_early && hold.proof.is_live(now) {
                let due = hold.next_due(now);
                return self.set_timer(id, due);
            }
        }
        self.check(now, id);
    }

    /// Renews it, or finds out that it is lost or that its connection is silent.
    fn check(&mut self, now: Instant, id: Id) {
        let loss = self.loss(now, id);
        let Some(node) = self.holds.get(&id).map(|hold| hold.node) else {
            return;
        };
        let state = self.node_state(node);
        let (connection, last_answer) = (state.connection, state.last_answer);
        let (underway, at_once) = (state.renewals.underway, state.renewals.at_once());
        let is_busy = self.is_busy(id);
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        hold.last_due = hold.timer_due.take();
        let (true, None, ConnectionState::Up { number, .. }) =
            (hold.proof.is_live(now), loss, connection)
        else {
            // The next connection checks all holds.
            if loss.is_none() {
                self.wait_for_end(now, id);
            }
            return;
        };
        if let Some(sent) = hold.renewing {
            let due = hold.last_due.unwrap_or(now);
            if now - due > STARVED {
                return self.check_at(now, id, Some(now + STARVED));
            }
            // Replicas may be slow while the server is not, and they answer by
            // another connection.
            if last_answer < sent && hold.terms.replicas == 0 {
                self.actions
                    .push_back(Action::Retire { connection: number });
            }
            self.wait_for_end(now, id);
        } else if !hold.terms.renewed && hold.notices_by == number {
            self.wait_for_end(now, id);
        } else if is_busy {
            // The rest of the lease could now cut an extension short.
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
            self.set_timer(id, Some(urgent));
        }
    }

    /// Renews a hold. If an earlier, dead connection would report its loss, the
    /// server is asked to report it by this one.
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
            true => hold.attach_request(lease),
            false => hold.renewal(lease, None, None),
        };
        let node = hold.node;
        hold.renewing = Some(now);
        hold.is_asked_for(now, lease);
        let silence = now + (lease / 3).max(SILENCE_MIN);
        self.node_state(node).renewals.underway += 1;
        let by = Requester::Renewal(Renewal {
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
        if let Err(fault) = &result {
            hold.has_failed(sent.sent, fault);
        }
        if attaches {
            hold.reports_have_come(&result);
        }
        let fence = match result {
            // It is renewed at the server to which it has moved.
            Err(Fault::Moved(_)) if hold.renewing.is_some() || hold.node != sent.node => return,
            Err(Fault::Moved(_))
                if attaches && hold.terms.renewed && hold.terms.bound.is_none() =>
            {
                hold.is_moving = true;
                return self.renew_normally(now, id, sent);
            }
            result if attaches => {
                return match self.attached(now, id, sent, (lease, asked_under), result) {
                    Ok(()) => self.renew_normally(now, id, sent),
                    Err(fault) => self.check_failed(now, id, &fault),
                };
            }
            Ok(Reply::Fence(fence)) if self.may_hide_loss(now, id, sent, fence) => return,
            Ok(Reply::Fence(fence)) => Some(fence),
            // It is valid only for the last lease that the replicas know.
            Ok(Reply::TooFew(_)) => return self.check_again(now, id),
            Ok(_) => None,
            Err(fault) => return self.check_failed(now, id, &fault),
        };
        self.renewed(now, id, sent, (lease, asked_under), fence);
    }

    /// Whether an answer may hide a loss, because reports of losses come by another
    /// connection: its fence belongs to an upgrade, or to a grant after the loss. Then
    /// the server is asked by the connection of the reports.
    fn may_hide_loss(&mut self, now: Instant, id: Id, sent: Sent, fence: u64) -> bool {
        let hold = self.holds.get(&id);
        let is_open = sent.is_separate
            && hold.is_some_and(|hold| self.is_watched(hold) && hold.may_be_upgraded(fence));
        if let Some(hold) = self.holds.get_mut(&id)
            && is_open
            && hold.renewing.is_none()
        {
            hold.unreported = Some(fence);
            let reports_by = hold.notices_by;
            self.ask_to_renew(now, id, reports_by, true);
        }
        is_open
    }

    /// Takes the reply to a renewal that also asked for loss reports by its
    /// connection. Returns the fault of a renewal that must be repeated.
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
        if self.is_confirmed(now, id, fence, (asked_under, sent.in_order_with()))
            && let Some(hold) = self.holds.get_mut(&id)
        {
            hold.notified_by(sent.connection);
            // No replica has acknowledged this lease, and they must if there are
            // any.
            if hold.terms.replicas == 0 {
                self.count(now, id, sent, (lease, asked_under));
            }
        }
        Ok(())
    }

    /// Whether the owner of a hold with a fixed lease has work in progress.
    fn is_busy(&self, id: Id) -> bool {
        let hold = self.holds.get(&id).filter(|hold| !hold.terms.renewed);
        let mut names = hold.iter().flat_map(|hold| hold.proof.claims.names());
        names.any(|name| self.claims.get(name).is_some_and(|it| it.turn.is_some()))
    }

    /// Renews a hold normally if it could not be attached or replicas must know
    /// of it.
    fn renew_normally(&mut self, now: Instant, id: Id, sent: Sent) {
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

    /// Counts a lease that was requested under a known fence and answered with
    /// `fence`; false if the hold is over.
    pub(super) fn renewed(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        asked: (Duration, u64),
        fence: Option<u64>,
    ) -> bool {
        let asked_under = (asked.1, sent.in_order_with());
        self.is_confirmed(now, id, fence, asked_under) && self.count(now, id, sent, asked)
    }

    fn count(&mut self, now: Instant, id: Id, sent: Sent, (lease, fence): (Duration, u64)) -> bool {
        let grant = Grant {
            fence,
            sent: sent.sent,
            lease,
            connection: sent.connection,
        };
        if !self.extend_validity(now, id, grant) {
            return false;
        }
        self.schedule_after(now, id, sent.sent, lease);
        if let Some(hold) = self.holds.get(&id) {
            let is_watched = self.is_watched(hold);
            let soon = match hold.is_moving {
                true => Some(now + MOVING_PAUSE),
                // A hold with a fixed lease was extended before its check on a
                // new connection: nothing else asks for loss reports there.
                false => (!hold.terms.renewed && !is_watched).then_some(now),
            };
            if let Some(soon) = soon {
                let due = hold.timer_due.map_or(soon, |due| due.min(soon));
                self.check_at(now, id, Some(due));
            }
        }
        true
    }

    /// Asks for loss reports by this connection, if it was extended before its check
    /// there. If the server refuses them, each extension asks once.
    fn watch_soon(&mut self, now: Instant, id: Id) {
        let hold = self.holds.get(&id);
        if hold.is_some_and(|hold| !self.is_watched(hold) && hold.renewing.is_none()) {
            self.check_at(now, id, Some(now));
        }
    }

    /// Renews the holds that are due and have waited for others.
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
            if self.is_busy(id) {
                self.check_at(now, id, Some(now + BUSY_PAUSE));
            } else {
                self.renew(now, id, number);
            }
        }
    }

    /// Retries an operation that failed for a hold, after a pause.
    pub(super) fn check_failed(&mut self, now: Instant, id: Id, fault: &Fault) {
        match fault {
            Fault::Refused(Error::NotALock(_)) => return self.lose(now, id),
            Fault::Refused(error) => self.report_refusal(now, id, error.to_string()),
            Fault::Transient(failure @ Failure::Server(_)) => {
                self.report_refusal(now, id, failure.to_string());
            }
            _ => {}
        }
        self.check_again(now, id);
    }

    /// Reports a refused renewal, once until the next success. Otherwise a lack of
    /// rights would look like a lease that ended without a reason.
    fn report_refusal(&mut self, now: Instant, id: Id, reason: String) {
        let hold = self.holds.get_mut(&id);
        let Some(hold) = hold.filter(|it| it.proof.is_live(now) && !it.is_refusal_reported) else {
            return;
        };
        hold.is_refusal_reported = true;
        let claims = hold.proof.claims.clone();
        self.actions
            .push_back(Action::NotRenewed { claims, reason });
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
        let due = now + self.pause_of(now, id, failures);
        self.check_at(now, id, Some(due));
    }

    /// The pause before the next attempt, after `failures` failed ones. It leaves a
    /// short hold time for more than one.
    pub(super) fn pause_of(&mut self, now: Instant, id: Id, failures: u32) -> Duration {
        let hold = self.holds.get(&id);
        let left = hold.and_then(|hold| Some(hold.proof.valid_until()? - now));
        let quarter = left.map_or(Duration::MAX, |left| left / 4);
        self.pause(failures).min(quarter.max(PAUSE_MIN))
    }

    /// Schedules checks of all holds there, because there is a new connection.
    /// Bound holds come first and at once, in the order in which they would be
    /// lost.
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

/// The shortest interval of heartbeats, and the longest unless a shorter one is
/// set.
const HEARTBEAT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl Engine {
    /// Sets the longest interval of heartbeats on connections that are needed.
    pub fn set_quiet(&mut self, quiet: Duration) {
        self.quiet = Some(quiet);
    }

    /// From now on [`next_renewed`](Self::next_renewed) tells which holds are renewed.
    pub fn tell_renewals(&mut self) {
        self.renewed = Some(Vec::new());
    }

    /// The call that was granted a hold first, for a hold that was renewed; none
    /// until the next event.
    pub fn next_renewed(&mut self) -> Option<Id> {
        self.renewed.as_mut()?.pop()
    }

    /// When the last answered request to the server was made.
    pub fn known_good(&self, node: Node) -> Instant {
        let state = self.known_state(node);
        state.map_or(Instant::from_nanos(0), |state| state.known_good)
    }

    /// A call with this lease waits for a message from that server.
    pub(crate) fn lease_is_awaited(&mut self, now: Instant, node: Node, lease: Duration) {
        if count(&mut self.node_state(node).leases, lease) {
            self.keep_heartbeat(now, node);
        }
    }

    /// A call with this lease no longer waits.
    pub(crate) fn lease_is_not_awaited(&mut self, node: Node, lease: Duration) {
        remove_one(&mut self.node_state(node).leases, lease);
    }

    pub(super) fn grace_begins(&mut self, now: Instant, node: Node, grace: Duration) {
        if !grace.is_zero() && count(&mut self.node_state(node).graces, grace) {
            // A heartbeat that was sent before may be older than half of this grace.
            if let Some(since) = &mut self.node_state(node).renewals.ping {
                *since = now;
            }
            self.keep_heartbeat(now, node);
        }
    }

    pub(super) fn grace_ends(&mut self, node: Node, grace: Duration) {
        remove_one(&mut self.node_state(node).graces, grace);
    }

    /// Sends a heartbeat if the last answer is too old.
    pub(super) fn keep_heartbeat(&mut self, now: Instant, node: Node) {
        let quiet = self.quiet.unwrap_or(HEARTBEAT.1);
        let state = self.node_state(node);
        let heartbeat = state.heartbeat;
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
        let since = *state.renewals.ping.get_or_insert(now);
        if is_new {
            self.send(now, (node, number), Requester::Ping, Request::Ping);
        }
        let silence = grace.map(|grace| since + (grace / 2).max(HEARTBEAT.0));
        let late_checks = &mut self.node_state(node).renewals.late_checks;
        let due = match late_checks.next(heartbeat, silence, now) {
            Some(due) if due <= now => {
                self.actions
                    .push_back(Action::Retire { connection: number });
                None
            }
            due => due,
        };
        self.set_heartbeat(node, due);
    }

    pub(super) fn heartbeat_reply(&mut self, now: Instant, node: Node) {
        let renewals = &mut self.node_state(node).renewals;
        (renewals.ping, renewals.late_checks) = (None, LateChecks::default());
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

/// Adds one occurrence of `length`; true if it is shorter than all others.
fn count(all: &mut BTreeMap<Duration, usize>, length: Duration) -> bool {
    let shortest = all.keys().next().copied();
    *all.entry(length).or_default() += 1;
    shortest.is_none_or(|shortest| length < shortest)
}

fn remove_one(all: &mut BTreeMap<Duration, usize>, length: Duration) {
    if let Some(count) = all.get_mut(&length) {
        *count -= 1;
        if *count == 0 {
            all.remove(&length);
        }
    }
}

/// Extends a hold to at least `lease` from now.
#[derive(Debug)]
pub(super) struct Extension {
    hold: Id,
    lease: Duration,
    /// The new fence, if raised.
    raise: Option<u64>,
    /// The terms that it gets then, from that moment on; none once it has them.
    terms: Option<(Instant, Terms)>,
    /// The new value, if any.
    value: Option<Value>,
    /// The lease to which renewals return if the server refuses.
    before: Option<Duration>,
    /// The last requested lease, and the fence at that moment.
    asked: (Duration, u64),
}

impl Engine {
    /// Raises the fence of a hold, which uses `terms` for renewals from its turn on.
    pub(super) fn raise(&mut self, now: Instant, call: Id, id: Id, fence: u64, terms: Terms) {
        self.renew_once(now, call, id, (terms.lease, Some((fence, terms)), None));
    }

    /// Publishes another value with a hold, whose lease stays the same.
    pub(super) fn proclaim(&mut self, now: Instant, call: Id, id: Id, value: Value) {
        self.renew_once(now, call, id, (Duration::ZERO, None, Some(value)));
    }

    pub(super) fn extend(&mut self, now: Instant, call: Id, id: Id, lease: Duration) {
        self.renew_once(now, call, id, (lease, None, None));
    }

    fn renew_once(
        &mut self,
        now: Instant,
        call: Id,
        id: Id,
        (lease, raise, value): (Duration, Option<(u64, Terms)>, Option<Value>),
    ) {
        let error = match (self.loss(now, id), self.holds.get(&id)) {
            (Some(loss), _) => Error::Lost(loss),
            (None, None) => Error::Closed,
            (None, Some(hold)) => {
                let task = Task::Extend(Extension {
                    hold: id,
                    lease,
                    raise: raise.map(|(fence, _)| fence),
                    terms: raise.map(|(_, terms)| (now, terms)),
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
            // The end of its guard releases the hold.
            Input::Abandoned | Input::Notified(_) => Next::Stay,
        }
    }

    fn request(&mut self, engine: &mut Engine, now: Instant) -> Next {
        let loss = engine.loss(now, self.hold);
        // Replicas are asked on another connection than for loss reports. So a shorter
        // renewal that asks for these could arrive after this one.
        let is_unordered = engine.holds.get(&self.hold).is_some_and(|hold| {
            let may_ask = !engine.is_watched(hold) || hold.unreported.is_some();
            hold.terms.replicas > 0 && hold.renewing.is_some() && may_ask
        });
        let Some(hold) = engine.holds.get_mut(&self.hold) else {
            return Next::End(Outcome::Failed(Error::Closed));
        };
        if let Some((from, terms)) = self.terms.take() {
            let (bound, lease) = (hold.terms.bound, terms.lease.max(hold.terms.lease));
            let terms = Terms {
                bound,
                ..terms.lasting(lease)
            };
            (hold.taken, hold.terms) = (from, terms);
            self.lease = terms.lease_at(from, now).unwrap_or(terms.lease);
        }
        // A renewal from now on must not end it sooner.
        let before = *self.before.get_or_insert(hold.terms.lease);
        hold.terms.lease = before.max(self.lease);
        let lease = match self.value {
            Some(_) => hold.next_lease(now),
            None => hold.full_lease(now),
        };
        let (Some(lease), None) = (lease, loss) else {
            let loss = loss.unwrap_or(Loss::LeaseEnded);
            return Next::End(Outcome::Failed(Error::Lost(loss)));
        };
        // A caller that raises several fences has nothing to do at the server
        // that granted the largest.
        let (is_raised, late) = match self.raise {
            Some(raise) => (hold.proof.fence() >= raise, self.lease / 20),
            None => (true, Duration::ZERO),
        };
        let publishes_nothing = self.value.is_none();
        if is_raised
            && publishes_nothing
            && hold.lease_end() + late >= validity_end(now, self.lease)
        {
            return Next::End(Outcome::Done);
        }
        if is_unordered {
            return Next::Wait(Stage::Pause(now + BUSY_PAUSE));
        }
        hold.raised = hold.raised.max(self.raise);
        self.asked = (lease, hold.proof.fence());
        hold.is_asked_for(now, lease);
        Next::Send(hold.renewal(lease, self.raise, self.value.clone()))
    }

    fn reply(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        let error = match result {
            Ok(Reply::TooFew(known)) => at.engine.too_few(self.hold, known),
            Ok(reply) => {
                let fence = match reply {
                    Reply::Fence(fence)
                        if at.engine.may_hide_loss(at.now, self.hold, sent, fence) =>
                    {
                        return Next::Wait(Stage::Pause(at.now + BUSY_PAUSE));
                    }
                    Reply::Fence(fence) => Some(fence),
                    _ => None,
                };
                if at
                    .engine
                    .renewed(at.now, self.hold, sent, self.asked, fence)
                    && at.engine.loss(at.now, self.hold).is_none()
                {
                    at.engine.watch_soon(at.now, self.hold);
                    return Next::End(Outcome::Done);
                }
                let loss = at.engine.loss(at.now, self.hold);
                let loss = loss.unwrap_or(Loss::EndedByServer);
                return Next::End(Outcome::Failed(Error::Lost(loss)));
            }
            Err(fault) => {
                if let Some(hold) = at.engine.holds.get_mut(&self.hold) {
                    hold.has_failed(sent.sent, &fault);
                }
                match at.try_again(sent, fault) {
                    Ok(next) => return next,
                    Err(error) => error,
                }
            }
        };
        // An earlier, unanswered request may have raised the fence.
        if matches!(error, Error::Refused(_))
            && at.work.unanswered.is_none()
            && let Some(hold) = at.engine.holds.get_mut(&self.hold)
        {
            hold.raised = None;
        }
        self.fail(at.engine, error)
    }

    /// Renewals ask for the previous lease again: the server may refuse this one.
    fn fail(&self, engine: &mut Engine, error: Error) -> Next {
        if let (Some(hold), Some(before)) = (engine.holds.get_mut(&self.hold), self.before) {
            hold.terms.lease = before;
        }
        Next::End(Outcome::Failed(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additional_renewals_become_fewer_while_half_of_them_suffice() {
        let mut renewals = Renewals {
            underway: 10,
            more: 10,
            ..Renewals::default()
        };
        let more = (0..10).map(|_| {
            renewals.has_ended();
            renewals.more
        });
        assert_eq!(
            more.collect::<Vec<_>>(),
            [10, 10, 10, 10, 10, 9, 8, 7, 6, 5]
        );
    }
}
