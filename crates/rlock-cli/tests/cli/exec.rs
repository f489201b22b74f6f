//! `exec`: exit codes, environment, order, waits.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::program::{Running, exec, finished, rlock};
use super::server::Asks;
use rlock_testkit::{PATIENCE, Server, eventually};

#[test]
fn the_exit_code_of_the_command_is_passed_on() {
    let server = Server::start();
    for code in [0, 1, 3, 121, 255] {
        let ended = finished(&mut exec(&server, &["k"], &format!("exit {code}")));
        ended.assert_code(code);
        assert_eq!(ended.stderr, "");
    }
    finished(&mut exec(&server, &["k"], "kill -KILL $$")).assert_code(128 + 9);
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_run_126() {
    let server = Server::start();
    let ended = finished(rlock(&server).args(["exec", "k", "--", "no-such-command"]));
    ended.assert_code(127);
    ended.assert_says("command 'no-such-command' was not found");
    let ended = finished(rlock(&server).args(["exec", "k", "--", "/"]));
    ended.assert_code(126);
    ended.assert_says("command '/' cannot be run");
    assert!(!server.admin().is_held("k"));
}

#[test]
fn the_command_finds_fence_key_and_owner_in_its_environment() {
    let server = Server::start();
    let script = "echo ready; read line; echo $RLOCK_FENCE $RLOCK_OWNER $RLOCK_KEY";
    let mut command = exec(&server, &["a key"], script);
    let mut running = Running::start(command.stdin(std::process::Stdio::piped()));
    running.until_says("ready");
    let info = finished(rlock(&server).args(["info", "a key", "--json"])).json();
    let holder = &info["holders"][0];
    let (fence, owner) = (&info["fence"], holder["owner"].as_str().unwrap());
    running.close_stdin();
    let ended = running.finish();
    ended.assert_code(0);
    assert_eq!(ended.stdout, format!("{fence} {owner} a key\n"));
}

#[test]
fn the_lock_is_released_before_the_program_ends() {
    let server = Server::start();
    let mut admin = server.admin();
    for script in ["exit 0", "exit 9", "kill -KILL $$"] {
        finished(&mut exec(&server, &["k"], script));
        assert!(!admin.is_held("k"), "after {script}");
    }
}

#[test]
fn a_lock_that_is_not_free_is_124_and_the_command_does_not_run() {
    let server = Server::start();
    server.held_by("k", "somebody");
    for options in [&["k", "--try"][..], &["k", "--wait", "0"]] {
        let ended = finished(&mut exec(&server, options, "echo ran"));
        ended.assert_code(124);
        ended.assert_says("k: is not free, somebody holds it");
        assert_eq!(ended.stdout, "");
    }
}

/// Cron mails every line.
#[test]
fn a_lock_that_is_not_free_prints_nothing_if_its_code_is_0() {
    let server = Server::start();
    server.held_by("k", "somebody");
    for options in [&["k", "-n", "-E", "0"][..], &["k", "-w", "50ms", "-E", "0"]] {
        let ended = finished(&mut exec(&server, options, "echo ran"));
        ended.assert_code(0);
        assert_eq!((ended.stdout, ended.stderr), (String::new(), String::new()));
    }
    let ended = finished(&mut exec(
        &server,
        &["k", "-n", "-E", "0", "--json"],
        "true",
    ));
    ended.assert_code(0);
    let event: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
    assert_eq!(event["error"]["code"], 0);
    let _: () = server.admin().run("SET text x");
    let ended = finished(&mut exec(&server, &["text", "-n", "-E", "0"], "true"));
    ended.assert_code(123);
    ended.assert_says("text");
}

#[test]
fn a_wait_ends_with_its_limit() {
    let server = Server::start();
    server.held_by("k", "somebody");
    let begun = Instant::now();
    let ended = finished(&mut exec(&server, &["k", "--wait", "300ms"], "echo ran"));
    ended.assert_code(124);
    ended.assert_says("k: not granted within 300ms");
    assert!(begun.elapsed().as_millis() >= 300 && begun.elapsed() < PATIENCE);
    server.admin().queued(0);
}

#[test]
fn a_waiter_runs_its_command_when_its_turn_comes() {
    let server = Server::start();
    server.held_by("k", "somebody");
    let waiting = Running::start(&mut exec(&server, &["k"], "echo ran"));
    let mut admin = server.admin();
    admin.queued(1);
    let _: u64 = admin.run("RLOCK.RELEASE k somebody");
    let ended = waiting.finish();
    ended.assert_code(0);
    assert_eq!(ended.stdout, "ran\n");
}

#[test]
fn a_wait_that_an_operator_cancels_is_123_and_runs_nothing() {
    let server = Server::start();
    server.held_by("k", "somebody");
    let waiting = Running::start(&mut exec(&server, &["k"], "echo ran"));
    let mut admin = server.admin();
    admin.queued(1);
    let info = finished(rlock(&server).args(["info", "k", "--json"])).json();
    let owner = info["waiters"][0]["owner"].as_str().unwrap();
    let cancelled: u64 = admin.run(&format!("RLOCK.CANCEL k {owner}"));
    assert_eq!(cancelled, 1);
    let ended = waiting.finish();
    ended.assert_code(123);
    ended.assert_says("cancelled by somebody else");
    assert_eq!(ended.stdout, "");
}

#[test]
fn commands_under_one_lock_exclude_each_other() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    // `mkdir` fails if the directory exists.
    let script = "mkdir busy && sleep 0.02 && rmdir busy";
    let all: Vec<_> = (0..8)
        .map(|_| Running::start(exec(&server, &["k"], script).current_dir(directory.path())))
        .collect();
    for one in all {
        one.finish().assert_code(0);
    }
}

