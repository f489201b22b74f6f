//! A call of the endpoint as a future.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rlock_engine::endpoint::{Event, Outcome, To};
use rlock_engine::engine::ask::Ask;
use rlock_engine::engine::{self, Id};
use rlock_engine::error::Error;
use rlock_engine::wire::resp::{Command, Frame};

use crate::pump::clock::now;
use crate::pump::state::{State, Waiting};

/// Awaits the outcome of a call. Dropping it abandons the call.
struct Calling<'a> {
    state: &'a Arc<State>,
    call: Id,
    /// What a guard would need, if it is granted.
    ask: Option<Ask>,
    is_over: bool,
}

/// Makes the call that `event` makes of its number.
async fn make(
    state: &Arc<State>,
    ask: Option<Ask>,
    event: impl FnOnce(Id) -> Event<'static>,
) -> Outcome {
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let call = state.with_core(|core| {
        let call = core.endpoint.next_id();
        core.calls.insert(call, Waiting::For(waker));
        core.endpoint.handle(now(), event(call));
        call
    });
    let calling = Calling {
        state,
        call,
        ask,
        is_over: false,
    };
    calling.await
}

/// Makes a call for a lock; `ask` is what a guard would need, if it is granted.
pub(crate) async fn call(
    state: &Arc<State>,
    ask: Option<Ask>,
    event: impl FnOnce(Id) -> engine::Event,
) -> engine::Outcome {
    match make(state, ask, |call| Event::Call(event(call))).await {
        Outcome::Lock(outcome) => outcome,
        Outcome::Failed(error) => engine::Outcome::Failed(error),
        Outcome::Answer(frame) => engine::Outcome::Failed(unexpected(&frame)),
    }
}

/// Connects for the first time.
pub(crate) async fn start(state: &Arc<State>) -> Result<(), Error> {
    match make(state, None, |call| Event::Start { call }).await {
        Outcome::Failed(error) => Err(error),
        Outcome::Lock(_) | Outcome::Answer(_) => Ok(()),
    }
}

/// Asks until there is an answer.
pub(crate) async fn ask(
    state: &Arc<State>,
    to: To,
    command: Command,
    limit: Option<Duration>,
) -> Result<Frame, Error> {
    let question = |call| Event::Question {
        call,
        to,
        command,
        limit,
    };
    match make(state, None, question).await {
        Outcome::Answer(frame) => Ok(frame),
        Outcome::Failed(error) => Err(error),
        Outcome::Lock(_) => Err(Error::Closed),
    }
}

fn unexpected(frame: &Frame) -> Error {
    Error::Protocol(format!("{frame:?}"))
}

impl Future for Calling<'_> {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let calling = self.get_mut();
        // To drop a waker may run any code, so that it comes after the lock.
        let mut before = None;
        let poll = calling
            .state
            .with_peers(|core| match core.calls.get_mut(&calling.call) {
                Some(Waiting::For(waker)) => {
                    if !waker.will_wake(context.waker()) {
                        before = Some(std::mem::replace(waker, context.waker().clone()));
                    }
                    Poll::Pending
                }
                Some(Waiting::Over(_)) => match core.calls.remove(&calling.call) {
                    Some(Waiting::Over(outcome)) => Poll::Ready(outcome),
                    _ => Poll::Ready(Outcome::Failed(Error::Closed)),
                },
                None => Poll::Ready(Outcome::Failed(Error::Closed)),
            });
        drop(before);
        calling.is_over = poll.is_ready();
        poll
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let call = self.call;
        let known = self.state.with_core(|core| {
            let known = core.calls.remove(&call);
            let event = match &known {
                // It was granted in that very moment.
                Some(Waiting::Over(Outcome::Lock(engine::Outcome::Granted(proof)))) => {
                    let hold = proof.hold;
                    let untaken = |ask| engine::Event::Untaken { call, hold, ask };
                    self.ask.map(untaken)
                }
                Some(Waiting::Over(_)) | None => None,
                Some(Waiting::For(_)) => Some(engine::Event::Abandon { call }),
            };
            if let Some(event) = event {
                core.endpoint.handle(now(), Event::Call(event));
            }
            known
        });
        drop(known);
    }
}
