//! What the module costs, beside what it is compared with, in one run.
//!
//! `make bench` measures on the system's Redis and on every server that
//! `make servers` has installed. `RLOCK_SERVERS` names another directory of
//! servers, `RLOCK_SERVER` one single server, `RLOCK_MODULE` another module.
//! One part on one server, with the module built before:
//!
//! ```sh
//! cargo bench --package rlock -- --only cost --server redis-server
//! ```
//!
//! `--quick` takes every path with small numbers, on one server, to see that
//! all of it still works; its figures mean little. `--markdown FILE` also
//! writes the figures of all servers into a file, as one table.
//!
//! Nothing fails for being slow: each line shows its target and whether it is
//! met. Whatever is compared is measured in turns, so that a noisy machine
//! falls on both alike; a ratio is worth more than its two times.

#[path = "comparison/connection.rs"]
mod connection;
#[path = "comparison/cost.rs"]
mod cost;
#[path = "comparison/crowds.rs"]
mod crowds;
#[path = "comparison/ends.rs"]
mod ends;
#[path = "comparison/hand_off.rs"]
mod hand_off;
#[path = "comparison/instructions.rs"]
mod instructions;
#[path = "comparison/machine.rs"]
mod machine;
#[path = "comparison/markdown.rs"]
mod markdown;
#[path = "comparison/memory.rs"]
mod memory;
#[path = "comparison/modes.rs"]
mod modes;
#[path = "comparison/one_at_a_time.rs"]
mod one_at_a_time;
#[path = "comparison/pinger.rs"]
mod pinger;
#[path = "comparison/processors.rs"]
mod processors;
#[path = "comparison/quorum.rs"]
mod quorum;
#[path = "comparison/report.rs"]
mod report;
#[path = "comparison/rounds.rs"]
mod rounds;
#[path = "comparison/rust_client.rs"]
mod rust_client;
#[path = "comparison/stalls.rs"]
mod stalls;
#[path = "comparison/topologies.rs"]
mod topologies;
#[path = "comparison/turns.rs"]
mod turns;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::{Parser, ValueEnum};

use report::{Form, Report};

#[derive(Debug, Parser)]
#[command(about = "What the module costs, beside what it is compared with")]
struct Arguments {
    /// Measure only this; may be given more than once.
    #[arg(long)]
    only: Vec<Part>,
    /// A server program to measure on; may be given more than once.
    #[arg(long)]
    server: Vec<String>,
    /// Small numbers on one server, to see that every benchmark works.
    #[arg(long)]
    quick: bool,
    /// Write the figures of all servers into this file, too.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Measure in this process, on the server that the environment names.
    #[arg(long, hide = true)]
    here: bool,
    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Part {
    /// Processor time of the server for an uncontended pair.
    Cost,
    /// Instructions of the server for that pair, and for a grant.
    Instructions,
    /// Processor time for a caller who sends one command at a time.
    OneAtATime,
    /// Shared mode, and several keys at once.
    Modes,
    /// From a release to the next one's knowing.
    HandOff,
    /// Processor time of the server while a lock goes around.
    Turns,
    /// What a waiter costs.
    Memory,
    /// Many waits or leases that end together.
    Ends,
    /// How long the server stalls, at worst.
    Stalls,
    /// Readers, leases, deadlocks and lists of many.
    Crowds,
    /// The Rust client.
    Client,
    /// The Rust client at clusters, and with replicas.
    Topologies,
    /// A lock on a majority of servers.
    Quorum,
}

impl Part {
    fn measure(self, report: &mut Report) {
        match self {
            Self::Cost => cost::measure(report),
            Self::Instructions => instructions::measure(report),
            Self::OneAtATime => one_at_a_time::measure(report),
            Self::Modes => modes::measure(report),
            Self::HandOff => hand_off::measure(report),
            Self::Turns => turns::measure(report),
            Self::Memory => memory::measure(report),
            Self::Ends => ends::measure(report),
            Self::Stalls => stalls::measure(report),
            Self::Crowds => crowds::measure(report),
            Self::Client => rust_client::measure(report),
            Self::Topologies => topologies::measure(report),
            Self::Quorum => quorum::measure(report),
        }
    }
}

impl Arguments {
    fn form(&self) -> Form {
        if self.quick { Form::Quick } else { Form::Full }
    }

    fn servers(&self) -> Vec<String> {
        if !self.server.is_empty() {
            return self.server.clone();
        }
        self.form()
            .of(machine::servers(), vec![rlock_testkit::program()])
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.here {
        measure(&arguments);
        return ExitCode::SUCCESS;
    }
    machine::allow_connections();
    let description = machine::description();
    println!("{description}");
    if let Some(file) = &arguments.markdown {
        markdown::begin(file);
    }
    let mut code = ExitCode::SUCCESS;
    for server in arguments.servers() {
        if !comes_to_its_end_on(&server) {
            eprintln!("The benchmarks on {server} did not come to their end.");
            code = ExitCode::FAILURE;
        }
    }
    if let Some(file) = &arguments.markdown {
        markdown::finish(file, &description);
        println!("The table is in {}.", file.display());
    }
    code
}

/// Measures on one server, in a process of its own: which server is started is
/// read from the environment.
fn comes_to_its_end_on(server: &str) -> bool {
    let program = std::env::current_exe().expect("a process knows its program");
    let status = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--here")
        .env("RLOCK_SERVER", server)
        .stdin(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Measures all that was asked for on one server.
fn measure(arguments: &Arguments) {
    let wanted = |part: &Part| arguments.only.is_empty() || arguments.only.contains(part);
    let start = Instant::now();
    let mut report = Report::new(arguments.form());
    println!("\n━━ {}\n", machine::server_version());
    for part in Part::value_variants() {
        if wanted(part) {
            part.measure(&mut report);
        }
        if let Some(file) = &arguments.markdown {
            markdown::add(file, &machine::server_name(), &report.take_rows());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{}\nin {seconds:.0} s", report.verdict());
}
