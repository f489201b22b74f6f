//! Observers of the leader, and the requests for them.

use rlock_engine::endpoint::Event;
use rlock_engine::engine::terms::{Lease, Terms};

use crate::cluster;
use crate::played::{Played, bulk, list, push};

/// A server's answer to the question for the leader of a key.
pub(crate) fn info(leader: Option<(u64, &str)>) -> String {
    let number = |number: u64| format!(":{number}\r\n");
    let map = |fields: &[(&str, String)]| {
        let words = fields.iter().map(|(name, value)| bulk(name) + value);
        format!("%{}\r\n{}", fields.len(), words.collect::<String>())
    };
    let holder = leader.map(|(fence, value)| {
        map(&[
            ("owner", bulk("o")),
            ("count", number(1)),
            ("permits", number(1)),
            ("lease-left-ms", number(9)),
            ("fence", number(fence)),
            ("bound", number(0)),
            ("value", bulk(value)),
        ])
    });
    let (mode, fence) = match leader {
        Some((fence, _)) => ("exclusive", number(fence)),
        None => ("free", "_\r\n".to_owned()),
    };
    map(&[
        ("mode", bulk(mode)),
        ("fence", fence),
        ("holders", list(&holder.into_iter().collect::<Vec<_>>())),
        ("queued", number(0)),
        ("waiters", list(&[])),
    ])
}

fn confirmed(kind: &str, channel: &str) -> String {
    format!(">3\r\n{}{}:1\r\n", bulk(kind), bulk(channel))
}

fn subscribed() -> String {
    confirmed("subscribe", "rlock:value:{k}")
}

fn unsubscribed() -> String {
    confirmed("unsubscribe", "rlock:value:{k}")
}

const HELLO: &str = "%1\r\n+role\r\n+master\r\n";

fn receives_message(it: &mut Played, message: &str) {
    receives_message_by(it, 1, message);
}

fn receives_message_by(it: &mut Played, connection: usize, message: &str) {
    it.receives(connection, push(&["message", "rlock:value:{k}", message]));
}

/// Connected by connection 1; observer 1 observes `k`, which has no leader.
fn observing() -> Played {
    let mut it = Played::connected();
    it.observes("k");
    assert_eq!(
        it.actions(),
        ["1 SUBSCRIBE rlock:value:{k}", "1 RLOCK.INFO k"]
    );
    it.answers(1, "SUBSCRIBE", subscribed());
    assert!(it.actions().is_empty(), "not known yet");
    it.answers(1, "RLOCK.INFO", info(None));
    assert_eq!(it.did(), ["observer 1: nobody"]);
    it
}

#[test]
fn each_change_is_reported_once_and_fences_never_decrease() {
    let mut it = observing();
    receives_message(&mut it, "7 a b");
    assert_eq!(it.actions(), ["observer 1: 7 a b"]);
    receives_message(&mut it, "7 a b");
    receives_message(&mut it, "6 old");
    receives_message(&mut it, "6");
    assert!(it.actions().is_empty());
    receives_message(&mut it, "7 ");
    receives_message(&mut it, "9 next");
    receives_message(&mut it, "7");
    receives_message(&mut it, "9");
    receives_message(&mut it, "9 next");
    let actions = ["observer 1: 7 ", "observer 1: 9 next", "observer 1: nobody"];
    assert_eq!(it.actions(), actions);
    receives_message(&mut it, "who");
    assert_eq!(it.actions(), ["unknown message"]);
}

#[test]
fn messages_before_the_answer_are_part_of_it() {
    let mut it = Played::connected();
    it.observes("k");
    it.actions();
    it.answers(1, "SUBSCRIBE", subscribed());
    receives_message(&mut it, "7 a");
    receives_message(&mut it, "8 b");
    assert!(it.actions().is_empty());
    it.answers(1, "RLOCK.INFO", info(Some((8, "b"))));
    assert_eq!(it.actions(), ["observer 1: 8 b"]);
    // From an earlier leader.
    receives_message(&mut it, "7");
    assert!(it.actions().is_empty());
}

