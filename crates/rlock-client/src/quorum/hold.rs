//! What is held of a quorum, and the task that looks after it: it counts for how
//! long a majority holds, and takes again what was lost of it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Queueing, Terms};
use rlock_engine::error::{Error, Loss};
use tokio::time::timeout_at;

use crate::locks::guard::sealed::Grants;
use crate::locks::guard::{Guard, LossSignal};
use crate::pump::{lock, now, pause_after, timer};
use crate::quorum::HoldingMember;
use crate::quorum::members::{Members, answer_timeout};
use crate::quorum::plan::majority;
use crate::quorum::seats::{Answer, Pending, Seats, poll_next};

/// How often a member that does not hold is asked, at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Who asks, and for which key.
pub(crate) type Name = (Owner, Arc<[u8]>);

/// The calls of one owner for one key take turns. It is known for as long as
/// there is a call or a hold.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) members: Arc<Members>,
    pub(crate) name: Name,
    /// What the owner holds; locked while one of its calls asks for it.
    pub(crate) held: tokio::sync::Mutex<Weak<Hold>>,
}

impl Turn {
    pub(crate) fn of(members: &Arc<Members>, name: Name) -> Arc<Self> {
        let mut turns = lock(&members.turns);
        if let Some(turn) = turns.get(&name).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Self {
            members: Arc::clone(members),
            name: name.clone(),
            held: tokio::sync::Mutex::default(),
        });
        turns.insert(name, Arc::downgrade(&turn));
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = lock(&self.members.turns);
        // There may be another one already.
        let turn = turns.get(&self.name);
        if turn.is_some_and(|turn| turn.strong_count() == 0) {
            turns.remove(&self.name);
        }
    }
}

/// One grant by a majority, for as long as there are guards of it.
pub(crate) struct Hold {
    turn: Arc<Turn>,
    /// What the guards can tell of the whole.
    pub(crate) proof: Arc<Proof>,
    /// Whether its parts end with their connections.
    is_bound: bool,
    parts: Mutex<Parts>,
    /// How many guards there are; none ever again after the last.
    guards: AtomicUsize,
}

struct Parts {
    /// All that counts has the fence, or a larger one. Empty when it was ended.
    seats: Seats,
    /// Whether a server has ended one of them.
    was_ended: bool,
    /// Until when they must stay taken at least, guards or not.
    kept: Option<Instant>,
    /// Whether what is asked is being polled, which is done without the lock.
    is_heard: bool,
}

impl Hold {
    /// What was just taken; none if it took longer than it lasts.
    pub(crate) fn begin(seats: &mut Seats, fence: u64) -> Option<Arc<Self>> {
        let now = now();
        let until = majority_end(seats, now)?;
        let turn = Arc::clone(&seats.turn);
        let claims = Claims::new(turn.name.0.clone(), &turn.name.1, &[]);
        let hold = Arc::new(Self {
            proof: Arc::new(Proof::of_several(claims, fence, now, until)),
            is_bound: seats.terms.bound.is_some(),
            parts: Mutex::new(Parts {
                seats: seats.take(),
                was_ended: false,
                kept: None,
                is_heard: false,
            }),
            guards: AtomicUsize::new(1),
            turn,
        });
        let runtime = &hold.turn.members.runtime;
        drop(runtime.spawn(Arc::clone(&hold).look_after()));
        Some(hold)
    }

