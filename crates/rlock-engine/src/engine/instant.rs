//! Moments, which the engine receives from its caller: it never reads a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// If a check for a reply itself ran this late, the process was starved. It waits the
/// same time again before it concludes anything: the reply may have arrived unread.
pub(crate) const STARVED: Duration = Duration::from_millis(100);

/// How many checks in a row came late. Not more than five are repeated, because
/// some processes are always late.
#[derive(Debug, Default)]
pub(crate) struct LateChecks {
    repeated: u8,
    /// When the last look is repeated.
    next_look: Option<Instant>,
}

impl LateChecks {
    const MAX: u8 = 5;

    /// When to repeat a check that was `due`; none if it counts.
    pub(crate) fn again(&mut self, due: Instant, now: Instant) -> Option<Instant> {
        let is_repeated = now - due > STARVED && self.repeated < Self::MAX;
        self.repeated += u8::from(is_repeated);
        is_repeated.then(|| now + STARVED)
    }

    /// When to look again at something that is over since that moment, if it is.
    pub(crate) fn look(&mut self, since: Option<Instant>, now: Instant) -> Option<Instant> {
        match since {
            Some(since) => {
                // Something else happens before the next look.
                if let Some(next) = self.next_look.filter(|next| now < *next) {
                    return Some(next);
                }
                let due = self.next_look.map_or(since, |next| next.max(since));
                self.next_look = self.again(due, now);
                self.next_look
            }
            None => {
                *self = Self::default();
                None
            }
        }
    }

    /// When to check next, after a check that was due at `checked`; a moment that
    /// has passed if the deadline counts as missed.
    pub(crate) fn next(
        &mut self,
        checked: Option<Instant>,
        deadline: Option<Instant>,
        now: Instant,
    ) -> Option<Instant> {
        let is_over = deadline.is_some_and(|due| due <= now);
        match checked.filter(|_| is_over) {
            // A repetition, before which somebody asks.
            Some(repeated) if repeated > now => Some(repeated),
            Some(checked) => self.again(checked, now).or(deadline),
            None => deadline,
        }
    }
}

/// A moment on this machine's clock: nanoseconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// The moment `nanos` nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The nanoseconds since the clock's start.
    pub const fn nanos(self) -> u64 {
        self.0
    }
}

/// `time` in nanoseconds; at most 584 years.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }
}

/// The time from an earlier moment to this one; zero if the other is later.
impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
