//! Messages to clients that do not wait in the server: their channel, their kind, and when they are sent.

use rlock_testkit::Server;
use rlock_testkit::client::Subscriber;

fn free_once(server: &Server, key: &str) {
    server
        .connection()
        .number(&format!("RLOCK.ACQUIRE {key} owner-a 60000"));
    assert_eq!(server.ask(&format!("RLOCK.RELEASE {key} owner-a")), "0");
}

#[test]
fn channel_is_named_after_the_key() {
    let server = Server::start();
    let mut subscriber = server.listen_to_unlocks();
    for (key, channel) in [
        ("k", "redisson_lock__channel:{k}"),
        ("{tag}:k", "redisson_lock__channel:{tag}:k"),
        ("a{b", "redisson_lock__channel:a{b"),
        ("a}b", "redisson_lock__channel:{a}b}"),
        ("{}", "redisson_lock__channel:{}"),
        ("%n%s", "redisson_lock__channel:{%n%s}"),
    ] {
        free_once(&server, key);
        assert_eq!(subscriber.messages(), [format!("{channel}: 0")]);
    }
}

#[test]
fn prefix_is_a_setting() {
    let server = Server::start();
    let mut subscriber = server.listen(&["my-prefix:{k}", "redisson_lock__channel:{k}"]);
    assert_eq!(
        server.ask("CONFIG SET rlock.channel-prefix my-prefix"),
        "OK"
    );
    free_once(&server, "k");
    assert_eq!(subscriber.messages(), ["my-prefix:{k}: 0"]);
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
