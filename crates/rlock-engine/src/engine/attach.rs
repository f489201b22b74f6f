//! Attaches a hold to a new connection, by asking again for what is held: the
//! server forgot that it was to tell of a loss by the old one.

use std::time::Duration;

use crate::engine::hold::Grant;
use crate::engine::instant::Instant;
use crate::engine::request::{Reply, Sent};
use crate::engine::work::{Task, Work};
use crate::engine::{Engine, Id, Outcome};
use crate::error::{Error, Fault};

/// When to look again at a hold that another call works on, at the latest.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// Has the loss of a hold told by this connection, unless that is so, or
    /// somebody is at work there.
    pub(super) fn attach_if_needed(&mut self, now: Instant, id: Id, link: u64) {
        let Some(hold) = self.holds.get(&id).filter(|hold| hold.notices_by != link) else {
            return;
        };
        let (claims, is_renewed) = (hold.proof.claims.clone(), hold.terms.renewed);
        let pause = BUSY_PAUSE.min(hold.terms.lease / 12);
        let mut queues = claims.names().filter_map(|name| self.claims.get(name));
        let is_free = queues.all(|claim| claim.queue.is_empty());
        drop(queues);
        if is_free {
            let work = self.next_id();
            let attach = Work::new(now, claims, Task::Attach(id), None, false);
            self.start(now, work, attach);
        } else if !is_renewed {
            self.look_later(now, id, Some(now + pause));
        }
    }

    /// Asks again for what is held. If it ended a moment ago this takes the
    /// lock anew: the fence tells, and it is given back at once.
    pub(super) fn begin_attach(&mut self, now: Instant, id: Id, hold: Id) -> bool {
        let hold = self.holds.get(&hold);
        let is_held = hold.is_some_and(|hold| hold.proof.is_live(now) && hold.guards > 0);
        if !is_held {
            self.end(now, id, Outcome::Done);
        }
        is_held
    }

    pub(super) fn ask_to_attach(&mut self, now: Instant, id: Id, link: u64, hold: Id) {
        let hold = self.holds.get(&hold);
        match hold.and_then(|hold| hold.attach_request(now)) {
            Some(request) => self.request(now, id, link, request),
            None => self.end(now, id, Outcome::Done),
        }
    }

    pub(super) fn attached(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) -> Result<(), Fault> {
        let fence = match result {
            Ok(Reply::Fence(fence)) => Some(fence),
            Ok(_) => None,
            // A full server still renews: only the early notice is missing.
            Err(Fault::Refused(Error::OutOfMemory(_) | Error::QueueFull(_))) => return Ok(()),
            Err(fault) => {
                if let Some(hold) = self.holds.get_mut(&id) {
                    hold.is_in_doubt = true;
                }
                return Err(fault);
            }
        };
        let Some(hold) = self.holds.get(&id) else {
            return Ok(());
        };
        let known = hold.proof.fence();
        let is_replicated = hold.terms.replicas > 0;
        let Some(lease) = hold.attach_lease(sent.sent) else {
            return Ok(());
        };
        if self.is_confirmed(now, id, fence, known) {
            if let Some(hold) = self.holds.get_mut(&id) {
                hold.told_by(sent.link);
            }
            let grant = Grant {
                fence: known,
                sent: sent.sent,
                lease,
                link: sent.link,
            };
            // No replica has said that it knows of this lease.
            if !is_replicated {
                self.prolong(now, id, grant);
            }
        }
        Ok(())
    }
}
