//! How a master's replica takes its place.

use std::collections::BTreeMap;

use rlock_core::{Fence, Timestamp};
use rlock_engine::engine::claims::{Claims, Name};

use crate::client::WorldEvent;
use crate::cluster::Kind;
use crate::operation::Outage;
use crate::server::{START, Server};
use crate::world::{MS, SECOND, World};
use rlock_testkit::core::store::{Store, Stored};

pub(crate) type Keys = BTreeMap<(u32, Vec<u8>), Stored>;

/// An owner's grant, or its renewal, on the old master that its replica never
/// knew.
#[derive(Debug)]
pub(crate) struct Unreplicated {
    key: String,
    owner: String,
    fence: u64,
    /// When its lease would have ended there.
    until: u64,
}

impl World {
    /// Replication stops, and after `lag` the master fails.
    pub(crate) fn fails_over(&mut self, shard: usize, outage: Outage, lag: u64, back: u64) {
        let row = &self.shards[shard];
        let (master, spare, is_failing) = (row.master, row.spare, row.is_failing);
        let is_moving = self.places.iter().any(|place| place.moving.is_some());
        let may_fail_over = row.next_failover <= self.now;
        if is_failing || is_moving || !may_fail_over || self.servers[spare].is_down(self.now) {
            return;
        }
        let lag = if outage == Outage::Demoted { 0 } else { lag };
        self.may_leave |= lag > 0;
        self.shards[shard].is_failing = true;
        let this = &mut self.servers[master];
        this.set_time(self.now);
        let copy = this.core.store.keys.clone();
        self.has_acted(master);
        match lag {
            0 => self.fails(shard, outage, back, copy),
            _ => self.later(
                lag,
                0,
                WorldEvent::Fails {
                    shard,
                    outage,
                    back,
                    copy,
                },
            ),
        }
    }

    pub(crate) fn fails(&mut self, shard: usize, outage: Outage, back: u64, copy: Keys) {
        let old = self.shards[shard].master;
        self.log(|| format!("  server {old} falls: {outage:?}"));
        self.servers[old].set_time(self.now);
        self.disturbs_what_is_kept();
        self.note_unreplicated(old, &copy);
        let late = match outage {
            Outage::Demoted => 0,
            Outage::Killed | Outage::Paused => self.below(3 * SECOND),
        };
        let back = self.now + late + back;
        self.servers[old].down_until = back;
        match outage {
            Outage::Killed => self.is_killed(old, back),
            Outage::Paused | Outage::Demoted => {}
        }
        match late {
            0 => self.is_promoted(shard, copy),
            _ => self.later(late, 0, WorldEvent::Promoted { shard, copy }),
        }
        match outage {
            Outage::Demoted => self.returns(old),
            _ => self.later(back - self.now, 0, WorldEvent::Returns { server: old }),
        }
    }

    /// Its connections end, and its data is gone when it returns.
    fn is_killed(&mut self, server: usize, back: u64) {
        let (view, ahead) = (self.servers[server].view, self.servers[server].ahead);
        self.servers[server] = Server {
            view,
            ahead,
            down_until: back,
            ..Server::new()
        };
        for client in 0..self.clients.len() {
            let links = self.clients[client].links.values_mut();
            let links = links.filter(|link| link.server == server && !link.is_cut);
            let mut numbers = Vec::new();
            for link in links {
                link.is_cut = true;
                numbers.push(link.number);
            }
            for link in numbers {
                let soon = self.below(30 * MS);
                self.later(soon, client, WorldEvent::Breaks { link });
            }
        }
    }

