//! A lock on a majority of three servers, beside the usual Redlock client on
//! the same servers: ask all at once, and if too few grant, release and try
//! again after a random pause of 50 to 250 ms, as redsync does by default.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use rlock_client::Quorum;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::report::{Report, Section, Target, median};
use rlock_testkit::Server;

const LEGEND: &str = "  \
Three servers, a client for each of the contenders. Uncontended: time of a pair, one after the other, beside a PING to each
  server, all at once. Contended: 8 contenders, 2 ms of work under the lock and up to 10 ms of other work between two
  turns; how often a second it is taken, and the longest wait. Random retries: SET NX PX at all servers, and a script to release, by connections of the redis crate.";

const PAIRS: usize = 200;
const CONTENDERS: usize = 8;
const WORK: Duration = Duration::from_millis(2);
/// A contender has other things to do between two turns, so that none keeps
/// the lock to itself.
const PAUSE_MICROS: u64 = 10_000;
const LEASE_MS: u64 = 8_000;
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Quorum", LEGEND);
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let runtime = Runtime::new().expect("a runtime can be made");
    section.group("uncontended");
    runtime.block_on(uncontended(&mut section, &servers));
    section.group("8 contenders");
    runtime.block_on(contended(&mut section, &servers));
    section.end();
}

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}/", server.port())
}

async fn quorum(servers: &[Server]) -> Quorum {
    let urls = servers.iter().map(url);
    // Nothing crashes here.
    let quorum = Quorum::builder().any_grace().connect(urls).await;
    quorum.expect("the servers can be members")
}

async fn connections(servers: &[Server]) -> Vec<MultiplexedConnection> {
    let mut all = Vec::new();
    for server in servers {
        let redis = redis::Client::open(url(server)).expect("the address is right");
        let connection = redis.get_multiplexed_async_connection().await;
        all.push(connection.expect("the server takes connections"));
    }
    all
}

async fn uncontended(section: &mut Section<'_>, servers: &[Server]) {
    let mutex = quorum(servers).await.mutex("alone");
    let others = connections(servers).await;
    let mut rounds = Vec::new();
    for _ in 0..section.form().of(PAIRS, 3) {
        let begun = Instant::now();
        let pings = others.iter().map(|other| {
            let mut other = other.clone();
            async move { redis::cmd("PING").query_async::<String>(&mut other).await }
        });
        for pong in futures_util::future::join_all(pings).await {
            pong.expect("it answers");
        }
        let trip = begun.elapsed();
        let begun = Instant::now();
        let guard = mutex.lock().await.expect("it is free");
        let taken = begun.elapsed();
        guard.release().await.expect("it is held");
        rounds.push((trip, taken, begun.elapsed() - taken));
    }
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let trip = median(rounds.iter().map(|round| micros(round.0)));
    section.row(["  a PING to each", &format!("{trip:.0} µs"), ""], None);
    for (what, part) in [("  lock", 1), ("  release", 2)] {
        let of = |round: &(Duration, Duration, Duration)| micros([round.0, round.1, round.2][part]);
        let time = median(rounds.iter().map(of));
        let trips = median(rounds.iter().map(|round| of(round) / micros(round.0)));
        section.row(
            [
                what,
                &format!("{time:.0} µs"),
                &format!("{trips:.1} × a PING to each"),
            ],
            None,
        );
    }
}

/// How often a second it was taken, and the longest wait.
struct Outcome {
    rate: f64,
    longest: Duration,
}

async fn contended(section: &mut Section<'_>, servers: &[Server]) {
    let time = Duration::from_secs(section.form().of(6, 1));
    let mut ours = JoinSet::new();
    for _ in 0..CONTENDERS {
        let mutex = quorum(servers).await.mutex("contended");
        ours.spawn(async move {
            let (begun, mut waits) = (Instant::now(), Vec::new());
            while begun.elapsed() < time {
                let asked = Instant::now();
                let guard = mutex.lock().await.expect("its turn comes");
                waits.push(asked.elapsed());
                work().await;
                guard.release().await.expect("it is held");
                pause().await;
            }
            waits
        });
    }
    let ours = outcome(time, ours).await;
    let mut retries = JoinSet::new();
    for number in 0..CONTENDERS {
        let servers = connections(servers).await;
        let value = format!("contender {number}");
        retries.spawn(async move {
            let (begun, mut waits) = (Instant::now(), Vec::new());
            while begun.elapsed() < time {
                let asked = Instant::now();
                retry(&servers, &value).await;
                waits.push(asked.elapsed());
                work().await;
                release(&servers, &value).await;
                pause().await;
            }
            waits
        });
    }
    let retries = outcome(time, retries).await;
    let faster = ours.rate / retries.rate;
    let longer = ours.longest.as_secs_f64() / retries.longest.as_secs_f64();
    for (what, it) in [("  random retries", &retries), ("  quorum", &ours)] {
        let rate = format!("{:.0} a second", it.rate);
        let longest = format!("longest wait {:.0} ms", it.longest.as_secs_f64() * 1e3);
        section.row([what, &rate, &longest], None);
    }
    section.row(
        ["  taken", &format!("{faster:.1} × as often"), ""],
        Target::AtLeast(2.5, " ×").of(faster),
    );
    section.row(
        ["  longest wait", &format!("{longer:.2} × as long"), ""],
        Target::AtMost(0.33, " ×").of(longer),
    );
}

async fn outcome(time: Duration, mut contenders: JoinSet<Vec<Duration>>) -> Outcome {
    let mut waits = Vec::new();
    while let Some(done) = contenders.join_next().await {
        waits.extend(done.expect("no task fails"));
    }
    Outcome {
        rate: waits.len() as f64 / time.as_secs_f64(),
        longest: waits.into_iter().max().unwrap_or_default(),
    }
}

async fn retry(servers: &[MultiplexedConnection], value: &str) {
    loop {
        let asked = servers.iter().map(|server| {
            let mut server = server.clone();
            async move {
                let mut set = redis::cmd("SET");
                set.arg("retried")
                    .arg(value)
                    .arg("NX")
                    .arg("PX")
                    .arg(LEASE_MS);
                let set: Result<Option<String>, _> = set.query_async(&mut server).await;
                set.is_ok_and(|set| set.is_some())
            }
        });
        let granted = futures_util::future::join_all(asked).await;
        if granted.into_iter().filter(|granted| *granted).count() > servers.len() / 2 {
            return;
        }
        release(servers, value).await;
        tokio::time::sleep(Duration::from_millis(50 + random() % 200)).await;
    }
}

/// By a thread, as the runtime's own timer rounds up to whole milliseconds.
async fn work() {
    let worked = tokio::task::spawn_blocking(|| std::thread::sleep(WORK));
    worked.await.expect("to sleep is no work");
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// What a contender does between two turns.
async fn pause() {
    tokio::time::sleep(Duration::from_micros(random() % PAUSE_MICROS)).await;
}

async fn release(servers: &[MultiplexedConnection], value: &str) {
    let asked = servers.iter().map(|server| {
        let mut server = server.clone();
        async move {
            let mut call = redis::cmd("EVAL");
            call.arg(RELEASE).arg(1).arg("retried").arg(value);
            call.query_async::<u32>(&mut server).await
        }
    });
    for released in futures_util::future::join_all(asked).await {
        released.expect("the server knows scripts");
    }
}
