//! What has happened since the start, counted where it is decided.

/// Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Well-formed requests to acquire.
    pub acquires: u64,
    /// Fences given: at once, by hand-off, to holders that ask again.
    pub grants: u64,
    /// Requests that were answered with nil at once.
    pub refusals: u64,
    /// Requests that were queued; a takeover is none.
    pub waits: u64,
    /// Grants from the queue.
    pub handoffs: u64,
    /// Waits that ended without a grant.
    pub wait_timeouts: u64,
    /// Waiters that left without asking for it; a kept place counts when its
    /// call ends.
    pub waiters_gone: u64,
    /// Leases that were seen to have ended.
    pub lease_expirations: u64,
    /// Renewals.
    pub renewals: u64,
    /// Releases that ended a hold.
    pub releases: u64,
    /// Holds ended by force.
    pub force_releases: u64,
    /// Requests that were refused as they would have closed a cycle.
    pub deadlocks: u64,
    /// Grants that did not reach the waiter and were passed on.
    pub undelivered_grants: u64,
}

/// What there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Places in all queues, one for each key that is asked for, kept ones too.
    pub waiters: u64,
    /// Those of them that are kept.
    pub places_kept: u64,
    /// Locks with a queue.
    pub contended_locks: u64,
    /// Holds, and tickets, whose loss somebody asked to be told of, or that
    /// are bound to a connection.
    pub watches: u64,
    /// Holds that are bound to a connection.
    pub bound_holds: u64,
}
