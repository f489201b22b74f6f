//! When holds are renewed, and heartbeats are sent: all requests with their times.

use std::time::Duration;

use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::terms::{Ask, Lease, Terms};

use crate::played::{Played, push};

const CHANNEL: &str = "rlock:client:c:1";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn renewed(lease: Duration) -> Terms {
    Terms::new().lease(Lease::Renewed(lease)).unwrap()
}

fn fixed(lease: Duration) -> Terms {
    Terms::new().lease(Lease::Fixed(lease)).unwrap()
}

/// Lets time pass. Each request of connection `number` is answered with `reply`, if there is one. Returns what happened,
/// with the milliseconds before it.
fn timeline(it: &mut Played, ms: u64, number: usize, reply: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    for at in 0..=ms {
        loop {
            let actions = it.actions();
            if actions.is_empty() {
                break;
            }
            lines.extend(actions.iter().map(|action| format!("{at} {action}")));
            if let Some(reply) = reply {
                it.answers_each(number, |_| reply.to_owned());
            }
        }
        it.passes(1);
    }
    lines
}

/// The timeline of connection 2, which is new.
fn after_the_greeting(it: &mut Played, ms: u64) -> Vec<String> {
    let mut lines = timeline(it, ms, 2, Some(":7\r\n"));
    let last = lines.iter().rposition(|line| line.contains("SUBSCRIBE"));
    lines.split_off(last.expect("a greeting") + 1)
}

/// Renewals are a third of the lease apart. A third after one that is not answered, the connection is closed.
#[test]
fn a_hold_is_renewed_until_the_server_is_silent() {
    let mut it = Played::connected();
    it.asks_on("k", renewed(seconds(3)));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    let expected = [619, 1619, 2619, 3619, 4619, 5619];
    let expected = expected.map(|at| format!("{at} 1 RLOCK.RENEW k o2 3000"));
    assert_eq!(timeline(&mut it, 6000, 1, Some(":7\r\n")), expected);
    assert_eq!(
        timeline(&mut it, 6000, 1, None),
        [
            "618 1 RLOCK.RENEW k o2 3000",
            "1118 at risk: k: 1.5s, 1.468s left",
            "1618 close 1",
            "1623 connect 2 to h:1",
            // The last lease was requested 382 ms before the first line. Its margin is 32 ms.
            "2586 over: its lease ended",
        ]
    );
}

/// It is at risk each time that no renewal has been confirmed for half of its lease, and says so once.
#[test]
fn a_hold_at_risk_is_told_of_once_until_it_is_renewed() {
    let mut it = Played::connected();
    it.asks_on("k", renewed(seconds(3)));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it.ends(1);
    let told = timeline(&mut it, 2000, 2, None);
    let told: Vec<_> = told.iter().filter(|it| it.contains("risk")).collect();
    assert_eq!(told, ["1500 at risk: k: 1.5s, 1.468s left"]);
    it.opens(2);
    it.greeted(2);
    it.passes(1);
    it.answers(2, "RLOCK.RENEW", ":7\r\n");
    it.actions();
    let told = timeline(&mut it, 2500, 2, None);
    let told: Vec<_> = told.iter().filter(|it| it.contains("risk")).collect();
    assert_eq!(told, ["1500 at risk: k: 1.5s, 1.468s left"]);
}

/// The last lease before the longest hold ends is not renewed, and neither is a fixed one.
#[test]
fn a_hold_that_is_not_renewed_any_more_is_not_at_risk() {
    for terms in [
        renewed(seconds(3)).max_hold(seconds(4)).unwrap(),
        fixed(seconds(3)),
    ] {
        let mut it = Played::connected();
        it.asks_on("k", terms);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        it.actions();
        let told = timeline(&mut it, 5000, 1, Some(":7\r\n"));
        assert_eq!(
            told.last().unwrap().split_once(' ').unwrap().1,
            "over: its lease ended"
        );
        assert!(!told.iter().any(|it| it.contains("risk")), "{told:?}");
    }
}

