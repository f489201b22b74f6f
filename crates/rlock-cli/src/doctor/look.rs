//! What a master says about itself, as far as the user may ask.

use std::collections::HashMap;
use std::time::Duration;

use rlock_client::redis::aio::MultiplexedConnection;
use rlock_client::redis::{
    self, AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, RedisResult, Value,
};

use super::clock::Clock;
use super::rights;

/// How long connecting may take, and each answer.
const PATIENCE: Duration = Duration::from_secs(5);
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
pub(super) async fn at(server: &Client) -> Result<Facts, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let connection = server.get_multiplexed_async_connection_with_config(&config);
    let mut asking = Asking {
        connection: connection.await?,
        unanswered: Vec::new(),
    };
    let info: String = asking
        .ask("INFO", &["everything"])
        .await?
        .unwrap_or_default();
    let config = asking
        .ask("CONFIG GET", &SETTINGS)
        .await?
        .unwrap_or_default();
    let cluster = match info.contains("\ncluster_enabled:1") {
        true => asking.ask("CLUSTER INFO", &[]).await?,
        false => None,
    };
    let (user, default_user) = asking.users().await?;
    Ok(Facts {
        clock: asking.clock().await?,
        denied: rights::denied(&mut asking.connection, cluster.is_some()).await?,
        info,
        config,
        cluster,
        user,
        default_user,
        unanswered: asking.unanswered,
    })
}

/// A connection, and what was asked for in vain.
struct Asking {
    connection: MultiplexedConnection,
    unanswered: Vec<(&'static str, String)>,
}

impl Asking {
    /// The answer; none, which is noted, if the server refuses it.
    async fn ask<T: FromRedisValue>(
        &mut self,
        question: &'static str,
        arguments: &[&str],
    ) -> RedisResult<Option<T>> {
        match command(question, arguments)
            .query_async(&mut self.connection)
            .await
        {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_io_error() => Err(error),
            Err(error) => {
                let code = error.code().map(str::to_owned);
                let why = code.unwrap_or_else(|| error.to_string());
                self.unanswered.push((question, why));
                Ok(None)
            }
        }
    }

    /// Who asks, and what the user `default` may do.
    async fn users(&mut self) -> RedisResult<(Option<String>, Vec<String>)> {
        let user = self.ask("ACL WHOAMI", &[]).await?;
        let default: Option<HashMap<String, Value>> = self.ask("ACL GETUSER", &["default"]).await?;
        let flags = default.and_then(|mut default| default.remove("flags"));
        let flags = flags.and_then(|flags| redis::from_redis_value(flags).ok());
        Ok((user, flags.unwrap_or_default()))
    }

    async fn clock(&mut self) -> RedisResult<Option<Clock>> {
        let mut best: Option<Clock> = None;
        for _ in 0..CLOCK_LOOKS {
            let reading = Clock::begin();
            let Some(time) = self.ask("TIME", &[]).await? else {
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

fn command(question: &str, arguments: &[&str]) -> Cmd {
    let mut words = question.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap_or_default());
    cmd.arg(words.collect::<Vec<_>>()).arg(arguments);
    cmd
}
