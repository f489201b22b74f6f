//! The locks that were not released when nobody waited for the outcome: dropped
//! guards, and the holds of a client that is closed.

use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::{Action, Engine, Id};
use crate::error::{Error, Loss};

/// What a flush reports about them until the last of their leases ends.
#[derive(Debug)]
pub(super) struct Unreleased {
    first: String,
    count: usize,
    why: Error,
    until: Instant,
}

impl Engine {
    /// The server refused to release locks whose leases end at `lease_end`.
    pub(super) fn not_released(
        &mut self,
        now: Instant,
        claims: &Claims,
        why: &Error,
        lease_end: Instant,
    ) {
        self.actions.push_back(Action::NotReleased {
            claims: claims.clone(),
            reason: why.to_string(),
        });
        self.add_unreleased(now, claims, why, lease_end);
    }

    /// The client ends before it knows that this hold is released. Without a note:
    /// each program that drops a guard at its end would have one.
    pub(super) fn release_is_cut_off(&mut self, now: Instant, id: Id) {
        let is_gone = self.loss(now, id) == Some(Loss::EndedByServer);
        let Some(hold) = self.holds.get(&id).filter(|_| !is_gone) else {
            return;
        };
        let lease_end = hold.latest_end();
        let is_kept = hold.kept.is_some_and(|until| until > now);
        if let Some(rest) = self.newest_part(id).filter(|_| !is_kept) {
            self.add_unreleased(now, &rest, &Error::Closed, lease_end);
        }
    }

    fn add_unreleased(&mut self, now: Instant, claims: &Claims, why: &Error, lease_end: Instant) {
        self.forget_unreleased(now);
        if lease_end <= now {
            return;
        }
        let first = String::from_utf8_lossy(claims.key());
        let known = self.unreleased.get_or_insert_with(|| Unreleased {
            first: first.into_owned(),
            count: 0,
            why: why.clone(),
            until: lease_end,
        });
        known.count += claims.count();
        known.until = known.until.max(lease_end);
    }

    /// Their leases may have ended.
    pub(super) fn forget_unreleased(&mut self, now: Instant) {
        self.unreleased.take_if(|known| known.until <= now);
    }

    /// The error of a flush, if there is one.
    pub(super) fn unreleased(&self) -> Option<Error> {
        self.unreleased.as_ref().map(|known| Error::NotReleased {
            key: known.first.clone(),
            count: known.count,
            source: Box::new(known.why.clone()),
        })
    }
}
