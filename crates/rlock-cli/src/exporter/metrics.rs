//! The metrics with Prometheus' names: times in seconds, counters with
//! `_total`.

use std::time::Duration;

use prometheus::proto::{Bucket, Histogram, LabelPair, MetricFamily, MetricType};
use prometheus::{Gauge, GaugeVec, IntCounterVec, Opts, Registry, TextEncoder, proto};
use rlock_client::Contended;
use rlock_core::{Metric, MetricKind};

use super::scrape::{Master, Scrape};
use crate::arguments::COMMIT;
use crate::waits::Waits;

/// How much of a key is shown, in characters.
const KEY_MAX: usize = 120;

/// All metrics, in the text format of Prometheus.
pub(super) fn text(scrape: &Scrape) -> prometheus::Result<String> {
    let page = Page(Registry::new());
    page.gauge(
        "scrape_duration_seconds",
        "How long it took to ask all masters.",
    )?
    .set(scrape.took.as_secs_f64());
    let up = page.gauges(
        "up",
        "1 if the master answers and has the module.",
        &["master"],
    )?;
    for master in &scrape.masters {
        let is_up = if master.counters.is_some() { 1.0 } else { 0.0 };
        up.with_label_values(&[&master.address]).set(is_up);
    }
    page.builds(&scrape.masters)?;
    page.numbers(&scrape.masters)?;
    page.locks(&scrape.masters)?;
    let mut families = page.0.gather();
    families.extend(waits(&scrape.masters));
    TextEncoder::new().encode_to_string(&families)
}

/// The metrics of one scrape.
struct Page(Registry);

impl Page {
    /// The builds of the modules that show them, and the exporter's.
    fn builds(&self, masters: &[Master]) -> prometheus::Result<()> {
        let build = "1, with the version and the commit of the module.";
        let build = self.gauges("build_info", build, &["master", "version", "commit"])?;
        for master in masters {
            let text = |name| Some(master.counters.as_ref()?.texts.get(name)?.as_str());
            if let (Some(version), Some(commit)) = (text("version"), text("commit")) {
                let values = [master.address.as_str(), version, commit];
                build.with_label_values(&values).set(1.0);
            }
        }
        let own = "1, with the version and the commit of the exporter.";
        let own = self.gauges("exporter_build_info", own, &["version", "commit"])?;
        own.with_label_values(&[env!("CARGO_PKG_VERSION"), COMMIT])
            .set(1.0);
        Ok(())
    }

    fn numbers(&self, masters: &[Master]) -> prometheus::Result<()> {
        for metric in Metric::all() {
            let Metric { name, unit, .. } = *metric;
            if metric.kind == MetricKind::Counter {
                let opts = opts(metric.prometheus, metric.help);
                let counter = IntCounterVec::new(opts, &["master"])?;
                self.0.register(Box::new(counter.clone()))?;
                for (master, number) in with_number(masters, name) {
                    counter.with_label_values(&[&master.address]).inc_by(number);
                }
            } else {
                let gauge = self.gauges(metric.prometheus, metric.help, &["master"])?;
                for (master, number) in with_number(masters, name) {
                    let gauge = gauge.with_label_values(&[&master.address]);
                    gauge.set(float(number) * unit);
                }
            }
        }
        Ok(())
    }

    fn locks(&self, masters: &[Master]) -> prometheus::Result<()> {
        let labels = ["master", "key"];
        let waiters = "Places in the queue of one of the most contended locks.";
        let waiters = self.gauges("lock_waiters", waiters, &labels)?;
        let holders = "Holders of one of the most contended locks.";
        let holders = self.gauges("lock_holders", holders, &labels)?;
        let oldest =
            "How long the longest waiter of one of the most contended locks has waited now.";
        let oldest = self.gauges("lock_oldest_wait_seconds", oldest, &labels)?;
        for master in masters {
            for lock in &master.locks {
                let values = [master.address.clone(), key(lock)];
                waiters.with_label_values(&values).set(float(lock.waiters));
                holders.with_label_values(&values).set(float(lock.holders));
                oldest
                    .with_label_values(&values)
                    .set(lock.oldest_wait.as_secs_f64());
            }
        }
        Ok(())
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        let gauge = Gauge::with_opts(opts(name, help))?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        let gauges = GaugeVec::new(opts(name, help), labels)?;
        self.0.register(Box::new(gauges.clone()))?;
        Ok(gauges)
    }
}

/// The histogram of waits of each master whose module has it; none if no module
/// has. The registry's own histogram accepts only single waits, so this one is
/// built here.
fn waits(masters: &[Master]) -> Option<MetricFamily> {
    let metric = |master: &Master| {
        let waits = Waits::read(master.counters.as_ref()?)?;
        let mut label = LabelPair::default();
        label.set_name("master".to_owned());
        label.set_value(master.address.clone());
        let mut metric = proto::Metric::from_label(vec![label]);
        metric.set_histogram(histogram(&waits));
        Some(metric)
    };
    let metrics: Vec<_> = masters.iter().filter_map(metric).collect();
    let mut family = MetricFamily::default();
    family.set_name("rlock_wait_seconds".to_owned());
    family.set_help("Waits of requests granted from the queue.".to_owned());
    family.set_field_type(MetricType::HISTOGRAM);
    family.set_metric(metrics);
    (!family.get_metric().is_empty()).then_some(family)
}

fn histogram(waits: &Waits) -> Histogram {
    let bucket = |(bound, count): (Duration, u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound.as_secs_f64());
        bucket.set_cumulative_count(count);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_bucket(waits.buckets().map(bucket).collect());
    histogram.set_sample_count(waits.count());
    histogram.set_sample_sum(waits.sum().as_secs_f64());
    histogram
}

/// The masters that have a number with this name.
fn with_number<'a>(
    masters: &'a [Master],
    name: &'a str,
) -> impl Iterator<Item = (&'a Master, u64)> {
    let number = move |it: &'a Master| Some((it, *it.counters.as_ref()?.numbers.get(name)?));
    masters.iter().filter_map(number)
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("rlock")
}

/// The key as a label. `�` replaces bytes that are not UTF-8, and a long key
/// ends with `…`.
fn key(lock: &Contended) -> String {
    let text = String::from_utf8_lossy(&lock.key);
    match text.char_indices().nth(KEY_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.into_owned(),
    }
}

/// Prometheus has only 64-bit floating-point numbers, exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}
