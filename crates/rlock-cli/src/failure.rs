//! Failures and their exit codes.
//!
//! `exec` passes on the exit code of its command, so rlock itself uses codes
//! that commands rarely use. The codes from 124 on have the same meaning as for
//! `timeout` and `env`.

use std::borrow::Cow;

use rlock_client::Error;

/// The exit codes of rlock itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The reader closed the output.
    Done,
    NotConfirmed,
    Usage,
    Lost,
    Unreachable,
    Refused,
    /// The code that the user chose.
    NotGranted(u8),
    Internal,
    CannotRun,
    NotFound,
}

impl Code {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::NotConfirmed => 1,
            Self::Usage => 2,
            Self::Lost => 121,
            Self::Unreachable => 122,
            Self::Refused => 123,
            Self::NotGranted(code) => code,
            Self::Internal => 125,
            Self::CannotRun => 126,
            Self::NotFound => 127,
        }
    }
}

/// Why rlock ends, for the user: what happened, and what to do about it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// If it is empty, nothing is written.
    pub(crate) message: String,
    pub(crate) hint: Option<Cow<'static, str>>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// The arguments are wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// An argument cannot be used.
    pub(crate) fn unusable(error: &Error) -> Self {
        let option = match error {
            Error::OutOfRange { argument, .. } => *argument,
            _ => "",
        };
        let message = match option {
            "url" | "nodes" | "sentinels" | "master" => {
                format!("--url, RLOCK_URL or REDIS_URL: {error}")
            }
            "certificates" => format!("--cacert, --cert, --key: {error}"),
            _ => error.to_string(),
        };
        Self::usage(message)
    }

    /// An operation on this machine failed.
    pub(crate) fn internal(what: &str, error: &std::io::Error) -> Self {
        Self::new(Code::Internal, format!("{what}: {error}"))
    }
}
