//! The figures of all servers as one Markdown table, for a document.
//!
//! The process of each server adds its lines to the file; at the end the lines
//! of one figure are brought together, so that the servers stand side by side.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::report::Row;

const HEAD: &str = "\
| what | server | measured | target | met |
|---|---|---|---|---|
";

/// Begins the file, and finds out early whether it can be written.
pub(crate) fn begin(file: &Path) {
    fs::write(file, "").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// Adds the lines of one server.
pub(crate) fn add(file: &Path, server: &str, rows: &[Row]) {
    let mut text = String::new();
    for row in rows {
        let cells = [&row.what, server, &row.measured, &row.target, row.verdict];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    let mut file = OpenOptions::new()
        .append(true)
        .open(file)
        .expect("it was begun");
    file.write_all(text.as_bytes())
        .expect("the disk has room for a table");
}

/// Brings the lines of each figure together, below the description of the run.
pub(crate) fn finish(file: &Path, description: &str) {
    let lines = fs::read_to_string(file).expect("it was begun");
    let mut figures: Vec<(&str, String)> = Vec::new();
    for line in lines.lines() {
        let what = line.split(" | ").next().unwrap_or_default();
        match figures.iter_mut().find(|(figure, _)| *figure == what) {
            Some((_, text)) => *text += &format!("{line}\n"),
            None => figures.push((what, format!("{line}\n"))),
        }
    }
    let table: String = figures.into_iter().map(|(_, text)| text).collect();
    let description = description.replace('\n', "  \n");
    fs::write(file, format!("{description}\n\n{HEAD}{table}")).expect("it was begun");
}
