//! Carries out what the plan says: asks the members, and hears what they answer.

use std::collections::VecDeque;
use std::time::Duration;

use crate::engine::Id;
use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::terms::{Ask, Queueing, Terms};
use crate::error::Error;
use crate::session::quorum::members::{Members, answer_timeout};
use crate::session::quorum::plan::{Event, Plan, Seat, Step, majority};
use crate::session::quorum::question::{Answer, By, Limit, Part};
use crate::session::{Call, Lock};

/// How long others that try are given at least to leave.
const LEAVING_MIN: Duration = Duration::from_millis(500);

/// How long a call asks, and whether it waits for others meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) queueing: Queueing,
    pub(super) begun: Instant,
    pub(super) end: Option<Instant>,
}

impl Wait {
    /// Begins now; one that does not wait for others asks for as long as `limit`.
    pub(super) fn new(now: Instant, queueing: Queueing, limit: Duration) -> Self {
        let end = match queueing {
            Queueing::Try => Some(now + limit),
            Queueing::AtMost(wait) => Some(now + wait),
            Queueing::Unlimited => None,
        };
        Self {
            queueing,
            begun: now,
            end,
        }
    }
}

/// How an attempt ends: the plan's last step.
pub(super) type End = Result<Step, Error>;

/// All members as one who asks stands to them, the gate first.
pub(super) struct Seats {
    call: Id,
    pub(super) claims: Claims,
    pub(super) terms: Terms,
    wait: Wait,
    pub(super) contacts: Vec<Contact>,
    plan: Plan,
    /// Where it has waited last.
    pub(super) queued_at: Option<usize>,
    /// Why members refuse; it may pass by itself.
    pub(super) refusals: Vec<(usize, Error)>,
}

/// Of one member: what is held there, and what it is asked.
pub(super) struct Contact {
    pub(super) member: usize,
    pub(super) asking: Option<Id>,
    pub(super) part: Option<Part>,
    /// Whether its server has ended what was held there, and not granted it again.
    pub(super) was_ended: bool,
    /// How often it did not answer, and when to ask it again.
    pub(super) failures: u32,
    pub(super) again: Instant,
}

impl Seats {
    /// Begins an attempt; [`go_on`](Self::go_on) takes its first steps.
    pub(super) fn begin(
        now: Instant,
        members: &Members,
        call: Id,
        (claims, terms): (&Claims, Terms),
        wait: Wait,
    ) -> (Self, Vec<Step>) {
        let mut places: Vec<_> = (0..members.count()).collect();
        places.sort_by_cached_key(|member| members.rank(*member, claims.key()));
        let contacts = places.into_iter().map(|member| Contact {
            member,
            asking: None,
            part: None,
            was_ended: false,
            failures: 0,
            again: now,
        });
        let contacts: Vec<_> = contacts.collect();
        let usable = members.usable(now, Some(terms.lease));
        let reached = contacts
            .iter()
            .map(|it| usable.get(it.member) == Some(&true));
        let reached: Vec<_> = reached.collect();
        let (plan, steps) = Plan::begin(&reached, wait.queueing != Queueing::Try);
        let seats = Self {
            call,
            claims: claims.clone(),
            terms,
            wait,
            contacts,
            plan,
            queued_at: None,
            refusals: Vec::new(),
        };
        (seats, steps)
    }

