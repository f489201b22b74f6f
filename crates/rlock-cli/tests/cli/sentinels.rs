//! The master that Sentinels name, with one address.

use std::process::Stdio;

use serde_json::json;

use super::program::{Finished, Running, finished, rlock_at};
use super::server::Asks;
use super::several::{replica_of, sentinel_of};
use rlock_testkit::{Server, free_port};

fn asked(url: &str, arguments: &[&str]) -> Finished {
    let ended = finished(rlock_at(url).args(arguments));
    ended.assert_code(0);
    assert_eq!(ended.stderr, "");
    ended
}

#[test]
fn all_commands_find_the_master_though_a_sentinel_is_dead() {
    let master = Server::start();
    let sentinel = sentinel_of(&master, "");
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", free_port(), sentinel.port());
    let url = format!("redis+sentinel://{hosts}/locks/3");
    let script = ["exec", "k", "-c", "echo ready; read line"];
    let mut first = Running::start(rlock_at(&url).args(script).stdin(Stdio::piped()));
    first.until_says("ready");
    let plain = format!("redis://{hosts}/3");
    let arguments = ["--sentinel", "locks", "exec", "k", "-c", "echo ran"];
    let second = Running::start(rlock_at(&plain).args(arguments));
    let mut admin = master.admin();
    admin.queued(1);
    assert_eq!(asked(&url, &["info", "k", "--json"]).json()["queued"], 1);
    assert_eq!(asked(&url, &["list", "--json"]).json()[0]["key"], "k");
    let arguments = ["top", "--json", "--count", "1", "--interval", "100ms"];
    let sample = asked(&url, &arguments).json();
    assert_eq!(sample["counters"]["waiters"], 1);
    let address = format!("127.0.0.1:{}", master.port());
    let expected = json!([{"address": address, "error": null}]);
    assert_eq!(sample["masters"], expected);
    first.close_stdin();
    first.finish().assert_code(1);
    second.finish().assert_code(0);
    let _: () = admin.run("SELECT 3");
    let _: u64 = admin.run("RLOCK.ACQUIRE k ann 600000");
    let forced = asked(&url, &["force", "k", "--yes"]).stdout;
    assert_eq!(forced, "k: 1 holder removed\n");
    let arguments = ["bench", "--json", "--clients", "2", "--ops", "10"];
    assert_eq!(asked(&url, &arguments).json()["ops"], 10);
}

#[test]
fn a_master_that_no_sentinel_knows_is_named() {
    let master = Server::start();
    let sentinel = sentinel_of(&master, "");
    let url = format!("redis+sentinel://127.0.0.1:{}/other", sentinel.port());
    for command in [&["list"][..], &["exec", "k", "--", "true"]] {
        let ended = finished(rlock_at(&url).args(command));
        ended.assert_code(122);
        let port = sentinel.port();
        ended.assert_says(&format!(
            "the master other of the Sentinels at 127.0.0.1:{port}"
        ));
        ended.assert_says("it knows no master of this name");
        ended.assert_says("SENTINEL MASTERS");
    }
    let no_sentinel = ["list", "--sentinel", "locks"];
    let ended = finished(rlock_at(&master.url()).args(no_sentinel));
    ended.assert_code(123);
    ended.assert_says("do Sentinels run there");
    let nobody = free_port();
    let url = format!("redis+sentinel://127.0.0.1:{nobody}/locks");
    let ended = finished(rlock_at(&url).arg("list"));
    ended.assert_code(122);
    ended.assert_says(&format!("127.0.0.1:{nobody}"));
    let ended = finished(rlock_at(&format!("redis+sentinel://127.0.0.1:{nobody}")).arg("list"));
    ended.assert_code(2);
    ended.assert_says("without a master");
}

#[test]
fn master_and_sentinels_have_their_own_passwords() {
    let master = Server::start();
    let _: String = master.admin().run("CONFIG SET requirepass p@ss");
    let sentinel = sentinel_of(&master, "requirepass s&cret");
    let url = |password: &str, own: &str| {
        format!(
            "redis+sentinel://:{password}@127.0.0.1:{}/locks?sentinel_password={own}",
            sentinel.port()
        )
    };
    asked(&url("p%40ss", "s%26cret"), &["info", "k"]);
    for url in [
        url("guessed", "s%26cret"),
        url("p%40ss", "guessed"),
        url("p%40ss", ""),
    ] {
        let ended = finished(rlock_at(&url).args(["info", "k"]));
        ended.assert_code(123);
        ended.assert_says("does not accept the user and password");
        ended.assert_says(&format!("127.0.0.1:{}", sentinel.port()));
        ended.assert_says("?sentinel_user=user&sentinel_password=password");
        assert!(!ended.stderr.contains("guessed"), "{ended:?}");
        assert!(!ended.stderr.contains("p@ss"), "{ended:?}");
    }
}

#[test]
fn exec_takes_the_lock_only_if_replicas_acknowledge_it() {
    let master = Server::start();
    let run = ["exec", "k", "--replicas", "1", "--", "echo", "ran"];
    let ended = finished(rlock_at(&master.url()).args(run));
    ended.assert_code(123);
    ended.assert_says("only 0 of 1 replicas acknowledged it in time");
    ended.assert_says("INFO replication");
    assert_eq!(ended.stdout, "");
    assert!(!master.admin().is_held("k"));
    let _replica = replica_of(&master);
    assert_eq!(asked(&master.url(), &run).stdout, "ran\n");
    let bound = ["exec", "k", "--replicas", "1", "--bind", "1s", "--", "true"];
    finished(rlock_at(&master.url()).args(bound)).assert_code(2);
}
