//! Which message of the server concerns which claim.
//!
//! All waiters of a client listen on its one channel. A message names owner
//! and key, and wakes exactly the one it is for; nothing polls. This file
//! knows who listens, not what a message means to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::engine::claim::{Claim, Event, Said};
use crate::engine::claims::Claims;
use crate::engine::hold::Hold;
use crate::engine::owner::Owner;
use crate::engine::sync::lock;

/// Every claim of a client that somebody works with, by `<owner> <key>`.
#[derive(Debug, Default)]
pub(crate) struct Wakeups(Mutex<HashMap<Arc<[u8]>, Weak<Claim>>>);

impl Wakeups {
    /// The claims of `owner` at these keys.
    pub(crate) fn claims(
        self: &Arc<Self>,
        key: &Arc<[u8]>,
        rest: &[Arc<[u8]>],
        owner: &Owner,
    ) -> Claims {
        let rest = rest.iter().map(|key| self.claim(key, owner));
        Claims::new(self.claim(key, owner), rest.collect())
    }

    /// The one claim of `owner` at `key`.
    fn claim(self: &Arc<Self>, key: &Arc<[u8]>, owner: &Owner) -> Arc<Claim> {
        let name: Arc<[u8]> = name(owner.as_str(), key).into();
        let mut claims = lock(&self.0);
        if let Some(claim) = claims.get(&name).and_then(Weak::upgrade) {
            return claim;
        }
        let (wakeups, key) = (Arc::downgrade(self), Arc::clone(key));
        let claim = Claim::new(wakeups, owner.clone(), key, Arc::clone(&name));
        let claim = Arc::new(claim);
        claims.insert(name, Arc::downgrade(&claim));
        claim
    }

    /// Every hold that still counts, once each.
    pub(crate) fn live_holds(&self) -> Vec<Arc<Hold>> {
        let mut holds = Vec::new();
        for claim in self.all() {
            // A hold of several keys is met at each of its claims.
            let hold = claim.live_hold();
            holds.extend(hold.filter(|hold| Arc::ptr_eq(hold.claims.first(), &claim)));
        }
        holds
    }

    /// Forgets a claim that is being dropped, but not a newer one that took
    /// its name in the meantime.
    pub(crate) fn forget(&self, claim: &Claim) {
        let mut claims = lock(&self.0);
        if claims
            .get(&claim.name)
            .is_some_and(|known| std::ptr::eq(known.as_ptr(), claim))
        {
            claims.remove(&claim.name);
        }
    }

    /// Every claim there is now.
    pub(crate) fn all(&self) -> Vec<Arc<Claim>> {
        lock(&self.0).values().filter_map(Weak::upgrade).collect()
    }

    /// Hands what the server says to the claim of that name. If it is a grant
    /// that nobody waits for, its claims come back.
    pub(crate) fn deliver(self: &Arc<Self>, name: &[u8], said: Said) -> Option<Claims> {
        // The guard of the map is gone before the claim is used: dropping the
        // last handle on it comes back here.
        let claim = lock(&self.0).get(name).and_then(Weak::upgrade);
        match claim {
            Some(claim) => (!claim.deliver(said)).then(|| Claims::new(claim, Vec::new())),
            None if said.event == Event::Grant => {
                let (owner, key) = split(name)?;
                Some(self.claims(&key.into(), &[], &owner))
            }
            None => None,
        }
    }
}

/// The owner and the key of a name.
fn split(name: &[u8]) -> Option<(Owner, &[u8])> {
    let end = name.iter().position(|byte| *byte == b' ')?;
    let owner = std::str::from_utf8(name.get(..end)?).ok()?;
    Some((Owner::new(owner).ok()?, name.get(end + 1..)?))
}

/// The name under which messages speak of `owner` at `key`.
pub(crate) fn name(owner: &str, key: &[u8]) -> Vec<u8> {
    [owner.as_bytes(), b" ", key].concat()
}
