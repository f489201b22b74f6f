//! From a release to the next one's knowing.

use std::collections::VecDeque;
use std::time::Instant;

use hdrhistogram::Histogram;
use redis::Value;

use crate::connection::{Connection, PING, message};
use crate::processors::{Processors, bind};
use crate::report::{Report, Section, Target, grouped, median_micros, quantiles, record, times};
use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::request;

const LEGEND: &str = "  \
From sending RLOCK.RELEASE on one connection to the arrival, on another one, of the next one's fence: as the reply
  to its call that is blocked in WAIT, or as the message to its NOTIFY channel. PING: there and back on one connection.
  BLPOP: from sending RPUSH, what the server itself has for waiting. One thread sends and waits; all in turns; who had
  the lock queues again, last, between two times. 400 of the 10,000 are blocked, evenly among the others. On one
  processor nobody is woken before the server has finished its turn; on two, most of the time is a processor's waking.";

const TARGET: Target = Target::AtMost(1.3, " ×");
const FEW: usize = 10;
const MANY: usize = 10_000;
const MANY_QUICK: usize = 200;
/// One of this many waiters is blocked on a connection of its own; the
/// others wait by message.
const ONE_BLOCKED_OF: usize = 25;

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Hand-off", LEGEND);
    let processors = Processors::allowed();
    let two = processors.two();
    section.group("server and client on one processor");
    measure_on(&mut section, [processors.one(); 2]);
    if let Some(two) = two {
        section.group("server and client on one processor each");
        measure_on(&mut section, two);
    }
    section.end();
}

fn measure_on(section: &mut Section<'_>, [for_server, for_client]: [&str; 2]) {
    let server = Setup::new().module_arguments("max-waiters 20000").start();
    let mut control = Connection::new(server.port());
    let len = section.form().of(MANY, MANY_QUICK);
    let mut few = Line::queue(&server, "few", FEW, 2);
    let mut many = Line::queue(&server, "many", len, ONE_BLOCKED_OF);
    let mut lists = [FEW, len / ONE_BLOCKED_OF].map(|len| List::popped_by_turns(&server, len));
    let mut pings = times();
    bind(server.process_id(), for_server);
    bind(std::process::id(), for_client);
    // Once around the long queue.
    for _ in 0..len {
        few.hand_off(&mut control);
        ping(&mut control, &mut pings);
        for list in &mut lists {
            list.hand_off(&mut control);
            ping(&mut control, &mut pings);
        }
        many.hand_off(&mut control);
        ping(&mut control, &mut pings);
    }
    show(section, (&pings, &lists), [&few, &many]);
}

fn show(
    section: &mut Section<'_>,
    (pings, lists): (&Histogram<u64>, &[List; 2]),
    [few, many]: [&Line; 2],
) {
    let len = grouped(many.len());
    let to_ping = |times| median_micros(times) / median_micros(pings);
    section.row(["  PING", &quantiles(pings), ""], None);
    for list in lists {
        let what = format!("  BLPOP, answered by RPUSH, {} blocked", list.waiters.len());
        let compared = format!("{:.2} × PING", to_ping(&list.popped));
        section.row([&what, &quantiles(&list.popped), &compared], None);
    }
    let kinds = [
        ("blocked in WAIT", &few.blocked, &many.blocked, Some(TARGET)),
        ("by NOTIFY", &few.notified, &many.notified, None),
    ];
    for (how, few, many, to_ping_target) in kinds {
        let what = format!("  {how}, {FEW} queued");
        let ratio = to_ping(few);
        let compared = format!("{ratio:.2} × PING");
        let goal = to_ping_target.and_then(|target| target.of(ratio));
        section.row([&what, &quantiles(few), &compared], goal);

        let what = format!("  {how}, {len} queued");
        let ratio = median_micros(many) / median_micros(few);
        let compared = format!("{ratio:.2} × {FEW} queued");
        let goal = TARGET.of(ratio);
        section.row([&what, &quantiles(many), &compared], goal);
    }
}

fn ping(connection: &mut Connection, times: &mut Histogram<u64>) {
    let start = Instant::now();
    connection.send(PING);
    connection.await_arrival();
    record(times, start.elapsed());
    connection.reply();
}

/// What the server itself has for waiting: clients blocked for a list.
struct List {
    push: Vec<u8>,
    pop: Vec<u8>,
    waiters: VecDeque<Connection>,
    popped: Histogram<u64>,
}

