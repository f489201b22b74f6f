//! `doctor` finds the risks of a server, and no others.

mod machine;
mod masters;

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use super::program::{Finished, finished, rlock, rlock_at};
use super::rights::{admit, assert_nothing_refused, url};
use super::server::Asks;
use rlock_testkit::{Server, Setup, free_port};

/// The checks that depend only on the version of the server.
const VERSIONS: [&str; 4] = ["CLIENT UNBLOCK", "ACL categories", "MOVE and COPY", "RESP3"];

/// A server without risks to locks.
fn good() -> Server {
    Setup::new()
        .settings(&[
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("rlock.max-waiters", "100"),
        ])
        .start()
}

/// The JSON of `doctor`, which exits with this code.
fn report(command: &mut Command, code: i32) -> Value {
    let ended = finished(command.args(["doctor", "--json"]));
    ended.assert_code(code);
    assert_eq!(ended.stderr, "");
    ended.json()
}

fn findings(master: &Value) -> &Vec<Value> {
    master["findings"].as_array().unwrap()
}

/// The severity of a check; none if the report does not have it.
fn severity<'a>(report: &'a Value, check: &str) -> Option<&'a str> {
    let mut findings = findings(&report["masters"][0]).iter();
    let finding = findings.find(|finding| finding["check"] == check)?;
    finding["severity"].as_str()
}

fn found<'a>(report: &'a Value, check: &str) -> &'a str {
    let mut findings = findings(&report["masters"][0]).iter();
    let finding = findings.find(|finding| finding["check"] == check);
    finding.unwrap_or_else(|| panic!("no {check} in {report}"))["found"]
        .as_str()
        .unwrap()
}

fn ask(server: &Server) -> Finished {
    finished(rlock(server).arg("doctor"))
}

#[test]
fn nothing_is_found_at_a_good_server() {
    let server = good();
    let report = report(&mut rlock(&server), 0);
    assert_eq!(report["problems"], 0);
    let findings = findings(&report["masters"][0]).iter();
    let bad: Vec<_> = findings
        .filter(|it| it["severity"] != "ok" && !VERSIONS.contains(&it["check"].as_str().unwrap()))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(report["masters"][0]["module"], env!("CARGO_PKG_VERSION"));
    let build = ["version", "commit"].map(|field| server.info("rlock", &format!("rlock_{field}")));
    let [version, commit] = build;
    assert_eq!(
        found(&report, "module"),
        format!("rlock {version} ({commit})")
    );
}

#[test]
fn each_risky_setting_is_found() {
    let server = good();
    let mut admin = server.admin();
    for (bad, check, expected) in [
        ("maxmemory-policy allkeys-lru", "eviction", "note"),
        (
            "maxmemory-policy volatile-ttl maxmemory 1gb",
            "eviction",
            "problem",
        ),
        ("maxmemory 1gb", "eviction", "ok"),
        ("maxmemory 1gb", "memory", "ok"),
        ("maxmemory 500kb", "memory", "warning"),
        ("appendfsync everysec", "persistence", "warning"),
        ("no-appendfsync-on-rewrite yes", "persistence", "warning"),
        ("appendonly no", "persistence", "warning"),
        (
            "appendfsync everysec rlock.startup-grace-ms 20000",
            "persistence",
            "note",
        ),
        (
            "appendfsync no rlock.startup-grace-ms 30000",
            "persistence",
            "ok",
        ),
        ("timeout 300", "idle connections", "warning"),
        ("tcp-keepalive 0", "keep-alive", "warning"),
        ("rlock.max-waiters 1000000", "connections", "note"),
        ("rlock.publish none", "unlock messages", "note"),
        ("rlock.channel-prefix other", "unlock messages", "note"),
        ("min-replicas-to-write 1", "replicas", "problem"),
    ] {
        let _: () = admin.run(&format!("CONFIG SET {bad}"));
        let code = i32::from(expected == "problem");
        let report = report(&mut rlock(&server), code);
        assert_eq!(severity(&report, check), Some(expected), "{bad}: {report}");
        let usual = "maxmemory-policy noeviction maxmemory 0 appendonly yes appendfsync always \
             no-appendfsync-on-rewrite no rlock.startup-grace-ms 0 timeout 0 tcp-keepalive 300 \
             rlock.max-waiters 100 rlock.publish auto \
             rlock.channel-prefix redisson_lock__channel min-replicas-to-write 0";
        let _: () = admin.run(&format!("CONFIG SET {usual}"));
    }
}