    /// One more guard; false if the last is gone.
    pub(crate) fn enter(&self) -> bool {
        let one_more = |guards: usize| (guards > 0).then_some(guards + 1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.guards.fetch_update(set, fetch, one_more).is_ok()
    }

    /// One guard less; whether it was the last.
    pub(crate) fn leave(&self) -> bool {
        self.guards.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether a majority holds it now: a comparison with the clock, as it is
    /// counted until when. What looks after it is woken by what servers end, and
    /// counts again. Bound parts can be over before, so they are looked at.
    pub(crate) fn is_valid(&self) -> bool {
        match self.proof.valid_until() {
            None => false,
            Some(until) => (!self.is_bound && now() < until) || self.look(),
        }
    }

    /// Counts again for how long a majority holds; false if it is lost.
    pub(crate) fn look(&self) -> bool {
        let now = now();
        let mut parts = lock(&self.parts);
        let is_ended = |guard: &Guard| guard.held.first().end_of(now) == Some(Loss::EndedByServer);
        let was_ended = parts.seats.parts().any(is_ended);
        parts.was_ended |= was_ended;
        // They are counted and judged in one piece: between the two, another
        // thread could take them to release them.
        let is_valid = match majority_end(&parts.seats, now) {
            Some(end) => self.proof.set_valid_until(now, end),
            None => false,
        };
        let is_news = !is_valid && self.proof.valid_until().is_some();
        if is_news {
            match parts.was_ended {
                true => drop(self.proof.lose(now)),
                false => self.proof.expire(),
            }
        }
        drop(parts);
        if is_news {
            let (fence, loss) = (self.proof.fence(), self.proof.loss(now));
            tracing::warn!(claims = ?self.proof.claims, fence, ?loss, "lock of a quorum lost");
            self.proof.wake();
        }
        is_valid
    }

    /// Sets the lease of all parts again, as far as they can be reached; but of those
    /// that were not extended, because their member might grant again what it forgets.
    pub(crate) async fn renew(&self) {
        let members = &self.turn.members;
        let mut renewing: FuturesUnordered<_> = {
            let seats = &lock(&self.parts).seats;
            let (fence, terms) = (self.proof.fence(), self.rest_of(seats.terms));
            let parts = seats.contacts.iter().filter(|it| it.part().is_some());
            let parts = parts.filter(|it| members.outlives(&it.member, terms.lease));
            parts.filter_map(|it| it.raise(fence, terms)).collect()
        };
        let mut renewed = 0;
        while renewed < members.majority()
            && let Some(answer) = renewing.next().await
        {
            renewed += usize::from(matches!(answer, Answer::Raised(Ok(()))));
        }
        tracing::trace!(renewed);
        self.look();
    }

    /// Has all parts last for at least `lease` from now, except those at a
    /// member that might grant again what it forgets.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let (begun, members) = (now(), &self.turn.members);
        members.check_grace(lease)?;
        let mut extending: FuturesUnordered<_> = {
            let seats = &lock(&self.parts).seats;
            let contacts = seats.contacts.iter();
            let lasting = contacts.filter(|it| members.outlives(&it.member, lease));
            lasting
                .filter_map(|it| Some(it.part()?.held.extending(lease)))
                .collect()
        };
        let (mut extended, mut failure) = (0, None);
        while extended < members.majority()
            && let Some(outcome) = extending.next().await
        {
            match outcome {
                Ok(()) => extended += 1,
                Err(error) => failure = Some(error),
            }
        }
        self.look();
        if let Some(loss) = self.proof.end_of(now()) {
            return Err(Error::Lost(loss));
        }
        if extended < members.majority() {
            return Err(failure.unwrap_or_else(|| members.unavailable(begun, lease, &[])));
        }
        let terms = &mut lock(&self.parts).seats.terms;
        terms.lease = terms.lease.max(lease);
        Ok(())
    }

    /// Has its end leave the parts taken until then.
    pub(crate) fn keep(&self, until: Instant) {
        let mut parts = lock(&self.parts);
        parts.kept = parts.kept.max(Some(until));
    }

    /// Releases all parts. Once a majority has, it waits for those only that
    /// answer soon.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        self.look();
        let (begun, loss, members) = (now(), self.proof.loss(now()), &self.turn.members);
        let (mut seats, usable) = (self.end(), members.usable(None));
        let (lease, quorum) = (seats.terms.lease, members.majority());
        let soon = timer(begun + answer_timeout(members.limits, lease));
        let (mut released, mut silent, mut failure) = (0, 0, None);
        let mut releasing = FuturesUnordered::new();
        // The rest is asked first, and the gate last.
        while let Some(contact) = seats.contacts.pop() {
            if contact.part().is_none() {
                continue;
            }
            let (member, guard) = (contact.member, contact.guard);
            match guard.filter(|_| usable(&member)) {
                Some(guard) => releasing.push(async move {
                    tokio::select! {
                        biased;
                        released = guard.release() => Some(released),
                        () = member.gone() => None,
                    }
                }),
                // It is better left to the background.
                None => silent += 1,
            }
        }
        loop {
            let answer = match released >= quorum {
                true => timeout_at(soon, releasing.next()).await.ok().flatten(),
                false => releasing.next().await,
            };
            match answer {
                Some(Some(Ok(()))) => released += 1,
                Some(Some(Err(Error::Lost(_)))) => {}
                Some(Some(Err(error))) => {
                    silent += 1;
                    failure = Some(error);
                }
                Some(None) => silent += 1,
                None => break,
            }
        }
        match loss {
            Some(loss) => Err(Error::Lost(loss)),
            None if released >= quorum => Ok(()),
            None if released + silent < quorum => Err(Error::Lost(Loss::EndedByServer)),
            None => Err(failure.unwrap_or_else(|| members.unavailable(begun, lease, &[]))),
        }
    }

    /// The terms of a part that is taken now.
    fn rest_of(&self, terms: Terms) -> Terms {
        let held = now() - self.proof.granted;
        let left = |bound: Duration| bound.saturating_sub(held).max(Duration::from_millis(1));
        let max_hold = terms.max_hold.map(left);
        Terms { max_hold, ..terms }
    }

    /// The members that hold it, and until when for certain.
    pub(crate) fn members(&self) -> Vec<HoldingMember> {
        let parts = lock(&self.parts);
        let contacts = parts.seats.contacts.iter();
        let held = contacts.filter_map(|contact| {
            let remaining = contact.part()?.remaining();
            let address = contact.member.address();
            (!remaining.is_zero()).then_some(HoldingMember { address, remaining })
        });
        held.collect()
    }

