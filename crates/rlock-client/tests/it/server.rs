//! A server for one test, and what tests ask it.

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};
use rlock_client::Client;
use tempfile::TempDir;

use crate::signal;

/// How long a condition may take before a test fails.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// Runs until the value is dropped; then it is stopped by its process id.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    directory: TempDir,
    options: Vec<String>,
    /// Environment variables of its next start.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
}

impl Server {
    /// A server with the module.
    pub(crate) async fn start() -> Self {
        Self::start_locking(&[]).await
    }

    /// A server with the module, and these settings.
    pub(crate) async fn start_locking(settings: &[(&str, &str)]) -> Self {
        let names: Vec<_> = settings
            .iter()
            .map(|(name, _)| format!("--{name}"))
            .collect();
        let settings = names.iter().zip(settings);
        let mut options: Vec<&str> = settings
            .flat_map(|(name, (_, value))| [name.as_str(), value])
            .collect();
        let module = module();
        options.extend(["--loadmodule", module.to_str().unwrap()]);
        Self::start_with(&options).await
    }

    /// A cluster of one node, with the module.
    pub(crate) async fn start_cluster() -> Self {
        let module = module();
        let module = module.to_str().unwrap();
        let bus = free_port().to_string();
        let options = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let server = Self::start_with(&[&options[..], &["--loadmodule", module]].concat()).await;
        let mut admin = server.admin().await;
        let _: () = admin.run("CLUSTER ADDSLOTSRANGE 0 16383").await;
        eventually("the cluster serves all slots", async || {
            let info: String = admin.run("CLUSTER INFO").await;
            info.contains("cluster_state:ok")
        })
        .await;
        server
    }

    /// The same at a port that was free a moment ago.
    #[cfg(feature = "quorum")]
    pub(crate) async fn start_at(port: u16, options: &[&str]) -> Self {
        let server = Self::try_start_at(port, options).await;
        server.expect("no server came up; see its output above")
    }

    /// A server with these options, and nothing on disk.
    pub(crate) async fn start_with(options: &[&str]) -> Self {
        // Another program may take a free port before the server does.
        for _ in 0..5 {
            if let Some(server) = Self::try_start(options).await {
                return server;
            }
        }
        panic!("no server came up; see its output above");
    }

    async fn try_start(options: &[&str]) -> Option<Self> {
        Self::try_start_at(free_port(), options).await
    }

    async fn try_start_at(port: u16, options: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self {
            process: spawn(port, directory.path(), &options, &[]),
            port,
            directory,
            options,
            environment: Vec::new(),
        };
        server.comes_up().await.then_some(server)
    }

