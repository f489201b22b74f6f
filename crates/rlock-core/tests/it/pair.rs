//! The core and the naive model, doing the same things side by side.

use std::collections::VecDeque;

use rlock_core::{Fence, Limits, Timestamp, Wait};

use crate::{
    driver::Driver,
    foreign::name,
    model::{Data, Lock, Model},
    operation::{CHANNELS, CONNECTIONS, KEYS, OWNERS, Operation, Pass},
    pair_checks::Ledger,
    told::{Ask, Reply, Via},
};

/// When every pair begins, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_700_000_000_000;

/// What differs between the servers on which the same things are done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) waiters_max: usize,
    pub(crate) watches_max: usize,
    /// For how long after the start nothing is granted.
    pub(crate) grace_ms: u64,
}

impl Setup {
    pub(crate) const WIDE: Self = Self {
        waiters_max: 100,
        watches_max: 100,
        grace_ms: 0,
    };
    pub(crate) const NARROW: Self = Self {
        waiters_max: 4,
        watches_max: 3,
        grace_ms: 40,
    };
}

pub(crate) struct Pair {
    pub(crate) driver: Driver,
    pub(crate) model: Model,
    pub(crate) ledger: Ledger,
    /// The fence of each grant by the grant's number.
    pub(crate) fences: Vec<Option<Fence>>,
    pub(crate) fence_max: Option<Fence>,
    /// Whether all that was due has been done.
    pub(crate) settled: bool,
    sessions: [u64; CONNECTIONS],
    last_session: u64,
    last_call: u64,
    calls: VecDeque<u64>,
    granted: VecDeque<(usize, usize, u64)>,
}

impl Pair {
    pub(crate) fn new(setup: Setup) -> Self {
        let limits = Limits {
            waiters_max: setup.waiters_max as u64,
            watches_max: setup.watches_max as u64,
        };
        let mut driver = Driver::new(Timestamp::from_millis(START_MS), limits);
        if setup.grace_ms > 0 {
            let from = Timestamp::from_micros((START_MS + setup.grace_ms) * 1000 - 999);
            driver.locks.grant_from(from);
        }
        let locks = KEYS.map(|(db, key)| Lock {
            db,
            key,
            data: Data::Absent,
            queue: Vec::new(),
            watching: Vec::new(),
            seen_end: None,
        });
        let model = Model {
            now: START_MS,
            locks: locks.into(),
            listened: Vec::new(),
            counters: rlock_core::Counters::default(),
            told: Vec::new(),
            waiters_max: setup.waiters_max,
            watches_max: setup.watches_max,
            grants_from: START_MS + setup.grace_ms,
            last_grant: 0,
        };
        let mut pair = Self {
            driver,
            model,
            ledger: Ledger::default(),
            fences: Vec::new(),
            fence_max: None,
            settled: true,
            sessions: [1, 2, 3],
            last_session: 3,
            last_call: 0,
            calls: VecDeque::new(),
            granted: VecDeque::new(),
        };
        for channel in 0..CHANNELS.len() {
            pair.listen(channel, true);
        }
        pair
    }

    /// Does one operation on both, and checks that nothing differs.
    pub(crate) fn check(&mut self, operation: Operation) -> Result<(), String> {
        let replies = self.apply(operation);
        self.compare(operation, replies)
    }

