//! The holds of a client: mode, fence and guards; and how a loss is detected,
//! by the clock or by a message from the server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::claims::{Claims, Name};
use crate::engine::instant::{Instant, LateChecks};
use crate::engine::node::Node;
use crate::engine::proof::Proof;
use crate::engine::request::Request;
use crate::engine::terms::{Ask, Terms, Value, lease_over, millis, validity_end};
use crate::engine::{Action, ConnectionState, Engine, Id, Timer};
use crate::error::{Fault, Loss};

/// How many renewals without an answer are remembered, those that end last.
const UNANSWERED_MAX: usize = 8;

#[derive(Debug)]
pub(super) struct Hold {
    pub(super) proof: Arc<Proof>,
    /// The server that has it.
    pub(super) node: Node,
    pub(super) terms: Terms,
    /// The current mode; upgrades and downgrades change it.
    pub(super) ask: Ask,
    pub(super) taken: Instant,
    /// Its validity counts from this moment, when the request was made.
    asked: Instant,
    /// The lease of that request.
    granted: Duration,
    /// When its answer was read.
    answered: Instant,
    /// The number of its guards; re-entry adds one.
    pub(super) guards: u32,
    /// The guards that need exclusive mode.
    writers: u32,
    /// The permits of all its guards together.
    used: u64,
    /// The permits that the server has for it at least, after all releases of
    /// permits that have begun; 0 until a guard is split. Without that, all stay
    /// for guards that enter it again.
    permits: u64,
    /// Whether an upgrade was requested whose outcome is unknown.
    pub(super) is_upgrading: bool,
    /// The call that upgraded it last.
    pub(super) upgraded_by: Option<Id>,
    /// The connection by which a loss is reported.
    pub(super) notices_by: u64,
    /// Whether its slot is moving to a server that sends no messages for it yet.
    pub(super) is_moving: bool,
    /// Spreads the renewals of several holds.
    pub(super) number: u64,
    /// When the renewal in progress was requested.
    pub(super) renewing: Option<Instant>,
    /// Renewals that failed, and moves to other servers, since the last success.
    pub(super) failures: u32,
    /// Whether a refused renewal has been reported since the last success.
    pub(super) is_refusal_reported: bool,
    /// Whether it has been reported as at risk since the last success.
    is_risk_reported: bool,
    late_checks: LateChecks,
    /// When it is checked next; see `next_due`.
    pub(super) check_due: Option<Instant>,
    pub(super) timer_due: Option<Instant>,
    /// When its last timer was due.
    pub(super) last_due: Option<Instant>,
    /// When its renewal must begin at the latest, if other renewals come first.
    pub(super) urgent: Option<Instant>,
    /// Whether its loss has been reported.
    pub(super) is_reported: bool,
    /// The requested fence; the server may have raised it already.
    pub(super) raised: Option<u64>,
    /// The fence of an upgrade that the server has announced to the connection to
    /// which it reports losses.
    pub(super) announced: Option<u64>,
    /// A fence that an answer by another connection has named. It may belong to a grant
    /// after a loss whose report is still to come.
    pub(super) unreported: Option<u64>,
    /// When each renewal without an answer was sent, and its lease.
    unanswered: Vec<(Instant, Duration)>,
    /// Whether an unanswered request may have re-acquired or upgraded it.
    pub(super) is_fence_uncertain: bool,
    /// The server must keep it at least until then, with or without guards.
    pub(super) kept: Option<Instant>,
    /// Calls that ended a guard after the close of the client had ended all. They
    /// have the outcome of the release that is in progress.
    pub(super) leavers: Vec<Id>,
}

/// A grant as the server gave it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) fence: u64,
    /// The lease counts from this moment, when the request was made.
    pub(super) sent: Instant,
    pub(super) lease: Duration,
    /// The connection on which it arrived.
    pub(super) connection: u64,
}

