//! Masters of a cluster, and Sentinels with a master and its replica.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::server::{Server, eventually, free_port};

/// How many masters a cluster has.
pub(crate) const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

/// A cluster of masters, each with an equal share of the slots.
pub(crate) struct Cluster {
    pub(crate) masters: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let buses: Vec<_> = (0..MASTERS).map(|_| bus_port()).collect();
        let masters: Vec<_> = buses.iter().map(|bus| member(*bus)).collect();
        for (number, master) in masters.iter().enumerate() {
            let (first, end) = (SLOTS * number / MASTERS, SLOTS * (number + 1) / MASTERS);
            let mut admin = master.admin();
            let _: () = admin.run(&format!("CLUSTER ADDSLOTSRANGE {first} {}", end - 1));
            let _: () = admin.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
        }
        for (other, bus) in masters.iter().zip(&buses).skip(1) {
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", other.port);
            let _: () = masters[0].admin().run(&meet);
        }
        for master in &masters {
            eventually("the master knows all slots", || {
                let info: String = master.admin().run("CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            });
        }
        Self { masters }
    }

    /// A member that has all that the first master has.
    pub(crate) fn replica(&self) -> Server {
        let (bus, master) = (bus_port(), &self.masters[0]);
        let replica = member(bus);
        let _: () = master.admin().run("CONFIG SET repl-diskless-sync-delay 0");
        let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", replica.port);
        let _: () = master.admin().run(&meet);
        let id: String = master.admin().run("CLUSTER MYID");
        let mut admin = replica.admin();
        eventually("the member knows the master", || {
            let nodes: String = admin.run("CLUSTER NODES");
            nodes.contains(&id)
        });
        let _: () = admin.run(&format!("CLUSTER REPLICATE {id}"));
        replica.until_linked();
        // Those who vote for a new master know it as a replica.
        let id: String = replica.admin().run("CLUSTER MYID");
        for master in &self.masters {
            eventually("the master knows the replica", || {
                let nodes: String = master.admin().run("CLUSTER NODES");
                let line = nodes.lines().find(|line| line.starts_with(&id));
                line.is_some_and(|line| line.contains("slave"))
            });
        }
        replica
    }

    /// The addresses of all, for a URL.
    pub(crate) fn hosts(&self) -> String {
        let hosts = self.masters.iter();
        let hosts = hosts.map(|master| format!("127.0.0.1:{}", master.port));
        hosts.collect::<Vec<_>>().join(",")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://{}", self.hosts())
    }

    /// One key at each master.
    pub(crate) fn keys(&self) -> [&'static str; MASTERS] {
        // Their slots are 3300, 7365 and 15495.
        let keys = ["b", "c", "a"].map(|key| {
            let slot: usize = self.masters[0]
                .admin()
                .run(&format!("CLUSTER KEYSLOT {key}"));
            (slot * MASTERS / SLOTS, key)
        });
        let at = |master| keys.iter().find(|key| key.0 == master).unwrap().1;
        [at(0), at(1), at(2)]
    }
}

/// A server that is about to be a member of a cluster.
fn member(bus: u16) -> Server {
    Server::start_locking(&[
        ("cluster-enabled", "yes"),
        ("cluster-port", &bus.to_string()),
        ("cluster-announce-ip", "127.0.0.1"),
        ("cluster-node-timeout", "2000"),
        ("cluster-require-full-coverage", "no"),
    ])
}

/// A free port that no outgoing connection gets.
pub(crate) fn bus_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let ports = std::iter::repeat_with(|| {
        let number = std::process::id() * 97 + COUNT.fetch_add(1, Ordering::Relaxed);
        u16::try_from(10_000 + number % 22_000).unwrap()
    });
    ports.take(1_000).find(is_free).expect("a free port")
}

/// A server that has all that `master` has.
pub(crate) fn replica_of(master: &Server) -> Server {
    let replica = Server::start_locking(&[]);
    let mut admin = replica.admin();
    let _: () = master.admin().run("CONFIG SET repl-diskless-sync-delay 0");
    let _: () = admin.run(&format!("REPLICAOF 127.0.0.1 {}", master.port));
    replica.until_linked();
    // It may be there and acknowledge nothing yet.
    let mut writer = master.admin();
    let _: () = writer.run("SET first write");
    eventually("the replica acknowledges", || {
        writer.run::<u64>("WAIT 1 1000") == 1
    });
    replica
}

/// One Sentinel, which knows a master as `locks`. It is stopped by its process id.
pub(crate) struct Sentinel {
    process: Child,
    pub(crate) port: u16,
    _directory: TempDir,
}

impl Sentinel {
    /// With these lines in its configuration; it answers at `port`.
    pub(crate) fn start(master: u16, port: u16, settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = format!(
            "bind 127.0.0.1\ndir {}\nlogfile log\n{settings}\n\
             sentinel monitor locks 127.0.0.1 {master} 1\n",
            directory.path().display(),
        );
        let file = directory.path().join("sentinel.conf");
        std::fs::write(&file, settings).unwrap();
        let program = std::env::var("RLOCK_SERVER").unwrap_or_else(|_| "redis-server".into());
        let process = Command::new(program)
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let sentinel = Self {
            process,
            port,
            _directory: directory,
        };
        eventually("the Sentinel is there", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        sentinel
    }

    pub(crate) fn of(master: &Server, settings: &str) -> Self {
        let port = free_port();
        Self::start(master.port, port, &format!("port {port}\n{settings}"))
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