#[test]
fn observers_of_a_key_share_one_subscription() {
    let mut it = observing();
    receives_message(&mut it, "7 a");
    it.observes("k");
    assert_eq!(it.actions(), ["observer 1: 7 a", "observer 2: 7 a"]);
    receives_message(&mut it, "7 b");
    assert_eq!(it.actions(), ["observer 1: 7 b", "observer 2: 7 b"]);
    it.stops_observing(1);
    receives_message(&mut it, "7");
    assert_eq!(it.actions(), ["observer 2: nobody"]);
    it.stops_observing(2);
    assert_eq!(it.actions(), ["1 UNSUBSCRIBE rlock:value:{k}", "1 HELLO"]);
    it.answers(1, "UNSUBSCRIBE", unsubscribed());
    it.answers(1, "HELLO", HELLO);
    assert!(it.actions().is_empty());
    it.passes(60_000);
    assert!(it.actions().is_empty(), "nobody needs a heartbeat");
    assert!(it.endpoint.engine().is_empty());
}

#[test]
fn a_repeated_observer_waits_for_its_own_answer() {
    let mut it = Played::connected();
    it.observes("k");
    it.stops_observing(1);
    it.observes("k");
    it.answers(1, "SUBSCRIBE", subscribed());
    it.answers(1, "RLOCK.INFO", info(Some((7, "a"))));
    it.answers(
        1,
        "UNSUBSCRIBE",
        confirmed("unsubscribe", "rlock:value:{k}"),
    );
    it.answers(1, "HELLO", HELLO);
    assert!(it.did().is_empty());
    it.answers(1, "SUBSCRIBE", subscribed());
    it.answers(1, "RLOCK.INFO", info(None));
    assert_eq!(it.did(), ["observer 2: nobody"]);
}

#[test]
fn a_quiet_connection_gets_heartbeats() {
    let mut it = observing();
    it.actions();
    it.passes(5000);
    assert_eq!(it.actions(), ["1 PING"]);
    // Nothing arrives.
    it.passes(5000);
    assert_eq!(it.did()[0], "close 1");
}

#[test]
fn a_new_connection_starts_over_and_reports_it() {
    let mut it = observing();
    receives_message(&mut it, "7 a");
    it.actions();
    it.ends(1);
    it.observes("k");
    it.passes(10);
    it.greeted(2);
    it.actions();
    it.answers(2, "SUBSCRIBE", subscribed());
    it.answers(2, "RLOCK.INFO", info(Some((9, "c"))));
    let actions = ["observer 1: 9 c, missed", "observer 2: 9 c"];
    assert_eq!(it.actions(), actions);
    it.ends(2);
    it.passes(1000);
    it.greeted(3);
    it.actions();
    it.answers(3, "SUBSCRIBE", subscribed());
    // A successor that does not know of the ninth leader.
    it.answers(3, "RLOCK.INFO", info(Some((7, "a"))));
    let actions = ["observer 1: 7 a, missed", "observer 2: 7 a, missed"];
    assert_eq!(it.actions(), actions);
    receives_message_by(&mut it, 3, "7 b");
    assert_eq!(it.actions(), ["observer 1: 7 b", "observer 2: 7 b"]);
}

#[test]
fn a_refusal_ends_the_observation_and_transient_errors_are_retried() {
    let mut it = Played::connected();
    it.observes("k");
    it.actions();
    it.answers(1, "SUBSCRIBE", subscribed());
    it.answers(1, "RLOCK.INFO", "-LOADING busy\r\n");
    assert!(it.actions().is_empty());
    it.passes(10);
    assert_eq!(
        it.actions(),
        ["1 SUBSCRIBE rlock:value:{k}", "1 RLOCK.INFO k"]
    );
    it.answers(1, "SUBSCRIBE", "-NOPERM no\r\n");
    let actions = [
        "1 HELLO",
        "1 UNSUBSCRIBE rlock:value:{k}",
        "observer 1: not permitted: no",
    ];
    let mut notified = it.actions();
    notified.sort();
    assert_eq!(notified, actions);
    it.answers(1, "RLOCK.INFO", info(Some((7, "a"))));
    it.answers(1, "UNSUBSCRIBE", "-NOPERM no\r\n");
    it.answers(1, "HELLO", HELLO);
    it.passes(60_000);
    assert!(it.actions().is_empty());
}

