//! Until when one grant counts on this machine, and whether it is over.
//!
//! It is a comparison with the clock of this machine, made when it is asked for: no
//! task has to run for it, so none can be too late. A loss is final, also if
//! the server later turns out to have renewed in time.

use std::time::Duration;

use crate::engine::clock::Instant;
use crate::engine::hold::Grant;
use crate::engine::terms::validity_end;
use crate::error::Loss;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    /// Its last guard is being released; nothing renews it any more.
    Ended,
    Lost(Loss),
}

#[derive(Debug)]
pub(crate) struct Validity {
    pub(crate) until: Instant,
    /// When the lease ends. Later than `until` if a bound hold's connection
    /// broke: the server may have cut the lease, but a new connection that
    /// comes in time gives the rest of it back.
    pub(crate) lease_end: Instant,
    pub(crate) phase: Phase,
    /// When the request was sent that these follow from.
    asked: Instant,
}

impl Validity {
    pub(crate) fn of(grant: &Grant) -> Self {
        let until = validity_end(grant.sent, grant.lease);
        Self {
            until,
            lease_end: until,
            phase: Phase::Held,
            asked: grant.sent,
        }
    }

    /// Begins anew with a grant that was asked for at `sent`.
    ///
    /// A later request's answer may have come first. Its lease is the one
    /// that counts, also if it is shorter: the last before `max_hold` is.
    pub(crate) fn prolong(&mut self, sent: Instant, lease: Duration) {
        if sent >= self.asked {
            self.asked = sent;
            self.until = validity_end(sent, lease);
            self.lease_end = self.until;
        }
    }

    /// Counts only to the end of `grace`, as the connection that the hold is
    /// bound to is gone, which was last known to be there at `known_good`, or
    /// when the hold was last asked for.
    pub(crate) fn cut(&mut self, known_good: Instant, grace: Duration) {
        let end = validity_end(known_good.max(self.asked), grace);
        self.until = self.until.min(end);
    }

    /// Why it is lost, if it is, judged now; and whether that is news.
    pub(crate) fn judge(&mut self) -> (Option<Loss>, bool) {
        let is_news = self.phase == Phase::Held && Instant::now() >= self.until;
        if is_news {
            self.phase = Phase::Lost(Loss::LeaseEnded);
        }
        match self.phase {
            Phase::Lost(loss) => (Some(loss), is_news),
            Phase::Held | Phase::Ended => (None, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_at(sent: Instant) -> Validity {
        Validity::of(&Grant {
            fence: 1,
            sent,
            lease: Duration::from_secs(10),
            link: 1,
        })
    }

    #[test]
    fn a_cut_hold_counts_from_when_its_connection_was_last_known_to_be_there() {
        let sent = Instant::now();
        let (known_good, grace) = (sent + Duration::from_secs(1), Duration::from_secs(2));
        let mut validity = asked_at(sent);
        let lease_end = validity.lease_end;
        validity.cut(known_good, grace);
        assert_eq!(validity.until, validity_end(known_good, grace));
        assert_eq!(validity.lease_end, lease_end);
        // An older sign of life, or a grace beyond the lease, adds nothing.
        validity.cut(known_good, Duration::from_secs(60));
        assert_eq!(validity.until, validity_end(known_good, grace));
    }

    #[test]
    fn a_renewal_in_time_undoes_the_cut() {
        let sent = Instant::now();
        let mut validity = asked_at(sent);
        validity.cut(sent, Duration::from_secs(1));
        validity.prolong(sent + Duration::from_millis(1), Duration::from_secs(10));
        assert_eq!(validity.until, validity.lease_end);
        assert_eq!(validity.judge(), (None, false));
    }

    #[test]
    fn a_hold_bound_without_grace_is_lost_with_its_connection() {
        let mut validity = asked_at(Instant::now());
        validity.cut(Instant::now(), Duration::ZERO);
        assert_eq!(validity.judge(), (Some(Loss::LeaseEnded), true));
        assert_eq!(validity.judge(), (Some(Loss::LeaseEnded), false));
    }
}
