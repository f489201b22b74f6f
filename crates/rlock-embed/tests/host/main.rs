//! A machine with a host in Rust, on a real server; and recorded runs, which check every host.

mod configuration;
mod form;
mod host;

use std::path::PathBuf;
use std::time::Duration;

use configuration::configured;
use form::{answer, fields, fields_of_event, shown};
use host::{EXCLUSIVE, Host};
use rlock_embed::format::{NONE, Reader};
use rlock_embed::messages::{self, Access, Action, Ending, Event, Mode, Together, read_output};
use rlock_embed::{Machine, Malformed};
use rlock_testkit::{Server, eventually};
use serde_json::{Value, json};

const SHARED: Mode = Mode {
    mode: Access::Shared,
    ..EXCLUSIVE
};

const fn permits(permits: u32, limit: u32) -> Mode {
    let mode = Access::Permits;
    Mode {
        mode,
        permits,
        limit,
    }
}

fn is_over(guard: u64) -> impl Fn(&Action<'_>) -> bool {
    move |it| matches!(it, Action::Over { guard: told, .. } if *told == guard)
}

/// A run of one client beside another one, with most kinds of events.
fn run(server: &Server) -> Host {
    let (url, mut other) = (server.url(), Host::new(&server.url(), "other"));
    let mut host = Host::new(&url, "host");
    let connect = host.call(|call| Event::Connect { call });
    assert_eq!(host.end(connect), "done");

    let first = host.lock(&["k"], EXCLUSIVE);
    let tried = other.ask(&["k"], EXCLUSIVE, Some(Duration::ZERO));
    assert_eq!(other.end(tried), "refused");
    let waits = other.ask(&["k"], EXCLUSIVE, Some(Duration::from_secs(5)));
    eventually("it waits", || {
        other.look();
        server.queued("k") == 1
    });
    assert_eq!(host.release(first), "done");
    let fences = other.granted(waits);
    assert_eq!(fences.len(), 1);
    assert_eq!(other.release(waits), "done");

    let all = host.lock(&["b", "a"], EXCLUSIVE);
    assert_eq!(host.release(all), "done");
    let permits = host.lock(&["p"], permits(2, 3));
    assert_eq!(host.release(permits), "done");

    let reads = host.lock(&["r"], SHARED);
    let (guard, wait) = (reads, Some(Duration::ZERO));
    let upgrade = host.call(|call| Event::Upgrade { call, guard, wait });
    assert_eq!(host.granted(upgrade).len(), 1);
    let lease = Duration::from_secs(60);
    let extend = host.call(|call| Event::Extend { call, guard, lease });
    assert_eq!(host.end(extend), "done");
    let downgrade = host.call(|call| Event::Downgrade { call, guard });
    assert_eq!(host.end(downgrade), "done");
    assert_eq!(host.release(reads), "done");

    let question = host.call(|call| Event::Question {
        call,
        key: b"k",
        words: vec![b"RLOCK.INFO", b"k"],
        changes: false,
        limit: None,
    });
    let is_answer =
        |it: &Action<'_>| matches!(it, Action::Answered { call, .. } if *call == question);
    let Action::Answered { answers, .. } = host.told("an answer", is_answer) else {
        panic!("no answer");
    };
    assert_eq!(answer(&answers)[0]["mode"], "free");

    let observer = host.call(|call| Event::Observe { call, key: b"led" });
    assert_eq!(host.leader(observer), None);
    let leads = host.campaign("led", "a:1");
    let (fence, value) = host.leader(observer).expect("a leader");
    assert_eq!(value, b"a:1");
    let (guard, value) = (leads, b"a:2");
    let proclaim = host.call(|call| Event::Proclaim { call, guard, value });
    assert_eq!(host.end(proclaim), "done");
    assert_eq!(host.leader(observer), Some((fence, &b"a:2"[..])));
    let asked = host.call(|call| Event::Leader { call, key: b"led" });
    assert_eq!(host.leader(asked), Some((fence, &b"a:2"[..])));
    assert_eq!(host.release(leads), "done");
    assert_eq!(host.leader(observer), None);
    host.handle(Event::Abandon { call: observer });

    let lost = host.lock(&["lost"], EXCLUSIVE);
    assert!(host.is_valid(lost));
    server.ask("RLOCK.FORCE lost");
    assert_eq!(
        host.told("the loss", is_over(lost)),
        Action::Over {
            guard: lost,
            why: Ending::EndedByServer
        }
    );
    assert!(!host.is_valid(lost));
    assert_eq!(host.release(lost), "Lost");

    let held = host.lock(&["held"], EXCLUSIVE);
    host.cut();
    assert!(host.is_valid(held));
    assert_eq!(host.release(held), "done");

    host.handle(Event::LeaveAll {});
    let flush = host.call(|call| Event::Flush { call });
    assert_eq!(host.end(flush), "done");
    host.handle(Event::Closed {});
    host
}

