//! Shared mode, and several keys at once, beside the exclusive pair.

use redis::Value;

use crate::connection::Connection;
use crate::cost::{Kind, OWNER, is_fence, is_zero};
use crate::report::{Report, Target, median};
use crate::rounds::{Rounds, micros};
use rlock_testkit::Server;
use rlock_testkit::client::{request, words};

const LEGEND: &str = "  \
Processor time of the server's main thread for one pair, pipelined, as for the exclusive pair above. Among
  others: the lock is held in shared mode by this many other owners already. Eight keys: MACQUIRE and MRELEASE.";

const TRIP_LEGEND: &str = "  \
One connection, one command at a time, all kinds in turns: medians. Of eight keys, and of one.";

const ROUNDS: usize = 15;
const TRIPS: usize = 2000;

pub(crate) fn measure(report: &mut Report) {
    pairs(report);
    trips(report);
}

fn pairs(report: &mut Report) {
    let mut section = report.section("Shared mode and several keys, uncontended", LEGEND);
    let server = Server::start();
    let mut connection = Connection::new(server.port());
    for others in [1000, 10_000] {
        connection.call_lines(
            (0..others).map(|number| {
                format!("RLOCK.ACQUIRE crowd:{others} {OWNER}:{number} 3600000 SHARED")
            }),
        );
    }
    let kinds = [
        pair(|key| key.to_owned(), ""),
        pair(|key| key.to_owned(), " SHARED"),
        pair(|_| "crowd:1000".to_owned(), " SHARED"),
        pair(|_| "crowd:10000".to_owned(), " SHARED"),
        eight(),
    ];
    let rounds = Rounds::of(section.form().of(ROUNDS, 1), || {
        kinds
            .each_ref()
            .map(|kind| kind.nanos(&mut connection, &server))
    });
    section.row(["exclusive", &micros(rounds.nanos(0)), ""], None);
    let mut row = |what, kind, (to, name), most: f64| {
        let ratio = rounds.ratio(kind, to);
        let compared = format!("{ratio:.2} × {name}");
        let goal = Target::AtMost(most, " ×").of(ratio);
        section.row([what, &micros(rounds.nanos(kind)), &compared], goal);
    };
    let (exclusive, shared) = ((0, "exclusive"), (1, "shared"));
    row("shared", 1, exclusive, 1.25);
    row("shared, among 1,000 others", 2, shared, 1.5);
    row("shared, among 10,000 others", 3, shared, 1.5);
    row("eight keys", 4, exclusive, 5.0);
    section.end();
}

fn pair(key: impl Fn(&str) -> String, mode: &str) -> Kind {
    Kind::new([is_fence, is_zero], |one| {
        let key = key(one);
        [
            format!("RLOCK.ACQUIRE {key} {OWNER} 30000{mode}"),
            format!("RLOCK.RELEASE {key} {OWNER}"),
        ]
    })
}

fn eight() -> Kind {
    let is_eight = |reply: &Value| *reply == Value::Int(8);
    Kind::new([is_fence, is_eight], |one| {
        let keys = eight_keys(one);
        [
            format!("RLOCK.MACQUIRE {OWNER} 30000 8 {keys}"),
            format!("RLOCK.MRELEASE {OWNER} 8 {keys}"),
        ]
    })
}

fn eight_keys(one: &str) -> String {
    (0..8).map(|number| format!("{one}:{number} ")).collect()
}

/// How long a caller waits who sends one command at a time.
fn trips(report: &mut Report) {
    let mut section = report.section("Several keys, round trips", TRIP_LEGEND);
    let server = Server::start();
    let mut connection = Connection::new(server.port());
    let keys = eight_keys("invoice");
    let requests = [
        request(&words(&format!("RLOCK.ACQUIRE invoice {OWNER} 30000"))),
        request(&words(&format!("RLOCK.MACQUIRE {OWNER} 30000 8 {keys}"))),
    ];
    let releases = [
        request(&words(&format!("RLOCK.RELEASE invoice {OWNER}"))),
        request(&words(&format!("RLOCK.MRELEASE {OWNER} 8 {keys}"))),
    ];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..section.form().of(TRIPS, 20) {
        for ((acquire, release), times) in requests.iter().zip(&releases).zip(&mut times) {
            let start = std::time::Instant::now();
            connection.send(acquire);
            connection.await_arrival();
            times.push(start.elapsed().as_secs_f64() * 1e6);
            assert!(is_fence(&connection.reply()), "it was free");
            connection.send(release);
            connection.reply();
        }
    }
    let [one, eight] = times.map(median);
    section.row(["ACQUIRE", &format!("{one:.1} µs"), ""], None);
    let ratio = eight / one;
    section.row(
        [
            "MACQUIRE of eight keys",
            &format!("{eight:.1} µs"),
            &format!("{ratio:.2} × ACQUIRE"),
        ],
        Target::AtMost(4.0, " ×").of(ratio),
    );
    section.end();
}
