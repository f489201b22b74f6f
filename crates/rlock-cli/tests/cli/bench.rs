//! `bench`: it ends, counts, and leaves nothing behind.

use std::time::{Duration, Instant};

use super::program::{Running, finished, rlock};
use super::server::Asks;
use rlock_testkit::{Server, eventually};

fn bench(server: &Server, options: &[&str]) -> Running {
    Running::start(rlock(server).arg("bench").args(options))
}

#[test]
fn it_ends_with_its_time_and_leaves_nothing_behind() {
    let server = Server::start();
    server.held_by("somebodys", "ann");
    let begun = Instant::now();
    let options = ["--seconds", "1", "--clients", "4", "--locks", "2", "--json"];
    let ended = bench(&server, &options).finish();
    ended.assert_code(0);
    assert!(
        (1..10).contains(&begun.elapsed().as_secs()),
        "{:?}",
        begun.elapsed()
    );
    let report = ended.json();
    assert_eq!(
        (&report["clients"], &report["locks"]),
        (&4.into(), &2.into())
    );
    assert!(report["ops"].as_u64() > Some(0), "{report}");
    for step in ["acquire_usec", "release_usec"] {
        let at = |name: &str| report[step][name].as_u64().unwrap();
        assert!(at("p50") <= at("p90") && at("p90") <= at("p99") && at("p99") <= at("max"));
    }
    let mut admin = server.admin();
    let keys: Vec<String> = admin.run("KEYS *");
    assert_eq!(keys, ["somebodys"]);
    assert_eq!(admin.gauge("waiters"), 0);
}

#[test]
fn it_ends_after_the_number_of_acquires() {
    let server = Server::start();
    let options = ["--ops", "100", "--clients", "3", "--json"];
    let report = bench(&server, &options).finish().json();
    assert_eq!(report["ops"], 100);
    assert_eq!(server.admin().gauge("grants"), 100);
}

#[test]
fn it_prints_what_it_measured() {
    let server = Server::start();
    let ended = finished(rlock(&server).args(["bench", "--ops", "50", "--clients", "2"]));
    ended.assert_code(0);
    assert!(
        ended
            .stdout
            .starts_with("2 clients, 1 locks: 50 acquired and released in ")
    );
    for words in ["P50", "P90", "P99", "MAX", "acquire", "release"] {
        assert!(ended.stdout.contains(words), "{ended:?}");
    }
}

#[test]
fn a_server_that_hangs_does_not_delay_its_end() {
    let server = Server::start();
    let begun = Instant::now();
    let running = bench(&server, &["--seconds", "2"]);
    let mut admin = server.admin();
    eventually("it has begun", || admin.gauge("grants") > 0);
    server.signal("-STOP");
    let ended = running.finish();
    server.signal("-CONT");
    assert!(ended.code.is_some(), "{ended:?}");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_signal_ends_it_with_what_it_has_measured() {
    let server = Server::start();
    let mut running = bench(&server, &["--seconds", "3600", "--json"]);
    let mut admin = server.admin();
    // One of the ten clients has then released twice, and counted the first.
    eventually("it has begun", || admin.gauge("releases") > 10);
    running.signal("-INT");
    let ended = running.finish();
    ended.assert_code(130);
    assert!(ended.json()["ops"].as_u64() > Some(0));
    assert_eq!(admin.gauge("waiters"), 0);
}
