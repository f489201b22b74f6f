//! Replies and messages, in the order of their bytes.

use std::time::Duration;

use rlock_engine::engine::terms::{Lease, Terms};

use crate::played::{Played, RESPONSE, push};

const CHANNEL: &str = "rlock:client:c:1";

#[test]
fn a_message_between_two_replies_is_handled_between_them() {
    let mut it = Played::connected();
    it.asks("a");
    it.asks("b");
    it.asks("c");
    it.actions();
    let grant = push(&["message", CHANNEL, "grant 7 o2 a"]);
    it.receives(1, format!("+WAITING\r\n:6\r\n{grant}:8\r\n"));
    assert_eq!(
        it.actions(),
        [
            "call 3: granted 6",
            "call 2: granted 7",
            "call 4: granted 8"
        ]
    );
}

#[test]
fn a_grant_may_arrive_before_the_reply() {
    let mut it = Played::connected();
    it.asks("k");
    it.actions();
    let grant = push(&["message", CHANNEL, "grant 7 o2 k"]);
    it.receives(1, format!("{grant}+WAITING\r\n{grant}"));
    assert_eq!(it.actions(), ["call 2: granted 7"]);
}

/// Otherwise the lock would be held by nobody for a lease.
#[test]
fn a_grant_for_which_nobody_waits_is_undone() {
    let grant = push(&["message", CHANNEL, "grant 7 o9 k"]);
    let undone = ["1 RLOCK.CANCEL k o9", "1 RLOCK.RELEASE k o9 ALL"];
    let mut it = Played::connected();
    it.receives(1, push(&["message", CHANNEL, "timeout 0 o9 k"]));
    assert_eq!(it.actions(), [""; 0]);
    it.receives(1, &grant);
    assert_eq!(it.actions(), undone);
    // What undoes it comes after this one, too.
    it.receives(1, format!("{grant}-TRYAGAIN\r\n:0\r\n{grant}"));
    assert_eq!(it.actions(), [""; 0]);
    it.passes(50);
    assert_eq!(it.actions(), undone);
    it.receives(1, ":0\r\n:0\r\n");
    assert_eq!(it.actions(), [""; 0]);
}

/// The server sends this if it has no more to say of the key, for example because its slot has moved.
#[test]
fn a_hold_without_notices_is_renewed_at_once() {
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it.receives(1, push(&["message", CHANNEL, "withdrawn 0 o2 k"]));
    it.passes(1);
    assert_eq!(
        it.actions(),
        ["1 RLOCK.RENEW k o2 30000 NOTIFY rlock:client:c:1"]
    );
}

#[test]
fn a_transient_refusal_is_retried_after_a_pause() {
    for error in [
        "LOADING Redis is loading the dataset in memory",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "MASTERDOWN Link with MASTER is down",
        "BUSY Redis is busy running a script",
    ] {
        let mut it = Played::connected();
        it.asks("k");
        it.answers(1, "RLOCK.ACQUIRE", format!("-{error}\r\n"));
        it.actions();
        it.passes(10);
        it.answers(1, "RLOCK.ACQUIRE", ":9\r\n");
        assert_eq!(it.actions().last().unwrap(), "call 2: granted 9", "{error}");
    }
}

/// One of the keys now holds something that is not a lock, so the server refuses
/// to release them together.
#[test]
fn each_of_several_keys_is_released_until_answered() {
    let mut it = Played::connected();
    it.asks_for("a", &["b"], Terms::new());
    it.answers(1, "RLOCK.MACQUIRE", ":7\r\n");
    it.releases();
    it.answers(1, "RLOCK.MRELEASE", "-WRONGTYPE it is no lock\r\n");
    it.reconnects();
    it.passes(20);
    it.did();
    it.answers(2, "RLOCK.RELEASE a o2 ALL", "-WRONGTYPE it is no lock\r\n");
    it.answers(2, "RLOCK.RELEASE b o2 ALL", ":0\r\n");
    let refused = "call 3: the key holds no lock: it is no lock";
    assert_eq!(it.did(), [refused]);
}

/// A hold of `me` was lost by the clock. Its owner asks again by connection 2, and has released it.
fn lost() -> Played {
    let mut it = Played::connected();
    let lease = Lease::Fixed(Duration::from_secs(1));
    let bound = Terms::new().lease(lease).unwrap();
    let bound = bound.bound(Duration::from_secs(1)).unwrap();
    it.asks_as("me", "k", &[], bound);
    it.answers(1, "RLOCK.ACQUIRE k me", ":7\r\n");
    it.ends(1);
    it.passes(2000);
    it.greeted(2);
    it.asks_as("me", "k", &[], Terms::new());
    it.answers(2, "RLOCK.RELEASE k me ALL FENCE 7", ":0\r\n");
    it
}

