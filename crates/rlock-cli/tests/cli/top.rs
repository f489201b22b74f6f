//! `top`, in a terminal and as JSON.

use std::time::{Duration, Instant};

use super::program::{Running, finished, rlock};
use super::server::Asks;
use super::terminal::Terminal;
use rlock_testkit::{Server, eventually};

/// Two locks with waiters.
fn contended(server: &Server) {
    server.held_by("alpha", "ann");
    server.held_by("beta", "ann");
    server.waited_for_by("alpha", "bob");
    server.waited_for_by("beta", "cid");
    server.waited_for_by("beta", "dan");
}

const EVERY: [&str; 3] = ["top", "--interval", "100ms"];

fn top(server: &Server) -> Terminal {
    Terminal::start(server, &EVERY)
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
    contended(&server);
    let mut terminal = top(&server);
    terminal.until_shows("alpha");
    terminal.until_shows("3 waiting       2 contended");
    assert!(
        place(&terminal, "beta") < place(&terminal, "alpha"),
        "{}",
        terminal.shows()
    );
    terminal.types("n");
    terminal.until_shows("by name");
    assert!(
        place(&terminal, "alpha") < place(&terminal, "beta"),
        "{}",
        terminal.shows()
    );
    // The selection stays with its lock, which is beta.
    terminal.types("\r");
    terminal.until_shows("dan");
    terminal.types("\u{1b}[D");
    terminal.until_shows("alpha: exclusive, 1 queued");
    terminal.until_hides("dan");
    terminal.types("\r");
    terminal.until_hides("bob");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
    eventually("the terminal is restored", || terminal.is_restored());
}

#[test]
fn the_table_names_the_holders() {
    let server = Server::start();
    contended(&server);
    let mut admin = server.admin();
    for owner in ["eve", "fay", "gus"] {
        let shared = format!("RLOCK.ACQUIRE gamma {owner} 600000 SHARED");
        let _: u64 = admin.run(&shared);
    }
    admin.enqueue("gamma", "hal", "");
    let terminal = top(&server);
    terminal.until_shows("eve +2");
    assert!(terminal.line_of("gamma").contains("shared"));
    assert!(terminal.line_of("beta").contains("ann"));
    // It follows the lock.
    let _: u64 = admin.run("RLOCK.RELEASE beta ann");
    eventually("cid holds beta", || {
        place(&terminal, "beta") == place(&terminal, "cid")
    });
}

#[test]
fn long_names_are_cut_in_the_middle() {
    let server = Server::start();
    let mut waiters = server.admin();
    // A letter of the second name is two columns wide.
    for name in ["x".repeat(90), "鎖".repeat(45)] {
        server.held_by(&format!("<{name}>"), &format!("({name})"));
        waiters.enqueue(&format!("<{name}>"), &format!("({name}-2)"), "");
    }
    for columns in [60, 80, 160] {
        let mut terminal = Terminal::start_with(columns, &server, &EVERY);
        terminal.until_shows("x)");
        terminal.until_shows("? help");
        for (start, end) in [("<x", "x"), ("<鎖", "鎖")] {
            let line = terminal.line_of(start);
            for part in ["…", &format!("{end}>"), &format!("{end})")] {
                assert!(line.contains(part), "`{part}` in {line}");
            }
            assert_eq!(line.matches('…').count(), 2, "{line}");
            let wait = line.trim_end_matches(['│', '█', ' ']);
            assert!(wait.ends_with("ms") || wait.ends_with('s'), "{line}");
        }
        terminal.types("n\u{1b}[F\r");
        terminal.until_shows("鎖>: exclusive, 1 queued");
        terminal.until_shows("鎖-2)");
        let waiter = terminal.line_of("鎖-2)");
        assert!(waiter.contains("(鎖"), "{waiter}");
        let holder = terminal.line_of("鎖)");
        assert!(holder.contains("(鎖"), "{holder}");
        // A fence of 16 digits is whole where it is shown.
        let is_fence = |word: &str| word.len() == 16 && word.parse::<u64>().is_ok();
        assert!(holder.split(' ').any(is_fence), "{holder}");
        terminal.types("q");
        assert_eq!(terminal.finish(), 0);
    }
}

