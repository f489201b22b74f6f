//! The core and the naive model, side by side.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use rlock_core::{Fence, Timestamp};

use crate::core::{
    clients::Clients,
    driver::{Driver, text},
    foreign::name,
    messages::Reply,
    model::{Kind, Limits, Lock, Model},
    operation::{CHANNELS, KEYS, OWNERS, Operation, Pass},
    reached::Reached,
};

/// The start of every pair, in milliseconds since the Unix epoch.
pub const START_MS: u64 = 1_700_000_000_000;

/// The settings that differ between servers.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub limits: Limits,
    /// How long after the start there are no grants.
    pub grace_ms: u64,
}

impl Setup {
    pub const WIDE: Self = Self {
        limits: Limits {
            waiters_max: 100,
            places_per_user: 0,
            watches_max: 100,
            shared_max: 100,
            detects_deadlocks: true,
            yield_after: 0,
        },
        grace_ms: 0,
    };
    pub const NARROW: Self = Self {
        limits: Limits {
            waiters_max: 4,
            places_per_user: 3,
            watches_max: 3,
            shared_max: 4,
            detects_deadlocks: true,
            yield_after: 2,
        },
        grace_ms: 40,
    };
    /// With deadlock detection off.
    pub const NO_DEADLOCK_DETECTION: Self = Self {
        limits: Limits {
            waiters_max: 100,
            places_per_user: 0,
            watches_max: 100,
            shared_max: 100,
            detects_deadlocks: false,
            yield_after: 3,
        },
        grace_ms: 0,
    };

    /// A core with these settings.
    pub fn driver(&self) -> Driver {
        let limits = rlock_core::Limits {
            waiters_max: self.limits.waiters_max as u64,
            watches_max: self.limits.watches_max as u64,
            shared_max: self.limits.shared_max as u64,
            shared_elsewhere: 0,
            detects_deadlocks: self.limits.detects_deadlocks,
        };
        let mut driver = Driver::new(Timestamp::from_millis(START_MS), limits);
        driver.places_per_user = self.limits.places_per_user as u64;
        driver.locks.yield_after(self.limits.yield_after);
        if self.grace_ms > 0 {
            let from = Timestamp::from_millis(START_MS + self.grace_ms);
            driver.locks.grant_from(Some(from));
        }
        driver
    }

    /// One of the setups, for each number.
    pub const fn chosen(number: u8) -> Self {
        match number % 3 {
            0 => Self::WIDE,
            1 => Self::NARROW,
            _ => Self::NO_DEADLOCK_DETECTION,
        }
    }
}

/// A grant whose reply may turn out to be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    pub keys: Vec<usize>,
    pub owner: usize,
    pub fence: u64,
}

/// The fences that were seen at one key.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The holders after the last step, and their fences.
    pub held: BTreeMap<Arc<[u8]>, Fence>,
    /// The largest fence that was given.
    pub given: u64,
}

pub struct Pair {
    pub driver: Driver,
    pub model: Model,
    /// Blocked calls that were not answered.
    pub open_calls: BTreeSet<u64>,
    /// The core's fence for each fence of the model: within one step their order
    /// is not guaranteed.
    pub fences: BTreeMap<u64, Fence>,
    /// The known fences of each key.
    pub known: [Known; KEYS.len()],
    /// Whether everything that was due has been done.
    pub settled: bool,
    /// The owners that were stuck after the last operation.
    pub stuck: Vec<String>,
    /// How often each kind of operation had each kind of outcome.
    pub reached: Reached,
    pub granted: VecDeque<Granted>,
    pub clients: Clients,
}

impl Pair {
    pub fn new(setup: Setup) -> Self {
        let locks = KEYS.map(|(db, key)| Lock::new(db, key)).into();
        let grants_from = START_MS + setup.grace_ms;
        let mut pair = Self {
            driver: setup.driver(),
            model: Model::new(START_MS, locks, setup.limits, grants_from),
            open_calls: BTreeSet::new(),
            fences: BTreeMap::new(),
            known: Default::default(),
            settled: true,
            stuck: Vec::new(),
            reached: Reached::new(),
            granted: VecDeque::new(),
            clients: Clients::default(),
        };
        for channel in 0..CHANNELS.len() {
            pair.listen(channel, true);
        }
        pair
    }

