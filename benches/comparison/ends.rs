//! Many waits or leases that end together.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::connection::{Connection, message};
use crate::pinger::Pinger;
use crate::report::{Report, Target, grouped, median, millis};
use rlock_testkit::Server;
use rlock_testkit::client::{request, words};

const LEGEND: &str = "  \
The longest PING round trip while all deadlines of the same millisecond are dealt with, each with a message. Worst and
  median of the rounds, each on a new server. Beside it the longest PING within 100 ms before that: what this machine
  takes without any reason. The strings are expired by the server itself, in stretches of up to 25 ms; locks have a time
  to live as well, so it may come upon those, too.";

const MANY: usize = 10_000;
const MANY_QUICK: usize = 300;
/// The server looks for expired keys every 100 ms: a quarter of that apart, the
/// rounds meet it at any point.
const ROUNDS: u64 = 4;
const APART_MS: u64 = 25;
/// Requests sent at the beginning of a millisecond: the server is done with
/// them before the next one, so that all deadlines are the same.
const BATCH: usize = 100;
const TARGET_MS: f64 = 5.0;

/// What it is that ends.
struct Kind {
    what: &'static str,
    /// Makes this many ready to end in that millisecond, if there is the time.
    prepare: fn(&mut Connection, usize, u64) -> Option<()>,
    /// Where each end is reported, and how the message begins.
    channel: &'static str,
    outcome: &'static str,
    target: Goal,
}

/// What is wanted of the worst round.
enum Goal {
    Nothing,
    Milliseconds(f64),
    /// As for this many milliseconds, or what the strings took if that is more.
    MillisecondsOrStrings(f64),
}

const KINDS: [Kind; 4] = [
    Kind {
        what: "strings that expire, no locks",
        prepare: set_strings,
        channel: "__keyevent@0__:expired",
        outcome: "k",
        target: Goal::Nothing,
    },
    Kind {
        what: "waits",
        prepare: queue_waits,
        channel: "c",
        outcome: "timeout",
        target: Goal::Milliseconds(TARGET_MS),
    },
    Kind {
        what: "leases, each with a waiter",
        prepare: queue_behind_leases,
        channel: "c",
        outcome: "grant",
        target: Goal::MillisecondsOrStrings(TARGET_MS),
    },
    Kind {
        what: "such leases without the server's own expiry",
        prepare: queue_behind_leases_without_expiry,
        channel: "c",
        outcome: "grant",
        target: Goal::Milliseconds(TARGET_MS),
    },
];

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Deadlines that come together", LEGEND);
    let many = section.form().of(MANY, MANY_QUICK);
    let mut strings_ms = 0.0_f64;
    for kind in &KINDS {
        let what = format!("{} {}", grouped(many), kind.what);
        let count = section.form().of(ROUNDS, 1);
        let rounds: Vec<_> = (0..count).map(|number| round(kind, many, number)).collect();
        let spread = |of: fn(&Round) -> Duration| {
            let times = rounds.iter().map(|round| millis(of(round)));
            let worst = times.clone().fold(0.0, f64::max);
            (median(times), worst)
        };
        let (busy, busy_worst) = spread(|round| round.busy);
        let (idle, idle_worst) = spread(|round| round.idle);
        let most_ms = match kind.target {
            Goal::Nothing => None,
            Goal::Milliseconds(ms) => Some(ms),
            // As it is shown.
            Goal::MillisecondsOrStrings(ms) => Some(((strings_ms * 10.0).round() / 10.0).max(ms)),
        };
        if most_ms.is_none() {
            strings_ms = busy_worst;
        }
        section.row(
            [
                &what,
                &format!("{busy_worst:.1} ms, median {busy:.1}"),
                &format!("idle {idle_worst:.1} ms, median {idle:.1}"),
            ],
            most_ms.and_then(|ms| Target::AtMost(ms, " ms").of(busy_worst)),
        );
        let told = format!("{:.0} ms", spread(|round| round.all).0);
        section.row(
            [&format!("  {what}: until the last is notified"), &told, ""],
            None,
        );
    }
    section.end();
}

/// Longest round trips without and with deadlines, and the time from the
/// deadline to the last message.
struct Round {
    idle: Duration,
    busy: Duration,
    all: Duration,
}

/// One round; on a machine that is slow today with more time to get ready.
fn round(kind: &Kind, many: usize, number: u64) -> Round {
    let mut ahead_ms = [500, 1000, 2000, 4000, 8000].into_iter();
    let round =
        ahead_ms.find_map(|ahead_ms| round_within(kind, many, ahead_ms + number * APART_MS));
    round.expect("the machine is fast enough to make all ready in seconds")
}

