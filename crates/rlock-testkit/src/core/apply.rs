//! Each operation, applied to the core and to the naive model.

use rlock_core::{Channel, Fence, Renewal, Timestamp};

use crate::core::{
    foreign::{far_fence, name, names},
    messages::{Reply, extra_text},
    model::{Renewed, Via},
    operation::{Asked, CHANNELS, Foreign, OWNERS, Operation, Pass, Raise, SETS, Under},
    pair::{NOTHING, Pair},
    perform::on_channel,
};

impl Pair {
    /// Applies one operation to both, and returns both replies.
    pub fn apply(&mut self, operation: Operation) -> (Reply<Fence>, Reply<u64>) {
        match operation {
            Operation::Acquire { key, asked } => self.acquire(key, asked),
            Operation::AcquireAll { set, asked } => self.acquire_all(set, asked),
            Operation::Renew { .. } | Operation::RenewAll { .. } => self.keep(operation),
            Operation::Release { .. } | Operation::ReleaseAll { .. } => self.give_up(operation),
            Operation::Downgrade { key, owner } => {
                let reply = self.driver.downgrade(name(key), OWNERS[owner]);
                (reply, self.model.downgrade(key, OWNERS[owner]))
            }
            Operation::Cancel {
                key,
                owner,
                connection,
            } => {
                let (owner, session) = (OWNERS[owner], self.clients.sessions[connection]);
                let reply = self.driver.cancel(name(key), owner, session);
                (reply, self.model.cancel(key, owner, session))
            }
            Operation::Force { key, queue, under } => {
                let fences = under.map(|(owner, under)| self.under(under, key, OWNERS[owner]));
                let (fence, expected) = fences.unzip();
                let reply = self.driver.force(name(key), queue, fence);
                let expected = self.model.force(key, queue, expected);
                // Other keys of requests that have ended are left to the timer.
                if queue {
                    self.driver.turn();
                    self.model.turn();
                }
                (reply, expected)
            }
            Operation::Undeliver { recent } => self.undeliver(recent),
            Operation::HangUp { recent } => self.hang_up(recent),
            Operation::Close { connection } => self.close(connection),
            Operation::Listen { channel, on } => self.listen(channel, on),
            Operation::Follow { key } => {
                self.driver.follow(name(key));
                self.model.follow(key);
                NOTHING
            }
            Operation::ListenToUnlocks { on } => {
                (self.driver.has_listeners, self.model.has_listeners) = (on, on);
                NOTHING
            }
            Operation::Restart { ms } => self.restart(ms),
            Operation::Foreign { change, settled } => {
                if let Foreign::FarFence { ahead_ms, .. } = change {
                    let fence = far_fence(self.model.now, ahead_ms);
                    self.fences.extend(Fence::new(fence).map(|it| (fence, it)));
                }
                self.driver.change(change);
                self.model.change(change);
                if settled {
                    self.driver.turn();
                    self.model.turn();
                }
                self.settled = settled;
                NOTHING
            }
            Operation::Pass { time, timer_fires } => self.pass(time, timer_fires),
        }
    }

    fn acquire(&mut self, key: usize, asked: Asked) -> (Reply<Fence>, Reply<u64>) {
        let ask = self.clients.ask(asked);
        let reply = self.driver.acquire(name(key), &ask);
        (reply, self.model.acquire(key, &ask))
    }

    fn acquire_all(&mut self, set: usize, asked: Asked) -> (Reply<Fence>, Reply<u64>) {
        let ask = self.clients.ask(asked.for_several());
        let reply = self.driver.acquire_all(&names(set), &ask);
        (reply, self.model.acquire_all(SETS[set], &ask))
    }

