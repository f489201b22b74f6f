//! The kinds of locks, and their guards.
//!
//! Here is what every kind is made of: a key, the terms on which it is asked for,
//! and what a call was granted. The kinds differ in what they ask for, and in the
//! methods of their guards. The session decides.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rlock_engine::engine::Id;
use rlock_engine::engine::claims::{Claims, Owner};
#[cfg(feature = "quorum")]
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Ask, Queueing, Terms, Value};
use rlock_engine::error::Error;
#[cfg(feature = "quorum")]
use rlock_engine::session::quorum::Quorum;
use rlock_engine::session::{self, Call, Outcome};
use rlock_engine::wire::inspect::{self, Info};
use rlock_engine::wire::resp::Command;
use rlock_engine::wire::{replies, requests};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::locks::guard::sealed::Grants;
use crate::pump::Inner;
use crate::pump::call::{call, done};

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
    pub(crate) terms: Terms,
    /// Who asks; a new one each time where none is named.
    owner: Option<Owner>,
    /// What is published with it.
    value: Option<Value>,
}

impl Lock {
    pub(crate) fn new(inner: Arc<Inner>, key: Arc<[u8]>) -> Self {
        Self {
            inner,
            key,
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

    /// The same at another key.
    pub(crate) fn at(&self, key: &Arc<[u8]>) -> Self {
        Self {
            key: Arc::clone(key),
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

    /// Waits without limit.
    pub(crate) async fn wait_for(&self, ask: Ask) -> Result<Granted, Error> {
        let granted = self.ask(ask, Queueing::Unlimited).await?;
        granted.ok_or_else(never_refused)
    }

    pub(crate) fn ask(
        &self,
        ask: Ask,
        queueing: Queueing,
    ) -> impl Future<Output = Result<Option<Granted>, Error>> + use<'_> {
        let claims = Claims::new(self.owner(), &self.key, &[]);
        let asking = self.ask_for(claims, ask, queueing);
        asking.map(|all| Ok(all?.map(|all| all.granted)))
    }

    pub(crate) fn ask_for(
        &self,
        claims: Claims,
        ask: Ask,
        queueing: Queueing,
    ) -> impl Future<Output = Result<Option<All>, Error>> + use<'_> {
        let span = span("rlock.acquire", &claims);
        let lock = Call::Lock(session::Lock {
            claims,
            ask,
            value: self.value.clone(),
            terms: self.terms,
            queueing,
        });
        granted(&self.inner, lock, span)
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

/// The error of a wait without limit that was refused: the session has none.
pub(crate) fn never_refused() -> Error {
    Error::Protocol("a wait without limit was refused".to_owned())
}

/// The span of a call for a lock, with the fields that OpenTelemetry has for a
/// request to a database. A key may be a secret, so an event of the level trace has
/// it: each subscriber leaves it out by its own filter.
fn span(operation: &'static str, claims: &Claims) -> Span {
    let span = tracing::debug_span!(
        "rlock.acquire",
        otel.name = operation,
        otel.kind = "client",
        db.system.name = "redis",
        db.operation.name = "RLOCK.ACQUIRE",
        rlock.outcome = Empty,
        error.type = Empty,
        otel.status_code = Empty,
    );
    tracing::trace!(
        parent: &span,
        rlock.key = %claims.label(),
        rlock.owner = %claims.owner(),
        "asking"
    );
    span
}

/// Makes a call for a lock; `None` if not granted. Its span has the outcome, unless
/// nobody waits for it any more.
fn granted<'a>(
    inner: &'a Arc<Inner>,
    lock: Call,
    span: Span,
) -> impl Future<Output = Result<Option<All>, Error>> + use<'a> {
    let ended = span.clone();
    let granted = async move {
        match call(&inner.state, lock).await {
            Outcome::Granted { guard, proofs } => {
                ended.record("rlock.outcome", "granted");
                tracing::trace!(proof = ?proofs.first(), "granted");
                let (proof, rest) = proofs.into_parts();
                let granted = Granted::new(inner, guard, proof);
                Ok(Some(All { granted, rest }))
            }
            outcome => {
                let refused = done(outcome).map(|()| None);
                match &refused {
                    Ok(_) => ended.record("rlock.outcome", "refused"),
                    Err(error) => ended
                        .record("error.type", error.code())
                        .record("otel.status_code", "error"),
                };
                refused
            }
        }
    };
    granted.instrument(span)
}

/// What is left until `deadline`.
pub(crate) fn left(deadline: std::time::Instant) -> Duration {
    deadline.saturating_duration_since(std::time::Instant::now())
}

/// A guard of the session, which ends when this is dropped.
pub struct Granted {
    inner: Arc<Inner>,
    /// Its number.
    pub(crate) guard: Id,
    proof: Arc<Proof>,
    is_open: bool,
}

impl Granted {
    fn new(inner: &Arc<Inner>, guard: Id, proof: Arc<Proof>) -> Self {
        Self {
            inner: Arc::clone(inner),
            guard,
            proof,
            is_open: true,
        }
    }

    /// How many permits it needs.
    pub(crate) fn permits(&self) -> u32 {
        self.inner.state.permits(self.guard)
    }

    /// Gives `permits` of its permits to another one; `None` unless some are left.
    pub(crate) fn split(&self, permits: u32) -> Option<Self> {
        let part = self.inner.state.split(self.guard, permits)?;
        Some(Self::new(&self.inner, part, Arc::clone(&self.proof)))
    }

    /// Takes over the permits of `other`; returns it if it is of another hold.
    pub(crate) fn merge(&self, mut other: Self) -> Result<(), Self> {
        let (guard, part) = (self.guard, other.guard);
        let state = &self.inner.state;
        let is_same = Arc::ptr_eq(&self.proof, &other.proof);
        other.is_open = !(is_same && state.merge(guard, part));
        match other.is_open {
            true => Err(other),
            false => Ok(()),
        }
    }

    /// Leaves it as it is.
    pub(crate) fn forget(mut self) {
        self.is_open = false;
    }

    /// Needs the lock alone from now on; `None` if not granted. This one stays as it
    /// is then, and is [forgotten](Self::forget) otherwise.
    pub(crate) async fn upgraded(&self, queueing: Queueing) -> Result<Option<Self>, Error> {
        let guard = self.guard;
        let span = span("rlock.upgrade", &self.proof.claims);
        let upgrade = Call::Upgrade {
            guard,
            queueing,
            retakes: true,
        };
        let upgraded = granted(&self.inner, upgrade, span).await;
        Ok(upgraded?.map(|all| all.granted))
    }

    /// Makes a call for a change of this guard, which is not kept meanwhile.
    pub(crate) fn change(
        &self,
        change: Call,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let inner = Arc::clone(&self.inner);
        async move { done(call(&inner.state, change).await) }
    }

    pub(crate) fn proof(&self) -> &Arc<Proof> {
        &self.proof
    }

    pub(crate) fn extend(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let guard = self.guard;
        self.change(Call::Extend { guard, lease })
    }

    /// Has its end leave the lock taken until `least` after its grant; after an
    /// error, for as long as it is held for certain.
    pub(crate) fn keep(&self, least: Duration) -> Result<(), Error> {
        let guard = self.guard;
        let state = &self.inner.state;
        state.change(|machine, now| machine.keep(now, guard, least))
    }

    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let (guard, least) = (self.guard, None);
        let release = call(&self.inner.state, Call::Release { guard, least });
        self.is_open = false;
        done(release.await)
    }

    /// Asks or tells the quorum that has granted it.
    #[cfg(feature = "quorum")]
    pub(crate) fn in_quorum<T: Default>(
        &self,
        ask: impl FnOnce(&mut Quorum, Id, Instant) -> T,
    ) -> T {
        let state = &self.inner.state;
        state.change(|machine, now| {
            let quorum = machine.as_quorum(now);
            quorum.map_or_else(T::default, |quorum| ask(quorum, self.guard, now))
        })
    }
}

impl Grants for Granted {
    fn granted(&self) -> &Granted {
        self
    }

    fn into_granted(self) -> Granted {
        self
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if self.is_open {
            let guard = self.guard;
            let state = &self.inner.state;
            state.change(|machine, now| machine.leave(now, guard));
        }
    }
}

/// A guard of one key or several, with what was granted for each.
pub struct All {
    granted: Granted,
    rest: Vec<Arc<Proof>>,
}

impl Grants for All {
    fn granted(&self) -> &Granted {
        &self.granted
    }

    fn into_granted(self) -> Granted {
        self.granted
    }

    fn proofs(&self) -> impl Iterator<Item = &Arc<Proof>> {
        std::iter::once(self.granted.proof()).chain(&self.rest)
    }
}
