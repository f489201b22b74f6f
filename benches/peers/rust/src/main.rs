//! Runs one lock library of Rust under one workload, for `make compare`.
//!
//! Events and acquisitions go to standard output, one JSON value a line;
//! everything else goes to standard error.

mod lines;
mod modes;
mod peers;
mod redis_peers;
mod rlock_peers;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// One lock library under one workload.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Workload {
    /// Print the peers as one line of JSON
    #[arg(long)]
    list: bool,
    /// The library to run
    #[arg(long, default_value = "")]
    peer: String,
    /// URL of the server
    #[arg(long, default_value = "")]
    pub(crate) url: String,
    #[arg(long, value_enum, default_value_t = Mode::Loop)]
    pub(crate) mode: Mode,
    /// How many callers there are at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) callers: u32,
    /// One key for all, or one for each caller
    #[arg(long, value_enum, default_value_t = Keys::Shared)]
    pub(crate) keys: Keys,
    /// Name of the lock
    #[arg(long, default_value = "compare")]
    pub(crate) key: String,
    /// loop: how long
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// loop: at most this many acquisitions for each caller; 0: no limit
    #[arg(long, default_value_t = 0)]
    pub(crate) rounds: usize,
    /// How long each lock is held, in microseconds
    #[arg(long, default_value_t = 0)]
    hold_us: u64,
    /// crowd: how long after the last has asked, in milliseconds
    #[arg(long, default_value_t = 200)]
    settle_ms: u64,
    /// Lease of each lock, in milliseconds
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    lease_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Loop,
    Crowd,
    Hold,
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Keys {
    Shared,
    Own,
}

impl Workload {
    pub(crate) fn hold(&self) -> Duration {
        Duration::from_micros(self.hold_us)
    }

    pub(crate) fn settle(&self) -> Duration {
        Duration::from_millis(self.settle_ms)
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// How many callers the mode needs: a crowd has one more, who holds.
    pub(crate) fn all_callers(&self) -> u32 {
        match self.mode {
            Mode::Loop => self.callers,
            Mode::Crowd => self.callers + 1,
            Mode::Hold | Mode::Wait => 1,
        }
    }

    /// The key of a caller in a loop.
    pub(crate) fn key_of(&self, caller: u32) -> String {
        match self.keys {
            Keys::Shared => self.key.clone(),
            Keys::Own => format!("{}:{caller}", self.key),
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number from 0 to 86400".to_owned()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let workload = Workload::parse();
    if workload.list {
        lines::print(&peers::list());
        return ExitCode::SUCCESS;
    }
    let name = workload.peer.clone();
    if let Err(error) = peers::run(&name, workload).await {
        // One line: the driver shows the last one.
        eprintln!("contestant: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
