//! The command line, and the manual pages and completions that are made from
//! it.

use std::borrow::Cow;
use std::env;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, roman};

use crate::address::Address;
use crate::bench::Bench;
use crate::doctor::Doctor;
use crate::election::{Elect, Observe};
use crate::exec::Exec;
use crate::exporter::Exporter;
use crate::failure::Failure;
use crate::force::Force;
use crate::info::Info;
use crate::list::List;
use crate::output::Output;
use crate::top::Top;

/// Shown by `--help` and on the manual pages.
const EXIT_CODES: [(&str, &str); 12] = [
    ("0", "done"),
    ("1", "`force`: not confirmed; `doctor`: there is a problem"),
    ("2", "invalid arguments"),
    (
        "121",
        "`exec`, `elect`: the lock was lost before the command ended",
    ),
    (
        "122",
        "the server cannot be reached, or does not have the module",
    ),
    (
        "123",
        "the server refused the request, or too few replicas acknowledged the grant",
    ),
    (
        "124",
        "`exec`, `elect`: not granted within the wait, unless -E says otherwise",
    ),
    ("125", "rlock itself failed"),
    ("126", "`exec`, `elect`: the command cannot be run"),
    ("127", "`exec`, `elect`: the command was not found"),
    (
        "128+n",
        "ended by signal n: rlock while it waited, or the command of `exec` or `elect`",
    ),
    ("other", "`exec`, `elect`: the command's code"),
];

/// The environment variables of rlock and of its commands.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("RLOCK_URL", "the server, unless --url is given"),
    (
        "REDIS_URL",
        "the server, if neither --url nor RLOCK_URL is given",
    ),
    (
        "RLOCK_FENCE",
        "`exec`, `elect`: for the command, the fencing token of its lock",
    ),
    (
        "RLOCK_KEY",
        "`exec`, `elect`: for the command, the key of its lock",
    ),
    (
        "RLOCK_OWNER",
        "`exec`, `elect`: for the command, the owner of its lock",
    ),
];

/// The commit that the program is built from; `build.rs` finds it.
pub(crate) const COMMIT: &str = env!("RLOCK_COMMIT");

/// What `--version` shows behind the name.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("RLOCK_COMMIT"), ")");

/// The order of the global options. It is above the numbers of a command's own
/// options.
const GLOBAL: usize = 100;

fn exit_codes() -> String {
    let lines = EXIT_CODES.map(|(code, meaning)| format!("\n  {code:<6} {meaning}"));
    format!("Exit codes:{}", lines.concat())
}

/// Locks on Redis and Valkey: run commands under locks, inspect locks, end
/// holds.
///
/// For servers that have the rlock module loaded.
#[derive(Debug, Parser)]
#[command(name = "rlock", version = VERSION, after_long_help = exit_codes())]
pub(crate) struct Arguments {
    /// The server, as redis://[user:password@]host[:port][/database].
    ///
    /// The master that Sentinels name:
    /// redis+sentinel://[user:password@]host[:port][,...]/master[/database];
    /// give the user and password of the Sentinels themselves at the end, as
    /// ?sentinel_user=ann&sentinel_password=secret.
    /// A cluster: redis+cluster://[user:password@]host[:port][,...].
    /// With rediss instead of redis, each of them uses TLS.
    ///
    /// A password is safer in the environment: every user of the
    /// machine can see arguments.
    ///
    /// Without it and without RLOCK_URL, rlock uses REDIS_URL, or else
    /// redis://127.0.0.1/.
    #[arg(long, global = true, display_order = GLOBAL)]
    #[arg(env = "RLOCK_URL", hide_env_values = true)]
    url: Option<String>,

    /// The addresses of --url are Sentinels, and this is the name by which they
    /// know the master. Short for redis+sentinel://.
    #[arg(long, global = true, display_order = GLOBAL, value_name = "MASTER")]
    sentinel: Option<String>,

    /// The addresses of --url are nodes of a cluster. Short for
    /// redis+cluster://.
    #[arg(long, global = true, display_order = GLOBAL)]
    cluster: bool,

