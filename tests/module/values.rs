//! What is published with an exclusive hold: in the hash, in `RLOCK.INFO`, and on the value channel.

use std::time::Duration;

use crate::cluster::{await_cluster, one_node};
use crate::replication::await_in_step;
use rlock_testkit::client::{Subscriber, eventually};
use rlock_testkit::{Server, replicated};

const CHANNEL: &str = "rlock:value:{k}";

/// A server, and somebody who follows the value of `k`.
fn followed() -> (Server, Subscriber) {
    let server = Server::start();
    let heard = server.listen(&[CHANNEL]);
    (server, heard)
}

/// What has been heard, without the channel.
fn heard(subscriber: &mut Subscriber) -> Vec<String> {
    let channel = format!("{CHANNEL}: ");
    let messages = subscriber.messages().into_iter();
    messages
        .map(|it| it.strip_prefix(&channel).unwrap_or(&it).to_owned())
        .collect()
}

#[track_caller]
fn take(server: &Server, owner: &str, options: &str) -> i64 {
    let line = format!("RLOCK.ACQUIRE k {owner} 60000 {options}");
    server.connection().number(&line)
}

fn value(server: &Server) -> String {
    let info = server.ask("RLOCK.INFO k");
    let (_, rest) = info.split_once("value ").expect("somebody holds it");
    let end = rest.find(']').expect("the list of holders ends");
    rest[..end].to_owned()
}

