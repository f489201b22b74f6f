//! Runs the shell sessions of the guides and the tutorial.

use std::path::Path;
use std::process::{Command, Stdio};

use super::program::finished;
use super::rights::{admit, assert_nothing_refused, url};
use rlock_testkit::Server;

/// The commands behind `$ ` in blocks of `console`, each with the lines below it.
fn steps(page: &str) -> Vec<(&str, Vec<&str>)> {
    let blocks = page.split("```console\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap_or_default().lines());
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in lines {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((command, Vec::new())),
            (None, Some((_, shown))) => shown.push(line),
            (None, None) => panic!("no command shows this: {line}"),
        }
    }
    steps
}

/// Fences and owners differ. The pages write `OWNER` for an owner.
fn are_alike(shown: &str, seen: &str) -> bool {
    let is_fence = |word: &str| word.len() == 16 && word.parse::<u64>().is_ok();
    let (shown, seen): (Vec<_>, Vec<_>) = (shown.split(' ').collect(), seen.split(' ').collect());
    let alike = |(shown, seen): (&&str, &&str)| {
        shown == seen || *shown == "OWNER" || is_fence(shown) && is_fence(seen)
    };
    shown.len() == seen.len() && shown.iter().zip(&seen).all(alike)
}

fn are_true(page: &str, url: &str) {
    let steps = steps(page);
    assert!(!steps.is_empty(), "the page has no session");
    let programs = Path::new(env!("CARGO_BIN_EXE_rlock")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    for (command, shown) in steps {
        let mut shell = Command::new("setsid");
        shell.args(["sh", "-c", &format!("exec 2>&1; {command}")]);
        shell.env("PATH", &path).env("RLOCK_URL", url);
        shell
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ended = finished(&mut shell);
        let seen: Vec<_> = ended.stdout.lines().collect();
        let all = shown.len() == seen.len()
            && shown
                .iter()
                .zip(&seen)
                .all(|(shown, seen)| are_alike(shown, seen));
        assert!(all, "$ {command}\nexpected: {shown:#?}\nseen: {seen:#?}");
    }
}

#[test]
fn sessions_of_the_tutorial_are_true() {
    let server = Server::start();
    let url = server.url();
    are_true(include_str!("../../../../docs/tutorial.md"), &url);
}

/// The guides are for programs in production, so their user has the rights of one.
#[test]
fn sessions_of_the_guides_are_true_for_the_documented_user() {
    let server = Server::start();
    admit(&server, "");
    let url = url(&server, "application");
    are_true(include_str!("../../../../docs/guides.md"), &url);
    assert_nothing_refused(&server);
}

/// This also covers the examples that do not run as sessions.
#[test]
fn every_key_in_the_guides_is_one_of_the_documented_user() {
    let page = include_str!("../../../../docs/guides.md");
    let mut keys = Vec::new();
    for call in ["exec ", "elect ", "observe ", "info "] {
        keys.extend(page.split(&format!("rlock {call}")).skip(1));
    }
    keys.extend(page.split("client.lock(\"").skip(1));
    // A link to the page on `rlock exec` names no key.
    keys.retain(|rest| !rest.starts_with(['`', ']']));
    assert!(keys.len() > 6, "{keys:?}");
    for rest in keys {
        let line = rest.lines().next();
        assert!(rest.starts_with("lock:"), "{line:?}");
    }
}
