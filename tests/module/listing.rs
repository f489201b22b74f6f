//! `RLOCK.LIST`: which locks it shows, and in which order.

use redis::Value;

use rlock_testkit::Server;
use rlock_testkit::client::{Client, text};

/// Queues this number of requests by a channel for a held lock, in the database of the connection.
fn queue(client: &Client, key: &str, count: usize) {
    client.number(&format!("RLOCK.ACQUIRE {key} owner-a 60000"));
    for number in 0..count {
        let line = format!("RLOCK.ACQUIRE {key} owner-{number} 60000 WAIT 0 NOTIFY c");
        assert_eq!(client.ask(&line), "WAITING");
    }
}

#[test]
fn list_shows_ten_locks_by_default() {
    let server = Server::start();
    let _subscriber = server.listen(&["c"]);
    let a = server.client();
    for number in 0..1005 {
        queue(&a, &format!("k{number}"), 1);
    }
    assert_eq!(a.listed("RLOCK.LIST").len(), 10);
    for count in [1, 11, 1000] {
        let listed = a.listed(&format!("RLOCK.LIST COUNT {count}"));
        assert_eq!(listed.len(), count);
    }
}

#[test]
fn locks_of_other_databases_are_not_listed() {
    let server = Server::start();
    let _subscriber = server.listen(&["c"]);
    let (a, b) = (server.client(), server.client());
    b.ask("SELECT 1");
    queue(&a, "here", 1);
    queue(&b, "there", 2);
    assert_eq!(a.listed("RLOCK.LIST"), ["here exclusive 1 1"]);
    assert_eq!(b.listed("RLOCK.LIST"), ["there exclusive 1 2"]);
    b.ask("SELECT 2");
    assert_eq!(b.ask("RLOCK.LIST"), "[]");
}

#[test]
fn free_keys_of_a_request_for_several_are_listed_as_free() {
    let server = Server::start();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    let waiter = server.client();
    waiter.send("RLOCK.MACQUIRE owner-m 60000 2 k1 k2 WAIT 0");
    server.await_queued("k2", 1);
    let mut listed = a.listed("RLOCK.LIST");
    listed.sort();
    assert_eq!(listed, ["k1 exclusive 1 1", "k2 free 0 1"]);
    assert_eq!(a.ask("EXISTS k2"), "0");
}

#[test]
fn locks_without_waiters_do_not_slow_a_list() {
    let server = Server::start();
    let _subscriber = server.listen(&["c"]);
    let a = server.client();
    for number in 0..10_000 {
        let mode = ["", " SHARED"][number % 2];
        let line = format!("RLOCK.ACQUIRE k{number} owner-a 60000{mode} NOTIFY c");
        a.send(&line);
    }
    (0..10_000).for_each(|_| _ = a.fence());
    queue(&a, "wanted", 1);
    let looked_up = || {
        let count = |field: &str| {
            let value = server.info("stats", field);
            value.parse::<i64>().expect("a number")
        };
        count("keyspace_hits") + count("keyspace_misses")
    };
    let before = looked_up();
    assert_eq!(a.listed("RLOCK.LIST COUNT 1000"), ["wanted exclusive 1 1"]);
    // The command reads only the locks that it shows.
    assert!(looked_up() - before <= 2);
}

#[test]
fn list_consists_of_maps_in_resp3() {
    let server = Server::start();
    let _subscriber = server.listen(&["c"]);
    let a = server.client_resp3();
    queue(&a, "k", 1);
    let Value::Array(locks) = a.call(&["RLOCK.LIST"]) else {
        panic!("a list")
    };
    let [Value::Map(lock)] = locks.as_slice() else {
        panic!("one map")
    };
    let names = lock.iter().map(|(name, _)| text(name)).collect::<Vec<_>>();
    let expected = ["key", "mode", "holders", "waiters", "oldest-wait-ms"];
    assert_eq!(names, expected);
    // The same in RESP2, flat.
    let Value::Array(locks) = server.connection().call(&["RLOCK.LIST"]) else {
        panic!("a list")
    };
    let [Value::Array(flat)] = locks.as_slice() else {
        panic!("one flat map")
    };
    let names = flat.iter().step_by(2).map(text).collect::<Vec<_>>();
    assert_eq!(names, expected);
}
