//! What a server is started with: its program, the module, and its configuration.
//!
//! `RLOCK_SERVER` names the program (`redis-server`), `RLOCK_MODULE` the module (`target/release/librlock.so`).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::server::Server;

/// What a server is started with.
#[derive(Clone, Default)]
pub(crate) struct Setup {
    lines: Vec<String>,
    module_arguments: String,
    environment: Vec<(String, OsString)>,
    without_module: bool,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a line of configuration.
    pub(crate) fn line(mut self, line: &str) -> Self {
        self.lines.push(line.into());
        self
    }

    /// What follows the module's path on the `loadmodule` line.
    pub(crate) fn module_arguments(mut self, arguments: &str) -> Self {
        self.module_arguments = arguments.into();
        self
    }

    /// Adds a variable to the environment that the server inherits.
    pub(crate) fn environment(mut self, name: &str, value: &OsStr) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// What the server's environment has beside that of the tests.
    pub(crate) fn own_environment(&self) -> impl Iterator<Item = (&String, &OsString)> {
        self.environment.iter().map(|(name, value)| (name, value))
    }

    pub(crate) fn without_module(mut self) -> Self {
        self.without_module = true;
        self
    }

    pub(crate) fn replica_of(self, primary: &Server) -> Self {
        self.line(&format!("replicaof 127.0.0.1 {}", primary.port()))
    }

    #[track_caller]
    pub(crate) fn start(self) -> Server {
        self.try_start()
            .unwrap_or_else(|log| panic!("the server did not start:\n{log}"))
    }

    pub(crate) fn has_module(&self) -> bool {
        !self.without_module
    }

    /// Starts a server that may refuse to start: then its log is the error.
    pub(crate) fn try_start(self) -> Result<Server, String> {
        Server::launched(self)
    }

    /// The configuration file.
    pub(crate) fn configuration(&self, directory: &Path, port: u16) -> String {
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

/// The server program.
pub(crate) fn program() -> String {
    std::env::var("RLOCK_SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// The module under test.
///
/// # Panics
///
/// When it was not built, or not from the present source.
pub(crate) fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let top = Path::new(env!("CARGO_MANIFEST_DIR"));
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
