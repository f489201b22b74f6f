//! `rlock info`: who holds a lock and who waits for it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use rlock_client::{Holder, Waiter};
use serde::Serialize;

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use crate::readable::{duration, printable, table};

/// Shows who holds a lock and who waits for it
///
/// The first 100 places of its queue, in the order in which they will get the
/// lock. A place that is kept for a waiter whose wait or connection has ended
/// holds up nobody, and shows for how much longer it is kept. Changes nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    /// The lock.
    key: OsString,
}

pub(crate) async fn run(info: &Info, address: &Address, output: Output) -> Result<u8, Failure> {
    let (client, key) = (address.questioner().await?, info.key.as_bytes());
    let lock = client.mutex(key).info().await;
    let lock = lock.map_err(|error| address.failure(&error))?;
    let lock = LockInfo::new(key, lock);
    output.result(&lock, || lock.words())?;
    Ok(0)
}

pub(crate) const HOLDERS: [&str; 6] =
    ["HOLDER", "COUNT", "PERMITS", "LEASE LEFT", "FENCE", "BOUND"];
pub(crate) const WAITERS: [&str; 6] = ["PLACE", "WAITER", "MODE", "WAITED", "WAIT LEFT", "CLIENT"];

/// What the server says about a lock, in the words of the JSON output.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LockInfo {
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) info: rlock_client::Info,
}

impl LockInfo {
    pub(crate) fn new(key: &[u8], info: rlock_client::Info) -> Self {
        let key = String::from_utf8_lossy(key).into_owned();
        Self { key, info }
    }

    /// What it says in words and tables.
    pub(crate) fn words(&self) -> String {
        let info = &self.info;
        let mut words = format!("{}: {}", printable(&self.key), info.mode);
        if let Some(fence) = info.fence {
            words.push_str(&format!(", fence {fence}"));
        }
        words.push_str(&format!(", {} queued\n", info.queued));
        if !info.holders.is_empty() {
            let mut holders = table(&HOLDERS, &[1, 2, 3]);
            holders.add_rows(info.holders.iter().map(holder));
            words.push_str(&format!("\n{}\n", holders.trim_fmt()));
        }
        if !info.waiters.is_empty() {
            let mut waiters = table(&WAITERS, &[0, 5]);
            waiters.add_rows(info.waiters.iter().zip(1..).map(waiter));
            words.push_str(&format!("\n{}\n", waiters.trim_fmt()));
        }
        words
    }
}

/// A row below [`HOLDERS`].
pub(crate) fn holder(holder: &Holder) -> [String; 6] {
    let fence = holder.fence.map(|fence| fence.to_string());
    [
        printable(&holder.owner),
        holder.count.to_string(),
        holder.permits.to_string(),
        duration(holder.lease_left),
        fence.unwrap_or_else(|| "none".to_owned()),
        if holder.is_bound { "yes" } else { "no" }.to_owned(),
    ]
}

/// A row below [`WAITERS`], with its place in the queue.
pub(crate) fn waiter((waiter, place): (&Waiter, u64)) -> [String; 6] {
    let wait_left = match (waiter.kept_left, waiter.wait_left) {
        (Some(left), _) => format!("kept {}", duration(left)),
        (None, Some(left)) => duration(left),
        (None, None) => "no limit".to_owned(),
    };
    let client = waiter.client_id.map(|id| id.to_string());
    [
        place.to_string(),
        printable(&waiter.owner),
        waiter.mode.to_string(),
        duration(waiter.waited),
        wait_left,
        client.unwrap_or_else(|| "none".to_owned()),
    ]
}
