//! Clients that contend for a few locks of real servers, for minutes of faults;
//! then the history of what they saw is checked.
//!
//! `make chaos`, or `cargo test --workspace --test chaos -- --world sentinel --seconds 60 --seed 7`.
//! A seed decides what is done to whom, but not when each machine gets to it.

mod contender;
mod end;
mod locks;
mod log;
mod nemesis;
mod network;
mod picture;
mod program;
mod random;
mod report;
mod world;
mod worlds;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::contender::{GROUPS, PROCESSES, Process};
use crate::locks::Address;
use crate::log::Log;
use crate::nemesis::Nemesis;
use crate::network::Network;
use crate::program::Program;
use crate::random::Random;
use crate::report::Report;
use crate::world::World;
use crate::worlds::{cluster::Shards, quorum::Members, sentinel::Watched, single::Single};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Worlds {
    All,
    Single,
    Sentinel,
    Cluster,
    Quorum,
}

/// Locks under faults: what must never happen, does it?
#[derive(Parser)]
#[command(args_override_self = true)]
struct Arguments {
    /// Which servers.
    #[arg(long, value_enum, default_value = "single")]
    world: Worlds,
    /// How long faults go on, in all worlds together.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// A file with a command in each line, which contends too, with the client of another language: see `program.rs`.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// What decides the faults; by default the time.
    #[arg(long)]
    seed: Option<u64>,
    /// Names of tests and other arguments of the test runner: with these nothing is run.
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    tests: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(first) = arguments.tests.first() {
        return without_tests(first);
    }
    let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let seed = arguments.seed.unwrap_or(time.as_secs() % 1_000_000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let is_fine = runtime.block_on(run_all(&arguments, seed));
    if is_fine {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Arguments for a whole package's tests, such as the name of one, mean nothing to this program.
fn without_tests(argument: &str) -> ExitCode {
    const OF_TEST_RUNNERS: [&str; 8] = [
        "--exact",
        "--ignored",
        "--include-ignored",
        "--list",
        "--nocapture",
        "--show-output",
        "--skip",
        "--test-threads",
    ];
    let option = argument.split('=').next().unwrap_or(argument);
    if option.starts_with('-') && !OF_TEST_RUNNERS.contains(&option) {
        eprintln!("chaos: there is no option {option}; see --help");
        return ExitCode::from(2);
    }
    println!("chaos: has no tests of a name, nothing is run");
    ExitCode::SUCCESS
}

async fn run_all(arguments: &Arguments, seed: u64) -> bool {
    let world = arguments.world;
    let file = arguments.programs.as_deref();
    let programs = file.map(|file| std::fs::read_to_string(file).expect("the file of --programs"));
    let programs: Vec<_> = programs.iter().flat_map(|it| it.lines()).collect();
    let worlds = if world == Worlds::All { 4 } else { 1 };
    let share = Duration::from_secs(arguments.seconds / worlds);
    let mut is_fine = true;
    if matches!(world, Worlds::All | Worlds::Single) {
        is_fine &= run::<Single>(share, seed, &programs).await;
    }
    if matches!(world, Worlds::All | Worlds::Sentinel) {
        is_fine &= run::<Watched>(share, seed, &programs).await;
    }
    if matches!(world, Worlds::All | Worlds::Cluster) {
        is_fine &= run::<Shards>(share, seed, &programs).await;
    }
    if matches!(world, Worlds::All | Worlds::Quorum) {
        is_fine &= run::<Members>(share, seed, &programs).await;
    }
    is_fine
}

/// Whether nothing is wrong.
async fn run<W: World>(length: Duration, seed: u64, programs: &[&str]) -> bool {
    println!("chaos: {}, {length:?}, seed {seed}", W::NAME);
    let mut world = W::start().await;
    rlock_testkit::asynchronous::eventually("the servers are well", async || {
        world.is_whole().await
    })
    .await;
    let network = Network::of(GROUPS, &world.ports()).await;
    let log = Log::new();
    log::watch_the_machine(log.clone());
    let (stop, stopped) = watch::channel(false);
    let start = |number| {
        let address = world.address(&network, number % GROUPS);
        Process::start(
            number,
            address,
            W::COPIES,
            seed,
            log.clone(),
            stopped.clone(),
        )
    };
    let mut processes: Vec<_> = (0..PROCESSES).map(start).collect();
    for (number, command) in (PROCESSES..).zip(programs) {
        // Majorities of servers are for Rust only.
        if let Address::Client(url) = world.address(&network, number % GROUPS) {
            let program = Program {
                command: (*command).to_owned(),
                number,
                url,
                copies: W::COPIES,
                seed: seed ^ number as u64,
            };
            processes.push(program.start(log.clone(), stopped.clone()));
        }
    }
    Nemesis {
        world: &mut world,
        network: &network,
        processes: &processes,
        random: Random::new(seed),
        log: log.clone(),
    }
    .run(Instant::now() + length)
    .await;
    let now = log.now();
    log.read().stopped = Some(now);
    stop.send_replace(true);
    end::all_have_left(processes, &log).await;
    end::nothing_is_left(&world, &network, &log).await;
    let report = Report {
        world: W::NAME,
        length,
        seed,
    };
    report.conclude(&log.read())
}
