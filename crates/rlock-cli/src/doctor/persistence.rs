//! What a crash may make the server forget, and whether it waits for that.

use super::finding::{Finding, Severity};
use super::look::Facts;
use crate::readable::milliseconds;

/// What the Rust client and the command line ask for, unless told otherwise.
const USUAL_LEASE_MS: u64 = 30_000;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    [crash(facts), grace(facts)].into_iter().flatten().collect()
}

fn crash(facts: &Facts) -> Option<Finding> {
    let grace = facts.setting("rlock.startup-grace-ms")?;
    let fsync = facts.config("appendfsync")?;
    let late = facts.config("no-appendfsync-on-rewrite")? == "yes";
    let has_aof = facts.info("aof_enabled")? == "1";
    let mut found = match (has_aof, facts.config("save")) {
        (true, _) => format!("appendonly yes, appendfsync {fsync}"),
        (false, Some("")) => "appendonly no, no dumps".to_owned(),
        (false, _) => "appendonly no, dumps only".to_owned(),
    };
    if has_aof && late {
        found += ", no-appendfsync-on-rewrite yes";
    }
    found = format!("{found}, rlock.startup-grace-ms {grace}");
    let severity = match grace {
        _ if has_aof && fsync == "always" && !late => Severity::Ok,
        0 => Severity::Warning,
        1..USUAL_LEASE_MS => Severity::Note,
        _ => Severity::Ok,
    };
    Some(judged(severity, found))
}

fn judged(severity: Severity, found: String) -> Finding {
    let finding = Finding::new(severity, "persistence", found)
        .docs("docs/operating.md#persistence-and-crashes");
    match severity {
        Severity::Ok => finding,
        Severity::Note => finding
            .effect("After a crash the grace covers holds that were forgotten only as long as their leases are not longer than it. The usual lease is 30 s.")
            .remedy("Set `rlock.startup-grace-ms` to at least the longest lease in use."),
        _ => finding
            .effect("A crash may make the server forget holds that clients know of. Their locks then go to others while the first holders still work.")
            .remedy("Set `rlock.startup-grace-ms` to at least the longest lease in use, or `appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no`."),
    }
}

/// Only while it runs.
fn grace(facts: &Facts) -> Option<Finding> {
    let left = facts
        .number("rlock_grace_left_ms")
        .filter(|left| *left > 0)?;
    let found = format!("it runs for another {}", milliseconds(left));
    let finding = Finding::new(Severity::Note, "start grace", found)
        .effect("Until then nothing is granted: a try is refused, and waiters wait. Renewals and releases work.")
        .remedy("Wait for its end.")
        .docs("docs/operating.md#persistence-and-crashes");
    Some(finding)
}
