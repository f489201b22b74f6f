//! `rlock exec`: runs a command while a lock is held.
//!
//! It acquires the lock, runs the command, and releases the lock when the
//! command ends. If something ends this early, rlock leaves the queue or
//! releases the lock before it exits.

mod child;
mod renewals;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use rlock_client::{Client, Error, Guard, Held, Loss, Quorum, Terms};
use serde_json::json;

use crate::address::{Address, Place};
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::readable::{from_millisecond, from_zero, key, lease, printable};
use crate::signals::{Received, Signals};

use child::Child;
use renewals::Renewals;

/// The limit for releases and withdrawals that still run at the end.
const CLEANUP_MAX: Duration = Duration::from_secs(2);
/// The limit for connecting is at least this, even if the wait is shorter.
const CONNECT_MIN: Duration = Duration::from_secs(1);
/// The limit for the question who holds a lock that was not granted.
const HOLDER_MAX: Duration = Duration::from_secs(1);

/// The pauses before a new campaign begin with this, and double each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a new campaign. There is none after a leadership
/// that lasted this long.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The default exit code if the lock is not granted within the wait.
const NOT_GRANTED: u8 = 124;

/// Both forms. The second line is indented like the first behind `Usage: `.
const USAGE: &str = "\
rlock exec [OPTIONS] <KEY> -- <COMMAND> [ARGS]...
       rlock exec [OPTIONS] <KEY> --shell <STRING>";

/// Runs a command while holding a lock
///
/// The command's environment has the fencing token in RLOCK_FENCE, the key in
/// RLOCK_KEY and the owner in RLOCK_OWNER. rlock passes signals on to the
/// command, and exits with its exit code. If the lock is lost, rlock ends the
/// command. On Linux the command is killed if rlock is killed.
///
/// A DURATION has a unit, for example 500ms, 30s or 1h 30m. A number without a
/// unit means seconds.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(crate) struct Exec {
    /// The lock.
    #[arg(value_parser = OsStringValueParser::new().try_map(key))]
    key: OsString,

    /// How long to wait for the lock; 0 does not wait [default: without limit]
    #[arg(short, long, value_name = "DURATION", value_parser = from_zero)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: the same as `--wait 0`.
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    at_once: bool,

    /// How long the lock outlives rlock if rlock is killed or loses its
    /// connection. rlock renews the lock every third of this time.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    lease: Duration,

    /// Keep the lock for at least this long after its grant, even if the
    /// command ends at once or rlock is killed; the lease is then at least this
    /// long.
    #[arg(long, value_name = "DURATION", value_parser = from_millisecond)]
    at_least: Option<Duration>,

    /// Share the lock with other shared requests.
    #[arg(short, long, conflicts_with = "limit")]
    shared: bool,

    /// Use the lock as a semaphore: several holders share it, and together
    /// take at most N permits, from 1 to 1000000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: Option<u32>,

    /// How many of the permits of --limit to take, from 1 to N.
    #[arg(long, value_name = "K", requires = "limit", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    permits: u32,

    /// Bind the lock to rlock's connection: when the connection ends, the lock
    /// ends this much later, unless the lease ends first.
    #[arg(long, value_name = "DURATION", conflicts_with = "at_least")]
    #[arg(value_parser = from_zero)]
    pub(crate) bind: Option<Duration>,

    /// Take the lock only if this many replicas of the server
    /// have acknowledged it.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "bind")]
    replicas: u16,

    /// Hold the lock on a majority of these servers instead of
    /// the server of --url: three, five, seven or nine independent masters.
    #[arg(long, value_name = "URL,URL,URL", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["shared", "limit", "bind", "replicas"])]
    quorum: Vec<String>,

    /// Treat the lock as lost this much before others can have it, so that the
    /// command has time to end. At most a third of --lease and of --bind.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = from_zero)]
    margin: Duration,

    /// How long the command has to end by itself after a loss before
    /// it is killed.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = from_zero)]
    pub(crate) kill_after: Duration,

    /// The exit code if the lock is not granted within the wait;
    /// with 0 rlock then prints nothing.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = NOT_GRANTED)]
    conflict_exit_code: u8,

    /// Run this string with the shell (`sh -c`) instead of a command.
    #[arg(short = 'c', long, value_name = "STRING", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,

    /// The command and its arguments.
    #[arg(last = true, required_unless_present = "shell", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,

    /// The value that `rlock elect` publishes with the lock.
    #[arg(skip)]
    pub(crate) value: Option<OsString>,

    /// Whether to wait again after a loss, for `rlock elect`.
    #[arg(skip)]
    pub(crate) again: bool,
}

