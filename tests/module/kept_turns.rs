//! The turn of kept places: tries, polls, requests for several locks, and undelivered grants.

use crate::contest::wait_for;
use crate::kept_places::await_kept;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, request, words};

/// A client that holds `k` in the given mode as `owner-a`.
fn holder(server: &Server, mode: &str) -> Client {
    let client = server.client();
    client.number(&format!("RLOCK.ACQUIRE k owner-a 60000{mode}"));
    client
}

/// Sends the commands in one piece, so that the server carries them out in one turn.
fn at_once(client: &Client, lines: &[&str]) {
    let requests: Vec<_> = lines.iter().map(|line| request(&words(line))).collect();
    client.send_bytes(&requests.concat());
}

#[test]
fn contexts_that_cannot_block_try_from_the_kept_place() {
    let server = Server::start();
    let a = holder(&server, "");
    let b = server.client();
    let wait = "RLOCK.ACQUIRE k owner-b 60000 WAIT 1 KEEP 60000";
    assert_eq!(b.ask(wait), "nil");
    let eval = "return redis.call(unpack(ARGV))";
    let in_script =
        || rlock_testkit::client::text(&b.call(&[&["EVAL", eval, "0"][..], &words(wait)].concat()));
    assert_eq!(in_script(), "nil");
    await_kept(&server, "k", "owner-b");
    a.ask("RLOCK.RELEASE k owner-a");
    assert_ne!(in_script(), "nil");
    assert_eq!(server.counter("places_kept"), 0);
    assert_eq!(b.ask("RLOCK.RELEASE k owner-b"), "0");
    // A try without a place creates none.
    holder(&server, "");
    assert_eq!(in_script(), "nil");
    at_once(&b, &["MULTI", wait, "EXEC"]);
    assert_eq!((b.answer(), b.answer()), ("OK".into(), "QUEUED".into()));
    assert_eq!(b.answer(), "[nil]");
    assert_eq!(server.counter("waiters"), 0);
}

#[test]
fn polling_owner_keeps_its_turn_before_a_later_blocked_waiter() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let a = holder(&server, "");
    let poller = server.client();
    let poll = "RLOCK.ACQUIRE k owner-p 60000 WAIT 1 KEEP 60000";
    assert_eq!(poller.ask(poll), "nil");
    let later = wait_for(&server, "k", "owner-c", 2);
    for _ in 0..5 {
        assert_eq!(poller.ask(poll), "nil");
        assert_eq!(server.lock("k").waiting(), ["owner-p", "owner-c"]);
    }
    // The lock is released just before the owner asks.
    at_once(
        &a,
        &[&format!("{poll} NOTIFY c"), "RLOCK.RELEASE k owner-a"],
    );
    assert_eq!((a.answer(), a.answer()), ("WAITING".into(), "0".into()));
    assert!(subscriber.message().starts_with("grant "));
    assert!(later.reply_by_now().is_none());
    assert_eq!(a.ask("RLOCK.RELEASE k owner-p"), "0");
    later.fence();
}

#[test]
fn place_is_kept_if_the_connection_ends_during_the_grant() {
    let server = Server::start();
    for round in 1..=10 {
        let a = holder(&server, "");
        let gone = server.client();
        gone.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0 KEEP 60000");
        server.await_queued("k", 1);
        let next = wait_for(&server, "k", "owner-c", 2);
        let last = wait_for(&server, "k", "owner-d", 3);
        let kill = format!("CLIENT KILL ID {}", gone.id());
        at_once(&a, &["RLOCK.RELEASE k owner-a", &kill]);
        assert_eq!((a.answer(), a.answer()), ("0".into(), "1".into()));
        next.fence();
        assert_eq!(server.counter("undelivered_grants"), round);
        await_kept(&server, "k", "owner-b");
        assert_eq!(server.lock("k").waiting(), ["owner-b", "owner-d"]);
        let again = server.client();
        again.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
        rlock_testkit::client::eventually("it waits again", || server.counter("places_kept") == 0);
        assert_eq!(next.ask("RLOCK.RELEASE k owner-c"), "0");
        again.fence();
        assert!(last.reply_by_now().is_none());
        assert_eq!(again.ask("RLOCK.RELEASE k owner-b"), "0");
        last.fence();
        assert_eq!(last.ask("RLOCK.RELEASE k owner-d"), "0");
    }
}

#[test]
fn places_of_several_locks_are_kept_if_the_grant_is_undelivered() {
    let server = Server::start();
    for by in ["", " NOTIFY unheard-of"] {
        let a = server.client();
        a.number("RLOCK.ACQUIRE k1 owner-a 60000");
        let gone = server.client();
        gone.send(&format!(
            "RLOCK.MACQUIRE owner-m 60000 2 k1 k2 WAIT 0 KEEP 60000{by}"
        ));
        server.await_queued("k2", 1);
        let kill = format!("CLIENT KILL ID {}", gone.id());
        at_once(&a, &["RLOCK.RELEASE k1 owner-a", &kill]);
        assert_eq!((a.answer(), a.answer()), ("0".into(), "1".into()));
        for key in ["k1", "k2"] {
            await_kept(&server, key, "owner-m");
        }
        rlock_testkit::client::eventually("nobody holds them", || server.ask("DBSIZE") == "0");
        assert_eq!(server.counter("places_kept"), 2);
        assert_eq!(server.counter("watches"), 0);
        a.number("RLOCK.MACQUIRE owner-m 60000 2 k2 k1 WAIT 0");
        assert_eq!(server.counter("waiters"), 0);
        assert_eq!(a.ask("RLOCK.MRELEASE owner-m 2 k1 k2"), "2");
    }
}
