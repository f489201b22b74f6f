//! Which server has which keys, and how a slot moves.

use rlock_core::{Delivery, Name};
use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::node::{Node, Routes, slot_of};
use rlock_engine::engine::request::{Reply, Request};
use rlock_engine::error::Fault;

use crate::client::WorldEvent;
use crate::operation::KEYS;
use crate::server::{Server, failure};
use crate::world::{SECOND, World};
use rlock_testkit::core::messages;

/// One server, and the client knows that; or two servers with half of the slots
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    One,
    Cluster,
}

/// A master and its replica.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) master: usize,
    pub(crate) spare: usize,
    /// Whether a failover is about to happen.
    pub(crate) is_failing: bool,
    /// The earliest next failover: a client that sees neither of two changes
    /// cannot know that the server forgot its messages.
    pub(crate) next_failover: u64,
}

/// A slot. The first two are the slots of the keys; the others stand for the many
/// slots without keys.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    /// The target, while it is moving.
    pub(crate) moving: Option<usize>,
    /// When it arrived there.
    pub(crate) since: u64,
    /// Until when its masters name each other.
    pub(crate) disputed_until: u64,
}

pub(crate) const SLOTS: [u16; 4] = [1, 3, 5, 7];

/// The master of each slot, in the view of a server.
pub(crate) type View = [usize; SLOTS.len()];

/// A server's answer to a request.
pub(crate) enum Answer {
    Reply(Result<Reply, Fault>),
    /// Another server already has the key, though not the slot.
    Ask(usize),
    /// Another server has the slot.
    Moved(u16, usize),
}

impl Kind {
    pub(crate) fn shards(self) -> usize {
        match self {
            Self::One => 1,
            Self::Cluster => 2,
        }
    }

    pub(crate) fn node(self, server: usize) -> Node {
        match self {
            Self::One => Node::default(),
            Self::Cluster => Node(u16::try_from(server).expect("few servers")),
        }
    }

    pub(crate) fn routes(self, view: View) -> Routes {
        let (Self::Cluster, Some(last)) = (self, SLOTS.last()) else {
            return Routes::One;
        };
        let server = |slot| {
            let place = SLOTS.iter().position(|it| *it == slot);
            self.node(view[place.unwrap_or(SLOTS.len() - 1)])
        };
        Routes::Slots((0..=*last).map(server).collect())
    }

    /// The keys that one request may name together.
    pub(crate) fn together(self) -> Vec<&'static str> {
        let is_near = |key: &&str| self == Self::One || place_of(key) == place_of(KEYS[0]);
        KEYS.into_iter().filter(is_near).collect()
    }
}

pub(crate) fn place_of(key: &str) -> usize {
    place(slot_of(key.as_bytes()))
}

pub(crate) fn place(slot: u16) -> usize {
    let place = SLOTS.iter().position(|it| *it == slot);
    place.expect("a slot that is known here")
}

pub(crate) fn name(key: &str) -> Name<'_> {
    let key = key.as_bytes();
    Name { db: 0, key }
}

impl World {
    /// The actual masters of the slots.
    pub(crate) fn view(&self) -> View {
        std::array::from_fn(|place| self.master(place))
    }

    pub(crate) fn master(&self, place: usize) -> usize {
        self.shards[self.places[place].shard].master
    }

    pub(crate) fn server_of(&self, node: Node) -> usize {
        match self.kind {
            Kind::One => self.shards[0].master,
            Kind::Cluster => usize::from(node.0),
        }
    }

    /// The server that has the keys of a client's hold or request.
    pub(crate) fn home(&self, claims: &Claims) -> usize {
        match self.kind {
            Kind::One => self.shards[0].master,
            Kind::Cluster => self.master(place(claims.slot())),
        }
    }

    pub(crate) fn answer(
        &mut self,
        server: usize,
        session: u64,
        request: &Request,
        is_asking: bool,
    ) -> Answer {
        let now = self.now;
        let carry_out =
            |server: &mut Server| Answer::Reply(server.carry_out(now, session, request));
        let this = &self.servers[server];
        let Some(claims) = request.claims() else {
            return carry_out(&mut self.servers[server]);
        };
        if self.kind == Kind::One {
            return match this.is_master {
                true => carry_out(&mut self.servers[server]),
                false => Answer::Reply(Err(Fault::Transient(failure("READONLY")))),
            };
        }
        let place = place(claims.slot());
        let known = this.view[place];
        let to = self.places[place].moving.map(|to| self.shards[to].master);
        if known != server {
            return match is_asking && to == Some(server) {
                true => carry_out(&mut self.servers[server]),
                false => Answer::Moved(SLOTS[place], known),
            };
        }
        let is_there = |key| {
            let store = &this.core.store;
            store.get(this.core.now, Name { db: 0, key }).is_some()
        };
        let there = claims.keys().filter(|key| is_there(key)).count();
        match to {
            Some(to) if there == 0 => Answer::Ask(to),
            Some(_) if there < claims.count() => {
                Answer::Reply(Err(Fault::Transient(failure("TRYAGAIN"))))
            }
            _ => carry_out(&mut self.servers[server]),
        }
    }