#[test]
fn a_long_wait_has_a_colour_unless_no_colour_is_wanted() {
    let server = Server::start();
    contended(&server);
    let plain = Terminal::start_in(100, &server.url(), &EVERY, &[("NO_COLOR", "1")]);
    let coloured = top(&server);
    coloured.until_shows("alpha");
    eventually("a second has passed", || coloured.is_coloured());
    plain.until_shows(" s ");
    assert!(!plain.is_coloured(), "{}", plain.shows());
}

#[test]
fn a_filter_shows_only_names_that_have_it() {
    let server = Server::start();
    contended(&server);
    let mut terminal = top(&server);
    terminal.until_shows("alpha");
    // A letter of the filter is not a command, and case does not matter.
    terminal.types("/PHq");
    terminal.until_shows("none of the 2 most contended locks has `PHq` in its name");
    terminal.types("\u{7f}");
    terminal.until_shows("alpha");
    terminal.until_hides("beta");
    terminal.types("\r\r");
    terminal.until_shows("alpha: exclusive, 1 queued");
    terminal.types("\u{1b}");
    terminal.until_shows("/PH");
    terminal.types("\u{1b}");
    terminal.until_shows("beta");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn a_filter_finds_a_lock_that_was_not_in_the_list() {
    let server = Server::start();
    contended(&server);
    let mut terminal = Terminal::start(&server, &[&EVERY[..], &["--locks", "1"]].concat());
    terminal.until_shows("beta");
    assert!(!terminal.shows().contains("alpha"));
    terminal.types("/alpha");
    terminal.until_shows("alpha  ann ");
}

#[test]
fn help_covers_the_screen_until_a_key_is_pressed() {
    let server = Server::start();
    let mut terminal = top(&server);
    terminal.until_shows("nobody waits for any lock");
    terminal.types("?");
    terminal.until_shows("end the holds of the lock: asks first");
    terminal.types("q");
    terminal.until_hides("asks first");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn a_long_queue_scrolls_to_its_end() {
    let server = Server::start();
    server.held_by("k", "ann");
    let mut waiters = server.admin();
    for number in 1..=120 {
        waiters.enqueue("k", &format!("waiter-{number:03}"), "");
    }
    let mut terminal = top(&server);
    terminal.until_shows("ann");
    terminal.types("\r");
    terminal.until_shows("k: exclusive, 120 queued");
    terminal.until_shows("waiter-001");
    terminal.types("\u{1b}[B");
    terminal.until_hides("waiter-001");
    terminal.types("G");
    terminal.until_shows("waiter-100");
    terminal.until_shows("-100 of the first 100");
    terminal.types("g");
    terminal.until_shows("waiter-001");
}

#[test]
fn it_works_in_other_sizes() {
    let server = Server::start();
    contended(&server);
    let mut terminal = top(&server);
    terminal.until_shows("? help");
    for (rows, columns) in [(2, 10), (5, 20), (60, 200), (3, 300), (24, 60)] {
        terminal.resize(rows, columns);
        let title: String = "rlock top".chars().take(columns.into()).collect();
        terminal.until_shows(&title);
    }
    terminal.until_shows("beta");
    terminal.until_shows("? help");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn waits_cover_the_last_seconds() {
    let server = Server::start();
    let terminal = top(&server);
    terminal.until_shows("no hand-off in the last ");
    contended(&server);
    let _: u64 = server.admin().run("RLOCK.RELEASE alpha ann");
    terminal.until_shows("1 in ");
    let line = terminal.line_of("waited");
    assert!(line.contains("p50 ") && line.contains("p99 "), "{line}");
}

#[test]
fn old_numbers_of_a_silent_server_are_not_shown_as_new() {
    let server = Server::start();
    contended(&server);
    let mut terminal = top(&server);
    terminal.until_shows("alpha");
    server.signal("-STOP");
    terminal.until_shows("as of 3 s ago");
    terminal.until_shows("no answer from the server");
    terminal.until_shows("alpha");
    // The queue has the same age.
    terminal.types("\r");
    terminal.until_shows("asking who waits for beta");
    assert!(terminal.shows().contains("as of "), "{}", terminal.shows());
    server.signal("-CONT");
    terminal.until_shows("beta: exclusive, 2 queued");
    terminal.until_hides("as of");
}

#[test]
fn force_names_lock_holder_and_fence_and_ends_holds_only_with_y() {
    let server = Server::start();
    contended(&server);
    let fence = server.admin().fence("beta");
    let mut terminal = top(&server);
    terminal.until_shows("alpha");
    for key in ["\u{1b}", "\r", "n", "Y", "\u{19}", "\u{1b}y"] {
        terminal.types("F");
        terminal.until_shows("End every hold of beta?");
        terminal.until_shows("│ ann ");
        terminal.until_shows(&format!("fence {fence}, lease left 9m"));
        terminal.types(key);
        terminal.until_hides("End every hold");
        assert!(terminal.shows().contains("alpha"), "{}", terminal.shows());
    }
    assert_eq!(server.admin().fence("beta"), fence);
    terminal.types("F");
    terminal.until_shows("End every hold of beta?");
    terminal.types("y");
    terminal.until_shows("beta: 1 holder removed");
    assert!(server.admin().fence("beta") > fence);
    terminal.types(" ");
    terminal.until_hides("1 holder removed");
    eventually("cid holds beta", || {
        place(&terminal, "beta") == place(&terminal, "cid")
    });
}

#[test]
fn force_does_not_end_holds_that_were_not_shown() {
    let server = Server::start();
    contended(&server);
    let mut terminal = top(&server);
    terminal.until_shows("alpha");
    terminal.types("F");
    terminal.until_shows("End every hold of beta?");
    let _: u64 = server.admin().run("RLOCK.RELEASE beta ann");
    let fence = server.admin().fence("beta");
    terminal.types("y");
    terminal.until_shows("nothing was changed: the holders of beta");
    assert_eq!(server.admin().fence("beta"), fence);
}

#[test]
fn force_asks_nothing_if_the_question_does_not_fit() {
    let server = Server::start();
    contended(&server);
    let fence = server.admin().fence("beta");
    let mut terminal = top(&server);
    terminal.until_shows("? help");
    for (rows, columns) in [(10, 60), (24, 40)] {
        terminal.resize(rows, columns);
        terminal.until_shows("? help");
        terminal.types("F");
        terminal.until_shows("the terminal is too small to ask");
        terminal.types("y");
        terminal.until_hides("too small");
        assert_eq!(server.admin().fence("beta"), fence);
    }
    terminal.types("F");
    terminal.until_shows("the terminal is too small to ask");
    terminal.resize(24, 60);
    terminal.until_shows("End every hold of beta?");
    terminal.types("y");
    terminal.until_shows("beta: 1 holder removed");
}

#[test]
fn force_says_why_the_server_refuses() {
    let server = Server::start();
    contended(&server);
    let mut admin = server.admin();
    let _: () = admin.run("ACL SETUSER reader on >pw ~* &* +@all -rlock.force");
    let url = format!("redis://reader:pw@127.0.0.1:{}/", server.port());
    let mut terminal = Terminal::start_at(100, &url, &EVERY);
    terminal.until_shows("alpha");
    terminal.types("F");
    terminal.until_shows("End every hold of beta?");
    terminal.types("y");
    terminal.until_shows("the 'rlock.force' command");
    terminal.until_shows("any key closes this");
}

#[test]
fn every_way_to_quit_restores_the_terminal() {
    let server = Server::start();
    for (keys, code) in [
        ("q", 0),
        ("\u{3}", 0),
        ("\u{4}", 0),
        ("\u{1b}", 0),
        ("", 143),
    ] {
        let mut terminal = top(&server);
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
    let mut terminal = top(&server);
    terminal.until_shows("nobody waits for any lock");
    drop(server);
    terminal.until_shows("cannot reach the server");
    terminal.until_shows("as of ");
    terminal.until_shows("nobody waited for any lock");
    terminal.types("q");
    assert_eq!(terminal.finish(), 0);
}

#[test]
fn a_server_that_hangs_does_not_keep_it_from_quitting() {
    let server = Server::start();
    let mut terminal = top(&server);
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
    let mut terminal = top(&server);
    terminal.until_shows("nobody waits for any lock");
    terminal.types("p");
    terminal.until_shows("paused, as of ");
    contended(&server);
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
    contended(&server);
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
        assert_eq!(sample["waits"]["count"], 0, "{sample}");
        assert!(sample["waits"]["p99_usec"].is_null(), "{sample}");
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
