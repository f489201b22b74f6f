//! All findings, as a list to read and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::finding::{Finding, Severity};
use crate::readable::printable;

/// How wide the column of severities is.
const INDENT: usize = 9;
const WIDTH: usize = 100;

#[derive(Debug, Serialize)]
pub(super) struct Master {
    pub(super) address: String,
    /// Name and version; none if it did not say.
    pub(super) server: Option<String>,
    /// The module's version; none if it is not loaded.
    pub(super) module: Option<String>,
    /// The worst first.
    pub(super) findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) problems: usize,
    warnings: usize,
    notes: usize,
    masters: Vec<Master>,
}

impl Report {
    pub(super) fn new(masters: Vec<Master>) -> Self {
        let count = |severity| masters.iter().map(|master| master.count(severity)).sum();
        Self {
            problems: count(Severity::Problem),
            warnings: count(Severity::Warning),
            notes: count(Severity::Note),
            masters,
        }
    }

    pub(super) fn words(&self) -> String {
        let masters: Vec<_> = self.masters.iter().map(Master::words).collect();
        masters.join("\n\n")
    }
}

impl Master {
    fn count(&self, severity: Severity) -> usize {
        let findings = self.findings.iter();
        findings.filter(|it| it.severity == severity).count()
    }

    fn words(&self) -> String {
        let count = |severity, name| match self.count(severity) {
            1 => format!("1 {name}"),
            count => format!("{count} {name}s"),
        };
        let counts = [
            count(Severity::Problem, "problem"),
            count(Severity::Warning, "warning"),
            count(Severity::Note, "note"),
        ];
        let server = self.server.as_deref().unwrap_or("unknown");
        let title = format!("{} ({server}): {}", self.address, counts.join(", "));
        let findings: Vec<_> = self.findings.iter().map(lines).collect();
        printable(&title) + "\n\n" + &findings.join("\n")
    }
}

/// A finding; a good one has one line only.
fn lines(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Ok => "ok",
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Problem => "PROBLEM",
    };
    let found = printable(&format!("{}: {}", finding.check, finding.found));
    if finding.severity == Severity::Ok {
        return format!("{severity:<INDENT$}{found}");
    }
    let said = [finding.effect, finding.remedy].into_iter().flatten();
    let mut lines = format!("{severity:<INDENT$}{}", wrapped(&found));
    for text in said {
        let _ = write!(lines, "\n{:INDENT$}{}", "", wrapped(text));
    }
    let _ = writeln!(lines, "\n{:INDENT$}{}", "", finding.docs);
    lines
}

/// The same in lines that are not too long.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + word.chars().count() < WIDTH - INDENT => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{:INDENT$}", ""))
}
