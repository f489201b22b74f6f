//! The findings, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::readable::printable;

/// How wide the column of severities is.
const INDENT: usize = 9;
const WIDTH: usize = 100;

/// The risk of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Ok,
    /// Good to know.
    Note,
    /// A lock may be lost, or held twice, when something else fails.
    Warning,
    /// Locks are refused or may be lost now.
    Problem,
}

#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The name of the check.
    pub(super) check: &'static str,
    /// The state of this server.
    pub(super) found: String,
    /// The effect on locks; none if there is none.
    pub(super) effect: Option<&'static str>,
    /// What to do about it.
    pub(super) remedy: Option<&'static str>,
    /// The page of the documents that says more.
    pub(super) docs: &'static str,
}

impl Finding {
    pub(super) fn new(severity: Severity, check: &'static str, found: impl Into<String>) -> Self {
        Self {
            severity,
            check,
            found: found.into(),
            effect: None,
            remedy: None,
            docs: "",
        }
    }

    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(Severity::Ok, check, found)
    }

    pub(super) fn effect(self, effect: &'static str) -> Self {
        let effect = Some(effect);
        Self { effect, ..self }
    }

    pub(super) fn remedy(self, remedy: &'static str) -> Self {
        let remedy = Some(remedy);
        Self { remedy, ..self }
    }

    pub(super) fn docs(self, docs: &'static str) -> Self {
        Self { docs, ..self }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Master {
    pub(super) address: String,
    /// Name and version of the server; none if they are unknown.
    pub(super) server: Option<String>,
    /// The module's version; none if it is not loaded or unknown.
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

/// A finding as text. One that is `ok` has only one line.
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
    let texts = [finding.effect, finding.remedy].into_iter().flatten();
    let mut lines = format!("{severity:<INDENT$}{}", wrapped(&found));
    for text in texts {
        let _ = write!(lines, "\n{:INDENT$}{}", "", wrapped(text));
    }
    let _ = writeln!(lines, "\n{:INDENT$}{}", "", finding.docs);
    lines
}

/// The text, wrapped.
fn wrapped(text: &str) -> String {
    let options = textwrap::Options::new(WIDTH - INDENT)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false);
    textwrap::wrap(text, options).join(&format!("\n{:INDENT$}", ""))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// The anchor that a page has for a heading.
    fn anchor(heading: &str) -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
        kept.collect::<String>().replace(' ', "-")
    }

    fn has_anchor(docs: &str) -> bool {
        let (page, wanted) = docs.split_once('#').unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = fs::read_to_string(root.join(page)).unwrap_or_default();
        let mut headings = page.lines().filter(|line| line.starts_with('#'));
        headings.any(|heading| anchor(heading) == wanted)
    }

    /// All `docs/page.md#anchor` in the sources of the checks.
    fn named() -> Vec<String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let files = fs::read_dir(sources.join("doctor")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let files = files.filter(|file| !file.ends_with("report.rs"));
        let mut named = Vec::new();
        for file in files.chain([sources.join("doctor.rs")]) {
            let source = fs::read_to_string(file).unwrap();
            let names = source.split("\"docs/").skip(1);
            let names = names.filter_map(|rest| rest.split_once('"'));
            named.extend(names.map(|(page, _)| format!("docs/{page}")));
        }
        named
    }

    #[test]
    fn every_line_of_docs_that_a_finding_names_exists() {
        let named = named();
        assert!(named.len() > 15, "{named:?}");
        for docs in named {
            assert!(has_anchor(&docs), "{docs}");
        }
        assert!(!has_anchor(&format!(
            "{}-not",
            "docs/operating.md#eviction"
        )));
    }
}
