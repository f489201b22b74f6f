//! What makes the decisions for a client: a session, or a quorum.

use std::time::Duration;

use crate::endpoint::{ConnectionId, Endpoint, Event, Settings};
use crate::engine::instant::Instant;
use crate::engine::{Id, Metrics};
use crate::error::Error;
use crate::servers::Servers;
#[cfg(feature = "quorum")]
use crate::session::quorum::Quorum;
use crate::session::telemetry::{RELEASED, Telemetry};
use crate::session::{Action, Call, Session};

/// A session, or the quorum of several. Methods without an explanation are those
/// of [`Session`].
pub struct Machine {
    decider: Decider,
    /// What is watched, if somebody listens.
    telemetry: Option<Box<Telemetry>>,
}

enum Decider {
    /// For one server, a master that Sentinels name, or a cluster.
    Session(Box<Session>),
    /// For several servers that hold a lock by majority.
    #[cfg(feature = "quorum")]
    Quorum(Box<Quorum>),
}

/// The same for either.
macro_rules! either {
    ($decider:expr, $it:ident => $does:expr) => {
        match $decider {
            Decider::Session($it) => $does,
            #[cfg(feature = "quorum")]
            Decider::Quorum($it) => $does,
        }
    };
}

/// Methods that only pass on what they are asked for.
macro_rules! passed_on {
    ($($(#[$about:meta])* fn $name:ident($self:ident: [$($borrow:tt)+] $(, $argument:ident: $type:ty)*) $(-> $output:ty)?;)*) => {$(
        #[doc = concat!("See [`Session::", stringify!($name), "`].")]
        $(#[$about])*
        pub fn $name($self: $($borrow)+ Self $(, $argument: $type)*) $(-> $output)? {
            either!($($borrow)+ $self.decider, it => it.$name($($argument),*))
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
        let session = Session::new(servers, settings);
        Ok(Self::new(Decider::Session(Box::new(session))))
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
        Ok(Self::new(Decider::Quorum(Box::new(quorum))))
    }

    fn new(decider: Decider) -> Self {
        let telemetry = None;
        Self { decider, telemetry }
    }

    /// From now on it also reports what happens: [`Action::Occurred`]. Call this
    /// before its first input.
    pub fn listen(&mut self) {
        self.telemetry = Some(Box::default());
    }

    /// What is watched, if anything, at the moment of an input.
    fn telemetry(&mut self, now: Instant) -> Option<&mut Telemetry> {
        let telemetry = self.telemetry.as_deref_mut()?;
        telemetry.now = now;
        Some(telemetry)
    }

    passed_on! {
        #[must_use]
        fn next_deadline(self: [&]) -> Option<Instant>;
        fn take_output(self: [&mut], connection: ConnectionId, empty: &mut Vec<u8>);
        #[must_use]
        fn remaining(self: [&], guard: Id, now: Instant) -> Duration;
        #[must_use]
        fn is_known(self: [&], number: Id) -> bool;
        #[must_use]
        fn is_clean(self: [&]) -> bool;
        #[must_use]
        fn is_empty(self: [&]) -> bool;
        /// A quorum returns those of its first member.
        #[must_use]
        fn endpoint(self: [&]) -> &Endpoint;
    }

    /// See [`Session::handle`].
    pub fn handle(&mut self, now: Instant, event: Event<'_>) {
        let ends = matches!(event, Event::Closed);
        if let Some(telemetry) = self.telemetry(now)
            && ends
        {
            telemetry.end_all();
        }
        either!(&mut self.decider, it => it.handle(now, event));
    }

    /// See [`Session::poll_action`].
    pub fn poll_action(&mut self) -> Option<Action> {
        let occurred = self.telemetry.as_mut().and_then(|it| it.next());
        if occurred.is_some() {
            return occurred;
        }
        let action = either!(&mut self.decider, it => it.poll_action())?;
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.watch(&action);
        }
        Some(action)
    }

    /// See [`Session::call`].
    pub fn call(&mut self, now: Instant, number: Id, call: Call) {
        let ends = match call {
            Call::Release { guard, .. } | Call::ReleasePermits { guard, .. } => Some(guard),
            _ => None,
        };
        if let Some(telemetry) = self.telemetry(now) {
            telemetry.begin(number, &call);
        }
        either!(&mut self.decider, it => it.call(now, number, call));
        // A guard whose permits are released in part goes on.
        if self.telemetry.is_some()
            && let Some(guard) = ends
            && self.remaining(guard, now).is_zero()
            && let Some(telemetry) = self.telemetry(now)
        {
            telemetry.release(number, guard);
        }
    }

    /// See [`Session::abandon`].
    pub fn abandon(&mut self, now: Instant, call: Id) {
        if let Some(telemetry) = self.telemetry(now) {
            telemetry.abandon(call);
        }
        either!(&mut self.decider, it => it.abandon(now, call));
    }

    /// See [`Session::leave`].
    pub fn leave(&mut self, now: Instant, guard: Id) {
        if let Some(telemetry) = self.telemetry(now) {
            telemetry.end(guard, RELEASED);
        }
        either!(&mut self.decider, it => it.leave(now, guard));
    }

    /// See [`Session::untaken`].
    pub fn untaken(&mut self, now: Instant, guard: Id) {
        if let Some(telemetry) = self.telemetry(now) {
            telemetry.end(guard, RELEASED);
        }
        either!(&mut self.decider, it => it.untaken(now, guard));
    }

    /// See [`Session::keep`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] above 30 days.
    pub fn keep(&mut self, now: Instant, guard: Id, least: Duration) -> Result<(), Error> {
        let kept = either!(&mut self.decider, it => it.keep(now, guard, least));
        if let Err(error) = &kept
            && let Some(telemetry) = self.telemetry(now)
        {
            telemetry.end(guard, error.code());
        }
        kept
    }

    /// See [`Session::leave_all`].
    pub fn leave_all(&mut self, now: Instant) {
        if let Some(telemetry) = self.telemetry(now) {
            telemetry.end_all();
        }
        either!(&mut self.decider, it => it.leave_all(now));
    }

    /// The permits that a guard needs; see [`Session::permits`].
    #[must_use]
    pub fn permits(&self, guard: Id) -> u32 {
        match &self.decider {
            Decider::Session(session) => session.permits(guard),
            #[cfg(feature = "quorum")]
            Decider::Quorum(_) => 0,
        }
    }

    /// See [`Session::split`].
    pub fn split(&mut self, now: Instant, guard: Id, part: Id, permits: u32) -> bool {
        let Some(session) = self.as_session() else {
            return false;
        };
        let is_split = session.split(now, guard, part, permits);
        if is_split && let Some(telemetry) = self.telemetry(now) {
            telemetry.split(guard, part);
        }
        is_split
    }

    /// See [`Session::merge`].
    pub fn merge(&mut self, now: Instant, guard: Id, part: Id) -> bool {
        let Some(session) = self.as_session() else {
            return false;
        };
        let is_merged = session.merge(now, guard, part);
        if is_merged && let Some(telemetry) = self.telemetry(now) {
            telemetry.merge(part);
        }
        is_merged
    }

    fn as_session(&mut self) -> Option<&mut Session> {
        match &mut self.decider {
            Decider::Session(session) => Some(session),
            #[cfg(feature = "quorum")]
            Decider::Quorum(_) => None,
        }
    }

    /// The counters of a client; none of a quorum.
    #[must_use]
    pub fn metrics(&self) -> Option<Metrics> {
        match &self.decider {
            Decider::Session(session) => Some(session.endpoint().engine().metrics()),
            #[cfg(feature = "quorum")]
            Decider::Quorum(_) => None,
        }
    }

    /// The quorum, if it is one, for an input at this moment.
    #[cfg(feature = "quorum")]
    #[must_use]
    pub fn as_quorum(&mut self, now: Instant) -> Option<&mut Quorum> {
        self.telemetry(now);
        match &mut self.decider {
            Decider::Session(_) => None,
            Decider::Quorum(quorum) => Some(quorum),
        }
    }
}
