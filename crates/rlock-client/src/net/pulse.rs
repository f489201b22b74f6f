//! Keeps the connection known to be there while holds are bound to it, or
//! somebody waits.
//!
//! A grant by message counts from the last sign of life before it. So while
//! somebody waits, a quiet connection is asked for one four times in the
//! shortest lease, once for all who wait.
//!
//! When a connection ends, a bound hold counts only for its grace from when the
//! connection was last known to be there. If that were the last renewal, an
//! end after a quiet time would lose holds that the server still has. So a
//! quiet connection is asked for a sign of life four times in the shortest
//! grace; and given up if none comes for half of it, so that its end is seen
//! here before the grace can be over on the server.

use std::time::Duration;

use crate::engine::clock::Instant;
use crate::net::state::State;

/// At most ten signs of life a second are asked for, and at least one in five
/// seconds.
const RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Asks for signs of life whenever they are due. Ends only with its task.
pub(crate) async fn keep(state: &State) {
    loop {
        let (grace, lease) = (state.pulse.shortest_grace(), state.pulse.shortest_lease());
        let graces = grace.map(|grace| (grace / 4).clamp(RANGE.0, RANGE.1));
        let leases = lease.map(|lease| (lease / 4).max(RANGE.0));
        let Some(interval) = graces.into_iter().chain(leases).min() else {
            state.pulse.shortened().await;
            continue;
        };
        let next = ask_if_quiet(state, interval, grace).await;
        let _ = tokio::time::timeout(next, state.pulse.shortened()).await;
    }
}

/// Asks if the last sign is too old; when to look again.
async fn ask_if_quiet(state: &State, interval: Duration, grace: Option<Duration>) -> Duration {
    let Some(link) = state.link_now() else {
        return interval;
    };
    let age = Instant::now().saturating_duration_since(link.known_good());
    if age < interval {
        return interval - age;
    }
    // Any answer is one, a refusal too.
    let (ping, limit) = (redis::cmd("PING"), state.limits.response);
    let limit = grace.map_or(limit, |grace| (grace / 2).max(RANGE.0));
    let answer = tokio::time::timeout(limit, link.ask(&ping)).await;
    if answer.is_err() {
        link.retire();
    }
    interval
}
