//! Finds risks to locks in the facts about a master. It sends nothing.

use std::time::Duration;

use indicatif::HumanBytes;

use super::facts::Facts;
use super::report::{Finding, Severity};
use crate::readable::milliseconds;

const DEFECTS: &str = "docs/operating.md#defects-and-limits-of-servers";
/// The default lease of the Rust client and the command line.
const USUAL_LEASE_MS: u64 = 30_000;
const REPLICATION: &str = "docs/operating.md#replication-and-fail-over";
/// How long a replica may be silent if `min-replicas-max-lag` is unknown, in
/// seconds.
const LAG_MAX: u64 = 10;
/// Time daemons keep the difference of two clocks below this.
const DIFFERENCE_MAX: Duration = Duration::from_secs(1);
const RIGHTS: &str = "docs/operating.md#access-rights";

/// The findings of all checks, the worst first.
///
/// `builds` are the builds of the module at all masters and replicas, by address.
pub(super) fn findings(
    facts: &Facts,
    has_fail_over: bool,
    builds: &[(String, String)],
) -> Vec<Finding> {
    let mut findings = vec![loaded(facts)];
    findings.extend(same_build(facts, builds));
    findings.extend(defects(facts));
    findings.extend(redisson(facts));
    findings.extend(eviction(facts));
    findings.extend(memory(facts));
    findings.extend(crash(facts));
    findings.extend(grace(facts));
    findings.extend(replication(facts, has_fail_over));
    findings.extend(cluster(facts));
    findings.extend(clock(facts));
    findings.extend(idle(facts));
    findings.extend(keepalive(facts));
    findings.extend(limit(facts));
    findings.extend(places(facts));
    findings.extend(user_rights(facts));
    findings.extend(exposure(facts));
    findings.extend(unanswered(facts));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn loaded(facts: &Facts) -> Finding {
    let docs = "docs/operating.md#upgrading-the-module";
    let own = env!("CARGO_PKG_VERSION");
    match (facts.has_module(), facts.module()) {
        (false, _) => Finding::new(Severity::Problem, "module", "rlock is not loaded")
            .effect("There are no lock commands here: the reply to each is `ERR unknown command`.")
            .remedy("Start the server with `loadmodule /path/to/librlock.so`. Replicas that may be promoted need it, too.")
            .docs("docs/install.md#settings"),
        (true, Some(version)) if version != own => {
            let found = format!("rlock {version}, and this command line is {own}");
            Finding::new(Severity::Note, "module", found)
                .effect("The older version refuses options of the newer one that it does not know.")
                .remedy("Upgrade the servers first, then the clients.")
                .docs(docs)
        }
        (true, Some(version)) => {
            let build = facts.build().unwrap_or(version);
            Finding::ok("module", format!("rlock {build}")).docs(docs)
        }
        (true, None) => Finding::new(Severity::Note, "module", "rlock of an unknown version")
            .effect("INFO was refused, so no versions were compared.")
            .remedy("Run this again as a user with the right to INFO.")
            .docs(docs),
    }
}

/// Whether all servers run the same build; only if there are several.
fn same_build(facts: &Facts, builds: &[(String, String)]) -> Option<Finding> {
    let own = facts.build().filter(|_| builds.len() > 1)?;
    let others = builds.iter().filter(|(_, build)| *build != own);
    let others: Vec<_> = others
        .map(|(address, build)| format!("{build} at {address}"))
        .collect();
    let docs = "docs/operating.md#upgrading-the-module";
    if others.is_empty() {
        let found = format!("rlock {own} at all {} servers", builds.len());
        return Some(Finding::ok("builds", found).docs(docs));
    }
    let found = format!("rlock {own} here, {}", others.join(", "));
    let finding = Finding::new(Severity::Note, "builds", found)
        .effect("The servers may behave differently, a replica once it is promoted: an upgrade has left out a server, or a server was not restarted after it.")
        .remedy("Install the same build on all servers, and restart those that run another one.")
        .docs(docs);
    Some(finding)
}

fn defects(facts: &Facts) -> Vec<Finding> {
    let Some(redis) = facts.info("redis_version") else {
        return Vec::new();
    };
    let found = facts.server().unwrap_or_default();
    let Some(valkey) = facts.info("valkey_version") else {
        return of_redis(&found, numbers(redis));
    };
    of_valkey(&found, valkey, numbers(valkey))
}

fn of_redis(found: &str, version: (u32, u32)) -> Vec<Finding> {
    let mut findings = Vec::new();
    if version < (7, 4) {
        let finding = Finding::new(Severity::Note, "CLIENT UNBLOCK", found)
            .effect("`CLIENT UNBLOCK` replies with 0 for a blocked waiter, and the wait goes on.")
            .remedy("Use `RLOCK.CANCEL` or `CLIENT KILL`.")
            .docs(DEFECTS);
        findings.push(finding);
    }
    if version < (7, 2) {
        let finding = Finding::new(Severity::Note, "ACL categories", found)
            .effect("Module commands have no categories: a user with `+@all -@dangerous` or `+@write` has other rights than on a newer server.")
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
            .effect("After `MOVE` or `COPY … DB` the connection stays in the other database. It then takes and releases its locks there.")
            .remedy("Upgrade the server, do not use them, or `SELECT` after them.")
            .docs(DEFECTS);
        findings.push(finding);
    }
    if numbers >= (8, 1) {
        let finding = Finding::new(Severity::Note, "RESP3", found)
            .effect("A RESP3 connection that has subscriptions cannot block: the server refuses WAIT without NOTIFY there.")
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

/// Whether Redisson receives the unlock messages.
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
        .effect("Redisson listens to the default channel, and since 3.22 with SSUBSCRIBE in a cluster. If it misses an unlock message, its waiters try again only when the lease of the holder would end.")
        .remedy("If Redisson shares these locks, set what its version listens to. Otherwise this is fine.")
        .docs("docs/data.md#sharing-locks-with-redisson");
    Some(finding)
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
            .remedy("Set `maxmemory-policy noeviction`. If the server is a cache that must evict, put the locks on a separate server."),
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
        .effect("At maxmemory, new locks are refused with OOM. Renewals, releases and hand-offs to waiters still work.")
        .remedy("Raise `maxmemory`, or delete keys that are not needed.")
        .docs("docs/operating.md#memory");
    Some(finding)
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
            .effect("After a crash the grace covers forgotten holds only if their leases are not longer than the grace. The usual lease is 30 s.")
            .remedy("Set `rlock.startup-grace-ms` to at least the longest lease in use."),
        _ => finding
            .effect("A crash may make the server forget holds that clients know of. Their locks then go to others while the first holders still work.")
            .remedy("Set `rlock.startup-grace-ms` to at least the longest lease in use, or `appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no`."),
    }
}

/// The startup grace; none unless it runs now.
fn grace(facts: &Facts) -> Option<Finding> {
    let left = facts
        .number("rlock_grace_left_ms")
        .filter(|left| *left > 0)?;
    let found = format!("it runs for another {}", milliseconds(left));
    let finding = Finding::new(Severity::Note, "start grace", found)
        .effect("Until then nothing is granted: tries are refused, and waiters keep waiting. Renewals and releases work.")
        .remedy("Wait for its end.")
        .docs("docs/operating.md#persistence-and-crashes");
    Some(finding)
}

fn replication(facts: &Facts, has_fail_over: bool) -> Vec<Finding> {
    let findings = match facts.info("role") {
        Some("master") => vec![guard(facts, has_fail_over), lag(facts)],
        Some(_) => vec![Some(replica(facts))],
        None => Vec::new(),
    };
    findings.into_iter().flatten().collect()
}

fn replica(facts: &Facts) -> Finding {
    let host = facts.info("master_host").unwrap_or_default();
    let port = facts.info("master_port").unwrap_or_default();
    let found = format!("this is a replica of {host}:{port}");
    Finding::new(Severity::Problem, "role", found)
        .effect("A replica grants, renews and releases nothing, even with `replica-read-only no`.")
        .remedy("Name its master, or the Sentinels or the cluster that know it.")
        .docs(REPLICATION)
}

/// Whether the master grants only while it has replicas.
fn guard(facts: &Facts, has_fail_over: bool) -> Option<Finding> {
    let replicas = facts.number("connected_slaves")?;
    let wanted = facts.setting("min-replicas-to-write")?;
    let found = format!("{replicas} replicas, min-replicas-to-write {wanted}");
    let finding = |severity| Finding::new(severity, "replicas", found.clone()).docs(REPLICATION);
    // The field is missing while the setting, or its lag, is 0.
    let good = facts.number("min_slaves_good_slaves");
    Some(match (good, replicas) {
        (Some(good), _) if good < wanted => finding(Severity::Problem)
            .effect("There are too few good replicas: locks, renewals and releases are refused with NOREPLICAS, and waiters get nothing.")
            .remedy("Bring the replicas back. `INFO replication` shows them."),
        (None, 1..) => finding(Severity::Warning)
            .effect("A partitioned master still grants locks after its replica was promoted: two holders at once. Fences do not help, because the old master's may be the larger ones.")
            .remedy("Set `min-replicas-to-write 1`. For single locks ask for replicas: `rlock exec --replicas 1`, or `Terms::replicas`."),
        (_, 0) if has_fail_over => finding(Severity::Note)
            .effect("No replica can be promoted: when this master is unreachable, so are its locks.")
            .remedy("Add a replica."),
        _ => finding(Severity::Ok),
    })
}

fn lag(facts: &Facts) -> Option<Finding> {
    let max = facts.setting("min-replicas-max-lag").filter(|max| *max > 0);
    let max = max.unwrap_or(LAG_MAX);
    let replicas = facts.replicas().filter_map(Replica::read);
    let late: Vec<_> = replicas
        .filter(|it| !it.is_online || it.lag > max)
        .collect();
    let words: Vec<_> = late.iter().map(|it| it.words.clone()).collect();
    if late.is_empty() {
        return None;
    }
    let finding = Finding::new(Severity::Warning, "replica lag", words.join("; "))
        .effect(
            "If this replica is promoted, recent grants are lost, and somebody else gets the lock.",
        )
        .remedy(
            "Find out what delays the replica: its network, its disk, or a full synchronization.",
        )
        .docs(REPLICATION);
    Some(finding)
}

/// A replica as in `INFO`:
/// `ip=10.0.0.7,port=6379,state=online,offset=14,lag=1`.
struct Replica {
    is_online: bool,
    lag: u64,
    words: String,
}

impl Replica {
    fn read(replica: &str) -> Option<Self> {
        let fields = replica.split(',').filter_map(|field| field.split_once('='));
        let fields: Vec<_> = fields.collect();
        let field = |name| fields.iter().find(|it| it.0 == name).map(|it| it.1);
        let (state, lag) = (field("state")?, field("lag")?.parse().ok()?);
        let (host, port) = (field("ip")?, field("port")?);
        Some(Self {
            is_online: state == "online",
            lag,
            words: format!("{host}:{port} is {state}, last heard of {lag} s ago"),
        })
    }
}

fn cluster(facts: &Facts) -> Option<Finding> {
    let (state, served) = (
        facts.cluster("cluster_state")?,
        facts.cluster("cluster_slots_ok")?,
    );
    let found = format!("cluster_state {state}, {served} of 16384 slots are served");
    let severity = match (state, served) {
        ("ok", "16384") => {
            return Some(Finding::ok("cluster", found).docs("docs/operating.md#clusters"));
        }
        ("ok", _) => Severity::Warning,
        _ => Severity::Problem,
    };
    let finding = Finding::new(severity, "cluster", found)
        .effect("Locks in slots without a master, or all locks if the state is fail, are refused with CLUSTERDOWN: nobody can take or renew them.")
        .remedy("`redis-cli --cluster check` shows which master is missing. With `cluster-require-full-coverage no` the other slots still work.")
        .docs("docs/operating.md#clusters");
    Some(finding)
}

fn clock(facts: &Facts) -> Option<Finding> {
    let clock = facts.clock.as_ref()?;
    let docs = "docs/operating.md#when-the-servers-clock-jumps";
    let way = if clock.is_ahead { "ahead of" } else { "behind" };
    let found = format!(
        "{:.3} s {way} this machine's clock, give or take {:.3} s",
        clock.difference.as_secs_f64(),
        clock.uncertainty.as_secs_f64()
    );
    if clock.difference < DIFFERENCE_MAX + clock.uncertainty {
        return Some(Finding::ok("clock", found).docs(docs));
    }
    let finding = Finding::new(Severity::Note, "clock", found)
        .effect("Leases use only the server's clock, so this ends no hold early. But if the clocks of two servers differ this much, a fail-over makes leases longer or shorter by the difference, and a fence may be smaller than an earlier one.")
        .remedy("Synchronize the clocks of all servers with a time daemon that slews them.")
        .docs(docs);
    Some(finding)
}

fn idle(facts: &Facts) -> Option<Finding> {
    let timeout = facts.setting("timeout")?;
    let (found, docs) = (
        format!("timeout {timeout}"),
        "docs/locks.md#bound-to-a-connection",
    );
    if timeout == 0 {
        return Some(Finding::ok("idle connections", found).docs(docs));
    }
    let finding = Finding::new(Severity::Warning, "idle connections", found)
        .effect("The server closes a connection that is idle for this many seconds, unless it is blocked or has subscriptions. Its holds with BIND and its requests with NOTIFY end with it. An rlock client has a subscription, so its connection stays.")
        .remedy("Set `timeout 0`, or use BIND and NOTIFY only on connections that subscribe or are used more often.")
        .docs(docs);
    Some(finding)
}

fn keepalive(facts: &Facts) -> Option<Finding> {
    let seconds = facts.setting("tcp-keepalive")?;
    let (found, docs) = (
        format!("tcp-keepalive {seconds}"),
        "docs/locks.md#bound-to-a-connection",
    );
    if seconds > 0 {
        return Some(Finding::ok("keep-alive", found).docs(docs));
    }
    let finding = Finding::new(Severity::Warning, "keep-alive", found)
        .effect("The server never notices that a client's machine has vanished. A waiter there may be granted the lock, which then stalls for a lease. A hold with BIND ends with its lease only.")
        .remedy("Set `tcp-keepalive 60`, or leave it at its default of 300.")
        .docs(docs);
    Some(finding)
}

/// Each blocked waiter has its own connection.
fn limit(facts: &Facts) -> Option<Finding> {
    let (most, waiters) = (
        facts.setting("maxclients")?,
        facts.setting("rlock.max-waiters")?,
    );
    let found = format!("maxclients {most}, rlock.max-waiters {waiters}");
    let docs = "docs/locks.md#two-ways-to-wait";
    if most > waiters {
        return Some(Finding::ok("connections", found).docs(docs));
    }
    let finding = Finding::new(Severity::Note, "connections", found)
        .effect("Each blocked waiter has a connection. A large number of waiters exhausts the connections before the queue is full, and the server refuses holders that have to reconnect.")
        .remedy("Set `maxclients` above `rlock.max-waiters`, or lower the latter, or wait with NOTIFY, where all waits of a client share a connection.")
        .docs(docs);
    Some(finding)
}

/// The free connections; none unless few are left.
fn places(facts: &Facts) -> Option<Finding> {
    let (used, most) = (
        facts.number("connected_clients")?,
        facts.setting("maxclients")?,
    );
    if used < most / 10 * 8 {
        return None;
    }
    let found = format!("{used} of {most} connections are in use");
    let finding = Finding::new(Severity::Warning, "free connections", found)
        .effect("When all are in use, a holder whose connection was lost cannot come back to renew, and loses its lock.")
        .remedy("Raise `maxclients` and the limit of open files, or use fewer connections.")
        .docs("docs/locks.md#two-ways-to-wait");
    Some(finding)
}

fn user_rights(facts: &Facts) -> Option<Finding> {
    let rights = facts.rights.as_ref()?;
    let user = facts.user.as_deref().map(|user| format!("user {user}"));
    let user = user.unwrap_or_else(|| "this user".to_owned());
    if rights.denied.is_empty() {
        let found = match rights.is_complete {
            true => format!("{user} may use all commands"),
            false => format!("{user} may lock"),
        };
        return Some(Finding::ok("rights", found).docs(RIGHTS));
    }
    let found = format!("{user} lacks {}", rights.denied.join(", "));
    let finding = Finding::new(Severity::Note, "rights", found).docs(RIGHTS);
    Some(if rights.can_lock() {
        finding
            .effect("Calls that need these commands get NOPERM. All other lock functions work.")
            .remedy("If the user needs them, give them with `ACL SETUSER`.")
    } else {
        finding
            .effect("This user cannot lock with an rlock client or `rlock exec`: it gets NOPERM. Other users may have these rights.")
            .remedy("If this user has to lock, give it the rule of an application with `ACL SETUSER`.")
    })
}

/// An address of `bind`, where `-` means that it may be missing.
fn is_loopback(address: &str) -> bool {
    let address = address.trim_start_matches('-');
    address == "::1" || address == "localhost" || address.starts_with("127.")
}

/// Whether the user `default` lets everybody on other machines in.
fn exposure(facts: &Facts) -> Option<Finding> {
    let (protected, bind) = (facts.config("protected-mode")?, facts.config("bind")?);
    let has = |flag: &str| facts.default_user.iter().any(|it| it == flag);
    if facts.default_user.is_empty() {
        return None;
    }
    let state = match (has("on"), has("nopass")) {
        (false, _) => "off",
        (true, true) => "without a password",
        (true, false) => "with a password",
    };
    let found = format!("user default {state}, protected-mode {protected}, bind {bind:?}");
    let is_reachable = !bind.split_whitespace().all(is_loopback);
    if is_reachable && protected == "yes" && has("nopass") {
        let finding = Finding::new(Severity::Note, "access", found)
            .effect("The server refuses every connection from another machine with DENIED, whatever its user.")
            .remedy("If programs on other machines lock here, give each a user, then `ACL SETUSER default reset off`, and `user default reset off` in the configuration; or set `requirepass`. Otherwise set `bind 127.0.0.1 -::1`.")
            .docs(RIGHTS);
        return Some(finding);
    }
    if !(is_reachable && protected == "no" && has("on") && has("nopass")) {
        return Some(Finding::ok("access", found).docs(RIGHTS));
    }
    let finding = Finding::new(Severity::Warning, "access", found)
        .effect("Everybody who can reach the server can end any hold with RLOCK.FORCE or DEL, and change its settings.")
        .remedy("Give every program, replica and Sentinel a user, then switch default off: `ACL SETUSER default reset off`, and `user default reset off` in the configuration. Or set `requirepass`, or bind to addresses that only clients can reach.")
        .docs(RIGHTS);
    Some(finding)
}

fn unanswered(facts: &Facts) -> Option<Finding> {
    if facts.unanswered.is_empty() {
        return None;
    }
    let questions = facts.unanswered.iter();
    let refused = questions
        .clone()
        .map(|(question, why)| format!("{question} ({why})"));
    let rights =
        questions.map(|(question, _)| format!("+{}", question.to_lowercase().replace(' ', "|")));
    let refused = refused.collect::<Vec<_>>().join(", ");
    let found = format!(
        "{refused}; the user needs {}",
        rights.collect::<Vec<_>>().join(" ")
    );
    let finding = Finding::new(Severity::Warning, "not looked at", found)
        .effect("INFO covers versions, memory and replicas. CONFIG GET covers persistence, startup grace, min-replicas-to-write, connections, unlock messages and access. TIME covers the clock. ACL GETUSER covers access by the user default, ACL WHOAMI and ACL DRYRUN the rights of this user. Checks that need a refused command are missing here.")
        .remedy("Give the user these rights with `ACL SETUSER`, or run this again as a user that has them, such as the documented operator.")
        .docs(RIGHTS);
    Some(finding)
}
