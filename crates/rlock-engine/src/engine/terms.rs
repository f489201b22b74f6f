//! How a lock is requested: the mode (exclusive, shared, or permits), the longest
//! wait, and the terms (the lease, its renewal, and its limits).
//!
//! All durations are rounded up here to whole milliseconds, the unit of the wire.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::instant::{Instant, nanos};
use crate::error::Error;

/// The default lease.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// The shortest lease that is valid for a moment; see [`validity_end`].
const LEASE_MIN: Duration = Duration::from_millis(3);
/// The largest value that any server setting allows for lease and wait.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The terms of a hold: how long it lasts, who renews it, and its limits.
///
/// Durations are rounded up to whole milliseconds. Each setter checks its value:
/// at most 30 days.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # use rlock_client::Terms;
/// # fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let brief = Terms::new().lease(Duration::from_secs(10))?;
/// let report = client.mutex("report").with(brief.max_hold(Duration::from_secs(600))?);
/// let workers = client.semaphore("workers", 20).with(brief);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a grant lasts without renewal; whole milliseconds, from 3.
    #[doc(hidden)]
    pub lease: Duration,
    /// Whether the watchdog renews it.
    #[doc(hidden)]
    pub renewed: bool,
    /// How long the watchdog renews it at most, from the grant.
    #[doc(hidden)]
    pub max_hold: Option<Duration>,
    /// How long a bound hold outlives its connection; none if it is not bound.
    #[doc(hidden)]
    pub bound: Option<Duration>,
    /// The number of replicas that must acknowledge it.
    #[doc(hidden)]
    pub replicas: u16,
    /// How long before its lease a guard ends.
    #[doc(hidden)]
    pub margin: Duration,
}

/// How long a grant lasts, and whether it is renewed; for [`Terms::lease`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The watchdog renews it while the lock is held.
    Renewed(Duration),
    /// It is not renewed: the lock is lost after this time unless it was
    /// released.
    Fixed(Duration),
}

impl From<Duration> for Lease {
    fn from(lease: Duration) -> Self {
        Self::Renewed(lease)
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease: LEASE_DEFAULT,
            renewed: true,
            max_hold: None,
            bound: None,
            replicas: 0,
            margin: Duration::ZERO,
        }
    }
}

impl Terms {
    /// A lease of 30 s that the watchdog renews while the lock is held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long a grant lasts, and whether the watchdog renews it; default
    /// 30 s, renewed. A plain duration is a lease that is renewed.
    ///
    /// The watchdog renews about every third of the lease. So the lease is also
    /// how long others wait after a holder's process has died, and how long a
    /// holder may lose contact with the server without losing the lock. The
    /// server's limit also applies (24 h by default).
    ///
    /// A lease has to be much longer than a round trip to the server: a guard
    /// counts it from before the request, less 2 ms and a hundredth of it. So a
    /// guard with a lease of 1 or 2 ms would never be valid.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a lease below 3 ms or above 30 days, and for one
    /// below three times the [`margin`](Self::margin).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use rlock_client::{Lease, Terms};
    ///
    /// # fn example() -> Result<(), rlock_client::Error> {
    /// let renewed = Terms::new().lease(Duration::from_secs(10))?;
    /// let fixed = Terms::new().lease(Lease::Fixed(Duration::from_secs(10)))?;
    /// # Ok(()) }
    /// ```
    pub fn lease(mut self, lease: impl Into<Lease>) -> Result<Self, Error> {
        let (lease, renewed) = match lease.into() {
            Lease::Renewed(lease) => (lease, true),
            Lease::Fixed(lease) => (lease, false),
        };
        (self.lease, self.renewed) = (lease_ms("lease", lease)?, renewed);
        self.consistent()
    }

