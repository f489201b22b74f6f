//! Commands under the lock of a quorum.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::program::{Running, finished, rlock_at};
use crate::server::Asks;
use rlock_testkit::{Server, Setup, eventually};

/// Masters that survive a crash without losing grants.
fn members(count: usize) -> Vec<Server> {
    let settings = [("appendonly", "yes"), ("appendfsync", "always")];
    (0..count)
        .map(|_| Setup::new().settings(&settings).start())
        .collect()
}

fn exec(members: &[Server], script: &str) -> Command {
    let urls: Vec<_> = members.iter().map(Server::url).collect();
    // This server is not used.
    let mut command = rlock_at("redis://127.0.0.1:1/");
    command.args(["exec", "k", "--quorum", &urls.join(","), "-c", script]);
    command
}

fn holding(members: &[Server]) -> usize {
    let members = members.iter();
    members.filter(|it| it.admin().is_held("k")).count()
}

#[test]
fn a_command_runs_while_a_majority_holds_and_the_next_one_after_it() {
    let members = members(3);
    let mut first = exec(&members, "echo $RLOCK_FENCE; read line; true");
    let mut first = Running::start(first.stdin(Stdio::piped()));
    eventually("all hold it", || holding(&members) == 3);
    // One server dies. The others are enough for the holder and for the next
    // one.
    members[0].signal("-KILL");
    let next = Running::start(&mut exec(&members, "echo $RLOCK_FENCE"));
    let alive = &members[1..];
    eventually("the next one waits", || {
        alive.iter().any(|it| it.admin().gauge("waiters") == 1)
    });
    first.close_stdin();
    let (first, next) = (first.finish(), next.finish());
    first.assert_code(0);
    next.assert_code(0);
    let fence = |text: &str| text.trim().parse::<u64>().unwrap();
    assert!(fence(&next.stdout) > fence(&first.stdout));
    eventually("nobody holds it", || holding(alive) == 0);
}

/// The loss of a minority is none.
#[test]
fn a_lock_is_at_risk_and_lost_once_a_majority_is_gone() {
    let members = members(3);
    let mut command = exec(&members, "echo ready; exec sleep 1000");
    let mut running = Running::start(command.args(["--lease", "900ms", "--json"]));
    running.until_says("ready");
    eventually("all hold it", || holding(&members) == 3);
    members[0].signal("-KILL");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(holding(&members[1..]), 2);
    let killed = Instant::now();
    members[1].signal("-KILL");
    let ended = running.finish();
    // Before it ends, it waits for up to two seconds for a majority to release what is left.
    assert!(killed.elapsed() < Duration::from_millis(3500));
    ended.assert_code(121);
    let risk = r#"{"event":"at-risk","key":"k","left":0."#;
    ended.assert_says_in_order(risk, r#""lost""#);
    assert_eq!(ended.stderr.matches("at-risk").count(), 1, "{ended:?}");
}

#[test]
fn an_invalid_quorum_is_explained() {
    let members = members(3);
    let two = finished(&mut exec(&members[..2], "true"));
    two.assert_code(2);
    two.assert_says("odd");
    let mut shared = exec(&members, "true");
    finished(shared.arg("--shared")).assert_code(2);
    let forgetful: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let refused = finished(&mut exec(&forgetful, "true"));
    refused.assert_code(123);
    refused.assert_says("startup-grace-ms");
}
