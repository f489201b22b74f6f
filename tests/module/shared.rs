//! Many holders of one lock, and the hash with their data.

use crate::contest::wait_for;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, request, words};

const CROWD: usize = 1000;

/// A lock with this many shared holders, `owner-0` and so on.
fn hold_together(client: &Client, key: &str, count: usize) -> Vec<i64> {
    for number in 0..count {
        client.send(&format!("RLOCK.ACQUIRE {key} owner-{number} 60000 SHARED"));
    }
    (0..count).map(|_| client.fence()).collect()
}

#[test]
fn thousand_readers_behind_a_writer_are_admitted_before_any_later_request() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (a, n) = (server.client(), server.client());
    let before = a.number("RLOCK.ACQUIRE k owner-a 60000");
    for number in 0..CROWD {
        n.send(&format!(
            "RLOCK.ACQUIRE k reader-{number} 60000 SHARED WAIT 0 NOTIFY c"
        ));
    }
    for _ in 0..CROWD {
        assert_eq!(n.answer(), "WAITING");
    }
    let blocked = server.client();
    blocked.send("RLOCK.ACQUIRE k reader-last 60000 SHARED WAIT 0");
    server.await_queued("k", CROWD + 1);
    // A request arrives while they are admitted, which takes several turns of the server.
    let turn = [
        "RLOCK.RELEASE k owner-a",
        "RLOCK.ACQUIRE k new 60000 SHARED",
    ];
    let turn = turn.map(|line| request(&words(line)));
    a.send_bytes(&turn.concat());
    assert_eq!(a.answer(), "0");
    let newcomer = a.answer();
    server.await_queued("k", 0);
    let holders = CROWD + 1 + usize::from(newcomer != "nil");
    assert_eq!(server.ask("HLEN k"), (2 + 2 * holders).to_string());
    let mut last = before;
    for number in 0..CROWD {
        let message = subscriber.message();
        let words = message.split(' ').collect::<Vec<_>>();
        assert_eq!(words[0], "grant");
        assert_eq!(words[2], format!("reader-{number}"));
        let fence = words[1].parse().expect("a fence");
        assert!(fence > last);
        last = fence;
    }
    let last_of_all = blocked.fence();
    assert!(last_of_all > last);
    let newcomer = newcomer.parse::<i64>().ok();
    assert!(newcomer.is_none_or(|fence| fence > last_of_all));
    assert_eq!(server.counter("handoffs"), CROWD as u64 + 1);
}

#[test]
fn lease_that_ends_among_many_ends_one_hold() {
    for count in [2, 8, 9, 100] {
        let server = Server::start();
        let mut subscriber = server.listen(&["c"]);
        let a = server.client();
        hold_together(&a, "k", count);
        let lost = a.number("RLOCK.ACQUIRE k short-lived 30 SHARED NOTIFY c");
        let writer = wait_for(&server, "k", "owner-w", 1);
        assert_eq!(subscriber.message(), format!("lost {lost} short-lived k"));
        assert_eq!(a.ask("RLOCK.RENEW k short-lived 60000"), "nil");
        assert_eq!(a.ask("RLOCK.RELEASE k short-lived"), "nil");
        assert_eq!(server.counter("lease_expirations"), 1);
        assert!(writer.reply_by_now().is_none());
        for number in 0..count {
            assert_eq!(a.ask(&format!("RLOCK.RELEASE k owner-{number}")), "0");
        }
        writer.fence();
    }
}

#[test]
fn refused_requests_for_a_shared_lock_do_not_touch_a_watched_key() {
    let server = Server::start();
    let a = server.client();
    hold_together(&a, "k", 20);
    let c = server.client();
    c.ask("WATCH k");
    let writer = wait_for(&server, "k", "owner-w", 1);
    for (line, answer) in [
        ("RLOCK.ACQUIRE k owner-x 60000", "nil"),
        ("RLOCK.ACQUIRE k owner-x 60000 SHARED", "nil"),
        ("RLOCK.ACQUIRE k owner-x 60000 SHARED LIMIT 5", "nil"),
        ("RLOCK.ACQUIRE k owner-1 60000", "nil"),
        ("RLOCK.MACQUIRE owner-x 60000 2 k free", "nil"),
        ("RLOCK.RENEW k owner-x 60000", "nil"),
        ("RLOCK.RELEASE k owner-x", "nil"),
        ("RLOCK.DOWNGRADE k owner-1", "nil"),
        ("RLOCK.MRENEW owner-x 60000 2 k free", "0"),
        ("RLOCK.MRELEASE owner-x 2 k free", "0"),
        ("RLOCK.CANCEL k owner-w", "1"),
    ] {
        assert_eq!(server.ask(line), answer, "{line}");
    }
    server.lock("k");
    assert_eq!(writer.answer(), "nil");
    c.ask("MULTI");
    c.ask("PING");
    assert_eq!(c.ask("EXEC"), "[PONG]");
}

#[test]
fn single_shared_holder_has_a_new_lock_after_it_was_free() {
    let server = Server::start();
    let a = server.client();
    let mut subscriber = server.listen_to_unlocks();
    hold_together(&a, "k", 3);
    for number in 0..3 {
        assert_eq!(subscriber.messages(), [""; 0]);
        assert_eq!(a.ask(&format!("RLOCK.RELEASE k owner-{number}")), "0");
    }
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(subscriber.messages(), ["redisson_lock__channel:{k}: 0"]);
    a.number("RLOCK.ACQUIRE k owner-1 60000");
    assert_eq!(server.ask("HLEN k"), "2");
}

/// A holder that others have removed gets `lost` by the next command on the lock, even if that is for several keys, or if
/// the lock came by a rename.
#[test]
fn holder_that_others_removed_gets_lost_by_the_next_command() {
    let server = Server::start();
    let (a, c) = (server.client(), server.client());
    let removals = [
        ("HDEL k a rlock:holder:a", "RLOCK.MRENEW b 60000 1 k"),
        ("COPY s k REPLACE", "RLOCK.MRENEW c 60000 1 k"),
        ("RENAME s k", "RLOCK.RENEW k c 60000"),
    ];
    for (removal, next) in removals {
        c.ask("FLUSHALL");
        let mut subscriber = server.listen(&["ch"]);
        let fence = a.number("RLOCK.ACQUIRE k a 60000 SHARED NOTIFY ch");
        for (key, owner) in [("k", "b"), ("k", "c"), ("s", "c"), ("s", "d")] {
            c.number(&format!("RLOCK.ACQUIRE {key} {owner} 60000 SHARED"));
        }
        c.ask(removal);
        c.ask(next);
        assert_eq!(subscriber.message(), format!("lost {fence} a k"), "{next}");
    }
}
