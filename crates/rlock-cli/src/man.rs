//! `rlock man`: the manual pages.

use clap::CommandFactory;

use crate::arguments::Arguments;
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

pub(crate) fn run(man: &Man, output: Output) -> Result<u8, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command(man.command.as_deref())?)
        .source(format!("rlock {}", env!("CARGO_PKG_VERSION")))
        .render(&mut page)
        .map_err(|error| Failure::internal("cannot write the page", &error))?;
    output.bytes(&page)?;
    Ok(0)
}

/// The whole command line, or the part of one command with its full name.
fn command(name: Option<&str>) -> Result<clap::Command, Failure> {
    let mut rlock = Arguments::command();
    rlock.build();
    let Some(name) = name else {
        return Ok(rlock);
    };
    let names: Vec<_> = rlock
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    let found = rlock.find_subcommand(name).cloned();
    found.ok_or_else(|| {
        let message = format!(
            "command is '{name}', it must be one of {}",
            names.join(", ")
        );
        Failure::new(Code::Usage, message)
    })
}