    /// Takes these steps; how the attempt has ended, if it has.
    pub(super) fn go_on(
        &mut self,
        now: Instant,
        members: &mut Members,
        steps: Vec<Step>,
    ) -> Option<End> {
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            match step {
                Step::Ask(place) => self.ask(now, members, place, Queueing::Try),
                Step::Queue(place) => self.queue(now, members, place),
                Step::Leave(place) => self.at(place, |it| it.leave(now, members)),
                Step::Raise(place, fence) => {
                    let (by, terms) = (By::Seat(self.call), self.terms);
                    self.at(place, |it| {
                        it.asking = it.raise(now, members, by, (fence, terms));
                    });
                }
                Step::Hold(_) => {
                    self.settle(now, members);
                    return Some(Ok(step));
                }
                Step::Refuse => return Some(Ok(step)),
                Step::Retreat => return Some(self.retreat()),
            }
        }
        None
    }

    /// A question is over; how the attempt has ended, if it has.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        members: &mut Members,
        question: Id,
        answer: Answer,
    ) -> Option<End> {
        let mut contacts = self.contacts.iter();
        let place = contacts.position(|it| it.asking == Some(question))?;
        self.at(place, |it| it.asking = None);
        if matches!(answer, Answer::Stuck) {
            return Some(Ok(Step::Retreat));
        }
        let event = match self.event(place, answer) {
            Ok(event) => event,
            Err(error) => return Some(Err(error)),
        };
        let mut steps = Vec::new();
        for event in self.seen(now, members).into_iter().chain([event]) {
            steps.extend(self.plan.handle(event));
        }
        self.go_on(now, members, steps)
    }

    /// The members that may grant it later may be fewer than a majority.
    fn retreat(&self) -> End {
        let mut lasting = self.refusals.iter().filter(|(_, error)| !passes(error));
        let others = self.contacts.len().saturating_sub(lasting.clone().count());
        match lasting.next_back() {
            Some((_, error)) if others < majority(self.contacts.len()) => Err(error.clone()),
            _ => Ok(Step::Retreat),
        }
    }

    fn at(&mut self, place: usize, change: impl FnOnce(&mut Contact)) {
        if let Some(contact) = self.contacts.get_mut(place) {
            change(contact);
        }
    }

    fn ask(&mut self, now: Instant, members: &mut Members, place: usize, queueing: Queueing) {
        let holds_others = self.contacts.iter().any(|contact| contact.part.is_some());
        let (by, claims, terms) = (By::Seat(self.call), self.claims.clone(), self.terms);
        self.at(place, |it| {
            it.leave(now, members);
            it.ask(now, members, by, (claims, terms), (queueing, holds_others));
        });
    }

    fn queue(&mut self, now: Instant, members: &mut Members, place: usize) {
        self.queued_at = Some(place);
        let left = match self.wait.queueing {
            Queueing::Try => {
                let leaving = 2 * answer_timeout(members.limits, self.terms.lease);
                Some(leaving.max(LEAVING_MIN))
            }
            Queueing::AtMost(_) | Queueing::Unlimited => self.wait.end.map(|end| end - now),
        };
        let at_most = |left: Duration| Queueing::AtMost(left.max(Duration::from_millis(1)));
        let queueing = left.map_or(Queueing::Unlimited, at_most);
        self.ask(now, members, place, queueing);
    }

    /// What an answer is to the plan.
    fn event(&mut self, place: usize, answer: Answer) -> Result<Event, Error> {
        let contact = self.contacts.get(place);
        let member = contact.map(|it| it.member);
        let is_raised = contact.is_some_and(|it| it.part.is_some());
        self.refusals.retain(|(known, _)| Some(*known) != member);
        let error = match answer {
            Answer::Granted(part) => {
                let fence = part.proof.fence();
                self.at(place, |it| it.part = Some(part));
                return Ok(Event::Granted(place, fence));
            }
            Answer::Refused => return Ok(Event::Refused(place)),
            Answer::Done => return Ok(Event::Raised(place)),
            Answer::Failed(Error::Refused(_)) if is_raised => return Ok(Event::Behind(place)),
            Answer::Gone | Answer::Stuck => return Ok(Event::Gone(place)),
            Answer::Failed(error) => error,
        };
        match error {
            Error::Deadlock { .. }
            | Error::Cancelled
            | Error::HeldOtherwise { .. }
            | Error::Closed => return Err(error),
            Error::Lost(_) => {}
            error => self.refusals.extend(member.map(|member| (member, error))),
        }
        Ok(Event::Gone(place))
    }

    /// What has changed while others were waited for.
    fn seen(&self, now: Instant, members: &Members) -> Vec<Event> {
        let usable = members.usable(now, Some(self.terms.lease));
        let is_reached = |member| {
            let is_refusal = |(known, error): &(usize, Error)| *known == member && !passes(error);
            usable.get(member) == Some(&true) && !self.refusals.iter().any(is_refusal)
        };
        let seats = self.plan.seats().iter().zip(&self.contacts).enumerate();
        let changed = seats.filter_map(|(place, (seat, contact))| match seat {
            Seat::Away if is_reached(contact.member) => Some(Event::Back(place)),
            seat => {
                let is_live = |part: &Part| part.proof.is_live(now);
                let is_lost = !contact.part.as_ref().is_some_and(is_live);
                (seat.granted().is_some() && is_lost).then_some(Event::Gone(place))
            }
        });
        changed.collect()
    }

    /// Keeps what has the fence, and has the others follow.
    fn settle(&mut self, now: Instant, members: &mut Members) {
        for (contact, seat) in self.contacts.iter_mut().zip(self.plan.seats()) {
            match seat {
                Seat::Raised(_) => contact.forget(now, members),
                _ if contact.asking.is_none() => contact.leave(now, members),
                _ => {}
            }
        }
    }
}

/// Whether that reason passes by itself. One whose queue is full has no room for one
/// more; another member may.
fn passes(error: &Error) -> bool {
    error.is_transient() && !matches!(error, Error::QueueFull(_))
}

impl Contact {
    /// What counts: it has the fence if nothing more is asked there.
    pub(super) fn counted(&self) -> Option<&Part> {
        self.part.as_ref().filter(|_| self.asking.is_none())
    }

    fn forget(&mut self, now: Instant, members: &mut Members) {
        if let Some(question) = self.asking.take() {
            members.forget(now, question);
        }
    }

    pub(super) fn leave(&mut self, now: Instant, members: &mut Members) {
        self.forget(now, members);
        if let Some(part) = self.part.take() {
            members.leave(now, self.member, &part);
        }
    }

    /// Asks for the lock: only for as long as it takes where it is
    /// queued for with no others held. It is renewed until all is decided,
    /// whatever the terms, but never for longer than they allow a hold.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        members: &mut Members,
        by: By,
        (claims, terms): (Claims, Terms),
        (queueing, holds_others): (Queueing, bool),
    ) {
        let limit = match queueing {
            Queueing::Try => Limit::Try,
            Queueing::AtMost(_) | Queueing::Unlimited => Limit::Queue { holds_others },
        };
        let lease = terms.lease_at(now, now).unwrap_or(terms.lease);
        let lock = Call::Lock(Lock {
            claims,
            ask: Ask::Exclusive,
            value: None,
            terms: Terms {
                renewed: true,
                max_hold: None,
                ..terms.lasting(lease)
            },
            queueing,
        });
        self.asking = Some(members.ask(now, (self.member, by), (limit, terms.lease), lock));
    }

    /// Raises the fence of what is held; it has these terms from then on. The
    /// question's number.
    pub(super) fn raise(
        &self,
        now: Instant,
        members: &mut Members,
        by: By,
        (fence, terms): (u64, Terms),
    ) -> Option<Id> {
        let guard = self.part.as_ref()?.guard;
        let raise = Call::Raise {
            guard,
            fence,
            terms,
        };
        Some(members.ask(now, (self.member, by), (Limit::Change, terms.lease), raise))
    }
}
