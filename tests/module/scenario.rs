//! Runs the scenario files on a real server, in real time.
//!
//! A machine may stall for longer than the time between two steps of a scenario. A run that differs from its file
//! counts only if each step was in time. Otherwise it is repeated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;

use crate::rendering::{Rendering, agree};
use rlock_testkit::Server;
use rlock_testkit::client::{Client, PATIENCE, Subscriber, eventually};
use rlock_testkit::script::{Step, steps};

/// The largest delay of a step: scenarios leave at least 40 ms around each deadline.
const LATE: Duration = Duration::from_millis(20);
const ATTEMPTS: usize = 20;
/// How long the expected result of a step may take. If it is late, later steps are late too.
const ARRIVAL: Duration = Duration::from_secs(5);

/// The commands of the module, which scenarios name without their prefix.
const OURS: [&str; 11] = [
    "ACQUIRE",
    "RENEW",
    "RELEASE",
    "CANCEL",
    "DOWNGRADE",
    "FORCE",
    "MACQUIRE",
    "MRENEW",
    "MRELEASE",
    "INFO",
    "LIST",
];

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// Runs a file until it agrees with the server, or disagrees in a run without delays.
fn holds(path: &Path) -> Result<(), String> {
    let name = path.file_name().unwrap_or_default().display();
    let script = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let steps = steps(&script).map_err(|error| format!("{name}:{error}"))?;
    if steps.is_empty() {
        return Err(format!("{name} has no steps"));
    }
    let mut attempt = 1;
    loop {
        let server = Server::start();
        let mut run = Run::new(&server);
        match steps.iter().try_for_each(|step| run.check(step)) {
            Err(_) if run.late && attempt < ATTEMPTS => attempt += 1,
            done => return done.map_err(|difference| format!("{name}, {difference}")),
        }
    }
}

/// One run of a scenario.
struct Run<'a> {
    server: &'a Server,
    start: Instant,
    late: bool,
    clients: BTreeMap<String, Client>,
    subscriber: Subscriber,
    rendering: Rendering,
}

impl<'a> Run<'a> {
    fn new(server: &'a Server) -> Self {
        let mut subscriber = server.listen_to_unlocks();
        subscriber.change("PSUBSCRIBE", "rlock:value:*");
        Self {
            server,
            subscriber,
            clients: BTreeMap::new(),
            rendering: Rendering::default(),
            late: false,
            start: Instant::now(),
        }
    }