/// The server may still have the hold, bound to a connection with its grace. A
/// new request would leave it bound, even with other terms.
#[test]
fn a_hold_lost_by_the_clock_is_released_before_its_owner_asks_again() {
    let mut it = lost();
    it.answers(2, "RLOCK.ACQUIRE k me", ":8\r\n");
    assert_eq!(it.actions().pop().unwrap(), "call 3: granted 8");
}

/// The replica never heard of the release, and became the master. The old master
/// may have granted the lock to another owner meanwhile, under a fence above 7.
#[test]
fn a_grant_that_its_owner_released_does_not_come_back() {
    let mut it = Played::connected();
    it.asks_as("me", "k", &[], Terms::new());
    it.answers(1, "RLOCK.ACQUIRE k me", ":7\r\n");
    it.releases();
    it.answers(1, "RLOCK.RELEASE k me", ":0\r\n");
    it.ends(1);
    it.asks_as("me", "k", &[], Terms::new());
    it.passes(20);
    it.greeted(2);
    it.passes(20);
    it.did();
    it.answers(2, "RLOCK.ACQUIRE k me", ":7\r\n");
    it.answers(2, "RLOCK.RELEASE k me ALL FENCE 7", ":0\r\n");
    assert!(it.did().is_empty());
    it.passes(20);
    it.answers(2, "RLOCK.ACQUIRE k me", ":8\r\n");
    assert_eq!(it.did(), ["call 4: granted 8"]);
}

/// The clocks of two servers may differ, and no two clocks run equally fast.
#[test]
fn a_grant_with_a_long_lease_does_not_come_back_before_its_lease_is_over_everywhere() {
    for (seconds, outcome) in [(3_645, None), (3_647, Some("call 4: granted 7"))] {
        let mut it = Played::connected();
        let lease = Lease::Fixed(Duration::from_secs(3_600));
        let terms = Terms::new().lease(lease).unwrap();
        it.tries("k", terms);
        it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
        it.releases();
        it.answers(1, "RLOCK.RELEASE k o", ":0\r\n");
        it.passes(seconds * 1_000);
        it.did();
        it.tries("k", terms);
        it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
        assert_eq!(it.did().first().map(String::as_str), outcome);
    }
}

/// The server's clock was set back over a restart. The larger fence matters only until its lease is over.
#[test]
fn smaller_fences_are_granted_after_the_lease_of_a_larger_one() {
    let mut it = Played::connected();
    let lease = Lease::Fixed(Duration::from_secs(1));
    let terms = Terms::new().lease(lease).unwrap();
    it.asks_as("me", "k", &[], terms);
    it.answers(1, "RLOCK.ACQUIRE k me", ":70\r\n");
    it.releases();
    it.answers(1, "RLOCK.RELEASE k me", ":0\r\n");
    it.asks_as("me", "k", &[], terms);
    it.did();
    let (mut fence, mut ms) = (10, 0);
    while it.did().is_empty() && ms < 60_000 {
        it.answers_each(1, |asked| match asked.split(' ').next() {
            Some("RLOCK.ACQUIRE") => {
                fence += 1;
                format!(":{fence}\r\n")
            }
            Some("PING") => "+PONG\r\n".to_owned(),
            _ => ":0\r\n".to_owned(),
        });
        it.passes(1);
        ms += 1;
    }
    assert!((11_000..13_000).contains(&ms), "after {ms} ms");
}

/// Who waits holds nothing: the next grant is a new one.
#[test]
fn a_grant_after_a_wait_is_not_taken_for_one_that_was_undone() {
    let mut it = Played::connected();
    it.asks_as("me", "k", &[], Terms::new());
    it.answers(1, "RLOCK.ACQUIRE k me", "+WAITING\r\n");
    it.abandons(2);
    it.answers(1, "RLOCK.CANCEL k me", ":1\r\n");
    it.answers(1, "RLOCK.RELEASE k me", "$-1\r\n");
    it.ends(1);
    it.passes(20);
    it.asks_as("me", "k", &[], Terms::new());
    it.greeted(2);
    it.passes(20);
    it.answers(2, "RLOCK.ACQUIRE k me", "+WAITING\r\n");
    it.did();
    it.receives(2, push(&["message", "rlock:client:c:2", "grant 77 me k"]));
    assert_eq!(it.did(), ["call 3: granted 77"]);
}

