//! The numbers under Prometheus' names: seconds, `_total` for what only grows.

use prometheus::{Gauge, GaugeVec, IntCounterVec, Opts, Registry, TextEncoder};
use rlock_client::Contended;

use super::look::{Looks, Master};

/// How much of a key is shown, in characters.
const KEY_MAX: usize = 120;

/// Counters of `INFO rlock`, each with what it counts.
const COUNTERS: [(&str, &str); 15] = [
    (
        "acquires",
        "Well-formed requests for a lock, whatever their answer.",
    ),
    (
        "grants",
        "Fences given: at once, by hand-off, and to holders that ask again.",
    ),
    ("refusals", "Requests answered by nil at once."),
    ("waits", "Requests that were queued."),
    ("handoffs", "Requests granted from the queue."),
    ("wait_timeouts", "Waits that were over without a grant."),
    ("waiters_gone", "Waiters that left without RLOCK.CANCEL."),
    ("lease_expirations", "Leases whose end the module has seen."),
    ("renewals", "Renewals, each lock."),
    ("releases", "Releases that ended a hold, each lock."),
    ("force_releases", "Holds ended by RLOCK.FORCE."),
    ("deadlocks", "Requests refused with DEADLOCK."),
    (
        "undelivered_grants",
        "Grants that did not reach a blocked waiter and were passed on.",
    ),
    (
        "evicted_locks",
        "Locks evicted while somebody waited for them or watched them.",
    ),
    ("panics", "Panics caught in the module."),
];

/// Gauges of `INFO rlock`: its name, ours, what one of its units is, and what
/// it shows.
const GAUGES: [(&str, &str, f64, &str); 10] = [
    (
        "waiters",
        "waiters",
        1.0,
        "Places in queues, of at most rlock.max-waiters.",
    ),
    (
        "places_kept",
        "places_kept",
        1.0,
        "Places that are kept while nobody waits in them.",
    ),
    (
        "contended_locks",
        "contended_locks",
        1.0,
        "Locks that have places in their queue.",
    ),
    (
        "bound_holds",
        "bound_holds",
        1.0,
        "Holds that end with their connection.",
    ),
    (
        "watches",
        "watches",
        1.0,
        "Holds and requests with NOTIFY or BIND, of at most rlock.max-watches.",
    ),
    (
        "wait_usec_p50",
        "wait_p50_seconds",
        1e-6,
        "Median wait of those granted from the queue since the module was loaded.",
    ),
    (
        "wait_usec_p99",
        "wait_p99_seconds",
        1e-6,
        "99 % of those granted from the queue waited no longer than this.",
    ),
    (
        "wait_usec_max",
        "wait_max_seconds",
        1e-6,
        "The longest wait of those granted from the queue.",
    ),
    (
        "eviction_risk",
        "eviction_risk",
        1.0,
        "1 while maxmemory-policy could evict locks.",
    ),
    (
        "grace_left_ms",
        "grace_left_seconds",
        1e-3,
        "What is left of rlock.startup-grace-ms.",
    ),
];

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
        let of = |master: &Master, name| master.counters.as_ref()?.get(name).copied();
        for (name, help) in COUNTERS {
            let counter = IntCounterVec::new(opts(&format!("{name}_total"), help), &["master"])?;
            self.0.register(Box::new(counter.clone()))?;
            for master in masters {
                if let Some(number) = of(master, name) {
                    counter.with_label_values(&[&master.address]).inc_by(number);
                }
            }
        }
        for (name, shown, unit, help) in GAUGES {
            let gauge = self.gauges(shown, help, &["master"])?;
            for master in masters {
                if let Some(number) = of(master, name) {
                    gauge
                        .with_label_values(&[&master.address])
                        .set(float(number) * unit);
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
