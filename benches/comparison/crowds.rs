//! What the server spends on many at once: readers let in, leases that end
//! among many, deadlocks searched for, and the list of contended locks.

use redis::Value;

use crate::client::{eventually, request};
use crate::connection::{Connection, message};
use crate::cost::processor_time_at_rest;
use crate::report::{Report, Section, Target, median};
use crate::server::Server;

const LEGEND: &str = "  \
As the server itself counts the time of a command (INFO commandstats), median of the rounds; for leases, processor
  time of its main thread while 300 of them end one after the other and a waiter is queued, least of the rounds.
  Deadlocks: 1,000 locks with 10 waiters each; every tenth holder waits for nothing, the others for the next lock;
  the time of an ACQUIRE that has to queue, less that with deadlock-detection no.";

const CHANNEL: &str = "rlock:client:8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a";
const ROUNDS: usize = 5;
const BATCH: usize = 500;

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

/// Sends many commands, a batch at a time.
fn send_all(connection: &mut Connection, lines: impl Iterator<Item = String>) {
    let requests: Vec<_> = lines
        .map(|line| request(&line.split(' ').collect::<Vec<_>>()))
        .collect();
    for batch in requests.chunks(BATCH) {
        connection.send(&batch.concat());
        for _ in batch {
            let reply = connection.reply();
            assert!(
                !matches!(reply, Value::ServerError(_)),
                "refused: {reply:?}"
            );
        }
    }
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
    let (server, mut connection, mut listening) = crowded();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        connection.call("RLOCK.ACQUIRE k writer 600000");
        let readers = (0..1000).map(|number| {
            format!("RLOCK.ACQUIRE k reader-{number} 600000 SHARED WAIT 0 NOTIFY {CHANNEL}")
        });
        send_all(&mut connection, readers);
        server.ask("CONFIG RESETSTAT");
        connection.call("RLOCK.RELEASE k writer");
        times.push(micros_per_call(&server, "rlock.release") / 1000.0);
        assert_eq!(connection.call("RLOCK.FORCE k"), Value::Int(1000));
        // Grants and losses.
        (0..2000).for_each(|_| drop(message(&listening.reply())));
    }
    let millis = median(times);
    section.row(
        [
            "1,000 readers let in by messages",
            &format!("{millis:.2} ms"),
            "",
        ],
        Target::AtMost(5.0, " ms").of(millis),
    );
    let mut waiting: Vec<_> = (0..1000).map(|_| Connection::new(server.port())).collect();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        connection.call("RLOCK.ACQUIRE k writer 600000");
        for (number, reader) in waiting.iter_mut().enumerate() {
            let line = format!("RLOCK.ACQUIRE k reader-{number} 600000 SHARED WAIT 0");
            reader.send(&request(&line.split(' ').collect::<Vec<_>>()));
        }
        eventually("all are queued", || server.counter("waiters") == 1000);
        server.ask("CONFIG RESETSTAT");
        connection.call("RLOCK.RELEASE k writer");
        times.push(micros_per_call(&server, "rlock.release") / 1000.0);
        for reader in &mut waiting {
            assert!(matches!(reader.reply(), Value::Int(_)), "all are granted");
        }
        assert_eq!(connection.call("RLOCK.FORCE k"), Value::Int(1000));
    }
    let millis = median(times);
    section.row(
        [
            "1,000 blocked readers let in",
            &format!("{millis:.2} ms"),
            "",
        ],
        Target::AtMost(5.0, " ms").of(millis),
    );
}

const LEASES: usize = 300;

