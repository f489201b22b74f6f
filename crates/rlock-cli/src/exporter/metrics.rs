//! The numbers under Prometheus' names: seconds, `_total` for what only grows.

use prometheus::{Gauge, GaugeVec, IntCounterVec, Opts, Registry, TextEncoder};
use rlock_client::Contended;
use rlock_core::{Metric, MetricKind};

use super::look::{Looks, Master};

/// How much of a key is shown, in characters.
const KEY_MAX: usize = 120;

/// All of it, in the text format of Prometheus.
pub(super) fn text(looks: &Looks) -> prometheus::Result<String> {
    let page = Page(Registry::new());
    page.gauge(
        "scrape_duration_seconds",
        "How long it took to ask all masters.",
    )?
    .set(looks.took.as_secs_f64());
    let up = page.gauges(
        "up",
        "1 if the master answers and has the module.",
        &["master"],
    )?;
    for master in &looks.masters {
        let is_up = if master.counters.is_some() { 1.0 } else { 0.0 };
        up.with_label_values(&[&master.address]).set(is_up);
    }
    page.numbers(&looks.masters)?;
    page.locks(&looks.masters)?;
    TextEncoder::new().encode_to_string(&page.0.gather())
}

/// What is shown of one look.
struct Page(Registry);

impl Page {
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

/// The masters that have the number of this name.
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

/// The key as a label. Bytes that are no text are shown by `�`, what is too
/// long ends with `…`.
fn key(lock: &Contended) -> String {
    let text = String::from_utf8_lossy(&lock.key);
    match text.char_indices().nth(KEY_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.into_owned(),
    }
}

/// Prometheus has 64-bit floating-point numbers only: exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}
