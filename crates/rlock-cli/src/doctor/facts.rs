//! The facts about a master, as far as the user may ask.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use rlock_client::Error;
use rlock_client::probe::{Frame, Master, fields};

use super::questions::{Questions, command};
use super::rights::{Rights, rights};

/// How often to read the clock.
const CLOCK_READINGS: usize = 5;

/// The settings that `CONFIG GET` asks for.
const SETTINGS: [&str; 11] = [
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
    "rlock.*",
];

/// The facts about one master.
pub(super) struct Facts {
    info: String,
    config: HashMap<String, String>,
    /// None without a cluster, or without the right to ask.
    cluster: Option<String>,
    pub(super) clock: Option<Clock>,
    /// The name of the user that asks.
    pub(super) user: Option<String>,
    /// The flags of the user `default`: `on`, `nopass` and others.
    pub(super) default_user: Vec<String>,
    /// The user's rights to lock; none without the module.
    pub(super) rights: Option<Rights>,
    /// The refused questions, each with the code of the error.
    pub(super) unanswered: Vec<(&'static str, String)>,
}

impl Facts {
    /// A field of `INFO`.
    pub(super) fn info(&self, name: &str) -> Option<&str> {
        value(&self.info, name)
    }

    /// The line of each replica in `INFO`.
    pub(super) fn replicas(&self) -> impl Iterator<Item = &str> {
        let replicas = fields(&self.info).filter(|(name, _)| name.starts_with("slave"));
        replicas.map(|(_, value)| value)
    }

    /// The address of each replica in `INFO`.
    pub(super) fn replica_addresses(&self) -> impl Iterator<Item = (&str, u16)> {
        self.replicas().filter_map(|replica| {
            let field = |name| replica.split(',').find_map(|it| it.strip_prefix(name));
            Some((field("ip=")?, field("port=")?.parse().ok()?))
        })
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.info(name)?.parse().ok()
    }

    /// A field of `CLUSTER INFO`.
    pub(super) fn cluster(&self, name: &str) -> Option<&str> {
        value(self.cluster.as_deref()?, name)
    }

    /// A setting.
    pub(super) fn config(&self, name: &str) -> Option<&str> {
        self.config.get(name).map(String::as_str)
    }

    pub(super) fn setting(&self, name: &str) -> Option<u64> {
        self.config(name)?.parse().ok()
    }

    pub(super) fn has_module(&self) -> bool {
        self.rights.is_some()
    }

    /// The name and version of the server.
    pub(super) fn server(&self) -> Option<String> {
        let valkey = self.info("valkey_version").map(|it| format!("Valkey {it}"));
        valkey.or_else(|| self.info("redis_version").map(|it| format!("Redis {it}")))
    }

    /// The version of the module: the number 10203 is 1.2.3.
    pub(super) fn module(&self) -> Option<String> {
        let modules = fields(&self.info).filter(|(name, _)| *name == "module");
        let mut own = modules.filter_map(|(_, value)| value.strip_prefix("name=rlock,"));
        let mut facts = own.next()?.split(',');
        let version = facts.find_map(|fact| fact.strip_prefix("ver="))?;
        let version: u64 = version.parse().ok()?;
        let (major, minor) = (version / 10_000, version / 100 % 100);
        Some(format!("{major}.{minor}.{}", version % 100))
    }

    /// The version and commit of the module; none if `INFO` does not show them.
    pub(super) fn build(&self) -> Option<String> {
        build_in(&self.info)
    }
}

fn build_in(info: &str) -> Option<String> {
    let field = |name| value(info, name);
    let (version, commit) = (field("rlock_version")?, field("rlock_commit")?);
    Some(format!("{version} ({commit})"))
}

/// The build of the module at a replica; none if it does not say.
pub(super) async fn build_at(replica: &Master) -> Option<String> {
    let mut questions = Questions::new(replica).await.ok()?;
    let info = questions.ask("INFO", &["everything"]).await.ok()??;
    let info = info.into_text()?;
    Some(build_in(&info).unwrap_or_else(|| "no module".to_owned()))
}

fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = fields(info).filter(|(known, _)| *known == name);
    fields.next().map(|(_, value)| value)
}

