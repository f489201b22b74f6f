//! `rlock force`: ends the holds of a lock, of any owner.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;

use rlock_client::{Error, Holder, Mutex};
use serde_json::json;

use crate::address::Address;
use crate::failure::{Code, Failure};
use crate::info::LockInfo;
use crate::output::Output;
use crate::readable::printable;

/// Ends every hold of a lock, of any owner
///
/// Shows the holders and asks for confirmation. They learn that they lost the
/// lock, but may still be working. The next waiter is granted the lock, unless
/// `--queue` ends the queue as well.
#[derive(Debug, clap::Args)]
pub(crate) struct Force {
    /// The lock.
    key: OsString,

    /// End only the hold with this fence, as `rlock info` shows it.
    #[arg(long, value_name = "N", conflicts_with = "queue",
        value_parser = clap::value_parser!(u64).range(1..1 << 53))]
    fence: Option<u64>,

    /// End every place in the queue first, including kept ones.
    #[arg(long)]
    queue: bool,

    /// Do not ask for confirmation. Required without a terminal.
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn run(force: &Force, address: &Address, output: Output) -> Result<u8, Failure> {
    let key = force.key.as_bytes();
    if !force.yes && (!io::stdin().is_terminal() || !io::stderr().is_terminal()) {
        let message = "cannot ask for confirmation without a terminal; `--yes` skips the question";
        return Err(Failure::usage(message));
    }
    let mutex = address.questioner().await?.mutex(key);
    let failure = |error| address.failure(&error);
    let mut shown = None;
    if !force.yes {
        let mut lock = mutex.info().await.map_err(failure)?;
        if let Some(fence) = force.fence {
            lock.holders.retain(|holder| holder.fence == Some(fence));
        }
        let lock = LockInfo::new(key, lock);
        confirm(&lock, force.queue, output)?;
        shown = Some(lock.info.holders);
    }
    let removed = match (&shown, force.fence) {
        _ if force.queue => mutex.force_release_queue().await,
        (_, Some(fence)) => mutex.force_release_under(fence).await,
        (Some(shown), None) => end_shown(&mutex, shown).await,
        (None, None) => mutex.force_release().await,
    }
    .map_err(failure)?;
    let key = String::from_utf8_lossy(key);
    output.result(&json!({"key": key, "removed": removed}), || {
        words(&key, removed, force.queue)
    })?;
    Ok(0)
}

/// Ends the holds that were shown, and not their successors; returns their number.
pub(crate) async fn end_shown(mutex: &Mutex, shown: &[Holder]) -> Result<u64, Error> {
    let Some(fences) = shown.iter().map(|it| it.fence).collect::<Option<Vec<_>>>() else {
        // The server cannot compare and end a hold of Redisson in one step.
        let is_shown = |held: &Holder| {
            let is_it = |it: &Holder| (it.fence, &it.owner) == (held.fence, &held.owner);
            shown.iter().any(is_it)
        };
        return match mutex.info().await?.holders.iter().all(is_shown) {
            true => mutex.force_release().await,
            false => Ok(0),
        };
    };
    let mut removed = 0;
    for fence in fences {
        removed += mutex.force_release_under(fence).await?;
    }
    Ok(removed)
}

/// The server counts the holders that it removed, not the places.
fn words(key: &str, removed: u64, queue: bool) -> String {
    let key = printable(key);
    let ended = if queue { ", queue ended" } else { "" };
    match removed {
        0 => format!("{key}: nobody held it{ended}"),
        1 => format!("{key}: 1 holder removed{ended}"),
        _ => format!("{key}: {removed} holders removed{ended}"),
    }
}

/// Shows the holders and asks.
fn confirm(lock: &LockInfo, queue: bool, output: Output) -> Result<(), Failure> {
    output.say(lock.words().trim_end());
    let what = if queue { "hold and place" } else { "hold" };
    output.say(&format!(
        "\nEnd every {what} of {}? Type `yes`: ",
        printable(&lock.key)
    ));
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::internal("cannot read the answer", &error))?;
    match answer.trim() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Code::NotConfirmed, "nothing was changed")),
    }
}
