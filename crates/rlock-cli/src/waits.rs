//! The waits of requests that were granted from the queue: the histogram
//! `wait_usec_histogram` of `INFO rlock`.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock_client::Counters;

/// The bound of the last bucket, `le_inf`.
const INFINITE: u64 = u64::MAX;

/// A cumulative histogram of waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// The counts by upper bound in microseconds. Each count includes the
    /// smaller bounds.
    up_to: BTreeMap<u64, u64>,
    sum_usec: u64,
}

impl Waits {
    /// All waits since the module was loaded. None if the module does not have
    /// the histogram.
    pub(crate) fn read(counters: &Counters) -> Option<Self> {
        let mut waits = Self::default();
        for field in counters.texts.get("wait_usec_histogram")?.split(',') {
            let (name, value) = field.split_once('=')?;
            let value = value.parse().ok()?;
            match name.strip_prefix("le_") {
                Some("inf") => waits.up_to.insert(INFINITE, value),
                Some(bound) => waits.up_to.insert(bound.parse().ok()?, value),
                None if name == "sum" => {
                    waits.sum_usec = value;
                    None
                }
                None => None,
            };
        }
        waits.up_to.contains_key(&INFINITE).then_some(waits)
    }

    /// The waits that ended since `earlier`. A restarted server counts from
    /// zero, so all of its waits are newer.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        if self.count() < earlier.count() || self.sum_usec < earlier.sum_usec {
            return self.clone();
        }
        self.with(earlier, u64::saturating_sub)
    }

    /// The waits of all masters together; none if there are no masters.
    pub(crate) fn total<'a>(masters: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let mut masters = masters.cloned();
        let first = masters.next()?;
        Some(masters.fold(first, |all, one| all.with(&one, u64::saturating_add)))
    }

    /// Combines two histograms by their common bounds: modules of different
    /// versions may have different bounds.
    fn with(&self, other: &Self, together: impl Fn(u64, u64) -> u64) -> Self {
        let both = self.up_to.iter().filter_map(|(bound, count)| {
            let others = other.up_to.get(bound)?;
            Some((*bound, together(*count, *others)))
        });
        Self {
            up_to: both.collect(),
            sum_usec: together(self.sum_usec, other.sum_usec),
        }
    }

    /// The number of waits.
    pub(crate) fn count(&self) -> u64 {
        self.up_to.get(&INFINITE).copied().unwrap_or_default()
    }

    /// The sum of all waits.
    pub(crate) fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_usec)
    }

    /// The finite bounds, the shortest first, each with the number of waits up
    /// to it.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let finite = self.up_to.iter().filter(|(bound, _)| **bound != INFINITE);
        finite.map(|(bound, count)| (Duration::from_micros(*bound), *count))
    }

    /// The quantile of a share from 0 to 1; none if there are no waits.
    ///
    /// Between two bounds it assumes that the waits are evenly spread, like
    /// Prometheus. For longer waits it returns the largest finite bound.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        if self.count() == 0 {
            return None;
        }
        let rank = share * float(self.count());
        let (mut below, mut before) = (Duration::ZERO, 0);
        for (bound, count) in self.buckets() {
            if float(count) >= rank && count > before {
                let part = (rank - float(before)) / float(count - before);
                return Some(below + (bound - below).mul_f64(part.clamp(0.0, 1.0)));
            }
            (below, before) = (bound, count);
        }
        Some(below)
    }
}

/// Exact up to 2^53, more than any count here.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(histogram: &str) -> Option<Waits> {
        let mut counters = Counters::default();
        let name = "wait_usec_histogram".to_owned();
        counters.texts.insert(name, histogram.to_owned());
        Waits::read(&counters)
    }

    fn waits(histogram: &str) -> Waits {
        read(histogram).unwrap_or_else(|| panic!("{histogram}"))
    }

    fn usec(usec: u64) -> Option<Duration> {
        Some(Duration::from_micros(usec))
    }

    #[test]
    fn what_the_server_writes_is_read() {
        let waits = waits("le_100=1,le_1000=5,le_inf=9,sum=123456,more=3");
        assert_eq!((waits.count(), Some(waits.sum())), (9, usec(123_456)));
        let buckets: Vec<_> = waits.buckets().collect();
        let [first, second] = [(100, 1), (1000, 5)].map(|(at, n)| (Duration::from_micros(at), n));
        assert_eq!(buckets, [first, second]);
    }

    #[test]
    fn what_is_missing_or_no_histogram_is_none() {
        assert_eq!(Waits::read(&Counters::default()), None);
        for bad in [
            "",
            "le_100=1,sum=1",
            "le_x=1,le_inf=1",
            "le_inf",
            "le_inf=-1",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_quantile_is_estimated_within_its_bucket() {
        let waits = waits("le_100=0,le_200=50,le_1000=100,le_inf=100,sum=0");
        assert_eq!(waits.quantile(0.0), usec(100));
        assert_eq!(waits.quantile(0.25), usec(150));
        assert_eq!(waits.quantile(0.5), usec(200));
        assert_eq!(waits.quantile(0.75), usec(600));
        assert_eq!(waits.quantile(1.0), usec(1000));
    }

    #[test]
    fn a_wait_beyond_all_bounds_counts_as_the_largest_bound() {
        let waits = waits("le_100=1,le_200=1,le_inf=100,sum=0");
        assert_eq!(waits.quantile(0.99), usec(200));
    }

    #[test]
    fn nobody_has_no_quantile() {
        assert_eq!(waits("le_100=0,le_inf=0,sum=0").quantile(0.5), None);
    }

    #[test]
    fn waits_since_an_earlier_histogram_are_counted_alone() {
        let earlier = waits("le_100=90,le_1000=90,le_inf=90,sum=900");
        let now = waits("le_100=90,le_1000=92,le_inf=93,sum=9900");
        let since = now.since(&earlier);
        assert_eq!(since, waits("le_100=0,le_1000=2,le_inf=3,sum=9000"));
        assert_eq!(since.quantile(0.5), usec(775));
        assert_eq!(now.since(&now).quantile(0.5), None);
    }

    #[test]
    fn a_restarted_server_has_only_newer_waits() {
        let now = waits("le_100=2,le_inf=2,sum=9");
        assert_eq!(now.since(&waits("le_100=3,le_inf=3,sum=4")), now);
        assert_eq!(now.since(&waits("le_100=2,le_inf=2,sum=10")), now);
    }

    #[test]
    fn masters_add_up_by_the_bounds_that_all_have() {
        let one = waits("le_100=1,le_200=2,le_inf=3,sum=5");
        let other = waits("le_200=20,le_300=25,le_inf=30,sum=50");
        let total = Waits::total([&one, &other].into_iter());
        assert_eq!(total, Some(waits("le_200=22,le_inf=33,sum=55")));
        assert_eq!(Waits::total(std::iter::empty()), None);
    }
}
