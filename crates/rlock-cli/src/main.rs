//! `rlock`: the command line of the lock server.
//!
//! This file runs the command and turns its outcome into the exit code.
//! `output` decides what goes to which stream, `failure` has the exit codes,
//! and `address` knows where the servers are and what their errors mean. Each
//! command has a module with its name; `man` and `completions` are in
//! `arguments`.

#![deny(unsafe_code)]

mod address;
mod arguments;
mod bench;
mod counters;
mod doctor;
mod election;
mod exec;
mod exporter;
mod failure;
mod force;
mod info;
mod list;
mod output;
mod readable;
mod signals;
mod top;
mod waits;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};
use failure::Failure;
use output::Output;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let output = Output::new(arguments.json);
    match run(&arguments, output).await {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code.number())
        }
    }
}

/// Runs the command; its exit code.
async fn run(arguments: &Arguments, output: Output) -> Result<u8, Failure> {
    let address = || arguments.address();
    match &arguments.command {
        Command::Exec(exec) => exec::run(exec, &address()?, output).await,
        Command::Elect(elect) => election::elect(elect, &address()?, output).await,
        Command::Observe(observe) => election::observe(observe, &address()?, output).await,
        Command::Info(info) => info::run(info, &address()?, output).await,
        Command::List(list) => list::run(list, &address()?, output).await,
        Command::Force(force) => force::run(force, &address()?, output).await,
        Command::Top(top) => top::run(top, &address()?, output).await,
        Command::Doctor(doctor) => doctor::run(doctor, &address()?, output).await,
        Command::Exporter(exporter) => exporter::run(exporter, &address()?, output).await,
        Command::Bench(bench) => bench::run(bench, &address()?, output).await,
        Command::Completions(completions) => arguments::completions(completions, output),
        Command::Man(man) => arguments::man(man, output),
    }
}
