//! `rlock list`: the locks with the longest queues.

use rlock_client::Contended;

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use crate::readable::{duration, printable, table};

pub(crate) const LOCKS: [&str; 5] = ["KEY", "MODE", "HOLDERS", "WAITERS", "OLDEST WAIT"];

/// Lists the locks that are waited for, the most contended first
///
/// Only locks of the selected database with places in their queue. A place that
/// is kept for a waiter whose connection was lost counts as one. Of a cluster, the
/// locks of all masters.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// How many locks at most, from 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    count: u16,
}

pub(crate) async fn run(list: &List, address: &Address, output: Output) -> Result<u8, Failure> {
    let client = address.questioner().await?;
    let locks = client.list(list.count.into()).await;
    let locks = locks.map_err(|error| address.failure(&error))?;
    output.result(&locks, || words(&locks))?;
    Ok(0)
}

fn words(locks: &[Contended]) -> String {
    if locks.is_empty() {
        return "nobody waits for any lock".to_owned();
    }
    let mut rows = table(&LOCKS, &[2, 3, 4]);
    rows.add_rows(locks.iter().map(row));
    rows.trim_fmt()
}

/// A row below [`LOCKS`].
pub(crate) fn row(lock: &Contended) -> [String; 5] {
    [
        printable(&String::from_utf8_lossy(&lock.key)),
        lock.mode.to_string(),
        lock.holders.to_string(),
        lock.waiters.to_string(),
        duration(lock.oldest_wait),
    ]
}
