//! `top`, in a terminal and as JSON.

use std::time::{Duration, Instant};

use super::program::{Running, finished, rlock};
use super::server::{Admin, Asks};
use super::terminal::Terminal;
use rlock_testkit::{Server, eventually};

/// Two locks that are waited for, while the values live.
fn contended(server: &Server) -> [Admin; 2] {
    server.held_by("alpha", "ann");
    server.held_by("beta", "ann");
    let mut waiters = [server.admin(), server.admin()];
    waiters[0].enqueue("alpha", "bob", "");
    waiters[0].enqueue("beta", "cid", "");
    waiters[1].enqueue("beta", "dan", "");
    waiters
}

fn place(terminal: &Terminal, words: &str) -> Option<usize> {
    terminal
        .shows()
        .lines()
        .position(|line| line.contains(words))
}

#[test]
fn top_shows_locks_sorts_them_and_shows_a_queue() {
    let server = Server::start();
    let _waiters = contended(&server);
    let mut terminal = Terminal::start(&server, &["top", "--interval", "100ms"]);
    terminal.until_shows("alpha");
    terminal.until_shows("waiters 3  contended locks 2");
    assert!(
        place(&terminal, "beta") < place(&terminal, "alpha"),
        "{}",
        terminal.shows()
    );
    terminal.types("k");
    terminal.until_shows("by key");
    assert!(
        place(&terminal, "alpha") < place(&terminal, "beta"),
        "{}",
        terminal.shows()
    );
    // The selection stays with its lock, which is beta.
    terminal.types("\r");
    terminal.until_shows("dan");
    terminal.types("\u{1b}[A");
    terminal.until_shows("bob");
    terminal.until_hides("dan");
    terminal.types("\r");
    terminal.until_hides("bob");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
    eventually("the terminal is restored", || terminal.is_restored());
}

#[test]
fn long_names_are_cut_where_the_terminal_is_narrow() {
    let server = Server::start();
    let mut waiters = server.admin();
    // A letter of the second name is two columns wide.
    for name in ["x".repeat(70), "鎖".repeat(35)] {
        server.held_by(&name, &name);
        waiters.enqueue(&name, &format!("{name}-2"), "");
    }
    let mut terminal = Terminal::start_with(60, &server, &["top", "--interval", "100ms"]);
    for words in ["xxx…", "鎖鎖…", "deadlocks 0.0", "q quit", "k)ey"] {
        terminal.until_shows(words);
    }
    let of_locks = || terminal.shows_from(21);
    let cells = of_locks()
        .into_iter()
        .filter(|line| line.starts_with("exclusive"));
    assert_eq!(cells.count(), 2, "{}", terminal.shows());
    for key in ["k", "\u{1b}[F", "\r"] {
        terminal.types(key);
    }
    terminal.until_shows("鎖…: exclusive, 1 queued");
    let fence = place(&terminal, "FENCE").unwrap();
    let waiter = place(&terminal, "PLACE").unwrap();
    let shown = terminal.shows();
    let line = |number: usize| shown.lines().nth(number).unwrap();
    assert!(
        line(fence + 1).starts_with("鎖") && line(fence + 1).contains("… "),
        "{shown}"
    );
    assert!(line(fence + 1).ends_with("no"), "{shown}");
    assert!(line(waiter + 1).contains("鎖… "), "{shown}");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn every_way_to_quit_restores_the_terminal() {
    let server = Server::start();
    for (keys, code) in [("q", 0), ("\u{3}", 0), ("\u{1b}", 0), ("", 143)] {
        let mut terminal = Terminal::start(&server, &["top", "--interval", "100ms"]);
        terminal.until_shows("nobody waits for any lock");
        assert!(!terminal.is_restored());
        terminal.types(keys);
        if keys.is_empty() {
            terminal.signal("-TERM");
        }
        assert_eq!(terminal.finish(), code);
        eventually("the terminal is restored", || terminal.is_restored());
    }
}

#[test]
fn top_outlives_its_server_and_says_that_it_is_gone() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, &["top", "--interval", "100ms"]);
    terminal.until_shows("nobody waits for any lock");
    drop(server);
    terminal.until_shows("cannot reach the server");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn a_server_that_hangs_does_not_keep_it_from_quitting() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, &["top", "--interval", "100ms"]);
    terminal.until_shows("nobody waits for any lock");
    server.signal("-STOP");
    eventually("a question is not answered", || server.has_unread());
    terminal.types("q");
    let asked = Instant::now();
    assert_eq!(terminal.finish(), 0);
    server.signal("-CONT");
    // It waits 5 s for a reply.
    assert!(
        asked.elapsed() < Duration::from_secs(4),
        "{:?}",
        asked.elapsed()
    );
}

#[test]
fn paused_it_shows_nothing_new() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, &["top", "--interval", "100ms"]);
    terminal.until_shows("nobody waits for any lock");
    terminal.types("p");
    terminal.until_shows("paused");
    let _waiters = contended(&server);
    assert!(!terminal.shows().contains("alpha"));
    terminal.types("p");
    terminal.until_shows("alpha");
}

#[test]
fn it_ends_after_its_count() {
    let server = Server::start();
    let arguments = ["top", "--interval", "100ms", "--count", "2"];
    assert_eq!(Terminal::start(&server, &arguments).finish(), 0);
}

#[test]
fn without_a_terminal_it_wants_json() {
    let server = Server::start();
    let ended = finished(rlock(&server).arg("top"));
    ended.assert_code(2);
    ended.assert_says("`--json` prints lines instead");
}

#[test]
fn as_json_it_prints_a_line_for_each_interval() {
    let server = Server::start();
    let _waiters = contended(&server);
    let arguments = ["top", "--json", "--interval", "200ms", "--count", "3"];
    let begun = Instant::now();
    let running = Running::start(rlock(&server).args(arguments));
    let mut admin = server.admin();
    for _ in 0..50 {
        let _: u64 = admin.run("RLOCK.ACQUIRE free eve 1000");
        let _: u64 = admin.run("RLOCK.RELEASE free eve");
    }
    let ended = running.finish();
    ended.assert_code(0);
    assert!(begun.elapsed() >= Duration::from_millis(600));
    let samples: Vec<serde_json::Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(samples.len(), 3);
    for sample in &samples {
        assert_eq!(sample["counters"]["waiters"], 3);
        assert_eq!(sample["locks"][0]["key"], "beta");
        assert!(sample["interval_ms"].as_u64() > Some(0), "{sample}");
        assert!(sample["per_second"]["grants"].is_f64(), "{sample}");
    }
}

#[test]
fn json_without_count_ends_with_its_reader() {
    let server = Server::start();
    let arguments = ["top", "--json", "--interval", "100ms"];
    let mut running = Running::start(rlock(&server).args(arguments));
    running.close_stdout();
    let ended = running.finish();
    ended.assert_code(0);
    assert_eq!(ended.stderr, "");
}
