//! A call of the session as a future.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rlock_engine::endpoint::To;
use rlock_engine::engine::Id;
use rlock_engine::error::Error;
use rlock_engine::session::{Call, Outcome};
use rlock_engine::wire::resp::{Command, Frame};

use crate::pump::{Caller, State, now};

/// A call, which begins when it is first polled. Dropping it abandons the call.
struct Calling<'a> {
    state: &'a Arc<State>,
    stage: Stage,
}

enum Stage {
    New(Call),
    Begun(Id),
    Over,
}

/// Makes a call.
pub(crate) fn call<'a>(
    state: &'a Arc<State>,
    call: Call,
) -> impl Future<Output = Outcome> + Send + use<'a> {
    let stage = Stage::New(call);
    Calling { state, stage }
}

/// Asks a server until there is an answer. A question that changes something is
/// not repeated once it may have been carried out.
pub(crate) async fn ask(
    state: &Arc<State>,
    to: To,
    (command, changes): (Command, bool),
) -> Result<Frame, Error> {
    let question = Call::Question {
        to: Some(to),
        command,
        changes,
        limit: None,
    };
    match call(state, question).await {
        Outcome::Answer(frame) => Ok(frame),
        outcome => Err(done(outcome).err().unwrap_or(Error::Closed)),
    }
}

/// How a call has ended that brings nothing.
pub(crate) fn done(outcome: Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Failed(error) => Err(error),
        _ => Ok(()),
    }
}

impl Future for Calling<'_> {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let calling = self.get_mut();
        let call = match std::mem::replace(&mut calling.stage, Stage::Over) {
            Stage::New(begun) => {
                let waker = context.waker().clone();
                calling.state.with_core(|core| {
                    let call = core.next_id();
                    core.callers.insert(call, Caller::Waits(waker));
                    core.machine.call(now(), call, begun);
                    call
                })
            }
            Stage::Begun(call) => call,
            Stage::Over => return Poll::Pending,
        };
        // Dropping a waker may run any code, so it is dropped after the unlock.
        let mut before = None;
        let outcome = calling.state.with_peers(|core| {
            if let Some(Caller::Waits(waker)) = core.callers.get_mut(&call) {
                if !waker.will_wake(context.waker()) {
                    before = Some(std::mem::replace(waker, context.waker().clone()));
                }
                return None;
            }
            match core.callers.remove(&call) {
                Some(Caller::Untaken(outcome)) => Some(outcome),
                _ => Some(Outcome::Failed(Error::Closed)),
            }
        });
        drop(before);
        match outcome {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                calling.stage = Stage::Begun(call);
                Poll::Pending
            }
        }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        let Stage::Begun(call) = self.stage else {
            return;
        };
        let known = self.state.with_core(|core| {
            let caller = core.callers.remove(&call);
            match &caller {
                // It was granted at the same moment.
                Some(Caller::Untaken(Outcome::Granted { guard, .. })) => {
                    core.machine.untaken(now(), *guard);
                }
                Some(Caller::Untaken(_)) | None => {}
                Some(Caller::Waits(_)) => core.machine.abandon(now(), call),
            }
            caller
        });
        drop(known);
    }
}