    pub(crate) fn is_promoted(&mut self, shard: usize, copy: Keys) {
        self.is_held_again(&copy);
        self.disturbs_what_is_kept();
        let row = &mut self.shards[shard];
        std::mem::swap(&mut row.master, &mut row.spare);
        (row.is_failing, row.next_failover) = (false, self.now + 5 * SECOND);
        self.fail_overs += 1;
        let (new, old) = (row.master, row.spare);
        let now = self.now;
        let server = &mut self.servers[new];
        server.is_master = true;
        server.core.store = Store {
            keys: copy,
            ..Store::default()
        };
        for (place, known) in server.view.iter_mut().enumerate() {
            if self.places[place].shard == shard {
                (*known, self.places[place].since) = (new, now);
            }
        }
        server.set_time(now);
        self.servers[old].is_master = false;
        self.log(|| format!("  server {new} is the master instead of {old}"));
        self.others_learn();
        if self.kind == Kind::One {
            for client in 0..self.clients.len() {
                let soon = self.below(SECOND);
                self.later(soon, client, WorldEvent::Named);
            }
        }
    }

    /// It returns, as a replica.
    pub(crate) fn returns(&mut self, server: usize) {
        self.log(|| format!("  server {server} is a replica"));
        let view = self.view();
        let this = &mut self.servers[server];
        (this.view, this.down_until) = (view, 0);
        this.demote();
        this.set_time(self.now);
        self.has_acted(server);
    }

    /// A Sentinel names a server: a client leaves any other server.
    pub(crate) fn is_named(&mut self, client: usize) {
        let master = self.shards[0].master;
        let links = self.clients[client].links.values();
        let other = links
            .filter(|link| link.server != master)
            .map(|it| it.number);
        for link in other.collect::<Vec<_>>() {
            self.breaks(client, link);
        }
    }

    /// The replica may not know of a hold's end, although its owner does.
    fn is_held_again(&mut self, copy: &Keys) {
        for ((_, key), stored) in copy {
            let holders = stored.held().into_iter().flat_map(|held| &held.holders);
            for (owner, holder) in holders {
                let name = Name::new(&[owner.as_bytes(), b" ", key].concat());
                let lost = (name, holder.fence.map_or(0, Fence::get));
                for client in &mut self.clients {
                    client.lost.remove(&lost);
                }
            }
        }
    }

    fn note_unreplicated(&mut self, server: usize, copy: &Keys) {
        let this = &self.servers[server];
        let now = this.core.now;
        for ((_, key), stored) in &this.core.store.keys {
            let Some(held) = stored.held() else { continue };
            let copied = copy.get(&(0, key.clone())).and_then(Stored::held);
            for (owner, holder) in held.live_holders(now) {
                let same = copied.and_then(|it| Some((it.shared, it.live(now, owner)?)));
                let is_known = same.is_some_and(|(shared, it)| {
                    shared == held.shared
                        && it.fence == holder.fence
                        && it.deadline >= holder.deadline
                });
                if !is_known && let Some(fence) = holder.fence {
                    self.unreplicated.push(Unreplicated {
                        key: String::from_utf8_lossy(key).into_owned(),
                        owner: owner.clone(),
                        fence: fence.get(),
                        until: by_clock(holder.deadline, this.ahead) + MS,
                    });
                }
            }
        }
    }

    /// Whether the replica never knew this grant, or its lease.
    pub(crate) fn is_unreplicated(&self, claims: &Claims, fence: u64, key: &[u8]) -> bool {
        self.unreplicated.iter().any(|it| {
            it.key.as_bytes() == key
                && it.owner == claims.owner().as_str()
                && it.fence == fence
                && self.now <= it.until
        })
    }

    /// The current master knows the grant with this fence. It says nothing of
    /// another grant of the same owner, such as a lost upgrade.
    pub(crate) fn is_replicated(&mut self, claims: &Claims, fence: u64) {
        let keys: Vec<_> = claims.keys().collect();
        let owner = claims.owner().as_str();
        self.unreplicated.retain(|it| {
            it.owner != owner || it.fence != fence || !keys.contains(&it.key.as_bytes())
        });
    }
}

/// A moment by the clock of the world, in nanoseconds.
fn by_clock(at: Timestamp, ahead: u64) -> u64 {
    at.micros().saturating_sub(START + ahead) * 1000
}