    /// A slot starts to move to the other master: its keys move one by one within
    /// `window`, or all at once.
    pub(crate) fn moves(&mut self, place: usize, window: u64) {
        let from = self.places[place].shard;
        let is_busy = self.places[place].moving.is_some()
            || self.now <= self.places[place].disputed_until
            || self.shards.iter().any(|shard| shard.is_failing);
        if self.kind == Kind::One || is_busy {
            return;
        }
        self.places[place].moving = Some(1 - from);
        for (key, name) in KEYS.into_iter().enumerate() {
            if window > 0 && place_of(name) == place {
                let time = self.below(window);
                self.later(time, 0, WorldEvent::KeyMoves { key });
            }
        }
        match window {
            0 => self.has_moved(place),
            _ => self.later(window, 0, WorldEvent::HasMoved { place }),
        }
    }

    /// Each master says that the other one has the slot.
    pub(crate) fn disagree(&mut self, place: usize, time: u64) {
        let is_busy =
            self.places[place].moving.is_some() || self.shards.iter().any(|shard| shard.is_failing);
        if self.kind == Kind::One || is_busy {
            return;
        }
        self.places[place].disputed_until = self.now + time;
        let (one, other) = (self.shards[0].master, self.shards[1].master);
        self.servers[one].view[place] = other;
        self.servers[other].view[place] = one;
        self.later(time, 0, WorldEvent::Agree { place });
    }

    /// The masters know again who has the slot.
    pub(crate) fn agree(&mut self, place: usize) {
        let master = self.master(place);
        for shard in 0..self.shards.len() {
            let server = self.shards[shard].master;
            self.servers[server].view[place] = master;
        }
        self.places[place].since = self.now;
    }

    /// A key moves to the target of its slot.
    pub(crate) fn key_moves(&mut self, key: &str) {
        let place = &self.places[place_of(key)];
        let Some(to) = place.moving else {
            return;
        };
        let (from, to) = (self.shards[place.shard].master, self.shards[to].master);
        let now = self.now;
        for server in [from, to] {
            self.servers[server].set_time(now);
        }
        let source = &mut self.servers[from].core;
        let stored = source.store.get(source.now, name(key)).cloned();
        source.store.delete(source.now, name(key));
        let row = (0, key.as_bytes().to_vec());
        source.store.known.remove(&row);
        self.turns_away(from, key);
        let target = &mut self.servers[to].core;
        target.store.known.remove(&row);
        if let Some(stored) = stored {
            target.store.keys.insert(row, stored);
        }
        self.log(|| format!("  `{key}` moves from {from} to {to}"));
        self.has_acted(from);
        self.has_acted(to);
    }

    /// Ends the waits and watches for a key there.
    fn turns_away(&mut self, server: usize, key: &str) {
        let core = &mut self.servers[server].core;
        while let Some(ended) = core.locks.withdraw_one(name(key)) {
            if let Delivery::Notify(listener) = &ended.delivery {
                let key = Name {
                    db: 0,
                    key: &ended.key,
                };
                core.publish(
                    key,
                    listener,
                    messages::MessageKind::Withdrawn,
                    &ended.owner,
                    None,
                );
            }
        }
        core.locks.settle_later(name(key));
        self.servers[server].unwatch(key);
    }

    /// The slot with all its keys is at the other server.
    pub(crate) fn has_moved(&mut self, place: usize) {
        let Some(to) = self.places[place].moving else {
            return;
        };
        for key in KEYS {
            if place_of(key) == place {
                self.key_moves(key);
            }
        }
        let (from, since) = (self.places[place].shard, self.now);
        self.places[place] = Place {
            shard: to,
            moving: None,
            since,
            disputed_until: 0,
        };
        self.moves += 1;
        let (from, to) = (self.shards[from].master, self.shards[to].master);
        self.log(|| format!("  slot {} has moved from {from} to {to}", SLOTS[place]));
        for server in [from, to] {
            self.servers[server].view[place] = to;
        }
        self.others_learn();
        self.channels_are_gone(from, place);
    }

    /// Servers that were not part of a change learn of it some seconds later.
    pub(crate) fn others_learn(&mut self) {
        for server in 0..self.servers.len() {
            let late = self.below(3 * SECOND);
            self.later(late, 0, WorldEvent::Learns { server });
        }
    }

    pub(crate) fn learns(&mut self, server: usize) {
        self.servers[server].view = self.view();
    }

    /// A server sends no more messages on channels in a slot that it has lost.
    /// The client sees that, and ignores later messages there.
    fn channels_are_gone(&mut self, server: usize, place: usize) {
        for client in 0..self.clients.len() {
            let node = self.kind.node(server).0;
            let link = self.clients[client].links.get_mut(&node);
            let Some(link) = link.filter(|it| it.place == place && !it.is_cut) else {
                continue;
            };
            link.is_cut = true;
            let (number, session) = (link.number, link.session);
            let soon = self.delay();
            self.later(soon, client, WorldEvent::Breaks { link: number });
            self.later(soon, client, WorldEvent::Closes { session });
        }
    }
}
