//! A server whose instructions are counted.
//!
//! A count is the same on each run of one machine, however busy it is. A time is not.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::servers::server::Server;
use crate::servers::setup::Setup;

/// A server that valgrind's callgrind runs.
pub struct Counted {
    server: Server,
}

impl Counted {
    /// Starts a server; `None` if valgrind is not installed, or cannot run it.
    pub fn start() -> Option<Self> {
        let runner = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--callgrind-out-file=counted",
        ];
        // The server's own timers count too, and take more turns the slower it is.
        let setup = Setup::new().line("hz 1").line("dynamic-hz no").by(&runner);
        let server = setup.try_start().ok()?;
        let counted = Self { server };
        // Valgrind does not follow a script that starts the server.
        counted.control(&["-d"]);
        counted.newest_count()?;
        Some(counted)
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The instructions of the server for one of `count` things that `run` does, after it has done them once to warm up.
    ///
    /// # Panics
    ///
    /// If callgrind does not answer.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn instructions(&self, count: usize, mut run: impl FnMut()) -> f64 {
        run();
        self.control(&["-i", "on"]);
        self.control(&["-z"]);
        run();
        self.control(&["-d"]);
        self.control(&["-i", "off"]);
        let file = self.newest_count().expect("callgrind has written a file");
        let text = fs::read_to_string(file).expect("the file can be read");
        let total = text.lines().find(|line| line.starts_with("totals: "));
        number(total.expect("the file has a sum"), ' ') as f64 / count as f64
    }

    /// The file that callgrind has written last.
    fn newest_count(&self) -> Option<PathBuf> {
        let files = fs::read_dir(self.server.directory()).ok()?;
        let files = files.flatten().map(|file| file.path());
        let files = files.filter(|it| it.to_string_lossy().contains("/counted."));
        files.max_by_key(|it| number(&it.to_string_lossy(), '.'))
    }

    fn control(&self, arguments: &[&str]) {
        let status = Command::new("callgrind_control")
            .args(arguments)
            .arg(self.server.process_id().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "callgrind answers"
        );
    }
}

/// The number at the end, after a separator.
fn number(text: &str, separator: char) -> u64 {
    let (_, last) = text.rsplit_once(separator).unwrap_or_default();
    last.parse().unwrap_or_default()
}
