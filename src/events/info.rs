//! `INFO rlock`.

use rlock_core::{Counters, Gauges};

use crate::{
    api::{Context, Section, entry},
    state::{self, State},
};

/// Writes the section.
pub(super) fn report(ctx: &Context, section: &Section) {
    section.text("version", env!("CARGO_PKG_VERSION"));
    section.text("commit", env!("RLOCK_COMMIT"));
    state::inspect(|state| {
        let (counters, gauges) = (counters(state), gauges(state, ctx));
        for (metric, value) in counters.values().chain(gauges.values()) {
            section.number(metric.name, value);
        }
        let waits = state.deliveries.waits.fields();
        section.numbers("wait_usec_histogram", waits);
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
        replicas: ctx.replicas().unwrap_or_default(),
        write_errors: ctx.write_errors(),
        ..state.locks.gauges()
    }
}