    /// Ends it on purpose, and gives its parts away. What is left of them is
    /// released in the background.
    pub(crate) fn end(&self) -> Seats {
        let now = now();
        let mut parts = lock(&self.parts);
        let kept = parts.kept.filter(|_| self.proof.is_live(now));
        // What looks after it may look just now: it finds them gone.
        self.proof.end(now);
        let seats = parts.seats.take();
        if std::mem::replace(&mut parts.is_heard, false) {
            self.turn.members.unheard.fetch_add(1, Ordering::AcqRel);
        }
        drop(parts);
        if let Some(until) = kept {
            seats.parts().for_each(|guard| guard.held.keep_until(until));
        }
        self.proof.wake();
        seats
    }

    /// Looks after it for as long as it is held.
    async fn look_after(self: Arc<Self>) {
        while let Some((mut losses, alarm)) = self.tend() {
            tokio::select! {
                () = poll_fn(|context| self.hear(context)) => {}
                _ = losses.next() => {}
                () = tokio::time::sleep_until(timer(alarm)) => {}
            }
        }
    }

    /// Drops what was lost, and asks for it again. What to wait for; none if
    /// all is lost.
    fn tend(&self) -> Option<(FuturesUnordered<LossSignal>, Instant)> {
        let (is_valid, now) = (self.look(), now());
        let (mut losses, mut lost) = (FuturesUnordered::new(), Vec::new());
        let mut parts = lock(&self.parts);
        let seats = &mut parts.seats;
        let Some(until) = self.proof.valid_until().filter(|_| is_valid) else {
            let all = seats.take();
            drop(parts);
            drop(all);
            return None;
        };
        losses.push(LossSignal::of([&self.proof]));
        let (turn, terms) = (&self.turn, self.rest_of(seats.terms));
        let rare = (terms.lease / 12).clamp(LOOK.0, LOOK.1);
        let half = now + (until - now).saturating_sub(terms.lease / 2);
        let mut alarm = half.max(now + rare.min(terms.lease / 12)).min(until);
        let usable = turn.members.usable(Some(terms.lease));
        for contact in &mut seats.contacts {
            if contact.part().is_some_and(|guard| !guard.is_valid()) {
                lost.extend(contact.guard.take());
            }
            losses.extend(contact.part().map(Guard::loss));
            if contact.part().is_none() && terms.renewed {
                alarm = alarm.min(now + rare);
                let is_idle = contact.asking.is_none() && contact.again <= now;
                if is_idle && usable(&contact.member) {
                    let asking = contact.ask(&turn.name, terms, Queueing::Try, true);
                    contact.asking = Some(asking);
                }
            }
        }
        // To drop a guard may run any waker, and that code may look at this hold.
        drop(parts);
        drop(lost);
        Some((losses, alarm))
    }

    /// The next answer of a member that should hold it too: it counts when it has
    /// the fence. What was ended hears none.
    fn hear(&self, context: &mut Context<'_>) -> Poll<()> {
        // To poll a question may run any waker, and that code may look at this hold.
        // So the questions are polled without the lock. Another future stands in
        // for each meanwhile, so that what is asked does not count as held.
        let mut parts = lock(&self.parts);
        parts.is_heard = true;
        let questions = parts.seats.questions().map(|question| {
            let standing_in: Pending = Box::pin(std::future::pending());
            let asking = question.as_mut()?;
            Some(std::mem::replace(asking, standing_in))
        });
        let mut questions: Vec<_> = questions.collect();
        drop(parts);
        let answer = poll_next(questions.iter_mut(), context);
        let mut parts = lock(&self.parts);
        let was_ended = !std::mem::replace(&mut parts.is_heard, false);
        if was_ended {
            drop(parts);
            drop((questions, answer));
            self.turn.members.unheard.fetch_sub(1, Ordering::AcqRel);
            return Poll::Ready(());
        }
        let seats = &mut parts.seats;
        for (question, polled) in seats.questions().zip(questions) {
            *question = polled;
        }
        let (members, terms) = (&self.turn.members, self.rest_of(seats.terms));
        let Poll::Ready((place, answer)) = answer else {
            return Poll::Pending;
        };
        let Some(contact) = seats.contacts.get_mut(place) else {
            return Poll::Ready(());
        };
        let mut left = None;
        match answer {
            // It may have been extended since this was asked for.
            Answer::Took(Ok(Some(guard))) if members.outlives(&contact.member, terms.lease) => {
                left = contact.guard.replace(guard);
                contact.asking = contact.raise(self.proof.fence(), terms);
            }
            Answer::Raised(Ok(())) => (contact.failures, contact.again) = (0, now()),
            Answer::Took(_) | Answer::Raised(Err(_)) | Answer::Gone | Answer::Stuck => {
                left = contact.guard.take();
                contact.again = now() + pause_after(&mut contact.failures);
            }
        }
        drop(parts);
        drop(left);
        Poll::Ready(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Until when a majority holds it; none if there is no majority.
fn majority_end(seats: &Seats, now: Instant) -> Option<Instant> {
    let proofs = seats.parts().map(|guard| guard.held.first());
    let live = proofs.filter(|proof| proof.is_live(now));
    let mut ends: Vec<_> = live.filter_map(|proof| proof.valid_until()).collect();
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.get(majority(seats.contacts.len()) - 1).copied()
}
