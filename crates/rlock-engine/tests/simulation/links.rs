//! The network: connections begin, break, or vanish.

use std::time::Duration;

use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::node::{self, Node, Routes, slot_of};
use rlock_engine::engine::request::Reply;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::engine::{Action, Engine, Event, Id};
use rlock_engine::error::Fault;

use crate::client::{Link, REPLICATION, Via, WorldEvent};
use crate::cluster::{Kind, SLOTS};
use crate::operation::{Cut, Separate};
use crate::server::failure;
use crate::world::{MS, SECOND, World, nanos};

/// The time after which a request without a reply fails.
pub(crate) const RESPONSE_LIMIT: u64 = 5 * SECOND;

/// When a server notices that the other end has vanished.
const KEEPALIVE: u64 = 30 * SECOND;

impl World {
    pub(crate) fn closes(&mut self, client: usize) {
        self.may_leave = true;
        self.clients[client].is_closed = true;
        for link in std::mem::take(&mut self.clients[client].links).into_values() {
            let session = link.session;
            self.later(0, client, WorldEvent::Closes { session });
        }
        self.send_event(client, Event::Closed);
    }

    /// All connections of a client, or only the one to a master.
    pub(crate) fn cut(&mut self, client: usize, shard: Option<usize>, how: Cut) {
        let shard = shard.map(|shard| shard % self.shards.len());
        let master = shard.map(|shard| self.shards[shard].master);
        let links = self.clients[client].links.values();
        let links = links.filter(|it| master.is_none_or(|master| it.server == master));
        let numbers: Vec<u64> = links.map(|link| link.number).collect();
        for link in numbers {
            self.cut_one(client, link, how);
        }
    }

    fn cut_one(&mut self, client: usize, number: u64, how: Cut) {
        let soon = self.below(30 * MS);
        let link = self.clients[client].link(number);
        let Some(link) = link.filter(|link| !link.is_cut) else {
            return;
        };
        link.is_cut = true;
        let (session, link) = (link.session, link.number);
        let seen = match how {
            Cut::Plain | Cut::Unseen => self.below(20 * MS),
            Cut::HalfOpen | Cut::Silent => KEEPALIVE,
        };
        self.later(seen, client, WorldEvent::Closes { session });
        if matches!(how, Cut::Silent | Cut::Unseen) {
            for id in self.clients[client].asked_by(number) {
                self.later(RESPONSE_LIMIT, client, WorldEvent::Unanswered { id });
            }
        } else {
            self.later(soon, client, WorldEvent::Breaks { link });
        }
    }

    /// The slots of a node in a client's view, by their places.
    fn places_at(&self, client: usize, node: Node) -> Vec<usize> {
        let routes = self.clients[client].engine.routes();
        let places = (0..SLOTS.len()).filter(|place| routes.node(SLOTS[*place]) == node);
        places.collect()
    }

    pub(crate) fn connects(&mut self, client: usize, node: Node) {
        if self.clients[client].is_closed || self.clients[client].links.contains_key(&node.0) {
            return;
        }
        let server = self.server_of(node);
        let places = self.places_at(client, node);
        let chance = self.below(places.len() as u64);
        let place = places.get(usize::try_from(chance).unwrap_or(0)).copied();
        let this = &self.servers[server];
        let is_there = !this.is_down(self.now) && this.is_master;
        match place {
            Some(place) if is_there && this.view[place] == server => {
                self.is_connected(client, node, server, place);
            }
            place => {
                if let Some(place) = place.filter(|_| is_there) {
                    let named = this.view[place];
                    self.redirected(client, SLOTS[place], named);
                }
                self.has_not_connected(client, node);
            }
        }
    }

    fn has_not_connected(&mut self, client: usize, node: Node) {
        self.log(|| format!("  client {client}: no connection to {node:?}"));
        if self.kind == Kind::Cluster {
            self.refreshes_routes(client);
        }
        if self.places_at(client, node).is_empty() {
            let is_left = true;
            return self.send_event(client, Event::ConnectionDown { node, is_left });
        }
        let pause = 5 * MS + self.below(300 * MS);
        self.later(pause, client, WorldEvent::Connects { node });
    }