fn round_within(kind: &Kind, many: usize, ahead_ms: u64) -> Option<Round> {
    let outcome = kind.outcome;
    let server = Server::configured(&["notify-keyspace-events Ex"]);
    let mut asking = Connection::new(server.port());
    let mut hearing = Connection::listening(server.port(), kind.channel);
    let pinger = Pinger::start(server.port());
    let deadline_ms = now_ms() + ahead_ms;
    (kind.prepare)(&mut asking, many, deadline_ms)?;
    // Without anything to do, for about as long as it takes afterwards.
    let idle = pinger.idle(Duration::from_millis(100));
    let left_ms = left_ms(deadline_ms)?;
    thread::sleep(Duration::from_millis(left_ms.saturating_sub(20)));
    let mut all = Duration::ZERO;
    let busy = pinger.during(|| {
        for _ in 0..many {
            let message = message(&hearing.reply());
            assert!(message.starts_with(outcome), "no {outcome}: {message}");
        }
        all = Duration::from_millis(now_ms().saturating_sub(deadline_ms));
    });
    Some(Round { idle, busy, all })
}

/// What the server does about the ends of plain keys, by itself.
fn set_strings(asking: &mut Connection, many: usize, deadline_ms: u64) -> Option<()> {
    send_by_the_millisecond(asking, many, deadline_ms, |number, left_ms| {
        request(&["SET", &format!("k{number}"), "holder", "PX", left_ms])
    })
}

/// Queues waits for one lock.
fn queue_waits(asking: &mut Connection, many: usize, deadline_ms: u64) -> Option<()> {
    let reply = asking.call("RLOCK.ACQUIRE k holder 600000");
    assert!(matches!(reply, Value::Int(_)), "it was free");
    send_by_the_millisecond(asking, many, deadline_ms, |number, left_ms| {
        let line = format!("RLOCK.ACQUIRE k owner-{number} 600000 WAIT {left_ms} NOTIFY c");
        request(&words(&line))
    })
}

/// Takes as many locks, and queues a wait for each.
fn queue_behind_leases(asking: &mut Connection, many: usize, deadline_ms: u64) -> Option<()> {
    send_by_the_millisecond(asking, many, deadline_ms, |number, left_ms| {
        request(&["RLOCK.ACQUIRE", &format!("k{number}"), "holder", left_ms])
    })?;
    let waits = (0..many).map(|number| {
        let line = format!("RLOCK.ACQUIRE k{number} waiter-{number} 600000 WAIT 0 NOTIFY c");
        request(&words(&line))
    });
    asking.send(&waits.flatten().collect::<Vec<_>>());
    // A lease that has ended is a fence at once, and the round is too late.
    let waiting = Value::SimpleString("WAITING".into());
    let replies = (0..many).filter(|_| asking.reply() == waiting);
    (replies.count() == many).then_some(())
}

/// The same, where the server does not look for expired keys ten times a
/// second, which it does for up to 25 ms at a stretch.
fn queue_behind_leases_without_expiry(
    asking: &mut Connection,
    many: usize,
    deadline_ms: u64,
) -> Option<()> {
    asking.call("DEBUG SET-ACTIVE-EXPIRE 0");
    queue_behind_leases(asking, many, deadline_ms)
}

/// Sends requests that know how many milliseconds there are left.
fn send_by_the_millisecond(
    asking: &mut Connection,
    many: usize,
    deadline_ms: u64,
    request: impl Fn(usize, &str) -> Vec<u8>,
) -> Option<()> {
    let numbers = (0..many).collect::<Vec<_>>();
    for batch in numbers.chunks(BATCH) {
        let before_ms = now_ms();
        while now_ms() == before_ms {
            std::hint::spin_loop();
        }
        let left_ms = left_ms(deadline_ms)?.to_string();
        let requests = batch.iter().flat_map(|number| request(*number, &left_ms));
        asking.send(&requests.collect::<Vec<_>>());
        for _ in batch {
            let reply = asking.reply();
            assert!(!matches!(reply, Value::ServerError(_)), "{reply:?}");
        }
    }
    Some(())
}

/// The time until the deadline; `None` when that is not ahead any more.
fn left_ms(deadline_ms: u64) -> Option<u64> {
    deadline_ms.checked_sub(now_ms()).filter(|left| *left > 0)
}

/// The wall clock, which the server goes by as well.
fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since_epoch.expect("it is after 1970").as_millis();
    u64::try_from(ms).expect("it is before the end of time")
}
