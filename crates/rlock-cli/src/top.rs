//! `rlock top`: the contended locks as they change.
//!
//! Each interval it asks every master for its numbers and its contended locks,
//! then for the holders of the locks in view, and for the queue that is shown,
//! if any. It handles keys meanwhile, even if a server is slow. It shows a
//! master that becomes unreachable, and asks it again.

mod head;
mod keys;
mod recent;
mod sample;
mod screen;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod view;
mod worker;

use std::io::{self, IsTerminal};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use crate::readable::interval;
use crate::signals::Signals;

use sample::{Sample, Sampler};
use screen::Screen;
use terminal::{Display, Input, Press};
use view::Paint;
use worker::Worker;

/// How often the age of the numbers is drawn, even if the interval is longer.
const AGE_EVERY: Duration = Duration::from_secs(1);

/// Shows the contended locks of a server live
///
/// It shows who holds each lock, how many wait and for how long, and the queue of one
/// lock. `?` lists the keys. In a cluster, it shows the locks of all masters, and the
/// sums of their numbers.
///
/// With --json it prints one line for each interval instead.
///
/// A DURATION has a unit, for example 500ms or 30s. A number without a unit means
/// seconds.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// How often to ask the servers, from 100ms to 1h.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// How many locks to show at most, from 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    locks: u16,

    /// Ends after this many intervals, at least 1 [default: without limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

pub(crate) async fn run(top: &Top, address: &Address, output: Output) -> Result<u8, Failure> {
    if !output.is_json() && !io::stdout().is_terminal() {
        let message = "top needs a terminal; `--json` prints lines instead";
        return Err(Failure::usage(message));
    }
    let mut signals =
        Signals::listen().map_err(|error| Failure::internal("cannot take signals", &error))?;
    // The rates of the first interval need an earlier sample. If it fails, the
    // error appears on the ordinary screen.
    let (mut sampler, first) = tokio::select! {
        signal = signals.ending() => return Ok(signal.exit_code()),
        started = Sampler::start(address, top.locks) => started?,
    };
    if output.is_json() {
        lines(top, &mut sampler, &mut signals, output).await
    } else {
        live(top, sampler, first, &mut signals).await
    }
}

/// Ticks every interval; the first tick is one interval from now.
fn ticks(top: &Top) -> Interval {
    let start = tokio::time::Instant::now() + top.interval;
    let mut ticks = tokio::time::interval_at(start, top.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn lines(
    top: &Top,
    sampler: &mut Sampler,
    signals: &mut Signals,
    output: Output,
) -> Result<u8, Failure> {
    let mut ticks = ticks(top);
    let mut left = top.count;
    while left != Some(0) {
        let sample = tokio::select! {
            signal = signals.ending() => return Ok(signal.exit_code()),
            sample = async { ticks.tick().await; sampler.next(top.locks).await } => sample?,
        };
        output.result(&sample, String::new)?;
        left = left.map(|left| left - 1);
    }
    Ok(0)
}

async fn live(
    top: &Top,
    sampler: Sampler,
    first: Sample,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let is_coloured = console::colors_enabled();
    let title = (sampler.shown(), Paint { is_coloured });
    let mut screen = Screen::new(first, title, top.interval, top.locks);
    let mut display = Display::take()?;
    let mut input = Input::new(signals);
    let mut worker = Worker::new(sampler);
    let mut ticks = ticks(top);
    let mut left = top.count;
    loop {
        display.draw(|frame| view::draw(frame, &mut screen))?;
        // Drawing decides which locks are in view.
        worker.start(|| screen.question());
        tokio::select! {
            biased;
            press = input.next() => match press? {
                Press::Quit(code) => return Ok(code),
                Press::Key(key) if screen.press(key) => return Ok(0),
                Press::Key(_) | Press::Other => {}
            },
            answer = worker.answer() => screen.update(answer),
            _ = ticks.tick() => {
                if left == Some(0) {
                    return Ok(0);
                }
                left = left.map(|left| left - 1);
                screen.refresh();
            }
            // The age of the numbers changes.
            () = tokio::time::sleep(AGE_EVERY) => {}
        }
    }
}
