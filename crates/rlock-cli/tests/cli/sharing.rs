//! `exec` with locks that are shared, limited, or bound to their connection.

use serde_json::Value;

use super::program::{Running, exec, finished, rlock};
use super::server::Asks;
use rlock_testkit::{Server, eventually};

const UNTIL_OVER: &str = "echo ready; until [ -e over ] || [ ! -d \"$PWD\" ]; do sleep 0.01; done";

/// Commands that run until a file in the directory ends them.
struct Crowd<'a> {
    server: &'a Server,
    directory: tempfile::TempDir,
    running: Vec<Running>,
}

impl<'a> Crowd<'a> {
    fn new(server: &'a Server) -> Self {
        Self {
            server,
            directory: tempfile::tempdir().unwrap(),
            running: Vec::new(),
        }
    }

    /// Starts another command, and waits until it has the lock.
    fn joins(&mut self, options: &[&str]) {
        let mut command = exec(self.server, options, UNTIL_OVER);
        let mut running = Running::start(command.current_dir(self.directory.path()));
        running.until_says("ready");
        self.running.push(running);
    }

    fn ends(self) {
        std::fs::write(self.directory.path().join("over"), "").unwrap();
        for running in self.running {
            running.finish().assert_code(0);
        }
    }
}

fn code(server: &Server, options: &[&str]) -> Option<i32> {
    finished(&mut exec(server, options, "true")).code
}

#[test]
fn shared_commands_run_together_and_exclusive_ones_do_not() {
    let server = Server::start();
    let mut crowd = Crowd::new(&server);
    crowd.joins(&["k", "--shared"]);
    crowd.joins(&["k", "--shared"]);
    assert_eq!(code(&server, &["k", "--try"]), Some(124));
    assert_eq!(code(&server, &["k", "--try", "--shared"]), Some(0));
    crowd.ends();
    assert_eq!(code(&server, &["k", "--try"]), Some(0));
}

#[test]
fn each_shared_command_has_its_own_fence() {
    let server = Server::start();
    let mut crowd = Crowd::new(&server);
    crowd.joins(&["k", "--shared"]);
    crowd.joins(&["k", "--shared"]);
    let info = finished(rlock(&server).args(["info", "k", "--json"])).json();
    assert_eq!(info["mode"], "shared");
    let fences: Vec<&Value> = (0..2)
        .map(|number| &info["holders"][number]["fence"])
        .collect();
    assert_ne!(fences[0], fences[1]);
    crowd.ends();
}

#[test]
fn a_limit_admits_its_number_of_permits() {
    let server = Server::start();
    let mut crowd = Crowd::new(&server);
    crowd.joins(&["k", "--limit", "3", "--permits", "2"]);
    assert_eq!(
        code(&server, &["k", "--try", "--limit", "3", "--permits", "2"]),
        Some(124)
    );
    crowd.joins(&["k", "--limit", "3"]);
    assert_eq!(code(&server, &["k", "--try", "--limit", "3"]), Some(124));
    let info = finished(rlock(&server).args(["info", "k", "--json"])).json();
    assert_eq!(info["holders"][0]["permits"], 2);
    crowd.ends();
}

#[test]
fn more_permits_than_the_limit_are_a_mistake() {
    let server = Server::start();
    assert_eq!(code(&server, &["k", "--limit", "2", "--shared"]), Some(2));
    assert_eq!(
        code(&server, &["k", "--limit", "2", "--permits", "3"]),
        Some(2)
    );
}

#[test]
fn the_forced_end_of_a_shared_hold_ends_its_command() {
    let server = Server::start();
    for options in [&["k", "--shared"][..], &["k", "--limit", "2"]] {
        let mut crowd = Crowd::new(&server);
        crowd.joins(options);
        let _: u64 = server.admin().run("RLOCK.FORCE k");
        for running in crowd.running {
            running.finish().assert_code(121);
        }
    }
}

#[test]
fn a_bound_lock_ends_with_a_program_that_is_killed() {
    let server = Server::start();
    let mut admin = server.admin();
    for options in [
        &["k", "--bind", "0"][..],
        &["k", "--bind", "100ms", "--shared"],
        &["k", "--bind", "100ms", "--limit", "2"],
    ] {
        let mut crowd = Crowd::new(&server);
        crowd.joins(options);
        assert_eq!(admin.gauge("bound_holds"), 1);
        crowd.running[0].signal("-KILL");
        // Long before the lease of 30 s ends.
        eventually("the lock is free", || !admin.is_held("k"));
        // The command has no parent now.
        std::fs::write(crowd.directory.path().join("over"), "").unwrap();
    }
}

#[test]
fn a_bound_lock_is_kept_while_its_command_runs() {
    let server = Server::start();
    let ended = finished(&mut exec(&server, &["k", "--bind", "300ms"], "sleep 1"));
    ended.assert_code(0);
    assert_eq!(ended.stderr, "");
}
