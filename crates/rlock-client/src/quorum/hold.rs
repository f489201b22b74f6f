//! What is held of a quorum, and the task that looks after it: it counts for how
//! long a majority holds, and takes what was lost of it anew.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::select_all;
use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::pause;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Queueing, Terms};
use rlock_engine::error::{Error, Loss};
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use crate::locks::guard::sealed::Grants;
use crate::locks::guard::{Guard, LossSignal};
use crate::pump::{lock, now, timer};
use crate::quorum::acquire::{Answer, Contact, Pending, ask, next, raise};
use crate::quorum::deadline::Deadline;
use crate::quorum::plan::majority;
use crate::quorum::shared::{Name, Shared};

/// How often a member that does not hold is looked at, at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// One grant by a majority, for as long as there are guards of it.
pub(crate) struct Hold {
    pub(crate) shared: Arc<Shared>,
    name: Name,
    /// What the guards can tell of the whole.
    pub(crate) proof: Arc<Proof>,
    taken: Instant,
    /// Whether its parts end with their connections.
    is_bound: bool,
    /// The members by their places.
    order: Vec<usize>,
    parts: Mutex<Parts>,
    /// How many guards there are; none ever again after the last.
    guards: AtomicUsize,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

struct Parts {
    /// By places; all of them have the fence, or a larger one.
    guards: Vec<Option<Guard>>,
    terms: Terms,
    /// Whether a server has ended one of them.
    was_ended: bool,
    /// Until when they are to be taken at least, guards or not.
    kept: Option<Instant>,
}

impl Hold {
    /// What was just taken; none if it took longer than it lasts.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        name: &Name,
        terms: Terms,
        fence: u64,
        order: Vec<usize>,
        mut contacts: Vec<Contact>,
    ) -> Option<Arc<Self>> {
        let now = now();
        let settled = contacts.iter_mut().map(|contact| match contact.asking {
            None => contact.guard.take(),
            Some(_) => None,
        });
        let guards: Vec<_> = settled.collect();
        let until = majority_end(&guards, now)?;
        let claims = Claims::new(name.0.clone(), &name.1, &[]);
        let proof = Arc::new(Proof::of_several(claims, fence, now, until));
        let hold = Arc::new(Self {
            shared: Arc::clone(shared),
            name: name.clone(),
            proof,
            taken: now,
            is_bound: terms.bound.is_some(),
            order,
            parts: Mutex::new(Parts {
                guards,
                terms,
                was_ended: false,
                kept: None,
            }),
            guards: AtomicUsize::new(1),
            keeper: Mutex::new(None),
        });
        let keeper = Keeper {
            hold: Arc::downgrade(&hold),
            again: contacts.iter().map(|_| (0, now)).collect(),
            contacts,
        };
        *lock(&hold.keeper) = Some(shared.runtime.spawn(keeper.keep()));
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
    /// counted until when. The keeper is woken by what servers end, and counts
    /// anew. Bound parts can be over before, so they are looked at.
    pub(crate) fn is_valid(&self) -> bool {
        match self.proof.valid_until() {
            None => false,
            Some(until) => (!self.is_bound && now() < until) || self.look(),
        }
    }

    /// Counts anew for how long a majority holds; false if it is lost.
    pub(crate) fn look(&self) -> bool {
        let now = now();
        let mut parts = lock(&self.parts);
        for guard in parts.guards.iter().flatten() {
            if guard.loss().now() == Some(Loss::EndedByServer) {
                parts.was_ended = true;
                break;
            }
        }
        // They are counted and judged in one piece: between the two, another
        // thread could take them to release them.
        let is_valid = match majority_end(&parts.guards, now) {
            Some(end) => self.proof.set_valid_until(now, end),
            None => false,
        };
        let is_news = !is_valid && self.proof.valid_until().is_some();
        if is_news {
            match parts.was_ended {
                true => drop(self.proof.lose(now)),
                false => self.proof.lapse(),
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

    /// Sets the lease of all parts anew, as far as they can be reached; but of those
    /// that were not extended, as their member might grant again what it forgets.
    pub(crate) async fn renew(&self) {
        let fence = self.proof.fence();
        let (terms, mut contacts) = {
            let parts = lock(&self.parts);
            let terms = parts.terms;
            let askings = parts.guards.iter().zip(&self.order).map(|(guard, member)| {
                let guard = guard.as_ref();
                let guard = guard.filter(|_| self.shared.outlives(*member, terms.lease));
                let asking = guard.map(|guard| {
                    let terms = self.rest_of(terms);
                    raise(&self.shared, *member, guard, fence, terms)
                });
                let guard = None;
                Contact { asking, guard }
            });
            (terms, askings.collect::<Vec<_>>())
        };
        let quorum = majority(self.order.len());
        let mut renewed = 0;
        while renewed < quorum && contacts.iter().any(|contact| contact.asking.is_some()) {
            let (_, answer) = next(&mut contacts).await;
            renewed += usize::from(matches!(answer, Answer::Raised(Ok(()))));
        }
        tracing::trace!(renewed, ?terms);
        self.look();
    }

    /// Has all parts last for at least `lease` from now, but for those at a
    /// member that might grant again what it forgets.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.shared.check_grace(lease)?;
        let begun = Deadline::after(self.shared.limits.retry);
        let extending: Vec<_> = {
            let parts = lock(&self.parts);
            let guards = parts.guards.iter().zip(&self.order);
            let guards = guards.filter(|(_, member)| self.shared.outlives(**member, lease));
            guards
                .filter_map(|(guard, _)| Some(Box::pin(guard.as_ref()?.held.extending(lease))))
                .collect()
        };
        let quorum = majority(self.order.len());
        let (mut rest, mut extended, mut failure) = (extending, 0, None);
        while extended < quorum && !rest.is_empty() {
            let (outcome, _, others) = select_all(rest).await;
            rest = others;
            match outcome {
                Ok(()) => extended += 1,
                Err(error) => failure = Some(error),
            }
        }
        self.look();
        if let Some(loss) = self.proof.end_of(now()) {
            return Err(Error::Lost(loss));
        }
        if extended < quorum {
            let source = Some(self.shared.failure(lease, &[]));
            return Err(failure.unwrap_or_else(|| begun.unavailable(source)));
        }
        let mut parts = lock(&self.parts);
        parts.terms.lease = parts.terms.lease.max(lease);
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
        let loss = self.proof.loss(now());
        let begun = Deadline::after(self.shared.limits.retry);
        let (lease, quorum) = (self.terms().lease, majority(self.order.len()));
        let soon = timer(now() + self.shared.slow(lease));
        let (mut released, mut silent, mut failure) = (0, 0, None);
        let guards = self.end().into_iter().zip(&self.order);
        let usable = self.shared.usable(None);
        let contacts = guards.map(|(guard, member)| {
            let is_held = guard.is_some();
            // It may be better left to the background.
            let guard = guard.filter(|_| usable.get(*member) == Some(&true));
            let asking = guard.map(|guard| self.releasing(*member, guard));
            silent += usize::from(is_held && asking.is_none());
            let guard = None;
            Contact { asking, guard }
        });
        let mut contacts: Vec<_> = contacts.collect();
        // The rest is asked first, and the gate last.
        contacts.reverse();
        while contacts.iter().any(|contact| contact.asking.is_some()) {
            let answer = match released >= quorum {
                true => timeout_at(soon, next(&mut contacts)).await.ok(),
                false => Some(next(&mut contacts).await),
            };
            match answer {
                Some((_, Answer::Raised(Ok(())))) => released += 1,
                Some((_, Answer::Raised(Err(Error::Lost(_))))) => {}
                Some((_, Answer::Raised(Err(error)))) => {
                    silent += 1;
                    failure = Some(error);
                }
                Some((_, Answer::Gone | Answer::Took(_) | Answer::Stuck)) => silent += 1,
                None => break,
            }
        }
        match loss {
            Some(loss) => Err(Error::Lost(loss)),
            None if released >= quorum => Ok(()),
            None if released + silent < quorum => Err(Error::Lost(Loss::EndedByServer)),
            None => {
                let source = Some(self.shared.failure(lease, &[]));
                Err(failure.unwrap_or_else(|| begun.unavailable(source)))
            }
        }
    }

    /// The release of one part.
    fn releasing(&self, member: usize, guard: Guard) -> Pending {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let Some(member) = shared.members.get(member) else {
                return Answer::Gone;
            };
            tokio::select! {
                biased;
                released = guard.release() => Answer::Raised(released),
                () = member.gone() => Answer::Gone,
            }
        })
    }

    fn terms(&self) -> Terms {
        lock(&self.parts).terms
    }

    /// The terms of a part that is taken now.
    fn rest_of(&self, terms: Terms) -> Terms {
        let left = |bound: Duration| bound.saturating_sub(now() - self.taken);
        let max_hold = terms
            .max_hold
            .map(|bound| left(bound).max(Duration::from_millis(1)));
        Terms { max_hold, ..terms }
    }

    /// Who of the members holds it, and until when for certain.
    pub(crate) fn parts(&self) -> Vec<(usize, Duration)> {
        let parts = lock(&self.parts);
        let parts = parts.guards.iter().zip(&self.order);
        let held = parts.filter_map(|(guard, member)| {
            let left = guard.as_ref()?.remaining();
            (!left.is_zero()).then_some((*member, left))
        });
        held.collect()
    }

    /// Leaves the release to the background; the gate is left last.
    pub(crate) fn abandon(&self) {
        let mut guards = self.end();
        while guards.pop().is_some() {}
    }

    /// Ends it on purpose, and gives its parts away.
    fn end(&self) -> Vec<Option<Guard>> {
        if let Some(keeper) = lock(&self.keeper).take() {
            keeper.abort();
            let mut ending = lock(&self.shared.ending);
            ending.retain(|keeper| !keeper.is_finished());
            ending.push(keeper);
        }
        let now = now();
        let (guards, kept) = {
            let mut parts = lock(&self.parts);
            let kept = parts.kept.filter(|_| self.proof.is_live(now));
            // What looks after it may look just now: it finds them gone.
            self.proof.end(now);
            (std::mem::take(&mut parts.guards), kept)
        };
        if let Some(until) = kept {
            let held = guards.iter().flatten();
            held.for_each(|guard| guard.held.keep(until));
        }
        self.proof.wake();
        guards
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.abandon();
        self.shared.forget(&self.name);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.proof)
    }
}

