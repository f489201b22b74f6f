//! Requests, replies and messages in a form that the driver and the naive model
//! share.

use rlock_core::{ChannelKind, Extras, Request};

/// A request to acquire, and the identity of the call that it blocks.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub request: Request<'a>,
    pub call: u64,
}

impl<'a> Ask<'a> {
    pub fn owner(&self) -> &'a str {
        std::str::from_utf8(self.request.owner).expect("owners are texts here")
    }

    /// The extras of the hold.
    pub fn extras(&self) -> Extras<&'a str> {
        self.request.extras.map(extra_text)
    }

    /// The connection that asks.
    pub fn session(&self) -> u64 {
        self.request.session.expect("no script asks here")
    }
}

/// An extra, as text.
pub fn extra_text(extra: &[u8]) -> &str {
    std::str::from_utf8(extra).expect("extras are texts here")
}

/// The channel of a message.
pub type OnChannel = (ChannelKind, String);

/// The outcome of a blocked call. On the wire all outcomes except a grant are
/// nil. Here they are distinct, to check that each place in a queue ends only
/// once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<F> {
    Granted(F),
    WaitOver,
    Superseded,
    Cancelled,
}

impl<F> Outcome<F> {
    fn map<G>(self, with: impl FnOnce(F) -> G) -> Outcome<G> {
        match self {
            Self::Granted(fence) => Outcome::Granted(with(fence)),
            Self::WaitOver => Outcome::WaitOver,
            Self::Superseded => Outcome::Superseded,
            Self::Cancelled => Outcome::Cancelled,
        }
    }
}

/// The first word of a message on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    Grant,
    WaitOver,
    Withdrawn,
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent<F> {
    /// The answer to a blocked call.
    Answer {
        key: String,
        session: u64,
        handle: u64,
        outcome: Outcome<F>,
    },
    /// A message to a subscriber.
    Message {
        key: String,
        channel: OnChannel,
        word: MessageKind,
        owner: String,
        fence: Option<F>,
    },
    /// The unlock message.
    Unlock { key: String },
    /// The value of a hold, or that it has ended.
    Value {
        key: String,
        fence: F,
        value: Option<String>,
    },
}

impl<F> Sent<F> {
    pub fn key(&self) -> &str {
        match self {
            Self::Answer { key, .. }
            | Self::Message { key, .. }
            | Self::Unlock { key }
            | Self::Value { key, .. } => key,
        }
    }

    pub fn map<G>(self, with: impl FnOnce(F) -> G) -> Sent<G> {
        match self {
            Self::Answer {
                key,
                session,
                handle,
                outcome,
            } => Sent::Answer {
                key,
                session,
                handle,
                outcome: outcome.map(with),
            },
            Self::Message {
                key,
                channel,
                word,
                owner,
                fence,
            } => Sent::Message {
                key,
                channel,
                word,
                owner,
                fence: fence.map(with),
            },
            Self::Unlock { key } => Sent::Unlock { key },
            Self::Value { key, fence, value } => Sent::Value {
                key,
                fence: with(fence),
                value,
            },
        }
    }

    /// The fence of a grant.
    pub fn granted(&self) -> Option<&F> {
        match self {
            Self::Answer {
                outcome: Outcome::Granted(fence),
                ..
            } => Some(fence),
            Self::Message {
                word: MessageKind::Grant,
                fence,
                ..
            } => fence.as_ref(),
            _ => None,
        }
    }
}

/// The reply of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<F> {
    Fence(F),
    Nil,
    Blocked,
    Waiting,
    Number(u64),
    /// An error, by its subject.
    Error(Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    WrongType,
    QueueFull,
    /// The hold count is at its largest.
    CountFull,
    TooManyPermits,
    /// The owner waits with another request.
    OtherRequest,
    /// The owner holds a part of several keys, or not all by one grant.
    HeldInPart,
    /// The new fence is too far ahead of the clock.
    FenceTooLarge,
    /// Another holder has the new fence.
    FenceTaken,
    /// A shared hold has no value.
    ValueOfShared,
    Deadlock,
    /// Another holder waits for an upgrade.
    SecondUpgrade,
}

impl<F> Reply<F> {
    pub const QUEUE_FULL: Self = Self::Error(Error::QueueFull);
    pub const WRONG_TYPE: Self = Self::Error(Error::WrongType);

    pub fn map<G>(self, with: impl FnOnce(F) -> G) -> Reply<G> {
        match self {
            Self::Fence(fence) => Reply::Fence(with(fence)),
            Self::Nil => Reply::Nil,
            Self::Blocked => Reply::Blocked,
            Self::Waiting => Reply::Waiting,
            Self::Number(number) => Reply::Number(number),
            Self::Error(error) => Reply::Error(error),
        }
    }
}
