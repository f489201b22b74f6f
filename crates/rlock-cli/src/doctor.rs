//! `rlock doctor`: what would hurt a lock at these servers.
//!
//! `facts` asks a master with `questions`, `rights` finds the user's rights there,
//! `checks` judges the answers, and `report` shows the findings.

mod checks;
mod facts;
mod questions;
mod report;
mod rights;

use futures_util::future::join_all;
use rlock_client::Error;

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use facts::Facts;
use report::{Finding, Master, Report, Severity};

/// Finds risks to locks on these servers, and says what to do about them
///
/// Examines eviction, persistence and startup grace, replicas, the clock, connection limits, access
/// rights, and versions with known defects; in a cluster on all masters. Changes nothing. Exits
/// with code 1 if there is a problem; warnings and notes do not count.
///
/// Warns of what the user's rights do not allow it to look at. It needs the ACL rules +info
/// +config|get +time +acl|whoami +acl|getuser +acl|dryrun, and +cluster|info in a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {}

pub(crate) async fn run(_: &Doctor, address: &Address, output: Output) -> Result<u8, Failure> {
    let servers = address.masters().await?;
    let looks = join_all(servers.iter().map(facts::ask)).await;
    if looks.iter().all(Result::is_err)
        && let Some(error) = looks.iter().find_map(|look| look.as_ref().err())
    {
        return Err(address.failure(error));
    }
    let is_watched = address.has_fail_over();
    let masters = servers.iter().zip(looks);
    let masters = masters.map(|(server, look)| master(server.address(), look, is_watched));
    let report = Report::new(masters.collect());
    output.result(&report, || report.words())?;
    Ok(u8::from(report.problems > 0))
}

fn master(address: &str, look: Result<Facts, Error>, has_fail_over: bool) -> Master {
    let address = address.to_owned();
    match look {
        Ok(facts) => Master {
            address,
            server: facts.server(),
            module: facts.module(),
            findings: checks::findings(&facts, has_fail_over),
        },
        Err(error) => Master {
            address,
            server: None,
            module: None,
            findings: vec![away(&error)],
        },
    }
}

fn away(error: &Error) -> Finding {
    Finding::new(Severity::Problem, "reach", error.to_string())
        .effect("Nothing was looked at here. The locks of this master can be neither taken nor renewed.")
        .remedy("Start it, or have a replica of it promoted.")
        .docs("docs/operating.md#replication-and-fail-over")
}
