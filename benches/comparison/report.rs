//! How the figures are shown.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;

/// How thorough the benchmarks are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Form {
    /// Enough of everything for the figures to be worth something.
    Full,
    /// Just enough to see that every benchmark still works.
    Quick,
}

impl Form {
    /// What the full form takes, or what is enough for the quick one.
    pub(crate) fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }
}

/// All that was measured on one server.
pub(crate) struct Report {
    form: Form,
    met: usize,
    missed: Vec<String>,
    rows: Vec<Row>,
}

/// One line of a table, told apart from those of all other tables.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) measured: String,
    pub(crate) target: String,
    pub(crate) verdict: &'static str,
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
    pub(crate) fn new(form: Form) -> Self {
        Self {
            form,
            met: 0,
            missed: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// The lines that were added since the last time.
    pub(crate) fn take_rows(&mut self) -> Vec<Row> {
        std::mem::take(&mut self.rows)
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
        if self.form == Form::Quick {
            return "Every benchmark works. Figures of the quick form mean little.".into();
        }
        let all = self.met + self.missed.len();
        let mut text = format!("{} of {all} targets met", self.met);
        for missed in &self.missed {
            text += &format!("\n  missed: {missed}");
        }
        text
    }
}

impl Section<'_> {
    /// How thorough it has to be.
    pub(crate) fn form(&self) -> Form {
        self.report.form
    }

    /// Says under which circumstances the next lines were measured.
    pub(crate) fn group(&mut self, circumstances: &str) {
        self.group = format!("{circumstances}: ");
        self.table.add_row([circumstances, "", "", "", ""]);
    }

    /// What was measured, how much, and compared with what; without a goal it
    /// is shown for orientation.
    pub(crate) fn row(&mut self, cells: [&str; 3], goal: Option<Goal>) {
        let [what, measured, compared] = cells;
        let full_name = format!("{}: {}{}", self.title, self.group, what.trim());
        let (target, verdict) = match goal {
            None => (String::new(), ""),
            Some(goal) => (goal.target.text(), self.judge(&full_name, &goal)),
        };
        self.table
            .add_row([what, measured, compared, &target, verdict]);
        let separator = if compared.is_empty() { "" } else { "; " };
        self.report.rows.push(Row {
            what: full_name,
            measured: format!("{measured}{separator}{compared}"),
            target,
            verdict,
        });
    }

    fn judge(&mut self, what: &str, goal: &Goal) -> &'static str {
        if goal.target.is_met_by(goal.value) {
            self.report.met += 1;
            return "met";
        }
        let target = goal.target.text();
        let missed = format!("{what}: {:.2}, not {target}", goal.value);
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

/// A number of things, with commas between the thousands.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
