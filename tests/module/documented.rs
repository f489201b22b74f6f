//! What the server reports about the commands: keys, flags and documentation.

use redis::Value;

use rlock_testkit::Server;
use rlock_testkit::client::text;

pub(crate) const COMMANDS: [&str; 12] = [
    "rlock.acquire",
    "rlock.renew",
    "rlock.release",
    "rlock.downgrade",
    "rlock.macquire",
    "rlock.mrenew",
    "rlock.mrelease",
    "rlock.cancel",
    "rlock.force",
    "rlock.info",
    "rlock.list",
    "rlock.help",
];

/// The fields of `COMMAND INFO`.
pub(crate) fn information(server: &Server, command: &str) -> Vec<Value> {
    match server.connection().call(&["COMMAND", "INFO", command]) {
        Value::Array(mut infos) => match infos.pop() {
            Some(Value::Array(fields)) => fields,
            other => panic!("{command} is not known: {other:?}"),
        },
        other => panic!("no list: {other:?}"),
    }
}

#[test]
fn server_finds_the_keys_of_each_command() {
    let server = Server::start();
    for line in [
        "RLOCK.ACQUIRE k owner-a 1000 WAIT 0 NOTIFY c",
        "RLOCK.RENEW k owner-a 1000 FENCE 5 NOTIFY c BIND 0",
        "RLOCK.RELEASE k owner-a ALL FENCE 5",
        "RLOCK.ACQUIRE k owner-a 1000 SHARED LIMIT 5 PERMITS 2 BIND 0",
        "RLOCK.DOWNGRADE k owner-a",
        "RLOCK.CANCEL k owner-a",
        "RLOCK.FORCE k",
        "RLOCK.INFO k",
        "RLOCK.MACQUIRE owner-a 1000 1 k",
    ] {
        assert_eq!(
            server.ask(&format!("COMMAND GETKEYS {line}")),
            "[k]",
            "{line}"
        );
    }
    let flags = |line: &str| server.ask(&format!("COMMAND GETKEYSANDFLAGS {line}"));
    assert!(flags("RLOCK.ACQUIRE k owner-a 1000").contains("RW"));
    assert!(flags("RLOCK.FORCE k").contains("RW"));
    assert!(flags("RLOCK.INFO k").contains("RO"));
    for line in [
        "RLOCK.MACQUIRE owner-a 1000 3 k1 k2 k3 REENTER WAIT 0 KEEP 1 NOTIFY c",
        "RLOCK.MRENEW owner-a 1000 3 k1 k2 k3 SNOTIFY c",
        "RLOCK.MRELEASE owner-a 3 k1 k2 k3 ALL FENCE 5",
    ] {
        let keys = server.ask(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(keys, "[k1 k2 k3]", "{line}");
        assert_eq!(flags(line).matches("RW").count(), 3, "{line}");
    }
}

#[test]
fn commands_have_their_flags() {
    let server = Server::start();
    for (command, expected, absent) in [
        (
            "rlock.acquire",
            &["write", "denyoom", "blocking"][..],
            "readonly",
        ),
        ("rlock.renew", &["write"], "denyoom"),
        ("rlock.release", &["write"], "denyoom"),
        ("rlock.downgrade", &["write"], "denyoom"),
        (
            "rlock.macquire",
            &["write", "denyoom", "blocking"],
            "readonly",
        ),
        ("rlock.mrenew", &["write"], "denyoom"),
        ("rlock.mrelease", &["write"], "denyoom"),
        ("rlock.list", &["readonly"], "write"),
        ("rlock.force", &["write"], "denyoom"),
        ("rlock.info", &["readonly"], "write"),
    ] {
        let info = information(&server, command);
        let flags = text(&info[2]);
        let flags = flags
            .trim_matches(['[', ']'])
            .split(' ')
            .collect::<Vec<_>>();
        for flag in expected {
            assert!(flags.contains(flag), "{command} is {flag}: {flags:?}");
        }
        assert!(
            !flags.contains(&absent),
            "{command} is not {absent}: {flags:?}"
        );
    }
}

#[test]
fn commands_are_documented_in_the_server() {
    let server = Server::start();
    let c = server.client_resp3();
    for command in COMMANDS {
        let Value::Map(docs) = c.call(&["COMMAND", "DOCS", command]) else {
            panic!("a map")
        };
        let Some((_, Value::Map(doc))) = docs.first() else {
            panic!("{command} is documented")
        };
        let field = |name: &str| doc.iter().find(|(field, _)| text(field) == name);
        for name in ["summary", "since", "complexity"] {
            let value = field(name)
                .map(|(_, value)| text(value))
                .unwrap_or_default();
            assert!(!value.is_empty(), "{command} has a {name}");
        }
        let arguments = field("arguments")
            .map(|(_, arguments)| text(arguments))
            .unwrap_or_default();
        let expected: &[&str] = match command {
            "rlock.acquire" => &[
                "key", "owner", "lease-ms", "SHARED", "LIMIT", "PERMITS", "REENTER", "WAIT",
                "wait-ms", "KEEP", "NOTIFY", "SNOTIFY", "channel", "BIND", "grace-ms",
            ],
            "rlock.macquire" => &[
                "owner", "lease-ms", "numkeys", "key", "REENTER", "WAIT", "wait-ms", "KEEP",
                "NOTIFY", "SNOTIFY", "channel",
            ],
            "rlock.mrenew" => &["owner", "lease-ms", "numkeys", "key", "NOTIFY", "SNOTIFY"],
            "rlock.mrelease" => &["owner", "numkeys", "key", "ALL", "FENCE"],
            "rlock.list" => &["COUNT"],
            "rlock.renew" => &[
                "key",
                "owner",
                "lease-ms",
                "FENCE",
                "channel-or-shard-channel",
                "NOTIFY",
                "SNOTIFY",
                "BIND",
            ],
            "rlock.release" => &["key", "owner", "all-or-permits", "ALL", "PERMITS", "FENCE"],
            "rlock.cancel" | "rlock.downgrade" => &["key", "owner"],
            "rlock.force" | "rlock.info" => &["key"],
            _ => &[],
        };
        for argument in expected {
            assert!(
                arguments.contains(argument),
                "{command} has {argument}: {arguments}"
            );
        }
    }
}

#[test]
fn help_names_each_command() {
    let server = Server::start();
    let Value::Array(lines) = server.connection().call(&["RLOCK.HELP"]) else {
        panic!("a list")
    };
    let lines = lines.iter().map(text).collect::<Vec<_>>();
    for command in [
        "ACQUIRE",
        "RENEW",
        "RELEASE",
        "CANCEL",
        "DOWNGRADE",
        "FORCE",
        "MACQUIRE",
        "MRENEW",
        "MRELEASE",
        "INFO",
        "LIST",
        "HELP",
    ] {
        let named = lines
            .iter()
            .filter(|line| line.starts_with(&format!("RLOCK.{command}")));
        assert_eq!(named.count(), 1, "{command} has a line");
    }
}

#[test]
fn only_commands_that_do_not_read_all_holders_are_fast() {
    let server = Server::start();
    for command in COMMANDS {
        let flags = text(&information(&server, command)[2]);
        let is_fast = matches!(
            command.trim_start_matches("rlock."),
            "acquire" | "renew" | "release" | "downgrade" | "cancel" | "help"
        );
        assert_eq!(flags.contains("fast"), is_fast, "{command}: {flags}");
    }
}
