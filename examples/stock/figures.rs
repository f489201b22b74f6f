//! What is measured, and where it is read.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use redis::aio::MultiplexedConnection;

use crate::Outcome;

/// What came of one buyer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    bought: bool,
    fence: u64,
    /// When the guard was in hand, and when its release was called, in
    /// microseconds of the machine's wall clock; 0 without a lock.
    entered: u64,
    left: u64,
}

impl Visit {
    /// Reads `visit <bought> <fence> <entered> <left>`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("visit ")?.split(' ');
        let bought = words.next()? == "true";
        let mut number = || words.next()?.parse().ok();
        Some(Self {
            bought,
            fence: number()?,
            entered: number()?,
            left: number()?,
        })
    }
}

/// One sale.
#[derive(Debug)]
pub(crate) struct Sale {
    pub(crate) cakes: u64,
    pub(crate) visits: Vec<Visit>,
    /// The stock afterwards.
    pub(crate) left: i64,
}

impl Sale {
    pub(crate) fn new(cakes: u64) -> Self {
        Self {
            cakes,
            visits: Vec::new(),
            left: 0,
        }
    }

    pub(crate) fn sold(&self) -> u64 {
        self.visits
            .iter()
            .map(|visit| u64::from(visit.bought))
            .sum()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.visits.len() as u64 - self.sold()
    }

    /// Whether exactly the cakes there were have been sold, to as many of the
    /// buyers, and none is left.
    pub(crate) fn is_exact(&self) -> bool {
        let buyers = crate::PROCESSES * crate::BUYERS_EACH;
        self.sold() == self.cakes && self.refused() == buyers - self.cakes && self.left == 0
    }

    pub(crate) fn summary(&self) -> String {
        format!(
            "{} sold, {} refused, stock {}",
            self.sold(),
            self.refused(),
            self.left
        )
    }
}

/// From each buyer's call of `release` to the next buyer's guard in hand.
#[derive(Debug)]
pub(crate) struct Handoffs {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) count: u64,
}

impl Handoffs {
    /// In the order of fences, which is the order of the grants.
    pub(crate) fn of(sale: &Sale) -> Self {
        let mut visits: Vec<_> = sale.visits.iter().filter(|visit| visit.fence > 0).collect();
        visits.sort_by_key(|visit| visit.fence);
        let mut micros = Histogram::<u64>::new_with_max(60_000_000, 3).ok();
        for (before, after) in visits.iter().zip(visits.iter().skip(1)) {
            if let Some(micros) = &mut micros {
                micros.saturating_record(after.entered.saturating_sub(before.left));
            }
        }
        let at = |quantile| {
            micros
                .as_ref()
                .map_or(0, |all| all.value_at_quantile(quantile))
        };
        Self {
            p50: at(0.5),
            p99: at(0.99),
            count: micros.as_ref().map_or(0, Histogram::len),
        }
    }
}

/// How often the server has carried out each command.
#[derive(Debug)]
pub(crate) struct Commands(BTreeMap<String, u64>);

impl Commands {
    pub(crate) async fn so_far(redis: &mut MultiplexedConnection) -> Outcome<Self> {
        let stats: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(redis)
            .await?;
        Ok(Self(stats.lines().filter_map(calls).collect()))
    }

    /// Those since `before`, without this program's own looking.
    pub(crate) fn since(mut self, before: Self) -> Self {
        for (command, calls) in &mut self.0 {
            *calls -= before.0.get(command).copied().unwrap_or(0);
        }
        self.0
            .retain(|command, calls| *calls > 0 && command != "info");
        self
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0
            .iter()
            .map(|(command, calls)| (command.as_str(), *calls))
    }
}

/// `cmdstat_get:calls=7,…` as `("get", 7)`.
fn calls(line: &str) -> Option<(String, u64)> {
    let (command, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    Some((command.to_owned(), numbers.split(',').next()?.parse().ok()?))
}

/// One number of `INFO rlock`.
pub(crate) async fn gauge(redis: &mut MultiplexedConnection, name: &str) -> Outcome<u64> {
    let info: String = redis::cmd("INFO").arg("rlock").query_async(redis).await?;
    let name = format!("rlock_{name}:");
    let value = info.lines().find_map(|line| line.strip_prefix(&name));
    Ok(value
        .ok_or("the server has no such figure")?
        .trim()
        .parse()?)
}

/// Name and version of the server.
pub(crate) async fn server_name(redis: &mut MultiplexedConnection) -> Outcome<String> {
    let info: String = redis::cmd("INFO").arg("server").query_async(redis).await?;
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    Ok(match field("valkey_version:") {
        Some(version) => format!("Valkey {version}"),
        None => format!(
            "Redis {}",
            field("redis_version:").unwrap_or("of unknown version")
        ),
    })
}