    #[cfg(feature = "tls-rustls")]
    #[command(flatten)]
    tls: Tls,

    /// Write JSON: results to stdout, errors and events to stderr.
    #[arg(long, global = true, display_order = GLOBAL)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// The address of the servers.
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
    Elect(Elect),
    Observe(Observe),
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

/// Files with certificates, all of them PEM.
#[cfg(feature = "tls-rustls")]
#[derive(Debug, clap::Args)]
struct Tls {
    /// Trust only the authorities in this PEM file, instead of the system's.
    /// Only for rediss://, rediss+sentinel:// and rediss+cluster://.
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<std::path::PathBuf>,

    /// Show the server the certificate in this PEM file. Needs --key.
    #[arg(long, global = true, value_name = "FILE")]
    cert: Option<std::path::PathBuf>,

    /// The key of --cert, a PEM file.
    // Its identifier must differ from the key of a lock.
    #[arg(id = "key_of_cert", long = "key", global = true, value_name = "FILE")]
    key: Option<std::path::PathBuf>,
}

#[cfg(feature = "tls-rustls")]
impl Tls {
    /// The certificates; `None` if no file is named.
    fn certificates(&self) -> Result<Option<rlock_client::Certificates>, Failure> {
        let mut certificates = rlock_client::Certificates::new();
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => certificates = certificates.client(read(cert)?, read(key)?),
            (None, None) if self.cacert.is_none() => return Ok(None),
            (None, None) => {}
            _ => return Err(Failure::usage("--cert and --key go together")),
        }
        if let Some(cacert) = &self.cacert {
            certificates = certificates.authorities(read(cacert)?);
        }
        Ok(Some(certificates))
    }
}

#[cfg(feature = "tls-rustls")]
fn read(file: &std::path::Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))
}

/// Writes the completions for a shell to stdout
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

pub(crate) fn completions(completions: &Completions, output: Output) -> Result<u8, Failure> {
    // The generator panics if the reader closes the pipe, so it writes to
    // memory first.
    let mut script = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(completions.shell, &mut command, "rlock", &mut script);
    output.bytes(&script)?;
    Ok(0)
}

/// Writes a manual page to stdout, as roff
///
/// `rlock man | man -l -` shows it.
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// The command of the page; without it, the page of rlock.
    command: Option<String>,
}

pub(crate) fn man(man: &Man, output: Output) -> Result<u8, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(page_of(man.command.as_deref())?)
        .source(format!("rlock {}", env!("CARGO_PKG_VERSION")))
        .render(&mut page)
        .map_err(|error| Failure::internal("cannot write the page", &error))?;
    page.extend(section("ENVIRONMENT", &ENVIRONMENT));
    page.extend(section("EXIT STATUS", &EXIT_CODES));
    output.bytes(&page)?;
    Ok(0)
}

/// A section of names and what they mean.
fn section(title: &str, entries: &[(&str, &str)]) -> Vec<u8> {
    let mut section = Roff::new();
    section.control("SH", [title]);
    for (name, meaning) in entries {
        section.control("TP", []);
        section.text([bold(*name)]);
        section.text([roman(*meaning)]);
    }
    section.to_roff().into_bytes()
}

/// The whole command line, or the part of one command with its full name.
fn page_of(name: Option<&str>) -> Result<clap::Command, Failure> {
    // These parts have their own place on the page, or do not belong there.
    let mut rlock = Arguments::command()
        .after_long_help(None)
        .disable_help_subcommand(true);
    rlock.build();
    let Some(name) = name else {
        return Ok(with_usage(rlock.version(None)));
    };
    let names: Vec<_> = rlock
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    let found = rlock.find_subcommand(name).cloned();
    found.map(with_usage).ok_or_else(|| {
        let message = format!(
            "command is '{name}', it must be one of {}",
            names.join(", ")
        );
        Failure::usage(message)
    })
}

/// Replaces the usage of a page by the one of `--help`, without brackets around
/// names. The generated one would list every option, and leave out `--`.
fn with_usage(mut command: clap::Command) -> clap::Command {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace(['<', '>'], "");
    command.override_usage(usage)
}
