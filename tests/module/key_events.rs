//! The keyspace notifications of locks are those of the native commands.

use crate::contest::Contest;
use rlock_testkit::Server;

fn events(server: &Server, during: impl FnOnce()) -> Vec<String> {
    let mut subscriber = server.listen(&["__keyspace@0__:k"]);
    during();
    let messages = subscriber.messages().into_iter();
    messages
        .filter_map(|message| Some(message.split_once(": ")?.1.to_owned()))
        .collect()
}

#[test]
fn each_change_emits_the_events_of_its_native_commands() {
    let server = Server::configured(&["notify-keyspace-events KEA"]);
    let a = server.client();
    let acquired = events(&server, || _ = a.number("RLOCK.ACQUIRE k owner-a 60000"));
    assert_eq!(acquired, ["hset", "expire"]);
    let renewed = events(&server, || _ = a.number("RLOCK.RENEW k owner-a 70000"));
    assert_eq!(renewed, ["expire"]);
    let again = events(&server, || _ = a.number("RLOCK.ACQUIRE k owner-a 80000"));
    assert_eq!(again, ["expire"]);
    let enter = "RLOCK.ACQUIRE k owner-a 90000 REENTER";
    let entered = events(&server, || _ = a.number(enter));
    assert_eq!(entered, ["hset", "expire"]);
    let left = events(&server, || _ = a.ask("RLOCK.RELEASE k owner-a"));
    assert_eq!(left, ["hset"]);
    let released = events(&server, || _ = a.ask("RLOCK.RELEASE k owner-a"));
    assert_eq!(released, ["del"]);
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let forced = events(&server, || _ = a.ask("RLOCK.FORCE k"));
    assert_eq!(forced, ["del"]);
}

#[test]
fn command_without_a_change_emits_no_event() {
    let server = Server::configured(&["notify-keyspace-events KEA"]);
    let contest = Contest::on(&server);
    let seen = events(&server, || {
        let c = server.client();
        c.ask("RLOCK.ACQUIRE k owner-c 60000");
        c.ask("RLOCK.RENEW k owner-c 60000");
        c.ask("RLOCK.RELEASE k owner-c");
        c.ask("RLOCK.CANCEL k owner-c");
        c.ask("RLOCK.INFO k");
        c.ask("RLOCK.ACQUIRE k owner-c 60000 WAIT 1");
    });
    assert_eq!(seen, [""; 0]);
    drop(contest);
}

#[test]
fn hand_off_emits_the_events_of_the_new_hold() {
    let server = Server::configured(&["notify-keyspace-events KEA"]);
    let contest = Contest::on(&server);
    contest.holder.number("RLOCK.RENEW k owner-a 50000");
    let seen = events(&server, || {
        contest.holder.ask("RLOCK.RELEASE k owner-a");
        contest.assert_handed_over();
    });
    // The key always exists in between.
    for event in ["hset", "hdel", "expire"] {
        assert!(seen.iter().any(|it| it == event), "{seen:?}");
    }
    assert!(!seen.iter().any(|it| it == "del"), "{seen:?}");
}

#[test]
fn shared_holds_emit_the_events_of_their_native_commands() {
    let server = Server::configured(&["notify-keyspace-events KEA"]);
    let a = server.client();
    let give = |line: &str| events(&server, || _ = a.ask(line));
    assert_eq!(
        give("RLOCK.ACQUIRE k owner-a 60000 SHARED"),
        ["hset", "expire"]
    );
    assert_eq!(
        give("RLOCK.ACQUIRE k owner-b 90000 SHARED"),
        ["hset", "expire"]
    );
    // The key exists as long as its longest lease.
    assert_eq!(give("RLOCK.ACQUIRE k owner-c 50000 SHARED"), ["hset"]);
    assert_eq!(give("RLOCK.RENEW k owner-a 60000"), ["hset"]);
    assert_eq!(give("RLOCK.RELEASE k owner-c"), ["hdel"]);
    assert_eq!(give("RLOCK.RELEASE k owner-b"), ["hdel", "expire"]);
    // Another lease, as both may be asked for in the same millisecond.
    let upgraded = give("RLOCK.ACQUIRE k owner-a 70000");
    assert_eq!(upgraded, ["hset", "hdel", "expire"]);
    assert_eq!(give("RLOCK.DOWNGRADE k owner-a"), ["hset"]);
    assert_eq!(give("RLOCK.RELEASE k owner-a ALL"), ["del"]);
    for refused in [
        "RLOCK.DOWNGRADE k owner-a",
        "RLOCK.MRENEW owner-a 60000 1 k",
        "RLOCK.MRELEASE owner-a 1 k",
    ] {
        assert_eq!(give(refused), [""; 0], "{refused}");
    }
    assert_eq!(
        give("RLOCK.MACQUIRE owner-a 60000 2 k k2"),
        ["hset", "expire"]
    );
    assert_eq!(give("RLOCK.MRENEW owner-a 70000 2 k2 k"), ["expire"]);
    assert_eq!(give("RLOCK.MRELEASE owner-a 2 k2 k"), ["del"]);
}
