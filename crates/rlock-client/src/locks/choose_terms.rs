//! The verbs of every builder that choose on which terms a lock is held.

/// For a builder with a field `terms`.
macro_rules! choose_terms {
    () => {
        /// How long a grant lasts unless it is renewed; default 30 s.
        ///
        /// The watchdog renews it about every third of it. So this is how long
        /// others wait after a holder's process has died, and how long a
        /// holder may be out of contact without losing the lock. Rounded up to
        /// whole milliseconds; at most what the server allows (24 h by
        /// default).
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            (self.terms.lease, self.terms.renewed) = (lease, true);
            self
        }

        /// How long a grant lasts; nothing renews it.
        ///
        /// Range and rounding as for [`lease`](Self::lease).
        pub fn fixed_lease(mut self, lease: std::time::Duration) -> Self {
            (self.terms.lease, self.terms.renewed) = (lease, false);
            self
        }

        /// How long the watchdog goes on at most, from the grant; default
        /// without limit, at most 30 days.
        ///
        /// The lock is lost then, if it was not released. It protects others
        /// from a holder that hangs but lives.
        pub fn max_hold(mut self, bound: std::time::Duration) -> Self {
            self.terms.max_hold = Some(bound);
            self
        }
    };
}

/// For a builder with a field `terms` of a lock that can be bound.
macro_rules! choose_bound {
    () => {
        /// Ends a hold `grace` after its connection has ended, if its lease is
        /// not over before; by default the connection does not matter.
        ///
        /// So others wait for the grace, not for a lease, after the holder's
        /// process has died. The client's next connection takes the hold
        /// over, and its lease counts in full again, if it comes within the
        /// grace. Here the grace counts from when the connection was last
        /// known to be there: a hold is lost that was not taken over by then.
        ///
        /// A connection that is quiet is asked for a sign of life four times
        /// in the grace, at most ten times a second and at least every 5 s,
        /// and given up if none comes for half of the grace. So a grace of
        /// some seconds is useful, in which a slow server can answer. One of
        /// zero ends the hold with the connection. At most 30 days, and what
        /// the server allows for leases; rounded up to whole milliseconds.
        ///
        /// A process that was stopped, or a machine that was suspended, sees
        /// the end of its connection only when it runs again. From a grace of
        /// 400 ms on, [`is_valid`](crate::Guard::is_valid) knows better: it is
        /// false once the last sign of life is older than the grace. For a
        /// shorter one rely on the fence in that moment.
        ///
        /// The server must let this client close its own earlier connection
        /// (`CLIENT KILL`): a request that is still under way there could
        /// otherwise take the hold back with it.
        pub fn bound(mut self, grace: std::time::Duration) -> Self {
            self.terms.bound = Some(grace);
            self
        }
    };
}

pub(crate) use {choose_bound, choose_terms};
