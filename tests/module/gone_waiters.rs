//! A disconnected waiter delays no other client, at any moment; a disconnected holder keeps its lease.

use std::time::Duration;

use crate::contest::{Contest, wait_for};
use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually, request, words};

#[test]
fn killed_waiter_leaves_the_queue_at_once() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let next = wait_for(&server, "k", "owner-c", 2);
    assert_eq!(
        server.ask(&format!("CLIENT KILL ID {}", contest.waiter.id())),
        "1"
    );
    server.await_queued("k", 1);
    assert_eq!(server.counter("waiters_gone"), 1);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    assert!(next.fence() > contest.fence);
}

#[test]
fn waiter_killed_before_the_release_of_the_same_turn_is_passed_over() {
    let server = Server::start();
    for _ in 0..20 {
        let contest = Contest::on(&server);
        let next = wait_for(&server, "k", "owner-c", 2);
        let id = contest.waiter.id().to_string();
        let kill = request(&["CLIENT", "KILL", "ID", &id]);
        contest
            .holder
            .send_bytes(&[kill, request(&["RLOCK.RELEASE", "k", "owner-a"])].concat());
        assert!(next.fence() > contest.fence);
        assert_eq!(next.ask("RLOCK.RELEASE k owner-c"), "0");
    }
    assert_eq!(server.counter("undelivered_grants"), 0);
}

#[test]
fn grant_to_a_waiter_killed_in_the_same_turn_is_passed_on() {
    let server = Server::start();
    for round in 1..=20 {
        let contest = Contest::on(&server);
        let next = wait_for(&server, "k", "owner-c", 2);
        let id = contest.waiter.id().to_string();
        let kill = request(&["CLIENT", "KILL", "ID", &id]);
        contest
            .holder
            .send_bytes(&[request(&["RLOCK.RELEASE", "k", "owner-a"]), kill].concat());
        assert_eq!(contest.holder.answer(), "0");
        assert!(next.fence() > contest.fence);
        assert_eq!(server.counter("undelivered_grants"), round);
        assert_eq!(next.ask("RLOCK.RELEASE k owner-c"), "0");
    }
}

/// A client that waits by message, and listens on the same connection.
fn listen_and_wait(server: &Server) -> Client {
    let waiter = server.client_resp3();
    waiter.ask("SUBSCRIBE c");
    let ask = "RLOCK.ACQUIRE k owner-b 60000 WAIT 0 NOTIFY c";
    assert_eq!(waiter.ask(ask), "WAITING");
    waiter
}

#[test]
fn grant_by_message_to_a_connection_killed_in_the_same_turn_is_passed_on() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    for round in 1..=20 {
        let holder = server.client();
        holder.number("RLOCK.ACQUIRE k owner-a 60000");
        let waiter = listen_and_wait(&server);
        let next = wait_for(&server, "k", "owner-c", 2);
        let id = waiter.id().to_string();
        let kill = request(&["CLIENT", "KILL", "ID", &id]);
        holder.send_bytes(&[request(&["RLOCK.RELEASE", "k", "owner-a"]), kill].concat());
        assert_eq!(holder.answer(), "0");
        let fence = next.fence();
        assert_eq!(server.counter("undelivered_grants"), round);
        // A listener on another connection receives a `lost` message.
        let granted = subscriber.message();
        let lost = granted.replace("grant ", "lost ");
        assert_ne!(granted, lost);
        assert_eq!(subscriber.message(), lost);
        assert_eq!(server.ask("RLOCK.RENEW k owner-c 60000"), fence.to_string());
        assert_eq!(next.ask("RLOCK.RELEASE k owner-c"), "0");
    }
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn grant_by_message_stands_when_its_connection_closes_later() {
    let server = Server::start();
    for _ in 0..20 {
        let holder = server.client();
        holder.number("RLOCK.ACQUIRE k owner-a 60000");
        let waiter = listen_and_wait(&server);
        assert_eq!(holder.ask("RLOCK.RELEASE k owner-a"), "0");
        let id = waiter.id();
        assert_eq!(holder.ask(&format!("CLIENT KILL ID {id}")), "1");
        server.ask("PING");
        assert_eq!(server.owners("k"), ["owner-b"]);
        assert_eq!(holder.ask("RLOCK.RELEASE k owner-b"), "0");
    }
    assert_eq!(server.counter("undelivered_grants"), 0);
}

