//! Clusters: where the slots are, and how they move.

use std::time::Duration;

use rlock_engine::engine::node::Node;
use rlock_engine::engine::terms::{Ask, Terms};

use crate::played::{self, Played, bulk, list, push};

/// The key `a` is in slot 15495, `b` in 3300.
pub(crate) fn slots(masters: &[(u16, u16, &str)]) -> String {
    let ranges = masters.iter().map(|(first, last, host)| {
        let master = list(&[bulk(host), ":7\r\n".to_owned()]);
        list(&[format!(":{first}\r\n"), format!(":{last}\r\n"), master])
    });
    list(&ranges.collect::<Vec<_>>())
}

pub(crate) fn info(state: &str, epoch: u64) -> String {
    bulk(&format!(
        "cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n"
    ))
}

fn two() -> String {
    slots(&[(0, 8191, "m"), (8192, 16383, "n")])
}

/// The seed has named two masters, and the first one is asked.
fn started() -> Played {
    let mut it = Played::new("redis+cluster://s:7");
    it.start();
    it.greeted(1);
    it.actions();
    it.receives(1, two() + &info("ok", 1));
    assert_eq!(it.actions(), ["close 1", "connect 2 to m:7"]);
    it
}

/// Connected to `m` by connection 2 and to `n` by connection 3.
pub(crate) fn connected() -> Played {
    let mut it = started();
    it.greeted(2);
    it.answers(2, "RLOCK.HELP", "*0\r\n");
    it.asks("a");
    assert_eq!(it.did(), ["call 1: done", "connect 3 to n:7"]);
    it.greeted(3);
    it.answers(3, "RLOCK.ACQUIRE", ":9\r\n");
    assert_eq!(it.did(), ["call 2: granted 9"]);
    it
}

/// It was answered with the failure of `m`, and once more when `n` had answered.
#[test]
fn a_start_at_a_connected_server_ends_once_and_with_its_answer() {
    let mut it = connected();
    it.ends(2);
    it.start();
    it.actions();
    // `m` cannot be reached.
    for _ in 0..3 {
        it.passes(1000);
        it.ends(it.connections());
    }
    it.answers(3, "RLOCK.HELP", "*0\r\n");
    it.passes(20_000);
    let did = it.did();
    let answers = did.iter().filter(|line| line.starts_with("call 3"));
    assert_eq!(answers.collect::<Vec<_>>(), ["call 3: done"]);
}

#[test]
fn the_channel_is_in_a_slot_of_its_server() {
    let mut it = started();
    it.opens(2);
    let actions = it.actions();
    assert_eq!(actions.last().unwrap(), "2 SSUBSCRIBE rlock:client:{2}:c:2");
}

#[test]
fn a_call_that_begins_before_the_slots_are_known_waits_for_them() {
    let mut it = Played::new("redis+cluster://s:7");
    it.asks("a");
    it.greeted(1);
    it.receives(1, two() + &info("ok", 1));
    assert_eq!(it.did().last().unwrap(), "connect 2 to n:7");
}

/// Without `cluster-announce-ip`, a server may not know its own address.
#[test]
fn a_server_without_an_address_is_at_the_one_that_was_asked() {
    let mut it = Played::new("redis+cluster://s:1");
    it.start();
    it.greeted(1);
    it.receives(1, slots(&[(0, 16383, "")]) + &info("ok", 1));
    assert_eq!(it.did().last().unwrap(), "connect 2 to s:7");
}

#[test]
fn an_unreachable_seed_is_skipped() {
    let mut it = Played::new("redis+cluster://dead:7,s:7");
    it.start();
    assert_eq!(it.actions(), ["connect 1 to dead:7"]);
    it.passes(1000);
    assert_eq!(it.actions(), ["close 1", "connect 2 to s:7"]);
    it.greeted(2);
    it.receives(2, two() + &info("ok", 1));
    assert_eq!(it.did(), ["close 2", "connect 3 to m:7"]);
}

#[test]
fn a_cluster_that_no_seed_reports_is_not_connected() {
    let mut it = Played::new("redis+cluster://s:7,t:7");
    it.start();
    it.greeted_but(1, "HELLO", "-NOAUTH who\r\n");
    it.greeted(2);
    it.receives(
        2,
        "-ERR This instance has cluster support disabled\r\n".repeat(2),
    );
    let why = "no server reports the slots: s:7: NOAUTH who; \
         t:7: ERR This instance has cluster support disabled";
    let did = it.did();
    let failed = format!("call 1: cannot connect to the server: {why}");
    assert_eq!(did[did.len() - 2..], [failed, format!("no routes: {why}")]);
}

