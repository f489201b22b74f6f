//! `rlock man`: the manual pages.

use clap::CommandFactory;
use clap_mangen::roff::{Roff, bold, roman};

use crate::arguments::{Arguments, EXIT_CODES};
use crate::failure::{Code, Failure};
use crate::output::Output;

/// Writes a manual page to stdout, as roff
///
/// `rlock man | man -l -` shows it.
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// The command that the page is about; without it, the page of rlock.
    command: Option<String>,
}

/// What is read from the environment, and what a command finds there.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("RLOCK_URL", "the server, unless --url is given"),
    (
        "REDIS_URL",
        "the server, if neither --url nor RLOCK_URL is given",
    ),
    (
        "RLOCK_FENCE",
        "`exec`: for the command, the fencing token of its lock",
    ),
    ("RLOCK_KEY", "`exec`: for the command, the key of its lock"),
    (
        "RLOCK_OWNER",
        "`exec`: for the command, the owner of its lock",
    ),
];

pub(crate) fn run(man: &Man, output: Output) -> Result<u8, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command(man.command.as_deref())?)
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
fn command(name: Option<&str>) -> Result<clap::Command, Failure> {
    // What is left out has a place of its own on the page, or no page.
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
        Failure::new(Code::Usage, message)
    })
}

/// Has the usage of `--help` on the page, where names are not in brackets; the
/// page's own one would name every option, and no `--`.
fn with_usage(mut command: clap::Command) -> clap::Command {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace(['<', '>'], "");
    command.override_usage(usage)
}
