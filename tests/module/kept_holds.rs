//! Shared and upgraded holds, and holds of several locks: on replicas, on disk, and after a fail-over.

use std::collections::BTreeMap;

use crate::contest::{Contest, wait_for};
use crate::durability::appended;
use crate::replication::await_in_step;
use rlock_testkit::Setup;
use rlock_testkit::client::{eventually, request};
use rlock_testkit::{Server, replicated};

const KEYS: [&str; 7] = [
    "shared",
    "upgraded",
    "downgraded",
    "m1",
    "m2",
    "k",
    "foreign",
];

/// Takes locks of all kinds, changes them in every way, and leaves some held.
pub(crate) fn exercise(server: &Server) {
    let a = server.client();
    let contest = Contest::on(server);
    let next = wait_for(server, "k", "owner-c", 2);
    a.number("RLOCK.ACQUIRE k owner-a 50000 REENTER");
    a.number("RLOCK.RENEW k owner-a 70000");
    a.ask("RLOCK.RELEASE k owner-a");
    a.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    // A lease ends, in a timer.
    a.number("RLOCK.RENEW k owner-b 20");
    next.fence();
    let last = wait_for(server, "k", "owner-d", 1);
    a.ask("RLOCK.FORCE k");
    last.fence();
    // Another client changes the key, which emits a key event.
    let other = wait_for(server, "k", "owner-e", 1);
    a.ask("DEL k");
    other.fence();
    a.number("RLOCK.ACQUIRE gone owner-a 60000");
    a.ask("RLOCK.RELEASE gone owner-a");
    a.ask("HSET foreign 5f0e:1 1");
    a.ask("PEXPIRE foreign 60000");
    a.number("RLOCK.RENEW foreign 5f0e:1 50000");

    for number in 0..30 {
        a.number(&format!(
            "RLOCK.ACQUIRE shared owner-{number} {} SHARED",
            60_000 + number
        ));
    }
    a.number("RLOCK.ACQUIRE shared owner-p 90000 SHARED LIMIT 50 PERMITS 7");
    a.number("RLOCK.ACQUIRE shared owner-1 80000 SHARED REENTER");
    a.number("RLOCK.RENEW shared owner-2 70000");
    a.ask("RLOCK.RELEASE shared owner-3");
    a.number("RLOCK.ACQUIRE shared short 20 SHARED");
    eventually("one lease ends", || {
        !server.owners("shared").contains(&"short".into())
    });
    // The next change removes the remaining fields.
    a.number("RLOCK.ACQUIRE shared owner-4 60000 SHARED");

    a.number("RLOCK.ACQUIRE upgraded owner-a 60000 SHARED");
    a.number("RLOCK.ACQUIRE upgraded owner-b 60000 SHARED");
    let upgrader = server.client();
    upgrader.send("RLOCK.ACQUIRE upgraded owner-a 60000 WAIT 0");
    server.await_queued("upgraded", 1);
    a.ask("RLOCK.RELEASE upgraded owner-b");
    upgrader.fence();

    a.number("RLOCK.ACQUIRE downgraded owner-a 60000");
    let reader = server.client();
    reader.send("RLOCK.ACQUIRE downgraded owner-r 60000 SHARED WAIT 0");
    server.await_queued("downgraded", 1);
    a.number("RLOCK.DOWNGRADE downgraded owner-a");
    reader.fence();

    a.number("RLOCK.ACQUIRE m1 owner-a 30 SHARED");
    let several = server.client();
    several.send("RLOCK.MACQUIRE owner-m 60000 2 m1 m2 WAIT 0");
    several.fence();
    a.number("RLOCK.MACQUIRE owner-a 60000 2 gone1 gone2");
    a.ask("RLOCK.MRELEASE owner-a 2 gone1 gone2");
    let bound = server.client();
    bound.number("RLOCK.ACQUIRE gone3 owner-a 60000 SHARED BIND 0");
    bound.close();
    eventually("it ends with its connection", || {
        server.ask("EXISTS gone3") == "0"
    });
}

/// All locks' hashes and the times of their ends.
fn data(server: &Server) -> Vec<(BTreeMap<String, String>, String)> {
    assert_eq!(server.ask("DBSIZE"), KEYS.len().to_string());
    KEYS.map(|key| (server.hash(key), server.ask(&format!("PEXPIRETIME {key}"))))
        .into()
}

