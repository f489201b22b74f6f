//! No client starves, in the queue or outside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;

use crate::contest::wait_for;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, PATIENCE, request};

/// The unlock channel of `k`.
const UNLOCKED: &str = "redisson_lock__channel:{k}";

/// Takes `k` with the server's own commands, as another kind of client does; nil if it got the lock.
const TAKE: &str = "if redis.call('exists', KEYS[1]) == 0 then \
    redis.call('hincrby', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], 60000) return nil end \
    return redis.call('pttl', KEYS[1])";

/// `count` requests that wait by the channel `c` for the lock that `owner-a` holds.
fn queue(server: &Server, client: &Client, count: usize) {
    client.number("RLOCK.ACQUIRE k owner-a 60000");
    for number in 0..count {
        let line = format!("RLOCK.ACQUIRE k owner-{number} 60000 WAIT 0 NOTIFY c");
        assert_eq!(client.ask(&line), "WAITING");
    }
    assert_eq!(server.queued("k"), count);
}

/// Releases the lock, and returns whether it was free right after that.
fn is_left_free_by(client: &Client, owner: &str) -> bool {
    let release = request(&["RLOCK.RELEASE", "k", owner]);
    client.send_bytes(&[release, request(&["EXISTS", "k"])].concat());
    assert_eq!(client.answer(), "0");
    client.answer() == "0"
}

#[test]
fn lock_is_offered_to_listeners_after_that_number_of_hand_offs() {
    for (yield_after, count) in [("1", 6), ("5", 20), ("64", 200)] {
        let server = Server::start();
        if yield_after != "64" {
            server.ask(&format!("CONFIG SET rlock.yield-after {yield_after}"));
        }
        let every = yield_after.parse::<usize>().expect("a number");
        let mut granted = server.listen(&["c"]);
        let mut unlocked = server.listen(&[UNLOCKED]);
        let a = server.client();
        queue(&server, &a, count);
        let mut in_a_row = 0;
        let mut last = "owner-a".to_owned();
        for number in 0..count {
            let is_free = is_left_free_by(&a, &last);
            assert_eq!(is_free, in_a_row == every, "{number} of {yield_after}");
            if is_free {
                assert_eq!(unlocked.message(), "0");
                in_a_row = 0;
            }
            in_a_row += 1;
            // If no other client takes the lock, the queue continues.
            last = format!("owner-{number}");
            assert!(granted.message().ends_with(&format!(" {last} k")));
        }
        assert_eq!(unlocked.messages(), [""; 0]);
    }
}

#[test]
fn lock_is_never_offered_when_nobody_listens_or_the_setting_is_zero() {
    let server = Server::start();
    let mut granted = server.listen(&["c"]);
    let a = server.client();
    for (yield_after, listens) in [("1", false), ("64", false), ("0", true)] {
        server.ask(&format!("CONFIG SET rlock.yield-after {yield_after}"));
        let mut unlocked = server.listen(&[if listens { UNLOCKED } else { "other" }]);
        queue(&server, &a, 200);
        let mut last = "owner-a".to_owned();
        for number in 0..200 {
            assert!(!is_left_free_by(&a, &last), "{number} of {yield_after}");
            last = format!("owner-{number}");
            assert!(granted.message().ends_with(&format!(" {last} k")));
        }
        assert_eq!(unlocked.messages(), [""; 0]);
        assert!(is_left_free_by(&a, &last));
    }
}

#[test]
fn offered_lock_stays_with_the_foreign_client_that_takes_it() {
    let server = Server::start();
    server.ask("CONFIG SET rlock.yield-after 1");
    let mut unlocked = server.listen(&[UNLOCKED]);
    let (a, foreign) = (server.client(), server.client());
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let b = wait_for(&server, "k", "owner-b", 1);
    let c = wait_for(&server, "k", "owner-c", 2);
    a.ask("RLOCK.RELEASE k owner-a");
    b.fence();
    // There was only one hand-off in a row. Meanwhile the module's own clients can only wait.
    let release = request(&["RLOCK.RELEASE", "k", "owner-b"]);
    let take = request(&["EVAL", TAKE, "1", "k", "5f0e:1"]);
    let early_request = request(&["RLOCK.ACQUIRE", "k", "owner-x", "60000"]);
    b.send_bytes(&[release, early_request, take].concat());
    assert_eq!(b.answer(), "0");
    assert_eq!(b.answer(), "nil");
    assert_eq!(b.answer(), "nil");
    assert_eq!(unlocked.message(), "0");
    assert_eq!(server.ask("HGET k 5f0e:1"), "1");
    assert_eq!(server.queued("k"), 1);
    assert!(c.reply_within(Duration::from_millis(30)).is_none());
    foreign.ask("DEL k");
    c.fence();
}

#[test]
fn foreign_client_gets_the_lock_during_endless_hand_offs() {
    let server = Server::start();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (port, stop) = (server.port(), &stop);
            scope.spawn(move || {
                let client = Client::connect(port);
                while !stop.load(Ordering::SeqCst) {
                    client.number(&format!("RLOCK.ACQUIRE k owner-{number} 60000 WAIT 0"));
                    client.ask(&format!("RLOCK.RELEASE k owner-{number}"));
                }
            });
        }
        let foreign = server.client();
        for _ in 0..5 {
            let mut unlocked = server.listen(&[UNLOCKED]);
            while foreign.call(&["EVAL", TAKE, "1", "k", "5f0e:1"]) != Value::Nil {
                assert!(unlocked.message_within(PATIENCE).is_some());
            }
            assert_eq!(foreign.ask("HGET k 5f0e:1"), "1");
            foreign.ask("DEL k");
        }
        stop.store(true, Ordering::SeqCst);
    });
}
