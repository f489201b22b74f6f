//! A server with the module, in its own directory and on its own port.
//!
//! At the end of a test, its server must be healthy: alive, without a crash report and without a panic in the module.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::{Client, PATIENCE, Subscriber, eventually, text};
use crate::servers::setup::{Setup, guarded, program};
use crate::signal;

/// A running server.
pub struct Server {
    directory: TempDir,
    setup: Setup,
    port: u16,
    /// Its port for TLS; 0 if it has none.
    tls_port: u16,
    process: Option<Child>,
    connection: Option<Client>,
    /// Whether a signal that ends it was sent, or may have been.
    was_killed: AtomicBool,
}

impl Server {
    /// Starts a server with the module and the default configuration.
    #[track_caller]
    pub fn start() -> Self {
        Setup::new().start()
    }

    /// Starts a server with the module and these lines of configuration.
    #[track_caller]
    pub fn configured(lines: &[&str]) -> Self {
        lines
            .iter()
            .fold(Setup::new(), |setup, line| setup.line(line))
            .start()
    }

    /// Starts a server on a free port.
    pub fn launched(setup: Setup) -> Result<Self, String> {
        let mut server = Self {
            directory: tempfile::tempdir().expect("a directory can be made"),
            port: 0,
            tls_port: 0,
            process: None,
            connection: None,
            was_killed: AtomicBool::new(false),
            setup,
        };
        for _ in 0..10 {
            server.port = server.setup.port().unwrap_or_else(free_port);
            server.tls_port = if server.setup.has_tls() {
                free_port()
            } else {
                0
            };
            match server.launch() {
                // Another process has taken the port.
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => return Err(log),
                Ok(()) => return Ok(server),
            }
        }
        Err("no port is free".into())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    pub fn process_id(&self) -> u32 {
        self.process.as_ref().expect("the server runs").id()
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// A file in its directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.directory().join("log")).unwrap_or_default())
            .into_owned()
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::connect(self.port)
    }

    /// A new connection with RESP3.
    pub fn client_resp3(&self) -> Client {
        Client::connect_resp3(self.port)
    }

    /// A new connection that listens to these channels.
    pub fn listen(&self, channels: &[&str]) -> Subscriber {
        Subscriber::listen(self.port, "SUBSCRIBE", channels)
    }

    /// A new connection that is notified when a lock becomes free.
    pub fn listen_to_unlocks(&self) -> Subscriber {
        Subscriber::listen(self.port, "PSUBSCRIBE", &["redisson_lock__channel:*"])
    }

    /// The reply to a command on a connection that is kept for questions.
    #[track_caller]
    pub fn ask(&self, line: &str) -> String {
        self.connection().ask(line)
    }

    /// The connection that is kept for questions.
    pub fn connection(&self) -> &Client {
        self.connection.as_ref().expect("the server runs")
    }

    /// Sends a signal to the server only.
    pub fn signal(&self, name: &str) {
        if name.ends_with("KILL") {
            self.may_end();
        }
        signal::send(self.process_id(), name);
    }

    /// Ends the server as a power failure would.
    pub fn kill(&mut self) {
        let ended = self.process.as_mut().map(Child::try_wait);
        assert!(
            matches!(ended, Some(Ok(None))) || *self.was_killed.get_mut(),
            "the server was alive: {ended:?}"
        );
        self.end();
    }

    /// From here on the server may have ended: other processes that know its process id may end it.
    pub fn may_end(&self) {
        self.was_killed.store(true, Ordering::Relaxed);
    }

    /// Shuts the server down properly.
    pub fn shut_down(&mut self) {
        self.assert_well();
        self.signal("TERM");
        let mut process = self.process.take().expect("the server runs");
        eventually("the server ends", || {
            matches!(process.try_wait(), Ok(Some(_)))
        });
        self.connection = None;
    }

    /// Restarts the server after its end, with its data on disk.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.try_start_again()
            .unwrap_or_else(|log| panic!("the server did not start again:\n{log}"));
    }

    /// Restarts the server; its log is the error.
    pub fn try_start_again(&mut self) -> Result<(), String> {
        assert!(self.process.is_none(), "the server has ended");
        self.launch()
    }

