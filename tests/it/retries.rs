//! Requests whose replies were lost, and requests that come late.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::{Client, eventually, request, words};
use crate::contest::Contest;
use crate::scripted::{in_multi, in_script};
use crate::server::Server;

#[test]
fn acquire_repeated_after_a_lost_reply_is_the_same_hold() {
    let server = Server::start();
    let first = server.client();
    first.send("RLOCK.ACQUIRE k owner-a 60000");
    first.close();
    eventually("it has arrived", || server.ask("EXISTS k") == "1");
    let fence = server.ask("HGET k rlock:fence");
    let again = server.client();
    assert_eq!(again.ask("RLOCK.ACQUIRE k owner-a 60000 WAIT 0"), fence);
    assert_eq!(again.ask("RLOCK.RELEASE k owner-a"), "0");
}

/// Most client libraries send a request again when its reply is lost, without being asked to.
#[test]
fn request_sent_again_never_raises_the_count() {
    let server = Server::start();
    let outside: fn(&Client, &str) -> String = |client, line| client.ask(line);
    let ways = [outside, in_multi, in_script];
    for (way, run) in ways.into_iter().enumerate() {
        for line in [
            "RLOCK.ACQUIRE k o 60000",
            "RLOCK.ACQUIRE k o 60000 WAIT 0",
            "RLOCK.ACQUIRE k o 60000 SHARED",
            "RLOCK.ACQUIRE k o 60000 SHARED LIMIT 5 PERMITS 2 WAIT 100",
            "RLOCK.ACQUIRE k o 60000 WAIT 0 KEEP 100",
            "RLOCK.MACQUIRE o 60000 2 k k2 WAIT 0",
            "RLOCK.ACQUIRE k o 60000 BIND 50000",
            "RLOCK.ACQUIRE k o 60000 NOTIFY c",
            "RLOCK.ACQUIRE k o 60000 WAIT 0 KEEP 100 NOTIFY c",
            "RLOCK.MACQUIRE o 60000 2 k k2 WAIT 0 SNOTIFY c",
        ] {
            let needs_connection = line.contains("BIND") || line.contains("NOTIFY");
            if way == 2 && needs_connection {
                continue;
            }
            let fence = run(&server.client(), line);
            for _ in 0..3 {
                assert_eq!(run(&server.client(), line), fence, "{line}");
            }
            assert_eq!(server.hash("k")["o"], "1", "{line}");
            assert_eq!(server.ask("RLOCK.RELEASE k o"), "0", "{line}");
            server.ask("RLOCK.RELEASE k2 o");
            assert_eq!(server.ask("DBSIZE"), "0", "{line}");
        }
    }
}

#[test]
fn wait_sent_again_after_its_grant_was_lost_is_the_same_hold() {
    let server = Server::start();
    let _heard = server.listen(&["c"]);
    for (wait, key) in [
        ("RLOCK.ACQUIRE k o 60000 WAIT 0", "k"),
        ("RLOCK.ACQUIRE k o 60000 SHARED WAIT 0 KEEP 60000", "k"),
        ("RLOCK.ACQUIRE k o 60000 WAIT 0 NOTIFY c", "k"),
        ("RLOCK.MACQUIRE o 60000 2 k k2 WAIT 0", "k2"),
        ("RLOCK.MACQUIRE o 60000 2 k k2 WAIT 0 NOTIFY c", "k2"),
    ] {
        let (holder, waiter) = (server.client(), server.client());
        holder.number("RLOCK.ACQUIRE k owner-a 60000");
        waiter.send(wait);
        server.await_queued(key, 1);
        holder.ask("RLOCK.RELEASE k owner-a");
        eventually("it is granted", || server.owners(key) == ["o"]);
        let fence = server.lock(key).fence.map(|fence| fence.to_string());
        waiter.close();
        let again = server.client();
        assert_eq!(Some(again.ask(wait)), fence, "{wait}");
        assert_eq!(server.hash(key)["o"], "1", "{wait}");
        assert_eq!(again.ask("RLOCK.RELEASE k o"), "0");
        again.ask("RLOCK.RELEASE k2 o");
        assert_eq!(server.ask("DBSIZE"), "0", "{wait}");
    }
}

#[test]
fn each_entry_that_was_asked_for_needs_its_release() {
    let server = Server::start();
    let a = server.client();
    for enter in [
        "RLOCK.ACQUIRE k o 60000 REENTER",
        "RLOCK.ACQUIRE k o 60000 SHARED reenter",
        "RLOCK.MACQUIRE o 60000 1 k REENTER WAIT 0",
    ] {
        let fence = a.number(enter);
        assert_eq!(server.hash("k")["o"], "1", "{enter}");
        assert_eq!(a.number(enter), fence);
        assert_eq!(a.number(enter), fence);
        assert_eq!(server.hash("k")["o"], "3", "{enter}");
        for count in ["2", "1", "0"] {
            assert_eq!(a.ask("RLOCK.RELEASE k o"), count, "{enter}");
        }
        assert_eq!(server.ask("EXISTS k"), "0");
    }
    // An upgrade keeps the count, or raises it.
    for (upgrade, count) in [("", "1"), (" REENTER", "2")] {
        a.number("RLOCK.ACQUIRE k o 60000 SHARED");
        a.number(&format!("RLOCK.ACQUIRE k o 60000{upgrade}"));
        assert_eq!(server.hash("k")["o"], count);
        a.ask("RLOCK.RELEASE k o ALL");
    }
}