    /// Does one operation on both, and answers both replies.
    pub(crate) fn apply(&mut self, operation: Operation) -> (Reply<Fence>, Reply<u64>) {
        let (driver, model) = (&mut self.driver, &mut self.model);
        match operation {
            Operation::Acquire { .. } => self.acquire(operation),
            Operation::Renew {
                key,
                owner,
                lease_ms,
            } => {
                let owner = OWNERS[owner];
                let reply = driver.renew(name(key), owner, lease_ms);
                (reply, model.renew(key, owner, lease_ms))
            }
            Operation::Release { key, owner, all } => {
                let owner = OWNERS[owner];
                let reply = driver.release(name(key), owner, all);
                (reply, model.release(key, owner, all))
            }
            Operation::Cancel { key, owner } => {
                let reply = driver.cancel(name(key), OWNERS[owner]);
                (reply, model.cancel(key, OWNERS[owner]))
            }
            Operation::Force { key } => (driver.force(name(key)), model.force(key)),
            Operation::Undeliver { recent } => self.undeliver(recent),
            Operation::HangUp { recent } => self.hang_up(recent),
            Operation::Close { connection } => {
                self.last_session += 1;
                let session = std::mem::replace(&mut self.sessions[connection], self.last_session);
                driver.locks.session_closed(session);
                while !driver.locks.sweep(1) {}
                model.close(session);
                NOTHING
            }
            Operation::Listen { channel, on } => self.listen(channel, on),
            Operation::Foreign { change, settled } => {
                driver.change(change);
                model.change(change);
                if settled {
                    driver.turn();
                    model.turn();
                }
                self.settled = settled;
                NOTHING
            }
            Operation::Pass { time, punctual } => self.pass(time, punctual),
        }
    }

    fn acquire(&mut self, operation: Operation) -> (Reply<Fence>, Reply<u64>) {
        let Operation::Acquire {
            key,
            owner,
            lease_ms,
            once,
            wait,
            notify,
        } = operation
        else {
            return NOTHING;
        };
        let via = if let Some((connection, channel)) = notify {
            Via::Channel {
                session: self.sessions[connection],
                channel: CHANNELS[channel].to_owned(),
            }
        } else {
            self.last_session += 1;
            self.last_call += 1;
            if wait != Wait::No {
                self.calls.push_front(self.last_call);
                self.calls.truncate(6);
            }
            Via::Call {
                session: self.last_session,
                handle: self.last_call,
            }
        };
        let ask = Ask {
            owner: OWNERS[owner],
            lease_ms,
            once,
            wait,
            via,
        };
        let reply = self.driver.acquire(name(key), &ask);
        (reply, self.model.acquire(key, &ask))
    }

    fn undeliver(&mut self, recent: usize) -> (Reply<Fence>, Reply<u64>) {
        let Some((key, owner, grant)) = self.granted.get(recent).copied() else {
            return NOTHING;
        };
        let Some(fence) = self.fence(grant) else {
            return NOTHING;
        };
        let reply = self.driver.undeliver(name(key), OWNERS[owner], fence);
        (reply, self.model.undeliver(key, OWNERS[owner], grant))
    }

    fn hang_up(&mut self, recent: usize) -> (Reply<Fence>, Reply<u64>) {
        let Some(call) = self.calls.get(recent).copied() else {
            return NOTHING;
        };
        let gone = self.driver.hang_up(call);
        let expected = self.model.hang_up(call);
        (Reply::Number(gone.into()), Reply::Number(expected.into()))
    }

    fn listen(&mut self, channel: usize, on: bool) -> (Reply<Fence>, Reply<u64>) {
        let channel = CHANNELS[channel].to_owned();
        self.model.listened.retain(|it| *it != channel);
        self.driver.listened.remove(&channel);
        if on {
            self.model.listened.push(channel.clone());
            self.driver.listened.insert(channel);
        }
        NOTHING
    }

    fn pass(&mut self, time: Pass, punctual: bool) -> (Reply<Fence>, Reply<u64>) {
        let now = self.model.now;
        let next = self.model.next_turn();
        let to = match time {
            Pass::Millis(millis) => now + millis,
            Pass::ToNextEnd => next.map_or(now, |next| next - 1),
            Pass::PastNextEnd => next.unwrap_or(now),
        };
        let until = Timestamp::from_millis(to);
        if punctual {
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

    /// Keeps the latest grants, whose replies may yet turn out to be lost.
    pub(crate) fn remember(&mut self, key: usize, owner: usize, grant: u64) {
        if !self.granted.contains(&(key, owner, grant)) {
            self.granted.push_front((key, owner, grant));
            self.granted.truncate(4);
        }
    }

    pub(crate) fn fence(&self, grant: u64) -> Option<Fence> {
        self.fences.get(usize::try_from(grant).ok()?).copied()?
    }
}

const NOTHING: (Reply<Fence>, Reply<u64>) = (Reply::Nil, Reply::Nil);
