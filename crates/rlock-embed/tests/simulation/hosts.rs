//! The servers: which has which keys, how slots move, how a replica takes a master's place, and what they answer.

use std::collections::{BTreeMap, HashMap};

use rlock_core::{ChannelKind, Name, Timestamp};
use rlock_engine::engine::node::slot_of;
use rlock_engine::wire::requests::value_channel;
use rlock_testkit::core::messages::MessageKind;
use rlock_testkit::core::server::{Server, bulk, push};
use rlock_testkit::core::store::{Store, Stored};

use crate::steps::Outage;
use crate::world::{Happening, Kind, MS, SECOND, World};

/// The servers, and from `SENTINELS` on the Sentinels.
pub(crate) const NAMES: [&str; 8] = ["m", "n", "o", "p", "q", "s", "t", "u"];
pub(crate) const SENTINELS: usize = 5;
/// In slots 15495, 3300 and 7365, two for permits, and one in the slot of the first.
pub(crate) const KEYS: [&str; 5] = ["a", "b", "c", "p", "x{a}"];
/// How long members of a quorum grant nothing after a start, and the longest lease there.
pub(crate) const GRACE_MS: u64 = 2000;
/// How often a client may send the same request for the same lock to the same server in a second.
const REPEATED_MAX: u64 = 40;
const START: u64 = 1_700_000_000_000_000;
/// How far the clock of each server is behind at first, in microseconds: it may be set forward.
const BEHIND: u64 = 1_000_000_000;

pub(crate) struct Host {
    pub(crate) server: Server,
    /// It never becomes earlier: what is under way would arrive in another order.
    pub(crate) stalled_until: u64,
    /// Until when it refuses everything.
    pub(crate) refuses_until: u64,
    /// Until when a fault affects it.
    pub(crate) disturbed: u64,
    /// The masters of the slots, as it sees them.
    pub(crate) view: View,
    starts: u64,
    grants_from: u64,
}

/// The masters of the lower and the upper slots, and those of slots that have moved.
#[derive(Clone, Default)]
pub(crate) struct View([usize; 2], BTreeMap<u16, usize>);

impl View {
    fn at(&self, slot: u16) -> usize {
        let half = self.0[usize::from(slot > 8191)];
        self.1.get(&slot).copied().unwrap_or(half)
    }
}

/// A master and its replica.
pub(crate) struct Shard {
    pub(crate) master: usize,
    pub(crate) spare: Option<usize>,
    pub(crate) is_failing: bool,
    /// The earliest next failover: a client that sees neither of two changes
    /// cannot know that the server forgot its messages.
    pub(crate) next_failover: u64,
}

#[derive(Default)]
pub(crate) struct Slots {
    /// The slots that have moved since the start, and their shards.
    moved: BTreeMap<u16, usize>,
    /// A slot that is moving, and its target.
    pub(crate) moving: Option<(u16, usize)>,
    /// Until when something happens to them.
    pub(crate) disturbed: BTreeMap<u16, u64>,
}

/// A grant that its server has forgotten, or ended for an operator; a quorum's has other fences there.
pub(crate) struct Forgotten {
    key: String,
    owner: String,
    fence: u64,
    /// When its lease would have ended.
    until: u64,
    /// Whether an operator has ended it.
    is_forced: bool,
}

/// What a server has of an owner.
pub(crate) struct There {
    pub(crate) permits: u32,
    pub(crate) fence: Option<u64>,
    pub(crate) until: u64,
}

