//! The Rust client.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use rlock_client::{Client, Mutex};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::report::{Report, Section, Target, median};
use rlock_testkit::Server;

const LEGEND: &str = "  \
lock().await and release().await, beside awaiting SET NX PX and DEL by a connection of the same redis crate: time of a
  pair, one after the other, both in turns, medians of the rounds and of their ratios. Commands: as the server counts them.
  Contended: 16 tasks lock and release one lock, by one client; beside them 16 tasks that pass a token around by BLPOP and
  RPUSH, on a connection each, as BLPOP needs one for itself. Callers: tasks that lock and release a key of their own each,
  by one client; beside them as many by SET and DEL, and by our two commands, on one connection of the redis crate: pairs a
  second, and processor time of this process for a pair, all in turns.";

/// Many short rounds: a round in which the processor was taken away for a tick
/// says nothing, and there are few of those if a round is shorter than a tick.
const ROUNDS: usize = 600;
const ROUND_PAIRS: u32 = 20;
const TASKS: usize = 16;
const TURNS_ROUNDS: usize = 20;
/// How often each task has its turn in one round.
const TURNS: usize = 50;
/// How many callers on keys of their own, the share of the pairs a second that SET and DEL have, and the processor time
/// beside theirs.
const CALLERS: [(usize, f64, f64); 2] = [(16, 0.88, 1.3), (64, 0.65, 1.5)];
const CALLERS_ROUNDS: usize = 20;
/// Of each caller in a round.
const CALLERS_PAIRS: usize = 100;
const WAITING: usize = 100;
const WAITING_SECONDS: u32 = 3;
const VALUE: &str = "8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a:7";

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Rust client", LEGEND);
    let server = Server::start();
    let threads = Builder::new_multi_thread().enable_all().build();
    let threads = threads.expect("a runtime can be made");
    compare(&mut section, "several threads", &threads, &server);
    let one = Builder::new_current_thread().enable_all().build();
    let one = one.expect("a runtime can be made");
    compare(&mut section, "one thread", &one, &server);
    section.group("16 tasks in turn");
    compare_contended(&mut section, &threads, &server);
    for (callers, share, more) in CALLERS {
        for (name, runtime) in [("several threads", &threads), ("one thread", &one)] {
            section.group(&format!("{callers} callers, {name}"));
            compare_callers(&mut section, runtime, &server, callers, [share, more]);
        }
    }
    section.group("commands");
    count_commands(&mut section, &one, &server);
    count_while_waiting(&mut section, &threads, &server);
    section.end();
}

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}/", server.port())
}

fn compare(section: &mut Section<'_>, runtime_kind: &str, runtime: &Runtime, server: &Server) {
    let count = section.form().of(ROUNDS, 5);
    let (native, rlock, ratio) = runtime.block_on(async {
        let redis = redis::Client::open(url(server)).expect("the address is right");
        let redis = redis.get_multiplexed_async_connection().await;
        let mut redis = redis.expect("the server takes connections");
        let client = connect(server).await;
        let mutex = client.mutex("lock");
        let mut rounds = Vec::new();
        for _ in 0..count {
            let native = native_round(&mut redis).await;
            rounds.push((native, rlock_round(&mutex).await));
        }
        (
            median(rounds.iter().map(|round| round.0)),
            median(rounds.iter().map(|round| round.1)),
            median(rounds.iter().map(|round| round.1 / round.0)),
        )
    });
    section.group(&format!("runtime of {runtime_kind}"));
    section.row(["  SET NX PX, DEL", &format!("{native:.1} µs"), ""], None);
    section.row(
        [
            "  lock, release",
            &format!("{rlock:.1} µs"),
            &format!("{ratio:.2} × SET, DEL"),
        ],
        Target::AtMost(1.2, " ×").of(ratio),
    );
}

async fn connect(server: &Server) -> Client {
    let client = Client::connect(&url(server)).await;
    client.expect("the server has the module")
}

/// Microseconds for a pair.
async fn native_round(redis: &mut MultiplexedConnection) -> f64 {
    let start = Instant::now();
    for _ in 0..ROUND_PAIRS {
        native_pair(redis, "native").await;
    }
    micros_each(start.elapsed())
}

/// What [`rlock_pair`] sends, by the redis crate.
async fn plain_pair(redis: &mut MultiplexedConnection, key: &str) {
    let mut acquire = redis::cmd("RLOCK.ACQUIRE");
    acquire.arg(key).arg(VALUE).arg(30000);
    acquire.arg("WAIT").arg(0).arg("KEEP").arg(10000);
    acquire.arg("NOTIFY").arg("rlock:client:plain");
    let fence: u64 = acquire.query_async(redis).await.expect("it was free");
    let mut release = redis::cmd("RLOCK.RELEASE");
    release
        .arg(key)
        .arg(VALUE)
        .arg("ALL")
        .arg("FENCE")
        .arg(fence);
    let released = release.query_async(redis).await;
    assert_eq!(released, Ok(0), "no entry is left");
}

