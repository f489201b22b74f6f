//! The calls to a machine, and their outcomes.

use std::time::Duration;

use rlock_embed::format::{Fence, NONE};
use rlock_embed::messages::{Access, Action, Event, Leader, Mode, Owner, Owning, Terms, Wanted};

use crate::world::{CLIENTS, MS, SECOND, World};

/// How long a call that does not wait for a lock is retried.
const PATIENCE: u64 = 10 * SECOND;
/// How long after its limit a call may end: replicas may have to answer after the server's last message, and timers
/// are late.
const MARGIN: u64 = 2_100 * MS;
const LEASE_MAX: u64 = 40 * SECOND;
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

/// A time in milliseconds of a message.
fn millis(time: u64) -> Option<Duration> {
    (time != NONE).then(|| Duration::from_millis(time))
}

/// In slots 15495, 3300 and 7365.
const KEYS: [&[&str]; 6] = [
    &["a"],
    &["b"],
    &["c"],
    &["b", "a"],
    &["a", "c"],
    &["c", "a", "b"],
];

/// The fence of each key.
fn named(fences: &[(&[u8], Fence)]) -> Vec<(String, u64)> {
    let fences = fences.iter();
    let named = fences.map(|(key, fence)| (String::from_utf8_lossy(key).into_owned(), fence.0));
    named.collect()
}

#[derive(Debug)]
pub(crate) struct Call {
    what: What,
    begun: u64,
    /// The deadline for its end.
    pub(crate) latest: Option<u64>,
}

#[derive(Debug)]
enum What {
    /// The keys, the index in [`MODES`], the grace if it is bound, and whether the server can keep it after a
    /// release.
    Lock(Vec<&'static str>, u8, u64, bool),
    /// What several keys exclude was asked for, or to release other permits than a guard has.
    Invalid,
    Upgrade(u64),
    /// Whether it was lost, and what the server must keep until when; 0 if the lock is free after the release.
    Release(bool, Vec<(String, String, u64)>),
    /// Some permits of this guard are released; whether it was lost.
    Part(u64, bool),
    Done,
    Flush,
    Question,
    /// The last report, if there was one.
    Observe(Option<Option<(u64, Vec<u8>)>>),
    Leader,
}

#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) fences: Vec<(String, u64)>,
    pub(crate) owner: String,
    /// The index in [`MODES`].
    pub(crate) mode: u8,
    /// How many are not released.
    pub(crate) permits: u32,
    begun: u64,
    /// How long it outlives its connection, if it is bound.
    pub(crate) grace: u64,
    /// Whether the server can keep it after a release.
    is_plain: bool,
    pub(crate) is_over: bool,
    pub(crate) dead_since: Option<u64>,
}

