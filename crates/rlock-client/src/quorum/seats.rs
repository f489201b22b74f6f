//! Carries out what the plan says: asks the members, and hears what they answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;
use rlock_engine::session::Call;

use crate::locks::guard::Guard;
use crate::pump::{now, pause_after, timer};
use crate::quorum::hold::{Hold, Name, Turn};
use crate::quorum::members::{Member, answer_timeout, late};
use crate::quorum::plan::{Event, Plan, Seat, Step, majority};

/// How long others that try are given at least to leave.
const LEAVING_MIN: Duration = Duration::from_millis(500);

/// How long others are waited for at least with members held.
const STUCK_MIN: Duration = Duration::from_secs(1);

/// Something that a member is asked.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

pub(crate) enum Answer {
    Took(Result<Option<Guard>, Error>),
    Raised(Result<(), Error>),
    /// No connection, or no answer in time.
    Gone,
    /// It did not answer for a lease, with others held: perhaps their
    /// order has changed, and everybody waits in a circle.
    Stuck,
}

/// How long a call asks, and whether it waits for others meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) queueing: Queueing,
    begun: Instant,
    end: Option<Instant>,
}

impl Wait {
    /// Begins now; one that does not wait for others asks for as long as `limit`.
    pub(crate) fn new(queueing: Queueing, limit: Duration) -> Self {
        let begun = now();
        let end = match queueing {
            Queueing::Try => Some(begun + limit),
            Queueing::AtMost(wait) => Some(begun + wait),
            Queueing::Unlimited => None,
        };
        Self {
            queueing,
            begun,
            end,
        }
    }

    /// Runs `future` until its end.
    pub(crate) async fn bound<F: Future>(&self, future: F) -> Option<F::Output> {
        match self.end {
            Some(end) => tokio::time::timeout_at(timer(end), future).await.ok(),
            None => Some(future.await),
        }
    }
}

/// Asks for the lock, and waits as `waited` says; `None` if not granted. At the
/// end of a wait it looks whether it is free after all: the gate may have hung.
pub(crate) async fn acquire(
    turn: &Arc<Turn>,
    terms: Terms,
    waited: Wait,
) -> Result<Option<Arc<Hold>>, Error> {
    let (members, mut wait, mut attempts) = (&turn.members, waited, 0);
    loop {
        let is_last = wait.queueing != waited.queueing;
        let mut seats = Seats::new(turn, terms);
        let end = wait.bound(seats.run(wait)).await.transpose()?;
        let has_waited = is_last || seats.queued_at.is_some();
        match end {
            Some(Step::Hold(fence)) => {
                if let Some(hold) = Hold::begin(&mut seats, fence) {
                    return Ok(Some(hold));
                }
            }
            Some(Step::Refuse) if wait.queueing != Queueing::Unlimited => return Ok(None),
            None if has_waited && wait.queueing == Queueing::Try => return Ok(None),
            None if has_waited => {
                let limit = 2 * answer_timeout(members.limits, terms.lease);
                wait = Wait::new(Queueing::Try, limit);
                continue;
            }
            _ => {}
        }
        let refusals = std::mem::take(&mut seats.refusals);
        drop(seats);
        if members.all.iter().all(|member| member.is_closed()) {
            return Err(Error::Closed);
        }
        let pause = tokio::time::sleep(pause_after(&mut attempts));
        if is_last || wait.bound(pause).await.is_none() {
            return Err(members.unavailable(waited.begun, terms.lease, &refusals));
        }
    }
}

/// All members as one who asks stands to them, the gate first. Dropping it
/// leaves nothing behind.
pub(crate) struct Seats {
    pub(crate) turn: Arc<Turn>,
    pub(crate) terms: Terms,
    pub(crate) contacts: Vec<Contact>,
    /// Where it has waited last.
    queued_at: Option<usize>,
    /// Members that refuse for a reason that does not pass by itself, and why.
    refusals: Vec<(Arc<Member>, Error)>,
}

/// Of one member: what is held there, and what it is asked.
pub(crate) struct Contact {
    pub(crate) member: Arc<Member>,
    pub(crate) asking: Option<Pending>,
    pub(crate) guard: Option<Guard>,
    /// How often it did not answer, and when to ask it again.
    pub(crate) failures: u32,
    pub(crate) again: Instant,
}

impl Seats {
    fn new(turn: &Arc<Turn>, terms: Terms) -> Self {
        let mut members = turn.members.all.clone();
        members.sort_by_cached_key(|member| member.rank(&turn.name.1));
        let contacts = members.into_iter().map(|member| Contact {
            member,
            asking: None,
            guard: None,
            failures: 0,
            again: now(),
        });
        Self::of(turn, terms, contacts.collect())
    }