/// The holders can continue, and no other owner is admitted.
#[track_caller]
fn assert_kept(server: &Server, data: &[(BTreeMap<String, String>, String)]) {
    let a = server.client();
    let fence_of = |key: usize, field: &str| data[key].0[field].clone();
    let terms = fence_of(0, "rlock:holder:owner-p");
    let fence = terms.split(' ').nth(1).expect("a fence");
    assert_eq!(a.ask("RLOCK.RENEW shared owner-p 60000"), fence);
    // One of the 30 is gone: 29, and 7.
    for (limit, fits) in [(36, false), (37, true)] {
        let line = format!("RLOCK.ACQUIRE shared late 60000 SHARED LIMIT {limit}");
        assert_eq!(a.ask(&line) != "nil", fits, "{limit}");
    }
    assert_eq!(a.ask("RLOCK.RELEASE shared owner-1"), "1");
    assert_eq!(a.ask("RLOCK.RELEASE shared owner-1"), "0");
    let upgraded = fence_of(1, "rlock:fence");
    assert_eq!(a.ask("RLOCK.ACQUIRE upgraded owner-a 60000"), upgraded);
    assert_eq!(a.ask("RLOCK.DOWNGRADE upgraded owner-a"), upgraded);
    assert_eq!(a.ask("RLOCK.ACQUIRE downgraded owner-r 60000"), "nil");
    assert_eq!(a.ask("RLOCK.RELEASE downgraded owner-a"), "0");
    assert!(a.ask("RLOCK.ACQUIRE downgraded owner-r 60000") > upgraded);
    let several = fence_of(3, "rlock:fence");
    assert_eq!(fence_of(4, "rlock:fence"), several);
    assert_eq!(a.ask("RLOCK.MACQUIRE owner-m 60000 2 m2 m1"), several);
    assert_eq!(a.ask("RLOCK.MACQUIRE owner-x 60000 2 m2 m1"), "nil");
    assert_eq!(a.ask("RLOCK.MRELEASE owner-m 2 m1 m2 ALL"), "2");
    let largest = data.iter().map(|it| it.0["rlock:fence"].parse::<i64>());
    let largest = largest.map(|it| it.expect("a number")).max();
    assert!(Some(a.number("RLOCK.MACQUIRE owner-x 60000 2 m2 m1")) > largest);
}

#[test]
fn replicas_with_and_without_the_module_have_the_same_data() {
    let (primary, replica) = replicated();
    let plain = Setup::new().without_module().replica_of(&primary).start();
    eventually("the replica follows", || {
        plain.info("replication", "master_link_status") == "up"
    });
    exercise(&primary);
    for other in [&replica, &plain] {
        await_in_step(&primary, other);
        assert_eq!(data(&primary), data(other));
    }
    for line in [
        "RLOCK.MACQUIRE owner-x 60000 2 m1 m2 WAIT 0",
        "RLOCK.MRENEW owner-m 60000 1 m1",
        "RLOCK.MRELEASE owner-m 1 m1",
        "RLOCK.DOWNGRADE upgraded owner-a",
        "RLOCK.ACQUIRE shared owner-1 60000 SHARED",
    ] {
        let answer = replica.ask(line);
        assert!(answer.starts_with("READONLY "), "{line}: {answer}");
    }
    assert_eq!(replica.owners("shared").len(), 30);
    assert_eq!(replica.ask("RLOCK.LIST"), "[]");
}

#[test]
fn promoted_replica_keeps_holds_of_all_kinds() {
    let (primary, replica) = replicated();
    exercise(&primary);
    await_in_step(&primary, &replica);
    let data = data(&primary);
    primary.signal("STOP");
    replica.ask("REPLICAOF NO ONE");
    assert_kept(&replica, &data);
    primary.signal("CONT");
}

#[test]
fn append_only_file_has_plain_data_of_holds_of_all_kinds() {
    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    exercise(&server);
    let data_before = data(&server);
    let plain = [
        "SELECT",
        "MULTI",
        "EXEC",
        "HSET",
        "HDEL",
        "PEXPIREAT",
        "DEL",
        "UNLINK",
    ];
    let commands = appended(&server);
    for command in &commands {
        let name = command.split(' ').next().unwrap_or_default().to_uppercase();
        assert!(plain.contains(&name.as_str()), "{command}");
    }
    server.kill();
    server.start_again();
    assert_eq!(data(&server), data_before);
    assert_kept(&server, &data_before);
    server.kill();
    server.forget_module();
    server.start_again();
    assert_eq!(server.ask("TYPE shared"), "hash");
}

