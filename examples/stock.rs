//! The flash sale: 90 moon cakes, 100 buyers, two processes, one lock.
//!
//! `make run` shows it. By hand, on a server that has the module:
//! `cargo run --release --example stock -- --server redis://127.0.0.1:6379/`.
//!
//! The sale runs without the lock first, then with it; after that a buyer
//! dies while holding the lock, and one holds it for longer than its lease.
//! With `--members`, it runs once more with the lock on a majority of other
//! servers, one of which is killed in the middle.
//! Every figure is measured in this run. The exit code is not 0 if the lock
//! failed.

#[path = "stock/buyers.rs"]
mod buyers;
#[path = "stock/figures.rs"]
mod figures;
#[path = "stock/members.rs"]
mod members;
#[path = "stock/processes.rs"]
mod processes;
#[path = "stock/screen.rs"]
mod screen;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rlock_client::{Client, Terms};

use buyers::{LOCK, STOCK, Task};
use figures::{Commands, Handoffs, Sale};
use processes::Process;
use screen::Screen;

type Outcome<T> = Result<T, Box<dyn Error>>;

const CAKES: u64 = 90;
const PROCESSES: u64 = 2;
const BUYERS_EACH: u64 = 50;

#[derive(Debug, Parser)]
#[command(about = "90 moon cakes, 100 buyers: a flash sale without and with a lock")]
struct Arguments {
    /// The server, with the rlock module loaded.
    #[arg(long, default_value = "redis://127.0.0.1:6379/")]
    server: String,
    /// Servers that hold the lock together in the last sale, with commas in
    /// between, each with `startup-grace-ms 2000` or more. One of them is killed,
    /// with SIGKILL.
    #[arg(long, value_delimiter = ',')]
    members: Vec<String>,
    /// What this process does; the demonstration starts the others itself.
    #[arg(long, hide = true)]
    task: Option<Task>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.task {
        Some(task) => buyers::run(&arguments, task).await.map(|()| true),
        None => show(&arguments).await,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("\n  {error}");
            ExitCode::FAILURE
        }
    }
}

/// The whole demonstration; false if the lock did not do what it must.
async fn show(arguments: &Arguments) -> Outcome<bool> {
    let server = &arguments.server;
    let client = Client::connect(server).await?;
    let mut redis = redis::Client::open(server.as_str())?
        .get_multiplexed_async_connection()
        .await?;
    let mut screen = Screen::new(&figures::server_name(&mut redis).await?);

    screen.part("Without a lock");
    let (without, _) = sell(&mut redis, arguments, Task::Grab, &screen).await?;
    screen.oversold(&without);

    screen.part("With the lock `MoonCake`");
    let (with, commands) = sell(&mut redis, arguments, Task::Queue, &screen).await?;
    screen.verdict(with.is_exact(), &with.summary());

    screen.part("A buyer dies holding the lock");
    let survived = kill_a_holder(&client, arguments, &screen).await?;

    screen.part("A buyer thinks for longer than the lease");
    let kept = think_long(&client, &mut redis, &screen).await?;

    let outlived = sell_by_quorum(&mut redis, arguments, &mut screen).await?;

    screen.figures(&Handoffs::of(&with), &commands);
    let _: () = redis::cmd("DEL").arg(STOCK).query_async(&mut redis).await?;
    Ok(with.is_exact() && survived && kept && outlived)
}