fn leases(section: &mut Section<'_>) {
    let [few, many] = [10, 10_000].map(|holders| {
        let (server, mut connection, _listening) = crowded();
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            let held =
                (0..holders).map(|number| format!("RLOCK.ACQUIRE k holder-{number} 600000 SHARED"));
            send_all(&mut connection, held);
            let short = (0..LEASES).map(|number| {
                let lease = 300 + 2 * number;
                format!("RLOCK.ACQUIRE k short-{number} {lease} SHARED")
            });
            send_all(&mut connection, short);
            let writer = format!("RLOCK.ACQUIRE k writer 600000 WAIT 0 NOTIFY {CHANNEL}");
            send_all(&mut connection, std::iter::once(writer));
            let before = processor_time_at_rest(server.process_id());
            std::thread::sleep(std::time::Duration::from_millis(1200));
            let spent = processor_time_at_rest(server.process_id()) - before;
            least = least.min(spent.as_secs_f64() * 1e6 / LEASES as f64);
            connection.call("RLOCK.CANCEL k writer");
            connection.call("RLOCK.FORCE k");
        }
        least
    });
    let row = format!("{few:.1} µs");
    section.row(["end of a lease among 10 holders", &row, ""], None);
    let ratio = many / few;
    section.row(
        [
            "end of a lease among 10,000 holders",
            &format!("{many:.1} µs"),
            &format!("{ratio:.2} × among 10"),
        ],
        Target::AtMost(1.5, " ×").of(ratio),
    );
}

fn deadlocks(section: &mut Section<'_>) {
    const LOCKS: usize = 1000;
    let (server, mut connection, _listening) = crowded();
    let wait = format!("3600000 WAIT 0 NOTIFY {CHANNEL}");
    let held = (0..LOCKS).map(|it| format!("RLOCK.ACQUIRE lock:{it} holder-{it} 3600000"));
    send_all(&mut connection, held);
    let chained = (0..LOCKS - 1).filter(|it| it % 10 != 9);
    let chained = chained.map(|it| format!("RLOCK.ACQUIRE lock:{} holder-{it} {wait}", it + 1));
    send_all(&mut connection, chained);
    let waiters =
        (0..9 * LOCKS).map(|it| format!("RLOCK.ACQUIRE lock:{} waiter-{it} {wait}", it % LOCKS));
    send_all(&mut connection, waiters);
    let own = (0..LOCKS).map(|it| format!("RLOCK.ACQUIRE own:{it} busy-{it} 3600000"));
    send_all(&mut connection, own);
    for (what, owner) in [
        ("that holds nothing", "idle"),
        ("that holds a lock", "busy"),
    ] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (setting, times) in ["yes", "no"].iter().zip(&mut times) {
                server.ask(&format!("CONFIG SET rlock.deadlock-detection {setting}"));
                server.ask("CONFIG RESETSTAT");
                let asked =
                    (0..LOCKS).map(|it| format!("RLOCK.ACQUIRE lock:{it} {owner}-{it} {wait}"));
                send_all(&mut connection, asked);
                times.push(micros_per_call(&server, "rlock.acquire"));
                let cancelled = (0..LOCKS).map(|it| format!("RLOCK.CANCEL lock:{it} {owner}-{it}"));
                send_all(&mut connection, cancelled);
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
    let (server, mut connection, _listening) = crowded();
    let held = (0..100_000).map(|it| format!("RLOCK.ACQUIRE lock:{it} holder-{it} 3600000"));
    send_all(&mut connection, held);
    let waiters = (0..3000).map(|it| {
        let key = it % 1000;
        format!("RLOCK.ACQUIRE lock:{key} waiter-{it} 3600000 WAIT 0 NOTIFY {CHANNEL}")
    });
    send_all(&mut connection, waiters);
    for count in [10, 1000] {
        server.ask("CONFIG RESETSTAT");
        for _ in 0..ROUNDS {
            let reply = connection.call(&format!("RLOCK.LIST COUNT {count}"));
            assert!(matches!(reply, Value::Array(locks) if locks.len() == count));
        }
        let millis = micros_per_call(&server, "rlock.list") / 1000.0;
        section.row(
            [
                &format!("LIST COUNT {count}, 1,000 of 100,000 locks contended"),
                &format!("{millis:.2} ms"),
                "",
            ],
            Target::AtMost(5.0, " ms").of(millis),
        );
    }
}