/// A lease that lasts until the longest hold ends is not renewed: no other would last longer.
#[test]
fn a_hold_is_renewed_until_its_longest_time_and_then_not_at_risk() {
    for (lease, max_hold, renewals) in [
        (600, 1000, &[600, 600, 476][..]),
        (3000, 4000, &[3000, 2381]),
        (3000, 5000, &[3000, 3000, 2381]),
        (3000, 3000, &[]),
    ] {
        let [lease, max_hold] = [lease, max_hold].map(Duration::from_millis);
        let mut it = Played::connected();
        it.asks_on("k", renewed(lease).max_hold(max_hold).unwrap());
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        it.actions();
        let mut told = Vec::new();
        for _ in 0..=max_hold.as_millis() * 2 {
            // An answer takes up to half a millisecond.
            let actions = it.actions();
            it.passes_nanos(500_000);
            it.answers_each(1, |_| ":7\r\n".to_owned());
            told.extend(actions);
        }
        let asked = renewals.iter().map(|ms| format!("1 RLOCK.RENEW k o2 {ms}"));
        let over = "over: its lease ended".to_owned();
        assert_eq!(told, asked.chain([over]).collect::<Vec<_>>());
    }
}

/// The margin of 800 ms ends it earlier than the lease would. What the server may still have is released with its last guard.
#[test]
fn a_hold_with_a_margin_ends_before_its_lease() {
    let mut it = Played::connected();
    let terms = renewed(seconds(3)).margin(Duration::from_millis(800));
    it.asks_on("k", terms.unwrap());
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    assert_eq!(
        timeline(&mut it, 3000, 1, None),
        [
            "619 1 RLOCK.RENEW k o2 3000",
            "1500 at risk: k: 1.5s, 676ms left",
            "1619 close 1",
            "1624 connect 2 to h:1",
            // The lease was requested at the first line's beginning. For clocks, 24 ms.
            "2176 over: its lease ended",
        ]
    );
}

/// The server is asked once to report its loss by the new connection. The rest of the lease stays as it is.
#[test]
fn a_hold_with_a_fixed_lease_is_only_attached() {
    let mut it = Played::connected();
    it.asks_on("k", fixed(seconds(3)));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    assert_eq!(timeline(&mut it, 1000, 1, None), [""; 0]);
    it.reconnects();
    assert_eq!(
        after_the_greeting(&mut it, 6000),
        [
            "1 2 RLOCK.RENEW k o2 1979 NOTIFY rlock:client:c:2",
            "1958 over: its lease ended",
        ]
    );
}

/// First those that the server ends soon after the end of their connection, then by their leases. Four heartbeats fit
/// into the shortest grace.
#[test]
fn holds_are_attached_to_a_new_connection_in_the_order_of_their_ends() {
    let mut it = Played::connected();
    for (key, terms) in [
        ("a", renewed(seconds(30))),
        ("b", fixed(seconds(5))),
        ("c", renewed(seconds(10)).bound(seconds(2)).unwrap()),
        ("d", renewed(seconds(3))),
        ("e", renewed(seconds(10)).bound(seconds(1)).unwrap()),
    ] {
        it.asks_on(key, terms);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    }
    it.reconnects();
    assert_eq!(
        after_the_greeting(&mut it, 1500),
        [
            "0 2 RLOCK.RENEW c o4 10000 NOTIFY rlock:client:c:2 BIND 2000",
            "0 2 RLOCK.RENEW e o6 10000 NOTIFY rlock:client:c:2 BIND 1000",
            "1 2 RLOCK.RENEW d o5 3000 NOTIFY rlock:client:c:2",
            "1 2 RLOCK.RENEW b o3 4979 NOTIFY rlock:client:c:2",
            "1 2 RLOCK.RENEW a o2 30000 NOTIFY rlock:client:c:2",
            "251 2 PING",
            "453 2 RLOCK.RENEW d o5 3000",
            "703 2 PING",
            "953 2 PING",
            "1203 2 PING",
            "1453 2 RLOCK.RENEW d o5 3000",
            "1453 2 PING",
        ]
    );
}