    /// Limits how long the watchdog renews, from the grant; default no limit, at
    /// most 30 days.
    ///
    /// The lock is lost at that moment unless it was released. This protects
    /// others from a holder that is alive but hangs.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] below 3 ms, as for a lease, above 30 days, and for one
    /// below three times the [`margin`](Self::margin).
    pub fn max_hold(mut self, bound: Duration) -> Result<Self, Error> {
        self.max_hold = Some(lease_ms("max_hold", bound)?);
        self.consistent()
    }

    /// Ends a hold `grace` after its connection has ended, unless its lease ends
    /// first. By default the connection does not matter.
    ///
    /// After the holder's process has died, others wait only for the grace, not
    /// for a lease. If the client reconnects within the grace, the new connection
    /// takes the hold over with its full lease. The client counts the grace from
    /// when the old connection was last known to be alive. A hold that was not
    /// taken over by then is lost.
    ///
    /// The client sends a heartbeat on a quiet connection four times in the
    /// grace, at most ten times a second and at least every 5 s. It closes the
    /// connection if nothing arrives for half of the grace. So choose a grace of
    /// a few seconds, in which a slow server can answer. A grace of zero ends the
    /// hold with the connection. The limit is 30 days, and the server's limit for
    /// leases; rounded up to whole milliseconds.
    ///
    /// A stopped process or a suspended machine sees the end of its connection
    /// only when it runs again. With a grace of at least 400 ms,
    /// `Guard::is_valid` takes this into account: it is false once the last
    /// heartbeat is older than the grace. With a shorter grace, rely on the fence
    /// in that case.
    ///
    /// The server must let this client close its own earlier connection
    /// (`CLIENT KILL`). Otherwise a request in progress on that connection could
    /// bind the hold to it again. For the same reason another connection does not renew
    /// the hold while its key is moving to another master of a cluster: the lease
    /// must outlast the move. A hold stays bound, under the same grace, if its
    /// owner asks for the lock again. So if several processes use the same owner
    /// name, give it the same terms in all of them.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] above 30 days, together with
    /// [`replicas`](Self::replicas), and below three times the
    /// [`margin`](Self::margin).
    pub fn bound(mut self, grace: Duration) -> Result<Self, Error> {
        self.bound = Some(whole_ms_or_zero("grace", grace)?);
        self.consistent()
    }

    /// Makes a grant, and each renewal, valid only once `count` replicas of the
    /// server have acknowledged it; 0 by default.
    ///
    /// A server that dies right after a grant may not have replicated it. The
    /// replica that becomes the master then grants the lock again, under a
    /// larger fence. With this setting, no call returns such a grant: before
    /// the call ends, the client asks the replicas with `WAIT`, for at most
    /// `ClientBuilder::replication_timeout`. If too few answer, the client
    /// releases what the call has taken, and the call fails with
    /// [`Error::NotReplicated`] without a retry. If the connection for `WAIT`
    /// cannot be made within that time, the client also releases it, and the
    /// call fails with [`Error::Unavailable`]. A wait with a limit may end
    /// later by that time.
    ///
    /// A renewal that too few replicas acknowledge is retried. The lock is lost
    /// at the end of the last lease that enough replicas acknowledged. Holds
    /// without this setting are not delayed.
    ///
    /// This setting does not choose the next master. So require all replicas; or
    /// require a majority of the servers, if a failover can only choose a server
    /// that the majority has reached. Also set `min-replicas-to-write`, so that a
    /// master that was cut off grants nothing. Only a fence helps against a
    /// holder whose process is paused.
    ///
    /// It cannot be combined with [`bound`](Self::bound): `WAIT` needs a separate
    /// connection, and a renewal there would bind the hold to that connection.
    /// The server's user needs the command `WAIT`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] together with [`bound`](Self::bound).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use rlock_client::Terms;
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let mutex = client.mutex("payment:7").with(Terms::new().replicas(1)?);
    /// let guard = mutex.lock().await?;
    /// # Ok(()) }
    /// ```
    pub fn replicas(mut self, count: u16) -> Result<Self, Error> {
        self.replicas = count;
        self.consistent()
    }

