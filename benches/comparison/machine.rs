//! Where it was measured, and on which servers.

use std::fs;
use std::path::Path;
use std::process::Command;

use rlock_testkit::program;

/// Enough for the benchmark with the most connections, and everywhere within
/// what a process may allow itself.
const CONNECTIONS_MAX: usize = 4096;

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

/// The same in two words: `Redis 7.0.15`.
pub(crate) fn server_name() -> String {
    let text = server_version();
    let name = text.split(' ').next().unwrap_or_default();
    let version = text.split(' ').find_map(|word| word.strip_prefix("v="));
    format!("{name} {}", version.unwrap_or_default())
}

/// Allows this process, and the servers that it starts, some thousands of
/// connections; 1,024 are common.
pub(crate) fn allow_connections() {
    let process = std::process::id().to_string();
    let limit = format!("--nofile={CONNECTIONS_MAX}:");
    let allowed = Command::new("prlimit")
        .args(["--pid", &process, &limit])
        .status();
    assert!(
        allowed.is_ok_and(|status| status.success()),
        "prlimit, of util-linux, allows {CONNECTIONS_MAX} open files"
    );
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