#[test]
fn a_machine_with_a_host_is_a_client() {
    let server = Server::start();
    let host = run(&server);
    if std::env::var_os("RLOCK_RECORD").is_some() {
        std::fs::write(recording(), recorded(&host)).unwrap();
    }
}

#[test]
fn a_wait_that_is_given_up_leaves_nothing() {
    let server = Server::start();
    let (mut host, mut other) = (
        Host::new(&server.url(), "host"),
        Host::new(&server.url(), "o"),
    );
    let held = other.lock(&["k"], EXCLUSIVE);
    let waits = host.ask(&["k"], EXCLUSIVE, None);
    eventually("it waits", || {
        host.look();
        server.queued("k") == 1
    });
    host.handle(Event::Abandon { call: waits });
    eventually("it has left", || {
        host.look();
        server.queued("k") == 0
    });
    assert_eq!(other.release(held), "done");
    // Nobody received this grant.
    let untaken = host.lock(&["k"], EXCLUSIVE);
    host.handle(Event::Untaken { guard: untaken });
    eventually("it is free", || {
        host.look();
        server.ask("EXISTS k") == "0"
    });
}

#[test]
fn some_permits_are_released_and_the_rest_stays() {
    let server = Server::start();
    let (mut host, mut other) = (
        Host::new(&server.url(), "host"),
        Host::new(&server.url(), "o"),
    );
    let guard = host.lock(&["p"], permits(3, 3));
    let releases = |host: &mut Host, permits| {
        let call = host.call(|call| Event::ReleasePermits {
            call,
            guard,
            permits,
        });
        host.end(call)
    };
    let is_refused = |other: &mut Host, count| {
        let tried = other.ask(&["p"], permits(count, 3), Some(Duration::ZERO));
        other.end(tried) == "refused"
    };
    for wrong in [0, 4, u32::MAX] {
        assert_eq!(releases(&mut host, wrong), "OutOfRange", "{wrong}");
    }
    assert!(is_refused(&mut other, 1));
    assert_eq!(releases(&mut host, 1), "done");
    let one = other.lock(&["p"], permits(1, 3));
    assert_eq!(releases(&mut host, 3), "OutOfRange");
    assert!(host.is_valid(guard));
    assert_eq!(other.release(one), "done");
    assert!(is_refused(&mut other, 2));
    assert_eq!(releases(&mut host, 2), "done");
    assert!(!host.is_valid(guard));
    assert_eq!(releases(&mut host, 1), "Lost");
    assert_eq!(server.ask("EXISTS p"), "0");
}

#[test]
fn a_release_with_a_time_out_of_range_frees_nothing() {
    let server = Server::start();
    let mut host = Host::new(&server.url(), "host");
    let guard = host.lock(&["k"], EXCLUSIVE);
    let least = Some(Duration::from_secs(31 * 24 * 60 * 60));
    let call = host.call(|call| Event::Release { call, guard, least });
    assert_eq!(host.end(call), "OutOfRange");
    assert!(!host.is_valid(guard));
    let flush = host.call(|call| Event::Flush { call });
    assert_eq!(host.end(flush), "done");
    assert_eq!(server.ask("EXISTS k"), "1");
}

#[test]
fn bad_arguments_are_named() {
    for url in ["http://x", "redis://", ""] {
        let wrong = Machine::new(&configured(&[url], Together::Single, ""))
            .err()
            .unwrap();
        assert!(wrong.starts_with("url is "), "{url}: {wrong}");
    }
    let wrong = Machine::new(&configured(&["redis://x"], Together::Single, "a b"))
        .err()
        .unwrap();
    assert!(wrong.contains("name"), "{wrong}");
    for (wrong, why) in [
        (vec![1, 0, 0, 0], "version"),
        (configured(&[], Together::Single, ""), "not one URL"),
        (
            configured(&["redis://x"; 2], Together::Single, ""),
            "not one URL",
        ),
        (
            configured(&[], Together::Quorum, ""),
            "members is 0 servers",
        ),
        (
            configured(&["redis://x", ""], Together::AnyGrace, ""),
            "members[1] is ",
        ),
    ] {
        let told = Machine::new(&wrong).err().unwrap();
        assert!(told.contains(why), "{told}");
    }
    let mut host = Host::new("redis://127.0.0.1:1", "");
    for (keys, mode) in [
        (&[][..], EXCLUSIVE),
        (&["a", "a"], EXCLUSIVE),
        (&["a", "b"], SHARED),
        (&["a"], permits(2, 1)),
        (&["a"], permits(0, 1)),
    ] {
        let call = host.ask(keys, mode, Some(Duration::ZERO));
        assert_eq!(host.end(call), "OutOfRange", "{keys:?}");
    }
    let call = host.asks_to_lead("a", &[b'x'; 1025], Some(Duration::ZERO));
    assert_eq!(host.end(call), "OutOfRange");
}

