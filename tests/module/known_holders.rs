//! A shared lock that other clients change: if the key differs, the module does not use its cache of holders.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use crate::contest::wait_for;
use crate::traffic::Numbers;
use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually};

const FEW: usize = 3;
const MANY: usize = 40;

/// Takes two shared locks with different holders, and uses each hold once more.
fn prepare(server: &Server, count: usize) -> Client {
    server.ask("FLUSHALL");
    let client = server.client();
    for (key, name) in [("k", "owner"), ("k2", "other")] {
        for number in 0..count {
            client.number(&format!("RLOCK.ACQUIRE {key} {name}-{number} 60000 SHARED"));
        }
        for number in 0..count {
            client.number(&format!("RLOCK.RENEW {key} {name}-{number} 60000"));
        }
    }
    client
}

/// Asserts that commands find the holders of `k` that are in its hash, each with its fence, and no others.
///
/// The module detects a change by hand at the latest when the holder uses its hold.
#[track_caller]
fn assert_agrees(server: &Server, change: &str) {
    let hash = server.hash("k");
    let permits = hash.iter().filter_map(|(field, terms)| {
        let owner = field.strip_prefix("rlock:holder:")?;
        hash.contains_key(owner).then(|| terms.split(' ').nth(2))?
    });
    let permits = permits.map(|it| it.parse::<usize>().expect("a number"));
    let permits = permits.sum::<usize>();
    for number in 0..MANY {
        for name in ["owner", "other", "hand"] {
            let owner = format!("{name}-{number}");
            let held = hash.contains_key(&owner);
            let fence = hash.get(&format!("rlock:holder:{owner}"));
            let fence = fence.and_then(|terms| terms.split(' ').nth(1));
            let expected = fence.filter(|_| held).unwrap_or("nil");
            let renewed = server.ask(&format!("RLOCK.RENEW k {owner} 60000"));
            assert_eq!(renewed, expected, "{change}: {owner}");
        }
    }
    let limited = |limit: usize| {
        server.ask(&format!(
            "RLOCK.ACQUIRE k probe 60000 SHARED LIMIT {}",
            limit.max(1)
        ))
    };
    if permits > 0 {
        assert_eq!(limited(permits), "nil", "{change}: {permits} are taken");
        assert_ne!(limited(permits + 1), "nil", "{change}: {permits} are taken");
        assert_eq!(server.ask("RLOCK.RELEASE k probe"), "0", "{change}");
    }
    let held = hash.keys().filter(|field| !field.starts_with("rlock:"));
    assert_eq!(
        server.owners("k"),
        held.cloned().collect::<Vec<_>>(),
        "{change}"
    );
}

/// With few and with many holders, before and after the module listens to key events.
fn everywhere(test: impl Fn(&Server, usize)) {
    let server = Server::start();
    for count in [2, FEW, MANY] {
        test(&server, count);
    }
    server.ask("FLUSHALL");
    server.connection().number("RLOCK.ACQUIRE k owner-a 60000");
    let waiter = wait_for(&server, "k", "owner-b", 1);
    server.ask("RLOCK.FORCE k");
    waiter.fence();
    for count in [2, FEW, MANY] {
        test(&server, count);
    }
}

fn dumped(client: &Client, key: &str) -> Vec<u8> {
    match client.call(&["DUMP", key]) {
        Value::BulkString(dump) => dump,
        other => panic!("no dump, but {other:?}"),
    }
}

fn restored(client: &Client, dump: &[u8]) {
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"50000", dump, b"REPLACE"];
    assert_eq!(client.call(&restore), Value::Okay);
}