/// Half a grace after one that is not answered, the connection is closed.
#[test]
fn a_bound_hold_needs_heartbeats() {
    let mut it = Played::connected();
    it.asks_on("k", Terms::new().bound(seconds(2)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    let expected = [500, 1000, 1500, 2000, 2500, 3000];
    let expected = expected.map(|at| format!("{at} 1 PING"));
    assert_eq!(timeline(&mut it, 3000, 1, Some("+PONG\r\n")), expected);
    assert_eq!(
        timeline(&mut it, 3000, 1, None),
        [
            "499 1 PING",
            "1499 close 1",
            "1505 connect 2 to h:1",
            // A grace after the last answered request, less 22 ms.
            "1977 over: its lease ended",
        ]
    );
}

/// A quarter of the lease apart: the grant counts from the last answered request.
#[test]
fn a_wait_needs_heartbeats_until_it_is_over() {
    let mut it = Played::connected();
    it.asks_on("k", renewed(seconds(4)));
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.actions();
    assert_eq!(
        timeline(&mut it, 3000, 1, Some("+PONG\r\n")),
        ["1000 1 PING", "2000 1 PING", "3000 1 PING"]
    );
    it.receives(1, push(&["message", CHANNEL, "grant 7 o2 k"]));
    assert_eq!(
        timeline(&mut it, 3000, 1, Some(":7\r\n")),
        [
            "0 call 2: granted 7",
            "824 1 RLOCK.RENEW k o2 4000",
            "2157 1 RLOCK.RENEW k o2 4000",
        ]
    );
}

/// One renewal at a time is enough for four holds. The others wait for its answer, but no longer than a twelfth of their
/// lease.
#[test]
fn a_renewal_without_an_answer_does_not_hold_up_the_others_for_long() {
    let mut it = Played::connected();
    for (key, terms) in [
        ("a", renewed(seconds(30))),
        ("b", fixed(seconds(5))),
        ("c", renewed(seconds(3))),
        ("d", renewed(seconds(10))),
    ] {
        it.asks_on(key, terms);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    }
    it.reconnects();
    it.actions();
    assert_eq!(
        timeline(&mut it, 900, 2, None),
        [
            "1 2 RLOCK.RENEW c o4 3000 NOTIFY rlock:client:c:2",
            "418 2 RLOCK.RENEW b o3 4563 NOTIFY rlock:client:c:2",
            "834 2 RLOCK.RENEW d o5 10000 NOTIFY rlock:client:c:2",
        ]
    );
    it.answers(2, "RLOCK.RENEW c", ":7\r\n");
    assert_eq!(
        it.actions(),
        ["2 RLOCK.RENEW a o2 30000 NOTIFY rlock:client:c:2"]
    );
    assert_eq!(it.endpoint.engine().metrics().late_renewals, 2);
}

/// A new connection asks for loss reports with its first renewal, which may be refused for that reason.
#[test]
fn a_hold_is_renewed_even_if_the_server_cannot_report_its_loss() {
    let again = "2 RLOCK.RENEW k o2 3000 NOTIFY rlock:client:c:2";
    for (refusal, expected) in [
        ("QUEUEFULL x", &["0 2 RLOCK.RENEW k o2 3000"][..]),
        ("OOM x", &["0 2 RLOCK.RENEW k o2 3000"]),
        (
            "NOPERM x",
            &["0 not renewed: k: not permitted: x", &format!("8 {again}")],
        ),
        (
            "TRYAGAIN x",
            &["0 not renewed: k: TRYAGAIN x", &format!("8 {again}")],
        ),
        ("WRONGTYPE x", &["0 over: the server ended it"]),
    ] {
        let mut it = Played::connected();
        it.asks_on("k", renewed(seconds(3)));
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        it.reconnects();
        it.passes(1);
        it.actions();
        it.answers(2, "RLOCK.RENEW", format!("-{refusal}\r\n"));
        assert_eq!(timeline(&mut it, 500, 2, Some(":7\r\n")), expected);
    }
}

/// The target of a moving slot renews, but it cannot report to a connection for one request. A second later the server
/// is asked again.
#[test]
fn a_hold_whose_slot_is_moving_is_renewed_without_notices() {
    let mut it = crate::cluster::connected();
    it.reconnects();
    it.passes(20);
    let attach = "RLOCK.RENEW a o2 30000 SNOTIFY";
    it.answers(4, attach, "-ASK 15495 m:7\r\n");
    it.answers(4, "RLOCK.RENEW a o2 30000", "-ASK 15495 m:7\r\n");
    it.greeted(5);
    it.answers(5, "ASKING", "+OK\r\n");
    it.answers(5, "RLOCK.RENEW a o2 30000", ":9\r\n");
    it.actions();
    let mut renewed = timeline(&mut it, 1000, 4, None);
    renewed.retain(|line| !line.contains("CLUSTER"));
    assert_eq!(renewed, [format!("1000 4 {attach} rlock:client:{{0}}:c:4")]);
}

/// The rest of the old lease would cut the extension short.
#[test]
fn a_hold_that_is_being_extended_is_attached_afterwards() {
    let mut it = Played::connected();
    it.asks_on("k", fixed(seconds(3)));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.ends(1);
    it.extends(seconds(9));
    it.passes(20);
    it.greeted(2);
    it.actions();
    assert_eq!(timeline(&mut it, 500, 2, None), [""; 0]);
    it.answers(2, "RLOCK.RENEW k o2 9000", ":7\r\n");
    assert_eq!(
        it.actions(),
        [
            "call 3: done",
            "2 RLOCK.RENEW k o2 8499 NOTIFY rlock:client:c:2"
        ]
    );
}

/// Every quarter of the shortest lease for which a call waits, or of the shortest grace, but no less often than it was set.
#[test]
fn heartbeats_follow_the_shortest_time_that_needs_them() {
    let mut it = Played::connected();
    it.endpoint.set_quiet(seconds(2));
    it.asks("k");
    it.asks_on("l", renewed(seconds(4)));
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.actions();
    it.passes(500);
    it.answers(1, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.passes(499);
    assert_eq!(it.actions(), [""; 0]);
    it.passes(1);
    it.answers(1, "PING", "+PONG\r\n");
    it.abandons(3);
    it.answers(1, "RLOCK.CANCEL", ":1\r\n");
    it.answers(1, "RLOCK.RELEASE", "$-1\r\n");
    it.actions();
    let expected = [2_000, 4_000].map(|at| format!("{at} 1 PING"));
    assert_eq!(timeline(&mut it, 5_000, 1, Some("+PONG\r\n")), expected);
}

#[test]
fn a_bound_hold_needs_no_heartbeats_after_its_release() {
    let mut it = Played::connected();
    it.asks_on("k", Terms::new().bound(seconds(2)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.releases();
    it.answers(1, "RLOCK.RELEASE", ":0\r\n");
    it.actions();
    assert_eq!(timeline(&mut it, 5_000, 1, None), [""; 0]);
}

/// A guard that looks at the clock may be the first to see it: here before the silence of the connection is noticed.
#[test]
fn an_end_that_a_guard_has_seen_is_still_reported() {
    let mut it = Played::connected();
    it.asks_on("k", renewed(seconds(3)).bound(seconds(2)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.did();
    let valid = [1_900, 2_000].map(|ms| it.proofs[0].is_live(it.now() + Duration::from_millis(ms)));
    assert_eq!(valid, [true, false]);
    it.ends(1);
    it.passes(1);
    assert_eq!(it.did(), ["over: its lease ended"]);
}

/// It is slow, not silent.
#[test]
fn a_connection_that_answered_since_a_renewal_is_kept() {
    let mut it = Played::connected();
    it.asks_on("k", renewed(seconds(3)));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.asks("l");
    it.passes(1_000);
    it.answers(1, "RLOCK.ACQUIRE l", "+WAITING\r\n");
    it.did();
    it.passes(1_000);
    assert_eq!(it.did(), ["at risk: k: 1.5s, 1.468s left"]);
}

/// Such a renewal would bind it to its connection, so it stays at its server until it can be attached.
#[test]
fn a_bound_hold_whose_slot_is_moving_is_renewed_with_notices_only() {
    let mut it = crate::cluster::connected();
    it.asks_on("{a}b", renewed(seconds(30)).bound(seconds(60)).unwrap());
    it.answers(3, "RLOCK.ACQUIRE", ":10\r\n");
    it.reconnects();
    it.passes(20);
    let attach = "RLOCK.RENEW {a}b o3 30000 SNOTIFY";
    it.answers(4, attach, "-ASK 15495 m:7\r\n");
    it.answers(4, "RLOCK.RENEW a o2", ":9\r\n");
    it.passes(20);
    it.answers(4, attach, ":10\r\n");
}

/// Each answer makes room for one.
#[test]
fn renewals_that_wait_are_sent_one_after_the_other() {
    let mut it = Played::connected();
    for key in ["a", "b", "c", "d"] {
        it.asks(key);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    }
    it.reconnects();
    it.passes(10);
    it.actions();
    it.answers(2, "RLOCK.RENEW", ":7\r\n");
    assert_eq!(it.actions().len(), 1);
}

/// A twelfth of the lease would be too long.
#[test]
fn a_hold_with_little_left_does_not_wait_for_the_renewal_of_another() {
    let mut it = Played::connected();
    for key in ["k", "l"] {
        it.asks(key);
        it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
        it.passes(1);
    }
    it.ends(1);
    it.passes(28_000);
    it.greeted(it.connections());
    it.passes(10);
    assert!(it.has_sent("RLOCK.RENEW k"));
    it.passes(500);
    assert!(it.has_sent("RLOCK.RENEW l"));
}

/// The process was paused for longer than the grace, and its caller has seen that. The connection is alive all the same.
#[test]
fn the_loss_that_a_caller_has_seen_after_a_stall_is_reported_at_once() {
    let mut it = Played::connected();
    it.asks_on("k", renewed(seconds(30)).bound(seconds(1)).unwrap());
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.actions();
    it.is_paused(1500);
    assert!(!it.proofs[0].is_live(it.now()));
    it.stalls(0);
    assert_eq!(it.actions(), ["1 PING", "over: its lease ended"]);
}

/// Without heartbeats for it at its former server, it is over after its grace.
#[test]
fn a_bound_hold_whose_slot_moves_to_an_unreachable_server_is_reported_after_its_grace() {
    let mut it = crate::cluster::connected();
    it.asks_on("{a}b", renewed(seconds(30)).bound(seconds(2)).unwrap());
    it.answers(3, "RLOCK.ACQUIRE", ":10\r\n");
    it.queries("{a}b");
    it.answers(3, "RLOCK.INFO", "-MOVED 15495 o:9\r\n");
    it.actions();
    let lines = timeline(&mut it, 9000, 9, None);
    let over = lines.iter().find(|line| line.contains("over"));
    assert_eq!(
        over.map(String::as_str),
        Some("1978 over: its lease ended"),
        "{lines:?}"
    );
    assert!(!it.proofs[1].is_live(it.now()));
}

/// The process was paused. It reads that the slot has moved before its timers fire.
#[test]
fn a_hold_that_is_over_when_its_slot_moves_is_reported() {
    let mut it = crate::cluster::connected();
    it.asks_on("{a}b", renewed(seconds(3)));
    it.answers(3, "RLOCK.ACQUIRE", ":10\r\n");
    it.passes(2000);
    it.is_paused(4000);
    it.actions();
    it.answers(3, "RLOCK.RENEW", "-MOVED 15495 m:7\r\n");
    assert!(it.did().contains(&"over: its lease ended".to_owned()));
}

/// `o` shares `k`. The server has refused to extend the hold, so renewals ask for less again. But one that was sent
/// meanwhile asks for five minutes.
fn refused_an_extension() -> Played {
    let mut it = Played::connected();
    it.asks_mode("k", Ask::Shared);
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.passes(6_000);
    it.extends(seconds(300));
    it.passes(4_500);
    it.answers(1, "RLOCK.RENEW k o 300000", "-OOM no\r\n");
    it.actions();
    it
}

/// Until when the server has the hold after the next request.
fn asks_until(it: &mut Played) -> Instant {
    let lease = |line: &String| {
        let (_, words) = line.split_once(" k o ")?;
        words.split(' ').next()?.parse().ok()
    };
    for _ in 0..12_000 {
        if let Some(ms) = it.actions().iter().find_map(lease) {
            return it.now() + Duration::from_millis(ms);
        }
        it.passes(1);
    }
    panic!("nothing was asked");
}

/// The server may carry out a request whose answer is lost or does not count.
#[test]
fn no_request_asks_for_less_than_its_guards_count_on() {
    let requests: [fn(&mut Played); 4] = [
        |_| {},
        |it| it.asks_mode("k", Ask::Shared),
        Played::reconnects,
        // The hold is attached first.
        |it| {
            it.reconnects();
            it.asks_mode("k", Ask::Exclusive);
        },
    ];
    for (number, requests) in requests.into_iter().enumerate() {
        let mut it = refused_an_extension();
        it.answers(1, "RLOCK.RENEW k o 300000", ":7\r\n");
        requests(&mut it);
        let until = asks_until(&mut it);
        let counted = it.proofs[0].valid_until().unwrap();
        assert!(
            counted > it.now() + seconds(280) && counted <= until,
            "{number}"
        );
    }
}

#[test]
fn a_request_asks_for_as_much_as_the_renewal_before_it() {
    let mut it = refused_an_extension();
    it.asks_mode("k", Ask::Shared);
    let until = asks_until(&mut it);
    it.abandons(4);
    it.answers(1, "RLOCK.RENEW k o 300000", ":7\r\n");
    it.answers(1, "RLOCK.ACQUIRE k o", ":7\r\n");
    let counted = it.proofs[0].valid_until().unwrap();
    assert!(counted > it.now() + seconds(280) && counted <= until);
}

/// After a reconnect, a hold with a fixed lease waits for the renewal of another one before it is attached. It is extended
/// meanwhile.
fn extends_before_it_is_attached() -> Played {
    let mut it = Played::connected();
    it.asks_on("a", fixed(seconds(8)));
    it.answers(1, "RLOCK.ACQUIRE", ":5\r\n");
    it.asks_mode_on("k", Ask::Exclusive, fixed(seconds(10)));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.passes(1_000);
    it.reconnects();
    it.passes(1);
    it.extends(seconds(60));
    it
}

/// The connection ends before the answer to the last of these requests for `k`, which the server has carried out: no guard is
/// valid for longer than that.
fn ends_with_its_last_lease(it: &mut Played, log: &[String]) {
    it.ends(2);
    let last = log
        .iter()
        .rfind(|it| it.starts_with("2 RLOCK") && it.contains(" k o "));
    let lease: u64 = last.unwrap().split(' ').nth(4).unwrap().parse().unwrap();
    it.passes(lease + 1);
    let left = it.proofs.last().unwrap().remaining(it.now());
    assert!(
        left.is_zero(),
        "valid for {left:?} after a lease of {lease} ms: {log:?}"
    );
}

/// The request for loss reports must not cut that short: the server carries out both.
#[test]
fn no_request_for_loss_reports_cuts_an_extension_short() {
    let mut it = extends_before_it_is_attached();
    let mut log = it.actions();
    assert!(
        log.contains(&"2 RLOCK.RENEW k o 60000".to_owned()),
        "{log:?}"
    );
    it.answers(2, "RLOCK.RENEW a", ":5\r\n");
    it.answers(2, "RLOCK.RENEW k o 60000", ":7\r\n");
    log.extend(it.actions());
    assert!(log.contains(&"call 4: done".to_owned()), "{log:?}");
    ends_with_its_last_lease(&mut it, &log);
}

/// The same if nothing breaks: the extension counts.
#[test]
fn an_extension_lasts_although_loss_reports_are_asked_for() {
    let mut it = extends_before_it_is_attached();
    for _ in 0..5 {
        it.answers_each(2, |asked| match asked.contains(" k ") {
            true => ":7\r\n".to_owned(),
            false => ":5\r\n".to_owned(),
        });
        it.passes(1);
    }
    let log = it.actions();
    assert!(log.contains(&"call 4: done".to_owned()), "{log:?}");
    let left = it.proofs.last().unwrap().remaining(it.now());
    assert!(left > seconds(55), "{left:?}: {log:?}");
}

/// The same as `no_request_for_loss_reports_cuts_an_extension_short` for a re-entry, which sets the lease in full.
#[test]
fn no_request_for_loss_reports_cuts_a_re_entry_short() {
    let mut it = Played::connected();
    it.asks_on("a", fixed(seconds(10)));
    it.answers(1, "RLOCK.ACQUIRE", ":5\r\n");
    it.passes(100);
    it.asks_mode_on("k", Ask::Exclusive, fixed(seconds(10)));
    it.answers(1, "RLOCK.ACQUIRE", ":7\r\n");
    it.passes(8_000);
    it.reconnects();
    it.passes(1);
    it.asks_mode_on("k", Ask::Exclusive, fixed(seconds(10)));
    let mut log = it.actions();
    let asks = |it: &String| it.starts_with("2 RLOCK.ACQUIRE k o 10000");
    assert!(log.iter().any(asks), "{log:?}");
    it.answers(2, "RLOCK.RENEW a", ":5\r\n");
    it.answers(2, "RLOCK.ACQUIRE k o 10000", ":7\r\n");
    log.extend(it.actions());
    assert!(log.contains(&"call 4: granted 7".to_owned()), "{log:?}");
    ends_with_its_last_lease(&mut it, &log);
}