impl List {
    /// A list that `len` clients are blocked for.
    fn popped_by_turns(server: &Server, len: usize) -> Self {
        let key = format!("list:{len}");
        let mut list = Self {
            push: request(&["RPUSH", &key, "element"]),
            pop: request(&["BLPOP", &key, "0"]),
            waiters: VecDeque::new(),
            popped: times(),
        };
        for _ in 0..len {
            list.block(Connection::new(server.port()));
        }
        list
    }

    fn block(&mut self, mut connection: Connection) {
        connection.send(&self.pop);
        self.waiters.push_back(connection);
    }

    /// One element for the first who waits, who waits again.
    fn hand_off(&mut self, control: &mut Connection) {
        let mut next = self.waiters.pop_front().expect("somebody waits");
        let start = Instant::now();
        control.send(&self.push);
        next.await_arrival();
        record(&mut self.popped, start.elapsed());
        next.reply();
        control.reply();
        self.block(next);
        control.ping();
    }
}

/// A lock, its holder, and all who wait for it.
struct Line {
    holder: Waiter,
    waiters: VecDeque<Waiter>,
    /// Asks for those who wait by message.
    asking: Connection,
    /// Hears the messages.
    hearing: Connection,
    blocked: Histogram<u64>,
    notified: Histogram<u64>,
}

struct Waiter {
    request: Vec<u8>,
    release: Vec<u8>,
    /// How a message for it ends.
    address: String,
    /// The connection that is blocked, of one who does not wait by message.
    blocks: Option<Connection>,
}

impl Waiter {
    fn new(key: &str, channel: &str, number: usize, blocks: Option<Connection>) -> Self {
        // Nobody is in both lines: somebody who held the one lock and waited for
        // the other would be part of a deadlock.
        let owner = format!("8f14e45f-ceea-467f-9a5b-1c0d2b6f3e4a:{key}:{number}");
        let mut words = vec!["RLOCK.ACQUIRE", key, &owner, "600000", "WAIT", "0"];
        if blocks.is_none() {
            words.extend(["NOTIFY", channel]);
        }
        Self {
            request: request(&words),
            release: request(&["RLOCK.RELEASE", key, &owner]),
            address: format!(" {owner} {key}"),
            blocks,
        }
    }
}

impl Line {
    /// A lock that is held, with `len` waiters; one of `one_blocked_of` of them is
    /// blocked, evenly among the others.
    fn queue(server: &Server, key: &str, len: usize, one_blocked_of: usize) -> Self {
        let channel = format!("{key}:granted");
        let mut line = Self {
            holder: Waiter::new(key, &channel, 0, None),
            waiters: VecDeque::new(),
            asking: Connection::new(server.port()),
            hearing: Connection::listening(server.port(), &channel),
            blocked: times(),
            notified: times(),
        };
        line.asking.send(&line.holder.request);
        assert!(
            matches!(line.asking.reply(), Value::Int(_)),
            "a free lock is granted"
        );
        for number in 1..=len {
            let blocks = number % one_blocked_of == 0;
            let connection = blocks.then(|| Connection::new(server.port()));
            let waiter = Waiter::new(key, &channel, number, connection);
            line.enqueue(waiter);
        }
        server.await_queued(key, len);
        line
    }

    /// How many are queued.
    fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Asks for one more, who is last.
    fn enqueue(&mut self, mut waiter: Waiter) {
        if let Some(connection) = &mut waiter.blocks {
            connection.send(&waiter.request);
        } else {
            self.asking.send(&waiter.request);
            let reply = self.asking.reply();
            assert_eq!(reply, Value::SimpleString("WAITING".into()));
        }
        self.waiters.push_back(waiter);
    }

    /// The holder releases, and queues again when the next one has the lock.
    fn hand_off(&mut self, control: &mut Connection) {
        let mut next = self.waiters.pop_front().expect("somebody waits");
        let start = Instant::now();
        control.send(&self.holder.release);
        match &mut next.blocks {
            Some(connection) => {
                connection.await_arrival();
                record(&mut self.blocked, start.elapsed());
                let reply = connection.reply();
                assert!(matches!(reply, Value::Int(_)), "no fence: {reply:?}");
            }
            None => {
                self.hearing.await_arrival();
                record(&mut self.notified, start.elapsed());
                let message = message(&self.hearing.reply());
                assert!(message.ends_with(&next.address), "whose is {message}?");
            }
        }
        assert_eq!(control.reply(), Value::Int(0), "it was released");
        let former = std::mem::replace(&mut self.holder, next);
        self.enqueue(former);
        // Whatever was left to do is done when the server answers this.
        control.ping();
    }
}