    /// Ends each guard by this much before the server gives the lock to the next
    /// owner; zero by default, and rounded up to whole milliseconds.
    ///
    /// A guard that is not renewed in time, or whose process was stopped, is lost
    /// `margin` before its lease ends at the server. So code that looks at its
    /// guard now and then, or that takes a while to stop after a loss, has this
    /// time before anybody else holds the lock. Others wait for a whole lease, as
    /// without a margin. Consul's `lock-delay` serves the same purpose, but there
    /// the next owner waits longer.
    ///
    /// It does not help a process that is stopped for longer than the margin
    /// between its last look at the guard and its next write. Only a receiver that
    /// checks the [fence](crate::engine::proof::Proof::fence) refuses that write.
    /// It does not apply where the server ends a hold at once, for example by
    /// `RLOCK.FORCE`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] above a third of the lease, of the grace of a
    /// [`bound`](Self::bound) hold or of [`max_hold`](Self::max_hold): renewals need
    /// the rest of the time. So set these first.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use rlock_client::Terms;
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let terms = Terms::new().margin(Duration::from_secs(2))?;
    /// let guard = client.mutex("payment:7").with(terms).lock().await?;
    /// # Ok(()) }
    /// ```
    pub fn margin(mut self, margin: Duration) -> Result<Self, Error> {
        self.margin = whole_ms_or_zero("margin", margin)?;
        self.consistent()
    }

    /// Checks for settings that exclude each other.
    fn consistent(self) -> Result<Self, Error> {
        if self.replicas > 0 {
            self.unbound("left out where replicas are asked")?;
        }
        let others = self.bound.into_iter().chain(self.max_hold);
        let shortest = others.fold(self.lease, Duration::min);
        if self.margin > shortest / 3 {
            return Err(Error::OutOfRange {
                argument: "margin",
                value: format!("{:?}", self.margin),
                limit: format!(
                    "at most a third of the lease, of a grace and of max_hold, {:?}",
                    shortest / 3
                )
                .into(),
            });
        }
        Ok(self)
    }

    /// Checks that a request for several keys can have these terms.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the server does not support them for several
    /// keys.
    #[doc(hidden)]
    pub fn check_for_several(&self) -> Result<(), Error> {
        self.unbound("left out for several keys")
    }

    fn unbound(&self, limit: &'static str) -> Result<(), Error> {
        match self.bound {
            Some(grace) => Err(Error::OutOfRange {
                argument: "bound",
                value: format!("{grace:?}"),
                limit: limit.into(),
            }),
            None => Ok(()),
        }
    }

