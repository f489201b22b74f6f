//! Shared holders that ask for exclusive mode, and what becomes of them when they go.

use crate::client::{Client, eventually, request};
use crate::contest::wait_for;
use crate::server::Server;

/// `owner-a` and `owner-b` hold `k` together, and `owner-a` is blocked until it is alone.
struct Upgrade {
    upgrader: Client,
    other: Client,
    fence: i64,
}

impl Upgrade {
    #[track_caller]
    fn on(server: &Server) -> Self {
        let (upgrader, other) = (server.client(), server.client());
        upgrader.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
        let fence = other.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
        upgrader.send("RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
        server.await_queued("k", 1);
        Self {
            upgrader,
            other,
            fence,
        }
    }
}

#[test]
fn upgrade_is_granted_within_the_release_of_the_other_before_all_who_queue() {
    let server = Server::start();
    let upgrade = Upgrade::on(&server);
    let writer = wait_for(&server, "k", "owner-w", 2);
    let reader = server.client();
    reader.send("RLOCK.ACQUIRE k owner-r 60000 SHARED WAIT 0");
    server.await_queued("k", 3);
    assert_eq!(
        server.lock("k").waiting(),
        ["owner-a", "owner-w", "owner-r"]
    );
    assert_eq!(upgrade.other.ask("RLOCK.RELEASE k owner-b"), "0");
    assert_eq!(server.ask("HGET k owner-a"), "1");
    assert_eq!(server.ask("HLEN k"), "2");
    assert!(upgrade.upgrader.fence() > upgrade.fence);
    assert!(writer.reply_by_now().is_none());
    assert_eq!(upgrade.upgrader.ask("RLOCK.RELEASE k owner-a"), "0");
    writer.fence();
    assert!(reader.reply_by_now().is_none());
    assert_eq!(writer.ask("RLOCK.RELEASE k owner-w"), "0");
    reader.fence();
}

#[test]
fn killed_upgrader_keeps_its_shared_hold() {
    let server = Server::start();
    let Upgrade {
        upgrader, other, ..
    } = Upgrade::on(&server);
    let writer = wait_for(&server, "k", "owner-w", 2);
    assert_eq!(
        server.ask(&format!("CLIENT KILL ID {}", upgrader.id())),
        "1"
    );
    server.await_queued("k", 1);
    assert_eq!(server.owners("k"), ["owner-a", "owner-b"]);
    assert_eq!(other.ask("RLOCK.RELEASE k owner-b"), "0");
    assert_eq!(server.owners("k"), ["owner-a"]);
    assert!(writer.reply_by_now().is_none());
    assert_eq!(other.ask("RLOCK.RELEASE k owner-a"), "0");
    writer.fence();
}

#[test]
fn upgrader_whose_wait_is_ended_by_others_keeps_its_shared_hold() {
    let server = Server::start();
    let upgrade = Upgrade::on(&server);
    assert_eq!(server.ask("RLOCK.CANCEL k owner-a"), "1");
    assert_eq!(upgrade.upgrader.answer(), "nil");
    assert_eq!(server.owners("k"), ["owner-a", "owner-b"]);
    if server.is_at_least((7, 4), (8, 0)) {
        upgrade
            .upgrader
            .send("RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
        server.await_queued("k", 1);
        let unblock = format!("CLIENT UNBLOCK {}", upgrade.upgrader.id());
        assert_eq!(server.ask(&unblock), "1");
        assert_eq!(upgrade.upgrader.answer(), "nil");
        assert_eq!(server.owners("k"), ["owner-a", "owner-b"]);
    }
    assert_eq!(
        upgrade
            .upgrader
            .ask("RLOCK.ACQUIRE k owner-a 60000 WAIT 20"),
        "nil"
    );
    assert_eq!(server.owners("k"), ["owner-a", "owner-b"]);
    assert_eq!(server.hash("k")["owner-a"], "1");
}

#[test]
fn whole_hold_of_an_upgrader_that_is_killed_as_it_is_granted_is_passed_on() {
    let server = Server::start();
    for round in 1..=20 {
        let upgrade = Upgrade::on(&server);
        let next = wait_for(&server, "k", "owner-w", 2);
        let id = upgrade.upgrader.id().to_string();
        let turn = [
            request(&["RLOCK.RELEASE", "k", "owner-b"]),
            request(&["CLIENT", "KILL", "ID", &id]),
        ];
        upgrade.other.send_bytes(&turn.concat());
        assert_eq!(upgrade.other.answer(), "0");
        next.fence();
        assert_eq!(server.owners("k"), ["owner-w"]);
        assert_eq!(server.counter("undelivered_grants"), round);
        assert_eq!(next.ask("RLOCK.RELEASE k owner-w"), "0");
        eventually("the lock is free", || server.ask("EXISTS k") == "0");
    }
}

#[test]
fn upgrade_by_channel_is_told_or_skipped() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let (a, b) = (server.client(), server.client());
    a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
    b.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
    let upgrade = "RLOCK.ACQUIRE k owner-a 60000 WAIT 0 NOTIFY c";
    assert_eq!(a.ask(upgrade), "WAITING");
    assert_eq!(b.ask("RLOCK.RELEASE k owner-b"), "0");
    let fence = server.hash("k")["rlock:fence"].clone();
    assert_eq!(heard.message(), format!("grant {fence} owner-a k"));
    assert_eq!(server.lock("k").mode, "exclusive");
}

#[test]
fn whole_hold_of_an_upgrader_that_nobody_can_tell_is_passed_on() {
    let server = Server::start();
    let mut unlocks = server.listen_to_unlocks();
    let (a, b) = (server.client(), server.client());
    let ask_unheard = || {
        a.number("RLOCK.ACQUIRE k owner-a 60000 SHARED");
        b.number("RLOCK.ACQUIRE k owner-b 60000 SHARED");
        let upgrade = "RLOCK.ACQUIRE k owner-a 60000 WAIT 0 NOTIFY unheard-of";
        assert_eq!(a.ask(upgrade), "WAITING");
    };
    ask_unheard();
    assert_eq!(b.ask("RLOCK.RELEASE k owner-b"), "0");
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(unlocks.messages(), ["redisson_lock__channel:{k}: 0"]);
    ask_unheard();
    let writer = wait_for(&server, "k", "owner-w", 2);
    assert_eq!(b.ask("RLOCK.RELEASE k owner-b"), "0");
    writer.fence();
    assert_eq!(unlocks.messages(), [""; 0]);
    assert_eq!(server.owners("k"), ["owner-w"]);
    assert_eq!(a.ask("RLOCK.RENEW k owner-a 60000"), "nil");
}

#[test]
fn force_takes_all_holds_and_gives_the_upgrader_the_first_turn() {
    let server = Server::start();
    let upgrade = Upgrade::on(&server);
    let writer = wait_for(&server, "k", "owner-w", 2);
    assert_eq!(server.ask("RLOCK.FORCE k"), "2");
    assert!(upgrade.upgrader.fence() > upgrade.fence);
    // Nothing is left of its shared hold.
    assert_eq!(server.hash("k")["owner-a"], "1");
    assert_eq!(upgrade.upgrader.ask("RLOCK.RELEASE k owner-a"), "0");
    writer.fence();
    assert_eq!(server.counter("force_releases"), 2);
}

#[test]
fn upgrade_goes_before_a_request_for_several_locks() {
    let server = Server::start();
    let upgrade = Upgrade::on(&server);
    let several = server.client();
    several.send("RLOCK.MACQUIRE owner-m 60000 2 free k WAIT 0");
    server.await_queued("k", 2);
    assert_eq!(server.ask("EXISTS free"), "0");
    upgrade.other.ask("RLOCK.RELEASE k owner-b");
    upgrade.upgrader.fence();
    assert!(several.reply_by_now().is_none());
    assert_eq!(upgrade.upgrader.ask("RLOCK.RELEASE k owner-a ALL"), "0");
    several.fence();
    assert_eq!(server.owners("free"), ["owner-m"]);
}

#[test]
fn one_of_two_upgraders_is_refused_whatever_the_settings() {
    let server = Server::start();
    for detection in ["yes", "no"] {
        server.ask(&format!("CONFIG SET rlock.deadlock-detection {detection}"));
        let upgrade = Upgrade::on(&server);
        let before = server.hash("k");
        for line in [
            "RLOCK.ACQUIRE k owner-b 60000 WAIT 0",
            "RLOCK.ACQUIRE k owner-b 60000 WAIT 1 KEEP 5 REENTER",
            "RLOCK.ACQUIRE k owner-b 60000 WAIT 0 NOTIFY c",
        ] {
            let answer = upgrade.other.ask(line);
            assert!(answer.starts_with("DEADLOCK "), "{line}: {answer}");
            for named in ["'k'", "'owner-a'", "'owner-b'"] {
                assert!(answer.contains(named), "{answer} names {named}");
            }
        }
        assert_eq!(upgrade.other.ask("RLOCK.ACQUIRE k owner-b 60000"), "nil");
        assert_eq!(server.hash("k"), before);
        assert_eq!(server.queued("k"), 1);
        assert_eq!(upgrade.other.ask("RLOCK.RELEASE k owner-b"), "0");
        upgrade.upgrader.fence();
        server.ask("RLOCK.FORCE k");
    }
    assert_eq!(server.counter("deadlocks"), 6);
}

#[test]
fn key_of_an_upgrade_removed_by_others_leaves_it_an_ordinary_request() {
    let server = Server::start();
    for remove in ["DEL k", "FLUSHALL", "RENAME k k2", "PEXPIRE k 5"] {
        let upgrade = Upgrade::on(&server);
        let writer = wait_for(&server, "k", "owner-w", 2);
        server.client().ask(remove);
        assert!(upgrade.upgrader.fence() > upgrade.fence, "{remove}");
        assert_eq!(server.hash("k")["owner-a"], "1", "{remove}");
        assert_eq!(upgrade.upgrader.ask("RLOCK.RELEASE k owner-a"), "0");
        writer.fence();
        server.ask("FLUSHALL");
    }
}
