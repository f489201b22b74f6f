//! `exec` when the lock is lost, or the server is.

use std::process::Command;

use tempfile::TempDir;

use super::program::{Running, exec};
use super::server::Asks;
use rlock_testkit::{Server, eventually};

#[test]
fn a_forced_release_ends_the_command_with_121() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let script =
        "trap 'touch ended; exit 0' TERM; echo ready; while [ -d \"$PWD\" ]; do sleep 0.01; done";
    let mut command = exec(&server, &["k"], script);
    let mut running = Running::start(command.current_dir(directory.path()));
    running.until_says("ready");
    let _: u64 = server.admin().run("RLOCK.FORCE k");
    let ended = running.finish();
    ended.assert_code(121);
    ended.assert_says("k: lost, the server ended it; ending the command");
    assert!(directory.path().join("ended").exists());
}

#[test]
fn the_children_of_the_command_end_with_it() {
    let server = Server::start();
    let script = "sleep 1000 & echo $! > child; wait";
    let directory = tempfile::tempdir().unwrap();
    let mut command = exec(&server, &["k", "--kill-after", "1s"], script);
    let running = Running::start(command.current_dir(directory.path()));
    let path = directory.path().join("child");
    let child = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("the command has a child", || child().ends_with('\n'));
    let _: u64 = server.admin().run("RLOCK.FORCE k");
    running.finish().assert_code(121);
    assert!(!is_running(child().trim()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_zombie_process_does_not_delay_the_end() {
    let server = Server::start();
    // It leaves the group, and never reaps its child there.
    let parent = r#"use POSIX; fork or do { sleep 100; exit }; setsid();
        $| = 1; print "left\n"; close STDOUT; sleep 30"#;
    let script = format!("perl -e '{parent}' 2>/dev/null & wait");
    let mut running = Running::start(&mut exec(&server, &["k", "--kill-after", "1h"], &script));
    running.until_says("left");
    let _: u64 = server.admin().run("RLOCK.FORCE k");
    running.finish().assert_code(121);
}

/// A command that writes its process id into the file `child`, and runs until
/// its directory is gone.
fn stubborn(server: &Server, directory: &TempDir) -> Command {
    let script = "trap '' TERM HUP; echo $$ > child; while [ -d \"$PWD\" ]; do sleep 0.01; done";
    let mut command = exec(server, &["k"], script);
    command.current_dir(directory.path());
    command
}

fn child_in(directory: &TempDir) -> String {
    let path = directory.path().join("child");
    let child = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("the command runs", || child().ends_with('\n'));
    child().trim().to_owned()
}

#[cfg(target_os = "linux")]
#[test]
fn the_command_does_not_outlive_a_killed_rlock() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut stubborn(&server, &directory));
    let child = child_in(&directory);
    running.signal("-KILL");
    eventually("the command is gone", || !is_running(&child));
}

/// The kernel ends a process with the thread that started it.
#[cfg(target_os = "linux")]
#[test]
fn the_command_outlives_the_threads_of_rlock() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let mut command = stubborn(&server, &directory);
    // Another thread looks up the host name, and ends after some idle seconds.
    command.env("RLOCK_URL", format!("redis://localhost:{}/", server.port()));
    let mut running = Running::start(&mut command);
    let child = child_in(&directory);
    let tasks = format!("/proc/{}/task", running.id());
    let threads = || std::fs::read_dir(&tasks).unwrap().count();
    let begun = threads();
    eventually("a thread ends", || threads() < begun);
    assert!(is_running(&child));
}

