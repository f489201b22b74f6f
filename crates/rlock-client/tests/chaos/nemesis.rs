//! Does one bad thing after the other, with pauses in which all gets well.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::contender::{GROUPS, Process};
use crate::log::Log;
use crate::network::{Network, Weather};
use crate::random::Random;
use crate::world::{Act, Plan, World};
use rlock_testkit::history::Loses;

/// What may happen in every world.
const EVERYWHERE: [Act; 7] = [
    Act::Disconnect,
    Act::Partition,
    Act::Partition,
    Act::Partition,
    Act::Stall,
    Act::Force,
    Act::Flush,
];
/// How long servers may take to get well.
const RECOVERY: Duration = Duration::from_secs(40);

/// Between a server and a group of clients, or all.
struct Partition {
    group: Option<usize>,
    port: u16,
    detail: String,
}

pub(crate) struct Nemesis<'run, W> {
    pub(crate) world: &'run mut W,
    pub(crate) network: &'run Network,
    pub(crate) processes: &'run [Process],
    pub(crate) random: Random,
    pub(crate) log: Log,
}

impl<W: World> Nemesis<'_, W> {
    pub(crate) async fn run(&mut self, until: Instant) {
        let (mut bag, mut masters) = (Vec::new(), self.world.masters().await);
        sleep_until((Instant::now() + Duration::from_secs(1)).min(until)).await;
        while Instant::now() < until {
            if bag.is_empty() {
                bag = [W::ACTS, &EVERYWHERE].concat();
            }
            let act = bag.swap_remove(self.random.index(bag.len()));
            masters = self.strike(act, masters).await;
            self.rest(until).await;
        }
    }

    async fn rest(&mut self, until: Instant) {
        let pause = match self.random.below(5) {
            0 => self.random.between(9_000, 13_000),
            _ => self.random.between(300, 3_000),
        };
        sleep_until((Instant::now() + pause).min(until)).await;
    }

    /// The masters afterwards, who were these before.
    async fn strike(&mut self, act: Act, before: Vec<usize>) -> Vec<usize> {
        let now = self.world.masters().await;
        if now != before {
            let fault = self.log.fault(
                "fail-over by itself",
                format!("{before:?} to {now:?}"),
                Loses::Unreplicated,
            );
            self.recover().await;
            self.log.healed(fault);
        }
        let before = self.world.masters().await;
        let plan = self.world.plan(act, &mut self.random).await;
        if !plan.is_possible {
            return before;
        }
        let detail = format!("server {}, {:?}", plan.server, plan.length);
        let fault = self.log.fault(act.name(), detail, plan.loses);
        // What happens to servers may happen while clients cannot reach them.
        let is_company = W::ACTS.contains(&act) && self.random.below(3) == 0;
        let company = is_company.then(|| self.partition(&plan));
        self.carry_out(act, &plan, fault).await;
        if let Some(partition) = company {
            self.log.read().faults[fault].detail += &format!(", {}", partition.detail);
            self.set(&partition, Weather::Fair);
        }
        self.recover().await;
        let after = self.world.masters().await;
        let mut history = self.log.read();
        // A machine that stalls may make more of it than was meant.
        let is_meant = matches!(act, Act::FailOver | Act::MoveSlot | Act::MigrateSlot);
        if after != before && !is_meant && history.faults[fault].loses == Loses::Nothing {
            history.faults[fault].loses = Loses::Unreplicated;
        }
        drop(history);
        self.log.healed(fault);
        println!("{}", describe(&self.log, fault));
        after
    }

    async fn carry_out(&mut self, act: Act, plan: &Plan, fault: usize) {
        match act {
            Act::Pause { .. } | Act::PauseReplica => self.pause(plan).await,
            Act::Disconnect => self.disconnect().await,
            Act::Partition => self.part(plan, fault).await,
            Act::Stall => {
                self.processes[self.random.index(self.processes.len())].stand_still(plan.length);
                sleep(plan.length).await;
            }
            Act::Force | Act::Flush => self.operate(act, plan, fault).await,
            _ => self.world.carry_out(act, plan).await,
        }
    }

    async fn pause(&self, plan: &Plan) {
        let servers = self.world.servers();
        servers[plan.server].signal("-STOP");
        sleep(plan.length).await;
        servers[plan.server].signal("-CONT");
    }

    async fn disconnect(&self) {
        for server in self.world.servers() {
            let mut admin = server.admin().await;
            for id in admin.lock_clients().await {
                // It may be gone by now.
                let _ = admin.ask::<u64>(&format!("CLIENT KILL ID {id}")).await;
            }
        }
    }

    async fn part(&mut self, plan: &Plan, fault: usize) {
        let partition = self.partition(plan);
        self.log.read().faults[fault].detail = format!("{}, {:?}", partition.detail, plan.length);
        sleep(plan.length).await;
        self.set(&partition, Weather::Fair);
    }

    /// Begins one between some clients and a master, or any server or Sentinel.
    fn partition(&mut self, plan: &Plan) -> Partition {
        let ports = self.world.ports();
        let index = match self.random.below(3) {
            0 => self.random.index(ports.len()),
            _ => plan.server,
        };
        let weather = match self.random.below(6) {
            0 => Weather::Silent,
            1 => Weather::NoReplies,
            2 => Weather::NoRequests,
            3 => Weather::Slow(self.random.between(20, 800)),
            _ => Weather::Cut,
        };
        let group = Some(self.random.index(GROUPS + 1)).filter(|group| *group < GROUPS);
        let some = group.map_or("all clients".to_owned(), |group| format!("group {group}"));
        let partition = Partition {
            group,
            port: ports[index],
            detail: format!("{weather:?} between {some} and server {index}"),
        };
        self.set(&partition, weather);
        partition
    }

    fn set(&self, partition: &Partition, weather: Weather) {
        let applies = |number| partition.group.is_none_or(|group| group == number);
        self.network.set(partition.port, weather, applies);
    }

    /// An operator ends holds, at all masters.
    async fn operate(&self, act: Act, plan: &Plan, fault: usize) {
        let command = match act {
            Act::Force => format!("RLOCK.FORCE {}", plan.key),
            _ => "FLUSHALL".to_owned(),
        };
        self.log.read().faults[fault].detail = command.clone();
        for master in self.world.masters().await {
            // The slot may be elsewhere.
            let _ = self.world.servers()[master]
                .admin()
                .await
                .ask::<redis::Value>(&command)
                .await;
        }
    }

    /// Waits until all servers are well.
    async fn recover(&self) {
        let begun = Instant::now();
        while !self.world.is_whole().await {
            if begun.elapsed() > RECOVERY {
                let text = format!("the servers did not get well within {RECOVERY:?}");
                return self.log.read().remains.push(text);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

fn describe(log: &Log, fault: usize) -> String {
    let fault = &log.read().faults[fault];
    let (begun, healed) = (fault.begun, fault.healed.unwrap_or(fault.begun));
    let tenths = |moment: u64| {
        format!(
            "{:.1}",
            std::time::Duration::from_micros(moment).as_secs_f64()
        )
    };
    format!(
        "  {:>6} s  {} ({}), well after {} s",
        tenths(begun),
        fault.kind,
        fault.detail,
        tenths(healed - begun)
    )
}
