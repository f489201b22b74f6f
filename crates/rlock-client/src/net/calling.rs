//! A call of the engine as a future.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use rlock_engine::engine::ask::Ask;
use rlock_engine::engine::{Event, Id, Outcome};
use rlock_engine::error::Error;

use crate::net::driver::Order;
use crate::net::sending::Asking;
use crate::net::state::{State, lock};

/// Where the request and the outcome of a call arrive. The caller itself awaits
/// the reply to its request, so that no other task has to run for it.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Content>);

#[derive(Default)]
struct Content {
    asked: Option<Asked>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

struct Asked {
    id: Id,
    asking: Asking,
    /// Whether the caller's waker is known there, so that it need not look.
    is_awaited: bool,
}

/// The task that awaits a call, while it runs.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) slot: &'a Arc<Slot>,
    pub(crate) waker: &'a Waker,
}

impl Slot {
    /// Whom to wake, once no lock is held.
    pub(crate) fn put_request(&self, id: Id, asking: Asking, is_awaited: bool) -> Option<Waker> {
        let mut content = lock(&self.0);
        content.asked = Some(Asked {
            id,
            asking,
            is_awaited,
        });
        content.waker.take()
    }

    /// For somebody else to await.
    pub(crate) fn take_request(&self) -> Option<(Id, Asking)> {
        let asked = lock(&self.0).asked.take()?;
        Some((asked.id, asked.asking))
    }

    /// Whom to wake, once no lock is held.
    pub(crate) fn put_outcome(&self, outcome: Outcome) -> Option<Waker> {
        let mut content = lock(&self.0);
        content.outcome = Some(outcome);
        content.waker.take()
    }
}

/// Awaits the outcome of a call. Dropping it abandons the call.
struct Calling {
    state: Arc<State>,
    call: Id,
    slot: Arc<Slot>,
    /// What a guard would need, if it is granted.
    ask: Option<Ask>,
    is_over: bool,
}

/// Makes the call that `event` makes of its number.
///
/// `ask` is what a guard would need, if it is granted.
pub(crate) async fn call(
    state: &Arc<State>,
    ask: Option<Ask>,
    event: impl FnOnce(Id) -> Event,
) -> Outcome {
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let slot = Arc::default();
    let caller = Caller {
        slot: &slot,
        waker: &waker,
    };
    let call = state.begin(caller, event);
    let calling = Calling {
        state: Arc::clone(state),
        call,
        slot,
        ask,
        is_over: false,
    };
    calling.await
}

impl Future for Calling {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let calling = self.get_mut();
        let waker = context.waker();
        loop {
            let mut content = lock(&calling.slot.0);
            if let Some(outcome) = content.outcome.take() {
                calling.is_over = true;
                drop(content);
                calling.hand_over();
                return Poll::Ready(calling.explained(outcome));
            }
            let before = content.waker.replace(waker.clone());
            let asked = content.asked.as_mut();
            let is_awaited = asked.is_some_and(|asked| std::mem::take(&mut asked.is_awaited));
            let asked = content.asked.take_if(|_| !is_awaited);
            // To drop a waker, or to go on with a request, may run any code.
            drop(content);
            drop(before);
            let Some(mut asked) = asked else {
                return Poll::Pending;
            };
            match asked.asking.as_mut().poll(context) {
                Poll::Ready(result) => {
                    let slot = &calling.slot;
                    let request = asked.id;
                    let caller = Caller { slot, waker };
                    calling.state.answered(Some(caller), request, result);
                }
                Poll::Pending => {
                    let mut content = lock(&calling.slot.0);
                    content.asked.get_or_insert(asked);
                    if content.outcome.is_none() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl Calling {
    /// Says why there is no connection, which the engine does not know.
    fn explained(&self, mut outcome: Outcome) -> Outcome {
        if let Outcome::Failed(Error::Unavailable { source, .. }) = &mut outcome
            && source.is_none()
        {
            *source = self.state.last_failure();
        }
        outcome
    }

    /// Has the background await a reply that is not here yet.
    fn hand_over(&self) {
        if let Some((request, asking)) = self.slot.take_request() {
            self.state.order(Order::Await(request, asking));
        }
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let call = self.call;
        self.state.handle(Event::Abandon { call });
        self.state.forget(call);
        self.hand_over();
        let outcome = lock(&self.slot.0).outcome.take();
        // It was granted in that very moment.
        if let (Some(Outcome::Granted(proof)), Some(ask)) = (outcome, self.ask) {
            let hold = proof.hold;
            self.state.handle(Event::Leave { hold, ask });
        }
    }
}
