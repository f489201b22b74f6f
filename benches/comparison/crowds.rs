//! What the server spends on many at once: readers let in, leases that end
//! among many, deadlocks searched for, and the list of contended locks.

use std::time::Duration;

use redis::Value;

use crate::connection::{Connection, message};
use crate::report::{Report, Section, Target, grouped, median};
use crate::rounds::processor_time_at_rest;
use rlock_testkit::Server;
use rlock_testkit::client::{request, words};

const LEGEND: &str = "  \
As the server itself counts the time of a command (INFO commandstats), median of the rounds; for leases, processor
  time of its main thread while some of them end one after the other and a waiter is queued, least of the rounds.
  Deadlocks: many locks with 10 waiters each; every tenth holder waits for nothing, the others for the next lock;
  the time of an ACQUIRE that has to queue, less that with deadlock-detection no.";

const CHANNEL: &str = "rlock:client:8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a";
const ROUNDS: usize = 5;

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Many at once", LEGEND);
    readers(&mut section);
    leases(&mut section);
    deadlocks(&mut section);
    list(&mut section);
    section.end();
}

/// A server that many may wait on, a connection, and somebody who listens.
fn crowded() -> (Server, Connection, Connection) {
    let server = Server::configured(&["rlock.max-waiters 1000000", "rlock.max-watches 1000000"]);
    let listening = Connection::listening(server.port(), CHANNEL);
    let connection = Connection::new(server.port());
    (server, connection, listening)
}

/// Microseconds for one call of a command since the last time.
fn micros_per_call(server: &Server, command: &str) -> f64 {
    let stats = server.info("commandstats", &format!("cmdstat_{command}"));
    let field = stats
        .split(',')
        .find_map(|it| it.strip_prefix("usec_per_call="));
    let micros = field.and_then(|it| it.parse().ok()).expect("it was called");
    server.ask("CONFIG RESETSTAT");
    micros
}

fn readers(section: &mut Section<'_>) {
    let many = section.form().of(1000, 100);
    let rounds = section.form().of(ROUNDS, 1);
    let row = |section: &mut Section<'_>, what: &str, times: Vec<f64>| {
        let millis = median(times);
        section.row(
            [
                &format!("{} {what}", grouped(many)),
                &format!("{millis:.2} ms"),
                "",
            ],
            Target::AtMost(5.0, " ms").of(millis),
        );
    };
    let (server, mut connection, mut listening) = crowded();
    let times =
        (0..rounds).map(|_| let_in_by_messages(&server, &mut connection, &mut listening, many));
    row(section, "readers let in by messages", times.collect());
    let mut blocked: Vec<_> = (0..many).map(|_| Connection::new(server.port())).collect();
    let times = (0..rounds).map(|_| let_in_blocked(&server, &mut connection, &mut blocked));
    row(section, "blocked readers let in", times.collect());
}

/// Milliseconds that the release takes; what it leaves for later turns is not
/// in it.
fn release_millis(server: &Server, connection: &mut Connection) -> f64 {
    server.ask("CONFIG RESETSTAT");
    connection.call("RLOCK.RELEASE k writer");
    micros_per_call(server, "rlock.release") / 1000.0
}

fn let_in_by_messages(
    server: &Server,
    connection: &mut Connection,
    listening: &mut Connection,
    many: usize,
) -> f64 {
    connection.call_lines(["RLOCK.ACQUIRE k writer 600000".into()]);
    connection.call_lines((0..many).map(|number| {
        format!("RLOCK.ACQUIRE k reader-{number} 600000 SHARED WAIT 0 NOTIFY {CHANNEL}")
    }));
    let millis = release_millis(server, connection);
    let mut all_hear = |outcome: &str| {
        for _ in 0..many {
            let message = message(&listening.reply());
            assert!(message.starts_with(outcome), "no {outcome}: {message}");
        }
    };
    all_hear("grant");
    connection.call("RLOCK.FORCE k");
    all_hear("lost");
    millis
}

fn let_in_blocked(server: &Server, connection: &mut Connection, blocked: &mut [Connection]) -> f64 {
    connection.call_lines(["RLOCK.ACQUIRE k writer 600000".into()]);
    for (number, reader) in blocked.iter_mut().enumerate() {
        let line = format!("RLOCK.ACQUIRE k reader-{number} 600000 SHARED WAIT 0");
        reader.send(&request(&words(&line)));
    }
    server.await_queued("k", blocked.len());
    let millis = release_millis(server, connection);
    for reader in blocked {
        assert!(matches!(reader.reply(), Value::Int(_)), "all are granted");
    }
    connection.call("RLOCK.FORCE k");
    millis
}

