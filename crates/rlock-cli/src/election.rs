//! `rlock elect`, which runs a command while it leads, and `rlock observe`, which
//! shows who leads.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rlock_client::Change;
use serde_json::json;

use crate::address::Address;
use crate::exec::{self, Exec};
use crate::failure::Failure;
use crate::output::Output;
use crate::readable::{from_millisecond, from_zero, printable};

/// Both forms; the second line stands below the first in `Usage: `.
const USAGE: &str = "\
rlock elect [OPTIONS] --value <VALUE> <NAME> -- <COMMAND> [ARGS]...
       rlock elect [OPTIONS] --value <VALUE> <NAME> --shell <STRING>";

/// Runs a command while leading
///
/// Waits in the queue until it leads, publishes the value, and runs the command
/// as `rlock exec` does: with RLOCK_FENCE, RLOCK_KEY and RLOCK_OWNER, and ended if
/// the leadership is lost. When the command ends, it resigns, and the next one
/// leads at once. `rlock observe` shows who leads.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(crate) struct Elect {
    /// The election: the key of its lock.
    #[arg(value_name = "NAME")]
    name: OsString,

    /// What is published while it leads, for example where it is reached: up to
    /// 1024 bytes.
    #[arg(long)]
    value: OsString,

    /// Campaigns again after the leadership was lost and the command ended for
    /// that, until the command ends by itself.
    #[arg(long)]
    again: bool,

    /// How long to wait for the leadership; 0 does not wait [default: without limit]
    #[arg(short, long, value_name = "DURATION", value_parser = from_zero)]
    wait: Option<Duration>,

    /// How long the leadership outlives rlock, should it be killed or cut off; it
    /// is renewed every third of it.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = from_millisecond)]
    lease: Duration,

    /// Binds the leadership to rlock's connection: when that ends, the next one
    /// leads this much later.
    #[arg(long, value_name = "DURATION", value_parser = from_zero)]
    bind: Option<Duration>,

    /// How long a command has to end by itself after the leadership is lost,
    /// before it is killed.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = from_zero)]
    kill_after: Duration,

    /// Runs this by the shell (`sh -c`), instead of a command.
    #[arg(short = 'c', long, value_name = "STRING", conflicts_with = "command")]
    shell: Option<OsString>,

    /// The command and its arguments.
    #[arg(last = true, required_unless_present = "shell", value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) async fn elect(elect: &Elect, address: &Address, output: Output) -> Result<u8, Failure> {
    let mut exec = Exec::new(elect.name.clone(), elect.lease);
    exec.wait = elect.wait;
    exec.bind = elect.bind;
    exec.kill_after = elect.kill_after;
    exec.shell.clone_from(&elect.shell);
    exec.command.clone_from(&elect.command);
    exec.value = Some(elect.value.clone());
    exec.again = elect.again;
    exec::run(&exec, address, output).await
}

/// Shows who leads, and each change of that
///
/// A line for the leader of now and for each change: the fence and the value, or
/// that nobody leads. Asks nothing again and again. Ends with an interrupt.
#[derive(Debug, clap::Args)]
pub(crate) struct Observe {
    /// The election: the key of its lock.
    #[arg(value_name = "NAME")]
    name: OsString,
}

pub(crate) async fn observe(
    observe: &Observe,
    address: &Address,
    output: Output,
) -> Result<u8, Failure> {
    let name = observe.name.as_bytes();
    let client = address.questioner().await?;
    let mut changes = client.election(name).observe();
    while let Some(change) = changes.next().await {
        let change = change.map_err(|error| address.failure(&error))?;
        show(&printable(&String::from_utf8_lossy(name)), &change, output)?;
    }
    Ok(0)
}

fn show(name: &str, change: &Change, output: Output) -> Result<(), Failure> {
    let leader = change.leader.as_ref();
    let leader = leader.map(|it| (it.fence, String::from_utf8_lossy(&it.value)));
    if change.missed && !output.is_json() {
        output.say(&format!("rlock: {name}: others may have led meanwhile"));
    }
    let json = leader.as_ref();
    let json = json.map(|(fence, value)| json!({"fence": fence, "value": value}));
    let line = json!({"key": name, "leader": json, "missed": change.missed});
    output.result(&line, || match leader {
        Some((fence, value)) => format!("{fence} {}", printable(&value)),
        None => "nobody leads".to_owned(),
    })
}
