//! The histogram of the waits that ended with a grant from the queue.

/// The upper bounds of the counts, in microseconds: from 100 µs, little more than
/// a hand-off takes, to 10 minutes.
///
/// A quantile is estimated between two bounds. Up to 10 seconds each bound is at
/// most 2.5 times the previous one, because there the wait depends on a service's
/// work under a lock. Above that it is at most 5 times, because there something
/// is stuck. Each bound is one more series in Prometheus for each master.
const BOUNDS_USEC: [u64; 20] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    600_000_000,
];

/// The waits that ended with a grant: their number, by length, and their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The number of waits above the previous bound, and not above the bound at
    /// the same index. The last count has no bound.
    counts: [u64; BOUNDS_USEC.len() + 1],
    sum_usec: u64,
}

impl Waits {
    /// Records a wait, in microseconds.
    pub fn record(&mut self, usec: u64) {
        let place = BOUNDS_USEC.partition_point(|bound| *bound < usec);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.sum_usec = self.sum_usec.saturating_add(usec);
    }

    /// The fields of `wait_usec_histogram` in `INFO rlock`: for each bound, the
    /// number of waits up to it; the number of all waits; their sum.
    pub fn fields(&self) -> impl Iterator<Item = (String, u64)> {
        let bounds = BOUNDS_USEC.iter().map(ToString::to_string);
        let bounds = bounds.chain(["inf".to_owned()]);
        let up_to = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        let counts = bounds.zip(up_to);
        let counts = counts.map(|(bound, count)| (format!("le_{bound}"), count));
        counts.chain([("sum".to_owned(), self.sum_usec)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(waits: &Waits, name: &str) -> u64 {
        let mut fields = waits.fields();
        let field = fields.find(|field| field.0 == name);
        field.unwrap_or_else(|| panic!("no {name}")).1
    }

    #[test]
    fn a_wait_counts_up_to_each_bound_that_it_did_not_exceed() {
        let mut waits = Waits::default();
        for usec in [0, 100, 101, 600_000_000, 600_000_001] {
            waits.record(usec);
        }
        let counts = ["le_100", "le_250", "le_300000000", "le_600000000", "le_inf"];
        let counts = counts.map(|name| value(&waits, name));
        assert_eq!(counts, [2, 3, 3, 4, 5]);
        assert_eq!(value(&waits, "sum"), 1_200_000_202);
    }

    #[test]
    fn each_bound_is_a_field_and_its_own_upper_bound() {
        for bound in BOUNDS_USEC {
            let mut waits = Waits::default();
            waits.record(bound);
            waits.record(bound + 1);
            assert_eq!(value(&waits, &format!("le_{bound}")), 1);
        }
        assert_eq!(Waits::default().fields().count(), BOUNDS_USEC.len() + 2);
        assert!(BOUNDS_USEC.is_sorted());
    }

    #[test]
    fn the_longest_waits_do_not_overflow() {
        let mut waits = Waits::default();
        waits.record(u64::MAX);
        waits.record(u64::MAX);
        assert_eq!(
            (value(&waits, "le_inf"), value(&waits, "sum")),
            (2, u64::MAX)
        );
    }
}
