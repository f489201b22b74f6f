//! Processor time of the server while a lock goes around among blocked clients,
//! beside a token that goes around by `BLPOP` and `RPUSH`.

use std::collections::VecDeque;

use redis::Value;

use crate::connection::Connection;
use crate::processors::{Processors, bind};
use crate::report::{Report, Target};
use crate::rounds::{Rounds, micros, nanos_for_one};
use rlock_testkit::Server;
use rlock_testkit::client::request;

const LEGEND: &str = "  \
16 clients take turns: the one that has the lock (the token) gives it to the next one, which is blocked, and queues again.
  Processor time of the server's main thread for one turn, which is two commands and one hand-off: RLOCK.RELEASE and
  RLOCK.ACQUIRE … WAIT, or RPUSH and BLPOP; rounds and medians as above. Server and clients on one processor each,
  where there are two.";

const CLIENTS: usize = 16;
const ROUNDS: usize = 21;
/// Turns between two looks at the clock.
const BATCH: usize = 100;

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("A lock that goes around", LEGEND);
    let server = Server::start();
    let mut lock = Circle::around_lock(&server);
    let mut token = Circle::around_token(&server);
    let processors = Processors::allowed();
    if let Some([for_server, for_client]) = processors.two() {
        bind(server.process_id(), for_server);
        bind(std::process::id(), for_client);
    }
    let rounds = Rounds::of(section.form().of(ROUNDS, 1), || {
        [&mut token, &mut lock].map(|circle| circle.nanos(&server))
    });
    let [native, rlock] = [0, 1].map(|kind| micros(rounds.nanos(kind)));
    section.row(["BLPOP, RPUSH", &native, ""], None);
    let ratio = rounds.ratio(1, 0);
    section.row(
        [
            "RLOCK.ACQUIRE … WAIT, RLOCK.RELEASE",
            &rlock,
            &format!("{ratio:.2} × BLPOP, RPUSH"),
        ],
        Target::AtMost(1.15, " ×").of(ratio),
    );
    section.end();
}

/// Clients of whom the first has its turn, and the others are blocked.
pub(crate) struct Circle {
    members: VecDeque<Member>,
}

struct Member {
    connection: Connection,
    /// Waits for its turn.
    take: Vec<u8>,
    /// Ends it.
    give: Vec<u8>,
    given: Value,
}

impl Circle {
    pub(crate) fn around_lock(server: &Server) -> Self {
        Self::of(
            server,
            (0..CLIENTS).map(|number| {
                let owner = format!("8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a:{number}");
                Member {
                    connection: Connection::new(server.port()),
                    take: request(&["RLOCK.ACQUIRE", "lock", &owner, "30000", "WAIT", "60000"]),
                    give: request(&["RLOCK.RELEASE", "lock", &owner]),
                    given: Value::Int(0),
                }
            }),
        )
    }

    pub(crate) fn around_token(server: &Server) -> Self {
        Connection::new(server.port()).call("RPUSH token it");
        Self::of(
            server,
            (0..CLIENTS).map(|_| Member {
                connection: Connection::new(server.port()),
                take: request(&["BLPOP", "token", "60"]),
                give: request(&["RPUSH", "token", "it"]),
                given: Value::Int(1),
            }),
        )
    }

    fn of(server: &Server, members: impl Iterator<Item = Member>) -> Self {
        let mut control = Connection::new(server.port());
        let mut members: VecDeque<_> = members.collect();
        for (number, member) in members.iter_mut().enumerate() {
            member.connection.send(&member.take);
            if number == 0 {
                member.await_turn();
            }
            // It is queued when this comes back, before the next one asks.
            control.ping();
        }
        Self { members }
    }

    /// The first one gives its turn to the next, and queues again.
    fn turn(&mut self) {
        let mut first = self.members.pop_front().expect("there are some");
        first.connection.send(&first.give);
        assert_eq!(first.connection.reply(), first.given, "it was its turn");
        let next = self.members.front_mut().expect("there are some");
        next.await_turn();
        first.connection.send(&first.take);
        self.members.push_back(first);
    }

    pub(crate) fn turn_often(&mut self, turns: usize) {
        (0..turns).for_each(|_| self.turn());
    }

    /// Nanoseconds of the server's time for one turn.
    fn nanos(&mut self, server: &Server) -> f64 {
        nanos_for_one(server.process_id(), BATCH, || self.turn_often(BATCH))
    }
}

impl Member {
    fn await_turn(&mut self) {
        let reply = self.connection.reply();
        let is_turn = matches!(reply, Value::Int(_) | Value::Array(_));
        assert!(is_turn, "no turn, but {reply:?}");
    }
}
