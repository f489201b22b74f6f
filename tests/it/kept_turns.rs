//! Kept places when their turn comes: tries, polls, requests for several locks, and grants that reach nobody.

use crate::client::{Client, request, words};
use crate::contest::wait_for;
use crate::kept_places::await_kept;
use crate::server::Server;

/// A client that holds `k` in the given mode as `owner-a`.
fn holder(server: &Server, mode: &str) -> Client {
    let client = server.client();
    client.number(&format!("RLOCK.ACQUIRE k owner-a 60000{mode}"));
    client
}

/// Sends the commands in one piece, so that they are carried out in one turn of the server.
fn at_once(client: &Client, lines: &[&str]) {
    let requests: Vec<_> = lines.iter().map(|line| request(&words(line))).collect();
    client.send_bytes(&requests.concat());
}

#[test]
fn try_of_the_same_kind_is_answered_from_the_kept_place() {
    let server = Server::start();
    let a = holder(&server, " SHARED");
    let b = server.client();
    // A writer that stands before it, and one that stands behind it.
    let before = wait_for(&server, "k", "owner-w", 1);
    let keep = "RLOCK.ACQUIRE k owner-b 60000 SHARED WAIT 1 KEEP 60000";
    assert_eq!(b.ask(keep), "nil");
    let behind = wait_for(&server, "k", "owner-x", 3);
    let left = || {
        server
            .lock("k")
            .waiter("owner-b")
            .and_then(|it| it.kept_left_ms)
    };
    let earlier = left();
    assert_eq!(b.ask("RLOCK.ACQUIRE k owner-b 60000 SHARED"), "nil");
    assert!(left() <= earlier, "the grace runs on");
    assert_eq!(server.ask("RLOCK.CANCEL k owner-w"), "1");
    assert_eq!(before.answer(), "nil");
    // Others may not pass the writer that waits.
    assert_eq!(a.ask("RLOCK.ACQUIRE k owner-r 60000 SHARED"), "nil");
    b.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
    assert_eq!(server.lock("k").waiting(), ["owner-x"]);
    assert_eq!(server.counter("places_kept"), 0);
    assert_eq!(server.owners("k"), ["owner-a", "owner-b"]);
    drop(behind);
}

#[test]
fn try_of_another_kind_is_answered_as_if_there_was_no_place() {
    let server = Server::start();
    let a = holder(&server, " SHARED");
    let b = server.client();
    let keep = "RLOCK.ACQUIRE k owner-b 60000 WAIT 1 KEEP 60000";
    assert_eq!(b.ask(keep), "nil");
    let next = wait_for(&server, "k", "owner-w", 2);
    assert_eq!(b.ask("RLOCK.ACQUIRE k owner-b 60000 SHARED"), "nil");
    assert_eq!(b.ask("RLOCK.MACQUIRE owner-b 60000 2 k free"), "nil");
    assert_eq!(server.ask("RLOCK.CANCEL k owner-w"), "1");
    assert_eq!(next.answer(), "nil");
    b.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
    await_kept(&server, "k", "owner-b");
    assert_eq!(server.lock("k").waiting(), ["owner-b"]);
    drop(a);
}

#[test]
fn wait_of_another_kind_is_refused_while_a_place_is_kept() {
    let server = Server::start();
    let a = holder(&server, "");
    let b = server.client();
    let keep = "RLOCK.ACQUIRE k owner-b 60000 WAIT 1 KEEP 60000";
    assert_eq!(b.ask(keep), "nil");
    for line in [
        "RLOCK.ACQUIRE k owner-b 60000 SHARED WAIT 0",
        "RLOCK.ACQUIRE k owner-b 60000 SHARED LIMIT 5 WAIT 1 KEEP 5",
        "RLOCK.MACQUIRE owner-b 60000 1 k WAIT 0",
        "RLOCK.MACQUIRE owner-b 60000 2 free k WAIT 0",
    ] {
        let answer = b.ask(line);
        let named = answer.contains("'owner-b'") && answer.contains("'k'");
        assert!(answer.starts_with("ERR ") && named, "{line}: {answer}");
    }
    assert_eq!(server.queued("free"), 0);
    await_kept(&server, "k", "owner-b");
    drop(a);
}

#[test]
fn wait_within_the_grace_is_granted_at_once_when_the_lock_is_free() {
    let server = Server::start();
    let a = holder(&server, "");
    assert_eq!(
        a.ask("RLOCK.ACQUIRE k owner-b 60000 WAIT 1 KEEP 60000"),
        "nil"
    );
    a.ask("RLOCK.RELEASE k owner-a");
    a.number("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("contended_locks"), 0);
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
        || crate::client::text(&b.call(&[&["EVAL", eval, "0"][..], &words(wait)].concat()));
    assert_eq!(in_script(), "nil");
    await_kept(&server, "k", "owner-b");
    a.ask("RLOCK.RELEASE k owner-a");
    assert_ne!(in_script(), "nil");
    assert_eq!(server.counter("places_kept"), 0);
    assert_eq!(b.ask("RLOCK.RELEASE k owner-b"), "0");
    // Where there is no place, none is made.
    holder(&server, "");
    assert_eq!(in_script(), "nil");
    at_once(&b, &["MULTI", wait, "EXEC"]);
    assert_eq!((b.answer(), b.answer()), ("OK".into(), "QUEUED".into()));
    assert_eq!(b.answer(), "[nil]");
    assert_eq!(server.counter("waiters"), 0);
}

#[test]
fn one_that_polls_keeps_its_turn_against_a_blocked_waiter_that_came_later() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = holder(&server, "");
    let poller = server.client();
    let poll = "RLOCK.ACQUIRE k owner-p 60000 WAIT 1 KEEP 60000";
    assert_eq!(poller.ask(poll), "nil");
    let later = wait_for(&server, "k", "owner-c", 2);
    for _ in 0..5 {
        assert_eq!(poller.ask(poll), "nil");
        assert_eq!(server.lock("k").waiting(), ["owner-p", "owner-c"]);
    }
    // The lock is given back just while it asks.
    at_once(
        &a,
        &[&format!("{poll} NOTIFY c"), "RLOCK.RELEASE k owner-a"],
    );
    assert_eq!((a.answer(), a.answer()), ("WAITING".into(), "0".into()));
    assert!(heard.message().starts_with("grant "));
    assert!(later.reply_by_now().is_none());
    assert_eq!(a.ask("RLOCK.RELEASE k owner-p"), "0");
    later.fence();
}

