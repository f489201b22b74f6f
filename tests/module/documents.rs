//! Runs the examples of the documents on a real server.
//!
//! An example is a fenced block that shows terminals: each of its lines begins with a prompt such as `A> `.
//! `docs/commands.md` says how to read one; each example gets its own server.

mod comparison;
mod links;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redis::Value;
use rlock_core::syntax::{Command, Max, Value as OptionValue};
use rlock_core::{Setting, SettingKind};

use rlock_testkit::Server;
use rlock_testkit::client::{Client, PATIENCE, eventually, request, text};

use comparison::{Comparison, lines_of};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document(name: &str) -> String {
    let path = top().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages in `docs`, in the order of their names.
fn pages() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(top().join("docs")).expect("there are pages");
    let paths = entries.map(|entry| entry.expect("the directory can be read").path());
    let mut pages: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .collect();
    pages.sort();
    pages
}

#[test]
fn examples_of_the_readme_are_true() {
    are_true("README.md");
}

#[test]
fn examples_of_the_command_reference_are_true() {
    are_true("docs/commands.md");
}

#[test]
fn examples_of_the_page_about_locks_are_true() {
    are_true("docs/locks.md");
}

#[test]
fn examples_of_all_other_pages_are_true() {
    for page in pages() {
        let name = page.file_name().and_then(|name| name.to_str());
        let name = name.expect("a page has a name of text");
        let has_its_own_test = matches!(name, "commands.md" | "locks.md");
        let path = format!("docs/{name}");
        if !has_its_own_test && !examples(&document(&path)).is_empty() {
            are_true(&path);
        }
    }
}

#[test]
fn links_of_the_documents_have_targets() {
    let top = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ];
    let top = top.map(|name| self::top().join(name));
    let broken = pages().into_iter().chain(top);
    let broken: Vec<_> = broken.flat_map(|page| links::broken(&page)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn command_reference_has_every_command_setting_and_field() {
    let reference = document("docs/commands.md");
    let has = |what: &str| assert!(reference.contains(what), "docs/commands.md has no {what}");
    let server = Server::start();
    let Value::Array(lines) = server.connection().call(&["RLOCK.HELP"]) else {
        panic!("RLOCK.HELP has lines");
    };
    for line in lines.iter().map(text) {
        let syntax = line.split(" -- ").next().unwrap_or_default().to_owned();
        has(&format!(
            "\n### {}\n",
            syntax.split(' ').next().unwrap_or_default()
        ));
        has(&format!("\n{syntax}\n"));
    }
    // The text describes the syntax for several locks.
    let of_one = |command: &Command| command.num_keys_at().is_none();
    for command in Command::ALL.into_iter().filter(of_one) {
        let section = format!("\n### {}\n", command.name());
        let section = reference.split(&section).nth(1).unwrap_or_default();
        let section = section.split("\n### ").next().unwrap_or_default();
        for option in command.options() {
            let usage = format!("\n| `{}` |", option.usage());
            let row = section.split(&usage).nth(1);
            let row = row.and_then(|rest| rest.lines().next());
            let row = row.unwrap_or_else(|| panic!("{} has no row {usage}", command.name()));
            if let OptionValue::Number {
                max: Max::Of(max @ ..1_000_001),
                ..
            } = option.spec().value
            {
                assert!(
                    row.contains(&max.to_string()),
                    "{usage} is at most {max}: {row}"
                );
            }
        }
    }
    let example = document("redis.conf.example");
    for setting in Setting::ALL {
        let name = setting.name();
        let words = |words: &[&str]| {
            let quoted: Vec<_> = words.iter().map(|it| format!("`{it}`")).collect();
            (quoted.join(", "), format!("Values: {}.", words.join(", ")))
        };
        let (default, (range, commented)) = match setting.kind() {
            SettingKind::Number {
                default,
                min,
                max,
                unit,
            } => {
                let range = format!("{min} to {max}");
                (
                    default.to_string(),
                    (format!("{range} {unit}"), format!("Range: {range}")),
                )
            }
            SettingKind::Choice(choice) => (choice[0].to_owned(), words(choice)),
            SettingKind::Flag { default } => {
                let default = if default { "yes" } else { "no" };
                (default.to_owned(), words(&["yes", "no"]))
            }
            SettingKind::Text { default, len_max } => {
                let range = format!("1 to {len_max} bytes");
                (
                    default.to_owned(),
                    (range.clone(), format!("Range: {range}")),
                )
            }
        };
        has(&format!("\n| `rlock.{name}` | `{default}` | {range}"));
        let line = format!("\nrlock.{name} {default}\n");
        let comment = example.split_once(&line).map(|(before, _)| before);
        let comment = comment.unwrap_or_else(|| panic!("redis.conf.example has no {line}"));
        let comment = comment.rsplit("\n\n").next().unwrap_or_default();
        assert!(
            comment.contains(&commented),
            "{name}: {commented} is not in {comment}"
        );
    }
    let info = server.ask("INFO rlock");
    for field in info.lines().filter_map(|line| line.split_once(':')) {
        has(&format!("\n| `{}` |", field.0));
    }
}

fn are_true(name: &str) {
    let document = document(name);
    let examples = examples(&document);
    assert!(!examples.is_empty(), "{name} has no examples");
    let differences = examples.iter().filter_map(|example| {
        let server = Server::start();
        Example::new(&server).run(example).err()
    });
    let differences = differences.collect::<Vec<_>>();
    assert!(
        differences.is_empty(),
        "{name}, {}",
        differences.join(&format!("\n{name}, "))
    );
}

/// A line of a document, with its number.
type Line<'a> = (usize, &'a str);

