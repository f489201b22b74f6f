//! What is held of a quorum: it counts for how long a majority holds, and takes
//! again what was lost of it.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Id;
use crate::engine::claims::Claims;
use crate::engine::instant::{Instant, LateChecks};
use crate::engine::proof::Proof;
use crate::engine::terms::{Queueing, Terms};
use crate::error::Loss;
use crate::session::quorum::members::Members;
use crate::session::quorum::plan::majority;
use crate::session::quorum::question::{Answer, By, Part};
use crate::session::quorum::seats::{Contact, Seats};

/// How often a member that does not hold is asked, at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// One grant by a majority, for as long as there are guards of it.
pub(super) struct Hold {
    id: Id,
    pub(super) claims: Claims,
    pub(super) terms: Terms,
    /// What the guards can tell of the whole. For a bound hold, `look` comes first: only
    /// the proofs of its parts know when their connections were last alive.
    pub(super) proof: Arc<Proof>,
    /// All that counts has the fence, or a larger one. Empty some time after a loss.
    pub(super) contacts: Vec<Contact>,
    /// When its parts are left after its loss, unless its guards end before.
    left_at: Option<Instant>,
    /// Whether its loss was reported.
    pub(super) is_reported: bool,
    late_checks: LateChecks,
    /// Whether it has been reported as at risk since a majority was last renewed.
    is_risk_reported: bool,
    /// Until when they must stay taken at least, guards or not.
    kept: Option<Instant>,
    /// The guards, and the calls that are about to have one.
    pub(super) guards: Vec<Id>,
}

impl Hold {
    /// What was just taken by that call; none if it took longer than it lasts.
    pub(super) fn begin(
        now: Instant,
        members: &mut Members,
        id: Id,
        seats: &mut Seats,
        fence: u64,
    ) -> Option<Self> {
        let until = majority_end(&seats.contacts, |proof| live_end(proof, now))?;
        let until = until_at_most(now, seats.terms, until);
        let claims = seats.claims.clone();
        let hold = Self {
            id,
            proof: Arc::new(Proof::of_several(claims.clone(), fence, now, until)),
            claims,
            terms: seats.terms,
            contacts: std::mem::take(&mut seats.contacts),
            left_at: None,
            is_reported: false,
            late_checks: LateChecks::default(),
            is_risk_reported: false,
            kept: None,
            guards: vec![id],
        };
        for contact in &hold.contacts {
            let part = contact.part.as_ref().map(|part| part.guard);
            for number in contact.asking.into_iter().chain(part) {
                members.pass_on(number, By::Hold(id));
            }
        }
        Some(hold)
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, &Part)> {
        let contacts = self.contacts.iter();
        contacts.filter_map(|contact| Some((contact.member, contact.counted()?)))
    }

