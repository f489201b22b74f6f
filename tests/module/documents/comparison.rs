//! Compares a terminal's output with a document.

use redis::Value;

use rlock_testkit::client::text;

/// How far a time in a reply may differ from the document's time.
const TOLERANCE_MS: u64 = 5000;
/// The number of digits of a fence, until the year 2286.
const FENCE_DIGITS: usize = 16;
/// The number of digits of a time in milliseconds since the epoch, until the
/// year 2286.
const EPOCH_MS_DIGITS: usize = 13;

/// A reply as `redis-cli` shows it; spaces do not matter.
pub(super) fn lines_of(command: &str, reply: &Value) -> Vec<String> {
    if command == "INFO" {
        return text(reply)
            .lines()
            .map(|line| line.trim().to_owned())
            .collect();
    }
    let line = match reply {
        Value::Nil => "(nil)".to_owned(),
        Value::Int(number) => format!("(integer) {number}"),
        Value::BulkString(bytes) => format!("\"{}\"", bytes.escape_ascii()).replace("\\'", "'"),
        Value::ServerError(_) => format!("(error) {}", text(reply)),
        Value::Array(values) | Value::Set(values) if values.is_empty() => {
            "(empty array)".to_owned()
        }
        Value::Array(values) | Value::Set(values) => {
            let items = values.iter().zip(1..).flat_map(|(value, index)| {
                let mut lines = lines_of("", value);
                lines[0].insert_str(0, &format!("{index}) "));
                lines
            });
            return items.collect();
        }
        Value::Map(pairs) => {
            let items = pairs.iter().zip(1..).flat_map(|((name, value), index)| {
                let mut lines = lines_of("", value);
                let name = format!("{index}# {} =>", lines_of("", name).concat());
                if matches!(value, Value::Array(values) if !values.is_empty()) {
                    lines.insert(0, name);
                } else {
                    lines[0].insert_str(0, &(name + " "));
                }
                lines
            });
            return items.collect();
        }
        other => text(other),
    };
    vec![line]
}

/// Compares a document with the output, by the rules in `docs/commands.md`.
#[derive(Clone, Default)]
pub(super) struct Comparison {
    /// The fences of the document, and the fences of this run for them.
    fences: Vec<(u64, u64)>,
    /// The previous line, which may name the number that follows.
    before: String,
}

impl Comparison {
    /// Whether the terminal shows the expected output below a line.
    pub(super) fn check(
        &mut self,
        line: &str,
        expected: &[&str],
        seen: &[String],
    ) -> Result<(), String> {
        line.clone_into(&mut self.before);
        if self.all_equal(expected, seen) {
            return Ok(());
        }
        let (expected, seen) = (expected.join("\n    "), seen.join("\n    "));
        Err(format!("  expected:\n    {expected}\n  seen:\n    {seen}"))
    }

    /// The fence of this run for a fence of the document.
    pub(super) fn fence_for(&self, word: &str) -> Option<String> {
        let shown = word.parse::<u64>().ok()?;
        let (_, seen) = self
            .fences
            .iter()
            .find(|(expected, _)| *expected == shown)?;
        Some(seen.to_string())
    }

    fn all_equal(&mut self, expected: &[&str], seen: &[String]) -> bool {
        let Some((line, expected)) = expected.split_first() else {
            return seen.is_empty();
        };
        if line.trim() == "..." {
            let fitting = (0..=seen.len()).find_map(|omitted| {
                let mut trial = self.clone();
                trial.all_equal(expected, &seen[omitted..]).then_some(trial)
            });
            return fitting.map(|trial| *self = trial).is_some();
        }
        let alike = |(first, seen): (&String, &[String])| {
            self.are_equal(line, first) && self.all_equal(expected, seen)
        };
        seen.split_first().is_some_and(alike)
    }

    fn are_equal(&mut self, expected: &str, seen: &str) -> bool {
        let spaced = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let (expected, seen) = (spaced(expected), spaced(seen));
        let before = std::mem::replace(&mut self.before, seen.clone());
        let about = |name: &str| before.contains(name) || seen.contains(name);
        let (is_time, is_id) = (about("-ms\"") || about("PTTL"), about("\"client-id\""));
        let (expected, seen) = (pieces(&expected), pieces(&seen));
        expected.len() == seen.len()
            && expected.iter().zip(&seen).all(|(expected, seen)| {
                let (Ok(left), Ok(right)) = (expected.parse(), seen.parse::<u64>()) else {
                    return expected == seen;
                };
                if expected.len() == FENCE_DIGITS && seen.len() == FENCE_DIGITS {
                    return self.are_one_fence(left, right);
                }
                if expected.len() == EPOCH_MS_DIGITS && seen.len() == EPOCH_MS_DIGITS {
                    return true;
                }
                left == right || is_id || (is_time && left.abs_diff(right) <= TOLERANCE_MS)
            })
    }

    /// Whether two fences compare in the same way to all others.
    fn are_one_fence(&mut self, expected: u64, seen: u64) -> bool {
        let mut others = self.fences.iter();
        let fits = others.all(|other| expected.cmp(&other.0) == seen.cmp(&other.1));
        self.fences.push((expected, seen));
        fits
    }
}

/// The pieces of a line: each is a number, or has no digits.
fn pieces(line: &str) -> Vec<&str> {
    let bytes = line.as_bytes();
    let pieces = bytes.chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit());
    pieces
        .map(|piece| std::str::from_utf8(piece).unwrap_or_default())
        .collect()
}