    /// The same terms with another lease, which is renewed or not as before.
    #[doc(hidden)]
    #[must_use]
    pub fn lasting(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Until when a lease that was requested at `sent` is valid for a guard.
    #[doc(hidden)]
    pub fn validity_end(&self, sent: Instant, lease: Duration) -> Instant {
        validity_end(sent, lease.saturating_sub(self.margin))
    }

    /// The lease to request at `now`, for a hold that began at `taken`.
    ///
    /// The last renewal before `max_hold` requests only the rest, so that the
    /// server ends the hold at that moment. `None` once there is no rest.
    #[doc(hidden)]
    pub fn lease_at(&self, taken: Instant, now: Instant) -> Option<Duration> {
        let Some(max_hold) = self.max_hold else {
            return Some(self.lease);
        };
        let left = max_hold.saturating_sub(now - taken);
        let left = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        (!left.is_zero()).then(|| left.min(self.lease))
    }

    /// The moment of the next renewal of a hold that began at `taken`, after a
    /// lease that was requested at `sent`. `None` if that lease lasts until
    /// `max_hold`, so that no other would last longer.
    ///
    /// Renewals are a third of the lease apart, and each hold has its own
    /// phase. So renewals spread out even if the holds began together, or were
    /// renewed together on a new connection. The first renewal, and the next
    /// renewal after an unscheduled one, comes a twelfth to five twelfths of
    /// the lease later.
    #[doc(hidden)]
    pub fn renewal_due(
        &self,
        hold: u64,
        taken: Instant,
        sent: Instant,
        lease: Duration,
    ) -> Option<Instant> {
        self.lease_at(taken, sent + lease)?;
        let period = nanos(self.lease / 3).max(1);
        let earliest = nanos((sent - taken) + self.lease / 12);
        let periods = earliest
            .saturating_sub(phase(hold, period))
            .div_ceil(period);
        let due = phase(hold, period).saturating_add(periods.saturating_mul(period));
        let latest = sent + lease / 12 * 5;
        self.renewed
            .then(|| (taken + Duration::from_nanos(due)).min(latest))
    }
}

/// The phase of a hold's renewals within `period`. The golden ratio spreads
/// consecutive numbers evenly over the whole period.
fn phase(hold: u64, period: u64) -> u64 {
    let turn = u128::from(hold.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    u64::try_from((turn * u128::from(period)) >> 64).unwrap_or(0)
}

/// Until when a lease that was requested at `sent` is valid on this machine.
///
/// The lease began on the server after `sent`, so it ends there later than
/// counted here. But the server rounds to whole milliseconds, this machine's
/// timers are late, and the two clocks do not run equally fast. The margin for
/// these is Redlock's: 2 ms and a hundredth of the lease.
pub fn validity_end(sent: Instant, lease: Duration) -> Instant {
    sent + lease.saturating_sub(drift(lease))
}

/// When a lease is certainly over at the server, which gave it at `given` at the
/// latest: the same margin later.
pub fn lease_over(given: Instant, lease: Duration) -> Instant {
    given + lease + drift(lease)
}

fn drift(lease: Duration) -> Duration {
    Duration::from_millis(2) + lease / 100
}

/// `duration` in whole milliseconds, rounded up; 1 ms to 30 days.
pub fn whole_ms(argument: &'static str, duration: Duration) -> Result<Duration, Error> {
    let shortest = Duration::from_millis(1);
    let limit = "more than zero and at most 30 days";
    within(argument, duration, shortest, limit)
}

/// The same for an argument that may be zero.
pub fn whole_ms_or_zero(argument: &'static str, duration: Duration) -> Result<Duration, Error> {
    within(argument, duration, Duration::ZERO, "at most 30 days")
}

/// `lease` in whole milliseconds, rounded up; 3 ms to 30 days.
pub fn lease_ms(argument: &'static str, lease: Duration) -> Result<Duration, Error> {
    within(argument, lease, LEASE_MIN, "from 3 ms to 30 days")
}

fn within(
    argument: &'static str,
    duration: Duration,
    shortest: Duration,
    limit: &'static str,
) -> Result<Duration, Error> {
    let whole = Duration::from_millis(millis(duration));
    if whole < shortest || duration > DURATION_MAX {
        return Err(Error::OutOfRange {
            argument,
            value: format!("{duration:?}"),
            limit: limit.into(),
        });
    }
    Ok(whole)
}

/// `duration` in milliseconds, rounded up, as the wire has it.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The mode in which a lock is requested and held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Exclusive: by one owner.
    Exclusive,
    /// Shared with all other shared holders.
    Shared,
    /// `permits` of at most `limit`; every caller names the limit itself.
    Permits {
        /// The number of permits of the semaphore.
        limit: u32,
        /// The number of permits to take; from 1.
        permits: u32,
    },
}

impl Ask {
    /// `permits` of `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a limit of zero or above 1,000,000, and for
    /// permits of zero or above the limit.
    pub fn of_permits(permits: u32, limit: u32) -> Result<Self, Error> {
        in_range("permits", limit, PERMITS_MAX)?;
        in_range("permits", permits, limit)?;
        Ok(Self::Permits { limit, permits })
    }