/// Its owner asks again while it still has the guard of the lost hold.
#[test]
fn a_lost_hold_that_was_released_does_not_come_back() {
    let mut it = lost();
    it.reconnects();
    it.passes(20);
    it.did();
    it.answers(3, "RLOCK.ACQUIRE k me", ":7\r\n");
    it.answers(3, "RLOCK.RELEASE k me ALL FENCE 7", ":0\r\n");
    assert!(it.did().is_empty());
}

/// The end of the client has released it already, so it cannot be kept any more.
#[test]
fn a_hold_that_is_to_be_kept_while_the_client_closes_is_kept_or_fails() {
    for (command, reply, outcome) in [
        (
            "RLOCK.RELEASE k o2",
            ":0\r\n",
            "call 3: the client has been closed, or its runtime shut down",
        ),
        ("RLOCK.RENEW k o2", ":7\r\n", "call 3: done"),
        (
            "RLOCK.RENEW k o2",
            "$-1\r\n",
            "call 3: the lock was lost: the server ended it",
        ),
    ] {
        let mut it = Played::connected();
        it.asks("k");
        it.answers(1, "RLOCK.ACQUIRE k o2", ":7\r\n");
        let is_kept_before = command.starts_with("RLOCK.RENEW");
        if is_kept_before {
            it.keeps(60);
        }
        it.leaves_all();
        if !is_kept_before {
            it.keeps(60);
        }
        it.releases();
        it.did();
        it.answers(1, command, reply);
        assert_eq!(it.did(), [outcome]);
    }
}

/// The replica knew the grant, but neither did this client nor does the replica
/// know that it was undone.
#[test]
fn a_grant_that_was_undone_does_not_come_back() {
    let mut it = Played::connected();
    it.asks_as("me", "k", &[], Terms::new());
    it.abandons(2);
    it.answers(1, "RLOCK.ACQUIRE k me", ":7\r\n");
    it.answers(1, "RLOCK.CANCEL k me", ":0\r\n");
    it.answers(1, "RLOCK.RELEASE k me", ":0\r\n");
    it.ends(1);
    it.asks_as("me", "k", &[], Terms::new());
    it.passes(20);
    it.greeted(2);
    it.passes(20);
    it.did();
    it.answers(2, "RLOCK.ACQUIRE k me", ":7\r\n");
    it.answers(2, "RLOCK.RELEASE k me ALL FENCE 7", ":0\r\n");
    assert!(it.did().is_empty());
    it.passes(20);
    it.answers(2, "RLOCK.ACQUIRE k me", ":8\r\n");
    assert_eq!(it.did(), ["call 3: granted 8"]);
}

/// Only a broken server does that.
#[test]
fn a_wait_without_limit_that_is_refused_is_repeated_after_pauses() {
    let mut it = Played::connected();
    it.waits("k");
    let mut requests = 0;
    for _ in 0..1000 {
        it.answers_each(1, |asked| {
            assert!(asked.starts_with("RLOCK.ACQUIRE k o"), "{asked}");
            requests += 1;
            "$-1\r\n".to_owned()
        });
        it.passes(1);
    }
    assert!((5..20).contains(&requests), "{requests} in a second");
}

#[test]
fn a_server_that_became_a_replica_is_left() {
    let mut it = Played::connected();
    it.asks("k");
    it.actions();
    it.answers(
        1,
        "RLOCK.ACQUIRE",
        "-READONLY You can't write against a read only replica.\r\n",
    );
    assert_eq!(it.did(), ["close 1"]);
    it.passes(20);
    it.greeted(2);
    it.passes(20);
    it.answers(2, "RLOCK.ACQUIRE", ":9\r\n");
    assert_eq!(it.did(), ["connect 2 to h:1", "call 2: granted 9"]);
}

#[test]
fn a_cluster_node_used_as_a_single_server_refuses() {
    let mut it = Played::connected();
    it.asks("k");
    it.queries("k");
    it.answers(1, "RLOCK.ACQUIRE", "-MOVED 12 h:2\r\n");
    it.answers(1, "RLOCK.INFO", "-MOVED 12 h:2\r\n");
    let refused = "the server refused: MOVED 12 h:2";
    assert_eq!(
        it.did(),
        [format!("call 2: {refused}"), format!("call 3: {refused}")]
    );
}

