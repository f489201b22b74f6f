//! What is told on channels, to whom, and until when.

use crate::client::{eventually, text};
use crate::contest::Contest;
use crate::server::Server;

#[test]
fn one_connection_waits_for_many_locks() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let (a, b) = (server.client(), server.client());
    for number in 0..100 {
        a.number(&format!("RLOCK.ACQUIRE k{number} owner-a 60000"));
        let wait = format!("RLOCK.ACQUIRE k{number} owner-b 60000 WAIT 0 NOTIFY c");
        assert_eq!(b.ask(&wait), "WAITING");
    }
    assert_eq!(b.ask("PING"), "PONG");
    assert_eq!(server.counter("waiters"), 100);
    for number in (0..100).rev() {
        a.ask(&format!("RLOCK.RELEASE k{number} owner-a"));
        let message = heard.message();
        assert!(message.starts_with("grant ") && message.ends_with(&format!(" owner-b k{number}")));
    }
}

#[test]
fn grant_tells_the_fence_that_the_server_knows() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let (a, b) = (server.client(), server.client());
    let first = a.number("RLOCK.ACQUIRE k owner-a 60000");
    b.ask("RLOCK.ACQUIRE k owner-b 60000 WAIT 0 NOTIFY c");
    a.ask("RLOCK.RELEASE k owner-a");
    let message = heard.message();
    let fence = message
        .split(' ')
        .nth(1)
        .and_then(|fence| fence.parse::<i64>().ok())
        .expect("a fence");
    assert!(fence > first);
    assert_eq!(message, format!("grant {fence} owner-b k"));
    assert_eq!(b.number("RLOCK.RENEW k owner-b 60000"), fence);
}

#[test]
fn grant_is_skipped_when_its_listener_was_killed() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let _heard = server.listen(&["c"]);
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
fn listener_cut_off_by_its_output_limit_costs_nobody_the_lock() {
    let server = Server::configured(&["client-output-buffer-limit pubsub 4096 0 0"]);
    let contest = Contest::on(&server);
    let _heard = server.listen(&["c"]);
    let n = server.client();
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    let flood = "x".repeat(1 << 20);
    server.admin().call(&["PUBLISH", "c", &flood]);
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
    let mut heard = crate::client::Subscriber::listen(server.port(), "PSUBSCRIBE", &["grants:*"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    assert_eq!(
        a.ask("RLOCK.ACQUIRE k owner-b 60000 WAIT 0 NOTIFY grants:b"),
        "WAITING"
    );
    a.ask("RLOCK.RELEASE k owner-a");
    assert!(heard.message().starts_with("grant "));
}

#[test]
fn closing_the_connection_withdraws_what_it_asked_for() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let contest = Contest::on(&server);
    let n = server.client();
    n.ask("RLOCK.ACQUIRE other owner-n 60000 NOTIFY c");
    for number in 0..10 {
        let wait = format!("RLOCK.ACQUIRE k owner-{number} 60000 WAIT 0 NOTIFY c");
        assert_eq!(n.ask(&wait), "WAITING");
    }
    assert_eq!(server.queued("k"), 11);
    assert_eq!(server.counter("watches"), 11);
    n.close();
    server.await_queued("k", 1);
    assert_eq!(server.counter("waiters"), 1);
    assert_eq!(server.counter("watches"), 0);
    server.ask("RLOCK.FORCE other");
    server.ask("RLOCK.FORCE k");
    contest.assert_handed_over();
    assert_eq!(heard.messages(), [""; 0]);
}

#[test]
fn renewal_from_another_connection_leaves_the_loss_notice() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let (a, other) = (server.client(), server.client());
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
    assert_eq!(other.number("RLOCK.RENEW k owner-a 60000"), fence);
    assert_eq!(other.number("RLOCK.ACQUIRE k owner-a 60000"), fence);
    assert_eq!(server.counter("watches"), 1);
    server.ask("DEL k");
    assert_eq!(heard.message(), format!("lost {fence} owner-a k"));
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn loss_is_told_whatever_took_the_lock() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
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
        assert_eq!(heard.message(), format!("lost {fence} owner-a k"), "{take}");
        assert_eq!(server.counter("watches"), 0, "{take}");
    }
    a.number("RLOCK.ACQUIRE k owner-a 20 NOTIFY c");
    assert!(heard.message().starts_with("lost "));
    assert_eq!(heard.messages(), [""; 0]);
}

#[test]
fn value_set_over_the_lock_is_a_loss_by_the_end_of_its_lease() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let fence = server
        .admin()
        .number("RLOCK.ACQUIRE k owner-a 200 NOTIFY c");
    server.ask("SET k text");
    assert_eq!(heard.message(), format!("lost {fence} owner-a k"));
}

#[test]
fn loss_comes_before_the_next_grant() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    for take in ["RLOCK.FORCE k", "DEL k", "FLUSHALL", "PEXPIRE k 10"] {
        let lost = a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
        assert_eq!(
            a.ask("RLOCK.ACQUIRE k owner-b 60000 WAIT 0 NOTIFY c"),
            "WAITING"
        );
        server.ask(take);
        assert_eq!(heard.message(), format!("lost {lost} owner-a k"), "{take}");
        assert!(heard.message().starts_with("grant "), "{take}");
        assert_eq!(a.ask("RLOCK.RELEASE k owner-b"), "0");
    }
}

#[test]
fn release_and_its_own_requests_are_no_loss() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
    a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c REENTER");
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    a.number("RLOCK.RENEW k owner-a 50000");
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "1");
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
    a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a ALL"), "0");
    assert_eq!(heard.messages(), [""; 0]);
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn refused_request_leaves_no_notice_behind() {
    let server = Server::start();
    let _heard = server.listen(&["c"]);
    let _contest = Contest::on(&server);
    let c = server.client();
    assert_eq!(c.ask("RLOCK.ACQUIRE k owner-c 60000 NOTIFY c"), "nil");
    // Its owner waits in another mode.
    let answer = c.ask("RLOCK.ACQUIRE k owner-b 60000 SHARED WAIT 0 NOTIFY c");
    assert!(answer.starts_with("ERR "), "{answer}");
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn messages_of_a_database_name_the_key_alone() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    a.ask("SELECT 3");
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
    assert_eq!(text(&server.admin().call(&["DEL", "k"])), "0");
    assert_eq!(heard.messages(), [""; 0]);
    a.ask("DEL k");
    assert_eq!(heard.message(), format!("lost {fence} owner-a k"));
}

#[test]
fn loss_is_told_also_when_a_request_meets_it_before_the_timer() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    let lost = a.number("RLOCK.ACQUIRE k owner-a 20 NOTIFY c");
    // The server sleeps past the end, and meets the request first when it awakes.
    a.send("DEBUG SLEEP 0.04");
    a.send("RLOCK.ACQUIRE k owner-b 60000");
    assert_eq!(a.answer(), "OK");
    assert!(a.fence() > lost);
    assert_eq!(heard.message(), format!("lost {lost} owner-a k"));
    assert_eq!(heard.messages(), [""; 0]);
}

#[test]
fn hundreds_who_cannot_be_reached_keep_the_lock_from_nobody() {
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
