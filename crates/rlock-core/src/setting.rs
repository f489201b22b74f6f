//! The settings, each defined once: name, default and range. The server, the
//! `loadmodule` line, and the tests of limits and of documents use these
//! definitions.

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The upper bound of leases, waits and graces.
    MaxLeaseMs,
    /// The most places in queues.
    MaxWaiters,
    /// The most places of each user; 0 for no such limit.
    MaxPlacesPerUser,
    /// The most holds and queued requests with `NOTIFY` or `BIND`.
    MaxWatches,
    /// The most shared holders of all locks together.
    MaxSharedHolders,
    /// The first part of the unlock channel.
    ChannelPrefix,
    /// The kind of message that announces a free lock.
    Publish,
    /// The hand-offs in a row after which clients outside the queue get a chance;
    /// 0 for never.
    YieldAfter,
    /// Whether a request that would close a cycle of waiters is refused.
    DeadlockDetection,
    /// How long after a start there are no grants.
    StartupGraceMs,
}

/// The possible values of a setting.
#[derive(Clone, Copy, Debug)]
pub enum SettingKind {
    /// A whole number.
    Number {
        /// The default.
        default: u32,
        /// The smallest.
        min: u32,
        /// The largest.
        max: u32,
        /// The unit.
        unit: &'static str,
    },
    /// One of these words, by its number; the default is the first one.
    Choice(&'static [&'static str]),
    /// `yes` or `no`.
    Flag {
        /// The default.
        default: bool,
    },
    /// A text.
    Text {
        /// The default.
        default: &'static str,
        /// The most bytes; the least is one.
        len_max: usize,
    },
}

impl Setting {
    /// All settings.
    pub const ALL: [Self; 10] = [
        Self::MaxLeaseMs,
        Self::MaxWaiters,
        Self::MaxPlacesPerUser,
        Self::MaxWatches,
        Self::MaxSharedHolders,
        Self::ChannelPrefix,
        Self::Publish,
        Self::YieldAfter,
        Self::DeadlockDetection,
        Self::StartupGraceMs,
    ];

    /// Its name, without the prefix `rlock.`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.entry().0
    }

    /// Its possible values.
    #[must_use]
    pub const fn kind(self) -> SettingKind {
        self.entry().1
    }

    const fn entry(self) -> (&'static str, SettingKind) {
        match self {
            Self::MaxLeaseMs => (
                "max-lease-ms",
                number(86_400_000, 1000, 2_592_000_000, "ms"),
            ),
            Self::MaxWaiters => ("max-waiters", number(10_000, 1, 1_000_000, "places")),
            Self::MaxPlacesPerUser => ("max-places-per-user", number(0, 0, 1_000_000, "places")),
            Self::MaxWatches => ("max-watches", number(100_000, 0, 10_000_000, "holds")),
            Self::MaxSharedHolders => (
                "max-shared-holders",
                number(262_144, 1, 10_000_000, "holders"),
            ),
            Self::ChannelPrefix => (
                "channel-prefix",
                SettingKind::Text {
                    default: "redisson_lock__channel",
                    len_max: 256,
                },
            ),
            Self::Publish => (
                "publish",
                SettingKind::Choice(&["auto", "publish", "spublish", "both", "none"]),
            ),
            Self::YieldAfter => ("yield-after", number(64, 0, 1_000_000, "hand-offs")),
            Self::DeadlockDetection => ("deadlock-detection", SettingKind::Flag { default: true }),
            Self::StartupGraceMs => ("startup-grace-ms", number(0, 0, 86_400_000, "ms")),
        }
    }
}

const fn number(default: u32, min: u32, max: u32, unit: &'static str) -> SettingKind {
    SettingKind::Number {
        default,
        min,
        max,
        unit,
    }
}