#[test]
fn a_long_command_keeps_its_lock_beyond_the_lease() {
    let server = Server::start();
    let ended = finished(&mut exec(&server, &["k", "--lease", "300ms"], "sleep 1"));
    ended.assert_code(0);
    assert_eq!(server.admin().gauge("lease_expirations"), 0);
}

#[test]
fn at_least_keeps_the_lock_taken() {
    let server = Server::start();
    let (least, options) = (Duration::from_secs(1), ["k", "--at-least", "1s"]);
    let begun = Instant::now();
    finished(&mut exec(&server, &options, "exit 3")).assert_code(3);
    assert!(begun.elapsed() < least, "the program has not waited");
    finished(&mut exec(&server, &["k", "--try"], "exit 0")).assert_code(124);
    finished(&mut exec(&server, &["k", "--wait", "20s"], "exit 0")).assert_code(0);
    assert!(begun.elapsed() >= least && begun.elapsed() < PATIENCE);
    // The end of a longer command ends it.
    finished(&mut exec(&server, &options, "sleep 1.2")).assert_code(0);
    assert!(!server.admin().is_held("k"));
    // A command that did not run ends it.
    finished(rlock(&server).args(["exec", "k", "--at-least", "1h", "--", "no-such-command"]))
        .assert_code(127);
    assert!(!server.admin().is_held("k"));
    let both = ["k", "--at-least", "1s", "--bind", "1s"];
    finished(&mut exec(&server, &both, "exit 0")).assert_code(2);
}

/// The alert RlockHoldersDie and the documents say so.
#[test]
fn the_planned_end_of_a_lock_counts_as_the_end_of_a_lease() {
    let server = Server::start();
    let mut admin = server.admin();
    let options = ["k", "--at-least", "300ms"];
    finished(&mut exec(&server, &options, "true")).assert_code(0);
    let ended = finished(&mut exec(&server, &["k"], "echo ran"));
    assert_eq!(ended.stdout, "ran\n");
    assert_eq!(admin.gauge("lease_expirations"), 1);
    assert_eq!(admin.gauge("releases"), 1, "the second one's");
}

#[test]
fn at_least_keeps_the_lock_taken_if_rlock_is_killed() {
    let server = Server::start();
    let options = ["k", "--lease", "300ms", "--at-least", "2s"];
    let begun = Instant::now();
    let mut running = Running::start(&mut exec(&server, &options, "echo ready; sleep 1000"));
    running.until_says("ready");
    running.signal("-KILL");
    running.wait();
    finished(&mut exec(&server, &["k", "--wait", "20s"], "exit 0")).assert_code(0);
    let elapsed = begun.elapsed();
    assert!(
        elapsed >= Duration::from_secs(2) && elapsed < PATIENCE,
        "{elapsed:?}"
    );
}

