//! `rlock doctor`: finds risks to locks.
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
/// rights, and versions with known defects; in a cluster on all masters. Of replicas it only
/// compares the module's build. Changes nothing. Exits
/// with code 1 if there is a problem; warnings and notes do not count.
///
/// Warns of checks that the user's rights do not allow. It needs the ACL rules
/// +info +config|get +time +acl|whoami +acl|getuser +acl|dryrun, and
/// +cluster|info in a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {}

pub(crate) async fn run(_: &Doctor, address: &Address, output: Output) -> Result<u8, Failure> {
    let servers = address.masters().await?;
    let answers = join_all(servers.iter().map(facts::ask)).await;
    if answers.iter().all(Result::is_err)
        && let Some(error) = answers.iter().find_map(|answer| answer.as_ref().err())
    {
        return Err(address.failure(error));
    }
    let has_fail_over = address.has_fail_over();
    let masters: Vec<_> = servers
        .iter()
        .map(|it| it.address().to_owned())
        .zip(answers)
        .collect();
    let builds = builds(&masters, address).await;
    let masters = masters.iter().map(|(address, answer)| {
        let findings = match answer {
            Ok(facts) => checks::findings(facts, has_fail_over, &builds),
            Err(error) => vec![unreachable(error)],
        };
        let facts = answer.as_ref().ok();
        Master {
            address: address.clone(),
            server: facts.and_then(Facts::server),
            module: facts.and_then(Facts::module),
            findings,
        }
    });
    let report = Report::new(masters.collect());
    output.result(&report, || report.words())?;
    Ok(u8::from(report.problems > 0))
}

/// The builds of the module at the masters and their replicas, by address.
/// Servers that do not answer are left out.
async fn builds(
    masters: &[(String, Result<Facts, Error>)],
    address: &Address,
) -> Vec<(String, String)> {
    let known = masters
        .iter()
        .filter_map(|(address, answer)| Some((address, answer.as_ref().ok()?)));
    let replicas = known
        .clone()
        .flat_map(|(_, facts)| facts.replica_addresses());
    let replicas = replicas.map(async |(host, port)| {
        let replica = address.single(host, port).await.ok()?;
        let build = facts::build_at(&replica).await?;
        Some((replica.address().to_owned(), build))
    });
    let replicas = join_all(replicas).await;
    let builds = known.filter_map(|(address, facts)| Some((address.clone(), facts.build()?)));
    builds.chain(replicas.into_iter().flatten()).collect()
}

fn unreachable(error: &Error) -> Finding {
    Finding::new(Severity::Problem, "reach", error.to_string())
        .effect("This master was not examined. Its locks can be neither taken nor renewed.")
        .remedy("Start it, or promote one of its replicas.")
        .docs("docs/operating.md#replication-and-fail-over")
}
