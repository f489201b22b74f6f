//! `exec` and signals, without a terminal.

use std::process::Command;

use super::program::{Running, exec, finished};
use super::server::Asks;
use rlock_testkit::Server;

#[test]
fn signals_are_passed_on_to_the_command() {
    let server = Server::start();
    for (signal, code) in [
        ("INT", 41),
        ("TERM", 42),
        ("HUP", 43),
        ("QUIT", 44),
        ("USR1", 45),
        ("USR2", 46),
    ] {
        let script = format!(
            "trap 'exit {code}' {signal}; echo ready; while [ -d \"$PWD\" ]; do sleep 0.01; done"
        );
        let mut running = Running::start(&mut exec(&server, &["k"], &script));
        running.until_says("ready");
        running.signal(&format!("-{signal}"));
        running.finish().assert_code(code);
    }
    assert!(!server.admin().is_held("k"));
}

#[test]
fn a_command_that_a_signal_ends_is_128_and_its_number() {
    let server = Server::start();
    let mut running = Running::start(&mut exec(&server, &["k"], "echo ready; exec sleep 1000"));
    running.until_says("ready");
    running.signal("-TERM");
    running.finish().assert_code(128 + 15);
    assert!(!server.admin().is_held("k"));
}

#[test]
fn a_signal_while_waiting_leaves_the_queue() {
    let server = Server::start();
    server.held_by("k", "somebody");
    let mut admin = server.admin();
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129), ("-QUIT", 131)] {
        let mut waiting = Running::start(&mut exec(&server, &["k"], "echo ran"));
        admin.queued(1);
        waiting.signal(signal);
        let ended = waiting.finish();
        ended.assert_code(code);
        ended.assert_says("k: no longer waiting");
        assert_eq!(ended.stdout, "");
        assert_eq!(admin.gauge("waiters"), 0);
        // rlock withdrew the request; it did not just disconnect.
        assert_eq!(admin.gauge("waiters_gone"), 0);
    }
}

#[test]
fn a_signal_for_the_command_alone_does_not_end_the_wait() {
    let server = Server::start();
    server.held_by("k", "somebody");
    let mut admin = server.admin();
    let mut waiting = Running::start(&mut exec(&server, &["k"], "echo ran"));
    admin.queued(1);
    waiting.signal("-USR1");
    waiting.until_idle();
    let _: u64 = admin.run("RLOCK.FORCE k");
    waiting.finish().assert_code(0);
}

#[test]
fn a_signal_that_the_parent_ignores_stays_ignored() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_rlock");
    let script =
        format!("trap '' HUP; exec {program} exec k -- sh -c 'kill -HUP $PPID $$; echo survived'");
    let mut command = Command::new("setsid");
    command
        .args(["sh", "-c", &script])
        .env("RLOCK_URL", server.url());
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let ended = finished(&mut command);
    ended.assert_code(0);
    assert_eq!(ended.stdout, "survived\n");
}
