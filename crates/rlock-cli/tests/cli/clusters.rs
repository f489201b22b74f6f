//! A cluster with one address: every command finds the master of its key, or
//! all masters.

use std::process::{Command, Stdio};

use serde_json::json;

use super::program::{Finished, Running, finished, rlock_at};
use super::server::Asks;
use super::several::{Cluster, MASTERS};
use super::terminal::Terminal;
use rlock_testkit::{Server, free_port};

fn ask(cluster: &Cluster, arguments: &[&str]) -> Finished {
    let ended = finished(rlock_at(&cluster.url()).args(arguments));
    ended.assert_code(0);
    assert_eq!(ended.stderr, "");
    ended
}

fn exec(url: &str, options: &[&str], key: &str, script: &str) -> Command {
    let mut command = rlock_at(url);
    command.args(options).args(["exec", key, "-c", script]);
    command
}

#[test]
fn exec_hands_on_a_lock_of_each_master() {
    let cluster = Cluster::start();
    let plain = format!("redis://{}", cluster.hosts());
    for (master, key) in cluster.keys().into_iter().enumerate() {
        let mut first = exec(&cluster.url(), &[], key, "echo ready; read line");
        let mut first = Running::start(first.stdin(Stdio::piped()));
        first.until_says("ready");
        let second = Running::start(&mut exec(&plain, &["--cluster"], key, "echo ran"));
        let mut admin = cluster.masters[master].admin();
        admin.queued(1);
        first.close_stdin();
        first.finish().assert_code(1);
        let second = second.finish();
        second.assert_code(0);
        assert_eq!(second.stdout, "ran\n");
        assert!(!admin.is_held(key));
    }
}

#[test]
fn questions_go_to_all_masters() {
    let cluster = Cluster::start();
    let mut waiters = Vec::new();
    for ((key, master), count) in cluster.keys().into_iter().zip(&cluster.masters).zip(1..) {
        master.held_by(key, "ann");
        let mut admin = master.admin();
        for number in 0..count {
            admin.enqueue(key, &format!("bob-{number}"), "");
        }
        waiters.push(admin);
    }
    let locks = ask(&cluster, &["list", "--json"]).json();
    let listed: Vec<_> = locks.as_array().unwrap().iter().collect();
    let listed = listed.iter().map(|lock| (&lock["key"], &lock["waiters"]));
    let [one, two, three] = cluster.keys().map(|key| json!(key));
    let expected = [(&three, &json!(3)), (&two, &json!(2)), (&one, &json!(1))];
    assert_eq!(listed.collect::<Vec<_>>(), expected);
    let arguments = ["top", "--json", "--count", "1", "--interval", "100ms"];
    let sample = ask(&cluster, &arguments).json();
    assert_eq!(sample["counters"]["waiters"], 6);
    assert_eq!(sample["counters"]["contended_locks"], 3);
    assert_eq!(sample["masters"].as_array().unwrap().len(), MASTERS);
    assert_eq!(sample["locks"][0]["key"], three);
    for (key, count) in cluster.keys().into_iter().zip(1..) {
        let info = ask(&cluster, &["info", key, "--json"]).json();
        assert_eq!(
            (&info["key"], &info["queued"]),
            (&json!(key), &json!(count))
        );
        let forced = ask(&cluster, &["force", key, "--yes", "--json"]).json();
        assert_eq!(forced, json!({"key": key, "removed": 1}));
    }
}