/// How to hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exclusive,
    Shared,
    Permits { limit: u32, permits: u32 },
}

impl Exec {
    /// A command line with only these arguments.
    pub(crate) fn new(key: OsString, lease: Duration) -> Self {
        Self {
            key,
            lease,
            wait: None,
            at_once: false,
            at_least: None,
            shared: false,
            limit: None,
            permits: 1,
            bind: None,
            replicas: 0,
            margin: Duration::ZERO,
            quorum: Vec::new(),
            kill_after: Duration::ZERO,
            conflict_exit_code: NOT_GRANTED,
            shell: None,
            command: Vec::new(),
            value: None,
            again: false,
        }
    }

    fn key(&self) -> &OsStr {
        &self.key
    }

    /// The key for people: bytes that are not UTF-8 are replaced.
    fn key_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.key.as_bytes())
    }

    /// How long to wait for the lock; `None` is without limit.
    fn wait(&self) -> Option<Duration> {
        if self.at_once {
            Some(Duration::ZERO)
        } else {
            self.wait
        }
    }

    /// How long the lock outlives rlock if rlock is killed.
    fn lease(&self) -> Duration {
        self.at_least
            .map_or(self.lease, |least| self.lease.max(least))
    }

    /// How long the lock stays taken after its grant, at least.
    fn at_least(&self) -> Option<Duration> {
        self.at_least
    }

    fn kill_after(&self) -> Duration {
        self.kill_after
    }

    /// The terms of the request.
    fn terms(&self) -> Result<Terms, Error> {
        let terms = Terms::new().lease(self.lease())?.replicas(self.replicas)?;
        let terms = terms.margin(self.margin)?;
        match self.bind {
            Some(grace) => terms.bound(grace),
            None => Ok(terms),
        }
    }

    /// The servers of a quorum; empty if one server has the lock.
    pub(crate) fn quorum(&self) -> &[String] {
        &self.quorum
    }

    fn kind(&self) -> Kind {
        match self.limit {
            Some(limit) => Kind::Permits {
                limit,
                permits: self.permits,
            },
            None if self.shared => Kind::Shared,
            None => Kind::Exclusive,
        }
    }

    fn conflict_exit_code(&self) -> u8 {
        self.conflict_exit_code
    }

    /// The program and its arguments.
    fn command(&self) -> (&OsStr, Vec<&OsStr>) {
        if let Some(text) = &self.shell {
            return (OsStr::new("sh"), vec![OsStr::new("-c"), text]);
        }
        let mut words = self.command.iter().map(|word| &**word);
        let program = words.next().unwrap_or_default();
        (program, words.collect())
    }
}

/// Runs the command; its exit code, or rlock's own.
pub(crate) async fn run(exec: &Exec, address: &Address, output: Output) -> Result<u8, Failure> {
    let execution = Execution {
        exec,
        address,
        output,
    };
    Renewals::show(output);
    let mut signals =
        Signals::listen().map_err(|error| Failure::internal("cannot take signals", &error))?;
    let begun = Instant::now();
    let servers = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(execution.interrupted(signal)),
        servers = execution.connect() => servers?,
    };
    let mut wait = exec.wait().map(|wait| wait.saturating_sub(begun.elapsed()));
    let mut pause = Duration::ZERO;
    let outcome = loop {
        match execution.under_lock(&servers, wait, &mut signals).await {
            Ok(End::Lost { after, .. }) if exec.again => {
                pause = pause_after(after, pause);
                tokio::select! {
                    biased;
                    signal = signals.ending() => break Ok(execution.interrupted(signal)),
                    () = tokio::time::sleep(pause) => wait = exec.wait(),
                }
            }
            Ok(End::Lost { .. }) => break Ok(Code::Lost.number()),
            Ok(End::Exited(code)) => break Ok(code),
            Err(failure) => break Err(failure),
        }
    };
    // Dropped calls and guards may have left requests to withdraw.
    let _ = tokio::time::timeout(CLEANUP_MAX, servers.flush()).await;
    outcome
}

/// The pause before a new campaign if the leadership was lost after `held` and
/// the last pause was `last`.
fn pause_after(held: Duration, last: Duration) -> Duration {
    match held >= PAUSE_MAX {
        true => Duration::ZERO,
        false => (last * 2).clamp(PAUSE_MIN, PAUSE_MAX),
    }
}