    fn keep(&mut self, operation: Operation) -> (Reply<Fence>, Reply<u64>) {
        match operation {
            Operation::Renew {
                key,
                owner,
                lease_ms,
                raise,
                connection,
                channel,
                bind,
                extras,
            } => {
                let owner = OWNERS[owner];
                let (fence, expected) = raise.map(|it| self.raise_to(it, key, owner)).unzip();
                let renewal = Renewal {
                    fence,
                    bind,
                    extras: extras.map(str::as_bytes),
                    ..self.clients.renewal(lease_ms, connection, channel)
                };
                let reply = self.driver.renew(name(key), owner, &renewal);
                let answer = self.model.renew(key, owner, &renewed(&renewal, expected));
                if let (Some(fence), Some(expected)) = (fence, expected)
                    && answer == Reply::Fence(expected)
                {
                    self.fences.entry(expected).or_insert(fence);
                }
                (reply, answer)
            }
            Operation::RenewAll {
                set,
                owner,
                lease_ms,
                under,
                connection,
                channel,
            } => {
                let owner = OWNERS[owner];
                let fences = under.map(|it| self.under(it, SETS[set][0], owner));
                let (fence, expected) = fences.unzip();
                let renewal = self.clients.renewal(lease_ms, connection, channel);
                let whose = (owner, fence);
                let reply = self.driver.renew_all(&names(set), whose, &renewal);
                let (renewed, whose) = (renewed(&renewal, None), (owner, expected));
                (reply, self.model.renew_all(SETS[set], whose, &renewed))
            }
            _ => NOTHING,
        }
    }

    fn give_up(&mut self, operation: Operation) -> (Reply<Fence>, Reply<u64>) {
        match operation {
            Operation::Release {
                key,
                owner,
                all,
                permits,
                under,
            } => {
                let owner = OWNERS[owner];
                let (fence, expected) = under.map(|it| self.under(it, key, owner)).unzip();
                if let Some(permits) = permits {
                    let (driver, model) = (&mut self.driver, &mut self.model);
                    let reply = driver.release_permits(name(key), owner, permits, fence);
                    return (reply, model.release_permits(key, owner, permits, expected));
                }
                let reply = self.driver.release(name(key), owner, all, fence);
                (reply, self.model.release(key, owner, all, expected))
            }
            Operation::ReleaseAll {
                set,
                owner,
                all,
                under,
            } => {
                let owner = OWNERS[owner];
                let fences = under.map(|it| self.under(it, SETS[set][0], owner));
                let (fence, expected) = fences.unzip();
                let reply = self.driver.release_all(&names(set), owner, all, fence);
                let model = &mut self.model;
                (reply, model.release_all(SETS[set], owner, all, expected))
            }
            _ => NOTHING,
        }
    }

    /// The fence that a release requires, in the driver and in the model.
    fn under(&self, under: Under, key: usize, owner: &str) -> (Fence, u64) {
        let expected = match under {
            Under::Its => self.model.locks[key]
                .data
                .holder(owner)
                .and_then(|it| it.fence),
            Under::Recent(recent) => self.granted.get(recent).map(|it| it.fence),
            Under::NoHold => None,
        };
        let both = expected.and_then(|it| Some((self.fence(it)?, it)));
        both.unwrap_or((Fence::new(3).expect("it is in range"), 3))
    }

    /// The new fence for a raise, in the driver and in the model. A number that neither of them has granted is the same
    /// in both.
    fn raise_to(&self, raise: Raise, key: usize, owner: &str) -> (Fence, u64) {
        let clock = self.model.now * 1000;
        let number = match raise {
            Raise::Least => 1,
            Raise::OfAnother => {
                if let Some(both) = self.fence_of_another(key, owner) {
                    return both;
                }
                1
            }
            // By an odd number, so that it cannot be a granted fence.
            Raise::Ahead => clock + 20_000_567,
            // Larger fences must also be within the limit, at any later time.
            Raise::Most => match self.model.highest_fence() - 500 {
                most if self.is_other_elsewhere(most) => 1,
                most => most,
            },
            Raise::TooFar => self.model.highest_fence() + 1,
        };
        let fence = Fence::new(number).expect("it is in range");
        (fence, number)
    }

    /// Whether only one of the two has given a fence below this number. A fence far ahead raises both to the limit, but
    /// at moments that depend on how often each reads a lock.
    fn is_other_elsewhere(&self, number: u64) -> bool {
        let mut fences = self.fences.iter();
        fences.any(|(model, core)| model.cmp(&number) != core.get().cmp(&number))
    }