#[test]
fn a_silent_connection_is_closed() {
    let mut it = Played::connected();
    it.asks("k");
    it.actions();
    it.passes(RESPONSE - 1);
    assert_eq!(it.actions(), [""; 0]);
    it.passes(1);
    assert_eq!(it.actions(), ["close 1"]);
    it.passes(10);
    it.greeted(2);
    it.answers(2, "RLOCK.ACQUIRE", ":9\r\n");
    assert_eq!(it.did(), ["connect 2 to h:1", "call 2: granted 9"]);
}

#[test]
fn a_connection_that_receives_bytes_is_kept() {
    let mut it = Played::connected();
    it.asks("a");
    it.actions();
    for _ in 0..3 {
        it.passes(RESPONSE - 1);
        it.receives(1, push(&["message", CHANNEL, "lost 1 somebody else"]));
    }
    it.receives(1, ":");
    it.passes(RESPONSE - 1);
    it.receives(1, "9\r\n");
    let late = "at risk: a: 19.996s, 9.702s left";
    assert_eq!(it.did(), ["call 2: granted 9", late]);
}

#[test]
fn an_invalid_reply_ends_the_connection() {
    let long = format!("+{}\r\n", "x".repeat(10_000));
    for bytes in [
        "HTTP/1.1 400 Bad Request\r\n",
        ":1\r\n:2\r\n:3\r\n",
        ":1\r\n*3\r\n>0\r\n",
        &*long,
    ] {
        let mut it = Played::connected();
        it.asks("k");
        it.actions();
        it.receives(
            1,
            if bytes == long {
                format!(":1\r\n{long}")
            } else {
                bytes.to_owned()
            },
        );
        let did = it.did();
        assert!(did.contains(&"close 1".to_owned()), "{bytes}: {did:?}");
        it.queries("k");
        it.passes(10_000);
        let failed = it.did().pop().unwrap();
        assert!(failed.len() < 200, "{failed}");
    }
}

#[test]
fn a_message_that_is_not_understood_changes_nothing() {
    let mut it = Played::connected();
    it.asks("k");
    it.actions();
    it.receives(1, push(&["message", CHANNEL, "what"]));
    it.receives(1, push(&["invalidate", "k", ""]));
    it.receives(1, push(&["subscribe", CHANNEL, ""]));
    it.receives(1, ">0\r\n");
    it.receives(1, ":9\r\n");
    assert_eq!(it.actions(), ["unknown message", "call 2: granted 9"]);
}

#[test]
fn bytes_may_be_split_anywhere() {
    let grant = push(&["message", CHANNEL, "grant 7 o2 a"]);
    let lost = push(&["message", CHANNEL, "lost 6 o3 b"]);
    let bytes = format!("+WAITING\r\n:6\r\n{grant}-LOADING busy\r\n{lost}$-1\r\n");
    let play = |pieces: &[&str]| {
        let mut it = Played::connected();
        it.asks("a");
        it.asks("b");
        it.asks("c");
        it.queries("d");
        it.actions();
        pieces.iter().for_each(|piece| it.receives(1, piece));
        it.passes(5);
        it.actions()
    };
    let whole = play(&[&bytes]);
    assert!(
        whole.contains(&"over: the server ended it".to_owned()),
        "{whole:?}"
    );
    for at in 1..bytes.len() {
        let (first, second) = bytes.split_at(at);
        assert_eq!(play(&[first, second]), whole, "split at {at}");
    }
    let each: Vec<&str> = bytes.split("").collect();
    assert_eq!(play(&each), whole);
}

#[test]
fn a_request_on_an_ended_connection_is_repeated_on_the_next() {
    let mut it = Played::connected();
    it.asks("a");
    it.asks("b");
    it.queries("c");
    it.receives(1, "+WAITING\r\n");
    it.actions();
    it.ends(1);
    assert_eq!(it.actions(), [""; 0]);
    it.passes(10);
    it.greeted(2);
    it.passes(10);
    let asked = it.actions();
    let asked: Vec<_> = asked.iter().filter(|line| line.contains("RLOCK")).collect();
    assert_eq!(asked.len(), 3, "{asked:?}");
    it.answers(2, "RLOCK.INFO", "_\r\n");
    it.answers(2, "RLOCK.ACQUIRE", ":1\r\n");
    it.answers(2, "RLOCK.ACQUIRE", ":2\r\n");
    let outcomes = ["call 4: Nil", "call 2: granted 1", "call 3: granted 2"];
    assert_eq!(it.actions(), outcomes);
}

