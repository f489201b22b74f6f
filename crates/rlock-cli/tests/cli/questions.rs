//! `info`, `list` and `force`, as text and as JSON.

use serde_json::{Value, json};

use super::program::{Finished, finished, rlock};
use super::server::{Admin, Asks};
use super::terminal::Terminal;
use rlock_testkit::{Server, eventually};

fn ask(server: &Server, arguments: &[&str]) -> Finished {
    let ended = finished(rlock(server).args(arguments));
    ended.assert_code(0);
    assert_eq!(ended.stderr, "");
    ended
}

/// A lock that one owner holds and two wait for, while the value lives.
fn contended(server: &Server) -> (u64, Admin) {
    let fence = server.held_by("k", "ann");
    let mut waiters = server.admin();
    waiters.enqueue("k", "bob", "");
    waiters.enqueue("k", "cid", "SHARED ");
    (fence, waiters)
}

#[test]
fn info_shows_holders_and_queue() {
    let server = Server::start();
    let (fence, _waiters) = contended(&server);
    let words = ask(&server, &["info", "k"]).stdout;
    let lines: Vec<_> = words.lines().collect();
    assert_eq!(lines[0], format!("k: exclusive, fence {fence}, 2 queued"));
    assert!(
        lines[2].starts_with("HOLDER") && lines[3].starts_with("ann"),
        "{words}"
    );
    assert!(
        lines[5].contains("WAITER") && lines[6].contains("1  bob     exclusive"),
        "{words}"
    );
    assert!(lines[7].contains("2  cid     shared"), "{words}");
}

#[test]
fn info_as_json_has_every_field() {
    let server = Server::start();
    let (fence, _waiters) = contended(&server);
    let info = ask(&server, &["info", "k", "--json"]).json();
    assert_eq!(info["key"], "k");
    assert_eq!(
        (&info["mode"], &info["fence"]),
        (&json!("exclusive"), &json!(fence))
    );
    let holder = &info["holders"][0];
    assert!((1..=600_000).contains(&holder["lease_left_ms"].as_u64().unwrap()));
    let mut known = holder.clone();
    known.as_object_mut().unwrap().remove("lease_left_ms");
    let expected = json!({"owner": "ann", "count": 1, "permits": 1, "fence": fence, "bound": false, "value": null});
    assert_eq!(known, expected);
    assert_eq!(info["queued"], 2);
    let waiter = &info["waiters"][1];
    assert_eq!(
        (&waiter["owner"], &waiter["mode"]),
        (&json!("cid"), &json!("shared"))
    );
    for field in ["waited_ms", "wait_left_ms", "client_id"] {
        assert!(waiter[field].is_u64(), "{waiter}");
    }
}

