//! What can be said on the command line.

use std::borrow::Cow;
use std::env;

use clap::{Parser, Subcommand};

use crate::address::Address;
use crate::bench::Bench;
use crate::completions::Completions;
use crate::doctor::Doctor;
use crate::exec::Exec;
use crate::exporter::Exporter;
use crate::failure::Failure;
use crate::force::Force;
use crate::info::Info;
use crate::list::List;
use crate::man::Man;
use crate::top::Top;

/// Shown by `--help` and on the manual pages.
pub(crate) const EXIT_CODES: [(&str, &str); 12] = [
    ("0", "done"),
    ("1", "`force`: not confirmed; `doctor`: there is a problem"),
    ("2", "wrong arguments"),
    (
        "121",
        "`exec`: the lock was lost before the command had ended",
    ),
    (
        "122",
        "the server cannot be reached, or does not have the module",
    ),
    (
        "123",
        "the server refused the request, or too few replicas know of the grant",
    ),
    (
        "124",
        "`exec`: not granted within the wait, unless -E says otherwise",
    ),
    ("125", "rlock itself failed"),
    ("126", "`exec`: the command cannot be run"),
    ("127", "`exec`: the command was not found"),
    (
        "128+n",
        "ended by signal n: rlock while it waited, or the command of `exec`",
    ),
    ("other", "`exec`: that of the command"),
];

/// After the options of the command, which are counted from zero.
const GLOBAL: usize = 100;

fn exit_codes() -> String {
    let lines = EXIT_CODES.map(|(code, meaning)| format!("\n  {code:<6} {meaning}"));
    format!("Exit codes:{}", lines.concat())
}

/// Locks on Redis and Valkey: run commands under them, look at them, end them.
///
/// For servers that have the rlock module loaded.
#[derive(Debug, Parser)]
#[command(name = "rlock", version, after_long_help = exit_codes())]
pub(crate) struct Arguments {
    /// The server, as redis://[user:password@]host[:port][/database].
    ///
    /// The master that Sentinels name:
    /// redis+sentinel://[user:password@]host[:port][,...]/master[/database];
    /// user and password of the Sentinels themselves at the end, as
    /// ?sentinel_user=ann&sentinel_password=secret.
    /// A cluster: redis+cluster://[user:password@]host[:port][,...].
    /// With rediss instead of redis each of them over TLS.
    ///
    /// A password is safer in the environment: arguments can be seen by every
    /// user of the machine.
    ///
    /// Without it and without RLOCK_URL, REDIS_URL is taken, and at last
    /// redis://127.0.0.1/.
    #[arg(long, global = true, display_order = GLOBAL)]
    #[arg(env = "RLOCK_URL", hide_env_values = true)]
    url: Option<String>,

    /// The addresses of --url are those of Sentinels, and this is what they
    /// call the master. Short for redis+sentinel://.
    #[arg(long, global = true, display_order = GLOBAL, value_name = "MASTER")]
    sentinel: Option<String>,

    /// The addresses of --url are those of a cluster. Short for
    /// redis+cluster://.
    #[arg(long, global = true, display_order = GLOBAL)]
    cluster: bool,

    #[cfg(feature = "tls-rustls")]
    #[command(flatten)]
    tls: crate::tls::Tls,

    /// Writes JSON: results to stdout, errors and events to stderr.
    #[arg(long, global = true, display_order = GLOBAL)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Where the servers are.
    pub(crate) fn address(&self) -> Result<Address, Failure> {
        let url = match (&self.url, env::var("REDIS_URL")) {
            (Some(url), _) => url.into(),
            (None, Ok(url)) => Cow::from(url),
            (None, Err(_)) => "redis://127.0.0.1/".into(),
        };
        let address = match &self.command {
            Command::Exec(exec) if !exec.quorum().is_empty() => Address::quorum(exec.quorum())?,
            _ => Address::new(&url, self.sentinel.as_deref(), self.cluster)?,
        };
        #[cfg(feature = "tls-rustls")]
        if let Some(certificates) = self.tls.certificates()? {
            return Ok(address.certificates(certificates));
        }
        Ok(address)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Exec(Exec),
    Info(Info),
    List(List),
    Force(Force),
    Top(Top),
    Doctor(Doctor),
    Exporter(Exporter),
    Bench(Bench),
    Completions(Completions),
    Man(Man),
}
