//! Which message of the server concerns which claim.
//!
//! All waiters of a client listen on its one channel. A message names owner
//! and key, and wakes exactly the one it is for; nothing polls. This file
//! knows who listens, not what a message means to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::claim::Claim;
use crate::notice;
use crate::sync::lock;

/// Every claim of a client that somebody works with, by `<owner> <key>`.
#[derive(Debug, Default)]
pub(crate) struct Wakeups(Mutex<HashMap<Arc<[u8]>, Weak<Claim>>>);

impl Wakeups {
    /// The claim of that name, made by `make` if there is none.
    pub(crate) fn claim(&self, name: &Arc<[u8]>, make: impl FnOnce() -> Claim) -> Arc<Claim> {
        let mut claims = lock(&self.0);
        if let Some(claim) = claims.get(name).and_then(Weak::upgrade) {
            return claim;
        }
        let claim = Arc::new(make());
        claims.insert(Arc::clone(name), Arc::downgrade(&claim));
        claim
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

    /// Hands a message to the claim that it is for.
    pub(crate) fn route(&self, message: &[u8]) {
        let Some(notice) = notice::read(message) else {
            tracing::warn!(message = %String::from_utf8_lossy(message), "unknown message");
            return;
        };
        // The guard of the map is gone before the claim is used: dropping the
        // last handle on it comes back here.
        let claim = lock(&self.0).get(notice.name).and_then(Weak::upgrade);
        if let Some(claim) = claim {
            claim.deliver(notice.event, notice.fence);
        }
    }
}
