//! Operations on locks.

use rlock_core::{AcquireOptions, Channel, ChannelKind, Extras, Grace, Mode, Wait};

pub const KEYS: [(u32, &str); 4] = [(0, "k0"), (0, "k1"), (0, "k2"), (1, "k3")];
pub const OWNERS: [&str; 5] = ["ann", "bob", "cid", "dee", "eve"];
/// The two users of the connections.
pub const USERS: [&str; 2] = ["default", "shop"];
/// Two channels of different kinds share a name, but are unrelated.
pub const CHANNELS: [Channel<'static>; 3] = [
    channel(ChannelKind::Plain, "c0"),
    channel(ChannelKind::Plain, "c1"),
    channel(ChannelKind::Sharded, "c0"),
];
/// The published values. An empty value is also a value.
pub const VALUES: [&str; 3] = ["", "a:1", "b:2"];
/// Connections with several requests.
pub const CONNECTIONS: usize = 3;
/// Keys that are requested together, each set in one database.
pub const SETS: [&[usize]; 8] = [
    &[0, 1],
    &[1, 0],
    &[0, 2],
    &[2, 1, 0],
    &[1],
    &[1, 2],
    &[0, 1, 2],
    &[2],
];

pub const SHARED: Mode = Mode::Shared {
    permits: 1,
    limit: None,
};

const fn channel(kind: ChannelKind, name: &'static str) -> Channel<'static> {
    let name = name.as_bytes();
    Channel { kind, name }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Acquire {
        key: usize,
        asked: Asked,
    },
    AcquireAll {
        set: usize,
        asked: Asked,
    },
    Renew {
        key: usize,
        owner: usize,
        lease_ms: u32,
        raise: Option<Raise>,
        connection: usize,
        channel: Option<usize>,
        bind: Option<Grace>,
        extras: Extras<&'static str>,
    },
    RenewAll {
        set: usize,
        owner: usize,
        lease_ms: u32,
        under: Option<Under>,
        connection: usize,
        channel: Option<usize>,
    },
    Release {
        key: usize,
        owner: usize,
        all: bool,
        /// Instead of entries.
        permits: Option<u32>,
        under: Option<Under>,
    },
    ReleaseAll {
        set: usize,
        owner: usize,
        all: bool,
        under: Option<Under>,
    },
    Downgrade {
        key: usize,
        owner: usize,
    },
    Cancel {
        key: usize,
        owner: usize,
        connection: usize,
    },
    Force {
        key: usize,
        queue: bool,
        /// The hold of this owner, if it is under this fence.
        under: Option<(usize, Under)>,
    },
    /// The reply of a recent grant could not be written.
    Undeliver {
        recent: usize,
    },
    /// The connection of a recent call ends, answered or not.
    HangUp {
        recent: usize,
    },
    /// A connection with several requests ends.
    Close {
        connection: usize,
    },
    Listen {
        channel: usize,
        on: bool,
    },
    /// A follower of the value of a lock asks for it.
    Follow {
        key: usize,
    },
    /// A client subscribes to the unlock channels, or leaves them.
    ListenToUnlocks {
        on: bool,
    },
    Foreign {
        change: Foreign,
        /// Whether the locks are settled before the next command.
        settled: bool,
    },
    /// The server stops, and restarts a little later.
    Restart {
        ms: u64,
    },
    Pass {
        time: Pass,
        /// Whether the timer fires in between; if not, the server is too busy.
        timer_fires: bool,
    },
}

/// The options that requests for one key and for several share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub owner: usize,
    /// For several keys exclusive, and unbound.
    pub options: AcquireOptions,
    pub wait: Wait,
    /// One of several connections; `None` for a connection of its own.
    pub connection: Option<usize>,
    /// Requires one of the connections.
    pub channel: Option<usize>,
    /// Requires exclusive mode, for one key.
    pub extras: Extras<&'static str>,
}

impl Asked {
    /// A request without an option.
    pub const fn plain(owner: usize, mode: Mode, lease_ms: u32, wait: Wait) -> Self {
        Self {
            owner,
            options: AcquireOptions::new(mode, lease_ms),
            wait,
            connection: None,
            channel: None,
            extras: Extras::NONE,
        }
    }

    /// The same request for several keys, without the options that it may not have.
    pub const fn for_several(self) -> Self {
        Self {
            options: AcquireOptions {
                mode: Mode::Exclusive,
                bind: None,
                ..self.options
            },
            extras: Extras::NONE,
            ..self
        }
    }
}

/// The fence that a release, a renewal or a force requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// The hold's current fence.
    Its,
    /// The fence of a recent grant.
    Recent(usize),
    /// A fence without a hold.
    NoHold,
}

/// The new fence to raise a fence to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raise {
    /// The smallest fence.
    Least,
    /// The fence of another holder of the key, if there is one.
    OfAnother,
    /// Some seconds ahead of the clock.
    Ahead,
    /// The largest allowed distance ahead of the clock.
    Most,
    TooFar,
}

/// Changes of keys by other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    Del {
        key: usize,
    },
    Pexpire {
        key: usize,
        ms: u32,
    },
    Persist {
        key: usize,
    },
    Set {
        key: usize,
    },
    /// A free lock is taken as by Redisson.
    Take {
        key: usize,
        owner: usize,
        ms: u32,
    },
    /// A holder's count is removed.
    DropCount {
        key: usize,
        owner: usize,
    },
    Rename {
        from: usize,
    },
    /// A fence is written beside the existing fields.
    FarFence {
        key: usize,
        /// Its distance ahead of the clock.
        ahead_ms: u32,
    },
    /// A value is written beside the existing fields, or removed.
    Value {
        key: usize,
        value: Option<&'static str>,
    },
    Flush {
        db: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Millis(u64),
    /// To the last millisecond before the next end.
    ToNextEnd,
    PastNextEnd,
}
