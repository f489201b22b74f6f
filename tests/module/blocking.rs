//! Blocked calls: commands about their client, and calls that end in the turn of a release.

use crate::contest::{Contest, wait_for};
use rlock_testkit::Server;
use rlock_testkit::client::{eventually, request};

#[test]
fn client_unblock_ends_a_wait_where_the_server_can() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let unblock = format!("CLIENT UNBLOCK {}", contest.waiter.id());
    if server.is_at_least((7, 4), (8, 0)) {
        assert_eq!(server.ask(&unblock), "1");
        assert_eq!(contest.waiter.answer(), "nil");
        assert_eq!(server.queued("k"), 0);
        contest.waiter.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
        server.await_queued("k", 1);
        assert_eq!(server.ask(&format!("{unblock} ERROR")), "1");
        assert!(contest.waiter.answer().starts_with("UNBLOCKED "));
        assert_eq!(server.queued("k"), 0);
        assert_eq!(server.counter("waiters_gone"), 2);
        assert_eq!(contest.waiter.ask("PING"), "PONG");
    } else {
        assert_eq!(server.ask(&unblock), "0");
        assert_eq!(server.ask(&format!("{unblock} ERROR")), "0");
        assert_eq!(server.queued("k"), 1);
        contest.holder.ask("RLOCK.RELEASE k owner-a");
        contest.assert_handed_over();
    }
}

#[test]
fn client_unblock_in_the_turn_of_the_release_gives_one_outcome() {
    let server = Server::start();
    for round in 0..50 {
        let contest = Contest::on(&server);
        let unblock = ["TIMEOUT", "ERROR"][round % 2];
        let id = contest.waiter.id().to_string();
        let release = request(&["RLOCK.RELEASE", "k", "owner-a"]);
        let unblock = request(&["CLIENT", "UNBLOCK", &id, unblock]);
        let both = if round % 4 < 2 {
            [release, unblock]
        } else {
            [unblock, release]
        };
        contest.holder.send_bytes(&both.concat());
        let answer = contest.waiter.answer();
        let granted = !(answer == "nil" || answer.starts_with("UNBLOCKED "));
        let agrees = || granted == (server.ask("EXISTS k") == "1");
        eventually(
            &format!("the lock is as the waiter's reply says: {answer}"),
            agrees,
        );
        assert_eq!(contest.waiter.ask("PING"), "PONG");
        server.ask("RLOCK.FORCE k");
    }
}

#[test]
fn wait_that_ends_in_the_turn_of_the_release_gives_one_outcome() {
    let server = Server::start();
    for _ in 0..10 {
        let holder = server.client();
        holder.number("RLOCK.ACQUIRE k owner-a 60000");
        let waiter = server.client();
        waiter.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 30");
        server.await_queued("k", 1);
        // The server sleeps past the end of the wait, and handles the release first when it wakes.
        let stall = request(&["DEBUG", "SLEEP", "0.06"]);
        let release = request(&["RLOCK.RELEASE", "k", "owner-a"]);
        holder.send_bytes(&[stall, release].concat());
        assert_eq!(holder.answer(), "OK");
        assert_eq!(holder.answer(), "0");
        let granted = waiter.answer() != "nil";
        assert_eq!(granted, server.ask("EXISTS k") == "1");
        assert_eq!(server.queued("k"), 0);
        server.ask("RLOCK.FORCE k");
    }
}

#[test]
fn blocked_client_is_listed_as_blocked_and_counted_once() {
    let server = Server::start();
    let contest = Contest::on(&server);
    assert!(server.is_blocked(contest.waiter.id()));
    assert_eq!(server.info("clients", "blocked_clients"), "1");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    eventually("nobody is blocked", || {
        server.info("clients", "blocked_clients") == "0"
    });
}

#[test]
fn waits_of_one_owner_in_two_databases_are_two() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let (c, d) = (server.client(), server.client());
    c.ask("SELECT 1");
    d.ask("SELECT 1");
    c.number("RLOCK.ACQUIRE k owner-c 60000");
    d.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    eventually("two are blocked", || {
        server.info("clients", "blocked_clients") == "2"
    });
    assert_eq!(server.queued("k"), 1);
    c.ask("RLOCK.RELEASE k owner-c");
    d.fence();
    assert!(contest.waiter.reply_by_now().is_none());
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
}

#[test]
fn refused_request_does_not_touch_a_watched_key() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client();
    c.ask("WATCH k");
    let d = wait_for(&server, "k", "owner-d", 2);
    assert_eq!(server.ask("RLOCK.ACQUIRE k owner-e 60000"), "nil");
    assert_eq!(server.ask("RLOCK.RENEW k owner-e 60000"), "nil");
    assert_eq!(server.ask("RLOCK.RELEASE k owner-e"), "nil");
    assert_eq!(server.ask("RLOCK.CANCEL k owner-d"), "1");
    assert_eq!(d.answer(), "nil");
    c.ask("MULTI");
    c.ask("PING");
    assert_eq!(c.ask("EXEC"), "[PONG]");
    // A change of the lock touches the watched key.
    c.ask("WATCH k");
    contest.holder.number("RLOCK.RENEW k owner-a 61000");
    c.ask("MULTI");
    c.ask("PING");
    assert_eq!(c.ask("EXEC"), "nil");
}
