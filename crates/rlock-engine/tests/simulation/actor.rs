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
    /// Whether it may be valid here although the server has ended it: an
    /// operator has ended it or set the clock.
    pub(crate) is_ended_by_operator: bool,
    /// The lease of its requests, as far as it is known.
    pub(crate) lease: Duration,
    /// When its loss could last be reported, or must not be.
    pub(crate) watched: u64,
}

#[derive(Debug)]
pub(crate) struct Calling {
    pub(crate) call: Id,
    pub(crate) what: What,
    pub(crate) begun: u64,
    /// The deadline for an outcome, by the clock of the world.
    pub(crate) latest: Option<u64>,
    /// The server and the connection that it needs if it waits for no other
    /// owner.
    pub(crate) quick: Option<(usize, u64)>,
    pub(crate) place: usize,
    pub(crate) owner: String,
    pub(crate) claims: Claims,
}

/// A released lock that the server keeps for a while.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) claims: Claims,
    pub(crate) until: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Lock(Ask, Duration),
    /// The call takes over the task's guard.
    Upgrade,
    /// Until when the server must keep the lock.
    Release(Option<Instant>),
    Downgrade,
    Extend(Duration),
}
