//! Contexts that cannot block: there `WAIT` is as if absent, and nothing is changed before that is known.

use redis::Value;

use crate::client::text;
use crate::contest::Contest;
use crate::server::Server;

#[test]
fn wait_in_multi_acts_as_a_try() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client();
    for line in [
        "MULTI",
        "RLOCK.ACQUIRE k owner-c 60000 WAIT 0",
        "RLOCK.ACQUIRE free owner-c 60000 WAIT 0",
    ] {
        c.ask(line);
    }
    let Value::Array(replies) = c.call(&["EXEC"]) else {
        panic!("replies")
    };
    assert_eq!(replies[0], Value::Nil);
    assert!(matches!(replies[1], Value::Int(_)));
    assert_eq!(server.queued("k"), 1);
    // A release in MULTI is a release.
    for line in ["MULTI", "RLOCK.RELEASE free owner-c", "RLOCK.FORCE k"] {
        c.ask(line);
    }
    assert_eq!(c.ask("EXEC"), "[0 1]");
    contest.assert_handed_over();
}

#[test]
fn notify_in_multi_queues_as_outside() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut heard = server.listen(&["c"]);
    let c = server.client();
    c.ask("MULTI");
    c.ask("RLOCK.ACQUIRE k owner-c 60000 WAIT 0 NOTIFY c");
    assert_eq!(c.ask("EXEC"), "[WAITING]");
    assert_eq!(server.queued("k"), 2);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert!(heard.message().starts_with("grant "));
}

#[test]
fn wait_in_a_script_acts_as_a_try() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client();
    let acquire = "return redis.call('RLOCK.ACQUIRE', KEYS[1], 'owner-c', '60000', 'WAIT', '0')";
    assert_eq!(c.call(&["EVAL", acquire, "1", "k"]), Value::Nil);
    assert_eq!(server.queued("k"), 1);
    assert!(matches!(
        c.call(&["EVAL", acquire, "1", "free"]),
        Value::Int(_)
    ));
    let notify = "return redis.pcall('RLOCK.ACQUIRE', KEYS[1], 'owner-c', '60000', 'NOTIFY', 'c')";
    for key in ["k", "unheard-of"] {
        assert!(text(&c.call(&["EVAL", notify, "1", key])).starts_with("ERR "));
    }
    let notify = notify.replace("'NOTIFY'", "'WAIT', '0', 'NOTIFY'");
    assert!(text(&c.call(&["EVAL", &notify, "1", "k"])).starts_with("ERR "));
    assert_eq!(server.ask("EXISTS unheard-of"), "0");
    assert_eq!(server.queued("k"), 1);
    let release = "return redis.call('RLOCK.RELEASE', KEYS[1], 'owner-a')";
    assert_eq!(c.call(&["EVAL", release, "1", "k"]), Value::Int(0));
    contest.assert_handed_over();
}

#[test]
fn wait_in_a_function_acts_as_a_try() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client();
    let library = "#!lua name=locks\nredis.register_function('take', function(keys) \
        return redis.call('RLOCK.ACQUIRE', keys[1], 'owner-c', '60000', 'WAIT', '0') end)";
    assert_eq!(text(&c.call(&["FUNCTION", "LOAD", library])), "locks");
    assert_eq!(c.ask("FCALL take 1 k"), "nil");
    assert_eq!(server.queued("k"), 1);
    assert!(matches!(
        c.call(&["FCALL", "take", "1", "free"]),
        Value::Int(_)
    ));
    drop(contest);
}
