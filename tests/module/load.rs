//! Loading, and that nothing unloads the module.

use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::Client;
use rlock_testkit::{Setup, module};

#[test]
fn module_is_never_unloaded() {
    let server = Server::start();
    let transaction = server.client();
    transaction.ask("MULTI");
    assert_eq!(transaction.ask("RLOCK.ACQUIRE k owner-a 60000"), "QUEUED");
    assert_eq!(transaction.ask("MODULE UNLOAD rlock"), "QUEUED");
    for unload in [server.ask("MODULE UNLOAD rlock"), transaction.ask("EXEC")] {
        assert!(unload.contains("ERR "), "{unload}");
    }
    assert_eq!(server.owners("k"), ["owner-a"]);
    assert!(server.log().contains("MODULE UNLOAD rlock is refused"));
    // Some servers crash of a rule that names a command, and some refuse by themselves.
    server.ask("ACL SETUSER application on >a-password ~* -@all +rlock.acquire");
    assert!(server.ask("MODULE UNLOAD rlock").starts_with("ERR "));
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
fn load_that_fails_leaks_no_memory() {
    const TIMES: i64 = 20;
    const BYTES_MAX: i64 = 50;
    let server = Setup::new().without_module().start();
    let load = format!(
        "MODULE LOAD {} channel-prefix prefix publish wrong",
        module().display()
    );
    let used = || {
        let used = server.info("memory", "used_memory");
        used.parse::<i64>().expect("a number")
    };
    let fail = || {
        let refused = server.ask(&load);
        assert!(refused.starts_with("ERR "), "{refused}");
    };
    (0..5).for_each(|_| fail());
    let before = used();
    (0..TIMES).for_each(|_| fail());
    let bytes = (used() - before) / TIMES;
    assert!(bytes < BYTES_MAX, "{bytes} bytes are left of each time");
}
