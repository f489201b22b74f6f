//! The calls to a machine, and their outcomes.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock_embed::format::{Fence, NONE};
use rlock_embed::messages::{Access, Action, Ending, Event, Leader, Mode, Owner, Owning, Wanted};
use rlock_engine::engine::Id;
use rlock_engine::engine::instant::Instant;

use crate::hosts::{GRACE_MS, KEYS};
use crate::steps::Asked;
use crate::world::{CLIENTS, MS, SECOND, World};

/// How long a call that does not wait for a lock is retried.
const PATIENCE: u64 = 10 * SECOND;
/// How long after its limit a call may end: replicas may have to answer after the server's last message, and timers
/// are late. A quorum asks its members one after the other.
const MARGIN: u64 = 2_100 * MS;
const MARGIN_OF_QUORUM: u64 = 26 * SECOND;
/// The longest grace.
const GRACE_MAX: u64 = 15 * SECOND;
/// The permits, which have a key of their own.
pub(crate) const LIMIT: u32 = 3;
/// Exclusive, shared, or some of the permits.
const MODES: [Mode; 5] = [
    mode(Access::Exclusive, 1, 0),
    mode(Access::Shared, 1, 0),
    mode(Access::Permits, 1, LIMIT),
    mode(Access::Permits, 2, LIMIT),
    mode(Access::Permits, 3, LIMIT),
];

const fn mode(mode: Access, permits: u32, limit: u32) -> Mode {
    Mode {
        mode,
        permits,
        limit,
    }
}

/// The fence of each key.
fn named(fences: &[(&[u8], Fence)]) -> Vec<(String, u64)> {
    let fences = fences.iter();
    let named = fences.map(|(key, fence)| (String::from_utf8_lossy(key).into_owned(), fence.0));
    named.collect()
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) what: What,
    pub(crate) begun: u64,
    /// The deadline for its end.
    pub(crate) latest: Option<u64>,
    /// The connection that it needs if it waits for nobody.
    pub(crate) quick: Option<u64>,
}

#[derive(Debug)]
pub(crate) enum What {
    Lock(Box<Locked>),
    /// What several keys exclude was asked for, or to release other permits than a guard has.
    Invalid,
    Upgrade(u64),
    /// Whether it was lost, its owner, and what the server must keep until when; 0 if the lock is free after the release.
    Release(bool, String, Vec<(String, String, u64)>),
    /// Some permits of this guard are released; whether it was lost.
    Part(u64, bool),
    Done,
    Flush,
    Question,
    /// The key, and the last report, if there was one.
    Observe(&'static str, Option<Option<(u64, Vec<u8>)>>),
    Leader,
}

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Locked {
    keys: Vec<&'static str>,
    owner: String,
    /// The index in [`MODES`].
    mode: u8,
    lease: u64,
    margin: u64,
    grace: Option<u64>,
    max_hold: Option<u64>,
    has_replicas: bool,
    /// Whether its hold is renewed; unknown for activities, which may enter one.
    is_renewed: bool,
    /// Whether the server can keep it after a release.
    is_plain: bool,
}

impl Locked {
    pub(crate) fn first_key(&self) -> &'static str {
        self.keys[0]
    }
}

/// The guards and the calls of one owner that were dropped, or have failed.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    pub(crate) permits: u32,
    /// When the last one was, and until when it would have been valid: later its lease may count as its end.
    pub(crate) since: u64,
    pub(crate) until: u64,
}

impl Dropped {
    fn add(&mut self, permits: u32, now: u64, remaining: u64) {
        self.permits += permits;
        (self.since, self.until) = (now, now + remaining);
    }
}

