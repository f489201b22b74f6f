//! A call of the engine as a future.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::engine::ask::Ask;
use crate::engine::{Event, Id, Outcome};
use crate::net::driver::Order;
use crate::net::state::{Asking, State, lock};

/// Where the request and the outcome of a call arrive. The caller itself awaits
/// the reply to its request, so that no other task has to run for it.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Content>);

#[derive(Default)]
struct Content {
    asking: Option<(Id, Asking)>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Slot {
    /// Whom to wake, once no lock is held.
    pub(crate) fn put_request(&self, id: Id, asking: Asking) -> Option<Waker> {
        let mut content = lock(&self.0);
        content.asking = Some((id, asking));
        content.waker.take()
    }

    /// Whom to wake, once no lock is held.
    pub(crate) fn put_outcome(&self, outcome: Outcome) -> Option<Waker> {
        let mut content = lock(&self.0);
        content.outcome = Some(outcome);
        content.waker.take()
    }
}

/// Awaits the outcome of a call. Dropping it abandons the call.
pub(crate) struct Calling {
    state: Arc<State>,
    call: Id,
    slot: Arc<Slot>,
    /// What a guard would need, if it is granted.
    ask: Option<Ask>,
    is_over: bool,
}

impl Calling {
    /// Begins what `event` makes of the number of the call.
    pub(crate) fn begin(
        state: &Arc<State>,
        ask: Option<Ask>,
        event: impl FnOnce(Id) -> Event,
    ) -> Self {
        let slot = Arc::default();
        Self {
            state: Arc::clone(state),
            call: state.begin(&slot, event),
            slot,
            ask,
            is_over: false,
        }
    }
}

impl Future for Calling {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let calling = self.get_mut();
        loop {
            let mut content = lock(&calling.slot.0);
            if let Some(outcome) = content.outcome.take() {
                calling.is_over = true;
                drop(content);
                calling.hand_over();
                return Poll::Ready(outcome);
            }
            let before = content.waker.replace(context.waker().clone());
            let asking = content.asking.take();
            // To drop a waker, or to go on with a request, may run any code.
            drop(content);
            drop(before);
            let Some((request, mut asking)) = asking else {
                return Poll::Pending;
            };
            match asking.as_mut().poll(context) {
                Poll::Ready(result) => calling.state.handle(Event::Reply { request, result }),
                Poll::Pending => {
                    let mut content = lock(&calling.slot.0);
                    content.asking.get_or_insert((request, asking));
                    if content.outcome.is_none() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl Calling {
    /// Has the background await a reply that is not here yet.
    fn hand_over(&self) {
        let asking = lock(&self.slot.0).asking.take();
        if let Some((request, asking)) = asking {
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
