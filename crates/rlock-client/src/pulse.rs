//! Keeps the connection known to be there while holds are bound to it.
//!
//! When it ends, a bound hold counts only for its grace from when the
//! connection was last known to be there. If that were the last renewal, an
//! end after a quiet time would lose holds that the server still has. So a
//! quiet connection is asked for a sign of life four times in the shortest
//! grace; and given up if none comes for half of it, so that its end is seen
//! here before the grace can be over on the server.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::state::State;
use crate::sync::lock;

/// At most ten signs of life a second are asked for, and at least one in five
/// seconds.
const RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The graces of the bound holds there are, each with how many have it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    graces: Mutex<BTreeMap<Duration, usize>>,
    changed: Notify,
}

impl Pulse {
    /// Notes a hold with that grace; one that is not bound has none.
    pub(crate) fn add(&self, grace: Option<Duration>) {
        let Some(grace) = grace.filter(|grace| !grace.is_zero()) else {
            return;
        };
        let mut graces = lock(&self.graces);
        let is_shortest = graces
            .keys()
            .next()
            .is_none_or(|shortest| grace < *shortest);
        *graces.entry(grace).or_default() += 1;
        if is_shortest {
            self.changed.notify_one();
        }
    }

    pub(crate) fn remove(&self, grace: Option<Duration>) {
        let Some(grace) = grace else { return };
        let mut graces = lock(&self.graces);
        if let Some(count) = graces.get_mut(&grace) {
            *count -= 1;
            if *count == 0 {
                graces.remove(&grace);
            }
        }
    }

    /// The shortest grace; `None` if nothing is bound.
    fn shortest(&self) -> Option<Duration> {
        lock(&self.graces).keys().next().copied()
    }
}

/// Asks for signs of life whenever they are due. Ends only with its task.
pub(crate) async fn keep(state: &State) {
    loop {
        let Some(grace) = state.pulse.shortest() else {
            state.pulse.changed.notified().await;
            continue;
        };
        let next = ask_if_quiet(state, grace).await;
        let _ = tokio::time::timeout(next, state.pulse.changed.notified()).await;
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
