//! The fields of `INFO rlock`, each defined once: its name there and in
//! Prometheus, and its meaning.

/// A field of `INFO rlock`.
#[derive(Debug)]
pub struct Metric {
    /// Its name, without the prefix `rlock_`.
    pub name: &'static str,
    /// Its name in Prometheus, without the same prefix.
    pub prometheus: &'static str,
    /// The factor to its unit in Prometheus, where times are in seconds.
    pub unit: f64,
    /// How the values of several servers are combined.
    pub kind: MetricKind,
    /// Its meaning.
    pub help: &'static str,
}

/// How a field changes, and how the values of several servers are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows while the module is loaded. Several servers: the sum.
    Counter,
    /// It goes up and down. Several servers: the sum.
    Gauge,
    /// It goes up and down. Several servers: the largest value.
    Largest,
}

impl Metric {
    /// All fields, in the order of `INFO rlock`.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        Counters::METRICS.iter().chain(Gauges::METRICS)
    }
}

/// Defines a structure of numbers, and their metrics.
macro_rules! metrics {
    (
        $(#[$about:meta])*
        $structure:ident {
            $($(#[$more:meta])* $name:ident = $prometheus:expr, $unit:literal, $kind:ident, $help:literal;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $structure {
            $(
                #[doc = $help]
                $(#[$more])*
                pub $name: u64,
            )*
        }

        impl $structure {
            /// The metric of each field.
            pub const METRICS: &'static [Metric] = &[
                $(Metric {
                    name: stringify!($name),
                    prometheus: $prometheus,
                    unit: $unit,
                    kind: MetricKind::$kind,
                    help: $help,
                },)*
            ];

            /// Each metric with its value.
            pub fn values(&self) -> impl Iterator<Item = (&'static Metric, u64)> {
                Self::METRICS.iter().zip([$(self.$name),*])
            }
        }
    };
}

/// A counter; in Prometheus its name ends with `_total`.
macro_rules! counters {
    ($($(#[$more:meta])* $name:ident = $help:literal;)*) => {
        metrics! {
            /// Events since the start.
            Counters {
                $($(#[$more])* $name = concat!(stringify!($name), "_total"), 1.0, Counter, $help;)*
            }
        }
    };
}

counters! {
    acquires = "Well-formed requests for a lock, whatever their answer.";
    grants = "Fences given: at once, by hand-off, and to holders that ask again.";
    refusals = "Requests answered by nil at once.";
    /// A takeover does not count.
    waits = "Requests that were queued.";
    handoffs = "Requests granted from the queue.";
    wait_timeouts = "Waits that were over without a grant.";
    /// A kept place counts when its call ends.
    waiters_gone = "Waiters that left without RLOCK.CANCEL.";
    lease_expirations = "Leases whose end the module has seen.";
    renewals = "Renewals, each lock.";
    releases = "Releases that ended a hold, each lock.";
    force_releases = "Holds ended by RLOCK.FORCE.";
    deadlocks = "Requests refused with DEADLOCK.";
    undelivered_grants = "Grants that did not reach a blocked waiter and were passed on.";
    /// The owner of the `Locks` counts them.
    evicted_locks = "Locks evicted while somebody waited for them or watched them.";
    /// The code that catches them counts them.
    panics = "Panics caught in the module.";
}

metrics! {
    /// The current state. The shell fills in the last seven.
    Gauges {
        waiters = "waiters", 1.0, Gauge,
            "Places in queues, of at most rlock.max-waiters.";
        places_kept = "places_kept", 1.0, Gauge,
            "Places that are kept while nobody waits in them.";
        contended_locks = "contended_locks", 1.0, Gauge,
            "Locks that have places in their queue.";
        bound_holds = "bound_holds", 1.0, Gauge,
            "Holds that end with their connection.";
        watches = "watches", 1.0, Gauge,
            "Holds and requests with NOTIFY or BIND, of at most rlock.max-watches.";
        wait_usec_p50 = "wait_p50_seconds", 1e-6, Largest,
            "Median wait of those granted from the queue since the module was loaded.";
        wait_usec_p99 = "wait_p99_seconds", 1e-6, Largest,
            "99 % of those granted from the queue waited no longer than this.";
        wait_usec_max = "wait_max_seconds", 1e-6, Largest,
            "The longest wait of those granted from the queue.";
        eviction_risk = "eviction_risk", 1.0, Largest,
            "1 while maxmemory-policy could evict locks.";
        grace_left_ms = "grace_left_seconds", 1e-3, Largest,
            "What is left of rlock.startup-grace-ms.";
        replicas = "replicas", 1.0, Gauge,
            "Replicas that are connected to this server.";
        write_errors = "write_errors", 1.0, Gauge,
            "How many of these two failed: the last write to the AOF, and the last dump.";
    }
}
