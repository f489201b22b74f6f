//! How the figures are shown.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;

/// All that was measured on one server.
pub(crate) struct Report {
    met: usize,
    missed: Vec<String>,
}

/// One part: a title, a legend, and a table.
pub(crate) struct Section<'a> {
    report: &'a mut Report,
    title: &'static str,
    table: Table,
    group: String,
}

/// What a figure has to be.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64, &'static str),
    AtLeast(f64, &'static str),
}

/// A figure that has a target.
pub(crate) struct Goal {
    value: f64,
    target: Target,
}

impl Target {
    /// Has this target for a figure.
    #[allow(
        clippy::unnecessary_wraps,
        reason = "a row without a goal says so by None"
    )]
    pub(crate) fn of(self, value: f64) -> Option<Goal> {
        Some(Goal {
            value,
            target: self,
        })
    }

    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound, _) => value <= bound,
            Self::AtLeast(bound, _) => value >= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(bound, unit) => format!("≤ {bound}{unit}"),
            Self::AtLeast(bound, unit) => format!("≥ {bound}{unit}"),
        }
    }
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            met: 0,
            missed: Vec::new(),
        }
    }

    /// Begins a part; its legend says what is measured.
    pub(crate) fn section(&mut self, title: &'static str, legend: &str) -> Section<'_> {
        println!("{title}\n{legend}");
        let mut table = Table::new();
        table
            .load_style(presets::ASCII_MARKDOWN)
            .set_header(["", "measured", "compared", "target", ""]);
        for column in [1, 2, 3] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Section {
            report: self,
            title,
            table,
            group: String::new(),
        }
    }

    /// How many targets were met.
    pub(crate) fn verdict(&self) -> String {
        let all = self.met + self.missed.len();
        let mut text = format!("{} of {all} targets met", self.met);
        for missed in &self.missed {
            text += &format!("\n  missed: {missed}");
        }
        text
    }
}

impl Section<'_> {
    /// Says under which circumstances the next lines were measured.
    pub(crate) fn group(&mut self, circumstances: &str) {
        self.group = format!("{circumstances}: ");
        self.table.add_row([circumstances, "", "", "", ""]);
    }

    /// What was measured, how much, and compared with what; without a goal it
    /// is shown for orientation.
    pub(crate) fn row(&mut self, cells: [&str; 3], goal: Option<Goal>) {
        let (target, verdict) = match goal {
            None => (String::new(), ""),
            Some(goal) => (goal.target.text(), self.judge(cells[0], &goal)),
        };
        let cells = cells.into_iter().chain([target.as_str(), verdict]);
        self.table.add_row(cells);
    }

    fn judge(&mut self, what: &str, goal: &Goal) -> &'static str {
        if goal.target.is_met_by(goal.value) {
            self.report.met += 1;
            return "met";
        }
        let (title, group, target) = (self.title, &self.group, goal.target.text());
        let missed = format!(
            "{title}: {group}{}: {:.2}, not {target}",
            what.trim(),
            goal.value
        );
        self.report.missed.push(missed);
        "MISSED"
    }

    /// Shows the table.
    pub(crate) fn end(self) {
        println!("{}\n", self.table);
    }
}

/// Times, to the nanosecond up to 10 s.
pub(crate) fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("the bounds are in order")
}

/// Adds a time.
pub(crate) fn record(times: &mut Histogram<u64>, time: Duration) {
    times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// The middle and the slow end, in microseconds.
pub(crate) fn quantiles(times: &Histogram<u64>) -> String {
    let at = |quantile| micros(times.value_at_quantile(quantile));
    format!("p50 {:.1} µs, p99 {:.1} µs", at(0.5), at(0.99))
}

/// The median in microseconds.
pub(crate) fn median_micros(times: &Histogram<u64>) -> f64 {
    micros(times.value_at_quantile(0.5))
}

#[allow(clippy::cast_precision_loss, reason = "a time of hours")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// The middle one of some figures.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures = figures.into_iter().collect::<Vec<_>>();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
