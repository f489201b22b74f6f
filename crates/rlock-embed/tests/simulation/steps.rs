//! What callers, the network, operators and servers do, step by step.

use std::time::Duration;

use rlock_embed::format::NONE;
use rlock_embed::messages::{Event, Terms};
use rlock_engine::engine::node::slot_of;

use crate::calls::{Guard, What};
use crate::hosts::{KEYS, name};
use crate::world::{CLIENTS, Happening, MS, SECOND, World};

/// The keys of a request; the last two are of one slot.
pub(crate) const GROUPS: [&[&str]; 8] = [
    &["a"],
    &["a"],
    &["b"],
    &["c"],
    &["b", "a"],
    &["a", "c"],
    &["c", "a", "b"],
    &["x{a}", "a"],
];

#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) client: usize,
    pub(crate) keys: &'static [&'static str],
    /// The index in `MODES`.
    pub(crate) mode: usize,
    /// The activity that is the owner, or a new one.
    pub(crate) activity: Option<u64>,
    /// In milliseconds.
    pub(crate) wait: u64,
    pub(crate) terms: Terms,
    /// Whether it publishes a value.
    pub(crate) value: Option<u8>,
}

/// Clients by their index; calls, guards and connections by their order. Times in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Ask(Asked),
    /// The lock stays taken until `least` after the grant.
    Release {
        client: usize,
        which: usize,
        least: Option<u64>,
    },
    /// Some permits; none or too many are the caller's error.
    ReleasePermits {
        client: usize,
        which: usize,
        how: u8,
    },
    Split {
        client: usize,
        which: usize,
    },
    Merge {
        client: usize,
    },
    Leave {
        client: usize,
        which: usize,
    },
    Abandon {
        client: usize,
        which: usize,
    },
    /// It may be meddled with at once.
    Upgrade {
        client: usize,
        which: usize,
        wait: u64,
        then: u8,
    },
    Downgrade {
        client: usize,
        which: usize,
    },
    Extend {
        client: usize,
        which: usize,
        lease: Duration,
    },
    Proclaim {
        client: usize,
        which: usize,
        length: usize,
    },
    Observe {
        client: usize,
        key: usize,
        once: bool,
    },
    LookAway {
        client: usize,
    },
    Question {
        client: usize,
    },
    /// A client waits for what it has dropped.
    Await {
        client: usize,
    },
    Connect {
        client: usize,
    },
    Metrics {
        client: usize,
    },
    /// An event that means nothing.
    Err {
        client: usize,
        how: u8,
        which: u8,
    },
    Close {
        client: usize,
    },
    Die {
        client: usize,
    },
    Stop {
        client: usize,
        time: u64,
    },
    /// Nothing is read; timers run.
    ReadLate {
        client: usize,
        time: u64,
    },
    Cut {
        client: usize,
        host: Option<usize>,
        which: usize,
        how: Cut,
    },
    /// New connections are refused, or get no answer.
    Unreachable {
        client: usize,
        host: usize,
        time: u64,
        is_refused: bool,
    },
    /// An operator ends a connection.
    Kill {
        client: usize,
        which: usize,
    },
    Stall {
        host: usize,
        time: u64,
    },
    /// The clock may go `back`.
    Restart {
        host: usize,
        keeps: bool,
        back: u64,
        time: u64,
    },
    Refuse {
        host: usize,
        time: u64,
    },
    Force {
        key: usize,
        host: usize,
        queue: bool,
    },
    Flush,
    /// The clocks of all servers go forward.
    Jump {
        time: u64,
    },
    Cancel {
        client: usize,
        which: usize,
    },
    /// Somebody takes or releases a lock with plain commands.
    Other {
        key: usize,
        host: usize,
        lease: u64,
    },
    /// A slot moves to the other master: the slot of a key or of a channel.
    Move {
        which: usize,
        window: u64,
    },
    MoveKey {
        key: usize,
        window: u64,
    },
    Disagree {
        key: usize,
        time: u64,
    },
    FailOver {
        shard: usize,
        outage: Outage,
        lag: u64,
        back: u64,
    },
    /// At once to a call that is under way, an upgrade if there is one: an operator ends what its owner holds, its
    /// caller drops it, its answer is late, and its connection breaks.
    Meddle {
        client: usize,
        which: usize,
        how: u8,
    },
    Pass {
        time: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Both ends see it.
    Plain,
    /// Only the client sees it: what it has sent may arrive late.
    HalfOpen,
    /// Nobody sees it: everything sent is lost.
    Silent,
    /// Only the server sees it.
    Unseen,
    /// It does not end: what is sent arrives late.
    Slow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// It returns without data.
    Killed,
    /// Its process is paused.
    Paused,
    /// Manually, with nothing lost.
    Demoted,
}

