//! A cluster of servers for one test: masters, their replicas, and slots that move.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use redis::Value;

use crate::asynchronous::{Admin, Server, eventually, together};
use crate::{PATIENCE, Setup};

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// Masters first; then the replicas of the first master, of the second, and so on.
pub struct Cluster {
    nodes: Vec<Node>,
    masters: usize,
}

/// A server of the cluster, and its ID there.
struct Node {
    server: Server,
    id: String,
    is_dead: bool,
}

impl Node {
    async fn start(number: usize) -> Self {
        let server = Setup::new().cluster_node().start_async().await;
        let mut admin = server.admin().await;
        // With different epochs from the start, the nodes need no agreement later.
        let epoch = format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1);
        let _: () = admin.run(&epoch).await;
        Self {
            id: admin.run("CLUSTER MYID").await,
            server,
            is_dead: false,
        }
    }
}

impl Cluster {
    /// A cluster whose masters have equal shares of the slots. All nodes agree on it.
    pub async fn start(masters: usize, replicas_per_master: usize) -> Self {
        let mut nodes = Vec::new();
        for number in 0..masters * (1 + replicas_per_master) {
            nodes.push(Node::start(number).await);
        }
        let cluster = Self { nodes, masters };
        for master in 0..masters {
            let slots = cluster.share(master);
            let range = format!("CLUSTER ADDSLOTSRANGE {} {}", slots.start(), slots.end());
            let _: () = cluster.admin(master).await.run(&range).await;
        }
        cluster.meet_all().await;
        for replica in masters..cluster.nodes.len() {
            let master = &cluster.nodes[(replica - masters) / replicas_per_master];
            let replicate = format!("CLUSTER REPLICATE {}", master.id);
            let _: () = cluster.admin(replica).await.run(&replicate).await;
        }
        cluster.agreed().await;
        cluster
    }

    /// The initial slots of a master.
    fn share(&self, master: usize) -> RangeInclusive<u16> {
        let start = |number: usize| usize::from(SLOTS) * number / self.masters;
        let slot = |number: usize| u16::try_from(number).unwrap();
        slot(start(master))..=slot(start(master + 1) - 1)
    }

    async fn meet_all(&self) {
        let mut admin = self.admin(0).await;
        for other in &self.nodes[1..] {
            let bus: (String, u16) = other
                .server
                .admin()
                .await
                .run("CONFIG GET cluster-port")
                .await;
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", other.server.port(), bus.1);
            let _: () = admin.run(&meet).await;
        }
        self.agreed().await;
    }

