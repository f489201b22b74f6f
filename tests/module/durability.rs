//! The state of a lock after a restart, and what a server writes to disk.

use std::fs;

use redis::Parser;

use crate::contest::{Contest, wait_for};
use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::{eventually, text};

/// The commands in the server's append-only files.
pub(crate) fn appended(server: &Server) -> Vec<String> {
    let files = fs::read_dir(server.directory().join("appendonlydir")).expect("there is an AOF");
    let mut commands = Vec::new();
    for file in files
        .flatten()
        .filter(|file| file.path().to_string_lossy().ends_with(".incr.aof"))
    {
        let bytes = fs::read(file.path()).expect("it can be read");
        let (mut parser, mut rest) = (Parser::new(), &bytes[..]);
        while let Ok(command) = parser.parse_value(&mut rest) {
            commands.push(text(&command).trim_matches(['[', ']']).to_owned());
        }
    }
    commands
}

#[test]
fn append_only_file_has_plain_data_with_absolute_times() {
    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    let contest = Contest::on(&server);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 50000 REENTER");
    a.number("RLOCK.RENEW k owner-a 60000");
    a.ask("RLOCK.RELEASE k owner-a");
    let next = wait_for(&server, "k", "owner-c", 2);
    a.ask("RLOCK.RELEASE k owner-a ALL");
    contest.assert_handed_over();
    a.number("RLOCK.RENEW k owner-b 20");
    next.fence();
    a.number("RLOCK.ACQUIRE k2 owner-a 60000 NOTIFY c");
    a.ask("RLOCK.FORCE k2");
    a.ask("RLOCK.ACQUIRE k owner-d 60000 WAIT 5");
    let held = server.ask("HGETALL k");
    let end = server.ask("PEXPIRETIME k");

    let commands = appended(&server);
    for command in &commands {
        let name = command.split(' ').next().unwrap_or_default().to_uppercase();
        let plain = [
            "SELECT",
            "MULTI",
            "EXEC",
            "HSET",
            "HDEL",
            "PEXPIREAT",
            "DEL",
            "UNLINK",
        ];
        assert!(plain.contains(&name.as_str()), "{command}");
    }
    assert!(
        commands
            .iter()
            .any(|command| *command == format!("PEXPIREAT k {end}")),
        "{commands:#?}"
    );
    // Each hold is written with its end, in one transaction.
    for (place, command) in commands
        .iter()
        .enumerate()
        .filter(|(_, it)| it.starts_with("HSET k "))
    {
        let with_end = commands[place..]
            .iter()
            .take(4)
            .any(|next| next.starts_with("PEXPIREAT k "));
        assert!(
            with_end || command.starts_with("HSET k owner-a 1"),
            "{commands:#?}"
        );
    }

    server.kill();
    server.forget_module();
    server.start_again();
    assert_eq!(server.ask("HGETALL k"), held);
    assert_eq!(server.ask("PEXPIRETIME k"), end);
}

#[test]
fn no_acknowledged_lock_is_lost_by_a_crash() {
    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    let mut acknowledged = Vec::<(String, i64)>::new();
    for round in 0..5 {
        let a = server.client();
        for number in 0..200 {
            a.send(&format!("RLOCK.ACQUIRE k{round}-{number} owner-a 600000"));
        }
        // The server dies during these commands.
        for number in 0..20 * (round + 1) {
            acknowledged.push((format!("k{round}-{number}"), a.fence()));
        }
        server.kill();
        server.start_again();
        for (key, fence) in &acknowledged {
            let stored = server.ask(&format!("HGET {key} rlock:fence"));
            assert_eq!(stored, fence.to_string(), "{key}");
        }
    }
    let largest = acknowledged
        .iter()
        .map(|(_, fence)| *fence)
        .max()
        .expect("some were acquired");
    assert!(
        server
            .connection()
            .number("RLOCK.ACQUIRE another owner-a 1000")
            > largest
    );
}