impl Step {
    /// All bytes decode to a step.
    /// The kinds below this ask for locks, and use or end what is held.
    pub(crate) const KINDS_OF_LOCKS: u8 = 29;

    pub(crate) fn decode([what, who, which, how, long, more]: [u8; 6]) -> Self {
        let (client, host) = (usize::from(who) % CLIENTS, usize::from(who));
        let (nth, long) = (usize::from(which), u64::from(long));
        // Most callers want the same key.
        let key = [0, 0, 0, 1, 1, 2, 3, 4][nth % 8];
        let which = nth;
        let time = 12 * long * MS;
        let waits = [0, NONE, NONE, u64::from(more), 20 * u64::from(more)];
        let wait = waits[usize::from(more) % 5];
        let cuts = [
            Cut::Plain,
            Cut::HalfOpen,
            Cut::Silent,
            Cut::Unseen,
            Cut::Slow,
        ];
        match what % 64 {
            0..=15 => Self::Ask(asked(client, nth, how, more, wait)),
            16..=19 => {
                let least = how.is_multiple_of(3).then_some(20 * long * MS);
                Self::Release {
                    client,
                    which,
                    least,
                }
            }
            20 => Self::Leave { client, which },
            21 => Self::ReleasePermits { client, which, how },
            22 if how < 128 => Self::Split { client, which },
            22 => Self::Merge { client },
            23 => Self::Abandon { client, which },
            24 | 25 => Self::Upgrade {
                client,
                which,
                wait,
                then: if how < 128 { how } else { 0 },
            },
            26 if how < 160 => Self::Downgrade { client, which },
            26 => Self::LookAway { client },
            27 => {
                // An invalid lease is the caller's error.
                let lease = [0, 500, 3_000, 9_000, 50_000][usize::from(how) % 5];
                let lease = Duration::from_millis(lease);
                Self::Extend {
                    client,
                    which,
                    lease,
                }
            }
            28 => {
                // A value that is too long is the caller's error, and so is a value with a shared guard.
                let length = usize::from(how) * 5;
                Self::Proclaim {
                    client,
                    which,
                    length,
                }
            }
            29 | 30 => Self::Observe {
                client,
                key,
                once: how.is_multiple_of(4),
            },
            31 if how < 160 => Self::Await { client },
            31 => Self::Question { client },
            32 if how < 128 => Self::Connect { client },
            32 => Self::Metrics { client },
            33 => Self::Err {
                client,
                how,
                which: nth as u8,
            },
            34 if how < 32 => Self::Die { client },
            34 if how < 96 => Self::Close { client },
            34 | 35 => Self::Stop {
                client,
                time: 10 * long * MS,
            },
            36 => Self::ReadLate {
                client,
                time: 2 * long * MS,
            },
            37..=40 => Self::Cut {
                client,
                host: None,
                which,
                how: cuts[usize::from(how) % 5],
            },
            41 => Self::Unreachable {
                client,
                host: nth,
                time: 20 * long * MS,
                is_refused: how < 128,
            },
            42 => Self::Kill { client, which },
            43 => Self::Stall {
                host,
                time: time / 2,
            },
            44 | 45 => Self::Restart {
                host,
                keeps: which % 3 > 0,
                back: match how % 16 {
                    0 => 2 * SECOND,
                    1 => 60 * SECOND,
                    _ => 0,
                },
                time,
            },
            46 => Self::Refuse {
                host,
                time: time / 3,
            },
            47 => Self::Force {
                key,
                host,
                queue: how.is_multiple_of(2),
            },
            48 if how < 60 => Self::Flush,
            48 if how < 120 => Self::Jump { time },
            48 => Self::Cancel { client, which },
            49 => Self::Other {
                key,
                host,
                lease: 10 * long,
            },
            50..=52 => Self::Move {
                which,
                window: if how < 100 { 0 } else { time },
            },
            53 => Self::Disagree { key, time },
            54 => Self::FailOver {
                shard: host,
                outage: [Outage::Killed, Outage::Paused, Outage::Demoted][usize::from(how) % 3],
                lag: MS * which.saturating_sub(127) as u64,
                back: 40 * long * MS,
            },
            55 => Self::Pass { time: 11 * SECOND },
            56..=58 => Self::Pass {
                time: 50 * long * MS,
            },
            59..=62 => Self::Meddle { client, which, how },
            _ => Self::Pass { time: long * MS },
        }
    }
}

