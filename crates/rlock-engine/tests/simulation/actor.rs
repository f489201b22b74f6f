//! A task of a client: idle, in a call, or with a guard.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::Id;
use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::Ask;

#[derive(Debug, Default)]
pub(crate) struct Actor {
    pub(crate) guard: Option<Guard>,
    pub(crate) call: Option<Calling>,
}

#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub(crate) proof: Arc<Proof>,
    pub(crate) ask: Ask,
    /// Whether it may count here though the server has ended it: somebody took
    /// the lock away, or set the clock.
    pub(crate) is_taken_away: bool,
    /// How long it is asked for at a time, as far as is known.
    pub(crate) lease: Duration,
    /// When its loss would last have been reported, or could not be.
    pub(crate) watched: u64,
}

#[derive(Debug)]
pub(crate) struct Calling {
    pub(crate) call: Id,
    pub(crate) what: What,
    pub(crate) begun: u64,
    /// By when there has to be an outcome, by the clock of the world.
    pub(crate) latest: Option<u64>,
    /// The server and the connection that it needs, if it needs to wait for
    /// nobody.
    pub(crate) quick: Option<(usize, u64)>,
    pub(crate) place: usize,
    pub(crate) owner: String,
    pub(crate) claims: Claims,
}

/// What was released, and stays taken at the server for a while.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) claims: Claims,
    pub(crate) until: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Lock(Ask, Duration),
    /// The guard that it has is given up then.
    Upgrade,
    /// Until when the server must keep it.
    Release(Option<Instant>),
    Downgrade,
    Extend(Duration),
}