#[test]
fn lock_that_replaces_another_has_its_own_holders() {
    everywhere(|server, count| {
        for change in [
            "RENAME k2 k",
            "COPY k2 k REPLACE",
            "FLUSHALL",
            "FLUSHDB ASYNC",
            "DEL k",
            "UNLINK k",
            "MOVE k 9",
            "SWAPDB 0 9",
            "DEBUG RELOAD",
            "EXPIRE k 600",
            "PEXPIRE k 30000",
            "RENAME k k3",
        ] {
            prepare(server, count);
            server.client().ask("SELECT 9");
            server.client().ask(change);
            assert_agrees(server, change);
        }
    });
}

#[test]
fn restored_lock_has_its_stored_holders() {
    everywhere(|server, count| {
        let a = prepare(server, count);
        let old = dumped(&a, "k");
        a.ask("RLOCK.RELEASE k owner-0");
        a.number("RLOCK.ACQUIRE k owner-new 60000 SHARED");
        restored(&a, &old);
        assert_agrees(server, "an earlier state");
        let other = dumped(&a, "k2");
        restored(&a, &other);
        assert_agrees(server, "another lock");
        a.ask("RENAME k k4");
        a.number("RLOCK.RENEW k4 other-0 60000");
        a.ask("RLOCK.RELEASE k4 other-1");
        a.ask("RENAME k4 k");
        assert_agrees(server, "there and back");
        let copied = a.ask("COPY k k5");
        assert_eq!(copied, "1");
        a.ask("RLOCK.RELEASE k other-0");
        a.ask("RENAME k5 k");
        assert_agrees(server, "a copy from before a release");
    });
}

#[test]
fn restored_lock_has_its_stored_lease() {
    everywhere(|server, count| {
        let a = prepare(server, count);
        // In the copy, leases are longer than in the module's cache; its fields and fences are the same.
        for number in 0..count {
            a.number(&format!("RLOCK.RENEW k owner-{number} 200"));
        }
        a.ask("COPY k k6");
        for number in 0..count {
            a.number(&format!("RLOCK.RENEW k6 owner-{number} 60000"));
        }
        a.ask("RENAME k6 k");
        let start = std::time::Instant::now();
        eventually("the earlier leases would be over", || {
            start.elapsed().as_millis() > 250
        });
        assert_agrees(server, "a copy with longer leases");
        assert_eq!(server.owners("k").len(), count);
    });
}

#[test]
fn fields_changed_by_hand_are_accepted() {
    everywhere(|server, count| {
        let changes: [(&str, &[&str]); 9] = [
            ("one removed", &["HDEL k owner-0 rlock:holder:owner-0"]),
            ("its count removed", &["HDEL k owner-1"]),
            (
                "one added",
                &["HSET k hand-1 1 rlock:holder:hand-1 {end} 7 2"],
            ),
            (
                "one replaced by another",
                &[
                    "HDEL k owner-1 rlock:holder:owner-1",
                    "HSET k hand-1 1 rlock:holder:hand-1 {end} 7 1",
                ],
            ),
            ("more permits", &["HSET k rlock:holder:owner-1 {end} 7 5"]),
            ("another fence", &["HSET k rlock:holder:owner-0 {end} 8 1"]),
            ("a field of no meaning", &["HSET k rlock:other 1"]),
            (
                "all removed but one",
                &[
                    "DEL k",
                    "HSET k owner-1 1 rlock:mode shared rlock:holder:owner-1 {end} 7 1",
                    "PEXPIRE k 60000",
                ],
            ),
            ("an earlier fence", &["HSET k rlock:fence 5"]),
        ];
        for (change, lines) in changes {
            let a = prepare(server, count);
            let end = a.ask("PEXPIRETIME k");
            for line in lines {
                by_hand(&a, line, &end);
            }
            assert_agrees(server, change);
        }
    });
}

/// Sends a line in which a holder's terms, `{end} 7 1`, are one argument.
fn by_hand(client: &Client, line: &str, end: &str) {
    let Some((before, terms)) = line.split_once("{end}") else {
        client.ask(line);
        return;
    };
    let mut words = rlock_testkit::client::words(before);
    let terms = format!("{end}{terms}");
    words.push(&terms);
    let Value::Int(_) = client.call(&words) else {
        panic!("{line} is refused")
    };
}