fn asked(client: usize, which: usize, how: u8, more: u8, wait: u64) -> Asked {
    let mode = [0, 0, 0, 0, 1, 1, 2, 3, 4][which % 9];
    let keys: &[&str] = match mode {
        0 | 1 => GROUPS[which / 9 % 8],
        _ => &["p"],
    };
    let millis = Duration::from_millis;
    let is_short = keys.len() > 1 && wait != NONE && how.is_multiple_of(5);
    let lease = match is_short {
        // The first may be over before the last is taken.
        true => 3 + u64::from(more) % 5,
        false => [700, 2_000, 5_000, 30_000][usize::from(how) / 4 % 4],
    };
    let mut terms = Terms {
        lease: millis(lease),
        renewed: !is_short,
        max_hold: None,
        bound: None,
        replicas: 0,
        margin: millis([0, 0, lease / 10][usize::from(more) / 8 % 3]),
    };
    match how / 16 {
        0 | 1 => terms.renewed = false,
        2 => terms.max_hold = Some(millis(2_500.max(lease))),
        7 => terms.max_hold = Some(millis((lease / 2).max(3))),
        3 => terms.bound = Some(millis(lease / 2)),
        4 => terms.bound = Some(millis(400.min(lease))),
        5 => terms.bound = Some(Duration::ZERO),
        6 if keys.len() == 1 => terms.replicas = 1,
        _ => {}
    }
    Asked {
        client,
        keys,
        mode,
        activity: (how % 4 == 3 && mode < 2).then_some(u64::from(more) % 2),
        wait,
        terms,
        value: (mode == 0 && keys.len() == 1 && how.is_multiple_of(2)).then_some(how),
    }
}

