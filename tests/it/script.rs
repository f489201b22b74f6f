//! Reads a scenario file; `tests/scenarios/README.md` describes the form.

use crate::client::words;

/// One step of a scenario: what is done, and what is to be seen by then.
#[derive(Debug)]
pub(crate) struct Step {
    /// Where it stands in its file.
    pub(crate) line: usize,
    /// Milliseconds since the start of the scenario.
    pub(crate) at_ms: u64,
    pub(crate) client: String,
    /// The command with its arguments; empty when only time passes.
    pub(crate) command: Vec<String>,
    pub(crate) expected: Vec<String>,
}

/// All steps of a scenario, in order.
pub(crate) fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut at_ms = 0;
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_end()));
    while let Some((number, line)) = lines.next() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = words(line)
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>();
        if let Some(time) = words[0].strip_prefix('@') {
            let time = time
                .parse()
                .unwrap_or_else(|_| panic!("line {number}: {line}: no time"));
            assert!(time >= at_ms, "line {number}: {line}: time goes back");
            at_ms = time;
            words.remove(0);
        }
        let mut client = "x".to_owned();
        if let Some(name) = words.first().and_then(|word| word.strip_suffix(':')) {
            client = name.to_owned();
            words.remove(0);
        }
        assert_eq!(
            lines.next().map(|(_, line)| line),
            Some("----"),
            "after line {number}: {line}"
        );
        let expected = lines
            .by_ref()
            .map(|(_, line)| line.to_owned())
            .take_while(|line| !line.is_empty());
        steps.push(Step {
            line: number,
            at_ms,
            client,
            command: words,
            expected: expected.collect(),
        });
    }
    steps
}