#[test]
fn a_failing_server_takes_no_other_servers_turn() {
    let mut it = started();
    it.ends(2);
    let did = it.did();
    assert_eq!(did[1..], ["connect 3 to n:7"], "{did:?}");
    // The first is retried while the second is still being tried.
    for _ in 0..4 {
        it.passes(600);
        let last = it.connections();
        if last > 3 {
            it.ends(last);
        }
    }
    let did = it.did();
    assert!(!did.iter().any(|line| line.starts_with("call")), "{did:?}");
    it.greeted(3);
    it.answers(3, "RLOCK.HELP", "*0\r\n");
    assert_eq!(it.did().last().unwrap(), "call 1: done");
}

#[test]
fn a_cluster_without_answering_servers_is_not_connected() {
    let mut it = started();
    it.actions();
    // Seeds keep naming the masters, which stay silent.
    let mut outcome = None;
    for _ in 0..300 {
        it.passes(100);
        for line in it.did() {
            if line.starts_with("connect") && line.ends_with("s:7") {
                let number = it.connections();
                it.greeted(number);
                it.receives(number, two() + &info("ok", 1));
            }
            if line.starts_with("call 1") {
                outcome.get_or_insert(line);
            }
        }
    }
    let outcome = outcome.expect("it ends");
    assert!(
        outcome.contains("no server of the cluster can be used"),
        "{outcome}"
    );
}

#[test]
fn a_moved_key_is_requested_at_its_new_server() {
    let mut it = connected();
    it.asks("a");
    it.actions();
    it.receives(3, "-MOVED 15495 m:7\r\n");
    it.answers(2, "RLOCK.RENEW a o2", ":9\r\n");
    it.answers(2, "RLOCK.ACQUIRE a o3", ":5\r\n");
    let actions = it.actions();
    assert!(
        actions.contains(&"call 3: granted 5".to_owned()),
        "{actions:?}"
    );
    // Now the addresses of all other servers may be outdated too.
    it.passes(1000);
    let actions = it.actions();
    assert!(
        actions.contains(&"2 CLUSTER SLOTS".to_owned()),
        "{actions:?}"
    );
}

/// A server that prefers host names writes `?` for a server that has none.
#[test]
fn a_redirection_without_a_host_leads_to_the_only_server_at_that_port() {
    let mut it = connected();
    let only_m = slots(&[(0, 16383, "m")]);
    it.asks("a");
    it.answers(3, "RLOCK.ACQUIRE a o3", "-MOVED 15495 ?:7\r\n");
    it.passes(1000);
    // Two servers have this port, so the client asks for the slots.
    let actions = it.actions();
    let asked = |line: &String| line.starts_with("2 RLOCK");
    assert!(!actions.iter().any(asked), "{actions:?}");
    it.answers(3, "RLOCK.ACQUIRE a o3", "-MOVED 15495 ?:7\r\n");
    for number in [2, 3] {
        it.answers(number, "CLUSTER SLOTS", &only_m);
        it.answers(number, "CLUSTER INFO", info("ok", 2));
    }
    it.passes(1000);
    it.answers(2, "RLOCK.RENEW a o2", ":9\r\n");
    // Now only one of them has slots.
    it.releases();
    it.answers(2, "RLOCK.ACQUIRE a o3", ":10\r\n");
    it.answers(2, "CLUSTER SLOTS", &only_m);
    it.answers(2, "CLUSTER INFO", info("ok", 2));
    it.answers(2, "RLOCK.RELEASE a o2", "-ASK 15495 ?:7\r\n");
    let did = it.did();
    assert!(did.contains(&"connect 4 to m:7".to_owned()), "{did:?}");
}

#[test]
fn a_question_follows_its_key() {
    let mut it = connected();
    it.ends(3);
    it.queries("a");
    it.passes(20);
    it.ends(4);
    it.actions();
    // That server is gone; the others know which server has its slots.
    it.passes(1000);
    it.receives(2, slots(&[(0, 16383, "m")]) + &info("ok", 2));
    let actions = it.actions();
    assert!(
        actions.contains(&"2 RLOCK.INFO a".to_owned()),
        "{actions:?}"
    );
}

#[test]
fn a_release_follows_a_moving_slot() {
    let mut it = connected();
    it.releases();
    it.actions();
    it.answers(3, "RLOCK.RELEASE", "-ASK 15495 m:7\r\n");
    assert_eq!(it.actions(), ["connect 4 to m:7"]);
    it.greeted(4);
    let actions = it.actions();
    let asked = ["4 ASKING", "4 RLOCK.RELEASE a o2 ALL FENCE 9"];
    assert_eq!(actions[actions.len() - 2..], asked);
    it.receives(4, "+OK\r\n:1\r\n");
    assert_eq!(it.actions(), ["close 4", "call 3: done"]);
}

