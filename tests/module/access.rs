//! The rights that each command needs.

use crate::contest::Contest;
use crate::documented::{COMMANDS, information};
use rlock_testkit::Server;
use rlock_testkit::client::{Client, text};

/// A connection as a user with these rights.
fn user(server: &Server, rights: &str) -> Client {
    assert_eq!(
        server.ask(&format!("ACL SETUSER u reset on nopass {rights}")),
        "OK"
    );
    let client = server.client();
    assert_eq!(client.ask("AUTH u any"), "OK");
    client
}

#[track_caller]
fn denied(client: &Client, line: &str) {
    let answer = client.ask(line);
    assert!(answer.starts_with("NOPERM "), "{line}: {answer}");
}

#[test]
fn key_permission_is_required_and_nothing_changes_without_it() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let u = user(&server, "+@all ~mine:* &*");
    for line in [
        "RLOCK.ACQUIRE k owner-a 60000",
        "RLOCK.ACQUIRE k owner-u 60000 WAIT 0",
        "RLOCK.ACQUIRE free owner-u 60000",
        "RLOCK.RENEW k owner-a 60000",
        "RLOCK.RELEASE k owner-a",
        "RLOCK.CANCEL k owner-b",
        "RLOCK.DOWNGRADE k owner-a",
        "RLOCK.FORCE k",
        "RLOCK.INFO k",
        "RLOCK.MACQUIRE owner-u 60000 2 mine:k k",
        "RLOCK.MACQUIRE owner-u 60000 2 k mine:k WAIT 0",
        "RLOCK.MRENEW owner-a 60000 2 mine:k k",
        "RLOCK.MRELEASE owner-a 2 mine:k k ALL",
    ] {
        denied(&u, line);
    }
    assert_eq!(server.queued("k"), 1);
    assert_eq!(server.ask("HGET k owner-a"), "1");
    assert_eq!(server.ask("DBSIZE"), "1");
    u.number("RLOCK.ACQUIRE mine:k owner-u 60000 WAIT 0");
    u.number("RLOCK.MACQUIRE owner-v 60000 2 mine:1 mine:2");
    drop(contest);
}

#[test]
fn read_permission_suffices_for_info_but_not_for_acquire() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let u = user(&server, "+@all %R~k &*");
    assert!(u.ask("RLOCK.INFO k").contains("owner-a"));
    denied(&u, "RLOCK.ACQUIRE k owner-u 60000");
    denied(&u, "RLOCK.RENEW k owner-a 60000");
    denied(&u, "RLOCK.RELEASE k owner-a");
    denied(&u, "RLOCK.FORCE k");
    denied(&u, "RLOCK.DOWNGRADE k owner-a");
    let u = user(&server, "+@all %R~k %W~w %RW~rw &*");
    for line in [
        "RLOCK.MACQUIRE owner-u 60000 2 rw k",
        "RLOCK.MACQUIRE owner-u 60000 2 rw w",
        "RLOCK.MRENEW owner-u 60000 1 k",
        "RLOCK.MRELEASE owner-u 1 k",
        "RLOCK.ACQUIRE w owner-u 60000 SHARED",
        "RLOCK.INFO w",
    ] {
        denied(&u, line);
    }
    // Withdrawing a request reads nothing from the key.
    assert_eq!(u.ask("RLOCK.CANCEL w owner-u"), "0");
    u.number("RLOCK.MACQUIRE owner-u 60000 1 rw");
    assert_eq!(server.ask("DBSIZE"), "2");
    drop(contest);
}

#[test]
fn command_permission_is_required() {
    let server = Server::start();
    let u = user(&server, "~* &* -@all +rlock.acquire +rlock.info");
    u.number("RLOCK.ACQUIRE k owner-u 60000");
    denied(&u, "RLOCK.RELEASE k owner-u");
    denied(&u, "RLOCK.FORCE k");
    assert_eq!(server.ask("HGET k owner-u"), "1");
}

