//! A client, its process, and the connection to the server.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use crate::actor::Actor;
use crate::engine::claims::Name;
use crate::engine::lane::Routes;
use crate::engine::request::{Reply, Request};
use crate::engine::{Engine, Id};
use crate::error::Fault;
use crate::operation::ACTORS;
use crate::server::Message;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const REPLICATION: Duration = Duration::from_secs(1);

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) actors: Vec<Actor>,
    /// Its process stands still until then.
    pub(crate) stopped_until: u64,
    pub(crate) is_closed: bool,
    /// Whether a request of an earlier connection may still be carried out: a
    /// release can then be one of a later hold of the same owner.
    pub(crate) is_unsure: bool,
    pub(crate) link: Option<Link>,
    pub(crate) links: u64,
    /// The requests that have no answer yet, with their connections.
    pub(crate) asked: BTreeMap<Id, u64>,
    pub(crate) owners: u64,
    /// The losses that it has been told of.
    pub(crate) lost: HashSet<(Name, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) number: u64,
    /// What the server calls it.
    pub(crate) session: u64,
    /// Nothing passes it any more.
    pub(crate) is_cut: bool,
    /// The client has seen that, or has had enough of it.
    pub(crate) is_given_up: bool,
    /// When the last thing arrives at each end: nothing overtakes.
    pub(crate) at_server: u64,
    pub(crate) at_client: u64,
}

/// What happens at some time.
pub(crate) enum Happening {
    /// A request arrives at the server.
    Asked {
        session: u64,
        id: Id,
        request: Request,
    },
    /// A reply is read by its caller.
    Replied {
        id: Id,
        result: Result<Reply, Fault>,
    },
    /// A message is read.
    Told { link: u64, message: Message },
    /// There will be no reply.
    Unanswered { id: Id },
    /// The client sees that a connection is gone.
    Breaks { link: u64 },
    /// It has a new one.
    Connects,
    /// The server sees that a connection is gone.
    Closes { session: u64 },
}

impl Happening {
    /// Whether it waits while the process of its client stands still.
    pub(crate) fn is_at_client(&self) -> bool {
        !matches!(self, Self::Asked { .. } | Self::Closes { .. })
    }
}

impl Client {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            engine: Engine::new((PATIENCE, REPLICATION), seed, Routes::One),
            actors: (0..ACTORS).map(|_| Actor::default()).collect(),
            stopped_until: 0,
            is_closed: false,
            is_unsure: false,
            link: None,
            links: 0,
            asked: BTreeMap::new(),
            owners: 0,
            lost: HashSet::new(),
        }
    }
}