#[test]
fn kept_places_are_shown_as_such() {
    let server = Server::start();
    server.held_by("k", "ann");
    let (mut gone, mut waiting, mut admin) = (server.admin(), server.admin(), server.admin());
    gone.enqueue("k", "bob", "KEEP 600000 ");
    waiting.enqueue("k", "cid", "");
    drop(gone);
    eventually("bob's place is kept", || admin.gauge("places_kept") == 1);
    let words = ask(&server, &["info", "k"]).stdout;
    assert!(words.contains("2 queued"), "{words}");
    let line = words.lines().find(|line| line.contains("bob")).unwrap();
    assert!(
        line.contains("kept 9m") && line.ends_with("none"),
        "{words}"
    );
    let info = ask(&server, &["info", "k", "--json"]).json();
    let [kept, waits] = [&info["waiters"][0], &info["waiters"][1]];
    assert!(kept["kept_left_ms"].as_u64() > Some(500_000), "{info}");
    assert!(kept["client_id"].is_null() && kept["wait_left_ms"].is_null());
    assert!(waits["kept_left_ms"].is_null() && waits["client_id"].is_u64());
    let locks = ask(&server, &["list", "--json"]).json();
    assert_eq!(locks[0]["waiters"], 2);
    let mut terminal = Terminal::start(&server, &["top", "--interval", "100ms"]);
    terminal.until_shows("2 waiting       1 contended     1 kept");
    terminal.types("\r");
    terminal.until_shows("kept 9m");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn info_of_a_free_lock_says_so() {
    let server = Server::start();
    assert_eq!(ask(&server, &["info", "k"]).stdout, "k: free, 0 queued\n");
    let info = ask(&server, &["info", "k", "--json"]).json();
    let expected = json!({"key": "k", "mode": "free", "fence": null, "holders": [], "queued": 0, "waiters": []});
    assert_eq!(info, expected);
}

#[test]
fn a_key_cannot_control_the_terminal() {
    let server = Server::start();
    let shown = ask(&server, &["info", "a\u{1b}[31mb"]).stdout;
    assert_eq!(shown, "a\\u{1b}[31mb: free, 0 queued\n");
}

#[test]
fn list_has_the_most_contended_lock_first() {
    let server = Server::start();
    let (_, _waiters) = contended(&server);
    server.held_by("other", "ann");
    let mut waiter = server.admin();
    waiter.enqueue("other", "dan", "");
    server.held_by("lonely", "ann");
    let words = ask(&server, &["list"]).stdout;
    let keys: Vec<_> = words
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(keys, ["KEY", "k", "other"]);
    let locks = ask(&server, &["list", "--json", "--count", "1"]).json();
    assert_eq!(locks.as_array().unwrap().len(), 1);
    assert_eq!(
        (&locks[0]["key"], &locks[0]["waiters"]),
        (&json!("k"), &json!(2))
    );
    assert_eq!(
        (&locks[0]["mode"], &locks[0]["holders"]),
        (&json!("exclusive"), &json!(1))
    );
    assert!(locks[0]["oldest_wait_ms"].is_u64());
}

#[test]
fn list_of_a_quiet_server_is_empty() {
    let server = Server::start();
    assert_eq!(
        ask(&server, &["list"]).stdout,
        "nobody waits for any lock\n"
    );
    assert_eq!(
        ask(&server, &["list", "--json"]).json(),
        Value::Array(vec![])
    );
}

#[test]
fn force_with_yes_removes_the_holder() {
    let server = Server::start();
    server.held_by("k", "ann");
    let removed = ask(&server, &["force", "k", "--yes"]).stdout;
    assert_eq!(removed, "k: 1 holder removed\n");
    assert!(!server.admin().is_held("k"));
    let removed = ask(&server, &["force", "k", "--yes", "--json"]).json();
    assert_eq!(removed, json!({"key": "k", "removed": 0}));
}

#[test]
fn force_with_a_fence_ends_only_its_hold() {
    let server = Server::start();
    server.held_by("k", "ann");
    let fence = server.admin().fence("k");
    let later = (fence + 1).to_string();
    let removed = ask(&server, &["force", "k", "--yes", "--fence", &later]).stdout;
    assert_eq!(removed, format!("k: no hold has the fence {later}\n"));
    let removed = ask(
        &server,
        &["force", "k", "--yes", "--fence", &fence.to_string()],
    )
    .stdout;
    assert_eq!(removed, "k: 1 holder removed\n");
    let ended = finished(rlock(&server).args(["force", "k", "--yes", "--fence", "0"]));
    ended.assert_code(2);
}

/// The lock has passed to another owner between question and answer.
#[test]
fn force_ends_only_holds_that_it_has_shown() {
    let server = Server::start();
    server.held_by("k", "ann");
    let mut terminal = Terminal::start(&server, &["force", "k"]);
    terminal.until_shows("Type `yes`");
    let _: redis::Value = server.admin().run("RLOCK.RELEASE k ann ALL");
    server.held_by("k", "bob");
    terminal.types("yes\n");
    terminal.until_shows("k: the holders shown no longer held it");
    assert_eq!(terminal.finish(), 0);
    assert!(server.admin().is_held("k"));
}

/// For each hold the server would look at all.
#[test]
fn force_ends_many_holds_with_one_command() {
    let server = Server::start();
    let mut admin = server.admin();
    for number in 0..101 {
        let _: i64 = admin.run(&format!("RLOCK.ACQUIRE k h{number} 600000 SHARED"));
    }
    let mut terminal = Terminal::start(&server, &["force", "k"]);
    terminal.until_shows("Type `yes`");
    terminal.types("yes\n");
    terminal.until_shows("k: 101 holders removed");
    assert_eq!(terminal.finish(), 0);
    let stats: String = admin.run("INFO commandstats");
    assert!(stats.contains("cmdstat_rlock.force:calls=1,"), "{stats}");
}

/// Its time to live was removed, so it is not a lock any more.
#[test]
fn force_deletes_what_is_left_of_a_lock() {
    let server = Server::start();
    server.held_by("k", "ann");
    let _: i64 = server.admin().run("PERSIST k");
    let mut terminal = Terminal::start(&server, &["force", "k"]);
    terminal.until_shows("RLOCK.FORCE deletes a hash that has a field");
    terminal.until_shows("End every hold of k? Type `yes`");
    terminal.types("yes\n");
    terminal.until_shows("k: 1 holder removed");
    assert_eq!(terminal.finish(), 0);
    assert_eq!(server.admin().run::<i64>("EXISTS k"), 0);
}

/// Holds of Redisson have no fence.
#[test]
fn force_tells_holds_without_a_fence_by_their_owners() {
    let server = Server::start();
    let mut admin = server.admin();
    let mut terminals = ["ann", "bob"].map(|shown| {
        let _: i64 = admin.run("DEL k");
        let _: i64 = admin.run(&format!("HSET k {shown} 1"));
        let _: i64 = admin.run("PEXPIRE k 600000");
        let terminal = Terminal::start(&server, &["force", "k"]);
        terminal.until_shows("Type `yes`");
        terminal
    });
    for (terminal, is_held) in terminals.iter_mut().zip([true, false]) {
        terminal.types("yes\n");
        assert_eq!(terminal.finish(), 0);
        assert_eq!(admin.is_held("k"), is_held);
    }
}

#[test]
fn force_with_queue_leaves_the_lock_to_nobody() {
    let server = Server::start();
    server.held_by("k", "ann");
    let mut admin = server.admin();
    let _: redis::Value = admin.run("RLOCK.ACQUIRE k bob 60000 WAIT 0 NOTIFY nobody KEEP 60000");
    let removed = ask(&server, &["force", "k", "--yes", "--queue"]).stdout;
    assert_eq!(removed, "k: 1 holder removed, queue ended\n");
    assert!(!server.admin().is_held("k"));
    assert_eq!(admin.gauge("waiters"), 0);

    // A lock that nobody holds may have places in its queue.
    server.held_by("k", "ann");
    let _: redis::Value = admin.run("RLOCK.ACQUIRE k bob 60000 WAIT 1 NOTIFY nobody KEEP 60000");
    let _: redis::Value = admin.run("RLOCK.RELEASE k ann ALL");
    assert!(!admin.is_held("k"));
    assert_eq!(admin.gauge("waiters"), 1);
    let removed = ask(&server, &["force", "k", "--yes", "--queue"]).stdout;
    assert_eq!(removed, "k: nobody held it, queue ended\n");
    assert_eq!(admin.gauge("waiters"), 0);
}

#[test]
fn force_without_a_terminal_and_without_yes_is_refused() {
    let server = Server::start();
    server.held_by("k", "ann");
    let ended = finished(rlock(&server).args(["force", "k"]));
    ended.assert_code(2);
    ended.assert_says("--yes");
    assert!(server.admin().is_held("k"));
}

#[test]
fn force_shows_the_holder_and_asks() {
    let server = Server::start();
    server.held_by("k", "ann");
    for (answer, code) in [("no\n", 1), ("\n", 1), ("yes\n", 0)] {
        assert!(server.admin().is_held("k"));
        let mut terminal = Terminal::start(&server, &["force", "k"]);
        terminal.until_shows("Type `yes`");
        terminal.until_shows("ann");
        terminal.types(answer);
        assert_eq!(terminal.finish(), code);
    }
    assert!(!server.admin().is_held("k"));
}