/// Which of the requested keys an owner holds.
pub(super) enum HeldKeys<'a> {
    Nothing,
    /// Exactly these keys, by one grant.
    Same(Id, &'a Hold),
    /// Only some of these keys, or these together with other keys.
    Otherwise(&'a Hold),
}

impl Hold {
    /// Whether `fence` is a fence of this hold at the server.
    pub(super) fn has_fence(&self, fence: u64) -> bool {
        fence == self.proof.fence() || self.raised == Some(fence)
    }

    /// The same, or `fence` may belong to an upgrade whose reply has not come, or was
    /// for a call that nobody waits for any more.
    pub(super) fn may_have_fence(&self, fence: u64) -> bool {
        self.has_fence(fence) || self.is_upgrading && fence > self.proof.fence()
    }

    /// Whether `fence` may belong to an upgrade that the server has not announced.
    pub(super) fn may_be_upgraded(&self, fence: u64) -> bool {
        let is_known = self.has_fence(fence) || self.announced == Some(fence);
        !is_known && self.may_have_fence(fence)
    }

    /// The fence under which the server has it, if that is certain.
    pub(super) fn certain_fence(&self) -> Option<u64> {
        let fence = self.proof.fence();
        let is_raised = self.raised.is_none_or(|raised| raised <= fence);
        (is_raised && !self.is_fence_uncertain && !self.is_upgrading).then_some(fence)
    }

    /// Whether a larger fence, which the connection `by` has named, belongs to an
    /// upgrade, and to no grant after a loss. It does if losses are reported there: the
    /// loss is reported first, and a lost hold stays lost. Or it was announced there.
    fn is_upgrade(&self, fence: u64, by: u64) -> bool {
        by != 0 && self.notices_by == by || self.announced == Some(fence)
    }

    /// Whether a call that asked for `ask` enters it, if the connection `by` says that it
    /// was granted `fence`. If not, the grant begins another hold.
    pub(super) fn is_entered_by(&self, ask: Ask, fence: u64, by: u64) -> bool {
        let upgrades = ask.is_exclusive() && !self.ask.is_exclusive();
        let is_upgraded = (upgrades || self.is_upgrading) && fence > self.proof.fence();
        self.has_fence(fence) || is_upgraded && self.is_upgrade(fence, by)
    }

    /// The server has it under `fence`, or a larger one. What was lost keeps the fence
    /// that it had: the server has granted the lock again.
    fn is_under(&mut self, now: Instant, fence: u64) {
        let is_larger = fence > self.proof.fence();
        match self.proof.running(now) {
            Some(_) if is_larger => self.proof.set_fence(fence),
            None if is_larger => self.is_fence_uncertain = true,
            _ => {}
        }
    }

    /// The lease with which the server must keep it once it has no guards; none
    /// if it can be released. A lost hold is not kept.
    pub(super) fn kept_for(&self, now: Instant) -> Option<Duration> {
        let until = self.kept.filter(|_| self.proof.loss(now).is_none())?;
        let left = until - now;
        // A lease ends up to a millisecond early by this clock.
        (!left.is_zero()).then(|| Duration::from_millis(millis(left).saturating_add(1)))
    }

    /// Removes one guard.
    pub(super) fn leave(&mut self, ask: Ask) {
        self.guards = self.guards.saturating_sub(1);
        self.used = self.used.saturating_sub(ask.permits().into());
        if ask.is_exclusive() {
            self.writers = self.writers.saturating_sub(1);
        }
    }

    /// One of its guards became two. What is being released has no guards to count.
    pub(super) fn split(&mut self) {
        if self.guards > 0 {
            self.guards += 1;
            self.permits = match self.permits {
                0 => self.ask.permits().into(),
                permits => permits,
            };
        }
    }

    /// Two of its guards became one.
    pub(super) fn merge(&mut self) {
        if self.guards > 1 {
            self.guards -= 1;
        }
    }

    /// The permits that no guard needs, and how many stay; none if there are none, or
    /// if all of them must stay for a while.
    pub(super) fn spare(&self, now: Instant) -> Option<(u64, u64)> {
        let spare = self.permits.saturating_sub(self.used);
        let is_limited = matches!(self.ask, Ask::Permits { .. });
        let is_free = spare > 0 && is_limited && self.kept_for(now).is_none();
        is_free.then_some((spare, self.used))
    }

    /// The permits that no guard needs are being released.
    pub(super) fn release_spare(&mut self) {
        self.permits = self.used;
    }

    /// Permits that no guard needs were not released.
    pub(super) fn keep_spare(&mut self, permits: u64) {
        self.permits += permits;
    }

    /// One guard needs shared mode only. The server is not asked.
    pub(super) fn leave_writers_here(&mut self) {
        self.writers = self.writers.saturating_sub(1);
    }

    /// Downgrades one guard to shared mode. True if no guard needs exclusive
    /// mode any more, so that the server can admit shared holders.
    pub(super) fn leave_writers(&mut self) -> bool {
        self.leave_writers_here();
        let is_last = self.writers == 0;
        if is_last {
            self.ask = Ask::Shared;
        }
        is_last
    }

    /// No guard needs exclusive mode, but the server has refused the downgrade.
    pub(super) fn stays_exclusive(&mut self) {
        self.ask = Ask::Exclusive;
    }

    /// When the lease ends at the server, or a little earlier. This is later than
    /// the end of its validity by the margin, or if the connection of a bound hold
    /// broke: the server may have cut the lease, but a new connection that comes in
    /// time restores the rest.
    pub(super) fn lease_end(&self) -> Instant {
        validity_end(self.asked, self.granted)
    }

    /// When its lease is certainly over at the server, even if that has carried out
    /// each renewal without an answer.
    pub(super) fn latest_end(&self) -> Instant {
        let ends = self.unanswered.iter().map(is_over_at);
        ends.fold(lease_over(self.answered, self.granted), Instant::max)
    }

    /// It is renewed for `lease`.
    pub(super) fn is_asked_for(&mut self, now: Instant, lease: Duration) {
        self.unanswered.retain(|it| is_over_at(it) > now);
        if self.unanswered.len() == UNANSWERED_MAX {
            let ends = self.unanswered.iter().enumerate();
            let first = ends.min_by_key(|(_, it)| is_over_at(it));
            self.unanswered
                .swap_remove(first.map_or(0, |(place, _)| place));
        }
        self.unanswered.push((now, lease));
    }

    /// The connection of its loss reports has answered, or ended. The reports of earlier
    /// losses come before an answer.
    pub(super) fn reports_have_come<T>(&mut self, result: &Result<T, Fault>) {
        let is_answered = matches!(result, Ok(_) | Err(Fault::Refused(_) | Fault::Moved(_)));
        if let Some(fence) = self.unreported.take().filter(|_| is_answered) {
            self.announced = Some(fence);
        }
    }

    /// The renewal that was sent at that moment has failed. If it was for replicas,
    /// only `WAIT` may have been refused.
    pub(super) fn has_failed(&mut self, sent: Instant, fault: &Fault) {
        let is_answered = !matches!(fault, Fault::Broken(_) | Fault::Stray(_));
        if is_answered && self.terms.replicas == 0 {
            self.unanswered.retain(|(at, _)| *at != sent);
        }
    }

    /// When to look at it: for its check, to report the risk, or because it is bound
    /// and nothing has shown for its grace that its connection is alive.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let early = self.risk_due().into_iter().chain(self.proof.quiet_end());
        Some(early.fold(self.check_due?, Instant::min).max(now))
    }

    /// When to look again whether its connection is alive: this process was stopped,
    /// and what has arrived since is not read yet.
    pub(super) fn late_check(&mut self, now: Instant) -> Option<Instant> {
        let quiet = self.proof.running(now).and(self.proof.quiet_end());
        self.late_checks.look(quiet.filter(|end| *end <= now), now)
    }

    /// When to report that no renewal has been confirmed for half of the lease. The
    /// last lease before `max_hold` is not renewed.
    fn risk_due(&self) -> Option<Instant> {
        let due = self.asked + self.granted / 2;
        let is_due = self.terms.renewed && !self.is_risk_reported;
        let is_last = self.next_lease(self.asked + self.granted).is_none();
        (is_due && !is_last).then_some(due)
    }

    /// Reports that, if it is due: for how long, and what is left.
    pub(super) fn risk(&mut self, now: Instant) -> Option<(Duration, Duration)> {
        self.risk_due().filter(|due| *due <= now)?;
        self.is_risk_reported = true;
        let left = self.proof.remaining(now);
        (!left.is_zero()).then(|| (now - self.asked, left))
    }

    /// Limits the validity of a bound hold to its grace, counted from the last
    /// time that its connection was known to be alive, or from its own last
    /// request.
    pub(super) fn cut(&self, now: Instant, known_good: Instant) {
        // A hold that has ended stays ended, even if another connection is
        // alive.
        if let (Some(grace), true) = (self.terms.bound, self.proof.is_live(now))
            && let Some(until) = self.proof.valid_until()
        {
            let end = self.terms.validity_end(known_good.max(self.asked), grace);
            self.proof.set_valid_until(now, until.min(end));
        }
    }

    /// From now on that connection reports its loss.
    pub(super) fn notified_by(&mut self, connection: u64) {
        (self.notices_by, self.is_moving) = (connection, false);
        self.proof.set_node(self.node);
    }

    /// The lease that a renewal asks for; none if too little time is left. A hold
    /// with a fixed lease is renewed only so that another connection reports its
    /// loss: it asks for the rest of its lease.
    pub(super) fn next_lease(&self, now: Instant) -> Option<Duration> {
        if self.terms.renewed {
            return self.full_lease(now);
        }
        let rest = self.lease_left(now);
        (rest >= Duration::from_millis(1)).then_some(rest)
    }

    /// The lease of its terms, or the rest of a longer one, until it must end; none once
    /// it may last no longer.
    pub(super) fn full_lease(&self, now: Instant) -> Option<Duration> {
        let lease = self.terms.lease.max(self.lease_left(now));
        self.terms.lasting(lease).lease_at(self.taken, now)
    }

    /// What is left of the lease that its guards count on, or will once the renewal in
    /// progress is answered, with the margin for clocks. No request asks for less. The
    /// server would carry it out, and it may never count: too few replicas know of it,
    /// or its answer is lost. Then the guards would outlive their hold.
    fn lease_left(&self, now: Instant) -> Duration {
        if self.proof.valid_until().is_none() {
            return Duration::ZERO;
        }
        let renewals = self.unanswered.iter();
        let renewing = renewals.filter(|(sent, _)| self.renewing == Some(*sent));
        let ends = renewing.map(|(sent, lease)| *sent + *lease);
        ends.fold(self.asked + self.granted, Instant::max) - now
    }

    /// Renews it for `lease`, raises the fence to at least `raise`, and publishes
    /// `value`, if given.
    pub(super) fn renewal(
        &self,
        lease: Duration,
        raise: Option<u64>,
        value: Option<Value>,
    ) -> Request {
        Request::Renew {
            claims: self.proof.claims.clone(),
            terms: self.terms.lasting(lease),
            known: self.proof.fence(),
            raise,
            notify: false,
            value,
        }
    }

    /// Asks the server to report a loss by the connection of this request, and to
    /// bind a bound hold to it.
    pub(super) fn attach_request(&self, lease: Duration) -> Request {
        Request::Renew {
            claims: self.proof.claims.clone(),
            terms: self.terms.lasting(lease),
            known: self.proof.fence(),
            raise: None,
            notify: true,
            value: None,
        }
    }
}

