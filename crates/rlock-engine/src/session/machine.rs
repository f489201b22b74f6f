//! What makes the decisions for a client: a session, or a quorum.

use std::time::Duration;

use crate::endpoint::{ConnectionId, Endpoint, Event, Settings};
use crate::engine::Id;
use crate::engine::instant::Instant;
use crate::error::Error;
use crate::servers::Servers;
#[cfg(feature = "quorum")]
use crate::session::quorum::Quorum;
use crate::session::{Action, Call, Session};

/// A session, or the quorum of several. Methods without an explanation are those
/// of [`Session`].
pub enum Machine {
    /// For one server, a master that Sentinels name, or a cluster.
    Session(Box<Session>),
    /// For several servers that hold a lock by majority.
    #[cfg(feature = "quorum")]
    Quorum(Box<Quorum>),
}

/// Methods that do the same in either.
macro_rules! either {
    ($($(#[$about:meta])* fn $name:ident($self:ident: $Self:ty $(, $argument:ident: $type:ty)*) $(-> $output:ty)?;)*) => {$(
        #[doc = concat!("See [`Session::", stringify!($name), "`].")]
        $(#[$about])*
        pub fn $name($self: $Self $(, $argument: $type)*) $(-> $output)? {
            match $self {
                Self::Session(session) => session.$name($($argument),*),
                #[cfg(feature = "quorum")]
                Self::Quorum(quorum) => quorum.$name($($argument),*),
            }
        }
    )*};
}

impl Machine {
    /// Decides for a client of these servers.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a setting, or for an address.
    pub fn of(servers: Servers, settings: Settings) -> Result<Self, Error> {
        settings.check()?;
        servers.check()?;
        Ok(Self::Session(Box::new(Session::new(servers, settings))))
    }

    /// Decides for a client of a quorum, with the same settings for each member.
    /// Unless leases above the startup grace of a member are allowed by
    /// `any_grace`, they are refused.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a setting or an address, or if these are not 3,
    /// 5, 7 or 9 servers.
    #[cfg(feature = "quorum")]
    pub fn of_members(
        members: Vec<Servers>,
        settings: &Settings,
        any_grace: bool,
    ) -> Result<Self, Error> {
        settings.check()?;
        members.iter().try_for_each(Servers::check)?;
        let members = members.into_iter().map(|it| (it, settings.clone()));
        let quorum = Quorum::new(members.collect(), any_grace)?;
        Ok(Self::Quorum(Box::new(quorum)))
    }

    either! {
        fn handle(self: &mut Self, now: Instant, event: Event<'_>);
        fn call(self: &mut Self, now: Instant, number: Id, call: Call);
        fn abandon(self: &mut Self, now: Instant, call: Id);
        fn leave(self: &mut Self, now: Instant, guard: Id);
        fn untaken(self: &mut Self, now: Instant, guard: Id);
        ///
        /// # Errors
        ///
        /// [`Error::OutOfRange`] above 30 days.
        fn keep(self: &mut Self, now: Instant, guard: Id, least: Duration) -> Result<(), Error>;
        fn leave_all(self: &mut Self, now: Instant);
        fn poll_action(self: &mut Self) -> Option<Action>;
        #[must_use]
        fn next_deadline(self: &Self) -> Option<Instant>;
        fn take_output(self: &mut Self, connection: ConnectionId, empty: &mut Vec<u8>);
        #[must_use]
        fn remaining(self: &Self, guard: Id, now: Instant) -> Duration;
        #[must_use]
        fn is_known(self: &Self, number: Id) -> bool;
        #[must_use]
        fn is_clean(self: &Self) -> bool;
        #[must_use]
        fn is_empty(self: &Self) -> bool;
        /// A quorum returns those of its first member.
        #[must_use]
        fn endpoint(self: &Self) -> &Endpoint;
    }

    /// The session, unless it is a quorum.
    #[must_use]
    pub fn as_session(&mut self) -> Option<&mut Session> {
        match self {
            Self::Session(session) => Some(session),
            #[cfg(feature = "quorum")]
            Self::Quorum(_) => None,
        }
    }

    /// The quorum, if it is one.
    #[cfg(feature = "quorum")]
    #[must_use]
    pub fn as_quorum(&mut self) -> Option<&mut Quorum> {
        match self {
            Self::Session(_) => None,
            Self::Quorum(quorum) => Some(quorum),
        }
    }
}
