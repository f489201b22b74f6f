//! What the servers of a run are, and what can be done to them.
//!
//! A further world is a further file beside those that are there.

use std::time::Duration;

use crate::locks::Address;
use crate::network::Network;
use crate::random::Random;
use rlock_testkit::asynchronous::Server;
use rlock_testkit::history::Loses;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A server dies and comes back, with what is on its disk or without.
    Crash { keeps_data: bool },
    /// A server does without its append-only file for a while, and dies when it has
    /// one again.
    EndFile,
    /// A master dies, another takes its place, and the first comes back empty.
    Succeed,
    /// A master stalls for less than anybody notices, or for longer.
    Pause { is_long: bool },
    /// A replica stalls.
    PauseReplica,
    /// An operator has another server become the master.
    FailOver,
    /// A slot moves, key by key.
    MoveSlot,
    /// Servers move a slot themselves.
    MigrateSlot,
    /// Clients lose their connections.
    Disconnect,
    /// The network between some clients and a server fails.
    Partition,
    /// A client's process does not run.
    Stall,
    /// An operator takes a lock from its holders.
    Force,
    /// An operator deletes all there is.
    Flush,
}

impl Act {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crash { keeps_data: true } => "crash",
            Self::Crash { keeps_data: false } => "crash without data",
            Self::EndFile => "append-only file ends and begins, crash",
            Self::Succeed => "death of a master",
            Self::Pause { is_long: false } => "short pause",
            Self::Pause { is_long: true } => "long pause",
            Self::PauseReplica => "pause of a replica",
            Self::FailOver => "fail-over by an operator",
            Self::MoveSlot => "slot moved key by key",
            Self::MigrateSlot => "slot moved at once",
            Self::Disconnect => "connections killed",
            Self::Partition => "partition",
            Self::Stall => "client stalls",
            Self::Force => "forced release",
            Self::Flush => "flush",
        }
    }
}

pub(crate) trait World: Sized {
    const NAME: &'static str;
    /// How many replicas a grant must reach so that no fail-over loses it.
    const COPIES: u16;
    /// What may happen here besides what may happen everywhere.
    const ACTS: &'static [Act];

    async fn start() -> Self;

    /// All that clients talk to: servers first.
    fn ports(&self) -> Vec<u16>;

    fn address(&self, network: &Network, group: usize) -> Address;

    fn servers(&self) -> Vec<&Server>;

    /// The indices of the servers that are masters now.
    async fn masters(&self) -> Vec<usize>;

    /// Whether all servers are well and agree.
    async fn is_whole(&self) -> bool;

    /// What the act may lose, and on whom it falls.
    async fn plan(&self, act: Act, random: &mut Random) -> Plan;

    /// Does it, and undoes it: the servers get well again by themselves afterwards.
    async fn carry_out(&mut self, act: Act, plan: &Plan);
}

/// What an act falls on.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) server: usize,
    pub(crate) length: Duration,
    /// One of the contenders' keys.
    pub(crate) key: &'static str,
    pub(crate) loses: Loses,
    /// Whether the servers can do it.
    pub(crate) is_possible: bool,
}

/// What everything can be decided from: some master, some key, and a time of the usual length.
pub(crate) async fn plan(world: &impl World, act: Act, random: &mut Random) -> Plan {
    let masters = world.masters().await;
    let length = match act {
        Act::Pause { is_long: true } => random.between(3_000, 5_000),
        Act::Pause { is_long: false } => random.between(100, 700),
        // Mostly less than a lease: holders live to see what the server still knows.
        Act::Crash { .. } => random.between(20, 1_200),
        Act::Stall => random.between(300, 3_500),
        Act::PauseReplica | Act::Partition => random.between(300, 4_000),
        _ => random.between(100, 2_500),
    };
    let key = crate::contender::KEYS[random.index(crate::contender::KEYS.len())];
    Plan {
        server: masters[random.index(masters.len())],
        length,
        key,
        loses: match act {
            Act::Crash { keeps_data: false } | Act::Flush => Loses::All,
            Act::Force => Loses::Key(key),
            _ => Loses::Nothing,
        },
        is_possible: true,
    }
}
