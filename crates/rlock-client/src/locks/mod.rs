//! The kinds of locks, and their guards.
//!
//! Here is what every kind is made of: its keys, the terms on which they are asked
//! for, and one grant as one of its guards uses it. The kinds differ in what they
//! ask for, and in their guards.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Ask, Queueing, Terms, Value, lease_ms};
use rlock_engine::engine::{Event, Outcome};
use rlock_engine::error::Error;
use rlock_engine::wire::inspect::{self, Info};
use rlock_engine::wire::resp::Command;
use rlock_engine::wire::{replies, requests};
use tracing::Instrument;

use crate::locks::guard::sealed::Grants;
use crate::pump::Inner;
use crate::pump::call::call;

pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod multi_lock;
pub(crate) mod mutex;
pub(crate) mod rwlock;
pub(crate) mod semaphore;

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) inner: Arc<Inner>,
    pub(crate) key: Arc<[u8]>,
    /// The further keys, in order, where several are asked for together.
    rest: Arc<[Arc<[u8]>]>,
    pub(crate) terms: Terms,
    /// Who asks; a new one each time where none is named.
    owner: Option<Owner>,
    /// What is published with it.
    value: Option<Value>,
}

impl Lock {
    /// The further keys come after the first in order.
    pub(crate) fn new(inner: Arc<Inner>, key: Arc<[u8]>, rest: &[Arc<[u8]>]) -> Self {
        Self {
            inner,
            key,
            rest: rest.into(),
            terms: Terms::default(),
            owner: None,
            value: None,
        }
    }

    /// The same, which publishes `value` with each hold.
    pub(crate) fn publishing(&self, value: Value) -> Self {
        Self {
            value: Some(value),
            ..self.clone()
        }
    }

    /// The same, held on these terms.
    pub(crate) fn with(&self, terms: Terms) -> Self {
        Self {
            terms,
            ..self.clone()
        }
    }

    /// The same for one of its keys alone.
    pub(crate) fn at(&self, key: &Arc<[u8]>) -> Self {
        Self {
            key: Arc::clone(key),
            rest: Arc::default(),
            ..self.clone()
        }
    }

    /// The same, always asked for by `owner`.
    pub(crate) fn by(&self, owner: &Owner) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self.clone()
        }
    }

    /// The owner for the request.
    pub(crate) fn owner(&self) -> Owner {
        let owner = self.owner.clone();
        owner.unwrap_or_else(|| self.inner.next_owner())
    }

    /// Waits without limit. The server never answers such a request with no;
    /// if it did, asking again would be right.
    pub(crate) async fn wait_for(&self, ask: Ask) -> Result<Single, Error> {
        let owner = self.owner();
        loop {
            let queueing = Queueing::Unlimited;
            if let Some(held) = self.ask_as(&owner, ask, queueing).await? {
                return Ok(held);
            }
        }
    }

    pub(crate) async fn ask(&self, ask: Ask, queueing: Queueing) -> Result<Option<Single>, Error> {
        self.ask_as(&self.owner(), ask, queueing).await
    }

    pub(crate) fn ask_as(
        &self,
        owner: &Owner,
        ask: Ask,
        queueing: Queueing,
    ) -> impl Future<Output = Result<Option<Single>, Error>> + use<'_> {
        let key = String::from_utf8_lossy(&self.key);
        let span = tracing::debug_span!("rlock.acquire", %key, %owner, ?ask, ?queueing);
        let claims = Claims::new(owner.clone(), &self.key, &self.rest);
        let ask = (ask, self.value.clone());
        ask_for(&self.inner, claims, ask, self.terms, queueing).instrument(span)
    }

    pub(crate) async fn info(&self) -> Result<Info, Error> {
        let question = (requests::info(&self.key), false);
        inspect::info(&self.inner.state.ask_at(&self.key, question).await?)
    }

    pub(crate) async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        let info = self.info().await?;
        Ok(info
            .holders
            .iter()
            .any(|holder| holder.owner == owner.as_str()))
    }

    pub(crate) async fn force(&self) -> Result<u64, Error> {
        self.ask_to_end(requests::force(&self.key)).await
    }

    pub(crate) async fn force_under(&self, fence: u64) -> Result<u64, Error> {
        self.ask_to_end(requests::force_under(&self.key, fence)?)
            .await
    }

    pub(crate) async fn force_queue(&self) -> Result<u64, Error> {
        self.ask_to_end(requests::force_queue(&self.key)).await
    }

    async fn ask_to_end(&self, command: Command) -> Result<u64, Error> {
        replies::number(&self.inner.state.ask_at(&self.key, (command, true)).await?)
    }
}

/// Asks for `claims`, to be held with that value if there is one, and waits as
/// `queueing` says; `None` if not granted.
pub(crate) fn ask_for(
    inner: &Arc<Inner>,
    claims: Claims,
    (ask, value): (Ask, Option<Value>),
    terms: Terms,
    queueing: Queueing,
) -> impl Future<Output = Result<Option<Single>, Error>> {
    let event = move |call| Event::Ask {
        call,
        claims,
        ask,
        value,
        terms,
        queueing,
    };
    call(&inner.state, Some(ask), event).map(move |outcome| match outcome {
        Outcome::Granted(proof) => {
            tracing::debug!(?proof, "granted");
            Ok(Some(Single::new(Arc::clone(inner), proof, ask)))
        }
        Outcome::Failed(error) => Err(error),
        Outcome::Refused | Outcome::Done => Ok(None),
    })
}
/// What is left until `deadline`.
pub(crate) fn left(deadline: std::time::Instant) -> Duration {
    deadline.saturating_duration_since(std::time::Instant::now())
}

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

    /// Gives `permits` of its permits to another one; `None` unless some are left.
    pub(crate) fn split(&mut self, permits: u32) -> Option<Self> {
        let (rest, part) = self.ask.split(permits)?;
        let hold = self.proof.hold;
        self.inner.state.tell(Event::Split { hold });
        self.ask = rest;
        Some(Self::new(
            Arc::clone(&self.inner),
            Arc::clone(&self.proof),
            part,
        ))
    }

    /// Takes over the permits of `other`; returns it if it is of another hold.
    pub(crate) fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        match self.ask.merge(other.ask) {
            Some(both) if Arc::ptr_eq(&self.proof, &other.proof) => self.ask = both,
            _ => return Err(other),
        }
        other.open = false;
        let hold = self.proof.hold;
        self.inner.state.tell(Event::Merge { hold });
        Ok(())
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
        ask_for(&self.inner, claims, (ask, None), Terms::default(), queueing).await
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
            let lease = lease_ms("lease", lease)?;
            let extend = |call| Event::Extend { call, hold, lease };
            done(call(&inner.state, None, extend).await)
        }
    }

    /// Publishes `value` with it from now on, without keeping it.
    pub(crate) fn proclaiming(
        &self,
        value: Value,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (inner, hold) = (Arc::clone(&self.inner), self.proof.hold);
        async move {
            let proclaim = |call| Event::Proclaim { call, hold, value };
            done(call(&inner.state, None, proclaim).await)
        }
    }

    /// Raises the fence to at least `fence`, and sets the lease again; held on
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
