//! Contexts that cannot block: `WAIT` has no effect there, and a refused command changes nothing.

use std::time::{Duration, Instant};

use redis::Value;

use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually, text, words};

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
    // A release in MULTI works.
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
    let mut subscriber = server.listen(&["c"]);
    let c = server.client();
    c.ask("MULTI");
    c.ask("RLOCK.ACQUIRE k owner-c 60000 WAIT 0 NOTIFY c");
    assert_eq!(c.ask("EXEC"), "[WAITING]");
    assert_eq!(server.queued("k"), 2);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert!(subscriber.message().starts_with("grant "));
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

/// The reply to one command in a transaction.
pub(crate) fn in_multi(client: &Client, line: &str) -> String {
    client.ask("MULTI");
    assert_eq!(client.ask(line), "QUEUED");
    let answer = client.ask("EXEC");
    answer.trim_matches(['[', ']']).to_owned()
}

/// The reply to one command in a script, or its error.
pub(crate) fn in_script(client: &Client, line: &str) -> String {
    let script = "return redis.pcall(unpack(ARGV))";
    let arguments = [&["EVAL", script, "0"][..], &words(line)].concat();
    text(&client.call(&arguments))
}

#[test]
fn commands_act_in_multi_and_in_scripts_as_outside() {
    let server = Server::start();
    let c = server.client();
    let run: [fn(&Client, &str) -> String; 2] = [in_multi, in_script];
    for run in run {
        let fence = run(&c, "RLOCK.MACQUIRE owner-a 60000 2 k k2 WAIT 0");
        assert_eq!(
            run(&c, "RLOCK.MACQUIRE owner-b 60000 2 k2 k3 WAIT 0"),
            "nil"
        );
        assert_eq!(run(&c, "RLOCK.MRENEW owner-a 60000 3 k k2 k3"), "2");
        assert_eq!(run(&c, "RLOCK.DOWNGRADE k owner-a"), fence);
        let shared = run(
            &c,
            "RLOCK.ACQUIRE k owner-b 60000 SHARED LIMIT 3 PERMITS 2 WAIT 0",
        );
        assert!(shared > fence, "{shared}");
        let full = "RLOCK.ACQUIRE k owner-c 60000 SHARED LIMIT 3 WAIT 0";
        assert_eq!(run(&c, full), "nil");
        // An upgrade that would have to wait is refused too.
        assert_eq!(run(&c, "RLOCK.ACQUIRE k owner-a 60000 WAIT 0"), "nil");
        assert_eq!(run(&c, "RLOCK.RELEASE k owner-b"), "0");
        assert!(run(&c, "RLOCK.ACQUIRE k owner-a 60000 WAIT 0") > shared);
        assert_eq!(run(&c, "RLOCK.MRELEASE owner-a 2 k k2 ALL"), "2");
        assert_eq!(run(&c, "RLOCK.LIST"), run(&c, "RLOCK.LIST"));
        assert_eq!(server.ask("DBSIZE"), "0");
        assert_eq!(server.counter("waiters"), 0);
    }
}

#[test]
fn refusals_in_multi_and_in_scripts_change_nothing() {
    let server = Server::start();
    let (a, c) = (server.client(), server.client());
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let before = server.hash("k");
    for line in [
        "RLOCK.ACQUIRE free owner-c 60000 BIND 0",
        "RLOCK.ACQUIRE free owner-c 60000 BIND 0 WAIT 0",
        "RLOCK.ACQUIRE k owner-a 60000 BIND 0",
        "RLOCK.ACQUIRE k owner-a 60000 NOTIFY c",
        "RLOCK.MACQUIRE owner-c 60000 2 free free2 NOTIFY c",
        "RLOCK.MACQUIRE owner-c 60000 2 free k WAIT 0 NOTIFY c",
    ] {
        let answer = in_script(&c, line);
        assert!(answer.starts_with("ERR "), "{line}: {answer}");
    }
    assert_eq!(server.hash("k"), before);
    assert_eq!(server.ask("DBSIZE"), "1");
    assert_eq!(server.counter("watches"), 0);
    assert_eq!(server.queued("k"), 0);
}

#[test]
fn binding_in_multi_is_to_its_connection_and_renewal_in_a_script_leaves_it() {
    let server = Server::start();
    let (a, c) = (server.client(), server.client());
    in_multi(&a, "RLOCK.ACQUIRE k owner-a 60000 BIND 0");
    assert!(server.lock("k").holders[0].is_bound);
    for line in [
        "RLOCK.RENEW k owner-a 60000",
        "RLOCK.MRENEW owner-a 60000 1 k",
        "RLOCK.ACQUIRE k owner-a 60000",
        "RLOCK.ACQUIRE k owner-a 60000 REENTER",
        "RLOCK.MACQUIRE owner-a 60000 1 k",
    ] {
        let answer = in_script(&c, line);
        assert!(!answer.starts_with("ERR"), "{line}: {answer}");
    }
    let id = c.id();
    c.close();
    eventually("the other connection has ended", || {
        let list = server.ask(&format!("CLIENT LIST ID {id}"));
        list.trim().is_empty()
    });
    assert!(server.lock("k").holders[0].is_bound);
    a.close();
    eventually("it belonged to the first", || server.ask("EXISTS k") == "0");
}

#[test]
fn request_for_several_in_multi_waits_by_its_channel() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (a, c) = (server.client(), server.client());
    a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
    let wait = "RLOCK.MACQUIRE owner-c 60000 2 k k2 WAIT 0 NOTIFY c";
    assert_eq!(in_multi(&c, wait), "WAITING");
    assert_eq!(server.queued("k2"), 1);
    assert_eq!(in_script(&a, "RLOCK.RELEASE k owner-a"), "0");
    assert!(subscriber.message().ends_with(" owner-c k"));
    assert_eq!(server.owners("k2"), ["owner-c"]);
}

/// On most servers the clock does not advance within a transaction. A waiter gets its reply before the transaction
/// ends, and must have its whole lease.
#[test]
fn lease_of_a_hand_off_begins_at_its_message_however_old_the_transaction_is() {
    const AGE: Duration = Duration::from_millis(700);
    let server = Server::start();
    let contest = Contest::on(&server);
    let c = server.client();
    let start = Instant::now();
    c.ask("MULTI");
    c.ask("DEBUG SLEEP 0.7");
    c.ask("RLOCK.RELEASE k owner-a");
    assert_eq!(c.ask("EXEC"), "[OK 0]");
    contest.assert_handed_over();
    let left = u64::try_from(server.connection().number("PTTL k")).expect("it is held");
    let since = start.elapsed().saturating_sub(AGE);
    assert!(
        Duration::from_millis(left + 5) + since >= Duration::from_mins(1),
        "{left} ms are left after {since:?}"
    );
}

#[test]
fn wait_begins_at_its_request_however_old_the_transaction_is() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let c = server.client();
    let start = Instant::now();
    c.ask("MULTI");
    c.ask("DEBUG SLEEP 0.7");
    c.ask("RLOCK.ACQUIRE k owner-b 60000 WAIT 600 NOTIFY c");
    assert_eq!(c.ask("EXEC"), "[OK WAITING]");
    assert_eq!(subscriber.message(), "timeout 0 owner-b k");
    let after = start.elapsed();
    assert!(after >= Duration::from_millis(1300), "{after:?}");
}