#[test]
fn acknowledged_grant_of_a_waiter_survives_a_crash() {
    let mut server = Server::configured(&["appendonly yes", "appendfsync always"]);
    for _ in 0..5 {
        let contest = Contest::on(&server);
        contest.holder.send("RLOCK.RELEASE k owner-a");
        let fence = contest.assert_handed_over();
        server.kill();
        server.start_again();
        assert_eq!(
            server.connection().number("RLOCK.RENEW k owner-b 60000"),
            fence
        );
        server.ask("RLOCK.FORCE k");
    }
}

#[test]
fn hold_whose_lease_ended_while_the_server_was_down_is_over() {
    let mut server = Server::start();
    let a = server.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 300");
    assert_eq!(server.ask("SAVE"), "OK");
    eventually("the lease is over", || server.ask("EXISTS k") == "0");
    server.kill();
    server.start_again();
    assert_eq!(server.ask("RLOCK.RENEW k owner-a 60000"), "nil");
    assert!(server.connection().number("RLOCK.ACQUIRE k owner-b 60000") > fence);
}

#[test]
fn rewritten_append_only_file_has_the_holds() {
    let mut server = Server::configured(&["appendonly yes", "aof-use-rdb-preamble no"]);
    let contest = Contest::on(&server);
    server.ask("BGREWRITEAOF");
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    let fence = contest.assert_handed_over();
    let end = server.ask("PEXPIRETIME k");
    eventually("the file is rewritten", || {
        server.info("persistence", "aof_rewrite_in_progress") == "0"
            && server.info("persistence", "aof_rewrite_scheduled") == "0"
    });
    server.shut_down();
    server.start_again();
    assert_eq!(server.ask("PEXPIRETIME k"), end);
    assert_eq!(
        server.connection().number("RLOCK.RENEW k owner-b 60000"),
        fence
    );
}

#[test]
fn reloading_the_data_disturbs_no_queue() {
    let server = Server::start();
    let contest = Contest::on(&server);
    let mut subscriber = server.listen(&["c"]);
    contest
        .holder
        .number("RLOCK.ACQUIRE watched owner-a 60000 NOTIFY c");
    assert_eq!(server.ask("DEBUG RELOAD"), "OK");
    assert_eq!(server.queued("k"), 1);
    assert_eq!(
        contest.holder.number("RLOCK.RENEW k owner-a 60000"),
        contest.fence
    );
    assert_eq!(contest.holder.ask("RLOCK.RELEASE k owner-a"), "0");
    contest.assert_handed_over();
    assert_eq!(subscriber.messages(), [""; 0]);
}

#[test]
fn start_gives_earlier_holders_their_grace() {
    let setup = Setup::new()
        .line("rlock.startup-grace-ms 1500")
        .line("appendonly yes");
    let mut server = setup.start();
    let a = server.client();
    // The same after a start without data.
    assert_eq!(a.ask("RLOCK.ACQUIRE k owner-a 60000"), "nil");
    let fence = {
        a.send("RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
        assert!(a.reply_by_now().is_none());
        a.fence()
    };
    a.number("RLOCK.ACQUIRE k2 owner-a 60000");
    server.shut_down();
    server.start_again();
    let (a, b) = (server.client(), server.client());
    assert_eq!(a.number("RLOCK.RENEW k owner-a 60000"), fence);
    assert_eq!(a.number("RLOCK.ACQUIRE k owner-a 60000"), fence);
    assert_eq!(a.ask("RLOCK.RELEASE k owner-a ALL"), "0");
    a.ask("RLOCK.RELEASE k2 owner-a");
    assert_eq!(b.ask("RLOCK.ACQUIRE k owner-b 60000"), "nil");
    b.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    server.await_queued("k", 1);
    assert_eq!(server.ask("EXISTS k"), "0");
    assert!(b.fence() > fence);
}
