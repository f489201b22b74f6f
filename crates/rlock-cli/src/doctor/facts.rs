//! What a master says about itself, as far as the user may ask.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use rlock_client::probe::{Command, Frame, Master, fields};
use rlock_client::{Error, ServerError};

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

/// The rlock clients and this command line cannot lock without these. The
/// arguments change nothing: a lease or an option is invalid, or the owner holds
/// nothing.
const LOCKING: [(&str, &[&str]); 4] = [
    ("RLOCK.ACQUIRE", &[KEY, "doctor", "x"]),
    ("RLOCK.RENEW", &[KEY, "doctor", "x"]),
    ("RLOCK.RELEASE", &[KEY, "doctor", "x"]),
    ("RLOCK.CANCEL", &[KEY, "doctor"]),
];
/// Some need these.
pub(super) const OTHERS: [(&str, &[&str]); 7] = [
    ("RLOCK.DOWNGRADE", &[KEY, "doctor"]),
    ("RLOCK.MACQUIRE", &["doctor", "x", "1", KEY]),
    ("RLOCK.MRENEW", &["doctor", "x", "1", KEY]),
    ("RLOCK.MRELEASE", &["doctor", "1", KEY, "x"]),
    ("RLOCK.INFO", &[KEY]),
    ("RLOCK.LIST", &["COUNT", "x"]),
    ("RLOCK.FORCE", &[KEY]),
];
/// Stands for the key.
const KEY: &str = "{key}";
/// What is missing of the channels.
const CHANNELS: &str = "channels rlock:client:*";

/// What one master has said.
pub(super) struct Facts {
    info: String,
    config: HashMap<String, String>,
    /// None if it is no node of a cluster, too.
    cluster: Option<String>,
    pub(super) clock: Option<Clock>,
    /// The name of the user that asks.
    pub(super) user: Option<String>,
    /// How the user `default` is set up: `on`, `nopass` and others.
    pub(super) default_user: Vec<String>,
    /// What clients need but the user may not use; none without the module.
    pub(super) denied: Option<Vec<&'static str>>,
    /// What was refused, and how the server refused it.
    pub(super) unanswered: Vec<(&'static str, String)>,
}

impl Facts {
    /// A master that says only this.
    #[cfg(test)]
    pub(super) fn of_info(info: &str) -> Self {
        Self {
            info: info.to_owned(),
            config: HashMap::new(),
            cluster: None,
            clock: None,
            user: None,
            default_user: Vec::new(),
            denied: None,
            unanswered: Vec::new(),
        }
    }

    /// A field of `INFO`.
    pub(super) fn info(&self, name: &str) -> Option<&str> {
        value(&self.info, name)
    }

    /// What `INFO` says of each replica.
    pub(super) fn replicas(&self) -> impl Iterator<Item = &str> {
        let replicas = fields(&self.info).filter(|(name, _)| name.starts_with("slave"));
        replicas.map(|(_, value)| value)
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
        self.denied.is_some()
    }

    /// The name and version of the server.
    pub(super) fn server(&self) -> Option<String> {
        let valkey = self.info("valkey_version").map(|it| format!("Valkey {it}"));
        valkey.or_else(|| self.info("redis_version").map(|it| format!("Redis {it}")))
    }

    /// The version of the module: two digits each of 10203 are 1.2.3.
    pub(super) fn module(&self) -> Option<String> {
        let modules = fields(&self.info).filter(|(name, _)| *name == "module");
        let mut own = modules.filter_map(|(_, value)| value.strip_prefix("name=rlock,"));
        let mut facts = own.next()?.split(',');
        let version = facts.find_map(|fact| fact.strip_prefix("ver="))?;
        let version: u64 = version.parse().ok()?;
        let (major, minor) = (version / 10_000, version / 100 % 100);
        Some(format!("{major}.{minor}.{}", version % 100))
    }

