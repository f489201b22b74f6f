//! Keeps the connection known to be there while holds are bound to it.
//!
//! When it ends, a bound hold counts only for its grace from when the
//! connection was last known to be there. If that were the last renewal, an
//! end after a quiet time would lose holds that the server still has. So a
//! quiet connection is asked for a sign of life four times in the shortest
//! grace; and given up if none comes for half of it, so that its end is seen
//! here before the grace can be over on the server.

use std::time::{Duration, Instant};

use crate::net::state::State;

/// At most ten signs of life a second are asked for, and at least one in five
/// seconds.
const RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Asks for signs of life whenever they are due. Ends only with its task.
pub(crate) async fn keep(state: &State) {
    loop {
        let Some(grace) = state.pulse.shortest() else {
            state.pulse.shortened().await;
            continue;
        };
        let next = ask_if_quiet(state, grace).await;
        let _ = tokio::time::timeout(next, state.pulse.shortened()).await;
    }
}

/// Asks if the last sign is too old; when to look again.
async fn ask_if_quiet(state: &State, grace: Duration) -> Duration {
    let interval = (grace / 4).clamp(RANGE.0, RANGE.1);
    let Some(link) = state.link_now() else {
        return interval;
    };
    let age = Instant::now().saturating_duration_since(link.known_good());
    if age < interval {
        return interval - age;
    }
    // Any answer is one, a refusal too.
    let ping = redis::cmd("PING");
    let answer = tokio::time::timeout((grace / 2).max(RANGE.0), link.ask(&ping)).await;
    if answer.is_err() {
        link.retire();
    }
    interval
}