#[test]
fn count_changed_by_hand_is_accepted() {
    everywhere(|server, count| {
        let a = prepare(server, count);
        a.ask("HSET k owner-1 5");
        assert_eq!(a.ask("RLOCK.RELEASE k owner-1"), "4");
        assert_eq!(a.ask("HGET k owner-1"), "4");
        assert_eq!(a.ask("RLOCK.RELEASE k owner-1 ALL"), "0");
        a.ask("HSET k owner-0 x");
        for line in [
            "RLOCK.INFO k",
            "RLOCK.RENEW k owner-0 60000",
            "RLOCK.RELEASE k owner-0",
            "RLOCK.ACQUIRE k owner-new 60000 SHARED",
        ] {
            let answer = a.ask(line);
            assert!(answer.starts_with("WRONGTYPE "), "{line}: {answer}");
        }
        assert_eq!(a.ask("HGET k owner-0"), "x");
    });
}

#[test]
fn shared_hash_without_a_lease_is_not_a_lock() {
    everywhere(|server, count| {
        let a = prepare(server, count);
        let before = server.hash("k");
        assert_eq!(a.ask("PERSIST k"), "1");
        for line in [
            "RLOCK.ACQUIRE k owner-0 60000 SHARED",
            "RLOCK.RENEW k owner-0 60000",
            "RLOCK.RELEASE k owner-0",
            "RLOCK.MACQUIRE owner-new 60000 2 k free",
            "RLOCK.MRENEW owner-0 60000 1 k",
            "RLOCK.MRELEASE owner-0 1 k",
            "RLOCK.DOWNGRADE k owner-0",
            "RLOCK.INFO k",
        ] {
            let answer = a.ask(line);
            assert!(answer.starts_with("WRONGTYPE "), "{line}: {answer}");
        }
        assert_eq!(server.hash("k"), before);
        assert_eq!(a.ask("EXISTS free"), "0");
        a.ask("PEXPIRE k 60000");
        assert_agrees(server, "PERSIST and PEXPIRE");
        a.ask("PERSIST k");
        assert_eq!(a.ask("RLOCK.FORCE k"), count.to_string());
        assert_eq!(a.ask("EXISTS k"), "0");
    });
}

#[test]
fn lease_cut_by_others_cuts_all_longer_leases() {
    everywhere(|server, count| {
        let a = prepare(server, count);
        let mut subscriber = server.listen(&["c"]);
        a.number("RLOCK.ACQUIRE k owner-0 60000 SHARED NOTIFY c");
        assert_eq!(a.ask("PEXPIRE k 40"), "1");
        assert!(subscriber.message().starts_with("lost "));
        assert_eq!(a.ask("RLOCK.RENEW k owner-1 60000"), "nil");
        assert_eq!(a.ask("EXISTS k"), "0");
        // A renewed hold has its own lease again; the other holds stay cut.
        let a = prepare(server, count);
        assert_eq!(a.ask("PEXPIRE k 20000"), "1");
        let end = a.number("PEXPIRETIME k");
        a.number("RLOCK.RENEW k owner-1 60000");
        assert!(a.number("PEXPIRETIME k") > end + 30_000);
        let hash = server.hash("k");
        for number in 0..count {
            let terms = &hash[&format!("rlock:holder:owner-{number}")];
            let is_cut = terms.starts_with(&format!("{end} "));
            assert_eq!(is_cut, number != 1, "owner-{number}: {terms}");
            assert_eq!(hash[&format!("owner-{number}")], "1");
        }
        // Beyond the longest lease it has no effect.
        let a = prepare(server, count);
        let end = a.number("PEXPIRETIME k");
        assert_eq!(a.ask("EXPIRE k 600"), "1");
        a.ask("RLOCK.RELEASE k owner-0");
        assert!(a.number("PEXPIRETIME k") <= end);
    });
}

