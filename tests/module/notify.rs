//! The messages on channels: their receivers, and when they end.

use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::{eventually, text};

#[test]
fn grant_is_skipped_when_its_listener_was_killed() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let _subscriber = server.listen(&["c"]);
    let n = server.client();
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    server.ask("CLIENT KILL TYPE pubsub");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    let mut unlocked = server.listen_to_unlocks();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert_eq!(unlocked.message(), "0");
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn listener_over_its_output_limit_loses_no_lock_for_others() {
    let server = Server::configured(&["client-output-buffer-limit pubsub 4096 0 0"]);
    let contest = Contest::on(&server);
    let _subscriber = server.listen(&["c"]);
    let n = server.client();
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    let large = "x".repeat(1 << 20);
    server.connection().call(&["PUBLISH", "c", &large]);
    eventually("the listener is cut off", || {
        server.ask("PUBSUB NUMSUB c") == "[c 0]"
    });
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert_eq!(server.ask("EXISTS k"), "0");
}

#[test]
fn pattern_subscriber_is_a_listener() {
    let server = Server::start();
    let mut subscriber =
        rlock_testkit::client::Subscriber::listen(server.port(), "PSUBSCRIBE", &["grants:*"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    assert_eq!(
        a.ask("RLOCK.ACQUIRE k owner-b 60000 WAIT 0 NOTIFY grants:b"),
        "WAITING"
    );
    a.ask("RLOCK.RELEASE k owner-a");
    assert!(subscriber.message().starts_with("grant "));
}

#[test]
fn loss_is_reported_whatever_took_the_lock() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let a = server.client();
    let takes = [
        "RLOCK.FORCE k",
        "DEL k",
        "UNLINK k",
        "FLUSHDB",
        "FLUSHALL ASYNC",
        "SWAPDB 0 1",
        "RENAME k k2",
        "MOVE k 2",
        "PEXPIRE k 20",
        "PEXPIREAT k 1000",
        "EXPIRE k 0",
    ];
    for take in takes {
        let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
        server.client().ask(take);
        assert_eq!(
            subscriber.message(),
            format!("lost {fence} owner-a k"),
            "{take}"
        );
        assert_eq!(server.counter("watches"), 0, "{take}");
    }
    a.number("RLOCK.ACQUIRE k owner-a 20 NOTIFY c");
    assert!(subscriber.message().starts_with("lost "));
    assert_eq!(subscriber.messages(), [""; 0]);
}

#[test]
fn value_set_over_the_lock_is_a_loss_by_the_end_of_its_lease() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let fence = server
        .connection()
        .number("RLOCK.ACQUIRE k owner-a 200 NOTIFY c");
    server.ask("SET k text");
    assert_eq!(subscriber.message(), format!("lost {fence} owner-a k"));
}

#[test]
fn messages_name_the_key_without_its_database() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let a = server.client();
    a.ask("SELECT 3");
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
    assert_eq!(text(&server.connection().call(&["DEL", "k"])), "0");
    assert_eq!(subscriber.messages(), [""; 0]);
    a.ask("DEL k");
    assert_eq!(subscriber.message(), format!("lost {fence} owner-a k"));
}

#[test]
fn loss_is_reported_even_if_a_request_finds_it_before_the_timer() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let a = server.client();
    let lost = a.number("RLOCK.ACQUIRE k owner-a 20 NOTIFY c");
    // The server sleeps past the end, and handles the request first when it wakes.
    a.send("DEBUG SLEEP 0.04");
    a.send("RLOCK.ACQUIRE k owner-b 60000");
    assert_eq!(a.answer(), "OK");
    assert!(a.fence() > lost);
    assert_eq!(subscriber.message(), format!("lost {lost} owner-a k"));
    assert_eq!(subscriber.messages(), [""; 0]);
}

#[test]
fn hundreds_of_unreachable_waiters_block_nobody() {
    let server = Server::start();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    for number in 0..300 {
        let wait = format!("RLOCK.ACQUIRE k owner-{number} 60000 WAIT 0 NOTIFY unheard-of");
        assert_eq!(a.ask(&wait), "WAITING");
    }
    let last = crate::contest::wait_for(&server, "k", "owner-last", 301);
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
    last.fence();
    assert_eq!(server.queued("k"), 0);
    assert_eq!(server.counter("waiters_gone"), 300);
}
