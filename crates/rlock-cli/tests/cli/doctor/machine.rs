//! The version of the server, and its clock.

use std::process::Command;

use super::{VERSIONS, found, good, report, severity};
use crate::program::rlock;
use crate::server::Asks;

#[test]
fn known_defects_are_those_of_the_servers_version() {
    let server = good();
    let info: String = server.admin().run("INFO server");
    let version = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let is_before = |version: &str, (major, minor): (u32, u32)| {
        let mut numbers = version
            .split('.')
            .map(|number| number.parse::<u32>().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap()) < (major, minor)
    };
    let expected = match (version("valkey_version:"), version("redis_version:")) {
        (Some("8.1.1"), _) => [None, None, Some("warning"), Some("note")],
        (Some(valkey), _) if is_before(valkey, (8, 1)) => [None; 4],
        (Some(_), _) => [None, None, None, Some("note")],
        (None, Some(redis)) if is_before(redis, (7, 2)) => [Some("note"), Some("note"), None, None],
        (None, Some(redis)) if is_before(redis, (7, 4)) => [Some("note"), None, None, None],
        _ => [None; 4],
    };
    let report = report(&mut rlock(&server), 0);
    assert_eq!(
        VERSIONS.map(|check| severity(&report, check)),
        expected,
        "{report}"
    );
}

#[test]
fn a_clock_that_differs_is_found() {
    let (server, directory) = (good(), tempfile::tempdir().unwrap());
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/module/wall_clock.c"
    );
    let (library, offset) = (
        directory.path().join("clock.so"),
        directory.path().join("offset"),
    );
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .args([source, "-ldl"]);
    assert!(compiler.status().unwrap().success());
    // The test sets the clock of `rlock`: only the difference matters.
    for (seconds, expected) in [(0, "ok"), (3600, "note"), (-60, "note")] {
        std::fs::write(&offset, i64::to_ne_bytes(seconds * 1_000_000)).unwrap();
        let mut command = rlock(&server);
        command
            .env("LD_PRELOAD", &library)
            .env("RLOCK_CLOCK", &offset);
        let report = report(&mut command, 0);
        assert_eq!(severity(&report, "clock"), Some(expected), "{report}");
        let words = match seconds {
            3600 => "s behind this machine's clock",
            -60 => "s ahead of this machine's clock",
            _ => "give or take",
        };
        assert!(found(&report, "clock").contains(words), "{report}");
    }
}