    fn of(turn: &Arc<Turn>, terms: Terms, contacts: Vec<Contact>) -> Self {
        Self {
            turn: Arc::clone(turn),
            terms,
            contacts,
            queued_at: None,
            refusals: Vec::new(),
        }
    }

    /// Takes it out of its place, and leaves nothing there.
    pub(crate) fn take(&mut self) -> Self {
        Self::of(&self.turn, self.terms, std::mem::take(&mut self.contacts))
    }

    /// What each member is asked.
    pub(crate) fn questions(&mut self) -> impl Iterator<Item = &mut Option<Pending>> {
        self.contacts.iter_mut().map(|contact| &mut contact.asking)
    }

    /// What counts of what is held.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Guard> {
        self.contacts.iter().filter_map(Contact::part)
    }

    /// Whether a member can be asked.
    fn reached(&self) -> impl Fn(&Contact) -> bool {
        let usable = self.turn.members.usable(Some(self.terms.lease));
        move |contact| {
            let mut refusals = self.refusals.iter();
            let has_refused = refusals.any(|(member, _)| Arc::ptr_eq(member, &contact.member));
            usable(&contact.member) && !has_refused
        }
    }

    /// One attempt; the plan's last step.
    async fn run(&mut self, wait: Wait) -> Result<Step, Error> {
        let reached: Vec<_> = self.contacts.iter().map(self.reached()).collect();
        let (mut plan, steps) = Plan::begin(&reached, wait.queueing != Queueing::Try);
        let (mut steps, terms) = (VecDeque::from(steps), self.terms);
        loop {
            while let Some(step) = steps.pop_front() {
                match step {
                    Step::Ask(place) => self.ask(place, Queueing::Try),
                    Step::Queue(place) => self.queue(place, wait),
                    Step::Leave(place) => self.at(place, Contact::leave),
                    Step::Raise(place, fence) => {
                        self.at(place, |it| it.asking = it.raise(fence, terms));
                    }
                    Step::Hold(_) => {
                        self.settle(&plan);
                        return Ok(step);
                    }
                    Step::Refuse => return Ok(step),
                    Step::Retreat => return self.retreat(),
                }
            }
            let (place, answer) = poll_fn(|context| poll_next(self.questions(), context)).await;
            if matches!(answer, Answer::Stuck) {
                return Ok(Step::Retreat);
            }
            let event = self.event(place, answer)?;
            let is_held = matches!(event, Event::Refused(_)) && self.queued_at == Some(place);
            if is_held && wait.queueing == Queueing::Try {
                return Ok(Step::Refuse);
            }
            for seen in self.seen(&plan) {
                steps.extend(plan.handle(seen));
            }
            steps.extend(plan.handle(event));
        }
    }

    /// The members that do not refuse may be fewer than a majority.
    fn retreat(&mut self) -> Result<Step, Error> {
        let others = self.contacts.len().saturating_sub(self.refusals.len());
        if others < majority(self.contacts.len())
            && let Some((_, error)) = self.refusals.pop()
        {
            return Err(error);
        }
        Ok(Step::Retreat)
    }

    fn at(&mut self, place: usize, change: impl FnOnce(&mut Contact)) {
        if let Some(contact) = self.contacts.get_mut(place) {
            change(contact);
        }
    }

    fn ask(&mut self, place: usize, queueing: Queueing) {
        let holds_others = self.contacts.iter().any(|contact| contact.guard.is_some());
        let (turn, terms) = (Arc::clone(&self.turn), self.terms);
        self.at(place, |it| {
            it.leave();
            it.asking = Some(it.ask(&turn.name, terms, queueing, holds_others));
        });
    }

    fn queue(&mut self, place: usize, wait: Wait) {
        self.queued_at = Some(place);
        let left = match wait.queueing {
            Queueing::Try => {
                let leaving = 2 * answer_timeout(self.turn.members.limits, self.terms.lease);
                Some(leaving.max(LEAVING_MIN))
            }
            Queueing::AtMost(_) | Queueing::Unlimited => wait.end.map(|end| end - now()),
        };
        let at_most = |left: Duration| Queueing::AtMost(left.max(Duration::from_millis(1)));
        self.ask(place, left.map_or(Queueing::Unlimited, at_most));
    }

    /// What an answer is to the plan.
    fn event(&mut self, place: usize, answer: Answer) -> Result<Event, Error> {
        let error = match answer {
            Answer::Took(Ok(Some(guard))) => {
                let fence = guard.fence();
                self.at(place, |it| it.guard = Some(guard));
                return Ok(Event::Granted(place, fence));
            }
            Answer::Took(Ok(None)) => return Ok(Event::Refused(place)),
            Answer::Raised(Ok(())) => return Ok(Event::Raised(place)),
            Answer::Raised(Err(Error::Refused(_))) => return Ok(Event::Behind(place)),
            Answer::Gone | Answer::Stuck => return Ok(Event::Gone(place)),
            Answer::Took(Err(error)) | Answer::Raised(Err(error)) => error,
        };
        match error {
            Error::Deadlock { .. }
            | Error::Cancelled
            | Error::HeldOtherwise { .. }
            | Error::Closed => return Err(error),
            Error::Lost(_) => {}
            // It has no room for one more; another one may.
            error if error.is_transient() && !matches!(error, Error::QueueFull(_)) => {}
            error => {
                let contact = self.contacts.get(place);
                let refusal = contact.map(|contact| (Arc::clone(&contact.member), error));
                self.refusals.extend(refusal);
            }
        }
        Ok(Event::Gone(place))
    }

    /// What has changed while others were waited for.
    fn seen(&self, plan: &Plan) -> Vec<Event> {
        let reached = self.reached();
        let seats = plan.seats().iter().zip(&self.contacts).enumerate();
        let changed = seats.filter_map(|(place, (seat, contact))| {
            let guard = contact.guard.as_ref();
            match seat {
                Seat::Away if reached(contact) => Some(Event::Back(place)),
                seat => {
                    let is_lost = guard.is_none_or(|guard| !guard.is_valid());
                    (seat.granted().is_some() && is_lost).then_some(Event::Gone(place))
                }
            }
        });
        changed.collect()
    }

    /// Keeps what has the fence, and has the others follow.
    fn settle(&mut self, plan: &Plan) {
        for (contact, seat) in self.contacts.iter_mut().zip(plan.seats()) {
            match seat {
                Seat::Raised(_) => contact.asking = None,
                _ if contact.asking.is_none() => contact.guard = None,
                _ => {}
            }
        }
    }
}

