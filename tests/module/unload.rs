//! Loading and unloading.

use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually, request, words};
use rlock_testkit::{Setup, module};

#[test]
fn unload_with_waiters_is_refused_and_has_no_effect() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut subscriber = server.listen(&["c"]);
    let n = server.client();
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    let answer = server.ask("MODULE UNLOAD rlock");
    assert!(answer.starts_with("ERR "), "{answer}");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    assert_eq!(server.queued("k"), 1);
    // A request that waits by a channel also counts as a waiter.
    let answer = server.ask("MODULE UNLOAD rlock");
    assert!(answer.starts_with("ERR "), "{answer}");
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert!(subscriber.message().starts_with("grant "));
}

#[test]
fn module_can_be_unloaded_soon_after_the_last_waiter_has_disconnected() {
    let mut server = Server::start();
    let holder = server.client();
    assert!(holder.number("RLOCK.ACQUIRE k owner-a 60000") > 0);
    let waiter = server.client();
    waiter.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    server.await_queued("k", 1);
    waiter.close();
    server.await_queued("k", 0);
    eventually("nothing is left to wait for", || {
        server.ask("MODULE UNLOAD rlock") == "OK"
    });
    server.forget_module();
}

#[test]
fn unload_in_the_turn_of_a_key_event_leaves_the_server_alive() {
    for _ in 0..3 {
        let mut server = Server::start();
        let (a, asleep) = (server.client(), server.client());
        a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
        // The key event wakes the event loop, which handles the wake-up after it has read what arrived during the
        // sleep.
        a.send_bytes(&[request(&words("DEBUG SLEEP 0.3")), request(&words("DEL k"))].concat());
        asleep.send("MODULE UNLOAD rlock");
        let answer = asleep.answer();
        assert_eq!(a.answer(), "OK");
        assert_eq!(a.answer(), "1");
        if answer == "OK" {
            server.forget_module();
        }
        eventually("nothing is left to wait for", || {
            answer == "OK" || server.ask("MODULE UNLOAD rlock") == "OK"
        });
        server.forget_module();
        assert_eq!(server.ask("PING"), "PONG");
    }
}

#[test]
fn module_can_be_loaded_into_a_running_server() {
    let server = Setup::new().without_module().start();
    assert!(server.ask("RLOCK.HELP").starts_with("ERR "));
    let path = module().to_str().expect("a path of text");
    assert_eq!(
        server.ask(&format!("MODULE LOAD {path} max-waiters 5")),
        "OK"
    );
    assert_eq!(
        server.ask("CONFIG GET rlock.max-waiters"),
        "[rlock.max-waiters 5]"
    );
    let contest = Contest::on(&server);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    assert_eq!(server.counter("panics"), 0);
    // A second load is refused.
    assert!(
        server
            .ask(&format!("MODULE LOAD {path}"))
            .starts_with("ERR ")
    );
}

#[test]
fn settings_are_taken_from_the_loadmodule_line() {
    let server = Setup::new()
        .module_arguments("max-lease-ms 5000 publish none channel-prefix my-prefix max-watches 7 yield-after 0 deadlock-detection no")
        .start();
    for (name, value) in [
        ("max-lease-ms", "5000"),
        ("publish", "none"),
        ("channel-prefix", "my-prefix"),
        ("max-watches", "7"),
        ("yield-after", "0"),
        ("deadlock-detection", "no"),
    ] {
        let shown = server.ask(&format!("CONFIG GET rlock.{name}"));
        assert_eq!(shown, format!("[rlock.{name} {value}]"));
    }
}

#[test]
fn start_fails_with_a_line_in_the_log_when_the_loadmodule_line_is_wrong() {
    for (arguments, named) in [
        ("no-such-setting 5", "no-such-setting"),
        ("max-waiters", "max-waiters"),
        ("max-waiters 0", "max-waiters"),
        ("max-waiters many", "max-waiters"),
        ("publish loudly", "publish"),
        ("yield-after 1000001", "yield-after"),
        ("deadlock-detection maybe", "deadlock-detection"),
        ("max-waiters 5 max-watches 10000001", "max-watches"),
        ("%n%s 5", "%n%s"),
    ] {
        let log = Setup::new().module_arguments(arguments).try_start().err();
        let log = log.unwrap_or_else(|| panic!("started with {arguments}"));
        assert!(log.contains(named), "{arguments}:\n{log}");
        for sign in ["ASSERTION FAILED", "crashed", "panicked"] {
            assert!(!log.contains(sign), "{arguments}:\n{log}");
        }
    }
}

