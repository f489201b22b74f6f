//! Carries out what the plan says: asks the members, and hears what they answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;

use crate::locks::guard::Guard;
use crate::quorum::deadline::{Backoff, Deadline};
use crate::quorum::hold::Hold;
use crate::quorum::member::{Member, late};
use crate::quorum::plan::{Event, Plan, Seat, Step, majority};
use crate::quorum::shared::{Name, Shared};

/// Something that a member is asked.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

pub(crate) enum Answer {
    Took(Result<Option<Guard>, Error>),
    Raised(Result<(), Error>),
    /// No connection, or no answer in time.
    Gone,
    /// It was waited for in vain for a lease, with others held: perhaps their
    /// order has changed, and everybody waits in a circle.
    Stuck,
}

/// Of one member: what is held there, and what it is asked.
#[derive(Default)]
pub(crate) struct Contact {
    pub(crate) asking: Option<Pending>,
    pub(crate) guard: Option<Guard>,
}

/// How long others that try are given at least to leave.
const LEAVING_MIN: Duration = Duration::from_millis(500);

/// How an attempt ends that is no error.
enum End {
    Held(Arc<Hold>),
    Refused,
    /// Too few could be reached.
    Retreated,
}

/// Asks for the lock, and waits as `queueing` says; `None` if not granted.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    name: &Name,
    terms: Terms,
    queueing: Queueing,
    deadline: Deadline,
) -> Result<Option<Arc<Hold>>, Error> {
    let mut backoff = Backoff::default();
    loop {
        let mut attempt = Attempt::new(shared, name, terms, queueing, deadline);
        match deadline.bound(attempt.run()).await {
            Some(Ok(End::Held(hold))) => return Ok(Some(hold)),
            Some(Ok(End::Refused)) if queueing != Queueing::Unlimited => return Ok(None),
            Some(Err(error)) => return Err(error),
            None if attempt.queued_at.is_some() => {
                drop(attempt);
                return last_look(shared, name, terms, queueing, deadline).await;
            }
            Some(Ok(End::Refused | End::Retreated)) | None => {}
        }
        let refusals = std::mem::take(&mut attempt.refusals);
        drop(attempt);
        if shared.members.iter().all(Member::is_closed) {
            return Err(Error::Closed);
        }
        if !deadline.is_over() {
            backoff.pause(deadline).await;
        }
        if deadline.is_over() {
            return Err(deadline.unavailable(Some(shared.failure(terms.lease, &refusals))));
        }
    }
}

/// Whether it is free after all at the end of a wait: the gate may have hung.
async fn last_look(
    shared: &Arc<Shared>,
    name: &Name,
    terms: Terms,
    queueing: Queueing,
    waited: Deadline,
) -> Result<Option<Arc<Hold>>, Error> {
    if queueing == Queueing::Try {
        return Ok(None);
    }
    let deadline = Deadline::after(2 * shared.slow(terms.lease));
    let mut attempt = Attempt::new(shared, name, terms, Queueing::Try, deadline);
    match deadline.bound(attempt.run()).await {
        Some(Ok(End::Held(hold))) => Ok(Some(hold)),
        Some(Ok(End::Retreated)) => {
            let failure = shared.failure(attempt.terms.lease, &attempt.refusals);
            Err(waited.unavailable(Some(failure)))
        }
        Some(Ok(End::Refused)) | None => Ok(None),
        Some(Err(error)) => Err(error),
    }
}

/// One attempt. Dropping it leaves nothing behind.
struct Attempt<'a> {
    shared: &'a Arc<Shared>,
    name: &'a Name,
    terms: Terms,
    queueing: Queueing,
    deadline: Deadline,
    /// The members by their places.
    order: Vec<usize>,
    contacts: Vec<Contact>,
    /// Where it has waited last.
    queued_at: Option<usize>,
    /// Members that refuse for a reason that does not pass by itself, and why.
    refusals: Vec<(usize, Error)>,
}

