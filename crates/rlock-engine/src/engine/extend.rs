//! Has a hold last longer at its holder's word, or raises its fence.

use std::time::Duration;

use crate::engine::instant::Instant;
use crate::engine::request::{Reply, Request, Sent};
use crate::engine::terms::{Terms, validity_end};
use crate::engine::work::{Task, Work};
use crate::engine::{Action, Engine, Id, Outcome};
use crate::error::{Error, Fault, Loss};

/// A hold that is to last for at least `lease` from now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    hold: Id,
    lease: Duration,
    /// What the fence is to be raised to.
    raise: Option<u64>,
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

    pub(super) fn extend(
        &mut self,
        now: Instant,
        call: Id,
        id: Id,
        lease: Duration,
        raise: Option<u64>,
    ) {
        let outcome = match (self.loss(now, id), self.holds.get(&id)) {
            (Some(loss), _) => Outcome::Failed(Error::Lost(loss)),
            (None, None) => Outcome::Failed(Error::Closed),
            (None, Some(hold)) => {
                let task = Task::Extend(Extension {
                    hold: id,
                    lease,
                    raise,
                    before: None,
                    asked: (lease, hold.proof.fence()),
                });
                let claims = hold.proof.claims.clone();
                let deadline = Some(now + self.patience);
                return self.start(now, call, Work::new(now, claims, task, deadline, true));
            }
        };
        self.actions.push_back(Action::Resolve { call, outcome });
    }

    pub(super) fn ask_to_extend(&mut self, now: Instant, id: Id, link: u64, extension: Extension) {
        let loss = self.loss(now, extension.hold);
        let Some(hold) = self.holds.get_mut(&extension.hold) else {
            return self.end(now, id, Outcome::Failed(Error::Closed));
        };
        // A renewal that is asked for from now on must not end it sooner.
        let before = extension.before.unwrap_or(hold.terms.lease);
        hold.terms.lease = before.max(extension.lease);
        let lease = hold.terms.lease_at(hold.taken, now);
        let (Some(lease), None) = (lease, loss) else {
            let loss = loss.unwrap_or(Loss::LeaseEnded);
            return self.end(now, id, Outcome::Failed(Error::Lost(loss)));
        };
        // Whoever raises several fences need not ask where the largest was just
        // granted.
        let (is_raised, late) = match extension.raise {
            Some(raise) => (hold.proof.fence() >= raise, extension.lease / 20),
            None => (true, Duration::ZERO),
        };
        if is_raised && hold.lease_end + late >= validity_end(now, extension.lease) {
            return self.end(now, id, Outcome::Done);
        }
        hold.raised = hold.raised.max(extension.raise);
        let (claims, known) = (hold.proof.claims.clone(), hold.proof.fence());
        let replicas = hold.terms.replicas;
        if let Some(work) = self.works.get_mut(&id) {
            work.task = Task::Extend(Extension {
                before: Some(before),
                asked: (lease, known),
                ..extension
            });
        }
        let request = Request::Renew {
            claims,
            lease,
            known,
            raise: extension.raise,
            bound: None,
            notify: false,
            replicas,
        };
        self.request(now, id, link, request);
    }

    pub(super) fn extend_reply(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        extension: Extension,
        result: Result<Reply, Fault>,
    ) {
        let Extension { hold, asked, .. } = extension;
        let fence = match result {
            Ok(Reply::Fence(fence)) => Some(fence),
            result @ (Ok(Reply::TooFew(_)) | Err(_)) => {
                let error = match result {
                    Ok(Reply::TooFew(known)) => self.too_few(hold, known),
                    Ok(_) => return,
                    Err(fault) => match self.try_again(now, id, sent, fault) {
                        Ok(()) => return,
                        Err(error) => error,
                    },
                };
                // An earlier sending that nobody answered may have raised the fence.
                let work = self.works.get(&id);
                let is_first = work.is_none_or(|work| work.unanswered.is_none());
                if let (Some(hold), Some(before)) = (self.holds.get_mut(&hold), extension.before) {
                    hold.terms.lease = before;
                    if matches!(error, Error::Refused(_)) && is_first {
                        hold.raised = None;
                    }
                }
                return self.end(now, id, Outcome::Failed(error));
            }
            Ok(_) => None,
        };
        if self.renewed(now, hold, sent, asked, fence) {
            return self.end(now, id, Outcome::Done);
        }
        let loss = self.loss(now, hold).unwrap_or(Loss::EndedByServer);
        self.end(now, id, Outcome::Failed(Error::Lost(loss)));
    }

    pub(super) fn too_few(&self, hold: Id, known: u16) -> Error {
        Error::NotReplicated {
            wanted: self.holds.get(&hold).map_or(0, |hold| hold.terms.replicas),
            acknowledged: known,
        }
    }
}
