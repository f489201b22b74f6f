//! Whether memory runs out, and what the server does then.

use indicatif::HumanBytes;

use super::finding::{Finding, Severity};
use super::look::Facts;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    [eviction(facts), memory(facts)]
        .into_iter()
        .flatten()
        .collect()
}

fn eviction(facts: &Facts) -> Option<Finding> {
    let (limit, policy) = (facts.number("maxmemory")?, facts.info("maxmemory_policy")?);
    let found = match limit {
        0 => format!("maxmemory-policy {policy}, no maxmemory"),
        _ => format!("maxmemory-policy {policy}, maxmemory {}", HumanBytes(limit)),
    };
    let severity = match (policy, limit) {
        ("noeviction", _) => Severity::Ok,
        (_, 0) => Severity::Note,
        _ => Severity::Problem,
    };
    let finding = Finding::new(severity, "eviction", found).docs("docs/operating.md#eviction");
    Some(match severity {
        Severity::Ok => finding,
        _ => finding
            .effect("When maxmemory is reached, the key of a held lock may be evicted. Somebody else then gets the lock while its former holder still works.")
            .remedy("Set `maxmemory-policy noeviction`. If the server is a cache that has to evict, give the locks a server of their own."),
    })
}

fn memory(facts: &Facts) -> Option<Finding> {
    let (limit, used) = (facts.number("maxmemory")?, facts.number("used_memory")?);
    if limit == 0 {
        return None;
    }
    let found = format!("{} used of {}", HumanBytes(used), HumanBytes(limit));
    let docs = "docs/operating.md#memory";
    if used < limit / 10 * 9 {
        return Some(Finding::ok("memory", found).docs(docs));
    }
    let finding = Finding::new(Severity::Warning, "memory", found)
        .effect("At maxmemory, new locks are refused with OOM. Renewals, releases and hand-offs to waiters go on.")
        .remedy("Raise `maxmemory`, or delete what is not needed.")
        .docs("docs/operating.md#memory");
    Some(finding)
}