#[test]
fn text_has_the_worst_first_with_the_remedy_and_the_page() {
    let server = good();
    let mut admin = server.admin();
    let _: () = admin.run("CONFIG SET maxmemory 1gb maxmemory-policy allkeys-lru timeout 9");
    let ended = ask(&server);
    ended.assert_code(1);
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert!(
        lines[0].starts_with(&format!("127.0.0.1:{} (", server.port())),
        "{lines:#?}"
    );
    assert!(lines[0].contains("1 problem, "), "{lines:#?}");
    assert!(
        lines[2].starts_with("PROBLEM  eviction: maxmemory-policy allkeys-lru"),
        "{lines:#?}"
    );
    let at = |words: &str| {
        lines
            .iter()
            .position(|line| line.trim_start().starts_with(words))
    };
    let order = [
        "PROBLEM",
        "docs/operating.md#eviction",
        "warning",
        "timeout 0",
        "ok ",
    ];
    let places = order.map(|words| match words {
        "timeout 0" => lines.iter().position(|line| line.contains("`timeout 0`")),
        words => at(words),
    });
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?} {lines:#?}"
    );
    assert!(
        lines.iter().all(|line| line.chars().count() <= 100),
        "{lines:#?}"
    );
}

#[test]
fn a_grace_that_runs_and_connections_that_run_out_are_found() {
    let settings = [("rlock.startup-grace-ms", "3600000"), ("maxclients", "5")];
    let server = Setup::new().settings(&settings).start();
    let _others = [server.admin(), server.admin()];
    let report = report(&mut rlock(&server), 0);
    assert_eq!(severity(&report, "start grace"), Some("note"));
    assert!(found(&report, "start grace").contains("59m"), "{report}");
    assert_eq!(
        severity(&report, "free connections"),
        Some("warning"),
        "{report}"
    );
    assert_eq!(severity(&report, "persistence"), Some("ok"));
}

#[test]
fn a_server_without_the_module_is_a_problem_and_the_rest_is_examined() {
    let server = Setup::new().without_module().line("timeout 7").start();
    let report = report(&mut rlock(&server), 1);
    assert_eq!(severity(&report, "module"), Some("problem"));
    assert_eq!(severity(&report, "idle connections"), Some("warning"));
    assert_eq!(severity(&report, "rights"), None);
    assert_eq!(report["masters"][0]["module"], Value::Null);
}

/// What `doctor` prints for a user with these rights, on one line.
fn words_for(server: &Server, user: &str, rights: &str) -> String {
    let rule = format!("ACL SETUSER {user} reset on >a-password {rights}");
    let _: () = server.admin().run(&rule);
    let ended = finished(rlock_at(&url(server, user)).arg("doctor"));
    ended.assert_code(0);
    let words: Vec<_> = ended.stdout.split_whitespace().collect();
    words.join(" ")
}

/// The refused commands in `ACL LOG`.
fn refused(server: &Server) -> Vec<String> {
    let log: Vec<BTreeMap<String, redis::Value>> = server.admin().run("ACL LOG");
    let objects = log.iter().map(|entry| entry["object"].clone());
    let mut objects: Vec<_> = objects
        .map(|object| redis::from_redis_value(object).unwrap())
        .collect();
    objects.sort();
    objects
}

#[test]
fn the_documented_operator_sees_all_and_leaves_no_entry_in_acl_log() {
    let server = good();
    admit(&server, "");
    let report = report(&mut rlock_at(&url(&server, "operator")), 0);
    let mut findings = findings(&report["masters"][0]).iter();
    let warns = |it: &&Value| it["severity"] == "warning" && it["check"] != "MOVE and COPY";
    assert_eq!(findings.find(warns), None);
    assert_eq!(severity(&report, "rights"), Some("note"));
    let lacks = "user operator lacks RLOCK.ACQUIRE, RLOCK.RENEW, RLOCK.RELEASE, RLOCK.CANCEL, \
         RLOCK.DOWNGRADE, RLOCK.MACQUIRE, RLOCK.MRENEW, RLOCK.MRELEASE";
    assert_eq!(found(&report, "rights"), lacks);
    for check in ["module", "eviction", "persistence", "clock", "access"] {
        assert_eq!(severity(&report, check), Some("ok"), "{check}: {report}");
    }
    assert_nothing_refused(&server);
}

#[test]
fn missing_rights_are_named_without_an_entry_in_acl_log() {
    let server = good();
    let doctor = "+@connection +info +config|get +time +acl|whoami +acl|getuser +acl|dryrun";
    let lock = "+rlock.acquire +rlock.renew +rlock.release +rlock.cancel +subscribe";
    for (rights, lacking) in [
        ("&rlock:client:*", "lacks RLOCK.DOWNGRADE, RLOCK.MACQUIRE"),
        ("&other +@all", "lacks channels rlock:client:*"),
        ("&rlock:client:* +@all -subscribe", "lacks SUBSCRIBE"),
        ("&rlock:client:* +@all -rlock.renew", "lacks RLOCK.RENEW"),
        ("&rlock:client:* +@all -rlock.force", "lacks RLOCK.FORCE"),
    ] {
        let rights = format!("~job:* {doctor} {lock} {rights}");
        let words = words_for(&server, "app", &rights);
        assert!(
            words.contains(&format!("note rights: user app {lacking}")),
            "{words}"
        );
        assert!(!words.contains("not looked at"), "{words}");
    }
    let words = words_for(&server, "app", "~job:* &rlock:client:* +@all");
    assert!(
        words.contains("ok rights: user app may use all commands"),
        "{words}"
    );
    // A question that the user may not ask is not sent.
    let words = words_for(&server, "app", "~* &* +@all -config -time");
    let missing = "warning not looked at: CONFIG GET (NOPERM), TIME (NOPERM); the user needs \
         +config|get +time ";
    assert!(words.contains(missing), "{words}");
    assert!(!words.contains("persistence:"), "{words}");
    assert_nothing_refused(&server);
    let mut admin = server.admin();
    let changed: u64 = admin.gauge("acquires") + admin.gauge("force_releases");
    assert_eq!(changed, 0);
    assert_eq!(admin.run::<u64>("DBSIZE"), 0);
}