/// Such a renewal would bind the hold to its connection, and the hold would end
/// with it.
#[test]
fn a_renewal_of_a_bound_hold_does_not_follow_a_moving_slot() {
    let mut it = connected();
    let bound = Terms::new().bound(Duration::from_secs(60)).unwrap();
    it.asks_on("{a}b", bound);
    it.answers(3, "RLOCK.ACQUIRE", ":10\r\n");
    it.extends(Duration::from_secs(90));
    it.did();
    let renewal = "RLOCK.RENEW {a}b o3 90000 BIND 60000";
    it.answers(3, renewal, "-ASK 15495 m:7\r\n");
    let did = it.did();
    assert!(did.is_empty(), "{did:?}");
    it.passes(20);
    it.answers(3, renewal, ":10\r\n");
    assert_eq!(it.did(), ["call 4: done"]);
}

/// Its grace is running, so a second is too long after however many refusals.
#[test]
fn a_bound_hold_that_has_moved_is_checked_soon() {
    let mut it = connected();
    it.asks_on("{a}b", Terms::new().bound(Duration::from_secs(2)).unwrap());
    it.answers(3, "RLOCK.ACQUIRE", ":10\r\n");
    it.receives(
        3,
        push(&["smessage", "rlock:client:{0}:c:3", "withdrawn 0 o3 {a}b"]),
    );
    let master_is = |map: String| {
        move |asked: &String| match &**asked {
            "CLUSTER SLOTS" => map.clone(),
            "CLUSTER INFO" => info("ok", 2),
            asked if asked.starts_with("RLOCK.RENEW {a}b") => "-ASK 15495 m:7\r\n".to_owned(),
            asked => played::usual(2, asked),
        }
    };
    for _ in 0..100 {
        it.answers_each(3, master_is(two()));
        it.answers_each(2, master_is(two()));
        it.passes(10);
    }
    it.ends(3);
    it.passes(20);
    it.answers_each(2, master_is(two()));
    it.ends(4);
    it.passes(980);
    let mut asked = Vec::new();
    for _ in 0..30 {
        it.answers_each(2, master_is(slots(&[(0, 16383, "m")])));
        it.passes(10);
        asked.extend(it.actions());
    }
    let renewal = "2 RLOCK.RENEW {a}b o3";
    assert!(asked.iter().any(|it| it.starts_with(renewal)), "{asked:?}");
}

#[test]
fn the_target_of_a_moving_slot_has_a_second_to_answer() {
    let mut it = connected();
    it.releases();
    it.answers(3, "RLOCK.RELEASE", "-ASK 15495 x:7\r\n");
    it.actions();
    it.passes(1000);
    assert!(it.did().contains(&"close 4".to_owned()));
    // The client asks the server that still has the slot again.
    it.passes(20);
    it.answers(3, "RLOCK.RELEASE", "-ASK 15495 x:7\r\n");
    it.actions();
    it.greeted(it.connections());
    it.passes(999);
    assert!(!it.did().iter().any(|line| line.starts_with("close")));
    it.passes(1);
    let did = it.did();
    assert!(did.iter().any(|line| line.starts_with("close")), "{did:?}");
}

/// Otherwise the release could be carried out after the owner has acquired the
/// lock again.
#[test]
fn a_connection_to_the_target_of_a_moving_slot_that_did_not_answer_is_closed_first() {
    let mut it = connected();
    it.releases();
    it.answers(3, "RLOCK.RELEASE", "-ASK 15495 x:7\r\n");
    it.greeted(4);
    it.passes(1000);
    it.passes(20);
    it.answers(3, "RLOCK.RELEASE", "-ASK 15495 x:7\r\n");
    it.actions();
    let other = it.connections();
    it.greeted(other);
    let actions = it.actions();
    let place = |line: &str| {
        actions
            .iter()
            .position(|it| *it == format!("{other} {line}"))
    };
    let kill = place("CLIENT KILL ID 4 ADDR a:4");
    assert!(kill.is_some() && kill < place("ASKING"), "{actions:?}");
}

/// The user may not ask for the identity of a connection.
#[test]
fn a_separate_connection_that_ends_while_the_main_one_is_greeted_is_not_forgotten() {
    let mut it = connected();
    it.releases();
    it.answers(3, "RLOCK.RELEASE", "-ASK 15495 m:7\r\n");
    it.greeted_but(4, "CLIENT INFO", "-NOPERM no\r\n");
    it.asks("b");
    it.abandons(4);
    it.ends(2);
    it.passes(20);
    it.opens(5);
    it.ends(4);
    it.answers_each(5, |asked| played::usual(5, asked));
    it.actions();
    it.receives(5, ":0\r\n$-1\r\n");
    it.passes(100);
    let again = ["5 RLOCK.CANCEL b o4", "5 RLOCK.RELEASE b o4 ALL"];
    assert!(it.actions().ends_with(&again.map(str::to_owned)));
}

