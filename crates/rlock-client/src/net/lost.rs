//! Waiting for the loss of a lock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Sleep;

use crate::engine::proof::Proof;
use crate::error::Loss;
use crate::net::clock::{now, timer};

/// Resolves when a lock is lost. It has its own timer, so it needs nobody to
/// tell it that a lease has ended.
pub(crate) struct Lost {
    proof: Arc<Proof>,
    /// Its place among those who wait.
    place: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Lost {
    pub(crate) fn of(proof: &Arc<Proof>) -> Self {
        Self {
            proof: Arc::clone(proof),
            place: 0,
            timer: None,
        }
    }
}

impl Future for Lost {
    type Output = Loss;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Loss> {
        let lost = self.get_mut();
        lost.proof.wait(&mut lost.place, context.waker());
        loop {
            if let Some(loss) = lost.proof.loss(now()) {
                return Poll::Ready(loss);
            }
            // Released: whoever waits still has a guard of it, which is not lost.
            let Some(until) = lost.proof.valid_until() else {
                return Poll::Pending;
            };
            let rings = timer(until);
            let timer = lost
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(rings)));
            if timer.deadline() < rings {
                timer.as_mut().reset(rings);
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        self.proof.give_back(self.place);
    }
}