/// A client library asks again on another connection, and learns that it holds the lock: then the grant stays valid.
#[test]
fn grant_known_to_its_owner_is_not_passed_on() {
    let server = Server::start();
    for (wait, again) in [
        ("ACQUIRE k owner-b 60000", "ACQUIRE k owner-b 60000"),
        (
            "ACQUIRE k owner-b 60000 SHARED",
            "ACQUIRE k owner-b 60000 SHARED WAIT 0",
        ),
        ("ACQUIRE k owner-b 60000", "RENEW k owner-b 60000"),
        ("ACQUIRE k owner-b 60000", "MRENEW owner-b 60000 1 k"),
        ("ACQUIRE k owner-b 60000", "DOWNGRADE k owner-b"),
        (
            "MACQUIRE owner-b 60000 2 k2 k",
            "MACQUIRE owner-b 60000 2 k k2",
        ),
        ("MACQUIRE owner-b 60000 2 k2 k", "RENEW k2 owner-b 60000"),
    ] {
        let (a, gone) = (server.client(), server.client());
        a.number("RLOCK.ACQUIRE k owner-a 60000");
        gone.send(&format!("RLOCK.{wait} WAIT 0 KEEP 60000"));
        server.await_queued("k", 1);
        let next = wait_for(&server, "k", "owner-c", 2);
        let turn = [
            "RLOCK.RELEASE k owner-a",
            &format!("CLIENT KILL ID {}", gone.id()),
            &format!("RLOCK.{again}"),
        ];
        let turn = turn.map(|line| request(&words(line)));
        a.send_bytes(&turn.concat());
        assert_eq!((a.answer(), a.answer()), ("0".into(), "1".into()));
        assert_ne!(a.answer(), "nil", "{again}");
        // The end of the killed call has been handled when another turn is over.
        server.ask("PING");
        assert!(next.reply_within(Duration::from_millis(50)).is_none());
        assert_eq!(server.owners("k"), ["owner-b"], "{again}");
        assert_eq!(server.counter("places_kept"), 0, "{again}");
        assert_eq!(a.ask("RLOCK.MRELEASE owner-b 1 k"), "1");
        next.fence();
        server.ask("RLOCK.FORCE k");
        server.ask("RLOCK.FORCE k2");
    }
    assert_eq!(server.counter("undelivered_grants"), 0);
}

#[test]
fn lock_granted_to_a_closed_connection_becomes_free_without_other_waiters() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut subscriber = server.listen_to_unlocks();
    let id = contest.waiter.id().to_string();
    let kill = request(&["CLIENT", "KILL", "ID", &id]);
    contest
        .holder
        .send_bytes(&[request(&["RLOCK.RELEASE", "k", "owner-a"]), kill].concat());
    assert_eq!(contest.holder.answer(), "0");
    eventually("no disconnected waiter holds the lock", || {
        server.ask("EXISTS k") == "0"
    });
    assert_eq!(subscriber.message(), "0");
}

#[test]
fn whole_queue_killed_in_the_turn_of_the_release_leaves_the_lock_free() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let others =
        (0..20).map(|number| wait_for(&server, "k", &format!("owner-{number}"), number + 2));
    let others = others.collect::<Vec<_>>();
    let mut turn = request(&["RLOCK.RELEASE", "k", "owner-a"]);
    for waiter in std::iter::once(&contest.waiter).chain(&others) {
        turn.extend(request(&["CLIENT", "KILL", "ID", &waiter.id().to_string()]));
    }
    contest.holder.send_bytes(&turn);
    eventually("no disconnected waiter holds the lock", || {
        server.ask("EXISTS k") == "0"
    });
    assert_eq!(server.counter("waiters"), 0);
}

#[test]
fn waiters_that_disconnect_at_any_moment_leave_no_place() {
    let server = Server::start();
    let holder = server.client();
    for round in 0..200_u32 {
        holder.number("RLOCK.ACQUIRE k owner-a 60000");
        let waiter = wait_for(&server, "k", "owner-b", 1);
        holder.send("RLOCK.RELEASE k owner-a");
        // The end of the connection arrives before, with or after the grant.
        (0..round % 20 * 50).for_each(|_| std::hint::spin_loop());
        waiter.close();
        assert_eq!(holder.answer(), "0");
        eventually("the connection ends", || {
            server.info("clients", "blocked_clients") == "0"
        });
        // A grant that was sent in time is valid until its owner or its lease ends it.
        server.ask("RLOCK.RELEASE k owner-b");
        eventually("the lock is free", || server.ask("EXISTS k") == "0");
    }
    assert_eq!(server.counter("waiters"), 0);
}

#[test]
fn killed_waiter_frees_its_memory() {
    let server = Server::start();
    let holder = server.client();
    holder.number("RLOCK.ACQUIRE k owner-a 60000");
    let used = || {
        server
            .info("memory", "used_memory")
            .parse::<i64>()
            .expect("a number")
    };
    let round = || {
        let waiters =
            (0..50).map(|number| wait_for(&server, "k", &format!("owner-{number}"), number + 1));
        let waiters = waiters.collect::<Vec<_>>();
        let during = used();
        drop(waiters);
        server.await_queued("k", 0);
        eventually("the connections end", || {
            server.info("clients", "connected_clients") == "2"
        });
        during
    };
    round();
    let before = used();
    let during = round();
    // The server frees a connection's buffers later.
    eventually("the memory is freed", || {
        used() < before + (during - before) / 4
    });
}

#[test]
fn undelivered_upgrade_passes_on_the_whole_hold() {
    let server = Server::start();
    for round in 1..=20 {
        let (upgrader, other) = (server.client(), server.client());
        upgrader.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
        other.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
        upgrader.send("RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
        server.await_queued("k", 1);
        let next = wait_for(&server, "k", "owner-w", 2);
        let id = upgrader.id().to_string();
        let turn = [
            request(&["RLOCK.RELEASE", "k", "owner-b"]),
            request(&["CLIENT", "KILL", "ID", &id]),
        ];
        other.send_bytes(&turn.concat());
        assert_eq!(other.answer(), "0");
        next.fence();
        assert_eq!(server.owners("k"), ["owner-w"]);
        assert_eq!(server.counter("undelivered_grants"), round);
        assert_eq!(next.ask("RLOCK.RELEASE k owner-w"), "0");
        eventually("the lock is free", || server.ask("EXISTS k") == "0");
    }
}