/// A process that has ended may stay as a zombie if nobody reaps it.
fn is_running(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn a_command_that_does_not_end_is_killed() {
    let server = Server::start();
    let script = "trap '' TERM; echo ready; while [ -d \"$PWD\" ]; do sleep 0.01; done";
    let mut running = Running::start(&mut exec(&server, &["k", "--kill-after", "200ms"], script));
    running.until_says("ready");
    let _: u64 = server.admin().run("DEL k");
    running.finish().assert_code(121);
}

#[test]
fn a_command_that_is_stopped_is_ended_too() {
    let server = Server::start();
    // It gets SIGTERM and SIGCONT, so SIGKILL is not necessary.
    let options = ["k", "--kill-after", "1h"];
    let mut running = Running::start(&mut exec(&server, &options, "echo ready; kill -STOP $$"));
    running.until_says("ready");
    let _: u64 = server.admin().run("RLOCK.FORCE k");
    running.finish().assert_code(121);
}

#[test]
fn a_server_that_vanishes_puts_the_lock_at_risk_and_ends_the_command_with_the_lease() {
    let server = Server::start();
    let options = ["k", "--lease", "700ms"];
    for (json, risk, lost) in [
        (
            &[][..],
            "rlock: k: not renewed, no renewal for half",
            "its lease ended",
        ),
        (
            &["--json"],
            r#"{"event":"at-risk","key":"k","left":0."#,
            r#""lost""#,
        ),
    ] {
        let options = [&options[..], json].concat();
        let mut command = exec(&server, &options, "echo ready; exec sleep 1000");
        let mut running = Running::start(&mut command);
        running.until_says("ready");
        server.signal("-STOP");
        let ended = running.finish();
        server.signal("-CONT");
        ended.assert_code(121);
        ended.assert_says_in_order(risk, lost);
    }
}

#[test]
fn a_margin_that_leaves_too_little_of_the_lease_is_refused() {
    let server = Server::start();
    let ended = Running::start(&mut exec(&server, &["k", "--margin", "11s"], "true")).finish();
    ended.assert_code(2);
    ended.assert_says("margin is 11s, it must be at most a third of the lease");
}

#[test]
fn a_refused_renewal_is_reported_before_the_loss() {
    let server = Server::start();
    let options = ["k", "--lease", "700ms"];
    for json in [&[][..], &["--json"]] {
        let options = [&options[..], json].concat();
        let mut command = exec(&server, &options, "echo ready; exec sleep 1000");
        let mut running = Running::start(&mut command);
        running.until_says("ready");
        let _: () = server.admin().run("ACL SETUSER default -rlock.renew");
        let ended = running.finish();
        let _: () = server.admin().run("ACL SETUSER default +rlock.renew");
        ended.assert_code(121);
        let (refused, lost) = match json {
            [] => (
                "rlock: k: not renewed, not permitted: ",
                "lost, its lease ended",
            ),
            _ => (
                r#"{"event":"not-renewed","key":"k","reason":"not permitted: "#,
                r#""lost""#,
            ),
        };
        ended.assert_says_in_order(refused, lost);
    }
}

#[test]
fn a_loss_that_only_the_release_finds_is_121() {
    let script =
        "echo $$ > id; echo ready; until [ -e over ] || [ ! -d \"$PWD\" ]; do sleep 0.01; done";
    for end in ["RLOCK.FORCE k", "SET k other"] {
        let server = Server::start();
        let directory = tempfile::tempdir().unwrap();
        let mut command = exec(&server, &["k"], script);
        let mut running = Running::start(command.current_dir(directory.path()));
        running.until_says("ready");
        let id = std::fs::read_to_string(directory.path().join("id")).unwrap();
        // The program is stopped, so it learns of the loss only after the command
        // has ended.
        running.signal("-STOP");
        let _: redis::Value = server.admin().run(end);
        std::fs::write(directory.path().join("over"), "").unwrap();
        eventually("the command has ended", || !is_running(id.trim()));
        running.signal("-CONT");
        running.finish().assert_code(121);
    }
}

#[test]
fn a_server_that_is_gone_at_the_release_does_not_change_the_exit_code() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let script = "echo ready; until [ -e over ] || [ ! -d \"$PWD\" ]; do sleep 0.01; done; exit 3";
    let mut command = exec(&server, &["k"], script);
    let mut running = Running::start(command.current_dir(directory.path()));
    running.until_says("ready");
    drop(server);
    std::fs::write(directory.path().join("over"), "").unwrap();
    let ended = running.finish();
    ended.assert_code(3);
    ended.assert_says("k: not released, it ends within 30s");
}
