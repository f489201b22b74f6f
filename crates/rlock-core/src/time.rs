//! Time as data: the caller passes the time, and the core never reads a clock.

use std::num::NonZeroU32;
use std::time::Duration;

/// A point in time: microseconds since the Unix epoch.
///
/// Leases and waits end on whole milliseconds, like the expiry of a key in Redis;
/// the microseconds are only the seed of fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    micros: u64,
}

impl Timestamp {
    /// Later than any other: for something that does not end.
    pub const NEVER: Self = Self { micros: u64::MAX };

    /// The point `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self { micros }
    }

    /// The point `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self {
            micros: millis.saturating_mul(1000),
        }
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.micros
    }

    /// Whole milliseconds since the Unix epoch, rounded down.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.micros / 1000
    }

    /// The whole millisecond `millis` after this one.
    #[must_use]
    pub const fn plus_millis(self, millis: u64) -> Self {
        Self::from_millis(self.millis().saturating_add(millis))
    }

    /// True once `now` is in a later millisecond than this deadline.
    ///
    /// The lease or wait still includes the millisecond of its deadline, as for
    /// the expiry of a key. So rounding never cuts a lease short.
    #[must_use]
    pub const fn has_passed(self, now: Self) -> bool {
        self.millis() < now.millis()
    }

    /// True from the millisecond of this deadline on.
    ///
    /// Some servers delete a key at the beginning of that millisecond. So if the key
    /// is gone then, this was its end.
    #[must_use]
    pub const fn has_come(self, now: Self) -> bool {
        self.millis() <= now.millis()
    }

    /// The time since `earlier`; zero if this is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.micros.saturating_sub(earlier.micros))
    }

    /// Whole milliseconds from `now` until this; zero if this has passed.
    #[must_use]
    pub const fn millis_from(self, now: Self) -> u64 {
        self.millis().saturating_sub(now.millis())
    }
}

/// How long something outlives a call or a connection, in milliseconds. An
/// `Option` of it also takes four bytes: there may be a million tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace(NonZeroU32);

impl Grace {
    /// This many milliseconds, at most `u32::MAX` - 1.
    #[must_use]
    pub const fn from_millis(millis: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(millis))
    }

    /// The milliseconds.
    #[must_use]
    pub const fn millis(self) -> u32 {
        self.0.get() - 1
    }
}