    fn is_connected(&mut self, client: usize, node: Node, server: usize, place: usize) {
        let is_predecessor_gone = self.below(4) > 0;
        self.last += 1;
        let session = self.last;
        let this = &mut self.clients[client];
        this.opened += 1;
        let number = this.opened;
        let now = self.now;
        let there = &mut self.servers[server];
        there.set_time(now);
        let earlier = there.sessions.iter();
        let earlier = earlier.filter(|(it, of)| {
            let is_stray = this.strays.contains(&(server, **it));
            of.client == client && (is_stray || !this.asking.contains(it))
        });
        let earlier: Vec<u64> = earlier.map(|(session, _)| *session).collect();
        let is_predecessor_gone = is_predecessor_gone || earlier.is_empty();
        this.strays.retain(|stray| stray.0 != server);
        there.open(session, client);
        if is_predecessor_gone {
            for session in earlier {
                there.close(session);
            }
        }
        self.may_leave |= !is_predecessor_gone;
        self.clients[client].is_unsure |= !is_predecessor_gone;
        let link = Link {
            number,
            server,
            session,
            place,
            is_predecessor_gone,
            is_cut: false,
            is_given_up: false,
            at_server: 0,
            at_client: 0,
        };
        self.clients[client].links.insert(node.0, link);
        self.reconnects += u64::from(number > 1);
        self.has_acted(server);
        let up = Event::ConnectionUp {
            node,
            connection: number,
            is_predecessor_gone,
        };
        self.send_event(client, up);
    }

    pub(crate) fn breaks(&mut self, client: usize, number: u64) {
        let link = self.clients[client].link(number);
        let Some(link) = link.filter(|link| !link.is_given_up) else {
            return;
        };
        link.is_given_up = true;
        let (session, server) = (link.session, link.server);
        if !std::mem::replace(&mut link.is_cut, true) {
            // The server may not see that the client has closed it.
            self.later(KEEPALIVE, client, WorldEvent::Closes { session });
        }
        // Some callers see it first. Others see it later, or read a reply that
        // had already arrived.
        let read = self.delay_replies(client, number);
        for id in self.clients[client].asked_by(number) {
            if self.below(2) == 0 && !read.contains(&id) {
                self.unanswered(client, id);
            }
        }
        let node = self.kind.node(server);
        self.clients[client].links.remove(&node.0);
        if let Some(session) = self.clients[client].separate.remove(&server) {
            let soon = self.below(20 * MS);
            self.clients[client].strays.push((server, session));
            self.later(soon, client, WorldEvent::Closes { session });
        }
        let is_left = false;
        self.send_event(client, Event::ConnectionDown { node, is_left });
        let asked = self.clients[client].asked_by(number).into_iter();
        for id in asked.filter(|id| !read.contains(id)) {
            let soon = self.below(5 * MS);
            self.later(soon, client, WorldEvent::Unanswered { id });
        }
        let pause = match self.below(4) {
            0 => self.below(3 * SECOND),
            _ => 5 * MS + self.below(50 * MS),
        };
        self.later(pause, client, WorldEvent::Connects { node });
    }

    /// Bytes of a connection may be read long after its end: the replies to those
    /// requests.
    fn delay_replies(&mut self, client: usize, number: u64) -> Vec<Id> {
        let asked = self.clients[client].asked_by(number);
        let now = self.now;
        let is_late = |event: &WorldEvent| match event {
            WorldEvent::Sent { link, .. } => *link == number,
            WorldEvent::Replied { id, here, .. } => *here <= now && asked.contains(id),
            _ => false,
        };
        let late = self.schedule.iter();
        let late = late.filter(|(_, (of, event))| *of == client && is_late(event));
        let mut read = Vec::new();
        for at in late.map(|(at, _)| *at).collect::<Vec<_>>() {
            let more = self.below(2) * self.below(300 * MS);
            if let Some((_, event)) = self.schedule.remove(&at) {
                if let WorldEvent::Replied { id, .. } = &event {
                    read.push(*id);
                }
                self.later((at.0 + more).max(self.now) - self.now, client, event);
            }
        }
        read
    }

