//! What every kind of lock is made of: its keys, and the terms on which they
//! are asked for. The kinds differ in what they ask for, and in their guards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use rlock_engine::engine::ask::{Ask, Queueing};
use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::owner::Owner;
use rlock_engine::engine::terms::{Terms, whole_ms};
use rlock_engine::engine::{Event, Outcome};
use rlock_engine::error::Error;
use tracing::Instrument;

use crate::locks::single::Single;
use crate::pump::call::call;
use crate::pump::state::Inner;
use rlock_engine::wire::inspect::{self, Info};
use rlock_engine::wire::replies;
use rlock_engine::wire::requests;
use rlock_engine::wire::resp::Command;

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) inner: Arc<Inner>,
    pub(crate) key: Arc<[u8]>,
    /// The further keys, in order, where several are asked for together.
    rest: Arc<[Arc<[u8]>]>,
    pub(crate) terms: Terms,
    /// Who asks; a new one each time where none is named.
    owner: Option<Owner>,
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

    /// Who is to ask.
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
        ask_for(&self.inner, claims, ask, self.terms, queueing).instrument(span)
    }

    pub(crate) async fn info(&self) -> Result<Info, Error> {
        let question = requests::info(&self.key);
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

    pub(crate) async fn force_queue(&self) -> Result<u64, Error> {
        self.ask_to_end(requests::force_queue(&self.key)).await
    }

    async fn ask_to_end(&self, command: Command) -> Result<u64, Error> {
        replies::number(&self.inner.state.ask_at(&self.key, command).await?)
    }
}

/// Asks for `claims` and waits as `queueing` says; `None` if not granted.
pub(crate) fn ask_for(
    inner: &Arc<Inner>,
    claims: Claims,
    ask: Ask,
    terms: Terms,
    queueing: Queueing,
) -> impl Future<Output = Result<Option<Single>, Error>> {
    let event = move |call| Event::Ask {
        call,
        claims,
        ask,
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

/// A limited wait; none at all if it is zero, which on the wire would be one
/// without limit.
pub(crate) fn at_most(wait: Duration) -> Result<Queueing, Error> {
    if wait.is_zero() {
        Ok(Queueing::Try)
    } else {
        Ok(Queueing::AtMost(whole_ms("wait", wait)?))
    }
}

/// What is left until `deadline`.
pub(crate) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
