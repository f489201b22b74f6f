//! What a waiter costs, and whether it is given back.

use std::time::Duration;

use redis::Value;

use crate::client::{eventually, request};
use crate::connection::Connection;
use crate::report::{Report, Section, Target};
use crate::server::Server;

const LEGEND: &str = "  \
used_memory of the server with 10,000 NOTIFY waiters of one connection, less that before they queued, when the locks
  were already held. Then their connection is closed: what is left. Owners have 38 to 41 bytes, the channel has 49.";

const WAITERS: usize = 10_000;
/// Requests sent at once: few, so that buffers stay small.
const BATCH: usize = 100;
const CHANNEL: &str = "rlock:client:8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a";

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Memory of a waiter", LEGEND);
    measure_on(&mut section, "10,000 on one key", 1);
    measure_on(&mut section, "one on each of 10,000 keys", WAITERS);
    section.end();
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn measure_on(section: &mut Section<'_>, what: &str, keys: usize) {
    let server = Server::start();
    let _hearing = Connection::listening(server.port(), CHANNEL);
    let mut holding = Connection::new(server.port());
    let mut asking = Connection::new(server.port());
    for key in 0..keys {
        let reply = holding.call(&format!("RLOCK.ACQUIRE invoice:{key} holder 600000"));
        assert!(matches!(reply, Value::Int(_)), "it was free");
    }
    let before = steady_memory(&server);
    queue(&mut asking, keys);
    let during = steady_memory(&server);
    drop(asking);
    eventually("they are gone", || server.counter("waiters") == 0);
    let after = steady_memory(&server);
    let each = (during - before) as f64 / WAITERS as f64;
    section.row(
        [what, &format!("{each:.0} bytes each"), ""],
        Target::AtMost(512.0, " bytes").of(each),
    );
    let left = after - before;
    let share = 100.0 * left as f64 / (during - before) as f64;
    section.row(
        [
            "  left when they are gone",
            &format!("{left} bytes"),
            &format!("{share:.1} %"),
        ],
        Target::AtMost(1.0, " %").of(share),
    );
}

fn queue(asking: &mut Connection, keys: usize) {
    let requests = (0..WAITERS).map(|number| {
        let key = format!("invoice:{}", number % keys);
        let owner = format!("8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a:{number}");
        let words = [
            "RLOCK.ACQUIRE",
            &key,
            &owner,
            "30000",
            "WAIT",
            "0",
            "NOTIFY",
            CHANNEL,
        ];
        request(&words)
    });
    let requests = requests.collect::<Vec<_>>();
    for batch in requests.chunks(BATCH) {
        asking.call_all(batch, &Value::SimpleString("WAITING".into()));
    }
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