#[test]
fn channel_permission_is_required_only_for_notify() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let u = user(&server, "+@all ~* resetchannels &mine:*");
    denied(&u, "RLOCK.ACQUIRE k owner-u 60000 WAIT 0 NOTIFY yours");
    denied(&u, "RLOCK.ACQUIRE free owner-u 60000 NOTIFY yours");
    denied(&u, "RLOCK.ACQUIRE free owner-u 60000 WAIT 0 NOTIFY yours");
    denied(
        &u,
        "RLOCK.MACQUIRE owner-u 60000 2 free k WAIT 0 NOTIFY yours",
    );
    denied(&u, "RLOCK.MACQUIRE owner-u 60000 1 free NOTIFY yours");
    denied(
        &u,
        "RLOCK.ACQUIRE free owner-u 60000 SHARED BIND 0 NOTIFY yours",
    );
    assert_eq!(server.queued("k"), 1);
    assert_eq!(server.ask("EXISTS free"), "0");
    assert_eq!(server.counter("watches"), 0);
    assert_eq!(
        u.ask("RLOCK.ACQUIRE k owner-u 60000 WAIT 0 NOTIFY mine:c"),
        "WAITING"
    );
    // A wait, and a release with its unlock message, need no right to a channel.
    u.send("RLOCK.ACQUIRE k owner-v 60000 WAIT 0");
    server.await_queued("k", 3);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
    contest.waiter.ask("RLOCK.RELEASE k owner-b");
    u.fence();
    let mut subscriber = server.listen_to_unlocks();
    assert_eq!(u.ask("RLOCK.RELEASE k owner-v"), "0");
    assert_eq!(subscriber.message(), "0");
}

#[test]
fn categories_match_what_the_commands_do() {
    let server = Server::start();
    // Modules cannot define categories in Redis 7.0.
    if !server.is_at_least((7, 2), (7, 2)) {
        return;
    }
    let has = |command: &str, category: &str| {
        let categories = text(&information(&server, command)[6]);
        let mut categories = categories.trim_matches(['[', ']']).split(' ');
        categories.any(|name| name == category)
    };
    for command in COMMANDS {
        let is_dangerous = matches!(command, "rlock.force" | "rlock.list");
        assert_eq!(has(command, "@dangerous"), is_dangerous, "{command}");
    }
    for command in [
        "rlock.acquire",
        "rlock.renew",
        "rlock.release",
        "rlock.downgrade",
        "rlock.macquire",
        "rlock.mrenew",
        "rlock.mrelease",
        "rlock.force",
    ] {
        assert!(has(command, "@write"), "{command}");
    }
    for command in ["rlock.info", "rlock.list"] {
        assert!(has(command, "@read"), "{command}");
    }
    for command in ["rlock.acquire", "rlock.macquire"] {
        assert!(has(command, "@blocking"), "{command}");
    }
    // These places count for the user's limit.
    let u = user(&server, "~* &* +@all -@dangerous");
    u.number("RLOCK.MACQUIRE owner-u 60000 1 k");
    denied(&u, "RLOCK.FORCE k");
    denied(&u, "RLOCK.LIST");
}

#[test]
fn user_at_its_limit_takes_no_places_of_other_users() {
    let server = Server::start();
    server.ask("CONFIG SET rlock.max-places-per-user 3");
    for user in ["shop", "bank"] {
        server.ask(&format!("ACL SETUSER {user} on >x ~* &* +@all"));
    }
    let (shop, bank, holder) = (server.client(), server.client(), server.client());
    assert_eq!(shop.ask("AUTH shop x"), "OK");
    assert_eq!(bank.ask("AUTH bank x"), "OK");
    holder.ask("RLOCK.ACQUIRE k h 60000");
    for owner in 0..3 {
        let kept = shop.ask(&format!("RLOCK.ACQUIRE k s{owner} 60000 WAIT 1 KEEP 60000"));
        assert_eq!(kept, "nil");
    }
    let full = shop.ask("RLOCK.ACQUIRE k s3 60000 WAIT 0 NOTIFY c");
    assert!(
        full.contains("QUEUEFULL") && full.contains("max-places-per-user"),
        "{full}"
    );
    assert_eq!(
        bank.ask("RLOCK.ACQUIRE k b0 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    // A place counts for the user who last asked for it.
    assert_eq!(
        bank.ask("RLOCK.ACQUIRE k s0 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    assert_eq!(
        shop.ask("RLOCK.ACQUIRE k s3 60000 WAIT 0 NOTIFY c"),
        "WAITING"
    );
    assert!(
        shop.ask("RLOCK.ACQUIRE k s4 60000 WAIT 0 NOTIFY c")
            .contains("QUEUEFULL")
    );
    // So two users that take over each other's places have no more places than both limits allow.
    let refused = shop.ask("RLOCK.ACQUIRE k b0 60000 WAIT 0 NOTIFY c");
    assert!(refused.contains("QUEUEFULL"), "{refused}");
    let own = "RLOCK.ACQUIRE k s3 60000 WAIT 0 NOTIFY c";
    assert_eq!(shop.ask(own), "WAITING");
    let place = server.lock("k").waiter("b0").and_then(|it| it.client_id);
    assert_eq!(place, Some(bank.id()), "it still counts for the same user");
}