#[test]
fn example_configuration_starts_a_server() {
    let example = include_str!("../../redis.conf.example");
    let path = module().to_str().expect("a path of text");
    let example = example.replace("/usr/lib/redis/modules/librlock.so", path);
    let mut setup = Setup::new().without_module();
    for line in example.lines() {
        setup = setup.line(line);
    }
    let server = setup.start();
    assert_eq!(server.counter("eviction_risk"), 0);
    let settings = server.ask("CONFIG GET rlock.*");
    let settings = settings
        .trim_matches(['[', ']'])
        .split(' ')
        .collect::<Vec<_>>();
    let plain = Server::start();
    for name in settings.iter().step_by(2) {
        let get = format!("CONFIG GET {name}");
        assert_eq!(server.ask(&get), plain.ask(&get));
    }
    // Any other line changes a setting, and names the server's behaviour without the line.
    let lines: Vec<_> = example.lines().collect();
    let others = lines.windows(2).filter(|pair| {
        let known = ["#", "rlock.", "loadmodule "];
        !pair[1].is_empty() && !known.iter().any(|known| pair[1].starts_with(known))
    });
    for pair in others {
        let (name, _) = pair[1].split_once(' ').expect("a name and a value");
        let without = pair[0].split_once("Without the line: ");
        let without = without.and_then(|(_, rest)| rest.split_once('.'));
        let without = without.unwrap_or_else(|| panic!("{name}: what without the line?"));
        let expected = format!("[{name} {}]", without.0);
        assert_eq!(plain.ask(&format!("CONFIG GET {name}")), expected);
    }
}

#[test]
fn example_configuration_grants_its_users_the_documented_permissions() {
    let example = include_str!("../../redis.conf.example");
    let users = example
        .lines()
        .filter_map(|line| line.strip_prefix("#     user "));
    let setup = users.fold(Setup::new(), |setup, user| {
        setup.line(&format!("user {user}"))
    });
    let server = setup.start();
    let shop: Client = server.client();
    assert_eq!(shop.ask("AUTH application a-password"), "OK");
    shop.number("RLOCK.ACQUIRE lock:k owner-a 60000 NOTIFY rlock:client:1");
    assert_eq!(
        shop.ask("RLOCK.ACQUIRE lock:k owner-b 60000 WAIT 0 NOTIFY rlock:client:1"),
        "WAITING"
    );
    assert!(shop.ask("RLOCK.FORCE lock:k").starts_with("NOPERM "));
    assert!(
        shop.ask("RLOCK.ACQUIRE k owner-a 60000")
            .starts_with("NOPERM ")
    );
    let operator = server.client();
    assert_eq!(operator.ask("AUTH operator a-password"), "OK");
    assert!(
        operator
            .ask("RLOCK.ACQUIRE k owner-a 60000")
            .starts_with("NOPERM ")
    );
    assert_eq!(operator.ask("RLOCK.FORCE lock:k"), "1");
}

#[test]
fn loading_and_unloading_leaks_no_memory() {
    const TIMES: i64 = 20;
    const BYTES_MAX: i64 = 50;
    let mut server = Server::start();
    let load = format!("MODULE LOAD {}", module().display());
    let used = || {
        let used = server.info("memory", "used_memory");
        used.parse::<i64>().expect("a number")
    };
    let load_and_unload = || {
        server.ask("CONFIG SET rlock.channel-prefix prefix");
        server.ask("RLOCK.ACQUIRE k owner-a 60000");
        server.ask("RLOCK.RELEASE k owner-a");
        assert_eq!(server.ask("MODULE UNLOAD rlock"), "OK");
        let refused = server.ask(&format!("{load} channel-prefix prefix publish wrong"));
        assert!(refused.starts_with("ERR "), "{refused}");
        assert_eq!(server.ask(&load), "OK");
    };
    (0..5).for_each(|_| load_and_unload());
    let before = used();
    (0..TIMES).for_each(|_| load_and_unload());
    let bytes = (used() - before) / TIMES;
    assert!(bytes < BYTES_MAX, "{bytes} bytes are left of each time");
    server.assert_well();
}
