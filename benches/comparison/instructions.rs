//! Instructions of the server for an acquire and release, and for a grant of a
//! lock that goes around, counted by valgrind.

use crate::connection::{Connection, message};
use crate::cost::{CHANNEL, Kind, OWNER, is_fence, is_zero};
use crate::report::{Report, Target};
use crate::turns::Circle;
use redis::Value;
use rlock_testkit::Counted;
use rlock_testkit::client::{request, words};

const LEGEND: &str = "  \
Instructions of the server for one pair, 500 pairs on 500 keys at a time, or for one grant: 16 clients take turns as above.
  As clients send it: WAIT 0 KEEP 10000 NOTIFY, and ALL; a grant by message: 8 owners take turns over one connection.
  No AOF, no replica.";

/// Batches of pairs, and turns.
const BATCHES: usize = 4;
const TURNS: usize = 2000;
const TURNS_QUICK: usize = 100;
const OWNERS: usize = 8;

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Instructions", LEGEND);
    let Some(counted) = Counted::start() else {
        section.row(
            [
                "not counted: valgrind is missing, or cannot run the server",
                "",
                "",
            ],
            None,
        );
        return section.end();
    };
    let port = counted.server().port();
    let _hearing = Connection::listening(port, CHANNEL);
    let mut connection = Connection::new(port);
    let batches = section.form().of(BATCHES, 1);
    let turns = section.form().of(TURNS, TURNS_QUICK);
    let pairs = kinds().map(|kind| {
        counted.instructions(batches * Kind::BATCH, || {
            (0..batches).for_each(|_| kind.run(&mut connection));
        })
    });
    let mut token = Circle::around_token(counted.server());
    let token = counted.instructions(turns, || token.turn_often(turns));
    let mut lock = Circle::around_lock(counted.server());
    let blocked = counted.instructions(turns, || lock.turn_often(turns));
    let mut messages = Messages::new(port);
    let by_message = counted.instructions(turns, || (0..turns).for_each(|_| messages.turn()));

    let mut row = |what: &str, count: f64, beside: f64, other: &str, most: f64| {
        let ratio = count / beside;
        let compared = format!("{ratio:.2} × {other}");
        let target = Target::AtMost(most, " ×").of(ratio);
        section.row([what, &format!("{count:.0}"), &compared], target);
    };
    let [native, plain, by_client] = pairs;
    row(
        "RLOCK.ACQUIRE, RLOCK.RELEASE",
        plain,
        native,
        "SET, DEL",
        2.0,
    );
    row(
        "the same as clients send it",
        by_client,
        native,
        "SET, DEL",
        2.5,
    );
    row(
        "a grant to a blocked client",
        blocked,
        token,
        "BLPOP, RPUSH",
        2.3,
    );
    row("a grant by message", by_message, token, "BLPOP, RPUSH", 2.6);
    section.end();
}

fn kinds() -> [Kind; 3] {
    let by_client = Kind::new([is_fence, is_zero], |key| {
        [ask(key, OWNER), format!("RLOCK.RELEASE {key} {OWNER} ALL")]
    });
    [Kind::native(), Kind::rlock(), by_client]
}

/// A request as a client sends it.
fn ask(key: &str, owner: &str) -> String {
    format!("RLOCK.ACQUIRE {key} {owner} 30000 WAIT 0 KEEP 10000 NOTIFY {CHANNEL}")
}

/// Owners of one client that take turns.
struct Messages {
    connection: Connection,
    listening: Connection,
    holder: String,
    fence: String,
}

impl Messages {
    fn new(port: u16) -> Self {
        let listening = Connection::listening(port, CHANNEL);
        let mut connection = Connection::new(port);
        // Owners of another client than those above, which wait for one another.
        let owner = |number| format!("1679091c-5a88-4faf-8e12-3c0d2b6f3e4a:{number}");
        let Value::Int(fence) = connection.call(&ask("turns", &owner(0))) else {
            panic!("the lock was free");
        };
        for number in 1..OWNERS {
            connection.call(&ask("turns", &owner(number)));
        }
        Self {
            connection,
            listening,
            holder: owner(0),
            fence: fence.to_string(),
        }
    }

    /// The holder releases the lock, and asks for it again.
    fn turn(&mut self) {
        let Self { holder, fence, .. } = &*self;
        let lines = [
            format!("RLOCK.RELEASE turns {holder} ALL FENCE {fence}"),
            ask("turns", holder),
        ];
        let both = lines.map(|line| request(&words(&line))).concat();
        self.connection.send(&both);
        self.connection.reply();
        self.connection.reply();
        let grant = message(&self.listening.reply());
        let [_, fence, owner, _] = words(&grant)[..] else {
            panic!("no grant: {grant}");
        };
        (self.fence, self.holder) = (fence.to_owned(), owner.to_owned());
    }
}
