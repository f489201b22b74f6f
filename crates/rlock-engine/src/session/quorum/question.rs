//! What a member is asked, and for how long its answer is waited for.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Id;
use crate::engine::instant::Instant;
use crate::engine::proof::Proof;
use crate::error::Error;
use crate::session::quorum::members::QUIET;

/// How long others are waited for at least with members held.
const STUCK_MIN: Duration = Duration::from_secs(1);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A call, for one of its seats.
    Seat(Id),
    /// What looks after a hold.
    Hold(Id),
    /// A call.
    Call(Id),
}

/// How long an answer is waited for, beside how long the member's session tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// For what the member can grant at once: as long as an answer may take that
    /// others could give.
    Try,
    /// The same for a change.
    Change,
    /// Until a heartbeat is not answered in time; with others held not for ever.
    Queue {
        holds_others: bool,
    },
    Unlimited,
}

pub(super) enum Answer {
    Granted(Part),
    Refused,
    Done,
    Failed(Error),
    /// No connection, or no answer in time.
    Gone,
    /// It did not answer for a lease, with others held: perhaps their
    /// order has changed, and everybody waits in a circle.
    Stuck,
}

/// What is held at one member.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) guard: Id,
    pub(super) proof: Arc<Proof>,
}

pub(super) struct Question {
    pub(super) member: usize,
    pub(super) by: By,
    pub(super) limit: Limit,
    pub(super) lease: Duration,
    begun: Instant,
    answer_timeout: Duration,
    late: Option<Late>,
    stuck: Option<Late>,
}

/// When a time is over. If the tick itself comes too late, that is as much later:
/// the answer may be here, and not read.
struct Late {
    due: Instant,
    is_again: bool,
}

impl Late {
    fn at(due: Instant) -> Self {
        let is_again = false;
        Self { due, is_again }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let late = now - self.due;
        if self.is_again || late.is_zero() {
            return self.due <= now;
        }
        let (due, is_again) = (now + late, true);
        *self = Self { due, is_again };
        false
    }
}

impl Question {
    pub(super) fn new(
        now: Instant,
        (member, by): (usize, By),
        (limit, lease): (Limit, Duration),
        answer_timeout: Duration,
    ) -> Self {
        let late = match limit {
            Limit::Try | Limit::Change => Some(answer_timeout),
            Limit::Queue { .. } => Some(QUIET + answer_timeout),
            Limit::Unlimited => None,
        };
        let is_stuck = limit == Limit::Queue { holds_others: true };
        Self {
            member,
            by,
            limit,
            lease,
            begun: now,
            answer_timeout,
            late: late.map(|late| Late::at(now + late)),
            stuck: is_stuck.then(|| Late::at(now + lease.max(STUCK_MIN))),
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let all = self.late.iter().chain(&self.stuck);
        all.map(|late| late.due).min()
    }

    /// How it ends now without an answer; none if it does not. The member has
    /// last answered a request that was sent at `known_good`.
    pub(super) fn end(&mut self, now: Instant, known_good: Instant) -> Option<Answer> {
        let is_over = |late: &mut Option<Late>| late.as_mut().is_some_and(|it| it.is_over(now));
        if is_over(&mut self.late) {
            let silent = now - known_good.max(self.begun);
            let left = (QUIET + self.answer_timeout).saturating_sub(silent);
            if !matches!(self.limit, Limit::Queue { .. }) || left.is_zero() {
                return Some(Answer::Gone);
            }
            self.late = Some(Late::at(now + left));
        }
        is_over(&mut self.stuck).then_some(Answer::Stuck)
    }
}
