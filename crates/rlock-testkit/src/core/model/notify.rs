//! Answers to blocked calls, and messages on channels.

use super::{Model, Via};
use crate::core::messages::{MessageKind, OnChannel, Outcome, Sent};

impl Model {
    pub(super) fn answer(&mut self, at: usize, via: &Via, outcome: Outcome<u64>) {
        if let Via::Call { session, handle } = via {
            self.sent.push(Sent::Answer {
                key: self.locks[at].key.to_owned(),
                session: *session,
                handle: *handle,
                outcome,
            });
        }
    }

    pub(super) fn publish_to(
        &mut self,
        at: usize,
        via: &Via,
        word: MessageKind,
        owner: &str,
        fence: Option<u64>,
    ) {
        if let Via::Channel { channel, .. } = via {
            self.publish(at, channel, word, owner, fence);
        }
    }

    pub(super) fn publish(
        &mut self,
        at: usize,
        channel: &OnChannel,
        word: MessageKind,
        owner: &str,
        fence: Option<u64>,
    ) {
        if self.listened.iter().any(|it| it == channel) {
            self.sent.push(Sent::Message {
                key: self.locks[at].key.to_owned(),
                channel: channel.clone(),
                word,
                owner: owner.to_owned(),
                fence,
            });
        }
    }

    /// Publishes the unlock message to listeners.
    pub(super) fn unlock(&mut self, at: usize) {
        let key = self.locks[at].key.to_owned();
        self.sent.push(Sent::Unlock { key });
    }
}
