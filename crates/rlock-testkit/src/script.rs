//! The format of scenario files, as described in `tests/scenarios/README.md`. The core's tests also use this file.

use std::collections::BTreeSet;

/// One step of a scenario: an action, and what must be visible after it.
#[derive(Debug)]
pub struct Step {
    /// Its line in the file.
    pub line: usize,
    /// Milliseconds since the start of the scenario.
    pub at_ms: u64,
    pub client: String,
    /// The command with its arguments; empty when only time passes.
    pub command: Vec<String>,
    pub expected: Vec<String>,
}

/// The indentation of each line that a step expects.
const INDENT: &str = "  ";

/// Steps that are possible while the client is blocked: the client sends no command for them.
const WHILE_BLOCKED: [&str; 4] = ["CLOSE", "LISTEN", "UNLISTEN", "SLISTEN"];

/// All steps of a scenario, in order; `Err` names an invalid line. A blocked client can send nothing: a server would
/// read it only after the answer.
pub fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut at_ms = 0;
    let mut blocked = BTreeSet::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((line, head)) = lines.next() {
        if head.is_empty() || head.starts_with('#') {
            continue;
        }
        let number = line + 1;
        if head.starts_with(INDENT) {
            return Err(format!("{number}: no step before it"));
        }
        let mut words = head.split(' ').peekable();
        if let Some(time) = words.next_if(|word| word.starts_with('@')) {
            let time = time[1..].parse().ok().filter(|time| *time >= at_ms);
            at_ms = time.ok_or_else(|| format!("{number}: no later time"))?;
        }
        let client = words.next_if(|word| word.ends_with(':'));
        let client = client.map_or("x", |word| word.trim_end_matches(':'));
        let command = words.map(|word| if word == "\"\"" { "" } else { word });
        let command: Vec<_> = command.map(str::to_owned).collect();
        let sends = |command: &String| !WHILE_BLOCKED.contains(&command.as_str());
        if blocked.contains(client) && command.first().is_some_and(sends) {
            return Err(format!(
                "{number}: {client} is blocked, and can send nothing"
            ));
        }
        let indented = || lines.next_if(|(_, line)| line.starts_with(INDENT));
        let expected = std::iter::from_fn(indented);
        let expected: Vec<_> = expected.map(|(_, line)| line.trim_start()).collect();
        match (command.first().map(String::as_str), expected.first()) {
            (Some("CLOSE"), _) => blocked.remove(client),
            (Some(_), Some(&"blocked")) => blocked.insert(client),
            _ => false,
        };
        for (answered, _) in expected.iter().filter_map(|line| line.split_once(": ")) {
            blocked.remove(answered);
        }
        steps.push(Step {
            line: number,
            at_ms,
            client: client.to_owned(),
            command,
            expected: expected.into_iter().map(str::to_owned).collect(),
        });
    }
    Ok(steps)
}

/// A message on the value channel of a key, in the format of scenarios.
pub fn value_line(key: &str, fence: &str, value: Option<&str>) -> String {
    let value = match value {
        None => String::new(),
        Some("") => " \"\"".to_owned(),
        Some(value) => format!(" {value}"),
    };
    format!("value {key}: {fence}{value}")
}

/// The lines for other clients. Messages on channels and on value channels keep their order, because one client sees
/// that order. All other lines are sorted: different connections receive them in no fixed order.
pub fn sorted_outcomes(lines: &[String]) -> Vec<String> {
    let lines = lines.iter().cloned();
    let (messages, others): (Vec<_>, Vec<_>) =
        lines.partition(|line| line.starts_with("channel ") || line.starts_with("schannel "));
    let others = others.into_iter();
    let (values, mut others): (Vec<_>, Vec<_>) =
        others.partition(|line| line.starts_with("value "));
    others.sort();
    [messages, values, others].concat()
}

/// The fields of something that is shown, in the format of scenarios.
pub fn shown<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let shown = fields.into_iter().filter_map(|(name, value)| {
        let name = name.trim_end_matches("-ms");
        match (name, value.as_str()) {
            // It omits usual values, and values that differ in each run.
            ("permits", "1")
            | ("bound", "0")
            | ("kept-left" | "value", "nil")
            | ("client-id", _) => None,
            ("owner" | "key", _) => Some(value),
            _ => Some(format!("{name}={value}")),
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}
