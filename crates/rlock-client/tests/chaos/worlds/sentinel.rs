//! A master with two replicas, and three Sentinels that watch them.

use tokio::time::sleep;

use crate::locks::Address;
use crate::network::Network;
use crate::random::Random;
use crate::world::{Act, Plan, World, plan};
use rlock_testkit::asynchronous::{Admin, Server, eventually, url};
use rlock_testkit::history::Loses;
use rlock_testkit::sentinel::Sentinel;

const SERVERS: usize = 3;
const SENTINELS: usize = 3;

/// Asks servers every 2 s rather than every 10 s who they are, so that more fits into a run.
async fn look_often(sentinel: &Sentinel) {
    let mut admin = Admin::connect(&sentinel.url()).await.unwrap();
    let _: () = admin.run("SENTINEL DEBUG info-period 2000").await;
}

/// Whether it sees the master, both replicas and the others in good health.
async fn is_content(sentinel: &Sentinel) -> Option<bool> {
    let mut admin = Admin::connect(&sentinel.url()).await.ok()?;
    let masters: Vec<Fields> = admin.ask("SENTINEL MASTERS").await.ok()?;
    let replicas: Vec<Fields> = admin.ask("SENTINEL REPLICAS locks").await.ok()?;
    let others: Vec<Fields> = admin.ask("SENTINEL SENTINELS locks").await.ok()?;
    let are_there = replicas.len() == SERVERS - 1 && others.len() == SENTINELS - 1;
    let mut all = masters.iter().chain(&replicas).chain(&others);
    Some(are_there && all.all(is_well))
}

/// What a Sentinel believed of the last master (`master_down`) may stay for long.
fn is_well(fields: &Fields) -> bool {
    const UNWELL: [&str; 5] = [
        "s_down",
        "o_down",
        "disconnected",
        "failover_in_progress",
        "reconf_inprog",
    ];
    let flags = fields.get("flags").map_or("", String::as_str);
    flags.split(',').all(|flag| !UNWELL.contains(&flag))
}

type Fields = std::collections::HashMap<String, String>;

pub(crate) struct Watched {
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

impl Watched {
    fn index(&self, port: u16) -> Option<usize> {
        self.servers.iter().position(|server| server.port() == port)
    }

    async fn master(&self) -> usize {
        let named = self.sentinels[0].master().await;
        named.and_then(|port| self.index(port)).expect("a master")
    }

    /// Waits until all Sentinels name another.
    async fn is_succeeded(&self, old: usize) {
        let old = self.servers[old].port();
        eventually("the Sentinels name another master", async || {
            let mut are_new = true;
            for sentinel in &self.sentinels {
                are_new &= sentinel.master().await.is_some_and(|port| port != old);
            }
            are_new
        })
        .await;
    }

    async fn fail_over(&self) {
        let (old, port) = (self.master().await, self.sentinels[1].port());
        let mut admin = Admin::connect(&url(port)).await.unwrap();
        eventually("the fail-over begins", async || {
            admin.ask::<()>("SENTINEL FAILOVER locks").await.is_ok()
        })
        .await;
        self.is_succeeded(old).await;
    }

    async fn replicates(&self) -> bool {
        let master = self.servers[self.master().await].port();
        for server in &self.servers {
            let Ok(mut admin) = Admin::connect(&server.url()).await else {
                return false;
            };
            let info: String = admin.ask("INFO replication").await.unwrap_or_default();
            let is_master =
                info.contains("role:master") && info.matches("state=online").count() == SERVERS - 1;
            let is_replica = info.contains(&format!("master_port:{master}\r"))
                && info.contains("master_link_status:up");
            if !if server.port() == master {
                is_master
            } else {
                is_replica
            } {
                return false;
            }
        }
        true
    }
}

impl World for Watched {
    const NAME: &'static str = "sentinel";
    const COPIES: u16 = 2;
    const ACTS: &'static [Act] = &[
        Act::Succeed,
        Act::Succeed,
        Act::Pause { is_long: false },
        Act::Pause { is_long: true },
        Act::PauseReplica,
        Act::FailOver,
    ];

    async fn start() -> Self {
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            servers.push(Server::start().await);
        }
        let master = servers[0].port();
        for replica in &servers[1..] {
            let command = format!("REPLICAOF 127.0.0.1 {master}");
            let _: () = replica.admin().await.run(&command).await;
        }
        let mut sentinels = Vec::new();
        for _ in 0..SENTINELS {
            let sentinel = Sentinel::start(master, 2, "").await;
            look_often(&sentinel).await;
            sentinels.push(sentinel);
        }
        Self { servers, sentinels }
    }

    fn ports(&self) -> Vec<u16> {
        let servers = self.servers.iter().map(|server| server.port());
        servers
            .chain(self.sentinels.iter().map(|sentinel| sentinel.port()))
            .collect()
    }

    fn address(&self, network: &Network, group: usize) -> Address {
        let urls = self
            .sentinels
            .iter()
            .map(|sentinel| network.url(group, sentinel.port()));
        Address::of_sentinels(&urls.collect::<Vec<_>>())
    }

    fn servers(&self) -> Vec<&Server> {
        self.servers.iter().collect()
    }

    async fn masters(&self) -> Vec<usize> {
        vec![self.master().await]
    }

    async fn is_whole(&self) -> bool {
        let first = self.sentinels[0].master().await;
        for sentinel in &self.sentinels {
            let is_content = is_content(sentinel).await.unwrap_or(false);
            if !is_content || sentinel.master().await != first {
                return false;
            }
        }
        first.is_some() && self.replicates().await
    }

    async fn plan(&self, act: Act, random: &mut Random) -> Plan {
        let plan = plan(self, act, random).await;
        match act {
            Act::Succeed | Act::FailOver | Act::Pause { is_long: true } => Plan {
                loses: Loses::Unreplicated,
                ..plan
            },
            Act::PauseReplica => Plan {
                server: (plan.server + 1) % SERVERS,
                ..plan
            },
            _ => plan,
        }
    }

    async fn carry_out(&mut self, act: Act, plan: &Plan) {
        match act {
            Act::Succeed => {
                self.servers[plan.server].kill();
                self.is_succeeded(plan.server).await;
                sleep(plan.length).await;
                self.servers[plan.server].restart().await;
            }
            Act::FailOver => self.fail_over().await,
            _ => {}
        }
    }
}
