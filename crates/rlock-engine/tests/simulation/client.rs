//! A client, its process, and its connections.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem::Discriminant;
use std::time::Duration;

use rlock_engine::engine::claims::Name;
use rlock_engine::engine::node::{Node, Routes};
use rlock_engine::engine::request::{Reply, Request};
use rlock_engine::engine::{Engine, Id};
use rlock_engine::error::Fault;

use crate::actor::Actor;
use crate::cluster::View;
use crate::failover::Keys;
use crate::operation::{ACTORS, Outage};
use crate::server::Message;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const REPLICATION: Duration = Duration::from_secs(1);

/// Requests of the same kind for the same owner and first key.
pub(crate) type Alike = (Discriminant<Request>, Option<Name>);

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) actors: Vec<Actor>,
    /// Its process is paused until then.
    pub(crate) stopped_until: u64,
    pub(crate) is_closed: bool,
    /// Whether a request of an earlier connection may still be carried out.
    pub(crate) is_unsure: bool,
    /// Whether one of its requests did not name its hold by the fence: the
    /// request may end or share a later hold of the same owner.
    pub(crate) has_undone: bool,
    /// By the numbers of their nodes.
    pub(crate) links: BTreeMap<u16, Link>,
    /// The number of connections so far.
    pub(crate) opened: u64,
    /// The second in which it sent its last request, and the requests in it.
    pub(crate) sent: (u64, HashMap<Alike, u64>),
    /// The unanswered requests, with their connections.
    pub(crate) asked: BTreeMap<Id, u64>,
    pub(crate) slow_until: u64,
    /// The connections that have asked a server for a moving slot, once each.
    pub(crate) asking: BTreeSet<u64>,
    /// The connections for replicas: their IDs, by server; until when they are
    /// silent without notice; and until when new ones are refused.
    pub(crate) separate: BTreeMap<usize, u64>,
    pub(crate) silent_until: u64,
    pub(crate) refused_until: u64,
    /// The requests by such a connection, or by one that asks for a moving slot.
    pub(crate) separately: BTreeSet<Id>,
    /// The servers and IDs of such connections that the client has closed, with
    /// requests that are not answered.
    pub(crate) strays: Vec<(usize, u64)>,
    /// Whether it has just asked for the routes and wants to ask again.
    pub(crate) has_asked: bool,
    pub(crate) wants_routes: bool,
    pub(crate) owners: u64,
    /// The losses that it has learned of.
    pub(crate) lost: HashSet<(Name, u64)>,
}

/// How a request reaches a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Link,
    /// By a connection that only asks for a moving slot.
    Asking,
    /// By a connection for replicas.
    Separate,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) number: u64,
    pub(crate) server: usize,
    /// The server's ID.
    pub(crate) session: u64,
    /// The slot of its channel.
    pub(crate) place: usize,
    /// Whether no earlier one is still open there.
    pub(crate) is_predecessor_gone: bool,
    /// Nothing arrives by it from now on.
    pub(crate) is_cut: bool,
    /// The client has seen its end, or has closed it.
    pub(crate) is_given_up: bool,
    /// When the last message arrives at each end: later messages arrive later.
    pub(crate) at_server: u64,
    pub(crate) at_client: u64,
}

/// An event at some time.
pub(crate) enum WorldEvent {
    /// A request arrives at the server.
    Asked {
        server: usize,
        session: u64,
        via: Via,
        id: Id,
        request: Request,
    },
    /// A caller reads a reply. It may name another server for a slot.
    Replied {
        id: Id,
        /// When it can be read.
        here: u64,
        moved: Option<(u16, usize)>,
        result: Result<Reply, Fault>,
    },
    /// A message is read.
    Sent {
        link: u64,
        message: Message,
    },
    /// There will be no reply.
    Unanswered {
        id: Id,
    },
    /// The client closes a connection other than its main one: a request there was
    /// not answered in time.
    Strays {
        server: usize,
        session: u64,
        id: Id,
    },
    /// The client sees that a connection has ended.
    Breaks {
        link: u64,
    },
    /// It tries to connect.
    Connects {
        node: Node,
    },
    /// It asks a server for the routes, and gets them.
    AsksForRoutes,
    LearnsRoutes {
        view: View,
    },
    /// It may ask again.
    MayAsk,
    /// Sentinels name a server.
    Named,
    /// The server sees that a connection has ended.
    Closes {
        session: u64,
    },
    /// A key moves to another server, before its slot does.
    KeyMoves {
        key: usize,
    },
    HasMoved {
        place: usize,
    },
    /// The masters agree again on who has a slot.
    Agree {
        place: usize,
    },
    /// A server learns the current slots.
    Learns {
        server: usize,
    },
    /// A master ends, and its replica takes its place.
    Fails {
        shard: usize,
        outage: Outage,
        back: u64,
        copy: Keys,
    },
    Promoted {
        shard: usize,
        copy: Keys,
    },
    Returns {
        server: usize,
    },
}

impl WorldEvent {
    /// Whether it waits while the client's process is paused.
    pub(crate) fn is_at_client(&self) -> bool {
        matches!(
            self,
            Self::Replied { .. }
                | Self::Sent { .. }
                | Self::Unanswered { .. }
                | Self::Strays { .. }
                | Self::Breaks { .. }
                | Self::Connects { .. }
                | Self::AsksForRoutes
                | Self::LearnsRoutes { .. }
                | Self::MayAsk
                | Self::Named
        )
    }
}

impl Client {
    pub(crate) fn new(seed: u64, routes: Routes) -> Self {
        Self {
            engine: Engine::new((PATIENCE, REPLICATION), seed, routes),
            actors: (0..ACTORS).map(|_| Actor::default()).collect(),
            stopped_until: 0,
            is_closed: false,
            is_unsure: false,
            has_undone: false,
            links: BTreeMap::new(),
            opened: 0,
            sent: (0, HashMap::new()),
            asked: BTreeMap::new(),
            slow_until: 0,
            asking: BTreeSet::new(),
            separate: BTreeMap::new(),
            silent_until: 0,
            refused_until: 0,
            separately: BTreeSet::new(),
            strays: Vec::new(),
            has_asked: false,
            wants_routes: false,
            owners: 0,
            lost: HashSet::new(),
        }
    }

    /// The connection of that number, while it is in use by this client.
    pub(crate) fn link(&mut self, number: u64) -> Option<&mut Link> {
        let mut links = self.links.values_mut();
        links.find(|link| link.number == number)
    }

    pub(crate) fn asked_by(&self, link: u64) -> Vec<Id> {
        let asked = self.asked.iter();
        let asked = asked.filter(|(_, by)| **by == link);
        asked.map(|(id, _)| *id).collect()
    }
}