#[test]
fn a_connection_to_the_target_of_a_moving_slot_is_closed_only_once() {
    let mut it = connected();
    it.releases();
    let mut kills = 0;
    for _ in 0..10 {
        it.answers_each(3, |asked| match &**asked {
            "CLUSTER SLOTS" => two(),
            "CLUSTER INFO" => info("ok", 1),
            "PING" => "+PONG\r\n".to_owned(),
            _ => "-ASK 15495 x:7\r\n".to_owned(),
        });
        it.actions();
        it.greeted(it.connections());
        let actions = it.actions();
        kills += actions
            .iter()
            .filter(|it| it.contains("CLIENT KILL"))
            .count();
        it.passes(2000);
    }
    assert_eq!(kills, 9);
}

/// Each of them says that the other one has the slot.
#[test]
fn servers_that_name_each_other_are_asked_to_renew_after_pauses() {
    let mut it = connected();
    let (mut renewals, mut first) = (0, None);
    for moment in 0..20_000 {
        if first.is_some_and(|first| moment > first + 1000) {
            break;
        }
        for (connection, other) in [(2, "n"), (3, "m")] {
            it.answers_each(connection, |asked| match &**asked {
                "CLUSTER SLOTS" => two(),
                "CLUSTER INFO" => info("ok", 1),
                "PING" => "+PONG\r\n".to_owned(),
                _ => {
                    assert!(asked.starts_with("RLOCK.RENEW a o2"), "{asked}");
                    first = first.or(Some(moment));
                    renewals += 1;
                    format!("-MOVED 15495 {other}:7\r\n")
                }
            });
        }
        it.passes(1);
    }
    assert!((5..20).contains(&renewals), "{renewals} in a second");
}

#[test]
fn a_server_is_reconnected_when_the_slot_of_its_channel_moves() {
    let mut it = connected();
    it.receives(
        3,
        format!(
            ">3\r\n{}{}:0\r\n",
            bulk("sunsubscribe"),
            bulk("rlock:client:{0}:c:3")
        ),
    );
    assert_eq!(it.did(), ["close 3"]);
    it.passes(20);
    it.greeted_but(4, "SSUBSCRIBE", "-MOVED 13907 m:7\r\n");
    let did = it.did();
    assert_eq!(did[1], "close 4", "{did:?}");
    it.passes(100);
    it.opens(5);
    let actions = it.actions();
    assert!(
        actions.last().unwrap().starts_with("5 SSUBSCRIBE"),
        "{actions:?}"
    );
}

#[test]
fn a_down_cluster_is_asked_for_its_slots() {
    let mut it = connected();
    it.passes(1000);
    it.asks("b");
    it.actions();
    it.answers(2, "RLOCK.ACQUIRE", "-CLUSTERDOWN The cluster is down\r\n");
    let actions = it.actions();
    assert!(
        actions.contains(&"2 CLUSTER SLOTS".to_owned()),
        "{actions:?}"
    );
    assert!(
        actions.contains(&"3 CLUSTER SLOTS".to_owned()),
        "{actions:?}"
    );
    // A server that serves no slots is less reliable, even if its report is
    // newer.
    it.receives(2, slots(&[(0, 16383, "m")]) + &info("fail", 9));
    it.receives(3, slots(&[(0, 16383, "n")]) + &info("ok", 2));
    it.passes(20);
    let actions = it.actions();
    let asked = |line: &String| line.starts_with("3 RLOCK.ACQUIRE b");
    assert!(actions.iter().any(asked), "{actions:?}");
}

/// Each server writes all addresses as its own settings prefer: names or numbers.
#[test]
fn servers_are_kept_while_an_equally_new_answer_names_them() {
    let renamed = || slots(&[(0, 8191, "m.example"), (8192, 16383, "n.example")]);
    for (first, second) in [(renamed(), two()), (two(), renamed())] {
        let mut it = connected();
        it.passes(5000);
        assert!(it.actions().contains(&"3 CLUSTER SLOTS".to_owned()));
        it.receives(2, first + &info("ok", 1));
        it.receives(3, second + &info("ok", 1));
        assert_eq!(it.did(), [""; 0]);
    }
}

#[test]
fn a_newer_answer_counts_whatever_came_before_or_after_it() {
    let all = |host| slots(&[(0, 16383, host)]);
    for (first, second) in [((two(), 1), (all("x"), 2)), ((all("x"), 2), (two(), 1))] {
        let mut it = connected();
        it.passes(5000);
        it.receives(2, first.0 + &info("ok", first.1));
        it.receives(3, second.0 + &info("ok", second.1));
        assert_eq!(it.did(), ["connect 4 to x:7"]);
    }
}