/// The fenced blocks that show a terminal.
fn examples(document: &str) -> Vec<Vec<Line<'_>>> {
    let mut lines = document
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line));
    let mut examples = Vec::new();
    while lines.any(|(_, line)| line.starts_with("```")) {
        let block = lines
            .by_ref()
            .take_while(|(_, line)| !line.starts_with("```"));
        let block = block.collect::<Vec<_>>();
        if block.iter().any(|(_, line)| prompt(line).is_some()) {
            examples.push(block);
        }
    }
    examples
}

/// The terminal's letter, and the text after its prompt.
fn prompt(line: &str) -> Option<(char, &str)> {
    let terminal = line.chars().next().filter(char::is_ascii_uppercase)?;
    Some((terminal, line.get(1..)?.strip_prefix("> ")?))
}

/// The time of a line such as `...300 ms later`.
fn pause(line: &str) -> Option<Duration> {
    let millis = line.trim().strip_prefix("...")?.strip_suffix(" ms later")?;
    millis.parse().ok().map(Duration::from_millis)
}

/// The state of a terminal, which decides what a line after its prompt means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TerminalState {
    /// It accepts a command.
    Nothing,
    /// A command waits for its reply, which the next lines show.
    Waiting,
    /// It is subscribed to a channel: the next lines show a message.
    Listening,
}

/// An example while it runs.
struct Example<'a> {
    server: &'a Server,
    terminals: BTreeMap<char, (Client, TerminalState)>,
    comparison: Comparison,
}

impl<'a> Example<'a> {
    fn new(server: &'a Server) -> Self {
        Self {
            server,
            terminals: BTreeMap::new(),
            comparison: Comparison::default(),
        }
    }

