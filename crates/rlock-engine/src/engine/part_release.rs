//! The release of permits that no guard of their hold needs any more, while other
//! guards need the rest.
//!
//! This is the only request that must not be repeated: a repetition releases
//! permits that are still in use. If its answer is lost, the server is asked how
//! many permits the hold has. They are more than the guards need only if the
//! request was not carried out. The answer counts only if the request cannot be
//! carried out later, so the server must have closed its connection. If it does
//! not, the permits stay taken until the hold ends.

use crate::engine::hold::Hold;
use crate::engine::instant::Instant;
use crate::engine::request::{Reply, Request, Sent};
use crate::engine::work::{Context, Input, Next, Stage};
use crate::engine::{ConnectionState, Id, Outcome};
use crate::error::{Error, Fault, Loss};

#[derive(Debug)]
pub(super) struct PartRelease {
    pub(super) hold: Id,
    /// How many are released.
    permits: u64,
    /// How many the hold keeps.
    rest: u64,
    /// Whether the last request for it may have been carried out.
    is_unknown: bool,
    /// Whether it waits for the release of the last guard.
    is_behind: bool,
}

impl PartRelease {
    /// The release of all permits that no guard needs; none if there are none.
    pub(super) fn of(now: Instant, hold: &Hold) -> Option<Self> {
        let (permits, rest) = hold.spare(now)?;
        Some(Self {
            hold: hold.proof.hold,
            permits,
            rest,
            is_unknown: false,
            is_behind: false,
        })
    }

    pub(super) fn on(&mut self, at: &mut Context<'_>, input: Input) -> Next {
        match input {
            Input::Turn => self.begin(at),
            Input::Connected(_) => self.request(at),
            Input::Reply(sent, result) if self.is_unknown => self.counted(at, sent, result),
            Input::Reply(sent, result) => self.released(at, sent, result),
            Input::Due if at.work.is_awaited => {
                let error = at.work.unavailable(at.now);
                at.work.resolve(at.engine, Outcome::Failed(error));
                self.continue_in_background(at)
            }
            Input::Due => {
                let is_over = at.engine.loss(at.now, self.hold).is_some();
                if is_over || !at.work.has_begun {
                    return Next::End(Outcome::Done);
                }
                // It was renewed meanwhile, and others wait for their turn.
                self.is_unknown |= matches!(at.work.stage, Stage::Asked(_));
                let error = at.work.unavailable(at.now);
                self.fails(at, error)
            }
            Input::Abandoned => self.continue_in_background(at),
            Input::Notified(_) => Next::Stay,
        }
    }

    /// Other guards may have entered the hold or left it since. Nobody enters it
    /// during this turn.
    fn begin(&mut self, at: &mut Context<'_>) -> Next {
        if let Some(loss) = at.engine.loss(at.now, self.hold) {
            return Next::End(Outcome::Failed(Error::Lost(loss)));
        }
        let Some(hold) = at.engine.holds.get_mut(&self.hold) else {
            return Next::End(Outcome::Done);
        };
        // The release of the last guard, which is behind this one, releases all.
        if hold.guards == 0 {
            if !at.work.is_awaited || std::mem::replace(&mut self.is_behind, true) {
                return Next::End(Outcome::Done);
            }
            hold.leavers.push(at.work.id);
            return Next::YieldTurn;
        }
        let Some(spare) = hold.spare(at.now) else {
            return Next::End(Outcome::Done);
        };
        hold.release_spare();
        (self.permits, self.rest) = spare;
        Next::Ask
    }

    fn request(&self, at: &mut Context<'_>) -> Next {
        let loss = at.engine.loss(at.now, self.hold);
        let (Some(hold), None) = (at.engine.holds.get(&self.hold), loss) else {
            let error = loss.map_or(Error::Closed, Error::Lost);
            return Next::End(Outcome::Failed(error));
        };
        let (claims, fence) = (hold.proof.claims.clone(), hold.proof.fence());
        Next::Send(match self.is_unknown {
            true => Request::CountPermits { claims, fence },
            false => Request::ReleasePermits {
                claims,
                permits: self.permits,
                fence,
            },
        })
    }

    fn released(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        match result {
            Ok(Reply::Nil) => self.is_lost(at),
            Ok(_) => self.is_done(at),
            Err(fault) => {
                self.is_unknown = matches!(fault, Fault::Broken(_) | Fault::Stray(_));
                self.failed(at, sent, fault)
            }
        }
    }

    fn counted(&mut self, at: &mut Context<'_>, sent: Sent, result: Result<Reply, Fault>) -> Next {
        let permits = match result {
            Ok(Reply::Count(permits)) => permits,
            Ok(_) => return self.is_lost(at),
            Err(fault) => return self.failed(at, sent, fault),
        };
        if permits <= self.rest {
            return self.is_done(at);
        }
        let is_certain = matches!(
            at.engine.connection(sent.node),
            ConnectionState::Up {
                is_predecessor_gone: true,
                ..
            }
        );
        if !is_certain {
            let error = at.work.unavailable(at.now);
            return self.fails(at, error);
        }
        (self.permits, self.is_unknown) = (permits - self.rest, false);
        Next::Ask
    }

    /// What was refused before is released with it.
    fn is_done(&self, at: &mut Context<'_>) -> Next {
        at.engine.unreleased.forget(self.hold);
        Next::End(Outcome::Done)
    }

    fn failed(&self, at: &mut Context<'_>, sent: Sent, fault: Fault) -> Next {
        let next = at.try_again(sent, fault);
        next.unwrap_or_else(|error| self.fails(at, error))
    }

    /// The permits stay taken until the hold ends, or until another guard ends if
    /// they certainly were not released.
    fn fails(&self, at: &mut Context<'_>, error: Error) -> Next {
        if let (Some(hold), false) = (at.engine.holds.get_mut(&self.hold), self.is_unknown) {
            hold.keep_spare(self.permits);
        }
        // The end of its last guard releases all.
        let hold = at.engine.holds.get(&self.hold);
        let hold = hold.filter(|hold| hold.guards > 0 && !at.work.is_awaited);
        if let Some(hold) = hold {
            let claims = hold.proof.claims.clone();
            at.engine.not_released(at.now, self.hold, &claims, &error);
        }
        Next::End(Outcome::Failed(error))
    }

    /// The server has no such hold.
    fn is_lost(&self, at: &mut Context<'_>) -> Next {
        at.engine.lose_with_rest(at.now, self.hold);
        Next::End(Outcome::Failed(Error::Lost(Loss::EndedByServer)))
    }

    /// Until the lease ends, or a little longer.
    fn continue_in_background(&self, at: &mut Context<'_>) -> Next {
        let Some(hold) = at.engine.holds.get(&self.hold) else {
            return Next::End(Outcome::Done);
        };
        at.work.deadline = Some(hold.latest_end().max(at.now + at.engine.retry_timeout));
        Next::Stay
    }
}
