//! Processor time of the server for an uncontended acquire and release.

use std::fs;
use std::time::Duration;

use redis::Value;

use crate::client::{request, text};
use crate::connection::Connection;
use crate::report::{Report, Section, Target};
use crate::server::{Server, replicated};

const LEGEND: &str = "  \
Processor time of the server's main thread for one pair, least of the rounds. One pipelined connection,
  500 pairs on 500 keys at a time, all kinds in turns. Owners and values have 38 bytes. With NOTIFY: the request that
  a client sends which shares one connection for many waits, WAIT 10000 NOTIFY, and somebody listens.
  The scripts do what a lock by Lua does: EXISTS, HINCRBY, PEXPIRE; HEXISTS, HINCRBY, DEL, PUBLISH.";

/// Pairs that are sent at once.
pub(crate) const BATCH: usize = 500;
const ROUNDS: usize = 7;
/// Processor time that a round takes at least.
const ROUND: Duration = Duration::from_millis(50);
pub(crate) const CHANNEL: &str = "rlock:client:8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a";
pub(crate) const OWNER: &str = "8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a:7";

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Acquire and release, uncontended", LEGEND);
    section.group("no AOF, no replica");
    measure_on(&mut section, &Server::start(), Targets::Apply);
    section.group("appendonly yes");
    // A rewrite would be somebody else's work in the middle of it.
    let lines = ["appendonly yes", "auto-aof-rewrite-percentage 0"];
    measure_on(&mut section, &Server::configured(&lines), Targets::None);
    section.group("one replica");
    let (primary, _replica) = replicated();
    measure_on(&mut section, &primary, Targets::None);
    section.end();
}

/// Whether the targets are for these circumstances.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Targets {
    Apply,
    None,
}

fn measure_on(section: &mut Section<'_>, server: &Server, targets: Targets) {
    let mut connection = Connection::new(server.port());
    let _hearing = Connection::listening(server.port(), CHANNEL);
    let kinds = kinds(&mut connection);
    let mut least = [f64::INFINITY; 5];
    for kind in &kinds {
        kind.run(&mut connection);
    }
    for _ in 0..section.form().of(ROUNDS, 1) {
        for (kind, least) in kinds.iter().zip(&mut least) {
            *least = least.min(round(kind, &mut connection, server.process_id()));
        }
    }
    let [native, rlock, notified, scripts, nothing] = least;
    let goal = |target: Target, ratio| match targets {
        Targets::Apply => target.of(ratio),
        Targets::None => None,
    };
    section.row(["  SET NX PX, DEL", &micros(native), ""], None);
    let ratio = rlock / native;
    section.row(
        [
            "  RLOCK.ACQUIRE, RLOCK.RELEASE",
            &micros(rlock),
            &format!("{ratio:.2} × SET, DEL"),
        ],
        goal(Target::AtMost(2.5, " ×"), ratio),
    );
    let added = 100.0 * (notified / rlock - 1.0);
    section.row(
        [
            "  the same with NOTIFY",
            &micros(notified),
            &format!("{added:.0} % more"),
        ],
        goal(Target::AtMost(15.0, " %"), added),
    );
    let ratio = scripts / rlock;
    section.row(
        [
            "  two Lua scripts by EVALSHA",
            &micros(scripts),
            &format!("{ratio:.2} × RLOCK"),
        ],
        goal(Target::AtLeast(2.7, " ×"), ratio),
    );
    let compared = format!("{:.2} × SET, DEL", nothing / native);
    section.row(
        ["  two RLOCK.CANCEL of nothing", &micros(nothing), &compared],
        None,
    );
}

pub(crate) fn micros(nanos: f64) -> String {
    format!("{:.2} µs", nanos / 1000.0)
}

/// Nanoseconds of processor time for a pair, in one round, pipelined.
pub(crate) fn round(kind: &Kind, connection: &mut Connection, process: u32) -> f64 {
    nanos_for_one(process, BATCH, || kind.run(connection))
}

/// Nanoseconds of processor time of a process for one of the `count` things
/// that are done at once, again and again for a round.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn nanos_for_one(process: u32, count: usize, mut do_all: impl FnMut()) -> f64 {
    let before = processor_time_at_rest(process);
    let mut done = 0;
    while processor_time(process) - before < ROUND {
        do_all();
        done += count;
    }
    let spent = processor_time_at_rest(process) - before;
    spent.as_nanos() as f64 / done as f64
}

