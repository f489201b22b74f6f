//! Where it was measured, and on which servers.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::setup::program;

/// The machine and the state of the source, in two lines.
pub(crate) fn description() -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let model = first_field("/proc/cpuinfo", "model name");
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let source = output(
        Command::new("git")
            .args(["describe", "--always", "--dirty"])
            .current_dir(env!("CARGO_MANIFEST_DIR")),
    );
    format!(
        "rlock {} {source}\n{processors} processors ({model}), load {load} at the start",
        env!("CARGO_PKG_VERSION")
    )
}

/// The servers to measure on: the one that `RLOCK_SERVER` names, or the
/// system's and all that are installed beside it.
pub(crate) fn servers() -> Vec<String> {
    if std::env::var_os("RLOCK_SERVER").is_some() {
        return vec![program()];
    }
    let installed = std::env::var("RLOCK_SERVERS").unwrap_or_else(|_| ".servers/bin".into());
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(installed);
    let entries = fs::read_dir(installed).into_iter().flatten().flatten();
    let mut launchers = entries
        .map(|entry| entry.path().display().to_string())
        .collect::<Vec<_>>();
    launchers.sort();
    launchers.insert(0, program());
    launchers
}

/// What the server that is measured says of itself.
pub(crate) fn server_version() -> String {
    output(Command::new(program()).arg("--version"))
}

fn first_field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split(": ").nth(1));
    value.unwrap_or("unknown model").to_owned()
}

fn output(command: &mut Command) -> String {
    let stdout = command.output().map(|output| output.stdout);
    String::from_utf8_lossy(&stdout.unwrap_or_default())
        .trim()
        .to_owned()
}
