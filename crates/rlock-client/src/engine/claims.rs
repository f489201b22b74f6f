//! One owner at all the keys of one request: a single one, or several.
//!
//! Decides when an owner's calls have to take turns, and whether what it
//! holds is what it asks for again. The rest of the crate so treats one key
//! and several alike.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use crate::engine::claim::Claim;
use crate::engine::hold::Hold;
use crate::engine::owner::Owner;
use crate::error::Error;

/// The right to work on all keys of a request. The call that has it may send
/// `ACQUIRE` and `RELEASE` for this owner there; everybody else waits for it.
pub(crate) type Turn = Vec<OwnedMutexGuard<()>>;

/// At least one claim; in the order of their keys if there are several, so
/// that turns are taken in the same order by all.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    first: Arc<Claim>,
    rest: Vec<Arc<Claim>>,
}

/// What an owner holds of the keys that it asks for.
pub(crate) enum Held {
    Nothing,
    /// All of them and no others, by one grant.
    These(Arc<Hold>),
    /// Some of them, or these with others.
    Otherwise(Arc<Hold>),
}

impl Claims {
    pub(crate) fn new(first: Arc<Claim>, rest: Vec<Arc<Claim>>) -> Self {
        Self { first, rest }
    }

    /// The claim that messages about the whole request arrive at.
    pub(crate) fn first(&self) -> &Arc<Claim> {
        &self.first
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Claim>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.iter().map(|claim| &*claim.key)
    }

    pub(crate) fn count(&self) -> usize {
        1 + self.rest.len()
    }

    pub(crate) fn is_single(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.first.owner
    }

    /// The keys for a line of the log.
    pub(crate) fn label(&self) -> String {
        let first = String::from_utf8_lossy(&self.first.key);
        match self.rest.len() {
            0 => first.into_owned(),
            others => format!("{first} and {others} more"),
        }
    }

    /// Waits for all other calls of this owner for any of these keys.
    pub(crate) async fn turn(&self) -> Turn {
        let mut turn = Turn::with_capacity(self.count());
        for claim in self.iter() {
            turn.push(Arc::clone(&claim.turn).lock_owned().await);
        }
        turn
    }

    /// The turn, unless another call of this owner has it.
    pub(crate) fn try_turn(&self) -> Option<Turn> {
        self.iter()
            .map(|claim| Arc::clone(&claim.turn).try_lock_owned().ok())
            .collect()
    }

    /// What the owner holds here already.
    pub(crate) fn held(&self) -> Held {
        let mut holds = self.iter().filter_map(|claim| claim.live_hold());
        let Some(hold) = holds.next() else {
            return Held::Nothing;
        };
        let others = holds.filter(|other| Arc::ptr_eq(other, &hold)).count();
        if others + 1 == self.count() && hold.claims.count() == self.count() {
            Held::These(hold)
        } else {
            Held::Otherwise(hold)
        }
    }

    /// The hold of exactly these keys, if there is one that still counts.
    pub(crate) fn live_hold(&self) -> Option<Arc<Hold>> {
        match self.held() {
            Held::These(hold) => Some(hold),
            Held::Nothing | Held::Otherwise(_) => None,
        }
    }

    /// Whether `hold` is the newest of each of these.
    pub(crate) fn are_held_by(&self, hold: &Arc<Hold>) -> bool {
        self.iter().all(|claim| {
            let newest = claim.hold();
            newest.is_some_and(|newest| Arc::ptr_eq(&newest, hold))
        })
    }

    pub(crate) fn set_hold(&self, hold: &Arc<Hold>) {
        for claim in self.iter() {
            claim.set_hold(hold);
        }
    }

    /// Whether the server said that any part of the grant with this fence was
    /// lost.
    pub(crate) fn is_lost(&self, fence: u64) -> bool {
        self.iter().any(|claim| claim.is_lost(fence))
    }

    /// Why these cannot be asked for while `hold` is there.
    pub(crate) fn conflict(&self, hold: &Hold) -> Error {
        Error::HeldOtherwise {
            owner: self.owner().clone(),
            keys: hold.claims.label(),
        }
    }
}