/// A kind of pair, many times over.
pub(crate) struct Kind {
    requests: Vec<Vec<u8>>,
    batch: Vec<u8>,
    replies: [fn(&Value) -> bool; 2],
}

impl Kind {
    pub(crate) fn new(
        replies: [fn(&Value) -> bool; 2],
        pair: impl Fn(&str) -> [Vec<String>; 2],
    ) -> Self {
        let pairs = (0..BATCH).flat_map(|number| pair(&format!("invoice:{number}")));
        let requests: Vec<_> = pairs.map(|words| request(&words)).collect();
        Self {
            batch: requests.concat(),
            requests,
            replies,
        }
    }

    /// All pairs at once.
    pub(crate) fn run(&self, connection: &mut Connection) {
        connection.send(&self.batch);
        for is_expected in self.replies.iter().cycle().take(2 * BATCH) {
            Self::take_reply(connection, is_expected);
        }
    }

    /// One command after the other, each when the one before is answered.
    pub(crate) fn run_one_by_one(&self, connection: &mut Connection) {
        for (request, is_expected) in self.requests.iter().zip(self.replies.iter().cycle()) {
            connection.send(request);
            Self::take_reply(connection, is_expected);
        }
    }

    fn take_reply(connection: &mut Connection, is_expected: &fn(&Value) -> bool) {
        let reply = connection.reply();
        assert!(is_expected(&reply), "the server replies {}", text(&reply));
    }
}

/// In this order: by native commands, by the module, the same with `NOTIFY`,
/// by scripts, and two commands of the module that find nothing to do.
pub(crate) fn kinds(connection: &mut Connection) -> [Kind; 5] {
    let acquire = load(connection, include_str!("acquire.lua"));
    let release = load(connection, include_str!("release.lua"));
    let one_of = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    [
        Kind::new([|reply| *reply == Value::Okay, is_one], |key| {
            [
                one_of(format!("SET {key} {OWNER} NX PX 30000")),
                one_of(format!("DEL {key}")),
            ]
        }),
        Kind::new([is_fence, is_zero], |key| {
            [
                one_of(format!("RLOCK.ACQUIRE {key} {OWNER} 30000")),
                one_of(format!("RLOCK.RELEASE {key} {OWNER}")),
            ]
        }),
        Kind::new([is_fence, is_zero], |key| {
            let notify = format!("WAIT 10000 NOTIFY {CHANNEL}");
            [
                one_of(format!("RLOCK.ACQUIRE {key} {OWNER} 30000 {notify}")),
                one_of(format!("RLOCK.RELEASE {key} {OWNER}")),
            ]
        }),
        Kind::new([|reply| *reply == Value::Nil, is_one], |key| {
            let channel = format!("redisson_lock__channel:{{{key}}}");
            [
                one_of(format!("EVALSHA {acquire} 1 {key} 30000 {OWNER}")),
                one_of(format!("EVALSHA {release} 2 {key} {channel} 30000 {OWNER}")),
            ]
        }),
        Kind::new([is_zero, is_zero], |key| {
            let nothing = one_of(format!("RLOCK.CANCEL {key} {OWNER}"));
            [nothing.clone(), nothing]
        }),
    ]
}

fn load(connection: &mut Connection, script: &str) -> String {
    connection.send(&request(&["SCRIPT", "LOAD", script]));
    text(&connection.reply())
}

pub(crate) fn is_fence(reply: &Value) -> bool {
    matches!(reply, Value::Int(fence) if *fence > 0)
}

pub(crate) fn is_zero(reply: &Value) -> bool {
    *reply == Value::Int(0)
}

fn is_one(reply: &Value) -> bool {
    *reply == Value::Int(1)
}

/// Processor time of a process' main thread so far, not quite up to date
/// while it is running.
fn processor_time(process: u32) -> Duration {
    let file = format!("/proc/{process}/task/{process}/schedstat");
    let text = fs::read_to_string(&file).expect("Linux keeps account of processor time");
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("a number of nanoseconds"))
}

/// The same, once the thread has come to rest.
pub(crate) fn processor_time_at_rest(process: u32) -> Duration {
    let mut time = processor_time(process);
    loop {
        std::thread::sleep(Duration::from_micros(300));
        let later = processor_time(process);
        if later == time {
            return time;
        }
        time = later;
    }
}
