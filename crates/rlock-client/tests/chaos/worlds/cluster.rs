//! A cluster: three masters with a replica each.

use std::time::Duration;

use tokio::time::sleep;

use crate::locks::Address;
use crate::network::Network;
use crate::random::Random;
use crate::world::{Act, Plan, World, plan};
use rlock_testkit::asynchronous::{Server, eventually};
use rlock_testkit::cluster::Cluster;
use rlock_testkit::history::Loses;

const MASTERS: usize = 3;

pub(crate) struct Shards {
    cluster: Cluster,
}

impl Shards {
    /// The master that has the slot of the key, and another.
    async fn way_of(&self, plan: &Plan) -> (u16, usize, usize) {
        let slot = self.cluster.slot_of(plan.key).await;
        let from = self.cluster.index_of_slot(slot).await;
        let others = self
            .masters()
            .await
            .into_iter()
            .filter(|other| *other != from);
        let others: Vec<_> = others.collect();
        (slot, from, others[plan.server % others.len()])
    }

    /// A server with this master, or the other way round.
    async fn partner(&self, server: usize) -> usize {
        let masters = self.masters().await;
        let port = self.cluster.server(server).port();
        for other in 0..self.servers().len() {
            let info: String = self
                .cluster
                .admin(other)
                .await
                .run("INFO replication")
                .await;
            if !masters.contains(&other) && info.contains(&format!("master_port:{port}\r")) {
                return other;
            }
        }
        panic!("master {server} has no replica");
    }

    async fn move_slot(&self, plan: &Plan) {
        let (slot, from, to) = self.way_of(plan).await;
        self.cluster.begin_move(slot, from, to).await;
        sleep(plan.length / 4).await;
        eventually("the slot is empty", async || {
            self.cluster.move_keys(slot, from, to).await;
            sleep(plan.length / 8).await;
            let mut admin = self.cluster.admin(from).await;
            let left: Vec<String> = admin.run(&format!("CLUSTER GETKEYSINSLOT {slot} 9")).await;
            left.is_empty()
        })
        .await;
        self.cluster.finish_move(slot, from, to).await;
    }

    async fn succeed(&mut self, plan: &Plan) {
        let heir = self.partner(plan.server).await;
        self.cluster.kill(plan.server);
        eventually("the replica takes over", async || {
            let info: String = self.cluster.admin(heir).await.run("INFO replication").await;
            info.contains("role:master")
        })
        .await;
        sleep(plan.length).await;
        self.cluster.restart(plan.server).await;
    }
}

impl World for Shards {
    const NAME: &'static str = "cluster";
    const COPIES: u16 = 1;
    const ACTS: &'static [Act] = &[
        Act::Succeed,
        Act::Succeed,
        Act::Pause { is_long: false },
        Act::Pause { is_long: true },
        Act::PauseReplica,
        Act::FailOver,
        Act::FailOver,
        Act::MoveSlot,
        Act::MoveSlot,
        Act::MigrateSlot,
    ];

    async fn start() -> Self {
        let cluster = Cluster::start(MASTERS, 1).await;
        Self { cluster }
    }

    fn ports(&self) -> Vec<u16> {
        self.servers().iter().map(|server| server.port()).collect()
    }

    fn address(&self, network: &Network, group: usize) -> Address {
        let urls = self
            .ports()
            .into_iter()
            .map(|port| network.url(group, port));
        Address::of_cluster(&urls.collect::<Vec<_>>())
    }

    fn servers(&self) -> Vec<&Server> {
        (0..2 * MASTERS)
            .map(|node| self.cluster.server(node))
            .collect()
    }

    async fn masters(&self) -> Vec<usize> {
        let mut masters = Vec::new();
        for node in 0..2 * MASTERS {
            let info: String = self.cluster.admin(node).await.run("INFO replication").await;
            if info.contains("role:master") {
                masters.push(node);
            }
        }
        masters
    }

    async fn is_whole(&self) -> bool {
        self.cluster.is_agreed().await
    }

    async fn plan(&self, act: Act, random: &mut Random) -> Plan {
        let plan = plan(self, act, random).await;
        match act {
            Act::Succeed => Plan {
                loses: Loses::Unreplicated,
                ..plan
            },
            Act::Pause { is_long: true } => Plan {
                loses: Loses::Unreplicated,
                length: plan.length + Duration::from_secs(3),
                ..plan
            },
            Act::PauseReplica => Plan {
                server: self.partner(plan.server).await,
                ..plan
            },
            Act::MigrateSlot => Plan {
                is_possible: self.cluster.can_migrate_slots().await,
                ..plan
            },
            _ => plan,
        }
    }

    async fn carry_out(&mut self, act: Act, plan: &Plan) {
        match act {
            Act::Succeed => self.succeed(plan).await,
            Act::FailOver => {
                let replica = self.partner(plan.server).await;
                self.cluster.fail_over(replica).await;
            }
            Act::MoveSlot => self.move_slot(plan).await,
            Act::MigrateSlot => {
                let (slot, from, to) = self.way_of(plan).await;
                self.cluster.migrate_slots(slot..=slot, from, to).await;
            }
            _ => {}
        }
    }
}
