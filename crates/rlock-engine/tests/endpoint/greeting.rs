//! The greeting of a connection, and the consequence of each refusal.

use std::time::Duration;

use rlock_engine::endpoint::Settings;

use crate::played::{Played, RESPONSE, bulk, push};

#[test]
fn a_connection_is_used_only_after_its_subscription_is_confirmed() {
    let mut it = Played::new("redis://u:p@h:1/2");
    it.start();
    assert_eq!(it.actions(), ["connect 1 to h:1"]);
    it.asks("k");
    it.opens(1);
    let greeting = [
        "1 HELLO 3 AUTH u p",
        "1 SELECT 2",
        "1 CLIENT SETINFO LIB-NAME lib",
        "1 CLIENT SETINFO LIB-VER 1",
        "1 CLIENT INFO",
        "1 SUBSCRIBE rlock:client:c:1",
    ];
    assert_eq!(it.actions(), greeting);
    it.receives(1, "%1\r\n+role\r\n+master\r\n+OK\r\n+OK\r\n+OK\r\n");
    it.receives(1, bulk("id=7 addr=a:1 laddr=b:1 fd=8"));
    assert_eq!(it.actions(), [""; 0]);
    it.receives(1, push(&["subscribe", "rlock:client:c:1", ""]));
    let asked = "1 RLOCK.ACQUIRE k o2 30000 WAIT 60000 KEEP 10000 NOTIFY rlock:client:c:1";
    let actions = it.actions();
    assert!(actions.contains(&asked.to_owned()), "{actions:?}");
    assert!(
        actions.contains(&"1 RLOCK.HELP ?".to_owned()),
        "{actions:?}"
    );
}

#[test]
fn a_refused_greeting_refuses_the_connection() {
    let refusals = [
        (
            "HELLO",
            "NOAUTH HELLO must be called with the client authenticated",
        ),
        ("HELLO", "WRONGPASS invalid username-password pair"),
        ("HELLO", "ERR unknown command 'HELLO'"),
        ("SELECT", "ERR DB index is out of range"),
    ];
    for (command, error) in refusals {
        let mut it = Played::new("redis://h:1/9");
        it.start();
        it.greeted_but(1, command, &format!("-{error}\r\n"));
        let outcome = format!("call 1: cannot connect to the server: h:1: {error}");
        let refused = format!("not connected: {error}");
        assert_eq!(it.did()[1..], ["close 1", &*refused, &*outcome], "{error}");
    }
}

#[test]
fn a_refused_subscription_names_the_pattern_that_is_needed() {
    let mut it = Played::new("redis://h:1");
    it.start();
    let refused = "NOPERM No permissions to access a channel";
    it.greeted_but(1, "SUBSCRIBE", &format!("-{refused}\r\n"));
    let outcome = it.did().pop().unwrap();
    let rule = "the user's ACL needs &rlock:client:*";
    let begin = format!("call 1: cannot connect to the server: h:1: {refused}; {rule}");
    assert!(outcome.starts_with(&begin), "{outcome}");
}

#[test]
fn a_user_without_permission_for_client_info_can_lock() {
    for command in ["CLIENT", "CLIENT INFO", "CLIENT SETINFO"] {
        let mut it = Played::new("redis://h:1");
        it.start();
        it.greeted_but(1, command, "-NOPERM no permissions to run 'client'\r\n");
        it.answers(1, "RLOCK.HELP", "*0\r\n");
        assert_eq!(it.did().last().unwrap(), "call 1: done", "{command}");
    }
}

#[test]
fn a_connection_closes_its_predecessors() {
    let mut it = Played::connected();
    it.ends(1);
    it.passes(20);
    it.opens(2);
    let actions = it.actions().join("; ");
    assert!(
        actions.contains("2 CLIENT KILL ID 1 ADDR a:1; 2 SUBSCRIBE"),
        "{actions}"
    );
    // That connection was never used, so it need not be closed.
    it.ends(2);
    it.passes(40);
    it.greeted(3);
    let actions = it.actions().join("; ");
    assert!(
        actions.contains("3 CLIENT KILL ID 1 ADDR a:1; 3 SUBSCRIBE"),
        "{actions}"
    );
    it.ends(3);
    it.passes(80);
    it.opens(4);
    let actions = it.actions().join("; ");
    assert!(
        actions.contains("4 CLIENT KILL ID 3 ADDR a:3; 4 SUBSCRIBE"),
        "{actions}"
    );
}

#[test]
fn a_server_without_the_module_is_refused() {
    let mut it = Played::new("redis://h:1");
    it.start();
    it.greeted(1);
    it.answers(1, "RLOCK.HELP", "-ERR unknown command 'RLOCK.HELP'\r\n");
    let outcome = it.did().pop().unwrap();
    assert!(
        outcome.starts_with("call 1: the server does not have the rlock"),
        "{outcome}"
    );
}

#[test]
fn a_server_that_is_loading_has_its_modules() {
    let mut it = Played::new("redis://h:1");
    it.start();
    it.greeted(1);
    it.answers(
        1,
        "RLOCK.HELP",
        "-LOADING Redis is loading the dataset in memory\r\n",
    );
    assert_eq!(it.did().pop().unwrap(), "call 1: done");
}

#[test]
fn a_connection_has_its_time_to_open_and_its_time_to_greet() {
    let mut it = Played::new("redis://h:1");
    it.start();
    it.passes(RESPONSE - 1);
    assert_eq!(it.did(), ["connect 1 to h:1"]);
    it.passes(1);
    let why = "h:1: no connection within 5s";
    let failed = format!("call 1: cannot connect to the server: {why}");
    assert_eq!(
        it.did(),
        ["close 1", &*format!("not connected: {why}"), &*failed]
    );
    it.passes(20);
    it.passes(RESPONSE - 100);
    it.opens(2);
    it.passes(RESPONSE - 1);
    assert_eq!(it.did(), ["connect 2 to h:1"]);
    it.passes(1);
    let why = "not connected: h:1: no answer within 5s";
    assert_eq!(it.did(), ["close 2", why]);
}

#[test]
fn ended_connections_leave_nothing() {
    let mut it = Played::connected();
    it.ends(1);
    for number in 2..200 {
        it.passes(1000);
        it.ends(number);
    }
    // Only one timer is set, for the next attempt.
    it.passes(1000);
    let limit = it.endpoint.next_deadline().unwrap() - it.now();
    assert!(limit > Duration::from_millis(RESPONSE - 1000), "{limit:?}");
}

#[test]
fn settings_that_users_choose_are_checked() {
    let named = |name: String| Settings {
        name: Some(name),
        ..Settings::default()
    };
    for (name, is_name) in [
        ("n".to_owned(), true),
        ("n".repeat(64), true),
        ("n".repeat(65), false),
        ("a b".to_owned(), false),
        ("rlock:n".to_owned(), false),
    ] {
        assert_eq!(named(name.clone()).check().is_ok(), is_name, "{name}");
    }
    let mut settings = Settings::default();
    assert!(settings.check().is_ok());
    settings.limits.replication = Duration::ZERO;
    assert!(settings.check().is_err());
}
