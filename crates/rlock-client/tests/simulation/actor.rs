//! A task of a client: idle, in a call, or with a guard.

use std::sync::Arc;

use crate::engine::Id;
use crate::engine::ask::Ask;
use crate::engine::proof::Proof;

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
}

#[derive(Debug)]
pub(crate) struct Calling {
    pub(crate) call: Id,
    pub(crate) what: What,
    pub(crate) begun: u64,
    /// By when there has to be an outcome, by the clock of the world.
    pub(crate) latest: Option<u64>,
    pub(crate) key: Vec<u8>,
    pub(crate) owner: String,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Lock(Ask),
    /// The guard that it has is given up then.
    Upgrade,
    Release,
    Downgrade,
    Extend,
}
