//! A server for one test, and what tests ask it.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue};
use tempfile::TempDir;

use crate::signal;

/// How long a condition may take before a test fails.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// Runs until the value is dropped; then it is stopped by its process id.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    directory: TempDir,
}

impl Server {
    /// A server with the module.
    pub(crate) fn start() -> Self {
        Self::start_locking(&[])
    }

    /// A server with the module, and these settings.
    pub(crate) fn start_locking(settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter();
        let settings =
            settings.flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]);
        let settings: Vec<_> = settings.collect();
        let module = module();
        let mut options = vec!["--loadmodule", module.to_str().unwrap()];
        // After the module: what follows it up to an option would be its arguments.
        options.extend(settings.iter().map(String::as_str));
        Self::start_with(&options)
    }

    /// A server with these options, and nothing on disk.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        // Another program may take a free port before the server does.
        let servers = (0..5).find_map(|_| Self::try_start(options));
        servers.expect("no server came up; see its output above")
    }

    fn try_start(options: &[&str]) -> Option<Self> {
        let port = free_port();
        let directory = tempfile::tempdir().unwrap();
        let program = std::env::var("RLOCK_SERVER").unwrap_or_else(|_| "redis-server".into());
        let process = Command::new(&program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--logfile", "log"])
            .args(options)
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start `{program}`: {error}"));
        let mut server = Self {
            process,
            port,
            directory,
        };
        let begun = Instant::now();
        while begun.elapsed() < BOUND {
            if server.process.try_wait().unwrap().is_some() {
                let log = std::fs::read_to_string(server.directory.path().join("log"));
                eprintln!("the server ended: {}", log.unwrap_or_default());
                return None;
            }
            if server.is_up() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Whether it answers at its port, and no other server does: that one may
    /// have taken the port before, and this one is about to end.
    fn is_up(&self) -> bool {
        if TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            return false;
        }
        let client = redis::Client::open(self.url()).unwrap();
        let connection = client.get_connection();
        let info = connection.and_then(|mut it| redis::cmd("INFO").query::<String>(&mut it));
        let is_ours = |info: &String| info.contains(&format!("process_id:{}\r", self.process.id()));
        // One that ends lets go of the connection; one that is there may ask for a password.
        info.as_ref()
            .map_or_else(|error| !error.is_io_error(), is_ours)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// One command on a connection of its own.
    pub(crate) fn query(&self, command: &redis::Cmd) -> redis::RedisResult<redis::Value> {
        command.query(&mut self.admin().0)
    }

    /// A connection for the test itself.
    pub(crate) fn admin(&self) -> Admin {
        let client = redis::Client::open(self.url()).unwrap();
        Admin(client.get_connection().unwrap())
    }

    /// Somebody who holds `key` for longer than any test takes.
    pub(crate) fn held_by(&self, key: &str, owner: &str) -> u64 {
        self.admin()
            .run(&format!("RLOCK.ACQUIRE {key} {owner} 600000"))
    }

    /// Waits until this replica has caught up with its master.
    pub(crate) fn until_linked(&self) {
        let mut admin = self.admin();
        eventually("the replica has caught up", || {
            let info: String = admin.run("INFO replication");
            info.contains("master_link_status:up")
        });
    }

    /// Whether a request has come that the server has not read.
    pub(crate) fn has_unread(&self) -> bool {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!(":{:04X}", self.port);
        sockets.lines().any(|socket| {
            let mut fields = socket.split_whitespace().skip(1);
            let is_own = fields
                .next()
                .is_some_and(|local_of| local_of.ends_with(&local));
            // The state 01 is a connection; then come both queues, sent and received.
            let is_open = fields.nth(1) == Some("01");
            let queues = fields.next().unwrap_or_default();
            is_own && is_open && !queues.ends_with(":00000000")
        })
    }

    pub(crate) fn signal(&self, signal: &str) {
        signal::send(self.process.id(), signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

pub(crate) fn module() -> PathBuf {
    let default = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/release/librlock.so"
    );
    let module = std::env::var("RLOCK_MODULE").unwrap_or_else(|_| default.into());
    let module = PathBuf::from(module);
    assert!(
        module.is_file(),
        "the module {} does not exist: build it with `cargo build --release`, or name it in \
         RLOCK_MODULE",
        module.display()
    );
    module.canonicalize().unwrap()
}

/// Waits for `condition`, asking every few milliseconds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

pub(crate) struct Admin(Connection);

impl Admin {
    /// Runs a command given as words.
    pub(crate) fn run<T: FromRedisValue>(&mut self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        for word in words {
            cmd.arg(word);
        }
        cmd.query(&mut self.0)
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// One field of `INFO rlock`.
    pub(crate) fn gauge(&mut self, name: &str) -> u64 {
        let info: String = self.run("INFO rlock");
        let field = format!("rlock_{name}:");
        let value = info.lines().find_map(|line| line.strip_prefix(&field));
        value
            .unwrap_or_else(|| panic!("no {field} in {info}"))
            .trim()
            .parse()
            .unwrap()
    }

    pub(crate) fn is_held(&mut self, key: &str) -> bool {
        self.run(&format!("EXISTS {key}"))
    }

    /// Waits until `count` requests are queued on the server.
    pub(crate) fn queued(&mut self, count: u64) {
        let what = format!("{count} queued");
        eventually(&what, || self.gauge("waiters") == count);
    }

    /// Queues a request, for which this connection subscribes to the outcome.
    pub(crate) fn enqueue(&mut self, key: &str, owner: &str, options: &str) {
        let command = format!("RLOCK.ACQUIRE {key} {owner} 600000 {options}WAIT 600000 NOTIFY n");
        let reply: String = self.run(&command);
        assert_eq!(reply, "WAITING");
    }
}