impl World<'_> {
    pub(crate) fn step(&mut self, step: &Step) {
        match step {
            Step::Ask(asked) => {
                if self.is_running(asked.client) {
                    self.asks(asked);
                }
            }
            Step::Release {
                client,
                which,
                least,
            } => {
                if let Some(guard) = self.nth_guard(*client, *which) {
                    self.releases(*client, guard, *least);
                }
            }
            Step::ReleasePermits { client, which, how } => {
                if let Some(guard) = self.nth_with(*client, *which, |it| it.permits > 1) {
                    self.releases_some(*client, guard, *how);
                }
            }
            Step::Split { client, which } => {
                if let Some(guard) = self.nth_with(*client, *which, |it| it.permits > 1) {
                    self.splits(*client, guard);
                }
            }
            Step::Merge { client } => self.merges(*client),
            Step::Leave { client, which } => {
                if let Some(guard) = self.nth_guard(*client, *which) {
                    let now = self.now;
                    self.clients[*client].drops(guard, now);
                    self.tell(*client, &Event::Leave { guard });
                }
            }
            Step::Abandon { client, which } => {
                if let Some(call) = self.nth_call(*client, *which) {
                    self.abandons(*client, call);
                }
            }
            Step::Meddle { client, which, how } => self.meddles(*client, *which, *how),
            Step::Upgrade {
                client,
                which,
                wait,
                then,
            } => {
                let has_shared =
                    |it: &usize| self.clients[*it].guards.values().any(|it| it.mode == 1);
                let mut clients = (0..CLIENTS).map(|it| (client + it) % CLIENTS);
                let client = clients.find(has_shared).unwrap_or(*client);
                if let Some(guard) = self.nth_with(client, *which, |it| it.mode == 1) {
                    let (what, wait) = (What::Upgrade(guard), *wait);
                    let time = (wait != NONE).then(|| Duration::from_millis(wait));
                    self.calls(client, what, wait, 1, |call| {
                        let wait = time;
                        Event::Upgrade { call, guard, wait }
                    });
                    self.meddles(client, *which, *then);
                }
            }
            Step::Downgrade { client, which } => {
                if let Some(guard) = self.nth_guard(*client, *which) {
                    let it = self.clients[*client].guards.get_mut(&guard).unwrap();
                    if it.fences.len() == 1 && it.mode == 0 && !self.kind.is_quorum() {
                        it.mode = 1;
                    }
                    self.calls(*client, What::Done, 0, 1, |call| Event::Downgrade {
                        call,
                        guard,
                    });
                }
            }
            Step::Extend {
                client,
                which,
                lease,
            } => {
                if let Some(guard) = self.nth_guard(*client, *which) {
                    let lease = *lease;
                    self.clients[*client].extends(guard, lease.as_nanos() as u64);
                    self.calls(*client, What::Done, 0, 1, |call| Event::Extend {
                        call,
                        guard,
                        lease,
                    });
                }
            }
            Step::Proclaim {
                client,
                which,
                length,
            } => {
                if let Some(guard) = self.nth_guard(*client, *which) {
                    let value = &vec![b'v'; *length];
                    self.calls(*client, What::Done, 0, 1, |call| Event::Proclaim {
                        call,
                        guard,
                        value,
                    });
                }
            }
            Step::Observe { client, key, once } => {
                if self.is_running(*client) {
                    self.observes(*client, KEYS[*key], *once);
                }
            }
            Step::LookAway { client } => {
                if self.is_running(*client) {
                    self.looks_away(*client);
                }
            }
            Step::Question { client } => {
                if self.is_running(*client) {
                    self.wonders(*client);
                }
            }
            Step::Await { client } => {
                if self.is_running(*client) {
                    self.calls(*client, What::Flush, NONE, 1, |call| Event::Flush { call });
                }
            }
            Step::Connect { client } => {
                if self.is_running(*client) {
                    self.calls(*client, What::Done, 0, 1, |call| Event::Connect { call });
                }
            }
            Step::Metrics { client } => {
                if self.is_running(*client) {
                    self.calls(*client, What::Question, 0, 1, |call| Event::Metrics {
                        call,
                    });
                }
            }
            Step::Err { client, how, which } => self.errs(*client, *how, *which),
            Step::Die { client } if self.may_begin() => self.dies(*client),
            Step::Close { client } if self.may_begin() && self.is_running(*client) => {
                let limit = match self.is_scripted {
                    true => 20 * SECOND,
                    false => [20 * SECOND, 10 * MS, 0][self.below(3) as usize],
                };
                self.closes(*client, limit);
            }
            fault => self.interferes(fault),
        }
    }

    /// What the network, operators and servers do.
    fn interferes(&mut self, step: &Step) {
        match *step {
            Step::Stop { client, time } => {
                self.disturbs();
                let now = self.now;
                let this = &mut self.clients[client];
                this.stopped_until = this.stopped_until.max(now) + time;
                this.is_late(time);
            }
            Step::ReadLate { client, time } => {
                self.disturbs();
                let now = self.now;
                let this = &mut self.clients[client];
                this.reads_from = this.reads_from.max(now + time);
                this.is_late(time);
            }
            Step::Cut {
                client,
                host,
                which,
                how,
            } => {
                self.disturbs();
                let wires = self.open_wires(client, host);
                if let Some(session) = wires.get(which % wires.len().max(1)) {
                    self.cut(*session, how);
                }
            }
            Step::Unreachable {
                client,
                host,
                time,
                is_refused,
            } => {
                self.disturbs();
                let (host, until) = (host % self.hosts.len(), self.now + time);
                let this = &mut self.clients[client];
                this.is_disturbed(until);
                this.unreachable.insert(host, (until, is_refused));
            }
            Step::Kill { client, which } => {
                self.disturbs();
                let wires = self.open_wires(client, None);
                if let Some(session) = wires.get(which % wires.len().max(1)) {
                    self.server_ends(*session);
                }
            }
            Step::Stall { host, time } => {
                self.disturbs();
                let until = self.now + time;
                let host = host % self.hosts.len();
                let it = &mut self.hosts[host];
                it.stalled_until = it.stalled_until.max(until);
                it.disturbed = it.disturbed.max(until);
            }
            Step::Restart {
                host,
                keeps,
                back,
                time,
            } => {
                self.restarts(host % self.hosts.len(), keeps, back, time);
            }
            Step::Refuse { host, time } => {
                self.disturbs();
                let host = host % self.hosts.len();
                self.hosts[host].refuses_until = self.now + time;
            }
            Step::Force { key, host, queue } => {
                let (key, host) = (KEYS[key], self.at(KEYS[key], host));
                let words = ["RLOCK.FORCE", key, "QUEUE"];
                if self.is_up(host) {
                    self.forgets(host, Some(key));
                    self.commands(host, &words[..2 + usize::from(queue)]);
                }
            }
            Step::Flush => {
                let masters = (0..self.shards.len()).map(|shard| self.master(shard));
                let masters: Vec<_> = masters.filter(|host| self.is_up(*host)).collect();
                for host in masters {
                    self.forgets(host, None);
                    let core = &mut self.hosts[host].server.core;
                    core.store.flush(None);
                    core.locks.settle_all_later(None);
                    self.has_acted(host);
                }
            }
            // A stalled server would see the jump when it continues, and act only then.
            Step::Jump { time }
                if !self.shards.iter().any(|it| it.is_failing)
                    && self.hosts.iter().all(|it| it.stalled_until <= self.now) =>
            {
                for host in 0..self.hosts.len() {
                    self.forgets(host, None);
                    self.hosts[host].server.jumps(self.now, time / 1000);
                    self.has_acted(host);
                }
            }
            Step::Cancel { client, which } => {
                let calls = self.clients[client].calls.values();
                let asked: Vec<_> = calls.filter_map(|it| it.asked()).collect();
                let asked = asked.get(which % asked.len().max(1)).cloned();
                if let Some((key, owner)) = asked {
                    let host = self.at(key, 0);
                    self.commands(host, &["RLOCK.CANCEL", key, &owner]);
                }
            }
            Step::Other { key, host, lease } => self.others(KEYS[key], host, lease),
            Step::Move { which, window } => {
                let slots = self.slots_in_use();
                self.moves(slots[which % slots.len()], window);
            }
            Step::MoveKey { key, window } => {
                self.moves(slot_of(KEYS[key].as_bytes()), window);
            }
            Step::Disagree { key, time } => self.disagree(slot_of(KEYS[key].as_bytes()), time),
            Step::FailOver {
                shard,
                outage,
                lag,
                back,
            } => {
                self.fails_over(shard % self.shards.len(), outage, lag, back);
            }
            _ => {}
        }
    }

    fn abandons(&mut self, client: usize, call: u64) {
        let this = &mut self.clients[client];
        if let Some(it) = this.calls.remove(&call) {
            it.what.drops(&mut this.dropped, self.now);
            this.gives_up_with(&it.what);
        }
        self.tell(client, &Event::Abandon { call });
    }

    fn meddles(&mut self, client: usize, which: usize, how: u8) {
        let calls = self.clients[client].calls.iter();
        let mut upgrades = calls.filter(|it| matches!(it.1.what, What::Upgrade(_)));
        let upgrade = upgrades.next().map(|it| *it.0);
        let Some(call) = upgrade.or_else(|| self.nth_call(client, which)) else {
            return;
        };
        if how & 1 > 0 {
            let time = 1_200 * MS;
            self.interferes(&Step::ReadLate { client, time });
        }
        // Its request may have arrived by then.
        let time = self.below(6 * MS);
        let number = self.clients[client].number;
        self.later(time, Happening::Meddled(client, number, call, how));
    }

    pub(crate) fn has_meddled(&mut self, client: usize, call: u64, how: u8) {
        let this = &self.clients[client];
        let key = match this.calls.get(&call).map(|it| &it.what) {
            Some(What::Upgrade(guard)) => {
                let guard = this.guards.get(guard);
                guard.map(|it| it.fences[0].0.clone())
            }
            Some(What::Lock(it)) => Some(it.first_key().to_owned()),
            _ => None,
        };
        let key = key.and_then(|key| KEYS.into_iter().position(|it| it == key));
        let which = usize::from(how >> 4);
        if let Some(key) = key.filter(|_| how & 2 > 0) {
            let (host, queue) = (which, how & 16 > 0);
            self.interferes(&Step::Force { key, host, queue });
        }
        if how & 4 > 0 && self.is_running(client) && self.clients[client].calls.contains_key(&call)
        {
            self.abandons(client, call);
        }
        if let Some(key) = key.filter(|_| how & 8 > 0) {
            let host = Some(self.at(KEYS[key], which));
            let how = [Cut::Unseen, Cut::Plain][which / 2 % 2];
            self.interferes(&Step::Cut {
                client,
                host,
                which,
                how,
            });
        }
        // The next connection breaks, too.
        if how & 64 > 0 {
            let time = self.below(60 * MS);
            let number = self.clients[client].number;
            self.later(time, Happening::Meddled(client, number, call, 8));
        }
    }

    /// Somebody without this client has a lock for a while, or releases it.
    fn others(&mut self, key: &str, host: usize, lease: u64) {
        let host = self.at(key, host);
        let has = self.hosts[host].server.holds(key, "other");
        match has {
            true => self.commands(host, &["RLOCK.RELEASE", key, "other"]),
            false => {
                let lease = (1 + lease).to_string();
                self.commands(host, &["RLOCK.ACQUIRE", key, "other", &lease]);
            }
        }
    }

    /// Whether a server can carry out commands.
    fn is_up(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        !it.server.is_down && it.stalled_until <= self.now && it.server.is_master
    }

    /// A command of somebody else, at a server that can carry it out.
    fn commands(&mut self, host: usize, words: &[&str]) {
        if !self.is_up(host) {
            return;
        }
        let it = &mut self.hosts[host];
        let words: Vec<_> = words.iter().map(ToString::to_string).collect();
        it.server.set_time(self.now);
        let reply = it.server.lock(0, &words);
        self.says(|| format!("somebody: {} -> {reply:?}", words.join(" ")));
        self.has_acted(host);
    }

    /// The server that has a key; any member of a quorum.
    fn at(&self, key: &str, which: usize) -> usize {
        match self.kind.is_quorum() {
            true => which % self.hosts.len(),
            false => self.place(key),
        }
    }

    pub(crate) fn is_running(&self, client: usize) -> bool {
        self.clients[client].stopped_until <= self.now
    }

    fn nth_guard(&self, client: usize, which: usize) -> Option<u64> {
        let guards = &self.clients[client].guards;
        let guard = guards.keys().nth(which % guards.len().max(1));
        guard.copied().filter(|_| self.is_running(client))
    }

    /// The first that is so, or any.
    fn nth_with(&self, client: usize, which: usize, is_so: fn(&Guard) -> bool) -> Option<u64> {
        let mut guards = self.clients[client].guards.iter();
        let first = guards.find(|it| is_so(it.1)).map(|it| *it.0);
        first
            .filter(|_| self.is_running(client))
            .or_else(|| self.nth_guard(client, which))
    }

    fn nth_call(&self, client: usize, which: usize) -> Option<u64> {
        let calls = &self.clients[client].calls;
        let call = calls.keys().nth(which % calls.len().max(1));
        call.copied().filter(|_| self.is_running(client))
    }

    /// Whether a lock is free at the servers that have it.
    pub(crate) fn is_free(&self, key: &str) -> bool {
        let mut hosts = (0..self.shards.len()).map(|shard| &self.hosts[self.master(shard)].server);
        hosts.all(|it| it.core.store.get(it.core.now, name(key)).is_none())
    }
}

impl crate::world::Client {
    /// Until when it does not run, or reads nothing.
    pub(crate) fn late_until(&self) -> u64 {
        self.stopped_until.max(self.reads_from)
    }

    /// A fault affects it until then.
    pub(crate) fn is_disturbed(&mut self, until: u64) {
        self.disturbed = self.disturbed.max(until);
    }

    /// All guards of a hold last longer.
    fn extends(&mut self, guard: u64, lease: u64) {
        let owner = self.guards[&guard].owner.clone();
        for it in self.guards.values_mut().filter(|it| it.owner == owner) {
            (it.is_extended, it.lease) = (true, it.lease.max(lease));
        }
        self.longest = self.longest.max(lease);
    }

    /// Nothing reaches its calls for some time.
    fn is_late(&mut self, time: u64) {
        for call in self.calls.values_mut() {
            call.latest = call.latest.map(|it| it + time);
        }
    }
}
