//! Clients of the servers that a test has started.

use rlock_client::Client;
use rlock_testkit::asynchronous::Server;
use rlock_testkit::cluster::Cluster;
use rlock_testkit::sentinel::Sentinel;

/// What a client connects to.
pub(crate) trait Connects {
    fn address(&self) -> String;

    /// A client of its own.
    async fn client(&self) -> Client {
        Client::connect(self.address()).await.unwrap()
    }
}

impl Connects for Server {
    fn address(&self) -> String {
        self.url()
    }
}

impl Connects for Cluster {
    fn address(&self) -> String {
        self.url()
    }
}

impl Connects for Sentinel {
    fn address(&self) -> String {
        self.master_url()
    }
}