/// Its replica may be promoted at any moment, and the hold ends with its lease.
#[test]
fn the_slots_are_asked_for_each_second_while_a_hold_is_at_a_lost_master() {
    let mut it = connected();
    it.ends(3);
    let mut asked = [0; 4];
    for count in &mut asked {
        // Ten seconds, and the lease is 30 s.
        for _ in 0..100 {
            it.passes(100);
            it.answers_each(2, |asked| match &**asked {
                "CLUSTER SLOTS" => two(),
                "CLUSTER INFO" => info("ok", 1),
                _ => "+PONG\r\n".to_owned(),
            });
        }
        let actions = it.actions();
        *count = actions.iter().filter(|it| *it == "2 CLUSTER SLOTS").count();
    }
    // Then for each attempt to connect only, and every five seconds.
    assert!(matches!(asked, [10, 10, 10, 2..=4]), "{asked:?}");
}

#[test]
fn a_late_answer_about_slots_does_not_answer_the_next_question() {
    let mut it = started();
    it.greeted(2);
    it.answers(2, "RLOCK.HELP", "*0\r\n");
    it.passes(5000);
    // The server sends the first half in time, and no other server sends
    // anything.
    it.receives(2, two());
    it.passes(1000);
    for number in 3..=5 {
        it.ends(number);
    }
    let no_routes = it.did().pop().unwrap();
    assert!(no_routes.starts_with("no routes"), "{no_routes}");
    it.asks("b");
    it.receives(2, info("ok", 1));
    it.receives(2, "-CLUSTERDOWN The cluster is down\r\n");
    it.passes(1000);
    it.actions();
    it.receives(2, ":9\r\n");
    it.receives(2, slots(&[(0, 16383, "m")]) + &info("ok", 2));
    assert_eq!(it.did(), ["call 2: granted 9"]);
    it.asks("a");
    let actions = it.actions();
    assert!(actions[0].starts_with("2 RLOCK.ACQUIRE a"), "{actions:?}");
}

/// It did not come before what undid the request: that went to the other server.
#[test]
fn a_grant_by_the_former_server_of_a_key_is_undone_too() {
    let mut it = connected();
    it.asks("a");
    it.answers(3, "RLOCK.ACQUIRE", "+WAITING\r\n");
    it.abandons(3);
    it.answers(3, "RLOCK.CANCEL a o3", "-MOVED 15495 m:7\r\n");
    it.answers(3, "RLOCK.RELEASE a o3", "-MOVED 15495 m:7\r\n");
    it.actions();
    it.receives(
        3,
        push(&["smessage", "rlock:client:{0}:c:3", "grant 8 o3 a"]),
    );
    assert_eq!(it.actions(), [""; 0]);
    let undone = ["2 RLOCK.CANCEL a o3", "2 RLOCK.RELEASE a o3 ALL"];
    it.answers_each(2, |asked| match asked.starts_with("RLOCK.RENEW") {
        true => ":9\r\n".to_owned(),
        false => ":0\r\n".to_owned(),
    });
    assert_eq!(it.actions(), undone);
}

/// The key `foo` is in slot 12182.
#[test]
fn the_slots_are_known_when_the_last_server_that_was_asked_has_ended() {
    let mut it = connected();
    it.passes(2000);
    it.queries("a");
    it.answers(3, "RLOCK.INFO", "-MOVED 15495 m:7\r\n");
    it.passes(20);
    assert!(it.actions().contains(&"2 RLOCK.INFO a".to_owned()));
    it.answers(2, "RLOCK.RENEW", ":9\r\n");
    it.answers(2, "CLUSTER SLOTS", slots(&[(0, 16383, "m")]));
    it.answers(2, "CLUSTER INFO", info("ok", 2));
    it.ends(3);
    it.queries("foo");
    let actions = it.actions();
    let asked = "2 RLOCK.INFO foo".to_owned();
    assert!(actions.contains(&asked), "{actions:?}");
}

/// There are 1024 of them.
#[test]
fn the_number_of_a_server_that_has_left_is_used_again() {
    let named = |first: usize, last: usize| {
        let hosts = [0, 1].into_iter().chain(first..=last);
        let hosts: Vec<_> = hosts.map(|host| format!("h{host}")).collect();
        let (end, size) = (hosts.len() - 1, 16384 / hosts.len());
        let range = |(place, host): (usize, _)| {
            let next = if place == end {
                16384
            } else {
                (place + 1) * size
            };
            let slot = |number: usize| number.try_into().unwrap();
            (slot(place * size), slot(next - 1), host)
        };
        let hosts = hosts.iter().map(|host| &**host);
        slots(&hosts.enumerate().map(range).collect::<Vec<_>>())
    };
    let mut it = Played::new("redis+cluster://h0:7");
    it.start();
    it.greeted(1);
    it.receives(1, named(2, 2) + &info("ok", 1));
    it.greeted(2);
    it.answers(2, "RLOCK.HELP", "*0\r\n");
    for (first, last, epoch) in [(3, 1023, 2), (4, 1024, 3)] {
        for _ in 0..60 {
            it.passes(100);
            it.answers_each(2, |asked| match &**asked {
                "CLUSTER SLOTS" => named(first, last),
                _ => info("ok", epoch),
            });
        }
    }
    assert_eq!(it.endpoint.nodes().len(), 1023);
    let address = |number| it.endpoint.address(Node(number));
    assert_eq!([1, 2, 4].map(address), ["h1:7", "h1024:7", "h4:7"]);
}