    /// Applies one operation to both, and compares them.
    pub fn check(&mut self, operation: Operation) -> Result<(), String> {
        self.end_lateness_of_several()?;
        let settled = self.settled && !self.asks_beside_several(operation);
        let replies = self.apply(operation);
        self.check_fences(operation)?;
        if operation.may_leave_work() {
            self.compare(operation, replies)?;
        } else {
            if settled {
                self.check_cycle(operation, replies.0)?;
                // A command leaves none of its consequences to the timer.
                self.compare(operation, replies)?;
                self.compare_all()?;
            }
            let changed = self.turn();
            self.check_fences(Operation::TURN)?;
            if !settled {
                self.compare(operation, replies)?;
            } else if changed {
                self.compare(Operation::TURN, NOTHING)?;
            } else {
                return self.check_stuck(operation);
            }
        }
        self.compare_all()?;
        self.check_stuck(operation)
    }

    /// Carries out everything that is due; true if there was anything.
    fn turn(&mut self) -> bool {
        let before = *self.driver.locks.counters();
        let changed = self.driver.turn();
        self.model.turn();
        self.settled = true;
        changed || before != self.model.counters || !self.model.sent.is_empty()
    }

    /// When the timer is late, a request for several keys may wait for it
    /// unnecessarily, because another lock's lease end is late too. The model has
    /// no such wait.
    fn end_lateness_of_several(&mut self) -> Result<(), String> {
        let several = self.model.requests.iter().any(|it| it.kind == Kind::Many);
        if several && !self.settled {
            self.turn();
            self.check_fences(Operation::TURN)?;
            self.compare(Operation::TURN, NOTHING)?;
        }
        Ok(())
    }

    /// Whether the owner waits for several keys, and got one of them by a rename.
    /// Its request may end that hold, and the timer then settles the other keys.
    fn asks_beside_several(&self, operation: Operation) -> bool {
        let Operation::Acquire { key, asked, .. } = operation else {
            return false;
        };
        let place = self.model.place(key, OWNERS[asked.owner]);
        place.is_some_and(|it| it.kind == Kind::Many)
    }

    /// The core's and the model's state of each key.
    pub fn side_by_side(&self) -> String {
        let now = self.driver.now;
        let keys = (0..KEYS.len()).map(|key| {
            let stored = self.driver.store.get(now, name(key)).map(|it| &it.value);
            let waiters = self.driver.locks.waiters(now, name(key));
            let waiters: Vec<_> = waiters
                .map(|it| {
                    let owner = text(it.owner);
                    let (left, kept) = (it.wait_left_ms, it.kept_left_ms);
                    format!(
                        "{owner} {:?} by {:?}, left {left:?} {kept:?}",
                        it.mode, it.session
                    )
                })
                .collect();
            let lock = &self.model.locks[key];
            let requests = self.model.requests.iter();
            let requests: Vec<_> = requests.filter(|it| it.keys.contains(&key)).collect();
            in_columns(
                &format!("{:?}\n{stored:#?}\n{waiters:#?}", KEYS[key]),
                &format!("{lock:#?}\n{requests:#?}"),
            )
        });
        format!("{now:?}\n{}", keys.collect::<String>())
    }

    /// The core's fence for this fence of the model.
    pub fn fence(&self, expected: u64) -> Option<Fence> {
        self.fences.get(&expected).copied()
    }
}

impl Operation {
    /// The timer only.
    const TURN: Self = Self::Pass {
        time: Pass::Millis(0),
        timer_fires: true,
    };

    /// Whether it has several effects, in no guaranteed order.
    pub const fn is_several_things(self) -> bool {
        matches!(
            self,
            Self::Foreign { .. } | Self::Pass { .. } | Self::Close { .. } | Self::HangUp { .. }
        )
    }

    /// Whether work that it makes due may be left to the next operation.
    const fn may_leave_work(self) -> bool {
        matches!(
            self,
            Self::Foreign { .. } | Self::Pass { .. } | Self::Restart { .. }
        )
    }
}

fn in_columns(left: &str, right: &str) -> String {
    let (mut left, mut right) = (left.lines(), right.lines());
    let rows = std::iter::from_fn(|| match (left.next(), right.next()) {
        (None, None) => None,
        (left, right) => {
            let (left, right) = (left.unwrap_or_default(), right.unwrap_or_default());
            Some(format!("{left:<70} {right}\n"))
        }
    });
    rows.collect()
}

pub const NOTHING: (Reply<Fence>, Reply<u64>) = (Reply::Nil, Reply::Nil);