#[test]
fn observers_end_with_their_client_and_are_told_why() {
    let server = Server::start();
    let mut host = Host::new(&server.url(), "host");
    let left = host.call(|call| Event::Observe { call, key: b"k" });
    assert_eq!(host.leader(left), None);
    host.handle(Event::Abandon { call: left });
    let mut observers: Vec<u64> = Vec::new();
    for _ in 0..2 {
        observers.push(host.call(|call| Event::Observe { call, key: b"k" }));
    }
    for observer in &observers {
        assert_eq!(host.leader(*observer), None);
    }
    let mut other = Host::new(&server.url(), "other");
    other.campaign("k", "v");
    for observer in &observers {
        assert_eq!(host.leader(*observer).expect("a leader").1, b"v");
    }
    host.handle(Event::Closed {});
    for observer in observers {
        assert_eq!(host.end(observer), "Closed");
    }
    assert!(!host.is_told_of(left), "it was abandoned");
}

#[test]
fn what_is_no_event_changes_nothing() {
    let record = record();
    let mut machine = begun(&record);
    for step in record["steps"].as_array().unwrap() {
        let (now, event) = (step["now"].as_u64().unwrap(), unhex(&step["event"]));
        for end in 0..event.len() {
            let cut = machine.handle(now, &event[..end], Vec::new());
            assert!(cut.is_err(), "{end} bytes of {}", step["fields"]);
        }
        let longer = [&event[..], &[0]].concat();
        assert!(machine.handle(now, &longer, Vec::new()).is_err());
        let output = machine.handle(now, &event, Vec::new()).unwrap();
        assert_eq!(output, unhex(&step["output"]), "{}", step["fields"]);
    }
    let wrong = machine.handle(NONE, &[99], Vec::new());
    assert_eq!(wrong, Err(Malformed("there is no such event")));
}

#[test]
fn what_is_recorded_is_what_hosts_write_and_read() {
    let record = record();
    let begun = unhex(&record["configuration"]["bytes"]);
    assert_eq!(record["configuration"]["fields"], of_configuration(&begun));
    let mut seen = std::collections::BTreeSet::new();
    for step in record["steps"].as_array().unwrap() {
        let (event, output) = (unhex(&step["event"]), unhex(&step["output"]));
        assert_eq!(step["fields"], json!(fields_of_event(&event)));
        let known = Event::read(&mut Reader::new(&event)).unwrap();
        assert_eq!(known.to_bytes(), event);
        let (deadline, actions) = read_output(&output).unwrap();
        assert_eq!(
            json!((deadline != NONE).then_some(deadline)),
            step["deadline"]
        );
        let shown: Vec<_> = actions.iter().map(shown).collect();
        assert_eq!(json!(shown), step["actions"]);
        seen.insert(step["fields"][0][2].as_u64().unwrap());
    }
    let rest = seen.iter().copied().collect::<Vec<_>>();
    let all = [
        1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21, 22,
    ];
    assert_eq!(rest, all);
}

/// The recorded run; `RLOCK_RECORD=1` records it again.
fn recording() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/host/run.json")
}

fn record() -> Value {
    let text = std::fs::read_to_string(recording()).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn begun(record: &Value) -> Machine {
    Machine::new(&unhex(&record["configuration"]["bytes"])).unwrap()
}

/// One line for each step.
fn recorded(host: &Host) -> String {
    let configuration = json!({
        "fields": of_configuration(&host.configuration),
        "bytes": hex(&host.configuration),
    });
    let steps = host.steps.iter().map(|step| {
        let (deadline, actions) = read_output(&step.output).unwrap();
        let step = json!({
            "now": step.now,
            "fields": fields_of_event(&step.event),
            "event": hex(&step.event),
            "output": hex(&step.output),
            "deadline": (deadline != NONE).then_some(deadline),
            "actions": actions.iter().map(shown).collect::<Vec<_>>(),
        });
        step.to_string()
    });
    let steps: Vec<_> = steps.collect();
    let steps = steps.join(",\n");
    format!("{{\"configuration\":{configuration},\"steps\":[\n{steps}\n]}}\n")
}

fn of_configuration(bytes: &[u8]) -> Value {
    json!(fields(
        messages::configuration(),
        &mut Reader::new(bytes),
        Vec::new()
    ))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &Value) -> Vec<u8> {
    let (pairs, _) = text.as_str().unwrap().as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
    pairs.iter().map(|pair| byte(pair).unwrap()).collect()
}
