//! Asks the servers, one question at a time, while the screen lives on.

use std::pin::Pin;

use crate::failure::Failure;
use crate::info::LockInfo;

use super::sample::{Held, Sample, Sampler};

/// What the screen wants to know, or to have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The numbers, and this many locks.
    Look(u16),
    /// Who holds these locks.
    Holders(Vec<Vec<u8>>),
    /// Holders and queue of a lock.
    Queue(Vec<u8>),
    /// The same, to ask the user whether to end its holds.
    Doomed(Vec<u8>),
    /// The end of the lock's holds, if one of those with these fences and owners is
    /// still there.
    Force(Vec<u8>, Vec<(Option<u64>, String)>),
}

/// What came of it.
pub(super) enum Answer {
    Look(Result<Sample, Failure>),
    Holders(Vec<(Vec<u8>, Held)>),
    Queue(Vec<u8>, Result<LockInfo, Failure>),
    Doomed(Vec<u8>, Result<LockInfo, Failure>),
    /// How many holders were removed; none if others hold the lock by now.
    Force(Vec<u8>, Result<Option<u64>, Failure>),
}

type Asking = Pin<Box<dyn Future<Output = (Sampler, Answer)>>>;

pub(super) enum Asker {
    Idle(Sampler),
    Busy(Asking),
    /// Only for a moment.
    Between,
}

impl Asker {
    pub(super) fn new(sampler: Sampler) -> Self {
        Self::Idle(sampler)
    }

    /// Asks the next question, if the last one is answered and there is one.
    pub(super) fn ask(&mut self, next: impl FnOnce() -> Option<Question>) {
        if let Self::Idle(_) = self
            && let Some(question) = next()
            && let Self::Idle(sampler) = std::mem::replace(self, Self::Between)
        {
            *self = Self::Busy(Box::pin(asked(sampler, question)));
        }
    }

    /// The answer; never if nothing was asked.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the question stays asked.
    pub(super) async fn answer(&mut self) -> Answer {
        let Self::Busy(asking) = self else {
            return std::future::pending().await;
        };
        let (sampler, answer) = asking.await;
        *self = Self::Idle(sampler);
        answer
    }
}

async fn asked(mut sampler: Sampler, question: Question) -> (Sampler, Answer) {
    let answer = match question {
        Question::Look(count) => Answer::Look(sampler.next(count).await),
        Question::Holders(keys) => Answer::Holders(sampler.holders(keys).await),
        Question::Queue(key) => {
            let lock = sampler.lock(&key).await;
            Answer::Queue(key, lock)
        }
        Question::Doomed(key) => {
            let lock = sampler.lock(&key).await;
            Answer::Doomed(key, lock)
        }
        Question::Force(key, doomed) => {
            let removed = sampler.force(&key, &doomed).await;
            Answer::Force(key, removed)
        }
    };
    (sampler, answer)
}
