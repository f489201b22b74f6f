//! The versions of server and module, and the module's settings for others.

use super::finding::{Finding, Severity};
use super::look::Facts;

const DEFECTS: &str = "docs/operating.md#defects-and-limits-of-servers";

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![loaded(facts)];
    findings.extend(defects(facts));
    findings.extend(redisson(facts));
    findings
}

/// Its name and version.
pub(super) fn server(facts: &Facts) -> Option<String> {
    let valkey = facts
        .info("valkey_version")
        .map(|it| format!("Valkey {it}"));
    valkey.or_else(|| facts.info("redis_version").map(|it| format!("Redis {it}")))
}

/// The version of the module: two digits each of 10203 are 1.2.3.
pub(super) fn module(facts: &Facts) -> Option<String> {
    let line = facts.all("module:name=rlock,").next()?;
    let version = line
        .split(',')
        .find_map(|field| field.strip_prefix("ver="))?;
    let version: u64 = version.parse().ok()?;
    let (major, minor) = (version / 10_000, version / 100 % 100);
    Some(format!("{major}.{minor}.{}", version % 100))
}

fn loaded(facts: &Facts) -> Finding {
    let docs = "docs/operating.md#upgrading-the-module";
    let own = env!("CARGO_PKG_VERSION");
    match (facts.has_module(), module(facts)) {
        (false, _) => Finding::new(Severity::Problem, "module", "rlock is not loaded")
            .effect("There are no lock commands here: each of them is answered by `ERR unknown command`.")
            .remedy("Start the server with `loadmodule /path/to/librlock.so`. Replicas that may be promoted need it, too.")
            .docs("docs/commands.md#settings"),
        (true, Some(version)) if version != own => {
            let found = format!("rlock {version}, and this command line is {own}");
            Finding::new(Severity::Note, "module", found)
                .effect("The older one of both does not know the options of the newer one, and refuses them.")
                .remedy("Upgrade the servers first, then the clients.")
                .docs(docs)
        }
        (true, Some(version)) => Finding::ok("module", format!("rlock {version}")).docs(docs),
        (true, None) => Finding::ok("module", "rlock of an unknown version").docs(docs),
    }
}

fn defects(facts: &Facts) -> Vec<Finding> {
    let Some(redis) = facts.info("redis_version") else {
        return Vec::new();
    };
    let found = server(facts).unwrap_or_default();
    let Some(valkey) = facts.info("valkey_version") else {
        return of_redis(&found, numbers(redis));
    };
    of_valkey(&found, valkey.trim(), numbers(valkey))
}

fn of_redis(found: &str, version: (u32, u32)) -> Vec<Finding> {
    let mut findings = Vec::new();
    if version < (7, 4) {
        let finding = Finding::new(Severity::Note, "CLIENT UNBLOCK", found)
            .effect("`CLIENT UNBLOCK` answers 0 for a blocked waiter, and the wait goes on.")
            .remedy("Use `RLOCK.CANCEL` or `CLIENT KILL`.")
            .docs(DEFECTS);
        findings.push(finding);
    }
    if version < (7, 2) {
        let finding = Finding::new(Severity::Note, "ACL categories", found)
            .effect("Commands of modules have no categories: a user with `+@all -@dangerous` or `+@write` has other rights than the same user on a newer server.")
            .remedy("Name the commands in the rules of users.")
            .docs(DEFECTS);
        findings.push(finding);
    }
    findings
}

fn of_valkey(found: &str, version: &str, numbers: (u32, u32)) -> Vec<Finding> {
    let mut findings = Vec::new();
    if version == "8.1.1" {
        let finding = Finding::new(Severity::Warning, "MOVE and COPY", found)
            .effect("After `MOVE` or `COPY … DB` a connection is left in the other database. It then takes and releases its locks there.")
            .remedy("Upgrade the server, do not use them, or `SELECT` after them.")
            .docs(DEFECTS);
        findings.push(finding);
    }
    if numbers >= (8, 1) {
        let finding = Finding::new(Severity::Note, "RESP3", found)
            .effect("A connection with RESP3 that has subscriptions cannot be blocked: WAIT without NOTIFY is refused there.")
            .remedy("Use `WAIT … NOTIFY` there, or another connection.")
            .docs(DEFECTS);
        findings.push(finding);
    }
    findings
}

/// The first two numbers of a version.
fn numbers(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether clients that listen to unlock messages hear them.
fn redisson(facts: &Facts) -> Option<Finding> {
    let (publish, prefix) = (
        facts.config("rlock.publish")?,
        facts.config("rlock.channel-prefix")?,
    );
    let found = format!("rlock.publish {publish}, rlock.channel-prefix {prefix}");
    let docs = "docs/data.md#sharing-locks-with-redisson";
    if (publish, prefix) == ("auto", "redisson_lock__channel") {
        return Some(Finding::ok("unlock messages", found).docs(docs));
    }
    let finding = Finding::new(Severity::Note, "unlock messages", found)
        .effect("Redisson listens to the default channel, and in a cluster by SSUBSCRIBE since 3.22. If it is not told of an unlock, its waiters look again only when the lease of the holder would end.")
        .remedy("If Redisson shares these locks, set what its version listens to. Otherwise this is as good.")
        .docs("docs/data.md#sharing-locks-with-redisson");
    Some(finding)
}
