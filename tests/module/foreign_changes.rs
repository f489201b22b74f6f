//! Changes of a lock's key by the server's own commands.

use redis::Value;

use crate::contest::{Contest, wait_for};
use rlock_testkit::Server;
use rlock_testkit::client::eventually;

#[test]
fn next_waiter_is_granted_whatever_ends_the_hold() {
    let server = Server::start();
    for change in [
        "DEL k",
        "UNLINK k",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL SYNC",
        "FLUSHALL ASYNC",
        "RENAME k elsewhere",
        "RENAMENX k somewhere",
        "MOVE k 5",
        "SWAPDB 0 6",
        "EXPIRE k 0",
        "PEXPIRE k -5",
        "PEXPIREAT k 1",
        "PEXPIRE k 5",
        "EXPIRE k 1",
        "HDEL k owner-a rlock:fence",
    ] {
        let contest = Contest::on(&server);
        // On a separate connection: if a module listens to key events, Valkey 8.1 leaves this connection in the
        // database to which it moved a key.
        server.client().ask(change);
        let fence = contest.assert_handed_over();
        assert_eq!(
            server.ask("HGET k rlock:fence"),
            fence.to_string(),
            "{change}"
        );
        assert_eq!(
            contest.holder.ask("RLOCK.RELEASE k owner-a"),
            "nil",
            "{change}"
        );
        assert_eq!(
            contest.holder.ask("RLOCK.RENEW k owner-a 60000"),
            "nil",
            "{change}"
        );
        assert_eq!(
            contest.waiter.ask("RLOCK.RELEASE k owner-b"),
            "0",
            "{change}"
        );
        server.ask("FLUSHALL");
    }
}

#[test]
fn changes_in_a_transaction_or_script_let_the_next_in() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client();
    c.ask("MULTI");
    c.ask("DEL k");
    c.ask("SET other 1");
    assert_eq!(c.ask("EXEC"), "[1 OK]");
    contest.assert_handed_over();
    let next = wait_for(&server, "k", "owner-c", 1);
    c.call(&["EVAL", "return redis.call('del', KEYS[1])", "1", "k"]);
    next.fence();
}

#[test]
fn key_removed_and_taken_in_one_transaction_stays_with_its_taker() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client();
    for line in ["MULTI", "DEL k", "HSET k 5f0e:1 1", "PEXPIRE k 60000"] {
        c.ask(line);
    }
    assert_eq!(c.ask("EXEC"), "[1 1 1]");
    assert_eq!(server.ask("RLOCK.ACQUIRE k owner-d 60000"), "nil");
    assert_eq!(server.queued("k"), 1);
    assert_eq!(server.ask("HGETALL k"), "[5f0e:1 1]");
    server.ask("DEL k");
    contest.assert_handed_over();
}

#[test]
fn lock_taken_and_released_by_scripts_is_the_same_lock() {
    let server = Server::start();
    let c = server.client();
    // Another kind of client locks with one field with a count, the TTL as lease, and a message after the release.
    let take = "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then \
        redis.call('hincrby', KEYS[1], ARGV[2], 1) redis.call('pexpire', KEYS[1], ARGV[1]) return nil end \
        return redis.call('pttl', KEYS[1])";
    let give_back = "local left = redis.call('hincrby', KEYS[1], ARGV[1], -1) if left > 0 then return left end \
        redis.call('del', KEYS[1]) redis.call('publish', ARGV[2], '0') return 0";
    let owner = "0a1b2c3d-0000-4000-8000-000000000000:42";
    let channel = "redisson_lock__channel:{k}";
    for _ in 0..2 {
        assert_eq!(
            c.call(&["EVAL", take, "1", "k", "60000", owner]),
            Value::Nil
        );
    }
    let waiter = wait_for(&server, "k", "owner-b", 1);
    assert_eq!(
        c.call(&["EVAL", give_back, "1", "k", owner, channel]),
        Value::Int(1)
    );
    assert_eq!(server.queued("k"), 1);
    assert_eq!(
        c.call(&["EVAL", give_back, "1", "k", owner, channel]),
        Value::Int(0)
    );
    waiter.fence();
    // This client is refused too, gets the remaining time, and receives the unlock message.
    let mut subscriber = server.listen(&[channel]);
    let Value::Int(left) = c.call(&["EVAL", take, "1", "k", "60000", owner]) else {
        panic!("a time")
    };
    assert!((1..=60_000).contains(&left));
    assert_eq!(waiter.ask("RLOCK.RELEASE k owner-b"), "0");
    assert_eq!(subscriber.message(), "0");
    assert_eq!(
        c.call(&["EVAL", take, "1", "k", "60000", owner]),
        Value::Nil
    );
    assert_eq!(server.ask(&format!("HGET k {owner}")), "1");
}

#[test]
fn waiters_keep_waiting_while_the_key_holds_other_data() {
    let server = Server::start();
    for (set, clear) in [
        ("SET k text", "DEL k"),
        ("SET k text PX 30", ""),
        ("RENAME list k", "LPOP list"),
        ("PERSIST k", "DEL k"),
        ("HSET k owner-z 1", "DEL k"),
        ("SUNIONSTORE k set", "SREM k member"),
    ] {
        server.ask("FLUSHALL");
        server.ask("RPUSH list element");
        server.ask("SADD set member");
        let contest = Contest::on(&server);
        server.ask(set);
        assert_eq!(server.ask("RLOCK.CANCEL k nobody"), "0");
        assert_eq!(server.counter("waiters"), 1, "{set}");
        match clear {
            "" => {}
            "LPOP list" => assert_eq!(server.ask("LPOP k"), "element"),
            clear => assert_eq!(server.ask(clear), "1"),
        }
        contest.assert_handed_over();
    }
}

#[test]
fn swapped_databases_keep_each_queue_with_its_database() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let (c, d) = (server.client(), server.client());
    c.ask("SELECT 1");
    d.ask("SELECT 1");
    // In database 1 the lock is held too, and has a waiter.
    c.number("RLOCK.ACQUIRE k owner-c 60000");
    d.send("RLOCK.ACQUIRE k owner-d 60000 WAIT 0");
    eventually("both wait", || server.counter("waiters") == 2);
    server.ask("SWAPDB 0 1");
    // Each queue waits for the key that is now in its database.
    assert_eq!(server.counter("waiters"), 2);
    assert_eq!(server.ask("RLOCK.RELEASE k owner-c"), "0");
    contest.assert_handed_over();
    assert_eq!(c.ask("RLOCK.RELEASE k owner-a"), "0");
    d.fence();
}