    /// Checks that a request for several keys can have this mode.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for any mode except exclusive.
    pub fn check_for_several(self) -> Result<(), Error> {
        match self {
            Self::Exclusive => Ok(()),
            Self::Shared | Self::Permits { .. } => Err(Error::OutOfRange {
                argument: "mode",
                value: format!("{self:?}"),
                limit: "exclusive for several keys".into(),
            }),
        }
    }

    /// Whether nobody else can hold the lock at the same time.
    pub fn is_exclusive(self) -> bool {
        self == Self::Exclusive
    }

    /// The number of permits of a hold in this mode.
    pub fn permits(self) -> u32 {
        match self {
            Self::Exclusive | Self::Shared => 1,
            Self::Permits { permits, .. } => permits,
        }
    }

    /// What stays, and a part of `permits`; none unless both have some.
    pub fn split(self, permits: u32) -> Option<(Self, Self)> {
        let rest = self.permits().checked_sub(permits)?;
        match self {
            Self::Permits { limit, .. } if rest > 0 && permits > 0 => {
                let part = |permits| Self::Permits { limit, permits };
                Some((part(rest), part(permits)))
            }
            _ => None,
        }
    }

    /// Both together; none unless both are permits of one limit.
    pub fn merge(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Permits { limit, permits }, Self::Permits { limit: same, .. })
                if limit == same =>
            {
                let permits = permits.saturating_add(other.permits());
                Some(Self::Permits { limit, permits })
            }
            _ => None,
        }
    }
}

/// The largest number of permits of a semaphore.
const PERMITS_MAX: u32 = 1_000_000;

fn in_range(argument: &'static str, permits: u32, most: u32) -> Result<(), Error> {
    if (1..=most).contains(&permits) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        argument,
        value: permits.to_string(),
        limit: format!("from 1 to {most}").into(),
    })
}

/// The longest value.
const VALUE_LEN_MAX: usize = 1024;

/// The value that an exclusive holder publishes with a lock: 0 to 1024 bytes of
/// any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// Makes a value of these bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for more than 1024 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > VALUE_LEN_MAX {
            return Err(Error::OutOfRange {
                argument: "value",
                value: format!("{} bytes", bytes.len()),
                limit: format!("from 0 to {VALUE_LEN_MAX} bytes").into(),
            });
        }
        Ok(Self(bytes.into()))
    }

    /// The bytes of the value.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Whether and how long a request waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// It does not wait.
    Try,
    /// It waits in the server's queue for at most this long.
    AtMost(Duration),
    /// It waits in the server's queue without limit.
    Unlimited,
}

