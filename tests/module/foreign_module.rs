//! Another module that changes a lock in the callbacks of its key events.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::contest::wait_for;
use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::eventually;

/// The other module, for as long as the directory is kept.
fn build(directory: &TempDir) -> PathBuf {
    let library = directory.path().join("foreign_module.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/module/foreign_module.c"
        ))
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "cc builds the module that changes locks"
    );
    library
}

/// A server with a module that runs a command on a key at each of its events.
fn server_with(event_and_command: &str) -> Server {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let library = build(&directory);
    // The server has opened the file by now.
    Setup::new()
        .line(&format!(
            "loadmodule {} {event_and_command}",
            library.display()
        ))
        .start()
}

/// Changes locks in every way that emits key events.
fn exercise(server: &Server) {
    let a = server.client();
    for line in [
        "RLOCK.ACQUIRE k owner-a 60000",
        "RLOCK.ACQUIRE k owner-a 70000",
        "RLOCK.RENEW k owner-a 80000",
        "RLOCK.RELEASE k owner-a",
        "RLOCK.DOWNGRADE k owner-a",
        "RLOCK.ACQUIRE k owner-b 60000 SHARED",
        "RLOCK.ACQUIRE k owner-c 60000 SHARED",
        "RLOCK.RELEASE k owner-b",
        "RLOCK.FORCE k",
        "RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3",
        "RLOCK.MRENEW owner-m 70000 3 k1 k2 k3",
        "RLOCK.MRELEASE owner-m 3 k1 k2 k3",
    ] {
        let answer = a.ask(line);
        assert!(!answer.starts_with("ERR "), "{line}: {answer}");
    }
    a.ask("DEL k k1 k2 k3");
}

#[test]
fn module_that_changes_a_lock_in_its_key_events_does_no_harm() {
    for command in ["DEL", "UNLINK", "PEXPIRE 1", "PERSIST", "HDEL owner-a"] {
        for event in ["hset", "hdel", "expire", "del"] {
            let server = server_with(&format!("{event} {command}"));
            exercise(&server);
            assert_eq!(server.ask("PING"), "PONG", "{command} in {event}");
        }
    }
}

#[test]
fn waiters_follow_when_another_module_ends_each_hold() {
    let server = server_with("hset DEL");
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    assert_eq!(server.ask("EXISTS k"), "0");
    server.ask("HSET other owner-z 1");
    server.ask("PEXPIRE other 60000");
    server.ask("RENAME other k");
    let waiters = ["owner-b", "owner-c", "owner-d"];
    let waiters = waiters.iter().enumerate();
    let waiters = waiters.map(|(at, owner)| wait_for(&server, "k", owner, at + 1));
    let waiters: Vec<_> = waiters.collect();
    server.ask("RLOCK.RELEASE k owner-z");
    let fences: Vec<_> = waiters.iter().map(|waiter| waiter.fence()).collect();
    assert!(fences.is_sorted());
    eventually("the last hold has ended, too", || {
        server.ask("EXISTS k") == "0"
    });
}

#[test]
fn a_module_that_is_loaded_later_hears_of_the_next_change() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let library = build(&directory);
    let server = Server::configured(&["enable-module-command yes"]);
    let is_taken = || {
        server.ask("RLOCK.ACQUIRE k owner-a 60000");
        server.ask("EXISTS k") == "1"
    };
    for _ in 0..2 {
        let uptime = || server.info("server", "uptime_in_seconds");
        let before = uptime();
        eventually("the module has looked for others", || uptime() != before);
        assert!(is_taken());
        server.ask(&format!("MODULE LOAD {} hset DEL", library.display()));
        server.ask("RLOCK.RELEASE k owner-a");
        assert!(!is_taken(), "the other module deletes it");
        server.ask("MODULE UNLOAD foreign");
    }
    assert!(is_taken());
}

#[test]
fn another_module_may_keep_and_trim_the_name_of_a_key() {
    let server = server_with("del TRIM");
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let waiter = wait_for(&server, "k", "owner-b", 1);
    // It is no lock any more, and the next step waits for `RLOCK.FORCE`.
    server.ask("HDEL k owner-a");
    // A short word of a script may be in the room of an earlier, longer one.
    let longer = "redis.call('GET', string.rep('x', 60)) ";
    let script = format!("{longer}{longer}return redis.call('RLOCK.FORCE', 'k')");
    a.call(&["EVAL", &script, "0"]);
    assert!(waiter.fence() > 0);
}
