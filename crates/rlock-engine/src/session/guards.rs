//! What a call was granted: one grant, or one for each of several keys.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Id;
use crate::engine::instant::Instant;
use crate::engine::proof::Proof;
use crate::engine::terms::{Ask, whole_ms_or_zero};
use crate::error::{Error, Loss};

/// The grant of one request.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) proof: Arc<Proof>,
    /// What the guard needs, which may be less than how the lock is held.
    pub(super) ask: Ask,
    /// The number of the request.
    pub(super) part: Id,
}

/// What a caller holds.
#[derive(Debug)]
pub(super) struct Guard {
    first: Grant,
    /// One more for each further key that was taken by itself.
    rest: Vec<Grant>,
    /// The calls that make it exclusive; some may have ended.
    pub(super) upgrades: Vec<Id>,
    /// Whether its end was reported.
    pub(super) is_over: bool,
    /// The end of its validity when it was last reported as at risk.
    risk: Option<Instant>,
}

impl Guard {
    pub(super) fn new(first: Grant, rest: Vec<Grant>) -> Self {
        Self {
            first,
            rest,
            upgrades: Vec::new(),
            is_over: false,
            risk: None,
        }
    }

    pub(super) fn first(&self) -> &Grant {
        &self.first
    }

    pub(super) fn first_mut(&mut self) -> &mut Grant {
        &mut self.first
    }

    pub(super) fn grants(&self) -> impl Iterator<Item = &Grant> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(super) fn into_grants(self) -> impl Iterator<Item = Grant> {
        std::iter::once(self.first).chain(self.rest)
    }

    pub(super) fn has(&self, hold: Id) -> bool {
        self.grants().any(|grant| grant.proof.hold == hold)
    }

    pub(super) fn count(&self) -> usize {
        1 + self.rest.len()
    }

    pub(super) fn proofs(&self) -> Proofs {
        let rest = self.rest.iter().map(|grant| Arc::clone(&grant.proof));
        Proofs {
            first: Arc::clone(&self.first.proof),
            rest: rest.collect(),
        }
    }

    /// Why it is lost; none if it is not lost.
    pub(super) fn loss(&self, now: Instant) -> Option<Loss> {
        self.grants().find_map(|grant| grant.proof.loss(now))
    }

    pub(super) fn remaining(&self, now: Instant) -> Duration {
        let left = self.grants().map(|grant| grant.proof.remaining(now));
        left.min().unwrap_or_default()
    }

    /// Whether one of its grants is at risk, and that was not reported since a
    /// renewal moved the end of its validity.
    pub(super) fn is_newly_at_risk(&mut self) -> bool {
        let ends = self.grants().filter_map(|grant| grant.proof.valid_until());
        let end = ends.min();
        std::mem::replace(&mut self.risk, end) != end
    }

    /// Until when it must stay taken, for `least` since its last grant.
    pub(super) fn kept_until(&self, least: Duration) -> Result<Instant, Error> {
        let least = whole_ms_or_zero("least", least)?;
        let granted = self.grants().map(|grant| grant.proof.granted).max();
        Ok(granted.unwrap_or(self.first.proof.granted) + least)
    }

    /// Its grant, if it can be exclusive or shared: a single key, without
    /// permits.
    pub(super) fn one(&mut self) -> Result<&mut Grant, Error> {
        match self.first.ask {
            _ if !self.is_single() => Err(not_of_mode(Ask::Shared, "exclusive for several keys")),
            Ask::Exclusive | Ask::Shared => Ok(&mut self.first),
            permits @ Ask::Permits { .. } => Err(not_of_mode(permits, "exclusive or shared")),
        }
    }

    /// Checks that it has a single key, exclusively, so that a value can be
    /// published.
    pub(super) fn check_alone(&self) -> Result<(), Error> {
        match self.first.ask {
            _ if !self.is_single() => Err(Error::OutOfRange {
                argument: "keys",
                value: "several".to_owned(),
                limit: "1 key, to publish a value".into(),
            }),
            Ask::Exclusive => Ok(()),
            other => Err(not_of_mode(other, "exclusive, to publish a value")),
        }
    }

    fn is_single(&self) -> bool {
        self.rest.is_empty() && self.first.proof.claims.is_single()
    }
}

fn not_of_mode(ask: Ask, limit: &'static str) -> Error {
    Error::OutOfRange {
        argument: "mode",
        value: format!("{ask:?}"),
        limit: limit.into(),
    }
}

/// What the holder of a guard can check at any time, without the session: one
/// proof for each grant, in the order of their keys.
#[derive(Clone, Debug)]
pub struct Proofs {
    first: Arc<Proof>,
    rest: Vec<Arc<Proof>>,
}

impl Proofs {
    #[cfg(feature = "quorum")]
    pub(super) fn of_one(proof: &Arc<Proof>) -> Self {
        let (first, rest) = (Arc::clone(proof), Vec::new());
        Self { first, rest }
    }

    /// The proof of the first key.
    #[must_use]
    pub fn first(&self) -> &Arc<Proof> {
        &self.first
    }

    /// The same, and the others.
    #[must_use]
    pub fn into_parts(self) -> (Arc<Proof>, Vec<Arc<Proof>>) {
        (self.first, self.rest)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Proof>> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}
