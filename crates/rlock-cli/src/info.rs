//! `rlock info`: who holds a lock and who waits for it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use rlock_client::{Holder, Waiter};
use serde::Serialize;

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use crate::readable::{Column, FILL, duration, printable, table};

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

pub(crate) const HOLDERS: &[Column<Holder>] = &[
    Column::text("HOLDER", FILL, |it, _| printable(&it.owner)),
    Column::text("VALUE", FILL, |it, _| match &it.value {
        Some(value) => printable(&String::from_utf8_lossy(value)),
        None => "none".to_owned(),
    }),
    Column::number("COUNT", 5, |it, _| it.count.to_string()),
    Column::number("PERMITS", 7, |it, _| it.permits.to_string()),
    Column::number("LEASE LEFT", 11, |it, _| duration(it.lease_left)),
    Column::text("FENCE", 16, |it, _| number_or_none(it.fence)),
    Column::text("BOUND", 5, |it, _| {
        if it.is_bound { "yes" } else { "no" }.to_owned()
    }),
];

pub(crate) const WAITERS: &[Column<Waiter>] = &[
    Column::number("PLACE", 5, |_, before| (before + 1).to_string()),
    Column::text("WAITER", FILL, |it, _| printable(&it.owner)),
    Column::text("MODE", 9, |it, _| it.mode.to_string()),
    Column::text("WAITED", 11, |it, _| duration(it.waited)),
    Column::text("WAIT LEFT", 11, |it, _| {
        match (it.kept_left, it.wait_left) {
            (Some(left), _) => format!("kept {}", duration(left)),
            (None, Some(left)) => duration(left),
            (None, None) => "no limit".to_owned(),
        }
    }),
    Column::number("CLIENT", 8, |it, _| number_or_none(it.client_id)),
];

fn number_or_none(number: Option<u64>) -> String {
    number.map_or_else(|| "none".to_owned(), |number| number.to_string())
}

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
            words.push_str(&format!("\n{}\n", table(HOLDERS, &info.holders)));
        }
        if !info.waiters.is_empty() {
            words.push_str(&format!("\n{}\n", table(WAITERS, &info.waiters)));
        }
        words
    }
}
