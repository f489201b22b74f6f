//! `rlock bench`: measures the server with its own locks.
//!
//! Its locks have a unique prefix and short leases, so it touches no other lock
//! and leaves none behind. It ends when its time is over, even if the server
//! does not answer.

mod load;
mod report;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::Signals;

use load::Load;
use report::Report;

/// Measures how fast locks are acquired and released
///
/// Each client has its own connection, takes the locks in turn, and
/// releases each at once. The acquire time includes the wait for other clients.
#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    /// How many clients, from 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: u16,

    /// How many locks they share, from 1 to 100000.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    locks: u32,

    /// End after this many seconds, from 1 to 3600.
    #[arg(long, value_name = "S", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// End after this many acquires, from 1 to 1000000000, if that is sooner
    /// [default: without limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    ops: Option<u64>,
}

/// How often the progress bar is drawn.
const FRAME: Duration = Duration::from_millis(100);

pub(crate) async fn run(bench: &Bench, address: &Address, output: Output) -> Result<u8, Failure> {
    let mut signals =
        Signals::listen().map_err(|error| Failure::internal("cannot take signals", &error))?;
    let mut load = tokio::select! {
        signal = signals.ending() => return Ok(signal.exit_code()),
        load = Load::connect(bench, address) => load?,
    };
    load.start();
    let bar = bar(bench);
    let mut frames = tokio::time::interval(FRAME);
    let code = loop {
        tokio::select! {
            biased;
            signal = signals.ending() => break signal.exit_code(),
            () = load.ended() => break 0,
            _ = frames.tick() => show(&bar, bench, &load),
        }
    };
    bar.finish_and_clear();
    let tally = load.finish().await?;
    let report = Report::new(bench, tally);
    output.result(&report, || report.words())?;
    Ok(code)
}

/// The progress bar, on stderr. It is hidden if stderr is not a terminal.
fn bar(bench: &Bench) -> ProgressBar {
    let length = bench.ops.unwrap_or(bench.seconds * 1000);
    let style = ProgressStyle::with_template("{bar:40} {percent}%  {msg}");
    let bar = ProgressBar::new(length);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn show(bar: &ProgressBar, bench: &Bench, load: &Load) {
    let (elapsed, ops) = load.progress();
    let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    bar.set_position(bench.ops.map_or(elapsed_ms, |_| ops));
    bar.set_message(format!("{ops} acquired and released"));
}
