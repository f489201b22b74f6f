//! Masters with replicas, masters of a cluster, and the one that Sentinels name.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{findings, found, good, report, severity};
use crate::program::{finished, rlock, rlock_at};
use crate::server::Asks;
use crate::several::{Cluster, MASTERS, replica_of, sentinel_of};
use rlock_testkit::{Setup, eventually};

#[test]
fn unguarded_and_late_replicas_are_found_and_a_replica_is_a_problem() {
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
fn all_masters_of_a_cluster_are_examined_though_one_is_unreachable() {
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
        let mut builds = findings(master).iter().filter(|it| it["check"] == "builds");
        assert_eq!(builds.next().unwrap()["severity"], "ok");
    }
    drop(cluster.masters.pop());
    let report = report_at(&url);
    let masters = report["masters"].as_array().unwrap();
    assert_eq!(masters.len(), MASTERS);
    let unreachable = masters
        .iter()
        .filter(|it| problem(it).as_deref() == Some("reach"));
    assert_eq!(unreachable.count(), 1, "{report}");
}

#[test]
fn a_replica_without_the_module_is_found() {
    let master = good();
    let replica = replica_of(&master);
    let builds = |expected: &str, words: &str| {
        let report = report(&mut rlock(&master), 0);
        assert_eq!(severity(&report, "builds"), Some(expected), "{report}");
        assert!(found(&report, "builds").contains(words), "{report}");
    };
    builds("ok", "at all 2 servers");
    let other = Setup::new().without_module().replica_of(&master).start();
    eventually("the replica follows", || {
        master.info("replication", "connected_slaves") == "2"
    });
    builds(
        "note",
        &format!(" here, no module at 127.0.0.1:{}", other.port()),
    );
    // One that does not answer is left out.
    drop((replica, other));
    let report = report(&mut rlock(&master), 0);
    assert_eq!(severity(&report, "builds"), None, "{report}");
}

fn report_at(url: &str) -> Value {
    report(&mut rlock_at(url), 1)
}

#[test]
fn the_master_that_sentinels_name_is_examined() {
    let master = good();
    let sentinel = sentinel_of(&master, "");
    let url = format!("redis+sentinel://127.0.0.1:{}/locks", sentinel.port());
    let report = report(&mut rlock_at(&url), 0);
    let address = format!("127.0.0.1:{}", master.port());
    assert_eq!(report["masters"][0]["address"], address);
    assert_eq!(severity(&report, "replicas"), Some("note"));
    finished(rlock_at(&format!("{url}-not")).arg("doctor")).assert_code(122);
}

/// A copy of the module with another commit.
fn of_another_commit(directory: &Path, commit: &str) -> PathBuf {
    let mut module = fs::read(rlock_testkit::module()).unwrap();
    let (commit, length) = (commit.as_bytes(), commit.len());
    let places = module.windows(length).enumerate();
    let places = places.filter(|(_, bytes)| *bytes == commit).map(|it| it.0);
    for place in places.collect::<Vec<_>>() {
        module[place..place + length].reverse();
    }
    let path = directory.join("librlock.so");
    // The server demands a file that can be executed, as a copy is.
    fs::copy(rlock_testkit::module(), &path).unwrap();
    fs::write(&path, module).unwrap();
    path
}

#[test]
fn masters_of_a_cluster_with_different_builds_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let first = Setup::new().cluster_node().start();
    let mut admin = first.admin();
    let info: String = admin.run("INFO rlock");
    let commit = info
        .lines()
        .find_map(|line| line.strip_prefix("rlock_commit:"));
    let commit = commit.unwrap().trim();
    let other = of_another_commit(directory.path(), commit);
    let second = Setup::new().cluster_node().without_module();
    let second = second
        .line(&format!("loadmodule {}", other.display()))
        .start();
    let _: () = admin.run("CLUSTER ADDSLOTSRANGE 0 8191");
    let _: () = second.admin().run("CLUSTER ADDSLOTSRANGE 8192 16383");
    let (_, bus): (String, u16) = second.admin().run("CONFIG GET cluster-port");
    let _: () = admin.run(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", second.port()));
    eventually("the nodes know each other", || {
        [&first, &second].iter().all(|server| {
            let info: String = server.admin().run("CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains("cluster_size:2")
        })
    });
    let url = format!("redis+cluster://127.0.0.1:{}", first.port());
    let report = report(&mut rlock_at(&url), 0);
    let other: String = commit.chars().rev().collect();
    let version = env!("CARGO_PKG_VERSION");
    for master in report["masters"].as_array().unwrap() {
        let mut findings = findings(master).iter();
        let builds = findings.find(|it| it["check"] == "builds").unwrap();
        assert_eq!(builds["severity"], "note", "{builds}");
        let is_first = master["address"] == format!("127.0.0.1:{}", first.port());
        let (own, others, port) = match is_first {
            true => (commit, &*other, second.port()),
            false => (&*other, commit, first.port()),
        };
        let expected =
            format!("rlock {version} ({own}) here, {version} ({others}) at 127.0.0.1:{port}");
        assert_eq!(builds["found"], expected);
    }
}
