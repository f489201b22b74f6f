//! The numbers of `INFO rlock`, and how fast they grow.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock_core::{Metric, MetricKind};
use serde::Serialize;

/// The kind of the number with this name. A server may have counters that this
/// program does not know.
fn kind(name: &str) -> MetricKind {
    let metric = Metric::all().find(|it| it.name == name);
    metric.map_or(MetricKind::Counter, |it| it.kind)
}

/// All numbers by name, without the module's prefix.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    pub(crate) fn new(counters: &rlock_client::Counters) -> Self {
        Self(counters.numbers.clone())
    }

    /// The numbers of all masters together: sums, or the largest where a sum
    /// means nothing.
    pub(crate) fn total<'a>(masters: impl Iterator<Item = &'a Self>) -> Self {
        let mut total = BTreeMap::new();
        for (name, number) in masters.flat_map(|master| &master.0) {
            let known: &mut u64 = total.entry(name.clone()).or_default();
            *known = match kind(name) {
                MetricKind::Largest => (*known).max(*number),
                MetricKind::Counter | MetricKind::Gauge => known.saturating_add(*number),
            };
        }
        Self(total)
    }

    /// The number with this name; zero if there is none.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// How much each count has grown since `before`, `elapsed` ago.
    ///
    /// A restarted server counts from zero. The rate is then zero.
    pub(crate) fn rates(&self, before: &Self, elapsed: Duration) -> Rates {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let counts = self
            .0
            .iter()
            .filter(|(name, _)| kind(name) == MetricKind::Counter);
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
    /// The rates of all masters together.
    pub(crate) fn total(masters: impl Iterator<Item = Self>) -> Self {
        let mut total = BTreeMap::new();
        for (name, rate) in masters.flat_map(|master| master.0) {
            let known: &mut f64 = total.entry(name).or_default();
            *known = ((*known + rate) * 10.0).round() / 10.0;
        }
        Self(total)
    }

    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// The names of the rates above zero.
    pub(crate) fn moving(&self) -> impl Iterator<Item = &str> {
        let moving = self.0.iter().filter(|(_, rate)| **rate > 0.0);
        moving.map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(grants: u64) -> Counters {
        let numbers = [
            ("grants", grants),
            ("waiters", 9),
            ("wait_usec_max", grants),
        ];
        let numbers = numbers.map(|(name, number)| (name.to_owned(), number));
        Counters(numbers.into())
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

    #[test]
    fn masters_add_up_except_for_the_longest_wait() {
        let (one, other) = (counters(30), counters(12));
        let total = Counters::total([&one, &other].into_iter());
        let number = |name| total.get(name);
        assert_eq!(
            (number("grants"), number("waiters"), number("wait_usec_max")),
            (42, 18, 30)
        );
        let second = Duration::from_secs(1);
        let rates = [one, other].map(|it| it.rates(&counters(10), second));
        assert!((Rates::total(rates.into_iter()).get("grants") - 22.0).abs() < 1e-9);
    }
}
