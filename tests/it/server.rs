//! A server with the module, in a directory and on a port of its own.
//!
//! When a test is done with its server, the server must still be well: alive, without a crash report and without a
//! panic that the module had to catch.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::{Client, PATIENCE, Subscriber, eventually, text};
use crate::setup::{Setup, program};

// By its path, since the benchmarks have this file among their modules, too.
#[path = "signal.rs"]
mod signal;

/// A running server.
pub(crate) struct Server {
    directory: TempDir,
    setup: Setup,
    port: u16,
    process: Option<Child>,
    admin: Option<Client>,
}

impl Server {
    /// Starts a server with the module and nothing special.
    #[track_caller]
    pub(crate) fn start() -> Self {
        Setup::new().start()
    }

    /// Starts a server with the module and these lines of configuration.
    #[track_caller]
    pub(crate) fn configured(lines: &[&str]) -> Self {
        lines
            .iter()
            .fold(Setup::new(), |setup, line| setup.line(line))
            .start()
    }

    /// Starts a server on a port that is free.
    pub(crate) fn launched(setup: Setup) -> Result<Self, String> {
        let mut server = Self {
            directory: tempfile::tempdir().expect("a directory can be made"),
            setup,
            port: 0,
            process: None,
            admin: None,
        };
        for _ in 0..10 {
            server.port = free_port();
            match server.launch() {
                // Somebody else was faster in taking the port.
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => return Err(log),
                Ok(()) => return Ok(server),
            }
        }
        Err("no port is free".into())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.as_ref().expect("the server runs").id()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.directory().join("log")).unwrap_or_default())
            .into_owned()
    }

    /// A new connection.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port)
    }

    /// A new connection with RESP3.
    pub(crate) fn client_resp3(&self) -> Client {
        Client::connect_resp3(self.port)
    }

    /// A new connection that listens to these channels.
    pub(crate) fn listen(&self, channels: &[&str]) -> Subscriber {
        Subscriber::listen(self.port, "SUBSCRIBE", channels)
    }

    /// A new connection that hears when a lock becomes free.
    pub(crate) fn listen_to_unlocks(&self) -> Subscriber {
        Subscriber::listen(self.port, "PSUBSCRIBE", &["redisson_lock__channel:*"])
    }

    /// The reply to a command on a connection that is kept for questions.
    #[track_caller]
    pub(crate) fn ask(&self, line: &str) -> String {
        self.admin().ask(line)
    }

    /// The connection that is kept for questions.
    pub(crate) fn admin(&self) -> &Client {
        self.admin.as_ref().expect("the server runs")
    }

    /// Sends a signal to the server, and to nobody else.
    pub(crate) fn signal(&self, name: &str) {
        signal::send(self.process_id(), name);
    }

    /// Ends the server as a power failure would.
    pub(crate) fn kill(&mut self) {
        let ended = self.process.as_mut().map(Child::try_wait);
        assert!(
            matches!(ended, Some(Ok(None))),
            "the server was alive: {ended:?}"
        );
        self.end();
    }

    /// Lets the server end in order.
    pub(crate) fn shut_down(&mut self) {
        self.assert_well();
        self.signal("TERM");
        let mut process = self.process.take().expect("the server runs");
        eventually("the server ends", || {
            matches!(process.try_wait(), Ok(Some(_)))
        });
        self.admin = None;
    }

    /// Starts the server again after its end, on the data it left.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        self.try_start_again()
            .unwrap_or_else(|log| panic!("the server did not start again:\n{log}"));
    }

    /// Starts the server again; its log is the error.
    pub(crate) fn try_start_again(&mut self) -> Result<(), String> {
        assert!(self.process.is_none(), "the server has ended");
        self.launch()
    }

    /// From the next start on, the server is one without the module.
    pub(crate) fn forget_module(&mut self) {
        self.setup = self.setup.clone().without_module();
    }

    fn launch(&mut self) -> Result<(), String> {
        let directory = self.directory.path();
        let conf = directory.join("server.conf");
        fs::write(&conf, self.setup.configuration(directory, self.port))
            .expect("the configuration can be written");
        let process = Command::new(program())
            .arg(&conf)
            .current_dir(directory)
            .envs(self.setup.own_environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.join("stderr")).expect("a file can be made"))
            .spawn();
        self.process = Some(
            process.unwrap_or_else(|error| panic!("{} cannot be started: {error}", program())),
        );
        self.await_ready()
    }

    fn await_ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let process = self.process.as_mut().expect("it was started");
            if let Ok(Some(_)) = process.try_wait() {
                self.process = None;
                let stderr =
                    fs::read_to_string(self.directory().join("stderr")).unwrap_or_default();
                return Err(self.log() + &stderr);
            }
            if let Ok(admin) = Client::try_connect(self.port)
                && admin.id() > 0
                && let Ok(pong) = admin.try_call("PING")
                && !text(&pong).starts_with("LOADING")
                // Another process may have been given the port, and may end.
                && let Ok(info) = admin.try_call("INFO server")
                && text(&info).contains(&format!("process_id:{}\r", self.process_id()))
            {
                self.admin = Some(admin);
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                self.end();
                return Err(format!("no answer within {PATIENCE:?}\n{}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asserts that the server runs, and has met nothing that it ought not to.
    #[track_caller]
    pub(crate) fn assert_well(&mut self) {
        let Some(process) = self.process.as_mut() else {
            return;
        };
        let ended = process.try_wait().expect("a child can be asked for");
        assert!(ended.is_none(), "the server has died: {ended:?}");
        let log = self.log();
        for sign in ["ASSERTION FAILED", "crashed", "BUG REPORT"] {
            assert!(!log.contains(sign), "the server's log has \"{sign}\"");
        }
        if self.setup.has_module() {
            assert_eq!(
                self.info("rlock", "rlock_panics"),
                "0",
                "the module has caught no panic"
            );
        }
    }

    fn end(&mut self) {
        self.admin = None;
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end();
            let log = self.log();
            let tail = log.lines().rev().take(60).collect::<Vec<_>>();
            let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
            eprintln!(
                "--- the end of the log of the server on port {}:\n{tail}\n---",
                self.port
            );
            return;
        }
        let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.assert_well()));
        self.end();
        if let Err(unwell) = verdict {
            eprintln!(
                "--- the log of the server on port {}:\n{}\n---",
                self.port,
                self.log()
            );
            std::panic::resume_unwind(unwell);
        }
    }
}

/// A port that is free, and small enough for a node of a cluster: its bus has the port 10,000 above.
fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        if port <= u16::MAX - 10_000 {
            return port;
        }
    }
}

/// A server, and a replica that follows it.
#[track_caller]
pub(crate) fn replicated() -> (Server, Server) {
    let primary = Server::start();
    let replica = Setup::new().replica_of(&primary).start();
    let is_up = || replica.info("replication", "master_link_status") == "up";
    eventually("the replica follows", is_up);
    // Only from here on does the primary count it as one.
    eventually("the replica is online", || {
        primary
            .info("replication", "slave0")
            .contains("state=online")
    });
    (primary, replica)
}