impl<'a> Attempt<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        name: &'a Name,
        terms: Terms,
        queueing: Queueing,
        deadline: Deadline,
    ) -> Self {
        let members = shared.members.iter().enumerate();
        let mut order: Vec<_> = members
            .map(|(number, member)| (member.rank(&name.1), number))
            .collect();
        order.sort_unstable();
        let order: Vec<_> = order.into_iter().map(|(_, number)| number).collect();
        let contacts = order.iter().map(|_| Contact::default()).collect();
        Self {
            shared,
            name,
            terms,
            queueing,
            deadline,
            order,
            contacts,
            queued_at: None,
            refusals: Vec::new(),
        }
    }

    fn reached(&self) -> Vec<bool> {
        let usable = self.shared.usable(Some(self.terms.lease));
        let has_refused = |member| self.refusals.iter().any(|(known, _)| *known == member);
        let reached = |member: &usize| usable.get(*member) == Some(&true) && !has_refused(*member);
        self.order.iter().map(reached).collect()
    }

    async fn run(&mut self) -> Result<End, Error> {
        let may_wait = self.queueing != Queueing::Try;
        let (mut plan, steps) = Plan::begin(&self.reached(), may_wait);
        let mut steps = VecDeque::from(steps);
        loop {
            while let Some(step) = steps.pop_front() {
                match step {
                    Step::Ask(place) => self.ask(place, Queueing::Try),
                    Step::Queue(place) => self.queue(place),
                    Step::Leave(place) => self.set(place, Contact::default()),
                    Step::Raise(place, fence) => self.raise(place, fence),
                    Step::Hold(fence) => return Ok(self.hold(&plan, fence)),
                    Step::Refuse => return Ok(End::Refused),
                    Step::Retreat => return self.retreated(),
                }
            }
            let (place, answer) = next(&mut self.contacts).await;
            if matches!(answer, Answer::Stuck) {
                return Ok(End::Retreated);
            }
            let event = self.event(place, answer)?;
            let is_held = matches!(event, Event::Refused(_)) && self.queued_at == Some(place);
            if is_held && self.queueing == Queueing::Try {
                return Ok(End::Refused);
            }
            for seen in self.seen(&plan) {
                steps.extend(plan.handle(seen));
            }
            steps.extend(plan.handle(event));
        }
    }

    /// The members that do not refuse may be fewer than a majority.
    fn retreated(&mut self) -> Result<End, Error> {
        let others = self.order.len().saturating_sub(self.refusals.len());
        match self.refusals.pop() {
            Some((_, error)) if others < majority(self.order.len()) => Err(error),
            Some(refusal) => {
                self.refusals.push(refusal);
                Ok(End::Retreated)
            }
            None => Ok(End::Retreated),
        }
    }

    fn set(&mut self, place: usize, contact: Contact) {
        if let Some(known) = self.contacts.get_mut(place) {
            *known = contact;
        }
    }

    fn ask(&mut self, place: usize, queueing: Queueing) {
        let slow = match queueing {
            Queueing::Try => Some((self.shared.slow(self.terms.lease), Answer::Gone)),
            // The gate is waited for with nothing held.
            _ if self.contacts.iter().all(|contact| contact.guard.is_none()) => None,
            _ => Some((self.terms.lease.max(Duration::from_secs(1)), Answer::Stuck)),
        };
        let Some(member) = self.order.get(place).copied() else {
            return;
        };
        let asking = ask(self.shared, member, self.name, self.terms, queueing, slow);
        let (asking, guard) = (Some(asking), None);
        self.set(place, Contact { asking, guard });
    }

    fn queue(&mut self, place: usize) {
        self.queued_at = Some(place);
        let left = match self.queueing {
            Queueing::Try => {
                let leaving = 2 * self.shared.slow(self.terms.lease);
                Some(leaving.max(LEAVING_MIN))
            }
            Queueing::AtMost(_) | Queueing::Unlimited => self.deadline.left(),
        };
        let queueing = match left {
            Some(left) => Queueing::AtMost(left.max(Duration::from_millis(1))),
            None => Queueing::Unlimited,
        };
        self.ask(place, queueing);
    }

    fn raise(&mut self, place: usize, fence: u64) {
        let contact = self.contacts.get_mut(place).zip(self.order.get(place));
        if let Some((contact, member)) = contact
            && let Some(guard) = &contact.guard
        {
            let asking = raise(self.shared, *member, guard, fence, self.terms);
            contact.asking = Some(asking);
        }
    }

    /// What an answer is to the plan.
    fn event(&mut self, place: usize, answer: Answer) -> Result<Event, Error> {
        let error = match answer {
            Answer::Took(Ok(Some(guard))) => {
                let fence = guard.fence();
                if let Some(contact) = self.contacts.get_mut(place) {
                    contact.guard = Some(guard);
                }
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
                let member = self.order.get(place);
                self.refusals.extend(member.map(|member| (*member, error)));
            }
        }
        Ok(Event::Gone(place))
    }

    /// What has changed while others were waited for.
    fn seen(&self, plan: &Plan) -> Vec<Event> {
        let reached = self.reached();
        let seats = plan.seats().iter().zip(&self.contacts).zip(reached);
        let changed = seats
            .enumerate()
            .filter_map(|(place, ((seat, contact), reached))| {
                let is_held = seat.granted().is_some();
                let is_lost = contact.guard.as_ref().is_none_or(|guard| !guard.is_valid());
                match seat {
                    _ if is_held && is_lost => Some(Event::Gone(place)),
                    Seat::Away if reached => Some(Event::Back(place)),
                    _ => None,
                }
            });
        changed.collect()
    }

    /// Keeps what has the fence, and has the others follow. All of it may have
    /// taken longer than a lease.
    fn hold(&mut self, plan: &Plan, fence: u64) -> End {
        let mut contacts = std::mem::take(&mut self.contacts);
        for (contact, seat) in contacts.iter_mut().zip(plan.seats()) {
            if matches!(seat, Seat::Raised(_)) {
                contact.asking = None;
            }
        }
        let order = std::mem::take(&mut self.order);
        match Hold::begin(self.shared, self.name, self.terms, fence, order, contacts) {
            Some(hold) => End::Held(hold),
            None => End::Retreated,
        }
    }
}

