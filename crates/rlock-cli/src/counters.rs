//! The numbers of `INFO rlock`, and how fast they grow.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::InfoDict;
use serde::Serialize;

/// What is no count of something since the start, and has no rate.
const GAUGES: [&str; 10] = [
    "waiters",
    "places_kept",
    "contended_locks",
    "bound_holds",
    "watches",
    "wait_usec_p50",
    "wait_usec_p99",
    "wait_usec_max",
    "eviction_risk",
    "grace_left_ms",
];

/// All numbers by name, without the module's prefix.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Takes what is the module's; nothing if the server does not have it.
    pub(crate) fn new(info: &InfoDict) -> Self {
        let numbers = info.keys().filter_map(|field| {
            let name = field.strip_prefix("rlock_")?;
            Some((name.to_owned(), info.get(field)?))
        });
        Self(numbers.collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Zero if there is none of this name.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// How much each count has grown since `before`, `elapsed` ago.
    ///
    /// A server that was started anew counts from zero: the rate is zero then.
    pub(crate) fn rates(&self, before: &Self, elapsed: Duration) -> Rates {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let counts = self
            .0
            .iter()
            .filter(|(name, _)| !GAUGES.contains(&name.as_str()));
        let rate = |(name, now): (&String, &u64)| {
            let grown = u32::try_from(now.saturating_sub(before.get(name))).unwrap_or(u32::MAX);
            let tenths = (f64::from(grown) / seconds * 10.0).round() / 10.0;
            (name.clone(), tenths)
        };
        Rates(counts.map(rate).collect())
    }
}

/// Per second, rounded to tenths.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Rates(BTreeMap<String, f64>);

impl Rates {
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(grants: u64) -> Counters {
        let section = format!("# rlock\r\nrlock_grants:{grants}\r\nrlock_waiters:9\r\n");
        Counters::new(&InfoDict::new(&section))
    }

    #[test]
    fn a_rate_is_growth_over_time() {
        let rates = counters(30).rates(&counters(10), Duration::from_secs(4));
        assert!((rates.get("grants") - 5.0).abs() < 1e-9);
    }

    #[test]
    fn a_gauge_has_no_rate() {
        let rates = counters(30).rates(&Counters::default(), Duration::from_secs(1));
        assert_eq!(rates.0.keys().collect::<Vec<_>>(), ["grants"]);
    }

    #[test]
    fn a_restarted_server_has_no_negative_rate() {
        let rates = counters(1).rates(&counters(10), Duration::ZERO);
        assert!(rates.get("grants").abs() < 1e-9);
    }
}