#[test]
fn top_shows_the_others_while_a_master_is_unreachable() {
    let mut cluster = Cluster::start();
    let [key, _, lost] = cluster.keys();
    cluster.masters[0].held_by(key, "ann");
    let mut waiter = cluster.masters[0].admin();
    waiter.enqueue(key, "bob", "");
    let url = cluster.url();
    let mut terminal = Terminal::start_at(100, &url, &["top", "--interval", "100ms"]);
    terminal.until_shows("masters          3 answer");
    let stopped = cluster.masters.remove(2);
    let port = stopped.port();
    drop(stopped);
    terminal.until_shows("masters          2 answer        1 unreachable");
    terminal.until_shows(&format!("127.0.0.1:{port}: unreachable"));
    terminal.until_shows("1 waiting       1 contended");
    terminal.types("\r");
    terminal.until_shows("bob");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
    let arguments = ["top", "--json", "--count", "1", "--interval", "100ms"];
    let sample = ask(&cluster, &arguments).json();
    let masters = sample["masters"].as_array().unwrap();
    let unreachable = masters.iter().find(|master| !master["error"].is_null());
    assert_eq!(unreachable.unwrap()["address"], format!("127.0.0.1:{port}"));
    assert_eq!(sample["locks"][0]["key"], key);
    for command in [&["list"][..], &["info", lost]] {
        let ended = finished(rlock_at(&cluster.url()).args(command));
        ended.assert_code(122);
        ended.assert_says(&format!("127.0.0.1:{port}"));
    }
}

#[test]
fn bench_works_on_all_masters() {
    let cluster = Cluster::start();
    let arguments = [
        "bench",
        "--json",
        "--clients",
        "3",
        "--locks",
        "30",
        "--ops",
        "60",
    ];
    assert_eq!(ask(&cluster, &arguments).json()["ops"], 60);
    for master in &cluster.masters {
        assert!(master.admin().gauge("grants") > 0);
    }
}

#[test]
fn a_server_that_is_no_cluster_is_named() {
    let server = Server::start();
    let ended = finished(rlock_at(&server.url()).args(["info", "k", "--cluster"]));
    ended.assert_code(123);
    ended.assert_says(&format!("127.0.0.1:{}", server.port()));
    ended.assert_says("without --cluster");
}

#[test]
fn a_node_of_a_cluster_that_is_asked_alone_names_the_option_for_all() {
    let cluster = Cluster::start();
    let ended = finished(rlock_at(&cluster.masters[0].url()).args(["info", cluster.keys()[2]]));
    ended.assert_code(123);
    ended.assert_says("add --cluster");
}

#[test]
fn passwords_and_addresses_that_are_wrong_are_explained() {
    let cluster = Cluster::start();
    for master in &cluster.masters {
        let _: String = master.admin().run("CONFIG SET requirepass right");
    }
    let port = cluster.masters[1].port();
    for (user, verb) in [("", "asks for"), (":secret@", "does not accept")] {
        let url = format!("redis+cluster://{user}127.0.0.1:{port}");
        let ended = finished(rlock_at(&url).arg("list"));
        ended.assert_code(123);
        ended.assert_says(&format!("the cluster at 127.0.0.1:{port} {verb} "));
        ended.assert_says("redis+cluster://user:password@host:port");
        assert!(!ended.stderr.contains("secret"), "{ended:?}");
    }
    let (nobody, hosts) = (free_port(), cluster.hosts());
    let url = format!("redis+cluster://:right@127.0.0.1:{nobody},{hosts}");
    finished(rlock_at(&url).arg("list")).assert_code(0);
    let url = format!("redis+cluster://:right@127.0.0.1:{nobody}");
    let ended = finished(rlock_at(&url).args(["exec", "k", "--", "true"]));
    ended.assert_code(122);
    ended.assert_says("do its nodes run there");
    for (url, words) in [
        ("redis+cluster://:secret@a,,b", "empty where host 2"),
        ("redis+cluster://:secret@a/3", "database 3"),
        ("redis://:secret@a,b", "redis+cluster://"),
        ("redis+clustre://:secret@a", "redis+clustre://"),
    ] {
        let ended = finished(rlock_at(url).args(["exec", "k", "--", "true"]));
        ended.assert_code(2);
        ended.assert_says("--url, RLOCK_URL or REDIS_URL");
        ended.assert_says(words);
        assert!(!ended.stderr.contains("secret"), "{ended:?}");
    }
}
