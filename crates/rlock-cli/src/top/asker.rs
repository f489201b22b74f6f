//! Asks the servers, one question at a time, while the screen handles keys.

use std::pin::Pin;

use crate::failure::Failure;
use crate::info::LockInfo;

use super::sample::{Held, HoldId, Sample, Sampler};

/// A question of the screen, or a command of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The numbers, and this many locks.
    Sample(u16),
    /// Who holds these locks.
    Holders(Vec<Vec<u8>>),
    /// Holders and queue of a lock.
    Queue(Vec<u8>),
    /// The same, before the user is asked whether to end its holds.
    Confirm(Vec<u8>),
    /// Ends the lock's holds, if they are still these.
    Force(Vec<u8>, Vec<HoldId>),
}

pub(super) enum Answer {
    Sample(Result<Sample, Failure>),
    Holders(Vec<(Vec<u8>, Held)>),
    Queue(Vec<u8>, Result<LockInfo, Failure>),
    Confirm(Vec<u8>, Result<LockInfo, Failure>),
    /// The number of removed holders; none if the lock has other holds.
    Force(Vec<u8>, Result<Option<u64>, Failure>),
}

type Asking = Pin<Box<dyn Future<Output = (Sampler, Answer)>>>;

pub(super) struct Asker {
    /// None while a question is open.
    idle: Option<Sampler>,
    asking: Option<Asking>,
}

impl Asker {
    pub(super) fn new(sampler: Sampler) -> Self {
        let (idle, asking) = (Some(sampler), None);
        Self { idle, asking }
    }

    /// Asks the next question, if there is one and the last one is answered.
    pub(super) fn ask(&mut self, next: impl FnOnce() -> Option<Question>) {
        if self.idle.is_some()
            && let Some(question) = next()
            && let Some(sampler) = self.idle.take()
        {
            self.asking = Some(Box::pin(answer_to(sampler, question)));
        }
    }

    /// The answer to the open question. Without a question it never returns.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the question stays open.
    pub(super) async fn answer(&mut self) -> Answer {
        let Some(asking) = &mut self.asking else {
            return std::future::pending().await;
        };
        let (sampler, answer) = asking.await;
        (self.idle, self.asking) = (Some(sampler), None);
        answer
    }
}

async fn answer_to(mut sampler: Sampler, question: Question) -> (Sampler, Answer) {
    let answer = match question {
        Question::Sample(count) => Answer::Sample(sampler.next(count).await),
        Question::Holders(keys) => Answer::Holders(sampler.holders(keys).await),
        Question::Queue(key) => {
            let lock = sampler.lock(&key).await;
            Answer::Queue(key, lock)
        }
        Question::Confirm(key) => {
            let lock = sampler.lock(&key).await;
            Answer::Confirm(key, lock)
        }
        Question::Force(key, holds) => {
            let removed = sampler.force(&key, &holds).await;
            Answer::Force(key, removed)
        }
    };
    (sampler, answer)
}
