//! While a slot moves between nodes, no lock has holders at both.

use crate::cluster::{SLOT, announce_slot, begin_move, move_keys, replica_of, two_nodes};
use crate::contest::wait_for;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, Subscriber, eventually, text};

/// A request for `{k}held<n>`, which is held, and `{k}free<n>`; behind it a request for `{k}free<n>` only.
struct Queue {
    several: Client,
    holder: Client,
    held: String,
    free: String,
}

impl Queue {
    fn on(server: &Server, name: &str, limit_ms: u32) -> Self {
        let queue = Self {
            several: server.client(),
            holder: server.client(),
            held: format!("{{k}}held-{name}"),
            free: format!("{{k}}free-{name}"),
        };
        let Self { held, free, .. } = &queue;
        queue
            .holder
            .number(&format!("RLOCK.ACQUIRE {held} owner-a 60000 BIND 0"));
        let several = format!("RLOCK.MACQUIRE owner-m 60000 2 {held} {free} WAIT {limit_ms}");
        queue.several.send(&several);
        server.await_queued(held, 1);
        let single = format!("RLOCK.ACQUIRE {free} owner-n 60000 WAIT 0 NOTIFY c");
        assert_eq!(server.ask(&single), "WAITING");
        queue
    }
}

/// Gives the next requests in the queue their turn; returns the reply to the request for both keys.
type Way = (&'static str, &'static str, Option<&'static str>);

const WAYS: [Way; 8] = [
    ("release", "RLOCK.RELEASE HELD owner-a", Some("TRYAGAIN ")),
    (
        "release-many",
        "RLOCK.MRELEASE owner-a 1 HELD",
        Some("TRYAGAIN "),
    ),
    ("force", "RLOCK.FORCE HELD", Some("TRYAGAIN ")),
    (
        "lease-end",
        "RLOCK.RENEW HELD owner-a 10",
        Some("TRYAGAIN "),
    ),
    ("deletion", "DEL HELD", Some("TRYAGAIN ")),
    ("holder-gone", "", Some("TRYAGAIN ")),
    ("cancel", "RLOCK.CANCEL HELD owner-m", Some("nil")),
    ("waiter-gone", "", None),
];

fn take_way(server: &Server, queue: Queue, (name, line, answer): Way) {
    let Queue {
        several,
        holder,
        held,
        ..
    } = queue;
    match name {
        "holder-gone" => holder.close(),
        "waiter-gone" => return several.close(),
        _ => drop(server.ask(&line.replace("HELD", &held))),
    }
    if let Some(expected) = answer {
        let answer = several.answer();
        assert!(answer.starts_with(expected), "{name}: {answer}");
    }
}

#[test]
fn lock_taken_at_the_new_node_is_not_granted_at_the_old_one() {
    let (first, second) = two_nodes();
    let mut subscriber = first.listen(&["c"]);
    let queues = WAYS.map(|way| (Queue::on(&first, way.0, 0), way));
    let timed = Queue::on(&first, "timeout", 3000);
    begin_move(&first, &second);
    let there = second.client();
    let names = WAYS.map(|way| way.0).into_iter().chain(["timeout"]);
    let mut expected = Vec::new();
    for name in names {
        let take = format!("RLOCK.ACQUIRE {{k}}free-{name} owner-z 60000");
        let sent_on = first.ask(&take);
        assert!(sent_on.starts_with("ASK "), "{sent_on}");
        assert_eq!(there.ask("ASKING"), "OK");
        there.number(&take);
        expected.push(format!("c: withdrawn 0 owner-n {{k}}free-{name}"));
    }
    for (queue, way) in queues {
        take_way(&first, queue, way);
    }
    assert_eq!(text(&timed.several.reply()), "nil");
    let mut received = Vec::new();
    eventually("all requests are withdrawn", || {
        received.extend(subscriber.messages());
        received.len() >= expected.len()
    });
    received.sort();
    expected.sort();
    assert_eq!(received, expected);
    // The remaining keys can be moved: the target has none of them.
    let keys = first
        .connection()
        .call(&["CLUSTER", "GETKEYSINSLOT", &SLOT.to_string(), "99"]);
    assert!(!text(&keys).contains("free"), "{}", text(&keys));
    move_keys(&first, &second);
    announce_slot(&first, &second);
    assert_eq!(first.ask("DBSIZE"), "0");
    assert_eq!(second.owners("{k}free-release"), ["owner-z"]);
}

#[test]
fn lock_that_has_not_moved_is_handed_over_at_the_old_node() {
    let (first, second) = two_nodes();
    let a = first.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000");
    let (next, last) = (
        wait_for(&first, "k", "owner-b", 1),
        wait_for(&first, "k", "owner-c", 2),
    );
    begin_move(&first, &second);
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
    let handed = next.fence();
    assert!(handed > fence);
    move_keys(&first, &second);
    assert!(last.answer().starts_with("TRYAGAIN "));
    announce_slot(&first, &second);
    assert_eq!(
        second.connection().number("RLOCK.RENEW k owner-b 60000"),
        handed
    );
}

#[test]
fn lock_taken_at_the_new_node_is_queued_and_settled_there() {
    let (first, second) = two_nodes();
    begin_move(&first, &second);
    let (a, b) = (second.client(), second.client());
    for client in [&a, &b] {
        assert_eq!(client.ask("ASKING"), "OK");
    }
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000");
    b.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    eventually("it waits there", || second.counter("waiters") == 1);
    assert_eq!(a.ask("ASKING"), "OK");
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
    let handed = b.fence();
    assert!(handed > fence);
    assert_eq!(first.ask("DBSIZE"), "0");
    announce_slot(&first, &second);
    assert_eq!(
        second.connection().number("RLOCK.RENEW k owner-b 60000"),
        handed
    );
}

/// A connection's channel may be in the slot that moves; its node gets messages until the move ends.
#[test]
fn channel_can_be_named_until_its_slot_has_moved() {
    let (first, second) = two_nodes();
    let a = first.client();
    let mut subscriber = Subscriber::listen(first.port(), "SSUBSCRIBE", &["k"]);
    begin_move(&first, &second);
    let fence = a.number("RLOCK.ACQUIRE elsewhere owner-a 60000 SNOTIFY k");
    assert_eq!(
        a.ask("RLOCK.ACQUIRE elsewhere owner-b 60000 WAIT 0 SNOTIFY k"),
        "WAITING"
    );
    assert_eq!(a.ask("RLOCK.RELEASE elsewhere owner-a"), "0");
    let granted = subscriber.message();
    assert!(granted.starts_with("grant ") && granted.ends_with(" owner-b elsewhere"));
    assert!(a.number("RLOCK.RENEW elsewhere owner-b 60000") > fence);
    let later = "RLOCK.ACQUIRE elsewhere owner-c 60000 WAIT 0 SNOTIFY k";
    assert_eq!(a.ask(later), "WAITING");
    announce_slot(&first, &second);
    eventually("the first node knows", || {
        first
            .ask("RLOCK.ACQUIRE elsewhere owner-b 60000 SNOTIFY k")
            .starts_with("ERR SNOTIFY")
    });
    // No listener is left.
    assert_eq!(a.ask("RLOCK.RELEASE elsewhere owner-b"), "0");
    assert_eq!(first.counter("waiters_gone"), 1);
    assert_eq!(first.ask("EXISTS elsewhere"), "0");
}

#[test]
fn moved_bound_hold_does_not_end_with_the_connection_to_the_old_node() {
    let (first, second) = two_nodes();
    let a = first.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 BIND 0");
    begin_move(&first, &second);
    move_keys(&first, &second);
    announce_slot(&first, &second);
    let id = a.id();
    a.close();
    eventually("the connection has ended", || {
        !first.ask("CLIENT LIST").contains(&format!("id={id} "))
    });
    eventually("nothing is left to be done", || {
        first.counter("watches") == 0
    });
    let there = second.client();
    assert_eq!(there.number("RLOCK.ACQUIRE k owner-a 60000 BIND 0"), fence);
    there.close();
    eventually("it is bound there", || second.ask("EXISTS k") == "0");
}

/// A listener at another node cannot act on the message, so it does not count: the waiter is skipped.
#[test]
fn grant_is_not_published_if_its_waiter_is_passed_over() {
    let (first, second) = two_nodes();
    let replica = replica_of(&first, true);
    let mut elsewhere = second.listen(&["c"]);
    let mut behind = Subscriber::listen(replica.port(), "SSUBSCRIBE", &["here"]);
    // Nodes that have just met forward messages only after a while.
    eventually("messages reach the other nodes", || {
        first.ask("PUBLISH c begin");
        first.ask("SPUBLISH here begin");
        [&mut elsewhere, &mut behind]
            .iter_mut()
            .all(|it| !it.messages().is_empty())
    });
    let a = first.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    a.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY c");
    a.ask("RLOCK.ACQUIRE k owner-s 60000 WAIT 0 SNOTIFY here");
    let next = wait_for(&first, "k", "owner-b", 3);
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a"), "0");
    next.fence();
    assert_eq!(first.counter("waiters_gone"), 2);
    // A message that is published later arrives later.
    first.ask("PUBLISH c end");
    first.ask("SPUBLISH here end");
    for subscriber in [&mut elsewhere, &mut behind] {
        let received = std::iter::repeat_with(|| subscriber.message()).find(|it| it != "begin");
        assert_eq!(received.as_deref(), Some("end"));
    }
}
