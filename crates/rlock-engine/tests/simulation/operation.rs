//! The operations of the world.

use std::time::Duration;

use rlock_engine::engine::terms::{Ask, Queueing, Terms};

/// The clients, and the tasks of each client.
pub(crate) const CLIENTS: usize = 2;
pub(crate) const ACTORS: usize = 6;
/// Short keys whose slots are among the first. The first and the last share a
/// slot.
pub(crate) const KEYS: [&str; 3] = ["emj", "ccg", "{emj}"];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// An idle task asks for a lock.
    Ask {
        actor: usize,
        /// The keys: one, or all of them.
        key: Option<usize>,
        ask: Ask,
        queueing: Queueing,
        terms: Terms,
        /// One of the owners that a client keeps, or a new one.
        owner: Option<usize>,
    },
    /// A task drops its call or its guard.
    Drop { actor: usize },
    /// A task releases its guard, and waits for that. The lock stays taken for
    /// `kept` from then on, or from its last release.
    Release {
        actor: usize,
        kept: Option<Duration>,
    },
    /// A task gives some of its permits to an idle task of its client.
    Split { client: usize, permits: u32 },
    /// A task takes over the permits of another one that has the same hold.
    Merge { client: usize },
    /// A shared holder upgrades.
    Upgrade { actor: usize, queueing: Queueing },
    /// An exclusive holder downgrades.
    Downgrade { actor: usize },
    /// A holder extends its lease.
    Extend { actor: usize, lease: Duration },
    /// A client's connections break, or only the one to a master.
    Cut {
        client: usize,
        shard: Option<usize>,
        how: Cut,
    },
    /// Something happens to a client's connections for replicas.
    Separate { client: usize, how: Separate },
    /// Its process is stopped, or its machine is suspended.
    Stop { client: usize, time: Duration },
    /// The client reads its connections late, while its clock runs.
    ReadLate { client: usize, time: Duration },
    /// Its runtime ends.
    Close { client: usize },
    /// The client ends all holds and calls, and acquires nothing more.
    LeaveAll { client: usize },
    /// A master refuses every request for a while: it has too few replicas.
    Refuse { shard: usize, time: Duration },
    /// An operator frees a lock.
    Force { key: usize },
    /// An operator ends a wait.
    Cancel { actor: usize },
    /// All data is deleted.
    Flush,
    /// Somebody sets the server's clock.
    Jump { time: Duration },
    /// A slot moves to the other master: the slot of a key, or one without keys.
    /// If that takes time, its keys move first.
    Move {
        key: Option<usize>,
        window: Duration,
    },
    /// For a while each of two masters says that the other one has a slot.
    Disagree { key: usize, time: Duration },
    /// A master's replica takes its place. Changes in the last `lag` before that
    /// are lost, and the old master returns as a replica.
    FailOver {
        shard: usize,
        outage: Outage,
        lag: Duration,
        back: Duration,
    },
    /// Nothing.
    Pass { time: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Both ends see it.
    Plain,
    /// Only the client sees it.
    HalfOpen,
    /// Nobody sees it: everything sent is lost.
    Silent,
    /// Only the server sees it.
    Unseen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Separate {
    /// Both ends see it.
    Breaks,
    /// Nobody sees it: everything sent is lost.
    Silent,
    /// They end, and new ones are refused for this time.
    Refused(Duration),
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

impl Operation {
    /// All bytes decode to an operation.
    pub(crate) fn decode([what, who, which, how, long, more]: [u8; 6]) -> Self {
        let (actor, client) = (usize::from(who) % ACTORS, usize::from(who) % CLIENTS);
        // Most tasks want the same key.
        let key = [0, 0, 0, 1, 1, 2][usize::from(which) % 6];
        let millis = |millis: u64| Duration::from_millis(millis);
        let queueing = match long % 5 {
            0 => Queueing::Try,
            1 => Queueing::AtMost(millis(u64::from(more))),
            2 => Queueing::AtMost(millis(20 * u64::from(more))),
            _ => Queueing::Unlimited,
        };
        match what % 37 {
            0..=10 => Self::Ask {
                actor,
                key: (which < 230).then_some(key),
                ask: match how % 4 {
                    0 | 1 => Ask::Exclusive,
                    2 => Ask::Shared,
                    _ if which < 230 => Ask::Permits {
                        limit: 3,
                        permits: 1 + u32::from(more) % 3,
                    },
                    _ => Ask::Exclusive,
                },
                queueing: match queueing {
                    Queueing::AtMost(Duration::ZERO) => Queueing::Try,
                    queueing => queueing,
                },
                terms: Terms {
                    lease: millis([700, 2_000, 30_000][usize::from(how) / 4 % 3]),
                    renewed: how / 12 % 5 != 0,
                    max_hold: (how / 60 == 1).then_some(millis(2_500)),
                    bound: match how / 60 {
                        2 => Some(millis(400)),
                        3 => Some(millis(1_500)),
                        _ => None,
                    },
                    replicas: u16::from(how < 120 && how % 7 == 0),
                    margin: millis([0, 0, 100][usize::from(more) / 8 % 3]),
                },
                // Permits are not entered again.
                owner: (more % 2 == 0 && how % 4 != 3).then_some(usize::from(more) / 2 % 2),
            },
            11..=13 => Self::Drop { actor },
            14 | 15 => Self::Release {
                actor,
                kept: (how % 3 == 0).then_some(millis(20 * u64::from(long))),
            },
            16 => Self::Upgrade { actor, queueing },
            17 => Self::Downgrade { actor },
            29 => Self::Extend {
                actor,
                lease: millis([500, 3_000, 60_000][usize::from(how) % 3]),
            },
            18..=20 => Self::Cut {
                client,
                shard: [None, Some(0), Some(1)][usize::from(which) % 3],
                how: [Cut::Plain, Cut::HalfOpen, Cut::Silent, Cut::Unseen][usize::from(how) % 4],
            },
            30 => Self::Separate {
                client,
                how: match how % 3 {
                    0 => Separate::Breaks,
                    1 => Separate::Silent,
                    _ => Separate::Refused(millis(20 * u64::from(long))),
                },
            },
            21 => Self::Stop {
                client,
                time: millis(10 * u64::from(long)),
            },
            31 => Self::ReadLate {
                client,
                time: millis(2 * u64::from(long)),
            },
            22 if how < 20 => Self::Close { client },
            22 if how < 40 => Self::LeaveAll { client },
            22 => Self::Split {
                client,
                permits: 1 + u32::from(more) % 2,
            },
            23 => Self::Refuse {
                shard: usize::from(who),
                time: millis(4 * u64::from(long)),
            },
            24 => Self::Force { key },
            25 => Self::Cancel { actor },
            26 if how < 60 => Self::Flush,
            26 if how < 120 => Self::Jump {
                time: millis(10 * u64::from(long)),
            },
            26 if how < 200 => Self::Split { client, permits: 1 },
            26 => Self::Merge { client },
            28 => Self::Pass {
                time: millis(11_000),
            },
            27 => Self::Pass {
                time: millis(50 * u64::from(long)),
            },
            32..=34 => Self::Move {
                key: (which < 200).then_some(key),
                window: millis(if how < 100 { 0 } else { 12 * u64::from(long) }),
            },
            36 => Self::Disagree {
                key,
                time: millis(12 * u64::from(long)),
            },
            35 => Self::FailOver {
                shard: usize::from(who),
                outage: [Outage::Killed, Outage::Paused, Outage::Demoted][usize::from(how) % 3],
                lag: millis(if which < 128 {
                    0
                } else {
                    u64::from(which) - 127
                }),
                back: millis(40 * u64::from(long)),
            },
            _ => Self::Pass {
                time: millis(u64::from(long)),
            },
        }
    }
}
