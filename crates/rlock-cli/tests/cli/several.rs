//! Clusters, replicas and Sentinels whose servers a test can stop one by one.

use rlock_testkit::sentinel::{self, Sentinel};
use rlock_testkit::{Server, block_on, cluster};

use super::server::Asks;

/// How many masters a cluster has.
pub(crate) const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

/// A cluster of masters, each with an equal share of the slots.
pub(crate) struct Cluster {
    pub(crate) masters: Vec<Server>,
    /// The replicas of all masters.
    pub(crate) replicas: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::replicated(0)
    }

    /// A cluster whose masters have this number of replicas each.
    pub(crate) fn replicated(replicas: usize) -> Self {
        let cluster = block_on(cluster::Cluster::start(MASTERS, replicas));
        let mut masters = cluster.into_servers();
        let replicas = masters.split_off(MASTERS);
        for master in &masters {
            // The other masters still work when one is unreachable.
            let _: () = master
                .admin()
                .run("CONFIG SET cluster-require-full-coverage no");
        }
        Self { masters, replicas }
    }

    /// The addresses of all, for a URL.
    pub(crate) fn hosts(&self) -> String {
        let hosts = self.masters.iter();
        let hosts = hosts.map(|master| format!("127.0.0.1:{}", master.port()));
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

/// A replica of `master`.
pub(crate) fn replica_of(master: &Server) -> Server {
    block_on(sentinel::replica_of(master)).into_inner()
}

/// A Sentinel that watches `master` as `locks`, with these lines of configuration.
pub(crate) fn sentinel_of(master: &Server, lines: &str) -> Sentinel {
    block_on(Sentinel::start(master.port(), 1, lines))
}
