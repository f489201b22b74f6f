//! Keys that hold other data: other types, dumps, copies, and hashes at their limits.

use redis::Value;

use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::text;

#[test]
fn types_other_than_a_hash_are_never_touched() {
    let server = Server::start();
    let a = server.client();
    for make in [
        "SET k text",
        "RPUSH k element",
        "SADD k member",
        "ZADD k 1 member",
        "XADD k 1-1 field value",
        "SETBIT k 7 1",
        "PFADD k element",
        "HSET k owner-a 1",
    ] {
        a.ask(make);
        let before = text(&a.call(&["DUMP", "k"]));
        for line in [
            "RLOCK.ACQUIRE k owner-a 60000",
            "RLOCK.ACQUIRE k owner-a 60000 WAIT 0",
            "RLOCK.ACQUIRE k owner-a 60000 WAIT 0 NOTIFY c",
            "RLOCK.RENEW k owner-a 60000",
            "RLOCK.RELEASE k owner-a",
            "RLOCK.RELEASE k owner-a ALL",
            "RLOCK.FORCE k",
            "RLOCK.INFO k",
        ] {
            let answer = a.ask(line);
            assert!(answer.starts_with("WRONGTYPE "), "{make}, {line}: {answer}");
        }
        assert_eq!(a.ask("RLOCK.CANCEL k owner-a"), "0");
        assert_eq!(text(&a.call(&["DUMP", "k"])), before, "{make}");
        assert_eq!(a.ask("DEL k"), "1");
    }
    assert_eq!(server.counter("waiters"), 0);
}

#[test]
fn restore_over_a_lock_makes_its_owner_the_holder() {
    let server = Server::start();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-z 60000");
    let Value::BulkString(dump) = a.call(&["DUMP", "k"]) else {
        panic!("a dump")
    };
    a.ask("DEL k");
    let contest = Contest::on(&server);
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"60000", &dump, b"REPLACE"];
    assert_eq!(a.call(&restore), Value::Okay);
    assert_eq!(contest.holder.ask("RLOCK.RELEASE k owner-a"), "nil");
    assert_eq!(server.queued("k"), 1);
    assert_eq!(a.ask("RLOCK.RELEASE k owner-z"), "0");
    contest.assert_handed_over();
}

#[test]
fn copy_of_a_lock_is_another_lock() {
    let server = Server::start();
    let contest = Contest::on(&server);
    server.ask("COPY k k2");
    assert_eq!(server.queued("k"), 1);
    assert_eq!(contest.holder.ask("RLOCK.RELEASE k2 owner-a"), "0");
    assert_eq!(server.queued("k"), 1);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
}

#[test]
fn reserved_fields_are_not_owners() {
    let server = Server::start();
    let a = server.client();
    a.ask("HSET k owner-a 1 rlock:something 5");
    a.ask("PEXPIRE k 60000");
    assert_eq!(a.ask("RLOCK.ACQUIRE k owner-b 60000"), "nil");
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000");
    let info = a.ask("RLOCK.INFO k");
    assert!(
        info.contains(&format!("fence {fence}")) && !info.contains("something"),
        "{info}"
    );
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a ALL"), "0");
    assert_eq!(a.ask("EXISTS k"), "0");
}
