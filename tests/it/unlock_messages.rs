//! Messages to those who do not wait in the server: on which channel, of which kind, and when.

use crate::client::Subscriber;
use crate::contest::Contest;
use crate::server::Server;

fn free_once(server: &Server, key: &str) {
    server
        .admin()
        .number(&format!("RLOCK.ACQUIRE {key} owner-a 60000"));
    assert_eq!(server.ask(&format!("RLOCK.RELEASE {key} owner-a")), "0");
}

#[test]
fn channel_is_named_after_the_key() {
    let server = Server::start();
    let mut heard = server.listen_to_unlocks();
    for (key, channel) in [
        ("k", "redisson_lock__channel:{k}"),
        ("{tag}:k", "redisson_lock__channel:{tag}:k"),
        ("a{b", "redisson_lock__channel:a{b"),
        ("a}b", "redisson_lock__channel:{a}b}"),
        ("{}", "redisson_lock__channel:{}"),
        ("%n%s", "redisson_lock__channel:{%n%s}"),
    ] {
        free_once(&server, key);
        assert_eq!(heard.messages(), [format!("{channel}: 0")]);
    }
}

#[test]
fn prefix_is_a_setting() {
    let server = Server::start();
    let mut heard = server.listen(&["my-prefix:{k}", "redisson_lock__channel:{k}"]);
    assert_eq!(
        server.ask("CONFIG SET rlock.channel-prefix my-prefix"),
        "OK"
    );
    free_once(&server, "k");
    assert_eq!(heard.messages(), ["my-prefix:{k}: 0"]);
}

#[test]
fn kind_is_a_setting() {
    let server = Server::start();
    let channel = "redisson_lock__channel:{k}";
    let mut plain = server.listen(&[channel]);
    let mut sharded = Subscriber::listen(server.port(), "SSUBSCRIBE", &[channel]);
    let message = format!("{channel}: 0");
    for (kind, by_publish, by_spublish) in [
        ("spublish", 0, 1),
        ("both", 1, 1),
        ("none", 0, 0),
        ("publish", 1, 0),
    ] {
        assert_eq!(
            server.ask(&format!("CONFIG SET rlock.publish {kind}")),
            "OK"
        );
        free_once(&server, "k");
        assert_eq!(
            plain.messages(),
            vec![message.clone(); by_publish],
            "{kind}"
        );
        assert_eq!(
            sharded.messages(),
            vec![message.clone(); by_spublish],
            "{kind}"
        );
    }
}

#[test]
fn hand_off_and_ends_known_to_all_are_not_told() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut heard = server.listen_to_unlocks();
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    // Others have their own ways to hear of these.
    for end in ["DEL k", "FLUSHALL", "UNLINK k", "PEXPIRE k 1"] {
        server.ask("RLOCK.ACQUIRE k owner-a 60000");
        server.ask(end);
    }
    assert_eq!(heard.messages(), [""; 0]);
}

#[test]
fn earlier_end_is_told_once_and_a_later_one_not() {
    let server = Server::start();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 50000");
    let mut heard = server.listen_to_unlocks();
    a.number("RLOCK.RENEW k owner-a 60000");
    a.number("RLOCK.ACQUIRE k owner-a 70000");
    assert_eq!(heard.messages(), [""; 0]);
    for earlier in [
        "RLOCK.RENEW k owner-a 60000",
        "RLOCK.ACQUIRE k owner-a 50000",
        "RLOCK.ACQUIRE k owner-a 40000",
        "RLOCK.ACQUIRE k owner-a 30000 WAIT 0 NOTIFY c REENTER",
    ] {
        a.number(earlier);
        assert_eq!(heard.messages().len(), 1, "{earlier}");
    }
    a.ask("RLOCK.RELEASE k owner-a");
    assert_eq!(heard.messages(), [""; 0]);
}

#[test]
fn each_way_to_an_earlier_end_is_told_once() {
    let server = Server::start();
    let a = server.client();
    let mut heard = server.listen_to_unlocks();
    for (prepare, change, told) in [
        (
            "RLOCK.ACQUIRE k owner-a 60000 SHARED",
            "RLOCK.ACQUIRE k owner-a 30000",
            1,
        ),
        (
            "RLOCK.ACQUIRE k owner-a 60000",
            "RLOCK.RENEW k owner-a 30000 FENCE 1",
            1,
        ),
        (
            "RLOCK.ACQUIRE k owner-a 60000",
            "RLOCK.ACQUIRE k owner-a 30000 REENTER WAIT 0 KEEP 5",
            1,
        ),
        (
            "RLOCK.MACQUIRE owner-a 60000 2 k k2",
            "RLOCK.MACQUIRE owner-a 30000 2 k k2",
            2,
        ),
        (
            "RLOCK.MACQUIRE owner-a 60000 2 k k2",
            "RLOCK.MRENEW owner-a 30000 2 k k2",
            2,
        ),
        // None of these makes it end earlier.
        (
            "RLOCK.ACQUIRE k owner-a 60000",
            "RLOCK.RENEW k owner-a 90000",
            0,
        ),
        (
            "RLOCK.ACQUIRE k owner-a 60000",
            "RLOCK.DOWNGRADE k owner-a",
            0,
        ),
        ("RLOCK.ACQUIRE k owner-a 60000", "PEXPIRE k 30000", 0),
        (
            "RLOCK.ACQUIRE k owner-a 60000",
            "RLOCK.RENEW k owner-x 30000",
            0,
        ),
    ] {
        a.number(prepare);
        assert_eq!(heard.messages(), [""; 0], "{prepare}");
        a.ask(change);
        assert_eq!(heard.messages().len(), told, "{prepare}, {change}");
        server.ask("FLUSHALL");
    }
}

#[test]
fn shared_lock_is_told_to_end_earlier_when_its_longest_lease_is() {
    let server = Server::start();
    let a = server.client();
    let mut heard = server.listen_to_unlocks();
    a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
    a.number("RLOCK.ACQUIRE k owner-b 40000 SHARED");
    for (line, told) in [
        ("RLOCK.RENEW k owner-b 20000", 0),
        ("RLOCK.RENEW k owner-a 50000", 1),
        ("RLOCK.RENEW k owner-a 10000", 1),
        ("RLOCK.ACQUIRE k owner-b 5000 SHARED", 1),
        ("RLOCK.ACQUIRE k owner-b 50000 SHARED", 0),
    ] {
        a.number(line);
        assert_eq!(heard.messages().len(), told, "{line}");
    }
}
