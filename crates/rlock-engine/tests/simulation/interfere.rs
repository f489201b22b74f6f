//! What the network, operators and servers do to locks.

use rlock_engine::engine::Event;

use crate::cluster::{name, place_of};
use crate::operation::{KEYS, Operation};
use crate::world::{World, all_actors, nanos};

impl World {
    pub(crate) fn interferes(&mut self, operation: Operation) {
        match operation {
            Operation::Cut { client, shard, how } => self.cut(client, shard, how),
            Operation::Separate { client, how } => self.separate_fails(client, how),
            Operation::Stop { client, time } => {
                let time = nanos(time);
                let client = &mut self.clients[client];
                client.stopped_until = self.now + time;
                for actor in &mut client.actors {
                    if let Some(latest) = actor.call.as_mut().and_then(|it| it.latest.as_mut()) {
                        *latest += time;
                    }
                }
            }
            Operation::ReadLate { client, time } => {
                let client = &mut self.clients[client];
                client.slow_until = client.slow_until.max(self.now + nanos(time));
                let until = client.slow_until;
                for actor in &mut client.actors {
                    if let Some(latest) = actor.call.as_mut().and_then(|it| it.latest.as_mut()) {
                        *latest = (*latest).max(until);
                    }
                }
            }
            Operation::Close { client } => self.closes(client),
            Operation::LeaveAll { client } if !self.is_stopped(client) => {
                self.send_event(client, Event::LeaveAll);
            }
            Operation::Refuse { shard, time } => {
                let master = self.shards[shard % self.shards.len()].master;
                self.servers[master].refuses_until = self.now + nanos(time);
            }
            Operation::Force { key } => {
                self.take_away();
                self.at_masters(|server| {
                    server.core.force(name(KEYS[key]), false, None);
                });
            }
            Operation::Cancel { actor } => self.cancels(actor),
            Operation::Flush => {
                self.take_away();
                self.at_masters(|server| {
                    server.core.store.flush(None);
                    server.core.locks.settle_all_later(None);
                });
            }
            Operation::Jump { time } => {
                self.take_away();
                let time = nanos(time) / 1000;
                for server in &mut self.servers {
                    server.ahead += time;
                }
                self.at_masters(|_| {});
            }
            Operation::Move { key, window } => {
                let place = key.map_or(2, |key| place_of(KEYS[key]));
                self.moves(place, nanos(window));
            }
            Operation::Disagree { key, time } => self.disagree(place_of(KEYS[key]), nanos(time)),
            Operation::FailOver {
                shard,
                outage,
                lag,
                back,
            } => {
                let shard = shard % self.shards.len();
                self.fails_over(shard, outage, nanos(lag), nanos(back));
            }
            _ => {}
        }
    }

    /// An operator acts at each master that is reachable.
    fn at_masters(&mut self, mut work: impl FnMut(&mut crate::server::Server)) {
        for server in 0..self.servers.len() {
            let this = &mut self.servers[server];
            if this.is_master && !this.is_down(self.now) {
                this.set_time(self.now);
                work(this);
                self.has_acted(server);
            }
        }
    }

    fn cancels(&mut self, actor: usize) {
        let client = actor % self.clients.len();
        let calling = self.clients[client].actors[actor].call.as_ref();
        let asked = calling.map(|calling| (calling.claims.key().to_vec(), calling.owner.clone()));
        if let Some((key, owner)) = asked {
            self.at_masters(|server| {
                let name = rlock_core::Name { db: 0, key: &key };
                server.core.cancel(name, &owner, 0);
            });
        }
    }

    /// Kept locks may be gone from here on.
    pub(crate) fn disturbs_what_is_kept(&mut self) {
        self.disturbed = self.now;
        self.kept.clear();
    }

    /// Holders may lose their locks from here on.
    fn take_away(&mut self) {
        // A replica that takes over may not know of it.
        self.may_leave |= self.shards.iter().any(|shard| shard.is_failing);
        self.interfered = self.now;
        self.disturbs_what_is_kept();
        for (client, actor) in all_actors() {
            if let Some(guard) = &mut self.clients[client].actors[actor].guard {
                guard.is_ended_by_operator = true;
            }
        }
    }
}
