//! The Rust client beyond one server: at the masters of a cluster, and with
//! replicas that have to know of a grant.

use std::time::{Duration, Instant};

use rlock_client::{Client, Mutex, Terms};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::report::{Report, Section, Target, median};
use crate::rounds::processor_time_at_rest;
use rlock_testkit::client::eventually;
use rlock_testkit::{Server, replicated};

const LEGEND: &str = "  \
A cluster: lock().await and release().await on keys of all masters by 16 tasks for each, beside one server that is no
  cluster, both in turns, medians of the rounds and of their ratios. Processor time of the main threads of all masters for
  a pair, beside the time of 16 tasks at the one server; pairs a second, beside as many tasks there. Replicas: time of a pair,
  one after the other, and of 100 locks that are asked for together, beside 100 without replicas.";

const ROUNDS: usize = 15;
/// For each master, so that each has as many requests at a time.
const TASKS: usize = 16;
/// Of each task in a round.
const PAIRS: usize = 60;
const REPLICA_ROUNDS: usize = 100;
const BURST: usize = 100;

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Beyond one server", LEGEND);
    let runtime = Runtime::new().expect("a runtime can be made");
    for masters in section.form().of(vec![1, 2, 3, 6], vec![2]) {
        section.group(&format!("a cluster of {masters}"));
        compare_cluster(&mut section, &runtime, masters);
    }
    section.group("a server with a replica");
    compare_replicas(&mut section, &runtime);
    section.end();
}

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}/", server.port())
}

fn cluster_url(nodes: &[Server]) -> String {
    let hosts: Vec<_> = nodes
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port()))
        .collect();
    format!("redis+cluster://{}", hosts.join(","))
}