    /// The URL of all nodes, as `redis+cluster://…`.
    pub fn url(&self) -> String {
        together("cluster", &self.urls())
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.server.url()).collect()
    }

    /// Its servers, each of which can be dropped alone: masters first.
    pub fn into_servers(self) -> Vec<crate::Server> {
        self.nodes
            .into_iter()
            .map(|node| node.server.into_inner())
            .collect()
    }

    pub fn server(&self, node: usize) -> &Server {
        &self.nodes[node].server
    }

    /// A connection to one node for the test itself.
    pub async fn admin(&self, node: usize) -> Admin {
        self.server(node).admin().await
    }

    fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| !self.nodes[*node].is_dead)
    }

    /// Waits until all live nodes have the same view of all nodes, serve all slots, and replicate.
    pub async fn agreed(&self) {
        eventually("the nodes of the cluster agree", async || {
            self.is_agreed().await
        })
        .await;
    }

    pub async fn is_agreed(&self) -> bool {
        let first = self.alive().next().expect("a node that lives");
        let expected = view(&mut self.admin(first).await).await;
        let mut is_agreed = expected.len() == self.nodes.len();
        for node in self.alive() {
            let mut admin = self.admin(node).await;
            is_agreed = is_agreed && is_well(&mut admin).await;
            is_agreed = is_agreed && view(&mut admin).await == expected;
        }
        is_agreed
    }

    /// Waits until a replica has all data of its master. `WAIT` cannot do this: a connection that wrote nothing gets an
    /// answer at once.
    pub async fn copied(&self, master: usize, replica: usize) {
        let offset = |node| self.server(node).info("replication", "master_repl_offset");
        eventually("the replica has everything", async || {
            offset(replica) == offset(master)
        })
        .await;
    }

    pub async fn slot_of(&self, key: &str) -> u16 {
        let first = self.alive().next().expect("a node that lives");
        let mut admin = self.admin(first).await;
        admin.run(&format!("CLUSTER KEYSLOT {key}")).await
    }

    /// The master that has this slot.
    pub async fn index_of_slot(&self, slot: u16) -> usize {
        for node in self.alive() {
            if self.has_slot(node, slot).await {
                return node;
            }
        }
        panic!("no node has slot {slot}");
    }

    async fn has_slot(&self, node: usize, slot: u16) -> bool {
        let nodes: String = self.admin(node).await.run("CLUSTER NODES").await;
        let mine = nodes.lines().find(|line| line.contains("myself"));
        let words = mine.unwrap_or_default().split_whitespace().skip(8);
        words.filter_map(range).any(|slots| slots.contains(&slot))
    }

    /// The master that has the slot of this key.
    pub async fn node_of(&self, key: &str) -> usize {
        self.index_of_slot(self.slot_of(key).await).await
    }

    /// A key in a slot of this master.
    pub async fn key_at(&self, node: usize) -> String {
        for number in 0..1_000 {
            let key = format!("key-{number}");
            if self.node_of(&key).await == node {
                return key;
            }
        }
        panic!("node {node} has too few slots");
    }

    /// The slot starts to move: a missing key redirects to the next node.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.nodes[from].id);
        let _: () = self.admin(to).await.run(&importing).await;
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.nodes[to].id);
        let _: () = self.admin(from).await.run(&migrating).await;
    }

    /// Moves the slot's current keys.
    pub async fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (mut admin, port) = (self.admin(from).await, self.server(to).port());
        let here = format!("CLUSTER GETKEYSINSLOT {slot} 1000");
        let keys: Vec<String> = admin.run(&here).await;
        for key in keys {
            let _: () = admin
                .run(&format!("MIGRATE 127.0.0.1 {port} {key} 0 20000"))
                .await;
        }
    }

    /// Announces the slot's new place to the nodes, and waits until all agree.
    pub async fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let owner = format!("CLUSTER SETSLOT {slot} NODE {}", self.nodes[to].id);
        for node in [to, from] {
            let _: () = self.admin(node).await.run(&owner).await;
        }
        self.agreed().await;
    }

    /// Moves a slot as the tools of a cluster do.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to).await;
        self.move_keys(slot, from, to).await;
        self.finish_move(slot, from, to).await;
    }

    /// Whether the servers can move slots themselves.
    pub async fn can_migrate_slots(&self) -> bool {
        let first = self.alive().next().expect("a node that lives");
        let mut admin = self.admin(first).await;
        let known: Value = admin.run("COMMAND INFO CLUSTER|MIGRATESLOTS").await;
        !matches!(known, Value::Nil) && known != Value::Array(vec![Value::Nil])
    }

    /// Lets the servers move these slots themselves. `false` if they cannot: only Valkey 9 can.
    pub async fn migrate_slots(&self, slots: RangeInclusive<u16>, from: usize, to: usize) -> bool {
        if !self.can_migrate_slots().await {
            return false;
        }
        let mut admin = self.admin(from).await;
        let (start, end) = slots.into_inner();
        let target = &self.nodes[to].id;
        let migrate = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {start} {end} NODE {target}");
        let _: () = admin.run(&migrate).await;
        eventually("the slots have moved", async || {
            self.has_slot(to, start).await && self.has_slot(to, end).await
        })
        .await;
        self.agreed().await;
        true
    }

    /// Cuts a node off from all other nodes, which know that.
    pub async fn cut_off(&self, node: usize) {
        let mut admin = self.admin(node).await;
        let help: Vec<String> = admin.run("DEBUG HELP").await;
        if help.iter().any(|it| it.contains("-2 to drop all packets")) {
            // On Valkey from 8.1 on `CLUSTER FORGET` would spread to the other nodes.
            let _: () = admin.run("DEBUG DROP-CLUSTER-PACKET-FILTER -2").await;
        } else {
            for other in (0..self.nodes.len()).filter(|other| *other != node) {
                let forget = format!("CLUSTER FORGET {}", self.nodes[other].id);
                let _: () = admin.run(&forget).await;
            }
        }
        eventually("the node serves no slots", async || {
            let info: String = admin.run("CLUSTER INFO").await;
            info.contains("cluster_state:fail")
        })
        .await;
    }

    /// Makes the replica the master of its shard.
    pub async fn fail_over(&self, replica: usize) {
        let (mut admin, begun) = (self.admin(replica).await, Instant::now());
        let mut is_master = false;
        while !is_master {
            assert!(
                begun.elapsed() < PATIENCE,
                "node {replica} is not a master yet"
            );
            // An attempt without votes ends after five seconds.
            let asked = admin.ask::<()>("CLUSTER FAILOVER").await;
            let limit = Duration::from_secs(if asked.is_ok() { 6 } else { 0 });
            is_master = becomes_master(&mut admin, limit).await;
        }
        self.agreed().await;
    }

    /// Starts a killed node again, without its data.
    pub async fn restart(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.server.restart().await;
        node.is_dead = false;
    }

    /// Kills a node. Its replica takes over; `agreed` waits for that.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].server.kill();
        self.nodes[node].is_dead = true;
    }
}

async fn becomes_master(admin: &mut Admin, limit: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let info: String = admin.run("INFO replication").await;
        if info.contains("role:master") || begun.elapsed() > limit {
            return info.contains("role:master");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether it serves all slots; a replica must also be in sync with its master.
async fn is_well(admin: &mut Admin) -> bool {
    let cluster: String = admin.run("CLUSTER INFO").await;
    let replication: String = admin.run("INFO replication").await;
    let is_linked = replication.contains("role:master") || replication.contains("link_status:up");
    is_linked
        && cluster.contains("cluster_state:ok")
        && cluster.contains(&format!("cluster_slots_ok:{SLOTS}"))
}

/// A node's view of all nodes: number, address, flags, master and slots.
async fn view(admin: &mut Admin) -> BTreeSet<String> {
    let nodes: String = admin.run("CLUSTER NODES").await;
    let line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let flags = words.get(2).map(|flags| flags.replace("myself,", ""));
        let slots = words.iter().skip(8).filter(|word| range(word).is_some());
        let slots: Vec<_> = slots.copied().collect();
        format!(
            "{:?} {flags:?} {:?} {slots:?}",
            words.get(..2),
            words.get(3)
        )
    };
    nodes.lines().map(line).collect()
}

/// `0-5460` or `7`, but not `[7->-…]`, a moving slot.
fn range(word: &str) -> Option<RangeInclusive<u16>> {
    let (start, end) = word.split_once('-').unwrap_or((word, word));
    Some(start.parse().ok()?..=end.parse().ok()?)
}