fn leases(section: &mut Section<'_>) {
    let (count, crowd) = section.form().of((300, 10_000), (30, 300));
    let rounds = section.form().of(ROUNDS, 1);
    let [few, many] = [10, crowd].map(|holders| {
        let (server, mut connection, _listening) = crowded();
        let ends = (0..rounds).map(|_| end_of_a_lease(&server, &mut connection, holders, count));
        ends.fold(f64::INFINITY, f64::min)
    });
    let time = format!("{few:.1} µs");
    section.row(["end of a lease among 10 holders", &time, ""], None);
    let ratio = many / few;
    section.row(
        [
            &format!("end of a lease among {} holders", grouped(crowd)),
            &format!("{many:.1} µs"),
            &format!("{ratio:.2} × among 10"),
        ],
        Target::AtMost(1.5, " ×").of(ratio),
    );
}

/// Microseconds of processor time for the end of one of `count` short leases.
fn end_of_a_lease(
    server: &Server,
    connection: &mut Connection,
    holders: usize,
    count: usize,
) -> f64 {
    let held = (0..holders).map(|number| format!("RLOCK.ACQUIRE k holder-{number} 600000 SHARED"));
    connection.call_lines(held);
    connection.call_lines((0..count).map(|number| {
        let lease = 300 + 2 * number;
        format!("RLOCK.ACQUIRE k short-{number} {lease} SHARED")
    }));
    let writer = format!("RLOCK.ACQUIRE k writer 600000 WAIT 0 NOTIFY {CHANNEL}");
    connection.call_lines([writer]);
    let before = processor_time_at_rest(server.process_id());
    let longest_ms = u64::try_from(300 + 2 * count).unwrap_or(u64::MAX);
    std::thread::sleep(Duration::from_millis(longest_ms + 300));
    let spent = processor_time_at_rest(server.process_id()) - before;
    connection.call("RLOCK.CANCEL k writer");
    connection.call("RLOCK.FORCE k");
    spent.as_secs_f64() * 1e6 / f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn deadlocks(section: &mut Section<'_>) {
    let locks = section.form().of(1000, 50);
    let rounds = section.form().of(ROUNDS, 1);
    let (server, mut connection, _listening) = crowded();
    let wait = format!("3600000 WAIT 0 NOTIFY {CHANNEL}");
    let held = (0..locks).map(|it| format!("RLOCK.ACQUIRE lock:{it} holder-{it} 3600000"));
    connection.call_lines(held);
    let chained = (0..locks - 1).filter(|it| it % 10 != 9);
    let chained = chained.map(|it| format!("RLOCK.ACQUIRE lock:{} holder-{it} {wait}", it + 1));
    connection.call_lines(chained);
    let waiters =
        (0..9 * locks).map(|it| format!("RLOCK.ACQUIRE lock:{} waiter-{it} {wait}", it % locks));
    connection.call_lines(waiters);
    let own = (0..locks).map(|it| format!("RLOCK.ACQUIRE own:{it} busy-{it} 3600000"));
    connection.call_lines(own);
    for (what, owner) in [
        ("that holds nothing", "idle"),
        ("that holds a lock", "busy"),
    ] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (setting, times) in ["yes", "no"].iter().zip(&mut times) {
                server.ask(&format!("CONFIG SET rlock.deadlock-detection {setting}"));
                server.ask("CONFIG RESETSTAT");
                let asked =
                    (0..locks).map(|it| format!("RLOCK.ACQUIRE lock:{it} {owner}-{it} {wait}"));
                connection.call_lines(asked);
                times.push(micros_per_call(&server, "rlock.acquire"));
                let cancelled = (0..locks).map(|it| format!("RLOCK.CANCEL lock:{it} {owner}-{it}"));
                connection.call_lines(cancelled);
            }
        }
        let [with, without] = times.map(median);
        let search = with - without;
        section.row(
            [
                &format!("search for a deadlock, by one {what}"),
                &format!("{search:.1} µs"),
                &format!("queued without: {without:.1} µs"),
            ],
            Target::AtMost(10.0, " µs").of(search),
        );
    }
}

fn list(section: &mut Section<'_>) {
    let rounds = section.form().of(ROUNDS, 1);
    let (locks, contended) = section.form().of((100_000, 1000), (1000, 100));
    let (server, mut connection, _listening) = crowded();
    let held = (0..locks).map(|it| format!("RLOCK.ACQUIRE lock:{it} holder-{it} 3600000"));
    connection.call_lines(held);
    let waiters = (0..3 * contended).map(|it| {
        let key = it % contended;
        format!("RLOCK.ACQUIRE lock:{key} waiter-{it} 3600000 WAIT 0 NOTIFY {CHANNEL}")
    });
    connection.call_lines(waiters);
    for count in [10, contended] {
        server.ask("CONFIG RESETSTAT");
        for _ in 0..rounds {
            let reply = connection.call(&format!("RLOCK.LIST COUNT {count}"));
            assert!(matches!(reply, Value::Array(locks) if locks.len() == count));
        }
        let millis = micros_per_call(&server, "rlock.list") / 1000.0;
        section.row(
            [
                &format!(
                    "LIST COUNT {count}, {} of {} locks contended",
                    grouped(contended),
                    grouped(locks)
                ),
                &format!("{millis:.2} ms"),
                "",
            ],
            Target::AtMost(5.0, " ms").of(millis),
        );
    }
}
