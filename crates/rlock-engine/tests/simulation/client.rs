//! A client, its process, and its connections.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use rlock_engine::engine::claims::Name;
use rlock_engine::engine::node::{Node, Routes};
use rlock_engine::engine::request::{Reply, Request};
use rlock_engine::engine::{Engine, Id};
use rlock_engine::error::Fault;

use crate::actor::Actor;
use crate::cluster::View;
use crate::fail_over::Keys;
use crate::operation::{ACTORS, Fall};
use crate::server::Message;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const REPLICATION: Duration = Duration::from_secs(1);

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) actors: Vec<Actor>,
    /// Its process stalls until then.
    pub(crate) stopped_until: u64,
    pub(crate) is_closed: bool,
    /// Whether a request of an earlier connection may still be carried out.
    pub(crate) is_unsure: bool,
    /// Whether one was made that does not say which hold it is about: it can then
    /// end, or share, a later one of the same owner.
    pub(crate) has_undone: bool,
    /// By the numbers of their nodes.
    pub(crate) links: BTreeMap<u16, Link>,
    /// How many there have been.
    pub(crate) opened: u64,
    /// The requests that have no answer yet, with their connections.
    pub(crate) asked: BTreeMap<Id, u64>,
    pub(crate) dawdles_until: u64,
    /// The connections that have asked for what is on its way to a server, each
    /// once.
    pub(crate) asking: BTreeSet<u64>,
    /// By server, the connections that replicas are asked by, as the server calls
    /// them; until when nothing passes them, which nobody sees, and until when
    /// none is made.
    pub(crate) beside: BTreeMap<usize, u64>,
    pub(crate) silent_until: u64,
    pub(crate) refused_until: u64,
    /// Whether it has just asked which server has what, and wants to again.
    pub(crate) has_asked: bool,
    pub(crate) doubts: bool,
    pub(crate) owners: u64,
    /// The losses that it has been notified of.
    pub(crate) lost: HashSet<(Name, u64)>,
}

/// By what a request goes to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Link,
    /// By a connection that only asks for what is on its way there.
    Asking,
    /// By one that replicas are asked by.
    Beside,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) number: u64,
    pub(crate) server: usize,
    /// What the server calls it.
    pub(crate) session: u64,
    /// The slot of the channel that it listens to.
    pub(crate) place: usize,
    /// Whether no earlier one is still open there.
    pub(crate) is_predecessor_gone: bool,
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
        server: usize,
        session: u64,
        way: Way,
        id: Id,
        request: Request,
    },
    /// A reply is read by its caller. It may name another server for a slot.
    Replied {
        id: Id,
        /// When it is there to be read.
        here: u64,
        moved: Option<(u16, usize)>,
        result: Result<Reply, Fault>,
    },
    /// A message is read.
    Told {
        link: u64,
        message: Message,
    },
    /// There will be no reply.
    Unanswered {
        id: Id,
    },
    /// The client sees that a connection is gone.
    Breaks {
        link: u64,
    },
    /// It tries to have a new one.
    Connects {
        node: Node,
    },
    /// It asks some server which one has what, and hears it.
    AsksForRoutes,
    HearsOfRoutes {
        view: View,
    },
    /// It may ask again.
    MayAsk,
    /// Sentinels name a server.
    Named,
    /// The server sees that a connection is gone.
    Closes {
        session: u64,
    },
    /// A key goes to another server, before its slot does.
    KeyMoves {
        key: usize,
    },
    HasMoved {
        place: usize,
    },
    /// A server hears who has what.
    Learns {
        server: usize,
    },
    /// A master ends, and its replica takes its place.
    Falls {
        shard: usize,
        fall: Fall,
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

impl Happening {
    /// Whether it waits while the process of its client stalls.
    pub(crate) fn is_at_client(&self) -> bool {
        matches!(
            self,
            Self::Replied { .. }
                | Self::Told { .. }
                | Self::Unanswered { .. }
                | Self::Breaks { .. }
                | Self::Connects { .. }
                | Self::AsksForRoutes
                | Self::HearsOfRoutes { .. }
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
            asked: BTreeMap::new(),
            dawdles_until: 0,
            asking: BTreeSet::new(),
            beside: BTreeMap::new(),
            silent_until: 0,
            refused_until: 0,
            has_asked: false,
            doubts: false,
            owners: 0,
            lost: HashSet::new(),
        }
    }

    /// The connection of that number, while it is this client's.
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
