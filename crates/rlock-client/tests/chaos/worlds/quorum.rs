//! Three servers that know nothing of each other, and keep nothing on disk: a
//! majority of them holds a lock.

use crate::locks::Address;
use crate::network::Network;
use crate::random::Random;
use crate::world::{Act, Plan, World, plan};
use rlock_testkit::Setup;
use rlock_testkit::asynchronous::Server;
use rlock_testkit::history::Loses;

const MEMBERS: usize = 3;
/// More than the longest lease.
const GRACE_MS: &str = "2500";

pub(crate) struct Members {
    servers: Vec<Server>,
}

impl World for Members {
    const NAME: &'static str = "quorum";
    const COPIES: u16 = 0;
    const ACTS: &'static [Act] = &[
        Act::Crash { keeps_data: false },
        Act::Crash { keeps_data: false },
        Act::Pause { is_long: false },
        Act::Pause { is_long: true },
    ];

    async fn start() -> Self {
        let mut servers = Vec::new();
        for _ in 0..MEMBERS {
            let setup = Setup::new().module_arguments(&format!("startup-grace-ms {GRACE_MS}"));
            servers.push(setup.start_async().await);
        }
        Self { servers }
    }

    fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(|server| server.port()).collect()
    }

    fn address(&self, network: &Network, group: usize) -> Address {
        let urls = self
            .ports()
            .into_iter()
            .map(|port| network.url(group, port));
        Address::Quorum(urls.collect())
    }

    fn servers(&self) -> Vec<&Server> {
        self.servers.iter().collect()
    }

    async fn masters(&self) -> Vec<usize> {
        (0..MEMBERS).collect()
    }

    async fn is_whole(&self) -> bool {
        for server in &self.servers {
            if server.admin().await.gauge("grace_left_ms").await > 0 {
                return false;
            }
        }
        true
    }

    async fn plan(&self, act: Act, random: &mut Random) -> Plan {
        let plan = plan(self, act, random).await;
        match act {
            // What one member forgets, the others know.
            Act::Crash { .. } => Plan {
                loses: Loses::Nothing,
                ..plan
            },
            _ => plan,
        }
    }

    async fn carry_out(&mut self, act: Act, plan: &Plan) {
        if let Act::Crash { .. } = act {
            self.servers[plan.server].kill();
            tokio::time::sleep(plan.length).await;
            self.servers[plan.server].restart().await;
        }
    }
}
