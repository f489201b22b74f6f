//! `rlock info`: who holds a lock and who waits for it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use rlock_client::{Holder, Waiter};
use serde::Serialize;

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use crate::readable::{Column, duration, lossy, printable, table};

/// Shows who holds a lock and who waits for it
///
/// Shows the first 100 waiters in queue order. A kept place, whose waiter's
/// wait or connection has ended, delays nobody. WAIT LEFT shows how much longer
/// the server keeps it. Changes nothing.
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
    Column::name("HOLDER", |it: &Holder, _| printable(&it.owner)),
    Column::name("VALUE", |it: &Holder, _| match &it.value {
        Some(value) => lossy(value),
        None => "none".to_owned(),
    })
    .usually("none"),
    Column::number("COUNT", |it: &Holder, _| it.count.to_string()).usually("1"),
    Column::number("PERMITS", |it: &Holder, _| it.permits.to_string()).usually("1"),
    Column::number("LEASE LEFT", |it: &Holder, _| duration(it.lease_left)),
    Column::text("FENCE", |it: &Holder, _| number_or_none(it.fence)).spare(),
    Column::text("BOUND", |it: &Holder, _| {
        if it.is_bound { "yes" } else { "no" }.to_owned()
    })
    .usually("no"),
];

pub(crate) const WAITERS: &[Column<Waiter>] = &[
    Column::number("PLACE", |_, before| (before + 1).to_string()),
    Column::name("WAITER", |it: &Waiter, _| printable(&it.owner)),
    Column::text("MODE", |it: &Waiter, _| it.mode.to_string()).usually("exclusive"),
    Column::number("WAITED", |it: &Waiter, _| duration(it.waited)).waited(|it: &Waiter| it.waited),
    Column::number("WAIT LEFT", |it: &Waiter, _| {
        match (it.kept_left, it.wait_left) {
            (Some(left), _) => format!("kept {}", duration(left)),
            (None, Some(left)) => duration(left),
            (None, None) => "no limit".to_owned(),
        }
    })
    .usually("no limit"),
    Column::number("CLIENT", |it: &Waiter, _| number_or_none(it.client_id)).spare(),
];

fn number_or_none(number: Option<u64>) -> String {
    number.map_or_else(|| "none".to_owned(), |number| number.to_string())
}

/// Holders and waiters of a lock, as in the JSON output.
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

    /// The same as text and tables.
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
