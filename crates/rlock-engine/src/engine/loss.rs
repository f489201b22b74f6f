//! How what is held is found to be lost: by the clock, or by the server's word.

use std::sync::Arc;

use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::{Action, Engine, Id};
use crate::error::Loss;

impl Engine {
    /// Whether the server said that any part of the grant with this fence was
    /// lost.
    pub(super) fn is_lost(&self, claims: &Claims, fence: u64) -> bool {
        let mut claims = claims.names().filter_map(|name| self.claims.get(name));
        claims.any(|claim| claim.fence_lost >= fence)
    }

    /// An upgrade that was granted too late has been undone.
    pub(super) fn undone(&mut self, now: Instant, id: Id, fence: u64) {
        let Some(hold) = self.holds.get(&id) else {
            return;
        };
        hold.proof.set_fence(hold.proof.fence().max(fence));
        if self.is_lost(&hold.proof.claims.clone(), fence) {
            self.lose(now, id);
        }
    }

    /// Whether the server means this very grant by `fence`, which it named to a
    /// request that was made while the fence was `asked_under`. If not, it was
    /// lost.
    pub(super) fn is_confirmed(
        &mut self,
        now: Instant,
        id: Id,
        fence: Option<u64>,
        asked_under: u64,
    ) -> bool {
        let Some(hold) = self.holds.get(&id) else {
            return false;
        };
        let known = hold.proof.fence();
        if let Some(fence) = fence.filter(|fence| hold.raised == Some(*fence)) {
            hold.proof.set_fence(fence.max(known));
            return true;
        }
        // The grant of an upgrade may be told here before the call that waits
        // for it. It cannot be a grant that followed a loss: that is told
        // before, and what is lost stays lost.
        let is_meant =
            |fence| fence == known || fence == asked_under || (hold.is_upgrading && fence > known);
        if fence.is_some_and(is_meant) {
            return true;
        }
        let (claims, lease) = (hold.proof.claims.clone(), hold.terms.lease);
        self.lose(now, id);
        if fence.is_some() {
            // Nobody waits for this grant: the server knows another one of this
            // owner than this process does.
            self.give_back(now, claims, lease);
        }
        false
    }

    /// Why it is lost, if it is, judged now.
    pub(super) fn loss(&mut self, now: Instant, id: Id) -> Option<Loss> {
        let hold = self.holds.get_mut(&id)?;
        let loss = hold.proof.loss(now)?;
        if !std::mem::replace(&mut hold.is_told, true) {
            let proof = Arc::clone(&hold.proof);
            let why = loss;
            self.actions.push_back(Action::Over { proof, why });
            self.metrics.losses += 1;
        }
        Some(loss)
    }

    /// The server has ended it, unless it is over already, by the clock too.
    pub(super) fn lose(&mut self, now: Instant, id: Id) {
        if let Some(hold) = self.holds.get(&id) {
            hold.proof.lose(now);
            self.loss(now, id);
            self.stop_renewing(id);
        }
    }

    /// Ends it on purpose: from here nothing renews it and nothing is a loss.
    pub(super) fn end_hold(&mut self, now: Instant, id: Id) {
        if let Some(hold) = self.holds.get(&id) {
            hold.proof.end(now);
            if hold.proof.is_awaited() {
                let (proof, why) = (Arc::clone(&hold.proof), Loss::Released);
                self.actions.push_back(Action::Over { proof, why });
            }
            self.stop_renewing(id);
        }
    }
}
