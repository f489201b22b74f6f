//! Unreachable servers, servers that refuse, and invalid arguments.

use super::program::{finished, rlock, rlock_at};
use super::server::Asks;
use rlock_testkit::{Server, Setup, free_port};

const COMMANDS: [&[&str]; 6] = [
    &["info", "k"],
    &["list"],
    &["force", "k", "--yes"],
    &["top", "--json", "--count", "1"],
    &["bench"],
    &["exec", "k", "--", "true"],
];

#[test]
fn a_server_that_cannot_be_reached_is_named_without_its_password() {
    let port = free_port();
    for command in COMMANDS {
        let url = format!("redis://ann:secret@127.0.0.1:{port}/2");
        let ended = finished(rlock_at(&url).args(command));
        ended.assert_code(122);
        ended.assert_says(&format!("cannot reach the server at 127.0.0.1:{port}/2"));
        ended.assert_says("is it running there");
        assert!(!ended.stderr.contains("secret"), "{ended:?}");
    }
}

#[test]
fn a_server_without_the_module_is_122_and_named() {
    let server = Setup::new().without_module().start();
    for command in COMMANDS {
        let ended = finished(rlock(&server).args(command));
        ended.assert_code(122);
        ended.assert_says("does not have the rlock module");
        ended.assert_says("redis-server --loadmodule");
    }
}

#[test]
fn a_wrong_password_is_123_and_not_repeated() {
    let server = Server::start();
    let _: String = server.admin().run("ACL SETUSER ann on >right ~* &* +@all");
    for command in COMMANDS {
        let url = format!("redis://ann:secret@127.0.0.1:{}/", server.port());
        let ended = finished(rlock_at(&url).args(command));
        ended.assert_code(123);
        ended.assert_says("does not accept the user and password");
        assert!(!ended.stderr.contains("secret"), "{ended:?}");
    }
}

#[test]
fn a_password_that_is_needed_and_missing_is_123() {
    let server = Server::start();
    let _: String = server.admin().run("CONFIG SET requirepass right");
    for command in COMMANDS {
        let ended = finished(rlock(&server).args(command));
        ended.assert_code(123);
        ended.assert_says("asks for a user and password");
        ended.assert_says("redis://user:password@host:port/");
    }
}

#[test]
fn a_refusal_of_the_server_is_123_and_repeated() {
    let server = Server::start();
    let _: u64 = server.admin().run("RPUSH k a");
    for command in [
        &["info", "k"][..],
        &["force", "k", "-y"],
        &["exec", "k", "--", "true"],
    ] {
        let ended = finished(rlock(&server).args(command));
        ended.assert_code(123);
        ended.assert_says("k");
    }
}

#[test]
fn an_operator_needs_the_rights_that_the_documentation_names() {
    let server = Server::start();
    let rules = "~* &rlock:client:* +subscribe +client +info +rlock.info +rlock.list +rlock.force";
    let set = format!("ACL SETUSER ops on >secret {rules}");
    let _: String = server.admin().run(&set);
    let url = format!("redis://ops:secret@127.0.0.1:{}/", server.port());
    for command in &COMMANDS[..4] {
        finished(rlock_at(&url).args(*command)).assert_code(0);
    }
    for (taken, commands) in [
        ("-rlock.list", &COMMANDS[1..2]),
        ("-subscribe", &COMMANDS[..4]),
    ] {
        let _: String = server.admin().run(&format!("ACL SETUSER ops {taken}"));
        for command in commands {
            let ended = finished(rlock_at(&url).args(*command));
            ended.assert_code(123);
            ended.assert_says("Access rights");
        }
    }
}

#[test]
fn a_failure_is_json_on_request() {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    let ended = finished(rlock_at(&url).args(["info", "k", "--json"]));
    ended.assert_code(122);
    let error: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
    assert_eq!(error["error"]["code"], 122);
    assert!(error["error"]["message"].is_string() && error["error"]["hint"].is_string());
}

#[test]
fn arguments_out_of_range_are_2_and_named_with_their_range() {
    let url = "redis://127.0.0.1:1/";
    for (arguments, words) in [
        (&["list", "--count", "0"][..], "1..=1000"),
        (&["list", "--count", "1001"], "1..=1000"),
        (&["bench", "--clients", "1001"], "1..=1000"),
        (&["bench", "--seconds", "3601"], "1..=3600"),
        (&["top", "--interval", "99ms"], "from 100ms to 1h"),
        (
            &["exec", "k", "--lease", "2ms", "--", "true"],
            "from 3ms to 30days",
        ),
        (
            &["exec", "k", "--lease", "31days", "--", "true"],
            "from 3ms to 30days",
        ),
        (
            &["exec", "k", "--at-least", "0", "--", "true"],
            "from 1ms to 30days",
        ),
        (
            &["elect", "k", "--value", "v", "--lease", "2ms", "--", "true"],
            "from 3ms to 30days",
        ),
        (&["exec", "", "--", "true"], "it is empty"),
        (&["elect", "", "--value", "v", "--", "true"], "it is empty"),
        (
            &["exec", "k", "--wait", "31days", "--", "true"],
            "from 0 to 30days",
        ),
        (
            &["exec", "k", "--wait", "5q", "--", "true"],
            "unknown time unit",
        ),
        (&["exec", "k", "--limit", "0", "--", "true"], "1..=1000000"),
        (&["exec", "k", "--permits", "2", "--", "true"], "--limit"),
        (
            &["exec", "k", "--try", "--wait", "1s", "--", "true"],
            "cannot be used with",
        ),
        (&["exec", "k"], "COMMAND"),
    ] {
        let ended = finished(rlock_at(url).args(arguments));
        ended.assert_code(2);
        ended.assert_says(words);
    }
}

#[test]
fn an_address_that_cannot_be_read_is_2_and_not_repeated() {
    let ended = finished(rlock_at("http://ann:secret@host/").args(["info", "k"]));
    ended.assert_code(2);
    ended.assert_says("--url, RLOCK_URL or REDIS_URL");
    assert!(!ended.stderr.contains("secret"));
}
