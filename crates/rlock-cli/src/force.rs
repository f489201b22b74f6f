//! `rlock force`: ends the holds of a lock, of any owner.

use std::collections::HashSet;
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
        match mutex.info().await {
            Ok(mut lock) => {
                if let Some(fence) = force.fence {
                    lock.holders.retain(|holder| holder.fence == Some(fence));
                }
                let lock = LockInfo::new(key, lock);
                output.say(lock.words().trim_end());
                shown = Some(lock.info.holders);
            }
            // What is left of a lock can be deleted, but has no holders to show.
            Err(error @ Error::NotALock(_)) => output.say(&error.to_string()),
            Err(error) => return Err(failure(error)),
        }
        confirm(&force.question(), output)?;
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
        force.words(&key, removed, shown.is_some_and(|it| !it.is_empty()))
    })?;
    Ok(0)
}

impl Force {
    fn question(&self) -> String {
        let key = self.key.to_string_lossy();
        let key = printable(&key);
        match self.fence {
            Some(fence) => format!("End the hold of {key} with the fence {fence}?"),
            None if self.queue => format!("End every hold and place of {key}?"),
            None => format!("End every hold of {key}?"),
        }
    }

    /// The server counts the holders that it removed, not the places.
    fn words(&self, key: &str, removed: u64, were_shown: bool) -> String {
        let key = printable(key);
        let ended = if self.queue { ", queue ended" } else { "" };
        match (removed, self.fence) {
            (0, Some(fence)) => format!("{key}: no hold has the fence {fence}"),
            (0, None) if were_shown && !self.queue => {
                format!("{key}: the holders shown no longer held it")
            }
            (0, None) => format!("{key}: nobody held it{ended}"),
            (1, _) => format!("{key}: 1 holder removed{ended}"),
            _ => format!("{key}: {removed} holders removed{ended}"),
        }
    }
}

/// The most holds that are ended one by one: for each the server looks at all.
const ONE_BY_ONE_MAX: usize = 100;

/// Ends the holds that were shown, and not their successors; returns their number.
pub(crate) async fn end_shown(mutex: &Mutex, shown: &[Holder]) -> Result<u64, Error> {
    let fences = shown.iter().map(|it| it.fence).collect::<Option<Vec<_>>>();
    let Some(fences) = fences.filter(|it| it.len() <= ONE_BY_ONE_MAX) else {
        // The server cannot compare and end these in one step.
        let shown: HashSet<_> = shown.iter().map(|it| (it.fence, &it.owner)).collect();
        let held = mutex.info().await?.holders;
        let is_shown = |held: &Holder| shown.contains(&(held.fence, &held.owner));
        return match held.iter().all(is_shown) {
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

fn confirm(question: &str, output: Output) -> Result<(), Failure> {
    output.say(&format!("\n{question} Type `yes`: "));
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::internal("cannot read the answer", &error))?;
    match answer.trim() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Code::NotConfirmed, "nothing was changed")),
    }
}
