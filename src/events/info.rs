//! `INFO rlock`.

use rlock_core::Locks;

use crate::{
    api::{Context, entry},
    state,
};

/// Adds the fields of the section, each by `add`.
pub(super) fn report(ctx: &Context, add: &dyn Fn(&str, u64)) {
    state::look(|state| {
        counters(&state.locks, add);
        add("evicted_locks", state.evicted_locks);
        add("panics", entry::panics());
        gauges(&state.locks, add);
        let [p50, p99, max] = state.wait_usec();
        add("wait_usec_p50", p50);
        add("wait_usec_p99", p99);
        add("wait_usec_max", max);
    });
    add("eviction_risk", u64::from(ctx.flags().may_evict()));
    let left = state::look(|state| state.grace_left().as_millis());
    let left = left.and_then(|left| u64::try_from(left).ok());
    add("grace_left_ms", left.unwrap_or_default());
}

fn counters(locks: &Locks, add: &dyn Fn(&str, u64)) {
    let counters = locks.counters();
    add("acquires", counters.acquires);
    add("grants", counters.grants);
    add("refusals", counters.refusals);
    add("waits", counters.waits);
    add("handoffs", counters.handoffs);
    add("wait_timeouts", counters.wait_timeouts);
    add("waiters_gone", counters.waiters_gone);
    add("lease_expirations", counters.lease_expirations);
    add("renewals", counters.renewals);
    add("releases", counters.releases);
    add("force_releases", counters.force_releases);
    add("deadlocks", counters.deadlocks);
    add("undelivered_grants", counters.undelivered_grants);
}

fn gauges(locks: &Locks, add: &dyn Fn(&str, u64)) {
    let gauges = locks.gauges();
    add("waiters", gauges.waiters);
    add("places_kept", gauges.places_kept);
    add("contended_locks", gauges.contended_locks);
    add("bound_holds", gauges.bound_holds);
    add("watches", gauges.watches);
}
