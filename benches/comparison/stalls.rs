//! How long the server stalls, at the worst: the longest PING while
//! something big happens.

#[path = "stalls/holders.rs"]
mod holders;
#[path = "stalls/queues.rs"]
mod queues;
#[path = "stalls/readers.rs"]
mod readers;

use std::thread;
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::pinger::Pinger;
use crate::report::{Form, Report, Section, Target, millis};
use rlock_testkit::Server;

const LEGEND: &str = "  \
The longest PING round trip, on a connection of its own, while something big happens: the least of three runs, each
  on a new server (fewer of what takes more than a minute). Idle: the longest PING within 200 ms before that, what this
  machine takes without any reason; the least of the runs, too. Where the server itself takes long for as many plain
  keys, fields or clients, that is the target, if it is more than 5 ms.";

const RUNS: usize = 3;
/// What has taken so long is not run once more.
const RUNS_LAST: Duration = Duration::from_secs(60);
const TARGET_MS: f64 = 5.0;
/// How long to look on when all is done, for what is left to later turns.
const AFTERWARDS: Duration = Duration::from_millis(50);

/// What may happen: sets it up on a new server, and measures.
type Situation = fn(Form) -> Vec<Stall>;

const SITUATIONS: [Situation; 9] = [
    queues::requests_of_many_keys_end,
    queues::one_more_beside_requests_of_many_keys,
    queues::one_owner_waits_for_many_locks,
    holders::databases_are_swapped,
    holders::locks_become_many,
    holders::a_lock_of_many_holders_is_changed,
    readers::many_are_let_in_and_lose_it,
    readers::leases_of_many_end_together,
    readers::grants_are_undelivered,
];

/// The longest PINGs of one situation.
struct Stall {
    what: String,
    busy: Duration,
    idle: Duration,
    native: Option<Native>,
}

/// What the server itself takes for something alike.
struct Native {
    what: &'static str,
    longest: Duration,
}

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("The longest PING", LEGEND);
    let form = section.form();
    for situation in SITUATIONS {
        let start = Instant::now();
        let is_time = |run: &usize| *run == 0 || start.elapsed() < RUNS_LAST;
        let runs = (0..form.of(RUNS, 1)).take_while(is_time);
        let runs = runs.map(|_| situation(form));
        let least = runs.reduce(|least, run| {
            let pairs = least.into_iter().zip(run);
            pairs.map(|(one, other)| one.least(other)).collect()
        });
        for stall in least.into_iter().flatten() {
            stall.show(&mut section);
        }
    }
    section.end();
}

impl Stall {
    /// The same, beside what the server takes for something alike.
    fn beside(mut self, what: &'static str, longest: Duration) -> Self {
        self.native = Some(Native { what, longest });
        self
    }

    /// The least of two runs.
    fn least(mut self, other: Self) -> Self {
        self.busy = self.busy.min(other.busy);
        self.idle = self.idle.min(other.idle);
        if let (Some(native), Some(other)) = (&mut self.native, other.native) {
            native.longest = native.longest.min(other.longest);
        }
        self
    }

    fn show(&self, section: &mut Section<'_>) {
        let busy = millis(self.busy);
        let mut compared = format!("idle {:.1} ms", millis(self.idle));
        let mut most = TARGET_MS;
        if let Some(Native { what, longest }) = &self.native {
            compared += &format!(", {what} {:.1} ms", millis(*longest));
            // As it is shown.
            most = most.max((millis(*longest) * 10.0).round() / 10.0);
        }
        section.row(
            [&self.what, &format!("{busy:.1} ms"), &compared],
            Target::AtMost(most, " ms").of(busy),
        );
    }
}

/// The longest PING while this many plain keys are set by one command, and
/// while they are deleted by another.
fn as_many_keys(scene: &mut Scene, count: usize) -> [Duration; 2] {
    let keys = |after: &'static str| (0..count).map(move |it| format!(" plain:{it}{after}"));
    let [set, del] = [("MSET", " 1790000000000000"), ("DEL", "")];
    [set, del].map(|(command, after)| {
        let line = keys(after).fold(command.to_owned(), |line, key| line + &key);
        scene.longest_ping(|connection| drop(connection.call(&line)))
    })
}

/// A new server, somebody who pings it, and a connection to do things with.
struct Scene {
    connection: Connection,
    pinger: Pinger,
    server: Server,
}

impl Scene {
    fn new() -> Self {
        let lines = ["rlock.max-waiters 1000000", "rlock.max-watches 1000000"];
        let server = Server::configured(&lines);
        Self {
            connection: Connection::new(server.port()),
            pinger: Pinger::start(server.port()),
            server,
        }
    }

    /// The longest PING while something is done.
    fn longest_ping(&mut self, work: impl FnOnce(&mut Connection)) -> Duration {
        self.pinger.during(|| {
            work(&mut self.connection);
            thread::sleep(AFTERWARDS);
        })
    }

    /// Measures what something does to others.
    fn stall(&mut self, what: String, work: impl FnOnce(&mut Connection)) -> Stall {
        let idle = self.pinger.idle(Duration::from_millis(200));
        Stall {
            what,
            idle,
            busy: self.longest_ping(work),
            native: None,
        }
    }
}