/// The next answer to a question, and the place of that.
pub(crate) fn poll_next<'a>(
    questions: impl Iterator<Item = &'a mut Option<Pending>>,
    context: &mut Context<'_>,
) -> Poll<(usize, Answer)> {
    for (place, question) in questions.enumerate() {
        if let Some(asking) = question
            && let Poll::Ready(answer) = asking.as_mut().poll(context)
        {
            *question = None;
            return Poll::Ready((place, answer));
        }
    }
    Poll::Pending
}

impl Drop for Seats {
    /// The gate is left last.
    fn drop(&mut self) {
        while self.contacts.pop().is_some() {}
    }
}

impl Contact {
    /// What counts: it has the fence if nothing more is asked there.
    pub(crate) fn part(&self) -> Option<&Guard> {
        self.guard.as_ref().filter(|_| self.asking.is_none())
    }

    fn leave(&mut self) {
        (self.asking, self.guard) = (None, None);
    }

    /// Asks for the lock: only for as long as it takes where it is
    /// queued for with no others held. It is renewed until all is decided,
    /// whatever the terms.
    pub(crate) fn ask(
        &self,
        (owner, key): &Name,
        terms: Terms,
        queueing: Queueing,
        holds_others: bool,
    ) -> Pending {
        let (member, owner, key) = (Arc::clone(&self.member), owner.clone(), Arc::clone(key));
        Box::pin(async move {
            let lease = terms.lease;
            let terms = Terms {
                renewed: true,
                max_hold: None,
                ..terms
            };
            let lock = member.client.lock_at(&key).with(terms).by(&owner);
            let taking = lock.ask(Ask::Exclusive, queueing);
            let took =
                |taken: Result<Option<_>, _>| Answer::Took(taken.map(|it| it.map(Guard::new)));
            if queueing == Queueing::Try {
                let taken = member.in_time(lease, taking).await;
                if matches!(taken, Some(Ok(_))) {
                    member.is_quick();
                }
                return taken.map_or(Answer::Gone, took);
            }
            tokio::select! {
                biased;
                taken = taking => took(taken),
                () = member.gone() => Answer::Gone,
                () = member.silent(lease) => Answer::Gone,
                () = late(lease.max(STUCK_MIN)), if holds_others => Answer::Stuck,
            }
        })
    }

    /// Raises the fence of what is held; it has these terms from then on.
    pub(crate) fn raise(&self, fence: u64, terms: Terms) -> Option<Pending> {
        let held = &self.guard.as_ref()?.held;
        let raising = held.change(Call::Raise {
            guard: held.guard,
            fence,
            terms,
        });
        let member = Arc::clone(&self.member);
        Some(Box::pin(async move {
            let raised = member.in_time(terms.lease, raising).await;
            raised.map_or(Answer::Gone, Answer::Raised)
        }))
    }
}
