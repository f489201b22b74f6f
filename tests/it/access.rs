//! Who may do what, and what the server knows of the commands.

use redis::Value;

use crate::client::{Client, text};
use crate::contest::Contest;
use crate::server::Server;

const COMMANDS: [&str; 7] = [
    "rlock.acquire",
    "rlock.renew",
    "rlock.release",
    "rlock.cancel",
    "rlock.force",
    "rlock.info",
    "rlock.help",
];

/// A connection as a user with these rights.
fn user(server: &Server, rights: &str) -> Client {
    assert_eq!(
        server.ask(&format!("ACL SETUSER u reset on nopass {rights}")),
        "OK"
    );
    let client = server.client();
    assert_eq!(client.ask("AUTH u any"), "OK");
    client
}

/// The fields of `COMMAND INFO`.
fn information(server: &Server, command: &str) -> Vec<Value> {
    match server.admin().call(&["COMMAND", "INFO", command]) {
        Value::Array(mut infos) => match infos.pop() {
            Some(Value::Array(fields)) => fields,
            other => panic!("{command} is not known: {other:?}"),
        },
        other => panic!("no list: {other:?}"),
    }
}

#[track_caller]
fn denied(client: &Client, line: &str) {
    let answer = client.ask(line);
    assert!(answer.starts_with("NOPERM "), "{line}: {answer}");
}

#[test]
fn right_to_the_key_is_needed_and_nothing_is_done_without_it() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let u = user(&server, "+@all ~mine:* &*");
    for line in [
        "RLOCK.ACQUIRE k owner-a 60000",
        "RLOCK.ACQUIRE k owner-u 60000 WAIT 0",
        "RLOCK.ACQUIRE free owner-u 60000",
        "RLOCK.RENEW k owner-a 60000",
        "RLOCK.RELEASE k owner-a",
        "RLOCK.CANCEL k owner-b",
        "RLOCK.FORCE k",
        "RLOCK.INFO k",
    ] {
        denied(&u, line);
    }
    assert_eq!(server.queued("k"), 1);
    assert_eq!(server.ask("HGET k owner-a"), "1");
    assert_eq!(server.ask("DBSIZE"), "1");
    u.number("RLOCK.ACQUIRE mine:k owner-u 60000 WAIT 0");
    drop(contest);
}

#[test]
fn right_to_read_is_enough_to_ask_and_not_to_take() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let u = user(&server, "+@all %R~k &*");
    assert!(u.ask("RLOCK.INFO k").contains("owner-a"));
    denied(&u, "RLOCK.ACQUIRE k owner-u 60000");
    denied(&u, "RLOCK.RENEW k owner-a 60000");
    denied(&u, "RLOCK.RELEASE k owner-a");
    denied(&u, "RLOCK.FORCE k");
    drop(contest);
}

#[test]
fn right_to_the_command_is_needed() {
    let server = Server::start();
    let u = user(&server, "~* &* -@all +rlock.acquire +rlock.info");
    u.number("RLOCK.ACQUIRE k owner-u 60000");
    denied(&u, "RLOCK.RELEASE k owner-u");
    denied(&u, "RLOCK.FORCE k");
    assert_eq!(server.ask("HGET k owner-u"), "1");
}

#[test]
fn right_to_the_channel_is_needed_for_notify_only() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let u = user(&server, "+@all ~* resetchannels &mine:*");
    denied(&u, "RLOCK.ACQUIRE k owner-u 60000 WAIT 0 NOTIFY yours");
    denied(&u, "RLOCK.ACQUIRE free owner-u 60000 NOTIFY yours");
    denied(&u, "RLOCK.ACQUIRE free owner-u 60000 WAIT 0 NOTIFY yours");
    assert_eq!(server.queued("k"), 1);
    assert_eq!(server.ask("EXISTS free"), "0");
    assert_eq!(server.counter("watches"), 0);
    assert_eq!(
        u.ask("RLOCK.ACQUIRE k owner-u 60000 WAIT 0 NOTIFY mine:c"),
        "WAITING"
    );
    // To wait, and to release with its message, needs no right to any channel.
    u.send("RLOCK.ACQUIRE k owner-v 60000 WAIT 0");
    server.await_queued("k", 3);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    u.fence();
    let mut heard = server.listen_to_unlocks();
    assert_eq!(u.ask("RLOCK.RELEASE k owner-v"), "0");
    assert_eq!(heard.message(), "0");
}

#[test]
fn categories_are_those_of_the_commands_nature() {
    let server = Server::start();
    // Redis 7.0 lets no module say them.
    if !server.is_at_least((7, 2), (7, 2)) {
        return;
    }
    let has = |command: &str, category: &str| {
        let categories = text(&information(&server, command)[6]);
        let mut categories = categories.trim_matches(['[', ']']).split(' ');
        categories.any(|name| name == category)
    };
    for command in COMMANDS {
        let is_dangerous = command == "rlock.force";
        assert_eq!(has(command, "@dangerous"), is_dangerous, "{command}");
    }
    for command in [
        "rlock.acquire",
        "rlock.renew",
        "rlock.release",
        "rlock.force",
    ] {
        assert!(has(command, "@write"), "{command}");
    }
    assert!(has("rlock.info", "@read"));
    assert!(has("rlock.acquire", "@blocking"));
    // They count in the rights of a user.
    let u = user(&server, "~* &* +@all -@dangerous");
    u.number("RLOCK.ACQUIRE k owner-u 60000");
    denied(&u, "RLOCK.FORCE k");
}

#[test]
fn server_finds_the_keys_of_each_command() {
    let server = Server::start();
    for line in [
        "RLOCK.ACQUIRE k owner-a 1000 WAIT 0 NOTIFY c",
        "RLOCK.RENEW k owner-a 1000",
        "RLOCK.RELEASE k owner-a ALL",
        "RLOCK.CANCEL k owner-a",
        "RLOCK.FORCE k",
        "RLOCK.INFO k",
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
}

#[test]
fn commands_are_known_with_their_flags() {
    let server = Server::start();
    for (command, expected, absent) in [
        (
            "rlock.acquire",
            &["write", "denyoom", "blocking"][..],
            "readonly",
        ),
        ("rlock.renew", &["write"], "denyoom"),
        ("rlock.release", &["write"], "denyoom"),
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
            let said = field(name).map(|(_, said)| text(said)).unwrap_or_default();
            assert!(!said.is_empty(), "{command} has a {name}");
        }
        let arguments = field("arguments")
            .map(|(_, arguments)| text(arguments))
            .unwrap_or_default();
        let expected: &[&str] = match command {
            "rlock.acquire" => &[
                "key", "owner", "lease-ms", "ONCE", "WAIT", "wait-ms", "NOTIFY", "channel",
            ],
            "rlock.renew" => &["key", "owner", "lease-ms"],
            "rlock.release" => &["key", "owner", "ALL"],
            "rlock.cancel" => &["key", "owner"],
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