#[test]
fn wait_repeated_on_a_new_connection_is_one_wait() {
    let server = Server::start();
    let contest = Contest::on(&server);
    for _ in 0..5 {
        let again = server.client();
        again.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
        // The server may learn of the end of a connection before or after its successor's request.
        server.await_queued("k", 1);
        again.close();
    }
    let last = server.client();
    last.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    eventually("it waits", || server.is_blocked(last.id()));
    assert_eq!(server.queued("k"), 1);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    assert!(last.fence() > contest.fence);
    assert_eq!(last.ask("RLOCK.RELEASE k owner-b"), "0");
    assert_eq!(server.ask("EXISTS k"), "0");
}

#[test]
fn end_of_the_old_connection_leaves_a_place_that_was_taken_over() {
    let server = Server::start();
    let Contest { holder, waiter, .. } = Contest::on(&server);
    let again = server.client();
    again.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    assert_eq!(waiter.answer(), "nil");
    let old = waiter.id();
    waiter.close();
    eventually("the server sees its end", || {
        server
            .ask(&format!("CLIENT LIST ID {old}"))
            .trim()
            .is_empty()
    });
    assert_eq!(server.queued("k"), 1);
    holder.ask("RLOCK.RELEASE k owner-a");
    again.fence();
}

#[test]
fn release_repeated_after_a_lost_reply_never_ends_the_next_hold() {
    let server = Server::start();
    let contest = Contest::on(&server);
    assert_eq!(contest.holder.ask("RLOCK.RELEASE k owner-a ALL"), "0");
    let fence = contest.assert_handed_over();
    let again = server.client();
    assert_eq!(again.ask("RLOCK.RELEASE k owner-a ALL"), "nil");
    assert_eq!(again.ask("RLOCK.RENEW k owner-a 60000"), "nil");
    assert_eq!(server.admin().number("RLOCK.RENEW k owner-b 60000"), fence);
}

#[test]
fn late_renewal_never_revives_a_hold() {
    let server = Server::start();
    let a = server.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 20");
    eventually("the lease is over", || server.ask("EXISTS k") == "0");
    assert_eq!(a.ask("RLOCK.RENEW k owner-a 60000"), "nil");
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "nil");
    assert_eq!(server.ask("EXISTS k"), "0");
    assert!(a.number("RLOCK.ACQUIRE k owner-a 60000") > fence);
}

#[test]
fn renewal_that_waited_in_a_stalled_server_past_the_lease_is_too_late() {
    let server = Server::start();
    let contest = Contest::on(&server);
    contest.holder.number("RLOCK.RENEW k owner-a 100");
    contest.holder.send("DEBUG SLEEP 0.2");
    contest.holder.send("RLOCK.RENEW k owner-a 60000");
    assert_eq!(contest.holder.answer(), "OK");
    assert_eq!(contest.holder.answer(), "nil");
    contest.assert_handed_over();
}

#[test]
fn fences_rise_over_all_locks_and_restarts() {
    let mut server = Server::start();
    let mut last = 0;
    for _ in 0..3 {
        for number in 0..50 {
            let fence = server
                .admin()
                .number(&format!("RLOCK.ACQUIRE k{number} owner-a 60000"));
            assert!(fence > last && fence < 1 << 53);
            last = fence;
        }
        // Without a trace of the locks.
        server.kill();
        server.start_again();
    }
}

#[test]
fn renewals_that_race_with_releases_keep_nothing_alive() {
    let server = Server::start();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for renew in [
            "RLOCK.RENEW k owner-a 60000",
            "RLOCK.MRENEW owner-a 60000 2 k k2",
        ] {
            let (port, stop) = (server.port(), &stop);
            scope.spawn(move || {
                let client = Client::connect(port);
                while !stop.load(Ordering::SeqCst) {
                    client.ask(renew);
                }
            });
        }
        let a = server.client();
        for round in 0..300 {
            let (acquire, release) = [
                ("RLOCK.ACQUIRE k owner-a 60000", "RLOCK.RELEASE k owner-a"),
                (
                    "RLOCK.ACQUIRE k owner-a 60000 SHARED BIND 0",
                    "RLOCK.RELEASE k owner-a ALL",
                ),
                (
                    "RLOCK.MACQUIRE owner-a 60000 2 k k2",
                    "RLOCK.MRELEASE owner-a 2 k k2",
                ),
            ][round % 3];
            let fence = a.number(acquire);
            let release = request(&words(release));
            let ask = request(&["EXISTS", "k", "k2"]);
            a.send_bytes(&[release, ask].concat());
            a.reply();
            assert_eq!(a.answer(), "0", "{acquire}, fence {fence}");
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(server.ask("DBSIZE"), "0");
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn late_renewal_of_a_shared_hold_leaves_the_others_alone() {
    let server = Server::start();
    let a = server.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
    a.number("RLOCK.ACQUIRE k owner-b 20 SHARED");
    eventually("one lease is over", || server.owners("k") == ["owner-a"]);
    for late in [
        "RLOCK.RENEW k owner-b 60000",
        "RLOCK.RELEASE k owner-b",
        "RLOCK.DOWNGRADE k owner-b",
    ] {
        assert_eq!(a.ask(late), "nil", "{late}");
    }
    assert_eq!(a.ask("RLOCK.MRENEW owner-b 60000 1 k"), "0");
    assert_eq!(server.owners("k"), ["owner-a"]);
    assert_eq!(server.lock("k").fence, Some(fence));
    assert!(a.number("RLOCK.ACQUIRE k owner-b 60000 SHARED") > fence);
}
