//! What can go wrong, and which exit code it has.
//!
//! `exec` passes its command's code on, so the codes of rlock itself are ones
//! that commands hardly ever use: those from 124 mean what they mean for
//! `timeout` and `env`, those below it are rlock's own.

use rlock_client::{Error, ServerError, Servers};

use crate::address::{Address, Place};

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
const DO_THEY_KNOW: &str = "do Sentinels run there, and do they know a master of this name that \
     runs? `redis-cli -p 26379 SENTINEL MASTERS` shows their masters";
const DO_NODES_RUN: &str = "do its nodes run there, and does `redis-cli -c CLUSTER INFO` say \
     cluster_state:ok? Name other nodes with --url or RLOCK_URL";
const LOAD_THE_MODULE: &str = "start the server with `redis-server --loadmodule \
     /path/to/librlock.so`, or put `loadmodule /path/to/librlock.so` into its configuration";
const CHECK_CREDENTIALS: &str =
    "put them into the address, as redis://user:password@host:port/, best by RLOCK_URL";
const CHECK_CREDENTIALS_OF_ALL: &str = "put those of the master into the address, as \
     redis+sentinel://user:password@host:port/master, and those of the Sentinels at its end, as \
     ?sentinel_user=user&sentinel_password=password, best by RLOCK_URL";
const CHECK_CREDENTIALS_OF_NODES: &str = "put those of all nodes into the address, as \
     redis+cluster://user:password@host:port, best by RLOCK_URL";
const CHECK_CERTIFICATES: &str = "name the authority that has signed the server's certificate with \
     --cacert FILE, and your own certificate with --cert FILE --key FILE";
const CHECK_RIGHTS: &str = "the user needs the commands, the channels rlock:client:* and the keys \
     that docs/cli.md names under `Access rights`";
const IS_NO_CLUSTER: &str = "it is a server of its own: name it without --cluster, as \
     redis://host:port/";
const IS_A_CLUSTER: &str = "it belongs to a cluster: add --cluster, or name it as \
     redis+cluster://host:port";
const CHECK_REPLICAS: &str = "`INFO replication` of the master shows its replicas; ask for fewer \
     with --replicas";

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

    /// An error of the lock client.
    pub(crate) fn client(at: &Address, error: &Error) -> Self {
        match error {
            Error::Connect(failure)
            | Error::Unavailable {
                source: Some(failure),
                ..
            } => Self::connection(at, failure),
            Error::Refused(answer) => Self::server(at, answer, answer),
            Error::ModuleMissing => Self::module_missing(at),
            Error::Unavailable { .. } => {
                let message = format!("no answer from {}: {error}", at.words());
                Self::unreachable(&at.place, message)
            }
            Error::OutOfRange { .. } => Self::usage(error),
            Error::Lost(_) => Self::new(Code::Lost, error.to_string()),
            Error::Closed => Self::new(Code::Internal, error.to_string()),
            Error::Denied(_) => Self::refused(at, error).with_hint(CHECK_RIGHTS),
            Error::NotReplicated { .. } => Self::refused(at, error).with_hint(CHECK_REPLICAS),
            _ => Self::refused(at, error),
        }
    }

    pub(crate) fn unreachable(place: &Place, message: String) -> Self {
        Self::new(Code::Unreachable, message).with_hint(is_it_running(place))
    }

    fn refused(at: &Address, error: &Error) -> Self {
        Self::new(Code::Refused, format!("{}: {error}", at.words()))
    }

    /// Something that the user has named cannot be used.
    pub(crate) fn usage(error: &Error) -> Self {
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
        Self::new(Code::Usage, message)
    }

    fn module_missing(at: &Address) -> Self {
        let message = format!(
            "{} does not have the rlock module, or an older one",
            at.words()
        );
        Self::new(Code::Unreachable, message).with_hint(LOAD_THE_MODULE)
    }

    /// An error of a connection.
    fn connection(at: &Address, failure: &rlock_client::Failure) -> Self {
        let reasons = reasons(failure);
        let answers = reasons.iter().filter_map(|reason| match reason {
            rlock_client::Failure::Server(error) => Some(error),
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        if answers.iter().any(|error| is_about_credentials(error)) {
            return Self::credentials(at, failure);
        }
        if let Some(error) = answers.first().filter(|_| answers.len() == reasons.len()) {
            return Self::server(at, error, failure);
        }
        let message = format!("cannot reach {}: {failure}", at.words());
        let is_certificate = |it: &&_| matches!(it, rlock_client::Failure::Certificate(_));
        let hint = match reasons.iter().any(is_certificate) {
            true => CHECK_CERTIFICATES,
            false => is_it_running(&at.place),
        };
        Self::new(Code::Unreachable, message).with_hint(hint)
    }

    /// An error that a server has answered with, as one of them or alone.
    fn server(at: &Address, error: &ServerError, all: &dyn std::fmt::Display) -> Self {
        if is_about_credentials(error) {
            return Self::credentials(at, all);
        }
        let refused = Self::new(Code::Refused, format!("{} refused: {all}", at.words()));
        match (&*error.code, &at.place) {
            ("MOVED", _) => refused.with_hint(IS_A_CLUSTER),
            ("NOPERM", _) => refused.with_hint(CHECK_RIGHTS),
            ("ERR", Place::Servers(Servers::Cluster { .. })) => refused.with_hint(IS_NO_CLUSTER),
            ("ERR", Place::Servers(Servers::Sentinels { .. })) => refused.with_hint(DO_THEY_KNOW),
            _ => refused,
        }
    }

    fn credentials(at: &Address, error: &dyn std::fmt::Display) -> Self {
        let words = at.words();
        let message = format!("{words} does not accept the user and password: {error}");
        Self::new(Code::Refused, message).with_hint(match &at.place {
            Place::Servers(Servers::One { .. }) => CHECK_CREDENTIALS,
            Place::Servers(Servers::Sentinels { .. }) => CHECK_CREDENTIALS_OF_ALL,
            Place::Servers(Servers::Cluster { .. }) | Place::Quorum(_) => {
                CHECK_CREDENTIALS_OF_NODES
            }
        })
    }

    /// Something of this machine failed.
    pub(crate) fn internal(what: &str, error: &std::io::Error) -> Self {
        Self::new(Code::Internal, format!("{what}: {error}"))
    }
}

/// Why there is no connection, of each server where there are several.
fn reasons(failure: &rlock_client::Failure) -> Vec<&rlock_client::Failure> {
    match failure {
        rlock_client::Failure::NoneOf { failures, .. } => {
            failures.iter().flat_map(|(_, it)| reasons(it)).collect()
        }
        failure => vec![failure],
    }
}

fn is_about_credentials(error: &ServerError) -> bool {
    matches!(&*error.code, "NOAUTH" | "WRONGPASS")
}

fn is_it_running(place: &Place) -> &'static str {
    match place {
        Place::Servers(Servers::One { .. }) => IS_IT_RUNNING,
        Place::Servers(Servers::Sentinels { .. }) => DO_THEY_KNOW,
        Place::Servers(Servers::Cluster { .. }) | Place::Quorum(_) => DO_NODES_RUN,
    }
}