/// `n` answers for a key that `m` has by now, as it has said about another key.
fn answered_late(terms: Terms, reply: &str) -> Played {
    let mut it = connected();
    it.asks("{a}x");
    it.asks_on("{a}y", terms);
    it.passes(100);
    it.answers(3, "RLOCK.ACQUIRE {a}x", "-MOVED 15495 m:7\r\n");
    it.answers(2, "RLOCK.RENEW a o2", ":9\r\n");
    it.actions();
    it.answers(3, "RLOCK.ACQUIRE {a}y", reply);
    it
}

/// The former server sends no message about the place.
#[test]
fn a_place_at_the_former_server_of_a_key_is_not_waited_for() {
    let mut it = answered_late(Terms::new(), "+WAITING\r\n");
    assert!(it.has_sent("2 RLOCK.ACQUIRE {a}y o4"));
}

/// It does not report a loss before it is asked to, and it ends what was bound to the connection of the former server.
#[test]
fn a_grant_by_the_former_server_of_a_key_is_checked_at_once() {
    let bound = Terms::new().bound(Duration::from_secs(2)).unwrap();
    let mut it = answered_late(bound, ":10\r\n");
    let until = it.proofs.last().unwrap().valid_until().unwrap();
    assert!(until < it.now() + Duration::from_secs(2));
    it.passes(1);
    assert!(it.has_sent("2 RLOCK.RENEW {a}y o4"));
}

/// Only a place in its queue must be withdrawn there.
#[test]
fn a_place_at_the_former_server_of_a_key_is_withdrawn() {
    for is_place in [true, false] {
        let mut it = connected();
        it.asks("{a}x");
        match is_place {
            true => it.asks_as("o", "{a}y", &[], Terms::new()),
            false => it.tries("{a}y", Terms::new()),
        }
        it.ends(2);
        it.answers(3, "RLOCK.ACQUIRE {a}x", "-MOVED 15495 m:7\r\n");
        it.answers(3, "RLOCK.ACQUIRE {a}y", "$-1\r\n");
        assert!(it.did().contains(&"call 4: refused".to_owned()));
        it.passes(20);
        it.greeted(4);
        assert_eq!(it.has_sent("4 RLOCK.CANCEL {a}y o"), is_place);
    }
}

/// Its validity counts from the heartbeats of its new server. The former one gets none.
#[test]
fn a_bound_hold_that_has_moved_stays_valid() {
    let mut it = connected();
    it.asks_on("{a}b", Terms::new().bound(Duration::from_secs(2)).unwrap());
    it.answers(3, "RLOCK.ACQUIRE", ":10\r\n");
    it.queries("a");
    it.answers(3, "RLOCK.INFO", "-MOVED 15495 m:7\r\n");
    for _ in 0..30 {
        it.answers_each(2, |asked| match asked.contains("{a}b") {
            true => ":10\r\n".to_owned(),
            false => ":9\r\n".to_owned(),
        });
        it.passes(100);
    }
    assert!(it.proofs[1].is_live(it.now()));
}

/// `m` took all slots over while `n` was cut off. Then `m` is late, and `n` still reports the old slots, but not for ever:
/// epochs start at zero again in a cluster that was reset.
#[test]
fn slots_of_an_older_epoch_do_not_count_while_those_who_know_better_may_be_late() {
    let mut it = connected();
    let new = |asked: &String| match &**asked {
        "CLUSTER SLOTS" => slots(&[(0, 16383, "m")]),
        "CLUSTER INFO" => info("ok", 8),
        _ => ":9\r\n".to_owned(),
    };
    let old = |asked: &String| match &**asked {
        "CLUSTER SLOTS" => two(),
        "CLUSTER INFO" => info("ok", 7),
        _ => ":9\r\n".to_owned(),
    };
    it.passes(5000);
    it.answers_each(2, new);
    it.answers_each(3, old);
    // The hold moves.
    it.answers_each(2, new);
    for (time, key, to) in [(5000, "b1{a}", 2), (4000, "b2{a}", 3)] {
        // Each round waits a second for `m`.
        it.passes(time);
        it.answers_each(3, old);
        it.passes(1000);
        it.answers_each(2, new);
        it.actions();
        it.asks(key);
        let asked = format!("{to} RLOCK.ACQUIRE {key}");
        let actions = it.actions();
        assert!(
            actions.iter().any(|it| it.starts_with(&asked)),
            "{asked}: {actions:?}"
        );
        it.answers_each(2, new);
    }
}

