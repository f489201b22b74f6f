//! In which order an owner's calls, releases and clean-up are done at each key:
//! in that in which they were begun.
//!
//! An owner queues at most once per key, and counts its re-entries here, not on
//! the server. So only the first at all of its keys may ask.

use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::work::{Stage, Work};
use crate::engine::{Action, Engine, Id, Outcome, Timer};

impl Engine {
    /// Begins `work` as soon as everything else of its owner is done that was
    /// begun before, at any of its keys.
    pub(super) fn start(&mut self, now: Instant, id: Id, mut work: Work) {
        work.node = self.routes.node(work.claims.slot());
        for name in work.claims.names() {
            let claim = self.claims.entry(name.clone()).or_default();
            claim.queue.push_back(id);
        }
        self.lane(work.node).works.insert(id);
        self.works.insert(id, Box::new(work));
        self.advance(now, id);
    }

    /// Whether everything that is to be done before a new work at `claims` is
    /// done soon, so that even those can wait for it who do not want to wait.
    pub(super) fn is_turn_near(&self, claims: &Claims) -> bool {
        let ahead = claims.names().filter_map(|name| self.claims.get(name));
        let mut ahead = ahead.flat_map(|claim| &claim.queue);
        ahead.all(|id| self.works.get(id).is_some_and(|work| work.is_short()))
    }

    pub(super) fn has_turn(&self, id: Id, work: &Work) -> bool {
        let mut claims = work.claims.names().map(|name| self.claims.get(name));
        claims.all(|claim| claim.is_some_and(|claim| claim.queue.front() == Some(&id)))
    }

    /// Has a work wait for those behind it.
    pub(super) fn go_behind(&mut self, id: Id) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        work.has_begun = false;
        for name in work.claims.names() {
            if let Some(claim) = self.claims.get_mut(name) {
                claim.queue.retain(|queued| *queued != id);
                claim.queue.push_back(id);
                self.next.extend(claim.queue.front());
            }
        }
    }

    /// Ends a work that has left nothing to do; the next has its turn.
    pub(super) fn end(&mut self, now: Instant, id: Id, outcome: Outcome) {
        self.resolve(id, outcome);
        self.set_stage(now, id, Stage::Turn);
        let Some(work) = self.works.remove(&id) else {
            return;
        };
        self.lane(work.node).works.remove(&id);
        if let Some(alarm) = work.alarm {
            self.agenda.remove(&(alarm, Timer::Work(id)));
        }
        for name in work.claims.names() {
            if let Some(claim) = self.claims.get_mut(name) {
                claim.queue.retain(|queued| *queued != id);
                self.next.extend(claim.queue.front());
            }
            self.forget_if_unused(name);
        }
        self.tell_flushed(id);
    }

    pub(super) fn tell_flushed(&mut self, ended: Id) {
        for (awaited, _) in &mut self.flushes {
            awaited.remove(&ended);
        }
        for (_, flush) in self.flushes.extract_if(.., |(left, _)| left.is_empty()) {
            self.actions.push_back(Action::Flushed { flush });
        }
    }

    pub(super) fn pass_turns(&mut self, now: Instant) {
        while let Some(id) = self.next.pop_front() {
            let work = self.works.get(&id);
            if work.is_some_and(|work| work.stage == Stage::Turn) {
                self.advance(now, id);
            }
        }
    }
}