/// Until when a majority holds it; none if there is no majority.
fn majority_end(guards: &[Option<Guard>], now: Instant) -> Option<Instant> {
    let proofs = guards.iter().flatten().map(|guard| guard.held.first());
    let live = proofs.filter(|proof| proof.is_live(now));
    let mut ends: Vec<_> = live.filter_map(|proof| proof.valid_until()).collect();
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.get(majority(guards.len()) - 1).copied()
}

async fn any(losses: Vec<LossSignal>) {
    if !losses.is_empty() {
        select_all(losses).await;
    }
}

/// Looks after a hold for as long as it has guards.
struct Keeper {
    hold: Weak<Hold>,
    /// What is asked of the members that do not hold, by places.
    contacts: Vec<Contact>,
    /// How often they were asked in vain, and when to ask again.
    again: Vec<(u32, Instant)>,
}

impl Keeper {
    async fn keep(mut self) {
        while let Some((losses, alarm)) = self.hold.upgrade().and_then(|hold| self.look(&hold)) {
            tokio::select! {
                (place, answer) = next(&mut self.contacts) => self.take(place, answer),
                () = any(losses) => {}
                () = tokio::time::sleep_until(timer(alarm)) => {}
            }
        }
    }

    /// Drops what was lost, and asks for it again. What to wait for; none if
    /// all is lost.
    fn look(&mut self, hold: &Arc<Hold>) -> Option<(Vec<LossSignal>, Instant)> {
        let (is_valid, now) = (hold.look(), now());
        let (mut over, mut losses) = (Vec::new(), Vec::new());
        let mut parts = lock(&hold.parts);
        for guard in &mut parts.guards {
            let is_over = guard.as_ref().is_some_and(|guard| !guard.is_valid());
            if is_over || !is_valid {
                over.extend(guard.take());
            }
            losses.extend(guard.as_ref().map(Guard::loss));
        }
        let is_missing: Vec<_> = parts.guards.iter().map(Option::is_none).collect();
        let terms = parts.terms;
        drop(parts);
        while over.pop().is_some() {}
        let until = hold.proof.valid_until().filter(|_| is_valid)?;
        let rare = (terms.lease / 12).clamp(LOOK.0, LOOK.1);
        let half = now + (until - now).saturating_sub(terms.lease / 2);
        let mut alarm = half.max(now + rare.min(terms.lease / 12)).min(until);
        if is_missing.contains(&true) && terms.renewed {
            self.take_missing(hold, now, &is_missing, hold.rest_of(terms));
            alarm = alarm.min(now + rare);
        }
        Some((losses, alarm))
    }