/// `UNLINK` ends the lock, not a command of the module.
#[test]
fn cache_of_a_shared_lock_ends_with_its_key() {
    const LOCKS: usize = 4000;
    let server = Server::start();
    let client = server.client();
    let used = || {
        server
            .info("memory", "used_memory")
            .parse::<i64>()
            .expect("a number")
    };
    let take_and_unlink = |round: usize| {
        for number in 0..LOCKS {
            for owner in ["owner-a", "owner-b"] {
                client.send(&format!(
                    "RLOCK.ACQUIRE k{round}:{number} {owner} 86400000 SHARED"
                ));
            }
            client.send(&format!("UNLINK k{round}:{number}"));
            (0..3).for_each(|_| drop(client.reply()));
        }
    };
    take_and_unlink(1);
    let before = used();
    take_and_unlink(2);
    let bytes = (used() - before) / LOCKS as i64;
    assert!(bytes < 40, "{bytes} bytes are left of each lock");
}

/// `RLOCK.INFO` of a lock: its mode, and each holder with its count and permits; none if it is not a lock.
type Seen = Option<(String, BTreeMap<String, [i64; 2]>)>;

fn seen(server: &Server, key: &str) -> Seen {
    if server
        .ask(&format!("RLOCK.INFO {key}"))
        .starts_with("WRONGTYPE ")
    {
        return None;
    }
    let lock = server.lock(key);
    let holders = lock.holders.iter();
    let holders = holders.map(|it| (it.owner.clone(), [it.count, it.permits]));
    Some((lock.mode, holders.collect()))
}

const EDITORS: [&str; 4] = ["o", "p", "q", "r"];

/// Changes `k` by hand, in one of the ways in docs/data.md. Returns the owners concerned.
fn edit(client: &Client, numbers: &mut Numbers, now_ms: i64) -> &'static str {
    let owner = EDITORS[numbers.below(EDITORS.len())];
    let terms = format!("rlock:holder:{owner}");
    let count = ["1", "2", "3", "x"][numbers.below(20).min(3)];
    let count = if numbers.below(4) > 0 { "1" } else { count };
    let end = now_ms + [60_000, 30_000, -1000][numbers.below(3)];
    let permits = 1 + numbers.below(3);
    let good = format!("{end} {} {permits}", numbers.below(1000));
    let terms_text = if numbers.below(4) > 0 { &good } else { "junk" };
    let words: Vec<&str> = match numbers.below(12) {
        0 => vec!["HDEL", "k", "rlock:fence"],
        1 => vec!["HSET", "k", "rlock:fence", "7"],
        2 => vec!["HDEL", "k", &terms],
        3 => vec!["HSET", "k", &terms, terms_text],
        4 => vec!["HSET", "k", owner, count],
        5 => vec!["HDEL", "k", owner],
        6 => vec!["HDEL", "k", "rlock:mode"],
        7 => vec!["HSET", "k", "rlock:mode", "else"],
        8 => vec!["HSET", "k", "rlock:other", "1"],
        9 => vec!["HDEL", "k", owner, &terms],
        _ => vec![
            "HSET",
            "k",
            "rlock:mode",
            "shared",
            owner,
            count,
            &terms,
            terms_text,
        ],
    };
    assert!(matches!(client.call(&words), Value::Int(_)), "{words:?}");
    client.call(&["PEXPIRE", "k", "60000"]);
    owner
}