    fn run(mut self, lines: &[Line<'_>]) -> Result<(), String> {
        let mut rest = lines;
        while let [(number, line), after @ ..] = rest {
            if let Some(pause) = pause(line) {
                std::thread::sleep(pause);
                rest = after;
                continue;
            }
            let Some((terminal, words)) = prompt(line) else {
                return Err(format!("line {number}: {line}: no terminal shows this"));
            };
            let is_next = |(_, line): &Line<'_>| prompt(line).is_some() || pause(line).is_some();
            let shown = after.iter().position(is_next).unwrap_or(after.len());
            let (shown, next) = after.split_at(shown);
            let shown = shown.iter().map(|(_, line)| *line).collect::<Vec<_>>();
            self.step(terminal, words, shown)
                .map_err(|difference| format!("line {number}: {line}\n{difference}"))?;
            rest = next;
        }
        self.end()
    }

    /// A line with a prompt, and the terminal's lines below it.
    fn step<'b>(
        &mut self,
        terminal: char,
        words: &'b str,
        mut shown: Vec<&'b str>,
    ) -> Result<(), String> {
        if words == "^C" {
            self.close(terminal);
            return Ok(());
        }
        let server = self.server;
        let start = || (server.client(), TerminalState::Nothing);
        let doing = self.terminals.entry(terminal).or_insert_with(start).1;
        if doing != TerminalState::Nothing {
            shown.insert(0, words);
            let reply = self.reply_to(terminal)?;
            if doing == TerminalState::Waiting {
                self.set_state(terminal, TerminalState::Nothing);
            }
            return self.comparison.check("", &shown, &lines_of("", &reply));
        }
        self.assert_silence()?;
        let as_seen = |word: String| self.comparison.fence_for(&word).unwrap_or(word);
        let arguments: Vec<_> = split(words).into_iter().map(as_seen).collect();
        let command = arguments.first().map_or("", String::as_str);
        self.terminals[&terminal].0.send_bytes(&request(&arguments));
        if shown.iter().map(|line| line.trim()).eq(["...blocked"]) {
            self.set_state(terminal, TerminalState::Waiting);
            return self.await_blocked(terminal);
        }
        if command == "SUBSCRIBE" {
            self.set_state(terminal, TerminalState::Listening);
        }
        let reply = self.reply_to(terminal)?;
        self.comparison
            .check(words, &shown, &lines_of(command, &reply))
    }

    fn close(&mut self, terminal: char) {
        if let Some((client, _)) = self.terminals.remove(&terminal) {
            let gone = format!("CLIENT LIST ID {}", client.id());
            client.close();
            eventually("the server sees the end of a connection", || {
                self.server.ask(&gone).trim().is_empty()
            });
        }
    }

    fn set_state(&mut self, terminal: char, doing: TerminalState) {
        if let Some(it) = self.terminals.get_mut(&terminal) {
            it.1 = doing;
        }
    }

    fn reply_to(&self, terminal: char) -> Result<Value, String> {
        let reply = self.terminals[&terminal].0.reply_within(PATIENCE);
        reply.ok_or_else(|| format!("nothing was seen within {PATIENCE:?}"))
    }

    fn await_blocked(&self, terminal: char) -> Result<(), String> {
        let client = &self.terminals[&terminal].0;
        let start = Instant::now();
        while !self.server.is_blocked(client.id()) {
            if let Some(reply) = client.reply_within(Duration::from_millis(5)) {
                return Err(format!("not blocked, but: {}", text(&reply)));
            }
            if start.elapsed() > PATIENCE {
                return Err("neither answered nor blocked".to_owned());
            }
        }
        Ok(())
    }

    /// All replies before the next command must have been shown.
    fn assert_silence(&self) -> Result<(), String> {
        for (name, (client, _)) in &self.terminals {
            if let Some(reply) = client.reply_by_now() {
                return Err(format!("before that, {name} was shown: {}", text(&reply)));
            }
        }
        Ok(())
    }

    /// No terminal still waits, and no terminal received more than is shown.
    fn end(&self) -> Result<(), String> {
        for (name, (client, doing)) in &self.terminals {
            if *doing == TerminalState::Waiting {
                return Err(format!("at the end {name} is still blocked"));
            }
            let last = client.ask("PING");
            if !last.to_lowercase().contains("pong") {
                return Err(format!("at the end {name} was shown: {last}"));
            }
        }
        Ok(())
    }
}

/// The words of a command line; a word with spaces is in double quotes.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}
