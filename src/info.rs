//! `INFO rlock`.

use std::{ffi::CString, os::raw::c_int};

use rlock_core::Locks;

use crate::{
    api::{Context, entry, raw},
    clock, state,
};

/// Fills the section of the module. Not while the server writes a report of
/// its own crash: then the heap is not to be touched.
pub(crate) unsafe extern "C" fn on_info(
    info: *mut raw::RedisModuleInfoCtx,
    for_crash_report: c_int,
) {
    if for_crash_report != 0 {
        return;
    }
    entry::callback(std::ptr::null_mut(), |ctx| {
        // SAFETY: the server passes a context for this call; without a name the
        // section has the module's.
        unsafe { raw::info_add_section(info, std::ptr::null()) };
        let add = |name: &str, value: u64| {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: as above; the server copies the name.
            unsafe { raw::info_add_field(info, name.as_ptr(), value) };
        };
        state::look(|state| {
            counters(&state.locks, &add);
            add("evicted_locks", state.evicted_locks);
            add("panics", entry::panics());
            gauges(&state.locks, &add);
            let [p50, p99, max] = state.wait_usec();
            add("wait_usec_p50", p50);
            add("wait_usec_p99", p99);
            add("wait_usec_max", max);
        });
        add("eviction_risk", u64::from(evicts(ctx)));
        let now = clock::now();
        let left = state::look(|state| state.grace_ends.millis_from(now));
        add("grace_left_ms", left.unwrap_or_default());
    });
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

/// Whether the server may evict locks when its memory is full. What the flags
/// say does not depend on a client, so a context without one will do.
pub(crate) fn evicts(ctx: &Context) -> bool {
    ctx.flags().may_evict()
}