#[test]
fn an_observation_follows_its_slot() {
    let mut it = cluster::connected();
    it.observes("a");
    assert_eq!(
        it.actions(),
        ["3 SSUBSCRIBE rlock:value:{a}", "3 RLOCK.INFO a"]
    );
    let channel = "rlock:value:{a}";
    it.answers(3, "SSUBSCRIBE", confirmed("ssubscribe", channel));
    it.answers(3, "RLOCK.INFO", info(Some((7, "a"))));
    it.receives(3, push(&["smessage", channel, "8 b"]));
    assert_eq!(it.actions(), ["observer 1: 7 a", "observer 1: 8 b"]);
    // The slot moves: the server reports that no more messages come.
    it.receives(3, confirmed("sunsubscribe", channel));
    let actions = it.actions();
    assert!(
        !actions.iter().any(|line| line.starts_with("close")),
        "{actions:?}"
    );
    it.passes(10);
    let actions = it.actions();
    assert!(
        actions.contains(&"3 SSUBSCRIBE rlock:value:{a}".to_owned()),
        "{actions:?}"
    );
    it.receives(3, "-MOVED 15495 m:7\r\n".repeat(2));
    it.passes(20);
    let actions = it.actions();
    assert!(
        actions.contains(&"2 SSUBSCRIBE rlock:value:{a}".to_owned()),
        "{actions:?}"
    );
    // Before that, the client renewed its holds.
    let renewed = ":9\r\n".to_owned() + &confirmed("ssubscribe", channel);
    it.receives(2, renewed + &info(Some((8, "b"))));
    let did = it.did();
    assert!(
        did.contains(&"observer 1: 8 b, missed".to_owned()),
        "{did:?}"
    );
}

#[test]
fn a_value_goes_with_each_request_for_the_lock_and_with_no_renewal() {
    let mut it = Played::connected();
    it.campaigns("k", "a b");
    let asked = "RLOCK.ACQUIRE k o 30000 WAIT 60000 KEEP 10000 NOTIFY rlock:client:c:1 VALUE a b";
    assert_eq!(it.actions(), [format!("1 {asked}")]);
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.ends(1);
    it.passes(10);
    it.greeted(2);
    let actions = it.actions().pop().unwrap();
    assert!(actions.ends_with("VALUE a b"), "{actions}");
    it.receives(2, ":7\r\n");
    assert_eq!(it.actions(), ["call 2: granted 7"]);
    it.passes(15_000);
    let renewals = it.actions();
    let renewed = "2 RLOCK.RENEW k o 30000".to_owned();
    assert!(renewals.contains(&renewed), "{renewals:?}");
}

/// Without its value, the lock would be held but have no leader.
#[test]
fn a_full_server_is_not_asked_for_the_lock_without_its_value() {
    let mut it = Played::connected();
    it.campaigns("k", "a");
    it.answers(1, "RLOCK.ACQUIRE", "-QUEUEFULL no room\r\n");
    let did = it.did();
    assert!(did[0].starts_with("call 2: "), "{did:?}");
    it.passes(60_000);
    assert!(it.actions().is_empty());
}

#[test]
fn a_value_is_published_by_one_renewal() {
    let mut it = Played::connected();
    it.asks("k");
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it.proclaims("a b");
    assert_eq!(it.actions(), ["1 RLOCK.RENEW k o2 30000 VALUE a b"]);
    it.proclaims("c");
    assert!(it.actions().is_empty(), "one after the other");
    it.answers(1, "RLOCK.RENEW", ":7\r\n");
    let actions = ["call 3: done", "1 RLOCK.RENEW k o2 30000 VALUE c"];
    assert_eq!(it.actions(), actions);
    // The reply is lost: asking again is harmless.
    it.ends(1);
    it.passes(10);
    it.greeted(2);
    let actions = it.actions();
    assert!(
        actions.contains(&"2 RLOCK.RENEW k o2 30000 VALUE c".to_owned()),
        "{actions:?}"
    );
    it.receives(2, "_\r\n".repeat(2));
    let did = it.did();
    assert!(
        did.iter()
            .any(|line| line.starts_with("call 4: ") && line.contains("lost")),
        "{did:?}"
    );
}

