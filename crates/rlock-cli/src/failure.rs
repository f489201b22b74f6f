//! What can go wrong, and which exit code it has.
//!
//! `exec` passes its command's code on, so the codes of rlock itself are ones
//! that commands hardly ever use: those from 124 mean what they mean for
//! `timeout` and `env`, those below it are rlock's own.

use rlock_client::Error;

/// The exit codes that are not a command's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The reader of the output has seen enough.
    Done,
    NotConfirmed,
    Usage,
    Lost,
    Unreachable,
    Refused,
    /// What the user wants it to be.
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
    /// Empty if there is nothing to say.
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
}

const IS_IT_RUNNING: &str = "is it running there, and is the address right? Name another one with \
     --url or RLOCK_URL";
const LOAD_THE_MODULE: &str = "start the server with `redis-server --loadmodule \
     /path/to/librlock.so`, or put `loadmodule /path/to/librlock.so` into its configuration";
const CHECK_CREDENTIALS: &str =
    "put them into the address, as redis://user:password@host:port/, best by RLOCK_URL";

const CHECK_CERTIFICATES: &str = "name the authority that has signed the server's certificate with \
     --cacert FILE, and your own certificate with --cert FILE --key FILE";

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
        }
    }

    fn with_hint(self, hint: &'static str) -> Self {
        Self {
            hint: Some(hint),
            ..self
        }
    }

    /// The server's `command` does not exist.
    pub(crate) fn module_missing(server: &str, command: &str) -> Self {
        let message = format!(
            "the server at {server} does not know {command}: it does not have the rlock module, \
             or an older one"
        );
        Self::new(Code::Unreachable, message).with_hint(LOAD_THE_MODULE)
    }

    /// An error of a plain connection, when `command` was sent.
    pub(crate) fn redis(server: &str, command: &str, error: &redis::RedisError) -> Self {
        let detail = error.detail().unwrap_or_default();
        match error.code() {
            Some("NOAUTH" | "WRONGPASS") => Self::credentials(server, error),
            Some("ERR") if detail.starts_with("unknown command") => {
                Self::module_missing(server, command)
            }
            Some(code) => Self::new(
                Code::Refused,
                format!("the server at {server} refused: {code} {detail}"),
            ),
            None if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                Self::credentials(server, error)
            }
            None => Self::new(
                Code::Unreachable,
                format!("cannot reach the server at {server}: {error}"),
            )
            .with_hint(match error.to_string().to_lowercase() {
                error if error.contains("certificate") => CHECK_CERTIFICATES,
                _ => IS_IT_RUNNING,
            }),
        }
    }

    fn credentials(server: &str, error: &redis::RedisError) -> Self {
        let message =
            format!("the server at {server} does not accept the user and password: {error}");
        Self::new(Code::Refused, message).with_hint(CHECK_CREDENTIALS)
    }

    /// An error of the lock client.
    pub(crate) fn client(server: &str, error: &Error) -> Self {
        match error {
            Error::Connect(error) => Self::redis(server, "RLOCK.ACQUIRE", error),
            Error::ModuleMissing => Self::module_missing(server, "RLOCK.ACQUIRE"),
            Error::Unavailable { .. } => {
                let message = format!("no answer from the server at {server}: {error}");
                Self::new(Code::Unreachable, message).with_hint(IS_IT_RUNNING)
            }
            Error::OutOfRange { .. } => Self::new(Code::Usage, error.to_string()),
            Error::Lost(_) => Self::new(Code::Lost, error.to_string()),
            Error::Closed => Self::new(Code::Internal, error.to_string()),
            _ => Self::new(Code::Refused, format!("server {server}: {error}")),
        }
    }

    /// Something of this machine failed.
    pub(crate) fn internal(what: &str, error: &std::io::Error) -> Self {
        Self::new(Code::Internal, format!("{what}: {error}"))
    }
}
