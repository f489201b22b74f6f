//! `elect` and `observe`.

use std::time::{Duration, Instant};

use super::program::{Running, finished, rlock};
use super::server::Asks;
use rlock_testkit::Server;

#[test]
fn leaders_follow_one_another_and_observers_see_each() {
    let server = Server::start();
    let mut observer = Running::start(rlock(&server).args(["observe", "orders"]));
    observer.until_says("nobody leads");
    let elect = |value: &str, script: &str| {
        let mut command = rlock(&server);
        command.args([
            "elect", "orders", "--value", value, "--", "sh", "-c", script,
        ]);
        command
    };
    let script = "echo leads; read line; echo $RLOCK_FENCE";
    let mut first = elect("a:1", script);
    let mut first = Running::start(first.stdin(std::process::Stdio::piped()));
    first.until_says("leads");
    let info = finished(rlock(&server).args(["info", "orders", "--json"])).json();
    assert_eq!(info["holders"][0]["value"], "a:1");
    let second = Running::start(&mut elect("b:1", "echo $RLOCK_FENCE"));
    server.admin().queued(1);
    first.close_stdin();
    let fence_of_first = info["fence"].to_string();
    assert_eq!(first.finish().stdout, format!("{fence_of_first}\n"));
    let second = second.finish();
    second.assert_code(0);
    let fence_of_second = second.stdout.trim();
    observer.until_says(&format!("{fence_of_first} a:1"));
    observer.until_says(&format!("{fence_of_second} b:1"));
    observer.until_says("nobody leads");
}

#[test]
fn lost_leadership_ends_the_command_or_is_campaigned_for_again() {
    let server = Server::start();
    let elect = |again: &[&str]| {
        let mut command = rlock(&server);
        command.args(["elect", "orders", "--value", "a:1"]);
        command.args(again);
        command.args(["--", "sh", "-c", "echo leads; exec sleep 60"]);
        Running::start(&mut command)
    };
    let mut once = elect(&[]);
    once.until_says("leads");
    let _: u64 = server.admin().run("RLOCK.FORCE orders");
    once.finish().assert_code(121);
    let mut again = elect(&["--again"]);
    let begun = Instant::now();
    for _ in 0..3 {
        again.until_says("leads");
        let _: u64 = server.admin().run("RLOCK.FORCE orders");
    }
    again.until_says("leads");
    // Pauses of 100, 200 and 400 ms: each leadership was brief.
    assert!(begun.elapsed() >= Duration::from_millis(700));
    again.signal("TERM");
    again.finish().assert_code(128 + 15);
}

/// `examples/election`: a leader is killed, twice.
#[test]
fn example_shows_the_next_leader_after_a_killed_one() {
    let server = Server::start();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/election");
    let mut example = std::process::Command::new(example);
    example
        .env("RLOCK_URL", server.url())
        .env("RLOCK", env!("CARGO_BIN_EXE_rlock"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let shown = finished(&mut example);
    shown.assert_code(0);
    let lines = shown.stdout.lines();
    let leads: Vec<_> = lines
        .filter(|it| it.contains(" s  ") && it.contains("worker-"))
        .collect();
    let [_, after_lease, _, at_once] = leads[..] else {
        panic!("{shown:?}");
    };
    let seconds = |line: &str| {
        line.trim()
            .split_once(" s ")
            .unwrap()
            .0
            .parse::<f64>()
            .unwrap()
    };
    assert!(
        seconds(after_lease) > 1.0,
        "before its lease ended: {shown:?}"
    );
    assert!(seconds(at_once) < seconds(after_lease), "{shown:?}");
}

#[test]
fn observations_are_lines_of_json_if_asked_for() {
    let server = Server::start();
    let fence: u64 = server.admin().run("RLOCK.ACQUIRE orders ann 60000 VALUE a");
    let mut observer = Running::start(rlock(&server).args(["--json", "observe", "orders"]));
    observer.until_says(&format!(
        r#"{{"key":"orders","leader":{{"fence":{fence},"value":"a"}},"missed":false}}"#
    ));
    let _: u64 = server.admin().run("RLOCK.RELEASE orders ann");
    observer.until_says(r#"{"key":"orders","leader":null,"missed":false}"#);
}

#[test]
fn value_that_is_too_long_is_refused_with_its_limit() {
    let server = Server::start();
    let long = "v".repeat(1025);
    let ended = finished(rlock(&server).args(["elect", "orders", "--value", &long, "--", "true"]));
    ended.assert_says("1024");
    assert!(!server.admin().is_held("orders"));
}