    pub(crate) fn unanswered(&mut self, client: usize, id: Id) {
        let Some(link) = self.clients[client].asked.remove(&id) else {
            return;
        };
        let is_separate = self.clients[client].separately.remove(&id);
        let result = Err(match is_separate {
            true => Fault::Stray(failure("broken")),
            false => Fault::Broken(failure("broken")),
        });
        let request = id;
        self.send_event(client, Event::Reply { request, result });
        self.breaks(client, link);
    }

    /// A client learns that another server has a slot.
    pub(crate) fn redirected(&mut self, client: usize, slot: u16, server: usize) {
        let node = self.kind.node(server);
        self.send_event(client, Event::SlotMoved { slot, node });
        self.refreshes_routes(client);
    }

    /// A client's routes may be wrong.
    pub(crate) fn refreshes_routes(&mut self, client: usize) {
        let this = &mut self.clients[client];
        if std::mem::replace(&mut this.has_asked, true) {
            this.wants_routes = true;
            return;
        }
        this.wants_routes = false;
        let soon = self.delay();
        self.later(soon, client, WorldEvent::AsksForRoutes);
        self.later(soon + SECOND, client, WorldEvent::MayAsk);
    }

    /// Asks a connected server for the routes, or any other.
    pub(crate) fn asks_for_routes(&mut self, client: usize) {
        let links = self.clients[client].links.values();
        let linked = links.filter(|it| !it.is_cut).map(|link| link.server);
        let all = linked.chain(0..self.servers.len());
        let mut there = all.filter(|server| !self.servers[*server].is_down(self.now));
        if let Some(server) = there.next() {
            drop(there);
            let (view, late) = (self.servers[server].view, self.delay());
            self.later(late, client, WorldEvent::LearnsRoutes { view });
        }
    }

    pub(crate) fn may_ask_again(&mut self, client: usize) {
        let this = &mut self.clients[client];
        this.has_asked = false;
        if this.wants_routes {
            self.refreshes_routes(client);
        }
    }

    /// The delay of a delivery: usually short, sometimes long.
    pub(crate) fn delay(&mut self) -> u64 {
        match self.below(60) {
            0 => self.below(2 * SECOND),
            1..=5 => self.below(50 * MS),
            _ => self.below(MS),
        }
    }

    /// A connection other than the main one does not answer in time.
    pub(crate) fn is_silent(
        &mut self,
        client: usize,
        (server, session): (usize, u64),
        id: Id,
        via: Via,
    ) {
        let time = match via {
            Via::Asking => SECOND,
            Via::Link | Via::Separate => RESPONSE_LIMIT + nanos(REPLICATION),
        };
        let strays = WorldEvent::Strays {
            server,
            session,
            id,
        };
        self.later(time, client, strays);
    }

    /// Such a connection is closed, but its requests may still be carried out.
    pub(crate) fn strays(&mut self, client: usize, (server, session): (usize, u64), id: Id) {
        let this = &mut self.clients[client];
        if this.is_closed || this.asked.remove(&id).is_none() {
            return;
        }
        this.separately.remove(&id);
        if this.separate.get(&server) == Some(&session) {
            this.separate.remove(&server);
        }
        this.strays.push((server, session));
        let node = self.kind.node(server).0;
        let link = self.clients[client].links.get(&node);
        if let Some(link) = link.filter(|link| link.server == server && !link.is_cut) {
            let number = link.number;
            self.closes_strays(client, server, number);
        }
        let (request, result) = (id, Err(Fault::Stray(failure("no answer"))));
        self.send_event(client, Event::Reply { request, result });
    }

