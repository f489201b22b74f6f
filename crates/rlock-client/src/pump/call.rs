//! A call of the endpoint as a future.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use rlock_engine::endpoint::{Event, Outcome, To};
use rlock_engine::engine::terms::Ask;
use rlock_engine::engine::{self, Id};
use rlock_engine::error::Error;
use rlock_engine::wire::resp::{Command, Frame};

use crate::pump::{State, now};

/// A call, which begins when it is first polled. Dropping it abandons the call.
struct Calling<'a, F> {
    state: &'a Arc<State>,
    /// The data that a guard needs after a grant.
    ask: Option<Ask>,
    stage: Stage<F>,
}

enum Stage<F> {
    /// Creates the event from the call's number.
    New(F),
    Made(Id),
    Over,
}

/// Makes a call. `event` creates its event from its number.
///
/// These are not `async fn`s: each would keep a second copy of `event` while it
/// waits, and there may be many waiting calls.
fn make<'a>(
    state: &'a Arc<State>,
    ask: Option<Ask>,
    event: impl FnOnce(Id) -> Event<'static> + Unpin + 'a,
) -> impl Future<Output = Outcome> + 'a {
    let stage = Stage::New(event);
    Calling { state, ask, stage }
}

/// Makes a call for a lock. `ask` is the data that a guard needs after a grant.
pub(crate) fn call<'a>(
    state: &'a Arc<State>,
    ask: Option<Ask>,
    event: impl FnOnce(Id) -> engine::Event + Unpin + 'a,
) -> impl Future<Output = engine::Outcome> + 'a {
    make(state, ask, |call| Event::Call(event(call))).map(|outcome| match outcome {
        Outcome::Lock(outcome) => outcome,
        Outcome::Failed(error) => engine::Outcome::Failed(error),
        Outcome::Answer(frame) => engine::Outcome::Failed(unexpected(&frame)),
    })
}

/// Connects for the first time.
pub(crate) async fn start(state: &Arc<State>) -> Result<(), Error> {
    match make(state, None, |call| Event::Start { call }).await {
        Outcome::Failed(error) => Err(error),
        Outcome::Lock(_) | Outcome::Answer(_) => Ok(()),
    }
}

/// Asks until there is an answer. A question that changes something is not
/// repeated once it may have been carried out.
pub(crate) async fn ask(
    state: &Arc<State>,
    to: To,
    (command, changes): (Command, bool),
    limit: Option<Duration>,
) -> Result<Frame, Error> {
    let question = |call| Event::Question {
        call,
        to,
        command,
        changes,
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

impl<F: FnOnce(Id) -> Event<'static> + Unpin> Future for Calling<'_, F> {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let calling = self.get_mut();
        let call = match std::mem::replace(&mut calling.stage, Stage::Over) {
            Stage::New(event) => {
                let waker = context.waker().clone();
                calling.state.with_core(|core| {
                    let call = core.endpoint.next_id();
                    core.callers.insert(call, waker);
                    core.endpoint.handle(now(), event(call));
                    call
                })
            }
            Stage::Made(call) => call,
            Stage::Over => return Poll::Pending,
        };
        // Dropping a waker may run any code, so it is dropped after the unlock.
        let mut before = None;
        let poll = calling.state.with_peers(|core| {
            if let Some(outcome) = core.outcomes.remove(&call) {
                return Poll::Ready(outcome);
            }
            match core.callers.get_mut(&call) {
                Some(waker) => {
                    if !waker.will_wake(context.waker()) {
                        before = Some(std::mem::replace(waker, context.waker().clone()));
                    }
                    Poll::Pending
                }
                None => Poll::Ready(Outcome::Failed(Error::Closed)),
            }
        });
        drop(before);
        if poll.is_pending() {
            calling.stage = Stage::Made(call);
        }
        poll
    }
}

impl<F> Drop for Calling<'_, F> {
    fn drop(&mut self) {
        let Stage::Made(call) = self.stage else {
            return;
        };
        let known = self.state.with_core(|core| {
            let (waker, outcome) = (core.callers.remove(&call), core.outcomes.remove(&call));
            let event = match &outcome {
                // It was granted at the same moment.
                Some(Outcome::Lock(engine::Outcome::Granted(proof))) => {
                    let hold = proof.hold;
                    let untaken = |ask| engine::Event::Untaken { call, hold, ask };
                    self.ask.map(untaken)
                }
                Some(_) => None,
                None => waker.is_some().then_some(engine::Event::Abandon { call }),
            };
            if let Some(event) = event {
                core.endpoint.handle(now(), Event::Call(event));
            }
            (waker, outcome)
        });
        drop(known);
    }
}
