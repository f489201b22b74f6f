//! How long a question goes on, and how it is asked again.

use std::time::Duration;

use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::pause;
use rlock_engine::error::{Error, Failure};

use crate::pump::{now, timer};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    begun: Instant,
    end: Option<Instant>,
}

impl Deadline {
    pub(crate) fn unlimited() -> Self {
        let begun = now();
        Self { begun, end: None }
    }

    pub(crate) fn after(limit: Duration) -> Self {
        let begun = now();
        let end = Some(begun + limit);
        Self { begun, end }
    }

    /// What is left; `None` is without limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.end.map(|end| end - now())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// The error of a call that came to its deadline.
    pub(crate) fn unavailable(&self, source: Option<Failure>) -> Error {
        let waited = now() - self.begun;
        Error::Unavailable { waited, source }
    }

    /// Runs `future` until this deadline.
    pub(crate) async fn bound<F: Future>(&self, future: F) -> Option<F::Output> {
        match self.end {
            Some(end) => tokio::time::timeout_at(timer(end), future).await.ok(),
            None => Some(future.await),
        }
    }
}

/// Growing pauses between attempts.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        let attempts = self.attempts;
        self.attempts = attempts.saturating_add(1);
        pause(attempts, uuid::Uuid::new_v4().as_u64_pair().0)
    }

    /// Waits for the next pause, but not past `deadline`.
    pub(crate) async fn pause(&mut self, deadline: Deadline) {
        let _ = deadline.bound(tokio::time::sleep(self.next())).await;
    }
}