/// The expected reply of a command and the lock after it, given `RLOCK.INFO` before. `None` is `WRONGTYPE`.
fn expected(command: usize, owner: &str, before: &Seen) -> (Option<String>, Seen) {
    let Some((mode, holders)) = before.clone() else {
        return (None, None);
    };
    let held = holders.get(owner).copied();
    let is_shared = mode == "shared";
    let alone = holders.is_empty() || (held.is_some() && holders.len() == 1);
    let (mut mode, mut after) = (mode, holders);
    let answer = match command {
        0 if alone => {
            after.insert(owner.to_owned(), [held.map_or(1, |it| it[0]), 1]);
            mode = "exclusive".to_owned();
            "fence"
        }
        1 if held.is_none() && (is_shared || after.is_empty()) => {
            after.insert(owner.to_owned(), [1, 1]);
            mode = "shared".to_owned();
            "fence"
        }
        1 | 2 if held.is_some() => "fence",
        3 | 4 => match held {
            Some([count, permits]) if count > 1 && command == 3 => {
                after.insert(owner.to_owned(), [count - 1, permits]);
                return (Some((count - 1).to_string()), Some((mode, after)));
            }
            Some(_) => {
                after.remove(owner);
                if command == 3 { "0" } else { "2" }
            }
            None if command == 3 => "nil",
            None => "1",
        },
        5 => {
            if held.is_some() {
                "2"
            } else {
                "1"
            }
        }
        6 => {
            let forced = after.len().to_string();
            return (Some(forced), Some(("free".to_owned(), BTreeMap::new())));
        }
        7 if held.is_some() && !is_shared => {
            mode = "shared".to_owned();
            "fence"
        }
        _ => "nil",
    };
    if after.is_empty() {
        mode = "free".to_owned();
    }
    (Some(answer.to_owned()), Some((mode, after)))
}

/// A random walk of changes by hand and of commands: commands act on the state that `RLOCK.INFO` shows, and change only
/// the holders that they name.
/// The module remembers who holds a lock for which several wait.
#[test]
fn holder_exchanged_by_hand_while_several_wait_is_accepted() {
    let server = Server::start();
    let c = server.client();
    let _listening = server.listen(&["ch"]);
    let fence = c.number("RLOCK.ACQUIRE k ann 60000");
    for owner in ["bob", "cid", "dee"] {
        let asked = format!("RLOCK.ACQUIRE k {owner} 60000 WAIT 0 NOTIFY ch");
        assert_eq!(c.ask(&asked), "WAITING");
    }
    c.ask("HSET k eve 1");
    c.ask("HDEL k ann");
    let hash = server.hash("k");
    for command in ["RENEW k ann 60000", "RELEASE k ann", "ACQUIRE k ann 60000"] {
        assert_eq!(c.ask(&format!("RLOCK.{command}")), "nil", "{command}");
    }
    assert_eq!(server.hash("k"), hash);
    assert_eq!(c.number("RLOCK.RENEW k eve 60000"), fence);
}