#[test]
fn a_value_does_not_extend_a_fixed_lease() {
    let mut it = Played::connected();
    let lease = std::time::Duration::from_secs(10);
    it.asks_on("k", Terms::new().lease(Lease::Fixed(lease)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it.passes(4000);
    it.proclaims("a");
    let actions = it.actions();
    let rest = actions[0].strip_prefix("1 RLOCK.RENEW k o2 ").unwrap();
    let rest: u64 = rest.strip_suffix(" VALUE a").unwrap().parse().unwrap();
    assert!((5800..=6000).contains(&rest), "{rest}");
}

/// The slot moves while the unsubscription is on its way.
#[test]
fn replies_stay_with_their_requests_whatever_ends_a_subscription() {
    for ends in [
        confirmed("sunsubscribe", "rlock:value:{a}") + "-MOVED 15495 m:7\r\n",
        confirmed("sunsubscribe", "rlock:value:{a}"),
        "-MOVED 15495 m:7\r\n".to_owned(),
    ] {
        let mut it = cluster::connected();
        it.observes("a");
        it.receives(3, confirmed("ssubscribe", "rlock:value:{a}") + &info(None));
        it.stops_observing(1);
        it.asks("a");
        it.actions();
        it.receives(3, ends + HELLO + ":12\r\n");
        assert_eq!(it.actions(), ["call 3: granted 12"]);
    }
}

/// A server that loads its data refuses each watch, repeatedly.
#[test]
fn any_number_of_observers_can_wait_for_a_retry() {
    let cost_of_each = |count: u32| {
        let mut it = Played::connected();
        (0..count).for_each(|key| it.observes(&format!("k{key}")));
        for _ in 0..count {
            it.receives(1, subscribed() + "-LOADING busy\r\n");
            // Each watch is retried at a different time.
            it.passes_nanos(1);
        }
        let begun = std::time::Instant::now();
        it.passes(10);
        let cost = begun.elapsed() / count;
        assert_eq!(it.actions().len(), 4 * count as usize);
        cost
    };
    let cheapest = |count| (0..3).map(|_| cost_of_each(count)).min().unwrap();
    // What costs each the more, the more there are, would be above 100.
    let (few, many) = (cheapest(50), cheapest(6400));
    assert!(many < few * 40, "{few:?} each, of many {many:?}");
}

#[test]
fn observers_end_with_the_client() {
    let mut it = observing();
    it.handle(Event::Closed);
    it.observes("k");
    let closed = "the client has been closed, or its runtime shut down";
    let expected = [1, 2].map(|number| format!("observer {number}: {closed}"));
    let did = it.did();
    assert!(did.ends_with(&expected), "{did:?}");
    // So do those that come while it is closing.
    let mut it = observing();
    it.asks("l");
    it.leaves_all();
    it.observes("k");
    let did = it.did();
    assert!(did.ends_with(&[format!("observer 2: {closed}")]), "{did:?}");
}

#[test]
fn an_observer_of_a_single_server_follows_no_redirection() {
    let mut it = Played::connected();
    it.observes("k");
    it.answers(1, "SUBSCRIBE", subscribed());
    it.answers(1, "RLOCK.INFO", "-MOVED 1 x:7\r\n");
    assert_eq!(it.did(), ["observer 1: the server refused: MOVED 1 x:7"]);
}

#[test]
fn an_observer_follows_its_key() {
    let mut it = cluster::connected();
    it.observes("a");
    it.answers(3, "SSUBSCRIBE", confirmed("ssubscribe", "rlock:value:{a}"));
    it.answers(3, "RLOCK.INFO", info(None));
    it.observes("b");
    it.asks("{a}x");
    it.actions();
    it.answers(3, "RLOCK.ACQUIRE", "-MOVED 15495 m:7\r\n");
    let actions = it.actions();
    let asked = |key| format!("2 SSUBSCRIBE rlock:value:{{{key}}}");
    assert!(
        actions.contains(&asked("a")) && !actions.contains(&asked("b")),
        "{actions:?}"
    );
}