    /// The server runs without the module from the next start on.
    pub fn forget_module(&mut self) {
        self.setup = self.setup.clone().without_module();
    }

    /// Adds a variable to the server's environment from the next start on.
    pub fn set_environment(&mut self, name: &str, value: &std::ffi::OsStr) {
        self.setup = self.setup.clone().environment(name, value);
    }

    fn launch(&mut self) -> Result<(), String> {
        let directory = self.directory.path();
        let conf = directory.join("server.conf");
        let mut lines = self.setup.configuration(directory, self.port);
        if self.tls_port != 0 {
            lines += &format!("tls-port {}\n", self.tls_port);
        }
        fs::write(&conf, lines).expect("the configuration can be written");
        let output = fs::File::create(directory.join("output")).expect("a file can be made");
        let process = guarded(self.setup.runner())
            .arg(&conf)
            .current_dir(directory)
            .envs(self.setup.own_environment())
            .stdout(output.try_clone().expect("a file can be shared"))
            .stderr(output)
            .spawn();
        self.process = Some(
            process.unwrap_or_else(|error| panic!("{} cannot be started: {error}", program())),
        );
        self.await_ready()
    }

    fn await_ready(&mut self) -> Result<(), String> {
        *self.was_killed.get_mut() = false;
        let start = Instant::now();
        loop {
            let process = self.process.as_mut().expect("it was started");
            if let Ok(Some(_)) = process.try_wait() {
                self.process = None;
                let output = fs::read_to_string(self.file("output")).unwrap_or_default();
                return Err(self.log() + &output);
            }
            if let Ok(admin) = Client::try_connect(self.port)
                && self.is_served_by(&admin)
            {
                self.connection = Some(admin);
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                self.end();
                return Err(format!("no answer within {PATIENCE:?}\n{}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the connection leads to this server and it serves: another process may have got the port, or this
    /// server may be about to end.
    fn is_served_by(&self, admin: &Client) -> bool {
        let ask = |line| {
            admin
                .try_call(line)
                .map(|reply| text(&reply))
                .unwrap_or_default()
        };
        let pong = ask("PING");
        // A server that requires a password reports nothing else.
        pong.starts_with("NOAUTH")
            || pong == "PONG"
                && ask("INFO server").contains(&format!("process_id:{}\r", self.process_id()))
    }

    /// Asserts that the server runs and is healthy.
    #[track_caller]
    pub fn assert_well(&mut self) {
        if self.process.is_none() || *self.was_killed.get_mut() {
            return;
        }
        // Its process may be paused.
        self.signal("CONT");
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
            let info = self.last_info();
            assert!(
                info.contains("rlock_panics:0\r") || info.starts_with("NO"),
                "the module has caught no panic, and the server answers: {info}"
            );
        }
    }

    /// The module's last `INFO`, or `NOAUTH` if the server requires a password. The kept connection may have ended:
    /// Sentinels make a new master close its connections.
    fn last_info(&self) -> String {
        let ask = |client: &Client| client.try_call("INFO rlock").map(|reply| text(&reply));
        let info = self.connection.as_ref().and_then(|kept| ask(kept).ok());
        let info = info.or_else(|| ask(&Client::try_connect(self.port).ok()?).ok());
        info.unwrap_or_default()
    }

    fn end(&mut self) {
        self.connection = None;
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

/// The URL of the server at a port.
pub fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// A free port, small enough for a cluster node: its bus uses the port plus 10,000.
pub fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        if port <= u16::MAX - 10_000 {
            return port;
        }
    }
}

/// A server, and its replica.
#[track_caller]
pub fn replicated() -> (Server, Server) {
    let primary = Server::start();
    let replica = Setup::new().replica_of(&primary).start();
    let is_up = || replica.info("replication", "master_link_status") == "up";
    eventually("the replica follows", is_up);
    // The primary counts it as a replica only from now on.
    eventually("the replica is online", || {
        primary
            .info("replication", "slave0")
            .contains("state=online")
    });
    (primary, replica)
}
