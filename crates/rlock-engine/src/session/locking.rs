//! A call for several keys: whether one request can take them all, and if not,
//! one request for each, in their order.

use std::time::Duration;

use crate::engine::Id;
use crate::engine::instant::Instant;
use crate::engine::node::slot_of;
use crate::engine::terms::Queueing;
use crate::error::Error;
use crate::session::Lock;
use crate::session::guards::{Grant, Guard};

/// A call for several keys.
///
/// Two such calls never wait for each other: each takes the keys in the order of
/// their names.
#[derive(Debug)]
pub(super) struct Locking {
    /// What is asked for, with all keys.
    lock: Lock,
    deadline: Option<Instant>,
    /// Whether one request can ask for all keys; unknown until the server has
    /// reported whether it is in a cluster.
    is_one_request: Option<bool>,
    grants: Vec<Grant>,
    attempts: u32,
    /// The request or the question in progress.
    pub(super) part: Option<Id>,
    /// When it goes on after a pause.
    pub(super) paused: Option<Instant>,
}

/// What to do next.
pub(super) enum Next {
    /// Ask the server whether it is in a cluster, for as long as this waits.
    AskWhetherCluster(Queueing),
    Ask(Lock),
    /// Everything is held.
    Granted(Guard),
    /// Give these back, and go on after a pause, which grows with each attempt.
    Pause(u32, Vec<Grant>),
    /// No time is left.
    Refused,
}

impl Locking {
    pub(super) fn new(now: Instant, lock: Lock) -> Result<Self, Error> {
        lock.terms.check_for_several()?;
        lock.ask.check_for_several()?;
        let slot = lock.claims.slot();
        let is_one_slot = lock.claims.keys().all(|key| slot_of(key) == slot);
        Ok(Self {
            deadline: match lock.queueing {
                Queueing::AtMost(wait) => Some(now + wait),
                Queueing::Try | Queueing::Unlimited => None,
            },
            is_one_request: is_one_slot.then_some(true),
            lock,
            grants: Vec::new(),
            attempts: 0,
            part: None,
            paused: None,
        })
    }

    pub(super) fn into_grants(self) -> Vec<Grant> {
        self.grants
    }

    pub(super) fn granted(&mut self, grant: Grant) {
        self.grants.push(grant);
    }

    /// The next step. `is_cluster` is whether the server is in a cluster, once
    /// that is known.
    pub(super) fn next(&mut self, now: Instant, is_cluster: Option<bool>) -> Next {
        let is_all = match self.is_one_request {
            Some(true) => !self.grants.is_empty(),
            _ => self.grants.len() == self.lock.claims.count(),
        };
        if is_all {
            return self.end(now);
        }
        let queueing = match self.deadline.map(|deadline| deadline - now) {
            None => self.lock.queueing,
            Some(Duration::ZERO) => return Next::Refused,
            Some(left) => Queueing::at_most(left).unwrap_or(self.lock.queueing),
        };
        let known = is_cluster.map(|is_cluster| !is_cluster);
        let Some(is_one_request) = self.is_one_request.or(known) else {
            return Next::AskWhetherCluster(queueing);
        };
        self.is_one_request = Some(is_one_request);
        let mut lock = self.lock.clone();
        lock.queueing = queueing;
        if !is_one_request {
            lock.claims = lock.claims.of_one(self.grants.len()).unwrap_or(lock.claims);
        }
        Next::Ask(lock)
    }

    /// Everything is granted, unless the first grants were lost meanwhile.
    fn end(&mut self, now: Instant) -> Next {
        if self.grants.len() == 1 || self.grants.iter().all(|it| it.proof.is_live(now)) {
            let mut grants = std::mem::take(&mut self.grants).into_iter();
            let first = grants.next();
            return first.map_or(Next::Refused, |first| {
                Next::Granted(Guard::new(first, grants.collect()))
            });
        }
        let is_over = self.deadline.is_some_and(|deadline| deadline <= now);
        if self.lock.queueing == Queueing::Try || is_over {
            return Next::Refused;
        }
        // The lease may be shorter than the time to take all of them.
        let grants = std::mem::take(&mut self.grants);
        let before = self.attempts;
        self.attempts = before.saturating_add(1);
        Next::Pause(before, grants)
    }
}