impl Drop for Attempt<'_> {
    /// The gate is left last.
    fn drop(&mut self) {
        while self.contacts.pop().is_some() {}
    }
}

/// Asks a member for the lock, for as long as `slow` says. It is renewed until
/// all is decided, whatever the terms.
pub(crate) fn ask(
    shared: &Arc<Shared>,
    member: usize,
    (owner, key): &Name,
    terms: Terms,
    queueing: Queueing,
    slow: Option<(Duration, Answer)>,
) -> Pending {
    let (shared, owner, key) = (Arc::clone(shared), owner.clone(), Arc::clone(key));
    Box::pin(async move {
        let Some(member) = shared.members.get(member) else {
            return Answer::Gone;
        };
        let terms = Terms {
            renewed: true,
            max_hold: None,
            ..terms
        };
        let lock = member.client.lock_at(&key).with(terms);
        tokio::select! {
            biased;
            taken = lock.ask_as(&owner, Ask::Exclusive, queueing) => {
                if taken.is_ok() && queueing == Queueing::Try {
                    member.is_quick();
                }
                Answer::Took(taken.map(|held| held.map(Guard::new)))
            }
            () = member.gone() => Answer::Gone,
            () = member.silent(shared.slow(terms.lease)), if queueing != Queueing::Try => {
                member.is_slow(shared.slow(terms.lease), shared.limits.response);
                Answer::Gone
            }
            answer = too_slow(slow) => {
                if queueing == Queueing::Try {
                    member.is_slow(shared.slow(terms.lease), shared.limits.response);
                }
                answer
            }
        }
    })
}

async fn too_slow(slow: Option<(Duration, Answer)>) -> Answer {
    match slow {
        Some((time, answer)) => {
            late(time).await;
            answer
        }
        None => std::future::pending().await,
    }
}

/// Raises the fence at a member; its hold has these terms from then on.
pub(crate) fn raise(
    shared: &Arc<Shared>,
    member: usize,
    guard: &Guard,
    fence: u64,
    terms: Terms,
) -> Pending {
    let (shared, raising) = (Arc::clone(shared), guard.held.raising(fence, terms));
    Box::pin(async move {
        let Some(member) = shared.members.get(member) else {
            return Answer::Gone;
        };
        tokio::select! {
            biased;
            raised = raising => Answer::Raised(raised),
            () = member.gone() => Answer::Gone,
            () = late(shared.slow(terms.lease)) => {
                member.is_slow(shared.slow(terms.lease), shared.limits.response);
                Answer::Gone
            }
        }
    })
}

/// The next answer, and whose it is.
pub(crate) async fn next(contacts: &mut [Contact]) -> (usize, Answer) {
    poll_fn(|context| {
        for (place, contact) in contacts.iter_mut().enumerate() {
            if let Some(asking) = &mut contact.asking
                && let Poll::Ready(answer) = asking.as_mut().poll(context)
            {
                contact.asking = None;
                return Poll::Ready((place, answer));
            }
        }
        Poll::Pending
    })
    .await
}