/// What does not change during one `exec`.
struct Execution<'a> {
    exec: &'a Exec,
    address: &'a Address,
    output: Output,
}

/// The servers that have the lock.
enum Servers {
    One(Client),
    Quorum(Quorum),
}

impl Servers {
    /// Waits until nothing is left to release or withdraw.
    async fn flush(&self) -> Result<(), Error> {
        match self {
            Self::One(client) => client.flush().await,
            Self::Quorum(quorum) => quorum.flush().await,
        }
    }
}

/// The lock, if it is granted within `wait`.
async fn granted<G, L>(
    wait: Option<Duration>,
    unlimited: impl Future<Output = Result<G, Error>>,
    limited: impl FnOnce(Duration) -> L,
) -> Result<Option<G>, Error>
where
    L: Future<Output = Result<Option<G>, Error>>,
{
    match wait {
        None => unlimited.await.map(Some),
        Some(wait) => limited(wait).await,
    }
}

/// How a hold ended.
enum End {
    Exited(u8),
    Lost {
        why: Loss,
        /// How long the command ran before.
        after: Duration,
    },
}

impl Execution<'_> {
    /// Connects within the wait, if there is one. So a server that hangs does
    /// not make the user wait longer.
    async fn connect(&self) -> Result<Servers, Failure> {
        let connecting = async {
            match &self.address.place {
                Place::Servers(_) => self.address.client().await.map(Servers::One),
                Place::Quorum(members) => {
                    let quorum = self.address.members(members).await;
                    quorum.map(Servers::Quorum)
                }
            }
        };
        let Some(wait) = self.exec.wait() else {
            return connecting.await;
        };
        let limit = wait.max(CONNECT_MIN);
        let connected = tokio::time::timeout(limit, connecting).await;
        connected.unwrap_or_else(|_| Err(self.address.no_answer(limit)))
    }

    /// Waits for the lock and runs the command. If `wait` is none, it waits
    /// without limit; if it is zero, it does not wait.
    async fn under_lock(
        &self,
        servers: &Servers,
        wait: Option<Duration>,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        let terms = self.exec.terms();
        let terms = terms.map_err(|error| self.address.failure(&error))?;
        let key = self.exec.key().as_bytes();
        let client = match servers {
            Servers::One(client) => client,
            Servers::Quorum(quorum) => {
                let mutex = quorum.mutex(key).with(terms);
                let limited = |wait| mutex.lock_timeout(wait);
                let granted = granted(wait, mutex.lock(), limited);
                return self.run(servers, granted, signals).await;
            }
        };
        if let Some(value) = &self.exec.value {
            let (election, value) = (client.election(key).with(terms), value.as_bytes());
            let limited = |wait| election.campaign_for(value, wait);
            let granted = granted(wait, election.campaign(value), limited);
            return self.run(servers, granted, signals).await;
        }
        match self.exec.kind() {
            Kind::Exclusive => {
                let mutex = client.mutex(key).with(terms);
                let limited = |wait| mutex.lock_timeout(wait);
                let granted = granted(wait, mutex.lock(), limited);
                self.run(servers, granted, signals).await
            }
            Kind::Shared => {
                let lock = client.rwlock(key).with(terms);
                let limited = |wait| lock.read_timeout(wait);
                let granted = granted(wait, lock.read(), limited);
                self.run(servers, granted, signals).await
            }
            Kind::Permits { limit, permits } => {
                let semaphore = client.semaphore(key, limit).with(terms);
                let limited = |wait| semaphore.acquire_many_timeout(permits, wait);
                let unlimited = semaphore.acquire_many(permits);
                let granted = granted(wait, unlimited, limited);
                self.run(servers, granted, signals).await
            }
        }
    }

    /// Waits for the grant, and runs the command while the lock is held.
    ///
    /// # Cancel safety
    ///
    /// A request that is sent is withdrawn in the background.
    async fn run<K: rlock_client::Kind>(
        &self,
        servers: &Servers,
        granted: impl Future<Output = Result<Option<Guard<K>>, Error>>,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        let held = tokio::select! {
            biased;
            signal = signals.ending() => return Ok(End::Exited(self.interrupted(signal))),
            held = granted => held,
        };
        let held = held.map_err(|error| self.address.failure(&error))?;
        let Some(held) = held else {
            return Err(self.not_granted(servers).await);
        };
        self.say_granted(&held);
        let mut child = match Child::start(self.exec, &held) {
            Ok(child) => child,
            Err(failure) => {
                // The command did not run, so another holder may run it now.
                self.after_release(held.release().await)?;
                return Err(failure);
            }
        };
        let end = self.watch(&mut child, &held, signals).await?;
        let code = match end {
            End::Exited(code) => {
                let released = match self.exec.at_least() {
                    Some(least) => held.release_after(least).await,
                    None => held.release().await,
                };
                self.after_release(released)?;
                code
            }
            End::Lost { why, .. } => {
                self.say_lost(&held, why);
                child.end(self.exec.kill_after()).await?;
                Code::Lost.number()
            }
        };
        let event = json!({"event": "ended", "code": code});
        self.output.event(&event, None);
        Ok(end)
    }

    /// Waits until the command ends or the lock is lost, and passes signals on.
    async fn watch(
        &self,
        child: &mut Child,
        held: &dyn Held,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        let begun = Instant::now();
        loop {
            tokio::select! {
                biased;
                code = child.wait() => return code.map(End::Exited),
                why = held.loss() => {
                    let after = begun.elapsed();
                    return Ok(End::Lost { why, after });
                }
                signal = signals.next() => child.pass_on(signal),
            }
        }
    }

    /// The outcome of the release after the command.
    ///
    /// A loss is an error, because the time of the loss is unknown. An
    /// unreachable server is no error: the command ran under the lock to its
    /// end, and the lock ends with its lease.
    fn after_release(&self, released: Result<(), Error>) -> Result<(), Failure> {
        let lost = |why: &dyn Display| {
            let message = format!("{}: lost before the command ended: {why}", self.key());
            Err(Failure::new(Code::Lost, message))
        };
        match released {
            Ok(()) => Ok(()),
            Err(Error::Lost(loss)) => lost(&loss),
            // Something else has replaced the lock under its key.
            Err(error @ Error::NotALock(_)) => lost(&error),
            Err(error) => {
                let (key, lease) = (self.key(), humantime::format_duration(self.exec.lease()));
                self.output.say(&format!(
                    "rlock: {key}: not released, it ends within {lease}: {error}"
                ));
                Ok(())
            }
        }
    }

    /// The exit code after a signal that came before the grant.
    fn interrupted(&self, signal: Received) -> u8 {
        let (code, key) = (signal.exit_code(), self.key());
        let event = json!({"event": "interrupted", "code": code});
        let words = format!("rlock: {key}: no longer waiting, signal {}", signal.number);
        self.output.event(&event, Some(&words));
        code
    }

    fn say_granted(&self, held: &dyn Held) {
        let (key, owner, fence) = (self.exec.key_text(), held.owner().as_str(), held.fence());
        let event = json!({"event": "granted", "key": key, "owner": owner, "fence": fence});
        self.output.event(&event, None);
    }

    fn say_lost(&self, held: &dyn Held, loss: Loss) {
        let (key, reason) = (self.exec.key_text(), loss.to_string());
        let event = json!({"event": "lost", "key": key, "fence": held.fence(), "reason": reason});
        let words = format!("rlock: {}: lost, {loss}; ending the command", self.key());
        self.output.event(&event, Some(&words));
    }

    /// Prints nothing if the exit code is 0: cron mails every line.
    async fn not_granted(&self, servers: &Servers) -> Failure {
        let code = Code::NotGranted(self.exec.conflict_exit_code());
        if code.number() == 0 && !self.output.is_json() {
            return Failure::new(code, "");
        }
        let within = match self.exec.wait() {
            None | Some(Duration::ZERO) => "is not free".to_owned(),
            Some(wait) => format!("not granted within {}", humantime::format_duration(wait)),
        };
        let holder = tokio::time::timeout(HOLDER_MAX, self.holder(servers)).await;
        let holder = holder.ok().flatten().unwrap_or_default();
        let message = format!("{}: {within}{holder}", self.key());
        Failure::new(code, message)
    }

    /// The holder of the lock, if the user may ask the server.
    async fn holder(&self, servers: &Servers) -> Option<String> {
        let Servers::One(client) = servers else {
            return None;
        };
        let info = client.mutex(self.exec.key().as_bytes()).info().await.ok()?;
        let (first, others) = info.holders.split_first()?;
        let owner = printable(&first.owner);
        Some(match others.len() {
            0 => format!(", {owner} holds it"),
            count => format!(", {owner} and {count} more hold it"),
        })
    }

    fn key(&self) -> String {
        printable(&self.exec.key_text())
    }
}
