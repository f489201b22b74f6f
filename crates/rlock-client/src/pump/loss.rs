//! Waiting for the loss of a lock.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rlock_engine::engine::proof::Proof;
use rlock_engine::error::Loss;
use tokio::time::Sleep;

use crate::pump::clock::{now, timer};

/// Resolves when a lock is lost; from [`Guard::loss`](crate::Guard::loss).
///
/// It borrows nothing, so it can go into another task and outlive the guard.
/// If the lock is released it resolves too, with [`Loss::Released`], so that
/// such a task ends. While the guard is there it never says that.
///
/// # Cancel safety
///
/// Dropping it changes nothing.
///
/// # Examples
///
/// ```no_run
/// # async fn example(guard: rlock_client::Guard) {
/// let loss = guard.loss();
/// tokio::spawn(async move { eprintln!("not held any more: {}", loss.await) });
/// # }
/// ```
#[must_use = "it does nothing unless it is awaited or asked"]
pub struct LossSignal {
    /// At least one; several for several keys that are held one by one.
    parts: Vec<Part>,
}

/// It has its own timer, so it needs nobody to tell it that a lease has ended.
struct Part {
    proof: Arc<Proof>,
    /// Its place among those who wait.
    place: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl LossSignal {
    pub(crate) fn of<'a>(proofs: impl IntoIterator<Item = &'a Arc<Proof>>) -> Self {
        let parts = proofs.into_iter().map(|proof| Part {
            proof: Arc::clone(proof),
            place: 0,
            timer: None,
        });
        let parts = parts.collect();
        Self { parts }
    }

    /// What it would resolve with now; `None` while the lock is held.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: &rlock_client::Guard) {
    /// if let Some(loss) = guard.loss().now() {
    ///     eprintln!("lost: {loss}");
    /// }
    /// # }
    /// ```
    pub fn now(&self) -> Option<Loss> {
        let now = now();
        first(self.parts.iter().map(|part| part.proof.end_of(now)))
    }
}

/// The first loss, or else that one was released.
fn first(ends: impl Iterator<Item = Option<Loss>>) -> Option<Loss> {
    ends.flatten()
        .reduce(|known, next| if known == Loss::Released { next } else { known })
}

impl Future for LossSignal {
    type Output = Loss;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Loss> {
        let parts = self.get_mut().parts.iter_mut();
        match first(parts.map(|part| part.poll(context))) {
            Some(loss) => Poll::Ready(loss),
            None => Poll::Pending,
        }
    }
}

impl Part {
    fn poll(&mut self, context: &mut Context<'_>) -> Option<Loss> {
        self.proof.wait(&mut self.place, context.waker());
        loop {
            if let Some(end) = self.proof.end_of(now()) {
                return Some(end);
            }
            // None is over, which the next look tells.
            let Some(until) = self.proof.valid_until() else {
                continue;
            };
            let rings = timer(until);
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(rings)));
            if timer.deadline() < rings {
                timer.as_mut().reset(rings);
            }
            if timer.as_mut().poll(context).is_pending() {
                return None;
            }
        }
    }
}

impl Clone for LossSignal {
    fn clone(&self) -> Self {
        Self::of(self.parts.iter().map(|part| &part.proof))
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LossSignal").field(&self.now()).finish()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.proof.give_back(self.place);
    }
}
