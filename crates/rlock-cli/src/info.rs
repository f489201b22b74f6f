//! `rlock info`: who holds a lock and who waits for it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::address::Address;
use crate::failure::Failure;
use crate::lock_info::LockInfo;
use crate::output::Output;

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
