//! Each setting at its limits and one past them, and the effect of each.

use rlock_core::{Setting, SettingKind};

use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::eventually;

/// The values of a setting: its default, valid values, and invalid values.
fn values(setting: Setting) -> (String, Vec<String>, Vec<String>) {
    let owned = |words: &[&str]| words.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
    match setting.kind() {
        SettingKind::Number {
            default, min, max, ..
        } => {
            let mut bad = owned(&["-1", "x", "\"\"", "1.5", "99999999999999999999"]);
            bad.extend(min.checked_sub(1).map(|it| it.to_string()));
            bad.push((u64::from(max) + 1).to_string());
            (
                default.to_string(),
                [min, max].map(|it| it.to_string()).into(),
                bad,
            )
        }
        SettingKind::Choice(words) => (
            words[0].to_owned(),
            owned(words),
            owned(&["loudly", "\"\"", "0"]),
        ),
        SettingKind::Flag { default } => {
            let default = if default { "yes" } else { "no" };
            (
                default.to_owned(),
                owned(&["no", "yes"]),
                owned(&["maybe", "1", "\"\""]),
            )
        }
        SettingKind::Text { default, len_max } => {
            let (longest, too_long) = ("p".repeat(len_max), "p".repeat(len_max + 1));
            let bad = vec![too_long, "\"\"".to_owned()];
            (default.to_owned(), owned(&["p", &longest, "%n%s"]), bad)
        }
    }
}

#[test]
fn settings_are_accepted_at_their_limits_and_refused_past_them() {
    let server = Server::start();
    for setting in Setting::ALL {
        let name = setting.name();
        let (default, good, bad) = values(setting);
        let get = || server.ask(&format!("CONFIG GET rlock.{name}"));
        assert_eq!(get(), format!("[rlock.{name} {default}]"));
        for value in good {
            let set = server.ask(&format!("CONFIG SET rlock.{name} {value}"));
            assert_eq!(set, "OK", "{name} {value}");
            assert_eq!(get(), format!("[rlock.{name} {value}]"));
        }
        let before = get();
        for value in bad {
            let answer = server.ask(&format!("CONFIG SET rlock.{name} {value}"));
            assert!(answer.starts_with("ERR "), "{name} {value}: {answer}");
            assert_eq!(get(), before, "{name} {value}");
        }
    }
    let all = server.ask("CONFIG GET rlock.*");
    assert_eq!(all.split(' ').count(), 2 * Setting::ALL.len());
}

#[test]
fn loadmodule_line_accepts_settings_at_their_limits_and_refuses_them_past_them() {
    for setting in Setting::ALL {
        let name = setting.name();
        let (_, good, bad) = values(setting);
        // The server's configuration file cannot contain an empty word or a sign.
        let shown = |value: &String| value.chars().all(|it| it.is_alphanumeric());
        for value in good.iter().filter(|it| shown(it)) {
            let given = match setting.kind() {
                SettingKind::Text { .. } => value.clone(),
                _ => value.to_uppercase(),
            };
            let line = format!("{name} {given}");
            let server = Setup::new().module_arguments(&line).start();
            let get = server.ask(&format!("CONFIG GET rlock.{name}"));
            assert_eq!(get, format!("[rlock.{name} {value}]"));
        }
        for value in bad.iter().filter(|it| shown(it)) {
            let line = format!("{name} {value}");
            let log = Setup::new().module_arguments(&line).try_start().err();
            let log = log.unwrap_or_else(|| panic!("started with {line}"));
            assert!(log.contains(&format!("{name} ")), "{line}:\n{log}");
        }
    }
}

#[test]
fn settings_survive_a_rewrite_of_the_configuration() {
    let mut server = Server::start();
    server.ask("CONFIG SET rlock.max-waiters 77 rlock.publish both");
    assert_eq!(server.ask("CONFIG REWRITE"), "OK");
    let written = std::fs::read_to_string(server.directory().join("server.conf"));
    let written = written.expect("it was written");
    assert!(written.contains("rlock.max-waiters 77") && written.contains("rlock.publish both"));
    server.shut_down();
}

#[test]
fn one_waiter_more_than_the_limit_is_refused() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut subscriber = server.listen(&["c"]);
    assert_eq!(server.ask("CONFIG SET rlock.max-waiters 3"), "OK");
    let n = server.client();
    n.number("RLOCK.ACQUIRE k2 owner-a 60000");
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n1 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k2 owner-n2 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    for line in [
        "RLOCK.ACQUIRE k owner-n3 60000 WAIT 0",
        "RLOCK.ACQUIRE k2 owner-n3 60000 WAIT 0 NOTIFY c",
    ] {
        let answer = n.ask(line);
        assert!(
            answer.starts_with("QUEUEFULL ") && answer.contains('3'),
            "{answer}"
        );
    }
    assert_eq!(server.counter("waiters"), 3);
    assert_eq!(server.counter("watches"), 2);
    // A takeover of the owner's own place needs no other place; a try needs none.
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n1 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    assert_eq!(n.ask("RLOCK.ACQUIRE k owner-n3 60000"), "nil");
    // A lower limit does not affect existing waiters.
    assert_eq!(server.ask("CONFIG SET rlock.max-waiters 1"), "OK");
    assert_eq!(server.counter("waiters"), 3);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert!(subscriber.message().starts_with("grant "));
    assert!(
        n.ask("RLOCK.ACQUIRE k2 owner-n3 60000 WAIT 0")
            .starts_with("QUEUEFULL ")
    );
    n.number("RLOCK.ACQUIRE free owner-n3 60000 WAIT 0");
}

#[test]
fn lower_lease_limit_does_not_affect_held_locks() {
    let server = Server::start();
    let contest = Contest::on(&server);
    assert_eq!(server.ask("CONFIG SET rlock.max-lease-ms 1000"), "OK");
    assert!(server.connection().number("PTTL k") > 1000);
    assert!(
        contest
            .holder
            .ask("RLOCK.RENEW k owner-a 60000")
            .starts_with("ERR ")
    );
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    // A request from before the lower limit is granted.
    assert!(server.connection().number("PTTL k") > 1000);
}

#[test]
fn grace_set_later_does_not_restart() {
    let server = Server::start();
    eventually("the server is up for a while", || {
        server.info("server", "uptime_in_seconds") != "0"
    });
    assert_eq!(server.ask("CONFIG SET rlock.startup-grace-ms 1"), "OK");
    server.connection().number("RLOCK.ACQUIRE k owner-a 60000");
}
