//! Coverage: how often each kind of operation had each kind of outcome. Without
//! it, a walk that reaches nothing would seem to pass.

use std::collections::BTreeMap;

use rlock_core::{ChannelKind, Fence};

use crate::core::{
    messages::{Error, MessageKind, Outcome, Reply, Sent},
    operation::Operation,
    pair::Pair,
};

/// By the names of operation and outcome.
pub type Reached = BTreeMap<(&'static str, &'static str), u64>;

impl Pair {
    pub fn count(&mut self, operation: Operation, reply: Reply<Fence>, sent: &[Sent<Fence>]) {
        let own = (operation.name(), reply.name());
        let others = sent.iter().map(|it| ("others", it.name()));
        let sharded = sent.iter().filter(|it| it.is_sharded());
        let others = others.chain(sharded.map(|_| ("others", "notified on a sharded channel")));
        let events = std::mem::take(&mut self.model.events);
        for what in others.chain([own]).chain(events) {
            *self.reached.entry(what).or_default() += 1;
        }
    }
}

impl Operation {
    const fn name(self) -> &'static str {
        match self {
            Self::Acquire { .. } => "ACQUIRE",
            Self::AcquireAll { .. } => "MACQUIRE",
            Self::Renew { .. } => "RENEW",
            Self::RenewAll { .. } => "MRENEW",
            Self::Release { .. } => "RELEASE",
            Self::ReleaseAll { .. } => "MRELEASE",
            Self::Downgrade { .. } => "DOWNGRADE",
            Self::Cancel { .. } => "CANCEL",
            Self::Force { queue: false, .. } => "FORCE",
            Self::Force { .. } => "FORCE QUEUE",
            Self::Undeliver { .. } => "undelivered",
            Self::HangUp { .. } => "hang up",
            Self::Close { .. } => "close",
            Self::Follow { .. } => "INFO",
            Self::Listen { .. } | Self::ListenToUnlocks { .. } => "listen",
            Self::Foreign { .. } => "foreign",
            Self::Restart { .. } => "restart",
            Self::Pass { .. } => "pass",
        }
    }
}

impl Reply<Fence> {
    const fn name(self) -> &'static str {
        match self {
            Self::Fence(_) => "fence",
            Self::Nil => "nil",
            Self::Blocked => "blocked",
            Self::Waiting => "waiting",
            Self::Number(0) => "0",
            Self::Number(1) => "1",
            Self::Number(_) => "more",
            Self::Error(error) => match error {
                Error::WrongType => "wrong type",
                Error::QueueFull => "queue full",
                Error::CountFull => "count full",
                Error::TooManyPermits => "too many permits",
                Error::OtherRequest => "other request",
                Error::HeldInPart => "held in part",
                Error::FenceTooLarge => "fence too large",
                Error::FenceTaken => "fence taken",
                Error::ValueOfShared => "value of shared",
                Error::Deadlock => "deadlock",
                Error::SecondUpgrade => "second upgrade",
            },
        }
    }
}

impl Sent<Fence> {
    const fn is_sharded(&self) -> bool {
        matches!(self, Self::Message { channel, .. } if matches!(channel.0, ChannelKind::Sharded))
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Answer { outcome, .. } => match outcome {
                Outcome::Granted(_) => "call granted",
                Outcome::WaitOver => "call over",
                Outcome::Superseded => "call superseded",
                Outcome::Cancelled => "call cancelled",
            },
            Self::Message { word, .. } => match word {
                MessageKind::Grant => "notified of a grant",
                MessageKind::WaitOver => "notified of the end of a wait",
                MessageKind::Withdrawn => "notified of a withdrawal",
                MessageKind::Lost => "notified of a loss",
            },
            Self::Unlock { .. } => "unlock",
            Self::Value { value: Some(_), .. } => "notified of a value",
            Self::Value { value: None, .. } => "notified of the end of a value",
        }
    }
}
