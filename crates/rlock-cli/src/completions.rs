//! `rlock completions`: what a shell needs to complete the command line.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::output::Output;

/// Writes the completions of a shell to stdout
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(completions: &Completions, output: Output) -> Result<u8, Failure> {
    // Written at once, as the generator panics when its reader goes away.
    let mut script = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(completions.shell, &mut command, "rlock", &mut script);
    output.bytes(&script)?;
    Ok(0)
}