impl World<'_> {
    pub(crate) fn step(&mut self, step: &[u8; 6]) {
        let [what, client, how, which, time, _] = *step;
        let client = usize::from(client) % CLIENTS;
        if self.clients[client].stopped_until > self.now && !matches!(what % 32, 24 | 25 | 28) {
            return;
        }
        let guards = &self.clients[client].guards;
        let guard = guards
            .keys()
            .nth(usize::from(which) % guards.len().max(1))
            .copied();
        let calls = self.clients[client].calls.keys();
        let calls: Vec<u64> = calls.copied().collect();
        match (what % 32, guard) {
            (0..=8, _) => self.asks(client, how, which),
            (9, _) => self.observes(client, how, which),
            (10..=15, Some(guard)) if how % 2 == 1 => {
                let several = guards.iter().find(|it| it.1.permits > 1);
                let guard = several.map_or(guard, |it| *it.0);
                self.releases_some(client, guard, how / 2);
            }
            (10..=15, Some(guard)) => {
                let least = (how % 3 == 0).then(|| 20 * u64::from(time));
                self.releases(client, guard, least);
            }
            (16 | 17, Some(guard)) => {
                let wait = [NONE, 0, 10 * u64::from(time)][usize::from(how) % 3];
                self.calls(client, What::Upgrade(guard), wait, 1, |call| {
                    let wait = millis(wait);
                    Event::Upgrade { call, guard, wait }
                });
            }
            (18, Some(guard)) => {
                // An invalid lease is the caller's error.
                let lease = Duration::from_millis(200 * u64::from(how));
                let event = |call| Event::Extend { call, guard, lease };
                self.calls(client, What::Done, 0, 1, event);
            }
            (19 | 20, Some(guard)) => {
                let it = self.clients[client].guards.get_mut(&guard).unwrap();
                if it.fences.len() == 1 && it.mode == 0 {
                    it.mode = 1;
                }
                let event = |call| Event::Downgrade { call, guard };
                self.calls(client, What::Done, 0, 1, event);
            }
            (21 | 22, _) => {
                if let Some(&call) = calls.get(usize::from(which) % calls.len().max(1)) {
                    self.clients[client].calls.remove(&call);
                    self.tell(client, Event::Abandon { call });
                }
            }
            (23, _) => self.wonders(client),
            (24, _) => {
                self.disturbed = self.now;
                self.kept.clear();
                self.cut(client, which, how);
            }
            (25, _) if how < 128 => {
                self.disturbed = self.now;
                self.kept.clear();
                let keeps = how % 3 != 0;
                if !keeps {
                    ["a", "b", "c", "p"]
                        .iter()
                        .for_each(|key| self.is_doubtful(key));
                }
                self.restarts(keeps, u64::from(time) * 12 * MS);
            }
            (26, _) if how < 128 => self.stops(client, 50 * MS * u64::from(which)),
            (27, _) if how < 32 && self.may_begin() => self.dies(client),
            (27, _) if how < 128 && self.may_begin() => self.closes(client),
            (28, _) => {
                let key = ["a", "b", "c", "p"][usize::from(which) % 4];
                let words = ["RLOCK.FORCE", key, "QUEUE"];
                let words = &words[..2 + usize::from(how % 2)];
                let words: Vec<_> = words.iter().map(ToString::to_string).collect();
                self.is_doubtful(key);
                self.disturbed = self.now;
                self.kept.clear();
                self.server.set_time(self.now);
                self.server.lock(0, &words);
                self.has_acted();
            }
            (29, _) => self.errs(client, how, which),
            (30, _) if how < 64 => {
                self.calls(client, What::Done, 0, 1, |call| Event::Connect { call });
            }
            (30, _) => self.proclaims(client, guard, time),
            (31, _) => self.calls(client, What::Question, 0, 1, |call| Event::Metrics { call }),
            _ => {}
        }
    }

    /// Starts a call that may wait for `wait` milliseconds. One that does not wait has some time for each of its `requests`.
    fn calls<'e>(
        &mut self,
        client: usize,
        what: What,
        wait: u64,
        requests: u64,
        event: impl FnOnce(u64) -> Event<'e>,
    ) {
        let now = self.now;
        let this = &mut self.clients[client];
        this.last += 1;
        let limit = match wait {
            NONE => None,
            0 => Some(PATIENCE * requests + MARGIN),
            wait => Some(wait * MS + MARGIN),
        };
        let latest = limit.map(|it| now + it);
        let call = this.last;
        let begun = now;
        this.calls.insert(
            call,
            Call {
                what,
                begun,
                latest,
            },
        );
        self.tell(client, event(call));
    }

    fn asks(&mut self, client: usize, how: u8, which: u8) {
        let this = &self.clients[client];
        if this.calls.len() + this.guards.len() > 6 {
            return;
        }
        let mode = [0, 0, 0, 1, 1, 2, 3, 4][usize::from(which) % 8];
        let keys: &[_] = match mode {
            0 | 1 => KEYS[usize::from(which / 8) % 6],
            _ => &["p"],
        };
        let wait = match how % 4 {
            0 => 0,
            1 => NONE,
            _ => 1 + self.below(5_000),
        };
        let lease = match self.below(8) {
            0 => LEASE_MAX / MS,
            // The first may be over before the last is taken.
            1 | 2 if keys.len() > 1 && wait != NONE => 3 + self.below(5),
            _ => 1_000 + self.below(8_000),
        };
        let (mut renewed, mut most, mut bound, mut replicas) = (true, NONE, NONE, 0);
        match how / 4 % 8 {
            0 => renewed = false,
            1 => most = lease + self.below(5_000),
            2 => bound = lease / 2,
            3 if keys.len() == 1 => replicas = 1,
            _ => {}
        }
        // Activities get their holds by several calls.
        let is_activity = how / 32 < 3 && mode < 2;
        let is_plain = renewed && most == NONE && bound == NONE && !is_activity;
        let requests = match self.is_cluster() {
            true => keys.len() as u64 + 1,
            false => 1,
        };
        let mut names = keys.to_vec();
        names.sort_unstable();
        let grace = if bound == NONE { 0 } else { bound * MS };
        let what = match keys.len() > 1 && (mode != 0 || bound != NONE) {
            true => What::Invalid,
            false => What::Lock(names, mode as u8, grace, is_plain),
        };
        let is_campaign = mode == 0 && keys.len() == 1 && how.is_multiple_of(2);
        let value = how.to_string();
        self.calls(client, what, wait, requests, |call| {
            let owner = if is_activity {
                Owning::Activity
            } else {
                Owning::New
            };
            let (activity, name) = (u64::from(how % 2), "");
            let wanted = Wanted {
                owner: Owner {
                    owner,
                    activity,
                    name,
                },
                keys: keys.iter().map(|key| key.as_bytes()).collect(),
                mode: MODES[mode].clone(),
            };
            let terms = Terms {
                lease: Duration::from_millis(lease),
                renewed,
                max_hold: millis(most),
                bound: millis(bound),
                replicas,
                margin: Duration::ZERO,
            };
            let (wait, value) = (millis(wait), value.as_bytes());
            match is_campaign {
                true => Event::Campaign {
                    call,
                    wanted,
                    wait,
                    terms,
                    value,
                },
                false => Event::Lock {
                    call,
                    wanted,
                    wait,
                    terms,
                },
            }
        });
    }

    fn proclaims(&mut self, client: usize, guard: Option<u64>, time: u8) {
        let Some(guard) = guard else { return };
        let value = usize::from(time) * 5;
        // A value that is too long is the caller's error, and so is a value with a shared guard.
        let value = &vec![b'v'; value];
        self.calls(client, What::Done, 0, 1, |call| Event::Proclaim {
            call,
            guard,
            value,
        });
    }

    fn observes(&mut self, client: usize, how: u8, which: u8) {
        let key = ["a", "b", "c"][usize::from(which) % 3].as_bytes();
        if how.is_multiple_of(4) {
            return self.calls(client, What::Leader, 0, 1, |call| Event::Leader {
                call,
                key,
            });
        }
        let observers = self.clients[client].calls.values();
        if observers
            .filter(|it| matches!(it.what, What::Observe(_)))
            .count()
            < 4
        {
            let what = What::Observe(None);
            self.calls(client, what, NONE, 1, |call| Event::Observe { call, key });
        }
    }

    /// Ends calls that nothing else ends.
    pub(crate) fn looks_away(&mut self, client: usize) {
        let calls = self.clients[client].calls.iter();
        let observers = calls.filter(|it| matches!(it.1.what, What::Observe(_)));
        let observers: Vec<u64> = observers.map(|it| *it.0).collect();
        for call in observers {
            self.clients[client].calls.remove(&call);
            self.tell(client, Event::Abandon { call });
        }
    }

    /// Each change is a real one, and fences never decrease.
    fn observed(&mut self, client: usize, call: u64, leader: Option<&Leader<'_>>, missed: bool) {
        let leader = leader.map(|it| (it.fence.0, it.value.to_vec()));
        self.seen.changes += 1;
        let call = self.clients[client].calls.get_mut(&call);
        let Some(What::Observe(known)) = call.map(|it| &mut it.what) else {
            return self.is_wrong(|| "nobody observes".to_owned());
        };
        let before = known.replace(leader.clone());
        let is_news = match &before {
            None => !missed,
            Some(before) => missed || *before != leader,
        };
        let fences = (before.flatten().map(|it| it.0), leader.map(|it| it.0));
        let goes_back = matches!(fences, (Some(before), Some(now)) if now < before);
        if goes_back || !is_news {
            self.is_wrong(|| format!("observed: {fences:?}, missed: {missed}"));
        }
    }

    /// Releases some permits of a guard, or all of them; or none or too many, which is the caller's error.
    fn releases_some(&mut self, client: usize, guard: u64, how: u8) {
        let it = self.clients[client].guards.get_mut(&guard).unwrap();
        let permits = match how % 8 {
            0 => 0,
            1 => it.permits + 1,
            more => 1 + u32::from(more) % it.permits,
        };
        let what = match it.permits.checked_sub(permits) {
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

    pub(crate) fn releases(&mut self, client: usize, guard: u64, least: Option<u64>) {
        let what = self.leaves(client, guard, least);
        self.calls(client, what, 0, 1, |call| {
            let least = least.map(Duration::from_millis);
            Event::Release { call, guard, least }
        });
    }

    /// Forgets a guard that is released.
    fn leaves(&mut self, client: usize, guard: u64, least: Option<u64>) -> What {
        let it = self.clients[client].guards.remove(&guard).unwrap();
        let until = match least {
            None => Some(0),
            Some(least) => it.is_plain.then(|| it.begun + least * MS),
        };
        // An activity may also hold it by other guards; and an upgrade that comes too late holds it for a moment.
        let upgrades = |it: &Call| matches!(it.what, What::Upgrade(of) if of == guard);
        let is_upgraded = self.clients[client].calls.values().any(upgrades);
        let until = until.filter(|_| !it.owner.contains(":a") && !is_upgraded);
        let keys = it.fences.into_iter();
        let kept = keys.filter_map(|(key, _)| Some((key, it.owner.clone(), until?)));
        What::Release(it.is_over, kept.collect())
    }

    /// A client without requests does not notice that a connection is silent.
    pub(crate) fn wonders(&mut self, client: usize) {
        let key: &[u8] = [&b"a"[..], b""][self.below(2) as usize];
        self.calls(client, What::Question, 0, 1, |call| Event::Question {
            call,
            key,
            words: vec![b"RLOCK.INFO", b"a"],
            changes: false,
            limit: None,
        });
    }

    /// The current holders of a key may appear valid for a while.
    fn is_doubtful(&mut self, key: &str) {
        let fence = 1_700_000_000_000_000 + self.now / 1000 + 1000;
        self.doubtful.insert(key.to_owned(), fence);
    }

    /// A client's process is paused.
    fn stops(&mut self, client: usize, time: u64) {
        self.disturbed = self.now;
        self.kept.clear();
        let this = &mut self.clients[client];
        this.stopped_until = self.now + time;
        for call in this.calls.values_mut() {
            call.latest = call.latest.map(|it| it + time);
        }
    }

    /// A client's process ends, and another one starts.
    fn dies(&mut self, client: usize) {
        self.disturbed = self.now;
        self.kept.clear();
        self.left_until = self.now + LEASE_MAX + PATIENCE;
        let open: Vec<u64> = self.clients[client].open.values().copied().collect();
        for session in open {
            self.client_ends(session);
        }
        self.clients[client] = self.begins();
    }

    pub(crate) fn closes(&mut self, client: usize) {
        let this = &mut self.clients[client];
        if std::mem::replace(&mut this.is_closing, true) {
            return;
        }
        self.disturbed = self.now;
        self.kept.clear();
        self.tell(client, Event::LeaveAll {});
        self.calls(client, What::Flush, NONE, 1, |call| Event::Flush { call });
        self.closes_by(client, 20 * SECOND);
    }

    pub(crate) fn has_closed(&mut self, client: usize) {
        let this = &self.clients[client];
        let guards: Vec<u64> = this.guards.keys().copied().collect();
        if this.calls.values().any(|it| matches!(it.what, What::Flush)) {
            self.left_until = self.now + LEASE_MAX + PATIENCE;
        }
        for guard in guards {
            self.clients[client].guards.remove(&guard);
            self.tell(client, Event::Leave { guard });
        }
        self.tell(client, Event::Closed {});
        let this = &self.clients[client];
        if !(this.calls.is_empty() && this.open.is_empty() && this.machine.is_empty()) {
            let left = format!("{:?}, {:?}", this.calls, this.open);
            self.is_wrong(|| format!("left in a client that is closed: {left}"));
        }
        self.clients[client] = self.begins();
    }

    /// Sends an invalid event, which must change nothing: the second machine does not always get it.
    fn errs(&mut self, client: usize, how: u8, which: u8) {
        let this = &mut self.clients[client];
        let used = this.calls.keys().chain(this.guards.keys()).next().copied();
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
        let is_taken = this.machine.handle(self.now, &bytes, Vec::new()).is_ok();
        let is_same = which.is_multiple_of(2) || this.twin.handle(self.now, &bytes).is_none();
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
            Action::Over { guard, .. } => {
                let this = &mut self.clients[client];
                let ends = this.guards.get_mut(guard).filter(|it| !it.is_over);
                // The shared hold may be lost, and an upgrade may take the lock again.
                let upgrades = |it: &Call| matches!(it.what, What::Upgrade(of) if of == *guard);
                let is_left = this.machine.remaining(*guard, self.now) > 0
                    && !this.calls.values().any(upgrades);
                let has_left = this.left == Some((*guard, self.now));
                if ends.map(|it| it.is_over = true).is_none() && !has_left || is_left {
                    self.is_wrong(|| format!("not to be lost: {action:?}"));
                }
                return;
            }
            _ => return,
        };
        let Some(ended) = self.clients[client].calls.remove(&call) else {
            return self.is_wrong(|| format!("nobody waits for {action:?}"));
        };
        match (ended.what, action) {
            (
                What::Lock(keys, mode, grace, is_plain),
                Action::Granted {
                    guard,
                    owner,
                    fences,
                    ..
                },
            ) => {
                let fences = named(&fences);
                if guard != call || !fences.iter().map(|it| &*it.0).eq(keys.iter().copied()) {
                    return self.is_wrong(|| format!("{keys:?} were asked for: {fences:?}"));
                }
                let it = Guard {
                    fences,
                    owner: owner.to_owned(),
                    mode,
                    permits: MODES[usize::from(mode)].permits,
                    begun: ended.begun,
                    grace,
                    is_plain,
                    is_over: false,
                    dead_since: None,
                };
                self.clients[client].guards.insert(guard, it);
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
                    let fences = named(&fences);
                    (it.mode, it.is_over, it.fences, it.dead_since) = (0, false, fences, None);
                    self.is_granted(client, guard);
                }
                it => {
                    let it = format!("{it:?}");
                    self.is_wrong(|| format!("{it} should have been upgraded: {guard} {fences:?}"));
                }
            },
            (What::Lock(..) | What::Upgrade(_), Action::Refused { .. }) => {
                if ended.latest.is_none() {
                    self.is_wrong(|| "a wait without limit has ended".to_owned());
                }
            }
            (What::Release(was_over, kept), Action::Done { .. }) => {
                if was_over {
                    self.is_wrong(|| "a guard is released that was lost".to_owned());
                }
                let held = kept
                    .iter()
                    .find(|it| it.2 == 0 && self.server.holds(&it.0, &it.1));
                if let Some(held) = held.map(|it| format!("{it:?} is not free")) {
                    self.is_wrong(|| held);
                }
                if ended.begun > self.disturbed && !self.clients[client].is_closing {
                    self.kept.extend(kept);
                }
            }
            (What::Part(guard, was_over), Action::Done { .. }) => {
                self.seen.parts += 1;
                let this = &self.clients[client];
                let is_other = |it: &Call| matches!(it.what, What::Part(of, _) if of == guard);
                let is_last = !this.calls.values().any(is_other);
                let it = this.guards.get(&guard).filter(|_| is_last);
                let left = it.filter(|it| {
                    let (key, _) = &it.fences[0];
                    self.server.permits(key, &it.owner) > it.permits
                });
                if was_over || left.is_some() {
                    let left = format!("released of a guard, lost before: {was_over}; {left:?}");
                    self.is_wrong(|| left);
                }
            }
            (What::Flush, Action::Done { .. }) => self.closes_by(client, 0),
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
                let this = &self.clients[client];
                let is_unfounded = match what {
                    What::Invalid => code != "OutOfRange" && !this.is_closing,
                    What::Part(guard, _) => match code {
                        "Lost" => this.machine.remaining(guard, self.now) > 0,
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
        call.is_some_and(|it| matches!(it.what, What::Observe(_)))
    }

    fn is_granted(&mut self, client: usize, guard: u64) {
        self.seen.grants += 1;
        self.check_fences(client, guard);
        let chance = match self.is_ending {
            true => 2,
            false => self.below(16),
        };
        if chance < 3 {
            self.clients[client].left = Some((guard, self.now));
        }
        match chance {
            // Its caller has gone meanwhile, or drops it.
            kind @ (0 | 1) => {
                self.clients[client].guards.remove(&guard);
                let event = match kind {
                    0 => Event::Untaken { guard },
                    _ => Event::Leave { guard },
                };
                self.tell(client, event);
            }
            2 => self.releases(client, guard, None),
            _ => {}
        }
    }
}
