//! Processor time of the server for a caller who sends one command at a time,
//! as most do.

use crate::connection::Connection;
use crate::cost::{CHANNEL, Kind, NATIVE, NOTIFIED, RLOCK, SCRIPTS, kinds};
use crate::processors::{Processors, bind};
use crate::report::{Report, Section, Target};
use crate::rounds::{Rounds, micros};
use rlock_testkit::Server;

const LEGEND: &str = "  \
Processor time of the server's main thread for one pair, when each command waits for the reply to the one before;
  rounds and medians as above. Server and client on one processor each, where there are two.";

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

fn rounds(section: &Section<'_>, server: &Server) -> Rounds<5> {
    let mut connection = Connection::new(server.port());
    let _hearing = Connection::listening(server.port(), CHANNEL);
    let kinds = kinds(&mut connection);
    Rounds::of(section.form().of(ROUNDS, 1), || {
        let nanos = |kind: &Kind| kind.nanos_one_by_one(&mut connection, server);
        kinds.each_ref().map(nanos)
    })
}

fn show(section: &mut Section<'_>, rounds: &Rounds<5>) {
    let mut row = |what, kind, most: Option<f64>| {
        let ratio = rounds.ratio(kind, NATIVE);
        let compared = match kind {
            NATIVE => String::new(),
            _ => format!("{ratio:.2} × SET, DEL"),
        };
        let goal = most.and_then(|most| Target::AtMost(most, " ×").of(ratio));
        section.row([what, &micros(rounds.nanos(kind)), &compared], goal);
    };
    row("SET NX PX, DEL", NATIVE, None);
    row("RLOCK.ACQUIRE, RLOCK.RELEASE", RLOCK, Some(1.3));
    row("the same with NOTIFY", NOTIFIED, Some(1.4));
    row("two Lua scripts by EVALSHA", SCRIPTS, None);
    let added = 100.0 * (rounds.ratio(NOTIFIED, RLOCK) - 1.0);
    section.row(
        ["what NOTIFY adds", &format!("{added:.0} %"), ""],
        Target::AtMost(15.0, " %").of(added),
    );
}