#[test]
fn all_waits_end_when_there_will_be_no_more_connections() {
    use rlock_engine::endpoint::Event;
    let mut it = Played::connected();
    it.asks("a");
    it.queries("b");
    it.actions();
    it.handle(Event::Closed);
    let closed = "the client has been closed, or its runtime shut down";
    let expected = [
        &format!("call 2: {closed}"),
        "1 RLOCK.CANCEL a o2",
        "1 RLOCK.RELEASE a o2 ALL",
        "close 1",
        &format!("call 3: {closed}"),
    ];
    assert_eq!(it.actions(), expected);
    it.asks("c");
    it.queries("d");
    assert_eq!(
        it.actions(),
        [format!("call 4: {closed}"), format!("call 5: {closed}")]
    );
    assert_eq!(it.endpoint.next_deadline(), None);
}

/// The server might refuse such a lease each time.
#[test]
fn a_failed_extension_does_not_change_renewals() {
    let mut it = Played::connected();
    it.asks("a");
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.extends(Duration::from_secs(90_000));
    it.actions();
    it.ends(1);
    it.passes(10_000);
    let failed = "call 3: no usable answer from the server within 10s";
    assert!(it.did().contains(&failed.to_owned()));
    it.greeted(it.connections());
    it.passes(1_000);
    let actions = it.actions().join("; ");
    assert!(
        actions.contains("RLOCK.RENEW a o2 30000 NOTIFY"),
        "{actions}"
    );
}

#[test]
fn a_refused_renewal_is_reported_once_until_one_succeeds() {
    let mut it = Played::connected();
    it.asks("a");
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    let refused = "-NOPERM this user has no permissions to run the 'rlock.renew' command\r\n";
    let reports = |it: &mut Played| {
        let did = it.did().into_iter();
        did.filter(|it| it.starts_with("not renewed: a: not permitted: this user has no"))
            .count()
    };
    it.passes(11_000);
    it.answers(1, "RLOCK.RENEW", refused);
    it.passes(100);
    it.answers(1, "RLOCK.RENEW", refused);
    assert_eq!(reports(&mut it), 1);
    it.passes(100);
    it.answers(1, "RLOCK.RENEW", ":7\r\n");
    it.actions();
    let mut next = Vec::new();
    for _ in 0..11 {
        if next.is_empty() {
            it.passes(1_000);
            next = it.actions();
        }
    }
    assert_eq!(next, ["1 RLOCK.RENEW a o2 30000"]);
    it.answers(1, "RLOCK.RENEW", refused);
    assert_eq!(reports(&mut it), 1);
}

#[test]
fn a_refusal_for_a_lack_of_rights_names_the_key_and_the_rule() {
    let mut it = Played::connected();
    let refused = "-NOPERM No permissions to access a key\r\n";
    let rule = "the user's ACL needs a pattern for the key 'invoice:7', such as ~invoice:*";
    it.asks("invoice:7");
    it.answers(1, "RLOCK.ACQUIRE", refused);
    it.queries("invoice:7");
    it.answers(1, "RLOCK.INFO", refused);
    let actions = it.did();
    assert_eq!(actions.len(), 2);
    let begin = format!("not permitted: No permissions to access a key; {rule}: see docs/");
    for (call, actions) in actions.iter().enumerate() {
        let begin = format!("call {}: {begin}", call + 2);
        assert!(actions.starts_with(&begin), "{actions}");
    }
}

/// In a cluster the successor of a master passes on what that says on the channels of earlier connections.
#[test]
fn no_message_on_the_channel_of_an_earlier_connection_is_believed() {
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.asks("l");
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.actions();
    it.reconnects();
    it.passes(1);
    let asked = it.actions();
    let asked = asked.iter().filter(|line| line.contains(" NOTIFY "));
    let own = asked.filter(|line| line.ends_with(" NOTIFY rlock:client:c:2"));
    assert_eq!(own.count(), 2);
    it.answers(2, "RLOCK.ACQUIRE l", "+WAITING\r\n");
    it.answers(2, "RLOCK.RENEW k", ":7\r\n");
    let on = |channel: &str| {
        let messages = ["grant 8 o3 l", "lost 7 o2 k"];
        messages.map(|it| push(&["message", channel, it])).concat()
    };
    it.receives(2, on(CHANNEL));
    assert_eq!(it.did(), ["unknown message"; 2]);
    assert!(it.proofs[0].is_live(it.now()));
    it.receives(2, on("rlock:client:c:2"));
    assert_eq!(it.did(), ["call 3: granted 8", "over: the server ended it"]);
}
