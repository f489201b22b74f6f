//! Processor time of the server for an uncontended acquire and release.

use redis::Value;

use crate::connection::Connection;
use crate::report::{Report, Section, Target};
use crate::rounds::{Rounds, micros, nanos_for_one};
use rlock_testkit::client::{request, text, words};
use rlock_testkit::{Server, replicated};

const LEGEND: &str = "  \
Processor time of the server's main thread for one pair. One pipelined connection, 500 pairs on 500 keys at a time. All
  kinds take turns, in rounds of 50 ms: medians of the rounds, and of the ratios within a round. Owners and values have
  38 bytes. With NOTIFY: what a client sends that shares one connection for many waits, WAIT 10000 NOTIFY, and somebody
  listens.
  The scripts do what a lock by Lua does: EXISTS, HINCRBY, PEXPIRE; HEXISTS, HINCRBY, DEL, PUBLISH.";

const ROUNDS: usize = 15;
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
    let rounds = Rounds::of(section.form().of(ROUNDS, 1), || {
        kinds
            .each_ref()
            .map(|kind| kind.nanos(&mut connection, server))
    });
    let goal = |target: Target, ratio| match targets {
        Targets::Apply => target.of(ratio),
        Targets::None => None,
    };
    let mut row = |what, kind, compared: String, goal| {
        section.row([what, &micros(rounds.nanos(kind)), &compared], goal);
    };
    row("  SET NX PX, DEL", NATIVE, String::new(), None);
    let ratio = rounds.ratio(RLOCK, NATIVE);
    row(
        "  RLOCK.ACQUIRE, RLOCK.RELEASE",
        RLOCK,
        format!("{ratio:.2} × SET, DEL"),
        goal(Target::AtMost(2.5, " ×"), ratio),
    );
    let added = 100.0 * (rounds.ratio(NOTIFIED, RLOCK) - 1.0);
    row(
        "  the same with NOTIFY",
        NOTIFIED,
        format!("{added:.0} % more"),
        goal(Target::AtMost(15.0, " %"), added),
    );
    let ratio = rounds.ratio(SCRIPTS, RLOCK);
    row(
        "  two Lua scripts by EVALSHA",
        SCRIPTS,
        format!("{ratio:.2} × RLOCK"),
        goal(Target::AtLeast(2.7, " ×"), ratio),
    );
    let compared = format!("{:.2} × SET, DEL", rounds.ratio(NOTHING, NATIVE));
    row("  two RLOCK.CANCEL of nothing", NOTHING, compared, None);
}

/// A kind of pair, many times over.
pub(crate) struct Kind {
    requests: Vec<Vec<u8>>,
    batch: Vec<u8>,
    replies: [fn(&Value) -> bool; 2],
}

impl Kind {
    /// Pairs that are sent at once.
    pub(crate) const BATCH: usize = 500;

    /// A string that is set and deleted.
    pub(crate) fn native() -> Self {
        Self::new([|reply| *reply == Value::Okay, is_one], |key| {
            [
                format!("SET {key} {OWNER} NX PX 30000"),
                format!("DEL {key}"),
            ]
        })
    }

    /// A lock that is acquired and released.
    pub(crate) fn rlock() -> Self {
        Self::new([is_fence, is_zero], |key| {
            [
                format!("RLOCK.ACQUIRE {key} {OWNER} 30000"),
                format!("RLOCK.RELEASE {key} {OWNER}"),
            ]
        })
    }

    pub(crate) fn new(
        replies: [fn(&Value) -> bool; 2],
        pair: impl Fn(&str) -> [String; 2],
    ) -> Self {
        let pairs = (0..Self::BATCH).flat_map(|number| pair(&format!("invoice:{number}")));
        let requests: Vec<_> = pairs.map(|line| request(&words(&line))).collect();
        Self {
            batch: requests.concat(),
            requests,
            replies,
        }
    }

    pub(crate) fn run(&self, connection: &mut Connection) {
        connection.send(&self.batch);
        for is_expected in self.replies.iter().cycle().take(2 * Self::BATCH) {
            Self::take_reply(connection, is_expected);
        }
    }

    /// Nanoseconds of the server's time for a pair, all pairs at once.
    pub(crate) fn nanos(&self, connection: &mut Connection, server: &Server) -> f64 {
        nanos_for_one(server.process_id(), Self::BATCH, || self.run(connection))
    }

    /// The same, one command after the other.
    pub(crate) fn nanos_one_by_one(&self, connection: &mut Connection, server: &Server) -> f64 {
        nanos_for_one(server.process_id(), Self::BATCH, || {
            self.run_one_by_one(connection);
        })
    }

    fn run_one_by_one(&self, connection: &mut Connection) {
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

/// By native commands.
pub(crate) const NATIVE: usize = 0;
/// By the module.
pub(crate) const RLOCK: usize = 1;
/// The same with `NOTIFY`.
pub(crate) const NOTIFIED: usize = 2;
pub(crate) const SCRIPTS: usize = 3;
/// Two commands of the module that find nothing to do.
const NOTHING: usize = 4;

/// The kinds, by the numbers above.
pub(crate) fn kinds(connection: &mut Connection) -> [Kind; 5] {
    let acquire = load(connection, include_str!("acquire.lua"));
    let release = load(connection, include_str!("release.lua"));
    [
        Kind::native(),
        Kind::rlock(),
        Kind::new([is_fence, is_zero], |key| {
            [
                format!("RLOCK.ACQUIRE {key} {OWNER} 30000 WAIT 10000 NOTIFY {CHANNEL}"),
                format!("RLOCK.RELEASE {key} {OWNER}"),
            ]
        }),
        Kind::new([|reply| *reply == Value::Nil, is_one], |key| {
            let channel = format!("redisson_lock__channel:{{{key}}}");
            [
                format!("EVALSHA {acquire} 1 {key} 30000 {OWNER}"),
                format!("EVALSHA {release} 2 {key} {channel} 30000 {OWNER}"),
            ]
        }),
        Kind::new([is_zero, is_zero], |key| {
            let nothing = format!("RLOCK.CANCEL {key} {OWNER}");
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
