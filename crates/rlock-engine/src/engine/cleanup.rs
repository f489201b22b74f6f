//! What is done behind a call that nobody waits for, so that neither a place
//! nor a hold stays on the server.

use std::time::Duration;

use crate::engine::claims::Claims;
use crate::engine::hold::Held;
use crate::engine::instant::Instant;
use crate::engine::request::{Reply, Request, Sent, Undo};
use crate::engine::work::{Stage, Task, Work};
use crate::engine::{Engine, Id, Link, Outcome};
use crate::error::Fault;

/// How often clean-up is repeated where an earlier connection may still be
/// open on the server.
const REPEATS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// The call may have been sent or not, be queued, or be granted. The turn is
/// kept until this is done, so that a next call of the same owner comes after.
#[derive(Debug)]
pub(super) struct CleanUp {
    /// The shared hold that the call was to make exclusive.
    upgraded: Option<Id>,
    is_each: bool,
    repeats: usize,
}

impl Engine {
    /// Undoes a grant that nobody waits for.
    pub(super) fn give_back(&mut self, now: Instant, claims: Claims, lease: Duration) {
        let task = Task::CleanUp(CleanUp::of(None));
        let deadline = Some(now + lease.max(self.patience));
        let id = self.next_id();
        self.start(now, id, Work::new(now, claims, task, deadline, false));
    }

    /// Has a call become the clean-up behind it.
    pub(super) fn clean_up_behind(
        &mut self,
        now: Instant,
        id: Id,
        upgraded: Option<Id>,
        lease: Duration,
    ) {
        let patience = self.patience;
        // What is under way is answered before what is asked now.
        self.set_stage(now, id, Stage::Turn);
        if let Some(work) = self.works.get_mut(&id) {
            work.task = Task::CleanUp(CleanUp::of(upgraded));
            // After its lease no grant is left anyway.
            work.deadline = Some(now + lease.max(patience));
        }
        self.advance(now, id);
    }

    /// A hold with guards on it stays: the call was to enter it again, or to
    /// upgrade it. An upgrade that was granted in the meantime is undone.
    pub(super) fn ask_to_clean_up(&mut self, now: Instant, id: Id, link: u64) {
        let Some(work) = self.works.get(&id) else {
            return;
        };
        let claims = work.claims.clone();
        self.fence_is_in_doubt(&claims);
        let Some(Task::CleanUp(clean_up)) = self.works.get(&id).map(|work| &work.task) else {
            return;
        };
        let undo = match (self.held(now, &claims), clean_up.upgraded) {
            (Held::Nothing, _) => Undo::Release,
            (Held::These(..), Some(_)) => Undo::Downgrade,
            (Held::These(..) | Held::Otherwise(_), _) => Undo::Nothing,
        };
        let request = match clean_up.is_each {
            // What it was granted, and under which fence, is not known.
            true => Request::ReleaseEach {
                claims,
                fence: None,
            },
            false => Request::CleanUp { claims, undo },
        };
        self.request(now, id, link, request);
    }

    pub(super) fn clean_up_reply(
        &mut self,
        now: Instant,
        id: Id,
        sent: Sent,
        result: Result<Reply, Fault>,
    ) {
        let is_sole = matches!(self.link(sent.node), Link::Up { is_sole: true, .. });
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        // On the connection that the call was made by, clean-up cannot overtake
        // it. Nor on a later one, if the server closed the earlier.
        let is_certain = is_sole || work.unanswered.is_none_or(|link| link == sent.link);
        let is_single = work.claims.is_single();
        let Task::CleanUp(clean_up) = &mut work.task else {
            return;
        };
        let upgraded = clean_up.upgraded;
        match result {
            Ok(Reply::Refused) if !is_single && !clean_up.is_each => {
                clean_up.is_each = true;
                return self.advance(now, id);
            }
            Ok(Reply::Fence(fence)) => {
                if let Some(hold) = upgraded {
                    self.undone(now, hold, fence);
                }
            }
            Ok(_) => {}
            Err(fault) => match self.try_again(now, id, sent, fault) {
                Ok(()) => return,
                Err(_) => return self.clean_up_is_done(now, id),
            },
        }
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let Task::CleanUp(clean_up) = &mut work.task else {
            return;
        };
        match REPEATS.get(clean_up.repeats) {
            Some(pause) if !is_certain => {
                clean_up.repeats += 1;
                let end = now + *pause;
                work.deadline = work.deadline.map(|deadline| deadline.max(end + *pause));
                self.set_stage(now, id, Stage::Pause(end));
            }
            _ => self.clean_up_is_done(now, id),
        }
    }

    /// Only now may the server's word about the hold be taken literally.
    pub(super) fn clean_up_is_done(&mut self, now: Instant, id: Id) {
        if let Some(Task::CleanUp(clean_up)) = self.works.get(&id).map(|work| &work.task)
            && let Some(hold) = clean_up.upgraded
        {
            self.set_upgrading(hold, false);
        }
        self.end(now, id, Outcome::Done);
    }
}

impl CleanUp {
    fn of(upgraded: Option<Id>) -> Self {
        Self {
            upgraded,
            is_each: false,
            repeats: 0,
        }
    }
}
