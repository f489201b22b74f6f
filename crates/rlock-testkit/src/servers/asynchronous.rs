//! A server for tests on a runtime, and its questions.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};

pub use crate::PATIENCE;
use crate::Setup;
pub use crate::servers::server::{free_port, url};

/// A server whose start and end do not block other tasks on the runtime.
pub struct Server(Option<crate::Server>);

impl Server {
    /// A server with the module.
    pub async fn start() -> Self {
        Setup::new().start_async().await
    }

    /// A server with the module, and with these settings.
    pub async fn start_locking(settings: &[(&str, &str)]) -> Self {
        Setup::new().settings(settings).start_async().await
    }

    /// A cluster of one node, with the module.
    pub async fn start_cluster() -> Self {
        let server = Setup::new().cluster_node().start_async().await;
        let mut admin = server.admin().await;
        let _: () = admin.run("CLUSTER ADDSLOTSRANGE 0 16383").await;
        eventually("the cluster serves all slots", async || {
            let info: String = admin.run("CLUSTER INFO").await;
            info.contains("cluster_state:ok")
        })
        .await;
        server
    }

    /// Restarts it after [`kill`](crate::Server::kill), at its port and with its data on disk.
    pub async fn restart(&mut self) {
        let mut server = self.0.take().expect("the server runs");
        self.0 = apart(move || {
            server.start_again();
            Some(server)
        })
        .await;
    }

    /// The server for a test that blocks its own thread.
    pub fn into_inner(self) -> crate::Server {
        self.0.expect("the server runs")
    }

    /// A connection for the test itself.
    pub async fn admin(&self) -> Admin {
        Admin::connect(&self.url()).await.unwrap()
    }
}

impl Setup {
    /// Starts a server while other tasks run.
    pub async fn start_async(self) -> Server {
        Server(Some(apart(|| self.start()).await))
    }
}

/// Runs a blocking function while other tasks run.
async fn apart<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(run).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

impl Deref for Server {
    type Target = crate::Server;

    fn deref(&self) -> &crate::Server {
        self.0.as_ref().expect("the server runs")
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut crate::Server {
        self.0.as_mut().expect("the server runs")
    }
}

/// The URL of several servers at `urls` that are a `kind`.
pub fn together(kind: &str, urls: &[impl AsRef<str>]) -> String {
    let hosts = urls.iter().map(|url| {
        let url = url.as_ref();
        url.trim_start_matches("redis://").trim_end_matches('/')
    });
    let hosts: Vec<_> = hosts.collect();
    format!("redis+{kind}://{}", hosts.join(","))
}

/// Waits for `condition`, asking every few milliseconds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(
            begun.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

pub struct Admin(pub MultiplexedConnection);

impl Admin {
    pub async fn connect(url: &str) -> redis::RedisResult<Self> {
        // A machine that stalls for a second fails no test.
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&patient);
        connection.await.map(Self)
    }

    /// Runs a command given as words.
    pub async fn run<T: FromRedisValue>(&mut self, command: &str) -> T {
        let reply = self.ask(command).await;
        reply.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Runs a command given as words, which may fail.
    pub async fn ask<T: FromRedisValue>(&mut self, command: &str) -> redis::RedisResult<T> {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        cmd.arg(words.collect::<Vec<_>>());
        cmd.query_async(&mut self.0).await
    }

    /// One field of `INFO rlock`.
    pub async fn gauge(&mut self, name: &str) -> u64 {
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
    pub async fn calls(&mut self) -> HashMap<String, u64> {
        let info: String = self.run("INFO commandstats").await;
        info.lines().filter_map(calls_of).collect()
    }

    /// The IDs of the connections of this crate's clients.
    pub async fn lock_clients(&mut self) -> Vec<String> {
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
    pub async fn kill_lock_clients(&mut self) {
        for id in self.lock_clients().await {
            let _: u64 = self.run(&format!("CLIENT KILL ID {id}")).await;
        }
    }

    /// Waits until nobody holds `key` or waits for it.
    pub async fn untouched(&mut self, key: &str) {
        let what = format!("`{key}` is free and its queue empty");
        eventually(&what, async || {
            let exists: bool = self.run(&format!("EXISTS {key}")).await;
            !exists && self.gauge("waiters").await == 0
        })
        .await;
    }

    /// Waits until `count` requests are queued on the server.
    pub async fn queued(&mut self, count: u64) {
        let what = format!("{count} queued");
        eventually(&what, async || self.gauge("waiters").await == count).await;
    }
}

/// `cmdstat_get:calls=7,…` as `("get", 7)`.
fn calls_of(line: &str) -> Option<(String, u64)> {
    let (command, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    Some((command.to_owned(), numbers.split(',').next()?.parse().ok()?))
}
