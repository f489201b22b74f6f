//! What a waiter costs, and whether all memory is freed.

use std::time::Duration;

use redis::Value;

use crate::connection::Connection;
use crate::report::{Report, Section, Target, grouped};
use rlock_testkit::Server;
use rlock_testkit::client::{eventually, request};

const LEGEND: &str = "  \
used_memory of the server with NOTIFY waiters of one connection, less that before they queued, when the locks were
  already held. Then their connection is closed: what is left. Owners have 43 bytes, keys 20, the channel 49. Blocked
  ones have a connection each, which is most of what they cost: BLPOP shows how much; a MACQUIRE has a place in the
  queue of each of its keys. Unlinked locks: each key is taken by two in shared mode for 24 h, then UNLINK.";

const WAITERS: usize = 10_000;
const WAITERS_QUICK: usize = 500;
const BLOCKED: usize = 200;
const BLOCKED_QUICK: usize = 20;
/// Keys of a MACQUIRE, at most.
const KEYS_MAX: usize = 1024;
const UNLINKED: usize = 300_000;
const UNLINKED_QUICK: usize = 3000;
/// Requests sent at once: few, so that buffers stay small.
const BATCH: usize = 100;
const CHANNEL: &str = "rlock:client:8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a";

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Memory", LEGEND);
    let waiters = section.form().of(WAITERS, WAITERS_QUICK);
    notified(&mut section, waiters, 1);
    notified(&mut section, waiters, waiters);
    blocked(&mut section);
    unlinked(&mut section);
    section.end();
}

/// A key of 20 bytes.
fn key(number: usize) -> String {
    format!("invoice:{number:012}")
}

/// An owner of 43 bytes.
fn owner(number: usize) -> String {
    format!("8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a:{number:06}")
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn notified(section: &mut Section<'_>, waiters: usize, keys: usize) {
    let server = Server::start();
    let _hearing = Connection::listening(server.port(), CHANNEL);
    let mut holding = Connection::new(server.port());
    let mut asking = Connection::new(server.port());
    holding.call_lines((0..keys).map(|it| format!("RLOCK.ACQUIRE {} holder 600000", key(it))));
    let before = steady_memory(&server);
    queue(&mut asking, waiters, keys);
    let during = steady_memory(&server);
    drop(asking);
    eventually("they are gone", || server.counter("waiters") == 0);
    let after = steady_memory(&server);
    let what = match keys {
        1 => format!("{} NOTIFY waiters on one key", grouped(waiters)),
        _ => format!("one NOTIFY waiter on each of {} keys", grouped(keys)),
    };
    let each = (during - before) as f64 / waiters as f64;
    section.row(
        [&what, &format!("{each:.0} bytes each"), ""],
        Target::AtMost(512.0, " bytes").of(each),
    );
    let left = after - before;
    let share = 100.0 * left as f64 / (during - before) as f64;
    section.row(
        [
            &format!("  {what}: left when they are gone"),
            &format!("{left} bytes"),
            &format!("{share:.1} %"),
        ],
        Target::AtMost(1.0, " %").of(share),
    );
}

fn queue(asking: &mut Connection, waiters: usize, keys: usize) {
    let requests = (0..waiters).map(|number| {
        let (key, owner) = (key(number % keys), owner(number));
        let line = [
            "RLOCK.ACQUIRE",
            &key,
            &owner,
            "30000",
            "WAIT",
            "0",
            "NOTIFY",
            CHANNEL,
        ];
        request(&line)
    });
    let requests = requests.collect::<Vec<_>>();
    for batch in requests.chunks(BATCH) {
        asking.call_all(batch, &Value::SimpleString("WAITING".into()));
    }
}

/// A blocked client, and a blocked `MACQUIRE`.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn blocked(section: &mut Section<'_>) {
    let places = section.form().of(BLOCKED, BLOCKED_QUICK) * KEYS_MAX;
    let lines = ["rlock.max-waiters 1000000", "client-query-buffer-limit 1mb"];
    let server = Server::configured(&lines);
    let keys: Vec<_> = (0..KEYS_MAX).map(key).collect();
    let keys = keys.join(" ");
    let mut holding = Connection::new(server.port());
    holding.call(&format!("RLOCK.MACQUIRE holder 3600000 {KEYS_MAX} {keys}"));

    let native = each_blocked(&server, places / KEYS_MAX, |_| "BLPOP list 0".into());
    let cells = ["blocked in BLPOP", &kilobytes(native), ""];
    section.row(cells, None);
    let one = each_blocked(&server, places / KEYS_MAX, |number| {
        format!("RLOCK.ACQUIRE {} {} 30000 WAIT 0", key(0), owner(number))
    });
    let more = format!("{} more", kilobytes(one - native));
    let cells = ["blocked in ACQUIRE … WAIT", &kilobytes(one), &more];
    section.row(cells, None);
    let all = each_blocked(&server, places / KEYS_MAX, |number| {
        let owner = owner(number);
        format!("RLOCK.MACQUIRE {owner} 30000 {KEYS_MAX} {keys} WAIT 0")
    });
    let place = all / KEYS_MAX as f64;
    section.row(
        [
            "blocked in MACQUIRE of 1,024 keys, for each place",
            &format!("{place:.0} bytes"),
            &format!("{} each", kilobytes(all)),
        ],
        Target::AtMost(512.0, " bytes").of(place),
    );
}

fn kilobytes(bytes: f64) -> String {
    format!("{:.1} KB", bytes / 1024.0)
}

/// Bytes for each of this many connections that are blocked by a command.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn each_blocked(server: &Server, count: usize, command: impl Fn(usize) -> String) -> f64 {
    let before = steady_memory(server);
    let connections: Vec<_> = (0..count)
        .map(|number| {
            let mut connection = Connection::new(server.port());
            let line = command(number);
            connection.send(&request(&rlock_testkit::client::words(&line)));
            connection
        })
        .collect();
    let are_blocked = |clients: usize| {
        let blocked = server.info("clients", "blocked_clients");
        blocked.parse() == Ok(clients)
    };
    eventually("all are blocked", || are_blocked(count));
    let during = steady_memory(server);
    drop(connections);
    eventually("they are gone", || are_blocked(0));
    (during - before) as f64 / count as f64
}

/// Locks that are deleted by others long before their leases end.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn unlinked(section: &mut Section<'_>) {
    let count = section.form().of(UNLINKED, UNLINKED_QUICK);
    let server = Server::start();
    let mut connection = Connection::new(server.port());
    let before = steady_memory(&server);
    connection.call_lines((0..count).flat_map(|number| {
        let key = key(number);
        [
            format!("RLOCK.ACQUIRE {key} {} 86400000 SHARED", owner(0)),
            format!("RLOCK.ACQUIRE {key} {} 86400000 SHARED", owner(1)),
            format!("UNLINK {key}"),
        ]
    }));
    let left = steady_memory(&server) - before;
    let megabytes = left as f64 / 1e6;
    section.row(
        [
            &format!("{} shared locks, unlinked: left", grouped(count)),
            &format!("{megabytes:.2} MB"),
            "",
        ],
        Target::AtMost(1.0, " MB").of(megabytes),
    );
}

/// `used_memory`, when the server has stopped tidying up.
fn steady_memory(server: &Server) -> i64 {
    let used = || {
        let used = server.info("memory", "used_memory");
        used.parse::<i64>().expect("a number of bytes")
    };
    let mut steady = used();
    eventually("the memory stays as it is", || {
        std::thread::sleep(Duration::from_millis(250));
        std::mem::replace(&mut steady, used()) == steady
    });
    steady
}