async fn native_pair(redis: &mut MultiplexedConnection, key: &str) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(VALUE).arg("NX").arg("PX").arg(30000);
    let set = set.query_async::<()>(redis).await;
    set.expect("it was free");
    let removed = redis::cmd("DEL").arg(key).query_async(redis).await;
    assert_eq!(removed, Ok(1), "it was there");
}

/// Microseconds for a pair.
async fn rlock_round(mutex: &Mutex) -> f64 {
    let start = Instant::now();
    for _ in 0..ROUND_PAIRS {
        rlock_pair(mutex).await;
    }
    micros_each(start.elapsed())
}

async fn rlock_pair(mutex: &Mutex) {
    let guard = mutex.lock().await.expect("it is free");
    guard.release().await.expect("it is held");
}

fn micros_each(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / f64::from(ROUND_PAIRS)
}

fn compare_callers(
    section: &mut Section<'_>,
    runtime: &Runtime,
    server: &Server,
    callers: usize,
    [share, more]: [f64; 2],
) {
    let count = section.form().of(CALLERS_ROUNDS, 2);
    let rounds: Vec<_> = runtime.block_on(async {
        let client = connect(server).await;
        let redis = redis::Client::open(url(server)).expect("the address is right");
        let redis = redis.get_multiplexed_async_connection().await;
        let redis = redis.expect("the server takes connections");
        let mut rounds = Vec::new();
        for _ in 0..count {
            let native = (0..callers).map(|caller| {
                let (mut redis, key) = (redis.clone(), format!("native:{caller}"));
                async move {
                    for _ in 0..CALLERS_PAIRS {
                        native_pair(&mut redis, &key).await;
                    }
                }
            });
            let native = rate_and_cost(native).await;
            let plain = (0..callers).map(|caller| {
                let (mut redis, key) = (redis.clone(), format!("plain:{caller}"));
                async move {
                    for _ in 0..CALLERS_PAIRS {
                        plain_pair(&mut redis, &key).await;
                    }
                }
            });
            let plain = rate_and_cost(plain).await;
            let rlock = (0..callers).map(|caller| {
                let mutex = client.mutex(format!("lock:{caller}"));
                async move {
                    for _ in 0..CALLERS_PAIRS {
                        rlock_pair(&mutex).await;
                    }
                }
            });
            rounds.push([native, plain, rate_and_cost(rlock).await]);
        }
        rounds
    });
    let middle = |pick: fn(&[Figures; 3]) -> f64| median(rounds.iter().map(pick));
    let of = |rate: f64, cost: f64| format!("{rate:.0} a second, {cost:.1} µs");
    let native = of(middle(|it| it[0].rate), middle(|it| it[0].cost));
    let plain = of(middle(|it| it[1].rate), middle(|it| it[1].cost));
    let rlock = of(middle(|it| it[2].rate), middle(|it| it[2].cost));
    let beside = |rate: f64, cost: f64| format!("{rate:.2} ×; {cost:.2} × SET, DEL");
    let (faster, dearer) = (
        middle(|it| it[2].rate / it[0].rate),
        middle(|it| it[2].cost / it[0].cost),
    );
    let plainly = beside(
        middle(|it| it[1].rate / it[0].rate),
        middle(|it| it[1].cost / it[0].cost),
    );
    section.row(["  SET NX PX, DEL", &native, ""], None);
    section.row(["  the same commands, redis crate", &plain, &plainly], None);
    let beside = format!("{faster:.2} × SET, DEL");
    let target = Target::AtLeast(share, " ×").of(faster);
    section.row(["  lock, release", &rlock, &beside], target);
    let beside = format!("{dearer:.2} × SET, DEL");
    let target = Target::AtMost(more, " ×").of(dearer);
    section.row(["  processor time of it", "", &beside], target);
}

/// For all callers together.
struct Figures {
    /// Pairs a second.
    rate: f64,
    /// Microseconds of this process's processor time for a pair.
    cost: f64,
}

async fn rate_and_cost<F>(callers: impl Iterator<Item = F>) -> Figures
where
    F: Future<Output = ()> + Send + 'static,
{
    let (start, before) = (Instant::now(), processor_time());
    let mut running: JoinSet<()> = callers.collect();
    let pairs = (running.len() * CALLERS_PAIRS) as f64;
    while let Some(done) = running.join_next().await {
        done.expect("no task fails");
    }
    let spent = processor_time() - before;
    Figures {
        rate: pairs / start.elapsed().as_secs_f64(),
        cost: spent.as_secs_f64() * 1e6 / pairs,
    }
}

