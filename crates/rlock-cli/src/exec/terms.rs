//! The options of `exec`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rlock_client::{Error, Terms};

use crate::duration;

/// Both forms; the second line stands below the first in `Usage: `.
const USAGE: &str = "\
rlock exec [OPTIONS] <KEY> -- <COMMAND> [ARGS]...
       rlock exec [OPTIONS] <KEY> --shell <STRING>";

/// Runs a command while holding a lock
///
/// The command finds the lock's fencing token in RLOCK_FENCE, its key in
/// RLOCK_KEY and the owner in RLOCK_OWNER. Its exit code is passed on, and
/// signals are passed on to it. If the lock is lost, the command is ended.
/// On Linux it is killed if rlock is killed.
///
/// A DURATION has a unit, for example 500ms, 30s or 1h 30m; without one it is
/// seconds.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(crate) struct Exec {
    /// The lock.
    key: OsString,

    /// How long to wait for the lock; 0 does not wait [default: without limit]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::from_zero)]
    wait: Option<Duration>,

    /// Does not wait: as `--wait 0`.
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    at_once: bool,

    /// How long the lock outlives rlock, should it be killed or cut off; it is
    /// renewed every third of it.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::from_millisecond)]
    lease: Duration,

    /// Leaves the lock taken until this long after its grant, also if the command
    /// ends at once or rlock is killed; the lease is at least as long then.
    #[arg(long, value_name = "DURATION", value_parser = duration::from_millisecond)]
    at_least: Option<Duration>,

    /// Shares the lock with others who share it.
    #[arg(short, long)]
    shared: bool,

    /// Shares the lock, but only while at most this many permits are taken,
    /// from 1 to 1000000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: Option<u32>,

    /// How many permits to take, from 1 to the limit.
    #[arg(long, value_name = "K", requires = "limit", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    permits: u32,

    /// Binds the lock to rlock's connection: when that ends, the lock ends this
    /// much later, if its lease does not end before.
    #[arg(long, value_name = "DURATION", conflicts_with = "at_least")]
    #[arg(value_parser = duration::from_zero)]
    bind: Option<Duration>,

    /// Takes the lock only if this many replicas of the server have said that
    /// they know of it.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "bind")]
    replicas: u16,

    /// Holds the lock on a majority of these servers: three, five, seven or nine
    /// masters that know nothing of each other, instead of on that of --url.
    #[arg(long, value_name = "URL,URL,URL", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["shared", "limit", "bind", "replicas"])]
    quorum: Vec<String>,

    /// How long a command has to end by itself after the lock is lost, before
    /// it is killed.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::from_zero)]
    kill_after: Duration,

    /// The exit code if the lock is not granted within the wait.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 124)]
    conflict_exit_code: u8,

    /// Runs this by the shell (`sh -c`), instead of a command.
    #[arg(short = 'c', long, value_name = "STRING", conflicts_with = "command")]
    shell: Option<OsString>,

    /// The command and its arguments.
    #[arg(last = true, required_unless_present = "shell", value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How the lock is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Exclusive,
    Shared,
    Permits { limit: u32, permits: u32 },
}

impl Exec {
    pub(super) fn key(&self) -> &OsStr {
        &self.key
    }

    /// The key for people: bytes that are no UTF-8 are replaced.
    pub(super) fn key_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.key.as_bytes())
    }

    /// How long to wait for the lock; `None` is without limit.
    pub(super) fn wait(&self) -> Option<Duration> {
        if self.at_once {
            Some(Duration::ZERO)
        } else {
            self.wait
        }
    }

    /// How long the lock outlives rlock, if that is killed.
    pub(super) fn lease(&self) -> Duration {
        self.at_least
            .map_or(self.lease, |least| self.lease.max(least))
    }

    /// How long the lock stays taken from its grant on at least.
    pub(super) fn at_least(&self) -> Option<Duration> {
        self.at_least
    }

    pub(super) fn kill_after(&self) -> Duration {
        self.kill_after
    }

    /// On which terms the lock is asked for.
    pub(super) fn terms(&self) -> Result<Terms, Error> {
        let terms = Terms::new().lease(self.lease())?.replicas(self.replicas)?;
        match self.bind {
            Some(grace) => terms.bound(grace),
            None => Ok(terms),
        }
    }

    /// The servers of which a majority is to hold the lock; none if it is one
    /// server's.
    pub(crate) fn quorum(&self) -> &[String] {
        &self.quorum
    }

    pub(super) fn kind(&self) -> Kind {
        match self.limit {
            Some(limit) => Kind::Permits {
                limit,
                permits: self.permits,
            },
            None if self.shared => Kind::Shared,
            None => Kind::Exclusive,
        }
    }

    pub(super) fn conflict_exit_code(&self) -> u8 {
        self.conflict_exit_code
    }

    /// The program and its arguments.
    pub(super) fn command(&self) -> (&OsStr, Vec<&OsStr>) {
        if let Some(text) = &self.shell {
            return (OsStr::new("sh"), vec![OsStr::new("-c"), text]);
        }
        let mut words = self.command.iter().map(|word| &**word);
        let program = words.next().unwrap_or_default();
        (program, words.collect())
    }
}