impl Queueing {
    /// Waits for at most `wait`; not at all for zero.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] above 30 days.
    pub fn at_most(wait: Duration) -> Result<Self, Error> {
        let wait = whole_ms_or_zero("wait", wait)?;
        Ok(match wait.is_zero() {
            true => Self::Try,
            false => Self::AtMost(wait),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_millisecond_are_rounded_up() {
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_micros(1001)), 2);
        assert_eq!(millis(Duration::from_millis(7)), 7);
    }

    #[test]
    fn a_value_has_at_most_1024_bytes() {
        assert_eq!(Value::new(&[0; 1024]).unwrap().as_bytes().len(), 1024);
        let error = Value::new(&[0; 1025]).unwrap_err().to_string();
        for part in ["value", "1025 bytes", "from 0 to 1024 bytes"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_margin_is_at_most_a_third_of_the_lease_of_the_grace_and_of_max_hold() {
        let second = Duration::from_secs(1);
        let terms = Terms::new().margin(10 * second).unwrap();
        let refused = [
            terms.margin(10 * second + Duration::from_nanos(1)),
            terms.lease(29 * second),
            terms.bound(29 * second),
            terms.bound(Duration::ZERO),
            terms.max_hold(29 * second),
        ];
        for refused in refused {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("margin is 10"), "{error}");
            assert!(error.contains("at most a third of the lease"), "{error}");
        }
    }

    #[test]
    fn zero_and_more_than_thirty_days_are_out_of_range() {
        let over = DURATION_MAX + Duration::from_nanos(1);
        let refused = |outcome: Result<Duration, Error>| outcome.unwrap_err().to_string();
        let lease = "it must be more than zero and at most 30 days";
        assert!(refused(whole_ms("lease", Duration::ZERO)).contains(lease));
        assert!(refused(whole_ms("lease", over)).contains(lease));
        assert!(whole_ms("lease", DURATION_MAX).is_ok());
        let wait = "wait is 2592000.000000001s, it must be at most 30 days";
        assert_eq!(refused(whole_ms_or_zero("wait", over)), wait);
        assert!(whole_ms_or_zero("wait", Duration::ZERO).is_ok());
    }

    #[test]
    fn validity_ends_before_the_lease() {
        let sent = Instant::from_nanos(1_000_000_000_000);
        let lease = Duration::from_secs(10);
        assert_eq!(
            validity_end(sent, lease),
            sent + (lease - Duration::from_millis(102))
        );
        assert_eq!(validity_end(sent, Duration::from_millis(1)), sent);
        assert_eq!(
            lease_over(sent, lease),
            sent + lease + Duration::from_millis(102)
        );
    }

    #[test]
    fn a_lease_that_is_never_valid_is_out_of_range() {
        let sent = Instant::from_nanos(1_000_000_000_000);
        assert_eq!(lease_ms("lease", LEASE_MIN).unwrap(), LEASE_MIN);
        assert!(validity_end(sent, LEASE_MIN) > sent);
        let shorter = LEASE_MIN - Duration::from_millis(1);
        assert_eq!(validity_end(sent, shorter), sent);
        let error = lease_ms("lease", shorter).unwrap_err().to_string();
        assert_eq!(error, "lease is 2ms, it must be from 3 ms to 30 days");
        assert!(Terms::new().max_hold(shorter).is_err());
    }

    #[test]
    fn renewals_are_a_third_of_the_lease_apart() {
        let (terms, taken) = (Terms::default(), Instant::from_nanos(1_000_000_000_000));
        for hold in 0..100 {
            let due = |sent| terms.renewal_due(hold, taken, sent, terms.lease).unwrap();
            let first = due(taken);
            assert!(first >= taken + terms.lease / 12, "{:?}", first - taken);
            assert!(first <= taken + terms.lease / 12 * 5);
            assert_eq!(due(first), first + terms.lease / 3);
            // Even after a late or an unscheduled renewal.
            let late = first + Duration::from_secs(1);
            assert_eq!(due(late), first + terms.lease / 3);
            let early = taken + ((first - taken) - Duration::from_secs(1));
            assert!(due(early) == first + terms.lease / 3 || due(early) == first);
        }
    }

    #[test]
    fn holds_taken_at_once_are_renewed_evenly() {
        let (terms, taken) = (Terms::default(), Instant::from_nanos(1_000_000_000_000));
        let mut per_second = [0; 10];
        // A hold takes every other number, because its owner has one too.
        for hold in (0..20_000).step_by(2) {
            let due = terms.renewal_due(hold, taken, taken, terms.lease).unwrap();
            let later = (due - taken) - terms.lease / 12;
            per_second[usize::try_from(later.as_secs()).unwrap().min(9)] += 1;
        }
        assert!(
            per_second.iter().all(|count| (990..=1010).contains(count)),
            "{per_second:?}"
        );
    }

    #[test]
    fn the_last_renewal_asks_for_the_rest_of_max_hold_only() {
        let max_hold = Some(Duration::from_secs(10));
        let terms = Terms {
            lease: Duration::from_secs(6),
            max_hold,
            ..Terms::default()
        };
        let taken = Instant::from_nanos(1_000_000_000_000);
        let at = |seconds| terms.lease_at(taken, taken + Duration::from_secs(seconds));
        assert_eq!(at(0), Some(Duration::from_secs(6)));
        assert_eq!(at(7), Some(Duration::from_secs(3)));
        assert_eq!(at(10), None);
        assert_eq!(at(11), None);
    }
}