impl World<'_> {
    pub(crate) fn add_hosts(&mut self) {
        let (masters, has_spare) = self.kind.shards();
        let count = masters * if has_spare { 2 } else { 1 };
        let view = View([0, 1], BTreeMap::new());
        for host in 0..count {
            let mut server = Server::new(host < masters);
            if matches!(self.kind, Kind::Node | Kind::Cluster) {
                server.mode = "cluster";
            }
            server.behind = BEHIND;
            if self.kind.is_quorum() {
                // Their clocks differ, by less than the grace.
                server.behind += self.below(GRACE_MS * 500);
            }
            server.becomes(self.now, host < masters, Store::default());
            self.hosts.push(Host {
                server,
                stalled_until: 0,
                refuses_until: 0,
                disturbed: 0,
                view: view.clone(),
                starts: 0,
                grants_from: 0,
            });
        }
    }

    pub(crate) fn next_of_hosts(&self) -> Option<(u64, usize)> {
        let up = self.hosts.iter().enumerate();
        let up = up.filter(|(_, it)| !it.server.is_down);
        let next = up.filter_map(|(host, it)| {
            Some((it.server.next_deadline()?.max(it.stalled_until), host))
        });
        next.min()
    }

    fn shard_of(&self, slot: u16) -> usize {
        let half = usize::from(slot > 8191);
        match self.kind {
            Kind::Cluster => self.slots.moved.get(&slot).copied().unwrap_or(half),
            _ => 0,
        }
    }

    pub(crate) fn master(&self, shard: usize) -> usize {
        self.shards[shard].master
    }

    /// The server that has a key.
    pub(crate) fn home(&self, key: &str) -> usize {
        self.master(self.shard_of(slot_of(key.as_bytes())))
    }

    /// The same, or the target of its slot, if the key is there already or not at all.
    pub(crate) fn place(&self, key: &str) -> usize {
        let home = self.home(key);
        let moving = self.slots.moving;
        let to = moving.filter(|it| it.0 == slot_of(key.as_bytes()));
        match to {
            Some((_, to)) if !self.hosts[home].server.has(key.as_bytes()) => self.master(to),
            _ => home,
        }
    }

    /// The actual masters of the slots.
    pub(crate) fn view(&self) -> View {
        let moved = self.slots.moved.iter();
        let moved = moved.map(|(slot, shard)| (*slot, self.master(*shard)));
        match self.kind {
            Kind::Cluster => View([self.master(0), self.master(1)], moved.collect()),
            _ => View::default(),
        }
    }

    /// What the servers have of an owner's hold: the one that has the key, or a majority.
    pub(crate) fn there(&self, key: &str, owner: &str) -> Option<There> {
        let at = |host: usize| {
            let server = &self.hosts[host].server;
            let name = name(key);
            let held = server.core.store.get(server.core.now, name)?.held()?;
            let holder = held.live(server.core.now, owner)?;
            let (permits, until) = (holder.permits, by_clock(server, holder.deadline));
            let fence = holder.fence.map(rlock_core::Fence::get);
            Some(There {
                permits,
                fence,
                until,
            })
        };
        if self.kind.is_quorum() {
            let mut all: Vec<_> = (0..self.hosts.len()).filter_map(at).collect();
            all.sort_by_key(|it| it.until);
            let majority = self.hosts.len() / 2 + 1;
            let last = all.len().checked_sub(majority)?;
            return all.into_iter().nth(last);
        }
        let to = self.slots.moving.map(|(_, shard)| self.master(shard));
        at(self.home(key)).or_else(|| at(to?))
    }

    /// Whether nothing happens to a key's server and slot.
    pub(crate) fn is_settled(&self, key: &str, since: u64) -> bool {
        let slot = slot_of(key.as_bytes());
        let shard = self.shard_of(slot);
        let host = &self.hosts[self.master(shard)];
        let is_moving = self.slots.moving.is_some_and(|it| it.0 == slot);
        let changed = self.slots.disturbed.get(&slot).copied().unwrap_or(0);
        let busy = host.disturbed.max(host.refuses_until).max(changed);
        !(is_moving || self.shards[shard].is_failing || host.server.is_down) && busy < since
    }

    /// A server forgets its holds of a key, or of all keys, or they end.
    pub(crate) fn forgets(&mut self, host: usize, key: Option<&str>) {
        let server = &self.hosts[host].server;
        for ((_, of), stored) in &server.core.store.keys {
            let of = String::from_utf8_lossy(of);
            let holders = stored.held().filter(|_| key.is_none_or(|it| it == of));
            let holders = holders.map(|it| it.live_holders(server.core.now));
            for (owner, holder) in holders.into_iter().flatten() {
                self.forgotten.push(Forgotten {
                    key: of.clone().into_owned(),
                    owner: owner.clone(),
                    fence: holder.fence.map_or(0, rlock_core::Fence::get),
                    until: by_clock(server, holder.deadline) + SECOND,
                    is_forced: key.is_some(),
                });
            }
        }
        self.disturbs();
    }

    /// Whether a guard may be valid although its server has forgotten it.
    pub(crate) fn is_forgotten(&self, key: &str, owner: &str, fence: u64) -> bool {
        self.forgotten_grants(key, owner, fence).next().is_some()
    }

    /// Whether an operator has ended this grant, whatever its owner has now.
    pub(crate) fn is_forced(&self, key: &str, owner: &str, fence: u64) -> bool {
        // Later grants may have smaller fences if clocks go back.
        let mut forgotten = self.forgotten_grants(key, owner, fence);
        self.set_back == 0 && forgotten.any(|it| it.is_forced)
    }

    /// A guard may not know yet of its upgrade.
    fn forgotten_grants(
        &self,
        key: &str,
        owner: &str,
        fence: u64,
    ) -> impl Iterator<Item = &Forgotten> {
        // A client takes again what it has lost of a quorum, and never learns that others had a majority meanwhile.
        let is_unlimited = self.kind.is_quorum();
        self.forgotten.iter().filter(move |it| {
            let is_of = it.key == key && it.owner == owner && it.fence >= fence;
            is_of && (is_unlimited || self.now <= it.until)
        })
    }

    /// A server restarts, with or without its keys, and its clock may go back.
    pub(crate) fn restarts(&mut self, host: usize, keeps: bool, back: u64, time: u64) {
        if self.hosts[host].server.is_down || !self.hosts[host].server.is_master {
            return;
        }
        self.disturbs();
        self.hosts[host].server.set_time(self.now);
        if !keeps && !self.kind.is_quorum() {
            self.forgets(host, None);
        }
        // What moves between masters has absolute times.
        let back = if self.kind == Kind::Cluster { 0 } else { back };
        if back > 0 {
            self.set_back += back;
            self.left_until = self.left_until.max(self.now + 5 * SECOND) + back;
        }
        let it = &mut self.hosts[host];
        let keys = match keeps {
            true => std::mem::take(&mut it.server.core.store),
            false => Store::default(),
        };
        it.server.behind += back / 1000;
        it.server.becomes(self.now, true, keys);
        it.server.is_down = true;
        (it.starts, it.disturbed) = (it.starts + 1, self.now + time);
        if self.kind.is_quorum() {
            it.grants_from = self.now + time + GRACE_MS * MS;
            let grants_from = it.server.core.now.plus_millis(time / MS + 1 + GRACE_MS);
            it.server.core.locks.grant_from(Some(grants_from));
        }
        self.ends_all(host);
        self.later(time, Happening::Returns(host));
    }

    fn ends_all(&mut self, host: usize) {
        let sessions: Vec<u64> = self.hosts[host].server.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|it| self.server_ends(it));
    }

    /// Replication stops, and after `lag` the master fails.
    pub(crate) fn fails_over(&mut self, shard: usize, outage: Outage, lag: u64, back: u64) {
        let it = &self.shards[shard];
        let Some(spare) = it.spare.filter(|_| !it.is_failing) else {
            return;
        };
        let master = it.master;
        let is_early = self.now < it.next_failover || self.slots.moving.is_some();
        if is_early || self.hosts[spare].server.is_down || self.hosts[spare].server.is_master {
            return;
        }
        self.shards[shard].is_failing = true;
        let server = &mut self.hosts[master].server;
        server.set_time(self.now);
        let keys = server.core.store.keys.clone();
        let copy = Store {
            keys,
            ..Store::default()
        };
        self.has_acted(master);
        match outage {
            Outage::Demoted => self.fails(shard, outage, back, copy),
            _ => self.later(lag, Happening::Fails(shard, outage, back, copy)),
        }
    }

    pub(crate) fn fails(&mut self, shard: usize, outage: Outage, back: u64, copy: Store) {
        let old = self.master(shard);
        self.disturbs();
        let late = match outage {
            Outage::Demoted => 0,
            Outage::Killed | Outage::Paused => self.below(3 * SECOND),
        };
        let back = late + back;
        self.says(|| format!("{} fails: {outage:?}", NAMES[old]));
        self.hosts[old].server.set_time(self.now);
        self.notes_unreplicated(old, &copy);
        self.hosts[old].disturbed = self.now + back;
        match outage {
            Outage::Demoted => {}
            Outage::Killed => {
                let it = &mut self.hosts[old];
                it.server.becomes(self.now, false, Store::default());
                it.server.is_down = true;
                self.ends_all(old);
            }
            // It learns that it is no master before it reads anything.
            Outage::Paused => {
                let it = &mut self.hosts[old];
                it.stalled_until = it.stalled_until.max(self.now + back + 1);
            }
        }
        match outage {
            Outage::Demoted => {
                self.is_promoted(shard, copy);
                self.returns(old);
            }
            _ => {
                self.later(late, Happening::Promoted(shard, copy));
                self.later(back, Happening::Returns(old));
            }
        }
    }

    pub(crate) fn is_promoted(&mut self, shard: usize, copy: Store) {
        self.disturbs();
        self.failed_over = self.now;
        self.seen.fail_overs += 1;
        // The replica may not know what an operator did.
        let forgotten = self.forgotten.iter_mut();
        forgotten.for_each(|it| it.is_forced = false);
        let it = &mut self.shards[shard];
        let (old, new) = (it.master, it.spare.expect("a replica"));
        (it.master, it.spare) = (new, Some(old));
        (it.is_failing, it.next_failover) = (false, self.now + 5 * SECOND);
        self.says(|| format!("{} is the master, not {}", NAMES[new], NAMES[old]));
        let mut behind = self.hosts[old].server.behind;
        if self.kind == Kind::Sentinels && self.below(2) == 0 {
            let back = self.below(SECOND);
            behind += back / 1000;
            self.set_back += back;
        }
        // A lost release leaves a hold that ends with its lease.
        let it = &mut self.hosts[new];
        it.server.behind = behind;
        let ends = copy.keys.values().filter_map(|it| it.held());
        let last = ends.map(|held| by_clock(&it.server, held.ends)).max();
        self.left_until = self.left_until.max(last.unwrap_or(0));
        it.server.becomes(self.now, true, copy);
        it.disturbed = self.now.max(it.stalled_until) + SECOND;
        let slots: Vec<u16> = KEYS.map(|key| slot_of(key.as_bytes())).to_vec();
        for slot in slots {
            if self.shard_of(slot) == shard {
                self.slots.disturbed.insert(slot, self.now + 4 * SECOND);
            }
        }
        self.hosts[new].view = self.view();
        self.others_learn();
        // The last Sentinel is cut off from the others.
        for sentinel in 0..2 {
            let late = self.below(SECOND);
            self.later(late, Happening::Named(sentinel));
        }
    }

    /// A server is there again: a master that restarts, or as a replica.
    pub(crate) fn returns(&mut self, host: usize) {
        self.says(|| format!("{} returns", NAMES[host]));
        let is_master = self.shards.iter().any(|it| it.master == host);
        self.hosts[host].view = self.view();
        let it = &mut self.hosts[host];
        it.server.is_down = false;
        // One that was paused grants nothing more.
        if !is_master {
            it.server.is_master = false;
            let core = &mut it.server.core;
            core.locks.demote();
            while let Some(ended) = core.locks.next_stale() {
                if let rlock_core::Delivery::Notify(listener) = &ended.delivery {
                    let key = &*ended.key;
                    let name = Name { db: 0, key };
                    let word = MessageKind::Withdrawn;
                    core.publish(name, listener, word, &ended.owner, None);
                }
            }
            core.store = Store::default();
            it.server.set_time(self.now);
            self.has_acted(host);
        }
    }

    /// The grants, and renewals, that the replica does not know.
    fn notes_unreplicated(&mut self, host: usize, copy: &Store) {
        let server = &self.hosts[host].server;
        for (row, stored) in &server.core.store.keys {
            let Some(held) = stored.held() else { continue };
            let copied = copy.keys.get(row).and_then(Stored::held);
            for (owner, holder) in held.live_holders(server.core.now) {
                let same = copied.and_then(|it| Some((it, it.live(server.core.now, owner)?)));
                let is_known = same.is_some_and(|(in_copy, it)| {
                    in_copy.shared == held.shared
                        && it.fence == holder.fence
                        && it.deadline >= holder.deadline
                        && it.permits >= holder.permits
                });
                if !is_known {
                    self.forgotten.push(Forgotten {
                        key: String::from_utf8_lossy(&row.1).into_owned(),
                        owner: owner.clone(),
                        fence: holder.fence.map_or(0, rlock_core::Fence::get),
                        until: by_clock(server, holder.deadline) + SECOND,
                        is_forced: false,
                    });
                }
            }
        }
    }

    /// A slot starts to move to the other master: its keys move one by one within
    /// `window`, or all at once.
    pub(crate) fn moves(&mut self, slot: u16, window: u64) {
        let is_busy = self.slots.moving.is_some()
            || self.shards.iter().any(|it| it.is_failing)
            || self
                .slots
                .disturbed
                .get(&slot)
                .is_some_and(|it| *it > self.now);
        if self.kind != Kind::Cluster || is_busy {
            return;
        }
        self.disturbs();
        self.slots.moving = Some((slot, 1 - self.shard_of(slot)));
        for key in KEYS {
            if window > 0 && slot_of(key.as_bytes()) == slot {
                let time = self.below(window);
                self.later(time, Happening::KeyMoves(key));
            }
        }
        match window {
            0 => self.has_moved(),
            _ => self.later(window, Happening::HasMoved),
        }
    }

    /// A key moves to the target of its slot.
    pub(crate) fn key_moves(&mut self, key: &str) {
        let Some((slot, to)) = self.slots.moving else {
            return;
        };
        let (from, to) = (self.master(self.shard_of(slot)), self.master(to));
        let now = self.now;
        for host in [from, to] {
            self.hosts[host].server.set_time(now);
        }
        self.says(|| format!("{key} moves from {} to {}", NAMES[from], NAMES[to]));
        let row = (0, key.as_bytes().to_vec());
        let source = &mut self.hosts[from].server.core;
        let stored = source.store.get(source.now, name(key)).cloned();
        source.store.delete(source.now, name(key));
        source.store.known.remove(&row);
        self.hosts[from].server.turns_away(key.as_bytes());
        let target = &mut self.hosts[to].server.core;
        target.store.known.remove(&row);
        if let Some(stored) = stored {
            target.store.keys.insert(row, stored);
        }
        self.has_acted(from);
        self.has_acted(to);
    }

    /// The slot with all its keys is at the other server.
    pub(crate) fn has_moved(&mut self) {
        let Some((slot, to)) = self.slots.moving else {
            return;
        };
        let from = self.master(self.shard_of(slot));
        for key in KEYS {
            if slot_of(key.as_bytes()) == slot {
                self.key_moves(key);
            }
        }
        self.slots.moving = None;
        self.slots.moved.insert(slot, to);
        self.slots.disturbed.insert(slot, self.now + 4 * SECOND);
        self.seen.moves += 1;
        for host in [from, self.master(to)] {
            self.hosts[host].view = self.view();
        }
        self.others_learn();
        self.channels_are_gone(from, slot);
    }

    /// A server sends no more messages on channels in a slot that it has lost.
    fn channels_are_gone(&mut self, host: usize, slot: u16) {
        let mut gone = Vec::new();
        let server = &mut self.hosts[host].server;
        for (session, it) in &mut server.sessions {
            if let Some(channel) = it.channel.take_if(|it| slot_of(it.1.as_bytes()) == slot) {
                gone.push((*session, channel.1.clone()));
                server.core.listened.remove(&channel);
            }
            for key in KEYS {
                let channel = value_channel(key.as_bytes());
                let channel = String::from_utf8(channel).unwrap();
                if slot_of(channel.as_bytes()) == slot && it.values.remove(&channel).is_some() {
                    gone.push((*session, channel));
                }
            }
        }
        for (session, channel) in gone {
            let client = self.wires[&session].client;
            self.clients[client].is_disturbed(self.now);
            let bytes = push("sunsubscribe", &channel, ":0\r\n");
            self.passes(session, bytes.as_bytes(), false);
        }
    }

    /// Each master says that the other one has the slot.
    pub(crate) fn disagree(&mut self, slot: u16, time: u64) {
        let is_busy = self.slots.moving.is_some() || self.shards.iter().any(|it| it.is_failing);
        if self.kind != Kind::Cluster || is_busy {
            return;
        }
        self.disturbs();
        let (one, other) = (self.master(0), self.master(1));
        self.channels_are_gone(self.master(self.shard_of(slot)), slot);
        self.hosts[one].view.1.insert(slot, other);
        self.hosts[other].view.1.insert(slot, one);
        let until = self.now + time + 4 * SECOND;
        self.slots.disturbed.insert(slot, until);
        self.later(time, Happening::Agree(slot));
    }

    /// The masters know again who has the slot.
    pub(crate) fn agrees(&mut self, _slot: u16) {
        for host in [self.master(0), self.master(1)] {
            self.hosts[host].view = self.view();
        }
    }

    /// Servers that were not part of a change learn of it some seconds later.
    fn others_learn(&mut self) {
        for host in 0..self.hosts.len() {
            let late = self.below(3 * SECOND);
            self.later(late, Happening::Learns(host));
        }
    }

    /// The slots that clients use: those of keys, and of channels.
    pub(crate) fn slots_in_use(&self) -> Vec<u16> {
        let sessions = self.hosts.iter().flat_map(|it| it.server.sessions.values());
        let channels = sessions.filter_map(|it| it.channel.as_ref());
        let channels = channels.map(|it| slot_of(it.1.as_bytes()));
        let keys = KEYS.map(|key| slot_of(key.as_bytes()));
        channels.chain(keys).collect()
    }

    pub(crate) fn sentinel_says(&self, sentinel: usize, words: &[String]) -> String {
        let (master, epoch) = self.named[sentinel];
        match words[1].as_str() {
            "MASTER" => format!("*2\r\n{}{}", bulk("config-epoch"), bulk(&epoch.to_string())),
            _ => format!("*2\r\n{}{}", bulk(NAMES[master]), bulk("6379")),
        }
    }

    pub(crate) fn answer(&mut self, host: usize, session: u64, words: &[String]) -> String {
        self.hosts[host].server.set_time(self.now);
        self.counts(host, session, words);
        let may_kill = self.may_kill || self.below(2) == 0;
        let it = &mut self.hosts[host];
        let server = &mut it.server;
        let Some(peer) = server.sessions.get_mut(&session) else {
            return String::new();
        };
        let is_asking = std::mem::take(&mut peer.is_asking);
        let second = words.get(1).map_or("", String::as_str);
        let is_sharded = self.kind == Kind::Cluster;
        match (words[0].as_str(), second) {
            ("WAIT", _) => format!(":{}\r\n", self.below(8).min(1)),
            ("CLIENT", "INFO") => {
                let name = NAMES[host];
                bulk(&format!(
                    "id={session} addr=a:{session} laddr={name}:1 fd=8"
                ))
            }
            ("ASKING", _) => {
                peer.is_asking = true;
                "+OK\r\n".to_owned()
            }
            ("CLIENT", "KILL") if !may_kill => {
                let other = words[3].parse().unwrap();
                if self.hosts[host].server.sessions.contains_key(&other) {
                    let client = self.wires[&session].client;
                    self.clients[client].is_unsure = true;
                }
                "-NOPERM this user may not do that\r\n".to_owned()
            }
            ("CLUSTER", "SLOTS") => slots(&it.view),
            ("CLUSTER", "INFO") => bulk("cluster_state:ok\r\ncluster_current_epoch:1\r\n"),
            ("INFO", _) => {
                let left = it.grants_from.saturating_sub(self.now).div_ceil(MS);
                let starts = it.starts;
                bulk(&format!(
                    "run_id:{host}-{starts}\r\nrole:master\r\nmaster_replid:{host}\r\nrlock_grace_left_ms:{left}\r\n"
                ))
            }
            ("CONFIG", _) => {
                let grace = GRACE_MS.to_string();
                format!("%1\r\n{}{}", bulk("rlock.startup-grace-ms"), bulk(&grace))
            }
            (command @ ("SUBSCRIBE" | "SSUBSCRIBE" | "SUNSUBSCRIBE"), channel) => {
                let slot = slot_of(channel.as_bytes());
                let known = it.view.at(slot);
                // A replica takes part in the channels of its master.
                let is_replica = |it: &Shard| it.master == known && it.spare == Some(host);
                let has = known == host || self.shards.iter().any(is_replica);
                if is_sharded && !has {
                    return moved("MOVED", slot, known);
                }
                let is_of_value = channel.starts_with("rlock:value:");
                if !is_of_value && let Some(wire) = self.wires.get_mut(&session) {
                    wire.is_main = true;
                }
                match command {
                    "SSUBSCRIBE" => server.listen(session, ChannelKind::Sharded, channel),
                    _ => server.answer(session, words),
                }
            }
            ("RLOCK.HELP", _) => server.answer(session, words),
            (command, _) if command.starts_with("RLOCK.") => {
                let keys = keys(words);
                self.locks(host, session, is_asking, &keys, words)
            }
            _ => server.answer(session, words),
        }
    }

    fn locks(
        &mut self,
        host: usize,
        session: u64,
        is_asking: bool,
        keys: &[&str],
        words: &[String],
    ) -> String {
        let is_slow = !self.is_calm && self.below(200) == 0;
        let it = &self.hosts[host];
        let slot = keys.first().map_or(0, |key| slot_of(key.as_bytes()));
        if it.server.mode == "cluster" && keys.iter().any(|it| slot_of(it.as_bytes()) != slot) {
            return "-CROSSSLOT not understood\r\n".to_owned();
        }
        if !it.server.is_master {
            if self.kind == Kind::Cluster {
                return moved("MOVED", slot, it.view.at(slot));
            }
            return "-READONLY You can't write against a read only replica.\r\n".to_owned();
        }
        if self.kind == Kind::Cluster {
            let known = it.view.at(slot);
            let to = self.slots.moving.filter(|(moving, _)| *moving == slot);
            let to = to.map(|(_, shard)| self.master(shard));
            if known != host && !(is_asking && to == Some(host)) {
                return moved("MOVED", slot, known);
            }
            let there = keys
                .iter()
                .filter(|it| self.hosts[host].server.has(it.as_bytes()));
            let there = there.count();
            if let Some(to) = to.filter(|_| known == host) {
                if there == 0 {
                    return moved("ASK", slot, to);
                }
                if there < keys.len() {
                    return "-TRYAGAIN Multiple keys\r\n".to_owned();
                }
            }
        }
        if words[0] != "RLOCK.INFO" {
            if self.now < self.hosts[host].refuses_until {
                return "-NOREPLICAS Not enough good replicas to write.\r\n".to_owned();
            }
            if is_slow {
                return "-LOADING or whatever passes\r\n".to_owned();
            }
        }
        self.hosts[host].server.answer(session, words)
    }

    /// Every way to ask again has a pause.
    fn counts(&mut self, host: usize, session: u64, words: &[String]) {
        let (second, asked) = &mut self.asked;
        if *second != self.now / SECOND {
            (*second, *asked) = (self.now / SECOND, HashMap::new());
        }
        let number = self.wires[&session].number;
        // Callers may ask who holds a lock as often as they like.
        if !words[0].starts_with("RLOCK.") || words[0] == "RLOCK.INFO" {
            return;
        }
        // A renewal for replicas is two requests, with different leases.
        let few = words[..words.len().min(4)].join(" ");
        let times = asked.entry(format!("{number} {host} {few}")).or_default();
        *times += 1;
        let times = *times;
        if times > REPEATED_MAX {
            self.is_wrong(|| format!("{times} times in a second, by {number}: {words:?}"));
        }
    }
}