    /// Whether it does, and does not end before.
    async fn comes_up(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < BOUND {
            // Why it ended is told when it is dropped.
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if self.is_up().await {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again after [`kill`](Self::kill), at its port and with what it has on disk.
    pub(crate) async fn restart(&mut self) {
        // A connection to somewhere else may have its port for a moment.
        for _ in 0..5 {
            let (directory, environment) = (self.directory.path(), &self.environment);
            self.process = spawn(self.port, directory, &self.options, environment);
            if self.comes_up().await {
                return;
            }
        }
        panic!("the server does not come back; see its output above");
    }

    /// Whether it answers at its port, and no other server does: that one may
    /// have taken the port before, and this one is about to end.
    async fn is_up(&self) -> bool {
        let address = ("127.0.0.1", self.port);
        if tokio::net::TcpStream::connect(address).await.is_err() {
            return false;
        }
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = match client.get_multiplexed_async_connection().await {
            Ok(connection) => connection,
            // One that ends has let go of the connection; one that is there may
            // ask for a password.
            Err(error) => return !error.is_io_error(),
        };
        let info = redis::cmd("INFO");
        let info = info.query_async::<String>(&mut connection).await;
        let is_ours = |info: &String| info.contains(&format!("process_id:{}\r", self.process.id()));
        info.as_ref()
            .map_or_else(|error| !error.is_io_error(), is_ours)
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    /// A file in its directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url()).await.unwrap()
    }

    /// A connection for the test itself.
    pub(crate) async fn admin(&self) -> Admin {
        Admin::connect(&self.url()).await.unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        signal::send(self.process.id(), signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(Some(_))) {
            let log = std::fs::read_to_string(self.directory.path().join("server.log"));
            eprintln!("the server ended: {}", log.unwrap_or_default());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(
    port: u16,
    directory: &Path,
    options: &[String],
    environment: &[(&str, PathBuf)],
) -> Child {
    let program = std::env::var("RLOCK_SERVER").unwrap_or_else(|_| "redis-server".into());
    let port = port.to_string();
    Command::new(&program)
        .args(["--port", &port, "--bind", "127.0.0.1", "--save", ""])
        .args(["--appendonly", "no", "--logfile", "server.log"])
        .args(["--loglevel", "notice"])
        .args(options)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start `{program}`: {error}"))
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The URL of the servers at `urls`, which are a `kind` together.
pub(crate) fn together(kind: &str, urls: &[impl AsRef<str>]) -> String {
    let hosts = urls.iter().map(|url| {
        let url = url.as_ref();
        url.trim_start_matches("redis://").trim_end_matches('/')
    });
    let hosts: Vec<_> = hosts.collect();
    format!("redis+{kind}://{}", hosts.join(","))
}

pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
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
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

pub(crate) struct Admin(pub(crate) MultiplexedConnection);

impl Admin {
    pub(crate) async fn connect(url: &str) -> redis::RedisResult<Self> {
        // A machine that stands still for a second fails no test.
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(BOUND))
            .set_response_timeout(Some(BOUND));
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&patient);
        connection.await.map(Self)
    }

    /// Runs a command given as words.
    pub(crate) async fn run<T: FromRedisValue>(&mut self, command: &str) -> T {
        let reply = self.ask(command).await;
        reply.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The same, which may fail.
    pub(crate) async fn ask<T: FromRedisValue>(&mut self, command: &str) -> redis::RedisResult<T> {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        cmd.arg(words.collect::<Vec<_>>());
        cmd.query_async(&mut self.0).await
    }

    /// One field of `INFO rlock`.
    pub(crate) async fn gauge(&mut self, name: &str) -> u64 {
        let info: String = self.run("INFO rlock").await;
        let field = format!("rlock_{name}:");
        let value = info.lines().find_map(|line| line.strip_prefix(&field));
        value
            .unwrap_or_else(|| panic!("no {field} in {info}"))
            .trim()
            .parse()
            .unwrap()
    }

    /// How often each command was called since `CONFIG RESETSTAT`.
    pub(crate) async fn calls(&mut self) -> HashMap<String, u64> {
        let info: String = self.run("INFO commandstats").await;
        info.lines().filter_map(calls_of).collect()
    }

    /// The server's numbers of the connections of this crate's clients.
    pub(crate) async fn lock_clients(&mut self) -> Vec<String> {
        let list: String = self.run("CLIENT LIST").await;
        let lines = list
            .lines()
            .filter(|line| line.contains("lib-name=rlock-client") || line.contains("cmd=rlock"));
        lines
            .filter_map(|line| line.strip_prefix("id=")?.split(' ').next())
            .map(str::to_owned)
            .collect()
    }

    /// Ends the connections of this crate's clients.
    pub(crate) async fn kill_lock_clients(&mut self) {
        for id in self.lock_clients().await {
            let _: u64 = self.run(&format!("CLIENT KILL ID {id}")).await;
        }
    }

    /// Waits until nobody holds `key` or waits for it.
    pub(crate) async fn untouched(&mut self, key: &str) {
        let what = format!("`{key}` is free and its queue empty");
        eventually(&what, async || {
            let exists: bool = self.run(&format!("EXISTS {key}")).await;
            !exists && self.gauge("waiters").await == 0
        })
        .await;
    }

    /// Waits until `count` requests are queued on the server.
    pub(crate) async fn queued(&mut self, count: u64) {
        let what = format!("{count} queued");
        eventually(&what, async || self.gauge("waiters").await == count).await;
    }
}

/// `cmdstat_get:calls=7,…` as `("get", 7)`.
fn calls_of(line: &str) -> Option<(String, u64)> {
    let (command, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    Some((command.to_owned(), numbers.split(',').next()?.parse().ok()?))
}
