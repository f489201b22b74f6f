//! `CANCEL`, and `FORCE` with `QUEUE`, and the clients that they notify.

use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::Client;

/// A connection whose request for `k` waits by the channel `c`, behind two others.
fn notified(server: &Server) -> (Contest, Client) {
    let contest = Contest::on(server);
    let n = server.client();
    let wait = "RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c";
    assert_eq!(n.ask(wait), "WAITING");
    (contest, n)
}

#[test]
fn request_cancelled_by_its_own_connection_gets_no_message() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (_contest, n) = notified(&server);
    assert_eq!(n.ask("RLOCK.CANCEL k owner-n"), "1");
    n.ask("RLOCK.MACQUIRE owner-n 60000 2 k k2 WAIT 0 NOTIFY c");
    assert_eq!(n.ask("RLOCK.CANCEL k2 owner-n"), "1");
    // A transaction runs on the same connection.
    n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c");
    n.ask("MULTI");
    n.ask("RLOCK.CANCEL k owner-n");
    assert_eq!(n.ask("EXEC"), "[1]");
    assert_eq!(subscriber.messages(), [""; 0]);
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn request_belongs_to_the_connection_that_asked_last() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (_contest, n) = notified(&server);
    let later = server.client();
    later.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c");
    assert_eq!(n.ask("RLOCK.CANCEL k owner-n"), "1");
    assert_eq!(subscriber.message(), "withdrawn 0 owner-n k");
    n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c");
    later.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c");
    assert_eq!(later.ask("RLOCK.CANCEL k owner-n"), "1");
    assert_eq!(subscriber.messages(), [""; 0]);
}

#[test]
fn cancel_in_a_script_counts_as_another_connection() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (_contest, n) = notified(&server);
    let cancel = "return redis.call('RLOCK.CANCEL', KEYS[1], 'owner-n')";
    assert_eq!(
        rlock_testkit::client::text(&n.call(&["EVAL", cancel, "1", "k"])),
        "1"
    );
    // A script has no connection, so the request gets the message `withdrawn`.
    assert_eq!(subscriber.message(), "withdrawn 0 owner-n k");
}

#[test]
fn clearing_a_long_queue_leaves_the_lock_to_later_requests() {
    const PLACES: u64 = 1000;
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (a, n, late) = (server.client(), server.client(), server.client());
    a.ask("RLOCK.ACQUIRE k owner-a 60000");
    for place in 0..PLACES {
        let wait = format!("RLOCK.ACQUIRE k owner-{place} 60000 WAIT 0 NOTIFY c");
        assert_eq!(n.ask(&wait), "WAITING");
    }
    assert_eq!(a.ask("RLOCK.FORCE k QUEUE"), "1");
    let fence = late.ask("RLOCK.ACQUIRE k late 60000 WAIT 0");
    assert!(fence.parse::<u64>().is_ok(), "{fence}");
    for place in 0..PLACES {
        let withdrawn = format!("withdrawn 0 owner-{place} k");
        assert_eq!(subscriber.message(), withdrawn);
    }
    assert_eq!(subscriber.messages(), [""; 0]);
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("waiters_gone"), PLACES);
}