    /// The fence of another holder, unless it is close to the limit.
    fn fence_of_another(&self, key: usize, owner: &str) -> Option<(Fence, u64)> {
        let mut others = self.model.locks[key].data.holders().iter();
        let expected = others.find(|it| it.owner != owner)?.fence?;
        let fence = self.fence(expected)?;
        let highest = self.model.highest_fence();
        ((fence.get() > highest) == (expected > highest)).then_some((fence, expected))
    }

    fn undeliver(&mut self, recent: usize) -> (Reply<Fence>, Reply<u64>) {
        let Some(granted) = self.granted.get(recent).cloned() else {
            return NOTHING;
        };
        let Some(fence) = self.fence(granted.fence) else {
            return NOTHING;
        };
        let owner = OWNERS[granted.owner];
        let names: Vec<_> = granted.keys.iter().map(|at| name(*at)).collect();
        let reply = self.driver.undeliver(&names, owner, fence);
        let expected = self.model.undeliver(&granted.keys, owner, granted.fence);
        (reply, expected)
    }

    fn hang_up(&mut self, recent: usize) -> (Reply<Fence>, Reply<u64>) {
        let Some((call, session)) = self.clients.calls.get(recent).copied() else {
            return NOTHING;
        };
        let gone = self.driver.hang_up(call);
        self.open_calls.remove(&call);
        let expected = self.model.hang_up(call);
        if !self.clients.sessions.contains(&session) {
            self.end_session(session);
        }
        (Reply::Number(gone.into()), Reply::Number(expected.into()))
    }

    fn close(&mut self, connection: usize) -> (Reply<Fence>, Reply<u64>) {
        let session = self.clients.connect(connection);
        let calls = self.model.calls().filter(|it| it.0 == session);
        for (_, call) in calls.collect::<Vec<_>>() {
            self.open_calls.remove(&call);
            self.driver.hang_up(call);
            self.model.hang_up(call);
        }
        self.end_session(session);
        NOTHING
    }

    /// The consequences of a connection's end are carried out in the same turn.
    fn end_session(&mut self, session: u64) {
        self.driver.close(session);
        self.model.close(session);
        self.driver.turn();
        self.model.turn();
    }

    pub fn listen(&mut self, channel: usize, on: bool) -> (Reply<Fence>, Reply<u64>) {
        let Channel { kind, name } = CHANNELS[channel];
        let named = on_channel(kind, name);
        self.driver.listen(channel, on);
        self.model.listened.retain(|it| *it != named);
        if on {
            self.model.listened.push(named);
        }
        NOTHING
    }

    /// A stopped server loses all connections and its memory. Fences that its clock has passed stay below all later
    /// ones.
    fn restart(&mut self, ms: u64) -> (Reply<Fence>, Reply<u64>) {
        self.model.now += ms;
        self.driver.now = Timestamp::from_millis(self.model.now);
        self.driver.restart();
        self.driver.locks.yield_after(self.model.limits.yield_after);
        self.model.restart();
        self.open_calls.clear();
        self.granted.clear();
        self.clients.connect_all();
        let passed = self.driver.now.micros() - 1;
        for known in &mut self.known {
            known.given = known.given.min(passed);
        }
        self.settled = true;
        NOTHING
    }

    fn pass(&mut self, time: Pass, timer_fires: bool) -> (Reply<Fence>, Reply<u64>) {
        let now = self.model.now;
        let next = self.model.next_turn();
        let to = match time {
            Pass::Millis(millis) => now + millis,
            Pass::ToNextEnd => next.map_or(now, |next| next - 1),
            Pass::PastNextEnd => next.unwrap_or(now),
        };
        let until = Timestamp::from_millis(to);
        if timer_fires {
            self.driver.advance(until);
            self.model.advance(to);
            self.settled = true;
        } else {
            self.driver.now = until;
            self.model.now = to;
            self.settled &= to == now;
        }
        NOTHING
    }
}

/// A renewal in the model's form.
fn renewed(renewal: &Renewal<'static>, raise_to: Option<u64>) -> Renewed {
    let session = renewal.session.expect("a connection asks");
    Renewed {
        lease_ms: renewal.lease_ms,
        raise_to,
        via: Via::of(session, renewal.channel, 0),
        grace: renewal.bind.map(|it| it.millis().into()),
        extras: renewal.extras.map(extra_text),
    }
}