/// The processor time of all threads of this process since it began.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("it is not before the beginning")
}

fn compare_contended(section: &mut Section<'_>, runtime: &Runtime, server: &Server) {
    let count = section.form().of(TURNS_ROUNDS, 2);
    let rounds: Vec<_> = runtime.block_on(async {
        let client = connect(server).await;
        let tokens = tokens(server).await;
        let mut rounds = Vec::new();
        for _ in 0..count {
            let native = in_turn(tokens.iter().map(|it| pass_token(it.clone()))).await;
            let mutexes = (0..TASKS).map(|_| client.mutex("contended"));
            rounds.push((native, in_turn(mutexes.map(lock_in_turn)).await));
        }
        rounds
    });
    let [native, rlock] = [
        median(rounds.iter().map(|round| round.0)),
        median(rounds.iter().map(|round| round.1)),
    ];
    let ratio = median(rounds.iter().map(|round| round.1 / round.0));
    let of = |rate: f64| format!("{rate:.0} a second");
    section.row(["  BLPOP, RPUSH", &of(native), ""], None);
    section.row(
        [
            "  lock, release",
            &of(rlock),
            &format!("{ratio:.2} × BLPOP, RPUSH"),
        ],
        Target::AtLeast(0.9, " ×").of(ratio),
    );
}

/// A connection for each task, and the token that they pass around.
async fn tokens(server: &Server) -> Vec<MultiplexedConnection> {
    let redis = redis::Client::open(url(server)).expect("the address is right");
    let mut connections = Vec::new();
    for _ in 0..TASKS {
        let connection = redis.get_multiplexed_async_connection().await;
        connections.push(connection.expect("the server takes connections"));
    }
    server.ask("RPUSH token it");
    connections
}

async fn pass_token(mut redis: MultiplexedConnection) {
    for _ in 0..TURNS {
        let mut take = redis::cmd("BLPOP");
        let taken = take
            .arg("token")
            .arg(0)
            .query_async::<(String, String)>(&mut redis);
        taken.await.expect("its turn comes");
        let mut give = redis::cmd("RPUSH");
        let given = give.arg("token").arg("it").query_async::<u32>(&mut redis);
        given.await.expect("it is a list");
    }
}

async fn lock_in_turn(mutex: Mutex) {
    for _ in 0..TURNS {
        let guard = mutex.lock().await.expect("its turn comes");
        guard.release().await.expect("it is held");
    }
}

/// How many turns a second all tasks have together.
async fn in_turn<F>(tasks: impl Iterator<Item = F>) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let start = Instant::now();
    let mut running: JoinSet<()> = tasks.collect();
    let count = running.len() * TURNS;
    while let Some(done) = running.join_next().await {
        done.expect("no task fails");
    }
    count as f64 / start.elapsed().as_secs_f64()
}

fn count_commands(section: &mut Section<'_>, runtime: &Runtime, server: &Server) {
    runtime.block_on(async {
        let client = connect(server).await;
        let mutex = client.mutex("lock");
        server.ask("CONFIG RESETSTAT");
        rlock_round(&mutex).await;
    });
    let each = f64::from(commands(server)) / f64::from(ROUND_PAIRS);
    section.row(
        ["  for lock and release", &each.to_string(), ""],
        Target::AtMost(2.0, "").of(each),
    );
}

fn count_while_waiting(section: &mut Section<'_>, runtime: &Runtime, server: &Server) {
    let seconds = section.form().of(WAITING_SECONDS, 1);
    let waited = runtime.block_on(async {
        let holder = connect(server).await;
        let held = holder.mutex("lock").lock().await.expect("it is free");
        let client = connect(server).await;
        let mut tasks = JoinSet::new();
        for _ in 0..WAITING {
            let mutex = client.mutex("lock");
            tasks.spawn(async move { mutex.lock().await?.release().await });
        }
        server.await_queued("lock", WAITING);
        server.ask("CONFIG RESETSTAT");
        // It is the passing of time that is measured here.
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        let waited = commands(server);
        held.release().await.expect("it is held");
        while let Some(done) = tasks.join_next().await {
            done.expect("no task fails").expect("its turn has come");
        }
        waited
    });
    let each_second = f64::from(waited) / f64::from(seconds);
    section.row(
        [
            "  a second while 100 tasks wait",
            &each_second.to_string(),
            "",
        ],
        Target::AtMost(0.0, "").of(each_second),
    );
}

/// How many commands the server has carried out since its statistics were
/// reset, except those that ask for them.
fn commands(server: &Server) -> u32 {
    let statistics = server.ask("INFO commandstats");
    let counts = statistics.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let ours = matches!(name, "info" | "config|resetstat");
        let calls = rest.split(',').next()?.parse::<u32>().ok()?;
        (!ours).then_some(calls)
    });
    counts.sum()
}
