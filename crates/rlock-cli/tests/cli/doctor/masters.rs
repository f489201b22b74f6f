//! Masters with replicas, masters of a cluster, and the one that Sentinels name.

use serde_json::Value;

use super::{findings, found, good, report, severity};
use crate::program::{finished, rlock, rlock_at};
use crate::server::Asks;
use crate::several::{Cluster, MASTERS, replica_of, sentinel_of};
use rlock_testkit::eventually;

#[test]
fn replicas_that_do_not_guard_or_lag_are_found_and_a_replica_is_a_problem() {
    let master = good();
    let replica = replica_of(&master);
    let report_of = |code| report(&mut rlock(&master), code);
    assert_eq!(severity(&report_of(0), "replicas"), Some("warning"));
    let mut admin = master.admin();
    let _: () = admin.run("CONFIG SET min-replicas-to-write 1");
    eventually("the replica is a good one", || {
        let ended = finished(rlock(&master).args(["doctor", "--json"]));
        severity(&ended.json(), "replicas") == Some("ok")
    });
    assert_eq!(severity(&report_of(0), "replica lag"), None);
    let report = report(&mut rlock(&replica), 1);
    assert_eq!(severity(&report, "role"), Some("problem"));
    assert!(found(&report, "role").contains(&master.port().to_string()));
    let _: () = admin.run("CONFIG SET min-replicas-max-lag 1");
    replica.signal("STOP");
    eventually("the replica lags", || {
        let report = finished(rlock(&master).args(["doctor", "--json"])).json();
        severity(&report, "replica lag") == Some("warning")
            && severity(&report, "replicas") == Some("problem")
    });
    replica.signal("CONT");
}

#[test]
fn all_masters_of_a_cluster_are_looked_at_though_one_is_away() {
    let mut cluster = Cluster::start();
    let bad = &cluster.masters[1];
    let _: () = bad
        .admin()
        .run("CONFIG SET maxmemory 1gb maxmemory-policy allkeys-lru");
    let url = cluster.url();
    let report = report_at(&url);
    let masters = report["masters"].as_array().unwrap();
    assert_eq!(masters.len(), MASTERS);
    assert_eq!(report["problems"], 1);
    let problem = |master: &Value| {
        let mut problems = findings(master)
            .iter()
            .filter(|it| it["severity"] == "problem");
        problems
            .next()
            .map(|it| it["check"].as_str().unwrap().to_owned())
    };
    for master in masters {
        let is_bad = master["address"] == format!("127.0.0.1:{}", bad.port());
        assert_eq!(problem(master).as_deref(), is_bad.then_some("eviction"));
        assert!(
            findings(master)
                .iter()
                .any(|it| it["check"] == "cluster" && it["severity"] == "ok")
        );
    }
    drop(cluster.masters.pop());
    let report = report_at(&url);
    let masters = report["masters"].as_array().unwrap();
    assert_eq!(masters.len(), MASTERS);
    let away = masters
        .iter()
        .filter(|it| problem(it).as_deref() == Some("reach"));
    assert_eq!(away.count(), 1, "{report}");
}

fn report_at(url: &str) -> Value {
    report(&mut rlock_at(url), 1)
}

#[test]
fn the_master_that_sentinels_name_is_looked_at() {
    let master = good();
    let sentinel = sentinel_of(&master, "");
    let url = format!("redis+sentinel://127.0.0.1:{}/locks", sentinel.port());
    let report = report(&mut rlock_at(&url), 0);
    let address = format!("127.0.0.1:{}", master.port());
    assert_eq!(report["masters"][0]["address"], address);
    assert_eq!(severity(&report, "replicas"), Some("note"));
    finished(rlock_at(&format!("{url}-not")).arg("doctor")).assert_code(122);
}