    /// Carries out the step, and compares the result with its expectation.
    fn check(&mut self, step: &Step) -> Result<(), String> {
        let at = Duration::from_millis(step.at_ms);
        std::thread::sleep(at.saturating_sub(self.start.elapsed()));
        self.client(&step.client);
        self.note_delay(at);
        let mut seen = Vec::from_iter(self.perform(step));
        self.note_delay(at);
        let has_reply = seen.len();
        let due = Instant::now() + ARRIVAL;
        let missing = step.expected.len().saturating_sub(has_reply);
        let (mut replies, mut messages) = (Vec::new(), Vec::new());
        loop {
            self.collect(&mut replies, &mut messages);
            if replies.len() + messages.len() >= missing || Instant::now() > due {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if missing == 0 {
            // All effects that are visible by now may have happened since the step.
            self.note_delay(at);
        }
        seen.append(&mut self.outcomes(replies, &messages));
        if agree(&step.expected, &seen, has_reply) {
            return Ok(());
        }
        let (expected, seen) = (step.expected.join("\n  "), seen.join("\n  "));
        Err(format!(
            "line {}: {:?}\nexpected:\n  {expected}\nseen:\n  {seen}",
            step.line, step.command
        ))
    }

    fn note_delay(&mut self, at: Duration) {
        self.late |= self.start.elapsed() > at + LATE;
    }

    fn client(&mut self, name: &str) -> &Client {
        self.clients
            .entry(name.to_owned())
            .or_insert_with(|| self.server.client())
    }

    /// Carries out the command of a step, and returns its reply, if it has one.
    fn perform(&mut self, step: &Step) -> Option<String> {
        let mut arguments = step.command.clone();
        for argument in &mut arguments {
            if let Some(fence) = self.rendering.argument(argument) {
                *argument = fence;
            }
        }
        match arguments.first()?.as_str() {
            "CLOSE" => {
                let client = self.clients.remove(&step.client)?;
                let gone = format!("CLIENT LIST ID {}", client.id());
                client.close();
                eventually("the server sees the end of a connection", || {
                    self.server.ask(&gone).trim().is_empty()
                });
                return None;
            }
            "LISTEN" => self.subscriber.change("SUBSCRIBE", &arguments[1]),
            "SLISTEN" => self.subscriber.change("SSUBSCRIBE", &arguments[1]),
            "UNLISTEN" => self.subscriber.change("UNSUBSCRIBE", &arguments[1]),
            "CONFIG" => arguments[2].insert_str(0, "rlock."),
            command if OURS.contains(&command) => arguments[0].insert_str(0, "RLOCK."),
            _ => {}
        }
        if arguments[0].ends_with("LISTEN") {
            return None;
        }
        self.client(&step.client)
            .send_bytes(&rlock_testkit::client::request(&arguments));
        let reply = self.reply_or_block(&step.client);
        Some(reply.map_or_else(
            || "blocked".to_owned(),
            |reply| self.rendering.reply(&arguments[0], &reply),
        ))
    }

    /// The reply; none once the server has blocked the connection.
    fn reply_or_block(&self, client: &str) -> Option<Value> {
        let client = &self.clients[client];
        let start = Instant::now();
        loop {
            if let Some(reply) = client.reply_within(Duration::from_millis(5)) {
                return Some(reply);
            }
            if self.server.is_blocked(client.id()) {
                return None;
            }
            assert!(start.elapsed() < PATIENCE, "neither answered nor blocked");
        }
    }

    /// Takes the messages that other clients have received since the last call. Connections may read the messages of
    /// one turn in any order.
    fn collect(&mut self, replies: &mut Vec<(String, Value)>, messages: &mut Vec<String>) {
        self.server.ask("PING");
        let arrived = self
            .clients
            .iter()
            .filter_map(|(name, client)| Some((name.clone(), client.reply_by_now()?)));
        replies.extend(arrived);
        messages.append(&mut self.subscriber.messages());
    }

    /// The effects on other clients, as text.
    fn outcomes(&mut self, mut arrived: Vec<(String, Value)>, messages: &[String]) -> Vec<String> {
        let mut lines = Vec::new();
        // Fences identify grants, so they must be numbered in that order.
        arrived.sort_by_key(|(_, reply)| {
            if let Value::Int(fence) = reply {
                *fence
            } else {
                0
            }
        });
        for (name, reply) in arrived {
            lines.push(format!(
                "{name}: {}",
                self.rendering.reply("RLOCK.ACQUIRE", &reply)
            ));
        }
        for message in messages {
            lines.push(self.rendering.message(message));
        }
        lines
    }
}

/// The number of scenarios that run at a time; they mostly sleep.
const AT_A_TIME: usize = 4;

#[test]
fn servers_do_what_the_scenarios_say() {
    let files = std::fs::read_dir(directory()).expect("there are scenarios");
    let paths = files.flatten().map(|file| file.path());
    let scenarios = paths.filter(|path| path.extension().is_some_and(|end| end == "txt"));
    let scenarios = Mutex::new(scenarios.collect::<Vec<_>>());
    assert!(!lock(&scenarios).is_empty(), "there are no scenarios");
    let differences = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(path) = next(&scenarios) {
                    if let Err(difference) = holds(&path) {
                        lock(&differences).push(difference);
                    }
                }
            });
        }
    });
    let differences = lock(&differences);
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

fn next(scenarios: &Mutex<Vec<PathBuf>>) -> Option<PathBuf> {
    lock(scenarios).pop()
}

/// Data shared by several threads; if a thread has panicked, the test fails anyway.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