impl What {
    /// A call for a lock ends without it. It may be granted all the same, for a moment.
    pub(crate) fn drops(&self, dropped: &mut BTreeMap<String, Dropped>, now: u64) {
        if let Self::Lock(it) = self {
            let dropped = dropped.entry(it.owner.clone()).or_default();
            dropped.add(0, now, it.lease);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) fences: Vec<(String, u64)>,
    pub(crate) owner: String,
    /// The index in [`MODES`].
    pub(crate) mode: u8,
    /// How many are not released.
    pub(crate) permits: u32,
    pub(crate) granted: u64,
    /// The same before an upgrade.
    pub(crate) first: u64,
    pub(crate) lease: u64,
    pub(crate) margin: u64,
    /// The connection that reports its loss, unless it may be another one.
    pub(crate) by: Option<u64>,
    /// How long it outlives its connection, if it is bound.
    pub(crate) grace: Option<u64>,
    /// For how long it lasts at most.
    pub(crate) max_hold: Option<u64>,
    pub(crate) is_renewed: bool,
    is_plain: bool,
    /// Whether others had some of its permits.
    is_part: bool,
    pub(crate) is_extended: bool,
    pub(crate) is_over: bool,
    /// Whether it was reported that its client has released it.
    is_left: bool,
    pub(crate) dead_since: Option<u64>,
    /// Since when its server has nothing of it.
    pub(crate) gone_since: Option<u64>,
}

impl Guard {
    /// Whether its owner may have made requests before it took this lock.
    pub(crate) fn is_of_activity(&self) -> bool {
        self.owner.contains(":a")
    }
}

impl Call {
    /// A key and the owner that asks for it.
    pub(crate) fn asked(&self) -> Option<(&'static str, String)> {
        match &self.what {
            What::Lock(it) => Some((it.first_key(), it.owner.clone())),
            _ => None,
        }
    }
}

impl World<'_> {
    /// Starts a call that may wait for `wait` milliseconds. One that does not wait has some time for each of its `requests`.
    pub(crate) fn calls<'e>(
        &mut self,
        client: usize,
        what: What,
        wait: u64,
        requests: u64,
        event: impl FnOnce(u64) -> Event<'e>,
    ) {
        let begun = self.now;
        let margin = match self.kind.is_quorum() {
            true => MARGIN_OF_QUORUM,
            false => MARGIN,
        };
        let quick = match (&what, wait) {
            (What::Lock(it), 0) => self.quick(client, it),
            _ => None,
        };
        let this = &mut self.clients[client];
        this.last += 1;
        let limit = match wait {
            NONE => None,
            0 => Some(PATIENCE * requests + margin),
            wait => Some(wait * MS + margin),
        };
        let latest = limit.map(|it| begun + it);
        let call = this.last;
        // All ends were heard of when its client began to close.
        let is_over = |guard| this.is_closing || this.guards.get(guard).is_none_or(|it| it.is_over);
        let is_wait = match &what {
            What::Lock(_) => true,
            What::Upgrade(guard) => !is_over(guard),
            _ => false,
        };
        this.unheard.0 += i64::from(is_wait);
        this.calls.insert(
            call,
            Call {
                what,
                begun,
                latest,
                quick,
            },
        );
        self.tell(client, &event(call));
    }

    /// The connection that a call for a lock needs for a quick answer, if it is there.
    fn quick(&self, client: usize, it: &Locked) -> Option<u64> {
        let is_first = !it.owner.contains(":a") && it.keys.len() == 1;
        let is_first = is_first && !it.has_replicas && !self.kind.is_quorum();
        let wire = self.main_wire(client, it.first_key());
        wire.filter(|_| is_first)
    }

    pub(crate) fn asks(&mut self, asked: &Asked) {
        let client = asked.client;
        let this = &self.clients[client];
        if this.calls.len() + this.guards.len() > 6 {
            return;
        }
        let (mut asked, is_quorum) = (asked.clone(), self.kind.is_quorum());
        if is_quorum {
            let lease = asked.terms.lease.as_millis() as u64;
            asked.terms.lease = Duration::from_millis(300 + lease % (GRACE_MS - 300));
            // Sometimes it is asked for what only one server has.
            if !self.is_calm && self.below(16) > 0 {
                (asked.mode, asked.value, asked.terms.replicas) = (0, None, 0);
                asked.keys = [&["a"], &["b"]][self.below(2) as usize];
            }
        }
        // It may be entered again with other terms.
        if asked.activity.is_some() && asked.terms.bound < Some(Duration::from_millis(400)) {
            asked.terms.bound = None;
        }
        let shortest = asked.terms.bound.unwrap_or(asked.terms.lease);
        let margin = shortest.min(asked.terms.lease) / 10;
        asked.terms.margin = asked.terms.margin.min(margin);
        let Asked {
            keys, mode, terms, ..
        } = &asked;
        let has_replicas = terms.replicas > 0;
        let is_invalid = match is_quorum {
            true => *mode > 0 || keys.len() > 1 || asked.value.is_some() || has_replicas,
            false => keys.len() > 1 && (*mode != 0 || terms.bound.is_some()),
        };
        // Activities get their holds by several calls.
        let is_plain = terms.renewed
            && terms.max_hold.is_none()
            && terms.bound.is_none()
            && asked.activity.is_none();
        let requests = match keys.len() as u64 {
            1 => 1,
            keys => keys + 1,
        };
        let nanos = |time: Duration| time.as_nanos() as u64;
        let mut names = keys.to_vec();
        names.sort_unstable();
        let what = match is_invalid {
            true => What::Invalid,
            false => What::Lock(Box::new(Locked {
                keys: names,
                owner: self.clients[client].next_owner(asked.activity),
                mode: *mode as u8,
                lease: nanos(terms.lease),
                // An activity may enter a hold again, and gets its margin.
                margin: match asked.activity {
                    Some(_) => 0,
                    None => nanos(terms.margin),
                },
                grace: match asked.activity {
                    Some(_) => Some(GRACE_MAX),
                    None => terms.bound.map(nanos),
                },
                // The same here.
                max_hold: match asked.activity {
                    Some(_) => None,
                    None => terms.max_hold.map(nanos),
                },
                has_replicas,
                is_renewed: terms.renewed && asked.activity.is_none(),
                is_plain,
            })),
        };
        let longest = &mut self.clients[client].longest;
        *longest = (*longest).max(nanos(terms.lease));
        let value = asked.value.map(|it| it.to_string()).unwrap_or_default();
        let time = (asked.wait != NONE).then(|| Duration::from_millis(asked.wait));
        self.calls(client, what, asked.wait, requests, |call| {
            let wanted = Wanted {
                owner: Owner {
                    owner: match asked.activity {
                        Some(_) => Owning::Activity,
                        None => Owning::New,
                    },
                    activity: asked.activity.unwrap_or(0),
                    name: "",
                },
                keys: keys.iter().map(|key| key.as_bytes()).collect(),
                mode: MODES[*mode].clone(),
            };
            let (wait, terms, value) = (time, terms.clone(), value.as_bytes());
            match asked.value {
                Some(_) => Event::Campaign {
                    call,
                    wanted,
                    wait,
                    terms,
                    value,
                },
                None => Event::Lock {
                    call,
                    wanted,
                    wait,
                    terms,
                },
            }
        });
    }

    pub(crate) fn observes(&mut self, client: usize, name: &'static str, once: bool) {
        let key = name.as_bytes();
        if self.kind.is_quorum() {
            return self.calls(client, What::Invalid, 0, 1, |call| Event::Leader {
                call,
                key,
            });
        }
        if once {
            return self.calls(client, What::Leader, 0, 1, |call| Event::Leader {
                call,
                key,
            });
        }
        let observers = self.clients[client].calls.values();
        let observers = observers.filter(|it| matches!(it.what, What::Observe(..)));
        if observers.count() < 4 {
            let what = What::Observe(name, None);
            self.calls(client, what, NONE, 1, |call| Event::Observe { call, key });
        }
    }

    /// Ends calls that nothing else ends.
    pub(crate) fn looks_away(&mut self, client: usize) {
        let calls = self.clients[client].calls.iter();
        let observers = calls.filter(|it| matches!(it.1.what, What::Observe(..)));
        let observers: Vec<u64> = observers.map(|it| *it.0).collect();
        for call in observers {
            self.clients[client].calls.remove(&call);
            self.tell(client, &Event::Abandon { call });
        }
    }

    /// Each change is a real one, and fences never decrease.
    fn observed(&mut self, client: usize, call: u64, leader: Option<&Leader<'_>>, missed: bool) {
        let leader = leader.map(|it| (it.fence.0, it.value.to_vec()));
        self.seen.changes += 1;
        let call = self.clients[client].calls.get_mut(&call);
        let Some(What::Observe(_, known)) = call.map(|it| &mut it.what) else {
            return self.is_wrong(|| "nobody observes".to_owned());
        };
        let before = known.replace(leader.clone());
        let is_news = match &before {
            None => !missed,
            Some(before) => missed || *before != leader,
        };
        let fences = (before.flatten().map(|it| it.0), leader.map(|it| it.0));
        let goes_back = matches!(fences, (Some(before), Some(now)) if now < before) && !missed;
        if goes_back || !is_news {
            self.is_wrong(|| format!("observed: {fences:?}, missed: {missed}"));
        }
    }

    /// Releases some permits of a guard, or all of them; or none or too many, which is the caller's error.
    pub(crate) fn releases_some(&mut self, client: usize, guard: u64, how: u8) {
        let it = self.clients[client].guards.get_mut(&guard).unwrap();
        let permits = match how % 8 {
            0 => 0,
            1 => it.permits + 1,
            more => 1 + u32::from(more) % it.permits,
        };
        let what = match it.permits.checked_sub(permits) {
            _ if self.kind.is_quorum() => What::Invalid,
            Some(0) => self.leaves(client, guard, None),
            Some(rest) if permits > 0 => {
                it.permits = rest;
                What::Part(guard, it.is_over)
            }
            _ => What::Invalid,
        };
        self.calls(client, what, 0, 1, |call| Event::ReleasePermits {
            call,
            guard,
            permits,
        });
    }

    /// Gives one permit of a guard to a new one.
    pub(crate) fn splits(&mut self, client: usize, guard: u64) {
        let now = Instant::from_nanos(self.now);
        let this = &mut self.clients[client];
        let part = this.last + 1;
        let is_upgraded = this.upgrades(guard);
        let it = this.guards.get_mut(&guard).unwrap();
        if this.machine.is_some() || is_upgraded {
            return;
        }
        let (whole, new) = (Id::of_number(guard), Id::of_number(part));
        let is_split = this.typed.machine.split(now, whole, new, 1);
        if is_split != (it.permits > 1) {
            let it = format!("{it:?} was split: {is_split}");
            return self.is_wrong(|| it);
        }
        if is_split {
            this.last = part;
            it.permits -= 1;
            it.is_part = true;
            let other = Guard {
                fences: it.fences.clone(),
                owner: it.owner.clone(),
                permits: 1,
                ..*it
            };
            this.unheard.1 += i64::from(!it.is_over && !this.is_closing);
            this.guards.insert(part, other);
            self.seen.parts += 1;
            self.tell(client, &Event::Tick {});
        }
    }

    /// Gives all permits of a guard to another one of the same hold.
    pub(crate) fn merges(&mut self, client: usize) {
        let now = Instant::from_nanos(self.now);
        if !self.is_running(client) {
            return;
        }
        let this = &mut self.clients[client];
        let permits = this.guards.iter().filter(|it| it.1.mode > 1);
        let permits: Vec<u64> = permits.map(|it| *it.0).collect();
        let ([one, other, ..], None) = (&permits[..], &this.machine) else {
            return;
        };
        let (whole, part) = (Id::of_number(*one), Id::of_number(*other));
        if this.typed.machine.merge(now, whole, part) {
            let part = this.guards.remove(other).unwrap();
            this.unheard.1 -= i64::from(!part.is_over && !this.is_closing);
            this.guards.get_mut(one).unwrap().permits += part.permits;
            self.tell(client, &Event::Tick {});
        }
    }

    pub(crate) fn releases(&mut self, client: usize, guard: u64, least: Option<u64>) {
        let what = self.leaves(client, guard, least);
        self.calls(client, what, 0, 1, |call| {
            let least = least.map(Duration::from_nanos);
            Event::Release { call, guard, least }
        });
    }

    /// Forgets a guard that is released.
    fn leaves(&mut self, client: usize, guard: u64, least: Option<u64>) -> What {
        let this = &mut self.clients[client];
        let it = this.guards.remove(&guard).unwrap();
        if least.is_some() {
            this.given_up.insert(it.owner.clone());
        }
        let until = match least {
            None => Some(0),
            // The client counts from the moment when it learned of the grant.
            Some(least) => it.is_plain.then_some(it.first + least / MS * MS),
        };
        // An activity may also hold it by other guards; and an upgrade that comes too late holds it for a moment.
        let is_other = it.is_of_activity() || it.is_part || this.upgrades(guard);
        let until = until.filter(|_| !is_other);
        let keys = it.fences.into_iter();
        let kept = keys.filter_map(|(key, _)| Some((key, it.owner.clone(), until?)));
        let kept = kept.collect();
        What::Release(it.is_over, it.owner, kept)
    }

    /// A client without requests does not notice that a connection is silent.
    pub(crate) fn wonders(&mut self, client: usize) {
        if self.kind.is_quorum() {
            return self.calls(client, What::Flush, NONE, 1, |call| Event::Flush { call });
        }
        // One that has the key, or each.
        let (key, words): (&[u8], Vec<&[u8]>) = match self.below(2) {
            0 => (b"a", vec![b"RLOCK.INFO", b"a"]),
            _ => (b"", vec![b"PING"]),
        };
        self.calls(client, What::Question, 0, 1, |call| Event::Question {
            call,
            key,
            words,
            changes: false,
            limit: None,
        });
    }

    /// A client's process ends, and another one starts.
    pub(crate) fn dies(&mut self, client: usize) {
        self.disturbs();
        self.leaves_behind(client);
        let open: Vec<u64> = self.clients[client].open.values().copied().collect();
        for session in open {
            self.client_ends(session);
        }
        self.clients[client] = self.begins();
    }

    /// What a process leaves behind ends with its lease, or with the wait.
    fn leaves_behind(&mut self, client: usize) {
        let longest = self.clients[client].longest;
        let until = self.now + longest + self.set_back + PATIENCE;
        self.left_until = self.left_until.max(until);
    }

    /// Releases all, and waits for the flush until then.
    pub(crate) fn closes(&mut self, client: usize, limit: u64) {
        let now = self.now;
        let this = &mut self.clients[client];
        if std::mem::replace(&mut this.is_closing, true) {
            return;
        }
        for (guard, it) in &this.guards {
            let dropped = this.dropped.entry(it.owner.clone()).or_default();
            dropped.add(it.permits, now, this.typed.remaining(*guard, now));
        }
        for call in this.calls.values() {
            call.what.drops(&mut this.dropped, now);
        }
        self.tell(client, &Event::LeaveAll {});
        self.calls(client, What::Flush, NONE, 1, |call| Event::Flush { call });
        self.closes_by(client, limit);
    }

    pub(crate) fn has_closed(&mut self, client: usize) {
        let this = &self.clients[client];
        let guards: Vec<u64> = this.guards.keys().copied().collect();
        if this.guards.values().any(|it| !it.is_over && !it.is_left) {
            self.is_wrong(|| {
                format!("client {client} has closed, and a guard has not heard of it")
            });
        }
        let this = &self.clients[client];
        if this.calls.values().any(|it| matches!(it.what, What::Flush)) {
            self.leaves_behind(client);
        }
        for guard in guards {
            self.clients[client].guards.remove(&guard);
            self.tell(client, &Event::Leave { guard });
        }
        self.tell(client, &Event::Closed {});
        let this = &self.clients[client];
        if !(this.calls.is_empty() && this.open.is_empty() && this.typed.machine.is_empty()) {
            let left = format!("{:?}, {:?}", this.calls, this.open);
            self.is_wrong(|| format!("left in a client that is closed: {left}"));
        }
        let unheard = self.clients[client].unheard;
        if unheard != (0, 0) {
            self.is_wrong(|| format!("waits and holds of which nobody heard: {unheard:?}"));
        }
        self.clients[client] = self.begins();
    }

    /// Sends an invalid event, which must change nothing: the twin does not always get it.
    pub(crate) fn errs(&mut self, client: usize, how: u8, which: u8) {
        let this = &mut self.clients[client];
        let Some(machine) = &mut this.machine else {
            return;
        };
        let used = this.calls.keys().next().copied();
        let call = this.last + 1;
        let event = |call| {
            let (guard, least) = (u64::from(which), None);
            Event::Release { call, guard, least }.to_bytes()
        };
        let mut bytes = event(call);
        match (how % 5, used) {
            (0, _) => bytes.truncate(usize::from(which) % bytes.len()),
            (1, _) => bytes.push(which),
            (2, Some(used)) => bytes = event(used),
            (3, _) => bytes[0] = which.max(24),
            // No text, a guard that is a list, and so on: as long as all other events.
            _ => bytes = [&[2][..], &call.to_le_bytes(), &[which; 40]].concat(),
        }
        let is_taken = machine.handle(self.now, &bytes, Vec::new()).is_ok();
        let twin = this.twin.as_mut().filter(|_| which % 2 == 1);
        let is_same = twin.is_none_or(|it| it.handle(self.now, &bytes).is_none());
        self.seen.refused += 1;
        if is_taken || !is_same {
            self.is_wrong(|| format!("taken: {bytes:?}"));
        }
    }

    /// Handles an action for a caller.
    pub(crate) fn told(&mut self, client: usize, action: Action<'_>) {
        let call = match &action {
            Action::Leader {
                call,
                leader,
                missed,
            } if self.is_observer(client, *call) => {
                let leader = leader.as_ref();
                return self.observed(client, *call, leader, *missed);
            }
            Action::Granted { call, .. }
            | Action::Refused { call }
            | Action::Done { call }
            | Action::Failed { call, .. }
            | Action::Answered { call, .. }
            | Action::Leader { call, .. } => *call,
            Action::Over { guard, why } => return self.is_over(client, *guard, *why),
            Action::Occurred { what, .. } => {
                let unheard = &mut self.clients[client].unheard;
                match *what {
                    "wait" => unheard.0 -= 1,
                    "hold" => unheard.1 -= 1,
                    _ => {}
                }
                return;
            }
            _ => return,
        };
        let Some(ended) = self.clients[client].calls.remove(&call) else {
            return self.is_wrong(|| format!("nobody waits for {action:?}"));
        };
        self.ends(client, call, ended, action);
    }

    fn is_over(&mut self, client: usize, guard: u64, why: Ending) {
        if why == Ending::Released {
            let this = &mut self.clients[client];
            let mut held = this.guards.get_mut(&guard).filter(|_| this.is_closing);
            let before = held
                .as_mut()
                .map(|it| std::mem::replace(&mut it.is_left, true));
            if before != Some(false) {
                self.is_wrong(|| format!("guard {guard} of client {client} is not left"));
            }
            return;
        }
        self.seen.losses += 1;
        if why == Ending::EndedByServer {
            self.check_ended(client, guard);
        }
        let this = &mut self.clients[client];
        let is_left = this.typed.remaining(guard, self.now) > 0;
        // The shared hold may be lost, and an upgrade may take the lock again.
        let is_left = is_left && !this.upgrades(guard);
        let ends = this.guards.get_mut(&guard).filter(|it| !it.is_over);
        let has_left = this.left == Some((guard, self.now));
        if ends.map(|it| it.is_over = true).is_none() && !has_left || is_left {
            self.is_wrong(|| format!("guard {guard} of client {client} is not to be lost"));
        }
    }

    fn ends(&mut self, client: usize, call: u64, ended: Call, action: Action<'_>) {
        match (ended.what, action) {
            (
                What::Lock(asked),
                Action::Granted {
                    guard,
                    owner,
                    fences,
                    ..
                },
            ) => {
                let fences = named(&fences);
                let is_of = fences
                    .iter()
                    .map(|it| &*it.0)
                    .eq(asked.keys.iter().copied());
                if guard != call || !is_of || owner != asked.owner {
                    return self
                        .is_wrong(|| format!("{asked:?} was asked for: {owner} {fences:?}"));
                }
                let by = self.main_wire(client, asked.first_key());
                let by = by.filter(|_| asked.keys.len() == 1 && !asked.owner.contains(":a"));
                let it = Guard {
                    fences,
                    owner: asked.owner,
                    mode: asked.mode,
                    permits: MODES[usize::from(asked.mode)].permits,
                    granted: self.now,
                    first: self.now,
                    lease: asked.lease,
                    margin: asked.margin,
                    by,
                    grace: asked.grace,
                    max_hold: asked.max_hold,
                    is_renewed: asked.is_renewed,
                    is_plain: asked.is_plain,
                    is_left: false,
                    is_part: false,
                    is_extended: false,
                    is_over: false,
                    dead_since: None,
                    gone_since: None,
                };
                self.clients[client].guards.insert(guard, it);
                self.clients[client].unheard.1 += 1;
                self.is_granted(client, guard);
            }
            (
                What::Upgrade(of),
                Action::Granted {
                    guard,
                    owner,
                    fences,
                    ..
                },
            ) => match self.clients[client].guards.get_mut(&of) {
                Some(it) if guard == of && it.owner == owner && it.fences.len() == fences.len() => {
                    let (fences, was_over) = (named(&fences), it.is_over);
                    (it.mode, it.is_over) = (0, false);
                    let shared = std::mem::replace(&mut it.fences, fences.clone());
                    (it.dead_since, it.gone_since, it.granted) = (None, None, self.now);
                    self.clients[client].unheard.1 += i64::from(was_over);
                    let has_ended =
                        |(key, fence): &(String, u64)| self.is_forced(key, owner, *fence);
                    if !was_over && shared.iter().any(has_ended) && !fences.iter().any(has_ended) {
                        return self.is_wrong(|| format!("{fences:?} hides the end of {shared:?}"));
                    }
                    self.is_granted(client, guard);
                }
                it => {
                    let it = format!("{it:?}");
                    self.is_wrong(|| format!("{it} should have been upgraded: {guard} {fences:?}"));
                }
            },
            (what @ (What::Lock(..) | What::Upgrade(_)), Action::Refused { .. }) => {
                what.drops(&mut self.clients[client].dropped, self.now);
                if ended.latest.is_none() {
                    self.is_wrong(|| "a wait without limit has ended".to_owned());
                }
            }
            (What::Release(was_over, _, kept), Action::Done { .. }) => {
                if was_over {
                    self.is_wrong(|| "a guard is released that was lost".to_owned());
                }
                // A replica that takes over may not know of the release, and a lease is longer if its clock goes back.
                let is_calm = ended.begun > self.disturbed;
                // A late request of an earlier connection may take it again.
                let is_free = is_calm && self.set_back == 0 && !self.clients[client].is_unsure;
                let mut free = kept.iter().filter(|it| it.2 == 0 && is_free);
                let held = free.find(|it| self.there(&it.0, &it.1).is_some());
                if let Some(held) = held.map(|it| format!("{it:?} is not free")) {
                    self.is_wrong(|| held);
                }
                if is_calm {
                    self.kept
                        .extend(kept.into_iter().filter(|it| it.2 > self.now));
                }
            }
            (What::Part(guard, was_over), Action::Done { .. }) => {
                self.seen.parts += 1;
                if was_over {
                    self.is_wrong(|| format!("permits of {guard}, which was lost before"));
                }
                self.check_parts(client, guard);
            }
            (What::Flush, Action::Done { .. }) => {
                self.check_dropped(client, ended.begun);
                let this = &self.clients[client];
                let mut calls = this.calls.values();
                if this.is_closing && !calls.any(|it| matches!(it.what, What::Flush)) {
                    self.closes_by(client, 0);
                }
            }
            (What::Done, Action::Done { .. })
            | (What::Question, Action::Answered { .. })
            | (What::Leader, Action::Leader { .. })
            | (
                What::Invalid,
                Action::Failed {
                    code: "OutOfRange", ..
                },
            ) => {}
            (what, Action::Failed { code, text, .. }) => {
                let is_valid = matches!(what, What::Lock(..) | What::Part(..));
                let this = &mut self.clients[client];
                what.drops(&mut this.dropped, self.now);
                this.gives_up_with(&what);
                // Such a guard cannot be upgraded, so nobody has waited for it.
                let is_held = |guard| {
                    !this.is_closing && this.guards.get(guard).is_some_and(|it| !it.is_over)
                };
                let is_no_wait = matches!(&what, What::Upgrade(guard) if is_held(guard));
                this.unheard.0 -= i64::from(is_no_wait && code == "OutOfRange");
                let is_unfounded = match what {
                    What::Invalid => !this.is_closing,
                    What::Part(guard, _) => match code {
                        "Lost" => this.typed.remaining(guard, self.now) > 0,
                        code => !matches!(code, "Unavailable" | "Closed"),
                    },
                    _ => false,
                };
                if is_unfounded
                    || code == "Protocol"
                    || text.contains("not understood")
                    || is_valid && code == "OutOfRange"
                {
                    self.is_wrong(|| format!("{code}: {text}"));
                }
            }
            (what, action) => self.is_wrong(|| format!("{what:?}: {action:?}")),
        }
    }

    fn is_observer(&self, client: usize, call: u64) -> bool {
        let call = self.clients[client].calls.get(&call);
        call.is_some_and(|it| matches!(it.what, What::Observe(..)))
    }

    fn is_granted(&mut self, client: usize, guard: u64) {
        self.seen.grants += 1;
        self.check_fences(client, guard);
        let chance = match self.is_calm {
            true if self.is_ending => 2,
            true => 3,
            false if self.is_scripted => 3,
            false => self.below(16),
        };
        if chance < 3 {
            self.clients[client].left = Some((guard, self.now));
        }
        match chance {
            // Its caller has gone meanwhile, or drops it.
            kind @ (0 | 1) => {
                let now = self.now;
                self.clients[client].drops(guard, now);
                let event = match kind {
                    0 => Event::Untaken { guard },
                    _ => Event::Leave { guard },
                };
                self.tell(client, &event);
            }
            2 => self.releases(client, guard, None),
            _ => {}
        }
    }

    /// Each client can have each lock now that no more faults happen, and all observers know that.
    pub(crate) fn all_are_reached(&mut self) -> Result<(), String> {
        let begun = self.seen.grants as usize;
        for client in 0..CLIENTS {
            for key in [0, 2].map(|it| KEYS[(begun + client + it) % KEYS.len()]) {
                if !self.is_free(key) || self.kind.is_quorum() && !["a", "b"].contains(&key) {
                    continue;
                }
                let guards = self.clients[client].guards.len();
                self.asks(&Asked::campaign(client, key, self.kind.is_quorum()));
                // A quorum learns only now that connections are silent.
                for _ in 0..if self.kind.is_quorum() { 22 } else { 3 } {
                    if self.clients[client].guards.len() == guards {
                        self.run_for(SECOND)?;
                    }
                }
                let this = &self.clients[client];
                if this.guards.len() == guards {
                    return Err(format!(
                        "{key}, which is free, is not granted: {:?}",
                        this.calls
                    ));
                }
                self.check_observers()?;
                let guard = *this.guards.keys().next_back().unwrap();
                self.releases(client, guard, None);
                self.run_for(SECOND)?;
                self.check_observers()?;
            }
        }
        Ok(())
    }
}