    /// The commit that the module was built from, if it is known.
    pub(super) fn commit(&self) -> Option<&str> {
        self.info("rlock_commit").filter(|it| *it != "unknown")
    }
}

fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = fields(info).filter(|(known, _)| *known == name);
    fields.next().map(|(_, value)| value)
}

/// Asks a master for all that the checks want to know.
pub(super) async fn ask(master: &Master) -> Result<Facts, Error> {
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
        denied: Rights::new(master, user.as_deref())
            .denied(cluster.is_some())
            .await?,
        info,
        config,
        cluster,
        user,
        default_user: default_user.unwrap_or_default(),
        unanswered: questions.unanswered,
    })
}

/// A master, and what it refused.
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

/// Finds out what a user may not use.
struct Rights<'a> {
    master: &'a Master,
    /// Whose rights `ACL DRYRUN` tells; none if it cannot be used.
    user: Option<&'a str>,
}

impl<'a> Rights<'a> {
    fn new(master: &'a Master, user: Option<&'a str>) -> Self {
        Self { master, user }
    }

    /// None if the server does not know the commands.
    ///
    /// Rights to keys are not examined, because the keys in use are unknown.
    async fn denied(mut self, is_cluster: bool) -> Result<Option<Vec<&'static str>>, Error> {
        let mut denied = Vec::new();
        let key = format!("rlock-doctor:{}", uuid::Uuid::new_v4());
        for (name, arguments) in LOCKING.into_iter().chain(OTHERS) {
            let arguments = arguments
                .iter()
                .map(|it| if *it == KEY { &*key } else { *it });
            let arguments: Vec<_> = arguments.collect();
            match self.refusal(name, &arguments).await? {
                Some(text) if is_unknown_command(&text) => return Ok(None),
                Some(text) if text.contains(" to run ") => denied.push(name),
                _ => {}
            }
        }
        let subscribe = match is_cluster {
            true => "SSUBSCRIBE",
            false => "SUBSCRIBE",
        };
        match self
            .refusal(subscribe, &["rlock:client:{0}:doctor"])
            .await?
        {
            Some(text) if text.contains(" to run ") => denied.push(subscribe),
            Some(text) if text.contains("channel") => denied.push(CHANNELS),
            _ => {}
        }
        Ok(Some(denied))
    }

    /// Why the server would not run the command, if it would not.
    ///
    /// `ACL DRYRUN` leaves no entry in `ACL LOG`. A user without that right sends
    /// the command itself, in a form that changes nothing: a server looks at
    /// rights first.
    async fn refusal(&mut self, name: &str, arguments: &[&str]) -> Result<Option<String>, Error> {
        if let Some(user) = self.user {
            let words: Vec<_> = [user, name]
                .into_iter()
                .chain(arguments.iter().copied())
                .collect();
            let answer = self.master.ask(&command("ACL DRYRUN", &words)).await?;
            match answer {
                Frame::Error(error) if is_unknown_command(&error.message) => {
                    return Ok(Some(error.message));
                }
                Frame::Error(_) => self.user = None,
                Frame::Simple(_) => return Ok(None),
                text => return Ok(text.into_text()),
            }
        }
        Ok(match self.master.ask(&command(name, arguments)).await? {
            Frame::Error(error)
                if is_about_rights(&error) || is_unknown_command(&error.message) =>
            {
                Some(error.message)
            }
            _ => None,
        })
    }
}

/// As a command says of itself, and as `ACL DRYRUN` does.
fn is_unknown_command(text: &str) -> bool {
    text.contains("unknown command") || text.starts_with("Command '") && text.contains("not found")
}

fn is_about_rights(error: &ServerError) -> bool {
    error.code == "NOPERM"
}

/// A look at a clock that is under way.
struct Reading {
    wall: SystemTime,
    began: Instant,
}

/// How a server's clock compares to this machine's.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) difference: Duration,
    pub(super) is_ahead: bool,
    /// The difference may be larger or smaller by this.
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
    /// With the reply to `TIME`: seconds since 1970, and microseconds. The
    /// server has looked at its clock at some moment between both ends.
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