    fn take_missing(&mut self, hold: &Hold, now: Instant, is_missing: &[bool], terms: Terms) {
        let usable = hold.shared.usable(Some(terms.lease));
        for (place, is_missing) in is_missing.iter().enumerate() {
            let (Some(contact), Some((_, at))) =
                (self.contacts.get_mut(place), self.again.get(place))
            else {
                continue;
            };
            let is_idle = contact.asking.is_none() && *is_missing && *at <= now;
            if let Some(member) = hold.order.get(place).copied()
                && is_idle
                && usable.get(member) == Some(&true)
            {
                let slow = Some((hold.shared.slow(terms.lease), Answer::Gone));
                let try_ = Queueing::Try;
                contact.asking = Some(ask(&hold.shared, member, &hold.name, terms, try_, slow));
            }
        }
    }

    /// A part counts when it has the fence.
    fn take(&mut self, place: usize, answer: Answer) {
        let Some(hold) = self.hold.upgrade() else {
            return;
        };
        let (Some(contact), Some(again)) =
            (self.contacts.get_mut(place), self.again.get_mut(place))
        else {
            return;
        };
        match answer {
            Answer::Took(Ok(Some(guard))) => {
                let (fence, terms) = (hold.proof.fence(), hold.rest_of(hold.terms()));
                // It may have been extended since this was asked for.
                if let Some(member) = hold.order.get(place)
                    && hold.shared.outlives(*member, terms.lease)
                {
                    contact.asking = Some(raise(&hold.shared, *member, &guard, fence, terms));
                    contact.guard = Some(guard);
                }
            }
            Answer::Raised(Ok(())) => {
                *again = (0, now());
                let mut parts = lock(&hold.parts);
                if let Some(part) = parts.guards.get_mut(place) {
                    *part = contact.guard.take();
                }
            }
            Answer::Took(_) | Answer::Raised(Err(_)) | Answer::Gone | Answer::Stuck => {
                contact.guard = None;
                let random = uuid::Uuid::new_v4().as_u64_pair().0;
                *again = (again.0.saturating_add(1), now() + pause(again.0, random));
            }
        }
    }
}