#[test]
fn commands_on_a_lock_changed_by_hand_act_on_what_info_shows() {
    let server = Server::start();
    let a = server.client();
    for seed in 1..=4 {
        let mut numbers = Numbers(0x1234_5678_9ABC_DEF1 * seed);
        for step in 0..1000 {
            let mut owner = EDITORS[numbers.below(EDITORS.len())];
            if numbers.below(3) == 0 {
                // The module reads the lock again if the number of its fields or its fence has changed, and otherwise
                // the holders that the command names.
                let known = || (a.ask("HLEN k"), a.ask("HGET k rlock:fence"));
                let (before, now_ms) = (known(), server_ms(&a));
                let mut concerned = BTreeSet::new();
                while concerned.is_empty() || (concerned.len() > 1 && known() == before) {
                    for _ in 0..=numbers.below(3) {
                        concerned.insert(edit(&a, &mut numbers, now_ms));
                    }
                }
                if known() == before {
                    owner = concerned.first().expect("one");
                }
            }
            let before = seen(&server, "k");
            if before.is_none() && numbers.below(3) == 0 {
                a.ask("DEL k");
                continue;
            }
            let command = numbers.below(8);
            a.ask("DEL k1");
            a.ask(&format!("RLOCK.ACQUIRE k1 {owner} 60000"));
            let line = match command {
                0 => format!("RLOCK.ACQUIRE k {owner} 60000"),
                1 => format!("RLOCK.ACQUIRE k {owner} 60000 SHARED"),
                2 => format!("RLOCK.RENEW k {owner} 60000"),
                3 => format!("RLOCK.RELEASE k {owner}"),
                4 => format!("RLOCK.MRELEASE {owner} 2 k1 k ALL"),
                5 => format!("RLOCK.MRENEW {owner} 30000 2 k1 k"),
                6 => "RLOCK.FORCE k".to_owned(),
                _ => format!("RLOCK.DOWNGRADE k {owner}"),
            };
            let hash = server.hash("k");
            let shown = format!("seed {seed}, step {step}: {line} on {hash:?}, {before:?}");
            let (answer, after) = expected(command, owner, &before);
            let got = a.ask(&line);
            let is_ours = |field: &str| hash.contains_key(field);
            if command == 6 && before.is_none() && (is_ours("rlock:fence") || is_ours("rlock:mode"))
            {
                let owners = hash.keys().filter(|field| !field.starts_with("rlock:"));
                assert_eq!(got, owners.count().to_string(), "{shown}");
                assert!(server.hash("k").is_empty(), "{shown}");
                continue;
            }
            match answer {
                None => {
                    assert!(got.starts_with("WRONGTYPE key 'k' "), "{shown}: {got}");
                    assert_eq!(server.hash("k"), hash, "{shown}");
                    assert!(a.number("PTTL k1") > 30_000, "{shown}");
                }
                Some(answer) if answer == "fence" => {
                    assert!(got.parse::<u64>().is_ok(), "{shown}: {got}");
                }
                Some(answer) => assert_eq!(got, answer, "{shown}"),
            }
            assert_eq!(seen(&server, "k"), after, "{shown}: {got}");
        }
        a.ask("DEL k");
    }
}

/// The server's clock, in milliseconds.
fn server_ms(client: &Client) -> i64 {
    client.number("RLOCK.ACQUIRE clock o 60000") / 1000
}

/// Reading all of them takes a hundred times as long as one renewal.
#[test]
fn lock_with_many_holders_is_not_read_again_for_other_commands() {
    let server = Server::start();
    let a = server.client();
    for number in 0..3000 {
        a.send(&format!("RLOCK.ACQUIRE k owner-{number} 60000 SHARED"));
    }
    (0..3000).for_each(|_| _ = a.reply());
    let renewed_usec = |key: &str| {
        a.ask("CONFIG RESETSTAT");
        a.number(&format!("RLOCK.RENEW {key} owner-7 60000"));
        let stats = server.info("commandstats", "cmdstat_rlock.renew");
        let usec = stats.split(',').find_map(|it| it.strip_prefix("usec="));
        usec.and_then(|it| it.parse::<u64>().ok())
            .expect("a number")
    };
    let elsewhere = server.client();
    elsewhere.ask("SELECT 5");
    let flushed = (0..3).map(|_| {
        elsewhere.ask("FLUSHDB");
        elsewhere.ask("SWAPDB 5 6");
        renewed_usec("k")
    });
    let flushed = flushed.min().unwrap_or(0);
    let there_and_back = (0..3).map(|_| {
        a.ask("RENAME k k2");
        let there = renewed_usec("k2");
        a.ask("RENAME k2 k");
        there.max(renewed_usec("k"))
    });
    let renamed = there_and_back.min().unwrap_or(0);
    let read = (0..3).map(|_| {
        a.ask("HINCRBY k rlock:fence 1");
        renewed_usec("k")
    });
    let read = read.min().unwrap_or(0);
    assert!(
        flushed * 10 < read && renamed * 10 < read,
        "{read} µs to read it, {flushed} after a flush elsewhere, {renamed} after a rename"
    );
}