/// A server without contact to the others counts elections that nobody else takes part in.
#[test]
fn the_epoch_of_a_server_out_of_service_keeps_no_other_from_counting() {
    let mut it = connected();
    let others = |asked: &String, slots: String, info: String| match &**asked {
        "CLUSTER SLOTS" => slots,
        "CLUSTER INFO" => info,
        _ => ":9\r\n".to_owned(),
    };
    it.passes(5000);
    it.answers_each(3, |asked| others(asked, two(), info("fail", 9)));
    // `m` and the further servers are late.
    it.passes(4000);
    it.answers_each(2, |asked| others(asked, two(), info("ok", 8)));
    it.answers_each(3, |asked| others(asked, two(), info("fail", 9)));
    it.passes(5500);
    it.answers_each(3, |asked| others(asked, two(), info("fail", 9)));
    let all = slots(&[(0, 16383, "m")]);
    it.answers_each(2, |asked| others(asked, all.clone(), info("ok", 8)));
    it.actions();
    it.asks("b{a}");
    assert!(it.has_sent("2 RLOCK.ACQUIRE b{a}"));
}

/// `m` is silent, and `n` has taken all slots over. Each turn of the client's loop takes 270 ms.
#[test]
fn a_process_that_is_always_late_finds_the_new_master() {
    let mut it = connected();
    let all = slots(&[(0, 16383, "n")]);
    it.asks("b");
    let mut turns = 0;
    while !it.did().contains(&"call 3: granted 77".to_owned()) {
        it.stalls(270);
        it.answers_each(3, |asked| match &**asked {
            "CLUSTER SLOTS" => all.clone(),
            "CLUSTER INFO" => info("ok", 9),
            asked if asked.starts_with("RLOCK.ACQUIRE b") => ":77\r\n".to_owned(),
            _ => ":9\r\n".to_owned(),
        });
        turns += 1;
        assert!(turns < 50);
    }
}

/// `m` has answered in time, but the process has not read that.
#[test]
fn a_process_that_stalled_may_still_read_the_newest_slots() {
    let mut it = connected();
    it.passes(5000);
    it.answers_each(3, |asked| match &**asked {
        "CLUSTER SLOTS" => two(),
        _ => info("ok", 7),
    });
    it.stalls(1200);
    it.answers_each(2, |asked| match &**asked {
        "CLUSTER SLOTS" => slots(&[(0, 16383, "m")]),
        _ => info("ok", 8),
    });
    it.actions();
    it.asks("x{a}");
    assert!(it.has_sent("2 RLOCK.ACQUIRE x{a}"));
}

/// Each of them would take a second, while the masters that are connected know of no successor yet.
#[test]
fn addresses_that_are_no_longer_in_use_are_not_asked() {
    let mut it = connected();
    // The other master is always refused, at one address after the other.
    let mut seconds = |count, host: &str, state, epoch| {
        let mut connected_to = Vec::new();
        for _ in 0..count {
            it.passes(1_000);
            it.answers_each(2, |asked| match &**asked {
                "CLUSTER SLOTS" => slots(&[(0, 8191, "m"), (8192, 16383, host)]),
                "CLUSTER INFO" => info(state, epoch),
                asked => played::usual(2, asked),
            });
            for line in it.did() {
                if let Some(to) = line.strip_prefix("connect ") {
                    let (number, address) = to.split_once(" to ").unwrap();
                    connected_to.push(address.to_owned());
                    it.ends(number.parse().unwrap());
                }
            }
        }
        connected_to.sort();
        connected_to.dedup();
        connected_to
    };
    for (epoch, host) in [(2, "x"), (3, "y"), (4, "z")] {
        seconds(12, host, "ok", epoch);
    }
    assert_eq!(seconds(12, "z", "fail", 4), ["m:7", "s:7", "z:7"]);
}

#[test]
fn a_former_master_is_found_if_no_server_is_connected() {
    let mut it = Played::new("redis+cluster://s:7");
    it.start();
    it.greeted(1);
    it.receives(1, slots(&[(0, 16383, "m")]) + &info("ok", 1));
    it.greeted(2);
    it.answers(2, "RLOCK.HELP", "*0\r\n");
    it.passes(5_000);
    it.receives(2, slots(&[(0, 16383, "x")]) + &info("ok", 2));
    it.ends(2);
    it.did();
    let mut asked = Vec::new();
    for _ in 0..30 {
        it.passes(1_000);
        for line in it.did() {
            if let Some(to) = line.strip_prefix("connect ") {
                let (number, address) = to.split_once(" to ").unwrap();
                asked.push(address.to_owned());
                it.ends(number.parse().unwrap());
            }
        }
    }
    assert!(asked.contains(&"m:7".to_owned()), "{asked:?}");
}