    /// Counts again for how long a majority holds; false if it is lost.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let is_over = |part: &Part| part.proof.valid_until().is_none();
        let is_ended =
            |part: &Part| is_over(part) && part.proof.end_of(now) == Some(Loss::EndedByServer);
        for contact in &mut self.contacts {
            contact.was_ended |= contact.counted().is_some_and(is_ended);
        }
        let end = self.end_by(|proof| live_end(proof, now));
        if let Some(end) = end
            && now < end
            && self.proof.set_valid_until(now, end)
        {
            return true;
        }
        // A majority may outlive its longest time.
        let was_ended = self.contacts.iter().any(|contact| contact.was_ended);
        match was_ended && end.is_none() {
            true => drop(self.proof.lose(now)),
            false => self.proof.expire(),
        }
        false
    }

    /// When the parts of a lost hold are left. Others may have it then, so the margin
    /// comes before, unless a server has ended it.
    pub(super) fn leave_at(&mut self, now: Instant) -> Instant {
        let margin = match self.proof.loss(now) {
            Some(Loss::LeaseEnded) => self.terms.margin,
            _ => Duration::ZERO,
        };
        *self.left_at.get_or_insert(now + margin)
    }

    /// Until when it is valid if each part ends at `end_of` it; none if there is no
    /// majority of parts that have an end.
    fn end_by(&self, end_of: impl Fn(&Proof) -> Option<Instant>) -> Option<Instant> {
        let end = majority_end(&self.contacts, end_of)?;
        Some(until_at_most(self.proof.granted, self.terms, end))
    }

    /// A part was renewed. Nothing ends here: what other members have answered may
    /// be unread.
    pub(super) fn extend(&self, now: Instant) {
        if let Some(end) = self.end_by(|proof| proof.running(now)) {
            self.proof.set_valid_until(now, end);
        }
    }

    /// When to look again whether a majority is connected: this process was stopped,
    /// and what has arrived since is not read yet.
    pub(super) fn late_check(&mut self, now: Instant) -> Option<Instant> {
        let quiet = |proof: &Proof| proof.running(now).and(proof.quiet_end());
        let quiet = majority_end(&self.contacts, quiet);
        self.late_checks.look(quiet.filter(|end| *end <= now), now)
    }

    /// For how long a majority holds if nothing more arrives.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        let end = self.end_by(|proof| live_end(proof, now));
        if end.is_none() {
            // What a caller has seen is final, and each part reports its loss.
            for (_, part) in self.parts() {
                _ = part.proof.loss(now);
            }
            // Parts that do not count yet may complete a majority.
            self.proof.expire();
        }
        let end = end.filter(|_| self.proof.is_live(now));
        end.map_or(Duration::ZERO, |end| end - now)
    }

    /// Reports once that no majority has renewed it for half of its lease: for how
    /// long, and what is left. The last lease before `max_hold` is not renewed: it
    /// ends a little before that, as clocks differ, and parts count it from the
    /// request that raised their fence.
    pub(super) fn risk(&mut self, now: Instant) -> Option<(Duration, Duration)> {
        let Terms { lease, margin, .. } = self.terms;
        let (left, most) = (self.remaining(now), lease.saturating_sub(margin));
        let is_late = left <= most.saturating_sub(lease / 2);
        let latest = now + left + margin + lease / 8;
        let max_hold = self.terms.max_hold;
        let is_last = max_hold.is_some_and(|max_hold| self.proof.granted + max_hold <= latest);
        let is_news = is_late && !self.is_risk_reported;
        self.is_risk_reported = is_late;
        let is_reported = is_news && !is_last && self.terms.renewed && !left.is_zero();
        is_reported.then(|| (most.saturating_sub(left), left))
    }

    /// Whether its end leaves the parts taken for a while.
    pub(super) fn is_kept(&self, now: Instant) -> bool {
        self.kept.is_some_and(|until| now < until)
    }

    /// Has its end leave the parts taken until then.
    pub(super) fn keep(&mut self, until: Instant) {
        self.kept = self.kept.max(Some(until));
    }

    /// Ends it on purpose, and gives its parts away.
    pub(super) fn end(&mut self, now: Instant, members: &mut Members) -> Vec<Contact> {
        let kept = self.kept.filter(|_| self.proof.is_live(now));
        self.proof.end(now);
        if let Some(until) = kept {
            // Those too that have not confirmed the fence yet: one of them may be the gate.
            for contact in &self.contacts {
                if let Some(part) = &contact.part {
                    members.keep_until(now, contact.member, part, until);
                }
            }
        }
        std::mem::take(&mut self.contacts)
    }

    /// The terms of a part that is taken now: it ends with the whole.
    pub(super) fn rest_of_terms(&self, now: Instant) -> Terms {
        let held = now - self.proof.granted;
        let left = |bound: Duration| bound.saturating_sub(held).max(Duration::from_millis(1));
        let max_hold = self.terms.max_hold.map(left);
        Terms {
            max_hold,
            ..self.terms
        }
    }

    /// Drops what was lost, and asks for it again; when to do that again.
    pub(super) fn tend(&mut self, now: Instant, members: &mut Members) -> Option<Instant> {
        let until = self.proof.valid_until()?;
        let terms = self.rest_of_terms(now);
        let rare = (terms.lease / 12).clamp(LOOK.0, LOOK.1);
        let half = now + (until - now).saturating_sub(terms.lease / 2);
        let mut alarm = half.max(now + rare.min(terms.lease / 12)).min(until);
        let usable = members.usable(now, Some(terms.lease));
        for contact in &mut self.contacts {
            let part = contact.counted().map(|part| &part.proof);
            if let Some(until) = part.and_then(|it| it.running(now)) {
                alarm = alarm.min(until);
                continue;
            }
            if contact.asking.is_none() {
                contact.leave(now, members);
            }
            // What ends at once is not asked for.
            if terms.renewed && terms.max_hold.is_none_or(|left| left > rare) {
                alarm = alarm.min(now + rare);
                let is_idle = contact.asking.is_none() && contact.again <= now;
                if is_idle && usable.get(contact.member) == Some(&true) {
                    let wanted = (self.claims.clone(), terms);
                    let by = By::Hold(self.id);
                    contact.ask(now, members, by, wanted, (Queueing::Try, true));
                }
            }
        }
        Some(alarm)
    }

    /// The answer of a member that should hold it too: it counts when it has
    /// the fence.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        members: &mut Members,
        question: Id,
        answer: Answer,
    ) {
        let (fence, terms, by) = (
            self.proof.fence(),
            self.rest_of_terms(now),
            By::Hold(self.id),
        );
        let mut contacts = self.contacts.iter_mut();
        let Some(contact) = contacts.find(|it| it.asking == Some(question)) else {
            return;
        };
        contact.asking = None;
        match answer {
            Answer::Granted(part) => {
                contact.part = Some(part);
                // It may have been extended since this was asked for.
                if members.outlives(contact.member, terms.lease) {
                    contact.asking = contact.raise(now, members, by, (fence, terms));
                    return;
                }
            }
            Answer::Done => {
                (contact.failures, contact.again, contact.was_ended) = (0, now, false);
                return;
            }
            Answer::Refused | Answer::Failed(_) | Answer::Gone | Answer::Stuck => {}
        }
        contact.leave(now, members);
        contact.again = now + members.pause_after(&mut contact.failures);
    }
}

/// `end`, or `max_hold` after its grant if that is before.
fn until_at_most(granted: Instant, terms: Terms, end: Instant) -> Instant {
    terms
        .max_hold
        .map_or(end, |max_hold| end.min(granted + max_hold))
}

/// Until when a majority holds it if each part ends at `end_of` it; none if there is
/// no majority of parts that have an end.
fn majority_end(
    contacts: &[Contact],
    end_of: impl Fn(&Proof) -> Option<Instant>,
) -> Option<Instant> {
    let proofs = contacts.iter().filter_map(|it| Some(&it.counted()?.proof));
    let mut ends: Vec<_> = proofs.filter_map(|proof| end_of(proof)).collect();
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.get(majority(contacts.len()).checked_sub(1)?).copied()
}

/// Until when a part is valid; none if it is over.
fn live_end(proof: &Proof, now: Instant) -> Option<Instant> {
    let is_quiet = proof.quiet_end().is_none_or(|end| end <= now);
    proof.valid_until().filter(|_| !is_quiet)
}
