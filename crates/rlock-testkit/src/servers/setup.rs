//! The setup of a server: its program, the module, and its configuration.
//!
//! `RLOCK_SERVER` names the program (`redis-server`), `RLOCK_MODULE` the module (`target/release/librlock.so`).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use crate::servers::server::Server;

/// The setup of a server.
#[derive(Clone, Default)]
pub struct Setup {
    lines: Vec<String>,
    module_arguments: String,
    environment: Vec<(String, OsString)>,
    /// The program that runs the server, with its arguments.
    runner: Vec<String>,
    without_module: bool,
    port: Option<u16>,
    has_tls: bool,
}

impl Setup {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line of configuration.
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Adds lines of configuration, each with a name and a value.
    pub fn settings(self, settings: &[(&str, &str)]) -> Self {
        let line =
            |setup: Self, (name, value): &(&str, &str)| setup.line(&format!("{name} {value}"));
        settings.iter().fold(self, line)
    }

    /// Uses this port instead of any free one.
    pub fn at(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A cluster node, which has no slots yet. Its bus has a port that no outgoing connection gets: the bus binds it
    /// only once, when the server starts.
    pub fn cluster_node(self) -> Self {
        self.settings(&[
            ("cluster-enabled", "yes"),
            ("cluster-port", &bus_port().to_string()),
            ("cluster-announce-ip", "127.0.0.1"),
            ("cluster-node-timeout", "2000"),
        ])
    }

    /// Also listens with TLS on a separate port: presents this certificate, and requests client certificates of this
    /// authority (`yes`, `no` or `optional`).
    pub fn tls(
        mut self,
        certificate: &Path,
        key: &Path,
        authority: &Path,
        asks_clients: &str,
    ) -> Self {
        self.has_tls = true;
        self.line(&format!("tls-cert-file {}", certificate.display()))
            .line(&format!("tls-key-file {}", key.display()))
            .line(&format!("tls-ca-cert-file {}", authority.display()))
            .line(&format!("tls-auth-clients {asks_clients}"))
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.has_tls
    }

    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// The arguments after the module's path on the `loadmodule` line.
    pub fn module_arguments(mut self, arguments: &str) -> Self {
        self.module_arguments = arguments.into();
        self
    }

    /// Adds a variable to the environment that the server inherits.
    pub fn environment(mut self, name: &str, value: &OsStr) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The variables in the server's environment in addition to the test's environment.
    pub fn own_environment(&self) -> impl Iterator<Item = (&String, &OsString)> {
        self.environment.iter().map(|(name, value)| (name, value))
    }

    /// Runs the server by another program, such as `valgrind`.
    pub fn by(mut self, runner: &[&str]) -> Self {
        self.runner = runner.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    pub(crate) fn runner(&self) -> &[String] {
        &self.runner
    }

    pub fn without_module(mut self) -> Self {
        self.without_module = true;
        self
    }

    pub fn replica_of(self, primary: &Server) -> Self {
        self.line(&format!("replicaof 127.0.0.1 {}", primary.port()))
    }

    #[track_caller]
    pub fn start(self) -> Server {
        self.try_start()
            .unwrap_or_else(|log| panic!("the server did not start:\n{log}"))
    }

    pub fn has_module(&self) -> bool {
        !self.without_module
    }

    /// Starts a server that may refuse to start; its log is the error then.
    pub fn try_start(self) -> Result<Server, String> {
        Server::launched(self)
    }

    /// The configuration file.
    pub fn configuration(&self, directory: &Path, port: u16) -> String {
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", port),
            format!("dir {}", directory.display()),
            "logfile log".to_owned(),
            "save \"\"".to_owned(),
            "enable-debug-command local".to_owned(),
            "enable-module-command local".to_owned(),
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        if !self.without_module {
            lines.push(format!(
                "loadmodule {} {}",
                module().display(),
                self.module_arguments
            ));
        }
        lines.extend(self.lines.iter().cloned());
        lines.join("\n") + "\n"
    }
}

/// A free port that no outgoing connection gets.
fn bus_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let ports = std::iter::repeat_with(|| {
        let number = std::process::id().wrapping_mul(97) + COUNT.fetch_add(1, Ordering::Relaxed);
        10_000 + (number % 22_000) as u16
    });
    ports.take(1_000).find(is_free).expect("a free port")
}

/// The server program.
pub fn program() -> String {
    std::env::var("RLOCK_SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// A command that runs the server program, by a runner if one is named, and ends it with this program, even if this
/// program is killed.
///
/// A shell becomes the server. Before that it starts a process that waits for the end of the server's standard input,
/// and then kills the server. Only this program has the other end of that pipe. `PR_SET_PDEATHSIG` would end the server
/// with the thread that has started it.
pub fn guarded(runner: &[String]) -> Command {
    let script = "exec 3<&0; (read -r _ <&3; kill -KILL $$) & exec \"$@\" </dev/null 3<&-";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .args(runner)
        .arg(program());
    command.stdin(Stdio::piped());
    command
}

/// The module under test.
///
/// # Panics
///
/// If the module was not built, or is older than its source.
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        if let Some(path) = std::env::var_os("RLOCK_MODULE") {
            let path = PathBuf::from(path);
            assert!(
                path.exists(),
                "there is no module {}, which RLOCK_MODULE names",
                path.display()
            );
            return path;
        }
        let path = top.join("target/release/librlock.so");
        let built = fs::metadata(&path).and_then(|metadata| metadata.modified());
        let built = built
            .unwrap_or_else(|_| panic!("there is no module {}: run `make build`", path.display()));
        let changed = newest(&top.join("src")).max(newest(&top.join("crates/rlock-core/src")));
        assert!(
            changed <= built,
            "{} is older than its source: run `make build`",
            path.display()
        );
        path
    })
}

fn newest(directory: &Path) -> SystemTime {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let times = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        if metadata.is_dir() {
            Some(newest(&entry.path()))
        } else {
            metadata.modified().ok()
        }
    });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}
