//! What messages mean to the engine, and what the engine's types are in messages.

use std::borrow::Cow;
use std::time::Duration;

use rlock_engine::endpoint::{ConnectionId, Note};
use rlock_engine::engine::terms::{self, Ask, Lease, Queueing};
use rlock_engine::error::{Error, Failure, Loss};
use rlock_engine::servers::Address;
use rlock_engine::wire::resp::Frame;

use crate::format::{Value, Writer};
use crate::messages::{Access, Action, Ending, Fault, Level, Mode, Terms, Transport};

impl Mode {
    pub(crate) fn ask(&self) -> Result<Ask, Error> {
        match self.mode {
            Access::Exclusive => Ok(Ask::Exclusive),
            Access::Shared => Ok(Ask::Shared),
            Access::Permits => Ask::of_permits(self.permits, self.limit),
        }
    }
}

impl Terms {
    pub(crate) fn terms(&self) -> Result<terms::Terms, Error> {
        let mut terms = terms::Terms::new().lease(match self.renewed {
            true => Lease::Renewed(self.lease),
            false => Lease::Fixed(self.lease),
        })?;
        if let Some(max_hold) = self.max_hold {
            terms = terms.max_hold(max_hold)?;
        }
        if let Some(grace) = self.bound {
            terms = terms.bound(grace)?;
        }
        terms.replicas(self.replicas)?.margin(self.margin)
    }
}

pub(crate) fn queueing(wait: Option<Duration>) -> Result<Queueing, Error> {
    wait.map_or(Ok(Queueing::Unlimited), Queueing::at_most)
}

impl Fault {
    pub(crate) fn with(self, text: &str) -> Failure {
        let text = text.to_owned();
        match self {
            Self::Io => Failure::Io(text),
            Self::Time => Failure::TimedOut(text),
            Self::Setup => Failure::Setup(text),
            Self::Certificate => Failure::Certificate(text),
        }
    }
}

impl From<Loss> for Ending {
    fn from(why: Loss) -> Self {
        match why {
            Loss::LeaseEnded => Self::LeaseEnded,
            Loss::EndedByServer => Self::EndedByServer,
            // Nothing was lost.
            _ => Self::Released,
        }
    }
}

impl<'a> From<&'a Frame> for Value<'a> {
    fn from(frame: &'a Frame) -> Self {
        let list = |items: &'a [Frame]| Self::List(items.iter().map(Self::from).collect());
        match frame {
            Frame::Nil => Self::Nil,
            Frame::Boolean(yes) => Self::Integer((*yes).into()),
            Frame::Integer(number) => Self::Integer(*number),
            Frame::Double(number) => Self::Bytes(Cow::Owned(number.to_string().into_bytes())),
            Frame::Simple(text) | Frame::BigNumber(text) => {
                Self::Bytes(Cow::Borrowed(text.as_bytes()))
            }
            Frame::Bulk(bytes) | Frame::Verbatim(bytes) => Self::Bytes(Cow::Borrowed(bytes)),
            Frame::Array(items) | Frame::Set(items) | Frame::Push(items) => list(items),
            Frame::Map(pairs) => {
                let pairs = pairs.iter();
                Self::Map(
                    pairs
                        .map(|(key, value)| (key.into(), value.into()))
                        .collect(),
                )
            }
            Frame::Error(error) => Self::Error(Cow::Owned(error.to_string())),
        }
    }
}

/// A connection's event, for a log.
pub(crate) fn described(note: &Note) -> (Level, String) {
    let warning = note.warning().unwrap_or_default();
    match note {
        Note::NotConnected { is_news: true, .. }
        | Note::NoRoutes { is_news: true, .. }
        | Note::NotRenewed { .. }
        | Note::AtRisk { .. }
        | Note::NotReleased { .. } => (Level::Warning, warning),
        Note::Connected { address } => (
            Level::Information,
            format!("connected to the server at {address}"),
        ),
        Note::NotConnected { failure, .. } => (
            Level::Debug,
            format!("no connection to the server yet: {failure}"),
        ),
        Note::Lost { address } => (
            Level::Warning,
            format!("connection to the server at {address} lost"),
        ),
        Note::Silent => (Level::Warning, "the connection is silent".to_owned()),
        Note::NamedElsewhere => (
            Level::Information,
            "the Sentinels name another server".to_owned(),
        ),
        Note::UnknownMessage(message) => {
            let message = String::from_utf8_lossy(message);
            (Level::Warning, format!("unknown message: {message}"))
        }
        Note::NoRoutes { failure, .. } => (Level::Debug, failure.to_string()),
    }
}

/// Actions with what the engine returns.
impl Writer {
    pub(crate) fn connect(&mut self, connection: ConnectionId, address: &Address) {
        let path;
        let (how, host, port) = match address {
            Address::Tcp { host, port, tls } => {
                let how = match tls {
                    None => Transport::Tcp,
                    Some(tls) if tls.insecure => Transport::Insecure,
                    Some(_) => Transport::Tls,
                };
                (how, host.as_str(), *port)
            }
            Address::Unix { path: at } => {
                path = at.to_string_lossy();
                (Transport::Unix, &*path, 0)
            }
        };
        let connection = connection.number();
        Action::Connect {
            connection,
            how,
            host,
            port,
        }
        .write(self);
    }

    pub(crate) fn failed(&mut self, call: u64, error: &Error) {
        let (code, text) = (error.code(), &*error.with_causes());
        let transient = error.is_transient();
        Action::Failed {
            call,
            code,
            text,
            transient,
        }
        .write(self);
    }

    pub(crate) fn answered(&mut self, call: u64, answers: &[Frame]) {
        let answers = Value::List(answers.iter().map(Value::from).collect());
        Action::Answered { call, answers }.write(self);
    }
}
