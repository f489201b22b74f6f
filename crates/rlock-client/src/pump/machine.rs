//! What makes the decisions: a session of one client, or a quorum.

use std::time::Duration;

use rlock_engine::endpoint::{ConnectionId, Endpoint, Event};
use rlock_engine::engine::Id;
use rlock_engine::engine::instant::Instant;
use rlock_engine::error::Error;
#[cfg(feature = "quorum")]
use rlock_engine::session::quorum::Quorum;
use rlock_engine::session::{Action, Call, Session};

pub(crate) enum Machine {
    Session(Box<Session>),
    #[cfg(feature = "quorum")]
    Quorum(Box<Quorum>),
}

/// The same of either.
macro_rules! either {
    ($machine:expr, $it:ident => $what:expr) => {
        match $machine {
            Self::Session($it) => $what,
            #[cfg(feature = "quorum")]
            Self::Quorum($it) => $what,
        }
    };
}

impl Machine {
    pub(crate) fn handle(&mut self, now: Instant, event: Event<'_>) {
        either!(self, it => it.handle(now, event));
    }

    pub(crate) fn call(&mut self, now: Instant, number: Id, call: Call) {
        either!(self, it => it.call(now, number, call));
    }

    pub(crate) fn abandon(&mut self, now: Instant, call: Id) {
        either!(self, it => it.abandon(now, call));
    }

    pub(crate) fn leave(&mut self, now: Instant, guard: Id) {
        either!(self, it => it.leave(now, guard));
    }

    pub(crate) fn untaken(&mut self, now: Instant, guard: Id) {
        either!(self, it => it.untaken(now, guard));
    }

    pub(crate) fn keep(&mut self, now: Instant, guard: Id, least: Duration) -> Result<(), Error> {
        either!(self, it => it.keep(now, guard, least))
    }

    pub(crate) fn leave_all(&mut self, now: Instant) {
        either!(self, it => it.leave_all(now));
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        either!(self, it => it.poll_action())
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        either!(self, it => it.next_deadline())
    }

    pub(crate) fn take_output(&mut self, connection: ConnectionId, empty: &mut Vec<u8>) {
        either!(self, it => it.take_output(connection, empty));
    }

    /// The connections; of a quorum, those of its first member.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        either!(self, it => it.endpoint())
    }

    /// Whether nothing is left to clean up.
    pub(crate) fn is_clean(&self) -> bool {
        either!(self, it => it.is_clean())
    }

    pub(crate) fn as_session(&mut self) -> Option<&mut Session> {
        match self {
            Self::Session(session) => Some(session),
            #[cfg(feature = "quorum")]
            Self::Quorum(_) => None,
        }
    }

    #[cfg(feature = "quorum")]
    pub(crate) fn as_quorum(&mut self) -> Option<&mut Quorum> {
        match self {
            Self::Session(_) => None,
            Self::Quorum(quorum) => Some(quorum),
        }
    }
}