    /// The client asks the server to close its stray connections before the next
    /// request, which comes by the connection `by`. It may not have the right to.
    pub(crate) fn closes_strays(&mut self, client: usize, server: usize, by: u64) {
        let this = &mut self.clients[client];
        let strays = this.strays.extract_if(.., |stray| stray.0 == server);
        let strays: Vec<_> = strays.map(|stray| stray.1).collect();
        if strays.is_empty() {
            return;
        }
        if self.below(4) > 0 {
            for session in strays {
                self.servers[server].close(session);
            }
            return;
        }
        self.may_leave = true;
        self.clients[client].is_unsure = true;
        let connection = by;
        self.send_event(client, Event::PredecessorStays { connection });
    }

    /// Faults of the connections for replicas.
    pub(crate) fn separate_fails(&mut self, client: usize, how: Separate) {
        let this = &mut self.clients[client];
        match how {
            Separate::Breaks => {}
            Separate::Silent => {
                this.silent_until = self.now + RESPONSE_LIMIT + nanos(REPLICATION);
            }
            Separate::Refused(time) => this.refused_until = self.now + nanos(time),
        }
        if how != Separate::Silent {
            for session in std::mem::take(&mut this.separate).into_values() {
                self.later(0, client, WorldEvent::Closes { session });
            }
        }
    }

    /// The target of a separate connection is unreachable.
    pub(crate) fn is_not_there(&mut self, client: usize, id: Id) {
        let replied = WorldEvent::Replied {
            id,
            here: self.now + MS,
            moved: None,
            result: Err(Fault::Transient(failure("no connection"))),
        };
        self.later(MS, client, replied);
    }
}

/// A client of a cluster with this number of holds, all at the first server.
fn holder(count: u64) -> Engine {
    let mut nodes = vec![Node(0); usize::from(node::SLOTS)];
    nodes[1] = Node(1);
    let limits = (Duration::from_secs(10), Duration::from_secs(1));
    let mut engine = Engine::new(limits, 1, Routes::Slots(nodes.into()));
    let (node, link, is_predecessor_gone) = (Node(0), 1, true);
    let up = Event::ConnectionUp {
        node,
        connection: link,
        is_predecessor_gone,
    };
    engine.handle(START, up);
    let keys = (0..).map(|number| format!("key-{number}"));
    let keys = keys.filter(|key| slot_of(key.as_bytes()) != 1);
    for (number, key) in (1..=count).zip(keys) {
        let call = engine.next_id();
        let ask = Event::Ask {
            call,
            claims: Claims::new(Owner::numbered("owner", number), key.as_bytes(), &[]),
            ask: Ask::Exclusive,
            value: None,
            terms: Terms::default(),
            queueing: Queueing::Try,
        };
        engine.handle(START, ask);
        while let Some(action) = engine.poll_action() {
            if let Action::Send { id: request, .. } = action {
                let result = Ok(Reply::Fence(number));
                engine.handle(START, Event::Reply { request, result });
            }
        }
    }
    engine
}

const START: Instant = Instant::from_nanos(1_000_000_000);

/// How long the engine takes when another server connects, disconnects, and
/// loses its slot.
fn time_of_changes_elsewhere(engine: &mut Engine) -> Duration {
    let begun = std::time::Instant::now();
    for number in 0..100 {
        let (slot, node, is_predecessor_gone) = (1, Node(1 + number % 2), true);
        let (link, is_left) = (2 + u64::from(number), false);
        engine.handle(START, Event::SlotMoved { slot, node });
        let up = Event::ConnectionUp {
            node,
            connection: link,
            is_predecessor_gone,
        };
        engine.handle(START, up);
        engine.handle(START, Event::ConnectionDown { node, is_left });
        while engine.poll_action().is_some() {}
    }
    begun.elapsed()
}

#[test]
fn an_event_at_one_server_costs_nothing_for_holds_at_others() {
    let (mut few, mut many) = (holder(1), holder(50_000));
    let few = time_of_changes_elsewhere(&mut few);
    let many = time_of_changes_elsewhere(&mut many);
    assert!(
        many < 10 * few + Duration::from_millis(50),
        "{few:?}, {many:?}"
    );
}
