//! `rlock list`: the locks with the longest queues.

use rlock_client::Contended;

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use crate::readable::{Column, duration, lossy, table};

const LOCKS: &[Column<Contended>] = &[
    Column::name("KEY", |it, _| lossy(&it.key)),
    Column::text("MODE", |it, _| it.mode.to_string()),
    Column::number("HOLDERS", |it, _| it.holders.to_string()),
    Column::number("WAITERS", |it, _| it.waiters.to_string()),
    Column::number("OLDEST WAIT", |it, _| duration(it.oldest_wait)),
];

/// Lists the locks that have waiters, the most contended first
///
/// Lists the locks of the selected database with places in
/// their queue, including kept places. In a cluster it lists the locks of all masters.
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
    table(LOCKS, locks)
}
