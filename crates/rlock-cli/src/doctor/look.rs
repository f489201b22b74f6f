//! What a master says about itself, as far as the user may ask.

use std::collections::HashMap;

use rlock_client::Error;
use rlock_client::probe::{Command, Frame, Master};

use super::clock::Clock;
use super::rights;

/// How often the clock is asked for: the quickest answer is the most precise.
const CLOCK_LOOKS: usize = 5;

/// What is asked for by `CONFIG GET`.
const SETTINGS: [&str; 12] = [
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "timeout",
    "tcp-keepalive",
    "maxclients",
    "protected-mode",
    "bind",
    "port",
    "rlock.*",
];

/// What one master has said.
pub(super) struct Facts {
    info: String,
    config: HashMap<String, String>,
    /// None if it is no node of a cluster, too.
    pub(super) cluster: Option<String>,
    pub(super) clock: Option<Clock>,
    /// The name of the user that asks.
    pub(super) user: Option<String>,
    /// How the user `default` is set up: `on`, `nopass` and others.
    pub(super) default_user: Vec<String>,
    /// What the user may not use of what clients need; none without the module.
    pub(super) denied: Option<Vec<&'static str>>,
    /// What was asked for in vain, and how the server refused it.
    pub(super) unanswered: Vec<(&'static str, String)>,
}

impl Facts {
    /// A field of `INFO`.
    pub(super) fn info(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ str| line.strip_prefix(name)?.strip_prefix(':').map(str::len);
        let line = self.info.lines().find(|line| value(line).is_some())?;
        line.get(name.len() + 1..)
    }

    /// All values of a field that `INFO` has several of.
    pub(super) fn all<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.info
            .lines()
            .filter(move |line| line.starts_with(prefix))
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.info(name)?.trim().parse().ok()
    }

    /// A setting.
    pub(super) fn config(&self, name: &str) -> Option<&str> {
        self.config.get(name).map(String::as_str)
    }

    pub(super) fn setting(&self, name: &str) -> Option<u64> {
        self.config(name)?.parse().ok()
    }

    pub(super) fn has_module(&self) -> bool {
        self.denied.is_some()
    }
}

/// Asks a master for all that the checks want to know.
pub(super) async fn at(master: &Master) -> Result<Facts, Error> {
    let mut questions = Questions {
        master,
        unanswered: Vec::new(),
    };
    let info = questions.ask("INFO", &["everything"]).await?;
    let info = info.and_then(Frame::into_text).unwrap_or_default();
    let config = questions.ask("CONFIG GET", &SETTINGS).await?;
    let config = config.and_then(pairs).unwrap_or_default();
    let cluster = match info.contains("\ncluster_enabled:1") {
        true => questions.ask("CLUSTER INFO", &[]).await?,
        false => None,
    };
    let cluster = cluster.and_then(Frame::into_text);
    let user = questions.ask("ACL WHOAMI", &[]).await?;
    let user = user.and_then(Frame::into_text);
    let default_user = questions.ask("ACL GETUSER", &["default"]).await?;
    let default_user = default_user
        .as_ref()
        .and_then(|user| texts(user.field("flags")?));
    Ok(Facts {
        clock: questions.clock().await?,
        denied: rights::denied(master, cluster.is_some()).await?,
        info,
        config,
        cluster,
        user,
        default_user: default_user.unwrap_or_default(),
        unanswered: questions.unanswered,
    })
}

/// A master, and what it was asked for in vain.
struct Questions<'a> {
    master: &'a Master,
    unanswered: Vec<(&'static str, String)>,
}

impl Questions<'_> {
    /// The answer; none, which is noted, if the server refuses it.
    async fn ask(
        &mut self,
        question: &'static str,
        arguments: &[&str],
    ) -> Result<Option<Frame>, Error> {
        match self.master.ask(&command(question, arguments)).await? {
            Frame::Error(error) => {
                self.unanswered.push((question, error.code));
                Ok(None)
            }
            answer => Ok(Some(answer)),
        }
    }

    async fn clock(&mut self) -> Result<Option<Clock>, Error> {
        let mut best: Option<Clock> = None;
        for _ in 0..CLOCK_LOOKS {
            let reading = Clock::begin();
            let time = self.ask("TIME", &[]).await?;
            let Some(time) = time.as_ref().and_then(seconds_and_micros) else {
                return Ok(None);
            };
            let clock = reading.end(time);
            if best.as_ref().is_none_or(|best| clock.is_closer_than(best)) {
                best = Some(clock);
            }
        }
        Ok(best)
    }
}

fn command(question: &str, arguments: &[&str]) -> Command {
    let mut words = question.split(' ').chain(arguments.iter().copied());
    let mut command = Command::new(words.next().unwrap_or_default());
    for word in words {
        command.arg(word);
    }
    command
}

/// Names and values.
fn pairs(answer: Frame) -> Option<HashMap<String, String>> {
    let Frame::Map(pairs) = answer else {
        return None;
    };
    let pairs = pairs.into_iter();
    let pairs = pairs.map(|(name, value)| Some((name.into_text()?, value.into_text()?)));
    pairs.collect()
}

fn texts(answer: &Frame) -> Option<Vec<String>> {
    let texts = answer.as_list()?.iter().cloned();
    texts.map(Frame::into_text).collect()
}

fn seconds_and_micros(answer: &Frame) -> Option<(u64, u64)> {
    let texts = texts(answer)?;
    let [seconds, micros] = texts.as_slice() else {
        return None;
    };
    Some((seconds.parse().ok()?, micros.parse().ok()?))
}
