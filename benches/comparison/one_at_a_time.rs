//! Processor time of the server for a caller who sends one command at a time,
//! as most do.

use crate::connection::Connection;
use crate::cost::{BATCH, CHANNEL, Kind, kinds, micros, nanos_for_one};
use crate::processors::{Processors, bind};
use crate::report::{Report, Section, Target, median};
use crate::server::Server;

const LEGEND: &str = "  \
Processor time of the server's main thread for one pair, when each command waits for the reply to the one before. All
  kinds in turns, in many short rounds; medians of the rounds, and of the ratios within a round. Server and client
  on one processor each, where there are two.";

/// A round is 50 ms of the server's time for each kind.
const ROUNDS: usize = 21;

pub(crate) fn measure(report: &mut Report) {
    let mut section = report.section("Acquire and release, one command at a time", LEGEND);
    let server = Server::start();
    let processors = Processors::allowed();
    if let Some([for_server, for_client]) = processors.two() {
        bind(server.process_id(), for_server);
        bind(std::process::id(), for_client);
    }
    let rounds = rounds(&section, &server);
    show(&mut section, &rounds);
    section.end();
}

/// Nanoseconds for a pair of each kind, in each round.
fn rounds(section: &Section<'_>, server: &Server) -> Vec<[f64; 4]> {
    let mut connection = Connection::new(server.port());
    let _hearing = Connection::listening(server.port(), CHANNEL);
    let [native, rlock, notified, scripts, _] = kinds(&mut connection);
    let kinds = [native, rlock, notified, scripts];
    let mut round = |kind: &Kind| {
        nanos_for_one(server.process_id(), BATCH, || {
            kind.run_one_by_one(&mut connection);
        })
    };
    let count = section.form().of(ROUNDS, 1);
    (0..count)
        .map(|_| kinds.each_ref().map(&mut round))
        .collect()
}

fn show(section: &mut Section<'_>, rounds: &[[f64; 4]]) {
    let middle = |of: fn(&[f64; 4]) -> f64| median(rounds.iter().map(of));
    let native = middle(|[native, ..]| *native);
    section.row(["SET NX PX, DEL", &micros(native), ""], None);

    let rlock = middle(|[_, rlock, ..]| *rlock);
    let ratio = middle(|[native, rlock, ..]| rlock / native);
    section.row(
        [
            "RLOCK.ACQUIRE, RLOCK.RELEASE",
            &micros(rlock),
            &format!("{ratio:.2} × SET, DEL"),
        ],
        Target::AtMost(1.3, " ×").of(ratio),
    );

    let notified = middle(|[_, _, notified, _]| *notified);
    let ratio = middle(|[native, _, notified, _]| notified / native);
    section.row(
        [
            "the same with NOTIFY",
            &micros(notified),
            &format!("{ratio:.2} × SET, DEL"),
        ],
        Target::AtMost(1.4, " ×").of(ratio),
    );
    let added = middle(|[_, rlock, notified, _]| 100.0 * (notified / rlock - 1.0));
    section.row(
        ["what NOTIFY adds", &format!("{added:.0} %"), ""],
        Target::AtMost(15.0, " %").of(added),
    );

    let scripts = middle(|[.., scripts]| *scripts);
    let ratio = middle(|[native, .., scripts]| scripts / native);
    let compared = format!("{ratio:.2} × SET, DEL");
    section.row(
        ["two Lua scripts by EVALSHA", &micros(scripts), &compared],
        None,
    );
}
