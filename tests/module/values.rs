//! Values that are published with an exclusive hold: tests that need a server. The rules are scenarios.

use std::time::{Duration, Instant};

use crate::cluster::{await_cluster, one_node};
use crate::replication::await_in_step;
use rlock_testkit::client::{Subscriber, eventually};
use rlock_testkit::{Server, replicated};

const CHANNEL: &str = "rlock:value:{k}";

/// A server, and a follower of the value of `k`.
fn followed() -> (Server, Subscriber) {
    let server = Server::start();
    let subscriber = server.listen(&[CHANNEL]);
    (server, subscriber)
}

/// The received messages, without the channel.
fn messages_of(subscriber: &mut Subscriber) -> Vec<String> {
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
fn every_end_is_reported_in_time_without_waiters() {
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
        let received = follower.message_within(Duration::from_secs(5));
        let received = received.map(|it| it.1);
        assert_eq!(received, Some(fence.to_string()), "{end}");
        server.client().ask("FLUSHALL");
        assert_eq!(messages_of(&mut follower), [""; 0], "{end}");
    }
    assert_eq!(server.counter("watches"), 0);
}

/// Machines stall at times, so the shortest of some delays counts.
#[test]
fn lease_end_is_reported_within_ten_milliseconds_without_waiters() {
    let (server, mut follower) = followed();
    let lease = Duration::from_millis(20);
    let late = (0..20).map(|_| {
        let fence = server.connection().number("RLOCK.ACQUIRE k ann 20 VALUE a");
        let begun = Instant::now();
        assert_eq!(follower.message(), format!("{fence} a"));
        assert_eq!(follower.message(), fence.to_string());
        begun.elapsed().saturating_sub(lease)
    });
    let late = late.min().expect("there were some");
    assert!(late <= Duration::from_millis(10), "{late:?}");
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
    assert_eq!(messages_of(&mut follower), [format!("{fence} a")]);
    a.ask("MULTI");
    a.ask("RLOCK.RENEW k ann 60000 VALUE b");
    a.ask("RLOCK.RELEASE k ann");
    a.ask("EXEC");
    let received = [format!("{fence} b"), fence];
    assert_eq!(messages_of(&mut follower), received);
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
fn replicas_have_the_value_and_get_the_messages() {
    let (primary, replica) = replicated();
    let mut follower = replica.listen(&[CHANNEL]);
    let fence = take(&primary, "ann", "VALUE a");
    assert_eq!(follower.message(), format!("{fence} a"));
    await_in_step(&primary, &replica);
    assert_eq!(value(&replica), "a");
    // A client that asks the new master makes it publish the end.
    replica.ask("REPLICAOF NO ONE");
    assert_eq!(value(&replica), "a");
    replica.ask("DEL k");
    assert_eq!(follower.message(), fence.to_string());
}

#[test]
fn former_primary_forgets_its_published_values() {
    let (primary, replica) = replicated();
    take(&primary, "ann", "VALUE a");
    await_in_step(&primary, &replica);
    replica.ask("REPLICAOF NO ONE");
    primary.ask(&format!("REPLICAOF 127.0.0.1 {}", replica.port()));
    eventually("nothing is remembered", || primary.counter("watches") == 0);
}

#[test]
fn end_after_a_restart_is_reported_to_followers_who_asked() {
    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    let fence = take(&server, "ann", "VALUE a");
    server.shut_down();
    server.start_again();
    let mut follower = server.listen(&[CHANNEL]);
    assert_eq!(value(&server), "a");
    assert_eq!(server.counter("watches"), 1);
    server.ask("PEXPIRE k 50");
    assert_eq!(follower.message(), fence.to_string());
    // If there is a waiter, the followers see only the new holder, not the end of the previous hold.
    take(&server, "ann", "VALUE a");
    server.shut_down();
    server.start_again();
    let mut follower = server.listen(&[CHANNEL]);
    let b = server.client();
    b.send("RLOCK.ACQUIRE k bob 60000 WAIT 0 VALUE b");
    server.await_queued("k", 1);
    messages_of(&mut follower);
    server.ask("DEL k");
    let of_bob = b.fence();
    assert_eq!(follower.message(), format!("{of_bob} b"));
}

#[test]
fn foreign_value_over_the_limit_is_not_published() {
    let (server, mut follower) = followed();
    let long = "v".repeat(1025);
    server.ask(&format!("HSET k ann 1 rlock:fence 7 rlock:value {long}"));
    server.ask("PEXPIRE k 60000");
    assert_eq!(value(&server), "nil");
    assert_eq!(server.ask("RLOCK.RENEW k ann 60000"), "7");
    assert_eq!(messages_of(&mut follower), [""; 0]);
    server.ask("RLOCK.RENEW k ann 60000 VALUE a");
    assert_eq!(messages_of(&mut follower), ["7 a"]);
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
fn fences_never_decrease_while_many_candidates_campaign() {
    let (server, mut follower) = followed();
    let candidates: Vec<_> = (0..20).map(|_| server.client()).collect();
    for (number, it) in candidates.iter().enumerate() {
        it.send(&format!(
            "RLOCK.ACQUIRE k owner-{number} 20 WAIT 0 VALUE v{number}"
        ));
    }
    let mut last = 0;
    let mut leaders = 0;
    while leaders < candidates.len() {
        let received = follower.message_within(Duration::from_secs(5));
        let (_, received) = received.expect("the next one leads");
        let fence = received.split(' ').next().and_then(|it| it.parse().ok());
        let fence: i64 = fence.expect("a message begins with a fence");
        assert!(fence >= last, "{fence} after {last}");
        leaders += usize::from(fence > last);
        last = fence;
    }
    assert_eq!(follower.message(), last.to_string());
}