/// One sale: what was sold, and the commands that the server carried out.
async fn sell(
    redis: &mut redis::aio::MultiplexedConnection,
    arguments: &Arguments,
    task: Task,
    screen: &Screen,
) -> Outcome<(Sale, Commands)> {
    let _: () = redis::cmd("SET")
        .arg(STOCK)
        .arg(CAKES)
        .query_async(redis)
        .await?;
    let bars = screen.bars(PROCESSES, BUYERS_EACH);
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(Process::start(arguments, task).await?);
    }
    // All are connected and wait for the opening.
    let before = Commands::so_far(redis).await?;
    for process in &mut processes {
        process.go().await?;
    }
    let visits = processes
        .into_iter()
        .zip(&bars)
        .map(|(process, bar)| process.visits(bar));
    let both: Vec<_> = visits.map(tokio::spawn).collect();
    if let Task::QueueAtMembers = task {
        let visited = || bars.iter().map(|bar| bar.position()).sum::<u64>();
        members::kill_the_gate(&arguments.members, || visited() >= CAKES / 3).await?;
    }
    let mut sale = Sale::new(CAKES);
    for visits in both {
        sale.visits.extend(visits.await??);
    }
    for bar in bars {
        bar.finish_and_clear();
    }
    let commands = Commands::so_far(redis).await?.since(before);
    sale.left = redis::cmd("GET").arg(STOCK).query_async(redis).await?;
    Ok((sale, commands))
}

/// The sale with the lock on a majority of the members; true without any.
async fn sell_by_quorum(
    redis: &mut redis::aio::MultiplexedConnection,
    arguments: &Arguments,
    screen: &mut Screen,
) -> Outcome<bool> {
    if arguments.members.is_empty() {
        return Ok(true);
    }
    let count = arguments.members.len();
    screen.part(&format!(
        "The lock on a majority of {count} servers, one of which dies"
    ));
    let (sale, _) = sell(redis, arguments, Task::QueueAtMembers, screen).await?;
    let summary = sale.summary();
    let text = format!("{summary}; the server whose queue all stood in was killed midway");
    screen.verdict(sale.is_exact(), &text);
    Ok(sale.is_exact())
}

/// A process takes the lock and is killed; the next one gets it when the
/// lease ends.
async fn kill_a_holder(client: &Client, arguments: &Arguments, screen: &Screen) -> Outcome<bool> {
    let mut holder = Process::start(arguments, Task::HoldAndHang).await?;
    let next = tokio::spawn({
        let mutex = client.mutex(LOCK);
        async move {
            (
                mutex.lock_timeout(Duration::from_secs(5)).await,
                Instant::now(),
            )
        }
    });
    let waiting = async {
        while client.mutex(LOCK).info().await?.queued == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, rlock_client::Error>(())
    };
    tokio::time::timeout(Duration::from_secs(5), waiting).await??;
    holder.kill().await?;
    let killed = Instant::now();
    let spinner = screen.spinner("kill -9 … its lease of 2 s runs out");
    let (got, at) = next.await?;
    spinner.finish_and_clear();
    let Some(guard) = got? else {
        screen.verdict(false, "the next buyer did not get in within 5 s");
        return Ok(false);
    };
    guard.release().await?;
    let after = at - killed;
    let in_time = after <= buyers::HANG_LEASE + Duration::from_millis(100);
    let lease = buyers::HANG_LEASE.as_secs();
    screen.verdict(in_time, &format!(
        "kill -9; its lease of {lease} s ran out, and the next one was in {:.2} s after the kill",
        after.as_secs_f64()
    ));
    Ok(in_time)
}

/// A buyer holds the lock for three leases; the watchdog renews.
async fn think_long(
    client: &Client,
    redis: &mut redis::aio::MultiplexedConnection,
    screen: &Screen,
) -> Outcome<bool> {
    let (lease, thinking) = (Duration::from_secs(1), Duration::from_secs(3));
    let mutex = client.mutex(LOCK).with(Terms::new().lease(lease)?);
    let before = figures::gauge(redis, "renewals").await?;
    let guard = mutex.lock().await?;
    let spinner = screen.spinner("thinking for 3 s, with a lease of 1 s");
    let rival = client.mutex(LOCK).lock_timeout(thinking).await?;
    spinner.finish_and_clear();
    let renewals = figures::gauge(redis, "renewals").await? - before;
    let kept = rival.is_none() && guard.is_valid();
    screen.verdict(
        kept,
        &format!("3 s with a lease of 1 s: renewed {renewals} times, and nobody else got in"),
    );
    guard.release().await?;
    Ok(kept)
}
