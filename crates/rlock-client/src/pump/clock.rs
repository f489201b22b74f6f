//! The clock that leases are counted by.

use rlock_engine::engine::instant::Instant;

/// This moment, by a clock that also runs while the machine is suspended.
///
/// The server's clock runs meanwhile, too. By the standard library's monotonic
/// clock, which stands still on Linux, a hold would count as valid for up to a
/// lease after the machine has woken, while somebody else holds the lock.
#[cfg(target_os = "linux")]
pub(crate) fn now() -> Instant {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + nanos)
}

/// Other systems' monotonic clocks; what they do while the machine is suspended
/// differs.
#[cfg(not(target_os = "linux"))]
pub(crate) fn now() -> Instant {
    use rlock_engine::engine::instant::nanos;
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    // The first moments of the clock have another meaning.
    Instant::from_nanos(nanos(elapsed).saturating_add(1_000_000_000))
}

/// When a timer has to ring. Timers do not run while the machine is suspended,
/// so what they are for is compared with the clock once more.
pub(crate) fn timer(moment: Instant) -> tokio::time::Instant {
    tokio::time::Instant::now() + (moment - now())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_runs_as_the_monotonic_clock_does() {
        let (here, there) = (now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (here, there) = (now() - here, there.elapsed());
        assert!(
            here.abs_diff(there) < Duration::from_millis(5),
            "{here:?} {there:?}"
        );
    }
}
