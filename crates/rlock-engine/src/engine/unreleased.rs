//! The locks that were not released when nobody waited for the outcome: dropped
//! guards, and the holds of a client that is closed.

use std::collections::BTreeMap;

use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::released::Sweep;
use crate::engine::{Action, Engine, Id};
use crate::error::Error;

/// What a flush reports about them, by hold, each until its lease ends.
#[derive(Debug, Default)]
pub(super) struct Unreleased {
    holds: BTreeMap<Id, Rest>,
    sweep: Sweep,
}

/// What was not released of a hold.
#[derive(Debug)]
struct Rest {
    first: String,
    count: usize,
    why: Error,
    until: Instant,
}

impl Unreleased {
    fn add(&mut self, now: Instant, hold: Id, rest: Rest) {
        if self.sweep.is_due(self.holds.len()) {
            self.forget_old(now);
            self.sweep.is_done(self.holds.len());
        }
        self.holds.insert(hold, rest);
    }

    /// It is released after all.
    pub(super) fn forget(&mut self, hold: Id) {
        self.holds.remove(&hold);
    }

    fn forget_old(&mut self, now: Instant) {
        self.holds.retain(|_, rest| rest.until > now);
    }

    /// The error of a flush, if there is one.
    pub(super) fn error(&mut self, now: Instant) -> Option<Error> {
        self.forget_old(now);
        let first = self.holds.values().next()?;
        Some(Error::NotReleased {
            key: first.first.clone(),
            count: self.holds.values().map(|rest| rest.count).sum(),
            source: Box::new(first.why.clone()),
        })
    }
}

impl Engine {
    /// The server refused to release these keys of a hold.
    pub(super) fn not_released(&mut self, now: Instant, id: Id, claims: &Claims, why: &Error) {
        self.actions.push_back(Action::NotReleased {
            claims: claims.clone(),
            reason: why.to_string(),
        });
        self.add_unreleased(now, id, claims, why);
    }

    /// The client ends before it knows that this hold, or a part of its permits, is
    /// released. Without a note: each program that drops a guard at its end would
    /// have one.
    pub(super) fn release_is_cut_off(&mut self, now: Instant, id: Id) {
        let kept = self.holds.get(&id).and_then(|hold| hold.kept);
        let is_kept = kept.is_some_and(|until| until > now);
        if let Some(rest) = self.rest(now, id).filter(|_| !is_kept) {
            self.add_unreleased(now, id, &rest, &Error::Closed);
        }
    }

    fn add_unreleased(&mut self, now: Instant, id: Id, claims: &Claims, why: &Error) {
        let Some(hold) = self.holds.get(&id) else {
            return;
        };
        let rest = Rest {
            first: String::from_utf8_lossy(claims.key()).into_owned(),
            count: claims.count(),
            why: why.clone(),
            until: hold.latest_end(),
        };
        self.unreleased.add(now, id, rest);
    }
}
