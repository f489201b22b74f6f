//! Sends one question at a time to the servers, while the screen handles keys.

use std::pin::Pin;

use rlock_client::Holder;

use crate::failure::Failure;
use crate::info::LockInfo;

use super::sample::{Held, Sample, Sampler};

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
    /// Ends these holds of the lock.
    Force(Vec<u8>, Vec<Holder>),
}

pub(super) enum Answer {
    Sample(Result<Sample, Failure>),
    Holders(Vec<(Vec<u8>, Held)>),
    Queue(Vec<u8>, Result<LockInfo, Failure>),
    Confirm(Vec<u8>, Result<LockInfo, Failure>),
    /// The number of removed holders.
    Force(Vec<u8>, Result<u64, Failure>),
}

type Pending = Pin<Box<dyn Future<Output = (Sampler, Answer)>>>;

pub(super) struct Worker {
    /// None while a question is open.
    idle: Option<Sampler>,
    pending: Option<Pending>,
}

impl Worker {
    pub(super) fn new(sampler: Sampler) -> Self {
        let (idle, pending) = (Some(sampler), None);
        Self { idle, pending }
    }

    /// Starts the next question, if there is one and the last one is answered.
    pub(super) fn start(&mut self, next: impl FnOnce() -> Option<Question>) {
        if self.idle.is_some()
            && let Some(question) = next()
            && let Some(sampler) = self.idle.take()
        {
            self.pending = Some(Box::pin(answer_to(sampler, question)));
        }
    }

    /// The answer to the open question. Without a question it never returns.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the question stays open.
    pub(super) async fn answer(&mut self) -> Answer {
        let Some(pending) = &mut self.pending else {
            return std::future::pending().await;
        };
        let (sampler, answer) = pending.await;
        (self.idle, self.pending) = (Some(sampler), None);
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