#[test]
fn value_is_told_when_a_hold_begins_changes_and_ends() {
    let (server, mut follower) = followed();
    let fence = take(&server, "ann", "VALUE a:1");
    assert_eq!(heard(&mut follower), [format!("{fence} a:1")]);
    assert_eq!(server.ask("HGET k rlock:value"), "a:1");
    assert_eq!(value(&server), "a:1");
    // What does not change is not told, whether it is named or left out.
    take(&server, "ann", "");
    take(&server, "ann", "VALUE a:1 REENTER");
    server.ask("RLOCK.RENEW k ann 60000");
    server.ask("RLOCK.RENEW k ann 60000 VALUE a:1");
    assert_eq!(heard(&mut follower), [""; 0]);
    take(&server, "ann", "VALUE a:2");
    server.ask("RLOCK.RENEW k ann 60000 VALUE \"\"");
    let told = [format!("{fence} a:2"), format!("{fence} ")];
    assert_eq!(heard(&mut follower), told);
    assert_eq!(value(&server), "");
    assert_eq!(server.ask("RLOCK.RELEASE k ann"), "1");
    assert_eq!(server.ask("RLOCK.RELEASE k ann"), "0");
    assert_eq!(heard(&mut follower), [fence.to_string()]);
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn hold_without_a_value_tells_nothing() {
    let (server, mut follower) = followed();
    take(&server, "ann", "");
    assert_eq!(value(&server), "nil");
    let b = server.client();
    b.send("RLOCK.ACQUIRE k bob 60000 WAIT 0");
    server.await_queued("k", 1);
    server.ask("RLOCK.RELEASE k ann");
    b.reply();
    server.ask("RLOCK.FORCE k");
    assert_eq!(heard(&mut follower), [""; 0]);
}

#[test]
fn of_a_hand_off_only_the_new_holder_is_told() {
    let (server, mut follower) = followed();
    take(&server, "ann", "VALUE a");
    let (b, c) = (server.client(), server.client());
    b.send("RLOCK.ACQUIRE k bob 60000 WAIT 0 VALUE b");
    server.await_queued("k", 1);
    c.send("RLOCK.ACQUIRE k cid 60000 WAIT 0");
    server.await_queued("k", 2);
    heard(&mut follower);
    server.ask("RLOCK.RELEASE k ann");
    let of_bob = b.fence();
    assert_eq!(heard(&mut follower), [format!("{of_bob} b")]);
    // The next holder has none.
    server.ask("RLOCK.RELEASE k bob");
    c.reply();
    assert_eq!(heard(&mut follower), [of_bob.to_string()]);
    assert_eq!(server.ask("HEXISTS k rlock:value"), "0");
    assert_eq!(value(&server), "nil");
}

#[test]
fn waiter_who_is_gone_never_seems_to_lead() {
    let (server, mut follower) = followed();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k ann 60000 VALUE a");
    // Nobody listens on the channel, so its grant is passed on.
    let gone = server.client();
    gone.ask("RLOCK.ACQUIRE k bob 60000 WAIT 0 NOTIFY nowhere VALUE b");
    let c = server.client();
    c.send("RLOCK.ACQUIRE k cid 60000 WAIT 0 VALUE c");
    server.await_queued("k", 2);
    heard(&mut follower);
    server.ask("RLOCK.RELEASE k ann");
    assert_eq!(heard(&mut follower), [format!("{} c", c.fence())]);
}

#[test]
fn every_end_is_told_in_time_though_nobody_waits() {
    let (server, mut follower) = followed();
    let ends = [
        "RLOCK.FORCE k",
        "DEL k",
        "UNLINK k",
        "FLUSHDB",
        "FLUSHALL",
        "RENAME k other",
        "SWAPDB 0 1",
        "MOVE k 2",
        "PEXPIRE k 1",
        "RLOCK.DOWNGRADE k ann",
        "EVAL redis.call('DEL','k') 0",
    ];
    for end in ends {
        let fence = take(&server, "ann", "VALUE a");
        assert_eq!(follower.message(), format!("{fence} a"), "{end}");
        // Some servers leave the connection in another database.
        server.client().ask(end);
        let told = follower.message_within(Duration::from_secs(5));
        let told = told.map(|it| it.1);
        assert_eq!(told, Some(fence.to_string()), "{end}");
        server.client().ask("FLUSHALL");
        assert_eq!(heard(&mut follower), [""; 0], "{end}");
    }
    let fence = take(&server, "ann", "VALUE a");
    server.ask("RLOCK.RENEW k ann 100");
    assert_eq!(follower.message(), format!("{fence} a"));
    assert_eq!(follower.message(), fence.to_string());
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn bound_hold_ends_with_its_connection() {
    let (server, mut follower) = followed();
    let a = server.client();
    let fence = a.number("RLOCK.ACQUIRE k ann 60000 BIND 0 VALUE a");
    a.close();
    assert_eq!(follower.message(), format!("{fence} a"));
    assert_eq!(follower.message(), fence.to_string());
}

#[test]
fn upgrade_publishes_and_raised_fence_is_told() {
    let (server, mut follower) = followed();
    take(&server, "ann", "SHARED");
    let fence = take(&server, "ann", "VALUE a");
    let raised = fence + 1000;
    server.ask(&format!("RLOCK.RENEW k ann 60000 FENCE {raised}"));
    let told = [format!("{fence} a"), format!("{raised} a")];
    assert_eq!(heard(&mut follower), told);
    assert_eq!(server.ask("RLOCK.DOWNGRADE k ann"), raised.to_string());
    assert_eq!(heard(&mut follower), [raised.to_string()]);
    assert_eq!(server.ask("HEXISTS k rlock:value"), "0");
}

#[test]
fn shared_hold_has_no_value() {
    let (server, mut follower) = followed();
    let refused = server.ask("RLOCK.ACQUIRE k ann 60000 SHARED VALUE a");
    assert!(
        refused.starts_with("ERR ") && refused.contains("VALUE"),
        "{refused}"
    );
    take(&server, "ann", "SHARED");
    let refused = server.ask("RLOCK.RENEW k ann 1000 VALUE a");
    assert!(refused.starts_with("ERR VALUE "), "{refused}");
    let left: i64 = server.ask("PTTL k").parse().expect("it has a lease");
    assert!(left > 1000, "nothing has changed");
    assert_eq!(heard(&mut follower), [""; 0]);
}

#[test]
fn value_may_be_any_bytes() {
    let (server, _) = followed();
    let any: Vec<u8> = (0..=255).collect();
    let call = [
        &b"RLOCK.ACQUIRE"[..],
        b"k",
        b"ann",
        b"60000",
        b"VALUE",
        &any,
    ];
    let a = server.client();
    a.call(&call);
    let stored = a.call(&[&b"HGET"[..], b"k", b"rlock:value"]);
    assert_eq!(stored, redis::Value::BulkString(any));
}

#[test]
fn scripts_and_transactions_publish() {
    let (server, mut follower) = followed();
    let a = server.client();
    let script = "return redis.call('RLOCK.ACQUIRE','k','ann','60000','VALUE','a')";
    let fence = a.call(&["EVAL", script, "1", "k"]);
    let fence = rlock_testkit::client::text(&fence);
    assert_eq!(heard(&mut follower), [format!("{fence} a")]);
    a.ask("MULTI");
    a.ask("RLOCK.RENEW k ann 60000 VALUE b");
    a.ask("RLOCK.RELEASE k ann");
    a.ask("EXEC");
    let told = [format!("{fence} b"), fence];
    assert_eq!(heard(&mut follower), told);
}

#[test]
fn kind_and_key_name_the_channel() {
    let server = Server::start();
    let mut plain = server.listen(&["rlock:value:{k}", "rlock:value:{tag}k"]);
    let mut sharded = Subscriber::listen(server.port(), "SSUBSCRIBE", &[CHANNEL]);
    server.ask("RLOCK.ACQUIRE {tag}k ann 60000 VALUE a");
    assert!(plain.messages()[0].starts_with("rlock:value:{tag}k: "));
    for (kind, by_publish, by_spublish) in [
        ("spublish", 0, 2),
        ("both", 2, 2),
        ("none", 0, 0),
        ("publish", 2, 0),
    ] {
        server.ask(&format!("CONFIG SET rlock.publish {kind}"));
        take(&server, "ann", "VALUE a");
        server.ask("RLOCK.RELEASE k ann");
        assert_eq!(plain.messages().len(), by_publish, "{kind}");
        assert_eq!(sharded.messages().len(), by_spublish, "{kind}");
    }
}

#[test]
fn holds_with_a_value_count_for_the_limit() {
    let server = Server::start();
    let limit = |it: u32| server.ask(&format!("CONFIG SET rlock.max-watches {it}"));
    limit(1);
    take(&server, "ann", "VALUE a NOTIFY c");
    assert_eq!(server.counter("watches"), 1, "one hold counts once");
    let refused = |line: &str| {
        let answer = server.ask(line);
        assert!(
            answer.starts_with("QUEUEFULL ") && answer.contains("VALUE"),
            "{answer}"
        );
    };
    refused("RLOCK.ACQUIRE k bob 60000 WAIT 0 VALUE b");
    refused("RLOCK.ACQUIRE other bob 60000 VALUE b");
    // A hold that has one may get another.
    limit(0);
    assert!(
        server
            .ask("RLOCK.RENEW k ann 60000 VALUE b")
            .parse::<i64>()
            .is_ok()
    );
    limit(2);
    let b = server.client();
    b.send("RLOCK.ACQUIRE k bob 60000 WAIT 0 VALUE b");
    server.await_queued("k", 1);
    assert_eq!(server.counter("watches"), 2);
    server.ask("RLOCK.FORCE k");
    b.fence();
    assert_eq!(server.counter("watches"), 1);
    server.ask("RLOCK.RELEASE k bob");
    assert_eq!(server.counter("watches"), 0);
}

#[test]
fn kept_place_asks_for_its_value_anew() {
    let (server, mut follower) = followed();
    take(&server, "ann", "");
    assert_eq!(
        server.ask("RLOCK.ACQUIRE k bob 60000 WAIT 1 KEEP 60000 VALUE b"),
        "nil"
    );
    assert_eq!(server.counter("watches"), 0);
    server.ask("RLOCK.RELEASE k ann");
    let fence = take(&server, "bob", "VALUE c");
    assert_eq!(heard(&mut follower), [format!("{fence} c")]);
}

#[test]
fn several_keys_get_values_by_renewal_and_lose_them_together() {
    let (server, mut follower) = followed();
    let fence = server.connection().number("RLOCK.MACQUIRE ann 60000 2 k m");
    assert_eq!(heard(&mut follower), [""; 0]);
    server.ask("RLOCK.RENEW k ann 60000 VALUE a");
    assert_eq!(server.ask("RLOCK.MRENEW ann 60000 2 k m"), "2");
    server.ask("RLOCK.MRELEASE ann 2 k m");
    let told = [format!("{fence} a"), fence.to_string()];
    assert_eq!(heard(&mut follower), told);
}

#[test]
fn replicas_have_the_value_and_hear_the_messages() {
    let (primary, replica) = replicated();
    let mut follower = replica.listen(&[CHANNEL]);
    let fence = take(&primary, "ann", "VALUE a");
    assert_eq!(follower.message(), format!("{fence} a"));
    await_in_step(&primary, &replica);
    assert_eq!(value(&replica), "a");
    // Whoever asks the new master has the end told by it.
    replica.ask("REPLICAOF NO ONE");
    assert_eq!(value(&replica), "a");
    replica.ask("DEL k");
    assert_eq!(follower.message(), fence.to_string());
}

#[test]
fn former_primary_forgets_what_it_has_told() {
    let (primary, replica) = replicated();
    take(&primary, "ann", "VALUE a");
    await_in_step(&primary, &replica);
    replica.ask("REPLICAOF NO ONE");
    primary.ask(&format!("REPLICAOF 127.0.0.1 {}", replica.port()));
    eventually("nothing is remembered", || primary.counter("watches") == 0);
}

#[test]
fn end_after_a_restart_is_told_to_those_who_have_asked() {
    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    let fence = take(&server, "ann", "VALUE a");
    server.shut_down();
    server.start_again();
    let mut follower = server.listen(&[CHANNEL]);
    assert_eq!(value(&server), "a");
    assert_eq!(server.counter("watches"), 1);
    server.ask("PEXPIRE k 50");
    assert_eq!(follower.message(), fence.to_string());
    // A waiter has the end told as well, and only the new holder's.
    take(&server, "ann", "VALUE a");
    server.shut_down();
    server.start_again();
    let mut follower = server.listen(&[CHANNEL]);
    let b = server.client();
    b.send("RLOCK.ACQUIRE k bob 60000 WAIT 0 VALUE b");
    server.await_queued("k", 1);
    heard(&mut follower);
    server.ask("DEL k");
    let of_bob = b.fence();
    assert_eq!(follower.message(), format!("{of_bob} b"));
}

#[test]
fn value_of_others_making_is_not_published_beyond_its_limit() {
    let (server, mut follower) = followed();
    let long = "v".repeat(1025);
    server.ask(&format!("HSET k ann 1 rlock:fence 7 rlock:value {long}"));
    server.ask("PEXPIRE k 60000");
    assert_eq!(value(&server), "nil");
    assert_eq!(server.ask("RLOCK.RENEW k ann 60000"), "7");
    assert_eq!(heard(&mut follower), [""; 0]);
    server.ask("RLOCK.RENEW k ann 60000 VALUE a");
    assert_eq!(heard(&mut follower), ["7 a"]);
}

#[test]
fn in_a_cluster_the_channel_has_the_slot_of_its_key() {
    let server = one_node();
    await_cluster(&server);
    let mut follower = Subscriber::listen(server.port(), "SSUBSCRIBE", &[CHANNEL]);
    let fence = take(&server, "ann", "VALUE a");
    assert_eq!(follower.message(), format!("{fence} a"));
    server.ask("RLOCK.RELEASE k ann");
    assert_eq!(follower.message(), fence.to_string());
}

#[test]
fn fences_never_go_back_while_a_crowd_campaigns() {
    let (server, mut follower) = followed();
    let campaigners: Vec<_> = (0..20).map(|_| server.client()).collect();
    for (number, it) in campaigners.iter().enumerate() {
        it.send(&format!(
            "RLOCK.ACQUIRE k owner-{number} 20 WAIT 0 VALUE v{number}"
        ));
    }
    let mut last = 0;
    let mut leaders = 0;
    while leaders < campaigners.len() {
        let told = follower.message_within(Duration::from_secs(5));
        let (_, told) = told.expect("the next one leads");
        let fence = told.split(' ').next().and_then(|it| it.parse().ok());
        let fence: i64 = fence.expect("a message begins with a fence");
        assert!(fence >= last, "{fence} after {last}");
        leaders += usize::from(fence > last);
        last = fence;
    }
    assert_eq!(follower.message(), last.to_string());
}