/// Asks a master for everything that the checks need.
pub(super) async fn ask(master: &Master) -> Result<Facts, Error> {
    let mut questions = Questions::new(master).await?;
    let info = questions.ask("INFO", &["everything"]).await?;
    let info = info.and_then(Frame::into_text).unwrap_or_default();
    let config = questions.ask("CONFIG GET", &SETTINGS).await?;
    let config = config.and_then(pairs).unwrap_or_default();
    let is_cluster = info.contains("\ncluster_enabled:1");
    let cluster = match is_cluster {
        true => questions.ask("CLUSTER INFO", &[]).await?,
        false => None,
    };
    let default_user = questions.ask("ACL GETUSER", &["default"]).await?;
    let default_user = default_user
        .as_ref()
        .and_then(|user| texts(user.field("flags")?));
    Ok(Facts {
        clock: clock(&mut questions).await?,
        rights: rights(&questions, is_cluster).await?,
        info,
        config,
        cluster: cluster.and_then(Frame::into_text),
        default_user: default_user.unwrap_or_default(),
        user: questions.user,
        unanswered: questions.unanswered,
    })
}

/// The master's clock: the quickest of several answers is the most precise.
async fn clock(questions: &mut Questions<'_>) -> Result<Option<Clock>, Error> {
    if questions.ask("TIME", &[]).await?.is_none() {
        return Ok(None);
    }
    let mut best: Option<Clock> = None;
    for _ in 0..CLOCK_READINGS {
        let reading = Clock::begin();
        let time = questions.master.ask(&command(&["TIME"])).await?;
        let Some(time) = seconds_and_micros(&time) else {
            return Ok(None);
        };
        let clock = reading.end(time);
        if best.as_ref().is_none_or(|best| clock.is_closer_than(best)) {
            best = Some(clock);
        }
    }
    Ok(best)
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

/// A reading of the server's clock that has begun.
struct Reading {
    wall: SystemTime,
    began: Instant,
}

/// The difference between a server's clock and this machine's.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) difference: Duration,
    pub(super) is_ahead: bool,
    /// The difference may be this much larger or smaller.
    pub(super) uncertainty: Duration,
}

impl Clock {
    fn begin() -> Reading {
        Reading {
            wall: SystemTime::now(),
            began: Instant::now(),
        }
    }

    fn is_closer_than(&self, other: &Self) -> bool {
        self.uncertainty < other.uncertainty
    }
}

impl Reading {
    /// Ends the reading with the reply to `TIME`: seconds since 1970, and
    /// microseconds. The server read its clock between the beginning and the
    /// end.
    fn end(self, (seconds, micros): (u64, u64)) -> Clock {
        let uncertainty = self.began.elapsed() / 2;
        let here = self.wall + uncertainty;
        let there =
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
        let ahead = there.duration_since(here);
        Clock {
            is_ahead: ahead.is_ok(),
            difference: ahead.unwrap_or_else(|behind| behind.duration()),
            uncertainty,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(offset: i64) -> Clock {
        let reading = Clock::begin();
        let now = reading.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let seconds = now.as_secs().checked_add_signed(offset).unwrap();
        reading.end((seconds, now.subsec_micros().into()))
    }

    #[test]
    fn a_clock_is_ahead_or_behind_by_so_much() {
        let near = |clock: &Clock, seconds: u64| {
            let off = clock.difference.abs_diff(Duration::from_secs(seconds));
            off <= clock.uncertainty + Duration::from_millis(1)
        };
        let (ahead, behind) = (clock(3600), clock(-60));
        assert!(ahead.is_ahead && near(&ahead, 3600), "{ahead:?}");
        assert!(!behind.is_ahead && near(&behind, 60), "{behind:?}");
        assert!(near(&clock(0), 0));
    }
}