#[test]
fn request_for_several_locks_keeps_a_place_in_each_queue() {
    let server = Server::start();
    let (a, m) = (server.client(), server.client());
    a.number("RLOCK.ACQUIRE k2 owner-a 60000");
    let keep = "RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 WAIT 1 KEEP 60000";
    assert_eq!(m.ask(keep), "nil");
    assert_eq!(server.counter("places_kept"), 3);
    assert_eq!(server.counter("waiters"), 3);
    // Its free keys are anybody's meanwhile.
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    let rival = wait_for(&server, "k2", "owner-c", 2);
    // In another order it is the same request; with other keys it is not.
    m.send("RLOCK.MACQUIRE owner-m 60000 3 k3 k2 k1 WAIT 0");
    crate::client::eventually("it waits again", || server.counter("places_kept") == 0);
    let other = a.ask("RLOCK.MACQUIRE owner-m 60000 2 k1 k2 WAIT 0");
    assert!(other.starts_with("ERR "), "{other}");
    assert_eq!(server.lock("k2").waiting(), ["owner-m", "owner-c"]);
    assert_eq!(a.ask("RLOCK.RELEASE k2 owner-a"), "0");
    assert!(m.reply_by_now().is_none());
    assert_eq!(a.ask("RLOCK.RELEASE k1 owner-a"), "0");
    m.fence();
    assert!(rival.reply_by_now().is_none());
    assert_eq!(m.ask("RLOCK.MRELEASE owner-m 3 k1 k2 k3"), "3");
    rival.fence();
    assert_eq!(server.counter("waiters"), 0);
}

#[test]
fn cancel_under_any_key_ends_the_kept_places_of_all() {
    let server = Server::start();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k2 owner-a 60000");
    for key in ["k1", "k2", "k3"] {
        let keep = "RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 WAIT 1 KEEP 60000";
        assert_eq!(a.ask(keep), "nil");
        assert_eq!(a.ask(&format!("RLOCK.CANCEL {key} owner-m")), "1");
        assert_eq!(server.counter("waiters"), 0);
    }
    assert_eq!(server.counter("contended_locks"), 0);
}

#[test]
fn place_of_a_waiter_that_nobody_hears_of_is_kept() {
    let server = Server::start();
    let a = holder(&server, "");
    let n = server.client();
    let wait = "RLOCK.ACQUIRE k owner-n 60000 WAIT 0 KEEP 60000 NOTIFY c";
    assert_eq!(n.ask(wait), "WAITING");
    let next = wait_for(&server, "k", "owner-c", 2);
    let last = wait_for(&server, "k", "owner-d", 3);
    a.ask("RLOCK.RELEASE k owner-a");
    next.fence();
    await_kept(&server, "k", "owner-n");
    assert_eq!(server.lock("k").waiting(), ["owner-n", "owner-d"]);
    assert_eq!(server.counter("waiters_gone"), 1);
    assert_eq!(server.counter("watches"), 0);
    let mut heard = server.listen(&["c"]);
    assert_eq!(n.ask(wait), "WAITING");
    assert_eq!(next.ask("RLOCK.RELEASE k owner-c"), "0");
    assert!(heard.message().starts_with("grant "));
    assert!(last.reply_by_now().is_none());
    assert_eq!(server.owners("k"), ["owner-n"]);
}

#[test]
fn place_of_one_whose_connection_ends_as_it_is_granted_is_kept() {
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
        crate::client::eventually("it waits again", || server.counter("places_kept") == 0);
        assert_eq!(next.ask("RLOCK.RELEASE k owner-c"), "0");
        again.fence();
        assert!(last.reply_by_now().is_none());
        assert_eq!(again.ask("RLOCK.RELEASE k owner-b"), "0");
        last.fence();
        assert_eq!(last.ask("RLOCK.RELEASE k owner-d"), "0");
    }
}

#[test]
fn places_of_several_locks_are_kept_when_the_grant_reaches_nobody() {
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
        crate::client::eventually("nobody holds them", || server.ask("DBSIZE") == "0");
        assert_eq!(server.counter("places_kept"), 2);
        assert_eq!(server.counter("watches"), 0);
        a.number("RLOCK.MACQUIRE owner-m 60000 2 k2 k1 WAIT 0");
        assert_eq!(server.counter("waiters"), 0);
        assert_eq!(a.ask("RLOCK.MRELEASE owner-m 2 k1 k2"), "2");
    }
}
