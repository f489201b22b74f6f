//! One server, which writes each change to its disk before it answers.

use crate::locks::Address;
use crate::network::Network;
use crate::random::Random;
use crate::world::{Act, Plan, World, plan};
use rlock_testkit::asynchronous::{Server, eventually};

pub(crate) struct Single {
    server: Server,
}

impl Single {
    /// Nobody needs the changes for a while. Then a new file has all data.
    async fn end_and_begin_file(&self, plan: &Plan) {
        let mut admin = self.server.admin().await;
        for answer in ["no", "yes"] {
            let set = format!("CONFIG SET appendonly {answer}");
            admin.run::<()>(&set).await;
            tokio::time::sleep(plan.length).await;
        }
        eventually("the append-only file is written", async || {
            let info: String = admin.run("INFO persistence").await;
            let is_zero = |it| info.contains(&format!("aof_rewrite_{it}:0\r"));
            is_zero("scheduled") && is_zero("in_progress")
        })
        .await;
    }
}

impl World for Single {
    const NAME: &'static str = "single";
    const COPIES: u16 = 0;
    const ACTS: &'static [Act] = &[
        Act::Crash { keeps_data: true },
        Act::Crash { keeps_data: true },
        Act::Crash { keeps_data: false },
        Act::EndFile,
        Act::Pause { is_long: false },
        Act::Pause { is_long: true },
    ];

    async fn start() -> Self {
        let durable = [("appendonly", "yes"), ("appendfsync", "always")];
        let server = Server::start_locking(&durable).await;
        Self { server }
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.server.port()]
    }

    fn address(&self, network: &Network, group: usize) -> Address {
        Address::Client(network.url(group, self.server.port()))
    }

    fn servers(&self) -> Vec<&Server> {
        vec![&self.server]
    }

    async fn masters(&self) -> Vec<usize> {
        vec![0]
    }

    async fn is_whole(&self) -> bool {
        self.server.admin().await.ask::<()>("PING").await.is_ok()
    }

    async fn plan(&self, act: Act, random: &mut Random) -> Plan {
        plan(self, act, random).await
    }

    async fn carry_out(&mut self, act: Act, plan: &Plan) {
        match act {
            Act::Crash { .. } => {}
            Act::EndFile => self.end_and_begin_file(plan).await,
            _ => return,
        }
        self.server.kill();
        tokio::time::sleep(plan.length).await;
        if act == (Act::Crash { keeps_data: false }) {
            std::fs::remove_dir_all(self.server.file("appendonlydir")).unwrap();
        }
        self.server.restart().await;
    }
}
