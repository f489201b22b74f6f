//! Servers on which commands are renamed or disabled.

use rlock_testkit::Setup;

#[test]
fn module_requires_the_commands_that_it_replicates() {
    for command in ["HSET", "HDEL", "DEL", "PEXPIREAT", "PUBLISH", "SPUBLISH"] {
        for name in ["\"\"", "another"] {
            let started = Setup::new()
                .line(&format!("rename-command {command} {name}"))
                .try_start();
            let log = started.err();
            let log = log.unwrap_or_else(|| panic!("started without {command}"));
            assert!(log.contains(&format!("{command} ")), "{command}:\n{log}");
            for sign in ["ASSERTION FAILED", "crashed", "panicked"] {
                assert!(!log.contains(sign), "{command}:\n{log}");
            }
        }
    }
}

#[test]
fn other_commands_may_have_other_names() {
    let setup = ["CONFIG", "EXISTS", "COMMAND", "SET", "FLUSHALL", "KEYS"];
    let setup = setup.iter().fold(Setup::new(), |setup, command| {
        setup.line(&format!("rename-command {command} \"\""))
    });
    let server = setup.start();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
}
