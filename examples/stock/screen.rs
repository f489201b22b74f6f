//! How the demonstration looks.

use std::time::Duration;

use console::style;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::buyers::PAYING;
use crate::figures::{Commands, Handoffs, Sale};
use crate::{BUYERS_EACH, CAKES, PROCESSES};

pub(crate) struct Screen {
    parts: u32,
}

impl Screen {
    pub(crate) fn new(server: &str) -> Self {
        let buyers = PROCESSES * BUYERS_EACH;
        let title = format!("Flash sale: {CAKES} moon cakes, {buyers} buyers");
        println!("\n  {}", style(title).bold());
        println!(
            "  {}",
            style(format!("{PROCESSES} processes, one server: {server}")).dim()
        );
        println!(
            "  {}",
            style(format!(
                "each buyer: GET the stock, pay ({PAYING:?}), SET it one lower"
            ))
            .dim()
        );
        Self { parts: 0 }
    }

    /// The headline of the next part.
    pub(crate) fn part(&mut self, title: &str) {
        self.parts += 1;
        println!(
            "\n  {} {}",
            style(self.parts).cyan().bold(),
            style(title).bold()
        );
    }

    /// A line that says whether what had to happen did.
    pub(crate) fn verdict(&self, good: bool, text: &str) {
        let mark = if good {
            style("✔").green()
        } else {
            style("✘").red()
        };
        println!("    {} {text}", mark.bold());
    }

    /// What came of the sale without a lock.
    pub(crate) fn oversold(&self, sale: &Sale) {
        let summary = sale.summary();
        if sale.is_exact() {
            return self.verdict(true, &format!("{summary}: no two buyers met this time"));
        }
        let excess = sale.sold().saturating_sub(sale.cakes);
        let text = format!("oversold by {excess}");
        self.verdict(false, &format!("{summary}: {}", style(text).red().bold()));
    }

    /// One bar for each process.
    pub(crate) fn bars(&self, processes: u64, buyers: u64) -> Vec<ProgressBar> {
        let all = MultiProgress::new();
        let template = "    {prefix:.dim} {bar:40.cyan/black.bright} {pos:>3}/{len} buyers";
        (1..=processes)
            .map(|number| {
                let bar =
                    all.add(ProgressBar::new(buyers).with_prefix(format!("process {number}")));
                bar.set_style(styled(template).progress_chars("━━─"));
                bar
            })
            .collect()
    }

    pub(crate) fn spinner(&self, text: &str) -> ProgressBar {
        let spinner = ProgressBar::new_spinner().with_message(text.to_owned());
        spinner.set_style(styled("    {spinner:.cyan} {msg:.dim} {elapsed:.dim}"));
        spinner.enable_steady_tick(Duration::from_millis(80));
        spinner
    }

    /// The figures of the sale with the lock.
    pub(crate) fn figures(&self, handoffs: &Handoffs, commands: &Commands) {
        let buyers = PROCESSES * BUYERS_EACH;
        println!("\n  {}", style("Measured in the sale with the lock").bold());
        let (p50, p99) = (style(handoffs.p50).bold(), style(handoffs.p99).bold());
        println!(
            "    hand-off    p50 {p50} µs · p99 {p99} µs · {} of them",
            handoffs.count
        );
        let meaning = "from a buyer's call of release to the next one's confirmed guard";
        println!("                {}", style(meaning).dim());
        let per_buyer = per(commands.total(), buyers);
        println!(
            "    commands    {} for each buyer, by the server's count",
            style(per_buyer).bold()
        );
        let each: Vec<_> = commands
            .iter()
            .map(|(command, calls)| format!("{command} {}", per(calls, buyers)))
            .collect();
        println!("                {}\n", style(each.join(" · ")).dim());
    }
}

/// A template that is known to be well-formed.
fn styled(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn per(calls: u64, buyers: u64) -> String {
    format!("{:.2}", calls as f64 / buyers as f64)
}
