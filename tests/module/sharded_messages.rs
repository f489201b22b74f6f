//! Outcomes and losses on sharded channels: `SNOTIFY`.

use crate::cluster::{one_node, two_nodes};
use crate::contest::Contest;
use rlock_testkit::Server;
use rlock_testkit::client::{Subscriber, eventually};

fn listen(server: &Server, channel: &str) -> Subscriber {
    Subscriber::listen(server.port(), "SSUBSCRIBE", &[channel])
}

#[test]
fn sharded_request_with_only_plain_subscribers_is_skipped() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut plain = server.listen(&["c"]);
    let n = server.client();
    n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 SNOTIFY c");
    let mut sharded = listen(&server, "c");
    let other = "RLOCK.ACQUIRE k owner-m 60000 WAIT 0 NOTIFY s";
    n.ask(other);
    sharded.change("SSUBSCRIBE", "s");
    sharded.change("SUNSUBSCRIBE", "c");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(server.counter("waiters_gone"), 2);
    assert_eq!(plain.messages(), [""; 0]);
    assert_eq!(sharded.messages(), [""; 0]);
}

#[test]
fn plain_and_sharded_channels_of_one_connection_are_distinct() {
    let server = Server::start();
    let mut plain = server.listen(&["c"]);
    let mut sharded = listen(&server, "c");
    let a = server.client();
    let by_plain = a.number("RLOCK.ACQUIRE k1 owner-a 60000 NOTIFY c");
    let by_sharded = a.number("RLOCK.ACQUIRE k2 owner-a 60000 SNOTIFY c");
    assert_eq!(server.counter("watches"), 2);
    server.ask("DEL k1 k2");
    assert_eq!(plain.message(), format!("lost {by_plain} owner-a k1"));
    assert_eq!(sharded.message(), format!("lost {by_sharded} owner-a k2"));
    assert_eq!(plain.messages(), [""; 0]);
    assert_eq!(sharded.messages(), [""; 0]);
}

#[test]
fn node_must_serve_the_channel() {
    let (first, second) = two_nodes();
    // The first node has all slots except one, which has no keys.
    let slot = first.ask("CLUSTER KEYSLOT elsewhere");
    let move_to = format!("CLUSTER SETSLOT {slot} NODE {}", second.ask("CLUSTER MYID"));
    assert_eq!(second.ask(&move_to), "OK");
    assert_eq!(first.ask(&move_to), "OK");
    let contest = Contest::on(&first);
    let n = first.client();
    for line in [
        "RLOCK.ACQUIRE k owner-n 60000 WAIT 0 SNOTIFY elsewhere",
        "RLOCK.ACQUIRE {k}free owner-n 60000 SNOTIFY elsewhere",
        "RLOCK.MACQUIRE owner-n 60000 2 k {k}free WAIT 0 SNOTIFY elsewhere",
    ] {
        let answer = n.ask(line);
        let named = ["SNOTIFY", "elsewhere", "slot"];
        let is_clear = named.iter().all(|word| answer.contains(word));
        assert!(answer.starts_with("ERR ") && is_clear, "{line}: {answer}");
    }
    assert_eq!(first.queued("k"), 1);
    assert_eq!(first.counter("watches"), 0);
    assert_eq!(first.ask("EXISTS {k}free"), "0");
    // A plain channel can have any name; a sharded one need not be in the slot of the key.
    let mut sharded = listen(&first, "here");
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 NOTIFY elsewhere"),
        "WAITING"
    );
    assert_eq!(n.ask("RLOCK.CANCEL k owner-n"), "1");
    assert_eq!(
        n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 SNOTIFY here"),
        "WAITING"
    );
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    assert!(sharded.message().starts_with("grant "));
}

#[test]
fn unlock_message_is_sharded_in_a_cluster_and_plain_elsewhere() {
    let channel = "redisson_lock__channel:{k}";
    for (server, is_cluster) in [(one_node(), true), (Server::start(), false)] {
        let mut plain = server.listen(&[channel]);
        let mut sharded = listen(&server, channel);
        assert_eq!(
            server.ask("CONFIG GET rlock.publish"),
            "[rlock.publish auto]"
        );
        server.connection().number("RLOCK.ACQUIRE k owner-a 60000");
        assert_eq!(server.ask("RLOCK.RELEASE k owner-a"), "0");
        let message = format!("{channel}: 0");
        let (subscriber, silent) = if is_cluster {
            (&mut sharded, &mut plain)
        } else {
            (&mut plain, &mut sharded)
        };
        assert_eq!(subscriber.messages(), [message]);
        assert_eq!(silent.messages(), [""; 0]);
    }
}

#[test]
fn channel_permission_is_required() {
    let server = Server::start();
    let contest = Contest::on(&server);
    server.ask("ACL SETUSER u reset on nopass +@all ~* resetchannels &mine:*");
    let u = server.client();
    assert_eq!(u.ask("AUTH u any"), "OK");
    for line in [
        "RLOCK.ACQUIRE k owner-u 60000 WAIT 0 SNOTIFY yours",
        "RLOCK.ACQUIRE free owner-u 60000 SNOTIFY yours",
        "RLOCK.MACQUIRE owner-u 60000 2 free k WAIT 0 KEEP 5 SNOTIFY yours",
    ] {
        let answer = u.ask(line);
        assert!(answer.starts_with("NOPERM "), "{line}: {answer}");
    }
    assert_eq!(server.queued("k"), 1);
    assert_eq!(server.ask("EXISTS free"), "0");
    assert_eq!(
        u.ask("RLOCK.ACQUIRE k owner-u 60000 WAIT 0 SNOTIFY mine:c"),
        "WAITING"
    );
    drop(contest);
}

#[test]
fn closed_connection_withdraws_its_requests() {
    let server = Server::start();
    let mut subscriber = listen(&server, "c");
    let contest = Contest::on(&server);
    let n = server.client();
    n.number("RLOCK.ACQUIRE held owner-n 60000 SNOTIFY c");
    n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 0 SNOTIFY c");
    n.close();
    server.await_queued("k", 1);
    eventually("nothing is left", || server.counter("watches") == 0);
    server.ask("RLOCK.FORCE held");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    assert_eq!(subscriber.messages(), [""; 0]);
}
