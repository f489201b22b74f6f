//! What the server says without being asked: that a queued request was granted
//! or is over, and that a hold was lost.

use crate::engine::call::Told;
use crate::engine::claims::{Claims, Name};
use crate::engine::instant::Instant;
use crate::engine::terms::LEASE_DEFAULT;
use crate::engine::work::{Stage, Task};
use crate::engine::{Engine, Id};

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// A queued request was granted.
    Grant,
    /// A queued request is over, as its time is.
    WaitEnded,
    /// The server has dropped a queued request, or watches a hold no more.
    Withdrawn,
    /// A hold has ended without its owner's doing.
    Lost,
}

/// One message of the server.
#[derive(Clone, Debug)]
pub struct Notice {
    /// What has happened.
    pub word: Word,
    /// Of the grant, or of the hold that was lost.
    pub fence: u64,
    /// To whom, and where.
    pub name: Name,
    /// The connection that it came by.
    pub link: u64,
}

impl Engine {
    /// Takes a message, before any reply that comes after it by its connection.
    ///
    /// Messages and replies are in one order. So what is said happened after
    /// the last request was made that has been answered by now.
    pub(super) fn notice(&mut self, now: Instant, notice: &Notice) {
        let told = match notice.word {
            Word::Lost => return self.told_of_loss(now, notice),
            Word::Grant => Told::Grant {
                fence: notice.fence,
                not_before: self.known_good_of(notice.link),
            },
            Word::WaitEnded => Told::WaitEnded,
            Word::Withdrawn => {
                self.watch_is_over(now, notice);
                Told::Withdrawn
            }
        };
        if let Some(call) = self.call_in_turn(&notice.name) {
            self.tell_call(now, call, notice.link, told);
        } else if notice.word == Word::Grant && !self.is_known(notice) {
            // If nobody waits for a grant, the lock would be held for a lease.
            if let Some(claims) = Claims::named(&notice.name) {
                self.give_back(now, claims, LEASE_DEFAULT);
            }
        }
    }

    /// The call that has the turn.
    fn call_in_turn(&self, name: &Name) -> Option<Id> {
        let id = *self.claims.get(name)?.queue.front()?;
        let work = self.works.get(&id)?;
        matches!(work.task, Task::Call(_)).then_some(id)
    }

    /// Whether a grant is what is held, or is being undone.
    fn is_known(&self, notice: &Notice) -> bool {
        let Some(claim) = self.claims.get(&notice.name) else {
            return false;
        };
        let hold = claim.hold.and_then(|hold| self.holds.get(&hold));
        if let Some(hold) = hold {
            return hold.is_called(notice.fence);
        }
        let first = claim.queue.front().and_then(|id| self.works.get(id));
        first.is_some_and(|work| match (&work.task, work.stage) {
            // What was asked by the same connection comes after the grant.
            (Task::CleanUp(_), Stage::Asked(request)) => {
                let sent = self.requests.get(&request);
                sent.is_some_and(|sent| sent.link == notice.link)
            }
            (Task::CleanUp(_), _) => true,
            _ => false,
        })
    }

    /// The server cannot tell of a loss any more, as it does not have the key:
    /// so it says of those who wait and of those who hold.
    fn watch_is_over(&mut self, now: Instant, notice: &Notice) {
        let id = self.claims.get(&notice.name).and_then(|claim| claim.hold);
        let Some(hold) = id.and_then(|id| self.holds.get_mut(&id)) else {
            return;
        };
        if hold.notices_by == notice.link && hold.proof.is_live(now) {
            hold.notices_by = 0;
            if hold.renewing.is_none() {
                let id = hold.proof.hold;
                self.look_later(now, id, Some(now));
            }
        }
    }

    fn told_of_loss(&mut self, now: Instant, notice: &Notice) {
        let Some(claim) = self.claims.get_mut(&notice.name) else {
            return;
        };
        claim.fence_lost = claim.fence_lost.max(notice.fence);
        let hold = claim.hold.and_then(|hold| self.holds.get(&hold));
        if let Some(hold) = hold.filter(|hold| hold.is_called(notice.fence)) {
            self.lose(now, hold.proof.hold);
        }
    }
}
