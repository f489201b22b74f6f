//! The clock that leases are counted by.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment on this machine's clock since its start, which also runs while the
/// machine is suspended.
///
/// The server's clock runs meanwhile, too. By the standard library's monotonic
/// clock, which stands still on Linux, a hold would count as valid for up to a
/// lease after the machine has woken, while somebody else holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    #[cfg(target_os = "linux")]
    pub(crate) fn now() -> Self {
        use rustix::time::{ClockId, clock_gettime};
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Self(Duration::new(seconds, nanos))
    }

    /// Other systems' monotonic clocks; what they do while the machine is
    /// suspended differs.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn now() -> Self {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        Self(START.get_or_init(std::time::Instant::now).elapsed())
    }

    pub(crate) fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// When a timer has to ring. Timers do not run while the machine is suspended,
/// so what they are for is compared with the clock once more.
impl From<Instant> for tokio::time::Instant {
    fn from(moment: Instant) -> Self {
        Self::now() + moment.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_as_the_monotonic_clock_does() {
        let (here, there) = (Instant::now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (here, there) = (here.elapsed(), there.elapsed());
        assert!(
            here.abs_diff(there) < Duration::from_millis(5),
            "{here:?} {there:?}"
        );
    }
}
