//! What must be true at every moment, and at the end.

use rlock_testkit::core::store::Stored;

use crate::calls::{Guard, LIMIT, What};
use crate::hosts::{KEYS, name};
use crate::steps::{Cut, Step};
use crate::world::{CLIENTS, MS, SECOND, World};

/// A message that no fault affects takes at most this long.
const MESSAGE: u64 = 1_100 * MS;
/// A call that waits for nobody has its outcome after this time: its request and the reply travel for at most a second
/// each, and once more if the server was busy.
const QUICK: u64 = 4_100 * MS;
/// How late a client's timers are at most, and a little more.
const LATE: u64 = 50 * MS;

/// The shortest grace that heartbeats prove.
const GRACE_MIN: u64 = 400 * MS;

impl World<'_> {
    /// What an event of a client may have changed.
    pub(crate) fn check_told(&mut self, client: usize) {
        let now = self.now;
        let this = &mut self.clients[client];
        let mut wrong = None;
        for (guard, it) in &this.guards {
            let left = this.typed.remaining(*guard, now);
            let encoded = this.machine.as_ref().map(|it| it.remaining(*guard, now));
            let twin = this.twin.as_mut().map(|it| it.remaining(*guard, now));
            // That somebody has seen the end of a guard is final, and so all are asked.
            if encoded.is_some_and(|it| it != left) || twin.is_some_and(|it| it != left) {
                wrong = Some(format!(
                    "guard {guard} counts for {left} ns, not in its twin"
                ));
            }
            let lease = it.lease.saturating_sub(it.margin);
            if left > lease && !it.is_of_activity() {
                wrong = Some(format!("client {client}: valid for {left} ns: {it:?}"));
            }
        }
        if let Some(wrong) = wrong {
            self.is_wrong(|| wrong);
        }
    }

    pub(crate) fn check_all(&mut self) {
        (0..CLIENTS).for_each(|client| self.check_told(client));
        let wrong = self.wrong_call();
        let wrong = wrong.or_else(|| self.wrong_guard());
        let wrong = wrong.or_else(|| self.wrong_pair());
        if let Some(wrong) = wrong.or_else(|| self.wrong_keep()) {
            self.is_wrong(|| wrong);
        }
    }

    fn wrong_call(&mut self) -> Option<String> {
        let now = self.now;
        for (client, this) in self.clients.iter().enumerate() {
            if now < this.late_until() {
                continue;
            }
            for call in this.calls.values() {
                if call.latest.is_some_and(|it| it < now) {
                    return Some(format!("client {client}: no outcome in time for {call:?}"));
                }
                let (Some(session), Some((key, _))) = (call.quick, call.asked()) else {
                    continue;
                };
                let wire = &self.wires[&session];
                let is_linked = !wire.is_cut && self.session(client, wire.connection).is_some();
                if now > call.begun + QUICK
                    && is_linked
                    && this.disturbed.max(this.late_until()) < call.begun
                    && self.is_settled(key, call.begun)
                {
                    return Some(format!("client {client}: others have delayed {call:?}"));
                }
            }
        }
        None
    }

    /// A valid guard holds its lock, and the end of a guard, or of its lock, is reported in time.
    fn wrong_guard(&mut self) -> Option<String> {
        let (now, is_quorum) = (self.now, self.kind.is_quorum());
        for client in 0..CLIENTS {
            let mut guards = std::mem::take(&mut self.clients[client].guards);
            let this = &self.clients[client];
            let is_stopped = now < this.late_until();
            let mut wrong = None;
            for (guard, it) in &mut guards {
                if this.typed.remaining(*guard, now) == 0 {
                    let since = *it.dead_since.get_or_insert(now);
                    // After a pause, and after a grant, it sends a heartbeat, and waits for half the grace.
                    let running = this.late_until().max(it.granted);
                    let running = running + it.grace.unwrap_or(0) / 2;
                    let is_late = now > since.max(running) + LATE;
                    if is_late && !(it.is_over || is_stopped || this.is_closing) {
                        wrong = Some(format!(
                            "client {client}: no report that it is over: {it:?}"
                        ));
                    }
                    continue;
                }
                if it.dead_since.is_some() {
                    wrong = Some(format!("client {client}: it was seen to be over: {it:?}"));
                }
                if it.max_hold.is_some_and(|most| now > it.granted + most) {
                    wrong = Some(format!("client {client}: it lasts for too long: {it:?}"));
                }
                if !is_quorum && !self.is_doubtful(client, it) {
                    wrong = wrong.or(self.wrong_hold(client, it));
                }
            }
            self.clients[client].guards = guards;
            if wrong.is_some() {
                return wrong;
            }
        }
        None
    }

    /// Whether requests of an earlier connection may change what a guard holds, or the end of its connection comes too
    /// soon for a heartbeat.
    fn is_doubtful(&self, client: usize, it: &Guard) -> bool {
        if it.grace.is_some_and(|grace| grace < GRACE_MIN) {
            return true;
        }
        let is_plain = !(it.is_of_activity() || it.is_extended || it.grace.is_some());
        self.clients[client].is_unsure && !is_plain
    }

    fn wrong_hold(&self, client: usize, it: &mut Guard) -> Option<String> {
        let (now, this) = (self.now, &self.clients[client]);
        let mut is_gone = false;
        for (key, fence) in &it.fences {
            let there = self.there(key, &it.owner);
            let shard = self.shards.iter().any(|it| it.is_failing);
            let is_forgotten = self.is_forgotten(key, &it.owner, *fence) || shard;
            let is_short = there
                .as_ref()
                .is_none_or(|at| at.until + 2 * MS < now + it.margin);
            if is_short && !is_forgotten {
                return Some(format!("client {client}: no such hold: {it:?}"));
            }
            let permits = this.guards_of(it);
            if there
                .as_ref()
                .is_some_and(|at| it.mode > 1 && at.permits < permits)
            {
                return Some(format!("client {client}: fewer permits are there: {it:?}"));
            }
            is_gone |= there.is_none() || self.is_forced(key, &it.owner, *fence);
        }
        if !is_gone {
            it.gone_since = None;
            return None;
        }
        let since = *it.gone_since.get_or_insert(now);
        let is_settled = |since| it.fences.iter().all(|(key, _)| self.is_settled(key, since));
        // A new connection watches it with its next renewal. That the earlier one is dead shows after a third of the
        // lease, if neither end sees it.
        let lease = match it.is_of_activity() {
            // Other guards of the hold may have a longer one.
            true => this.longest,
            false => it.lease,
        };
        let sent = now.saturating_sub(2 * MESSAGE);
        // Nobody notices that if nothing is renewed.
        let lost = if it.is_renewed { sent } else { since };
        let quiet = lost.saturating_sub(lease / 12 * 9 + MESSAGE);
        let last = this.disturbed.max(this.late_until()).max(it.granted);
        let is_watched = it.by.is_some_and(|by| self.is_reliable(by, sent));
        let is_quiet = last < quiet && is_settled(quiet) || is_watched && is_settled(it.first);
        let is_late = now > since.max(this.late_until()) + 2 * MESSAGE;
        let is_busy = this.calls.values().any(|call| match &call.what {
            What::Upgrade(_) | What::Done => true,
            _ => call.asked().is_some_and(|asked| asked.1 == it.owner),
        });
        let may_know = is_quiet && !is_busy && !this.is_closing && !this.is_unsure;
        let wrong = is_late && may_know;
        wrong.then(|| format!("client {client} does not know that it is gone: {it:?}"))
    }

    /// No two valid guards exclude each other.
    fn wrong_pair(&mut self) -> Option<String> {
        let now = self.now;
        let mut valid = Vec::new();
        for (client, this) in self.clients.iter().enumerate() {
            let guards = this.guards.iter();
            let guards = guards.filter(|(guard, it)| {
                this.typed.remaining(**guard, now) > 0 && !self.is_doubtful(client, it)
            });
            valid.extend(guards.map(|(_, it)| it));
        }
        // Without fences that grow, each may be the last one.
        let is_unordered = self.set_back > 0;
        for last in &valid {
            for (key, fence) in &last.fences {
                if is_unordered && self.is_forgotten(key, &last.owner, *fence) {
                    continue;
                }
                let mut permits = last.permits;
                for other in valid.iter().filter(|it| !std::ptr::eq(**it, *last)) {
                    let Some((_, with)) = other.fences.iter().find(|it| it.0 == *key) else {
                        continue;
                    };
                    let is_earlier = with <= fence || is_unordered;
                    let is_same = last.owner == other.owner && last.mode < 2;
                    if !is_earlier || is_same || self.is_forgotten(key, &other.owner, *with) {
                        continue;
                    }
                    permits += other.permits;
                    let is_alone = last.mode == 0 || other.mode == 0;
                    if is_alone || (last.mode > 1 && permits > LIMIT) {
                        return Some(format!("held by {last:?} and {other:?}"));
                    }
                }
            }
        }
        None
    }

    /// A kept lock is there, unless somebody took it away.
    fn wrong_keep(&mut self) -> Option<String> {
        let now = self.now;
        self.kept.retain(|kept| now < kept.2);
        let mut kept = self.kept.iter();
        let it = kept.find(|(key, owner, _)| self.there(key, owner).is_none());
        it.map(|it| format!("{it:?} was not kept"))
    }

    /// The server has no more permits than are in use, or were given up without an outcome.
    pub(crate) fn check_parts(&mut self, client: usize, guard: u64) {
        let this = &self.clients[client];
        let Some(it) = this.guards.get(&guard) else {
            return;
        };
        let of = |call: &crate::calls::Call| match call.what {
            What::Part(of, _) => this.guards.get(&of).is_some_and(|of| of.owner == it.owner),
            What::Release(..) => true,
            _ => false,
        };
        let may_be_behind = it.first < self.failed_over;
        if this.is_unsure || may_be_behind || this.calls.values().any(of) {
            return;
        }
        let (key, _) = &it.fences[0];
        let there = self.there(key, &it.owner).map_or(0, |it| it.permits);
        let dropped = this.dropped.get(&it.owner).map_or(0, |it| it.permits);
        if !this.given_up.contains(&it.owner) && there > this.guards_of(it) + dropped {
            let wrong = format!("{there} permits are there for {it:?}");
            self.is_wrong(|| wrong);
        }
    }

    /// The server does not have what it is said to have ended.
    pub(crate) fn check_ended(&mut self, client: usize, guard: u64) {
        let Some(it) = self.clients[client].guards.get(&guard) else {
            return;
        };
        // What a replica does not know comes back, and later grants may have smaller fences if clocks go back.
        if self.kind.is_quorum() || it.first < self.failed_over || self.set_back > 0 {
            return;
        }
        let is_there = |(key, fence): &(String, u64)| {
            let there = self.there(key, &it.owner);
            let has_ended = self.is_forgotten(key, &it.owner, *fence);
            there.is_some_and(|it| it.fence == Some(*fence)) && !has_ended
        };
        if it.fences.iter().all(is_there) {
            let it = format!("the server has not ended {it:?}");
            self.is_wrong(|| it);
        }
    }

    /// A flush has left nothing of what its client dropped before it `began`.
    pub(crate) fn check_dropped(&mut self, client: usize, began: u64) {
        let this = &self.clients[client];
        let is_failing = self.shards.iter().any(|it| it.is_failing);
        if self.kind.is_quorum() || this.is_unsure || is_failing || self.set_back > 0 {
            return;
        }
        // It may have the same lock again, or release it in another call.
        let is_used = |owner: &String| {
            let mut guards = this.guards.values();
            let is_released = |it: &What| matches!(it, What::Release(_, of, _) if of == owner);
            let is_asked = |it: &crate::calls::Call| it.asked().is_some_and(|it| it.1 == *owner);
            let mut calls = this.calls.values();
            let is_held = !this.is_closing && guards.any(|it| it.owner == *owner);
            is_held || calls.any(|it| is_asked(it) || is_released(&it.what))
        };
        let is_dropped = |owner: &String| {
            let dropped = this.dropped.get(owner).filter(|it| it.since <= began);
            dropped.is_some_and(|it| it.since > self.failed_over && self.now < it.until)
                && !this.given_up.contains(owner)
                && !is_used(owner)
        };
        let left = KEYS.into_iter().find_map(|key| {
            let core = &self.hosts[self.home(key)].server.core;
            let held = core.store.get(core.now, name(key))?.held()?;
            let mut owners = held.live_holders(core.now).map(|it| it.0);
            owners.find(|it| is_dropped(it)).map(|it| (key, it.clone()))
        });
        if let Some((key, owner)) = left {
            self.is_wrong(|| format!("client {client} has left {key} to {owner}"));
        }
    }

    /// A later exclusive holder of a key has a larger fence.
    pub(crate) fn check_fences(&mut self, client: usize, guard: u64) {
        let this = &self.clients[client];
        if this.typed.remaining(guard, self.now) == 0 {
            return;
        }
        let it = &this.guards[&guard];
        if it.mode != 0 || self.set_back > 0 || self.is_doubtful(client, it) {
            return;
        }
        for (key, fence) in it.fences.clone() {
            let owner = it.owner.clone();
            if self.is_forgotten(&key, &owner, fence) {
                continue;
            }
            if let Some((last, of)) = self.fences.get(&key)
                && (*last > fence || *last == fence && *of != owner)
            {
                let text = format!("{it:?} comes after the fence {last} of {of}");
                return self.is_wrong(|| text);
            }
            self.fences.insert(key, (fence, owner));
        }
    }

    /// All observers know who leads.
    pub(crate) fn check_observers(&self) -> Result<(), String> {
        let calls = self.clients.iter().flat_map(|it| it.calls.values());
        for call in calls {
            let What::Observe(key, known) = &call.what else {
                continue;
            };
            let server = &self.hosts[self.home(key)].server;
            let stored = server.core.store.get(server.core.now, name(key));
            let held = stored.and_then(Stored::held);
            let published =
                held.and_then(|it| Some((it.fence?.get(), it.extras.value.as_deref()?.to_vec())));
            let known = known.clone().flatten();
            if known != published {
                return Err(format!("{published:?} leads at {key}, observed: {known:?}"));
            }
        }
        Ok(())
    }

    /// Everything is released, and no more faults happen.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        (self.is_calm, self.is_ending) = (true, true);
        let begun = self.now;
        if !self.may_kill {
            // A late request may take a lock for a whole lease.
            let longest = self.clients.iter().map(|it| it.longest).max();
            let until = begun + 10 * SECOND + longest.unwrap_or(0);
            self.left_until = self.left_until.max(until + self.set_back);
        }
        for second in 0..200 {
            if second == 60 && !self.may_kill {
                // An earlier connection's late request has taken a place, and its end has given it up. A client asks
                // again when it connects again.
                let wires: Vec<_> = (0..CLIENTS)
                    .flat_map(|it| self.open_wires(it, None))
                    .collect();
                wires.into_iter().for_each(|it| self.cut(it, Cut::Plain));
            }
            for client in 0..CLIENTS {
                let guards: Vec<u64> = self.clients[client].guards.keys().copied().collect();
                if self.is_running(client) {
                    guards
                        .into_iter()
                        .for_each(|guard| self.releases(client, guard, None));
                    self.wonders(client);
                }
            }
            self.run_for(SECOND)?;
            let is_idle = self.clients.iter().all(|it| {
                let mut calls = it.calls.values();
                calls.all(|it| matches!(it.what, What::Observe(..))) && it.guards.is_empty()
            });
            if is_idle && self.now > begun + 20 * SECOND && self.now > self.left_until {
                break;
            }
        }
        self.run_for(SECOND)?;
        self.is_ending = false;
        self.all_are_reached()?;
        (0..CLIENTS).for_each(|client| self.looks_away(client));
        // Clean-up is repeated for some time if a client may not close an earlier connection.
        for _ in 0..40 {
            let mut machines = self.clients.iter().map(|it| &it.typed.machine);
            if !machines.all(|it| it.is_empty()) {
                self.run_for(SECOND)?;
            }
        }
        self.run_for(SECOND)?;
        self.has_ended()?;
        self.closes_all()?;
        self.run_for(21 * SECOND)?;
        let mut open = self.clients.iter().filter(|it| it.number > 0);
        let is_closed = open.all(|it| it.open.is_empty());
        let is_left = self.hosts.iter().any(|it| !it.server.sessions.is_empty());
        match is_closed && !is_left {
            true => Ok(()),
            false => Err("connections are left".to_owned()),
        }
    }

    /// Clients close in the middle of something, and leave nothing, whether they wait for the servers or not.
    fn closes_all(&mut self) -> Result<(), String> {
        for _ in 0..10 {
            self.calls_something();
            let time = self.below(20 * MS);
            self.run_for(time)?;
        }
        for _ in 0..2 * CLIENTS {
            self.calls_something();
        }
        for client in 0..CLIENTS {
            let limit = self.below(2) * 20 * SECOND;
            self.closes(client, limit);
        }
        self.run_for(200 * MS)?;
        // A client that waits for replicas learns late that its connection was cut.
        let mut open = self.clients.iter().flat_map(|it| it.open.values());
        if open.any(|session| self.wires[session].is_cut) {
            self.run_for(12 * SECOND)?;
        }
        self.servers_are_unused()
    }

    fn calls_something(&mut self) {
        let random = self.below(u64::MAX);
        let [what, who, which, how, long, more, ..] = random.to_le_bytes();
        let mut step = Step::decode([what % Step::KINDS_OF_LOCKS, who, which, how, long, more]);
        match &mut step {
            // Nobody meddles.
            Step::Upgrade { then, .. } => *then = 0,
            // Nothing stays taken.
            Step::Release { least, .. } => *least = None,
            Step::Ask(asked) if self.kind.is_quorum() => {
                (asked.mode, asked.value, asked.terms.replicas) = (0, None, 0);
                asked.keys = &["a"];
            }
            _ => {}
        }
        self.says(|| format!("{step:?}"));
        self.step(&step);
    }

    fn servers_are_unused(&mut self) -> Result<(), String> {
        for it in &mut self.hosts {
            it.server.set_time(self.now);
            if it.server.is_master && !it.server.is_unused() {
                return Err(format!("left on a server: {:?}", it.server.core.store));
            }
        }
        Ok(())
    }

    fn has_ended(&mut self) -> Result<(), String> {
        for (client, it) in self.clients.iter().enumerate() {
            if !(it.calls.is_empty() && it.guards.is_empty()) {
                return Err(format!("not ended: {:?} {:?}", it.calls, it.guards));
            }
            if !it.typed.machine.is_empty() {
                return Err(format!(
                    "something is left in the machine of client {client}"
                ));
            }
        }
        self.servers_are_unused()?;
        for it in &self.hosts {
            let mut sessions = it.server.sessions.iter();
            let observes = sessions.find(|it| !it.1.values.is_empty());
            if let Some((session, it)) = observes.filter(|_| it.server.is_master) {
                return Err(format!("{session} still observes {:?}", it.values));
            }
        }
        // A client has one connection to each master and another one for replicas, and one to each Sentinel.
        let limit = CLIENTS * (2 * self.shards.len() + 3);
        let open: usize = self.clients.iter().map(|it| it.open.len()).sum();
        match open <= limit {
            true => Ok(()),
            false => Err(format!("{open} connections are open")),
        }
    }
}

impl crate::world::Client {
    /// The permits of all its guards of the same hold.
    fn guards_of(&self, it: &Guard) -> u32 {
        let same = self.guards.values();
        let same = same.filter(|other| other.owner == it.owner && other.fences == it.fences);
        same.map(|other| other.permits).sum()
    }
}