/// A moment of a server by the clock of the world, in nanoseconds.
fn by_clock(server: &Server, at: Timestamp) -> u64 {
    (at.micros() + server.behind).saturating_sub(START) * 1000
}

pub(crate) fn name(key: &str) -> Name<'_> {
    let key = key.as_bytes();
    Name { db: 0, key }
}

/// The keys of a command.
fn keys(words: &[String]) -> Vec<&str> {
    let count = match words[0].as_str() {
        "RLOCK.MACQUIRE" | "RLOCK.MRENEW" => 3,
        "RLOCK.MRELEASE" => 2,
        _ => return vec![&words[1]],
    };
    let keys: usize = words[count].parse().expect("a number of keys");
    let keys = &words[count + 1..=count + keys];
    keys.iter().map(String::as_str).collect()
}

fn moved(code: &str, slot: u16, host: usize) -> String {
    format!("-{code} {slot} {}:6379\r\n", NAMES[host])
}

/// Later ranges override earlier ones.
fn slots(View(halves, others): &View) -> String {
    let range = |first: u16, last: u16, host: usize| {
        let host = bulk(NAMES[host]);
        format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n{host}:6379\r\n")
    };
    let others = others.iter().map(|(slot, host)| range(*slot, *slot, *host));
    let (count, others): (usize, String) = (2 + others.len(), others.collect());
    let all = range(0, 8191, halves[0]) + &range(8192, 16383, halves[1]);
    format!("*{count}\r\n{all}{others}")
}
