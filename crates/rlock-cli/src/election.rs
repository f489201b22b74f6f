//! `rlock elect`, which runs a command while it leads, and `rlock observe`, which
//! shows who leads.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use rlock_client::Change;
use serde_json::json;

use crate::address::Address;
use crate::exec::{self, Exec};
use crate::failure::Failure;
use crate::output::Output;
use crate::readable::{from_zero, key, lease, printable};

/// Both forms. The second line is indented like the first behind `Usage: `.
const USAGE: &str = "\
rlock elect [OPTIONS] --value <VALUE> <NAME> -- <COMMAND> [ARGS]...
       rlock elect [OPTIONS] --value <VALUE> <NAME> --shell <STRING>";

/// Runs a command while leading
///
/// Waits in the queue until it leads, publishes the value, and runs the command like `rlock exec`:
/// with RLOCK_FENCE, RLOCK_KEY and RLOCK_OWNER. A loss of the leadership ends the command. When the
/// command ends, rlock resigns, and the next candidate leads at once. `rlock observe` shows the
/// leader.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(crate) struct Elect {
    /// The election: the key of its lock.
    #[arg(value_name = "NAME", value_parser = OsStringValueParser::new().try_map(key))]
    name: OsString,

    /// The value to publish while it leads, for example its address: up to
    /// 1024 bytes.
    #[arg(long)]
    value: OsString,

    /// After a loss, which ends the command, campaign again,
    /// until the command ends by itself. After a brief leadership there
    /// is a pause first, of up to 10 s.
    #[arg(long)]
    again: bool,

    /// How long to wait for the leadership; 0 does not wait [default: without limit]
    #[arg(short, long, value_name = "DURATION", value_parser = from_zero)]
    wait: Option<Duration>,

    /// How long the leadership outlives rlock if rlock is killed or loses its connection.
    /// rlock renews it every third of this time.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    lease: Duration,

    /// Bind the leadership to rlock's connection: when the connection ends, the next
    /// candidate leads this much later.
    #[arg(long, value_name = "DURATION", value_parser = from_zero)]
    bind: Option<Duration>,

    /// How long the command has to end by itself after a loss
    /// before it is killed.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = from_zero)]
    kill_after: Duration,

    /// Run this string with the shell (`sh -c`) instead of a command.
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

/// Shows the leader and each change
///
/// Writes a line for the current leader and for each change: the fence and the value,
/// or `nobody leads`. It does not poll. An interrupt ends it.
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