#[test]
fn grants_of_one_step_are_one_transaction_in_the_file() {
    let server = Server::configured(&["appendonly yes", "appendfsync always"]);
    let a = server.client();
    a.number("RLOCK.MACQUIRE owner-a 60000 2 k1 k2");
    a.ask("RLOCK.MRELEASE owner-a 2 k1 k2");
    let commands = appended(&server);
    let place = |start: &str| {
        let found = commands.iter().position(|it| it.starts_with(start));
        found.unwrap_or_else(|| panic!("{start} is in {commands:#?}"))
    };
    // A crash in between leaves all of it or nothing.
    let (first, second) = (place("HSET k1 "), place("HSET k2 "));
    let between = &commands[first.min(second)..first.max(second)];
    assert!(!between.iter().any(|it| it == "EXEC"), "{commands:#?}");
    let (first, second) = (place("DEL k1"), place("DEL k2"));
    let between = &commands[first.min(second)..first.max(second)];
    assert!(!between.iter().any(|it| it == "EXEC"), "{commands:#?}");
}

#[test]
fn holds_of_all_kinds_survive_a_dump() {
    let mut server = Server::start();
    exercise(&server);
    let data_before = data(&server);
    assert_eq!(server.ask("DEBUG RELOAD"), "OK");
    assert_eq!(data(&server), data_before);
    assert_eq!(server.ask("SAVE"), "OK");
    server.kill();
    server.start_again();
    assert_eq!(data(&server), data_before);
    assert_kept(&server, &data_before);
}

#[test]
fn crash_with_requests_for_several_leaves_all_or_none() {
    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    for round in 0..5 {
        let a = server.client();
        let lines = (0..100).map(|number| {
            let keys = (0..5).map(|key| format!("k{round}-{number}-{key}"));
            let words = ["RLOCK.MACQUIRE", "owner-a", "600000", "5"].map(str::to_owned);
            request(&words.into_iter().chain(keys).collect::<Vec<_>>())
        });
        a.send_bytes(&lines.collect::<Vec<_>>().concat());
        (0..10 * round).for_each(|_| _ = a.fence());
        server.kill();
        server.start_again();
        for number in 0..100 {
            let keys = (0..5).map(|key| format!("k{round}-{number}-{key}"));
            let fences = keys.map(|key| server.lock(&key).fence).collect::<Vec<_>>();
            assert!(
                fences.windows(2).all(|pair| pair[0] == pair[1]),
                "{fences:?}"
            );
            assert!(number >= 10 * round || fences[0].is_some());
        }
    }
}

#[test]
fn demotion_ends_the_waits_of_all_kinds() {
    let (primary, replica) = replicated();
    let mut subscriber = primary.listen(&["c"]);
    let a = primary.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED BIND 0");
    a.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
    let upgrader = primary.client();
    upgrader.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    primary.await_queued("k", 1);
    let limited = primary.client();
    limited.send("RLOCK.ACQUIRE k owner-l 60000 SHARED LIMIT 2 WAIT 0");
    primary.await_queued("k", 2);
    let several = primary.client();
    several.send("RLOCK.MACQUIRE owner-m 60000 2 k2 k WAIT 0");
    primary.await_queued("k", 3);
    let request = "RLOCK.MACQUIRE owner-n 60000 2 k3 k WAIT 0 NOTIFY c";
    assert_eq!(a.ask(request), "WAITING");
    let last = wait_for(&primary, "k", "owner-w", 5);
    // A kept place ends without a message, even if its call still waits.
    let kept = "RLOCK.ACQUIRE k owner-k 60000 WAIT 1 KEEP 60000";
    assert_eq!(a.ask(kept), "nil");
    let keeps = primary.client();
    keeps.send("RLOCK.ACQUIRE k owner-l2 60000 WAIT 0 KEEP 60000");
    primary.await_queued("k", 7);
    await_in_step(&primary, &replica);
    replica.ask("REPLICAOF NO ONE");
    primary.ask(&format!("REPLICAOF 127.0.0.1 {}", replica.port()));
    for client in [&upgrader, &limited, &several, &last, &keeps] {
        let answer = client.answer();
        assert!(answer.starts_with("UNBLOCKED "), "{answer}");
    }
    assert_eq!(subscriber.message(), "withdrawn 0 owner-n k3");
    eventually("no request is left", || {
        primary.counter("waiters") == 0 && primary.counter("contended_locks") == 0
    });
    eventually("no watch is left", || primary.counter("watches") == 0);
    // The connection of a bound hold may end here: another server has the lock now.
    a.close();
    let there = replica.client();
    there.number("RLOCK.RENEW k owner-a 60000");
    assert_eq!(replica.owners("k"), ["owner-a", "owner-b"]);
    assert_eq!(subscriber.messages(), [""; 0]);
}