#[test]
fn events_are_lines_of_json_on_stderr() {
    let server = Server::start();
    let ended = finished(&mut exec(&server, &["k", "--json"], "echo data; exit 4"));
    ended.assert_code(4);
    assert_eq!(ended.stdout, "data\n");
    let events: Vec<serde_json::Value> = ended
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [granted, over] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(granted["event"], "granted");
    assert_eq!(granted["key"], "k");
    assert!(granted["fence"].as_u64() > Some(0));
    assert_eq!(
        (&over["event"], &over["code"]),
        (&"ended".into(), &4.into())
    );
}

/// Users know these options from `flock`.
#[test]
fn short_options_mean_what_they_mean_for_flock() {
    let server = Server::start();
    let run = |arguments: &[&str]| finished(rlock(&server).args(arguments));
    let ended = run(&[
        "exec",
        "k",
        "-s",
        "-w",
        "5",
        "-c",
        "echo $RLOCK_KEY; exit 7",
    ]);
    ended.assert_code(7);
    assert_eq!(ended.stdout, "k\n");
    server.held_by("k", "somebody");
    for options in [&["-n", "-E", "75"][..], &["-w", "0.05", "-E", "75"]] {
        run(&[&["exec", "k"], options, &["--", "true"]].concat()).assert_code(75);
    }
    run(&["exec", "k", "-n", "-E", "256", "--", "true"]).assert_code(2);
    run(&["exec", "k", "-c", "true", "--", "true"]).assert_code(2);
    run(&["exec", "k"]).assert_code(2);
}

#[test]
fn an_owner_names_host_and_process() {
    let server = Server::start();
    let ended = finished(&mut exec(
        &server,
        &["k"],
        "uname -n; echo $PPID $RLOCK_OWNER",
    ));
    let words: Vec<_> = ended.stdout.split_whitespace().collect();
    let [host, process, owner] = words.as_slice() else {
        panic!("{ended:?}");
    };
    let parts: Vec<_> = owner.split(':').collect();
    assert_eq!((&parts[0], &parts[1]), (host, process), "{owner}");
    assert_eq!(parts[2].len(), "67e55044-10b1-426f-9247-bb680e5fe0c8".len());
}

#[test]
fn a_connection_is_named_by_host_and_process() {
    let server = Server::start();
    let mut holder = exec(&server, &["k"], "read line");
    let mut holder = Running::start(holder.stdin(std::process::Stdio::piped()));
    let mut watcher = Running::start(rlock(&server).args(["top", "--json"]));
    let ids = [holder.id(), watcher.id()];
    for id in ids {
        let name = format!(":{id} age=");
        eventually("the connection has its name", || {
            let clients: String = server.admin().run("CLIENT LIST");
            clients.contains(&name)
        });
    }
}

#[test]
fn redis_url_names_the_server_if_rlock_url_does_not() {
    let server = Server::start();
    let mut command = rlock(&server);
    command.env_remove("RLOCK_URL");
    command.env("REDIS_URL", server.url());
    finished(command.args(["info", "k"])).assert_code(0);
    let mut command = rlock(&server);
    command.env("REDIS_URL", "redis://127.0.0.1:1/");
    finished(command.args(["info", "k"])).assert_code(0);
}

#[test]
fn the_exit_code_is_known_where_the_parent_ignores_its_children() {
    let server = Server::start();
    for code in [0, 3] {
        let mut command = Command::new("env");
        command
            .args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_rlock")])
            .args(["exec", "k", "-c", &format!("exit {code}")])
            .env("RLOCK_URL", server.url())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        finished(&mut command).assert_code(code);
    }
}

#[test]
fn a_wait_includes_the_time_to_connect() {
    let server = Server::start();
    server.signal("STOP");
    for options in [["k", "--wait", "1s"], ["k", "--wait", "0"]] {
        let begun = Instant::now();
        let ended = finished(&mut exec(&server, &options, "echo ran"));
        ended.assert_code(122);
        ended.assert_says("within 1s");
        assert!(begun.elapsed() < Duration::from_secs(4), "{ended:?}");
    }
    server.signal("CONT");
}