/// When the lease of a renewal without an answer is certainly over.
fn is_over_at((sent, lease): &(Instant, Duration)) -> Instant {
    lease_over(*sent, *lease)
}

impl Engine {
    /// Which of these keys the owner holds.
    pub(super) fn held(&self, now: Instant, claims: &Claims) -> HeldKeys<'_> {
        self.held_if(claims, |hold| hold.proof.is_live(now))
    }

    /// The same for holds of which this is true.
    fn held_if(&self, claims: &Claims, is_held: impl Fn(&Hold) -> bool) -> HeldKeys<'_> {
        let hold = |name: &Name| self.holds.get(&self.claims.get(name)?.hold?);
        let held = claims.names().filter_map(hold).filter(|hold| is_held(hold));
        let mut held = held.map(|hold| hold.proof.hold);
        let Some(first) = held.next() else {
            return HeldKeys::Nothing;
        };
        let others = held.filter(|other| *other == first).count();
        match self.holds.get(&first) {
            Some(hold)
                if others + 1 == claims.count() && hold.proof.claims.count() == others + 1 =>
            {
                HeldKeys::Same(first, hold)
            }
            Some(hold) => HeldKeys::Otherwise(hold),
            None => HeldKeys::Nothing,
        }
    }

    /// Takes the grant of a call: adds a guard to an existing hold, or creates a
    /// hold.
    pub(super) fn take(
        &mut self,
        now: Instant,
        call: Id,
        claims: Claims,
        ask: Ask,
        terms: Terms,
        grant: Grant,
    ) -> Arc<Proof> {
        // What shows that its connection is alive may be unread.
        let is_running = |hold: &Hold| hold.proof.running(now).is_some();
        let live = match self.held_if(&claims, is_running) {
            HeldKeys::Same(live, _) => Some(live),
            HeldKeys::Nothing | HeldKeys::Otherwise(_) => None,
        };
        let entered = live.filter(|live| self.enter(now, *live, ask, grant));
        if let (Some(live), None) = (live, entered) {
            self.lose(now, live);
        }
        let id = entered.unwrap_or_else(|| self.hold_begins(now, call, &claims, ask, terms, grant));
        if self.is_lost(&claims, grant.fence) {
            self.lose(now, id);
        }
        match self.holds.get(&id) {
            Some(hold) => Arc::clone(&hold.proof),
            None => Arc::new(Proof::new((id, call), claims, grant.fence, now, now)),
        }
    }

    /// Adds a guard, if the grant belongs to this hold or upgrades it, and it is
    /// still valid.
    fn enter(&mut self, now: Instant, id: Id, ask: Ask, grant: Grant) -> bool {
        let Some(hold) = self.holds.get(&id) else {
            return false;
        };
        let node = hold.node;
        let is_current = self.connection(node).is(grant.connection);
        let is_same = hold.is_entered_by(ask, grant.fence, grant.connection);
        if !is_same || !self.extend_validity(now, id, grant) {
            return false;
        }
        let Some(hold) = self.holds.get_mut(&id) else {
            return false;
        };
        hold.guards += 1;
        hold.used += u64::from(ask.permits());
        // A former server of its keys reports nothing more.
        if is_current {
            hold.notified_by(grant.connection);
        }
        hold.proof.set_fence(grant.fence);
        if ask.is_exclusive() {
            hold.ask = ask;
            hold.writers += 1;
            hold.is_upgrading = false;
        }
        self.check_if_elsewhere(now, id, node, grant.connection);
        true
    }

    fn hold_begins(
        &mut self,
        now: Instant,
        call: Id,
        claims: &Claims,
        ask: Ask,
        terms: Terms,
        grant: Grant,
    ) -> Id {
        let id = self.next_id();
        let end = terms.validity_end(grant.sent, grant.lease);
        let node = self.routes.node(claims.slot());
        self.begun += 1;
        let proof = Proof::new((id, call), claims.clone(), grant.fence, now, end);
        let hold = Hold {
            proof: Arc::new(proof.bound(&terms, &self.alive, node)),
            node,
            terms,
            ask,
            taken: grant.sent,
            asked: grant.sent,
            granted: grant.lease,
            answered: now,
            guards: 1,
            writers: u32::from(ask.is_exclusive()),
            used: ask.permits().into(),
            permits: 0,
            upgraded_by: None,
            is_upgrading: false,
            notices_by: grant.connection,
            is_moving: false,
            number: self.begun,
            renewing: None,
            failures: 0,
            is_refusal_reported: false,
            is_risk_reported: false,
            late_checks: LateChecks::default(),
            check_due: None,
            timer_due: None,
            last_due: None,
            urgent: None,
            is_reported: false,
            raised: None,
            announced: None,
            unreported: None,
            unanswered: Vec::new(),
            is_fence_uncertain: false,
            kept: None,
            leavers: Vec::new(),
        };
        self.cut_if_over(now, &hold, grant);
        self.holds.insert(id, Box::new(hold));
        for name in claims.names() {
            let claim = self.claims.entry(name.clone()).or_default();
            claim.hold = Some(id);
        }
        self.hold_comes(now, id, node, terms.bound);
        self.schedule_after(now, id, grant.sent, grant.lease);
        self.check_if_elsewhere(now, id, node, grant.connection);
        id
    }

    /// When a grant is read, its connection may have ended, or its key may have
    /// moved to a server without a connection.
    fn check_if_elsewhere(&mut self, now: Instant, id: Id, node: Node, connection: u64) {
        let is_asked = self
            .holds
            .get(&id)
            .is_none_or(|hold| hold.renewing.is_some());
        if self.connection(node).is(connection) || is_asked {
            return;
        }
        self.connect_if_idle(node);
        if connection != 0 && matches!(self.connection(node), ConnectionState::Up { .. }) {
            self.check_at(now, id, Some(now));
        }
    }

    /// Counts validity from a request that was answered; false if the hold was
    /// already over: its guards may have seen that.
    ///
    /// The answer to a later request may have come first. The later lease
    /// counts, even if it is shorter, like the last lease before `max_hold`.
    pub(super) fn extend_validity(&mut self, now: Instant, id: Id, grant: Grant) -> bool {
        let Some(hold) = self.holds.get_mut(&id) else {
            return false;
        };
        if hold.proof.running(now).is_none() {
            self.loss(now, id);
            return false;
        }
        hold.failures = 0;
        hold.is_refusal_reported = false;
        hold.is_risk_reported = false;
        hold.unanswered.retain(|(sent, _)| *sent > grant.sent);
        if grant.sent >= hold.asked {
            hold.asked = grant.sent;
            hold.granted = grant.lease;
            hold.answered = now;
            let end = hold.terms.validity_end(grant.sent, grant.lease);
            if !hold.proof.set_running_until(now, end) {
                self.loss(now, id);
                return false;
            }
            if let Some(renewed) = &mut self.renewed {
                renewed.push(hold.proof.call);
            }
            if let Some(hold) = self.holds.get(&id) {
                self.cut_if_over(now, hold, grant);
            }
        }
        true
    }

    /// The connection on which the grant arrived may have ended before.
    fn cut_if_over(&self, now: Instant, hold: &Hold, grant: Grant) {
        if !self.connection(hold.node).is(grant.connection) {
            hold.cut(now, grant.sent);
        }
    }

    /// Records that a request of the owner will get no answer.
    pub(super) fn fence_is_uncertain(&mut self, claims: &Claims) {
        for name in claims.names() {
            let hold = self.claims.get(name).and_then(|claim| claim.hold);
            if let Some(hold) = hold.and_then(|hold| self.holds.get_mut(&hold)) {
                hold.is_fence_uncertain = true;
            }
        }
    }

    pub(super) fn change(&mut self, hold: Id, change: fn(&mut Hold)) {
        if let Some(hold) = self.holds.get_mut(&hold) {
            change(hold);
        }
    }

    pub(super) fn set_upgrading(&mut self, hold: Id, is_upgrading: bool) {
        if let Some(hold) = self.holds.get_mut(&hold) {
            hold.is_upgrading = is_upgrading;
        }
    }

    /// The keys for which it is the owner's newest hold; none if there are none.
    pub(super) fn newest_part(&self, id: Id) -> Option<Claims> {
        let all = &self.holds.get(&id)?.proof.claims;
        let is_newest = |name: &Name| {
            let claim = self.claims.get(name);
            claim.is_some_and(|claim| claim.hold == Some(id))
        };
        all.filtered(is_newest)
    }

    /// The same for those that the server may still have; none if it has ended the only
    /// one. Of several it may have ended one.
    pub(super) fn rest(&mut self, now: Instant, id: Id) -> Option<Claims> {
        let is_ended = self.loss(now, id) == Some(Loss::EndedByServer);
        let is_gone = is_ended && self.holds.get(&id)?.proof.claims.is_single();
        self.newest_part(id).filter(|_| !is_gone)
    }

    /// A hold of these keys that the owner has lost, but the server may still
    /// have: its keys, and its fence if that is certain.
    pub(super) fn lost_part(&self, now: Instant, claims: &Claims) -> Option<(Claims, Option<u64>)> {
        claims.names().find_map(|name| {
            let id = self.claims.get(name)?.hold?;
            let hold = self.holds.get(&id)?;
            let all = &hold.proof.claims;
            // The server has ended it, perhaps together with other keys of the
            // grant.
            let is_gone = all.is_single() && hold.proof.loss(now) == Some(Loss::EndedByServer);
            if is_gone || hold.proof.is_live(now) {
                return None;
            }
            let part = self.newest_part(id)?;
            let part = part.filtered(|name| claims.names().any(|it| it == name))?;
            Some((part, hold.certain_fence()))
        })
    }

    /// Remembers that the owner has released these keys of one hold that it had
    /// lost, see [`Engine::lost_part`].
    pub(super) fn remember_lost(&mut self, now: Instant, claims: &Claims, connection: u64) {
        let mut holds = claims
            .names()
            .filter_map(|name| self.claims.get(name)?.hold);
        let Some(hold) = holds.next().and_then(|id| self.holds.get(&id)) else {
            return;
        };
        let (known, certain) = (hold.proof.fence(), hold.certain_fence());
        let (ask, lease_end) = (hold.ask, hold.latest_end());
        self.remember_released(now, claims, known, lease_end);
        if certain.is_none() {
            self.remember_undone(now, claims, (connection, Some(ask)), lease_end);
        }
    }

    /// Forgets all holds of these keys that the owner has lost.
    pub(super) fn forget_lost_holds(&mut self, claims: &Claims) {
        for name in claims.names() {
            if let Some(claim) = self.claims.get_mut(name) {
                claim.hold = None;
            }
        }
    }

    /// Forgets a hold without guards.
    pub(super) fn forget(&mut self, id: Id) {
        self.stop_renewing(id);
        self.moved.remove(&id);
        let Some(hold) = self.holds.remove(&id) else {
            return;
        };
        self.hold_leaves(id, hold.node, hold.terms.bound);
        for name in hold.proof.claims.names() {
            let Some(claim) = self.claims.get_mut(name) else {
                continue;
            };
            claim.hold.take_if(|hold| *hold == id);
            if claim.is_unused() {
                self.claims.remove(name);
            }
        }
    }

    /// Moves the timer of that hold to `due`.
    pub(super) fn set_timer(&mut self, id: Id, due: Option<Instant>) {
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut hold.timer_due, due);
        if let Some(before) = before {
            self.timers.remove(&(before, Timer::Hold(id)));
        }
        if let Some(due) = due {
            self.timers.insert((due, Timer::Hold(id)));
        }
    }

    /// What was reported as lost is not what is granted from now on, unless a server does
    /// not know of the loss: there the lease may last until then.
    pub(super) fn losses_are_over(&mut self, now: Instant, claims: &Claims, lease_end: Instant) {
        for name in claims.names() {
            if let Some(claim) = self.claims.get_mut(name)
                && let lost @ 1.. = std::mem::take(&mut claim.fence_lost)
                && let Some(part) = claims.filtered(|it| it == name)
            {
                self.remember_ended(now, &part, lost, lease_end);
            }
        }
    }

    /// Whether the server reported the loss of any part of the grant with this
    /// fence.
    pub(super) fn is_lost(&self, claims: &Claims, fence: u64) -> bool {
        let mut claims = claims.names().filter_map(|name| self.claims.get(name));
        claims.any(|claim| claim.fence_lost >= fence)
    }

    /// An upgrade that was granted too late has been undone, as that connection says.
    pub(super) fn undone(&mut self, now: Instant, id: Id, fence: u64, by: u64) {
        let Some(hold) = self.holds.get(&id) else {
            return;
        };
        let may_hide_loss = fence > hold.proof.fence() && !hold.is_upgrade(fence, by);
        let claims = hold.proof.claims.clone();
        if may_hide_loss || self.is_lost(&claims, fence) {
            self.lose(now, id);
        }
        if let Some(hold) = self.holds.get_mut(&id) {
            hold.is_under(now, fence);
        }
    }

    /// Whether the server reports the loss of this hold to the connection in use. A
    /// report to an earlier connection may be gone.
    pub(super) fn is_watched(&self, hold: &Hold) -> bool {
        self.connection(hold.node).is(hold.notices_by)
    }

    /// Whether `fence` belongs to this grant. The server named it by the connection
    /// `by`, in reply to a request that was made under the fence `asked_under`. If it
    /// does not, the grant was lost.
    pub(super) fn is_confirmed(
        &mut self,
        now: Instant,
        id: Id,
        fence: Option<u64>,
        (asked_under, by): (u64, u64),
    ) -> bool {
        let Some(hold) = self.holds.get(&id) else {
            return false;
        };
        let known = hold.proof.fence();
        // The grant of an upgrade may arrive here before the call that waits for
        // it.
        let is_expected = |fence| {
            let is_upgraded = || hold.is_upgrading && fence > known && hold.is_upgrade(fence, by);
            hold.has_fence(fence) || fence == asked_under || is_upgraded()
        };
        if let Some(fence) = fence.filter(|fence| is_expected(*fence)) {
            if let Some(hold) = self.holds.get_mut(&id) {
                hold.is_under(now, fence);
            }
            return true;
        }
        let (claims, lease) = (hold.proof.claims.clone(), hold.terms.lease);
        let is_kept = hold.guards == 0 && hold.kept.is_some();
        if fence.is_none() {
            self.lose_with_rest(now, id);
        } else {
            self.lose(now, id);
            // Nobody waits for this grant: the server and this process disagree
            // on what the owner holds. What stays taken on purpose stays.
            if !is_kept {
                self.undo_unclaimed_grant(now, claims, lease);
            }
        }
        false
    }

    /// Why it is lost at `now`; none if it is not lost.
    pub(super) fn loss(&mut self, now: Instant, id: Id) -> Option<Loss> {
        let hold = self.holds.get_mut(&id)?;
        let loss = hold.proof.loss(now)?;
        if !std::mem::replace(&mut hold.is_reported, true) {
            let proof = Arc::clone(&hold.proof);
            let why = loss;
            self.actions.push_back(Action::Over { proof, why });
            self.metrics.losses += 1;
        }
        Some(loss)
    }

    /// The server has ended it, which has no effect if it is already over, even if only by
    /// the clock. A server that does not know that may return it, or an older one.
    pub(super) fn lose(&mut self, now: Instant, id: Id) {
        if let Some(hold) = self.holds.get(&id) {
            hold.proof.lose(now);
            self.loss(now, id);
            self.stop_renewing(id);
            self.remember_end_of(now, id);
        }
    }

    /// Remembers that the owner has had it, and that it is over.
    pub(super) fn remember_end_of(&mut self, now: Instant, id: Id) {
        if let Some(hold) = self.holds.get(&id) {
            let (proof, lease_end) = (Arc::clone(&hold.proof), hold.latest_end());
            self.remember_ended(now, &proof.claims, proof.fence(), lease_end);
        }
    }

    /// Ends all holds on purpose, released or not.
    pub(super) fn end_all(&mut self, now: Instant) {
        for hold in self.holds.keys().copied().collect::<BTreeSet<_>>() {
            self.end_hold(now, hold);
        }
    }

    /// Ends a hold on purpose: from now on it is not renewed, and its end is no
    /// loss.
    pub(super) fn end_hold(&mut self, now: Instant, id: Id) {
        if let Some(hold) = self.holds.get(&id) {
            hold.proof.end(now);
            if hold.proof.is_awaited() {
                let (proof, why) = (Arc::clone(&hold.proof), Loss::Released);
                self.actions.push_back(Action::Over { proof, why });
            }
            self.stop_renewing(id);
        }
    }
}
