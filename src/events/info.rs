//! `INFO rlock`.

use rlock_core::{Counters, Gauges};

use crate::{
    api::{Context, entry},
    state::{self, State},
};

/// Adds the numbers of the section, each by `add`.
pub(super) fn report(ctx: &Context, add: &dyn Fn(&str, u64)) {
    state::look(|state| {
        let (counters, gauges) = (counters(state), gauges(state, ctx));
        for (metric, value) in counters.values().chain(gauges.values()) {
            add(metric.name, value);
        }
    });
}

fn counters(state: &State) -> Counters {
    Counters {
        evicted_locks: state.evicted_locks,
        panics: entry::panics(),
        ..*state.locks.counters()
    }
}

fn gauges(state: &State, ctx: &Context) -> Gauges {
    let [wait_usec_p50, wait_usec_p99, wait_usec_max] = state.deliveries.wait_usec();
    let grace_left_ms = state.serving.grace_left().as_millis();
    Gauges {
        wait_usec_p50,
        wait_usec_p99,
        wait_usec_max,
        eviction_risk: ctx.flags().may_evict().into(),
        grace_left_ms: u64::try_from(grace_left_ms).unwrap_or(u64::MAX),
        ..state.locks.gauges()
    }
}
