//! What a command answers and what others are told, in a form that the driver
//! (with real fences) and the naive model (with numbered grants) share.

/// What became of a blocked call. On the wire all but a grant are nil; they
/// are kept apart here to see that each place in a queue ends only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<F> {
    Granted(F),
    WaitOver,
    Superseded,
    Cancelled,
}

/// The first word of a message on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Grant,
    WaitOver,
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told<F> {
    /// The answer to a blocked call.
    Answer {
        key: String,
        session: u64,
        handle: u64,
        outcome: Outcome<F>,
    },
    /// A message that somebody listened to.
    Message {
        key: String,
        channel: String,
        word: Word,
        owner: String,
        fence: Option<F>,
    },
    /// The unlock message.
    Unlock { key: String },
}

impl<F> Told<F> {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Answer { key, .. } | Self::Message { key, .. } | Self::Unlock { key } => key,
        }
    }

    pub(crate) fn map<G>(self, with: impl FnOnce(F) -> G) -> Told<G> {
        match self {
            Self::Answer {
                key,
                session,
                handle,
                outcome,
            } => Told::Answer {
                key,
                session,
                handle,
                outcome: match outcome {
                    Outcome::Granted(fence) => Outcome::Granted(with(fence)),
                    Outcome::WaitOver => Outcome::WaitOver,
                    Outcome::Superseded => Outcome::Superseded,
                    Outcome::Cancelled => Outcome::Cancelled,
                },
            },
            Self::Message {
                key,
                channel,
                word,
                owner,
                fence,
            } => Told::Message {
                key,
                channel,
                word,
                owner,
                fence: fence.map(with),
            },
            Self::Unlock { key } => Told::Unlock { key },
        }
    }
}

/// The reply of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply<F> {
    Fence(F),
    Nil,
    Blocked,
    Waiting,
    Number(u64),
    WrongType,
    AlreadyQueued,
    QueueFull,
    /// The hold count is at its largest.
    CountFull,
    /// The owner waits with another request.
    Conflict,
    /// The owner holds a part of several keys, or not all as one.
    HeldInPart,
    Deadlock,
    /// Another holder waits to be upgraded.
    SecondUpgrade,
}

impl<F> Reply<F> {
    pub(crate) fn map<G>(self, with: impl FnOnce(F) -> G) -> Reply<G> {
        match self {
            Self::Fence(fence) => Reply::Fence(with(fence)),
            Self::Nil => Reply::Nil,
            Self::Blocked => Reply::Blocked,
            Self::Waiting => Reply::Waiting,
            Self::Number(number) => Reply::Number(number),
            Self::WrongType => Reply::WrongType,
            Self::AlreadyQueued => Reply::AlreadyQueued,
            Self::QueueFull => Reply::QueueFull,
            Self::CountFull => Reply::CountFull,
            Self::Conflict => Reply::Conflict,
            Self::HeldInPart => Reply::HeldInPart,
            Self::Deadlock => Reply::Deadlock,
            Self::SecondUpgrade => Reply::SecondUpgrade,
        }
    }
}

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared { permits: u32, limit: Option<u32> },
}

impl Mode {
    pub(crate) const SHARED: Self = Self::Shared {
        permits: 1,
        limit: None,
    };
}

/// Through what a request is to be answered, if it has to wait.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    Call { session: u64, handle: u64 },
    Channel { session: u64, channel: String },
}

/// A request to acquire, as it comes over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) owner: &'a str,
    pub(crate) mode: Mode,
    pub(crate) lease_ms: u32,
    pub(crate) once: bool,
    pub(crate) wait: rlock_core::Wait,
    pub(crate) via: Via,
    /// How long the hold outlives its connection, if it is bound to one.
    pub(crate) grace_ms: Option<u32>,
}