impl Asked {
    /// One try for a lock, with a value if it is possible.
    fn campaign(client: usize, key: &'static str, is_quorum: bool) -> Self {
        let keys = ["a", "b", "c", "p", "x{a}"];
        let groups: [&'static [&'static str]; 5] = [&["a"], &["b"], &["c"], &["p"], &["x{a}"]];
        let key = keys.iter().position(|it| *it == key).unwrap();
        Self {
            client,
            keys: groups[key],
            mode: 0,
            activity: None,
            wait: if is_quorum { 20_000 } else { 0 },
            terms: rlock_embed::messages::Terms {
                lease: Duration::from_millis(if is_quorum { 1_500 } else { 9_000 }),
                renewed: true,
                max_hold: None,
                bound: None,
                replicas: 0,
                margin: Duration::ZERO,
            },
            value: (!is_quorum).then_some(1),
        }
    }
}

impl crate::world::Client {
    /// The name of the owner of the next call for a lock.
    fn next_owner(&self, activity: Option<u64>) -> String {
        self.typed.next_owner(activity)
    }

    /// Forgets a guard whose end nobody reports.
    pub(crate) fn drops(&mut self, guard: u64, now: u64) {
        if let Some(it) = self.guards.remove(&guard) {
            let remaining = self.typed.remaining(guard, now);
            let dropped = self.dropped.entry(it.owner).or_default();
            dropped.add(it.permits, now, remaining);
        }
    }

    /// A release without an answer goes on, or failed.
    pub(crate) fn gives_up_with(&mut self, release: &What) {
        let owner = match release {
            What::Release(_, owner, _) => Some(owner.clone()),
            What::Part(guard, _) => self.guards.get(guard).map(|it| it.owner.clone()),
            _ => None,
        };
        self.given_up.extend(owner);
    }

    /// Whether a guard is being upgraded.
    fn upgrades(&self, guard: u64) -> bool {
        let mut calls = self.calls.values();
        calls.any(|it| matches!(it.what, What::Upgrade(of) if of == guard))
    }
}
