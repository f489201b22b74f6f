//! Requests whose replies were lost, and late requests.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::contest::Contest;
use crate::scripted::{in_multi, in_script};
use rlock_testkit::Server;
use rlock_testkit::client::{Client, request, words};

/// Most client libraries resend a request when its reply is lost.
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
                .connection()
                .number(&format!("RLOCK.ACQUIRE k{number} owner-a 60000"));
            assert!(fence > last && fence < 1 << 53);
            last = fence;
        }
        // No data of the locks is left.
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
