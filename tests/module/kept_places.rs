//! Places in queues that outlive their calls: `KEEP`.

use crate::contest::wait_for;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually, request, words};

/// Waits until the place of an owner in the queue of a lock is kept.
#[track_caller]
pub(crate) fn await_kept(server: &Server, key: &str, owner: &str) {
    eventually(&format!("the place of {owner} is kept"), || {
        let lock = server.lock(key);
        let place = lock.waiter(owner);
        place.is_some_and(|place| place.kept_left_ms.is_some())
    });
}

/// `owner-a` holds `k`, the place of `owner-b` is kept for a minute, and `owner-c` waits behind it.
struct Kept {
    holder: Client,
    next: Client,
}

impl Kept {
    #[track_caller]
    fn on(server: &Server) -> Self {
        let holder = server.client();
        holder.number("RLOCK.ACQUIRE k owner-a 60000");
        let keep = "RLOCK.ACQUIRE k owner-b 60000 WAIT 1 KEEP 60000";
        assert_eq!(server.client().ask(keep), "nil");
        let next = wait_for(server, "k", "owner-c", 2);
        Self { holder, next }
    }
}

#[test]
fn place_outlives_each_end_of_its_call_and_can_be_resumed() {
    let server = Server::start();
    let mut ends = vec!["wait", "close", "kill"];
    if server.is_at_least((7, 4), (8, 0)) {
        ends.extend(["unblock", "unblock error"]);
    }
    for end in ends {
        let holder = server.client();
        holder.number("RLOCK.ACQUIRE k owner-a 60000");
        let first = server.client();
        let wait = if end == "wait" { 100 } else { 0 };
        first.send(&format!(
            "RLOCK.ACQUIRE k owner-b 60000 WAIT {wait} KEEP 60000"
        ));
        server.await_queued("k", 1);
        let next = wait_for(&server, "k", "owner-c", 2);
        let id = first.id();
        match end {
            "close" => first.close(),
            "kill" => assert_eq!(server.ask(&format!("CLIENT KILL ID {id}")), "1"),
            "unblock" => {
                assert_eq!(server.ask(&format!("CLIENT UNBLOCK {id}")), "1");
                assert_eq!(first.answer(), "nil");
            }
            "unblock error" => {
                assert_eq!(server.ask(&format!("CLIENT UNBLOCK {id} ERROR")), "1");
                assert!(first.answer().starts_with("UNBLOCKED "));
            }
            _ => assert_eq!(first.answer(), "nil"),
        }
        await_kept(&server, "k", "owner-b");
        let lock = server.lock("k");
        assert_eq!(lock.waiting(), ["owner-b", "owner-c"], "{end}");
        assert_eq!(lock.queued, 2, "{end}");
        let place = &lock.waiters[0];
        assert_eq!((place.wait_left_ms, place.client_id), (None, None), "{end}");
        assert_eq!(server.counter("waiters"), 2, "{end}");
        assert_eq!(server.counter("places_kept"), 1, "{end}");

        let again = server.client();
        again.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
        eventually("it waits again", || server.counter("places_kept") == 0);
        let lock = server.lock("k");
        assert_eq!(lock.waiting(), ["owner-b", "owner-c"], "{end}");
        assert!(lock.waiters[0].waited_ms >= place.waited_ms, "{end}");
        assert_eq!(lock.waiters[0].client_id, Some(again.id()), "{end}");
        assert_eq!(holder.ask("RLOCK.RELEASE k owner-a"), "0");
        again.fence();
        assert!(next.reply_by_now().is_none(), "{end}");
        assert_eq!(again.ask("RLOCK.RELEASE k owner-b"), "0");
        next.fence();
        assert_eq!(next.ask("RLOCK.RELEASE k owner-c"), "0");
    }
}

#[test]
fn end_of_a_call_and_the_resumed_wait_are_counted() {
    let server = Server::start();
    let Kept { holder, next } = Kept::on(&server);
    assert_eq!(server.counter("wait_timeouts"), 1);
    assert_eq!(server.counter("waits"), 2);
    let again = server.client();
    again.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0 KEEP 30");
    eventually("it waits again", || server.counter("places_kept") == 0);
    assert_eq!(server.counter("waits"), 3);
    again.close();
    // The call has ended, so the end of the grace does not count again.
    server.await_queued("k", 1);
    assert_eq!(server.counter("waiters_gone"), 1);
    holder.ask("RLOCK.RELEASE k owner-a");
    next.fence();
    assert_eq!(server.counter("handoffs"), 1);
}

#[test]
fn places_end_with_the_server() {
    let mut server = Server::configured(&["appendonly yes"]);
    let kept = Kept::on(&server);
    server.shut_down();
    server.start_again();
    assert_eq!(server.owners("k"), ["owner-a"]);
    assert_eq!(server.queued("k"), 0);
    drop(kept);
}

#[test]
fn places_end_with_a_demotion_reversed_in_the_same_turn() {
    let server = Server::start();
    let kept = Kept::on(&server);
    let waiting = server.client();
    waiting.send("RLOCK.ACQUIRE k owner-d 60000 WAIT 0 KEEP 60000");
    server.await_queued("k", 3);
    let nowhere = request(&words("REPLICAOF 127.0.0.1 1"));
    let back = request(&words("REPLICAOF NO ONE"));
    kept.holder.send_bytes(&[nowhere, back].concat());
    assert_eq!(
        (kept.holder.answer(), kept.holder.answer()),
        ("OK".into(), "OK".into())
    );
    assert!(waiting.answer().starts_with("UNBLOCKED "));
    eventually("no place is left", || server.counter("waiters") == 0);
}