#[test]
fn a_user_without_rights_gets_a_warning_and_leaves_few_entries() {
    let server = good();
    let words = words_for(&server, "app", "~job:* resetchannels +@connection");
    let missing = "warning not looked at: ACL WHOAMI (NOPERM), ACL DRYRUN (not sent), \
         INFO (NOPERM), CONFIG GET (NOPERM), ACL GETUSER (NOPERM), TIME (NOPERM); the user needs \
         +acl|whoami +acl|dryrun +info +config|get +acl|getuser +time ";
    assert!(words.contains(missing), "{words}");
    assert!(
        words.contains("note rights: this user lacks RLOCK.ACQUIRE "),
        "{words}"
    );
    assert!(!words.contains(" ok "), "nothing was looked at: {words}");
    let questions = [
        "acl|getuser",
        "acl|whoami",
        "config|get",
        "info",
        "rlock.acquire",
        "time",
    ];
    assert_eq!(refused(&server), questions);
    // The commands that every program needs are checked anyway.
    let lock = "+rlock.acquire +rlock.renew +rlock.release +rlock.cancel";
    for (more, expected) in [
        ("", "note rights: this user lacks SUBSCRIBE "),
        (
            "+subscribe",
            "note rights: this user lacks channels rlock:client:* ",
        ),
        (
            "+subscribe &rlock:client:*",
            "ok rights: this user may lock",
        ),
    ] {
        let words = words_for(&server, "app", &format!("~rlock-doctor:* {lock} {more}"));
        assert!(words.contains(expected), "{words}");
    }
}

/// A server that lets everybody do everything.
fn open_to_all() -> Server {
    let settings = [("bind", "*"), ("protected-mode", "no")];
    let server = Setup::new().settings(&settings).start();
    admit(&server, "");
    server
}

#[test]
fn an_open_default_user_is_found() {
    let server = open_to_all();
    let operator = url(&server, "operator");
    let access = || {
        let report = report(&mut rlock_at(&operator), 0);
        severity(&report, "access").unwrap().to_owned()
    };
    let mut admin = server.admin();
    for (change, expected) in [
        ("CONFIG SET bind 127.0.0.1", "ok"),
        ("CONFIG SET bind *", "warning"),
        // The server then refuses every connection from another machine.
        ("CONFIG SET protected-mode yes", "note"),
        ("CONFIG SET bind 127.0.0.1", "ok"),
        ("CONFIG SET bind *", "note"),
        ("ACL SETUSER default off", "note"),
        ("ACL SETUSER default on", "note"),
        ("CONFIG SET protected-mode no", "warning"),
        ("CONFIG SET requirepass pw", "ok"),
        ("ACL SETUSER default nopass", "warning"),
        ("ACL SETUSER default off", "ok"),
    ] {
        let _: () = admin.run(change);
        assert_eq!(access(), expected, "{change}");
    }
    ask(&server).assert_code(123);
}

#[test]
fn the_remedies_for_the_default_user_work() {
    let server = open_to_all();
    let operator = url(&server, "operator");
    let open = report(&mut rlock_at(&operator), 0);
    assert_eq!(severity(&open, "access"), Some("warning"), "{open}");
    let mut findings = findings(&open["masters"][0]).iter();
    let finding = findings.find(|it| it["check"] == "access").unwrap();
    let remedy = finding["remedy"].as_str().unwrap();
    let commands: Vec<_> = remedy.split('`').skip(1).step_by(2).collect();
    let [setuser, line, requirepass] = commands[..] else {
        panic!("{remedy}");
    };
    assert_eq!(setuser.to_lowercase(), format!("acl set{line}"));
    let requirepass = format!("CONFIG SET {requirepass} pw");
    for (command, state) in [(setuser, "off"), (&requirepass, "with a password")] {
        let server = open_to_all();
        let _: () = server.admin().run(command);
        ask(&server).assert_code(123);
        let report = report(&mut rlock_at(&url(&server, "operator")), 0);
        assert_eq!(severity(&report, "access"), Some("ok"), "{command}");
        let expected = format!("user default {state}, protected-mode no");
        assert!(found(&report, "access").starts_with(&expected), "{report}");
    }
}

#[test]
fn an_unreachable_address_is_122() {
    let url = format!("redis://127.0.0.1:{}/", free_port());
    let ended = finished(rlock_at(&url).arg("doctor"));
    ended.assert_code(122);
    ended.assert_says("cannot reach the server");
    assert_eq!(ended.stdout, "");
}
