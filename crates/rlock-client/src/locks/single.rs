//! One grant as one of its guards uses it.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::ask::{Ask, Queueing};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Terms, whole_ms};
use rlock_engine::engine::{Event, Outcome};
use rlock_engine::error::Error;

use crate::locks::guard::sealed::Grants;
use crate::locks::lock::ask_for;
use crate::pump::call::call;
use crate::pump::state::Inner;

/// Uses a hold until it is released or dropped. Other guards of the same owner
/// may use the same one.
pub struct Single {
    inner: Arc<Inner>,
    proof: Arc<Proof>,
    /// What this guard needs, which may be less than how the lock is held.
    ask: Ask,
    open: bool,
}

impl Single {
    pub(crate) fn new(inner: Arc<Inner>, proof: Arc<Proof>, ask: Ask) -> Self {
        let open = true;
        Self {
            inner,
            proof,
            ask,
            open,
        }
    }

    pub(crate) fn ask(&self) -> Ask {
        self.ask
    }

    /// Leaves it as it is.
    pub(crate) fn forget(mut self) {
        self.open = false;
    }

    /// Asks for more of what this one holds.
    pub(crate) async fn asking_for(
        &self,
        ask: Ask,
        queueing: Queueing,
    ) -> Result<Option<Self>, Error> {
        let claims = self.proof.claims.clone();
        // The engine goes by the terms of the hold that is there.
        ask_for(&self.inner, claims, ask, Terms::default(), queueing).await
    }

    /// Needs the lock in shared mode only from now on, which lets others in
    /// unless another guard of this owner needs more.
    pub(crate) async fn share(&mut self) -> Result<(), Error> {
        self.ask = Ask::Shared;
        let hold = self.proof.hold;
        let downgrade = |call| Event::Downgrade { call, hold };
        done(call(&self.inner.state, None, downgrade).await)
    }

    /// Has it last for at least `lease` from now, without keeping it.
    pub(crate) fn extending(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (inner, hold) = (Arc::clone(&self.inner), self.proof.hold);
        async move {
            let lease = whole_ms("lease", lease)?;
            let extend = |call| Event::Extend { call, hold, lease };
            done(call(&inner.state, None, extend).await)
        }
    }

    /// Raises the fence to at least `fence`, and sets the lease anew; held on
    /// `terms` from then on. It is not kept meanwhile.
    #[cfg(feature = "quorum")]
    pub(crate) fn raising(
        &self,
        fence: u64,
        terms: Terms,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (inner, hold) = (Arc::clone(&self.inner), self.proof.hold);
        async move {
            let raise = |call| Event::Raise {
                call,
                hold,
                fence,
                terms,
            };
            done(call(&inner.state, None, raise).await)
        }
    }
}

impl Grants for Single {
    fn first(&self) -> &Arc<Proof> {
        &self.proof
    }

    fn extend(&self, lease: Duration) -> impl Future<Output = Result<(), Error>> + Send {
        self.extending(lease)
    }

    fn keep(&self, until: Instant) {
        let hold = self.proof.hold;
        self.inner.state.tell(Event::Keep { hold, until });
    }

    async fn release(mut self) -> Result<(), Error> {
        let (hold, ask) = (self.proof.hold, self.ask);
        self.open = false;
        let release = |call| Event::Release { call, hold, ask };
        done(call(&self.inner.state, None, release).await)
    }
}

/// What became of a call that is granted nothing.
fn done(outcome: Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Failed(error) => Err(error),
        Outcome::Granted(_) | Outcome::Refused | Outcome::Done => Ok(()),
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        if self.open {
            let (hold, ask) = (self.proof.hold, self.ask);
            self.inner.state.tell(Event::Leave { hold, ask });
        }
    }
}
