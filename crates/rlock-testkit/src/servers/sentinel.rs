//! Replicas, and Sentinels that monitor a master and fail it over.

use std::fs::File;
use std::process::Child;

use tempfile::TempDir;

use crate::asynchronous::{Admin, Server, eventually, together, url};
use crate::servers::setup::guarded;
use crate::{Setup, free_port, program};

/// A replica of `master`, in sync and acknowledging.
pub async fn replica_of(master: &crate::Server) -> Server {
    let replica = Setup::new().replica_of(master).start_async().await;
    let mut admin = Admin::connect(&master.url())
        .await
        .expect("the master is reachable");
    eventually("the replica is linked", async || {
        replica.info("replication", "master_link_status") == "up"
    })
    .await;
    // A connected replica may not acknowledge yet.
    let _: () = admin.run("SET rlock-testkit 1").await;
    eventually("the replica acknowledges", async || {
        admin.run::<u64>("WAIT 1 1000").await == 1
    })
    .await;
    let _: () = admin.run("DEL rlock-testkit").await;
    replica
}

/// One Sentinel, which knows its master as `locks`. It is stopped by its process id.
pub struct Sentinel {
    process: Child,
    port: u16,
    _directory: TempDir,
}

impl Sentinel {
    /// A Sentinel that monitors `master`, decides alone, and knows the existing replica.
    pub async fn of(master: &crate::Server) -> Self {
        let sentinel = Self::start(master.port(), 1, "").await;
        eventually("the Sentinel knows the replica", async || {
            let Ok(mut admin) = Admin::connect(&sentinel.url()).await else {
                return false;
            };
            let replicas: Vec<redis::Value> = admin.run("SENTINEL REPLICAS locks").await;
            !replicas.is_empty()
        })
        .await;
        sentinel
    }

    /// A Sentinel that monitors the server at port `master` as the master, and replaces it when `quorum` Sentinels
    /// agree; with these lines of configuration.
    pub async fn start(master: u16, quorum: usize, lines: &str) -> Self {
        loop {
            let port = free_port();
            if let Some(sentinel) =
                Self::try_start(master, quorum, port, &format!("port {port}\n{lines}")).await
            {
                return sentinel;
            }
        }
    }

    /// The same at `port`, which `lines` name. `None` if the port is taken.
    pub async fn try_start(master: u16, quorum: usize, port: u16, lines: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let settings = format!(
            "bind 127.0.0.1\ndir {directory}\nlogfile log\n{lines}\n\
             sentinel monitor locks 127.0.0.1 {master} {quorum}\n\
             sentinel down-after-milliseconds locks 1500\n\
             sentinel failover-timeout locks 5000\n\
             sentinel parallel-syncs locks 2\n",
            directory = directory.path().display(),
        );
        let file = directory.path().join("sentinel.conf");
        std::fs::write(&file, settings).expect("the configuration can be written");
        let output = File::create(directory.path().join("output")).expect("a file can be made");
        let process = guarded(&[])
            .arg(&file)
            .arg("--sentinel")
            .stdout(output)
            .spawn();
        let mut sentinel = Self {
            process: process
                .unwrap_or_else(|error| panic!("{} cannot be started: {error}", program())),
            port,
            _directory: directory,
        };
        let mut has_ended = false;
        eventually("the Sentinel answers", async || {
            has_ended = !matches!(sentinel.process.try_wait(), Ok(None));
            has_ended
                || tokio::net::TcpStream::connect(("127.0.0.1", port))
                    .await
                    .is_ok()
        })
        .await;
        (!has_ended).then_some(sentinel)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        url(self.port)
    }

    /// The URL of the master through this Sentinel, as `redis+sentinel://…/locks`.
    pub fn master_url(&self) -> String {
        format!("{}/locks", together("sentinel", &[self.url()]))
    }

    /// The port of the master that it names.
    pub async fn master(&self) -> Option<u16> {
        let mut admin = Admin::connect(&self.url()).await.ok()?;
        let named: (String, u16) = admin
            .ask("SENTINEL GET-MASTER-ADDR-BY-NAME locks")
            .await
            .ok()?;
        Some(named.1)
    }

    /// Waits until it names the master at `port`.
    pub async fn names(&self, port: u16) {
        eventually("the Sentinel names the new master", async || {
            self.master().await == Some(port)
        })
        .await;
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