/// After a stall, the answer of another server is read first.
#[test]
fn a_bound_hold_outlasts_a_stall_after_which_its_server_has_answered() {
    let mut stalls = 0;
    for start in 0..300 {
        let mut it = connected();
        let terms = Terms::new().bound(Duration::from_secs(3)).unwrap();
        for (key, number) in [("a", 3), ("b", 2)] {
            it.asks_on(key, terms);
            it.answers(number, "RLOCK.ACQUIRE", ":12\r\n");
        }
        let answers = |it: &mut Played, number| {
            it.answers_each(number, |asked| match asked {
                asked if asked.starts_with("PING") => "+PONG\r\n".to_owned(),
                asked if asked.starts_with("CLUSTER SLOTS") => two(),
                asked if asked.starts_with("CLUSTER INFO") => info("ok", 1),
                asked if asked.contains(" a o2 ") => ":9\r\n".to_owned(),
                _ => ":12\r\n".to_owned(),
            });
        };
        for _ in 0..start {
            it.passes(20);
            (2..=3).for_each(|number| answers(&mut it, number));
        }
        it.actions();
        it.passes(100);
        let asked = it.actions();
        if (2..=3).all(|number| asked.contains(&format!("{number} PING"))) {
            it.is_paused(2_500);
            (2..=3).for_each(|number| answers(&mut it, number));
            let did = it.did();
            assert!(
                !did.iter().any(|it| it.starts_with("over")),
                "{start}: {did:?}"
            );
            stalls += 1;
        }
    }
    assert!(stalls > 0);
}

/// What `{a}y` has, as its server says: `n`, until the slot has moved.
pub(crate) fn answers_of(fence: u64, asked: &str, has_moved: bool) -> String {
    match asked {
        asked if asked.starts_with("WAIT") => ":2\r\n".to_owned(),
        asked if asked.contains("{a}y") => format!(":{fence}\r\n"),
        asked if asked.contains("RLOCK") => ":9\r\n".to_owned(),
        asked if asked.starts_with("PING") => "+PONG\r\n".to_owned(),
        asked if asked.starts_with("CLUSTER SLOTS") => match has_moved {
            true => slots(&[(0, 16383, "m")]),
            false => slots(&[(0, 8191, "m"), (8192, 16383, "n")]),
        },
        asked if asked.starts_with("CLUSTER INFO") => info("ok", 1 + u64::from(has_moved)),
        _ => String::new(),
    }
}

/// What its former server and the new one answer after that.
fn answers_of_both(it: &mut Played, at: &[usize], fence: u64) {
    for connection in at {
        it.answers_each(*connection, |asked| answers_of(fence, asked, true));
    }
}

/// The connection that reports losses named it, so no report is missing. The slot has moved to another server meanwhile.
#[test]
fn an_upgrade_by_the_former_server_of_a_key_is_no_loss() {
    for reply in ["%0\r\n", "-MOVED 15495 m:7\r\n"] {
        let mut it = connected();
        it.asks_mode("{a}y", Ask::Shared);
        it.answers(3, "RLOCK.ACQUIRE {a}y o", ":10\r\n");
        it.queries("a");
        it.asks_mode("{a}y", Ask::Exclusive);
        it.answers(3, "RLOCK.INFO", reply);
        it.answers(3, "RLOCK.ACQUIRE {a}y o", ":11\r\n");
        for _ in 0..5 {
            answers_of_both(&mut it, &[2, 3], 11);
            it.passes(100);
        }
        let did = it.did();
        assert!(did.iter().any(|it| it.ends_with("granted 11")), "{did:?}");
        assert!(!did.iter().any(|it| it.starts_with("over")), "{did:?}");
    }
}

/// The new server has said that the lock is shared, under fence 10. Then the former one, which does not know of its
/// successor, grants an upgrade.
#[test]
fn an_upgrade_by_a_former_server_is_checked_at_the_new_one() {
    let mut it = connected();
    it.asks_mode("{a}y", Ask::Shared);
    it.answers(3, "RLOCK.ACQUIRE {a}y o", ":10\r\n");
    it.queries("a");
    it.asks_mode("{a}y", Ask::Exclusive);
    it.answers(3, "RLOCK.INFO", "-MOVED 15495 m:7\r\n");
    for _ in 0..3 {
        answers_of_both(&mut it, &[2], 10);
        it.passes(5);
    }
    it.actions();
    it.answers(3, "RLOCK.ACQUIRE {a}y o", ":11\r\n");
    for _ in 0..5 {
        it.passes(20);
        answers_of_both(&mut it, &[2], 10);
    }
    let did = it.did();
    let over = did.iter().filter(|it| it.starts_with("over"));
    assert_eq!(over.count(), 1, "only the shared one: {did:?}");
    assert!(!did.contains(&"call 4: granted 11".to_owned()), "{did:?}");
}
