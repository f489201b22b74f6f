//! Whether the server may grant, and what a fail-over would lose.

use super::finding::{Finding, Severity};
use super::look::Facts;

const DOCS: &str = "docs/operating.md#replication-and-fail-over";
/// Seconds without a sign of life, unless `min-replicas-max-lag` is known.
const LAG_MAX: u64 = 10;

pub(super) fn check(facts: &Facts, has_fail_over: bool) -> Vec<Finding> {
    let replication = match facts.info("role") {
        Some("master") => vec![guard(facts, has_fail_over), lag(facts)],
        Some(_) => vec![Some(replica(facts))],
        None => Vec::new(),
    };
    replication
        .into_iter()
        .chain([cluster(facts)])
        .flatten()
        .collect()
}

fn replica(facts: &Facts) -> Finding {
    let host = facts.info("master_host").unwrap_or_default();
    let port = facts.info("master_port").unwrap_or_default();
    let found = format!("this is a replica of {host}:{port}");
    Finding::new(Severity::Problem, "role", found)
        .effect("A replica grants, renews and releases nothing, even with `replica-read-only no`.")
        .remedy("Name its master, or the Sentinels or the cluster that know it.")
        .docs(DOCS)
}

/// Whether the master grants only while it has replicas.
fn guard(facts: &Facts, has_fail_over: bool) -> Option<Finding> {
    let replicas = facts.number("connected_slaves")?;
    let wanted = facts.setting("min-replicas-to-write")?;
    let found = format!("{replicas} replicas, min-replicas-to-write {wanted}");
    let finding = |severity| Finding::new(severity, "replicas", found.clone()).docs(DOCS);
    // Not there while the setting, or its lag, is 0.
    let good = facts.number("min_slaves_good_slaves");
    Some(match (good, replicas) {
        (Some(good), _) if good < wanted => finding(Severity::Problem)
            .effect("There are too few good replicas: locks, renewals and releases are refused with NOREPLICAS, and waiters get nothing.")
            .remedy("Bring the replicas back. `INFO replication` shows them."),
        (None, 1..) => finding(Severity::Warning)
            .effect("A master that is cut off goes on granting after its replica was promoted: two holders at once. Fences do not help, as those of the old master may be the larger ones.")
            .remedy("Set `min-replicas-to-write 1`. For single locks ask for replicas: `rlock exec --replicas 1`, or `Terms::replicas`."),
        (_, 0) if has_fail_over => finding(Severity::Note)
            .effect("No replica can be promoted: when this master is away, so are its locks.")
            .remedy("Add a replica."),
        _ => finding(Severity::Ok),
    })
}

fn lag(facts: &Facts) -> Option<Finding> {
    let max = facts.setting("min-replicas-max-lag").filter(|max| *max > 0);
    let max = max.unwrap_or(LAG_MAX);
    let replicas = facts.all("slave").filter_map(Replica::read);
    let late: Vec<_> = replicas
        .filter(|it| !it.is_online || it.lag > max)
        .collect();
    let words: Vec<_> = late.iter().map(|it| it.words.clone()).collect();
    if late.is_empty() {
        return None;
    }
    let finding = Finding::new(Severity::Warning, "replica lag", words.join("; "))
        .effect("What was granted meanwhile is lost if this replica is promoted, and somebody else gets the lock.")
        .remedy("See what holds the replica up: its network, its disk, or a full synchronization.")
        .docs(DOCS);
    Some(finding)
}

/// A line as `slave0:ip=10.0.0.7,port=6379,state=online,offset=14,lag=1`.
struct Replica {
    is_online: bool,
    lag: u64,
    words: String,
}

impl Replica {
    fn read(line: &str) -> Option<Self> {
        let (_, fields) = line.split_once(':')?;
        let fields = fields.split(',').filter_map(|field| field.split_once('='));
        let fields: Vec<_> = fields.collect();
        let field = |name| fields.iter().find(|it| it.0 == name).map(|it| it.1);
        let (state, lag) = (field("state")?, field("lag")?.trim().parse().ok()?);
        let (host, port) = (field("ip")?, field("port")?);
        Some(Self {
            is_online: state == "online",
            lag,
            words: format!("{host}:{port} is {state}, last heard of {lag} s ago"),
        })
    }
}

fn cluster(facts: &Facts) -> Option<Finding> {
    let field = |name: &str| {
        let mut lines = facts.cluster.as_deref()?.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let (state, served) = (
        field("cluster_state")?.trim(),
        field("cluster_slots_ok")?.trim(),
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
        .effect("Locks in slots without a master, or all locks if the state is fail, are refused with CLUSTERDOWN: they can be neither taken nor renewed.")
        .remedy("`redis-cli --cluster check` tells which master is missing. With `cluster-require-full-coverage no` the other slots go on.")
        .docs("docs/operating.md#clusters");
    Some(finding)
}
