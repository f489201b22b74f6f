//! The server's clock against that of this machine.

use std::time::{Duration, Instant, SystemTime};

use super::finding::{Finding, Severity};
use super::look::Facts;

/// What is more than time daemons leave.
const DIFFERENCE_MAX: Duration = Duration::from_secs(1);

/// A look at a clock that is under way.
pub(super) struct Reading {
    wall: SystemTime,
    began: Instant,
}

/// How a server's clock compares to this machine's.
#[derive(Debug)]
pub(super) struct Clock {
    difference: Duration,
    is_ahead: bool,
    /// The difference may be larger or smaller by this.
    uncertainty: Duration,
}

impl Clock {
    pub(super) fn begin() -> Reading {
        Reading {
            wall: SystemTime::now(),
            began: Instant::now(),
        }
    }

    pub(super) fn is_closer_than(&self, other: &Self) -> bool {
        self.uncertainty < other.uncertainty
    }
}

impl Reading {
    /// With the reply to `TIME`: seconds since 1970, and microseconds. The
    /// server has looked at its clock at some moment between both ends.
    pub(super) fn end(self, (seconds, micros): (u64, u64)) -> Clock {
        let uncertainty = self.began.elapsed() / 2;
        let here = self.wall + uncertainty;
        let there =
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
        let ahead = there.duration_since(here);
        Clock {
            is_ahead: ahead.is_ok(),
            difference: ahead.unwrap_or_else(|behind| behind.duration()),
            uncertainty,
        }
    }
}

pub(super) fn check(facts: &Facts) -> Option<Finding> {
    let clock = facts.clock.as_ref()?;
    let docs = "docs/operating.md#when-the-servers-clock-jumps";
    let way = if clock.is_ahead { "ahead of" } else { "behind" };
    let found = format!(
        "{:.3} s {way} this machine's clock, give or take {:.3} s",
        clock.difference.as_secs_f64(),
        clock.uncertainty.as_secs_f64()
    );
    if clock.difference < DIFFERENCE_MAX + clock.uncertainty {
        return Some(Finding::ok("clock", found).docs(docs));
    }
    let finding = Finding::new(Severity::Note, "clock", found)
        .effect("Leases use the server's clock only, so no hold ends early by it. But if the clocks of servers differ as much, a fail-over makes leases longer or shorter by that, and a fence may be smaller than an earlier one.")
        .remedy("Keep the clocks of all servers in step by a time daemon that slews them.")
        .docs(docs);
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(offset: i64) -> Clock {
        let reading = Clock::begin();
        let now = reading.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let seconds = now.as_secs().checked_add_signed(offset).unwrap();
        reading.end((seconds, now.subsec_micros().into()))
    }

    #[test]
    fn a_clock_is_ahead_or_behind_by_so_much() {
        let near = |clock: &Clock, seconds: u64| {
            let off = clock.difference.abs_diff(Duration::from_secs(seconds));
            off <= clock.uncertainty + Duration::from_millis(1)
        };
        let (ahead, behind) = (clock(3600), clock(-60));
        assert!(ahead.is_ahead && near(&ahead, 3600), "{ahead:?}");
        assert!(!behind.is_ahead && near(&behind, 60), "{behind:?}");
        assert!(near(&clock(0), 0));
    }
}
