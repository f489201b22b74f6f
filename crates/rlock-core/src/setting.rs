//! The settings, each once: name, default and range. What the server and the
//! `loadmodule` line may say of them, and the tests of their limits and of the
//! documents come from here.

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The upper bound of leases, waits and graces.
    MaxLeaseMs,
    /// The most places in queues.
    MaxWaiters,
    /// The most places of each user; 0 for no limit of its own.
    MaxPlacesPerUser,
    /// The most holds, and queued requests, with `NOTIFY` or `BIND`.
    MaxWatches,
    /// The most shared holders of all locks together.
    MaxSharedHolders,
    /// The first part of the unlock channel.
    ChannelPrefix,
    /// The kind of message that tells that a lock is free.
    Publish,
    /// The hand-offs in a row after which others get a chance; 0 for never.
    YieldAfter,
    /// Whether a request that would close a cycle of waiters is refused.
    DeadlockDetection,
    /// How long after a start nothing is granted.
    StartupGraceMs,
}

/// What a setting can be.
#[derive(Clone, Copy, Debug)]
pub enum SettingKind {
    /// A whole number.
    Number {
        /// Unless it is set.
        default: u32,
        /// The smallest.
        min: u32,
        /// The largest.
        max: u32,
        /// What is counted.
        unit: &'static str,
    },
    /// One of these words, by its number; the first one unless it is set.
    Choice(&'static [&'static str]),
    /// `yes` or `no`.
    Flag {
        /// Unless it is set.
        default: bool,
    },
    /// Some bytes.
    Text {
        /// Unless it is set.
        default: &'static str,
        /// The most bytes; one is the least.
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

    /// What it can be.
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