/// Masters that share the slots evenly, and agree on that.
fn cluster(masters: usize) -> Vec<Server> {
    let nodes: Vec<_> = (0..masters)
        .map(|_| Server::configured(&["cluster-enabled yes"]))
        .collect();
    for (number, node) in nodes.iter().enumerate() {
        let start = |number: usize| 16_384 * number / masters;
        let (first, last) = (start(number), start(number + 1) - 1);
        node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
        node.ask(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
        node.ask(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port()));
    }
    for node in &nodes {
        eventually("the cluster is up", || {
            let info = node.ask("CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        });
    }
    nodes
}

fn compare_cluster(section: &mut Section<'_>, runtime: &Runtime, masters: usize) {
    let (alone, nodes) = (Server::start(), cluster(masters));
    let (one, many) = runtime.block_on(async {
        let one = Client::connect(&url(&alone)).await;
        let many = Client::connect(&cluster_url(&nodes)).await;
        (
            one.expect("the server has the module"),
            many.expect("so have these"),
        )
    });
    let of_one = [alone.process_id()];
    let of_many: Vec<_> = nodes.iter().map(Server::process_id).collect();
    runtime.block_on(turns(&many, TASKS, PAIRS));
    runtime.block_on(turns(&one, TASKS, PAIRS));
    let tasks = TASKS * masters;
    let rounds: Vec<_> = (0..section.form().of(ROUNDS, 1))
        .map(|_| {
            [
                (
                    spent(runtime, &one, TASKS, &of_one),
                    rate(runtime, &one, tasks),
                ),
                (
                    spent(runtime, &many, tasks, &of_many),
                    rate(runtime, &many, tasks),
                ),
            ]
        })
        .collect();
    let spent = median(rounds.iter().map(|[_, many]| many.0));
    let more = median(rounds.iter().map(|[one, many]| many.0 / one.0));
    let rate = median(rounds.iter().map(|[_, many]| many.1));
    let faster = median(rounds.iter().map(|[one, many]| many.1 / one.1));
    section.row(
        [
            "  processor time of all masters",
            &format!("{spent:.1} µs"),
            &format!("{more:.2} × one server"),
        ],
        Target::AtMost(1.1, " ×").of(more),
    );
    section.row(
        [
            "  pairs a second",
            &format!("{rate:.0}"),
            &format!("{faster:.2} × one server"),
        ],
        Target::AtLeast(0.9, " ×").of(faster),
    );
    let moved = nodes.iter().map(moved).sum::<f64>();
    section.row(
        ["  sent elsewhere by MOVED", &moved.to_string(), ""],
        Target::AtMost(0.0, "").of(moved),
    );
}

/// Microseconds of processor time of the servers for a pair.
fn spent(runtime: &Runtime, client: &Client, tasks: usize, servers: &[u32]) -> f64 {
    let spent = || {
        let each = servers.iter().map(|it| processor_time_at_rest(*it));
        each.sum::<Duration>()
    };
    let before = spent();
    runtime.block_on(turns(client, tasks, PAIRS));
    (spent() - before).as_secs_f64() * 1e6 / (tasks * PAIRS) as f64
}

/// Pairs a second.
fn rate(runtime: &Runtime, client: &Client, tasks: usize) -> f64 {
    let begun = Instant::now();
    runtime.block_on(turns(client, tasks, PAIRS));
    (tasks * PAIRS) as f64 / begun.elapsed().as_secs_f64()
}

/// Each task locks keys of all slots, this many times.
async fn turns(client: &Client, tasks: usize, pairs: usize) {
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let client = client.clone();
        running.spawn(async move {
            for pair in 0..pairs {
                let guard = client.mutex(format!("lock:{task}:{pair}")).lock().await;
                let released = guard.expect("it is free").release().await;
                released.expect("it is held");
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("no task fails");
    }
}

fn moved(server: &Server) -> f64 {
    let errors = server.ask("INFO errorstats");
    let moved = errors
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    moved
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0.0)
}

fn compare_replicas(section: &mut Section<'_>, runtime: &Runtime) {
    let (master, replica) = replicated();
    let count = section.form().of(REPLICA_ROUNDS, 3);
    let rounds: Vec<_> = runtime.block_on(async {
        let client = Client::connect(&url(&master)).await;
        let client = client.expect("the server has the module");
        let plain = client.mutex("lock");
        let known = plain.with(Terms::new().replicas(1).unwrap());
        let redis = redis::Client::open(url(&replica)).expect("the address is right");
        let redis = redis.get_multiplexed_async_connection().await;
        let mut redis = redis.expect("the replica takes connections");
        let mut rounds = Vec::new();
        for _ in 0..count {
            let begun = Instant::now();
            let pong = redis::cmd("PING").query_async::<String>(&mut redis).await;
            pong.expect("it answers");
            let trip = begun.elapsed();
            rounds.push(Round {
                plain: pair(&plain).await,
                known: pair(&known).await,
                trip,
                many: burst(&client, 0).await,
                many_known: burst(&client, 1).await,
            });
        }
        rounds
    });
    drop(replica);
    let middle = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure));
    let plain = middle(|round| micros(round.plain));
    let known = middle(|round| micros(round.known));
    let over = middle(|round| (micros(round.known) - micros(round.trip)) / micros(round.plain));
    let many = middle(|round| micros(round.many_known));
    let ratio = middle(|round| micros(round.many_known) / micros(round.many));
    section.row(["  lock, release", &format!("{plain:.0} µs"), ""], None);
    section.row(
        [
            "  the same with replicas(1)",
            &format!("{known:.0} µs"),
            &format!("{over:.2} ×, and a PING there"),
        ],
        Target::AtMost(1.3, " ×").of(over),
    );
    section.row(
        [
            "  100 with replicas(1) at once",
            &format!("{many:.0} µs"),
            &format!("{ratio:.2} × without"),
        ],
        Target::AtMost(3.0, " ×").of(ratio),
    );
}

/// Microseconds.
fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// What one round took.
struct Round {
    plain: Duration,
    known: Duration,
    /// A `PING` of the replica.
    trip: Duration,
    many: Duration,
    many_known: Duration,
}

async fn pair(mutex: &Mutex) -> Duration {
    let begun = Instant::now();
    let guard = mutex.lock().await.expect("it is free");
    guard.release().await.expect("it is held");
    begun.elapsed()
}

/// The time until all of them are held that were asked for together.
async fn burst(client: &Client, replicas: u16) -> Duration {
    let terms = Terms::new().replicas(replicas).unwrap();
    let begun = Instant::now();
    let asked = (0..BURST).map(|number| {
        let mutex = client.mutex(format!("burst:{number}")).with(terms);
        async move { mutex.lock().await }
    });
    let guards = futures_util::future::join_all(asked).await;
    let time = begun.elapsed();
    for guard in guards {
        guard
            .expect("it is free")
            .release()
            .await
            .expect("it is held");
    }
    time
}
